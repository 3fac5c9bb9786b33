//! Conformance of layers to the port, on the leaves that they serve in production.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::testing::conformance;
use tradewind_core::{ObjectStore, SystemClock};
use tradewind_layers::scheduled::Priorities;
use tradewind_layers::{Instrumented, Scheduled};
use tradewind_model::lanes::LanesOptions;

/// A new local store.
fn local(directory: &Path) -> Arc<dyn ObjectStore> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let path = directory.join(NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
    LocalStore::open(&path, LocalOptions::default(), SystemClock::shared()).unwrap()
}

/// A new local store with instrumentation.
fn observed_local(directory: &Path) -> Arc<dyn ObjectStore> {
    Instrumented::new(local(directory), SystemClock::shared())
}

/// A new local store with instrumentation and lanes, as served if the settings enable lanes.
fn scheduled_local(directory: &Path) -> Arc<dyn ObjectStore> {
    let clock = SystemClock::shared();
    let (options, none) = (LanesOptions::default(), Priorities::default());
    Instrumented::new(Scheduled::new(local(directory), options, none, clock.clone()), clock)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instrumented_local_store_conforms() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let make = move || {
        let directory = directory.clone();
        async move { observed_local(directory.path()) }.boxed()
    };
    conformance::run(make).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_store_with_lanes_conforms() {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let make = move || {
        let directory = directory.clone();
        async move { scheduled_local(directory.path()) }.boxed()
    };
    conformance::run(make).await;
}
