//! The suite detects faults: each of these stores violates one guarantee, and a case fails.

use std::sync::Arc;

use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, conformance};
use tradewind_core::{ObjectStore, Reason, SystemClock};

/// Returns true if the case panics on a memory store with this fault.
async fn finds(case: &str, operation: Operation, when: FaultSchedule, fault: Fault) -> bool {
    let case = conformance::cases().into_iter().find(|c| c.name == case).expect("a case of this name");
    let plan = FaultPlan::seeded(1).with_fault(operation, when, fault);
    let store: Arc<dyn ObjectStore> = Faulty::new(MemoryStore::new(SystemClock::shared()), plan);
    tokio::spawn(async move { case.run(store).await }).await.is_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_bodies_are_found() {
    for fault in [Fault::Corrupt(70_000), Fault::Truncate(4096), Fault::FailAt(1, Reason::Io)] {
        for case in ["objects/of_every_size_come_back", "multipart/parts_in_any_order_become_one_object"] {
            assert!(
                finds(case, Operation::Body, FaultSchedule::Always, fault).await,
                "{case} misses {fault:?}"
            );
        }
    }
}

/// Only a successful call has an acknowledgement to lose. On one thread the first of the calls that race for a key
/// wins, so the fault is applied to the first call.
#[tokio::test(flavor = "current_thread")]
async fn lost_acknowledgements_are_found() {
    let (first, lost) = (FaultSchedule::Nth(1), Fault::FailAfter(Reason::PreconditionFailed));
    for (case, operation) in [
        ("concurrency/of_absent_commits_one_wins", Operation::Commit),
        ("concurrency/of_absent_completions_one_wins", Operation::CompleteUpload),
    ] {
        assert!(finds(case, operation, first, lost).await, "{case}");
    }
    let lost = Fault::FailAfter(Reason::BucketNotEmpty);
    let of_buckets = "buckets/removed_while_written_lose_nothing";
    assert!(finds(of_buckets, Operation::DeleteBucket, FaultSchedule::Probability(0.5), lost).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_test_shows_a_short_sequence() {
    let make = || -> futures::future::BoxFuture<'static, Arc<dyn ObjectStore>> {
        let plan = FaultPlan::none().with_fault(Operation::Body, FaultSchedule::From(2), Fault::Corrupt(3));
        let store = Faulty::new(MemoryStore::new(SystemClock::shared()), plan);
        Box::pin(async move { store as Arc<dyn ObjectStore> })
    };
    let failure = tokio::spawn(conformance::model(make, 5, 200)).await.expect_err("the model test fails");
    let message = failure.into_panic().downcast::<String>().expect("a message");
    assert!(message.contains("seed 5"), "{message}");
    let steps = message.matches(" {\n").count();
    assert!(steps <= 4, "two reads and a write are enough, not {steps} steps: {message}");
}
