//! Uploads and downloads with injected faults: the destination gets exactly the bytes of the source, or nothing.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{ListUploads, UploadId};
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyRequest, ETagForm, StageRequest};
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, context};
use tradewind_core::{
    Address, Algorithm, Budget, Checksum, Metadata, ObjectInfo, ObjectStore, Precondition, ReadConditions,
    SystemClock,
};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::{
    Fetch, Sink, TransferContext, UploadSource, copy_within_store, store_object, store_stream,
};

const CHUNK: u64 = 64 << 10;
const PART: u64 = 5 << 20;

fn transfers(chunk_bytes: u64) -> Arc<TransferContext> {
    let plan = Plan {
        initial_concurrency: 4,
        stream_bytes: chunk_bytes.min(50_000),
        max_buffered_bytes: 4 * chunk_bytes,
        ..Plan::default().with_chunk_bytes(chunk_bytes)
    };
    let delay = Duration::from_millis(1);
    let retries =
        RetryOptions { max_attempts: 6, first_delay: delay, max_delay: delay, ..RetryOptions::default() };
    Arc::new(TransferContext::new(plan, Budget::new(64 << 20), SystemClock::shared(), retries))
}

fn pattern(length: u64) -> Bytes {
    (0..length).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<u8>>().into()
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

/// A store with these faults, and the store below them.
async fn faulty(plan: FaultPlan) -> (Arc<dyn ObjectStore>, Arc<dyn ObjectStore>) {
    let inner: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
    inner.create_bucket(&context(), &address("k").bucket).await.unwrap();
    (Faulty::new(inner.clone(), plan), inner)
}

async fn put(store: &Arc<dyn ObjectStore>, key: &str, bytes: &Bytes) {
    let mut staged = store.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
    staged.write(bytes.clone()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

async fn read(store: &Arc<dyn ObjectStore>, key: &str) -> Result<Bytes> {
    store.get(&context(), &address(key), Default::default()).await?.body.collect().await
}

#[derive(Default)]
struct MemorySink {
    bytes: Mutex<Vec<u8>>,
    fetched: AtomicU64,
    held: Vec<(u64, u64)>,
}

impl Sink for MemorySink {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut all = self.bytes.lock().unwrap();
        let end = offset as usize + bytes.len();
        if all.len() < end {
            all.resize(end, 0);
        }
        all[offset as usize..end].copy_from_slice(bytes);
        self.fetched.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn verify_stored_range(&self, offset: u64, length: u64) -> Result<Option<Checksum>> {
        if !self.held.contains(&(offset, length)) {
            return Ok(None);
        }
        let all = self.bytes.lock().unwrap();
        Ok(Some(Checksum::compute(Algorithm::Crc64Nvme, &all[offset as usize..(offset + length) as usize])))
    }

    fn stored_ranges(&self) -> Vec<(u64, u64)> {
        self.held.clone()
    }
}

async fn fetch_into(store: &Arc<dyn ObjectStore>, key: &str, sink: Arc<MemorySink>) -> Result<ObjectInfo> {
    let transfers = transfers(CHUNK);
    Fetch::open(&transfers, store, &address(key), None).await?.write_to(sink).await
}

async fn fetch(store: &Arc<dyn ObjectStore>, key: &str) -> Result<Vec<u8>> {
    let sink = Arc::new(MemorySink::default());
    fetch_into(store, key, sink.clone()).await?;
    let bytes = sink.bytes.lock().unwrap().clone();
    Ok(bytes)
}

async fn stream(store: &Arc<dyn ObjectStore>, key: &str) -> Result<Vec<u8>> {
    let transfers = transfers(CHUNK);
    let mut all = Vec::new();
    let take = |piece: Bytes| {
        all.extend_from_slice(&piece);
        std::future::ready(Ok(()))
    };
    Fetch::open(&transfers, store, &address(key), None).await?.write_in_order(take).await?;
    Ok(all)
}

const SIZES: [u64; 8] = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 10 * CHUNK + 7, 40 * CHUNK];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_of_any_size_is_fetched() {
    let (store, _) = faulty(FaultPlan::none()).await;
    for size in SIZES {
        let bytes = pattern(size);
        put(&store, "k", &bytes).await;
        assert!(fetch(&store, "k").await.unwrap() == bytes, "{size}");
        assert!(stream(&store, "k").await.unwrap() == bytes, "{size} in order");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_range_is_resumed() {
    for fault in [Fault::FailAt(1000, Reason::Io), Fault::FailAt(0, Reason::Io)] {
        let (store, inner) =
            faulty(FaultPlan::seeded(7).with_fault(Operation::Body, FaultSchedule::Probability(0.2), fault))
                .await;
        let bytes = pattern(20 * CHUNK + 5);
        put(&inner, "k", &bytes).await;
        assert!(fetch(&store, "k").await.unwrap() == bytes);
        assert!(stream(&store, "k").await.unwrap() == bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corruption_in_any_chunk_is_detected_and_fetched_again() {
    let bytes = pattern(10 * CHUNK);
    for fault in [Fault::Corrupt(500), Fault::Corrupt(0)] {
        let corrupted = async |schedule: FaultSchedule| {
            let (store, inner) = faulty(FaultPlan::none().with_fault(Operation::Body, schedule, fault)).await;
            put(&inner, "k", &bytes).await;
            store
        };
        let fetched = fetch(&corrupted(FaultSchedule::Nth(4)).await, "k").await;
        assert!(fetched.is_ok_and(|fetched| fetched == bytes), "one corrupt response");
        let fetched = fetch(&corrupted(FaultSchedule::From(4)).await, "k").await;
        assert_eq!(fetched.err().map(|e| e.reason()), Some(Reason::CorruptData));
        // Bytes in order are passed on before the checksum is known.
        let streamed = stream(&corrupted(FaultSchedule::Nth(4)).await, "k").await;
        assert_eq!(streamed.err().map(|e| e.reason()), Some(Reason::CorruptData));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_fails_if_the_store_keeps_failing() {
    let fault = Fault::FailBefore(Reason::Io);
    let (store, inner) =
        faulty(FaultPlan::none().with_fault(Operation::Get, FaultSchedule::From(3), fault)).await;
    put(&inner, "k", &pattern(20 * CHUNK)).await;
    assert_eq!(fetch(&store, "k").await.unwrap_err().reason(), Reason::Io);
    assert_eq!(fetch(&store, "absent").await.unwrap_err().reason(), Reason::Io);
    let (store, _) = faulty(FaultPlan::none()).await;
    assert_eq!(fetch(&store, "absent").await.unwrap_err().reason(), Reason::NoSuchKey);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_replaced_during_fetch_is_a_conflict() {
    let (store, _) = faulty(FaultPlan::none()).await;
    put(&store, "k", &pattern(20 * CHUNK)).await;
    let transfers = transfers(CHUNK);
    let fetch = Fetch::open(&transfers, &store, &address("k"), None).await.unwrap();
    put(&store, "k", &pattern(20 * CHUNK + 1)).await;
    let failed = fetch.write_to(Arc::new(MemorySink::default())).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Conflict, "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_chunks_are_not_fetched_again() {
    let (store, _) = faulty(FaultPlan::none()).await;
    let bytes = pattern(10 * CHUNK);
    put(&store, "k", &bytes).await;
    let held = vec![(2 * CHUNK, CHUNK), (9 * CHUNK, CHUNK)];
    let sink = MemorySink { bytes: Mutex::new(bytes.to_vec()), held: held.clone(), ..MemorySink::default() };
    let sink = Arc::new(sink);
    fetch_into(&store, "k", sink.clone()).await.unwrap();
    assert_eq!(sink.fetched.load(Ordering::Relaxed), 8 * CHUNK);
    // Held chunks of another range size: three quarters of a chunk, one of them across the end of the first range.
    let others: Vec<_> = (1..12).map(|n| (n * CHUNK * 3 / 4, CHUNK * 3 / 4)).collect();
    let sink = MemorySink { bytes: Mutex::new(bytes.to_vec()), held: others, ..MemorySink::default() };
    let sink = Arc::new(sink);
    fetch_into(&store, "k", sink.clone()).await.unwrap();
    assert_eq!(sink.fetched.load(Ordering::Relaxed), CHUNK + CHUNK / 2 + CHUNK);
    // A damaged chunk is detected at the end, and all are fetched again.
    let mut damaged = bytes.to_vec();
    damaged[2 * CHUNK as usize] ^= 1;
    let sink = Arc::new(MemorySink { bytes: Mutex::new(damaged), held, ..MemorySink::default() });
    fetch_into(&store, "k", sink.clone()).await.unwrap();
    assert!(*sink.bytes.lock().unwrap() == bytes);
}

/// A source that counts the bytes sent.
struct CountingSource {
    bytes: Bytes,
    sent: AtomicI64,
    earlier: Option<(UploadId, u64)>,
    is_persistent: bool,
    changes: bool,
}

impl CountingSource {
    fn new(bytes: &Bytes) -> Self {
        Self {
            bytes: bytes.clone(),
            sent: AtomicI64::new(0),
            earlier: None,
            is_persistent: false,
            changes: false,
        }
    }
}

impl UploadSource for CountingSource {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let at = offset as usize;
        buffer.copy_from_slice(&self.bytes[at..at + buffer.len()]);
        Ok(())
    }

    fn report_sent(&self, bytes: i64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    fn check_unchanged(&self) -> Result<()> {
        if self.changes { Err(Error::new(Reason::Conflict, "the source changed")) } else { Ok(()) }
    }

    fn resumable_upload(&self) -> Option<(UploadId, u64)> {
        self.earlier.clone()
    }

    fn upload_started(&self, _: &UploadId, _: u64) -> bool {
        self.is_persistent
    }
}

async fn uploads(store: &Arc<dyn ObjectStore>) -> Vec<UploadId> {
    let request = ListUploads { limit: 10, ..ListUploads::default() };
    let page = store.list_uploads(&context(), &address("k").bucket, &request).await.unwrap();
    let id = |entry| match entry {
        tradewind_core::listing::ListEntry::Key(_, upload) => {
            let upload: tradewind_core::multipart::UploadInfo = upload;
            upload.id
        }
        tradewind_core::listing::ListEntry::CommonPrefix(_) => panic!("the listing has no delimiter"),
    };
    page.entries.into_iter().map(id).collect()
}

async fn send(to: &Arc<dyn ObjectStore>, source: Arc<CountingSource>) -> Result<u64> {
    let size = source.bytes.len() as u64;
    let stored =
        store_object(&transfers(PART), to, &address("k"), source.clone(), size, Metadata::default()).await?;
    assert_eq!(source.sent.load(Ordering::Relaxed), size as i64, "each byte is reported once");
    Ok(stored.size)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_of_any_size_is_stored() {
    let (to, _) = faulty(FaultPlan::none()).await;
    for size in [0, 1, 128 << 10, 300_000, PART, 3 * PART - 1, 3 * PART, 4 * PART + 3] {
        let bytes = pattern(size);
        assert_eq!(send(&to, Arc::new(CountingSource::new(&bytes))).await.unwrap(), size);
        assert!(read(&to, "k").await.unwrap() == bytes, "{size}");
    }
    assert!(uploads(&to).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_fault_during_upload_is_retried() {
    let faults = [
        (Operation::StagePart, Fault::FailBefore(Reason::Io)),
        (Operation::Write, Fault::FailBefore(Reason::Io)),
        (Operation::CommitPart, Fault::FailAfter(Reason::Io)),
        (Operation::CommitPart, Fault::FailBefore(Reason::Overloaded)),
    ];
    for (operation, fault) in faults {
        let (to, inner) = faulty(FaultPlan::none().with_fault(operation, FaultSchedule::Nth(2), fault)).await;
        let bytes = pattern(4 * PART + 3);
        send(&to, Arc::new(CountingSource::new(&bytes))).await.unwrap();
        assert!(read(&inner, "k").await.unwrap() == bytes, "{operation:?} {fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_upload_is_aborted_unless_resumable() {
    let down = || {
        FaultPlan::none().with_fault(
            Operation::CommitPart,
            FaultSchedule::From(2),
            Fault::FailBefore(Reason::Io),
        )
    };
    let bytes = pattern(4 * PART);
    let (to, inner) = faulty(down()).await;
    assert_eq!(send(&to, Arc::new(CountingSource::new(&bytes))).await.unwrap_err().reason(), Reason::Io);
    assert!(uploads(&inner).await.is_empty());

    let never = Fault::FailBefore(Reason::Io);
    let (to, inner) =
        faulty(FaultPlan::none().with_fault(Operation::CompleteUpload, FaultSchedule::Always, never)).await;
    let persistent = CountingSource { is_persistent: true, ..CountingSource::new(&bytes) };
    assert_eq!(send(&to, Arc::new(persistent)).await.unwrap_err().reason(), Reason::Io);
    let left = uploads(&inner).await;
    assert_eq!(left.len(), 1);
    // The next attempt finds all parts.
    let earlier = Some((left[0].clone(), PART));
    let source = Arc::new(CountingSource { earlier, ..CountingSource::new(&bytes) });
    let size = bytes.len() as u64;
    store_object(&transfers(PART), &inner, &address("k"), source.clone(), size, Metadata::default())
        .await
        .unwrap();
    assert_eq!(source.sent.load(Ordering::Relaxed), 0);
    assert!(read(&inner, "k").await.unwrap() == bytes && uploads(&inner).await.is_empty());

    // An upload that no longer exists is replaced. A source that changes fails with a conflict.
    let earlier = Some((UploadId("gone".to_owned()), PART));
    send(&inner, Arc::new(CountingSource { earlier, ..CountingSource::new(&bytes) })).await.unwrap();
    let changing = CountingSource { changes: true, is_persistent: true, ..CountingSource::new(&bytes) };
    assert_eq!(send(&inner, Arc::new(changing)).await.unwrap_err().reason(), Reason::Conflict);
    assert!(uploads(&inner).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_upload_resends_changed_parts() {
    let (to, inner) = faulty(FaultPlan::none().with_fault(
        Operation::CompleteUpload,
        FaultSchedule::Always,
        Fault::FailBefore(Reason::Io),
    ))
    .await;
    let mut bytes = pattern(4 * PART).to_vec();
    let persistent =
        CountingSource { is_persistent: true, ..CountingSource::new(&Bytes::from(bytes.clone())) };
    send(&to, Arc::new(persistent)).await.unwrap_err();
    bytes[PART as usize + 1] ^= 1;
    let bytes = Bytes::from(bytes);
    let earlier = Some((uploads(&inner).await[0].clone(), PART));
    let source = Arc::new(CountingSource { earlier, ..CountingSource::new(&bytes) });
    let size = bytes.len() as u64;
    store_object(&transfers(PART), &inner, &address("k"), source.clone(), size, Metadata::default())
        .await
        .unwrap();
    assert_eq!(source.sent.load(Ordering::Relaxed), PART as i64, "one part differs");
    assert!(read(&inner, "k").await.unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_of_any_size_is_stored_or_aborted() {
    let (to, _) = faulty(FaultPlan::none()).await;
    for size in [0, 1, PART - 1, PART, PART + 1, 4 * PART + 3] {
        let bytes = pattern(size);
        let pieces: Vec<Result<Bytes>> =
            bytes.chunks(700_001).map(|piece| Ok(bytes.slice_ref(piece))).collect();
        let pieces = futures::stream::iter(pieces);
        let stored =
            store_stream(&transfers(PART), &to, &address("k"), pieces, Metadata::default(), None).await;
        assert_eq!(stored.unwrap().size, size);
        assert!(read(&to, "k").await.unwrap() == bytes, "{size}");
    }
    let broken = [Ok(pattern(2 * PART)), Err(Error::new(Reason::Io, "the stream failed"))];
    let broken = futures::stream::iter(broken);
    let failed = store_stream(&transfers(PART), &to, &address("x"), broken, Metadata::default(), None).await;
    assert_eq!(failed.unwrap_err().reason(), Reason::Io);
    assert!(uploads(&to).await.is_empty());
    assert_eq!(read(&to, "x").await.unwrap_err().reason(), Reason::NoSuchKey);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_side_copy_is_retried() {
    let (to, inner) = faulty(FaultPlan::none().with_fault(
        Operation::Copy,
        FaultSchedule::Nth(1),
        Fault::FailAfter(Reason::Io),
    ))
    .await;
    put(&inner, "from", &pattern(1000)).await;
    let request = CopyRequest {
        source: address("from"),
        source_conditions: ReadConditions::default(),
        destination: address("to"),
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::default(),
    };
    copy_within_store(&transfers(CHUNK), &to, request).await.unwrap();
    assert!(read(&inner, "to").await.unwrap() == pattern(1000));
}
