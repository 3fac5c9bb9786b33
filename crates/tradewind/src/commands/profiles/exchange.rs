//! Export and import of profiles.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};

use super::STANDARD;
use crate::commands::Ended;
use crate::commands::terminal::{Names, say_line};
use crate::profiles::{Kept, Profile, Profiles};

/// Writes a profile.
pub(super) fn export(kept: &Kept, file: &Path) -> anyhow::Result<()> {
    kept.warn();
    let text = kept.profile.to_text();
    if file == Path::new(STANDARD) {
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Imports a profile. An existing one that is or may be newer is replaced only with `replaces`.
pub(super) fn import(profiles: &Profiles, file: &Path, replaces: bool) -> anyhow::Result<Ended> {
    let is_standard = file == Path::new(STANDARD);
    let shown = if is_standard { "standard input".to_owned() } else { file.display().to_string() };
    let text = if is_standard { read_standard() } else { fs::read_to_string(file) };
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    let (profile, wrong) = Profile::of_text(&text);
    for why in &wrong {
        say_line(format_args!("tradewind: {shown}: {why}; it is ignored"))?;
    }
    let store = &profile.store;
    if store.is_empty() {
        bail!("{shown} is not a profile: it names no store");
    }
    if profile.upload.is_empty() && profile.download.is_empty() {
        bail!("{shown} is not a profile: it has no samples");
    }
    if !replaces
        && let Some(own) = profiles.of(store)
        && !is_replaceable(&own, &profile)
    {
        let (own, new) = (made(&own), made(&profile));
        bail!("the profile of {store} {own}, and this one {new}; use --replace to import it anyway");
    }
    let path = profiles.keep(&profile).context("cannot save the profile")?;
    let line = format!("profile of {store} saved: {}", path.display());
    writeln!(io::stdout(), "{}", Names::of_standard_output().show(&line))?;
    Ok(if wrong.is_empty() { Ended::Done } else { Ended::FoundFaults })
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
    own == new || (is_time(&own.made) && is_time(&new.made) && own.made < new.made)
}

fn made(profile: &Profile) -> String {
    match profile.made.as_str() {
        "" => "has no creation time".to_owned(),
        time => format!("was created at {time}"),
    }
}
