//! The conformance suite over the stores and layers of `testing` themselves.

use std::sync::Arc;

use futures::FutureExt;
use tradewind_core::testing::{FaultPlan, Faulty, MemoryStore, conformance, stack_layers};
use tradewind_core::{ObjectStore, SystemClock};

fn memory() -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_conforms() {
    conformance::run(|| async { memory() }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_faulty_store_without_faults_conforms() {
    conformance::run(|| async { Faulty::new(memory(), FaultPlan::none()) as Arc<dyn ObjectStore> }.boxed())
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_layers_conform() {
    conformance::run(|| async { stack_layers(memory(), 4) }.boxed()).await;
}

#[test]
fn case_names_are_distinct_and_have_a_theme() {
    let mut names: Vec<&str> = conformance::cases().iter().map(|case| case.name).collect();
    assert!(names.len() > 80, "{} cases", names.len());
    assert!(names.iter().all(|name| name.split('/').count() == 2));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), conformance::cases().len());
}
