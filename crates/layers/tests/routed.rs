//! A store over several tiers behaves as one store, whatever the tier of an object, and while objects change their
//! tier.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "routed/faults.rs"]
mod faults;
#[path = "routed/fixture.rs"]
mod fixture;
#[path = "routed/interrupted_moves.rs"]
mod interrupted_moves;
#[path = "routed/moves.rs"]
mod moves;
#[path = "routed/races.rs"]
mod races;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use tradewind_core::testing::conformance;
use tradewind_core::{Metadata, ObjectStore};
use tradewind_layers::Routed;
use tradewind_layers::routed::Placement;

use fixture::{by_class, memory, tier};

/// Each write goes to another tier than the one before, so that objects change their tier all the time.
#[derive(Debug, Default)]
struct Alternating(AtomicUsize);

impl Placement for Alternating {
    fn tier(&self, _: &Metadata, _: Option<u64>) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed) % 3
    }
}

fn two_memories(placement: impl Placement) -> Arc<dyn ObjectStore> {
    Routed::new(vec![tier("ssd", memory())], tier("disk", memory()), placement)
}

fn three_memories() -> Arc<dyn ObjectStore> {
    let faster = vec![tier("nvme", memory()), tier("ssd", memory())];
    Routed::new(faster, tier("disk", memory()), Alternating::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tiers_by_class_conform() {
    conformance::run(|| async { two_memories(by_class()) }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_tiers_with_objects_that_change_their_tier_conform() {
    conformance::run(|| async { three_memories() }.boxed()).await;
}

#[tokio::test]
async fn random_operations_match_the_memory_store() {
    for seed in 0..40 {
        println!("seed {seed}");
        conformance::model(|| async { three_memories() }.boxed(), seed, 100).await;
    }
}
