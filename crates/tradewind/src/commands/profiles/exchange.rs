//! Profiles that leave this machine, and those that come from another.

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

/// Keeps a profile. What is newer, or may be, is replaced only where that is asked for.
pub(super) fn import(profiles: &Profiles, file: &Path, replaces: bool) -> anyhow::Result<Ended> {
    let is_standard = file == Path::new(STANDARD);
    let shown = if is_standard { "standard input".to_owned() } else { file.display().to_string() };
    let text = if is_standard { read_standard() } else { fs::read_to_string(file) };
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    let (profile, wrong) = Profile::of_text(&text);
    for why in &wrong {
        say_line(format_args!("tradewind: {shown}: {why}; it is left out"))?;
    }
    let store = &profile.store;
    if store.is_empty() {
        bail!("{shown} is no profile: it names no store");
    }
    if profile.upload.is_empty() && profile.download.is_empty() {
        bail!("{shown} is no profile: it has no samples");
    }
    if !replaces
        && let Some(own) = profiles.of(store)
        && !may_go(&own, &profile)
    {
        let (own, new) = (made(&own), made(&profile));
        bail!("the profile of {store} {own}, and this one {new}; --replace takes it all the same");
    }
    let path = profiles.keep(&profile).context("it cannot be kept")?;
    let line = format!("the profile of {store} is kept in {}", path.display());
    writeln!(io::stdout(), "{}", Names::of_standard_output().show(&line))?;
    Ok(if wrong.is_empty() { Ended::Done } else { Ended::FoundFaults })
}

fn read_standard() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Whether a profile may go for another unasked: it is the same, or certainly older.
fn may_go(own: &Profile, new: &Profile) -> bool {
    // Times of one form are in the order of their letters.
    let is_time = |text: &str| text.len() == "2026-01-01T00:00:00Z".len() && text.ends_with('Z');
    own == new || (is_time(&own.made) && is_time(&new.made) && own.made < new.made)
}

fn made(profile: &Profile) -> String {
    match profile.made.as_str() {
        "" => "does not say when it was made".to_owned(),
        time => format!("was made at {time}"),
    }
}
