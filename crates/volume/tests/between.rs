//! Objects copied from one store to another, either of which fails now and then: what arrives is one version of what
//! was there, with all that it carries, or nothing does.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::ListUploads;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{Fault, FaultPlan, Faulty, MemoryStore, Operation, When, context};
use tradewind_core::{
    Address, Algorithm, Budget, Checksum, ChecksumScope, Classes, Metadata, ObjectInfo, ObjectStore,
    SystemClock, SystemHeaders, Tags,
};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_volume::{Carrier, Told, store_from};

const PART: u64 = 5 << 20;
/// In parts, one of them shorter.
const LARGE: u64 = 3 * PART + 7;

fn carrier() -> Arc<Carrier> {
    let plan = Plan { chunk_bytes: PART, requests: 2, ..Plan::default() };
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
        Self { from, source, to, destination, told: Arc::default() }
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
        store_from(&carrier(), (&source, &at("k")), (&destination, &at("copy")), size, told).await
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_changes_meanwhile() {
    let scene = Arc::new(Scene::new(FaultPlan::none(), FaultPlan::none()).await);
    // More parts than are read at a time.
    scene.lay(&pattern(8 * PART), StageRequest::default()).await;
    let (changing, is_changed) = (scene.clone(), AtomicBool::new(false));
    let newer = pattern(8 * PART + 1);
    let runtime = tokio::runtime::Handle::current();
    let told: Told = Arc::new(move |_| {
        if !is_changed.swap(true, Ordering::Relaxed) {
            let (scene, newer, runtime) = (changing.clone(), newer.clone(), runtime.clone());
            // Whoever is told of bytes may not wait, and does here.
            let changing = move || runtime.block_on(scene.lay(&newer, StageRequest::default()));
            std::thread::spawn(changing).join().unwrap();
        }
    });
    let failed = scene.copy_telling(None, told).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Conflict);
    assert_eq!(failed.message(), "\"k\" changed while it was read");
    assert!(scene.is_empty().await);
}
