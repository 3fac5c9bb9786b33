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
use super::target::{ClientFlags, ConnectionUse, directory_prefix, until_stopped};
use crate::commands::{CommandOutcome, error_text};
use crate::locations::ObjectsLocation;
use crate::profiles::this_machine::cpus;

/// The maximum number of concurrent requests.
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
    let opener = Opener { flags: arguments.client, only: arguments.only };
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
    let log: LogFn = Arc::new(print_line);
    let opener: Arc<dyn StoreOpener> = Arc::new(opener);
    serve(listener, &key, &opener, &stop, &log).await?;
    Ok(CommandOutcome::Done)
}

/// Prints a line. A closed stdout is ignored: the agent keeps working.
fn print_line(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Opens the stores of jobs with the flags of the agent.
struct Opener {
    flags: ClientFlags,
    /// The permitted locations; all if empty.
    only: Vec<ObjectsLocation>,
}

impl StoreOpener for Opener {
    fn open<'a>(&'a self, job: &'a AgentJob) -> BoxFuture<'a, Result<OpenedStore, String>> {
        Box::pin(async move {
            let opened = tokio::task::block_in_place(|| self.open_job(job));
            opened.map_err(|e| error_text(&e))
        })
    }
}

impl Opener {
    fn open_job(&self, job: &AgentJob) -> anyhow::Result<OpenedStore> {
        let location: ObjectsLocation = job.location.parse()?;
        if !self.only.is_empty() && !self.only.iter().any(|only| contains(only, &location)) {
            return Err(anyhow!("the agent is restricted to other locations by --only"));
        }
        let connection_use =
            if job.new_connections { ConnectionUse::NewPerRequest } else { ConnectionUse::Reused };
        let connections = (job.max_concurrency.min(MAX_CONNECTIONS), connection_use);
        let env = self.flags.open(&location, connections, &job.unique_name())?;
        let store = env.store.capabilities().kind.to_owned();
        Ok(OpenedStore {
            env,
            base_prefix: directory_prefix(&location.key),
            store,
            client: local_client(cpus()),
        })
    }
}

/// Returns true if a location is `only` or below it.
fn contains(only: &ObjectsLocation, location: &ObjectsLocation) -> bool {
    let is_same_bucket = only.scheme == location.scheme && only.bucket == location.bucket;
    is_same_bucket && directory_prefix(&location.key).starts_with(&directory_prefix(&only.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_matches_a_location_and_everything_below() {
        let contains =
            |only: &str, location: &str| contains(&only.parse().unwrap(), &location.parse().unwrap());
        assert!(contains("s3://bucket", "s3://bucket") && contains("s3://bucket", "s3://bucket/there"));
        assert!(contains("s3://bucket/there", "s3://bucket/there/more"));
        assert!(contains("s3://bucket/there/", "s3://bucket/there"));
        assert!(!contains("s3://bucket/there", "s3://bucket/therein"));
        assert!(!contains("s3://bucket/there", "s3://bucket"));
        assert!(!contains("s3://bucket", "s3://bucket-2") && !contains("s3://bucket", "swift://bucket"));
    }
}
