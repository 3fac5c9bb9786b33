//! Bodies under a limit of bytes per second, by a clock that the tests turn: as fast as was said and no faster, smoothly,
//! both directions together, and nobody waits behind all of a large object.

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
use tradewind_volume::{Carrier, Fetch, Ranges, Sequence, Sink, Source, store};

const RATE: u64 = 1 << 20;

struct Scene {
    clock: Arc<SimulatedClock>,
    store: Arc<dyn ObjectStore>,
    carrier: Arc<Carrier>,
    /// When how many bytes passed.
    passed: Arc<Mutex<Vec<(Duration, u64)>>>,
}

/// Bytes that note when they pass.
struct Noted {
    clock: Arc<SimulatedClock>,
    passed: Arc<Mutex<Vec<(Duration, u64)>>>,
}

impl Noted {
    fn note(&self, bytes: usize) {
        self.passed.lock().unwrap().push((self.clock.now(), bytes as u64));
    }
}

impl Source for Noted {
    fn read_at(&self, _offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.note(buffer.len());
        buffer.fill(7);
        Ok(())
    }
}

impl Sink for Noted {
    fn write_at(&self, _offset: u64, bytes: &[u8]) -> Result<()> {
        self.note(bytes.len());
        Ok(())
    }
}

fn at(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

impl Scene {
    /// Where a store has taken an object already: it is not read beforehand for its checksum.
    async fn new(rate: Option<u64>) -> Self {
        let clock = SimulatedClock::new();
        let store: Arc<dyn ObjectStore> = MemoryStore::new(clock.clone());
        store.create_bucket(&context(), &at("k").bucket).await.unwrap();
        let plan = Plan::default().with_chunks(64 << 10);
        let carrier = Carrier::new(plan, Budget::new(64 << 20), clock.clone(), RetryOptions::default());
        let carrier = match rate {
            Some(rate) => carrier.limited(rate),
            None => carrier,
        };
        let scene = Self { clock, store, carrier: Arc::new(carrier), passed: Arc::default() };
        tokio::spawn(scene.upload("first", 0)).await.unwrap();
        scene
    }

    fn noted(&self) -> Arc<Noted> {
        Arc::new(Noted { clock: self.clock.clone(), passed: self.passed.clone() })
    }

    fn upload(&self, key: &'static str, size: u64) -> impl Future<Output = Duration> + Send + 'static {
        let (carrier, to, noted, clock) =
            (self.carrier.clone(), self.store.clone(), self.noted(), self.clock.clone());
        async move {
            store(&carrier, &to, &at(key), noted, size, Default::default()).await.unwrap();
            clock.now()
        }
    }

    fn download(
        &self,
        key: &'static str,
        size: Option<u64>,
    ) -> impl Future<Output = Duration> + Send + 'static {
        let (carrier, from, noted, clock) =
            (self.carrier.clone(), self.store.clone(), self.noted(), self.clock.clone());
        async move {
            let fetch = Fetch::open(&carrier, &from, &at(key), size).await.unwrap();
            fetch.write_to(noted).await.unwrap();
            clock.now()
        }
    }

    async fn put(&self, key: &str, size: usize) {
        let mut staged = self.store.stage(&context(), &at(key), StageRequest::default()).await.unwrap();
        staged.write(Bytes::from(vec![7; size])).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    /// Turns the clock while transfers run; answers when each ended.
    async fn run(&self, transfers: Vec<tokio::task::JoinHandle<Duration>>) -> Vec<Duration> {
        while transfers.iter().any(|transfer| !transfer.is_finished()) {
            // What can go on does.
            tokio::time::sleep(Duration::from_micros(300)).await;
            if let Some(next) = self.clock.next_wake() {
                self.clock.advance(next.saturating_sub(self.clock.now()));
            }
        }
        let mut ends = Vec::new();
        for transfer in transfers {
            ends.push(transfer.await.unwrap());
        }
        ends
    }

    /// The most bytes that passed in any second.
    fn busiest_second(&self) -> u64 {
        let passed = self.passed.lock().unwrap();
        let of = |from: Duration| {
            let is_within = |(at, _): &&(Duration, u64)| *at >= from && *at - from < Duration::from_secs(1);
            passed.iter().filter(is_within).map(|(_, bytes)| bytes).sum()
        };
        passed.iter().map(|(at, _)| of(*at)).max().unwrap_or(0)
    }
}

#[tokio::test]
async fn both_directions_together_take_what_was_said() {
    let scene = Scene::new(Some(RATE)).await;
    scene.put("down", 3 << 20).await;
    let (up, down) = (scene.upload("up", 3 << 20), scene.download("down", None));
    let transfers = vec![tokio::spawn(up), tokio::spawn(down)];
    let ends = scene.run(transfers).await;
    let took = ends.into_iter().max().unwrap().as_secs_f64();
    assert!((5.7..=6.3).contains(&took), "6 MiB took {took} s");
    // A tenth of a second may be made up for, and a piece is on its way at either end.
    let most = RATE + RATE / 10 + 2 * (128 << 10);
    assert!(scene.busiest_second() <= most, "{} in a second", scene.busiest_second());
}

#[tokio::test]
async fn many_small_objects_take_what_was_said() {
    let scene = Scene::new(Some(RATE)).await;
    scene.put("down", 50_000).await;
    let transfers = (0..60).map(|_| tokio::spawn(scene.download("down", Some(50_000)))).collect();
    let took = scene.run(transfers).await.into_iter().max().unwrap().as_secs_f64();
    let due = 60.0 * 50_000.0 / RATE as f64;
    assert!((0.95 * due..=1.05 * due).contains(&took), "{took} s, not {due}");
    assert!(scene.busiest_second() <= RATE + RATE / 10 + 100_000, "{}", scene.busiest_second());
}

#[tokio::test]
async fn what_is_stored_while_it_is_made_takes_what_was_said() {
    let scene = Scene::new(Some(RATE)).await;
    let (carrier, to, clock) = (scene.carrier.clone(), scene.store.clone(), scene.clock.clone());
    let made = async move {
        let mut sequence = Sequence::new(&carrier, &to, &at("made"), Default::default());
        for _ in 0..60 {
            sequence.write(&[7; 200_000]).await.unwrap();
        }
        sequence.finish().await.unwrap();
        clock.now()
    };
    let took = scene.run(vec![tokio::spawn(made)]).await[0].as_secs_f64();
    let due = 60.0 * 200_000.0 / RATE as f64;
    assert!((0.95 * due..=1.05 * due).contains(&took), "{took} s, not {due}");
}

#[tokio::test]
async fn ranges_take_what_was_said() {
    let scene = Scene::new(Some(RATE)).await;
    scene.put("ranged", 4 << 20).await;
    let (carrier, from, clock) = (scene.carrier.clone(), scene.store.clone(), scene.clock.clone());
    let sink: Arc<dyn Sink> = scene.noted();
    let fetched = async move {
        // The end, which comes with the question, is a quarter of all.
        let (ranges, _) = Ranges::open(&carrier, &from, &at("ranged"), 1 << 20).await.unwrap();
        ranges.bytes((0, 1 << 20)).await.unwrap();
        ranges.write_to((1 << 20, 1 << 20), &sink).await.unwrap();
        ranges.write_in_order((2 << 20, 1 << 20), async |_| Ok(())).await.unwrap();
        clock.now()
    };
    let took = scene.run(vec![tokio::spawn(fetched)]).await[0].as_secs_f64();
    assert!((3.7..=4.3).contains(&took), "4 MiB took {took} s");
}

#[tokio::test]
async fn a_small_object_does_not_wait_behind_a_large_one() {
    let scene = Scene::new(Some(RATE)).await;
    let large = tokio::spawn(scene.upload("large", 20 << 20));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let small = tokio::spawn(scene.upload("small", 100_000));
    let ends = scene.run(vec![large, small]).await;
    let (large, small) = (ends[0].as_secs_f64(), ends[1].as_secs_f64());
    assert!((19.0..=21.0).contains(&large) && small < 2.0, "{large} and {small} s");
}

#[tokio::test]
async fn without_a_limit_nobody_waits() {
    let scene = Scene::new(None).await;
    scene.put("down", 3 << 20).await;
    let (up, down) = (scene.upload("up", 3 << 20), scene.download("down", None));
    // Nobody turns the clock: who waited would wait for ever.
    let both = async { tokio::join!(tokio::spawn(up), tokio::spawn(down)) };
    let (up, down) = tokio::time::timeout(Duration::from_secs(30), both).await.unwrap();
    assert_eq!((up.unwrap(), down.unwrap()), (Duration::ZERO, Duration::ZERO));
    assert_eq!((scene.clock.now(), scene.clock.sleepers()), (Duration::ZERO, 0));
    assert_eq!(scene.carrier.plan().requests, Plan::default().requests);
}
