//! Samples that transfers brought besides those of probes: newer, and of the store as it is now.
//!
//! Probes and transfers that agree are evidence together. Where a transfer saw what nothing before it lets expect, the store or the
//! line has changed since: what is older then counts for as much as it was off, so that the newest decides and what is old still
//! says how cells lie to each other.

use super::law::Belief;
use super::surface::Surface;
use super::{Cell, Sample};

/// What is further off than so many standard deviations is no chance.
const NO_CHANCE: f64 = 2.0;
/// So many that were seen are kept of a direction.
const MOST: usize = 4;
/// Two cells whose sizes and parallelisms lie within this factor are of the same place.
const NEAR: f64 = 1.5;

impl Surface {
    /// What follows from probes and, behind them, from what transfers saw, the newest last.
    #[must_use]
    pub fn corrected(belief: Belief, samples: &[Sample]) -> Self {
        let (mut known, seen): (Vec<Sample>, Vec<Sample>) =
            samples.iter().copied().partition(|sample| !sample.is_seen);
        for sample in seen {
            if !known.is_empty() {
                let expected = Self::new(belief, known.clone()).infer(sample.cell);
                let off = (sample.latency / expected.latency).ln().abs();
                if off > NO_CHANCE * expected.deviation.hypot(sample.error) {
                    known.iter_mut().for_each(|older| older.error = older.error.hypot(off));
                }
            }
            known.push(sample);
        }
        Self::new(belief, known)
    }
}

/// Adds what a transfer saw to the samples of a direction. It takes the place of what was seen there before.
pub fn add(samples: &mut Vec<Sample>, seen: Sample) {
    samples.retain(|older| !older.is_seen || !is_near(older.cell, seen.cell));
    while samples.iter().filter(|older| older.is_seen).count() >= MOST {
        let Some(oldest) = samples.iter().position(|older| older.is_seen) else { break };
        samples.remove(oldest);
    }
    samples.push(Sample { is_seen: true, ..seen });
}

fn is_near(a: Cell, b: Cell) -> bool {
    let apart = |a: f64, b: f64| (a / b).max(b / a) > NEAR;
    !apart(a.bytes as f64, b.bytes as f64) && !apart(a.parallel as f64, b.parallel as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::{law, played};
    use crate::tune::{Goal, Law, goal};

    const SEEN: Cell = Cell { bytes: 64 << 10, parallel: 40 };

    fn seen(law: &Law, cell: Cell) -> Sample {
        Sample { cell, latency: law.log_latency(cell).exp(), error: 0.1, tail: None, is_seen: true }
    }

    /// The probes of a law.
    fn probed(law: &Law) -> (Belief, Vec<Sample>, Vec<Cell>) {
        let (surface, cells) = crate::tune::tests::sampled(law, 3);
        (Belief::default().with_round_trip(law.fixed()), surface.samples().to_vec(), cells)
    }

    #[test]
    fn what_agrees_changes_little() {
        let law = law(0.05, 20e6, 5e3, 90e6);
        let (belief, mut samples, cells) = probed(&law);
        let before = Surface::corrected(belief, &samples);
        add(&mut samples, seen(&law, SEEN));
        let after = Surface::corrected(belief, &samples);
        for cell in cells {
            let (before, after) = (before.infer(cell), after.infer(cell));
            assert!((after.latency / before.latency).ln().abs() < 0.1, "{before:?} {after:?}");
        }
        assert!(after.samples().iter().all(|sample| sample.error <= 0.1));
    }

    #[test]
    fn what_has_changed_since_is_followed() {
        let was = law(0.05, 20e6, 5e3, 90e6);
        // A tenth of it, and ten times as much.
        for now in [law(0.05, 20e6, 500.0, 9e6), law(0.05, 20e6, 50e3, 900e6)] {
            let (belief, mut samples, cells) = probed(&was);
            for _ in 0..2 {
                // As commands do: each asks for what the one before has left.
                let small: Vec<Cell> =
                    cells.iter().copied().filter(|cell| cell.bytes == SEEN.bytes).collect();
                let surface = Surface::corrected(belief, &samples);
                let chosen = goal::choose(&surface, &small, Goal::Bandwidth).unwrap().cell;
                add(&mut samples, seen(&now, chosen));
            }
            let surface = Surface::corrected(belief, &samples);
            let last = samples.last().unwrap();
            let off = (surface.infer(last.cell).latency / last.latency).ln().abs();
            assert!(off < 0.2, "{off} of {last:?}");
        }
    }

    #[test]
    fn few_are_kept_and_the_newest_of_a_place() {
        let law = law(0.05, 20e6, 5e3, 90e6);
        let (_, probes, _) = probed(&law);
        let mut samples = probes.clone();
        for turn in 0..20 {
            let chance = played::chance(1, turn);
            add(&mut samples, Sample { latency: 1.0 + chance, ..seen(&law, SEEN) });
        }
        assert_eq!(samples.len(), probes.len() + 1);
        for doublings in 0..10 {
            add(&mut samples, seen(&law, Cell { bytes: 1024 << doublings, parallel: 8 }));
        }
        assert_eq!(samples.len(), probes.len() + MOST);
        assert_eq!(samples[..probes.len()], probes);
        assert_eq!(samples.last().unwrap().cell.bytes, 1024 << 9);
    }
}
