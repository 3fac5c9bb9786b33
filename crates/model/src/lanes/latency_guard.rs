//! Protects the latency of high-priority requests: throttles lanes of lower rank so that higher ranks are nearly as
//! fast as without them.
//!
//! The uncontended latency of a kind of request is the lowest mean of 8 consecutive requests within a minute. Lower
//! ranks are throttled in proportion to the latency added to that. If the added latency equals its target, they run at
//! their measured capacity, which keeps the link busy and its queue short. Every 10 s they are throttled briefly (a
//! *probe*), so that the uncontended latency is observed again.
//!
//! The latency during probes shows what throttling can achieve. If it stays above the minimum, the requests are slow
//! for another reason, and lower ranks are not throttled for it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::lane_kind::{LaneKind, Priority, rank_in};

/// Latency that throttled lanes may add to each rank, as a fraction of its uncontended mean. The last rank is never
/// protected.
const LATENCY_TARGETS: [f64; LaneKind::RANK_COUNT - 1] = [0.15, 0.15, 0.25];
/// Number of request durations within which an excess is corrected (proportional gain).
const CORRECTION_REQUESTS: f64 = 2.0;
/// Throttled lanes accelerate while the added latency is below this fraction of the target …
const ACCELERATION_THRESHOLD: f64 = 0.5;
/// … for more than this many request durations. Shorter periods may be the effect of a recent throttling.
const ACCELERATION_DELAY_REQUESTS: f64 = 8.0;
/// Bounds of the rate, as a factor of the capacity.
const MIN_RATE_FACTOR: f64 = 0.5;
const MAX_RATE_FACTOR: f64 = 2.0;
/// Fraction of the capacity that throttling may cost in the long run, …
const LOSS_BUDGET: f64 = 0.08;
/// … and the burst of it, in seconds of capacity.
const LOSS_BURST_SECONDS: f64 = 2.0;
/// Rate share while no higher rank has a recent latency estimate.
const NO_ESTIMATE_SHARE: RateShare = RateShare { rate_factor: 0.95, is_measured: false };
/// Maximum rate share while a higher rank is active in the same lane.
const SAME_LANE_SHARE: RateShare = RateShare { rate_factor: 0.9, is_measured: false };
/// A rank is active this long after its last request.
const ACTIVE_FOR: Duration = Duration::from_secs(10);
/// Older latency estimates are ignored.
const MAX_ESTIMATE_AGE: Duration = Duration::from_secs(1);
/// Interval of probes, delay of the first one, and the rate factor during a probe.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBE_FIRST: Duration = Duration::from_millis(500);
const PROBE_RATE_FACTOR: f64 = 0.75;
/// Length of a probe in request durations: enough to drain a queue of as many.
const PROBE_REQUESTS: f64 = 4.0;
/// Maximum length of a probe.
const MAX_PROBE: Duration = Duration::from_secs(2);
/// Number of requests per mean.
const GROUP_SIZE: u32 = 8;
/// Weight of the latest request in the moving average (EWMA) of the current latency.
const EWMA_WEIGHT: f64 = 0.25;
/// Fraction of the latency target that a residual queue may still add during probes. The minimum is trusted if probes
/// are no slower than that.
const RESIDUAL_QUEUE: f64 = 0.25;
/// Maximum number of requests that the mean latency of probes is taken over.
const MAX_PROBE_SAMPLES: u32 = 32;
/// A group of probe requests faster than this fraction of the known mean means that the store has changed.
const RESET_RATIO: f64 = 0.25;
/// A mean below this fraction of the minimum is a significant improvement.
const IMPROVEMENT_RATIO: f64 = 0.95;
/// Number and length of the slices over which the minimum is kept.
const BASELINE_SLICES: u64 = 6;
const SLICE_SECONDS: u64 = 10;

#[derive(Debug)]
pub(super) struct LatencyGuard {
    /// Time of the last request of each rank.
    last_request: [Option<Duration>; LaneKind::RANK_COUNT],
    /// Current latency of each rank.
    current: [Option<CurrentLatency>; LaneKind::RANK_COUNT],
    baselines: BTreeMap<LaneKind, BaselineLatency>,
    /// The loss budget left, in seconds of capacity.
    loss_budget_left: f64,
    /// Time up to which the loss budget is accounted.
    accounted_until: Duration,
    /// Time of the next probe, while any lane is throttled.
    next_probe: Option<Duration>,
    /// Measurement window of the probe: its second half, after the queue has drained.
    probe_window_start: Duration,
    probe_end: Duration,
    /// A kind of request has improved since the last probe started.
    has_improved: bool,
    /// The last probe found no improvement, so the uncontended latencies are confirmed.
    is_baseline_confirmed: bool,
}

/// The rate of a lower rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateShare {
    /// Factor of the capacity of the lane.
    pub rate_factor: f64,
    /// The factor follows from a measured latency. Otherwise the benefit of throttling is unknown.
    pub is_measured: bool,
}

/// The current latency of a rank.
#[derive(Debug, Clone, Copy)]
struct CurrentLatency {
    /// Ratio to the uncontended latency.
    ratio: f64,
    seconds: f64,
    /// The latency during probes is known and hardly above the minimum.
    is_stable: bool,
    measured_at: Duration,
    /// Time since which hardly any latency is added.
    headroom_since: Option<Duration>,
}

/// The uncontended latency of a kind of request.
#[derive(Debug, Default)]
struct BaselineLatency {
    /// The current group.
    group: LatencyMean,
    /// The lowest mean of each slice.
    minima: VecDeque<SliceMinimum>,
    /// The current group of requests that started during a probe.
    probe_group: LatencyMean,
    /// Requests of the last such groups.
    probe_mean: LatencyMean,
}

/// The lowest mean latency in a slice, in seconds.
#[derive(Debug, Clone, Copy)]
struct SliceMinimum {
    slice: u64,
    seconds: f64,
}

/// A mean latency.
#[derive(Debug, Default)]
struct LatencyMean {
    seconds: f64,
    count: u32,
}

impl Default for LatencyGuard {
    fn default() -> Self {
        Self {
            last_request: [None; LaneKind::RANK_COUNT],
            current: [None; LaneKind::RANK_COUNT],
            baselines: BTreeMap::new(),
            loss_budget_left: LOSS_BURST_SECONDS,
            accounted_until: Duration::ZERO,
            next_probe: None,
            probe_window_start: Duration::ZERO,
            probe_end: Duration::ZERO,
            has_improved: false,
            is_baseline_confirmed: false,
        }
    }
}

impl LatencyGuard {
    /// Records the arrival of a request.
    pub fn record_arrival(&mut self, kind: LaneKind, now: Duration) {
        if !kind.is_size_unknown {
            self.last_request[kind.rank()] = Some(now);
        }
    }

    /// Records the latency of a completed request.
    pub fn record_latency(&mut self, kind: LaneKind, service: Duration, now: Duration) {
        let seconds = service.as_secs_f64().max(1e-6);
        let (rank, baseline) = (kind.rank(), self.baselines.entry(kind).or_default());
        self.has_improved |= baseline.record(seconds, now);
        if (self.probe_window_start..self.probe_end).contains(&now.saturating_sub(service)) {
            baseline.record_probe(seconds);
        }
        let target = LATENCY_TARGETS.get(rank).copied().unwrap_or_default();
        let Some(uncontended) = baseline.uncontended(target * RESIDUAL_QUEUE, now) else { return };
        let (ratio, is_stable) = (seconds / uncontended, baseline.is_stable(target, now));
        let before = self.current[rank].filter(|current| current.is_fresh(now));
        let first = CurrentLatency { ratio, seconds, is_stable, measured_at: now, headroom_since: None };
        let mut current = before.unwrap_or(first);
        current.ratio += (ratio - current.ratio) * EWMA_WEIGHT;
        current.seconds += (seconds - current.seconds) * EWMA_WEIGHT;
        (current.is_stable, current.measured_at) = (is_stable, now);
        let has_headroom = LATENCY_TARGETS
            .get(rank)
            .is_some_and(|target| current.ratio < 1.0 + target * ACCELERATION_THRESHOLD);
        current.headroom_since = has_headroom.then(|| current.headroom_since.unwrap_or(now));
        self.current[rank] = Some(current);
    }

    /// Advances the time. No loss is accounted unless `is_throttled`: a lane with a known capacity is outranked.
    pub fn advance(&mut self, is_throttled: bool, now: Duration) {
        let (since, at) = (now.saturating_sub(self.accounted_until).as_secs_f64(), self.accounted_until);
        self.accounted_until = self.accounted_until.max(now);
        let Some(first) = self.highest_active_rank(now).filter(|_| is_throttled) else {
            (self.next_probe, self.is_baseline_confirmed) = (None, false);
            self.loss_budget_left = (self.loss_budget_left + LOSS_BUDGET * since).min(LOSS_BURST_SECONDS);
            return;
        };
        let lost = (1.0 - self.throttled_share(first, at).rate_factor).max(0.0);
        self.loss_budget_left =
            (self.loss_budget_left + (LOSS_BUDGET - lost) * since).clamp(0.0, LOSS_BURST_SECONDS);
        if self.next_probe.is_none() {
            self.has_improved = true;
        }
        let next_probe = *self.next_probe.get_or_insert(now + PROBE_FIRST);
        let request_time =
            self.current[first].map_or(Duration::ZERO, |current| Duration::from_secs_f64(current.seconds));
        if now >= next_probe {
            self.is_baseline_confirmed &= !self.has_improved;
            let length = self.current[first].map_or(Duration::ZERO, |current| current.probe_length());
            (self.probe_window_start, self.probe_end) = (now + length / 2, now + length);
            self.next_probe = Some(now + PROBE_EVERY);
            self.has_improved = false;
        } else if now >= self.probe_end {
            self.is_baseline_confirmed = !self.has_improved;
            if self.has_improved {
                // There was a queue, and it may not have drained yet.
                self.next_probe = Some(next_probe.min(now + request_time));
            }
        }
    }

    /// The rate share of a priority in a lane; `None` if it has the highest active rank.
    pub fn rate_share(&self, lane: usize, priority: Priority, now: Duration) -> Option<RateShare> {
        let rank = rank_in(lane, priority);
        let first = self.highest_active_rank(now).filter(|first| *first < rank)?;
        let share = self.throttled_share(first, now);
        // Ranks of the same lane share its capacity, so that their latency shows no queue that throttling would drain.
        let shares_lane = (0..rank).any(|other| other % 2 == rank % 2 && self.is_active(other, now));
        Some(if shares_lane && share.rate_factor > SAME_LANE_SHARE.rate_factor {
            SAME_LANE_SHARE
        } else {
            share
        })
    }

    fn throttled_share(&self, highest_rank: usize, now: Duration) -> RateShare {
        let min_factor = if self.loss_budget_left > 0.0 { MIN_RATE_FACTOR } else { 1.0 - LOSS_BUDGET };
        let measured = |factor| RateShare { rate_factor: factor, is_measured: true };
        if now < self.probe_end {
            return measured(PROBE_RATE_FACTOR.max(min_factor));
        }
        let mut ranks = self.current.into_iter().zip(LATENCY_TARGETS).skip(highest_rank);
        let fresh =
            ranks.find_map(|(current, target)| Some((current.filter(|it| it.is_fresh(now))?, target)));
        let factor = |current: CurrentLatency, target: f64| {
            // The capacity may be underestimated because demand was low: accelerate, to twice the rate after 1 s.
            let headroom_since = current.headroom_since.filter(|_| self.is_baseline_confirmed);
            let since = headroom_since.map_or(0.0, |since| now.saturating_sub(since).as_secs_f64());
            let acceleration = (since - current.seconds * ACCELERATION_DELAY_REQUESTS).max(0.0);
            (1.0 + (1.0 + target - current.ratio) / CORRECTION_REQUESTS) * (1.0 + acceleration)
        };
        fresh.map_or(NO_ESTIMATE_SHARE, |(current, target)| {
            measured(factor(current, target).clamp(min_factor, MAX_RATE_FACTOR))
        })
    }

    /// The highest active rank.
    fn highest_active_rank(&self, now: Duration) -> Option<usize> {
        (0..LaneKind::RANK_COUNT).find(|rank| self.is_active(*rank, now))
    }

    /// Returns true if an active rank of the lane is outranked.
    pub fn is_outranked(&self, lane: usize, now: Duration) -> bool {
        let first = self.highest_active_rank(now);
        let mut ranks =
            [Priority::High, Priority::Normal].map(|priority| rank_in(lane, priority)).into_iter();
        ranks.any(|rank| self.is_active(rank, now) && first.is_some_and(|first| first < rank))
    }

    fn is_active(&self, rank: usize, now: Duration) -> bool {
        self.last_request[rank].is_some_and(|seen| now.saturating_sub(seen) < ACTIVE_FOR)
    }
}

impl CurrentLatency {
    /// Length of a probe: long enough to drain a queue, and the maximum if no queue was seen to drain.
    fn probe_length(&self) -> Duration {
        let queue = Duration::from_secs_f64(self.seconds * PROBE_REQUESTS);
        if self.is_stable { queue.min(MAX_PROBE) } else { MAX_PROBE }
    }

    fn is_fresh(&self, now: Duration) -> bool {
        now.saturating_sub(self.measured_at) < MAX_ESTIMATE_AGE
    }
}

impl BaselineLatency {
    /// Records a latency. Returns true on a significant improvement of the minimum.
    fn record(&mut self, seconds: f64, now: Duration) -> bool {
        let Some(group) = self.group.add(seconds) else { return false };
        let (before, mean) = (self.minimum(now), group.mean());
        let slice = now.as_secs() / SLICE_SECONDS;
        match self.minima.back_mut() {
            Some(last) if last.slice >= slice => last.seconds = last.seconds.min(mean),
            _ => self.minima.push_back(SliceMinimum { slice, seconds: mean }),
        }
        while self.minima.front().is_some_and(|first| first.slice + BASELINE_SLICES <= slice) {
            self.minima.pop_front();
        }
        let Some(before) = before.filter(|before| mean < before * IMPROVEMENT_RATIO) else { return false };
        // The queue had not drained during earlier probes: correct their mean by the same ratio.
        self.probe_mean.seconds *= mean / before;
        true
    }

    /// Records the latency of a request that started during a probe.
    fn record_probe(&mut self, seconds: f64) {
        let Some(group) = self.probe_group.add(seconds) else { return };
        if group.mean() < self.probe_mean.mean() * RESET_RATIO {
            self.probe_mean = LatencyMean::default();
        } else if self.probe_mean.count >= MAX_PROBE_SAMPLES {
            // Older requests decay.
            self.probe_mean =
                LatencyMean { seconds: self.probe_mean.seconds / 2.0, count: self.probe_mean.count / 2 };
        }
        self.probe_mean.seconds += group.seconds;
        self.probe_mean.count += group.count;
    }

    /// The uncontended latency in seconds: the minimum, or the mean of probes without the fraction `residual_queue`
    /// that a queue may still add to it.
    fn uncontended(&self, residual_queue: f64, now: Duration) -> Option<f64> {
        Some(self.minimum(now)?.max(self.probe_mean.mean() / (1.0 + residual_queue)))
    }

    /// Returns true if the latency during probes is known, and at most the fraction `target` above the minimum.
    fn is_stable(&self, target: f64, now: Duration) -> bool {
        let minimum = self.minimum(now).filter(|_| self.probe_mean.count > 0);
        minimum.is_some_and(|minimum| self.probe_mean.mean() < minimum * (1.0 + target))
    }

    fn minimum(&self, now: Duration) -> Option<f64> {
        let slice = now.as_secs() / SLICE_SECONDS;
        let recent = self.minima.iter().filter(|minimum| minimum.slice + BASELINE_SLICES > slice);
        recent.map(|minimum| minimum.seconds).reduce(f64::min)
    }
}

impl LatencyMean {
    /// Adds a latency. Returns the mean once the group is complete, and starts the next group.
    fn add(&mut self, seconds: f64) -> Option<Self> {
        (self.seconds, self.count) = (self.seconds + seconds, self.count + 1);
        (self.count >= GROUP_SIZE).then(|| std::mem::take(self))
    }

    /// The mean in seconds; 0 without requests.
    fn mean(&self) -> f64 {
        self.seconds / f64::from(self.count.max(1))
    }
}
