//! What the commands that move data share: their flags, the store they speak with, the runtime they run in.

use std::future::Future;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::runtime::Builder;
use tradewind_core::{Budget, Clock, ObjectStore, SystemClock};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_transfer::objects::Objects;
use tradewind_transfer::{Copier, Outcome, Progress};
use tradewind_volume::Carrier;

use super::Ended;
use crate::places::ObjectsPlace;
use crate::remote;
use crate::settings::ByteSize;

/// Flags that override how much is done at a time.
#[derive(Debug, Clone, Args)]
pub(super) struct TransferFlags {
    /// Requests at a time
    #[arg(long, value_name = "N", help_heading = "Tuning")]
    jobs: Option<usize>,
    /// Bytes of one request of a large object, as 8MiB
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, help_heading = "Tuning")]
    chunk_size: Option<ByteSize>,
    /// Bytes that may be held in memory, as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, help_heading = "Tuning")]
    max_memory: Option<ByteSize>,
}

/// What a command works with.
pub(super) struct Session {
    pub store: Arc<dyn ObjectStore>,
    pub carrier: Arc<Carrier>,
    pub progress: Arc<Progress>,
}

impl TransferFlags {
    /// Opens the store, in a runtime.
    pub fn open(&self) -> anyhow::Result<Session> {
        let mut plan = Plan::default();
        plan.requests = self.jobs.unwrap_or(plan.requests);
        plan.chunk_bytes = self.chunk_size.map_or(plan.chunk_bytes, |size| size.0);
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let memory = self.max_memory.map_or(32 << 20, |size| size.as_usize());
        let store = remote::open(clock.clone(), plan.requests)?;
        let carrier = Carrier::new(plan, Budget::new(memory), clock, RetryOptions::default());
        Ok(Session { store, carrier: Arc::new(carrier), progress: Arc::default() })
    }
}

impl Session {
    pub fn objects(&self, place: &ObjectsPlace) -> Objects {
        Objects { store: self.store.clone(), bucket: place.bucket.clone(), prefix: place.key.clone() }
    }

    pub fn copier(&self) -> Copier {
        Copier { carrier: self.carrier.clone(), progress: self.progress.clone() }
    }
}

/// Runs a command to its end.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Builder::new_multi_thread().enable_all().thread_name("tradewind").build();
    runtime.context("cannot start the threads that carry data")?.block_on(work)
}

/// Tells what failed.
pub(super) fn conclude(outcome: &Outcome) -> Ended {
    for (name, error) in &outcome.failures {
        #[expect(clippy::print_stderr, reason = "it is what the command has to say")]
        {
            eprintln!("tradewind: {name}: {error}");
        }
    }
    if outcome.failed > 0 { Ended::FoundFaults } else { Ended::Done }
}
