//! `tradewind lab simulate cache`: caches in a storage system, and eviction policies by a trace.

mod system;
mod trace;

use clap::Args;

use super::super::super::CommandOutcome;

/// Compare caches in a storage system of SSDs and disks, or eviction policies by the requests of a trace
///
/// Without --trace: four storage nodes hold three replicas of 100 GB: files, pictures, music, videos and disk images. 100
/// clients PUT all objects, then GET 100,000 random ones, then DELETE all. A node has a disk (140 MB/s, 12 ms to
/// position), an SSD (270 and 210 MB/s) and a link (87 MB/s). A connection that a node does not accept within 0.5 s fails,
/// and the request is repeated. All configurations serve the same requests. The system is that of Chen, Mesnier and Hahn,
/// "Client-aware Cloud Storage" (2014). Not simulated: the proxy, CPU time, RAM as a cache, and garbage collection.
///
/// With --trace: a table with one line per size of the cache and policy, with the share of requests that miss. All blocks
/// of a trace have the same size.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab simulate cache\n  \
    tradewind lab simulate cache --config lru,tradewind --cache 5% --scale 0.1\n  \
    tradewind lab simulate cache --config dss,tradewind --labels on,off,shuffled,inverted --json\n  \
    tradewind lab simulate cache --experiment traffic\n  \
    tradewind lab simulate cache --trace requests.txt.zst --blocks 1%,5%,10%\n  \
    tradewind lab simulate cache --trace requests.txt --blocks 20000 --policy lru,adaptive-window --json\n  \
    cut -d, -f2 requests.csv | tradewind lab simulate cache --trace - --blocks 5%")]
pub(in crate::commands) struct Arguments {
    #[command(flatten)]
    trace: trace::TraceArguments,
    #[command(flatten)]
    system: system::SystemArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    match &arguments.trace.trace {
        Some(path) => trace::run(&arguments.trace, path, arguments.json),
        None => system::run(&arguments.system, arguments.json),
    }
}
