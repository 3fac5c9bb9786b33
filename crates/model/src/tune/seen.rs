//! Samples from transfers, which are newer than those of probes and show the current state of the store.
//!
//! Consistent samples are combined as evidence. If a transfer deviates significantly from the prediction of all older
//! samples, the store or the path has changed. The error of the older samples is then increased by that deviation: the
//! newest sample determines the level, and older ones still determine the shape.

use super::law::Belief;
use super::surface::Surface;
use super::{Cell, Sample};

/// A deviation beyond this many standard deviations is significant.
const MAX_DEVIATION_SIGMAS: f64 = 2.0;
/// Maximum number of transfer samples kept per direction.
const MAX_TRANSFER_SAMPLES: usize = 4;
/// Two points count as the same if their sizes and concurrencies are within this factor.
const SAME_POINT_FACTOR: f64 = 1.5;

impl Surface {
    /// Fits a surface to probes and then to transfer samples, in the order of their age, the newest last.
    #[must_use]
    pub fn corrected(prior: Belief, samples: &[Sample]) -> Self {
        let (mut known, transfers): (Vec<Sample>, Vec<Sample>) =
            samples.iter().copied().partition(|sample| !sample.is_seen);
        for sample in transfers {
            if !known.is_empty() {
                let expected = Self::new(prior, known.clone()).infer(sample.cell);
                let deviation = (sample.latency / expected.latency).ln().abs();
                if deviation > MAX_DEVIATION_SIGMAS * expected.deviation.hypot(sample.error) {
                    known.iter_mut().for_each(|older| older.error = older.error.hypot(deviation));
                }
            }
            known.push(sample);
        }
        Self::new(prior, known)
    }
}

/// Adds a transfer sample to the samples of a direction. It replaces earlier transfer samples of about the same point.
pub fn add(samples: &mut Vec<Sample>, sample: Sample) {
    samples.retain(|older| !older.is_seen || !is_near(older.cell, sample.cell));
    while samples.iter().filter(|older| older.is_seen).count() >= MAX_TRANSFER_SAMPLES {
        let Some(oldest) = samples.iter().position(|older| older.is_seen) else { break };
        samples.remove(oldest);
    }
    samples.push(Sample { is_seen: true, ..sample });
}

fn is_near(a: Cell, b: Cell) -> bool {
    let apart = |a: f64, b: f64| (a / b).max(b / a) > SAME_POINT_FACTOR;
    !apart(a.bytes as f64, b.bytes as f64) && !apart(a.parallel as f64, b.parallel as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::{law, played};
    use crate::tune::{Goal, Law, goal};

    const SEEN: Cell = Cell { bytes: 64 << 10, parallel: 40 };

    fn seen(model: &Law, cell: Cell) -> Sample {
        Sample { cell, latency: model.log_latency(cell).exp(), error: 0.1, tail: None, is_seen: true }
    }

    /// Probe samples of a store that follows the model.
    fn probed(model: &Law) -> (Belief, Vec<Sample>, Vec<Cell>) {
        let (surface, cells) = crate::tune::tests::sampled(model, 3);
        (Belief::default().with_round_trip(model.fixed()), surface.samples().to_vec(), cells)
    }

    #[test]
    fn consistent_transfer_changes_little() {
        let model = law(0.05, 20e6, 5e3, 90e6);
        let (prior, mut samples, cells) = probed(&model);
        let before = Surface::corrected(prior, &samples);
        add(&mut samples, seen(&model, SEEN));
        let after = Surface::corrected(prior, &samples);
        for cell in cells {
            let (before, after) = (before.infer(cell), after.infer(cell));
            assert!((after.latency / before.latency).ln().abs() < 0.1, "{before:?} {after:?}");
        }
        assert!(after.samples().iter().all(|sample| sample.error <= 0.1));
    }

    #[test]
    fn changed_store_is_followed() {
        let was = law(0.05, 20e6, 5e3, 90e6);
        // 10 % of the bandwidth, and 10 times as much.
        for now in [law(0.05, 20e6, 500.0, 9e6), law(0.05, 20e6, 50e3, 900e6)] {
            let (prior, mut samples, cells) = probed(&was);
            for _ in 0..2 {
                // Each transfer uses the plan that the previous one left.
                let small: Vec<Cell> =
                    cells.iter().copied().filter(|cell| cell.bytes == SEEN.bytes).collect();
                let surface = Surface::corrected(prior, &samples);
                let chosen = goal::choose(&surface, &small, Goal::Bandwidth).unwrap().cell;
                add(&mut samples, seen(&now, chosen));
            }
            let surface = Surface::corrected(prior, &samples);
            let last = samples.last().unwrap();
            let off = (surface.infer(last.cell).latency / last.latency).ln().abs();
            assert!(off < 0.2, "{off} of {last:?}");
        }
    }

    #[test]
    fn newest_transfer_samples_are_kept() {
        let model = law(0.05, 20e6, 5e3, 90e6);
        let (_, probes, _) = probed(&model);
        let mut samples = probes.clone();
        for turn in 0..20 {
            let chance = played::chance(1, turn);
            add(&mut samples, Sample { latency: 1.0 + chance, ..seen(&model, SEEN) });
        }
        assert_eq!(samples.len(), probes.len() + 1);
        for doublings in 0..10 {
            add(&mut samples, seen(&model, Cell { bytes: 1024 << doublings, parallel: 8 }));
        }
        assert_eq!(samples.len(), probes.len() + MAX_TRANSFER_SAMPLES);
        assert_eq!(samples[..probes.len()], probes);
        assert_eq!(samples.last().unwrap().cell.bytes, 1024 << 9);
    }
}
