//! `tradewind bench agent`: one of several machines that measure a store together.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use clap::Args;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tradewind_bench::cluster::Key;
use tradewind_bench::cluster::agent::{Ground, Job, Opens, Tell, serve};
use tradewind_bench::drive::Stop;

use super::ground::{AskingFlags, below, until_stopped};
use super::key::KeyFlags;
use super::output::client;
use crate::commands::{Ended, told};
use crate::places::ObjectsPlace;
use crate::profiles::here::cores;

/// Requests at a time, at the most.
const MOST_CONNECTIONS: usize = 4096;

/// Wait for `tradewind bench cluster`, and measure what it asks for
///
/// The agent opens the store with its own credentials, which it finds as all commands do; they never travel. Whoever has the
/// key can have it write objects to any place that those credentials reach, below a prefix `tradewind-bench-`, and read and
/// remove those; nothing else is touched. What is said is not encrypted, and cannot be changed or repeated by others. Another
/// address than one of this machine itself has to be named with --listen.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench agent --key-file key\n  \
    tradewind bench agent --key-file key --listen 10.0.0.7:9190 --only s3://bucket/tests\n\n\
    It ends with a signal: what is under way is stopped, and its objects are removed.")]
pub(in crate::commands) struct Arguments {
    /// Where it waits for the coordinator
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9190")]
    listen: SocketAddr,
    /// Measure nothing but what is below this place; several times for several
    #[arg(long, value_name = "PLACE")]
    only: Vec<ObjectsPlace>,
    #[command(flatten)]
    key: KeyFlags,
    #[command(flatten)]
    asking: AskingFlags,
}

pub(super) fn run(arguments: Arguments) -> anyhow::Result<Ended> {
    let key = arguments.key.read()?;
    let opener = Opener { asking: arguments.asking, only: arguments.only };
    until_stopped(async move |stop| wait(arguments.listen, key, opener, stop).await)
}

async fn wait(listen: SocketAddr, key: Key, opener: Opener, stop: Stop) -> anyhow::Result<Ended> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    say(&format!("waiting for a coordinator on {}", listener.local_addr()?));
    let tell: Tell = Arc::new(say);
    let opens: Arc<dyn Opens> = Arc::new(opener);
    serve(listener, &key, &opens, &stop, &tell).await?;
    Ok(Ended::Done)
}

/// An agent works whether or not anybody reads what it says.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

struct Opener {
    asking: AskingFlags,
    only: Vec<ObjectsPlace>,
}

impl Opens for Opener {
    fn open<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<Ground, String>> {
        Box::pin(async move {
            let opened = tokio::task::block_in_place(|| self.ground(job));
            opened.map_err(|e| told(&e))
        })
    }
}

impl Opener {
    fn ground(&self, job: &Job) -> anyhow::Result<Ground> {
        let place: ObjectsPlace = job.place.parse()?;
        if !self.only.is_empty() && !self.only.iter().any(|only| holds(only, &place)) {
            return Err(anyhow!("the agent may not measure there: it was started with --only"));
        }
        let lines = (job.connections.min(MOST_CONNECTIONS), job.fresh);
        let bed = self.asking.open(&place, lines, &job.own())?;
        let store = bed.store.capabilities().kind.to_owned();
        Ok(Ground { bed, below: below(&place.key), store, client: client(cores()) })
    }
}

/// Whether a place is this one or below it.
fn holds(only: &ObjectsPlace, place: &ObjectsPlace) -> bool {
    let is_there = only.scheme == place.scheme && only.bucket == place.bucket;
    is_there && below(&place.key).starts_with(&below(&only.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beside_a_place_is_not_below_it() {
        let holds = |only: &str, place: &str| holds(&only.parse().unwrap(), &place.parse().unwrap());
        assert!(holds("s3://bucket", "s3://bucket") && holds("s3://bucket", "s3://bucket/there"));
        assert!(holds("s3://bucket/there", "s3://bucket/there/more"));
        assert!(holds("s3://bucket/there/", "s3://bucket/there"));
        assert!(!holds("s3://bucket/there", "s3://bucket/therein"));
        assert!(!holds("s3://bucket/there", "s3://bucket"));
        assert!(!holds("s3://bucket", "s3://bucket-2") && !holds("s3://bucket", "swift://bucket"));
    }
}
