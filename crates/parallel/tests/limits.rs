//! Transfers under a rate limit, on a simulated clock. They reach the limit without exceeding it or bursting, both
//! directions share it, and small objects do not wait for large ones.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tradewind_core::error::Result;
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{MemoryStore, SimulatedClock, context};
use tradewind_core::{Address, Budget, Clock, ObjectStore};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::{
    Fetch, RangeReader, Sink, StreamingUpload, TransferContext, UploadSource, store_object,
};

const RATE: u64 = 1 << 20;

struct Scene {
    clock: Arc<SimulatedClock>,
    store: Arc<dyn ObjectStore>,
    transfers: Arc<TransferContext>,
    /// Bytes transferred, with the times.
    passed: Arc<Mutex<Vec<(Duration, u64)>>>,
}

/// A source and sink that records when bytes pass.
struct ByteRecorder {
    clock: Arc<SimulatedClock>,
    passed: Arc<Mutex<Vec<(Duration, u64)>>>,
}

impl ByteRecorder {
    fn record(&self, bytes: usize) {
        self.passed.lock().unwrap().push((self.clock.now(), bytes as u64));
    }
}

impl UploadSource for ByteRecorder {
    fn read_at(&self, _offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.record(buffer.len());
        buffer.fill(7);
        Ok(())
    }
}

impl Sink for ByteRecorder {
    fn write_at(&self, _offset: u64, bytes: &[u8]) -> Result<()> {
        self.record(bytes.len());
        Ok(())
    }
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

impl Scene {
    /// Stores a first object, so that later sources are not read in advance for their checksum.
    async fn new(rate: Option<u64>) -> Self {
        let clock = SimulatedClock::new();
        let store: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
        store.create_bucket(&context(), &address("k").bucket).await.unwrap();
        let plan = Plan::default().with_chunk_bytes(64 << 10);
        let transfers =
            TransferContext::new(plan, Budget::new(64 << 20), clock.clone(), RetryOptions::default());
        let transfers = match rate {
            Some(rate) => transfers.with_rate_limit(rate),
            None => transfers,
        };
        let scene = Self { clock, store, transfers: Arc::new(transfers), passed: Arc::default() };
        tokio::spawn(scene.upload("first", 0)).await.unwrap();
        scene
    }

    fn recorder(&self) -> Arc<ByteRecorder> {
        Arc::new(ByteRecorder { clock: self.clock.clone(), passed: self.passed.clone() })
    }

    fn upload(&self, key: &'static str, size: u64) -> impl Future<Output = Duration> + Send + 'static {
        let (transfers, to, recorder, clock) =
            (self.transfers.clone(), self.store.clone(), self.recorder(), self.clock.clone());
        async move {
            store_object(&transfers, &to, &address(key), recorder, size, Default::default()).await.unwrap();
            clock.now()
        }
    }

    fn download(
        &self,
        key: &'static str,
        size: Option<u64>,
    ) -> impl Future<Output = Duration> + Send + 'static {
        let (transfers, from, recorder, clock) =
            (self.transfers.clone(), self.store.clone(), self.recorder(), self.clock.clone());
        async move {
            let fetch = Fetch::open(&transfers, &from, &address(key), size).await.unwrap();
            fetch.write_to(recorder).await.unwrap();
            clock.now()
        }
    }

    async fn put(&self, key: &str, size: usize) {
        let mut staged = self.store.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
        staged.write(Bytes::from(vec![7; size])).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    /// Advances the clock while tasks run. Returns when each ended.
    async fn run(&self, tasks: Vec<tokio::task::JoinHandle<Duration>>) -> Vec<Duration> {
        while tasks.iter().any(|task| !task.is_finished()) {
            // Let all tasks run that can.
            tokio::time::sleep(Duration::from_micros(300)).await;
            if let Some(next) = self.clock.next_wake() {
                self.clock.advance(next.saturating_sub(self.clock.now()));
            }
        }
        let mut ends = Vec::new();
        for task in tasks {
            ends.push(task.await.unwrap());
        }
        ends
    }

    /// Maximum number of bytes that passed in any second.
    fn busiest_second(&self) -> u64 {
        let passed = self.passed.lock().unwrap();
        let bytes_from = |from: Duration| {
            let is_in_second =
                |(at, _): &&(Duration, u64)| *at >= from && *at - from < Duration::from_secs(1);
            passed.iter().filter(is_in_second).map(|(_, bytes)| bytes).sum()
        };
        passed.iter().map(|(at, _)| bytes_from(*at)).max().unwrap_or(0)
    }
}

#[tokio::test]
async fn both_directions_share_the_rate_limit() {
    let scene = Scene::new(Some(RATE)).await;
    scene.put("down", 3 << 20).await;
    let (up, down) = (scene.upload("up", 3 << 20), scene.download("down", None));
    let tasks = vec![tokio::spawn(up), tokio::spawn(down)];
    let ends = scene.run(tasks).await;
    let took = ends.into_iter().max().unwrap().as_secs_f64();
    assert!((5.7..=6.3).contains(&took), "6 MiB took {took} s");
    // The token bucket allows a burst of 100 ms, and one piece is in flight at either end.
    let max = RATE + RATE / 10 + 2 * (128 << 10);
    assert!(scene.busiest_second() <= max, "{} in a second", scene.busiest_second());
}

#[tokio::test]
async fn many_small_objects_use_the_whole_rate_limit() {
    let scene = Scene::new(Some(RATE)).await;
    scene.put("down", 50_000).await;
    let tasks = (0..60).map(|_| tokio::spawn(scene.download("down", Some(50_000)))).collect();
    let took = scene.run(tasks).await.into_iter().max().unwrap().as_secs_f64();
    let due = 60.0 * 50_000.0 / RATE as f64;
    assert!((0.95 * due..=1.05 * due).contains(&took), "{took} s, not {due}");
    assert!(scene.busiest_second() <= RATE + RATE / 10 + 100_000, "{}", scene.busiest_second());
}

#[tokio::test]
async fn streaming_upload_uses_the_whole_rate_limit() {
    let scene = Scene::new(Some(RATE)).await;
    let (transfers, to, clock) = (scene.transfers.clone(), scene.store.clone(), scene.clock.clone());
    let written = async move {
        let mut sequence = StreamingUpload::new(&transfers, &to, &address("made"), Default::default());
        for _ in 0..60 {
            sequence.write(&[7; 200_000]).await.unwrap();
        }
        sequence.finish().await.unwrap();
        clock.now()
    };
    let took = scene.run(vec![tokio::spawn(written)]).await[0].as_secs_f64();
    let due = 60.0 * 200_000.0 / RATE as f64;
    assert!((0.95 * due..=1.05 * due).contains(&took), "{took} s, not {due}");
}

#[tokio::test]
async fn range_reads_use_the_whole_rate_limit() {
    let scene = Scene::new(Some(RATE)).await;
    scene.put("ranged", 4 << 20).await;
    let (transfers, from, clock) = (scene.transfers.clone(), scene.store.clone(), scene.clock.clone());
    let sink: Arc<dyn Sink> = scene.recorder();
    let fetched = async move {
        // The tail, which opening the object fetches, is a quarter of it.
        let (ranges, _) = RangeReader::open(&transfers, &from, &address("ranged"), 1 << 20).await.unwrap();
        ranges.fetch((0, 1 << 20)).await.unwrap();
        ranges.write_to((1 << 20, 1 << 20), &sink).await.unwrap();
        ranges.write_in_order((2 << 20, 1 << 20), async |_| Ok(())).await.unwrap();
        clock.now()
    };
    let took = scene.run(vec![tokio::spawn(fetched)]).await[0].as_secs_f64();
    assert!((3.7..=4.3).contains(&took), "4 MiB took {took} s");
}

#[tokio::test]
async fn small_object_does_not_wait_for_a_large_one() {
    let scene = Scene::new(Some(RATE)).await;
    let large = tokio::spawn(scene.upload("large", 20 << 20));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let small = tokio::spawn(scene.upload("small", 100_000));
    let ends = scene.run(vec![large, small]).await;
    let (large, small) = (ends[0].as_secs_f64(), ends[1].as_secs_f64());
    assert!((19.0..=21.0).contains(&large) && small < 2.0, "{large} and {small} s");
}

#[tokio::test]
async fn transfers_without_a_rate_limit_never_wait() {
    let scene = Scene::new(None).await;
    scene.put("down", 3 << 20).await;
    let (up, down) = (scene.upload("up", 3 << 20), scene.download("down", None));
    // The clock is not advanced: a transfer that waits would never end.
    let both = async { tokio::join!(tokio::spawn(up), tokio::spawn(down)) };
    let (up, down) = tokio::time::timeout(Duration::from_secs(30), both).await.unwrap();
    assert_eq!((up.unwrap(), down.unwrap()), (Duration::ZERO, Duration::ZERO));
    assert_eq!((scene.clock.now(), scene.clock.sleepers()), (Duration::ZERO, 0));
    assert_eq!(scene.transfers.plan().initial_concurrency, Plan::default().initial_concurrency);
}
