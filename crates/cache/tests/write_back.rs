//! Write-back over memory stores: what survives a lost process, a backing store that is away, a journal that fails, and
//! owners of a bucket.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "write_back/admission.rs"]
mod admission;
#[path = "write_back/bucket_changes.rs"]
mod bucket_changes;
#[path = "write_back/interrupted.rs"]
mod interrupted;
#[path = "support/lasting.rs"]
mod lasting;
#[path = "write_back/listing_races.rs"]
mod listing_races;
#[path = "write_back/outcomes.rs"]
mod outcomes;
#[path = "write_back/ownership.rs"]
mod ownership;
#[path = "write_back/removals.rs"]
mod removals;
#[path = "write_back/versioned.rs"]
mod versioned;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tradewind_cache::{AllowAll, AllowNone, MARKER_KEY, WriteBack, WriteBackOptions, WriteBackPolicy};
use tradewind_core::listing::{ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary};
use tradewind_core::object::{Committed, Expected, ObjectInfo};
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, StageRequest};
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation};
use tradewind_core::testing::{context, drain, pattern, reason};
use tradewind_core::{
    Address, BucketName, ObjectStore, Precondition, ReadConditions, Reason, Result, SystemClock, Tags,
    VersionId, Versioning,
};

const NEVER: Duration = Duration::from_secs(100_000);
const WAIT: Duration = Duration::from_secs(60);

/// A backing store and a journal that outlive the layer over them.
struct Stores {
    backing: Arc<Faulty<MemoryStore>>,
    journal: Arc<Faulty<MemoryStore>>,
}

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

fn key(name: &str) -> Address {
    Address::parse("bucket", name).unwrap()
}

fn options(delay: Duration) -> WriteBackOptions {
    let ownership_check = Duration::ZERO;
    let close_timeout = Duration::from_millis(200);
    WriteBackOptions { delay, ownership_check, close_timeout, ..WriteBackOptions::default() }
}

impl Stores {
    async fn new() -> Self {
        let memory = || MemoryStore::new(SystemClock::shared());
        let stores = Self {
            backing: Faulty::new(memory(), FaultPlan::none()),
            journal: Faulty::new(memory(), FaultPlan::none()),
        };
        stores.backing.create_bucket(&context(), &bucket()).await.unwrap();
        stores
    }

    async fn open(&self, delay: Duration) -> Arc<WriteBack> {
        self.open_with(options(delay)).await
    }

    async fn open_with(&self, options: WriteBackOptions) -> Arc<WriteBack> {
        self.open_with_policy(Arc::new(AllowAll), options).await
    }

    async fn open_with_policy(
        &self,
        policy: Arc<dyn WriteBackPolicy>,
        options: WriteBackOptions,
    ) -> Arc<WriteBack> {
        let (backing, journal) = (self.backing.clone(), self.journal.clone());
        WriteBack::open(backing, journal, policy, options, SystemClock::shared()).await.unwrap()
    }
}

/// Ends a layer as a lost process would: without closing it, but with all of its tasks.
async fn lose(layer: Arc<WriteBack>, stores: &Stores) {
    drop(layer);
    wait_until("all tasks ended", async || Arc::strong_count(&stores.journal) == 1).await;
}

fn all_fail(operations: &[Operation], reason: Reason) -> FaultPlan {
    operations.iter().fold(FaultPlan::none(), |plan, &operation| {
        plan.with_fault(operation, FaultSchedule::Always, Fault::FailBefore(reason))
    })
}

fn away() -> FaultPlan {
    use Operation::{Commit, Delete, Get, Head, List, Stage};
    all_fail(&[Commit, Delete, Get, Head, List, Stage], Reason::Io)
}

async fn try_put(
    store: &dyn ObjectStore,
    name: &str,
    bytes: &'static str,
    precondition: Precondition,
) -> Result<Committed> {
    let size = Some(bytes.len() as u64);
    let request = StageRequest { size, precondition, ..StageRequest::default() };
    let mut staged = store.stage(&context(), &key(name), request).await?;
    staged.write(bytes.into()).await?;
    Ok(staged.commit(Expected::default()).await?.0)
}

async fn put(store: &dyn ObjectStore, name: &str, bytes: &'static str) -> Committed {
    try_put(store, name, bytes, Precondition::None).await.unwrap()
}

async fn get(store: &dyn ObjectStore, name: &str) -> Result<Vec<u8>> {
    let found = store.get(&context(), &key(name), GetRequest::default()).await?;
    Ok(drain(found.body).await?.to_vec())
}

async fn head(store: &dyn ObjectStore, name: &str) -> Result<ObjectInfo> {
    Ok(store.head(&context(), &key(name), GetRequest::default()).await?.info)
}

async fn delete(store: &dyn ObjectStore, name: &str) -> bool {
    store.delete(&context(), &key(name), Precondition::None).await.unwrap().existed
}

async fn names(store: &dyn ObjectStore) -> Vec<String> {
    let request = ListRequest { limit: 1000, ..ListRequest::default() };
    let page = store.list(&context(), &bucket(), &request).await.unwrap();
    page.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

async fn wait_until(what: &str, is_so: impl AsyncFn() -> bool) {
    let ended = tokio::time::timeout(WAIT, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(ended.await.is_ok(), "{what}");
}

async fn wait_until_clean(layer: &WriteBack) {
    wait_until("all is written back", async || layer.status().dirty_objects == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_a_lost_process() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "a", "one").await;
    put(&*layer, "a", "two").await;
    put(&*layer, "gone", "x").await;
    assert!(delete(&*layer, "gone").await);
    assert_eq!(names(&*stores.backing).await, [MARKER_KEY], "only the marker is there");
    lose(layer, &stores).await;
    let layer = stores.open(NEVER).await;
    assert_eq!(layer.status().dirty_objects, 2);
    assert_eq!(get(&*layer, "a").await.unwrap(), b"two");
    assert_eq!(reason(get(&*layer, "gone").await), Reason::NoSuchKey);
    assert_eq!(names(&*layer).await, ["a"]);
    lose(layer, &stores).await;
    let layer = stores.open(Duration::ZERO).await;
    wait_until_clean(&layer).await;
    assert_eq!(get(&*stores.backing, "a").await.unwrap(), b"two");
    assert_eq!(names(&*layer).await, ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_close_writes_all_back_and_removes_the_marker() {
    let stores = Stores::new().await;
    let layer = stores.open_with(WriteBackOptions { close_timeout: WAIT, ..options(NEVER) }).await;
    put(&*layer, "a", "bytes").await;
    let journal = stores.journal.clone();
    layer.close().await.unwrap();
    // Closed memory stores are empty: what counts is that both got everything before.
    drop((layer, journal));
    assert_eq!(stores.backing.calls(Operation::Commit), 2, "the marker and the object");
    assert!(stores.backing.calls(Operation::Delete) == 1, "the marker");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_modified_and_etag_stay_when_written_back() {
    let stores = Stores::new().await;
    let layer = stores.open(Duration::from_millis(50)).await;
    let tags = Tags::new(vec![("a".to_owned(), "b".to_owned())]).unwrap();
    let mut request = StageRequest { size: Some(4), etag: ETagForm::Unique, ..StageRequest::default() };
    request.metadata.tags = tags;
    request.metadata.user = vec![("name".to_owned(), "value".to_owned())];
    request.metadata.headers.storage_class = Some("GLACIER".to_owned());
    let mut staged = layer.stage(&context(), &key("k"), request).await.unwrap();
    staged.write("data".into()).await.unwrap();
    let (committed, _) = staged.commit(Expected::default()).await.unwrap();
    let dirty = head(&*layer, "k").await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    wait_until_clean(&layer).await;
    let clean = head(&*layer, "k").await.unwrap();
    assert_eq!(clean, ObjectInfo { generation: clean.generation, ..dirty.clone() });
    assert_ne!(clean.generation, dirty.generation);
    assert_eq!((clean.modified, clean.etag), (committed.modified, committed.etag));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_backing_store_delays_only_the_write_back() {
    let stores = Stores::new().await;
    let layer = stores.open(Duration::ZERO).await;
    put(&*layer, "first", "x").await;
    wait_until_clean(&layer).await;
    stores.backing.set_plan(away());
    put(&*layer, "k", "kept").await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"kept");
    wait_until("an attempt fails", async || layer.status().failures > 0).await;
    assert_eq!(reason(try_put(&*layer, "k", "no", Precondition::Absent).await), Reason::PreconditionFailed);
    assert_eq!(reason(get(&*layer, "first").await), Reason::Io);
    stores.backing.set_plan(FaultPlan::none());
    wait_until_clean(&layer).await;
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_above_the_limit_goes_through() {
    let stores = Stores::new().await;
    let layer = stores.open_with(WriteBackOptions { max_dirty_bytes: 80, ..options(NEVER) }).await;
    for n in 0..8 {
        put(&*layer, &format!("k{n}"), "0123456789").await;
    }
    assert_eq!((layer.status().dirty_bytes <= 80, layer.status().through), (true, 0));
    // Above three quarters it is written back at once.
    wait_until("there is room again", async || layer.status().dirty_bytes <= 60).await;
    put(&*layer, "large", "more than an eighth").await;
    assert_eq!(layer.status().through, 1);
    assert_eq!(get(&*stores.backing, "large").await.unwrap(), b"more than an eighth");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_goes_through_replaces_dirty_data() {
    let stores = Stores::new().await;
    let layer = stores.open_with(WriteBackOptions { max_dirty_bytes: 80, ..options(NEVER) }).await;
    put(&*layer, "k", "dirty").await;
    put(&*layer, "k", "more than an eighth").await;
    assert_eq!(layer.status().dirty_objects, 0);
    lose(layer, &stores).await;
    let layer = stores.open(Duration::ZERO).await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"more than an eighth");
    assert_eq!(layer.status().dirty_objects, 0, "the journal has nothing older");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_journal_lets_writes_through() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "dirty").await;
    stores.journal.set_plan(all_fail(&[Operation::Stage], Reason::Full));
    put(&*layer, "k", "through").await;
    put(&*layer, "other", "through").await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"through");
    assert_eq!(layer.status().dirty_objects, 0);
    assert_eq!(get(&*stores.backing, "other").await.unwrap(), b"through");
}

/// The device fills after the write has begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_that_fills_the_journal_goes_through_if_it_is_small() {
    for operation in [Operation::Write, Operation::Commit] {
        let stores = Stores::new().await;
        let layer = stores.open(NEVER).await;
        put(&*layer, "k", "dirty").await;
        let full = all_fail(&[operation], Reason::Full);
        stores.journal.set_plan(full.clone());
        put(&*layer, "k", "through").await;
        assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"through", "{operation:?}");
        assert_eq!(
            (get(&*layer, "k").await.unwrap(), layer.status().dirty_objects),
            (b"through".to_vec(), 0)
        );
        lose(layer, &stores).await;
        // A body that cannot be repeated is sent again by the client, which does not repeat a 507.
        stores.journal.set_plan(FaultPlan::none());
        let layer = stores.open(NEVER).await;
        assert!(names(&*layer).await.contains(&"k".to_owned()));
        stores.journal.set_plan(full);
        let large = pattern(1 << 20, 1);
        let request = || StageRequest { size: Some(1 << 20), ..StageRequest::default() };
        let mut staged = layer.stage(&context(), &key("k"), request()).await.unwrap();
        let written = match staged.write(large.clone()).await {
            Ok(()) => staged.commit(Expected::default()).await.map(drop),
            failed => failed,
        };
        let refused = written.unwrap_err();
        assert_eq!(refused.reason(), Reason::Overloaded, "{operation:?}");
        assert!(refused.client_message().is_some(), "the response says when to retry");
        assert_eq!(get(&*layer, "k").await.unwrap(), b"through");
        let mut staged = layer.stage(&context(), &key("k"), request()).await.unwrap();
        staged.write(large.clone()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
        assert!(get(&*stores.backing, "k").await.unwrap() == large, "{operation:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_dirty_data_fails_and_is_not_replaced_by_older() {
    let stores = Stores::new().await;
    let layer = stores.open_with(WriteBackOptions { max_dirty_bytes: 80, ..options(NEVER) }).await;
    put(&*layer, "k", "older but clean").await;
    put(&*layer, "k", "dirty").await;
    put(&*layer, "other", "dirty").await;
    stores.journal.set_plan(all_fail(&[Operation::Get, Operation::Head], Reason::CorruptData));
    assert_eq!(reason(get(&*layer, "k").await), Reason::CorruptData);
    assert_eq!(reason(head(&*layer, "k").await), Reason::CorruptData);
    let through = try_put(&*layer, "k", "more than an eighth", Precondition::None).await;
    assert_eq!(reason(through), Reason::CorruptData, "the dirty data cannot be written back first");
    put(&*layer, "third", "more than an eighth").await;
    stores.journal.set_plan(FaultPlan::none());
    assert_eq!(get(&*layer, "k").await.unwrap(), b"dirty");
}

/// A write that failed in the journal may be found there after a restart. Nothing newer must be lost then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_unknown_outcome_never_replaces_a_newer_one() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "other", "x").await;
    let plan = FaultPlan::none().with_fault(
        Operation::Commit,
        FaultSchedule::Always,
        Fault::FailAfter(Reason::ReadOnly),
    );
    stores.journal.set_plan(plan);
    assert_eq!(reason(try_put(&*layer, "k", "unknown", Precondition::None).await), Reason::ReadOnly);
    stores.journal.set_plan(FaultPlan::none());
    let newer = try_put(&*layer, "k", "newer", Precondition::None).await;
    assert_eq!(reason(newer), Reason::ReadOnly, "a change that goes through would be older after a restart");
    put(&*layer, "third", "through").await;
    assert_eq!(get(&*stores.backing, "third").await.unwrap(), b"through");
    lose(layer, &stores).await;
    let layer = stores.open(NEVER).await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"unknown");
    put(&*layer, "k", "newer").await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"newer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_object_stays_dirty_and_blocks_no_other() {
    let stores = Stores::new().await;
    let layer = stores.open(Duration::from_millis(30)).await;
    put(&*layer, "clean", "x").await;
    wait_until_clean(&layer).await;
    let plan = FaultPlan::none().with_fault(
        Operation::Commit,
        FaultSchedule::Nth(stores.backing.calls(Operation::Commit) + 1),
        Fault::FailBefore(Reason::AccessDenied),
    );
    stores.backing.set_plan(plan);
    put(&*layer, "first", "rejected").await;
    wait_until("it is rejected", async || layer.status().rejected == 1).await;
    put(&*layer, "second", "accepted").await;
    wait_until("the second is written back", async || get(&*stores.backing, "second").await.is_ok()).await;
    wait_until("only the first is dirty", async || layer.status().dirty_objects == 1).await;
    assert_eq!(get(&*layer, "first").await.unwrap(), b"rejected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_with_dirty_objects_is_not_empty() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "dirty").await;
    assert_eq!(reason(layer.delete_bucket(&context(), &bucket()).await), Reason::BucketNotEmpty);
    assert_eq!(get(&*layer, "k").await.unwrap(), b"dirty");
    assert!(delete(&*layer, "k").await);
    layer.delete_bucket(&context(), &bucket()).await.unwrap();
    assert!(stores.journal.list_buckets(&context()).await.unwrap().is_empty());
    layer.create_bucket(&context(), &bucket()).await.unwrap();
    assert!(names(&*layer).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_with_versions_is_written_through() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "first").await;
    layer.set_versioning(&context(), &bucket(), Versioning::Enabled).await.unwrap();
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"first");
    assert_eq!(reason(head(&*stores.backing, MARKER_KEY).await), Reason::NoSuchKey);
    let second = put(&*layer, "k", "second").await;
    assert!(second.version.is_some());
    assert_eq!(layer.status().dirty_objects, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_that_allows_no_write_drains_an_old_journal() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "dirty").await;
    lose(layer, &stores).await;
    let (backing, journal) = (stores.backing.clone(), stores.journal.clone());
    let clock = SystemClock::shared();
    let layer = WriteBack::open(backing, journal, Arc::new(AllowNone), options(NEVER), clock).await.unwrap();
    assert_eq!(get(&*layer, "k").await.unwrap(), b"dirty");
    put(&*layer, "other", "through").await;
    assert_eq!(get(&*stores.backing, "other").await.unwrap(), b"through");
    put(&*layer, "k", "through").await;
    assert_eq!(layer.status().dirty_objects, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_reads_dirty_data() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "from", "dirty").await;
    put(&*layer, "to", "replaced").await;
    let copy = CopyRequest {
        source: key("from"),
        source_conditions: ReadConditions::default(),
        destination: key("to"),
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::Exists,
        etag: ETagForm::Md5,
    };
    layer.copy(&context(), copy).await.unwrap();
    assert_eq!(get(&*layer, "to").await.unwrap(), b"dirty");
    assert_eq!(layer.status().dirty_objects, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_version_of_a_dirty_object_is_the_object() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    for name in ["read", "tagged", "deleted"] {
        put(&*layer, name, "dirty").await;
    }
    let null = |name: &str| key(name).with_version(Some(VersionId::Null));
    let found = layer.get(&context(), &null("read"), GetRequest::default()).await.unwrap();
    assert_eq!(drain(found.body).await.unwrap(), "dirty");
    layer.set_tags(&context(), &null("tagged"), Tags::default()).await.unwrap();
    layer.delete(&context(), &null("deleted"), Precondition::None).await.unwrap();
    assert_eq!(reason(get(&*layer, "deleted").await), Reason::NoSuchKey);
    assert_eq!(layer.status().dirty_objects, 0);
    assert_eq!(names(&*layer).await, ["read", "tagged"]);
}

/// One step of the random test.
async fn random_step(layer: &WriteBack, model: &mut BTreeMap<String, &'static str>, rng: &mut fastrand::Rng) {
    const VALUES: [&str; 5] = ["", "short", "a bit longer", "more than an eighth of it", "0123456789abcdef"];
    let folder = ["", "a/", "a/b/", "b/"][rng.usize(..4)];
    let name = format!("{folder}{}", rng.u8(..4));
    match rng.u8(..10) {
        0..5 => {
            let value = VALUES[rng.usize(..VALUES.len())];
            let absent = rng.bool();
            let precondition = if absent { Precondition::Absent } else { Precondition::None };
            let written = try_put(layer, &name, value, precondition).await;
            if absent && model.contains_key(&name) {
                assert_eq!(reason(written), Reason::PreconditionFailed);
            } else {
                written.unwrap();
                model.insert(name, value);
            }
        }
        5..8 => assert_eq!(delete(layer, &name).await, model.remove(&name).is_some(), "{name}"),
        8 => {
            let set = layer.set_tags(&context(), &key(&name), Tags::default()).await;
            assert_eq!(set.is_ok(), model.contains_key(&name));
        }
        _ => match model.get(&name) {
            Some(value) => assert_eq!(get(layer, &name).await.unwrap(), value.as_bytes()),
            None => assert_eq!(reason(get(layer, &name).await), Reason::NoSuchKey),
        },
    }
}

/// Compares all pages of a listing with a store that has the objects of the model.
async fn compare_listings(
    layer: &WriteBack,
    model: &BTreeMap<String, &'static str>,
    rng: &mut fastrand::Rng,
) {
    let reference = MemoryStore::new(SystemClock::shared());
    reference.create_bucket(&context(), &bucket()).await.unwrap();
    for (name, value) in model {
        put(&*reference, name, value).await;
    }
    let delimiter = rng.bool().then(|| "/".to_owned());
    let prefix = ["", "a", "a/", "a/b"][rng.usize(..4)].to_owned();
    let after = rng.bool().then(|| ListPosition::after(["a", "a/", "a/2", "b"][rng.usize(..4)]));
    let mut request = ListRequest { prefix, delimiter, after, limit: rng.usize(1..5) };
    loop {
        let expected = reference.list(&context(), &bucket(), &request).await.unwrap();
        let found = layer.list(&context(), &bucket(), &request).await.unwrap();
        assert_eq!(described(&found), described(&expected), "{request:?}");
        match expected.next {
            Some(next) => request.after = Some(next),
            None => return,
        }
    }
}

/// The entries of a page with what identifies their objects, and the next position.
fn described(page: &ListPage<ObjectSummary>) -> Vec<String> {
    let describe = |entry: &ListEntry<ObjectSummary>| match entry {
        ListEntry::Key(key, summary) => format!("{key:?} {} {}", summary.size, summary.etag),
        ListEntry::CommonPrefix(prefix) => format!("{prefix:?}"),
    };
    let next = format!("next {:?}", page.next);
    page.entries.iter().map(describe).chain([next]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_operations_match_a_model_across_lost_processes() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let stores = Stores::new().await;
        let mut model = BTreeMap::new();
        for _ in 0..6 {
            let delay = [Duration::ZERO, Duration::from_millis(2), NEVER][rng.usize(..3)];
            let policy: Arc<dyn WriteBackPolicy> =
                if rng.bool() { Arc::new(AllowAll) } else { Arc::new(admission::ByScaledSize) };
            let options = WriteBackOptions { max_dirty_bytes: 160, ..options(delay) };
            let layer = stores.open_with_policy(policy, options).await;
            for _ in 0..40 {
                random_step(&layer, &mut model, &mut rng).await;
                if rng.u8(..4) == 0 {
                    compare_listings(&layer, &model, &mut rng).await;
                }
            }
            for (name, value) in &model {
                assert_eq!(get(&*layer, name).await.unwrap(), value.as_bytes(), "seed {seed}: {name}");
            }
            // Lost at any point of the write-back.
            lose(layer, &stores).await;
        }
        let layer = stores.open(Duration::ZERO).await;
        wait_until_clean(&layer).await;
        let mut expected: Vec<&str> = model.keys().map(String::as_str).collect();
        expected.insert(0, MARKER_KEY);
        assert_eq!(names(&*stores.backing).await, expected, "seed {seed}");
        for (name, value) in &model {
            assert_eq!(get(&*stores.backing, name).await.unwrap(), value.as_bytes(), "seed {seed}: {name}");
        }
    }
}

#[tokio::test]
async fn listing_of_a_backing_store_in_another_order_is_rejected() {
    let stores = Stores::new().await;
    let layer = stores.open(Duration::ZERO).await;
    for name in ["a", "b", "c"] {
        put(&*layer, name, "x").await;
    }
    wait_until_clean(&layer).await;
    let unordered =
        FaultPlan::none().with_fault(Operation::List, FaultSchedule::Always, Fault::UnorderedListing);
    stores.backing.set_plan(unordered);
    let request = ListRequest { limit: 10, ..ListRequest::default() };
    assert_eq!(reason(layer.list(&context(), &bucket(), &request).await), Reason::Unsupported);
    stores.backing.set_plan(FaultPlan::none());
    assert_eq!(names(&*layer).await, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn listings_miss_nothing_while_data_is_written_back() {
    let stores = Stores::new().await;
    let layer = stores.open(Duration::ZERO).await;
    let keys: Vec<String> = (0..40).map(|n| format!("k{n:02}")).collect();
    for name in &keys {
        put(&*layer, name, "x").await;
    }
    let writer = tokio::spawn({
        let (layer, keys) = (layer.clone(), keys.clone());
        async move {
            for round in 0..20 {
                for name in keys.iter().skip(round % 3).step_by(3) {
                    put(&*layer, name, "again").await;
                }
            }
        }
    });
    while !writer.is_finished() {
        let mut found = Vec::new();
        let mut request = ListRequest { limit: 7, ..ListRequest::default() };
        loop {
            let page = layer.list(&context(), &bucket(), &request).await.unwrap();
            found.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
            let Some(next) = page.next else { break };
            request.after = Some(next);
        }
        assert_eq!(found, keys);
    }
    writer.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_objects_are_written_back_verified() {
    let stores = Stores::new().await;
    let layer = stores.open(Duration::ZERO).await;
    let bytes = pattern(3 << 20, 1);
    let request = StageRequest { size: Some(3 << 20), ..StageRequest::default() };
    let mut staged = layer.stage(&context(), &key("large"), request).await.unwrap();
    for piece in bytes.chunks(100_000) {
        staged.write(bytes.slice_ref(piece)).await.unwrap();
    }
    // The first attempt reads damaged bytes: they never reach the backing store.
    let damaged =
        FaultPlan::none().with_fault(Operation::Body, FaultSchedule::Nth(1), Fault::Corrupt(1_000_000));
    stores.journal.set_plan(damaged);
    staged.commit(Expected::default()).await.unwrap();
    wait_until("the damage is noticed", async || layer.status().rejected == 1).await;
    assert_eq!(reason(get(&*stores.backing, "large").await), Reason::NoSuchKey);
    assert!(get(&*layer, "large").await.unwrap() == bytes);
}
