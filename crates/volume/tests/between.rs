//! Objects copied from one store to another, either of which fails now and then: what arrives is one version of what
//! was there, with all that it carries, or nothing does.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::ListUploads;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{Fault, FaultPlan, Faulty, MemoryStore, Operation, When, context};
use tradewind_core::{
    Address, Algorithm, Budget, Checksum, ChecksumScope, Classes, ETag, Metadata, ObjectInfo, ObjectStore,
    SystemClock, SystemHeaders, Tags,
};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_volume::memory::{Begun, CopiedPart};
use tradewind_volume::{Carrier, Memory, Told, store_from};

const PART: u64 = 5 << 20;
/// In parts, one of them shorter.
const LARGE: u64 = 3 * PART + 7;

fn carrier() -> Arc<Carrier> {
    let plan = Plan { requests: 2, ..Plan::default().with_chunks(PART) };
    let delay = Duration::from_millis(1);
    let retries = RetryOptions { attempts: 4, first_delay: delay, most_delay: delay };
    Arc::new(Carrier::new(plan, Budget::new(8 << 20), SystemClock::shared(), retries))
}

fn pattern(length: u64) -> Bytes {
    (0..length).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<u8>>().into()
}

fn at(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

/// Two stores, of which each may fail, and what lies below the second one's faults.
struct Scene {
    from: Arc<dyn ObjectStore>,
    source: Arc<Faulty<dyn ObjectStore>>,
    to: Arc<dyn ObjectStore>,
    destination: Arc<Faulty<dyn ObjectStore>>,
    told: Arc<AtomicI64>,
    memory: Arc<Remembered>,
    remembers: bool,
}

/// A memory that forgets nothing.
#[derive(Default)]
struct Remembered(Mutex<Option<Begun>>);

impl Memory for Remembered {
    fn earlier(&self) -> Option<Begun> {
        self.0.lock().unwrap().clone()
    }

    fn begun(&self, begun: &Begun) -> bool {
        *self.0.lock().unwrap() = Some(begun.clone());
        true
    }

    fn stored(&self, part: &CopiedPart) {
        self.0.lock().unwrap().as_mut().unwrap().parts.push(part.clone());
    }

    fn over(&self) {
        assert!(self.0.lock().unwrap().take().is_some());
    }
}

impl Scene {
    async fn new(source: FaultPlan, destination: FaultPlan) -> Self {
        let below = || MemoryStore::new(SystemClock::shared()) as Arc<dyn ObjectStore>;
        let (from, to) = (below(), below());
        for store in [&from, &to] {
            store.create_bucket(&context(), &at("k").bucket).await.unwrap();
        }
        let source = Faulty::new(from.clone(), source);
        let destination = Faulty::new(to.clone(), destination);
        let (told, memory) = (Arc::default(), Arc::default());
        Self { from, source, to, destination, told, memory, remembers: false }
    }

    async fn lay(&self, bytes: &Bytes, request: StageRequest) {
        let mut staged = self.from.stage(&context(), &at("k"), request).await.unwrap();
        staged.write(bytes.clone()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn copy(&self, size: Option<u64>) -> Result<Committed> {
        let told = self.told.clone();
        let told: Told = Arc::new(move |bytes| {
            told.fetch_add(bytes, Ordering::Relaxed);
        });
        self.copy_telling(size, told).await
    }

    async fn copy_telling(&self, size: Option<u64>, told: Told) -> Result<Committed> {
        let source: Arc<dyn ObjectStore> = self.source.clone();
        let destination: Arc<dyn ObjectStore> = self.destination.clone();
        let memory = Some(self.memory.clone() as Arc<dyn Memory>).filter(|_| self.remembers);
        store_from(&carrier(), (&source, &at("k")), (&destination, &at("copy")), size, told, memory).await
    }

    async fn copied(&self) -> (ObjectInfo, Bytes) {
        let found = self.to.get(&context(), &at("copy"), GetRequest::default()).await.unwrap();
        (found.info, found.body.collect().await.unwrap())
    }

    /// Neither an object nor an upload.
    async fn is_empty(&self) -> bool {
        let uploads = ListUploads { limit: 10, ..ListUploads::default() };
        let uploads = self.to.list_uploads(&context(), &at("k").bucket, &uploads).await.unwrap();
        let found = self.to.head(&context(), &at("copy"), GetRequest::default()).await;
        uploads.entries.is_empty() && found.is_err_and(|e| e.reason() == Reason::NoSuchKey)
    }
}

fn metadata() -> Metadata {
    Metadata {
        headers: SystemHeaders {
            content_type: Some("text/plain".to_owned()),
            cache_control: Some("no-store".to_owned()),
            storage_class: Some("GLACIER".to_owned()),
            ..SystemHeaders::default()
        },
        user: vec![("colour".to_owned(), "green".to_owned())],
        tags: Tags::new(vec![("a".to_owned(), "b".to_owned())]).unwrap(),
        classes: Classes { object: Classes::parse_object("7").ok(), ..Classes::default() },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_size_with_all_that_it_carries() {
    for size in [0, 1, 1000, PART, 3 * PART - 1, 3 * PART, LARGE] {
        for known in [None, Some(size), Some(0)] {
            let scene = Scene::new(FaultPlan::none(), FaultPlan::none()).await;
            let bytes = pattern(size);
            scene.lay(&bytes, StageRequest { metadata: metadata(), ..StageRequest::default() }).await;
            let committed = scene.copy(known).await.unwrap();
            let (info, copied) = scene.copied().await;
            assert!(copied == bytes && committed.size == size, "{size}, {known:?}");
            let mut expected = metadata();
            expected.headers.storage_class = None;
            assert_eq!(info.metadata, expected);
            assert_eq!(info.checksums, [Checksum::of(Algorithm::Crc64Nvme, &bytes)]);
            assert_eq!(info.scope, ChecksumScope::FullObject);
            assert_eq!(scene.told.load(Ordering::Relaxed), i64::try_from(size).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checksum_stays_what_it_is_where_it_can() {
    for (algorithm, size, kept) in [
        (Algorithm::Sha256, 1000, Algorithm::Sha256),
        (Algorithm::Crc32c, LARGE, Algorithm::Crc32c),
        (Algorithm::Sha256, LARGE, Algorithm::Crc64Nvme),
    ] {
        let scene = Scene::new(FaultPlan::none(), FaultPlan::none()).await;
        let bytes = pattern(size);
        scene.lay(&bytes, StageRequest { algorithms: vec![algorithm], ..StageRequest::default() }).await;
        scene.copy(None).await.unwrap();
        let (info, _) = scene.copied().await;
        assert_eq!(info.checksums, [Checksum::of(kept, &bytes)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_costs_its_part() {
    let busy = Fault::FailBefore(Reason::Overloaded);
    let cases: [(Option<Operation>, Option<Operation>, Fault); 6] = [
        (Some(Operation::Get), None, busy),
        (Some(Operation::Body), None, Fault::FailAt(1000, Reason::Io)),
        (Some(Operation::Body), None, Fault::Truncate(1000)),
        (None, Some(Operation::StagePart), busy),
        (None, Some(Operation::Write), busy),
        (None, Some(Operation::CommitPart), busy),
    ];
    for (source, destination, fault) in cases {
        let plan = |operation: Option<Operation>| match operation {
            Some(operation) => FaultPlan::seeded(1).on(operation, When::Nth(2), fault),
            None => FaultPlan::none(),
        };
        let scene = Scene::new(plan(source), plan(destination)).await;
        let bytes = pattern(LARGE);
        scene.lay(&bytes, StageRequest::default()).await;
        scene.copy(None).await.unwrap();
        assert!(scene.copied().await.1 == bytes, "{source:?} {destination:?}");
        assert_eq!(scene.told.load(Ordering::Relaxed), i64::try_from(LARGE).unwrap());
        let injected = source.map_or(0, |operation| scene.source.injected(operation))
            + destination.map_or(0, |operation| scene.destination.injected(operation));
        assert_eq!(injected, 1, "{source:?} {destination:?}");
        assert_eq!(scene.source.calls(Operation::Get), 5, "four parts, one of them twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_on_the_way_is_not_committed() {
    for size in [1000, LARGE] {
        let flip = FaultPlan::seeded(1).on(Operation::Body, When::Always, Fault::Corrupt(500));
        let scene = Scene::new(flip, FaultPlan::none()).await;
        scene.lay(&pattern(size), StageRequest::default()).await;
        let failed = scene.copy(None).await.unwrap_err();
        assert_eq!(failed.reason(), Reason::CorruptData, "{failed:?}");
        assert!(scene.is_empty().await);
        assert_eq!(scene.told.load(Ordering::Relaxed).min(0), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_write_leaves_nothing() {
    for (size, operation) in
        [(1000, Operation::Commit), (LARGE, Operation::CommitPart), (LARGE, Operation::CompleteUpload)]
    {
        let denied =
            FaultPlan::seeded(1).on(operation, When::Always, Fault::FailBefore(Reason::AccessDenied));
        let scene = Scene::new(FaultPlan::none(), denied).await;
        scene.lay(&pattern(size), StageRequest::default()).await;
        assert_eq!(scene.copy(None).await.unwrap_err().reason(), Reason::AccessDenied);
        assert!(scene.is_empty().await, "{operation:?}");
    }
}

/// One thread: while the source is changed nothing else goes on.
#[tokio::test]
async fn a_source_that_changes_meanwhile() {
    let scene = Arc::new(Scene::new(FaultPlan::none(), FaultPlan::none()).await);
    // More parts than are read at a time.
    scene.lay(&pattern(8 * PART), StageRequest::default()).await;
    let (changing, is_changed) = (scene.clone(), AtomicBool::new(false));
    let newer = pattern(8 * PART + 1);
    let told: Told = Arc::new(move |_| {
        if !is_changed.swap(true, Ordering::Relaxed) {
            // Whoever is told of bytes may not wait, and does here.
            changing.lay(&newer, StageRequest::default()).now_or_never().expect("memory waits for nobody");
        }
    });
    let failed = scene.copy_telling(None, told).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Conflict);
    assert_eq!(failed.message(), "\"k\" changed while it was read");
    assert!(scene.is_empty().await);
}

/// A copy whose destination was overloaded when the third part came: two parts are there, and it is remembered.
async fn cut_off(bytes: &Bytes) -> Scene {
    let busy = Fault::FailBefore(Reason::Overloaded);
    let plan = FaultPlan::seeded(1).on(Operation::StagePart, When::From(3), busy);
    let mut scene = Scene::new(FaultPlan::none(), plan).await;
    scene.remembers = true;
    scene.lay(bytes, StageRequest { metadata: metadata(), ..StageRequest::default() }).await;
    assert_eq!(scene.copy(None).await.unwrap_err().reason(), Reason::Overloaded);
    assert!(!scene.is_empty().await, "the upload stays");
    assert_eq!(scene.memory.earlier().unwrap().parts.len(), 2);
    scene.destination.follow(FaultPlan::none());
    scene.told.store(0, Ordering::Relaxed);
    scene
}

impl Scene {
    /// It is copied with so many reads of the source; nothing else is left at the destination.
    async fn is_copied_with(&self, bytes: &Bytes, reads: u64) {
        let before = self.source.calls(Operation::Get);
        self.copy(None).await.unwrap();
        assert_eq!(self.source.calls(Operation::Get) - before, reads);
        assert_eq!(self.told.load(Ordering::Relaxed), bytes.len() as i64);
        let (info, copied) = self.copied().await;
        assert!(copied == *bytes);
        assert_eq!(info.checksums, [Checksum::of(Algorithm::Crc64Nvme, bytes)]);
        let uploads = ListUploads { limit: 10, ..ListUploads::default() };
        let uploads = self.to.list_uploads(&context(), &at("k").bucket, &uploads).await.unwrap();
        assert!(uploads.entries.is_empty());
        assert_eq!(self.memory.earlier(), None, "nobody goes on with it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cut_off_goes_on() {
    let bytes = pattern(LARGE);
    let scene = cut_off(&bytes).await;
    scene.is_copied_with(&bytes, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_is_not_the_one_that_was_stored_is_copied_again() {
    type Change = fn(&mut CopiedPart);
    let changes: [Change; 3] = [
        |part| part.etag = ETag::from_tag("another"),
        |part| part.length -= 1,
        |part| part.checksum = Checksum::of(Algorithm::Crc64Nvme, b"other bytes"),
    ];
    for change in changes {
        let bytes = pattern(LARGE);
        let scene = cut_off(&bytes).await;
        change(&mut scene.memory.0.lock().unwrap().as_mut().unwrap().parts[0]);
        scene.is_copied_with(&bytes, 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_begins_anew() {
    let bytes = pattern(LARGE);
    let scene = cut_off(&bytes).await;
    let newer = pattern(LARGE).slice(1..);
    scene.lay(&newer, StageRequest::default()).await;
    scene.is_copied_with(&newer, 4).await;
}

/// A store that forgets the tags of an upload gets them, too, and no others than there are by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_are_those_of_the_source() {
    let bytes = pattern(LARGE);
    let scene = cut_off(&bytes).await;
    scene.copy(None).await.unwrap();
    assert_eq!(scene.destination.calls(Operation::SetTags), 1);
    assert_eq!(scene.copied().await.0.metadata.tags, metadata().tags);
    let scene = cut_off(&bytes).await;
    let newer = Tags::new(vec![("c".to_owned(), "d".to_owned())]).unwrap();
    scene.from.set_tags(&context(), &at("k"), newer.clone()).await.unwrap();
    scene.is_copied_with(&bytes, 4).await;
    assert_eq!(scene.copied().await.0.metadata.tags, newer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_became_small_leaves_no_upload() {
    let scene = cut_off(&pattern(LARGE)).await;
    let small = pattern(1000);
    scene.lay(&small, StageRequest::default()).await;
    scene.is_copied_with(&small, 1).await;
}

/// Where the source cannot be looked at, nothing is known of the copy that was begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_says_nothing_changes_nothing() {
    let bytes = pattern(LARGE);
    let scene = cut_off(&bytes).await;
    let refused = Fault::FailBefore(Reason::InvalidRequest);
    scene.source.follow(FaultPlan::seeded(1).on(Operation::Head, When::Always, refused));
    assert_eq!(scene.copy(None).await.unwrap_err().reason(), Reason::InvalidRequest);
    assert!(!scene.is_empty().await);
    scene.source.follow(FaultPlan::none());
    scene.is_copied_with(&bytes, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_is_gone_begins_anew() {
    let bytes = pattern(LARGE);
    let scene = cut_off(&bytes).await;
    let upload = scene.memory.earlier().unwrap().upload;
    scene.to.abort_upload(&context(), &at("copy"), &upload).await.unwrap();
    scene.is_copied_with(&bytes, 4).await;
}

/// Nobody goes on with what can never be done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_remembered_is_given_up_where_it_is_of_no_use() {
    let flip = FaultPlan::seeded(1).on(Operation::Body, When::Always, Fault::Corrupt(500));
    let mut scene = Scene::new(flip, FaultPlan::none()).await;
    scene.remembers = true;
    scene.lay(&pattern(LARGE), StageRequest::default()).await;
    assert_eq!(scene.copy(None).await.unwrap_err().reason(), Reason::CorruptData);
    assert!(scene.is_empty().await);
}
