//! `tradewind store check | stats | reindex`: a local store looked over from outside, while no server
//! has it open.

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use tradewind_backend::local::{self, CheckReport, StoreStats};

use super::Ended;
use crate::settings::ByteSize;

/// Look over a local store that no server has open
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Read and verify everything; name what is bad
    ///
    /// Exit status: 0 all is sound, 1 something is bad or the store cannot be opened.
    #[command(
        after_help = "Examples:\n  tradewind store check ./data\n  tradewind store check ./data --json"
    )]
    Check(Arguments),
    /// Count what the store holds
    #[command(
        after_help = "Examples:\n  tradewind store stats ./data\n  tradewind store stats ./data --json"
    )]
    Stats(Arguments),
    /// Make the index anew from the log
    ///
    /// The log is the truth and the index is derived: where the log is sound nothing can be lost by this, it only
    /// takes time. Where it is damaged, an older version of a key may come back: run `store check` first.
    #[command(after_help = "Examples:\n  tradewind store reindex ./data")]
    Reindex(Arguments),
}

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Directory of the store
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: Command) -> anyhow::Result<Ended> {
    match command {
        Command::Check(arguments) => check(&arguments),
        Command::Stats(arguments) => stats(&arguments),
        Command::Reindex(arguments) => reindex(&arguments),
    }
}

impl Arguments {
    fn print(&self, json: &Json, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        if self.json { writeln!(stdout, "{json:#}") } else { write!(stdout, "{text}") }
    }

    fn failed(&self, what: &str) -> String {
        format!("cannot {what} the store in {}", self.directory.display())
    }
}

fn check(arguments: &Arguments) -> anyhow::Result<Ended> {
    let CheckReport { objects, parts, bytes, damage } =
        local::check(&arguments.directory).with_context(|| arguments.failed("check"))?;
    let is_sound = damage.is_empty();
    let bad: Vec<Json> = damage.iter().map(|bad| json!({ "what": bad.what, "why": bad.why })).collect();
    let json = json!({ "sound": is_sound, "objects": objects, "parts": parts, "bytes": bytes, "bad": bad });
    let mut text: String = damage.iter().map(|bad| format!("bad: {}: {}\n", bad.what, bad.why)).collect();
    text += &format!("{objects} objects and {parts} parts of unfinished uploads verified, {bytes} bytes: ");
    text += &if is_sound { "all sound\n".to_owned() } else { format!("{} bad\n", damage.len()) };
    arguments.print(&json, &text)?;
    Ok(if is_sound { Ended::Done } else { Ended::FoundFaults })
}

fn stats(arguments: &Arguments) -> anyhow::Result<Ended> {
    let stats = local::stats(&arguments.directory).with_context(|| arguments.failed("read"))?;
    let StoreStats { buckets, objects, uploads, tombstones, segments, .. } = stats;
    let counts = [
        ("buckets", buckets),
        ("objects", objects),
        ("uploads", uploads),
        ("tombstones", tombstones),
        ("segments", segments),
    ];
    let sizes = [
        ("object_bytes", stats.object_bytes),
        ("segment_bytes", stats.segment_bytes),
        ("live_bytes", stats.live_bytes),
        ("index_bytes", stats.index_bytes),
        ("free_bytes", stats.free_bytes),
    ];
    let all = counts.iter().chain(&sizes).map(|(name, value)| ((*name).to_owned(), json!(value)));
    let mut text: String = counts.iter().map(|(name, count)| format!("{name:14} {count}\n")).collect();
    for (name, bytes) in sizes {
        text += &format!("{name:14} {bytes} ({})\n", about(bytes));
    }
    arguments.print(&Json::Object(all.collect()), &text)?;
    Ok(Ended::Done)
}

/// A size to one digit, for reading; the exact number stands beside it.
fn about(bytes: u64) -> String {
    let unit = [40_u32, 30, 20, 10].into_iter().find(|shift| bytes >> shift > 0);
    let Some(shift) = unit else { return ByteSize(bytes).to_string() };
    let tenths = (u128::from(bytes) * 10) >> shift;
    let unit = ByteSize(1 << shift).to_string();
    format!("{}.{} {}", tenths / 10, tenths % 10, unit.trim_start_matches('1'))
}

fn reindex(arguments: &Arguments) -> anyhow::Result<Ended> {
    let recovery = local::reindex(&arguments.directory).with_context(|| arguments.failed("reindex"))?;
    let (records, damaged) = (recovery.replayed, recovery.damaged_bytes);
    let json = json!({ "records": records, "damaged_bytes": damaged, "voided": recovery.voided });
    let mut text = format!("made the index anew from {records} records\n");
    if damaged > 0 {
        text +=
            &format!("{damaged} bytes of the log are damaged; `tradewind store check` says what it cost\n");
    }
    arguments.print(&json, &text)?;
    Ok(Ended::Done)
}

#[cfg(test)]
mod tests {
    use super::about;

    #[test]
    fn sizes_to_read() {
        for (bytes, text) in
            [(0, "0"), (999, "999B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (u64::MAX, "16777215.9 TiB")]
        {
            assert_eq!(about(bytes), text);
        }
    }
}
