//! Grids that were measured behind emulated lines, played: what eight probes make of them.

use super::{budget, median, played};
use crate::tune::{Cap, Cell, Goal, Inferred, Sample, Statistic, goal, sampling};

/// Grids on which few probes do not find enough yet: behind 10 ms with losses a single measurement of a cell says little; the best of
/// the other is found to 0.939.
const SHORT: [&str; 2] = ["region-lossy up", "sydney down"];
/// How often each grid is played.
const PLAYS: u64 = 9;

/// What eight probes of a grid say.
struct Judged {
    chosen: Cell,
    /// What the plan carries of the best.
    found: f64,
    /// And the one that spares the client, which is what is advised.
    spared: f64,
    /// How far what was inferred is from what was measured, in the median and in nine of ten cells without a probe.
    off: [f64; 2],
    /// Bytes of probes as a part of those of the grid.
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

/// What few probes find on grids that were measured, and how far off they are where they never were, in the median of some plays. The
/// aim is 0.95 of the best and a tenth off, of a tenth of the bytes: those that fall short of it are known (docs/tuning.md), and no
/// other may.
#[test]
fn few_probes_find_what_a_whole_grid_does() {
    let mut fell_short = Vec::new();
    let grids = played::grids();
    for (name, grid) in &grids {
        let judged: Vec<Judged> = (1..=PLAYS).map(|seed| judge(grid, seed)).collect();
        let found = median(judged.iter().map(|judged| judged.found));
        let spared = median(judged.iter().map(|judged| judged.spared));
        let [off, of_ten] = [0, 1].map(|which| median(judged.iter().map(|judged| judged.off[which])));
        let worst = judged.iter().min_by(|a, b| a.found.total_cmp(&b.found)).unwrap();
        let bytes = median(judged.iter().map(|judged| judged.bytes));
        println!(
            "{name}: {found:.3} of the best, {:.3} at the worst ({} KiB x {}), {spared:.3} where the client is spared; off \
             by {off:.3} in the median, {of_ten:.3} in nine of ten; {bytes:.3} of the bytes",
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
    assert_eq!(fell_short, SHORT, "of {}", grids.len());
}

/// Caps on latency that somebody may set, in seconds.
const CAPS: [f64; 4] = [0.03, 0.1, 0.3, 1.0];

/// Plans keep caps on the mean, and most on tails, and carry most of what the best does that keeps them: so many of a hundred. What
/// 99 of a hundred requests take is in three seconds the time of a few.
#[test]
fn caps_are_kept() {
    for (of, which, kept_of_hundred, near_of_hundred) in [
        (Statistic::Mean, None, 90, 90),
        (Statistic::P95, Some(0), 90, 90),
        (Statistic::P99, Some(1), 90, 85),
    ] {
        let (mut kept, mut parts) = (0, Vec::new());
        for (name, grid) in played::grids() {
            let cells: Vec<Cell> = grid.keys().copied().collect();
            let latency =
                |cell: &Cell| grid[cell].latency * which.map_or(1.0, |which: usize| grid[cell].tail[which]);
            let carried = |cell: &Cell| cell.bandwidth(grid[cell].latency);
            for seconds in CAPS {
                let keeping = cells.iter().filter(|cell| latency(cell) <= seconds);
                let Some(best) = keeping.map(carried).max_by(f64::total_cmp) else { continue };
                for seed in 1..=3 {
                    let surface = played::sample_grid(&grid, budget(), seed);
                    let chosen = goal::choose(&surface, &cells, Goal::Latency(Cap { of, seconds }));
                    let Some(Inferred { cell, .. }) = chosen else {
                        parts.push(0.0);
                        println!("{name}: {of:?} {seconds} s: nothing keeps to it");
                        continue;
                    };
                    let (latency, part) = (latency(&cell), carried(&cell) / best);
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
            "{of:?}: {kept} of {all} caps are kept, {near} carry 0.9 of the best that keeps them, {half:.3} in the median"
        );
        let is_enough = |count: usize, of_hundred: usize| count * 100 >= all * of_hundred;
        assert!(is_enough(kept as usize, kept_of_hundred), "{of:?}: {kept} of {all} are kept");
        assert!(is_enough(near, near_of_hundred), "{of:?}: {near} of {all} are near the best");
    }
}
