//! How a transfer tells of itself: a bar on a terminal, now and then a line elsewhere, and what failed. A short one that
//! nobody watches says nothing where all went well.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value as Json, json};
use tradewind_core::ObjectStore as _;
use tradewind_core::Timestamp;
use tradewind_model::store_model::{Operation, Outcomes};
use tradewind_transfer::Outcome;
use tradewind_transfer::progress::Snapshot;
use tradewind_volume::{Carrier, Observed};
use tradewind_wire::sigv4::AmzDate;

use super::Ended;
use super::terminal::say_line;
use super::transfer::Session;
use crate::profiles::Profiles;
use crate::profiles::seen::{Tally, WARM};

/// How often the bar is drawn.
const FRAME: Duration = Duration::from_millis(200);
/// How often a line is written where there is no terminal.
const LINE: Duration = Duration::from_secs(10);

/// Flags about what a transfer says.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct ReportFlags {
    /// Say nothing but what failed
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
    /// The end as one JSON object on standard output
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// A transfer that is being told of. Dropping it takes the bar away.
pub(super) struct Report {
    flags: ReportFlags,
    begun: Instant,
    shown: tokio::task::JoinHandle<()>,
    bar: ProgressBar,
    stores: Vec<(Arc<str>, Arc<Observed>)>,
    carrier: Arc<Carrier>,
    /// What each store had done when connections were open.
    warm: Arc<OnceLock<Vec<Tally>>>,
}

impl Drop for Report {
    fn drop(&mut self) {
        self.shown.abort();
        self.bar.finish_and_clear();
    }
}

impl ReportFlags {
    /// Whether only failures are told.
    pub const fn is_quiet(self) -> bool {
        self.quiet
    }

    /// Whether the end is told as JSON.
    pub const fn is_json(self) -> bool {
        self.json
    }

    /// Begins to tell of a transfer.
    pub fn begin(self, session: &Session) -> Report {
        let is_terminal = io::stderr().is_terminal();
        let target = if is_terminal && !self.quiet {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let (progress, begun) = (session.progress.clone(), Instant::now());
        let (warm, watched) = (Arc::<OnceLock<_>>::default(), session.stores.clone());
        let shown = {
            let (bar, warm) = (bar.clone(), warm.clone());
            tokio::spawn(async move {
                let mut last = begun;
                loop {
                    tokio::time::sleep(FRAME).await;
                    if begun.elapsed() >= WARM {
                        warm.get_or_init(|| watched.iter().map(|(_, store)| tally(store)).collect());
                    }
                    let now = progress.snapshot();
                    if is_terminal {
                        draw(&bar, &now);
                    } else if !self.quiet && last.elapsed() >= LINE {
                        last = Instant::now();
                        // Nobody reads it any more where this fails.
                        let _ = writeln!(io::stderr(), "{}", line(&now, begun.elapsed()));
                    }
                }
            })
        };
        let (stores, carrier) = (session.stores.clone(), session.carrier.clone());
        Report { flags: self, begun, shown, bar, stores, carrier, warm }
    }
}

fn draw(bar: &ProgressBar, now: &Snapshot) {
    let template = if now.is_found {
        "{msg}  {wide_bar:.cyan/dim} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}"
    } else {
        "{msg}  {spinner} {binary_bytes} of {binary_total_bytes} found so far  {binary_bytes_per_sec}"
    };
    // Both are legal templates, which a test reads.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_length(now.found_bytes.max(now.done_bytes));
    bar.set_position(now.done_bytes);
    let failed = if now.failed_items > 0 { format!(", {} failed", now.failed_items) } else { String::new() };
    bar.set_message(format!("{}/{}{failed}", HumanCount(now.done_items), HumanCount(now.found_items)));
    bar.tick();
}

fn line(now: &Snapshot, took: Duration) -> String {
    let (done, found) = (HumanCount(now.done_items), HumanCount(now.found_items));
    let more = if now.is_found { "" } else { " found so far" };
    let (bytes, rate) = (HumanBytes(now.done_bytes), rate(now.done_bytes, took));
    format!("{done} of {found}{more}, {bytes}, {rate}/s, {} failed", now.failed_items)
}

fn rate(bytes: u64, took: Duration) -> HumanBytes {
    let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
    HumanBytes(bytes.saturating_mul(1000) / millis)
}

/// What was seen of a store: all requests to it, and the median of how long the first byte of a read was waited for
/// within the last minute.
fn known(name: &str, store: &Observed) -> Json {
    let outcomes = Operation::ALL.map(|operation| store.model().all_outcomes(operation));
    let first_byte = store.model().times(store.now(), Operation::Get).first_byte().median();
    json!({
        "name": name,
        "kind": store.capabilities().kind,
        "requests": outcomes.iter().map(Outcomes::all).sum::<u64>(),
        "failed": outcomes.iter().map(Outcomes::failures).sum::<u64>(),
        "first_byte_seconds": first_byte.map(|time| time.as_secs_f64()),
    })
}

fn tally(store: &Observed) -> Tally {
    Tally::of(store.model(), store.now())
}

impl Report {
    /// What was seen of the stores corrects what was known of them, where nothing else held requests back.
    fn learn(&self) {
        let Some(warm) = self.warm.get().filter(|_| !self.carrier.is_limited()) else { return };
        let Some(profiles) = Profiles::find().filter(Profiles::has_any) else { return };
        for ((name, store), tally) in self.stores.iter().zip(warm) {
            let learnt = profiles.learn(&format!("{store:?}"), (tally, store.model()), store.now());
            match learnt {
                // Whoever may not write there wants no profiles of their own.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                    ) => {}
                Err(e) => tracing::warn!(store = &**name, "what was seen of the store cannot be kept: {e}"),
                Ok(_) => {}
            }
        }
    }

    /// Tells how it ended.
    pub fn conclude(self, outcome: &Outcome) -> io::Result<Ended> {
        let (took, flags) = (self.begun.elapsed(), self.flags);
        let stores: Vec<Json> = self.stores.iter().map(|(name, store)| known(name, store)).collect();
        let hedged = self.carrier.hedged();
        self.learn();
        drop(self);
        for (name, error) in &outcome.failures {
            complain(name, error)?;
        }
        let unnamed = outcome.failed - outcome.failures.len() as u64;
        if unnamed > 0 {
            writeln!(io::stderr(), "tradewind: and {unnamed} more failed")?;
        }
        if outcome.gave_up {
            writeln!(io::stderr(), "tradewind: what is left would fail the same way and was not tried")?;
        }
        if flags.json {
            let seconds = took.as_secs_f64();
            let end = json!({
                "copied": outcome.copied, "removed": outcome.removed, "bytes": outcome.bytes,
                "failed": outcome.failed, "seconds": seconds, "hedged": hedged, "stores": stores,
            });
            writeln!(io::stdout(), "{end}")?;
        } else if !flags.quiet && (io::stderr().is_terminal() || took >= LINE) {
            let (copied, bytes) = (HumanCount(outcome.copied), HumanBytes(outcome.bytes));
            let removed = match outcome.removed {
                0 => String::new(),
                removed => format!(", removed {}", HumanCount(removed)),
            };
            let failed =
                if outcome.failed > 0 { format!(", {} failed", outcome.failed) } else { String::new() };
            let time = if took < Duration::from_secs(60) {
                format!("{:.1} s", took.as_secs_f64())
            } else {
                HumanDuration(took).to_string()
            };
            let rate = rate(outcome.bytes, took);
            writeln!(io::stderr(), "copied {copied}, {bytes} in {time} ({rate}/s){removed}{failed}")?;
        }
        Ok(if outcome.failed > 0 { Ended::FoundFaults } else { Ended::Done })
    }
}

/// Says why something failed. The name stands before it unless the message has it already.
pub(super) fn complain(name: &str, error: &tradewind_core::Error) -> io::Result<()> {
    let message = error.to_string();
    let place = if is_named(&message, name) { String::new() } else { format!("{name}: ") };
    say_line(format_args!("tradewind: {place}{message}"))
}

/// Whether a message tells a name: as the end of a path or a URL, in quotes, or by itself. The letters of a short name
/// stand in every message.
pub(super) fn is_named(message: &str, name: &str) -> bool {
    let stands = |at: usize| {
        let (before, behind) = (&message[..at], &message[at + name.len()..]);
        let is_end = behind.is_empty() || behind.starts_with([':', '"']);
        match before.chars().next_back() {
            Some('/' | '"') => is_end || behind.starts_with(' '),
            // A path; a single word may be one of the sentence.
            None if name.contains('/') => is_end || behind.starts_with(' '),
            None | Some(' ') => is_end,
            Some(_) => false,
        }
    };
    message.contains(&format!("{name:?}")) || message.match_indices(name).any(|(at, _)| stands(at))
}

/// To the second, in UTC. A year of other than four digits becomes the nearest time that HTTP can say.
pub(super) fn rfc3339(time: Timestamp) -> String {
    let date = AmzDate::from_timestamp(time).or_else(|| AmzDate::from_timestamp(time.within_calendar()));
    let Some(text) = date.and_then(|date| String::from_utf8(date.text().to_vec()).ok()) else {
        return String::new();
    };
    let (day, clock) = text.trim_end_matches('Z').split_once('T').unwrap_or((&text, ""));
    let part = |text: &str, range: std::ops::Range<usize>| text.get(range).unwrap_or_default().to_owned();
    let day = format!("{}-{}-{}", part(day, 0..4), part(day, 4..6), part(day, 6..8));
    format!("{day}T{}:{}:{}Z", part(clock, 0..2), part(clock, 2..4), part(clock, 4..6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bars_can_be_drawn() {
        let bar = ProgressBar::hidden();
        for is_found in [false, true] {
            draw(&bar, &Snapshot { found_bytes: 10, done_bytes: 5, is_found, ..Snapshot::default() });
        }
        assert_eq!((bar.length(), bar.position()), (Some(10), 5));
        let now =
            Snapshot { done_items: 1234, found_items: 5678, done_bytes: 1 << 20, ..Snapshot::default() };
        assert_eq!(
            line(&now, Duration::from_secs(1)),
            "1,234 of 5,678 found so far, 1.00 MiB, 1.00 MiB/s, 0 failed"
        );
    }

    #[test]
    fn any_time_can_be_printed() {
        for (millis, text) in [
            (i64::MIN, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (1_000, "1970-01-01T00:00:01Z"),
            (i64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(Timestamp::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_name_is_not_told_by_letters_that_it_shares() {
        for (message, name) in [
            ("cannot open here/a: no", "a"),
            ("GET s3://bucket/a on HOST: no", "a"),
            ("\"../x\" cannot be a file's name", "../x"),
            ("\"line\\nbreak\" cannot be a file's name", "line\nbreak"),
            ("cannot list here: no", "here"),
            ("here/a is left out", "here/a"),
        ] {
            assert!(is_named(message, name), "{message}");
        }
        for (message, name) in [
            ("a checksum is not a part of it", "a"),
            ("the store broke off", "e"),
            ("GET s3://bucket/ab on HOST", "a"),
            ("GET s3://bucket/ab on HOST", "b"),
        ] {
            assert!(!is_named(message, name), "{message}: {name}");
        }
    }
}
