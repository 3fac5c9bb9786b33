//! Random sequences of operations over the layers of `testing`, against the memory store.

use std::sync::Arc;

use futures::FutureExt;
use tradewind_core::testing::{FaultPlan, Faulty, MemoryStore, conformance, stack_layers};
use tradewind_core::{ObjectStore, SystemClock};

#[tokio::test]
async fn layers_behave_like_the_memory_store() {
    for seed in 0..30 {
        let make = || {
            async {
                let memory: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
                stack_layers(Faulty::new(memory, FaultPlan::none()), 2)
            }
            .boxed()
        };
        conformance::model(make, seed, 100).await;
    }
}
