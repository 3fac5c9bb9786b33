//! `tradewind bench agent`: the load generator of one machine in a distributed benchmark.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use clap::Args;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tradewind_bench::cluster::Key;
use tradewind_bench::cluster::agent::{AgentJob, LogFn, OpenedStore, StoreOpener, serve};
use tradewind_bench::drive::StopSignal;

use super::key::KeyFlags;
use super::output::local_client;
use super::target::{ClientFlags, directory_prefix, until_stopped};
use crate::commands::{CommandOutcome, error_text};
use crate::locations::ObjectsLocation;
use crate::profiles::this_machine::cpus;

/// The limit of concurrent requests.
const MAX_CONNECTIONS: usize = 4096;

/// Run load for `tradewind bench cluster` on this machine
///
/// The agent opens the store with its own credentials, found as by all commands; they are never sent. A holder of the
/// key can make the agent write, read and remove objects below prefixes `tradewind-bench-`, wherever the credentials
/// allow it; nothing else is touched. The protocol is authenticated and protected against replay, but not encrypted. To
/// accept connections from other machines, set --listen.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench agent --key-file key\n  \
    tradewind bench agent --key-file key --listen 10.0.0.7:9190 --only s3://bucket/tests\n\n\
    A signal ends it: running measurements are stopped and their objects are removed.")]
pub(in crate::commands) struct Arguments {
    /// Address to listen on for the coordinator
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9190")]
    listen: SocketAddr,
    /// Restrict measurements to this prefix (repeatable)
    #[arg(long, value_name = "URL")]
    only: Vec<ObjectsLocation>,
    #[command(flatten)]
    key: KeyFlags,
    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<CommandOutcome> {
    let key = arguments.key.read()?;
    let opener = Opener { asking: arguments.client, only: arguments.only };
    until_stopped(async move |stop| wait(arguments.listen, key, opener, stop).await)
}

async fn wait(
    listen: SocketAddr,
    key: Key,
    opener: Opener,
    stop: StopSignal,
) -> anyhow::Result<CommandOutcome> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    print_line(&format!("waiting for a coordinator on {}", listener.local_addr()?));
    let tell: LogFn = Arc::new(print_line);
    let opens: Arc<dyn StoreOpener> = Arc::new(opener);
    serve(listener, &key, &opens, &stop, &tell).await?;
    Ok(CommandOutcome::Done)
}

/// Prints a line. A closed stdout is ignored: the agent keeps working.
fn print_line(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

struct Opener {
    asking: ClientFlags,
    only: Vec<ObjectsLocation>,
}

impl StoreOpener for Opener {
    fn open<'a>(&'a self, job: &'a AgentJob) -> BoxFuture<'a, Result<OpenedStore, String>> {
        Box::pin(async move {
            let opened = tokio::task::block_in_place(|| self.ground(job));
            opened.map_err(|e| error_text(&e))
        })
    }
}

impl Opener {
    fn ground(&self, job: &AgentJob) -> anyhow::Result<OpenedStore> {
        let location: ObjectsLocation = job.location.parse()?;
        if !self.only.is_empty() && !self.only.iter().any(|only| holds(only, &location)) {
            return Err(anyhow!("the agent is restricted to other locations by --only"));
        }
        let lines = (job.max_concurrency.min(MAX_CONNECTIONS), job.new_connections);
        let bed = self.asking.open(&location, lines, &job.unique_name())?;
        let store = bed.store.capabilities().kind.to_owned();
        Ok(OpenedStore {
            env: bed,
            base_prefix: directory_prefix(&location.key),
            store,
            client: local_client(cpus()),
        })
    }
}

/// Returns true if a location is `only` or below it.
fn holds(only: &ObjectsLocation, location: &ObjectsLocation) -> bool {
    let is_there = only.scheme == location.scheme && only.bucket == location.bucket;
    is_there && directory_prefix(&location.key).starts_with(&directory_prefix(&only.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matches_a_place_and_what_is_below_it() {
        let holds = |only: &str, location: &str| holds(&only.parse().unwrap(), &location.parse().unwrap());
        assert!(holds("s3://bucket", "s3://bucket") && holds("s3://bucket", "s3://bucket/there"));
        assert!(holds("s3://bucket/there", "s3://bucket/there/more"));
        assert!(holds("s3://bucket/there/", "s3://bucket/there"));
        assert!(!holds("s3://bucket/there", "s3://bucket/therein"));
        assert!(!holds("s3://bucket/there", "s3://bucket"));
        assert!(!holds("s3://bucket", "s3://bucket-2") && !holds("s3://bucket", "swift://bucket"));
    }
}
