//! Surfaces of stores that follow the latency model, and replayed grids measured on emulated links
//! (`experiments/tuning`).

mod extrapolation;
mod grids;
mod paper;
pub(super) mod replay;

use super::sampling::SamplingBudget;
use super::*;

const SIZES: [u64; 8] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const CONCURRENCIES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn budget() -> SamplingBudget {
    SamplingBudget { bytes: 512e6, seconds: 30.0, probes: 8 }
}

/// Samples of a store that follows the model, with 3 % noise.
pub(super) fn sampled(model: &LatencyModel, seed: u64) -> (Surface, Vec<OperatingPoint>) {
    let points = OperatingPoint::grid(&SIZES, &CONCURRENCIES);
    let latency_of_probe = |point: OperatingPoint, probe: usize| {
        model.log_latency(point).exp() * (1.0 + 0.03 * replay::noise(seed, probe))
    };
    let prior = Prior::default().with_rtt(model.fixed_seconds);
    (replay::sample(prior, &points, budget(), latency_of_probe), points)
}

/// The model of a store with this fixed time, and these limits per second: bytes of a connection, requests and bytes.
pub(super) fn latency_model(fixed: f64, connection: f64, requests: f64, bytes: f64) -> LatencyModel {
    LatencyModel {
        fixed_seconds: fixed,
        connection_seconds_per_byte: 1.0 / connection,
        bottleneck_seconds_per_request: 1.0 / requests,
        bottleneck_seconds_per_byte: 1.0 / bytes,
        knee_sharpness: 6.0,
        overload_loss: 0.02,
        // One resource bears both costs.
        overlap: 0.0,
    }
}

#[test]
fn prediction_without_samples_is_uncertain() {
    let surface = Surface::new(Prior::default(), Vec::new());
    let prediction = surface.predict(OperatingPoint { bytes: 1 << 20, concurrency: 8 });
    assert!(prediction.std_dev > 1.0 && prediction.latency > 0.0, "{prediction:?}");
}

#[test]
fn uncertainty_grows_with_distance_from_samples() {
    let point = OperatingPoint { bytes: 64 << 10, concurrency: 8 };
    let surface = Surface::new(
        Prior::default(),
        vec![Sample { point, latency: 0.1, relative_error: 0.02, tail: None, from_transfer: false }],
    );
    let (near, far) =
        (surface.predict(point), surface.predict(OperatingPoint { bytes: 16 << 20, concurrency: 64 }));
    assert!((near.latency / 0.1 - 1.0).abs() < 0.03 && near.std_dev < 0.04, "{near:?}");
    assert!(far.std_dev > 0.3, "{far:?}");
}

#[test]
fn latency_target_is_met() {
    let (surface, points) = sampled(&latency_model(0.02, 20e6, 5e3, 100e6), 1);
    for target in [0.03, 0.1, 0.5] {
        let chosen = goal::choose(&surface, &points, Goal::Latency(LatencyTarget::mean(target))).unwrap();
        assert!(chosen.latency <= target, "{chosen:?}");
    }
    assert_eq!(goal::choose(&surface, &points, Goal::Latency(LatencyTarget::mean(1e-3))), None);
}

#[test]
fn efficiency_prefers_large_requests_and_low_concurrency() {
    let (surface, points) = sampled(&latency_model(0.01, 50e6, 5e3, 100e6), 2);
    let fastest = goal::choose(&surface, &points, Goal::Throughput).unwrap();
    let efficient = goal::choose(&surface, &points, Goal::Efficiency).unwrap();
    assert!(
        efficient.point.bytes >= fastest.point.bytes
            && efficient.point.concurrency <= fastest.point.concurrency
    );
    assert!(efficient.throughput() > 0.9 * fastest.throughput(), "{efficient:?} {fastest:?}");
}

#[test]
fn no_probe_exceeds_the_budget() {
    let points = OperatingPoint::grid(&SIZES, &CONCURRENCIES);
    let surface = Surface::new(Prior::default(), Vec::new());
    for budget in [
        SamplingBudget { probes: 0, ..budget() },
        SamplingBudget { bytes: 100.0, ..budget() },
        SamplingBudget { seconds: 1e-3, ..budget() },
    ] {
        assert_eq!(sampling::next_probe(&surface, &points, &budget), None, "{budget:?}");
    }
}

/// A local store transfers more than a small budget in the usual duration of a probe, so probes must be shorter.
#[test]
fn small_budget_suffices_for_a_fast_local_store() {
    for seed in 1..=20 {
        let (model, budget) =
            (latency_model(0.1e-3, 2e9, 50e3, 3e9), SamplingBudget { bytes: 128e6, ..budget() });
        let points = OperatingPoint::grid(&SIZES, &CONCURRENCIES);
        let latency_of_probe = |point: OperatingPoint, probe: usize| {
            model.log_latency(point).exp() * (1.0 + 0.03 * replay::noise(seed, probe))
        };
        let prior = Prior::default().with_rtt(model.fixed_seconds);
        let surface = replay::sample(prior, &points, budget, latency_of_probe);
        let throughput = |point: OperatingPoint| point.bytes_in_flight() / model.log_latency(point).exp();
        let best = points.iter().copied().map(throughput).fold(0.0, f64::max);
        let chosen = goal::choose(&surface, &points, Goal::Throughput).unwrap();
        assert!(
            throughput(chosen.point) > 0.8 * best,
            "{seed}: {chosen:?} {} {best}",
            throughput(chosen.point)
        );
    }
}

/// Eight probes of stores that follow the model, at short and long RTTs, over slow and fast links.
#[test]
fn plans_are_near_the_optimum() {
    let mut fractions: Vec<f64> = (0..300)
        .map(|seed| {
            let draw = |probe: usize, min: f64, max: f64| {
                let at = replay::noise(seed, 1000 + probe) / 2.0 + 0.5;
                (min.ln() + at * (max / min).ln()).exp()
            };
            let model = latency_model(
                draw(0, 0.3e-3, 0.3),
                draw(1, 2e6, 200e6),
                draw(2, 300.0, 30e3),
                draw(3, 10e6, 500e6),
            );
            let (surface, points) = sampled(&model, seed);
            let throughput =
                |point: &OperatingPoint| point.bytes_in_flight() / model.log_latency(*point).exp();
            // More expensive points are never probed.
            let is_affordable = |point: &&OperatingPoint| {
                let latency = model.log_latency(**point).exp();
                let cost = sampling::min_cost(&Prediction { point: **point, latency, std_dev: 0.0 });
                latency < 3.0 && cost.bytes < budget().bytes / 2.0
            };
            let best = points.iter().filter(is_affordable).map(throughput).fold(0.0, f64::max);
            let chosen = goal::choose(&surface, &points, Goal::Throughput).unwrap();
            throughput(&chosen.point) / best
        })
        .collect();
    fractions.sort_by(f64::total_cmp);
    let (worst, fifth_percentile) = (fractions[0], fractions[fractions.len() / 20]);
    println!("fraction of the best throughput: minimum {worst:.3}, p5 {fifth_percentile:.3}");
    assert!(worst > 0.75 && fifth_percentile > 0.93, "{worst} {fifth_percentile}");
}
