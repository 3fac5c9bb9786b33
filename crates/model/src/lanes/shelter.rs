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

use super::kind::{Kind, Priority, rank_in};

/// Latency that throttled lanes may add to each rank, as a fraction of its uncontended mean. The last rank is never
/// protected.
const LATENCY_TARGETS: [f64; Kind::RANKS - 1] = [0.15, 0.15, 0.25];
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
const NO_ESTIMATE_SHARE: Share = Share { factor: 0.95, is_felt: false };
/// Maximum rate share while a higher rank is active in the same lane.
const SAME_LANE_SHARE: Share = Share { factor: 0.9, is_felt: false };
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
pub(super) struct Shelter {
    /// Time of the last request of each rank.
    seen: [Option<Duration>; Kind::RANKS],
    /// Current latency of each rank.
    speeds: [Option<Speed>; Kind::RANKS],
    usual: BTreeMap<Kind, Usual>,
    /// The loss budget left, in seconds of capacity.
    allowance: f64,
    /// Time up to which the loss budget is accounted.
    at: Duration,
    /// Time of the next probe, while any lane is throttled.
    look: Option<Duration>,
    /// Measurement window of the probe: its second half, after the queue has drained.
    looked: Duration,
    looking: Duration,
    /// A kind of request has improved since the last probe started.
    found: bool,
    /// The last probe found no improvement, so the uncontended latencies are confirmed.
    is_sure: bool,
}

/// The rate of a lower rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// Factor of the capacity of the lane.
    pub factor: f64,
    /// The factor follows from a measured latency. Otherwise the benefit of throttling is unknown.
    pub is_felt: bool,
}

/// The current latency of a rank.
#[derive(Debug, Clone, Copy)]
struct Speed {
    /// Ratio to the uncontended latency.
    times: f64,
    seconds: f64,
    /// The latency during probes is known and hardly above the minimum.
    is_steady: bool,
    at: Duration,
    /// Time since which hardly any latency is added.
    easy: Option<Duration>,
}

/// The uncontended latency of a kind of request.
#[derive(Debug, Default)]
struct Usual {
    /// The current group.
    group: Mean,
    /// The lowest mean of each slice.
    minima: VecDeque<(u64, f64)>,
    /// The current group of requests that started during a probe.
    calm: Mean,
    /// Requests of the last such groups.
    held: Mean,
}

/// A mean latency.
#[derive(Debug, Default)]
struct Mean {
    seconds: f64,
    count: u32,
}

impl Default for Shelter {
    fn default() -> Self {
        Self {
            seen: [None; Kind::RANKS],
            speeds: [None; Kind::RANKS],
            usual: BTreeMap::new(),
            allowance: LOSS_BURST_SECONDS,
            at: Duration::ZERO,
            look: None,
            looked: Duration::ZERO,
            looking: Duration::ZERO,
            found: false,
            is_sure: false,
        }
    }
}

impl Shelter {
    /// Records the arrival of a request.
    pub fn came(&mut self, kind: Kind, now: Duration) {
        if !kind.is_guessed {
            self.seen[kind.rank()] = Some(now);
        }
    }

    /// Records the latency of a completed request.
    pub fn took(&mut self, kind: Kind, service: Duration, now: Duration) {
        let seconds = service.as_secs_f64().max(1e-6);
        let (rank, baseline) = (kind.rank(), self.usual.entry(kind).or_default());
        self.found |= baseline.took(seconds, now);
        if (self.looked..self.looking).contains(&now.saturating_sub(service)) {
            baseline.is_calm(seconds);
        }
        let goal = LATENCY_TARGETS.get(rank).copied().unwrap_or_default();
        let Some(alone) = baseline.alone(goal * RESIDUAL_QUEUE, now) else { return };
        let (times, is_steady) = (seconds / alone, baseline.is_steady(goal, now));
        let before = self.speeds[rank].filter(|current| current.is_fresh(now));
        let first = Speed { times, seconds, is_steady, at: now, easy: None };
        let mut current = before.unwrap_or(first);
        current.times += (times - current.times) * EWMA_WEIGHT;
        current.seconds += (seconds - current.seconds) * EWMA_WEIGHT;
        (current.is_steady, current.at) = (is_steady, now);
        let has_headroom =
            LATENCY_TARGETS.get(rank).is_some_and(|goal| current.times < 1.0 + goal * ACCELERATION_THRESHOLD);
        current.easy = has_headroom.then(|| current.easy.unwrap_or(now));
        self.speeds[rank] = Some(current);
    }

    /// Advances the time. No loss is accounted unless `is_throttled`: a lane with a known capacity is outranked.
    pub fn pass(&mut self, is_throttled: bool, now: Duration) {
        let (since, at) = (now.saturating_sub(self.at).as_secs_f64(), self.at);
        self.at = self.at.max(now);
        let Some(first) = self.first(now).filter(|_| is_throttled) else {
            (self.look, self.is_sure) = (None, false);
            self.allowance = (self.allowance + LOSS_BUDGET * since).min(LOSS_BURST_SECONDS);
            return;
        };
        let lost = (1.0 - self.share(first, at).factor).max(0.0);
        self.allowance = (self.allowance + (LOSS_BUDGET - lost) * since).clamp(0.0, LOSS_BURST_SECONDS);
        if self.look.is_none() {
            self.found = true;
        }
        let next_probe = *self.look.get_or_insert(now + PROBE_FIRST);
        let request_time =
            self.speeds[first].map_or(Duration::ZERO, |current| Duration::from_secs_f64(current.seconds));
        if now >= next_probe {
            self.is_sure &= !self.found;
            let length = self.speeds[first].map_or(Duration::ZERO, |current| current.look());
            (self.looked, self.looking) = (now + length / 2, now + length);
            self.look = Some(now + PROBE_EVERY);
            self.found = false;
        } else if now >= self.looking {
            self.is_sure = !self.found;
            if self.found {
                // There was a queue, and it may not have drained yet.
                self.look = Some(next_probe.min(now + request_time));
            }
        }
    }

    /// The rate share of a priority in a lane; `None` if it has the highest active rank.
    pub fn share_of(&self, lane: usize, priority: Priority, now: Duration) -> Option<Share> {
        let rank = rank_in(lane, priority);
        let first = self.first(now).filter(|first| *first < rank)?;
        let share = self.share(first, now);
        // Ranks of the same lane share its capacity, so that their latency shows no queue that throttling would drain.
        let shares_lane = (0..rank).any(|other| other % 2 == rank % 2 && self.is_there(other, now));
        Some(if shares_lane && share.factor > SAME_LANE_SHARE.factor { SAME_LANE_SHARE } else { share })
    }

    fn share(&self, first: usize, now: Duration) -> Share {
        let min_factor = if self.allowance > 0.0 { MIN_RATE_FACTOR } else { 1.0 - LOSS_BUDGET };
        let measured = |factor| Share { factor, is_felt: true };
        if now < self.looking {
            return measured(PROBE_RATE_FACTOR.max(min_factor));
        }
        let mut speeds = self.speeds.into_iter().zip(LATENCY_TARGETS).skip(first);
        let fresh =
            speeds.find_map(|(current, goal)| Some((current.filter(|current| current.is_fresh(now))?, goal)));
        let factor = |(current, goal): (Speed, f64)| {
            // The capacity may be underestimated because demand was low: accelerate, to twice the rate after 1 s.
            let headroom_since = current.easy.filter(|_| self.is_sure);
            let since = headroom_since.map_or(0.0, |since| now.saturating_sub(since).as_secs_f64());
            let acceleration = (since - current.seconds * ACCELERATION_DELAY_REQUESTS).max(0.0);
            (1.0 + (1.0 + goal - current.times) / CORRECTION_REQUESTS) * (1.0 + acceleration)
        };
        fresh
            .map_or(NO_ESTIMATE_SHARE, |current| measured(factor(current).clamp(min_factor, MAX_RATE_FACTOR)))
    }

    /// The highest active rank.
    fn first(&self, now: Duration) -> Option<usize> {
        (0..Kind::RANKS).find(|rank| self.is_there(*rank, now))
    }

    /// Returns true if an active rank of the lane is outranked.
    pub fn has_waiting(&self, lane: usize, now: Duration) -> bool {
        let first = self.first(now);
        let mut ranks =
            [Priority::High, Priority::Normal].map(|priority| rank_in(lane, priority)).into_iter();
        ranks.any(|rank| self.is_there(rank, now) && first.is_some_and(|first| first < rank))
    }

    fn is_there(&self, rank: usize, now: Duration) -> bool {
        self.seen[rank].is_some_and(|seen| now.saturating_sub(seen) < ACTIVE_FOR)
    }
}

impl Speed {
    /// Length of a probe: long enough to drain a queue, and the maximum if no queue was seen to drain.
    fn look(&self) -> Duration {
        let queue = Duration::from_secs_f64(self.seconds * PROBE_REQUESTS);
        if self.is_steady { queue.min(MAX_PROBE) } else { MAX_PROBE }
    }

    fn is_fresh(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) < MAX_ESTIMATE_AGE
    }
}

impl Usual {
    /// Records a latency. Returns true on a significant improvement of the minimum.
    fn took(&mut self, seconds: f64, now: Duration) -> bool {
        let Some(group) = self.group.add(seconds) else { return false };
        let (before, mean) = (self.least(now), group.mean());
        let slice = now.as_secs() / SLICE_SECONDS;
        match self.minima.back_mut() {
            Some((last, least)) if *last >= slice => *least = least.min(mean),
            _ => self.minima.push_back((slice, mean)),
        }
        while self.minima.front().is_some_and(|(first, _)| first + BASELINE_SLICES <= slice) {
            self.minima.pop_front();
        }
        let Some(before) = before.filter(|before| mean < before * IMPROVEMENT_RATIO) else { return false };
        // The queue had not drained during earlier probes: correct their mean by the same ratio.
        self.held.seconds *= mean / before;
        true
    }

    /// Records the latency of a request that started during a probe.
    fn is_calm(&mut self, seconds: f64) {
        let Some(group) = self.calm.add(seconds) else { return };
        if group.mean() < self.held.mean() * RESET_RATIO {
            self.held = Mean::default();
        } else if self.held.count >= MAX_PROBE_SAMPLES {
            // Older requests decay.
            self.held = Mean { seconds: self.held.seconds / 2.0, count: self.held.count / 2 };
        }
        self.held.seconds += group.seconds;
        self.held.count += group.count;
    }

    /// The uncontended latency: the minimum, or the mean of probes without the fraction `left` that a residual queue
    /// may add.
    fn alone(&self, left: f64, now: Duration) -> Option<f64> {
        Some(self.least(now)?.max(self.held.mean() / (1.0 + left)))
    }

    /// Returns true if the latency during probes is known, and at most `goal` above the minimum.
    fn is_steady(&self, goal: f64, now: Duration) -> bool {
        let least = self.least(now).filter(|_| self.held.count > 0);
        least.is_some_and(|least| self.held.mean() < least * (1.0 + goal))
    }

    fn least(&self, now: Duration) -> Option<f64> {
        let slice = now.as_secs() / SLICE_SECONDS;
        let known = self.minima.iter().filter(|(of, _)| of + BASELINE_SLICES > slice);
        known.map(|(_, mean)| *mean).reduce(f64::min)
    }
}

impl Mean {
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
