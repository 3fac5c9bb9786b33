//! Rounds of the paper's policy.

use tradewind_model::affinity::placement::{Placement, PlacementGroup};
use tradewind_model::affinity::queueing::ReadLoad;

use super::*;
use crate::host::{CpuTimes, HostCounters};

/// Counters of an OSD on a host with this %iowait, after a number of rounds.
fn counters(rounds: u64, iowait: u64) -> Option<SignalCounters> {
    let cpu = Some(CpuTimes { iowait: rounds * iowait, total: rounds * 100 });
    let host = HostCounters { io_pressure_percent: None, cpu };
    Some(SignalCounters { device: None, host, read_at: Instant::now() })
}

#[test]
fn policy_of_the_paper_follows_iowait_and_names_it() {
    let group = PlacementGroup { seed: 1, osds: vec![0, 1], read_load: 1.0 };
    let round = Round {
        now: Duration::ZERO,
        placement: &Placement::new(&[0, 1], &[group]),
        read_loads: &[ReadLoad::default(); 2],
        affinities: &[Affinity::MAX; 2],
        fixed_osds: &[],
        seconds: 1.0,
    };
    let mut state = PolicyState::Dlr(DlrState {
        thresholds: Thresholds::default(),
        interval: Duration::ZERO,
        has_hosts_of_their_own: true,
        previous: None,
    });
    let first = state.decide(&round, &[counters(1, 5), counters(1, 90)]).unwrap();
    assert_eq!(first, Outcome::Dlr(None), "two samples make a signal");
    let silent = state.decide(&round, &[counters(2, 5), None]).unwrap();
    assert_eq!(silent, Outcome::Dlr(None));
    let outcome = state.decide(&round, &[counters(2, 5), counters(2, 90)]).unwrap();
    let Outcome::Dlr(Some(decided)) = &outcome else { panic!("{outcome:?}") };
    assert_eq!((decided.source, &decided.signals_percent[..]), (SignalSource::Iowait, &[5.0, 90.0][..]));
    assert!(decided.affinities[1] < decided.affinities[0] && decided.is_change, "{decided:?}");
    assert_eq!(explain(&outcome, true), "set new affinities by the policy dlr (signal: %iowait)");
}

#[test]
fn policy_of_the_paper_leaves_fixed_osds_alone() {
    let group = PlacementGroup { seed: 1, osds: vec![0, 1], read_load: 1.0 };
    let round = Round {
        now: Duration::ZERO,
        placement: &Placement::new(&[0, 1], &[group]),
        read_loads: &[ReadLoad::default(); 2],
        affinities: &[Affinity::MAX, Affinity::from_ratio(0.3)],
        fixed_osds: &[1],
        seconds: 1.0,
    };
    for iowait in [1, 90] {
        let mut state = PolicyState::Dlr(DlrState {
            thresholds: Thresholds::default(),
            interval: Duration::ZERO,
            has_hosts_of_their_own: true,
            previous: None,
        });
        let outcomes: Vec<Outcome> = (1..3)
            .map(|rounds| state.decide(&round, &[counters(rounds, 5), counters(rounds, iowait)]).unwrap())
            .collect();
        let Outcome::Dlr(Some(decided)) = &outcomes[1] else { panic!("{outcomes:?}") };
        assert!(!decided.is_change, "{decided:?}");
    }
}
