//! Listings while data is written back: a key that leaves the journal meanwhile is neither missed nor shown again.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use tradewind_core::Context;
use tradewind_core::store::{Deleted, Staged};

use super::*;

/// Holds one call, counted from the time of [`Gate::close_at`].
#[derive(Debug)]
struct Gate {
    /// Calls that pass before the one that is held.
    calls_before: AtomicUsize,
    is_closed: watch::Sender<bool>,
    is_reached: watch::Sender<bool>,
}

impl Gate {
    /// A gate that holds no call.
    fn new() -> Self {
        Self {
            calls_before: AtomicUsize::new(0),
            is_closed: watch::Sender::new(false),
            is_reached: watch::Sender::new(false),
        }
    }

    fn close_at(&self, call: usize) {
        self.calls_before.store(call, Ordering::SeqCst);
        self.is_reached.send_replace(false);
        self.is_closed.send_replace(true);
    }

    fn open(&self) {
        self.is_closed.send_replace(false);
    }

    async fn reached(&self) {
        self.is_reached.subscribe().wait_for(|is_reached| *is_reached).await.unwrap();
    }

    async fn pass(&self) {
        let one_less = |calls: usize| calls.checked_sub(1);
        if !*self.is_closed.borrow()
            || self.calls_before.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
        {
            return;
        }
        self.is_reached.send_replace(true);
        self.is_closed.subscribe().wait_for(|is_closed| !*is_closed).await.unwrap();
    }
}

/// A backing store whose changes wait at a gate before they are applied, and whose listings wait at others before and after
/// their page is read.
#[derive(Debug)]
struct Gated {
    inner: Arc<Faulty<MemoryStore>>,
    changes: Gate,
    before_page: Gate,
    after_page: Gate,
    /// Calls yield for some time, so that their order varies.
    is_jittered: bool,
}

impl Gated {
    fn new(stores: &Stores, is_jittered: bool) -> Arc<Self> {
        let inner = stores.backing.clone();
        let gate = Gate::new;
        Arc::new(Self { inner, changes: gate(), before_page: gate(), after_page: gate(), is_jittered })
    }

    async fn jitter(&self) {
        if self.is_jittered {
            for _ in 0..fastrand::u8(..6) {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn pass_change(&self) {
        self.jitter().await;
        self.changes.pass().await;
    }
}

#[async_trait]
impl ObjectStore for Gated {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.pass_change().await;
        self.inner.stage(context, address, request).await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.pass_change().await;
        let deleted = self.inner.delete(context, address, precondition).await;
        self.jitter().await;
        deleted
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.before_page.pass().await;
        self.jitter().await;
        let page = self.inner.list(context, bucket, request).await;
        self.after_page.pass().await;
        self.jitter().await;
        page
    }
}

async fn open_gated(stores: &Stores, backing: &Arc<Gated>, options: WriteBackOptions) -> Arc<WriteBack> {
    let journal = stores.journal.clone();
    WriteBack::open(backing.clone(), journal, Arc::new(AllowAll), options, SystemClock::shared())
        .await
        .unwrap()
}

/// The entries of all pages. A page that promises more is followed by one that has an entry.
async fn all_pages(layer: &WriteBack, mut request: ListRequest) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let page = layer.list(&context(), &bucket(), &request).await.unwrap();
        let is_first = request.after.is_none();
        assert!(is_first || !page.entries.is_empty(), "the page before promised more: {request:?}");
        found.extend(page.entries.iter().map(|entry| match entry {
            ListEntry::Key(key, summary) => format!("{key} {}", summary.size),
            ListEntry::CommonPrefix(prefix) => prefix.clone(),
        }));
        let Some(next) = page.next else { return found };
        request.after = Some(next);
    }
}

/// The changes that are acknowledged before a listing and written back during it.
#[derive(Debug, Clone, Copy)]
enum Raced {
    Deletion,
    Write,
    WriteAfterDeletion,
}

impl Raced {
    async fn apply(self, layer: &WriteBack, name: &str) {
        if !matches!(self, Self::Write) {
            assert!(delete(layer, name).await);
        }
        if !matches!(self, Self::Deletion) {
            put(layer, name, "newer").await;
        }
    }
}

/// One order of a listing and a write-back.
#[derive(Debug)]
struct Race<'a> {
    raced: Raced,
    name: &'a str,
    request: ListRequest,
    /// The call of the listing to the backing store that waits until all is written back, and whether it has its page by then.
    held_call: usize,
    has_page: bool,
}

impl Race<'_> {
    /// Returns false if the listing has fewer calls.
    async fn run(self) -> bool {
        let stores = Stores::new().await;
        let backing = Gated::new(&stores, false);
        let layer = open_gated(&stores, &backing, options(Duration::ZERO)).await;
        let names = ["a", "m/k", "q"].into_iter().chain(
            // A write of a new key and the last write of an object differ.
            (!matches!(self.raced, Raced::Write)).then_some(self.name),
        );
        let names: BTreeSet<&str> = names.collect();
        for name in &names {
            put(&*layer, name, "old").await;
        }
        wait_until_clean(&layer).await;
        backing.changes.close_at(0);
        self.raced.apply(&layer, self.name).await;
        backing.changes.reached().await;
        let mut expected = names;
        match self.raced {
            Raced::Deletion => expected.remove(self.name),
            Raced::Write | Raced::WriteAfterDeletion => expected.insert(self.name),
        };
        let reference = self.reference(&expected).await;
        let gate = if self.has_page { &backing.after_page } else { &backing.before_page };
        gate.close_at(self.held_call);
        let listing = tokio::spawn({
            let (layer, request) = (layer.clone(), self.request.clone());
            async move { all_pages(&layer, request).await }
        });
        tokio::select! {
            () = gate.reached() => {}
            () = wait_until("the listing ends", async || listing.is_finished()) => {}
        }
        let is_held = !listing.is_finished();
        backing.changes.open();
        wait_until_clean(&layer).await;
        gate.open();
        assert_eq!(listing.await.unwrap(), reference, "{self:?}");
        assert_eq!(all_pages(&layer, self.request.clone()).await, reference, "{self:?}: all is written back");
        is_held
    }

    /// The listing of a store that has these keys.
    async fn reference(&self, names: &BTreeSet<&str>) -> Vec<String> {
        let stores = Stores::new().await;
        let layer = stores.open(NEVER).await;
        for &name in names {
            let is_new = name == self.name && !matches!(self.raced, Raced::Deletion);
            put(&*layer, name, if is_new { "newer" } else { "old" }).await;
        }
        all_pages(&layer, self.request.clone()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_written_back_during_a_listing_are_listed_as_acknowledged() {
    let request = |prefix: &str, delimiter: Option<&str>, limit| ListRequest {
        prefix: prefix.to_owned(),
        delimiter: delimiter.map(str::to_owned),
        limit,
        ..ListRequest::default()
    };
    let requests = [
        request("", None, 1000),
        request("", None, 1),
        request("", Some("/"), 1000),
        request("", Some("/"), 1),
        request("m/", None, 2),
        request("z", None, 1),
    ];
    let mut held = 0;
    for raced in [Raced::Deletion, Raced::Write, Raced::WriteAfterDeletion] {
        // Between others, alone below a prefix, below a prefix with others, and the last one.
        for name in ["b", "n/only", "m/l", "z"] {
            for request in &requests {
                for has_page in [false, true] {
                    let mut held_call = 0;
                    let race =
                        |held_call| Race { raced, name, request: request.clone(), held_call, has_page };
                    while race(held_call).run().await {
                        held_call += 1;
                    }
                    held += held_call;
                }
            }
        }
    }
    assert!(held > 300, "only {held} calls were held");
}

/// The history of a key with one writer: what it had after each of its changes. Sizes tell objects apart.
#[derive(Debug, Default)]
struct History {
    states: Vec<Option<u64>>,
    /// Changes that were acknowledged. One more may be in flight.
    acknowledged: usize,
}

const MAX_VALUE_BYTES: u64 = 1000;

/// A value of the given size.
fn value(size: u64) -> &'static str {
    static VALUE: LazyLock<String> = LazyLock::new(|| "x".repeat(MAX_VALUE_BYTES as usize));
    &VALUE[..size as usize]
}

/// Changes the keys of one writer until it is stopped, and records each change.
async fn change_keys(layer: Arc<WriteBack>, keys: Vec<(String, Arc<Mutex<History>>)>, writer: Writer) {
    let mut rng = fastrand::Rng::with_seed(writer.seed);
    for change in 0.. {
        if writer.is_stopped.load(Ordering::Relaxed) {
            return;
        }
        let (name, history) = &keys[rng.usize(..keys.len())];
        let size = rng.bool().then_some(1 + change * 37 % MAX_VALUE_BYTES);
        history.lock().states.push(size);
        match size {
            Some(size) => drop(put(&*layer, name, value(size)).await),
            None => drop(delete(&*layer, name).await),
        }
        let mut history = history.lock();
        history.acknowledged = history.states.len();
    }
}

struct Writer {
    seed: u64,
    is_stopped: Arc<AtomicBool>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_listings_show_each_key_as_it_was_during_the_request() {
    for seed in 0..4 {
        let stores = Stores::new().await;
        let backing = Gated::new(&stores, true);
        // The larger half of the objects goes through.
        let limited = WriteBackOptions { max_dirty_bytes: MAX_VALUE_BYTES * 4, ..options(Duration::ZERO) };
        let layer = open_gated(&stores, &backing, limited).await;
        let keys: Vec<(String, Arc<Mutex<History>>)> =
            (0..24).map(|n| (format!("{}/{n:02}", n % 5), Arc::default())).collect();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3)
            .map(|number| {
                let own = keys.iter().skip(number).step_by(3).cloned().collect();
                let writer = Writer { seed: seed * 10 + number as u64, is_stopped: is_stopped.clone() };
                tokio::spawn(change_keys(layer.clone(), own, writer))
            })
            .collect();
        let listers = (0..2).map(|lister| {
            let (layer, keys) = (layer.clone(), keys.clone());
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(seed * 10 + lister);
                for _ in 0..150 {
                    check_page(&layer, &keys, &mut rng).await;
                }
            })
        });
        let listed = futures::future::join_all(listers).await;
        is_stopped.store(true, Ordering::Relaxed);
        for ended in listed.into_iter().chain(futures::future::join_all(writers).await) {
            ended.unwrap();
        }
        let changes: usize = keys.iter().map(|(_, history)| history.lock().acknowledged).sum();
        let through = layer.status().through;
        assert!(changes > 100 && through > 10, "seed {seed}: {changes} changes, {through} of them through");
        wait_until_clean(&layer).await;
        check_page(&layer, &keys, &mut fastrand::Rng::with_seed(0)).await;
        for (name, history) in &keys {
            let expected = history.lock().states.last().copied().flatten();
            let found = get(&*stores.backing, name).await.ok().map(|bytes| bytes.len() as u64);
            assert_eq!(found, expected, "seed {seed}: {name}");
        }
    }
}

/// Lists one page. Each key of its range must have a state that it had between the request and the response.
async fn check_page(layer: &WriteBack, keys: &[(String, Arc<Mutex<History>>)], rng: &mut fastrand::Rng) {
    let prefix = ["", "0", "2/"][rng.usize(..3)];
    let after = rng.bool().then(|| keys[rng.usize(..keys.len())].0.clone());
    let request = ListRequest {
        prefix: prefix.to_owned(),
        after: after.clone().map(ListPosition::after),
        limit: [2, 7, 1000][rng.usize(..3)],
        ..ListRequest::default()
    };
    let before: Vec<usize> = keys.iter().map(|(_, history)| history.lock().acknowledged).collect();
    let page = layer.list(&context(), &bucket(), &request).await.unwrap();
    let found: BTreeMap<&str, u64> = page
        .entries
        .iter()
        .map(|entry| match entry {
            ListEntry::Key(key, summary) => (key.as_str(), summary.size),
            ListEntry::CommonPrefix(prefix) => panic!("{prefix} without a delimiter"),
        })
        .collect();
    for ((name, history), before) in keys.iter().zip(before) {
        let is_in_range = name.starts_with(prefix)
            && after.as_ref().is_none_or(|after| name > after)
            && page.next.as_ref().is_none_or(|next| *name <= next.name);
        let found = found.get(name.as_str()).copied();
        if !is_in_range {
            assert_eq!(found, None, "{name} is not in the range of {request:?}");
            continue;
        }
        let history = history.lock();
        let initial = (before == 0 && found.is_none()).then_some(&None);
        let mut possible = history.states.iter().skip(before.saturating_sub(1)).chain(initial);
        assert!(
            possible.any(|state| *state == found),
            "{name} is {found:?}, not one of {:?}: {request:?}",
            &history.states[before.saturating_sub(1)..]
        );
    }
}
