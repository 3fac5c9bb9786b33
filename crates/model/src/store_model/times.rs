//! What may be expected of a request, from those before it.

use std::time::Duration;

use super::series::Alike;
use super::size::SizeClass;
use super::spread::{Spread, nanos};

/// Fewer say nothing of how times are spread.
const LEAST_SAMPLES: u64 = 16;
/// More samples do not make a median surer in any way that counts.
const MOST_WEIGHT: u64 = 100;
/// Sizes nearer to each other than this factor say nothing of what a byte costs.
const LEAST_RATIO: u64 = 2;
/// A class that many doublings away says nothing of a size that would be late.
const MOST_DOUBLINGS: usize = 2;

/// The times of one kind of request in the window, at one moment. Taking it costs some microseconds: who asks often keeps it
/// for a while.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    alike: Vec<Alike>,
}

/// The time that half of the requests are done in, as a line over their size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    /// Of a request without bytes.
    pub base: Duration,
    /// What each byte adds, in nanoseconds.
    pub nanos_per_byte: f64,
}

impl Expectation {
    /// The time for so many bytes.
    #[must_use]
    pub fn time(&self, bytes: u64) -> Duration {
        self.base.saturating_add(duration(self.nanos_per_byte * float(bytes)))
    }
}

/// A point of the line.
struct Point {
    bytes: f64,
    nanos: f64,
    weight: f64,
}

impl Times {
    pub(super) const fn new(alike: Vec<Alike>) -> Self {
        Self { alike }
    }

    /// Each class of sizes that there were requests of since the beginning, from small to large.
    #[must_use]
    pub fn classes(&self) -> &[Alike] {
        &self.alike
    }

    /// Those of the size's class.
    #[must_use]
    pub fn of(&self, bytes: u64) -> Option<&Alike> {
        let sizes = SizeClass::of(bytes);
        self.alike.iter().find(|alike| alike.sizes == sizes)
    }

    /// Requests that were done in the window.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.alike.iter().map(|alike| alike.service.count()).sum()
    }

    /// How long first bytes took, whatever the size.
    #[must_use]
    pub fn first_byte(&self) -> Spread {
        let mut all = Spread::default();
        self.alike.iter().for_each(|alike| all.join(&alike.first_byte));
        all
    }

    /// The line through the medians of all classes; `None` where nothing was done in the window. Medians, so that one request
    /// that hung does not bend it; errors count in proportion to the time, so that small requests are met as well as large
    /// ones. Where all sizes are about the same, what the first byte took is what does not depend on them. Far from the sizes
    /// that were seen it is a guess.
    #[must_use]
    pub fn expectation(&self) -> Option<Expectation> {
        let seen = || self.alike.iter().filter(|alike| alike.service.count() > 0);
        let least = seen().map(|alike| alike.mean_bytes).min()?;
        let most = seen().map(|alike| alike.mean_bytes).max()?;
        if most < least.max(1).saturating_mul(LEAST_RATIO) {
            return seen().max_by_key(|alike| alike.service.count()).and_then(Alike::by_first_byte);
        }
        let points = seen().filter_map(|alike| {
            let time = float(nanos(alike.service.median()?));
            let weight = float(alike.service.count().min(MOST_WEIGHT)) / (time * time);
            Some(Point { bytes: float(alike.mean_bytes), nanos: time, weight })
        });
        Some(fit(points))
    }

    /// The time that `share` (from 0 to 1) of requests for so many bytes are done in: who waits longer waits for one that is
    /// slower than that share of those like it. `None` where too few were done in the window to tell: no request is to be
    /// called late by guessing.
    ///
    /// It is read off the nearest class of sizes that has enough of them, up to two away, and scaled by what the size makes
    /// of it.
    #[must_use]
    pub fn within(&self, bytes: u64, share: f64) -> Option<Duration> {
        let sizes = SizeClass::of(bytes);
        let away = |alike: &Alike| alike.sizes.index().abs_diff(sizes.index());
        let enough = self.alike.iter().filter(|alike| tells(alike.service.count(), share));
        let nearest = enough.min_by_key(|alike| away(alike)).filter(|alike| away(alike) <= MOST_DOUBLINGS)?;
        let time = nearest.service.quantile(share)?;
        let line = self.expectation()?;
        let (here, there) = (line.time(bytes), line.time(nearest.mean_bytes));
        Some(duration(float(nanos(time)) * float(nanos(here)) / float(nanos(there).max(1))))
    }
}

/// Whether one at least of so many can be expected to lie beyond the share.
fn tells(count: u64, share: f64) -> bool {
    count >= LEAST_SAMPLES && float(count) * (1.0 - share) >= 1.0 - 1e-9
}

impl Alike {
    fn by_first_byte(&self) -> Option<Expectation> {
        let time = self.service.median()?;
        let base = self.first_byte.median().map_or(time, |first| first.min(time));
        let rest = float(nanos(time.saturating_sub(base)));
        Some(Expectation { base, nanos_per_byte: rest / float(self.mean_bytes.max(1)) })
    }
}

/// Least squares; a request never costs less than nothing, nor does a byte.
fn fit(points: impl Iterator<Item = Point>) -> Expectation {
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
    // A line that falls, or that bends so little that it cannot be told.
    if !slope.is_finite() || slope < 0.0 {
        return Expectation { base: duration(y / all), nanos_per_byte: 0.0 };
    }
    if base < 0.0 {
        return Expectation { base: Duration::ZERO, nanos_per_byte: xy / xx };
    }
    Expectation { base: duration(base), nanos_per_byte: slope }
}

#[allow(clippy::cast_precision_loss, reason = "times and sizes; 2^53 ns are 104 days")]
const fn float(n: u64) -> f64 {
    n as f64
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "held to what fits")]
const fn duration(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}
