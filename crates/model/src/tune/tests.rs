//! Surfaces that follow a law, and grids that were measured behind emulated lines (`experiments/tuning`), played as stores.

mod carried;
mod grids;
mod paper;
pub(super) mod played;

use super::sampling::Budget;
use super::*;

const SIZES: [u64; 8] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const PARALLEL: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut of: Vec<f64> = of.collect();
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn budget() -> Budget {
    Budget { bytes: 512e6, seconds: 30.0, probes: 8 }
}

/// A store that answers as a law says, a little off each time.
pub(super) fn sampled(law: &Law, seed: u64) -> (Surface, Vec<Cell>) {
    let cells = Cell::grid(&SIZES, &PARALLEL);
    let answer =
        |cell: Cell, turn: usize| law.log_latency(cell).exp() * (1.0 + 0.03 * played::chance(seed, turn));
    let belief = Belief::default().with_round_trip(law.fixed());
    (played::sample(belief, &cells, budget(), answer), cells)
}

pub(super) fn law(fixed: f64, connection: f64, requests: f64, bytes: f64) -> Law {
    Law([
        fixed.ln(),
        (1.0 / connection).ln(),
        (1.0 / requests).ln(),
        (1.0 / bytes).ln(),
        5.0_f64.ln(),
        0.02_f64.ln(),
        // Both are of one thing.
        -20.0,
    ])
}

#[test]
fn nothing_is_known_without_a_sample() {
    let surface = Surface::new(Belief::default(), Vec::new());
    let found = surface.infer(Cell { bytes: 1 << 20, parallel: 8 });
    assert!(found.deviation > 1.0 && found.latency > 0.0, "{found:?}");
}

#[test]
fn what_was_sampled_is_known_there_and_less_so_far_away() {
    let at = Cell { bytes: 64 << 10, parallel: 8 };
    let surface = Surface::new(
        Belief::default(),
        vec![Sample { cell: at, latency: 0.1, error: 0.02, tail: None, is_seen: false }],
    );
    let (there, away) = (surface.infer(at), surface.infer(Cell { bytes: 16 << 20, parallel: 64 }));
    assert!((there.latency / 0.1 - 1.0).abs() < 0.03 && there.deviation < 0.04, "{there:?}");
    assert!(away.deviation > 0.3, "{away:?}");
}

#[test]
fn a_cap_on_latency_is_kept() {
    let (surface, cells) = sampled(&law(0.02, 20e6, 5e3, 100e6), 1);
    for cap in [0.03, 0.1, 0.5] {
        let chosen = goal::choose(&surface, &cells, Goal::Latency(Cap::mean(cap))).unwrap();
        assert!(chosen.latency <= cap, "{chosen:?}");
    }
    assert_eq!(goal::choose(&surface, &cells, Goal::Latency(Cap::mean(1e-3))), None);
}

#[test]
fn who_is_to_be_spared_asks_for_much_at_once() {
    let (surface, cells) = sampled(&law(0.01, 50e6, 5e3, 100e6), 2);
    let most = goal::choose(&surface, &cells, Goal::Bandwidth).unwrap();
    let spared = goal::choose(&surface, &cells, Goal::Efficiency).unwrap();
    assert!(spared.cell.bytes >= most.cell.bytes && spared.cell.parallel <= most.cell.parallel);
    assert!(spared.bandwidth() > 0.9 * most.bandwidth(), "{spared:?} {most:?}");
}

#[test]
fn a_budget_is_kept() {
    let cells = Cell::grid(&SIZES, &PARALLEL);
    let surface = Surface::new(Belief::default(), Vec::new());
    for budget in [
        Budget { probes: 0, ..budget() },
        Budget { bytes: 100.0, ..budget() },
        Budget { seconds: 1e-3, ..budget() },
    ] {
        assert_eq!(sampling::next(&surface, &cells, &budget), None, "{budget:?}");
    }
}

/// What a store on the same machine carries in a third of a second is more than a small budget: it is enough to look for as long as says
/// something.
#[test]
fn a_small_budget_is_enough_for_what_is_at_hand() {
    for seed in 1..=20 {
        let (law, budget) = (law(0.1e-3, 2e9, 50e3, 3e9), Budget { bytes: 128e6, ..budget() });
        let cells = Cell::grid(&SIZES, &PARALLEL);
        let answer =
            |cell: Cell, turn: usize| law.log_latency(cell).exp() * (1.0 + 0.03 * played::chance(seed, turn));
        let belief = Belief::default().with_round_trip(law.fixed());
        let surface = played::sample(belief, &cells, budget, answer);
        let truth = |cell: Cell| cell.in_flight() / law.log_latency(cell).exp();
        let best = cells.iter().copied().map(truth).fold(0.0, f64::max);
        let chosen = goal::choose(&surface, &cells, Goal::Bandwidth).unwrap();
        assert!(truth(chosen.cell) > 0.8 * best, "{seed}: {chosen:?} {} {best}", truth(chosen.cell));
    }
}

/// Eight probes of stores that follow a law, from next door to the other side of the world, from a slow line to a fast one.
#[test]
fn plans_are_near_the_best() {
    let mut parts: Vec<f64> = (0..300)
        .map(|seed| {
            let drawn = |turn: usize, least: f64, most: f64| {
                let at = played::chance(seed, 1000 + turn) / 2.0 + 0.5;
                (least.ln() + at * (most / least).ln()).exp()
            };
            let law = law(
                drawn(0, 0.3e-3, 0.3),
                drawn(1, 2e6, 200e6),
                drawn(2, 300.0, 30e3),
                drawn(3, 10e6, 500e6),
            );
            let (surface, cells) = sampled(&law, seed);
            let truth = |cell: &Cell| cell.in_flight() / law.log_latency(*cell).exp();
            // What costs more is not tried.
            let can_be_tried = |cell: &&Cell| {
                let latency = law.log_latency(**cell).exp();
                let cost = sampling::cost(&Inferred { cell: **cell, latency, deviation: 0.0 });
                latency < 3.0 && cost.bytes < budget().bytes / 2.0
            };
            let best = cells.iter().filter(can_be_tried).map(truth).fold(0.0, f64::max);
            let chosen = goal::choose(&surface, &cells, Goal::Bandwidth).unwrap();
            truth(&chosen.cell) / best
        })
        .collect();
    parts.sort_by(f64::total_cmp);
    let (worst, of_twenty) = (parts[0], parts[parts.len() / 20]);
    println!("the worst plan carries {worst:.3} of the best, 19 of 20 carry {of_twenty:.3}");
    assert!(worst > 0.75 && of_twenty > 0.93, "{worst} {of_twenty}");
}
