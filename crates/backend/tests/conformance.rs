//! The local store meets every guarantee of the port.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::testing::conformance;
use tradewind_core::{ObjectStore, SystemClock};

/// Creates each store in a directory of its own, and removes that of the one before: stores allocate space ahead.
fn make(options: LocalOptions) -> impl Fn() -> BoxFuture<'static, Arc<dyn ObjectStore>> {
    let last = Mutex::new(None);
    move || {
        let directory = tempfile::tempdir().unwrap();
        let (path, options) = (directory.path().join("store"), options.clone());
        *last.lock().unwrap() = Some(directory);
        async move {
            let store = LocalStore::open(&path, options, SystemClock::shared()).unwrap();
            store as Arc<dyn ObjectStore>
        }
        .boxed()
    }
}

/// Small segments and eager upkeep: everything is moved while the suite runs.
fn eager() -> LocalOptions {
    LocalOptions {
        segment_bytes: 256 << 10,
        inline_bytes: 4 << 10,
        max_buffered_bytes: 0,
        write_bytes: 3 << 10,
        checkpoint_bytes: 256 << 10,
        compact_below_fraction: 0.95,
        compact_bytes_per_second: 1 << 30,
        compact_interval: std::time::Duration::from_millis(20),
        ..LocalOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    conformance::run(make(LocalOptions::default())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_while_segments_roll_and_are_compacted() {
    conformance::run(make(eager())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behaves_as_the_memory_store_does() {
    for seed in 0..8 {
        println!("seed {seed}");
        conformance::model(make(eager()), seed, 200).await;
    }
}
