//! Progress and summary of a transfer: a bar on a terminal, a periodic line elsewhere, and the failures. Without a
//! terminal, a short successful transfer prints nothing. The end of a transfer also updates the profiles of its stores.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value as Json, json};
use tradewind_backend::s3::{SubstituteProof, SubstituteProofs};
use tradewind_core::ObjectStore as _;
use tradewind_core::Timestamp;
use tradewind_layers::Instrumented;
use tradewind_model::store_statistics::{Operation, OutcomeCounts};
use tradewind_parallel::TransferContext;
use tradewind_transfer::Outcome;
use tradewind_transfer::progress::ProgressSnapshot;
use tradewind_wire::sigv4::AmzDate;

use super::CommandOutcome;
use super::terminal::print_error_line;
use super::transfer::Session;
use crate::profiles::Profiles;
use crate::profiles::observed::{CounterSnapshot, WARM_UP};

/// The interval at which the bar is drawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// The interval of progress lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Flags for the output of a transfer.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct TransferOutputFlags {
    /// Only print errors
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
    /// Print a summary as one JSON object on standard output
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// The progress display of a transfer, and its summary. Dropping it removes the bar.
pub(super) struct ProgressDisplay {
    flags: TransferOutputFlags,
    started: Instant,
    display_task: tokio::task::JoinHandle<()>,
    bar: ProgressBar,
    stores: Vec<(Arc<str>, Arc<Instrumented>)>,
    /// Requests without checksum headers, by the scheme of their store.
    substitute_proofs: HashMap<Arc<str>, Arc<SubstituteProofs>>,
    transfers: Arc<TransferContext>,
    /// The counters of each store at the end of the warm-up; empty before.
    after_warm_up: Arc<OnceLock<Vec<CounterSnapshot>>>,
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.display_task.abort();
        self.bar.finish_and_clear();
    }
}

impl TransferOutputFlags {
    /// Returns true if only errors are printed.
    pub const fn is_quiet(self) -> bool {
        self.quiet
    }

    /// Returns true if the summary is printed as JSON.
    pub const fn is_json(self) -> bool {
        self.json
    }

    /// Starts the progress display of a transfer.
    pub fn start(self, session: &Session) -> ProgressDisplay {
        let is_terminal = io::stderr().is_terminal();
        let target = if is_terminal && !self.quiet {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let (progress, started) = (session.progress.clone(), Instant::now());
        let (after_warm_up, warm_up_stores) = (Arc::<OnceLock<_>>::default(), session.stores.clone());
        let display_task = {
            let (bar, after_warm_up) = (bar.clone(), after_warm_up.clone());
            tokio::spawn(async move {
                let mut last_line = started;
                loop {
                    tokio::time::sleep(REDRAW_INTERVAL).await;
                    if started.elapsed() >= WARM_UP {
                        after_warm_up.get_or_init(|| {
                            warm_up_stores.iter().map(|(_, store)| counters(store)).collect()
                        });
                    }
                    let snapshot = progress.snapshot();
                    if is_terminal {
                        draw(&bar, &snapshot);
                    } else if !self.quiet && last_line.elapsed() >= LINE_INTERVAL {
                        last_line = Instant::now();
                        // If stderr is closed, the line is dropped.
                        let _ = writeln!(io::stderr(), "{}", line(&snapshot, started.elapsed()));
                    }
                }
            })
        };
        ProgressDisplay {
            flags: self,
            started,
            display_task,
            bar,
            stores: session.stores.clone(),
            substitute_proofs: session.substitute_proofs.clone(),
            transfers: session.transfer_context.clone(),
            after_warm_up,
        }
    }
}

fn draw(bar: &ProgressBar, snapshot: &ProgressSnapshot) {
    let template = if snapshot.is_listing_complete {
        "{msg}  {wide_bar:.cyan/dim} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}"
    } else {
        "{msg}  {spinner} {binary_bytes} of {binary_total_bytes} found so far  {binary_bytes_per_sec}"
    };
    // Both templates are valid: a test parses them.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_length(snapshot.found_bytes.max(snapshot.done_bytes));
    bar.set_position(snapshot.done_bytes);
    let failed =
        if snapshot.failed_items > 0 { format!(", {} failed", snapshot.failed_items) } else { String::new() };
    bar.set_message(format!(
        "{}/{}{failed}",
        HumanCount(snapshot.done_items),
        HumanCount(snapshot.found_items)
    ));
    bar.tick();
}

fn line(snapshot: &ProgressSnapshot, took: Duration) -> String {
    let (done, found) = (HumanCount(snapshot.done_items), HumanCount(snapshot.found_items));
    let more = if snapshot.is_listing_complete { "" } else { " found so far" };
    let (bytes, rate) = (HumanBytes(snapshot.done_bytes), rate(snapshot.done_bytes, took));
    format!("{done} of {found}{more}, {bytes}, {rate}/s, {} failed", snapshot.failed_items)
}

fn rate(bytes: u64, took: Duration) -> HumanBytes {
    let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
    HumanBytes(bytes.saturating_mul(1000) / millis)
}

/// The statistics of a store: all requests to it, and the median time to first byte of reads within the last minute.
fn store_summary(name: &str, store: &Instrumented, proofs: Option<&SubstituteProofs>) -> Json {
    let outcomes = Operation::ALL.map(|operation| store.statistics().total_outcomes(operation));
    let first_byte = store.statistics().latencies(store.now(), Operation::Get).first_byte().median();
    json!({
        "name": name,
        "kind": store.capabilities().kind,
        "requests": outcomes.iter().map(OutcomeCounts::total).sum::<u64>(),
        "failed": outcomes.iter().map(OutcomeCounts::failures).sum::<u64>(),
        "first_byte_seconds": first_byte.map(|time| time.as_secs_f64()),
        "without_checksum_headers": proofs.filter(|proofs| has_proofs(proofs)).map(|proofs| json!({
            "content_md5": proofs.count(SubstituteProof::ContentMd5),
            "etag": proofs.count(SubstituteProof::ETag),
            "length": proofs.count(SubstituteProof::Length),
        })),
    })
}

/// Returns true if there were requests without checksum headers.
fn has_proofs(proofs: &SubstituteProofs) -> bool {
    SubstituteProof::ALL.into_iter().any(|proof| proofs.count(proof) > 0)
}

/// The line about requests without checksum headers and their proofs; `None` if there were none.
fn substitute_line(scheme: &str, proofs: &SubstituteProofs) -> Option<String> {
    let counted = SubstituteProof::ALL.into_iter().filter(|proof| proofs.count(*proof) > 0);
    let texts: Vec<String> = counted
        .map(|proof| {
            let name = match proof {
                SubstituteProof::ContentMd5 => "Content-MD5",
                SubstituteProof::ETag => "the ETag",
                SubstituteProof::Length => "length only",
            };
            format!("{} by {name}", HumanCount(proofs.count(proof)))
        })
        .collect();
    let all = texts.join(", ");
    has_proofs(proofs).then(|| format!("{scheme}: verified without checksum headers: {all}"))
}

fn counters(store: &Instrumented) -> CounterSnapshot {
    CounterSnapshot::take(store.statistics(), store.now())
}

impl ProgressDisplay {
    /// Updates the profiles of the stores with the measurements of this transfer, unless it was rate-limited.
    fn update_profiles(&self) {
        let Some(after_warm_up) = self.after_warm_up.get().filter(|_| !self.transfers.is_rate_limited())
        else {
            return;
        };
        let Some(profiles) = Profiles::find().filter(Profiles::has_any) else { return };
        for ((name, store), at_warm_up) in self.stores.iter().zip(after_warm_up) {
            let updated =
                profiles.add_observed(&format!("{store:?}"), (at_warm_up, store.statistics()), store.now());
            match updated {
                // A profile directory without write permission is not an error: the user's profiles are read-only.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                    ) => {}
                Err(e) => tracing::warn!(store = &**name, "cannot update the profile of the store: {e}"),
                Ok(_) => {}
            }
        }
    }

    /// Updates the profiles, then prints the failures and the summary.
    pub fn finish(self, outcome: &Outcome) -> io::Result<CommandOutcome> {
        let (took, flags) = (self.started.elapsed(), self.flags);
        let proofs_of = |name: &str| self.substitute_proofs.get(name).map(|proofs| &**proofs);
        let summarized = self.stores.iter().map(|(name, store)| store_summary(name, store, proofs_of(name)));
        let stores: Vec<Json> = summarized.collect();
        let substitutes: Vec<String> =
            self.stores.iter().filter_map(|(name, _)| substitute_line(name, proofs_of(name)?)).collect();
        let hedged = self.transfers.hedged_ranges();
        self.update_profiles();
        drop(self);
        for (name, error) in &outcome.failures {
            print_failure(name, error)?;
        }
        let unnamed = outcome.failed - outcome.failures.len() as u64;
        if unnamed > 0 {
            writeln!(io::stderr(), "tradewind: and {unnamed} more failed")?;
        }
        if outcome.stopped_early {
            writeln!(io::stderr(), "tradewind: stopping: every remaining item would fail the same way")?;
        }
        print_not_removed(outcome.not_removed)?;
        print_kept_markers(outcome.kept_markers)?;
        if flags.json {
            let seconds = took.as_secs_f64();
            let summary = json!({
                "copied": outcome.copied, "removed": outcome.removed,
                "not_removed": outcome.not_removed + outcome.kept_markers, "bytes": outcome.bytes, "failed": outcome.failed,
                "seconds": seconds, "hedged": hedged, "stores": stores,
            });
            writeln!(io::stdout(), "{summary}")?;
        } else if !flags.quiet && (io::stderr().is_terminal() || took >= LINE_INTERVAL) {
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
            for line in substitutes {
                writeln!(io::stderr(), "{line}")?;
            }
        }
        Ok(if outcome.failed > 0 { CommandOutcome::FoundProblems } else { CommandOutcome::Done })
    }
}

/// Prints how many items `--delete` did not remove because of failures of the source, if any.
pub(super) fn print_not_removed(items: u64) -> io::Result<()> {
    let what = match items {
        0 => return Ok(()),
        1 => "1 item was".to_owned(),
        _ => format!("{} items were", HumanCount(items)),
    };
    let why = "the source may have what could not be listed";
    writeln!(io::stderr(), "tradewind: {what} not removed: {why}")
}

/// Prints how many folder markers with bytes or delete markers were not removed, if any.
pub(super) fn print_kept_markers(markers: u64) -> io::Result<()> {
    let what = match markers {
        0 => return Ok(()),
        1 => "1 marker was".to_owned(),
        _ => format!("{} markers were", HumanCount(markers)),
    };
    let why = "a folder marker that has bytes is removed by rm only, and a delete marker only after all versions of its key";
    writeln!(io::stderr(), "tradewind: {what} not removed: {why}")
}

/// Prints why an item failed, prefixed with its name unless the message contains it.
pub(super) fn print_failure(name: &str, error: &tradewind_core::Error) -> io::Result<()> {
    let message = error.to_string();
    let location = if mentions_name(&message, name) { String::new() } else { format!("{name}: ") };
    print_error_line(format_args!("tradewind: {location}{message}"))
}

/// Returns true if a message mentions a name: as the end of a path or a URL, in quotes, or as a word at the end. A
/// plain substring search is not enough, because the letters of a short name occur in every message.
pub(super) fn mentions_name(message: &str, name: &str) -> bool {
    let is_mention = |at: usize| {
        let (before, after) = (&message[..at], &message[at + name.len()..]);
        let is_end = after.is_empty() || after.starts_with([':', '"']);
        match before.chars().next_back() {
            Some('/' | '"') => is_end || after.starts_with(' '),
            // At the start only a path is a mention: a single word may belong to the sentence.
            None if name.contains('/') => is_end || after.starts_with(' '),
            None | Some(' ') => is_end,
            Some(_) => false,
        }
    };
    message.contains(&format!("{name:?}")) || message.match_indices(name).any(|(at, _)| is_mention(at))
}

/// A time in RFC 3339 format, in whole seconds and UTC. A year without four digits becomes the nearest time that HTTP
/// dates can express.
pub(super) fn rfc3339(time: Timestamp) -> String {
    let date = AmzDate::from_timestamp(time).or_else(|| AmzDate::from_timestamp(time.clamp_to_calendar()));
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
        for is_listing_complete in [false, true] {
            draw(
                &bar,
                &ProgressSnapshot {
                    found_bytes: 10,
                    done_bytes: 5,
                    is_listing_complete,
                    ..ProgressSnapshot::default()
                },
            );
        }
        assert_eq!((bar.length(), bar.position()), (Some(10), 5));
        let snapshot = ProgressSnapshot {
            done_items: 1234,
            found_items: 5678,
            done_bytes: 1 << 20,
            ..ProgressSnapshot::default()
        };
        assert_eq!(
            line(&snapshot, Duration::from_secs(1)),
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
    fn name_is_found_only_where_it_is_mentioned() {
        for (message, name) in [
            ("cannot open here/a: no", "a"),
            ("GET s3://bucket/a on HOST: no", "a"),
            ("\"../x\" cannot be a file's name", "../x"),
            ("\"line\\nbreak\" cannot be a file's name", "line\nbreak"),
            ("cannot list here: no", "here"),
            ("here/a is skipped", "here/a"),
        ] {
            assert!(mentions_name(message, name), "{message}");
        }
        for (message, name) in [
            ("a checksum is not a part of it", "a"),
            ("the store disconnected", "e"),
            ("GET s3://bucket/ab on HOST", "a"),
            ("GET s3://bucket/ab on HOST", "b"),
        ] {
            assert!(!mentions_name(message, name), "{message}: {name}");
        }
    }
}
