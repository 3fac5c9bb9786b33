//! The local store meets every guarantee of the port.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::testing::conformance;
use tradewind_core::{ObjectStore, SystemClock};

/// Creates stores in directories that live as long as the test.
struct Place(tempfile::TempDir, std::sync::atomic::AtomicUsize);

impl Place {
    fn new() -> &'static Self {
        Box::leak(Box::new(Self(tempfile::tempdir().unwrap(), 0.into())))
    }

    fn make(&'static self, options: LocalOptions) -> impl Fn() -> BoxFuture<'static, Arc<dyn ObjectStore>> {
        move || {
            let number = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (path, options) = (self.0.path().join(number.to_string()), options.clone());
            async move {
                let store = LocalStore::open(&path, options, SystemClock::shared()).unwrap();
                store as Arc<dyn ObjectStore>
            }
            .boxed()
        }
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
    let place = Place::new();
    conformance::run(place.make(LocalOptions::default())).await;
    std::fs::remove_dir_all(place.0.path()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_while_segments_roll_and_are_compacted() {
    let place = Place::new();
    conformance::run(place.make(eager())).await;
    std::fs::remove_dir_all(place.0.path()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn behaves_as_the_memory_store_does() {
    let place = Place::new();
    for seed in 0..8 {
        println!("seed {seed}");
        conformance::model(place.make(eager()), seed, 200).await;
    }
    std::fs::remove_dir_all(place.0.path()).unwrap();
}
