use proptest::prelude::*;

use super::*;
use crate::affinity::hash::hash_pair;
use crate::affinity::queueing::{WriteLoad, predict};
use crate::affinity::solver::tests::placement;

/// A cluster that behaves as the queueing model says, with noise in what is measured of it.
struct World {
    placement: Placement,
    rates: Vec<f64>,
    in_flight: f64,
    /// Maximum relative error of a measured rate.
    noise: f64,
    seed: u32,
    affinities: Vec<Affinity>,
    history: Vec<Vec<Affinity>>,
    /// Writes of each OSD in units of a read load of 1.
    write_load: f64,
    fixed_osds: Vec<OsdIndex>,
    round: u32,
}

impl World {
    fn new(rates: &[f64], noise: f64, seed: u32) -> Self {
        Self {
            placement: placement(rates.len() as u32, 128, 2),
            rates: rates.to_vec(),
            in_flight: 16.0,
            noise,
            seed,
            affinities: vec![Affinity::MAX; rates.len()],
            history: Vec::new(),
            write_load: 0.0,
            fixed_osds: Vec::new(),
            round: 0,
        }
    }

    /// Loads of reads and writes.
    fn loads(&self) -> Vec<f64> {
        self.placement.loads(&self.affinities).iter().map(|load| load + self.write_load).collect()
    }

    /// Reads and writes per second that the cluster serves now.
    fn throughput(&self) -> f64 {
        predict(&self.loads(), &self.rates, self.in_flight).unwrap().throughput
    }

    fn read_loads(&self) -> Vec<ReadLoad> {
        let loads = self.loads();
        let total: f64 = loads.iter().sum();
        let throughput = self.throughput();
        let measure = |osd: usize| {
            let random = f64::from(hash_pair(self.seed ^ self.round, osd as u32)) / f64::from(u32::MAX);
            let rate = self.rates[osd] * (1.0 + self.noise * (2.0 * random - 1.0));
            let per_second = throughput * loads[osd] / total;
            // Pollaczek-Khinchine, bounded by all requests in flight.
            let utilization = (per_second / rate).min(0.999);
            let in_flight = utilization * (2.0 - utilization) / (2.0 - 2.0 * utilization);
            let latency_seconds = in_flight.min(self.in_flight) / per_second;
            let writes_per_second = throughput * self.write_load / total;
            let writes = WriteLoad { writes_per_second, bytes_per_second: 0.0, latency_seconds };
            let reads_per_second = per_second - writes_per_second;
            ReadLoad { reads_per_second, bytes_per_second: 0.0, latency_seconds, writes }
        };
        (0..loads.len()).map(measure).collect()
    }

    /// One round of two seconds.
    fn step(&mut self, controller: &mut Controller) -> Decision {
        let read_loads = self.read_loads();
        let decision = controller.decide(&Round {
            now: Duration::from_secs(2 * u64::from(self.round)),
            placement: &self.placement,
            read_loads: &read_loads,
            affinities: &self.affinities,
            fixed_osds: &self.fixed_osds,
            seconds: 2.0,
        });
        self.round += 1;
        if let Decision::Set { affinities, .. }
        | Decision::Undo { affinities, .. }
        | Decision::KeepPart { affinities, .. } = &decision
        {
            self.affinities.clone_from(affinities);
            self.history.push(affinities.clone());
        }
        decision
    }

    /// The largest number of direction changes of one OSD's affinity.
    fn reversals(&self) -> usize {
        let osds = 0..self.rates.len();
        let reversals = osds.map(|osd| {
            let mut values = vec![Affinity::MAX];
            values.extend(self.history.iter().map(|affinities| affinities[osd]));
            values.dedup();
            let rises: Vec<bool> = values.windows(2).map(|pair| pair[1] > pair[0]).collect();
            rises.windows(2).filter(|pair| pair[0] != pair[1]).count()
        });
        reversals.max().unwrap_or(0)
    }
}

const HALF_SLOW: [f64; 8] = [20.0, 20.0, 20.0, 20.0, 5.0, 5.0, 5.0, 5.0];

#[test]
fn half_slow_cluster_is_relieved_within_ten_seconds_and_left_alone() {
    let mut world = World::new(&HALF_SLOW, 0.1, 1);
    let before = world.throughput();
    let mut controller = Controller::new(8, Options::default());
    let decisions: Vec<_> = (0..5).map(|_| world.step(&mut controller)).collect();
    assert!(decisions.iter().any(|decision| matches!(decision, Decision::Set { .. })), "{decisions:?}");
    assert!(world.throughput() > 1.45 * before, "{} {before}", world.throughput());
    let later: Vec<_> = (0..300).map(|_| world.step(&mut controller)).collect();
    assert!(later.iter().any(|decision| matches!(decision, Decision::Keep { .. })));
    assert!(!later.iter().any(|decision| matches!(decision, Decision::Undo { .. })), "{later:?}");
    assert!(world.history.len() <= 3, "{:?}", world.history);
}

#[test]
fn partial_recovery_of_steady_osds_raises_their_affinities() {
    let mut world = World { in_flight: 64.0, ..World::new(&HALF_SLOW, 0.02, 5) };
    let mut controller = Controller::new(8, Options::default());
    (0..60).for_each(|_| drop(world.step(&mut controller)));
    world.rates[4..].fill(12.0);
    let stuck = world.throughput();
    (0..60).for_each(|_| drop(world.step(&mut controller)));
    assert!(world.throughput() > 1.08 * stuck, "{stuck} {} {:?}", world.throughput(), world.history);
}

#[test]
fn affinities_return_when_the_osds_recover() {
    let mut world = World::new(&HALF_SLOW, 0.1, 2);
    let mut controller = Controller::new(8, Options::default());
    (0..40).for_each(|_| drop(world.step(&mut controller)));
    world.rates = vec![20.0; 8];
    let stuck = world.throughput();
    (0..60).for_each(|_| drop(world.step(&mut controller)));
    assert!(world.throughput() > 1.2 * stuck, "{} {stuck} {:?}", world.throughput(), world.affinities);
}

#[test]
fn equal_or_idle_osds_are_left_alone() {
    let mut world = World::new(&[20.0; 8], 0.1, 3);
    let mut controller = Controller::new(8, Options::default());
    (0..200).for_each(|_| drop(world.step(&mut controller)));
    assert_eq!(world.reversals(), 0, "{:?}", world.history);
    let mut controller = Controller::new(8, Options::default());
    let idle = [ReadLoad::default(); 8];
    let round = Round {
        now: Duration::ZERO,
        placement: &world.placement,
        read_loads: &idle,
        affinities: &world.affinities,
        fixed_osds: &[],
        seconds: 2.0,
    };
    assert_eq!(controller.decide(&round), Decision::Wait(Idle::FewReads));
}

#[test]
fn step_without_a_gain_is_undone_and_tried_later_and_later() {
    assert_steps_are_retried(World::new(&HALF_SLOW, 0.0, 4), 0.2..10.0);
}

#[test]
fn small_step_without_a_gain_is_tried_later_and_later() {
    let rates = [20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 17.0];
    assert_steps_are_retried(World { in_flight: 8.0, ..World::new(&rates, 0.0, 4) }, 0.05..0.2);
}

/// Steps that bring nothing are undone and retried, each with a predicted gain in this range.
fn assert_steps_are_retried(mut world: World, gains: std::ops::Range<f64>) {
    let mut controller = Controller::new(8, Options::default());
    let slow = world.read_loads();
    let (mut sets, mut undos) = (Vec::new(), 0);
    for second in (0..9000).step_by(2) {
        // Whatever is set, the reads stay as slow as before.
        let round = Round {
            now: Duration::from_secs(second),
            placement: &world.placement,
            read_loads: &slow,
            affinities: &world.affinities,
            fixed_osds: &[],
            seconds: 2.0,
        };
        match controller.decide(&round) {
            Decision::Set { affinities, predicted_gain } => {
                assert!(gains.contains(&predicted_gain), "{predicted_gain}");
                sets.push(second);
                world.affinities = affinities;
            }
            Decision::Undo { affinities, measured_gain } => {
                assert!(measured_gain.abs() < 0.01);
                assert_eq!(affinities, [Affinity::MAX; 8]);
                assert!(second - sets.last().unwrap() <= 15);
                world.affinities = affinities;
                undos += 1;
            }
            Decision::Keep { .. } | Decision::KeepPart { .. } => panic!("nothing was gained"),
            Decision::Wait(_) => {}
        }
    }
    assert_eq!(sets.len(), undos);
    let gaps: Vec<u64> = sets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() >= 2 && gaps[0] >= 900 && gaps[1] > gaps[0] * 3 / 2, "{gaps:?}");
}

#[test]
fn undo_leaves_an_osd_alone_that_was_fixed_after_the_step() {
    let mut world = World::new(&HALF_SLOW, 0.0, 4);
    let mut controller = Controller::new(8, Options::default());
    let slow = world.read_loads();
    let operators = Affinity::from_steps(0);
    let mut fixed_osds = Vec::new();
    for second in (0..60).step_by(2) {
        let round = Round {
            now: Duration::from_secs(second),
            placement: &world.placement,
            read_loads: &slow,
            affinities: &world.affinities,
            fixed_osds: &fixed_osds,
            seconds: 2.0,
        };
        match controller.decide(&round) {
            Decision::Set { mut affinities, .. } => {
                affinities[5] = operators;
                fixed_osds = vec![5];
                world.affinities = affinities;
            }
            Decision::Undo { affinities, .. } => {
                let mut expected = [Affinity::MAX; 8];
                expected[5] = operators;
                assert_eq!(affinities, expected);
                return;
            }
            _ => {}
        }
    }
    panic!("nothing was undone");
}

/// Decides until a step with this real gain ends. The prediction does not matter. Returns the step and its end.
fn end_of_step(controller: &mut Controller, world: &World, real_gain: f64, noise: f64) -> [Decision; 2] {
    let slow = world.read_loads();
    let mut affinities = world.affinities.clone();
    let (mut set, mut seed) = (None, world.seed);
    for second in (0..60).step_by(2) {
        let mut random = || {
            seed += 1;
            f64::from(hash_pair(seed, 77)) / f64::from(u32::MAX) * 2.0 - 1.0
        };
        let factor = if set.is_some() { 1.0 + real_gain } else { 1.0 } * (1.0 + noise * random());
        let faster = |load: &ReadLoad| ReadLoad {
            reads_per_second: load.reads_per_second * factor,
            latency_seconds: load.latency_seconds / factor,
            ..*load
        };
        let decision = controller.decide(&Round {
            now: Duration::from_secs(second),
            placement: &world.placement,
            read_loads: &slow.iter().map(faster).collect::<Vec<_>>(),
            affinities: &affinities,
            fixed_osds: &[],
            seconds: 2.0,
        });
        match decision {
            Decision::Wait(_) => {}
            Decision::Set { affinities: ref next, .. } => {
                affinities.clone_from(next);
                set = Some(decision);
            }
            end => return [set.unwrap(), end],
        }
    }
    panic!("no step ended: {set:?}");
}

#[test]
fn step_with_a_third_of_the_predicted_gain_is_kept_and_lowers_the_next_prediction() {
    let world =
        World { in_flight: 64.0, ..World::new(&[20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 2.0, 2.0], 0.0, 4) };
    let mut controller = Controller::new(8, Options::default());
    let [set, end] = end_of_step(&mut controller, &world, 0.35, 0.05);
    let Decision::Set { predicted_gain, .. } = set else { panic!("{set:?}") };
    assert!(predicted_gain > 1.5, "{predicted_gain}");
    let (Decision::Keep { measured_gain } | Decision::KeepPart { measured_gain, .. }) = end else {
        panic!("{end:?}")
    };
    assert!((0.25..0.45).contains(&measured_gain), "{measured_gain}");
    assert!(controller.prediction_scale < 0.6, "{}", controller.prediction_scale);
}

#[test]
fn noisy_steps_are_judged_by_their_real_gain() {
    for (real_gain, is_kept) in [(0.12, true), (0.35, true), (-0.1, false), (-0.3, false)] {
        for seed in 0..40 {
            let world = World { seed: 1000 * seed, ..World::new(&HALF_SLOW, 0.0, 0) };
            let mut controller = Controller::new(8, Options::default());
            let [_, end] = end_of_step(&mut controller, &world, real_gain, 0.08);
            assert_eq!(!matches!(end, Decision::Undo { .. }), is_kept, "{real_gain} {seed} {end:?}");
        }
    }
}

#[test]
fn change_that_costs_throughput_is_undone_alone() {
    let placement = placement(4, 128, 2);
    let quarter = Affinity::from_ratio(0.25);
    let total = |rates: [f64; 4]| Total {
        in_flight: 32.0,
        reads_per_second: 100.0,
        cost_per_second: 1e8,
        service_rates: rates.map(Some).to_vec(),
    };
    let affinities = vec![quarter, quarter, Affinity::MAX, Affinity::MAX];
    let pending = PendingStep {
        previous: vec![Affinity::MAX; 4],
        affinities: affinities.clone(),
        previous_osds: vec![OsdState::default(); 4],
        full_gain: 0.3,
        previous_loads: placement.loads(&[Affinity::MAX; 4]),
        other_shares: vec![0.0; 4],
        service_rates: vec![5.0, 5.0, 20.0, 20.0],
        earlier: Vec::new(),
        rounds: 4,
        // OSD 1 seemed slow before the step.
        measured: VecDeque::from(vec![total([5.0, 20.0, 20.0, 20.0]); 3]),
    };
    assert_eq!(pending.harmful_osds(&placement, 0.05), [1]);
    let as_predicted = VecDeque::from(vec![total([5.0, 5.0, 20.0, 20.0]); 3]);
    let right = PendingStep { measured: as_predicted, ..pending.clone() };
    assert_eq!(right.harmful_osds(&placement, 0.05), []);
    let noisy = [[5.0, 20.0, 20.0, 20.0], [5.0, 4.0, 20.0, 20.0], [5.0, 9.0, 20.0, 20.0]].map(total);
    let uncertain = PendingStep { measured: VecDeque::from(noisy), ..pending };
    assert_eq!(uncertain.harmful_osds(&placement, 0.05), []);
}

#[test]
fn gain_of_a_mixed_load_is_predicted_as_it_comes() {
    let mut world = World { write_load: 14.0, ..World::new(&HALF_SLOW, 0.02, 6) };
    let mut controller = Controller::new(8, Options::default());
    let before = world.throughput();
    let decisions: Vec<_> = (0..20).map(|_| world.step(&mut controller)).collect();
    let predicted = decisions.iter().find_map(|decision| match decision {
        Decision::Set { predicted_gain, .. } => Some(*predicted_gain),
        _ => None,
    });
    let (predicted, real) = (predicted.unwrap(), world.throughput() / before - 1.0);
    assert!(real > 0.05 && (0.7..1.4).contains(&(predicted / real)), "{predicted} {real}");
    assert!(!decisions.iter().any(|decision| matches!(decision, Decision::Undo { .. })), "{decisions:?}");
}

#[test]
fn writes_of_an_osd_without_reads_are_load() {
    let world = World { write_load: 0.1, ..World::new(&[20.0; 8], 0.0, 1) };
    let mut controller = Controller::new(8, Options::default());
    let mut read_loads = world.read_loads();
    read_loads[7] = ReadLoad { writes: read_loads[7].writes, ..ReadLoad::default() };
    for round in 0..3 {
        controller.decide(&Round {
            now: Duration::from_secs(2 * round),
            placement: &world.placement,
            read_loads: &read_loads,
            affinities: &world.affinities,
            fixed_osds: &[],
            seconds: 2.0,
        });
    }
    let loads = controller.write_loads(&world.placement, &world.affinities);
    assert!(loads[0] > 0.0 && (loads[7] / loads[0] - 1.0).abs() < 1e-6, "{loads:?}");
}

#[test]
fn slow_osd_that_moves_is_relieved_within_15_seconds() {
    let mut rates = [20.0; 8];
    rates[2] = 4.0;
    let mut world = World { in_flight: 32.0, ..World::new(&rates, 0.05, 8) };
    let mut controller = Controller::new(8, Options::default());
    let mut set_at = 0;
    // The first step is a few rounds old: its OSDs may not change again.
    while world.round < set_at + 14 || set_at == 0 {
        let is_set = matches!(world.step(&mut controller), Decision::Set { .. });
        set_at = if is_set { world.round } else { set_at };
        assert!(world.round < 60);
    }
    let changed: Vec<OsdIndex> = (0..8).filter(|osd| world.affinities[*osd] != Affinity::MAX).collect();
    let slow = (0..8).find(|osd| !changed.contains(osd)).unwrap();
    (world.rates[2], world.rates[slow]) = (20.0, 4.0);
    let moved = world.round;
    while !matches!(world.step(&mut controller), Decision::Set { .. }) {
        assert!(world.round < moved + 8, "nothing within 15 s");
    }
    assert!(world.affinities[slow] < Affinity::MAX, "{:?}", world.affinities);
}

#[test]
fn fixed_osds_never_change() {
    let mut world = World { fixed_osds: vec![0, 4], ..World::new(&HALF_SLOW, 0.1, 9) };
    world.affinities[0] = Affinity::from_ratio(0.3);
    let mut controller = Controller::new(8, Options::default());
    (0..60).for_each(|_| drop(world.step(&mut controller)));
    assert!(!world.history.is_empty());
    for affinities in &world.history {
        assert_eq!((affinities[0], affinities[4]), (Affinity::from_ratio(0.3), Affinity::MAX));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn constant_load_never_reverses_an_affinity_twice(
        rates in prop::collection::vec(4.0..40.0_f64, 4..10),
        noise in 0.0..0.25_f64,
        seed in any::<u32>(),
    ) {
        let mut world = World::new(&rates, noise, seed);
        let mut controller = Controller::new(rates.len(), Options::default());
        (0..300).for_each(|_| drop(world.step(&mut controller)));
        prop_assert!(world.reversals() <= 1, "{:?}", world.history);
    }

    #[test]
    fn no_osd_changes_twice_within_a_minute(
        rates in prop::collection::vec(4.0..40.0_f64, 4..10),
        seed in any::<u32>(),
    ) {
        let mut world = World::new(&rates, 0.2, seed);
        let mut controller = Controller::new(rates.len(), Options::default());
        let mut last = vec![None; rates.len()];
        for round in 0..300_u32 {
            if round % 50 == 0 {
                world.rates.rotate_left(1);
            }
            let before = world.affinities.clone();
            let decision = world.step(&mut controller);
            if let Decision::Set { affinities, .. } = decision {
                for osd in 0..rates.len() {
                    if affinities[osd] != before[osd] {
                        let is_early = last[osd].is_some_and(|at: u32| round - at < 30);
                        prop_assert!(!is_early, "osd {osd} in round {round}");
                        last[osd] = Some(round);
                    }
                }
            }
        }
    }
}
