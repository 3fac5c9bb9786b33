//! When requests of an open loop are meant to start, whether or not those before them have been answered. A latency is
//! counted from there: a request that had to wait because the store was slow was late for whoever wanted it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::{mix, share};

/// How starts lie apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// By chance, as many independent users bring about.
    Poisson,
    /// All the same.
    Fixed,
}

/// Tells what is drawn here from what others draw of one seed.
const STREAM: u64 = 0x6172_7269_7661_6c73;

/// The starts, in order, without an end.
#[derive(Debug, Clone)]
pub struct Arrivals {
    spacing: Spacing,
    /// Seconds between two, in the mean.
    gap: f64,
    seed: u64,
    /// By so many gaps those that lie evenly are earlier.
    phase: f64,
    number: u64,
    /// Of the last one, in seconds.
    at: f64,
}

impl Arrivals {
    /// So many a second in the mean.
    #[must_use]
    pub fn new(spacing: Spacing, per_second: f64, seed: u64) -> Self {
        // What is asked for is drawn from the same seed: when must not depend on what.
        Self { spacing, gap: 1.0 / per_second, seed: mix(seed ^ STREAM), phase: 0.0, number: 0, at: 0.0 }
    }

    /// The same, each by such a part of the gap earlier where they lie evenly; see [`crate::load::Load::phase`].
    #[must_use]
    pub fn earlier(self, phase: f64) -> Self {
        Self { phase: phase.clamp(0.0, 1.0), ..self }
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.number += 1;
        self.at = match self.spacing {
            // Counted from the beginning: roundings do not add up.
            Spacing::Fixed => (self.number as f64 - self.phase) * self.gap,
            Spacing::Poisson => {
                let drawn = share(mix(self.seed ^ mix(self.number)));
                self.at - (1.0 - drawn).ln() * self.gap
            }
        };
        Some(Duration::from_secs_f64(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_starts_lie_evenly() {
        let starts: Vec<Duration> = Arrivals::new(Spacing::Fixed, 1000.0, 1).take(3).collect();
        assert_eq!(starts, [1, 2, 3].map(Duration::from_millis));
    }

    #[test]
    fn gaps_of_independent_users_are_exponential() {
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
