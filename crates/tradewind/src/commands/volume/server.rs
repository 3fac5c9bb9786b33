//! `tradewind volume status | evict | stage | pin | unpin | rewrap`: calls of a [running server](RunningServer) about its
//! volumes.

mod layers_text;
mod rewrap;

use std::io::{self, IsTerminal as _, Write as _};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value as Json, json};
use tradewind_core::BucketName;
use tradewind_wire::sigv4::encode_query;

use super::super::CommandOutcome;
use super::super::running_server::{RunningServer, ServerFlags};
use super::super::terminal::{Names, print_error_line, printable_json};
use super::super::transfer::block_on;
use super::rounded;
use crate::admin_client::ResponseLines;
use crate::settings::ByteSize;

/// Show the volumes of a running server: stack, store, and what their caches hold
///
/// Asks the admin listener of the server, with the root key. Both are found as the server finds them: by --config,
/// --data, --admin and the variables TRADEWIND_*.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind volume status --config tradewind.toml\n  \
    tradewind volume status archive --config tradewind.toml --json\n  \
    tradewind volume status --admin 127.0.0.1:9001 --data ./data")]
pub(in super::super) struct Status {
    /// Name of a volume [default: all]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    server: ServerFlags,
}

/// Drop the objects under a prefix from the cache of a running server
///
/// The objects stay in the store below. Their next read comes from there.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind volume evict photos/2026/ --config tradewind.toml\n  \
    tradewind volume evict photos --config tradewind.toml")]
pub(in super::super) struct Evict {
    /// Bucket, and the beginning of the keys
    #[arg(value_name = "BUCKET[/PREFIX]")]
    objects: ObjectPrefix,
    #[command(flatten)]
    server: ServerFlags,
}

/// Read the objects under a prefix into the cache of a running server
///
/// The server reads them from the store below; no data passes through this command. Objects that are cached are skipped,
/// and those that are larger than the cache. The cache keeps or drops staged objects as it does all others: stage no more
/// than it holds. The end of this command ends the work.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind volume stage photos/2026/ --config tradewind.toml\n  \
    tradewind volume stage photos/2026/ --config tradewind.toml --json")]
pub(in super::super) struct Stage {
    /// Bucket, and the beginning of the keys
    #[arg(value_name = "BUCKET[/PREFIX]")]
    objects: ObjectPrefix,
    #[command(flatten)]
    server: ServerFlags,
}

/// Keep the objects under a prefix in the cache of a running server
///
/// Their cached data is not evicted until the prefix is unpinned. Objects that are cached already are pinned at their
/// next read, also after a restart. All pins together fill at most half of the cache; volume status lists them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind volume pin photos/2026/ --config tradewind.toml\n  \
    tradewind volume stage photos/2026/ --config tradewind.toml")]
pub(in super::super) struct Pin {
    /// Bucket, and the beginning of the keys
    #[arg(value_name = "BUCKET[/PREFIX]")]
    objects: ObjectPrefix,
    #[command(flatten)]
    server: ServerFlags,
}

/// End the pin of a prefix
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind volume unpin photos/2026/ --config tradewind.toml")]
pub(in super::super) struct Unpin {
    /// Bucket and prefix, as they were pinned
    #[arg(value_name = "BUCKET[/PREFIX]")]
    objects: ObjectPrefix,
    #[command(flatten)]
    server: ServerFlags,
}

/// Objects of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObjectPrefix {
    bucket: BucketName,
    prefix: String,
}

impl ObjectPrefix {
    fn to_json(&self) -> Json {
        json!({ "bucket": self.bucket.as_str(), "prefix": self.prefix })
    }
}

impl FromStr for ObjectPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix("s3://").unwrap_or(text);
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let bucket = BucketName::new(bucket).map_err(|error| error.to_string())?;
        Ok(Self { bucket, prefix: prefix.to_owned() })
    }
}

impl RunningServer {
    /// Starts work on objects, in the volume of their bucket.
    async fn start(&self, call: &str, objects: &ObjectPrefix) -> anyhow::Result<ResponseLines> {
        let path = self.path_of(call, objects).await?;
        self.client.start(&path, &objects.to_json()).await.map_err(|error| self.explain(error))
    }

    /// Makes a change that concerns objects, in the volume of their bucket.
    async fn change_objects(&self, call: &str, objects: &ObjectPrefix) -> anyhow::Result<Json> {
        let path = self.path_of(call, objects).await?;
        self.change(&path, &objects.to_json()).await
    }

    async fn path_of(&self, call: &str, objects: &ObjectPrefix) -> anyhow::Result<String> {
        let volumes = self.read("/v1/volumes").await?;
        let name = volume_of(&volumes, &objects.bucket).context("the server reports no volume")?;
        Ok(volume_path(name, call))
    }
}

/// The name of the volume of a bucket.
fn volume_of<'a>(volumes: &'a Json, bucket: &BucketName) -> Option<&'a str> {
    let volumes = volumes["volumes"].as_array()?;
    let has_bucket = |volume: &&Json| {
        volume["buckets"].as_array().is_some_and(|names| names.iter().any(|name| name == bucket.as_str()))
    };
    let is_default = |volume: &&Json| volume["default"] == true;
    volumes.iter().find(has_bucket).or_else(|| volumes.iter().find(is_default))?["name"].as_str()
}

/// The path of a call about a volume.
fn volume_path(name: &str, call: &str) -> String {
    let mut encoded = Vec::new();
    // As in a query, a slash of the name is encoded.
    encode_query(name, &mut encoded);
    format!("/v1/volumes/{}/{call}", String::from_utf8_lossy(&encoded))
}

pub(in super::super) fn status(arguments: Status) -> anyhow::Result<CommandOutcome> {
    let server = arguments.server.find()?;
    let path = match &arguments.name {
        Some(name) => volume_path(name, "status"),
        None => "/v1/volumes".to_owned(),
    };
    block_on(async move {
        let document = server.read(&path).await?;
        let mut stdout = io::stdout().lock();
        if arguments.server.json {
            writeln!(stdout, "{}", printable_json(&format!("{document:#}")))?;
            return Ok(CommandOutcome::Done);
        }
        let volumes = match document["volumes"].as_array() {
            Some(volumes) => volumes.as_slice(),
            None => std::slice::from_ref(&document),
        };
        let texts: Vec<String> = volumes.iter().map(status_text).collect();
        write!(stdout, "{}", texts.join("\n"))?;
        Ok(CommandOutcome::Done)
    })
}

/// The lines of `volume status` about one volume.
fn status_text(volume: &Json) -> String {
    let names = Names::for_stdout();
    let text = |value: &Json| names.show(value.as_str().unwrap_or("-")).into_owned();
    let size = |value: &Json| value.as_u64().map_or_else(|| "-".to_owned(), |bytes| rounded(ByteSize(bytes)));
    let default = if volume["default"] == true { " (default)" } else { "" };
    let store = &volume["store"];
    let mut lines = format!("volume   {}{default}\n", text(&volume["name"]));
    lines += &format!("stack    {}\n", text(&volume["stack"]));
    lines += &format!("store    {} ({})\n", text(&store["name"]), text(&store["type"]));
    if !store["free_bytes"].is_null() {
        lines += &format!("free     {}\n", size(&store["free_bytes"]));
    }
    for cache in volume["caches"].as_array().into_iter().flatten() {
        let (memory, ssd, counters) = (&cache["memory"], &cache["ssd"], &cache["counters"]);
        lines += &format!("memory   {} of {}\n", size(&memory["used_bytes"]), size(&memory["size_bytes"]));
        lines += &match ssd.is_null() {
            true => "ssd      none, or it cannot be used\n".to_owned(),
            false => {
                let loading = if ssd["loaded"] == false { ", the index is still loaded" } else { "" };
                let (used, all) = (size(&ssd["used_bytes"]), size(&ssd["size_bytes"]));
                format!("ssd      {used} of {all}, {} extents{loading}\n", ssd["extents"])
            }
        };
        lines += &format!(
            "reads    {} from memory, {} from the ssd, {} in part, {} from the store\n",
            counters["ram_hits"], counters["ssd_hits"], counters["partial_hits"], counters["misses"]
        );
        lines += &format!("bytes    {} from memory", size(&counters["ram_bytes"]));
        lines += &format!(", {} from the ssd", size(&counters["ssd_bytes"]));
        lines += &format!(", {} from the store\n", size(&counters["backing_bytes"]));
        lines += &writes_text(counters);
        for class in cache["classes"].as_array().into_iter().flatten() {
            let (memory, ssd) = (size(&class["memory_bytes"]), size(&class["ssd_bytes"]));
            lines += &format!("class    {}: {memory} of memory, {ssd} of the ssd\n", class["class"]);
        }
        lines += &pins_text(&cache["pins"]);
        if counters["ssd_errors"] != 0 || counters["ssd_corrupt"] != 0 {
            let (errors, corrupt) = (&counters["ssd_errors"], &counters["ssd_corrupt"]);
            lines += &format!("errors   {errors} of the ssd, {corrupt} extents with wrong bytes\n");
        }
    }
    lines += &rewrap::keys_text(&volume["transformed"]);
    lines += &layers_text::disks_text(&volume["disks"]);
    lines += &layers_text::deduplicated_text(&volume["deduplicated"]);
    let write_back = &volume["write_back"];
    if !write_back.is_null() {
        let bytes = size(&write_back["dirty_bytes"]);
        lines +=
            &format!("dirty    {bytes} in {} objects, only in the journal yet", write_back["dirty_objects"]);
        let age = write_back["oldest_seconds"].as_f64().unwrap_or(0.0);
        lines += &if age > 0.0 { format!(", the oldest for {age:.0} s\n") } else { "\n".to_owned() };
        lines += &pause_text(&write_back["pause"]);
        if write_back["rejected"] != 0 {
            lines += "rejected the store below rejects some of them: the log names them\n";
        }
    }
    lines
}

/// The reason for which nothing is written back now.
fn pause_text(pause: &Json) -> String {
    let reason = match pause["cause"].as_str() {
        Some("store_unavailable") => "the store below is unavailable",
        Some("outcome_unknown") => "a request whose outcome is unknown may still change the store below",
        _ => return String::new(),
    };
    let seconds = pause["retry_in_seconds"].as_f64().unwrap_or(0.0);
    format!("waits    {reason}; the next attempt is in {seconds:.0} s\n")
}

/// The bytes that were written to the SSD, and the extents that were not.
fn writes_text(counters: &Json) -> String {
    let count = |name: &str| counters[name].as_u64().unwrap_or(0);
    let mut line = format!("written  {} to the ssd", rounded(ByteSize(count("ssd_written_bytes"))));
    for (skipped, reason) in [
        (count("fills_over_budget"), "over max_write_rate"),
        (count("fills_queue_full"), "because the ssd did not keep up"),
    ] {
        if skipped > 0 {
            line += &format!(", {skipped} extents not stored {reason}");
        }
    }
    line + "\n"
}

pub(in super::super) fn pin(arguments: Pin) -> anyhow::Result<CommandOutcome> {
    change_pin("pin", &arguments.objects, &arguments.server)
}

pub(in super::super) fn unpin(arguments: Unpin) -> anyhow::Result<CommandOutcome> {
    change_pin("unpin", &arguments.objects, &arguments.server)
}

/// Changes the pins, and prints those that the volume has now.
fn change_pin(call: &str, objects: &ObjectPrefix, flags: &ServerFlags) -> anyhow::Result<CommandOutcome> {
    let server = flags.find()?;
    block_on(async move {
        let document = server.change_objects(call, objects).await?;
        let mut stdout = io::stdout().lock();
        match flags.json {
            true => writeln!(stdout, "{}", printable_json(&format!("{document:#}")))?,
            false => write!(stdout, "{}", pins_text(&document["pins"]))?,
        }
        Ok(CommandOutcome::Done)
    })
}

/// A line for each pinned prefix.
fn pins_text(pins: &Json) -> String {
    let names = Names::for_stdout();
    let mut lines = String::new();
    for pin in pins.as_array().into_iter().flatten() {
        let text = |key: &str| names.show(pin[key].as_str().unwrap_or("-")).into_owned();
        lines += &format!("pinned   {}/{}\n", text("bucket"), text("prefix"));
    }
    lines
}

pub(in super::super) use rewrap::{Rewrap, rewrap};

pub(in super::super) fn evict(arguments: Evict) -> anyhow::Result<CommandOutcome> {
    let describe = |counts: &Json| {
        format!("evicted {} of {} objects", number(counts, "evicted"), number(counts, "objects"))
    };
    let Evict { objects, server } = arguments;
    block_on(async move { follow(&server, "evict", &objects, describe).await })
}

pub(in super::super) fn stage(arguments: Stage) -> anyhow::Result<CommandOutcome> {
    let describe = |counts: &Json| {
        let mut text = format!(
            "staged {} of {} objects, {}; {} were cached",
            number(counts, "staged"),
            number(counts, "objects"),
            rounded(ByteSize(number(counts, "read_bytes"))),
            number(counts, "already_cached"),
        );
        for (key, what) in [
            ("too_large", "larger than the cache"),
            ("not_kept", "read, but not kept by the cache"),
            ("failed", "failed"),
        ] {
            if number(counts, key) > 0 {
                text += &format!("; {} {what}", number(counts, key));
            }
        }
        text
    };
    let Stage { objects, server } = arguments;
    block_on(async move { follow(&server, "stage", &objects, describe).await })
}

fn number(counts: &Json, key: &str) -> u64 {
    counts[key].as_u64().unwrap_or(0)
}

/// Starts work and prints what the server reports about it, until its end.
async fn follow(
    flags: &ServerFlags,
    call: &str,
    objects: &ObjectPrefix,
    describe: impl Fn(&Json) -> String,
) -> anyhow::Result<CommandOutcome> {
    let server = flags.find()?;
    let lines = server.start(call, objects).await?;
    let done = follow_lines(flags, &server, lines, describe).await?;
    Ok(match number(&done, "failed") {
        0 => CommandOutcome::Done,
        _ => CommandOutcome::FoundProblems,
    })
}

/// Prints what the server reports about work, until its end. Returns the counts at the end.
async fn follow_lines(
    flags: &ServerFlags,
    server: &RunningServer,
    mut lines: ResponseLines,
    describe: impl Fn(&Json) -> String,
) -> anyhow::Result<Json> {
    let shows_progress = !flags.json && io::stderr().is_terminal();
    while let Some(line) = lines.next().await.map_err(|error| server.explain(error))? {
        if flags.json {
            writeln!(io::stdout(), "{}", printable_json(&line.to_string()))?;
        }
        let (progress, failure, done) = (&line["progress"], &line["failure"], &line["done"]);
        if shows_progress && !progress.is_null() {
            write!(io::stderr(), "\r\x1b[K{}", describe(progress))?;
        }
        if shows_progress && (!failure.is_null() || !done.is_null()) {
            write!(io::stderr(), "\r\x1b[K")?;
        }
        if !flags.json && !failure.is_null() {
            let text = |key: &str| failure[key].as_str().unwrap_or_default().to_owned();
            print_error_line(format!("tradewind: {}: {}", text("key"), text("message")))?;
        }
        if let Some(message) = line["error"]["message"].as_str() {
            bail!("the server ended the work: {message}");
        }
        if !done.is_null() {
            if !flags.json {
                writeln!(io::stdout(), "{}", describe(done))?;
            }
            return Ok(done.clone());
        }
    }
    bail!("the server ended the work early; its log says why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_a_bucket_and_a_prefix() {
        let parse = |text: &str| {
            text.parse::<ObjectPrefix>().map(|parsed| (parsed.bucket.to_string(), parsed.prefix))
        };
        let expected = |bucket: &str, prefix: &str| Ok((bucket.to_owned(), prefix.to_owned()));
        assert_eq!(parse("photos/2026/a"), expected("photos", "2026/a"));
        assert_eq!(parse("s3://photos/"), expected("photos", ""));
        assert_eq!(parse("photos"), expected("photos", ""));
        assert!(parse("/a").is_err() && parse("").is_err());
    }

    #[test]
    fn bucket_is_in_its_volume_else_in_the_default() {
        let volumes = json!({ "volumes": [
            { "name": "hot", "default": true, "buckets": [] },
            { "name": "cold", "default": false, "buckets": ["old"] },
        ]});
        let volume = |bucket: &str| volume_of(&volumes, &BucketName::new(bucket).unwrap());
        assert_eq!((volume("old"), volume("new")), (Some("cold"), Some("hot")));
    }

    #[test]
    fn status_shows_what_a_cache_holds() {
        let counters = json!({
            "ram_hits": 1, "ssd_hits": 2, "partial_hits": 3, "misses": 4, "ram_bytes": 5, "ssd_bytes": 6,
            "backing_bytes": 7, "ssd_errors": 0, "ssd_corrupt": 0, "ssd_written_bytes": 8, "fills_over_budget": 9,
        });
        let volume = json!({
            "name": "v", "default": true, "stack": "[\"disk\"]", "store": { "name": "disk", "type": "local" },
            "caches": [{
                "memory": { "used_bytes": 1024, "size_bytes": 4096 },
                "ssd": { "used_bytes": 65536, "size_bytes": 1 << 30, "extents": 1, "loaded": false },
                "counters": counters,
            }],
        });
        let text = status_text(&volume);
        for line in [
            "volume   v (default)",
            "store    disk (local)",
            "memory   1KiB of 4KiB",
            "ssd      64KiB of 1GiB, 1 extents, the index is still loaded",
            "reads    1 from memory, 2 from the ssd, 3 in part, 4 from the store",
            "bytes    5B from memory, 6B from the ssd, 7B from the store",
            "written  8B to the ssd, 9 extents not stored over max_write_rate",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
    }
}
