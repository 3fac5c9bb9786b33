//! Plans from eight probes on replayed grids that were measured on emulated links.

use super::{budget, median, replay};
use crate::tune::{Goal, LatencyTarget, OperatingPoint, Prediction, Sample, Statistic, goal, sampling};

/// Grids on which few probes do not suffice: with loss at 10 ms, a single measurement of a point has little
/// information; the other reaches 0.939 of the best.
const KNOWN_SHORTFALLS: [&str; 2] = ["region-lossy up", "sydney down"];
/// Number of runs per grid.
const RUNS: u64 = 9;

/// The result of eight probes of a grid.
struct GridResult {
    chosen: OperatingPoint,
    /// Throughput of the plan as a fraction of the best.
    throughput_fraction: f64,
    /// Like `throughput_fraction`, for the plan that minimizes the cost of the client, which is the default.
    efficient_fraction: f64,
    /// Median and p90 of the prediction error over points without a probe.
    error_median_p90: [f64; 2],
    /// Bytes of the probes as a fraction of those of the grid.
    bytes_fraction: f64,
}

fn evaluate(grid: &replay::Grid, seed: u64) -> GridResult {
    let points: Vec<OperatingPoint> = grid.keys().copied().collect();
    let surface = replay::sample_grid(grid, budget(), seed);
    let throughput = |point: &OperatingPoint| point.bytes_in_flight() / grid[point].latency;
    let best = points.iter().map(throughput).fold(0.0, f64::max);
    let [chosen, efficient] =
        [Goal::Throughput, Goal::Efficiency].map(|goal| goal::choose(&surface, &points, goal).unwrap().point);
    let is_probed = |point: &OperatingPoint| surface.samples().iter().any(|sample| sample.point == *point);
    let unprobed = points.iter().filter(|point| !is_probed(point));
    let mut errors: Vec<f64> =
        unprobed.map(|point| (surface.predict(*point).latency / grid[point].latency).ln().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let cost = |sample: &Sample| {
        sampling::min_cost(&Prediction { point: sample.point, latency: sample.latency, std_dev: 0.0 }).bytes
    };
    let probe_bytes: f64 = surface.samples().iter().map(cost).sum();
    GridResult {
        chosen,
        throughput_fraction: throughput(&chosen) / best,
        efficient_fraction: throughput(&efficient) / best,
        error_median_p90: [errors[errors.len() / 2], errors[errors.len() * 9 / 10]],
        bytes_fraction: probe_bytes / grid.values().map(|measured| measured.bytes).sum::<f64>(),
    }
}

/// Medians over several runs. The goals are 0.95 of the best throughput and 10 % error with 10 % of the bytes of the
/// grid. Grids that fall short are listed (experiments/results/tuning.md), and no other may.
#[test]
fn few_probes_find_near_optimal_plans() {
    let mut fell_short = Vec::new();
    let grids = replay::grids();
    for (name, grid) in &grids {
        let results: Vec<GridResult> = (1..=RUNS).map(|seed| evaluate(grid, seed)).collect();
        let best = median(results.iter().map(|result| result.throughput_fraction));
        let efficient = median(results.iter().map(|result| result.efficient_fraction));
        let [median_error, p90] =
            [0, 1].map(|which| median(results.iter().map(|result| result.error_median_p90[which])));
        let worst =
            results.iter().min_by(|a, b| a.throughput_fraction.total_cmp(&b.throughput_fraction)).unwrap();
        let bytes = median(results.iter().map(|result| result.bytes_fraction));
        println!(
            "{name}: {best:.3} of the best, minimum {:.3} ({} KiB x {}), {efficient:.3} for efficiency; error {median_error:.3} \
             (median), {p90:.3} (p90); {bytes:.3} of the bytes",
            worst.throughput_fraction,
            worst.chosen.bytes >> 10,
            worst.chosen.concurrency,
        );
        if best.min(efficient) < 0.95 || median_error > 0.1 {
            fell_short.push(name.as_str());
        }
        assert!(
            best.min(efficient) > 0.84 && bytes < 0.1,
            "{name}: {best:.3} and {efficient:.3} of the best, {bytes:.3} of the bytes"
        );
    }
    assert_eq!(fell_short, KNOWN_SHORTFALLS, "of {}", grids.len());
}

/// Latency targets, in seconds.
const TARGETS_SECONDS: [f64; 4] = [0.03, 0.1, 0.3, 1.0];

/// Plans meet targets on the mean, and most on tails, with most of the throughput of the best point that meets them, in
/// the given percentages. The p99 of a point measured for three seconds depends on a few requests.
#[test]
fn latency_targets_are_met_on_measured_grids() {
    for (statistic, min_met_percent, min_near_percent) in
        [(Statistic::Mean, 90, 90), (Statistic::P95, 90, 90), (Statistic::P99, 90, 85)]
    {
        let (mut met, mut fractions) = (0, Vec::new());
        for (name, grid) in replay::grids() {
            let points: Vec<OperatingPoint> = grid.keys().copied().collect();
            let latency = |point: &OperatingPoint| {
                let ratio = match statistic {
                    Statistic::Mean => 1.0,
                    Statistic::P95 => grid[point].p95_ratio,
                    Statistic::P99 => grid[point].p99_ratio,
                };
                grid[point].latency * ratio
            };
            let throughput = |point: &OperatingPoint| point.throughput(grid[point].latency);
            for seconds in TARGETS_SECONDS {
                let eligible = points.iter().filter(|point| latency(point) <= seconds);
                let Some(best) = eligible.map(throughput).max_by(f64::total_cmp) else { continue };
                for seed in 1..=3 {
                    let surface = replay::sample_grid(&grid, budget(), seed);
                    let chosen = goal::choose(
                        &surface,
                        &points,
                        Goal::Latency(LatencyTarget { statistic, max_seconds: seconds }),
                    );
                    let Some(Prediction { point, .. }) = chosen else {
                        fractions.push(0.0);
                        println!("{name}: {statistic:?} {seconds} s: no point is predicted to meet it");
                        continue;
                    };
                    let (latency, fraction) = (latency(&point), throughput(&point) / best);
                    met += u32::from(latency <= seconds);
                    fractions.push(fraction);
                    if latency > seconds || fraction < 0.9 {
                        let OperatingPoint { bytes, concurrency } = point;
                        println!(
                            "{name}: {statistic:?} {seconds} s: {bytes} x {concurrency} takes {latency:.3} s, {fraction:.3}"
                        );
                    }
                }
            }
        }
        let all = fractions.len();
        let near = fractions.iter().filter(|fraction| **fraction >= 0.9).count();
        let half = median(fractions.into_iter());
        println!(
            "{statistic:?}: {met} of {all} targets are met, {near} reach 0.9 of the best that meets them, median {half:.3}"
        );
        let is_enough = |count: usize, percent: usize| count * 100 >= all * percent;
        assert!(is_enough(met as usize, min_met_percent), "{statistic:?}: {met} of {all} are met");
        assert!(is_enough(near, min_near_percent), "{statistic:?}: {near} of {all} are near the best");
    }
}
