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
use tradewind_volume::{Carrier, Ranges, Sequence, Sink};

fn carrier() -> Arc<Carrier> {
    let plan = Plan { chunk_bytes: 100_000, requests: 4, stream_bytes: 30_000, memory_bytes: 2 * LEAST_PART };
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
            sequence.give_up().await;
            failed
        }
    };
    assert_eq!(failed.unwrap_err().reason(), Reason::AccessDenied);
    assert_eq!(uploads(&store).await, 0);
    assert_eq!(read(&store).await.unwrap_err().reason(), Reason::NoSuchKey);
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
