//! Plans from eight probes on replayed grids that were measured on emulated links.

use super::{budget, median, played};
use crate::tune::{Cap, Cell, Goal, Inferred, Sample, Statistic, goal, sampling};

/// Grids on which few probes do not suffice: with loss at 10 ms, a single measurement of a point has little
/// information; the other reaches 0.939 of the best.
const KNOWN_SHORTFALLS: [&str; 2] = ["region-lossy up", "sydney down"];
/// Number of runs per grid.
const PLAYS: u64 = 9;

/// The result of eight probes of a grid.
struct Judged {
    chosen: Cell,
    /// Throughput of the plan as a fraction of the best.
    found: f64,
    /// Like `found`, for the plan that minimizes the cost of the client, which is the default.
    spared: f64,
    /// Median and p90 of the prediction error over points without a probe.
    off: [f64; 2],
    /// Bytes of the probes as a fraction of those of the grid.
    bytes: f64,
}

fn judge(grid: &played::Grid, seed: u64) -> Judged {
    let cells: Vec<Cell> = grid.keys().copied().collect();
    let surface = played::sample_grid(grid, budget(), seed);
    let truth = |cell: &Cell| cell.in_flight() / grid[cell].latency;
    let best = cells.iter().map(truth).fold(0.0, f64::max);
    let [chosen, spared] =
        [Goal::Bandwidth, Goal::Efficiency].map(|goal| goal::choose(&surface, &cells, goal).unwrap().cell);
    let is_tried = |cell: &Cell| surface.samples().iter().any(|sample| sample.cell == *cell);
    let untried = cells.iter().filter(|cell| !is_tried(cell));
    let mut off: Vec<f64> =
        untried.map(|cell| (surface.infer(*cell).latency / grid[cell].latency).ln().abs()).collect();
    off.sort_by(f64::total_cmp);
    let cost = |sample: &Sample| {
        sampling::cost(&Inferred { cell: sample.cell, latency: sample.latency, deviation: 0.0 }).bytes
    };
    let spent: f64 = surface.samples().iter().map(cost).sum();
    Judged {
        chosen,
        found: truth(&chosen) / best,
        spared: truth(&spared) / best,
        off: [off[off.len() / 2], off[off.len() * 9 / 10]],
        bytes: spent / grid.values().map(|measured| measured.bytes).sum::<f64>(),
    }
}

/// Medians over several runs. The goals are 0.95 of the best throughput and 10 % error with 10 % of the bytes of the
/// grid. Grids that fall short are listed (docs/tuning.md), and no other may.
#[test]
fn few_probes_find_near_optimal_plans() {
    let mut fell_short = Vec::new();
    let grids = played::grids();
    for (name, grid) in &grids {
        let judged: Vec<Judged> = (1..=PLAYS).map(|seed| judge(grid, seed)).collect();
        let found = median(judged.iter().map(|judged| judged.found));
        let spared = median(judged.iter().map(|judged| judged.spared));
        let [off, p90] = [0, 1].map(|which| median(judged.iter().map(|judged| judged.off[which])));
        let worst = judged.iter().min_by(|a, b| a.found.total_cmp(&b.found)).unwrap();
        let bytes = median(judged.iter().map(|judged| judged.bytes));
        println!(
            "{name}: {found:.3} of the best, minimum {:.3} ({} KiB x {}), {spared:.3} for efficiency; error {off:.3} \
             (median), {p90:.3} (p90); {bytes:.3} of the bytes",
            worst.found,
            worst.chosen.bytes >> 10,
            worst.chosen.parallel,
        );
        if found.min(spared) < 0.95 || off > 0.1 {
            fell_short.push(name.as_str());
        }
        assert!(
            found.min(spared) > 0.84 && bytes < 0.1,
            "{name}: {found:.3} and {spared:.3} of the best, {bytes:.3} of the bytes"
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
    for (of, which, min_met_percent, min_near_percent) in [
        (Statistic::Mean, None, 90, 90),
        (Statistic::P95, Some(0), 90, 90),
        (Statistic::P99, Some(1), 90, 85),
    ] {
        let (mut kept, mut parts) = (0, Vec::new());
        for (name, grid) in played::grids() {
            let cells: Vec<Cell> = grid.keys().copied().collect();
            let latency =
                |cell: &Cell| grid[cell].latency * which.map_or(1.0, |which: usize| grid[cell].tail[which]);
            let bandwidth = |cell: &Cell| cell.bandwidth(grid[cell].latency);
            for seconds in TARGETS_SECONDS {
                let keeping = cells.iter().filter(|cell| latency(cell) <= seconds);
                let Some(best) = keeping.map(bandwidth).max_by(f64::total_cmp) else { continue };
                for seed in 1..=3 {
                    let surface = played::sample_grid(&grid, budget(), seed);
                    let chosen = goal::choose(&surface, &cells, Goal::Latency(Cap { of, seconds }));
                    let Some(Inferred { cell, .. }) = chosen else {
                        parts.push(0.0);
                        println!("{name}: {of:?} {seconds} s: no point is predicted to meet it");
                        continue;
                    };
                    let (latency, part) = (latency(&cell), bandwidth(&cell) / best);
                    kept += u32::from(latency <= seconds);
                    parts.push(part);
                    if latency > seconds || part < 0.9 {
                        let Cell { bytes, parallel } = cell;
                        println!(
                            "{name}: {of:?} {seconds} s: {bytes} x {parallel} takes {latency:.3} s, {part:.3}"
                        );
                    }
                }
            }
        }
        let all = parts.len();
        let near = parts.iter().filter(|part| **part >= 0.9).count();
        let half = median(parts.into_iter());
        println!(
            "{of:?}: {kept} of {all} targets are met, {near} reach 0.9 of the best that meets them, median {half:.3}"
        );
        let is_enough = |count: usize, percent: usize| count * 100 >= all * percent;
        assert!(is_enough(kept as usize, min_met_percent), "{of:?}: {kept} of {all} are met");
        assert!(is_enough(near, min_near_percent), "{of:?}: {near} of {all} are near the best");
    }
}
