//! Requests at a time that follow what is carried, by a clock that goes on when everybody waits.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Budget, Clock, Timestamp};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_volume::Carrier;

const BYTES: u64 = 64 << 10;
const SECOND: Duration = Duration::from_secs(1);

/// The runtime's own time.
#[derive(Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.0 + until))
    }
}

/// A store behind a line that takes requests one after the other.
#[derive(Debug)]
struct Line {
    round_trip: Duration,
    per_request: Mutex<Duration>,
    free: Mutex<Option<Instant>>,
    under_way: AtomicUsize,
    carried: AtomicU64,
}

impl Line {
    fn new(round_trip: Duration, per_second: u32) -> Arc<Self> {
        let per_request = Mutex::new(SECOND / per_second);
        let (free, under_way, carried) = (Mutex::default(), AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Self { round_trip, per_request, free, under_way, carried })
    }

    fn set(&self, per_second: u32) {
        *self.per_request.lock().unwrap() = SECOND / per_second;
    }

    async fn carry(&self) {
        let due = {
            let mut free = self.free.lock().unwrap();
            let now = Instant::now();
            let due = free.map_or(now, |free| free.max(now)) + *self.per_request.lock().unwrap();
            *free = Some(due);
            due
        };
        self.under_way.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep_until(due + self.round_trip).await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.carried.fetch_add(1, Ordering::Relaxed);
    }

    /// What it carries in so long, a second.
    async fn carries(&self, time: Duration) -> f64 {
        let before = self.carried.load(Ordering::Relaxed);
        tokio::time::sleep(time).await;
        (self.carried.load(Ordering::Relaxed) - before) as f64 / time.as_secs_f64()
    }
}

fn carrier() -> Carrier {
    Carrier::new(
        Plan::default(),
        Budget::new(1 << 30),
        Arc::new(Paused(Instant::now())),
        RetryOptions::default(),
    )
}

/// Whoever asks one request after the other, as many as there may be at the most.
fn ask(carrier: &Arc<Carrier>, line: &Arc<Line>, is_failing: bool) -> JoinSet<()> {
    let mut asking = JoinSet::new();
    for _ in 0..carrier.most_requests() {
        let (carrier, line) = (carrier.clone(), line.clone());
        asking.spawn(async move {
            loop {
                let asked = carrier.again(|| async {
                    let _slot = carrier.slot(BYTES).await?;
                    line.carry().await;
                    if is_failing { Err(Error::new(Reason::Defect, "it fails")) } else { Result::Ok(()) }
                });
                drop(asked.await);
            }
        });
    }
    asking
}

#[tokio::test(start_paused = true)]
async fn small_objects_far_away_get_more_at_a_time() {
    // 32 at a time would be 160 a second.
    let line = Line::new(SECOND / 5, 1000);
    let carrier = Arc::new(carrier().steered(|| (0, 0)));
    let _asking = ask(&carrier, &line, false);
    let first = line.carries(SECOND).await;
    assert!(first >= 0.8 * 160.0, "{first}");
    tokio::time::sleep(5 * SECOND).await;
    let found = line.carries(20 * SECOND).await;
    assert!(found > 850.0, "{found} a second");
}

#[tokio::test(start_paused = true)]
async fn few_are_enough_next_door() {
    let line = Line::new(SECOND / 1000, 1000);
    let carrier = Arc::new(carrier().steered(|| (0, 0)));
    let _asking = ask(&carrier, &line, false);
    tokio::time::sleep(30 * SECOND).await;
    let carried = line.carries(10 * SECOND).await;
    let under_way = line.under_way.load(Ordering::Relaxed);
    assert!(carried > 970.0 && under_way <= 16, "{carried} a second by {under_way}");
}

#[tokio::test(start_paused = true)]
async fn a_step_is_followed_within_five_seconds() {
    let line = Line::new(SECOND / 10, 200);
    let carrier = Arc::new(carrier().steered(|| (0, 0)));
    let _asking = ask(&carrier, &line, false);
    tokio::time::sleep(20 * SECOND).await;
    for per_second in [1500, 200, 1500] {
        line.set(per_second);
        tokio::time::sleep(5 * SECOND).await;
        let carried = line.carries(10 * SECOND).await;
        assert!(carried > 0.85 * f64::from(per_second), "{carried} of {per_second}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_no_reason_for_more() {
    let line = Line::new(SECOND / 10, 1_000_000);
    let carrier = Arc::new(carrier().steered(|| (0, 0)));
    let _asking = ask(&carrier, &line, true);
    tokio::time::sleep(30 * SECOND).await;
    let under_way = line.under_way.load(Ordering::Relaxed);
    assert!(under_way <= 32, "{under_way}");
}

#[tokio::test(start_paused = true)]
async fn who_says_how_many_has_as_many() {
    let line = Line::new(SECOND / 5, 1000);
    let carrier = Arc::new(carrier());
    assert_eq!(carrier.most_requests(), 32);
    let _asking = ask(&carrier, &line, false);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(line.under_way.load(Ordering::Relaxed), 32);
}

#[tokio::test(start_paused = true)]
async fn no_turn_is_lost_when_requests_are_given_up() {
    let line = Line::new(SECOND / 20, 700);
    let carrier = Arc::new(carrier().steered(|| (0, 0)));
    for seconds in 1..20 {
        let asking = ask(&carrier, &line, false);
        tokio::time::sleep(Duration::from_millis(700 * seconds % 3100)).await;
        // All of them are dropped wherever they are.
        drop(asking);
        tokio::task::yield_now().await;
        line.under_way.store(0, Ordering::Relaxed);
    }
    let _asking = ask(&carrier, &line, false);
    tokio::time::sleep(10 * SECOND).await;
    let carried = line.carries(10 * SECOND).await;
    assert!(carried > 0.85 * 700.0, "{carried}");
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_those_that_wait_for_each_other() {
    // One at a time carries as much as any number.
    let line = Line::new(Duration::ZERO, 1000);
    let carrier = Arc::new(carrier().steered(|| (0, 0)));
    let asking = ask(&carrier, &line, false);
    tokio::time::sleep(60 * SECOND).await;
    drop(asking);
    tokio::time::sleep(SECOND).await;
    // Four hold a slot until a fifth is done.
    let held: Vec<_> = futures::future::join_all((0..4).map(|_| carrier.slot(u64::MAX))).await;
    let fifth = tokio::time::timeout(SECOND, carrier.slot(u64::MAX)).await;
    assert!(fifth.is_ok() && held.iter().all(Result::is_ok));
}
