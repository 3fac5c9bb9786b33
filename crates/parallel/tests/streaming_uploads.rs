//! Streaming uploads with rollback and checkpoints, and range reads of the stored objects.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::ListUploads;
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, context};
use tradewind_core::{Address, Budget, Checksum, Metadata, ObjectStore, SystemClock};
use tradewind_model::plan::{MIN_PART_BYTES, Plan};
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::upload_checkpoint::{CheckpointedPart, UploadState};
use tradewind_parallel::{RangeReader, Sink, StreamingUpload, TransferContext, UploadCheckpoint as _};

fn transfers() -> Arc<TransferContext> {
    let plan = Plan {
        initial_concurrency: 4,
        stream_bytes: 30_000,
        max_buffered_bytes: 2 * MIN_PART_BYTES,
        ..Plan::default().with_chunk_bytes(100_000)
    };
    let delay = Duration::from_millis(1);
    let retries =
        RetryOptions { max_attempts: 8, first_delay: delay, max_delay: delay, ..RetryOptions::default() };
    Arc::new(TransferContext::new(plan, Budget::new(8 << 20), SystemClock::shared(), retries))
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let piece: Vec<u8> =
        (0..999).map(|n: u64| ((n + seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    piece.into_iter().cycle().take(length).collect()
}

fn address() -> Address {
    Address::parse("bucket", "key").unwrap()
}

async fn store(plan: FaultPlan) -> Arc<dyn ObjectStore> {
    let inner: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
    inner.create_bucket(&context(), &address().bucket).await.unwrap();
    Faulty::new(inner, plan)
}

async fn read(store: &Arc<dyn ObjectStore>) -> Result<Bytes> {
    store.get(&context(), &address(), Default::default()).await?.body.collect().await
}

async fn uploads(store: &Arc<dyn ObjectStore>) -> usize {
    let request = ListUploads { limit: 10, ..ListUploads::default() };
    store.list_uploads(&context(), &address().bucket, &request).await.unwrap().entries.len()
}

/// Bytes rolled back are not in the object, however much of them was sent. Bytes written afterwards are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolled_back_bytes_are_not_in_the_object() {
    let part = usize::try_from(MIN_PART_BYTES).unwrap();
    for before in [0, 1000, part, part + 1] {
        for discarded in [0, 1000, 2 * part + 5] {
            for after in [0, part] {
                let store = store(FaultPlan::none()).await;
                let mut sequence =
                    StreamingUpload::new(&transfers(), &store, &address(), Metadata::default());
                sequence.write(&pattern(before, 1)).await.unwrap();
                for seed in [2, 3] {
                    sequence.mark();
                    sequence.write(&pattern(discarded, seed)).await.unwrap();
                    sequence.roll_back();
                }
                assert_eq!(sequence.written(), before as u64);
                sequence.mark();
                sequence.write(&pattern(after, 4)).await.unwrap();
                sequence.clear_mark();
                sequence.roll_back();
                sequence.finish().await.unwrap();
                let expected = [pattern(before, 1), pattern(after, 4)].concat();
                assert!(
                    read(&store).await.unwrap() == expected,
                    "{before}, {discarded} rolled back, {after}"
                );
                assert_eq!(uploads(&store).await, 0);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_upload_leaves_nothing() {
    let part = usize::try_from(MIN_PART_BYTES).unwrap();
    let fault = Fault::FailBefore(Reason::AccessDenied);
    let store = store(FaultPlan::none().with_fault(Operation::StagePart, FaultSchedule::Nth(2), fault)).await;
    let mut sequence = StreamingUpload::new(&transfers(), &store, &address(), Metadata::default());
    let written = sequence.write(&pattern(5 * part, 1)).await;
    let failed = match written {
        Ok(()) => sequence.finish().await.map(drop),
        failed => {
            sequence.fail(failed.as_ref().unwrap_err()).await;
            failed
        }
    };
    assert_eq!(failed.unwrap_err().reason(), Reason::AccessDenied);
    assert_eq!(uploads(&store).await, 0);
    assert_eq!(read(&store).await.unwrap_err().reason(), Reason::NoSuchKey);
}

/// A checkpoint in memory.
#[derive(Default)]
struct MemoryCheckpoint(Mutex<Option<UploadState>>);

impl tradewind_parallel::UploadCheckpoint for MemoryCheckpoint {
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
        self.0.lock().unwrap().take();
    }
}

/// An interrupted upload, whose object is produced again from scratch.
struct InterruptedUpload {
    store: Arc<dyn ObjectStore>,
    faults: Arc<Faulty<dyn ObjectStore>>,
    checkpoint: Arc<MemoryCheckpoint>,
}

impl InterruptedUpload {
    /// Starts an upload that is interrupted by an overloaded store at the third part. The stored parts are
    /// checkpointed.
    async fn start(bytes: &[u8]) -> Self {
        let inner: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
        inner.create_bucket(&context(), &address().bucket).await.unwrap();
        let busy = Fault::FailBefore(Reason::Overloaded);
        let faults = Faulty::new(
            inner,
            FaultPlan::none().with_fault(Operation::StagePart, FaultSchedule::From(3), busy),
        );
        let interrupted = Self { store: faults.clone(), faults, checkpoint: Arc::default() };
        assert_eq!(interrupted.write(bytes).await.unwrap_err().reason(), Reason::Overloaded);
        assert_eq!(uploads(&interrupted.store).await, 1, "the upload remains in the store");
        assert!((1..=2).contains(&interrupted.checkpointed_parts()));
        interrupted.faults.set_plan(FaultPlan::none());
        interrupted
    }

    /// Number of checkpointed parts.
    fn checkpointed_parts(&self) -> u64 {
        self.checkpoint.load().map_or(0, |state| state.parts.len() as u64)
    }

    async fn write(&self, bytes: &[u8]) -> Result<()> {
        let checkpoint: Arc<dyn tradewind_parallel::UploadCheckpoint> = self.checkpoint.clone();
        let sequence = StreamingUpload::new(&transfers(), &self.store, &address(), Metadata::default());
        let mut sequence = sequence.with_checkpoint(Some(checkpoint));
        match sequence.write(bytes).await {
            Ok(()) => sequence.finish().await.map(drop),
            Err(e) => {
                sequence.fail(&e).await;
                Err(e)
            }
        }
    }

    /// Asserts that the upload completes by sending `parts` parts and leaves nothing else.
    async fn assert_completes_with(&self, bytes: &[u8], parts: u64) {
        let before = self.faults.calls(Operation::StagePart);
        self.write(bytes).await.unwrap();
        assert_eq!(self.faults.calls(Operation::StagePart) - before, parts);
        assert!(read(&self.store).await.unwrap() == bytes);
        assert_eq!(uploads(&self.store).await, 0);
        assert_eq!(self.checkpoint.load(), None, "the checkpoint is cleared");
    }
}

const PART: usize = MIN_PART_BYTES as usize;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_upload_resumes() {
    let bytes = pattern(4 * PART + 5, 1);
    let interrupted = InterruptedUpload::start(&bytes).await;
    interrupted.assert_completes_with(&bytes, 5 - interrupted.checkpointed_parts()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_with_other_bytes_is_sent_again() {
    let bytes = pattern(4 * PART + 5, 1);
    let interrupted = InterruptedUpload::start(&bytes).await;
    let mut others = bytes.clone();
    let first = interrupted.checkpoint.load().unwrap().parts[0].number.get();
    others[usize::from(first - 1) * PART] ^= 1;
    interrupted.assert_completes_with(&others, 6 - interrupted.checkpointed_parts()).await;
    // An inserted byte shifts all parts.
    let interrupted = InterruptedUpload::start(&bytes).await;
    interrupted.assert_completes_with(&[&b"x"[..], &bytes].concat(), 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_upload_restarts() {
    let bytes = pattern(4 * PART + 5, 1);
    let interrupted = InterruptedUpload::start(&bytes).await;
    let upload = interrupted.checkpoint.load().unwrap().upload;
    interrupted.store.abort_upload(&context(), &address(), &upload).await.unwrap();
    interrupted.assert_completes_with(&bytes, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_list_error_keeps_the_checkpoint() {
    let bytes = pattern(4 * PART + 5, 1);
    let interrupted = InterruptedUpload::start(&bytes).await;
    let (before, busy) = (interrupted.checkpointed_parts(), Fault::FailBefore(Reason::Overloaded));
    interrupted.faults.set_plan(FaultPlan::none().with_fault(
        Operation::ListParts,
        FaultSchedule::Always,
        busy,
    ));
    assert_eq!(interrupted.write(&bytes).await.unwrap_err().reason(), Reason::Overloaded);
    interrupted.faults.set_plan(FaultPlan::none());
    assert_eq!((uploads(&interrupted.store).await, interrupted.checkpointed_parts()), (1, before));
    interrupted.assert_completes_with(&bytes, 5 - before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_abort_is_retried_by_the_next_upload() {
    let interrupted = InterruptedUpload::start(&pattern(4 * PART + 5, 1)).await;
    let busy = Fault::FailBefore(Reason::Overloaded);
    interrupted.faults.set_plan(FaultPlan::none().with_fault(
        Operation::AbortUpload,
        FaultSchedule::Always,
        busy,
    ));
    interrupted.write(&pattern(1000, 1)).await.unwrap();
    assert_eq!(uploads(&interrupted.store).await, 1);
    interrupted.faults.set_plan(FaultPlan::none());
    interrupted.assert_completes_with(&pattern(1000, 2), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_object_aborts_an_earlier_large_upload() {
    let interrupted = InterruptedUpload::start(&pattern(4 * PART + 5, 1)).await;
    interrupted.assert_completes_with(&pattern(1000, 1), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_failure_aborts_the_upload() {
    let bytes = pattern(4 * PART + 5, 1);
    let interrupted = InterruptedUpload::start(&bytes).await;
    let refused = Fault::FailBefore(Reason::InvalidRequest);
    interrupted.faults.set_plan(FaultPlan::none().with_fault(
        Operation::StagePart,
        FaultSchedule::Always,
        refused,
    ));
    assert_eq!(interrupted.write(&bytes).await.unwrap_err().reason(), Reason::InvalidRequest);
    assert_eq!(uploads(&interrupted.store).await, 0);
    assert_eq!(interrupted.checkpoint.load(), None);
}

#[derive(Default)]
struct MemorySink(Mutex<Vec<u8>>);

impl Sink for MemorySink {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut all, at) = (self.0.lock().unwrap(), offset as usize);
        let length = all.len().max(at + bytes.len());
        all.resize(length, 0);
        all[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn range_reads_return_the_requested_bytes() {
    let bytes = pattern(1_000_000, 5);
    let passing =
        |operation, fault| FaultPlan::seeded(7).with_fault(operation, FaultSchedule::Probability(0.1), fault);
    let plans = [
        FaultPlan::none(),
        passing(Operation::Get, Fault::FailBefore(Reason::Io)),
        passing(Operation::Body, Fault::FailAt(1000, Reason::Io)),
    ];
    for plan in plans {
        let store = store(plan).await;
        let mut sequence = StreamingUpload::new(&transfers(), &store, &address(), Metadata::default());
        sequence.write(&bytes).await.unwrap();
        sequence.finish().await.unwrap();
        for tail in [1, 64, 1_000_000, 2_000_000] {
            let (ranges, end) =
                RangeReader::open(&transfers(), &store, &address(), tail as u64).await.unwrap();
            assert_eq!((ranges.size(), end.len()), (1_000_000, tail.min(1_000_000)));
            assert!(bytes.ends_with(&end));
            for (offset, length) in [(0, 0), (5, 0), (0, 1), (999_999, 1), (100, 99_999), (7, 730_000)] {
                let (span, expected) = ((offset as u64, length as u64), &bytes[offset..offset + length]);
                let checksum = Checksum::compute(tradewind_core::Algorithm::Crc64Nvme, expected);
                let (found, its_checksum) = ranges.fetch(span).await.unwrap();
                assert!(found == expected && its_checksum == checksum, "{span:?}");
                let memory = Arc::new(MemorySink::default());
                let sink: Arc<dyn Sink> = memory.clone();
                assert_eq!(ranges.write_to(span, &sink).await.unwrap(), checksum);
                assert!(length == 0 || memory.0.lock().unwrap()[offset..] == *expected, "{span:?}");
                let mut all = Vec::new();
                let take = async |piece: Bytes| {
                    all.extend_from_slice(&piece);
                    Ok(())
                };
                assert_eq!(ranges.write_in_order(span, take).await.unwrap(), checksum);
                assert!(all == expected, "{span:?}");
            }
        }
    }
    let empty = store(FaultPlan::none()).await;
    StreamingUpload::new(&transfers(), &empty, &address(), Metadata::default()).finish().await.unwrap();
    let (ranges, end) = RangeReader::open(&transfers(), &empty, &address(), 64).await.unwrap();
    assert_eq!((ranges.size(), end.len()), (0, 0));
}
