//! Detection of clients that read from other OSDs than the primary. A client's own configuration file can say so, and the
//! cluster does not show it. Then the reads of an OSD follow the PGs that it holds, and not those that it leads.

use tradewind_model::affinity::queueing::ReadLoad;

use crate::cluster_view::ClusterView;

/// Reads below which nothing is said.
const MIN_READS: f64 = 400.0;
/// Minimum difference of the log-likelihoods: the odds are one to 10^8.
const MIN_EVIDENCE: f64 = 18.0;
/// The distribution over replicas must explain the reads by itself too: maximum of its mean squared error over that of the
/// distribution over primaries.
const MAX_ERROR_RATIO: f64 = 0.25;

/// Counts reads per OSD while the primaries stay.
#[derive(Debug, Clone, Default)]
pub struct ReplicaReads {
    epoch: Option<u64>,
    reads: Vec<f64>,
}

impl ReplicaReads {
    /// Adds a round of some seconds, one load per OSD of the view. A new epoch of the OSD map starts from zero.
    ///
    /// Reads are weighted by their cost, as the loads of the view are: in units of the round's mean read.
    pub fn record(&mut self, epoch: u64, loads: &[ReadLoad], seconds: f64) {
        if self.epoch != Some(epoch) || self.reads.len() != loads.len() {
            *self = Self { epoch: Some(epoch), reads: vec![0.0; loads.len()] };
        }
        let reads_per_second: f64 = loads.iter().map(|load| load.reads_per_second).sum();
        let cost_per_second: f64 = loads.iter().map(|load| load.cost_per_second()).sum();
        if cost_per_second > 0.0 {
            let weight = reads_per_second * seconds / cost_per_second;
            let counted = self.reads.iter_mut().zip(loads);
            counted.for_each(|(sum, load)| *sum += load.cost_per_second() * weight);
        }
    }

    /// True if the reads are those of clients that spread them over all replicas. False while that is not certain.
    pub fn are_evident(&self, view: &ClusterView) -> bool {
        let total: f64 = self.reads.iter().sum();
        if total < MIN_READS || self.reads.len() != view.osd_ids.len() {
            return false;
        }
        let primaries = shares(&view.placement.loads(&view.affinities));
        let replicas = shares(&view.placement.replica_loads());
        let evidence = |(reads, (primary, replica)): (&f64, (&f64, &f64))| {
            // A share of zero would be refuted by a single read: the PGs may have changed meanwhile.
            reads * (replica.max(1e-3) / primary.max(1e-3)).ln()
        };
        let pairs = || self.reads.iter().zip(primaries.iter().zip(&replicas));
        let error = |expected: &[f64]| -> f64 {
            self.reads.iter().zip(expected).map(|(reads, share)| (reads / total - share).powi(2)).sum()
        };
        pairs().map(evidence).sum::<f64>() > MIN_EVIDENCE
            && error(&replicas) < MAX_ERROR_RATIO * error(&primaries)
    }
}

fn shares(loads: &[f64]) -> Vec<f64> {
    let total = loads.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    loads.iter().map(|load| load / total).collect()
}

#[cfg(test)]
mod tests {
    use tradewind_model::affinity::Affinity;
    use tradewind_model::affinity::placement::{Placement, PlacementGroup};

    use super::*;
    use crate::cluster_view::FixedPgs;

    fn view() -> ClusterView {
        let group =
            |n: u32| PlacementGroup { seed: n * 7919, osds: vec![n % 4, (n + 1) % 4], read_load: 1.0 };
        let groups: Vec<_> = (0..64).map(group).collect();
        ClusterView {
            osd_ids: vec![0, 1, 2, 3],
            affinities: [1.0, 0.25, 1.0, 1.0].map(Affinity::from_ratio).to_vec(),
            placement: Placement::new(&[0, 1, 2, 3], &groups),
            pg_ids: Vec::new(),
            fixed: FixedPgs::default(),
        }
    }

    fn load(reads_per_second: f64) -> ReadLoad {
        let bytes_per_second = 1e6 * reads_per_second;
        ReadLoad { reads_per_second, bytes_per_second, latency_seconds: 0.1, ..ReadLoad::default() }
    }

    fn counted(view: &ClusterView, loads: &[f64], reads: f64) -> bool {
        let mut counts = ReplicaReads::default();
        let shares = shares(loads);
        for noise in [0.9, 1.1] {
            let loads: Vec<ReadLoad> = shares.iter().map(|share| load(share * reads / 2.0 * noise)).collect();
            counts.record(7, &loads, 1.0);
        }
        counts.are_evident(view)
    }

    #[test]
    fn reads_from_all_replicas_differ_from_reads_of_primaries() {
        let view = view();
        let primaries = view.placement.loads(&view.affinities);
        let replicas = view.placement.replica_loads();
        assert!(counted(&view, &replicas, 1000.0));
        assert!(!counted(&view, &replicas, 300.0), "too few reads");
        assert!(!counted(&view, &primaries, 100_000.0));
        // A hot object: neither distribution explains it.
        assert!(!counted(&view, &[1.0, 9.0, 1.0, 1.0], 100_000.0));
    }

    #[test]
    fn lookups_of_one_osd_do_not_look_like_reads_from_replicas() {
        let view = view();
        let primaries = shares(&view.placement.loads(&view.affinities));
        let mut loads: Vec<ReadLoad> = primaries.iter().map(|share| load(share * 100_000.0)).collect();
        loads[1].reads_per_second += 100_000.0;
        let mut counts = ReplicaReads::default();
        counts.record(7, &loads, 1.0);
        assert!(!counts.are_evident(&view));
    }

    #[test]
    fn new_map_starts_from_zero() {
        let view = view();
        let mut counts = ReplicaReads::default();
        counts.record(7, &[load(250.0); 4], 1.0);
        assert!(counts.are_evident(&view));
        counts.record(8, &[load(10.0); 4], 1.0);
        assert!(!counts.are_evident(&view));
    }
}
