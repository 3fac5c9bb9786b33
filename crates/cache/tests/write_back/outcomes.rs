//! Requests that overlap, and requests to the backing store whose outcome is unknown.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Semaphore;
use tradewind_cache::WriteBackPause;
use tradewind_core::context::OnUnknownOutcome;
use tradewind_core::multipart::CreateUpload;
use tradewind_core::store::{Deleted, Staged};
use tradewind_core::testing::SimulatedClock;
use tradewind_core::{Context, Observation};

use super::*;

/// A minute for which a failed request may still be applied.
const WINDOW: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_unknown_outcome_a_key_is_left_alone_for_a_time() {
    let stores = Stores::new().await;
    let uncertain = WriteBackOptions { uncertain_window: NEVER, ..options(Duration::ZERO) };
    let layer = stores.open_with(uncertain).await;
    put(&*layer, "clean", "x").await;
    wait_until_clean(&layer).await;
    let plan = FaultPlan::none().with_fault(
        Operation::Commit,
        FaultSchedule::Nth(stores.backing.calls(Operation::Commit) + 1),
        Fault::FailBefore(Reason::DeadlineExceeded),
    );
    stores.backing.set_plan(plan);
    put(&*layer, "k", "first").await;
    wait_until("the attempt fails", async || layer.status().failures == 1).await;
    put(&*layer, "k", "second").await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"second");
    let tags = layer.set_tags(&context(), &key("k"), Tags::default()).await;
    assert_eq!(reason(tags), Reason::Overloaded, "the late request could undo the change");
    put(&*layer, "other", "x").await;
    wait_until("others are written back", async || get(&*stores.backing, "other").await.is_ok()).await;
    assert_eq!(reason(get(&*stores.backing, "k").await), Reason::NoSuchKey);
}

/// A journal whose commits end only when they are let through, after they were applied.
#[derive(Debug)]
pub struct SlowCommits {
    pub inner: Arc<Faulty<MemoryStore>>,
    pub permits: Arc<Semaphore>,
}

struct SlowStaged {
    inner: Box<dyn Staged>,
    permits: Arc<Semaphore>,
}

#[async_trait]
impl Staged for SlowStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.inner.write(bytes).await
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        let committed = self.inner.commit(expected).await;
        self.permits.acquire().await.unwrap().forget();
        committed
    }
}

#[async_trait]
impl ObjectStore for SlowCommits {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, delete, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let inner = self.inner.stage(context, address, request).await?;
        Ok(Box::new(SlowStaged { inner, permits: self.permits.clone() }))
    }
}

/// A backing store that notes how its changes of objects may be repeated.
#[derive(Debug)]
struct ContextProbe {
    inner: Arc<Faulty<MemoryStore>>,
    seen: Mutex<Vec<OnUnknownOutcome>>,
}

impl ContextProbe {
    fn note(&self, context: &Context, address: &Address) {
        if address.key.as_str() != MARKER_KEY {
            self.seen.lock().unwrap().push(context.on_unknown_outcome);
        }
    }
}

#[async_trait]
impl ObjectStore for ContextProbe {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.note(context, address);
        self.inner.stage(context, address, request).await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.note(context, address);
        self.inner.delete(context, address, precondition).await
    }
}

/// A backing store to which nothing can be sent while it refuses connections.
#[derive(Debug)]
struct Unreachable {
    inner: Arc<Faulty<MemoryStore>>,
    refuses: Arc<AtomicBool>,
}

struct UnreachableWrite {
    inner: Box<dyn Staged>,
    refuses: Arc<AtomicBool>,
}

fn refused(refuses: &AtomicBool) -> Result<()> {
    match refuses.load(Ordering::SeqCst) {
        true => Err(tradewind_core::Error::new(Reason::Io, "connection refused").before_sending()),
        false => Ok(()),
    }
}

#[async_trait]
impl Staged for UnreachableWrite {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.inner.write(bytes).await
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        refused(&self.refuses)?;
        self.inner.commit(expected).await
    }
}

#[async_trait]
impl ObjectStore for Unreachable {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let inner = self.inner.stage(context, address, request).await?;
        Ok(Box::new(UnreachableWrite { inner, refuses: self.refuses.clone() }))
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        refused(&self.refuses)?;
        self.inner.delete(context, address, precondition).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_sent_is_written_back_once_the_store_is_back() {
    let stores = Stores::new().await;
    let refuses = Arc::new(AtomicBool::new(false));
    let backing = Arc::new(Unreachable { inner: stores.backing.clone(), refuses: refuses.clone() });
    let uncertain = WriteBackOptions { uncertain_window: NEVER, ..options(Duration::ZERO) };
    let (journal, clock) = (stores.journal.clone(), SystemClock::shared());
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), uncertain, clock).await.unwrap();
    put(&*layer, "deleted", "x").await;
    wait_until_clean(&layer).await;
    refuses.store(true, Ordering::SeqCst);
    put(&*layer, "written", "x").await;
    assert!(delete(&*layer, "deleted").await);
    wait_until("the pause is reported", async || {
        matches!(layer.status().pause, Some(WriteBackPause::StoreUnavailable { .. }))
    })
    .await;
    refuses.store(false, Ordering::SeqCst);
    // With an unknown outcome, the keys would be left alone for ever.
    wait_until_clean(&layer).await;
    assert_eq!(get(&*stores.backing, "written").await.unwrap(), b"x");
    assert_eq!(reason(get(&*stores.backing, "deleted").await), Reason::NoSuchKey);
    assert_eq!(layer.status().pause, None);
}

/// A repeated request would succeed while the first may still be applied: the key would not be left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_back_of_unknown_outcome_is_not_repeated_by_the_store() {
    let stores = Stores::new().await;
    let backing = Arc::new(ContextProbe { inner: stores.backing.clone(), seen: Mutex::default() });
    let (journal, clock) = (stores.journal.clone(), SystemClock::shared());
    let options = options(Duration::ZERO);
    let layer = WriteBack::open(backing.clone(), journal, Arc::new(AllowAll), options, clock).await.unwrap();
    put(&*layer, "k", "dirty").await;
    wait_until_clean(&layer).await;
    delete(&*layer, "k").await;
    wait_until_clean(&layer).await;
    assert_eq!(*backing.seen.lock().unwrap(), [OnUnknownOutcome::Fail; 2]);
}

/// The journal has the new object, and the index does not have it yet, when the object is written back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_object_written_back_during_its_commit_stays_readable() {
    let stores = Stores::new().await;
    let permits = Arc::new(Semaphore::new(100));
    let journal = Arc::new(SlowCommits { inner: stores.journal.clone(), permits: permits.clone() });
    let (backing, clock) = (stores.backing.clone(), SystemClock::shared());
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options(NEVER), clock).await.unwrap();
    for deleted in [false, true] {
        permits.add_permits(100);
        put(&*layer, "k", "old").await;
        permits.forget_permits(Semaphore::MAX_PERMITS);
        let before = stores.journal.calls(Operation::Commit);
        let change = tokio::spawn({
            let layer = layer.clone();
            async move {
                match deleted {
                    true => drop(delete(&*layer, "k").await),
                    false => drop(put(&*layer, "k", "new").await),
                }
            }
        });
        wait_until("the journal has it", async || {
            stores.journal.calls(Operation::Commit) > before
                && head(&*stores.journal, "k").await.is_ok_and(|found| found.size != 3 || !deleted)
                && (deleted || get(&*stores.journal, "k").await.unwrap() == b"new")
        })
        .await;
        let read = tokio::spawn({
            let layer = layer.clone();
            let null = key("k").with_version(Some(VersionId::Null));
            async move { layer.get(&context(), &null, GetRequest::default()).await.map(drop) }
        });
        wait_until("it is written back", async || match deleted {
            true => get(&*stores.backing, "k").await.is_err(),
            false => get(&*stores.backing, "k").await.is_ok_and(|bytes| bytes == b"new"),
        })
        .await;
        // The write-back ends only now, or, if it does not wait for the commit, before it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        permits.add_permits(1);
        change.await.unwrap();
        assert_eq!(read.await.unwrap().is_ok(), !deleted);
        assert_eq!(layer.status().dirty_objects, 0);
        match deleted {
            true => assert_eq!(reason(get(&*layer, "k").await), Reason::NoSuchKey),
            false => assert_eq!(get(&*layer, "k").await.unwrap(), b"new"),
        }
    }
}

/// A layer with a window of uncertainty and a clock that stands still.
async fn open_uncertain(stores: &Stores, clock: &Arc<SimulatedClock>, delay: Duration) -> Arc<WriteBack> {
    let uncertain = WriteBackOptions { uncertain_window: WINDOW, ..options(delay) };
    let (backing, journal) = (stores.backing.clone(), stores.journal.clone());
    WriteBack::open(backing, journal, Arc::new(AllowAll), uncertain, clock.clone()).await.unwrap()
}

async fn set_tags(layer: &WriteBack, name: &str) -> Result<()> {
    layer.set_tags(&context(), &key(name), Tags::default()).await
}

/// The process before may have had a request for each key of the journal in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_dirty_keys_are_left_alone_for_a_time() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let layer = open_uncertain(&stores, &clock, NEVER).await;
    put(&*layer, "k", "dirty").await;
    lose(layer, &stores).await;
    let layer = open_uncertain(&stores, &clock, NEVER).await;
    assert_eq!(reason(set_tags(&layer, "k").await), Reason::Overloaded);
    put(&*layer, "k", "replaced").await;
    clock.advance(WINDOW - Duration::from_secs(1));
    assert_eq!(reason(set_tags(&layer, "k").await), Reason::Overloaded);
    assert_eq!(reason(get(&*stores.backing, "k").await), Reason::NoSuchKey);
    clock.advance(Duration::from_secs(1));
    set_tags(&layer, "k").await.unwrap();
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"replaced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncertain_keys_are_written_back_without_another_request() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let layer = open_uncertain(&stores, &clock, NEVER).await;
    put(&*layer, "k", "dirty").await;
    lose(layer, &stores).await;
    let layer = open_uncertain(&stores, &clock, Duration::ZERO).await;
    // The drain has deferred the key.
    wait_until("the drain sleeps", async || clock.sleepers() > 0).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    clock.advance(WINDOW);
    wait_until_clean(&layer).await;
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"dirty");
}

/// A hurry must not shorten the wait, and the wait must not delay other keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_urgent_drain_waits_for_uncertain_keys_only() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let layer = open_uncertain(&stores, &clock, NEVER).await;
    put(&*layer, "k", "dirty").await;
    lose(layer, &stores).await;
    let few = WriteBackOptions { max_dirty_objects: 4, uncertain_window: WINDOW, ..options(NEVER) };
    let (backing, journal) = (stores.backing.clone(), stores.journal.clone());
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), few, clock.clone()).await.unwrap();
    for name in ["a", "b", "c"] {
        put(&*layer, name, "dirty").await;
    }
    wait_until("one of the others is written back", async || layer.status().dirty_objects < 4).await;
    assert_eq!(layer.status().failures, 0);
    assert_eq!(reason(get(&*stores.backing, "k").await), Reason::NoSuchKey);
}

/// A change that went through and failed may be applied later, over what the drain writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_change_a_key_is_left_alone_for_a_time() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let layer = open_uncertain(&stores, &clock, Duration::ZERO).await;
    put(&*layer, "k", "old").await;
    wait_until_clean(&layer).await;
    let plan =
        FaultPlan::none().with_fault(Operation::SetTags, FaultSchedule::Always, Fault::FailAfter(Reason::Io));
    stores.backing.set_plan(plan);
    assert_eq!(reason(set_tags(&layer, "k").await), Reason::Io);
    stores.backing.set_plan(FaultPlan::none());
    put(&*layer, "k", "new").await;
    put(&*layer, "other", "x").await;
    wait_until("others are written back", async || get(&*stores.backing, "other").await.is_ok()).await;
    wait_until("the key is deferred", async || layer.status().dirty_objects == 1).await;
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"old");
    clock.advance(WINDOW);
    wait_until_clean(&layer).await;
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"new");
}

/// A service orders changes of a key by their begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dirty_data_is_written_back_before_a_change_that_goes_through_begins() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "one").await;
    let upload = layer.create_upload(&context(), &key("k"), CreateUpload::default()).await.unwrap();
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"one");
    layer.abort_upload(&context(), &key("k"), &upload).await.unwrap();
    put(&*layer, "k", "two").await;
    // Of unknown size.
    let staged = layer.stage(&context(), &key("k"), StageRequest::default()).await.unwrap();
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"two");
    drop(staged);
    delete(&*layer, "k").await;
    layer.create_upload(&context(), &key("k"), CreateUpload::default()).await.unwrap();
    assert_eq!(reason(get(&*stores.backing, "k").await), Reason::NoSuchKey);
}

/// The journal may be lost soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dirty_data_of_a_read_only_journal_is_written_back_after_a_short_outage() {
    let stores = Stores::new().await;
    stores.backing.set_plan(FaultPlan::none());
    let layer = stores.open(Duration::from_millis(20)).await;
    put(&*layer, "k", "bytes").await;
    wait_until_clean(&layer).await;
    stores.backing.set_plan(all_fail(&[Operation::Stage, Operation::Commit], Reason::Io));
    for name in ["a", "b", "c"] {
        put(&*layer, name, "bytes").await;
    }
    stores.journal.set_plan(all_fail(&[Operation::Stage, Operation::Delete], Reason::ReadOnly));
    try_put(&*layer, "d", "bytes", Precondition::None).await.unwrap_err();
    let failures = layer.status().failures;
    wait_until("the outage is noticed", async || layer.status().failures > failures + 2).await;
    stores.backing.set_plan(FaultPlan::none());
    wait_until("the backing store has all", async || {
        let mut found = 0;
        for name in ["a", "b", "c"] {
            found += usize::from(get(&*stores.backing, name).await.is_ok());
        }
        found == 3
    })
    .await;
}
