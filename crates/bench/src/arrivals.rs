//! Arrival times of an open loop: requests start on schedule, whether or not earlier ones have completed. Latency
//! counts from the scheduled start, because a user also waits while the request is queued behind a slow store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::{mix, unit_fraction};

/// Distribution of the interarrival times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// Exponential: a Poisson process, as many independent users generate it.
    Poisson,
    /// Constant.
    Fixed,
}

/// Separates this random stream from others with the same seed.
const SEED_SALT: u64 = 0x6172_7269_7661_6c73;

/// An endless iterator over the scheduled starts, in order.
#[derive(Debug, Clone)]
pub struct Arrivals {
    spacing: Spacing,
    /// Mean interarrival time, in seconds.
    mean_gap_seconds: f64,
    seed: u64,
    /// Shift of evenly spaced starts to earlier times, as a fraction of the gap.
    phase: f64,
    number: u64,
    /// The previous start, in seconds.
    start: f64,
}

impl Arrivals {
    /// Creates arrivals with a mean rate in req/s.
    #[must_use]
    pub fn new(spacing: Spacing, requests_per_second: f64, seed: u64) -> Self {
        // The kinds of requests are drawn from the same seed: arrival times must not correlate with them.
        Self {
            spacing,
            mean_gap_seconds: 1.0 / requests_per_second,
            seed: mix(seed ^ SEED_SALT),
            phase: 0.0,
            number: 0,
            start: 0.0,
        }
    }

    /// Shifts evenly spaced starts to earlier times by a fraction of the gap; see [`crate::load::Load::phase`].
    #[must_use]
    pub fn with_phase(self, phase: f64) -> Self {
        Self { phase: phase.clamp(0.0, 1.0), ..self }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.number += 1;
        self.start = match self.spacing {
            // Computed from the origin, so that rounding errors do not accumulate.
            Spacing::Fixed => (self.number as f64 - self.phase) * self.mean_gap_seconds,
            Spacing::Poisson => {
                let drawn = unit_fraction(mix(self.seed ^ mix(self.number)));
                self.start - (1.0 - drawn).ln() * self.mean_gap_seconds
            }
        };
        Some(Duration::from_secs_f64(self.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_spacing_gives_evenly_spaced_starts() {
        let starts: Vec<Duration> = Arrivals::new(Spacing::Fixed, 1000.0, 1).take(3).collect();
        assert_eq!(starts, [1, 2, 3].map(Duration::from_millis));
    }

    #[test]
    fn poisson_gaps_are_exponential_and_reproducible() {
        let starts: Vec<f64> =
            Arrivals::new(Spacing::Poisson, 500.0, 7).take(100_000).map(|at| at.as_secs_f64()).collect();
        let rate = starts.len() as f64 / starts[starts.len() - 1];
        assert!((495.0..505.0).contains(&rate), "{rate}");
        let long = starts.windows(2).filter(|pair| pair[1] - pair[0] > 1.0 / 500.0).count() as f64;
        // A gap is longer than the mean one with probability 1/e.
        assert!((long / starts.len() as f64 - (-1.0_f64).exp()).abs() < 0.01, "{long}");
        let again: Vec<f64> =
            Arrivals::new(Spacing::Poisson, 500.0, 7).take(10).map(|at| at.as_secs_f64()).collect();
        assert_eq!(again, starts[..10]);
    }
}
