//! `tradewind sync --watch`: flags, output and shutdown while a directory is watched.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason};
use tradewind_model::debounce::DebounceOptions;
use tradewind_transfer::Endpoint;
use tradewind_transfer::watch::{Watch, WatchReport, WatchTotals, watch};

use super::CommandOutcome;
use super::signals::CaughtSignal;
use super::summary::{TransferOutputFlags, print_failure};
use super::terminal::print_error_line;
use crate::settings::TimeSpan;

/// The time that transfers in flight have to finish after a signal.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Flags of watching.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct WatchFlags {
    /// Keep running until a signal, and upload files when they have stopped changing
    #[arg(long, conflicts_with = "dry_run", help_heading = "Watching")]
    pub watch: bool,
    /// Upload a file once it has not changed for this long [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = span, requires = "watch", help_heading = "Watching")]
    debounce: Option<TimeSpan>,
    /// Interval of full comparisons, which find changes that caused no event [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = span, requires = "watch", help_heading = "Watching")]
    compare_every: Option<TimeSpan>,
}

fn span(text: &str) -> Result<TimeSpan, String> {
    let span = TimeSpan::parse(text)?;
    let is_in_range = (Duration::from_millis(10)..=Duration::from_secs(5 * 86_400)).contains(&span.0);
    if is_in_range { Ok(span) } else { Err("it must be 10ms to 5d".to_owned()) }
}

impl WatchFlags {
    /// The options for debouncing and for full comparisons.
    pub fn options(self) -> DebounceOptions {
        let defaults = DebounceOptions::default();
        DebounceOptions {
            quiet_period: self.debounce.map_or(defaults.quiet_period, |span| span.0),
            full_comparison_interval: self
                .compare_every
                .map_or(defaults.full_comparison_interval, |span| span.0),
            ..defaults
        }
    }
}

/// Rejects endpoints that cannot be watched.
pub(super) fn check(from: &Endpoint, to: &Endpoint) -> anyhow::Result<()> {
    match (from, to) {
        (Endpoint::Files(..), Endpoint::Objects(_)) => Ok(()),
        (Endpoint::Objects(_), _) => {
            bail!("--watch needs a directory as the source, not a bucket; run sync periodically instead")
        }
        (Endpoint::Files(..), Endpoint::Files(..)) => {
            bail!("--watch needs a bucket as the destination, not a directory")
        }
    }
}

/// Watches until a signal.
pub(super) async fn run(
    watching: Watch,
    output: TransferOutputFlags,
    stopped: oneshot::Receiver<CaughtSignal>,
) -> anyhow::Result<CommandOutcome> {
    let Endpoint::Files(directory, _) = &watching.copier.from else {
        bail!("only a directory can be watched")
    };
    let (root, keeps_attributes) = (directory.root().to_owned(), watching.copier.preserves_attributes);
    // Setting up the watch visits every directory, which blocks.
    let filter = watching.filter.clone();
    let events = tokio::task::spawn_blocking(move || watch(&root, keeps_attributes, filter));
    let lost = |e| Error::with_source(Reason::Defect, "a task failed", e);
    let events = events.await.map_err(lost)??;
    let stop = async {
        // The sender lives as long as the process.
        let _ = stopped.await;
    };
    let started = Instant::now();
    let totals = watching.run(events, stop, |news| print_news(output, news)).await?;
    if output.is_json() {
        writeln!(io::stdout(), "{}", summary(&totals, started.elapsed()))?;
    }
    if totals.failing > 0 {
        writeln!(io::stderr(), "tradewind: {} failed, and no retry succeeded", totals.failing)?;
    }
    if !totals.is_compared {
        let why = "stopped before the first full comparison; run it again, or sync without --watch";
        writeln!(io::stderr(), "tradewind: {why}")?;
    }
    let is_good = totals.is_compared && totals.failing == 0;
    Ok(if is_good { CommandOutcome::Done } else { CommandOutcome::FoundProblems })
}

fn summary(totals: &WatchTotals, took: Duration) -> serde_json::Value {
    json!({
        "copied": totals.copied, "removed": totals.removed, "bytes": totals.bytes,
        "failed": totals.failing, "compared": totals.is_compared, "seconds": took.as_secs_f64(),
    })
}

fn print_news(output: TransferOutputFlags, news: &WatchReport<'_>) {
    let printed = match news {
        WatchReport::Failed(name, error) => print_failure(name, error),
        _ if output.is_quiet() => return,
        WatchReport::InSync => writeln!(io::stderr(), "in sync; waiting for changes"),
        WatchReport::Copied(name, _) => print_error_line(format_args!("copied {name}")),
        WatchReport::Removed(name) => print_error_line(format_args!("removed {name}")),
    };
    // The transfer continues even if stderr is closed.
    drop(printed);
}
