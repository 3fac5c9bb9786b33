//! One probe: requests of one size at one concurrency, for as short a time as gives a precise result.
//!
//! Nothing counts until every worker has completed a request: until then, connections are opened and congestion windows
//! grow. From then on, the result is the work done per time. A failed request takes time and does no work.

mod worker_log;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_model::store_model::Direction;
use tradewind_model::tune::sampling::{MAX_MEASURED_ROUNDS, MIN_MEASURED_SECONDS};
use tradewind_model::tune::{OperatingPoint, Sample, TailLatency};

use self::worker_log::WorkerLog;
use super::probe_target::{ProbeTarget, ProbeWorker};
use crate::cpu_usage::CpuUsage;
use crate::drive::StopSignal;
use crate::tcp_counters::TcpCounters;

/// Interval at which the end conditions are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Pause after evaluating the log, as a multiple of the time it took: the measured workers need the CPU.
const EVALUATION_PAUSE: u32 = 30;
/// Minimum measured time, unless there are many short rounds; and the minimum number of rounds.
const MIN_TIME: Duration = Duration::from_millis((MIN_MEASURED_SECONDS * 1e3) as u64);
const MIN_ROUNDS: f64 = 2.0;
/// With packet loss, congestion windows are too large before their first loss. The time before is skipped, as is
/// everything until throughput is steady, and the measurement takes longer.
const LOSS_WARM_UP: Duration = Duration::from_millis(700);
const MIN_TIME_WITH_LOSSES: Duration = Duration::from_millis(800);
const MAX_TIME_WITH_LOSSES: Duration = Duration::from_millis(2300);
/// Fewer connections than this do not average out over losses. Each must have met a minimum number of them, within a
/// maximum time and number of bytes. Download losses are only known to the sender, so downloads use the full limits.
const FEW_CONNECTIONS: usize = 16;
const MIN_LOSSES_PER_CONNECTION: u64 = 6;
const MAX_TIME_OF_FEW: Duration = Duration::from_millis(4500);
const MAX_BYTES_OF_FEW: u64 = 20 << 20;
/// More connections average out in the normal time, but transfer more bytes: at most this, and this part of the budget.
const MAX_BYTES_OF_MANY: u64 = 192 << 20;
const MAX_BUDGET_DIVISOR: u64 = 4;
/// Bytes of an initial congestion window (RFC 6928). Requests up to this size are not limited by the window.
const INITIAL_WINDOW_BYTES: u64 = 10 * 1460;
/// Relative standard error of the mean at which a probe is precise enough.
const MAX_ERROR: f64 = 0.04;
/// Maximum wait for requests in flight at the end. Cancelling them would cost their connections.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause of a worker after a failed request. It doubles with each consecutive failure, up to a maximum.
const FAILURE_BACKOFF: Duration = Duration::from_millis(20);
const MAX_FAILURE_BACKOFF: Duration = Duration::from_secs(1);

/// The limits of a probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProbeLimits {
    /// Maximum total time.
    pub max_time: Duration,
    /// Maximum bytes of object data.
    pub max_bytes: u64,
    /// Both maxima if packets are lost, which needs a longer measurement.
    pub max_with_losses: (Duration, u64),
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeResult {
    /// Uploads or downloads.
    pub direction: Direction,
    /// The probed operating point.
    pub point: OperatingPoint,
    /// The measured sample; `None` if no request completed in the measured time.
    pub sample: Option<Sample>,
    /// Requests in the measured time.
    pub requests: u64,
    /// Failed requests.
    pub failures: u64,
    /// Message of one failure.
    pub failure: Option<String>,
    /// Tail of the latency.
    pub tail: TailLatency,
    /// CPU time of this process per request, in seconds.
    pub cpu_seconds_per_request: f64,
    /// CPU utilization of this process relative to the CPUs that it may use, 0 to 1.
    pub cpu_utilization: f64,
    /// Bytes of object data, including those outside the measured time.
    pub bytes: u64,
    /// Total duration.
    pub time: Duration,
}

/// State shared by the workers of a probe.
#[derive(Debug)]
struct Shared {
    log: WorkerLog,
    failure: Mutex<Option<String>>,
    /// Message of a denied request, if requests are not permitted at all.
    denied: Mutex<Option<String>>,
    /// Requests that may still start.
    left: AtomicU64,
    is_over: AtomicBool,
}

/// Executes a probe. Dropping the future cancels it; objects it wrote remain. Fails only if requests are not permitted
/// at all. Other failed requests are part of the measurement.
pub async fn run_probe(
    target: &Arc<ProbeTarget>,
    (direction, point): (Direction, OperatingPoint),
    extent: ProbeLimits,
    (cores, stop): (usize, &StopSignal),
) -> Result<ProbeResult> {
    let clock = target.env().clock.clone();
    let is_few = point.concurrency < FEW_CONNECTIONS && point.bytes > INITIAL_WINDOW_BYTES;
    let requests = |bytes: u64| (bytes / point.bytes.max(1)).max(1);
    // With losses, the measurement takes longer and may use more requests.
    let max_bytes = if is_few {
        MAX_BYTES_OF_FEW.min(extent.max_with_losses.1)
    } else {
        MAX_BYTES_OF_MANY.min(extent.max_with_losses.1 / MAX_BUDGET_DIVISOR)
    };
    let more = requests(max_bytes).saturating_sub(requests(extent.max_bytes));
    let shared = Arc::new(Shared {
        log: WorkerLog::new(point.concurrency),
        failure: Mutex::default(),
        denied: Mutex::default(),
        left: AtomicU64::new(requests(extent.max_bytes)),
        is_over: AtomicBool::new(false),
    });
    let mut asking = JoinSet::new();
    let env = target.with_new_connections()?;
    let (start, at_start) = (clock.now(), usage()?);
    for number in 0..point.concurrency {
        let worker = target.new_worker(&env, (direction, point.bytes), number).await?;
        asking.spawn(ask(worker, number, shared.clone(), target.clone()));
    }
    let mut warm: Option<(Duration, CpuUsage)> = None;
    // The start of measurement before losses were found, in case there is no better one.
    let mut early = None;
    let packets_before = TcpCounters::read();
    let packets = || TcpCounters::read().since(&packets_before);
    let retransmits = || if direction == Direction::Write { packets().retransmitted } else { 0 };
    let (mut loses, mut min_time, mut max_time) = (false, MIN_TIME, extent.max_time);
    let mut next_evaluation = start;
    let end = loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let now = clock.now();
        let is_past_warm_up = !loses || now - start >= LOSS_WARM_UP;
        if warm.is_none() && is_past_warm_up && shared.log.is_warm() {
            warm = Some((now, usage()?));
        }
        let is_spent = now - start >= max_time || shared.left.load(Ordering::Relaxed) == 0;
        let may_be_enough = |from: Duration| now >= next_evaluation && (!loses || now - from >= min_time);
        let is_enough = warm.as_ref().filter(|(from, _)| may_be_enough(*from)).is_some_and(|(from, _)| {
            let began = clock.now();
            let (from, is_steady) = if loses { shared.log.steady_start((*from, now)) } else { (*from, true) };
            let counted = shared.log.stats_with_error((from, now));
            let has_losses =
                !loses || !is_few || retransmits() >= MIN_LOSSES_PER_CONNECTION * point.concurrency as u64;
            let is_long =
                now - from >= min_time && has_losses || counted.rounds >= MAX_MEASURED_ROUNDS && !loses;
            let is_precise = counted.rounds >= MIN_ROUNDS && counted.relative_error <= MAX_ERROR;
            let is_enough = is_long && is_steady && is_precise && !shared.log.is_still_growing((from, now));
            let ended = clock.now();
            next_evaluation = ended + (ended - began) * EVALUATION_PAUSE;
            is_enough
        });
        if let Some(denied) = shared.denied.lock().take() {
            return Err(Error::new(Reason::AccessDenied, denied));
        }
        let hard_limit = if is_few { MAX_TIME_OF_FEW } else { MAX_TIME_WITH_LOSSES };
        let may_extend = (is_enough || is_spent) && !loses && now - start < hard_limit;
        if may_extend && (target.is_lossy() || target.is_loss_significant(packets().loss_events())) {
            target.mark_lossy();
            (loses, min_time, max_time) =
                (true, MIN_TIME_WITH_LOSSES, max_time.max(hard_limit.min(extent.max_with_losses.0)));
            shared.left.fetch_add(more, Ordering::Relaxed);
            early = warm.take_if(|(from, _)| *from - start < LOSS_WARM_UP);
        } else if is_spent || is_enough || stop.is_triggered() {
            break now;
        }
    };
    // If some worker never completed a request, everything since the start is used.
    let (from, before) = beginning(warm, early, end).unwrap_or((start, at_start));
    let used = usage()?.since(&before);
    shared.is_over.store(true, Ordering::Relaxed);
    let drained =
        tokio::time::timeout(DRAIN_TIMEOUT, async { while asking.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        asking.shutdown().await;
    }
    let seconds = (end - from).as_secs_f64();
    let all = shared.log.stats((from, end)).requests;
    let (settled, _) = if loses { shared.log.steady_start((from, end)) } else { (from, true) };
    let mut counted = shared.log.stats_with_error((settled, end));
    if counted.completed == 0 {
        // Every request completed after the end: fall back to the whole time.
        counted = shared.log.stats_with_error((start, end));
    }
    let utilization =
        if seconds > 0.0 { used.total().as_secs_f64() / seconds / cores.max(1) as f64 } else { 0.0 };
    Ok(ProbeResult {
        direction,
        point,
        sample: counted.to_sample(point),
        requests: counted.completed,
        failures: shared.log.failure_count(),
        failure: shared.failure.lock().clone(),
        tail: counted.tail,
        cpu_seconds_per_request: used.total().as_secs_f64() / all.max(1.0),
        cpu_utilization: utilization,
        bytes: shared.log.started_count().saturating_mul(point.bytes),
        time: clock.now() - start,
    })
}

/// The start of the measured time: after the warm-up, or earlier if too little time is left since losses were found.
fn beginning<T>(
    warm: Option<(Duration, T)>,
    early: Option<(Duration, T)>,
    end: Duration,
) -> Option<(Duration, T)> {
    let is_long = warm.as_ref().is_some_and(|(from, _)| end.saturating_sub(*from) >= MIN_TIME);
    if is_long { warm } else { early.or(warm) }
}

fn usage() -> Result<CpuUsage> {
    CpuUsage::snapshot()
        .map_err(|e| Error::with_source(Reason::Io, "cannot measure the CPU time of this process", e))
}

async fn ask(mut worker: ProbeWorker, number: usize, shared: Arc<Shared>, target: Arc<ProbeTarget>) {
    let clock = &target.env().clock;
    let mut pause = FAILURE_BACKOFF;
    while !shared.is_over.load(Ordering::Relaxed) {
        if !shared.may_begin() {
            // The limit may still be raised.
            tokio::time::sleep(POLL_INTERVAL).await;
            continue;
        }
        // A store that always completes immediately would otherwise starve the other tasks.
        tokio::task::coop::consume_budget().await;
        shared.log.request_started(number, clock.now());
        let answered = worker.execute_request().await;
        let failed = answered.is_err();
        shared.log.request_completed(number, clock.now(), !failed);
        match answered {
            Ok(()) => pause = FAILURE_BACKOFF,
            Err(failed) => {
                // After a success, requests are permitted in principle, and a denied one is an ordinary failure.
                if failed.error_kind == Some(ErrorKind::Denied) && !shared.log.has_success() {
                    shared.denied.lock().get_or_insert(failed.message);
                    return;
                }
                shared.failure.lock().get_or_insert(failed.message);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_FAILURE_BACKOFF);
            }
        }
    }
}

impl Shared {
    /// Takes one of the remaining requests. Returns false if there is none.
    fn may_begin(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_time_starts_early_if_too_little_is_left() {
        let at = |milliseconds| Some((Duration::from_millis(milliseconds), ()));
        let end = Duration::from_millis(1000);
        assert_eq!(beginning(at(950), at(100), end), at(100), "50 ms are too short");
        assert_eq!(beginning(at(700), at(100), end), at(700));
        assert_eq!(beginning(at(950), None, end), at(950), "there is no earlier start");
        assert_eq!(beginning(None, at(100), end), at(100));
        assert_eq!(beginning::<()>(None, None, end), None);
    }
}
