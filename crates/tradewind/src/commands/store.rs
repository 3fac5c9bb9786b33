//! `tradewind store check | stats | reindex`: inspection and repair of a local store that no server
//! has open.

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};
use tradewind_backend::local::{self, CheckReport, IndexState, Loss, LossProof, NameList, StoreStats};

use tradewind_core::printable;

use super::CommandOutcome;
use crate::settings::ByteSize;

/// The limit of names per category that `store check` prints; `--json` prints more.
const MAX_PRINTED_NAMES: usize = 10;

/// Inspect an offline local store
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Read and verify everything; list damage and losses
    ///
    /// Changes nothing: the store may be a snapshot or on a read-only file system. If the end of the log or data is
    /// missing that the index refers to, the index proves the loss, and the losses are listed.
    ///
    /// Exit status: 0 sound, 1 damaged, incomplete, or the store cannot be opened.
    #[command(
        after_help = "Examples:\n  tradewind store check ./data\n  tradewind store check ./data --json\n  \
                      tradewind store check /mnt/snapshot/data --temp-dir /scratch"
    )]
    Check(InspectArguments),
    /// Print counts and sizes of the store
    ///
    /// Changes nothing. Exit status: 0 done, 1 acknowledged changes are lost, or the store cannot be opened.
    #[command(
        after_help = "Examples:\n  tradewind store stats ./data\n  tradewind store stats ./data --json"
    )]
    Stats(InspectArguments),
    /// Rebuild the index from the log
    ///
    /// The log is authoritative and the index is derived: if the log is sound, rebuilding loses nothing and only takes
    /// time. If the index refers to acknowledged changes that are lost, or too damaged to be found without it, it
    /// is kept: a rebuild would restore older versions of objects. `store check` lists them.
    #[command(after_help = "Examples:\n  tradewind store reindex ./data")]
    Reindex(ReindexArguments),
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

#[derive(Debug, Args)]
pub(super) struct InspectArguments {
    #[command(flatten)]
    arguments: Arguments,
    /// Directory for temporary files: rarely more than 100 MiB, or the size of the index if it is missing
    /// [default: $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ReindexArguments {
    #[command(flatten)]
    arguments: Arguments,
    /// Accept the losses that the index proves
    #[arg(long)]
    accept_loss: bool,
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Check(inspecting) => check(&inspecting),
        Command::Stats(inspecting) => stats(&inspecting),
        Command::Reindex(reindexing) => reindex(&reindexing),
    }
}

impl InspectArguments {
    /// The directory for temporary files. Not `/tmp`, which is in memory on many systems: an index of many objects is
    /// large.
    fn temp_directory(&self) -> PathBuf {
        const PERSISTENT: &str = "/var/tmp";
        if let Some(directory) = &self.temp_dir {
            return directory.clone();
        }
        let is_set = std::env::var_os("TMPDIR").is_some_and(|set| !set.is_empty());
        let persistent = PathBuf::from(PERSISTENT);
        if !is_set && persistent.is_dir() { persistent } else { std::env::temp_dir() }
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

fn check(inspecting: &InspectArguments) -> anyhow::Result<CommandOutcome> {
    let arguments = &inspecting.arguments;
    let report = local::check(&arguments.directory, &inspecting.temp_directory())
        .with_context(|| arguments.failed("check"))?;
    let is_sound = report.is_sound();
    let CheckReport { objects, parts, verified_bytes: bytes, damage, loss, possible_loss, index } = report;
    let bad: Vec<Json> = damage.iter().map(|bad| json!({ "what": bad.item, "why": bad.cause })).collect();
    let json = json!({
        "sound": is_sound,
        "objects": objects,
        "parts": parts,
        "bytes": bytes,
        "bad": bad,
        "lost": loss.as_ref().map(loss_as_json),
        "possible_loss": possible_loss.as_ref().map(loss_as_json),
        "index": index_as_json(&index),
    });
    let mut text = loss.as_ref().map(loss_as_text).unwrap_or_default();
    text.extend(
        damage.iter().map(|bad| format!("bad: {}: {}\n", printable(&bad.item), printable(&bad.cause))),
    );
    if let Some(possible_loss) = &possible_loss {
        text += &format!(
            "possible loss: either the index is an older copy, as from a backup, and this was deleted since; or this is \
             lost: {}; restore missing segments if there are any; a start rebuilds the index and keeps this one \
             as index.ambiguous\n",
            printable(&possible_loss.to_string())
        );
    }
    if let Some(note) = index_note(&index) {
        text += &format!("note: {note}; that the end of the log is lost cannot be excluded without it\n");
    }
    text += &format!("{objects} objects and {parts} parts of unfinished uploads verified, {bytes} bytes: ");
    let mut outcome = Vec::new();
    if loss.is_some() {
        outcome.push("acknowledged changes are lost".to_owned());
    }
    if possible_loss.is_some() {
        outcome.push("acknowledged changes may be lost".to_owned());
    }
    if !damage.is_empty() {
        outcome.push(format!("{} bad", damage.len()));
    }
    text += &if outcome.is_empty() { "all sound".to_owned() } else { outcome.join(", ") };
    text += "\n";
    arguments.print(&json, &text)?;
    Ok(if is_sound { CommandOutcome::Done } else { CommandOutcome::FoundProblems })
}

/// The reason for which the index proves nothing, if there is one.
fn index_note(index: &IndexState) -> Option<String> {
    match index {
        IndexState::Good => None,
        IndexState::Missing => Some("the index is missing".to_owned()),
        IndexState::Unreadable(why) => Some(format!("the index cannot be read ({why})")),
        IndexState::Outdated(why) => Some(format!("the index is not of this log ({why})")),
    }
}

fn index_as_json(index: &IndexState) -> Json {
    let (state, why) = match index {
        IndexState::Good => ("good", None),
        IndexState::Missing => ("missing", None),
        IndexState::Unreadable(why) => ("unreadable", Some(why)),
        IndexState::Outdated(why) => ("outdated", Some(why)),
    };
    json!({ "state": state, "why": why })
}

fn loss_as_json(loss: &Loss) -> Json {
    let names = |names: &NameList| json!({ "count": names.count, "names": names.first_names });
    let ranges = loss.ranges.iter().map(|range| {
        json!({
            "segment": format!("{:08x}", range.segment),
            "from": range.existing_bytes,
            "until": range.recorded_end,
            "is_gone": range.existing_bytes == 0,
        })
    });
    json!({
        "proof": match loss.proof {
            LossProof::Index => "index",
            LossProof::Log => "log",
        },
        "ranges": ranges.collect::<Vec<_>>(),
        "objects": names(&loss.objects),
        "objects_with_older_records": loss.objects_with_older_records,
        "deletions": names(&loss.deletions),
        "unreadable": names(&loss.unreadable),
        "buckets": names(&loss.buckets),
        "other_records": loss.other_records,
    })
}

fn loss_as_text(loss: &Loss) -> String {
    let mut text: String = loss.ranges.iter().map(|range| format!("lost: {range}\n")).collect();
    let mut list = |names: &NameList, one: &str, all: &str| {
        for name in names.first_names.iter().take(MAX_PRINTED_NAMES) {
            text += &format!("lost: {one} {}\n", printable(name));
        }
        if names.count > MAX_PRINTED_NAMES as u64 {
            text += &format!("lost: and others, {} {all} in total (--json lists more)\n", names.count);
        }
    };
    list(&loss.objects, "the newest version of", "objects");
    list(&loss.deletions, "the deletion of", "deletions");
    list(&loss.unreadable, "the data of", "objects whose data is gone");
    list(&loss.buckets, "the creation of bucket", "buckets");
    if loss.other_records > 0 {
        text += &format!("lost: {} other records\n", loss.other_records);
    }
    if loss.objects_with_older_records + loss.deletions.count > 0 {
        text += "lost: if the store continues without this, older versions of these objects may reappear\n";
    }
    if loss.proof == LossProof::Log {
        text += "lost: without an index, the objects concerned are unknown\n";
    }
    text
}

fn stats(inspecting: &InspectArguments) -> anyhow::Result<CommandOutcome> {
    let arguments = &inspecting.arguments;
    let stats = local::stats(&arguments.directory, &inspecting.temp_directory())
        .with_context(|| arguments.failed("read"))?;
    let StoreStats { buckets, objects, uploads, tombstones, segments, .. } = stats;
    let counts = [
        ("buckets", buckets),
        ("objects", objects),
        ("older_versions", stats.older_versions),
        ("delete_markers", stats.delete_markers),
        ("uploads", uploads),
        ("tombstones", tombstones),
        ("segments", segments),
    ];
    let sizes = [
        ("object_bytes", stats.object_bytes),
        ("older_version_bytes", stats.older_version_bytes),
        ("segment_bytes", stats.segment_bytes),
        ("live_bytes", stats.live_bytes),
        ("index_bytes", stats.index_bytes),
        ("free_bytes", stats.free_bytes),
    ];
    let all = counts.iter().chain(&sizes).map(|(name, value)| ((*name).to_owned(), json!(value)));
    let lost = ("lost".to_owned(), json!(stats.loss.as_ref().map(loss_as_json)));
    let mut text: String = counts.iter().map(|(name, count)| format!("{name:19} {count}\n")).collect();
    for (name, bytes) in sizes {
        text += &format!("{name:19} {bytes} ({})\n", rounded_size(bytes));
    }
    text += &stats.loss.as_ref().map(loss_as_text).unwrap_or_default();
    arguments.print(&Json::Object(all.chain([lost]).collect()), &text)?;
    Ok(if stats.loss.is_none() { CommandOutcome::Done } else { CommandOutcome::FoundProblems })
}

/// A size with one decimal, for people; the exact number is printed next to it.
fn rounded_size(bytes: u64) -> String {
    let unit = [40_u32, 30, 20, 10].into_iter().find(|shift| bytes >> shift > 0);
    let Some(shift) = unit else { return ByteSize(bytes).to_string() };
    let tenths = (u128::from(bytes) * 10) >> shift;
    let unit = ByteSize(1 << shift).to_string();
    format!("{}.{} {}", tenths / 10, tenths % 10, unit.trim_start_matches('1'))
}

fn reindex(ReindexArguments { arguments, accept_loss }: &ReindexArguments) -> anyhow::Result<CommandOutcome> {
    let recovery =
        local::reindex(&arguments.directory, *accept_loss).with_context(|| arguments.failed("reindex"))?;
    let (records, damaged) = (recovery.replayed_records, recovery.damaged_bytes);
    let unreadable = recovery.unreadable.count;
    let json = json!({
        "records": records,
        "damaged_bytes": damaged,
        "voided": recovery.voided_records,
        "unreadable": unreadable,
        "lost": recovery.loss.as_ref().map(loss_as_json),
    });
    let mut text = recovery.loss.as_ref().map(loss_as_text).unwrap_or_default();
    text += &format!("rebuilt the index from {records} records\n");
    if damaged > 0 {
        text += &format!(
            "{damaged} bytes of the log are damaged; `tradewind store check` lists what is affected\n"
        );
    }
    if unreadable > 0 {
        text += &format!(
            "{unreadable} objects cannot be read, because their data is damaged or missing; `tradewind store check` \
             lists them\n"
        );
    }
    arguments.print(&json, &text)?;
    Ok(CommandOutcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_to_read() {
        for (bytes, text) in
            [(0, "0"), (999, "999B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (u64::MAX, "16777215.9 TiB")]
        {
            assert_eq!(rounded_size(bytes), text);
        }
    }

    #[test]
    fn control_characters_of_lost_keys_are_escaped() {
        let names = |names: &[&str]| NameList {
            count: names.len() as u64,
            first_names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let loss = Loss {
            proof: LossProof::Index,
            ranges: Vec::new(),
            objects: names(&["b/\u{1b}[2J"]),
            objects_with_older_records: 0,
            deletions: names(&["b/\nforged"]),
            unreadable: names(&[]),
            buckets: names(&[]),
            other_records: 0,
        };
        let text = loss_as_text(&loss);
        assert!(text.contains("b/\\u{1b}[2J\n") && text.contains("b/\\nforged\n"), "{text}");
    }
}
