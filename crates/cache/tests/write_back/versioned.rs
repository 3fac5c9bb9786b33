//! Buckets that get versions while the journal owns them.

use tradewind_core::testing::SimulatedClock;
use tradewind_core::version::ListVersions;

use super::*;

async fn enable(stores: &Stores) {
    stores.backing.set_versioning(&context(), &bucket(), Versioning::Enabled).await.unwrap();
}

/// The number of versions of a key in the backing store, delete markers included.
async fn versions(stores: &Stores, name: &str) -> usize {
    let request = ListVersions { limit: 1000, ..ListVersions::default() };
    let page = stores.backing.list_versions(&context(), &bucket(), &request).await.unwrap();
    page.entries.iter().filter(|entry| entry.name() == name).count()
}

/// Writes a key twice and checks that each write is a version.
async fn assert_writes_are_versions(layer: &WriteBack, stores: &Stores) {
    for bytes in ["first", "second"] {
        assert!(put(layer, "k", bytes).await.version.is_some());
    }
    assert_eq!((layer.status().dirty_objects, versions(stores, "k").await), (0, 2));
    assert_eq!(reason(head(&*stores.backing, MARKER_KEY).await), Reason::NoSuchKey);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versioning_enabled_during_a_restart_ends_the_claim() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    assert!(names(&*layer).await.is_empty());
    lose(layer, &stores).await;
    assert!(head(&*stores.backing, MARKER_KEY).await.is_ok());
    enable(&stores).await;
    assert_writes_are_versions(&*stores.open(NEVER).await, &stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versioning_enabled_by_others_ends_the_claim() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    assert!(names(&*layer).await.is_empty());
    enable(&stores).await;
    assert_writes_are_versions(&layer, &stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_that_lands_after_versioning_was_set_is_released() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    stores.backing.set_plan(all_fail(&[Operation::Commit], Reason::Io));
    assert_eq!(reason(try_put(&*layer, "k", "x", Precondition::None).await), Reason::Io);
    stores.backing.set_plan(FaultPlan::none());
    let record = String::from_utf8(get(&*stores.journal, MARKER_KEY).await.unwrap()).unwrap();
    layer.set_versioning(&context(), &bucket(), Versioning::Enabled).await.unwrap();
    put(&*stores.backing, MARKER_KEY, record.replace("next", "claim").leak()).await;
    assert_writes_are_versions(&layer, &stores).await;
}

/// Data that is dirty when the bucket gets versions is written back before what goes through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dirty_data_of_a_bucket_with_versions_is_written_back() {
    for is_restarted in [false, true] {
        let stores = Stores::new().await;
        let mut layer = stores.open(NEVER).await;
        for name in ["k", "other", "third"] {
            put(&*layer, name, "dirty").await;
        }
        enable(&stores).await;
        if is_restarted {
            lose(layer, &stores).await;
            layer = stores.open(NEVER).await;
        }
        assert!(put(&*layer, "k", "newer").await.version.is_some());
        assert_eq!((layer.status().dirty_objects, versions(&stores, "k").await), (2, 2));
        assert!(head(&*stores.backing, MARKER_KEY).await.is_ok(), "the journal owns what is dirty");
        assert_eq!(get(&*layer, "other").await.unwrap(), b"dirty");
        assert_eq!(names(&*layer).await, ["k", "other", "third"]);
        let request = ListVersions { limit: 1000, ..ListVersions::default() };
        let page = layer.list_versions(&context(), &bucket(), &request).await.unwrap();
        let listed: Vec<_> = page.entries.iter().map(ListEntry::name).collect();
        assert_eq!(listed, ["k", "k", "other", "third"]);
        assert_eq!(layer.status().dirty_objects, 0);
        assert!(put(&*layer, "k", "newest").await.version.is_some());
        assert_eq!(reason(head(&*stores.backing, MARKER_KEY).await), Reason::NoSuchKey);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_listed_after_all_but_a_rejected_key_is_written_back() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    for number in 0..40 {
        put(&*layer, &format!("k{number:02}"), "dirty").await;
    }
    enable(&stores).await;
    let request = ListVersions { limit: 1000, ..ListVersions::default() };
    let list = async || layer.list_versions(&context(), &bucket(), &request).await;
    assert_eq!(names(&*layer).await.len(), 40);
    let plan = FaultPlan::none().with_fault(
        Operation::Commit,
        FaultSchedule::Nth(stores.backing.calls(Operation::Commit) + 1),
        Fault::FailBefore(Reason::AccessDenied),
    );
    stores.backing.set_plan(plan);
    assert_eq!(reason(list().await), Reason::AccessDenied);
    assert_eq!(layer.status().dirty_objects, 1);
    assert_eq!(list().await.unwrap().entries.len(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_outlasts_a_request_for_the_versioning_that_is_denied() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "first").await;
    stores.backing.set_plan(all_fail(&[Operation::Versioning], Reason::AccessDenied));
    put(&*layer, "other", "second").await;
    assert_eq!((layer.status().dirty_objects, layer.status().through), (2, 0));
    stores.backing.set_plan(FaultPlan::none());
    enable(&stores).await;
    assert!(put(&*layer, "k", "newer").await.version.is_some());
    stores.backing.set_plan(all_fail(&[Operation::Versioning], Reason::AccessDenied));
    assert!(put(&*layer, "k", "newest").await.version.is_some(), "the last known versioning counts");
}

const OWNERSHIP_CHECK: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_whose_versioning_was_denied_is_claimed_later() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let (backing, journal) = (stores.backing.clone(), stores.journal.clone());
    let options = WriteBackOptions { ownership_check: OWNERSHIP_CHECK, ..options(NEVER) };
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options, clock.clone()).await;
    let layer = layer.unwrap();
    stores.backing.set_plan(all_fail(&[Operation::Versioning], Reason::AccessDenied));
    put(&*layer, "k", "through").await;
    assert_eq!((layer.status().dirty_objects, layer.status().through), (0, 1));
    stores.backing.set_plan(FaultPlan::none());
    clock.advance(OWNERSHIP_CHECK);
    put(&*layer, "k", "dirty").await;
    assert_eq!((layer.status().dirty_objects, layer.status().through), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_ends_if_the_versioning_stays_unknown() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let (backing, journal) = (stores.backing.clone(), stores.journal.clone());
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options(NEVER), clock.clone()).await;
    let layer = layer.unwrap();
    assert!(names(&*layer).await.is_empty());
    enable(&stores).await;
    stores.backing.set_plan(all_fail(&[Operation::Versioning], Reason::AccessDenied));
    clock.advance(Duration::from_secs(299));
    put(&*layer, "k", "dirty").await;
    assert_eq!(layer.status().dirty_objects, 1, "the last known versioning counts");
    clock.advance(Duration::from_secs(10));
    for bytes in ["first", "second"] {
        assert!(put(&*layer, "other", bytes).await.version.is_some());
    }
    assert_eq!(versions(&stores, "other").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_with_versions_is_served_although_its_versioning_cannot_be_read() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let (backing, journal) = (stores.backing.clone(), stores.journal.clone());
    enable(&stores).await;
    let layer = WriteBack::open(backing, journal, Arc::new(AllowAll), options(NEVER), clock.clone()).await;
    let layer = layer.unwrap();
    put(&*layer, "k", "first").await;
    stores.backing.set_plan(all_fail(&[Operation::Versioning], Reason::Io));
    for _ in 0..3 {
        clock.advance(Duration::from_secs(301));
        assert!(put(&*layer, "k", "later").await.version.is_some());
        assert_eq!(get(&*layer, "k").await.unwrap(), b"later");
    }
    assert_eq!(layer.status().dirty_objects, 0);
}
