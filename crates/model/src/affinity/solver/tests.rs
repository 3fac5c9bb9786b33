use proptest::prelude::*;

use super::*;
use crate::affinity::hash::{hash_pair, placement_seed};
use crate::affinity::placement::PlacementGroup;

/// A pool whose groups have pseudorandom OSDs.
pub(in crate::affinity) fn placement(osds: u32, groups: u32, size: usize) -> Placement {
    let ids: Vec<u32> = (0..osds).collect();
    let group = |pg: u32| {
        let mut members = Vec::new();
        let mut draw = 0;
        while members.len() < size.min(osds as usize) {
            let osd = hash_pair(pg, 1_000_003 + draw) % osds;
            draw += 1;
            if !members.contains(&osd) {
                members.push(osd);
            }
        }
        PlacementGroup { seed: placement_seed(pg, groups, 6, true), osds: members, read_load: 1.0 }
    };
    Placement::new(&ids, &(0..groups).map(group).collect::<Vec<_>>())
}

fn throughput(cluster: &Cluster<'_>, affinities: &[Affinity]) -> f64 {
    cluster.predict(affinities).unwrap().throughput
}

#[test]
fn half_slow_cluster_gains_more_than_affinities_set_by_hand() {
    let placement = placement(8, 128, 2);
    let rates = [20.0, 20.0, 20.0, 20.0, 5.0, 5.0, 5.0, 5.0];
    let cluster = Cluster {
        placement: &placement,
        service_rates: &rates,
        in_flight: 16.0,
        min_steps: 4,
        fixed_osds: &[],
        other_loads: &[],
    };
    let even = throughput(&cluster, &[Affinity::MAX; 8]);
    let by_hand: Vec<_> = rates
        .iter()
        .map(|rate| if *rate > 5.0 { Affinity::MAX } else { Affinity::from_ratio(0.1) })
        .collect();
    let by_hand = throughput(&cluster, &by_hand);
    let solved = cluster.solve().unwrap();
    let gain = solved.prediction.throughput / even;
    assert!(gain > 1.5, "{gain}");
    assert!(solved.prediction.throughput > 1.08 * by_hand, "{by_hand} {solved:?}");
}

#[test]
fn equal_osds_keep_affinity_one_or_gain_little() {
    let placement = placement(8, 4096, 2);
    let rates = [20.0; 8];
    let cluster = Cluster {
        placement: &placement,
        service_rates: &rates,
        in_flight: 16.0,
        min_steps: 4,
        fixed_osds: &[],
        other_loads: &[],
    };
    let even = throughput(&cluster, &[Affinity::MAX; 8]);
    let gain = cluster.solve().unwrap().prediction.throughput / even;
    assert!((1.0..1.05).contains(&gain), "{gain}");
}

#[test]
fn cluster_of_one_osd_or_without_reads_has_no_better_affinities() {
    let one = placement(1, 8, 2);
    let cluster = Cluster {
        placement: &one,
        service_rates: &[5.0],
        in_flight: 4.0,
        min_steps: 4,
        fixed_osds: &[],
        other_loads: &[],
    };
    assert_eq!(cluster.solve().unwrap().affinities, [Affinity::MAX]);
    let idle = Placement::new(&[0, 1], &[]);
    let cluster = Cluster {
        placement: &idle,
        service_rates: &[5.0; 2],
        in_flight: 4.0,
        min_steps: 4,
        fixed_osds: &[],
        other_loads: &[],
    };
    assert_eq!(cluster.solve(), None);
}

#[test]
fn no_affinity_is_below_the_minimum() {
    let placement = placement(6, 512, 3);
    let rates = [100.0, 100.0, 100.0, 100.0, 100.0, 0.001];
    let cluster = Cluster {
        placement: &placement,
        service_rates: &rates,
        in_flight: 64.0,
        min_steps: 4,
        fixed_osds: &[],
        other_loads: &[],
    };
    let solved = cluster.solve().unwrap();
    assert_eq!(solved.affinities[5], Affinity::from_steps(4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn solution_is_never_worse_than_affinity_one(
        rates in prop::collection::vec(1.0..100.0_f64, 3..12),
        in_flight in 1.0..200.0_f64,
    ) {
        let placement = placement(rates.len() as u32, 96, 3);
        let cluster = Cluster { placement: &placement, service_rates: &rates, in_flight, min_steps: 4, fixed_osds: &[], other_loads: &[] };
        let even = throughput(&cluster, &vec![Affinity::MAX; rates.len()]);
        let solved = cluster.solve().unwrap();
        prop_assert!(solved.prediction.throughput >= even * (1.0 - 1e-9));
        prop_assert!((throughput(&cluster, &solved.affinities) - solved.prediction.throughput).abs() < 1e-9);
    }

    /// Trap: a score with the wrong sign sends load to slow stores.
    #[test]
    fn slower_osd_never_gets_more_reads(rate in 10.0..50.0_f64, factor in 1.5..20.0_f64) {
        let placement = placement(6, 512, 2);
        let solve = |first: f64| {
            let rates = [first, rate, rate, rate, rate, rate];
            let cluster = Cluster { placement: &placement, service_rates: &rates, in_flight: 32.0, min_steps: 4, fixed_osds: &[], other_loads: &[] };
            placement.loads(&cluster.solve().unwrap().affinities)[0]
        };
        prop_assert!(solve(rate / factor) <= solve(rate) * 1.02);
    }
}

/// Run with `--ignored --release`: prints the CPU time for 1,000 OSDs and 32,768 PGs.
#[test]
#[ignore = "prints a time"]
fn time_of_a_large_cluster() {
    let placement = placement(1000, 32_768, 3);
    let rates: Vec<f64> = (0..1000).map(|osd| if osd % 2 == 0 { 20.0 } else { 5.0 }).collect();
    let cluster = Cluster {
        placement: &placement,
        service_rates: &rates,
        in_flight: 2000.0,
        min_steps: 4,
        fixed_osds: &[],
        other_loads: &[],
    };
    let start = std::time::Instant::now();
    let solved = cluster.solve().unwrap();
    let even = throughput(&cluster, &vec![Affinity::MAX; 1000]);
    println!("{:?}, gain {:.2}", start.elapsed(), solved.prediction.throughput / even);
}

#[test]
fn fixed_osds_keep_their_affinities() {
    let placement = placement(8, 128, 2);
    let rates = [20.0, 20.0, 20.0, 20.0, 5.0, 5.0, 5.0, 5.0];
    let fixed_osds = [1, 0];
    let cluster = Cluster {
        placement: &placement,
        service_rates: &rates,
        in_flight: 16.0,
        min_steps: 4,
        fixed_osds: &fixed_osds,
        other_loads: &[],
    };
    let mut start = [Affinity::MAX; 8];
    start[1] = Affinity::from_ratio(0.3);
    let solved = cluster.solve_from(&start).unwrap();
    assert_eq!(fixed_osds.map(|osd| solved.affinities[osd]), [Affinity::from_ratio(0.3), Affinity::MAX]);
    assert!(solved.prediction.throughput > 1.05 * throughput(&cluster, &start), "{solved:?}");
}

#[test]
fn writes_lower_the_gain_that_moved_reads_can_bring() {
    let placement = placement(8, 128, 2);
    let rates = [20.0, 20.0, 20.0, 20.0, 5.0, 5.0, 5.0, 5.0];
    let gain = |other_loads: &[f64]| {
        let cluster = Cluster {
            placement: &placement,
            service_rates: &rates,
            in_flight: 16.0,
            min_steps: 4,
            fixed_osds: &[],
            other_loads,
        };
        cluster.solve().unwrap().prediction.throughput / throughput(&cluster, &[Affinity::MAX; 8])
    };
    // Of ten requests, three are writes, each on two OSDs.
    let writes = [128.0 / 8.0 * 2.0 * 3.0 / 7.0; 8];
    let (reads_only, mixed) = (gain(&[]), gain(&writes));
    assert!(mixed > 1.05 && mixed - 1.0 < 0.75 * (reads_only - 1.0), "{reads_only} {mixed}");
}
