//! Export and import of profiles.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};

use super::STANDARD;
use crate::commands::CommandOutcome;
use crate::commands::terminal::{Names, print_error_line};
use crate::profiles::{Profile, Profiles, SavedProfile};

/// Writes a profile to a file or to standard output.
pub(super) fn export(saved: &SavedProfile, file: &Path) -> anyhow::Result<()> {
    saved.print_warnings();
    let text = saved.profile.to_text();
    if file == Path::new(STANDARD) {
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Imports a profile. With `replaces`, it replaces an existing profile even if that one is or may be newer.
pub(super) fn import(profiles: &Profiles, file: &Path, replaces: bool) -> anyhow::Result<CommandOutcome> {
    let is_standard = file == Path::new(STANDARD);
    let shown = if is_standard { "standard input".to_owned() } else { file.display().to_string() };
    let text = if is_standard { read_standard() } else { fs::read_to_string(file) };
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    let (profile, problems) = Profile::from_text(&text);
    for why in &problems {
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
        && let Some(existing) = profiles.load(store)
        && !is_replaceable(&existing, &profile)
    {
        let (existing, new) = (describe_age(&existing), describe_age(&profile));
        bail!("the profile of {store} {existing}, and this one {new}; use --replace to import it anyway");
    }
    let path = profiles.save(&profile).context("cannot save the profile")?;
    let line = format!("profile of {store} saved: {}", path.display());
    writeln!(io::stdout(), "{}", Names::for_stdout().show(&line))?;
    Ok(if problems.is_empty() { CommandOutcome::Done } else { CommandOutcome::FoundProblems })
}

fn read_standard() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Returns true if an existing profile may be replaced without a flag: it is equal or certainly older.
fn is_replaceable(existing: &Profile, new: &Profile) -> bool {
    // Times of the same format sort lexicographically.
    let is_time = |text: &str| text.len() == "2026-01-01T00:00:00Z".len() && text.ends_with('Z');
    existing == new
        || (is_time(&existing.measured_at)
            && is_time(&new.measured_at)
            && existing.measured_at < new.measured_at)
}

/// A predicate about the age of a profile, for a message.
fn describe_age(profile: &Profile) -> String {
    match profile.measured_at.as_str() {
        "" => "has no time of measurement".to_owned(),
        time => format!("was measured at {time}"),
    }
}
