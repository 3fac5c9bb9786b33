//! Copies between two stores with injected faults: the destination gets one version of the object with all its
//! metadata, or nothing.

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
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, context};
use tradewind_core::{
    Address, Algorithm, Budget, Checksum, ChecksumScope, Classes, ETag, Metadata, ObjectInfo, ObjectStore,
    SystemClock, SystemHeaders, Tags,
};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::upload_checkpoint::{CheckpointedPart, UploadState};
use tradewind_parallel::{OnProgress, TransferContext, UploadCheckpoint, copy_between_stores};

const PART: u64 = 5 << 20;
/// Four parts, the last one shorter.
const LARGE: u64 = 3 * PART + 7;

fn transfers() -> Arc<TransferContext> {
    let plan = Plan { initial_concurrency: 2, ..Plan::default().with_chunk_bytes(PART) };
    let delay = Duration::from_millis(1);
    let retries =
        RetryOptions { max_attempts: 4, first_delay: delay, max_delay: delay, ..RetryOptions::default() };
    Arc::new(TransferContext::new(plan, Budget::new(8 << 20), SystemClock::shared(), retries))
}

fn pattern(length: u64) -> Bytes {
    (0..length).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<u8>>().into()
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

/// Two stores with injected faults, and the stores below the faults.
struct Scene {
    from: Arc<dyn ObjectStore>,
    source: Arc<Faulty<dyn ObjectStore>>,
    to: Arc<dyn ObjectStore>,
    destination: Arc<Faulty<dyn ObjectStore>>,
    reported: Arc<AtomicI64>,
    checkpoint: Arc<MemoryCheckpoint>,
    has_checkpoint: bool,
}

/// A checkpoint in memory.
#[derive(Default)]
struct MemoryCheckpoint(Mutex<Option<UploadState>>);

impl UploadCheckpoint for MemoryCheckpoint {
    fn load(&self) -> Option<UploadState> {
        self.0.lock().unwrap().clone()
    }

    fn start(&self, state: &UploadState) -> bool {
        *self.0.lock().unwrap() = Some(state.clone());
        true
    }

    fn part_stored(&self, part: &CheckpointedPart) {
        self.0.lock().unwrap().as_mut().unwrap().parts.push(part.clone());
    }

    fn clear(&self) {
        assert!(self.0.lock().unwrap().take().is_some());
    }
}

impl Scene {
    async fn new(source: FaultPlan, destination: FaultPlan) -> Self {
        let inner = || MemoryStore::new(SystemClock::shared()) as Arc<dyn ObjectStore>;
        let (from, to) = (inner(), inner());
        for store in [&from, &to] {
            store.create_bucket(&context(), &address("k").bucket).await.unwrap();
        }
        let source = Faulty::new(from.clone(), source);
        let destination = Faulty::new(to.clone(), destination);
        let (reported, checkpoint) = (Arc::default(), Arc::default());
        Self { from, source, to, destination, reported, checkpoint, has_checkpoint: false }
    }

    async fn put_source(&self, bytes: &Bytes, request: StageRequest) {
        let mut staged = self.from.stage(&context(), &address("k"), request).await.unwrap();
        staged.write(bytes.clone()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn copy(&self, size: Option<u64>) -> Result<Committed> {
        let reported = self.reported.clone();
        let reported: OnProgress = Arc::new(move |bytes| {
            reported.fetch_add(bytes, Ordering::Relaxed);
        });
        self.copy_reporting(size, reported).await
    }

    async fn copy_reporting(&self, size: Option<u64>, reported: OnProgress) -> Result<Committed> {
        let source: Arc<dyn ObjectStore> = self.source.clone();
        let destination: Arc<dyn ObjectStore> = self.destination.clone();
        let checkpoint =
            Some(self.checkpoint.clone() as Arc<dyn UploadCheckpoint>).filter(|_| self.has_checkpoint);
        copy_between_stores(
            &transfers(),
            (&source, &address("k")),
            (&destination, &address("copy")),
            size,
            reported,
            checkpoint,
        )
        .await
        .map(|copied| copied.committed)
    }

    async fn copied(&self) -> (ObjectInfo, Bytes) {
        let found = self.to.get(&context(), &address("copy"), GetRequest::default()).await.unwrap();
        (found.info, found.body.collect().await.unwrap())
    }

    /// Returns true if the destination has neither an object nor an upload.
    async fn is_empty(&self) -> bool {
        let uploads = ListUploads { limit: 10, ..ListUploads::default() };
        let uploads = self.to.list_uploads(&context(), &address("k").bucket, &uploads).await.unwrap();
        let found = self.to.head(&context(), &address("copy"), GetRequest::default()).await;
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
async fn copy_of_any_size_keeps_content_and_metadata() {
    for size in [0, 1, 1000, PART, 3 * PART - 1, 3 * PART, LARGE] {
        for known in [None, Some(size), Some(0)] {
            let scene = Scene::new(FaultPlan::none(), FaultPlan::none()).await;
            let bytes = pattern(size);
            scene.put_source(&bytes, StageRequest { metadata: metadata(), ..StageRequest::default() }).await;
            let committed = scene.copy(known).await.unwrap();
            let (info, copied) = scene.copied().await;
            assert!(copied == bytes && committed.size == size, "{size}, {known:?}");
            let mut expected = metadata();
            expected.headers.storage_class = None;
            assert_eq!(info.metadata, expected);
            assert_eq!(info.checksums, [Checksum::compute(Algorithm::Crc64Nvme, &bytes)]);
            assert_eq!(info.scope, ChecksumScope::FullObject);
            assert_eq!(scene.reported.load(Ordering::Relaxed), i64::try_from(size).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_keeps_the_checksum_algorithm_if_it_can_be_combined() {
    for (algorithm, size, expected) in [
        (Algorithm::Sha256, 1000, Algorithm::Sha256),
        (Algorithm::Crc32c, LARGE, Algorithm::Crc32c),
        (Algorithm::Sha256, LARGE, Algorithm::Crc64Nvme),
    ] {
        let scene = Scene::new(FaultPlan::none(), FaultPlan::none()).await;
        let bytes = pattern(size);
        scene
            .put_source(&bytes, StageRequest { algorithms: vec![algorithm], ..StageRequest::default() })
            .await;
        scene.copy(None).await.unwrap();
        let (info, _) = scene.copied().await;
        assert_eq!(info.checksums, [Checksum::compute(expected, &bytes)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_fault_repeats_only_its_part() {
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
            Some(operation) => FaultPlan::seeded(1).with_fault(operation, FaultSchedule::Nth(2), fault),
            None => FaultPlan::none(),
        };
        let scene = Scene::new(plan(source), plan(destination)).await;
        let bytes = pattern(LARGE);
        scene.put_source(&bytes, StageRequest::default()).await;
        scene.copy(None).await.unwrap();
        assert!(scene.copied().await.1 == bytes, "{source:?} {destination:?}");
        assert_eq!(scene.reported.load(Ordering::Relaxed), i64::try_from(LARGE).unwrap());
        let injected = source.map_or(0, |operation| scene.source.injected(operation))
            + destination.map_or(0, |operation| scene.destination.injected(operation));
        assert_eq!(injected, 1, "{source:?} {destination:?}");
        assert_eq!(scene.source.calls(Operation::Get), 5, "four parts, one of them twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corruption_in_transit_is_not_committed() {
    for size in [1000, LARGE] {
        let flip =
            FaultPlan::seeded(1).with_fault(Operation::Body, FaultSchedule::Always, Fault::Corrupt(500));
        let scene = Scene::new(flip, FaultPlan::none()).await;
        scene.put_source(&pattern(size), StageRequest::default()).await;
        let failed = scene.copy(None).await.unwrap_err();
        assert_eq!(failed.reason(), Reason::CorruptData, "{failed:?}");
        assert!(scene.is_empty().await);
        assert_eq!(scene.reported.load(Ordering::Relaxed).min(0), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_write_leaves_nothing_at_destination() {
    for (size, operation) in
        [(1000, Operation::Commit), (LARGE, Operation::CommitPart), (LARGE, Operation::CompleteUpload)]
    {
        let denied = FaultPlan::seeded(1).with_fault(
            operation,
            FaultSchedule::Always,
            Fault::FailBefore(Reason::AccessDenied),
        );
        let scene = Scene::new(FaultPlan::none(), denied).await;
        scene.put_source(&pattern(size), StageRequest::default()).await;
        assert_eq!(scene.copy(None).await.unwrap_err().reason(), Reason::AccessDenied);
        assert!(scene.is_empty().await, "{operation:?}");
    }
}

/// On one thread, so that nothing else runs while the source is replaced.
#[tokio::test]
async fn source_replaced_during_copy_is_a_conflict() {
    let scene = Arc::new(Scene::new(FaultPlan::none(), FaultPlan::none()).await);
    // More parts than are read concurrently.
    scene.put_source(&pattern(8 * PART), StageRequest::default()).await;
    let (changing, is_changed) = (scene.clone(), AtomicBool::new(false));
    let newer = pattern(8 * PART + 1);
    let reported: OnProgress = Arc::new(move |_| {
        if !is_changed.swap(true, Ordering::Relaxed) {
            // The callback must not wait; the memory store does not.
            changing
                .put_source(&newer, StageRequest::default())
                .now_or_never()
                .expect("the memory store never waits");
        }
    });
    let failed = scene.copy_reporting(None, reported).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Conflict);
    assert_eq!(failed.message(), "\"k\" changed while it was read");
    assert!(scene.is_empty().await);
}

/// A copy that was interrupted by an overloaded destination at the third part. Two parts are stored and checkpointed.
async fn interrupted(bytes: &Bytes) -> Scene {
    let busy = Fault::FailBefore(Reason::Overloaded);
    let plan = FaultPlan::seeded(1).with_fault(Operation::StagePart, FaultSchedule::From(3), busy);
    let mut scene = Scene::new(FaultPlan::none(), plan).await;
    scene.has_checkpoint = true;
    scene.put_source(bytes, StageRequest { metadata: metadata(), ..StageRequest::default() }).await;
    assert_eq!(scene.copy(None).await.unwrap_err().reason(), Reason::Overloaded);
    assert!(!scene.is_empty().await, "the upload remains in the store");
    assert_eq!(scene.checkpoint.load().unwrap().parts.len(), 2);
    scene.destination.set_plan(FaultPlan::none());
    scene.reported.store(0, Ordering::Relaxed);
    scene
}

impl Scene {
    /// Asserts that the copy completes with `reads` reads of the source and leaves nothing else at the destination.
    async fn assert_copied_with(&self, bytes: &Bytes, reads: u64) {
        let before = self.source.calls(Operation::Get);
        self.copy(None).await.unwrap();
        assert_eq!(self.source.calls(Operation::Get) - before, reads);
        assert_eq!(self.reported.load(Ordering::Relaxed), bytes.len() as i64);
        let (info, copied) = self.copied().await;
        assert!(copied == *bytes);
        assert_eq!(info.checksums, [Checksum::compute(Algorithm::Crc64Nvme, bytes)]);
        let uploads = ListUploads { limit: 10, ..ListUploads::default() };
        let uploads = self.to.list_uploads(&context(), &address("k").bucket, &uploads).await.unwrap();
        assert!(uploads.entries.is_empty());
        assert_eq!(self.checkpoint.load(), None, "the checkpoint is cleared");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_copy_resumes() {
    let bytes = pattern(LARGE);
    let scene = interrupted(&bytes).await;
    scene.assert_copied_with(&bytes, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_that_differs_from_checkpoint_is_copied_again() {
    type Change = fn(&mut CheckpointedPart);
    let changes: [Change; 3] = [
        |part| part.etag = ETag::from_tag("another"),
        |part| part.length -= 1,
        |part| part.checksum = Checksum::compute(Algorithm::Crc64Nvme, b"other bytes"),
    ];
    for change in changes {
        let bytes = pattern(LARGE);
        let scene = interrupted(&bytes).await;
        change(&mut scene.checkpoint.0.lock().unwrap().as_mut().unwrap().parts[0]);
        scene.assert_copied_with(&bytes, 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_source_version_restarts_the_copy() {
    let bytes = pattern(LARGE);
    let scene = interrupted(&bytes).await;
    let newer = pattern(LARGE).slice(1..);
    scene.put_source(&newer, StageRequest::default()).await;
    scene.assert_copied_with(&newer, 4).await;
}

/// A resumed copy sets the tags explicitly, because the store may not keep those of the upload. Changed tags start a
/// new copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_copy_has_the_current_tags_of_the_source() {
    let bytes = pattern(LARGE);
    let scene = interrupted(&bytes).await;
    scene.copy(None).await.unwrap();
    assert_eq!(scene.destination.calls(Operation::SetTags), 1);
    assert_eq!(scene.copied().await.0.metadata.tags, metadata().tags);
    let scene = interrupted(&bytes).await;
    let newer = Tags::new(vec![("c".to_owned(), "d".to_owned())]).unwrap();
    scene.from.set_tags(&context(), &address("k"), newer.clone()).await.unwrap();
    scene.assert_copied_with(&bytes, 4).await;
    assert_eq!(scene.copied().await.0.metadata.tags, newer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_of_shrunken_source_aborts_the_old_upload() {
    let scene = interrupted(&pattern(LARGE)).await;
    let small = pattern(1000);
    scene.put_source(&small, StageRequest::default()).await;
    scene.assert_copied_with(&small, 1).await;
}

/// If the source cannot be inspected, the checkpointed upload may still be valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inconclusive_source_error_keeps_the_upload() {
    let bytes = pattern(LARGE);
    let scene = interrupted(&bytes).await;
    let refused = Fault::FailBefore(Reason::InvalidRequest);
    scene.source.set_plan(FaultPlan::seeded(1).with_fault(Operation::Head, FaultSchedule::Always, refused));
    assert_eq!(scene.copy(None).await.unwrap_err().reason(), Reason::InvalidRequest);
    assert!(!scene.is_empty().await);
    scene.source.set_plan(FaultPlan::none());
    scene.assert_copied_with(&bytes, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_upload_restarts_the_copy() {
    let bytes = pattern(LARGE);
    let scene = interrupted(&bytes).await;
    let upload = scene.checkpoint.load().unwrap().upload;
    scene.to.abort_upload(&context(), &address("copy"), &upload).await.unwrap();
    scene.assert_copied_with(&bytes, 4).await;
}

/// A permanent failure cannot be resumed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_failure_aborts_a_checkpointed_upload() {
    let flip = FaultPlan::seeded(1).with_fault(Operation::Body, FaultSchedule::Always, Fault::Corrupt(500));
    let mut scene = Scene::new(flip, FaultPlan::none()).await;
    scene.has_checkpoint = true;
    scene.put_source(&pattern(LARGE), StageRequest::default()).await;
    assert_eq!(scene.copy(None).await.unwrap_err().reason(), Reason::CorruptData);
    assert!(scene.is_empty().await);
}
