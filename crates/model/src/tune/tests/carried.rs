//! What is known of one client and line, carried over to another: the two cases of Hou 2017, section 5.4, grids that were measured
//! behind emulated lines, and lines that nobody has measured yet.

use proptest::prelude::*;

use super::{PARALLEL, SIZES, budget, law, played};
use crate::store_model::SizeClass;
use crate::tune::carry::{Client, begin, carry};
use crate::tune::{AtATime, Belief, Cell, Goal, Law, Sample, Surface, goal};

/// The clients and lines of `experiments/tuning/profiles.py`, in its units; processors of the machine that measured. The last is
/// the part of packets that is lost, in percent.
const LINES: [(&str, f64, f64, f64, f64); 9] = [
    ("near", 0.3, 1000.0, 2.0, 0.0),
    ("near-slow", 0.3, 100.0, 2.0, 0.0),
    ("region", 10.0, 1000.0, 2.0, 0.0),
    ("region-lossy", 10.0, 1000.0, 2.0, 0.1),
    ("country", 50.0, 100.0, 2.0, 0.0),
    ("country-lossy", 50.0, 100.0, 2.0, 0.1),
    ("ireland", 128.0, 1000.0, 2.0, 0.0),
    ("sydney", 176.0, 1000.0, 2.0, 0.0),
    ("one-core", 0.3, 1000.0, 0.25, 0.0),
];
/// A plan that was carried over carries so much of the best: on any lines that a law describes, and on nine of ten that were
/// measured.
const NEAR_THE_BEST: f64 = 0.9;
/// On the others so much.
const AT_LEAST: f64 = 0.85;
const ENOUGH: f64 = 0.9;

fn line(name: &str) -> Option<(Client, f64)> {
    let (_, milliseconds, megabits, processors, loss) = LINES.into_iter().find(|line| line.0 == name)?;
    Some((client(milliseconds, megabits, processors), loss))
}

fn client(milliseconds: f64, megabits: f64, processors: f64) -> Client {
    Client {
        processors: Some(processors),
        storage: None,
        round_trip: Some(milliseconds / 1e3),
        link: Some(megabits * 1e6 / 8.0),
    }
}

/// What eight probes say, each a little off.
fn probed(client: &Client, cells: &[Cell], seed: u64, latency: impl Fn(Cell) -> f64) -> Surface {
    let belief = Belief::default().with_round_trip(client.round_trip.unwrap());
    let answer = |cell: Cell, turn: usize| latency(cell) * (1.0 + 0.03 * played::chance(seed, turn));
    played::sample(belief, cells, budget(), answer)
}

/// What a plan carries of the best that any cell does.
fn part(surface: &Surface, cells: &[Cell], latency: impl Fn(Cell) -> f64) -> (Cell, f64) {
    let truth = |cell: &Cell| cell.bandwidth(latency(*cell));
    let best = cells.iter().map(truth).fold(0.0, f64::max);
    let chosen = goal::choose(surface, cells, Goal::Bandwidth).unwrap().cell;
    (chosen, truth(&chosen) / best)
}

/// The fewest 16 KiB requests at a time that carry what any number does, but for so much.
fn enough_of_16_kib(surface: &Surface) -> usize {
    let rates = PARALLEL.map(|parallel| surface.infer(Cell { bytes: 16 << 10, parallel }).rate());
    let best = rates.into_iter().fold(0.0, f64::max);
    PARALLEL[rates.iter().position(|rate| *rate >= best * ENOUGH).unwrap()]
}

#[test]
fn twice_the_processors_are_worth_twice_as_many() {
    // Eight fill two processors.
    let (law, cells) = (law(0.012, 200e6, 300.0, 400e6), Cell::grid(&SIZES, &PARALLEL));
    let two = Client { processors: Some(2.0), round_trip: Some(0.011), ..Client::default() };
    let four = Client { processors: Some(4.0), ..two };
    for seed in 1..=4 {
        let known = probed(&two, &cells, seed, |cell| law.log_latency(cell).exp());
        let carried = Surface::new(carry(&known, &two, &four), Vec::new());
        assert_eq!([&known, &carried].map(enough_of_16_kib), [8, 16], "{seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_longer_round_trip_never_lowers_parallelism(
        round_trip in 0.2e-3_f64..0.2,
        longer in 1.0_f64..50.0,
        besides in 0.0_f64..20e-3,
        connection in 2e6_f64..300e6,
        requests in 300.0_f64..30e3,
        link in 5e6_f64..1e9,
        seed in 0_u64..1000,
    ) {
        let (law, cells) =
            (law(round_trip + besides, connection, requests, link), Cell::grid(&SIZES, &PARALLEL));
        let here = Client { round_trip: Some(round_trip), link: Some(link), ..Client::default() };
        let known = probed(&here, &cells, seed, |cell| law.log_latency(cell).exp());
        let there = Client { round_trip: Some(round_trip * longer), ..here };
        let [near, far] = [&here, &there].map(|to| Surface::new(carry(&known, &here, to), Vec::new()));
        let [few, many] = [&near, &far].map(|surface| AtATime::of(std::slice::from_ref(surface)).unwrap());
        for class in SizeClass::all() {
            prop_assert!(many.at(class) >= few.at(class), "{class:?}: {} {}", few.at(class), many.at(class));
        }
    }
}

#[test]
fn to_the_same_client_nothing_is_scaled() {
    let (law, cells) = (law(0.06, 20e6, 2e3, 90e6), Cell::grid(&SIZES, &PARALLEL));
    let here = client(50.0, 1000.0, 2.0);
    let known = probed(&here, &cells, 3, |cell| law.log_latency(cell).exp());
    let (learnt, carried) = (known.learnt(), carry(&known, &here, &here));
    for number in [0, 1, 2, 3, 5, 6] {
        assert!((learnt.mean.0[number] - carried.mean.0[number]).abs() < 1e-9, "{number}");
    }
    assert!(carried.mean.sharpness() < learnt.mean.sharpness());
    assert!((0..7).all(|i| carried.deviation[i] >= learnt.deviation[i].min(0.7)), "{carried:?}");
}

#[test]
fn what_is_full_is_scaled_by_what_fills_it() {
    let sample = |parallel| Sample {
        cell: Cell { bytes: 4 << 20, parallel },
        latency: parallel as f64 * f64::from(4 << 20) / 97e6,
        error: 0.02,
        tail: None,
        is_seen: false,
    };
    let known = Surface::new(Belief::default(), vec![sample(8), sample(16), sample(32)]);
    let most = |from: Client, to: Client| 1e-6 / carry(&known, &from, &to).mean.shared_per_byte();
    let with = |processors| Client { processors: Some(processors), ..Client::default() };
    let (two, four) = (with(2.0), with(4.0));
    let linked = |client: Client, link: f64| Client { link: Some(link), ..client };
    let stored = |client: Client, storage: f64| Client { storage: Some(storage), ..client };
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.1;
    assert!(near(most(linked(two, 100e6), linked(four, 10e6)), 9.7));
    assert!(near(most(linked(two, 1e9), linked(four, 1e9)), 2.0 * 97.0), "processors were");
    assert!(near(most(linked(two, 1e9), linked(four, 50e6)), 50.0), "no more than the link carries");
    assert!(near(most(two, four), 2.0 * 97.0), "of the link nothing is known");
    assert!(near(most(with(12.0), with(6.0)), 97.0), "twelve processors would carry more");
    assert!(near(most(stored(linked(two, 1e9), 110e6), stored(linked(four, 1e9), 220e6)), 2.0 * 97.0));
    assert!(near(most(linked(two, 100e6), four), 97.0), "nothing says that another link is another");
}

/// One line's profile for every other, on grids that were measured, the worst of five. Lines that lose packets are told and not
/// judged: what is lost says nothing of other lines, and nothing says it before a probe. Nor is the weak client, whose store keeps
/// the processors that it had.
#[test]
fn grids_carry_over() {
    let grids = played::grids();
    let (mut judged, mut fell_short) = (0, Vec::new());
    for (name, grid) in &grids {
        let (profile, direction) = name.split_once(' ').unwrap();
        let Some((from, lost)) = line(profile) else { continue };
        for (other, there) in &grids {
            let (to_profile, to_direction) = other.split_once(' ').unwrap();
            let Some((to, to_lost)) = line(to_profile) else { continue };
            if to_direction != direction || to_profile == profile {
                continue;
            }
            let cells: Vec<Cell> = there.keys().copied().collect();
            let known = |seed| {
                let cells: Vec<Cell> = grid.keys().copied().collect();
                probed(&from, &cells, seed, |cell| grid[&cell].latency)
            };
            let found = (1..=5).map(|seed| {
                let carried = Surface::new(carry(&known(seed), &from, &to), Vec::new());
                part(&carried, &cells, |cell| there[&cell].latency)
            });
            let (cell, worst) = found.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            let is_judged = lost == 0.0 && to_lost == 0.0 && from.processors == to.processors;
            let told = format!(
                "{name} to {to_profile}: {} KiB x {} carries {worst:.3}",
                cell.bytes >> 10,
                cell.parallel
            );
            println!("{told}{}", if is_judged { "" } else { " (not judged)" });
            judged += usize::from(is_judged);
            if is_judged && worst < NEAR_THE_BEST {
                assert!(worst > AT_LEAST, "{told}");
                fell_short.push(told);
            }
        }
    }
    println!("{} of {judged} carry less than {NEAR_THE_BEST}", fell_short.len());
    assert!(fell_short.len() * 10 <= judged, "{fell_short:#?}");
}

/// The same between lines without losses as the law has them, and between strong and weak clients: from next door to the other
/// side of the world.
#[test]
fn any_line_carries_over_to_any_other() {
    let cells = Cell::grid(&SIZES, &PARALLEL);
    let clients: Vec<(String, Client)> = (LINES.into_iter())
        .filter(|line| line.3 == 2.0 && line.4 == 0.0)
        .flat_map(|(name, milliseconds, megabits, ..)| {
            [1.0, 2.0, 8.0].map(|processors| {
                (format!("{name} {processors}"), client(milliseconds, megabits, processors))
            })
        })
        .collect();
    let of = |client: &Client| -> Law {
        let (time, link) = (client.round_trip.unwrap(), client.link.unwrap());
        let processors = client.processors.unwrap();
        let connection = (2.5e6 / time).min(400e6);
        law(time + 0.4e-3, connection, 2500.0 * processors, (link * 0.96).min(90e6 * processors))
    };
    let mut parts = Vec::new();
    for (seed, (name, from)) in clients.iter().enumerate() {
        let here = of(from);
        let known = probed(from, &cells, seed as u64, |cell| here.log_latency(cell).exp());
        for (other, to) in clients.iter().filter(|(other, _)| other != name) {
            let there = of(to);
            let carried = Surface::new(carry(&known, from, to), Vec::new());
            let (cell, part) = part(&carried, &cells, |cell| there.log_latency(cell).exp());
            parts.push((part, format!("{name} to {other}: {} KiB x {}", cell.bytes >> 10, cell.parallel)));
        }
    }
    parts.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("of {} the worst: {:?}", parts.len(), parts[0]);
    assert!(parts[0].0 >= NEAR_THE_BEST, "{:#?}", &parts[..10]);
}

/// Sampling that begins with what was carried over finds what sampling from nothing does, also where the link is another than
/// it was taken for.
#[test]
fn wrong_guesses_are_corrected() {
    let grids = played::grids();
    let mut parts = Vec::new();
    for (name, grid) in &grids {
        let (profile, direction) = name.split_once(' ').unwrap();
        let Some((from, _)) = line(profile) else { continue };
        let cells: Vec<Cell> = grid.keys().copied().collect();
        let known = probed(&from, &cells, 7, |cell| grid[&cell].latency);
        for (other, there) in grids.iter().filter(|(other, _)| other != name && other.ends_with(direction)) {
            let Some((to, _)) = line(other.split_once(' ').unwrap().0) else { continue };
            let cells: Vec<Cell> = there.keys().copied().collect();
            for to in [to, Client { link: None, ..to }] {
                let answer =
                    |cell: Cell, turn: usize| there[&cell].latency * (1.0 + 0.03 * played::chance(5, turn));
                let sampled = |belief| {
                    let surface = played::sample(belief, &cells, budget(), answer);
                    part(&surface, &cells, |cell| there[&cell].latency).1
                };
                let fresh = sampled(Belief::default().with_round_trip(to.round_trip.unwrap()));
                let begun = sampled(begin(&known, &from, &to));
                println!(
                    "{name} to {other}, link {:?}: {begun:.3}, from nothing {fresh:.3}",
                    to.link.map(|link| link / 1e6)
                );
                parts.push((begun, fresh));
            }
        }
    }
    let mean = |of: fn(&(f64, f64)) -> f64| parts.iter().map(of).sum::<f64>() / parts.len() as f64;
    let (begun, fresh) = (mean(|both| both.0), mean(|both| both.1));
    println!("in the mean {begun:.3}, from nothing {fresh:.3}");
    assert!(begun > fresh - 0.02, "{begun} {fresh}");
}
