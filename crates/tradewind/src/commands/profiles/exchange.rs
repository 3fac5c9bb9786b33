//! Export and import of profiles.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};

use super::STANDARD;
use crate::commands::CommandOutcome;
use crate::commands::terminal::{Names, print_error_line};
use crate::profiles::{Profile, Profiles, SavedProfile};

/// Writes a profile.
pub(super) fn export(saved: &SavedProfile, file: &Path) -> anyhow::Result<()> {
    saved.print_warnings();
    let text = saved.profile.to_text();
    if file == Path::new(STANDARD) {
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Imports a profile. An existing one that is or may be newer is replaced only with `replaces`.
pub(super) fn import(profiles: &Profiles, file: &Path, replaces: bool) -> anyhow::Result<CommandOutcome> {
    let is_standard = file == Path::new(STANDARD);
    let shown = if is_standard { "standard input".to_owned() } else { file.display().to_string() };
    let text = if is_standard { read_standard() } else { fs::read_to_string(file) };
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    let (profile, wrong) = Profile::from_text(&text);
    for why in &wrong {
        print_error_line(format_args!("tradewind: {shown}: {why}; it is ignored"))?;
    }
    let store = &profile.store;
    if store.is_empty() {
        bail!("{shown} is not a profile: it names no store");
    }
    if profile.upload.is_empty() && profile.download.is_empty() {
        bail!("{shown} is not a profile: it has no samples");
    }
    if !replaces
        && let Some(own) = profiles.load(store)
        && !is_replaceable(&own, &profile)
    {
        let (own, new) = (made(&own), made(&profile));
        bail!("the profile of {store} {own}, and this one {new}; use --replace to import it anyway");
    }
    let path = profiles.save(&profile).context("cannot save the profile")?;
    let line = format!("profile of {store} saved: {}", path.display());
    writeln!(io::stdout(), "{}", Names::for_stdout().show(&line))?;
    Ok(if wrong.is_empty() { CommandOutcome::Done } else { CommandOutcome::FoundProblems })
}

fn read_standard() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Returns true if an existing profile may be replaced without a flag: it is equal or certainly older.
fn is_replaceable(own: &Profile, new: &Profile) -> bool {
    // Times of the same format sort lexicographically.
    let is_time = |text: &str| text.len() == "2026-01-01T00:00:00Z".len() && text.ends_with('Z');
    own == new
        || (is_time(&own.measured_at) && is_time(&new.measured_at) && own.measured_at < new.measured_at)
}

fn made(profile: &Profile) -> String {
    match profile.measured_at.as_str() {
        "" => "has no creation time".to_owned(),
        time => format!("was created at {time}"),
    }
}
