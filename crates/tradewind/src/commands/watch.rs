//! `tradewind sync --watch`: what is told while a directory is watched, and how that ends.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason};
use tradewind_model::settle::SettleOptions;
use tradewind_transfer::End;
use tradewind_transfer::watch::{News, Totals, Watch, watch};

use super::Ended;
use super::report::{ReportFlags, complain};
use super::signals::Caught;
use super::terminal::say_line;
use crate::settings::Span;

/// What is under way when a signal comes may take so long.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Flags of watching.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct WatchFlags {
    /// Go on until a signal: what changes in the directory goes up when it has settled
    #[arg(long, conflicts_with = "dry_run", help_heading = "Watching")]
    pub watch: bool,
    /// A file is sent when it has not changed for so long [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = span, requires = "watch", help_heading = "Watching")]
    settle: Option<Span>,
    /// Compare everything so often, for what no event told [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = span, requires = "watch", help_heading = "Watching")]
    compare_every: Option<Span>,
}

fn span(text: &str) -> Result<Span, String> {
    let span = Span::parse(text)?;
    let is_within = (Duration::from_millis(10)..=Duration::from_secs(5 * 86_400)).contains(&span.0);
    if is_within { Ok(span) } else { Err("it must be 10ms to 5d".to_owned()) }
}

impl WatchFlags {
    /// How long things wait.
    pub fn options(self) -> SettleOptions {
        let defaults = SettleOptions::default();
        SettleOptions {
            quiet: self.settle.map_or(defaults.quiet, |span| span.0),
            every: self.compare_every.map_or(defaults.every, |span| span.0),
            ..defaults
        }
    }
}

/// Refuses ends that cannot be watched.
pub(super) fn check(from: &End, to: &End) -> anyhow::Result<()> {
    match (from, to) {
        (End::Files(..), End::Objects(_)) => Ok(()),
        (End::Objects(_), _) => {
            bail!(
                "--watch watches a directory, and the source is a bucket; run sync from time to time instead"
            )
        }
        (End::Files(..), End::Files(..)) => {
            bail!("--watch sends what changes in a directory to a bucket, and the destination is a directory")
        }
    }
}

/// Watches until a signal comes.
pub(super) async fn run(
    watching: Watch,
    report: ReportFlags,
    stopped: oneshot::Receiver<Caught>,
) -> anyhow::Result<Ended> {
    let End::Files(directory, _) = &watching.copier.from else { bail!("only a directory can be watched") };
    let (root, keeps_attributes) = (directory.root().to_owned(), watching.copier.preserves);
    // It looks into every directory.
    let begun = tokio::task::spawn_blocking(move || watch(&root, keeps_attributes));
    let lost = |e| Error::with_source(Reason::Defect, "a task failed", e);
    let events = begun.await.map_err(lost)??;
    let stop = async {
        // Signals are listened for as long as the process runs.
        let _ = stopped.await;
    };
    let began = Instant::now();
    let totals = watching.run(events, stop, |news| tell(report, news)).await?;
    if report.is_json() {
        writeln!(io::stdout(), "{}", end(&totals, began.elapsed()))?;
    }
    if totals.failing > 0 {
        writeln!(io::stderr(), "tradewind: {} failed and were not made good", totals.failing)?;
    }
    if !totals.compared {
        let why = "it was stopped before everything was compared once; run it again, or sync without --watch";
        writeln!(io::stderr(), "tradewind: {why}")?;
    }
    let is_good = totals.compared && totals.failing == 0;
    Ok(if is_good { Ended::Done } else { Ended::FoundFaults })
}

fn end(totals: &Totals, took: Duration) -> serde_json::Value {
    json!({
        "copied": totals.copied, "removed": totals.removed, "bytes": totals.bytes,
        "failed": totals.failing, "compared": totals.compared, "seconds": took.as_secs_f64(),
    })
}

fn tell(report: ReportFlags, news: &News<'_>) {
    let told = match news {
        News::Failed(name, error) => complain(name, error),
        _ if report.is_quiet() => return,
        News::InStep => writeln!(io::stderr(), "everything is there; waiting for changes"),
        News::Copied(name, _) => say_line(format_args!("copied {name}")),
        News::Removed(name) => say_line(format_args!("removed {name}")),
    };
    // What is carried is carried, whether or not somebody reads of it.
    drop(told);
}
