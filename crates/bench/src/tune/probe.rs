//! One probe: requests of one size at one concurrency, for as short a time as gives a precise result.
//!
//! The measurement starts when a request of every worker has ended: until then, connections are opened and congestion
//! windows grow. A failed request adds to the time but not to the successful requests. If packets are lost, the
//! measurement is extended, and it starts only when throughput is steady.

mod probe_log;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::sampling::{MIN_MEASURED_SECONDS, SUFFICIENT_ROUNDS};
use tradewind_model::tune::{OperatingPoint, Sample, TailLatency};

use self::probe_log::ProbeLog;
use super::probe_target::{ProbeTarget, ProbeWorker};
use crate::cpu_usage::CpuUsage;
use crate::drive::StopSignal;
use crate::tcp_counters::TcpCounters;

/// Interval at which the end conditions are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Pause after an evaluation of the log, as a multiple of the time that it took, because the workers need the CPU.
const EVALUATION_PAUSE_FACTOR: u32 = 30;
/// Minimum measured time, unless [`SUFFICIENT_ROUNDS`] are over earlier.
const MIN_TIME: Duration = Duration::from_millis((MIN_MEASURED_SECONDS * 1e3) as u64);
/// Minimum number of measured rounds.
const MIN_ROUNDS: f64 = 2.0;
/// Warm-up on a lossy path: before their first loss, congestion windows are larger than they will be afterwards.
const LOSS_WARM_UP: Duration = Duration::from_millis(700);
/// Minimum measured time on a lossy path.
const MIN_TIME_WITH_LOSSES: Duration = Duration::from_millis(800);
/// Maximum total time on a lossy path, if losses average out over the connections.
const MAX_TIME_WITH_LOSSES: Duration = Duration::from_millis(2300);
/// Number of connections from which the effect of losses averages out over the connections. Fewer connections need a
/// longer measurement, which averages over time.
const MIN_CONNECTIONS_TO_AVERAGE_OVER: usize = 16;
/// Minimum number of losses per connection for a probe that averages over time. The losses of downloads are known only
/// to the sender, so a download lasts until one of the limits below.
const MIN_LOSSES_PER_CONNECTION: u64 = 6;
/// Maximum total time of a probe that averages losses over time.
const MAX_TIME_TO_AVERAGE_OVER_TIME: Duration = Duration::from_millis(4500);
/// Maximum bytes of a probe that averages losses over time.
const MAX_BYTES_TO_AVERAGE_OVER_TIME: u64 = 20 << 20;
/// Maximum bytes on a lossy path, if losses average out over the connections.
const MAX_BYTES_WITH_LOSSES: u64 = 192 << 20;
/// A probe on a lossy path whose losses average out over the connections may use the remaining budget divided by this.
const LOSSY_BUDGET_DIVISOR: u64 = 4;
/// Bytes of an initial congestion window (RFC 6928). The window does not limit requests up to this size.
const INITIAL_WINDOW_BYTES: u64 = 10 * 1460;
/// Relative standard error of the mean at which a probe is precise enough.
const MAX_ERROR: f64 = 0.04;
/// Maximum wait for requests in flight at the end. Cancelling them would close their connections.
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
    /// Maximum total time on a lossy path, which needs a longer measurement.
    pub max_time_with_losses: Duration,
    /// Maximum bytes of object data on a lossy path.
    pub max_bytes_with_losses: u64,
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeResult {
    /// Uploads or downloads.
    pub direction: Direction,
    /// The probed operating point.
    pub point: OperatingPoint,
    /// The measured sample; `None` if no request succeeded.
    pub sample: Option<Sample>,
    /// Number of successful requests in the measured time.
    pub requests: u64,
    /// Number of failed requests, including those outside the measured time.
    pub failures: u64,
    /// Message of one failure.
    pub failure: Option<String>,
    /// Tail of the durations of successful requests.
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
struct ProbeState {
    log: ProbeLog,
    /// Message of the first failure.
    failure: Mutex<Option<String>>,
    /// Message of a denied request, if requests are not permitted at all.
    denied: Mutex<Option<String>>,
    /// Number of requests that may still start.
    remaining_requests: AtomicU64,
    is_over: AtomicBool,
}

/// Executes a probe. Dropping the future cancels it; objects it wrote remain. Fails if requests are not permitted at
/// all, if the store cannot be opened, or if the CPU time cannot be read. Other failed requests are part of the
/// measurement.
pub async fn run_probe(
    target: &Arc<ProbeTarget>,
    (direction, point): (Direction, OperatingPoint),
    limits: ProbeLimits,
    (cpus, stop): (usize, &StopSignal),
) -> Result<ProbeResult> {
    let clock = target.env().clock.clone();
    // The mode, in case the path proves lossy: losses average out over many connections, or else over time.
    let needs_average_over_time =
        point.concurrency < MIN_CONNECTIONS_TO_AVERAGE_OVER && point.bytes > INITIAL_WINDOW_BYTES;
    let request_count = |bytes: u64| (bytes / point.bytes.max(1)).max(1);
    // With losses, the measurement takes longer and may use more requests.
    let max_bytes_with_losses = if needs_average_over_time {
        MAX_BYTES_TO_AVERAGE_OVER_TIME.min(limits.max_bytes_with_losses)
    } else {
        MAX_BYTES_WITH_LOSSES.min(limits.max_bytes_with_losses / LOSSY_BUDGET_DIVISOR)
    };
    let extra_requests = request_count(max_bytes_with_losses).saturating_sub(request_count(limits.max_bytes));
    let shared = Arc::new(ProbeState {
        log: ProbeLog::new(point.concurrency),
        failure: Mutex::default(),
        denied: Mutex::default(),
        remaining_requests: AtomicU64::new(request_count(limits.max_bytes)),
        is_over: AtomicBool::new(false),
    });
    let mut workers = JoinSet::new();
    let env = target.with_new_connections()?;
    let (start, usage_at_start) = (clock.now(), usage()?);
    for number in 0..point.concurrency {
        let worker = target.new_worker(&env, (direction, point.bytes), number).await?;
        workers.spawn(run_worker(worker, number, shared.clone(), target.clone()));
    }
    // The end of the warm-up: the time, and the CPU usage until then.
    let mut warm: Option<(Duration, CpuUsage)> = None;
    // The end of the first, shorter warm-up, saved when losses extend it. The measurement starts there if the time
    // after the longer warm-up is too short.
    let mut start_before_losses = None;
    let packets_before = TcpCounters::read();
    let packets = || TcpCounters::read().since(&packets_before);
    let retransmits = || if direction == Direction::Write { packets().retransmitted } else { 0 };
    let (mut is_lossy, mut min_time, mut max_time) = (false, MIN_TIME, limits.max_time);
    let mut next_evaluation = start;
    let end = loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let now = clock.now();
        let is_past_warm_up = !is_lossy || now - start >= LOSS_WARM_UP;
        if warm.is_none() && is_past_warm_up && shared.log.is_warm() {
            warm = Some((now, usage()?));
        }
        let is_spent = now - start >= max_time || shared.remaining_requests.load(Ordering::Relaxed) == 0;
        let may_be_enough = |from: Duration| now >= next_evaluation && (!is_lossy || now - from >= min_time);
        let is_enough = warm.as_ref().filter(|(from, _)| may_be_enough(*from)).is_some_and(|(from, _)| {
            let evaluation_start = clock.now();
            let (from, is_steady) =
                if is_lossy { shared.log.steady_start((*from, now)) } else { (*from, true) };
            let stats = shared.log.stats_with_error((from, now));
            let min_losses = MIN_LOSSES_PER_CONNECTION * point.concurrency as u64;
            let has_enough_losses = !is_lossy || !needs_average_over_time || retransmits() >= min_losses;
            let has_min_time = now - from >= min_time && has_enough_losses;
            let has_sufficient_rounds = stats.rounds >= SUFFICIENT_ROUNDS && !is_lossy;
            let is_long = has_min_time || has_sufficient_rounds;
            let is_precise = stats.rounds >= MIN_ROUNDS && stats.relative_error <= MAX_ERROR;
            let is_enough = is_long && is_steady && is_precise && !shared.log.is_still_growing((from, now));
            let evaluation_end = clock.now();
            next_evaluation = evaluation_end + (evaluation_end - evaluation_start) * EVALUATION_PAUSE_FACTOR;
            is_enough
        });
        if let Some(denied) = shared.denied.lock().take() {
            return Err(Error::new(Reason::AccessDenied, denied));
        }
        let hard_limit =
            if needs_average_over_time { MAX_TIME_TO_AVERAGE_OVER_TIME } else { MAX_TIME_WITH_LOSSES };
        let may_extend = (is_enough || is_spent) && !is_lossy && now - start < hard_limit;
        if may_extend && (target.is_lossy() || target.is_loss_significant(packets().loss_events())) {
            target.mark_lossy();
            (is_lossy, min_time, max_time) =
                (true, MIN_TIME_WITH_LOSSES, max_time.max(hard_limit.min(limits.max_time_with_losses)));
            shared.remaining_requests.fetch_add(extra_requests, Ordering::Relaxed);
            start_before_losses = warm.take_if(|(from, _)| *from - start < LOSS_WARM_UP);
        } else if is_spent || is_enough || stop.is_triggered() {
            break now;
        }
    };
    // If no request of some worker ended, the measured time begins at the start of the probe.
    let (from, usage_before) =
        measurement_start(warm, start_before_losses, end).unwrap_or((start, usage_at_start));
    let used = usage()?.since(&usage_before);
    shared.is_over.store(true, Ordering::Relaxed);
    let drained =
        tokio::time::timeout(DRAIN_TIMEOUT, async { while workers.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        workers.shutdown().await;
    }
    let seconds = (end - from).as_secs_f64();
    let fractional_requests = shared.log.stats((from, end)).fractional_requests;
    let (steady_from, _) = if is_lossy { shared.log.steady_start((from, end)) } else { (from, true) };
    let mut stats = shared.log.stats_with_error((steady_from, end));
    if stats.succeeded == 0 {
        // No request succeeded within the measured window: use the window from the start of the probe.
        stats = shared.log.stats_with_error((start, end));
    }
    let utilization =
        if seconds > 0.0 { used.total().as_secs_f64() / seconds / cpus.max(1) as f64 } else { 0.0 };
    Ok(ProbeResult {
        direction,
        point,
        sample: stats.to_sample(point),
        requests: stats.succeeded,
        failures: shared.log.failure_count(),
        failure: shared.failure.lock().clone(),
        tail: stats.tail,
        cpu_seconds_per_request: used.total().as_secs_f64() / fractional_requests.max(1.0),
        cpu_utilization: utilization,
        bytes: shared.log.started_count().saturating_mul(point.bytes),
        time: clock.now() - start,
    })
}

/// The start of the measured time, with the value recorded there: the end of the warm-up, or the end of the shorter
/// warm-up before losses were found if too little time follows the former.
fn measurement_start<T>(
    warm: Option<(Duration, T)>,
    start_before_losses: Option<(Duration, T)>,
    end: Duration,
) -> Option<(Duration, T)> {
    let is_long = warm.as_ref().is_some_and(|(from, _)| end.saturating_sub(*from) >= MIN_TIME);
    if is_long { warm } else { start_before_losses.or(warm) }
}

/// The CPU usage of this process.
fn usage() -> Result<CpuUsage> {
    CpuUsage::snapshot()
        .map_err(|e| Error::with_source(Reason::Io, "cannot measure the CPU time of this process", e))
}

/// Sends requests one after another until the probe is over.
async fn run_worker(
    mut worker: ProbeWorker,
    number: usize,
    shared: Arc<ProbeState>,
    target: Arc<ProbeTarget>,
) {
    let clock = &target.env().clock;
    let mut pause = FAILURE_BACKOFF;
    while !shared.is_over.load(Ordering::Relaxed) {
        if !shared.take_request() {
            // The number of requests may still be raised, if losses are found.
            tokio::time::sleep(POLL_INTERVAL).await;
            continue;
        }
        // A store that always responds immediately would otherwise starve the other tasks.
        tokio::task::coop::consume_budget().await;
        shared.log.request_started(number, clock.now());
        let result = worker.execute_request().await;
        shared.log.request_ended(number, clock.now(), result.is_ok());
        match result {
            Ok(()) => pause = FAILURE_BACKOFF,
            Err(failure) => {
                // After a success, requests are permitted in principle, and a denied one is an ordinary failure.
                if failure.error_kind == Some(ErrorKind::Denied) && !shared.log.has_success() {
                    shared.denied.lock().get_or_insert(failure.message);
                    return;
                }
                shared.failure.lock().get_or_insert(failure.message);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_FAILURE_BACKOFF);
            }
        }
    }
}

impl ProbeState {
    /// Takes one of the remaining requests. Returns false if there is none.
    fn take_request(&self) -> bool {
        let take = |remaining: u64| remaining.checked_sub(1);
        self.remaining_requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_time_starts_early_if_too_little_is_left() {
        let at = |milliseconds| Some((Duration::from_millis(milliseconds), ()));
        let end = Duration::from_millis(1000);
        assert_eq!(measurement_start(at(950), at(100), end), at(100), "50 ms are too short");
        assert_eq!(measurement_start(at(700), at(100), end), at(700));
        assert_eq!(measurement_start(at(950), None, end), at(950), "there is no earlier start");
        assert_eq!(measurement_start(None, at(100), end), at(100));
        assert_eq!(measurement_start::<()>(None, None, end), None);
    }
}
