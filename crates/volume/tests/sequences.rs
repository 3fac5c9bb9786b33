//! Objects that are stored while they are made, and ranges that are fetched of them.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::ListUploads;
use tradewind_core::testing::{Fault, FaultPlan, Faulty, MemoryStore, Operation, When, context};
use tradewind_core::{Address, Budget, Checksum, Metadata, ObjectStore, SystemClock};
use tradewind_model::plan::{LEAST_PART, Plan};
use tradewind_model::retry::RetryOptions;
use tradewind_volume::memory::{Begun, CopiedPart};
use tradewind_volume::{Carrier, Memory as _, Ranges, Sequence, Sink};

fn carrier() -> Arc<Carrier> {
    let plan = Plan {
        requests: 4,
        stream_bytes: 30_000,
        memory_bytes: 2 * LEAST_PART,
        ..Plan::default().with_chunks(100_000)
    };
    let delay = Duration::from_millis(1);
    let retries = RetryOptions { attempts: 8, first_delay: delay, most_delay: delay };
    Arc::new(Carrier::new(plan, Budget::new(8 << 20), SystemClock::shared(), retries))
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let piece: Vec<u8> =
        (0..999).map(|n: u64| ((n + seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    piece.into_iter().cycle().take(length).collect()
}

fn at() -> Address {
    Address::parse("bucket", "key").unwrap()
}

async fn store(plan: FaultPlan) -> Arc<dyn ObjectStore> {
    let below: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
    below.create_bucket(&context(), &at().bucket).await.unwrap();
    Faulty::new(below, plan)
}

async fn read(store: &Arc<dyn ObjectStore>) -> Result<Bytes> {
    store.get(&context(), &at(), Default::default()).await?.body.collect().await
}

async fn uploads(store: &Arc<dyn ObjectStore>) -> usize {
    let request = ListUploads { limit: 10, ..ListUploads::default() };
    store.list_uploads(&context(), &at().bucket, &request).await.unwrap().entries.len()
}

/// What is taken back is not in the object, however much of it was sent, and what comes behind it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_back_is_not_there() {
    let part = usize::try_from(LEAST_PART).unwrap();
    for kept in [0, 1000, part, part + 1] {
        for taken in [0, 1000, 2 * part + 5] {
            for behind in [0, part] {
                let store = store(FaultPlan::none()).await;
                let mut sequence = Sequence::new(&carrier(), &store, &at(), Metadata::default());
                sequence.write(&pattern(kept, 1)).await.unwrap();
                for seed in [2, 3] {
                    sequence.mark();
                    sequence.write(&pattern(taken, seed)).await.unwrap();
                    sequence.go_back();
                }
                assert_eq!(sequence.written(), kept as u64);
                sequence.mark();
                sequence.write(&pattern(behind, 4)).await.unwrap();
                sequence.keep();
                sequence.go_back();
                sequence.finish().await.unwrap();
                let expected = [pattern(kept, 1), pattern(behind, 4)].concat();
                assert!(read(&store).await.unwrap() == expected, "{kept}, {taken} taken back, {behind}");
                assert_eq!(uploads(&store).await, 0);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_leaves_nothing() {
    let part = usize::try_from(LEAST_PART).unwrap();
    let fault = Fault::FailBefore(Reason::AccessDenied);
    let store = store(FaultPlan::none().on(Operation::StagePart, When::Nth(2), fault)).await;
    let mut sequence = Sequence::new(&carrier(), &store, &at(), Metadata::default());
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

/// What is remembered of one object.
#[derive(Default)]
struct Remembered(Mutex<Option<Begun>>);

impl tradewind_volume::Memory for Remembered {
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
        self.0.lock().unwrap().take();
    }
}

/// An object that is made again from its beginning, as whoever was killed makes it.
struct Making {
    store: Arc<dyn ObjectStore>,
    faults: Arc<Faulty<dyn ObjectStore>>,
    memory: Arc<Remembered>,
}

impl Making {
    /// Its store was overloaded when the third part came: what is there of the two before it is remembered.
    async fn cut_off(bytes: &[u8]) -> Self {
        let below: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
        below.create_bucket(&context(), &at().bucket).await.unwrap();
        let busy = Fault::FailBefore(Reason::Overloaded);
        let faults = Faulty::new(below, FaultPlan::none().on(Operation::StagePart, When::From(3), busy));
        let making = Self { store: faults.clone(), faults, memory: Arc::default() };
        assert_eq!(making.write(bytes).await.unwrap_err().reason(), Reason::Overloaded);
        assert_eq!(uploads(&making.store).await, 1, "what was sent stays");
        assert!((1..=2).contains(&making.kept()));
        making.faults.follow(FaultPlan::none());
        making
    }

    /// Parts that are remembered.
    fn kept(&self) -> u64 {
        self.memory.earlier().map_or(0, |begun| begun.parts.len() as u64)
    }

    async fn write(&self, bytes: &[u8]) -> Result<()> {
        let memory: Arc<dyn tradewind_volume::Memory> = self.memory.clone();
        let sequence = Sequence::new(&carrier(), &self.store, &at(), Metadata::default());
        let mut sequence = sequence.remembered(Some(memory));
        match sequence.write(bytes).await {
            Ok(()) => sequence.finish().await.map(drop),
            Err(e) => {
                sequence.fail(&e).await;
                Err(e)
            }
        }
    }

    /// The object is there, for so many parts that were sent; nothing else is left.
    async fn is_made_with(&self, bytes: &[u8], parts: u64) {
        let before = self.faults.calls(Operation::StagePart);
        self.write(bytes).await.unwrap();
        assert_eq!(self.faults.calls(Operation::StagePart) - before, parts);
        assert!(read(&self.store).await.unwrap() == bytes);
        assert_eq!(uploads(&self.store).await, 0);
        assert_eq!(self.memory.earlier(), None, "nobody goes on with it");
    }
}

const PART: usize = LEAST_PART as usize;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cut_off_goes_on() {
    let bytes = pattern(4 * PART + 5, 1);
    let making = Making::cut_off(&bytes).await;
    making.is_made_with(&bytes, 5 - making.kept()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_is_made_otherwise_is_sent_again() {
    let bytes = pattern(4 * PART + 5, 1);
    let making = Making::cut_off(&bytes).await;
    let mut others = bytes.clone();
    let first = making.memory.earlier().unwrap().parts[0].number.get();
    others[usize::from(first - 1) * PART] ^= 1;
    making.is_made_with(&others, 6 - making.kept()).await;
    // Everything behind what came in between is elsewhere.
    let making = Making::cut_off(&bytes).await;
    making.is_made_with(&[&b"x"[..], &bytes].concat(), 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_lost_is_sent_again() {
    let bytes = pattern(4 * PART + 5, 1);
    let making = Making::cut_off(&bytes).await;
    let upload = making.memory.earlier().unwrap().upload;
    making.store.abort_upload(&context(), &at(), &upload).await.unwrap();
    making.is_made_with(&bytes, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_looked_at_now_is_not_forgotten() {
    let bytes = pattern(4 * PART + 5, 1);
    let making = Making::cut_off(&bytes).await;
    let (before, busy) = (making.kept(), Fault::FailBefore(Reason::Overloaded));
    making.faults.follow(FaultPlan::none().on(Operation::ListParts, When::Always, busy));
    assert_eq!(making.write(&bytes).await.unwrap_err().reason(), Reason::Overloaded);
    making.faults.follow(FaultPlan::none());
    assert_eq!((uploads(&making.store).await, making.kept()), (1, before));
    making.is_made_with(&bytes, 5 - before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_freed_is_freed_another_time() {
    let making = Making::cut_off(&pattern(4 * PART + 5, 1)).await;
    let busy = Fault::FailBefore(Reason::Overloaded);
    making.faults.follow(FaultPlan::none().on(Operation::AbortUpload, When::Always, busy));
    making.write(&pattern(1000, 1)).await.unwrap();
    assert_eq!(uploads(&making.store).await, 1);
    making.faults.follow(FaultPlan::none());
    making.is_made_with(&pattern(1000, 2), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_became_small_leaves_nothing_of_what_was_large() {
    let making = Making::cut_off(&pattern(4 * PART + 5, 1)).await;
    making.is_made_with(&pattern(1000, 1), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_will_not_succeed_is_not_left() {
    let bytes = pattern(4 * PART + 5, 1);
    let making = Making::cut_off(&bytes).await;
    let refused = Fault::FailBefore(Reason::InvalidRequest);
    making.faults.follow(FaultPlan::none().on(Operation::StagePart, When::Always, refused));
    assert_eq!(making.write(&bytes).await.unwrap_err().reason(), Reason::InvalidRequest);
    assert_eq!(uploads(&making.store).await, 0);
    assert_eq!(making.memory.earlier(), None);
}

#[derive(Default)]
struct Memory(Mutex<Vec<u8>>);

impl Sink for Memory {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut all, at) = (self.0.lock().unwrap(), offset as usize);
        let length = all.len().max(at + bytes.len());
        all.resize(length, 0);
        all[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_are_what_was_asked_for() {
    let bytes = pattern(1_000_000, 5);
    let passing = |operation, fault| FaultPlan::seeded(7).on(operation, When::Probability(0.1), fault);
    let plans = [
        FaultPlan::none(),
        passing(Operation::Get, Fault::FailBefore(Reason::Io)),
        passing(Operation::Body, Fault::FailAt(1000, Reason::Io)),
    ];
    for plan in plans {
        let store = store(plan).await;
        let mut sequence = Sequence::new(&carrier(), &store, &at(), Metadata::default());
        sequence.write(&bytes).await.unwrap();
        sequence.finish().await.unwrap();
        for tail in [1, 64, 1_000_000, 2_000_000] {
            let (ranges, end) = Ranges::open(&carrier(), &store, &at(), tail as u64).await.unwrap();
            assert_eq!((ranges.size(), end.len()), (1_000_000, tail.min(1_000_000)));
            assert!(bytes.ends_with(&end));
            for (offset, length) in [(0, 0), (5, 0), (0, 1), (999_999, 1), (100, 99_999), (7, 730_000)] {
                let (span, expected) = ((offset as u64, length as u64), &bytes[offset..offset + length]);
                let checksum = Checksum::of(tradewind_core::Algorithm::Crc64Nvme, expected);
                let (found, its) = ranges.bytes(span).await.unwrap();
                assert!(found == expected && its == checksum, "{span:?}");
                let memory = Arc::new(Memory::default());
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
    let nothing = store(FaultPlan::none()).await;
    Sequence::new(&carrier(), &nothing, &at(), Metadata::default()).finish().await.unwrap();
    let (ranges, end) = Ranges::open(&carrier(), &nothing, &at(), 64).await.unwrap();
    assert_eq!((ranges.size(), end.len()), (0, 0));
}
