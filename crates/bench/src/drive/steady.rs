//! When a throughput is known well enough to end a measurement. Who looks again and again until chance pleases ends too
//! early and believes too much: it is looked once a second, and what is seen has to be seen three times behind each other.

use crate::summary;

/// Tenths of a second between two looks.
const LOOK: usize = 10;
/// Before so many of them nothing counts as known.
const LEAST: usize = 20;
/// So many looks behind each other have to see it.
const LOOKS: u32 = 3;

/// See the module.
#[derive(Debug)]
pub(super) struct Steady {
    /// Of the rate: it is known to within this part.
    part: f64,
    /// What was done in each tenth of a second.
    tenths: Vec<f64>,
    seen: u32,
}

impl Steady {
    pub const fn new(part: f64) -> Self {
        Self { part, tenths: Vec::new(), seen: 0 }
    }

    /// So much was done in the next tenth of a second. Whether the rate is known now.
    pub fn is_known_with(&mut self, amount: f64) -> bool {
        self.tenths.push(amount);
        if self.tenths.len() < LEAST || !self.tenths.len().is_multiple_of(LOOK) {
            return false;
        }
        let rate = summary::rate(&self.tenths);
        let is_within = rate.is_some_and(|rate| rate.mean > 0.0 && rate.within <= self.part * rate.mean);
        self.seen = if is_within { self.seen + 1 } else { 0 };
        self.seen >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{mix, share};

    /// How often the rate at the end was within the part that was asked for, of many runs in which each tenth is like the one
    /// before it to some part; and how long they took in the mean, in tenths.
    fn held(part: f64, noise: f64, alike: f64) -> (f64, f64) {
        const RUNS: u64 = 2000;
        let (mut held, mut took) = (0, 0);
        for run in 0..RUNS {
            let mut steady = Steady::new(part);
            let drawn = |n: u64| (0..4).map(|k| share(mix(mix(run) ^ mix(n * 4 + k)))).sum::<f64>() - 2.0;
            let mut last = 0.0;
            for n in 0..5000 {
                last = alike * last + (1.0 - alike * alike).sqrt() * drawn(n);
                took += 1;
                if steady.is_known_with(1.0 + noise * last) {
                    break;
                }
            }
            let mean = steady.tenths.iter().sum::<f64>() / steady.tenths.len() as f64;
            held += u32::from((mean - 1.0).abs() <= part);
        }
        (f64::from(held) / RUNS as f64, took as f64 / RUNS as f64)
    }

    #[test]
    fn what_is_said_to_be_known_is() {
        for (noise, alike) in [(0.1, 0.0), (0.3, 0.0), (0.3, 0.5), (0.5, 0.7)] {
            let (held, took) = held(0.05, noise, alike);
            assert!(held >= 0.94, "noise {noise}, alike {alike}: {held} after {took} tenths");
        }
    }

    #[test]
    fn what_never_moves_is_known_after_four_seconds() {
        let mut steady = Steady::new(0.01);
        let tenths = (1..).find(|_| steady.is_known_with(7.0)).unwrap();
        assert_eq!(tenths, 40);
        let mut nothing = Steady::new(0.5);
        assert!((0..1000).all(|_| !nothing.is_known_with(0.0)), "nothing at all is never known");
    }
}
