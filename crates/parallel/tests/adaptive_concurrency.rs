//! Adaptive concurrency over a simulated link, on the paused clock of the runtime, which advances while all tasks wait.

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
use tradewind_parallel::TransferContext;

const BYTES: u64 = 64 << 10;
const SECOND: Duration = Duration::from_secs(1);

/// The time of the runtime.
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

/// A store at some RTT whose link serves one request after another.
#[derive(Debug)]
struct SimulatedLink {
    rtt: Duration,
    per_request: Mutex<Duration>,
    free: Mutex<Option<Instant>>,
    in_flight: AtomicUsize,
    served: AtomicU64,
}

impl SimulatedLink {
    fn new(rtt: Duration, per_second: u32) -> Arc<Self> {
        let per_request = Mutex::new(SECOND / per_second);
        let (free, in_flight, served) = (Mutex::default(), AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Self { rtt, per_request, free, in_flight, served })
    }

    fn set(&self, per_second: u32) {
        *self.per_request.lock().unwrap() = SECOND / per_second;
    }

    async fn serve(&self) {
        let due = {
            let mut free = self.free.lock().unwrap();
            let now = Instant::now();
            let due = free.map_or(now, |free| free.max(now)) + *self.per_request.lock().unwrap();
            *free = Some(due);
            due
        };
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep_until(due + self.rtt).await;
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    /// Measures the throughput over `elapsed`, in requests per second.
    async fn throughput(&self, time: Duration) -> f64 {
        let before = self.served.load(Ordering::Relaxed);
        tokio::time::sleep(time).await;
        (self.served.load(Ordering::Relaxed) - before) as f64 / time.as_secs_f64()
    }
}

fn transfers() -> TransferContext {
    TransferContext::new(
        Plan::default(),
        Budget::new(1 << 30),
        Arc::new(Paused(Instant::now())),
        RetryOptions::default(),
    )
}

/// Starts as many clients as the maximum concurrency, each of which sends one request after another.
fn start_clients(
    transfers: &Arc<TransferContext>,
    link: &Arc<SimulatedLink>,
    is_failing: bool,
) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for _ in 0..transfers.max_concurrency() {
        let (transfers, link) = (transfers.clone(), link.clone());
        clients.spawn(async move {
            loop {
                let result = transfers.retry(|| async {
                    let _permits = transfers.acquire_request_permits(BYTES).await?;
                    link.serve().await;
                    if is_failing {
                        Err(Error::new(Reason::Defect, "injected failure"))
                    } else {
                        Result::Ok(())
                    }
                });
                drop(result.await);
            }
        });
    }
    clients
}

#[tokio::test(start_paused = true)]
async fn concurrency_rises_for_small_objects_at_a_high_rtt() {
    // A concurrency of 32 reaches 160 req/s.
    let link = SimulatedLink::new(SECOND / 5, 1000);
    let transfers = Arc::new(transfers().with_adaptive_concurrency(|| (0, 0)));
    let _clients = start_clients(&transfers, &link, false);
    let first = link.throughput(SECOND).await;
    assert!(first >= 0.8 * 160.0, "{first}");
    tokio::time::sleep(5 * SECOND).await;
    let throughput = link.throughput(20 * SECOND).await;
    assert!(throughput > 850.0, "{throughput} req/s");
}

#[tokio::test(start_paused = true)]
async fn concurrency_stays_low_at_a_low_rtt() {
    let link = SimulatedLink::new(SECOND / 1000, 1000);
    let transfers = Arc::new(transfers().with_adaptive_concurrency(|| (0, 0)));
    let _clients = start_clients(&transfers, &link, false);
    tokio::time::sleep(30 * SECOND).await;
    let throughput = link.throughput(10 * SECOND).await;
    let in_flight = link.in_flight.load(Ordering::Relaxed);
    assert!(throughput > 970.0 && in_flight <= 16, "{throughput} req/s with {in_flight} in flight");
}

#[tokio::test(start_paused = true)]
async fn concurrency_follows_a_capacity_step_within_5_s() {
    let link = SimulatedLink::new(SECOND / 10, 200);
    let transfers = Arc::new(transfers().with_adaptive_concurrency(|| (0, 0)));
    let _clients = start_clients(&transfers, &link, false);
    tokio::time::sleep(20 * SECOND).await;
    for per_second in [1500, 200, 1500] {
        link.set(per_second);
        tokio::time::sleep(5 * SECOND).await;
        let throughput = link.throughput(10 * SECOND).await;
        assert!(throughput > 0.85 * f64::from(per_second), "{throughput} of {per_second} req/s");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_requests_do_not_raise_concurrency() {
    let link = SimulatedLink::new(SECOND / 10, 1_000_000);
    let transfers = Arc::new(transfers().with_adaptive_concurrency(|| (0, 0)));
    let _clients = start_clients(&transfers, &link, true);
    tokio::time::sleep(30 * SECOND).await;
    let in_flight = link.in_flight.load(Ordering::Relaxed);
    assert!(in_flight <= 32, "{in_flight}");
}

#[tokio::test(start_paused = true)]
async fn fixed_concurrency_is_not_adapted() {
    let link = SimulatedLink::new(SECOND / 5, 1000);
    let transfers = Arc::new(transfers());
    assert_eq!(transfers.max_concurrency(), 32);
    let _clients = start_clients(&transfers, &link, false);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(link.in_flight.load(Ordering::Relaxed), 32);
}

#[tokio::test(start_paused = true)]
async fn cancelled_requests_release_their_permits() {
    let link = SimulatedLink::new(SECOND / 20, 700);
    let transfers = Arc::new(transfers().with_adaptive_concurrency(|| (0, 0)));
    for seconds in 1..20 {
        let clients = start_clients(&transfers, &link, false);
        tokio::time::sleep(Duration::from_millis(700 * seconds % 3100)).await;
        // All requests are dropped in whatever state they are.
        drop(clients);
        tokio::task::yield_now().await;
        link.in_flight.store(0, Ordering::Relaxed);
    }
    let _clients = start_clients(&transfers, &link, false);
    tokio::time::sleep(10 * SECOND).await;
    let throughput = link.throughput(10 * SECOND).await;
    assert!(throughput > 0.85 * 700.0, "{throughput}");
}

#[tokio::test(start_paused = true)]
async fn pool_always_has_permits_for_five_largest_requests() {
    // One request in flight reaches the full throughput.
    let link = SimulatedLink::new(Duration::ZERO, 1000);
    let transfers = Arc::new(transfers().with_adaptive_concurrency(|| (0, 0)));
    let clients = start_clients(&transfers, &link, false);
    tokio::time::sleep(60 * SECOND).await;
    drop(clients);
    tokio::time::sleep(SECOND).await;
    // Four of the largest requests hold their permits while they wait for a fifth.
    let held: Vec<_> =
        futures::future::join_all((0..4).map(|_| transfers.acquire_request_permits(u64::MAX))).await;
    let fifth = tokio::time::timeout(SECOND, transfers.acquire_request_permits(u64::MAX)).await;
    assert!(fifth.is_ok() && held.iter().all(Result::is_ok));
}
