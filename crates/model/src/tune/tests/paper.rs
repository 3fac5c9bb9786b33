//! The inference described by Hou 2017 (sections 5.1 and 5.3) as a baseline, with the same samples.

use super::{CONCURRENCIES, SIZES, median, replay};
use crate::tune::{OperatingPoint, Prior, Sample, Surface};

/// A lower concurrency with this fraction of the maximum of its size is equivalent.
const EQUIVALENT_FRACTION: f64 = 0.97;

fn sample(grid: &replay::Grid, point: OperatingPoint) -> Option<Sample> {
    Some(Sample {
        point,
        latency: grid.get(&point)?.latency,
        relative_error: 0.02,
        tail: None,
        from_transfer: false,
    })
}

fn surface(grid: &replay::Grid, samples: Vec<Sample>) -> Surface {
    let round_trip = grid.values().map(|measured| measured.latency).fold(f64::MAX, f64::min);
    Surface::new(Prior::default().with_rtt(round_trip), samples)
}

/// Baseline: linear interpolation between two sampled concurrencies, such as 256 KiB × 21 from 16 and 32. Ours has a
/// smaller mean and p90 error, where the curve bends. Where errors are below the noise of the measurement, linear
/// interpolation has a smaller median error, by about 0.2 percentage points. It needs samples on both sides of every
/// prediction; ours needs a few in total.
#[test]
fn latency_between_two_concurrencies() {
    let mut off = [Vec::new(), Vec::new()];
    for (_, grid) in replay::grids() {
        for bytes in SIZES {
            for three in CONCURRENCIES.windows(3) {
                let [less, between, more] =
                    [three[0], three[1], three[2]].map(|concurrency| OperatingPoint { bytes, concurrency });
                let (Some(less), Some(truth), Some(more)) =
                    (sample(&grid, less), sample(&grid, between), sample(&grid, more))
                else {
                    continue;
                };
                // Each concurrency is twice the previous one.
                let straight = less.latency + (more.latency - less.latency) / 3.0;
                let others = CONCURRENCIES.iter().filter(|concurrency| **concurrency != between.concurrency);
                let samples = others.filter_map(|concurrency| {
                    sample(&grid, OperatingPoint { bytes, concurrency: *concurrency })
                });
                let ours = surface(&grid, samples.collect()).predict(between).latency;
                for (off, inferred) in off.iter_mut().zip([straight, ours]) {
                    off.push((inferred / truth.latency).ln().abs());
                }
            }
        }
    }
    let [straight, ours] = off.map(|mut off| {
        off.sort_by(f64::total_cmp);
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        [mean, median(off.iter().copied()), off[off.len() * 9 / 10]]
    });
    println!("error between two concurrencies (mean, median, p90): linear {straight:.4?}, ours {ours:.4?}");
    assert!(ours[0] < straight[0] && ours[2] < straight[2], "{ours:?} {straight:?}");
    assert!(ours[1] < straight[1] + 0.0025 && ours[1] < 0.015, "{ours:?} {straight:?}");
}

/// Baseline: the best concurrency of a size is the mean of those of its neighbours, such as 2 MiB × 6 from 4 MiB × 4
/// and 1 MiB × 8.
#[test]
fn best_concurrency_between_two_sizes() {
    let mut parts = [Vec::new(), Vec::new()];
    for (_, grid) in replay::grids() {
        for three in SIZES.windows(3) {
            let row = |bytes: u64| -> Vec<Sample> {
                CONCURRENCIES
                    .iter()
                    .filter_map(|concurrency| {
                        sample(&grid, OperatingPoint { bytes, concurrency: *concurrency })
                    })
                    .collect()
            };
            let [less, between, more] = [three[0], three[1], three[2]].map(row);
            if [&less, &between, &more].iter().any(|row| row.len() < CONCURRENCIES.len()) {
                continue;
            }
            let middle = (best_concurrency(&less) + best_concurrency(&more)) / 2.0;
            let ours = surface(&grid, [less, more].concat());
            let inferred: Vec<Sample> = (between.iter())
                .map(|truth| Sample { latency: ours.predict(truth.point).latency, ..*truth })
                .collect();
            let best = between.iter().map(Sample::throughput).fold(0.0, f64::max);
            for (parts, concurrency) in parts.iter_mut().zip([middle, best_concurrency(&inferred)]) {
                parts.push(throughput_at(&between, concurrency) / best);
            }
        }
    }
    let mean = |parts: &[f64]| parts.iter().sum::<f64>() / parts.len() as f64;
    let worst = |parts: &[f64]| parts.iter().copied().fold(1.0, f64::min);
    let [paper, ours] = parts;
    println!(
        "fraction of the best between two sizes (mean, minimum): mean of two {:.3} and {:.3}, ours {:.3} and {:.3}",
        mean(&paper),
        worst(&paper),
        mean(&ours),
        worst(&ours),
    );
    assert!(mean(&ours) > mean(&paper), "{} {}", mean(&ours), mean(&paper));
}

/// The lowest concurrency of a row that is equivalent to the best.
fn best_concurrency(row: &[Sample]) -> f64 {
    let best = row.iter().map(Sample::throughput).fold(0.0, f64::max);
    let found = row.iter().find(|sample| sample.throughput() >= best * EQUIVALENT_FRACTION);
    found.map_or(1.0, |sample| sample.point.concurrency as f64)
}

/// Throughput of a row at a concurrency, interpolated between the measured ones.
fn throughput_at(row: &[Sample], concurrency: f64) -> f64 {
    let above =
        row.iter().position(|sample| sample.point.concurrency as f64 >= concurrency).unwrap_or(row.len() - 1);
    let (low, high) = (&row[above.saturating_sub(1)], &row[above]);
    let (from, to) = (low.point.concurrency as f64, high.point.concurrency as f64);
    let part = if to > from { (concurrency - from) / (to - from) } else { 1.0 };
    low.throughput() + (high.throughput() - low.throughput()) * part
}
