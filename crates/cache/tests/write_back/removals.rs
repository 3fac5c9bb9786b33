//! The end of a write-back: the removal from the journal, and deletions in it.

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tradewind_core::Context;
use tradewind_core::context::Deadline;
use tradewind_core::store::Deleted;
use tradewind_core::testing::SimulatedClock;

use super::outcomes::SlowCommits;
use super::*;

/// A journal whose deletions respond when they are let through, after they were applied. A deadline ends only the wait.
#[derive(Debug)]
struct SlowDeletions {
    inner: Arc<Faulty<MemoryStore>>,
    permits: Arc<Semaphore>,
}

#[async_trait]
impl ObjectStore for SlowDeletions {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, stage, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        let deleted = self.inner.delete(context, address, precondition).await;
        context.guard(self.permits.acquire()).await?.unwrap().forget();
        deleted
    }
}

/// A read of the `null` version writes the key back first.
async fn get_null(layer: &WriteBack, context: &Context, name: &str) -> Result<()> {
    let null = key(name).with_version(Some(VersionId::Null));
    layer.get(context, &null, GetRequest::default()).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_during_the_removal_leaves_the_key_readable() {
    for is_drained in [false, true] {
        let (stores, clock) = (Stores::new().await, SimulatedClock::new());
        let permits = Arc::new(Semaphore::new(0));
        let journal = Arc::new(SlowDeletions { inner: stores.journal.clone(), permits: permits.clone() });
        let (backing, delay) = (stores.backing.clone(), if is_drained { Duration::ZERO } else { NEVER });
        let layer =
            WriteBack::open(backing, journal, Arc::new(AllowAll), options(delay), clock.clone()).await;
        let layer = layer.unwrap();
        put(&*layer, "k", "bytes").await;
        let read = (!is_drained).then(|| {
            let deadline = Deadline::after(clock.clone(), Duration::from_secs(30));
            let (layer, context) = (layer.clone(), Context { deadline, ..context() });
            tokio::spawn(async move { get_null(&layer, &context, "k").await })
        });
        wait_until("the journal has removed it", async || head(&*stores.journal, "k").await.is_err()).await;
        // Beyond the deadlines of requests and of the drain.
        clock.advance(Duration::from_secs(200));
        if let Some(read) = read {
            assert_eq!(reason(read.await.unwrap()), Reason::DeadlineExceeded);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        permits.add_permits(100);
        wait_until_clean(&layer).await;
        assert_eq!(get(&*layer, "k").await.unwrap(), b"bytes");
        layer.set_tags(&context(), &key("k"), Tags::default()).await.unwrap();
        assert_eq!((layer.status().failures, layer.status().rejected), (0, 0));
    }
}

/// The journal may have the key again after a restart, so that no newer change may go through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_of_unknown_outcome_leaves_the_key_readable() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "bytes").await;
    let plan =
        FaultPlan::none().with_fault(Operation::Delete, FaultSchedule::Always, Fault::FailAfter(Reason::Io));
    stores.journal.set_plan(plan);
    assert_eq!(reason(get_null(&layer, &context(), "k").await), Reason::Io);
    stores.journal.set_plan(FaultPlan::none());
    assert_eq!(get(&*layer, "k").await.unwrap(), b"bytes");
    let through = layer.set_tags(&context(), &key("k"), Tags::default()).await;
    assert_eq!(reason(through), Reason::ReadOnly);
}

/// The write may be in the journal after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_after_a_write_of_unknown_outcome_survives_a_restart() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let (backing, journal) = (stores.backing.clone(), stores.journal.clone());
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options(NEVER), clock.clone()).await;
    let layer = layer.unwrap();
    put(&*layer, "other", "x").await;
    let plan =
        FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, Fault::FailAfter(Reason::Io));
    stores.journal.set_plan(plan);
    assert_eq!(reason(try_put(&*layer, "k", "unknown", Precondition::None).await), Reason::Io);
    stores.journal.set_plan(FaultPlan::none());
    // The journal is used again.
    clock.advance(Duration::from_secs(60));
    assert!(!delete(&*layer, "k").await);
    lose(layer, &stores).await;
    let layer = stores.open(NEVER).await;
    assert_eq!(reason(get(&*layer, "k").await), Reason::NoSuchKey);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_a_key_that_is_deleted_since_the_lookup_are_absent() {
    let stores = Stores::new().await;
    let permits = Arc::new(Semaphore::new(100));
    let journal = Arc::new(SlowCommits { inner: stores.journal.clone(), permits: permits.clone() });
    let (backing, clock) = (stores.backing.clone(), SystemClock::shared());
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options(NEVER), clock).await.unwrap();
    put(&*layer, "k", "bytes").await;
    let parts = async || layer.object_parts(&context(), &key("k"), None, 10).await;
    assert!(parts().await.unwrap().0.is_empty());
    permits.forget_permits(Semaphore::MAX_PERMITS);
    let deletion = tokio::spawn({
        let layer = layer.clone();
        async move { delete(&*layer, "k").await }
    });
    let is_deleted = async || head(&*stores.journal, "k").await.is_ok_and(|found| found.size == 0);
    wait_until("the journal has the deletion", is_deleted).await;
    assert_eq!(reason(parts().await), Reason::NoSuchKey);
    permits.add_permits(100);
    assert!(deletion.await.unwrap());
}

/// The backing store could keep versions: each repetition would be one more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_whose_removal_fails_is_written_back_once() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "bytes").await;
    stores.journal.set_plan(all_fail(&[Operation::Delete], Reason::ReadOnly));
    let commits = stores.backing.calls(Operation::Commit);
    for _ in 0..3 {
        assert_eq!(reason(get_null(&layer, &context(), "k").await), Reason::ReadOnly);
    }
    assert_eq!(get(&*layer, "k").await.unwrap(), b"bytes");
    stores.journal.set_plan(FaultPlan::none());
    get_null(&layer, &context(), "k").await.unwrap();
    assert_eq!((stores.backing.calls(Operation::Commit) - commits, layer.status().dirty_objects), (1, 0));
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_write_that_was_applied_is_written_back_and_removed() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "acknowledged").await;
    let plan =
        FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, Fault::FailAfter(Reason::Io));
    stores.journal.set_plan(plan);
    assert_eq!(reason(try_put(&*layer, "k", "applied", Precondition::None).await), Reason::Io);
    stores.journal.set_plan(FaultPlan::none());
    get_null(&layer, &context(), "k").await.unwrap();
    assert_eq!(layer.status().dirty_objects, 0);
    assert_eq!(get(&*layer, "k").await.unwrap(), b"applied");
    layer.set_tags(&context(), &key("k"), Tags::default()).await.unwrap();
}
