//! The speed of stores over a run.

use std::time::Duration;

use fastrand::Rng;

/// Service rate of an undisturbed store, in reads per second.
pub(super) const FAST_READS_PER_SECOND: f64 = 20.0;
/// Service rate of a slow store, in reads per second.
const SLOW_READS_PER_SECOND: f64 = 5.0;
/// Time after which other stores are slow (paper, section III.B).
const ROTATION_INTERVAL: Duration = Duration::from_secs(90);
/// Time for which a disturber runs, and for which it then rests.
const DISTURBANCE: Duration = Duration::from_secs(60);
/// Share of the simulated time after which a store begins to fail.
const HEALTHY_SHARE: f64 = 1.0 / 6.0;

/// The share of a store that a disturber takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisturbanceDepth {
    /// 70 % of a store's service rate.
    Deep,
    /// 12 % of it: less than what a step by hand costs.
    Shallow,
}

impl DisturbanceDepth {
    fn share_taken(self) -> f64 {
        match self {
            Self::Deep => 0.7,
            Self::Shallow => 0.12,
        }
    }
}

/// A way in which the speeds of the stores change. Which stores are affected follows from the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Half of the stores serve 5 reads per second, the others 20.
    Heterogeneity,
    /// Half of the stores are slow. Every 90 s they become fast, and others slow.
    HotSpots,
    /// A disturber takes a share of a quarter of the stores for 60 s, then rests for 60 s, and then takes it of others.
    Interference(DisturbanceDepth),
    /// After a sixth of the time, one store responds to every read with an error, at once.
    FailFast,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 5] = [
        Self::Heterogeneity,
        Self::HotSpots,
        Self::Interference(DisturbanceDepth::Deep),
        Self::Interference(DisturbanceDepth::Shallow),
        Self::FailFast,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Heterogeneity => "heterogeneity",
            Self::HotSpots => "hot-spots",
            Self::Interference(DisturbanceDepth::Deep) => "interference",
            Self::Interference(DisturbanceDepth::Shallow) => "shallow-interference",
            Self::FailFast => "fail-fast",
        }
    }
}

/// A store from some time on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StoreState {
    /// Its service rate in reads per second.
    pub reads_per_second: f64,
    /// True if it responds to every read with an error at once.
    pub is_failing: bool,
}

impl StoreState {
    /// A store that nothing disturbs.
    pub const FAST: Self = Self { reads_per_second: FAST_READS_PER_SECOND, is_failing: false };
}

/// All stores from some time until the next phase.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Phase {
    pub start: Duration,
    /// One per store.
    pub stores: Vec<StoreState>,
}

impl Phase {
    /// All stores are fast but those at these places in `order`, which are in this state.
    fn with(
        start: Duration,
        order: &[usize],
        affected: impl Iterator<Item = usize>,
        state: StoreState,
    ) -> Self {
        let mut stores = vec![StoreState::FAST; order.len()];
        affected.for_each(|place| stores[order[place % order.len()]] = state);
        Self { start, stores }
    }
}

/// The phases of a run. The first one starts at 0.
pub(super) fn phases(
    scenario: Scenario,
    store_count: usize,
    duration: Duration,
    rng: &mut Rng,
) -> Vec<Phase> {
    let mut order: Vec<usize> = (0..store_count).collect();
    rng.shuffle(&mut order);
    let slow = StoreState { reads_per_second: SLOW_READS_PER_SECOND, is_failing: false };
    let half = store_count / 2;
    let starts = |interval: Duration| (0..).map(move |n| interval * n).take_while(move |at| *at < duration);
    match scenario {
        Scenario::Heterogeneity => vec![Phase::with(Duration::ZERO, &order, 0..half, slow)],
        Scenario::HotSpots => starts(ROTATION_INTERVAL)
            .enumerate()
            .map(|(n, start)| Phase::with(start, &order, n * half..(n + 1) * half, slow))
            .collect(),
        Scenario::Interference(depth) => {
            let disturbed = StoreState {
                reads_per_second: FAST_READS_PER_SECOND * (1.0 - depth.share_taken()),
                is_failing: false,
            };
            let count = store_count.div_ceil(4);
            let phase = |(n, start): (usize, Duration)| {
                // Odd phases are disturbed.
                let affected = if n % 2 == 1 { n / 2 * count..(n / 2 + 1) * count } else { 0..0 };
                Phase::with(start, &order, affected, disturbed)
            };
            starts(DISTURBANCE).enumerate().map(phase).collect()
        }
        Scenario::FailFast => {
            let failing = StoreState { is_failing: true, ..StoreState::FAST };
            vec![
                Phase::with(Duration::ZERO, &order, 0..0, failing),
                Phase::with(duration.mul_f64(HEALTHY_SHARE), &order, 0..1, failing),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases_of(scenario: Scenario, seed: u64) -> Vec<Phase> {
        phases(scenario, 8, Duration::from_secs(360), &mut Rng::with_seed(seed))
    }

    fn slow(phase: &Phase) -> Vec<usize> {
        let is_slow = |store: &usize| phase.stores[*store].reads_per_second < FAST_READS_PER_SECOND;
        (0..phase.stores.len()).filter(is_slow).collect()
    }

    #[test]
    fn half_of_the_stores_is_slow_and_the_seed_says_which() {
        let phases = phases_of(Scenario::Heterogeneity, 1);
        assert_eq!((phases.len(), slow(&phases[0]).len()), (1, 4));
        assert_eq!(phases, phases_of(Scenario::Heterogeneity, 1));
        assert_ne!(phases, phases_of(Scenario::Heterogeneity, 2));
    }

    #[test]
    fn hot_spots_move_to_the_other_half_every_90_seconds() {
        let phases = phases_of(Scenario::HotSpots, 1);
        assert_eq!(phases.iter().map(|phase| phase.start.as_secs()).collect::<Vec<_>>(), [0, 90, 180, 270]);
        for pair in phases.windows(2) {
            let mut both = [slow(&pair[0]), slow(&pair[1])].concat();
            both.sort_unstable();
            assert_eq!(both, (0..8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn disturber_rests_between_two_quarters_of_the_stores() {
        let phases = phases_of(Scenario::Interference(DisturbanceDepth::Deep), 3);
        assert_eq!(phases.iter().map(|phase| slow(phase).len()).collect::<Vec<_>>(), [0, 2, 0, 2, 0, 2]);
        assert_ne!(slow(&phases[1]), slow(&phases[3]));
        assert!((phases[1].stores[slow(&phases[1])[0]].reads_per_second - 6.0).abs() < 1e-9);
    }

    #[test]
    fn one_store_fails_after_a_sixth_of_the_time() {
        let phases = phases_of(Scenario::FailFast, 1);
        let failing = |phase: &Phase| phase.stores.iter().filter(|store| store.is_failing).count();
        assert_eq!(phases.iter().map(failing).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(phases[1].start, Duration::from_secs(60));
    }
}
