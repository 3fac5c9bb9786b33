//! Expected latency of a request, estimated from recent requests.

use std::time::Duration;

use super::histogram::{LatencyHistogram, nanos};
use super::series::SizeClassStats;
use super::size_class::SizeClass;

/// Minimum number of samples for a quantile.
const MIN_SAMPLES: u64 = 16;
/// Maximum number of samples that add to the weight of a median. More do not make it noticeably more precise.
const MAX_WEIGHT: u64 = 100;
/// Minimum ratio of the largest to the smallest size for an estimate of the cost per byte.
const MIN_SIZE_RATIO: u64 = 2;
/// Maximum distance in size classes from which a quantile is scaled.
const MAX_CLASS_DISTANCE: usize = 2;

/// A snapshot of the latencies of one operation in the window. Creating it takes some microseconds: frequent readers
/// should cache it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencySnapshot {
    classes: Vec<SizeClassStats>,
}

/// The median latency as a linear function of the size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearLatency {
    /// The latency of a request without bytes.
    pub base: Duration,
    /// Nanoseconds per byte.
    pub nanos_per_byte: f64,
}

impl LinearLatency {
    /// The latency of a request for `bytes`.
    #[must_use]
    pub fn for_bytes(&self, bytes: u64) -> Duration {
        self.base.saturating_add(duration(self.nanos_per_byte * float(bytes)))
    }
}

/// A weighted point of the linear fit.
struct Point {
    bytes: f64,
    nanos: f64,
    weight: f64,
}

impl LatencySnapshot {
    pub(super) const fn new(stats: Vec<SizeClassStats>) -> Self {
        Self { classes: stats }
    }

    /// All size classes with requests since the start, in ascending order.
    #[must_use]
    pub fn classes(&self) -> &[SizeClassStats] {
        &self.classes
    }

    /// The statistics of the size class of `bytes`.
    #[must_use]
    pub fn for_size(&self, bytes: u64) -> Option<&SizeClassStats> {
        let size_class = SizeClass::for_bytes(bytes);
        self.classes.iter().find(|stats| stats.size_class == size_class)
    }

    /// Number of requests completed in the window.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.classes.iter().map(|stats| stats.response_time.count()).sum()
    }

    /// Time to first byte, over all sizes.
    #[must_use]
    pub fn first_byte(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::default();
        self.classes.iter().for_each(|stats| all.merge(&stats.first_byte));
        all
    }

    /// A linear fit through the medians of all classes; `None` if no request completed in the window.
    ///
    /// Medians are robust against single requests that hang. Errors are relative to the latency, so that small requests
    /// fit as well as large ones. If all sizes are about the same, the time to first byte is taken as the constant
    /// part. Far from the observed sizes the fit is a guess.
    #[must_use]
    pub fn linear_fit(&self) -> Option<LinearLatency> {
        let seen = || self.classes.iter().filter(|stats| stats.response_time.count() > 0);
        let smallest = seen().map(|stats| stats.mean_bytes).min()?;
        let largest = seen().map(|stats| stats.mean_bytes).max()?;
        if largest < smallest.max(1).saturating_mul(MIN_SIZE_RATIO) {
            return seen()
                .max_by_key(|stats| stats.response_time.count())
                .and_then(SizeClassStats::by_first_byte);
        }
        let points = seen().filter_map(|stats| {
            let time = float(nanos(stats.response_time.median()?));
            let weight = float(stats.response_time.count().min(MAX_WEIGHT)) / (time * time);
            Some(Point { bytes: float(stats.mean_bytes), nanos: time, weight })
        });
        Some(fit(points))
    }

    /// The latency that a fraction `share` (from 0 to 1) of requests for `bytes` do not exceed. `None` if too few
    /// completed in the window, so that no request is called late by guessing.
    ///
    /// It is the quantile of the nearest size class with enough samples, up to two classes away, scaled by the linear
    /// fit.
    #[must_use]
    pub fn quantile(&self, bytes: u64, share: f64) -> Option<Duration> {
        let size_class = SizeClass::for_bytes(bytes);
        let away = |stats: &SizeClassStats| stats.size_class.index().abs_diff(size_class.index());
        let enough =
            self.classes.iter().filter(|stats| has_enough_samples(stats.response_time.count(), share));
        let nearest =
            enough.min_by_key(|stats| away(stats)).filter(|stats| away(stats) <= MAX_CLASS_DISTANCE)?;
        let time = nearest.response_time.quantile(share)?;
        let fit = self.linear_fit()?;
        let (own_fit, nearest_fit) = (fit.for_bytes(bytes), fit.for_bytes(nearest.mean_bytes));
        Some(duration(float(nanos(time)) * float(nanos(own_fit)) / float(nanos(nearest_fit).max(1))))
    }
}

/// Returns true if at least one of `count` samples is expected beyond the quantile.
fn has_enough_samples(count: u64, share: f64) -> bool {
    count >= MIN_SAMPLES && float(count) * (1.0 - share) >= 1.0 - 1e-9
}

impl SizeClassStats {
    fn by_first_byte(&self) -> Option<LinearLatency> {
        let time = self.response_time.median()?;
        let base = self.first_byte.median().map_or(time, |first| first.min(time));
        let rest = float(nanos(time.saturating_sub(base)));
        Some(LinearLatency { base, nanos_per_byte: rest / float(self.mean_bytes.max(1)) })
    }
}

/// Weighted least squares with a non-negative intercept and slope.
fn fit(points: impl Iterator<Item = Point>) -> LinearLatency {
    let (mut all, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for Point { bytes, nanos, weight } in points {
        all += weight;
        x += weight * bytes;
        y += weight * nanos;
        xx += weight * bytes * bytes;
        xy += weight * bytes * nanos;
    }
    let slope = (all * xy - x * y) / (all * xx - x * x);
    let base = (y - slope * x) / all;
    // The slope is negative, or undefined because the sizes do not differ.
    if !slope.is_finite() || slope < 0.0 {
        return LinearLatency { base: duration(y / all), nanos_per_byte: 0.0 };
    }
    if base < 0.0 {
        return LinearLatency { base: Duration::ZERO, nanos_per_byte: xy / xx };
    }
    LinearLatency { base: duration(base), nanos_per_byte: slope }
}

#[allow(clippy::cast_precision_loss, reason = "times and sizes; 2^53 ns are 104 days")]
const fn float(n: u64) -> f64 {
    n as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
const fn duration(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}
