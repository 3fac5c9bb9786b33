//! Samples from transfers, which are newer than those of probes and show the current state of the store.
//!
//! Consistent samples are combined as evidence. If a transfer deviates significantly from the prediction of all older
//! samples, the store or the path has changed. The error of the older samples is then increased by that deviation: the
//! newest sample determines the level, and older ones still determine the shape.

use super::latency_model::Prior;
use super::surface::Surface;
use super::{OperatingPoint, Sample};

/// A deviation beyond this many standard deviations is significant.
const MAX_DEVIATION_SIGMAS: f64 = 2.0;
/// Maximum number of transfer samples kept per direction.
const MAX_TRANSFER_SAMPLES: usize = 4;
/// Two points count as the same if their sizes and concurrencies are within this factor.
const SAME_POINT_FACTOR: f64 = 1.5;

impl Surface {
    /// Fits a surface to probes and then to transfer samples, in the order of their age, the newest last.
    #[must_use]
    pub fn from_probes_and_transfers(prior: Prior, samples: &[Sample]) -> Self {
        let (mut older, transfers): (Vec<Sample>, Vec<Sample>) =
            samples.iter().copied().partition(|sample| !sample.from_transfer);
        for sample in transfers {
            if !older.is_empty() {
                let prediction = Self::new(prior, older.clone()).predict(sample.point);
                let deviation = (sample.latency / prediction.latency).ln().abs();
                if deviation > MAX_DEVIATION_SIGMAS * prediction.std_dev.hypot(sample.relative_error) {
                    older
                        .iter_mut()
                        .for_each(|sample| sample.relative_error = sample.relative_error.hypot(deviation));
                }
            }
            older.push(sample);
        }
        Self::new(prior, older)
    }
}

/// Adds a transfer sample to the samples of a direction. It replaces earlier transfer samples of about the same point.
pub fn add_transfer_sample(samples: &mut Vec<Sample>, sample: Sample) {
    samples.retain(|older| !older.from_transfer || !is_same_point(older.point, sample.point));
    while samples.iter().filter(|older| older.from_transfer).count() >= MAX_TRANSFER_SAMPLES {
        let Some(oldest) = samples.iter().position(|older| older.from_transfer) else { break };
        samples.remove(oldest);
    }
    samples.push(Sample { from_transfer: true, ..sample });
}

fn is_same_point(a: OperatingPoint, b: OperatingPoint) -> bool {
    let is_close = |a: f64, b: f64| (a / b).max(b / a) <= SAME_POINT_FACTOR;
    is_close(a.bytes as f64, b.bytes as f64) && is_close(a.concurrency as f64, b.concurrency as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::{latency_model, replay};
    use crate::tune::{Goal, LatencyModel, goal};

    const POINT: OperatingPoint = OperatingPoint { bytes: 64 << 10, concurrency: 40 };

    fn transfer_sample(model: &LatencyModel, point: OperatingPoint) -> Sample {
        Sample {
            point,
            latency: model.log_latency(point).exp(),
            relative_error: 0.1,
            tail: None,
            from_transfer: true,
        }
    }

    /// Probe samples of a store that follows the model.
    fn probed(model: &LatencyModel) -> (Prior, Vec<Sample>, Vec<OperatingPoint>) {
        let (surface, points) = crate::tune::tests::sampled(model, 3);
        (Prior::default().with_rtt(model.fixed_seconds), surface.samples().to_vec(), points)
    }

    #[test]
    fn consistent_transfer_changes_little() {
        let model = latency_model(0.05, 20e6, 5e3, 90e6);
        let (prior, mut samples, points) = probed(&model);
        let before = Surface::from_probes_and_transfers(prior, &samples);
        add_transfer_sample(&mut samples, transfer_sample(&model, POINT));
        let after = Surface::from_probes_and_transfers(prior, &samples);
        for point in points {
            let (before, after) = (before.predict(point), after.predict(point));
            assert!((after.latency / before.latency).ln().abs() < 0.1, "{before:?} {after:?}");
        }
        assert!(after.samples().iter().all(|sample| sample.relative_error <= 0.1));
    }

    #[test]
    fn changed_store_is_followed() {
        let old_model = latency_model(0.05, 20e6, 5e3, 90e6);
        // 10 % of the bandwidth, and 10 times as much.
        for new_model in [latency_model(0.05, 20e6, 500.0, 9e6), latency_model(0.05, 20e6, 50e3, 900e6)] {
            let (prior, mut samples, points) = probed(&old_model);
            for _ in 0..2 {
                // Each transfer uses the plan that follows from the samples of the previous ones.
                let small: Vec<OperatingPoint> =
                    points.iter().copied().filter(|point| point.bytes == POINT.bytes).collect();
                let surface = Surface::from_probes_and_transfers(prior, &samples);
                let chosen = goal::choose(&surface, &small, Goal::Throughput).unwrap().point;
                add_transfer_sample(&mut samples, transfer_sample(&new_model, chosen));
            }
            let surface = Surface::from_probes_and_transfers(prior, &samples);
            let last = samples.last().unwrap();
            let error = (surface.predict(last.point).latency / last.latency).ln().abs();
            assert!(error < 0.2, "{error} of {last:?}");
        }
    }

    #[test]
    fn newest_transfer_samples_are_kept() {
        let model = latency_model(0.05, 20e6, 5e3, 90e6);
        let (_, probes, _) = probed(&model);
        let mut samples = probes.clone();
        for n in 0..20 {
            let noise = replay::noise(1, n);
            add_transfer_sample(
                &mut samples,
                Sample { latency: 1.0 + noise, ..transfer_sample(&model, POINT) },
            );
        }
        assert_eq!(samples.len(), probes.len() + 1);
        for doublings in 0..10 {
            add_transfer_sample(
                &mut samples,
                transfer_sample(&model, OperatingPoint { bytes: 1024 << doublings, concurrency: 8 }),
            );
        }
        assert_eq!(samples.len(), probes.len() + MAX_TRANSFER_SAMPLES);
        assert_eq!(samples[..probes.len()], probes);
        assert_eq!(samples.last().unwrap().point.bytes, 1024 << 9);
    }
}
