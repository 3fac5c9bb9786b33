//! When a cached object is compared with the backing store, and what that finds.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tradewind_cache::{Cached, CachedOptions, Validation};
use tradewind_core::condition::ETagMatch;
use tradewind_core::context::Deadline;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, Select, StageRequest};
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, SimulatedClock, context, context_until,
    drain, reason,
};
use tradewind_core::{
    Address, BucketName, Budget, ObjectStore, Precondition, ReadConditions, Reason, Result, Tags, VersionId,
    Versioning,
};

const AGE: Duration = Duration::from_secs(60);

/// A cache over a store that counts calls.
struct Desk {
    clock: Arc<SimulatedClock>,
    store: Arc<Faulty<MemoryStore>>,
    cached: Arc<Cached>,
}

impl Desk {
    async fn open(validation: Validation) -> Self {
        let clock = SimulatedClock::new();
        let store = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
        let options = CachedOptions {
            directory: None,
            disk_bytes: 0,
            memory_bytes: 1 << 20,
            validation,
            volume_id: "test".to_owned(),
        };
        let cached = Cached::open(store.clone(), options, clock.clone()).unwrap();
        store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        Self { clock, store, cached }
    }

    /// Bytes of the key as read through the cache, and the number of HEADs and GETs that reached the store.
    async fn read(&self) -> (Bytes, u64, u64) {
        let calls = |operation| self.store.calls(operation);
        let before = (calls(Operation::Head), calls(Operation::Get));
        let found = self.cached.get(&context(), &key(), GetRequest::default()).await.unwrap();
        let bytes = drain(found.body).await.unwrap();
        (bytes, calls(Operation::Head) - before.0, calls(Operation::Get) - before.1)
    }
}

fn key() -> Address {
    Address::parse("bucket", "key").unwrap()
}

async fn put(store: &dyn ObjectStore, bytes: &'static str) -> Result<()> {
    let request = StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() };
    let mut staged = store.stage(&context(), &key(), request).await?;
    staged.write(bytes.into()).await?;
    staged.commit(Expected::default()).await.map(drop)
}

#[tokio::test]
async fn owner_never_compares() {
    let desk = Desk::open(Validation::Owner).await;
    put(&*desk.store, "old").await.unwrap();
    assert_eq!(desk.read().await, ("old".into(), 0, 1));
    desk.clock.advance(1000 * AGE);
    assert_eq!(desk.read().await, ("old".into(), 0, 0));
}

/// A request of an earlier run may still be applied: one comparison does not count for ever.
#[tokio::test]
async fn sole_writer_of_a_service_compares_on_every_read_at_first() {
    let desk = Desk::open(Validation::SoleWriter).await;
    put(&*desk.store, "old").await.unwrap();
    assert_eq!(desk.read().await, ("old".into(), 0, 1));
    assert_eq!(desk.read().await, ("old".into(), 1, 0));
    put(&*desk.store, "late").await.unwrap();
    assert_eq!(desk.read().await, ("late".into(), 1, 1));
    desk.clock.advance(Duration::from_secs(600));
    assert_eq!(desk.read().await, ("late".into(), 1, 0), "the last comparison");
    assert_eq!(desk.read().await, ("late".into(), 0, 0));
}

#[tokio::test]
async fn change_of_a_bucket_with_an_unknown_outcome_is_compared_for_a_time() {
    let desk = Desk::open(Validation::Owner).await;
    put(&*desk.store, "old").await.unwrap();
    desk.read().await;
    let fault = Fault::FailBefore(Reason::Io);
    let plan = FaultPlan::none().with_fault(Operation::SetVersioning, FaultSchedule::Always, fault);
    desk.store.set_plan(plan);
    let bucket = BucketName::new("bucket").unwrap();
    desk.cached.set_versioning(&context(), &bucket, Versioning::Enabled).await.unwrap_err();
    for _ in 0..2 {
        assert_eq!(desk.read().await, ("old".into(), 1, 0));
    }
    desk.clock.advance(Duration::from_secs(600));
    assert_eq!(desk.read().await, ("old".into(), 1, 0));
    assert_eq!(desk.read().await, ("old".into(), 0, 0));
}

#[tokio::test]
async fn object_older_than_the_age_is_compared_once() {
    let desk = Desk::open(Validation::MaxAge(AGE)).await;
    put(&*desk.store, "old").await.unwrap();
    assert_eq!(desk.read().await, ("old".into(), 0, 1));
    desk.clock.advance(AGE - Duration::from_secs(1));
    assert_eq!(desk.read().await, ("old".into(), 0, 0));
    desk.clock.advance(Duration::from_secs(1));
    assert_eq!(desk.read().await, ("old".into(), 1, 0), "not modified: the cached bytes are served");
    assert_eq!(desk.read().await, ("old".into(), 0, 0), "and are fresh again");
}

#[tokio::test]
async fn change_by_another_process_is_seen_after_the_age() {
    let desk = Desk::open(Validation::MaxAge(AGE)).await;
    put(&*desk.store, "old").await.unwrap();
    desk.read().await;
    put(&*desk.store, "new").await.unwrap();
    assert_eq!(desk.read().await, ("old".into(), 0, 0), "staleness is bounded by the age");
    desk.clock.advance(AGE);
    assert_eq!(desk.read().await, ("new".into(), 1, 1));
    assert_eq!(desk.read().await, ("new".into(), 0, 0));
    desk.store.delete(&context(), &key(), Precondition::None).await.unwrap();
    desk.clock.advance(AGE);
    let found = desk.cached.get(&context(), &key(), GetRequest::default()).await;
    assert_eq!(reason(found), Reason::NoSuchKey);
}

#[tokio::test]
async fn always_compares_on_every_read() {
    let desk = Desk::open(Validation::Always).await;
    put(&*desk.store, "old").await.unwrap();
    assert_eq!(desk.read().await, ("old".into(), 0, 1));
    assert_eq!(desk.read().await, ("old".into(), 1, 0));
    put(&*desk.store, "new").await.unwrap();
    assert_eq!(desk.read().await, ("new".into(), 1, 1));
}

/// An entity tag stays if only tags change: a conditional GET would not notice.
#[tokio::test]
async fn changed_tags_are_noticed() {
    let desk = Desk::open(Validation::Always).await;
    put(&*desk.store, "old").await.unwrap();
    desk.read().await;
    let tags = Tags::new(vec![("a".to_owned(), "b".to_owned())]).unwrap();
    desk.store.set_tags(&context(), &key(), tags.clone()).await.unwrap();
    let found = desk.cached.get(&context(), &key(), GetRequest::default()).await.unwrap();
    assert_eq!(found.info.metadata.tags, tags);
}

#[tokio::test]
async fn conditions_and_ranges_are_evaluated_like_by_the_store() {
    let desk = Desk::open(Validation::Owner).await;
    put(&*desk.store, "content").await.unwrap();
    let etag = desk.cached.get(&context(), &key(), GetRequest::default()).await.unwrap().info.etag;
    let calls = desk.store.calls(Operation::Get) + desk.store.calls(Operation::Head);
    let if_none_match = Some(ETagMatch::OneOf(vec![etag.clone()]));
    let conditions = ReadConditions { if_none_match, ..ReadConditions::default() };
    let request = GetRequest { conditions, ..GetRequest::default() };
    assert_eq!(reason(desk.cached.get(&context(), &key(), request.clone()).await), Reason::NotModified);
    assert_eq!(reason(desk.cached.head(&context(), &key(), request).await), Reason::NotModified);
    let conditions = ReadConditions { if_match: Some(ETagMatch::OneOf(vec![])), ..ReadConditions::default() };
    let request = GetRequest { conditions, ..GetRequest::default() };
    assert_eq!(reason(desk.cached.get(&context(), &key(), request).await), Reason::PreconditionFailed);
    for (header, expected) in [("bytes=1-3", "ont"), ("bytes=-2", "nt"), ("bytes=4-", "ent")] {
        let select = Select::Range(tradewind_core::ByteRange::parse(header).unwrap());
        let request = GetRequest { select, ..GetRequest::default() };
        let found = desk.cached.get(&context(), &key(), request).await.unwrap();
        assert_eq!(drain(found.body).await.unwrap(), expected);
    }
    let select = Select::Range(tradewind_core::ByteRange::From(7));
    let request = GetRequest { select, ..GetRequest::default() };
    assert_eq!(reason(desk.cached.get(&context(), &key(), request).await), Reason::InvalidRange);
    assert_eq!(desk.store.calls(Operation::Get) + desk.store.calls(Operation::Head), calls);
}

#[tokio::test]
async fn write_of_unknown_outcome_lets_reads_compare_until_it_can_no_longer_be_applied() {
    let desk = Desk::open(Validation::Owner).await;
    put(&*desk.cached, "old").await.unwrap();
    desk.read().await;
    let fault = Fault::FailAfter(Reason::Io);
    desk.store.set_plan(FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, fault));
    put(&*desk.cached, "new").await.unwrap_err();
    assert_eq!(desk.cached.counters().uncertain_changes, 1);
    assert_eq!(desk.read().await, ("new".into(), 0, 1));
    assert_eq!(desk.read().await, ("new".into(), 1, 0));
    assert_eq!(desk.read().await, ("new".into(), 1, 0), "the write may still be applied");
    desk.clock.advance(Duration::from_secs(3600));
    assert_eq!(desk.read().await, ("new".into(), 1, 0));
    assert_eq!(desk.read().await, ("new".into(), 0, 0));
}

#[tokio::test]
async fn small_object_is_cached_when_it_is_written_and_compared_by_its_first_read() {
    for validation in [Validation::Owner, Validation::MaxAge(AGE)] {
        let desk = Desk::open(validation).await;
        put(&*desk.cached, "old").await.unwrap();
        assert_eq!(desk.read().await, ("old".into(), 1, 0));
        assert_eq!(desk.read().await, ("old".into(), 0, 0));
        put(&*desk.cached, "new").await.unwrap();
        put(&*desk.store, "newer").await.unwrap();
        assert_eq!(desk.read().await, ("newer".into(), 1, 1), "another process intervened");
    }
}

#[tokio::test]
async fn rejected_write_leaves_no_doubt() {
    let desk = Desk::open(Validation::Owner).await;
    put(&*desk.cached, "old").await.unwrap();
    let request = StageRequest { precondition: Precondition::Absent, ..StageRequest::default() };
    let mut staged = desk.cached.stage(&context(), &key(), request).await.unwrap();
    staged.write("new".into()).await.unwrap();
    assert_eq!(reason(staged.commit(Expected::default()).await), Reason::PreconditionFailed);
    assert_eq!(desk.read().await, ("old".into(), 0, 1));
    assert_eq!(desk.read().await, ("old".into(), 0, 0));
}

#[tokio::test]
async fn versioning_of_the_bucket_changes_the_version_of_cached_objects() {
    let desk = Desk::open(Validation::Owner).await;
    put(&*desk.cached, "old").await.unwrap();
    desk.read().await;
    let bucket = key().bucket;
    desk.cached.set_versioning(&context(), &bucket, Versioning::Enabled).await.unwrap();
    let found = desk.cached.get(&context(), &key(), GetRequest::default()).await.unwrap();
    assert_eq!(found.info.version, Some(VersionId::Null));
    desk.read().await;
    assert_eq!(desk.read().await, ("old".into(), 0, 0));
    // Removing the newest version makes the one before current.
    put(&*desk.cached, "new").await.unwrap();
    let newest = desk.cached.get(&context(), &key(), GetRequest::default()).await.unwrap().info.version;
    assert_eq!(desk.read().await.0, "new");
    desk.cached.delete(&context(), &key().with_version(newest), Precondition::None).await.unwrap();
    assert_eq!(desk.read().await.0, "old");
}

#[tokio::test]
async fn cached_objects_are_served_while_the_backing_store_is_away() {
    for validation in [Validation::Owner, Validation::MaxAge(AGE)] {
        let desk = Desk::open(validation).await;
        put(&*desk.store, "old").await.unwrap();
        desk.read().await;
        let fault = Fault::FailBefore(Reason::Io);
        desk.store.set_plan(FaultPlan::none().with_fault_on_any(FaultSchedule::Always, fault));
        assert_eq!(desk.read().await, ("old".into(), 0, 0));
        desk.clock.advance(AGE);
        if validation != Validation::Owner {
            let found = desk.cached.get(&context(), &key(), GetRequest::default()).await;
            assert_eq!(reason(found), Reason::Io, "what may be stale is not served");
        }
    }
}

#[tokio::test]
async fn dropped_commit_is_marked_until_it_ends() {
    let desk = Desk::open(Validation::Owner).await;
    put(&*desk.cached, "old").await.unwrap();
    desk.read().await;
    let delay = Fault::Delay(Duration::from_secs(5));
    desk.store.set_plan(FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, delay));
    let context = context_until(&Budget::new(1 << 20), Deadline::none(desk.clock.clone()));
    let mut staged = desk.cached.stage(&context, &key(), StageRequest::default()).await.unwrap();
    staged.write("new".into()).await.unwrap();
    {
        let mut commit = staged.commit(Expected::default());
        assert!(futures::poll!(&mut commit).is_pending());
    }
    // Let the task of the commit reach the store.
    while desk.store.calls(Operation::Commit) < 2 || desk.clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(desk.read().await, ("old".into(), 0, 1), "a key that is being changed is not served");
    desk.clock.advance(Duration::from_secs(5));
    while desk.read().await.0 != "new" {
        tokio::task::yield_now().await;
    }
    desk.read().await;
    assert_eq!(desk.read().await, ("new".into(), 0, 0));
}

/// A read that began before a change returns the old object, but does not leave it in the cache.
#[tokio::test]
async fn fill_of_an_object_replaced_in_between_is_dropped() {
    let desk = Desk::open(Validation::Owner).await;
    put(&*desk.store, "old").await.unwrap();
    let delay = Fault::Delay(Duration::from_secs(5));
    desk.store.set_plan(FaultPlan::none().with_fault(Operation::Body, FaultSchedule::Always, delay));
    let (cached, clock) = (desk.cached.clone(), desk.clock.clone());
    let reader = tokio::spawn(async move {
        let context = context_until(&Budget::new(1 << 20), Deadline::none(clock));
        let found = cached.get(&context, &key(), GetRequest::default()).await.unwrap();
        drain(found.body).await.unwrap()
    });
    while desk.store.calls(Operation::Body) == 0 || desk.clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    desk.store.set_plan(FaultPlan::none());
    put(&*desk.cached, "new").await.unwrap();
    desk.clock.advance(Duration::from_secs(5));
    assert_eq!(reader.await.unwrap(), "old");
    assert_eq!(desk.read().await.0, "new");
    assert_eq!(desk.read().await, ("new".into(), 0, 0));
}
