//! Owners of a bucket: a second journal, a lost one, a copy, and a marker whose write has an unknown outcome.

use super::lasting::Lasting;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_marker_is_hidden_from_clients() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "a", "x").await;
    assert!(head(&*stores.backing, MARKER_KEY).await.is_ok());
    assert_eq!(names(&*layer).await, ["a"]);
    assert_eq!(reason(get(&*layer, MARKER_KEY).await), Reason::NoSuchKey);
    assert_eq!(reason(try_put(&*layer, MARKER_KEY, "x", Precondition::None).await), Reason::AccessDenied);
    let deleted = layer.delete(&context(), &key(MARKER_KEY), Precondition::None).await;
    assert_eq!(reason(deleted), Reason::AccessDenied);
    let request = ListRequest { delimiter: Some("-".to_owned()), limit: 10, ..ListRequest::default() };
    let page = layer.list(&context(), &bucket(), &request).await.unwrap();
    assert_eq!(page.entries.iter().map(ListEntry::name).collect::<Vec<_>>(), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_of_another_journal_is_neither_read_nor_written() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "dirty").await;
    // A second server, or the same without its journal.
    let other = Stores { backing: stores.backing.clone(), journal: Stores::new().await.journal };
    let second = other.open(NEVER).await;
    for refused in [
        reason(get(&*second, "k").await),
        reason(try_put(&*second, "k", "x", Precondition::None).await),
        reason(second.list(&context(), &bucket(), &ListRequest::default()).await),
        reason(second.delete_bucket(&context(), &bucket()).await),
    ] {
        assert_eq!(refused, Reason::Io);
    }
    let error = get(&*second, "k").await.unwrap_err();
    assert!(error.message().contains("belongs to the journal"), "{error:?}");
    // Without the marker, the second takes over, and the first neither reads nor writes what it still has.
    stores.backing.delete(&context(), &key(MARKER_KEY), Precondition::None).await.unwrap();
    put(&*second, "k", "newer").await;
    lose(layer, &stores).await;
    let first = stores.open(Duration::ZERO).await;
    assert_eq!(reason(get(&*first, "k").await), Reason::Io);
    assert_eq!(get(&*second, "k").await.unwrap(), b"newer");
    lose(second, &other).await;
    let second = other.open(Duration::ZERO).await;
    wait_until_clean(&second).await;
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"newer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_owner_stops_writing_back() {
    let stores = Stores::new().await;
    let layer = stores.open(Duration::from_millis(40)).await;
    put(&*layer, "k", "dirty").await;
    stores.backing.delete(&context(), &key(MARKER_KEY), Precondition::None).await.unwrap();
    wait_until("the loss is noticed", async || {
        let status = layer.status();
        status.failures + status.rejected > 0
    })
    .await;
    assert_eq!(reason(get(&*stores.backing, "k").await), Reason::NoSuchKey);
    assert_eq!(reason(get(&*layer, "k").await), Reason::Io);
    assert_eq!(layer.status().dirty_objects, 1);
}

/// A second server over the same backing store, with a journal of its own.
async fn second_server(stores: &Stores) -> Stores {
    Stores { backing: stores.backing.clone(), journal: Stores::new().await.journal }
}

/// A backup of the journal: a store with the same objects.
async fn copy_of_journal(stores: &Stores) -> Arc<Faulty<MemoryStore>> {
    let copy = Stores::new().await.journal;
    copy.create_bucket(&context(), &bucket()).await.unwrap();
    for name in names(&*stores.journal).await {
        let found = stores.journal.get(&context(), &key(&name), GetRequest::default()).await.unwrap();
        let (metadata, size) = (found.info.metadata.clone(), Some(found.info.size));
        let request = StageRequest { metadata, size, ..StageRequest::default() };
        let mut staged = copy.stage(&context(), &key(&name), request).await.unwrap();
        staged.write(drain(found.body).await.unwrap()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }
    copy
}

/// The second server would serve old data, and its writes would be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_one_server_reads_is_not_written_by_another() {
    let stores = Stores::new().await;
    let other = second_server(&stores).await;
    let (layer, second) = (stores.open(NEVER).await, other.open(NEVER).await);
    assert_eq!(reason(get(&*second, "k").await), Reason::NoSuchKey);
    let refused = try_put(&*layer, "k", "x", Precondition::None).await;
    assert_eq!(reason(refused), Reason::Io);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_cannot_be_claimed_is_examined_again() {
    let stores = Stores::new().await;
    let other = second_server(&stores).await;
    let layer = stores.open(NEVER).await;
    stores.backing.set_plan(all_fail(&[Operation::Stage], Reason::AccessDenied));
    assert_eq!(reason(get(&*layer, "k").await), Reason::NoSuchKey);
    stores.backing.set_plan(FaultPlan::none());
    let second = other.open(NEVER).await;
    put(&*second, "k", "dirty").await;
    assert_eq!(reason(get(&*layer, "k").await), Reason::Io);
    assert_eq!(reason(layer.set_tags(&context(), &key("k"), Tags::default()).await), Reason::Io);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_lost_bucket_are_refused() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    assert_eq!(reason(get(&*layer, "k").await), Reason::NoSuchKey);
    stores.backing.delete(&context(), &key(MARKER_KEY), Precondition::None).await.unwrap();
    let other = second_server(&stores).await;
    let second = other.open(NEVER).await;
    put(&*second, "k", "dirty").await;
    assert_eq!(reason(get(&*layer, "k").await), Reason::Io);
    assert_eq!(reason(layer.list(&context(), &bucket(), &ListRequest::default()).await), Reason::Io);
}

/// The ownership changes between two comparisons.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_marker_of_another_owner_is_not_removed() {
    let stores = Stores::new().await;
    let layer = stores.open_with(WriteBackOptions { ownership_check: NEVER, ..options(NEVER) }).await;
    assert_eq!(reason(get(&*layer, "k").await), Reason::NoSuchKey);
    stores.backing.delete(&context(), &key(MARKER_KEY), Precondition::None).await.unwrap();
    let other = second_server(&stores).await;
    let second = other.open(NEVER).await;
    put(&*second, "k", "dirty").await;
    let marker = get(&*stores.backing, MARKER_KEY).await.unwrap();
    let changed = layer.set_versioning(&context(), &bucket(), Versioning::Enabled).await;
    assert_eq!(reason(changed), Reason::Io);
    assert_eq!(get(&*stores.backing, MARKER_KEY).await.unwrap(), marker);
    assert_eq!(get(&*second, "k").await.unwrap(), b"dirty");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_journal_is_not_the_owner() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "old").await;
    let backup = copy_of_journal(&stores).await;
    lose(layer, &stores).await;
    let layer = stores.open(Duration::ZERO).await;
    put(&*layer, "k", "new").await;
    wait_until_clean(&layer).await;
    lose(layer, &stores).await;
    let restored = Stores { backing: stores.backing.clone(), journal: backup };
    let layer = restored.open(Duration::ZERO).await;
    assert_eq!(reason(get(&*layer, "k").await), Reason::Io);
    wait_until("it is not written back", async || layer.status().rejected > 0).await;
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"new");
    lose(layer, &restored).await;
    assert_eq!(get(&*stores.open(NEVER).await, "k").await.unwrap(), b"new");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_journal_takes_the_bucket_only_once() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "dirty").await;
    let copy = Stores { backing: stores.backing.clone(), journal: copy_of_journal(&stores).await };
    let second = copy.open(NEVER).await;
    assert_eq!(get(&*second, "k").await.unwrap(), b"dirty");
    assert_eq!(reason(get(&*layer, "k").await), Reason::Io);
    lose(layer, &stores).await;
    assert_eq!(reason(get(&*stores.open(NEVER).await, "k").await), Reason::Io);
}

/// A request that the backing store did not confirm is applied after later ones failed too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_that_appears_late_is_of_its_journal() {
    let stores = Stores::new().await;
    let mut late = None;
    for _ in 0..2 {
        let layer = stores.open(NEVER).await;
        stores.backing.set_plan(all_fail(&[Operation::Commit], Reason::Io));
        assert_eq!(reason(try_put(&*layer, "k", "x", Precondition::None).await), Reason::Io);
        let record = String::from_utf8(get(&*stores.journal, MARKER_KEY).await.unwrap()).unwrap();
        late.get_or_insert(record.replace("next", "claim"));
        lose(layer, &stores).await;
    }
    stores.backing.set_plan(FaultPlan::none());
    let late: &'static str = late.unwrap().leak();
    put(&*stores.backing, MARKER_KEY, late).await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "dirty").await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"dirty");
    assert_ne!(get(&*stores.backing, MARKER_KEY).await.unwrap(), late.as_bytes());
}

/// The response to the marker is lost: the retry finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_whose_response_is_lost_is_found() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    let plan =
        FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, Fault::FailAfter(Reason::Io));
    stores.backing.set_plan(plan);
    put(&*layer, "k", "dirty").await;
    assert_eq!(layer.status().dirty_objects, 1);
}

/// Dirty data is served and written back although the journal cannot record a new claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_journal_is_served_after_a_restart() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "dirty").await;
    lose(layer, &stores).await;
    stores.journal.set_plan(all_fail(&[Operation::Stage], Reason::Full));
    let layer = stores.open(Duration::ZERO).await;
    wait_until_clean(&layer).await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"dirty");
    assert_eq!(get(&*stores.backing, "k").await.unwrap(), b"dirty");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_markers_are_removed_within_one_deadline() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    for number in 0..40 {
        let name = BucketName::new(&format!("bucket-{number}")).unwrap();
        layer.create_bucket(&context(), &name).await.unwrap();
        layer.list(&context(), &name, &ListRequest::default()).await.unwrap();
    }
    let plan = FaultPlan::none().with_fault(Operation::Delete, FaultSchedule::Always, Fault::Hang);
    stores.backing.set_plan(plan);
    let closed = tokio::time::timeout(Duration::from_secs(30), layer.close()).await;
    assert!(closed.is_ok(), "the releases wait for each other");
    assert!(stores.backing.calls(Operation::Delete) > 1, "they run concurrently");
}

/// After a restart the journal has the write: without the marker, the bucket would count as lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_with_a_write_of_unknown_outcome_keeps_its_marker() {
    let stores = Stores::new().await;
    let open = async || {
        let (backing, journal) = (Lasting(stores.backing.clone()), Lasting(stores.journal.clone()));
        let (policy, clock) = (Arc::new(AllowAll), SystemClock::shared());
        WriteBack::open(Arc::new(backing), Arc::new(journal), policy, options(NEVER), clock).await.unwrap()
    };
    let layer = open().await;
    assert!(names(&*layer).await.is_empty());
    let plan =
        FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, Fault::FailAfter(Reason::Io));
    stores.journal.set_plan(plan);
    assert_eq!(reason(try_put(&*layer, "k", "unknown", Precondition::None).await), Reason::Io);
    stores.journal.set_plan(FaultPlan::none());
    let versioning = layer.set_versioning(&context(), &bucket(), Versioning::Enabled).await;
    assert_eq!(reason(versioning), Reason::ReadOnly);
    assert_eq!(reason(layer.delete_bucket(&context(), &bucket()).await), Reason::ReadOnly);
    layer.close().await.unwrap();
    assert!(head(&*stores.backing, MARKER_KEY).await.is_ok());
    let layer = open().await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"unknown");
    put(&*layer, "k", "newer").await;
    assert_eq!(get(&*layer, "k").await.unwrap(), b"newer");
}

/// Another owner may have written the bucket: after a restart, the failed write would replace newer data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_with_a_write_of_unknown_outcome_is_not_claimed_again() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    assert!(names(&*layer).await.is_empty());
    let plan =
        FaultPlan::none().with_fault(Operation::Commit, FaultSchedule::Always, Fault::FailAfter(Reason::Io));
    stores.journal.set_plan(plan);
    assert_eq!(reason(try_put(&*layer, "k", "unknown", Precondition::None).await), Reason::Io);
    stores.journal.set_plan(FaultPlan::none());
    stores.backing.delete(&context(), &key(MARKER_KEY), Precondition::None).await.unwrap();
    assert_eq!(reason(get(&*layer, "k").await), Reason::Io);
    assert_eq!(reason(head(&*stores.backing, MARKER_KEY).await), Reason::NoSuchKey);
}

/// A second layer over the same backing store, with a journal and faults of its own.
async fn second_over(memory: &Arc<MemoryStore>, plan: FaultPlan) -> Stores {
    let own = Stores::new().await;
    Stores { backing: Faulty::new(memory.clone(), plan), ..own }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_that_goes_through_notices_a_new_claim() {
    let denied = FaultPlan::none().with_fault(
        Operation::Versioning,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::AccessDenied),
    );
    let rarely = WriteBackOptions { ownership_check: NEVER, ..options(NEVER) };
    let always = options(NEVER);
    for (plan, options, has_policy) in [(FaultPlan::none(), rarely, false), (denied, always, true)] {
        let memory = MemoryStore::new(SystemClock::shared());
        memory.create_bucket(&context(), &bucket()).await.unwrap();
        let (one, two) = (second_over(&memory, plan).await, second_over(&memory, FaultPlan::none()).await);
        let policy: Arc<dyn WriteBackPolicy> =
            if has_policy { Arc::new(AllowAll) } else { Arc::new(AllowNone) };
        let first = one.open_with_policy(policy, options).await;
        put(&*first, "k", "through").await;
        assert_eq!(get(&*memory, "k").await.unwrap(), b"through");
        let second = two.open(NEVER).await;
        put(&*second, "k", "acknowledged").await;
        let refused = reason(try_put(&*first, "k", "older", Precondition::None).await);
        assert_eq!(refused, Reason::Io, "{has_policy}");
        lose(second, &two).await;
        let second = two.open(Duration::ZERO).await;
        wait_until_clean(&second).await;
        assert_eq!(get(&*memory, "k").await.unwrap(), b"acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backing_store_that_hangs_stops_neither_reads_nor_writes_of_the_journal() {
    let stores = Stores::new().await;
    let layer = stores.open(NEVER).await;
    put(&*layer, "k", "dirty").await;
    let hangs = [Operation::Get, Operation::Head, Operation::Versioning]
        .into_iter()
        .fold(FaultPlan::none(), |plan, operation| {
            plan.with_fault(operation, FaultSchedule::Always, Fault::Hang)
        });
    stores.backing.set_plan(hangs);
    // It compares the owner strictly, and waits for the response.
    let strict = tokio::spawn({
        let layer = layer.clone();
        async move { layer.set_tags(&context(), &key("k"), Tags::default()).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let lenient = async {
        for name in ["a", "b", "c"] {
            assert_eq!(get(&*layer, "k").await.unwrap(), b"dirty");
            put(&*layer, name, "new").await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), lenient).await.expect("they wait for the backing store");
    strict.abort();
}
