//! The world that all policies of a run share: the placement groups with their popularity and replicas, the phases,
//! and the sequence of reads.

use std::time::Duration;

use fastrand::Rng;
use tradewind_model::affinity::controller;
use tradewind_model::affinity::hash::hash_pair;
use tradewind_model::affinity::placement::{OsdIndex, Placement, PlacementGroup};

use super::Options;
use super::scenario::{self, Phase};

/// The world of a run.
#[derive(Debug)]
pub(super) struct World {
    pub store_count: usize,
    pub in_flight: usize,
    pub clients: usize,
    pub duration: Duration,
    pub phases: Vec<Phase>,
    pub pgs: Pgs,
    /// Parameters of the policy `predict`.
    pub predict: controller::Options,
    service_variation: f64,
    /// Seed of the sequence of reads.
    reads_seed: u64,
    /// Seed of the policies' choices.
    pub choice_seed: u64,
}

impl World {
    /// The options must be valid.
    pub fn new(options: &Options) -> Self {
        let mut rng = Rng::with_seed(options.seed);
        // Each purpose has its own sequence, so that one that needs more numbers does not shift the others.
        let (reads_seed, choice_seed, placement_seed) = (rng.u64(..), rng.u64(..), rng.u32(..));
        Self {
            store_count: options.stores,
            in_flight: options.in_flight,
            clients: options.clients,
            duration: options.duration,
            phases: scenario::phases(options.scenario, options.stores, options.duration, &mut rng),
            pgs: Pgs::new(options, placement_seed),
            predict: options.predict,
            service_variation: options.service_variation,
            reads_seed,
            choice_seed,
        }
    }

    /// The reads, in the order in which they start.
    pub fn reads(&self) -> Reads<'_> {
        Reads { rng: Rng::with_seed(self.reads_seed), world: self }
    }
}

/// The placement groups.
#[derive(Debug)]
pub(super) struct Pgs {
    /// The replicas of all PGs, one after another.
    replicas: Vec<OsdIndex>,
    replica_count: usize,
    placement_seeds: Vec<u32>,
    /// Relative frequency of reads of each PG, summed up from the first one.
    cumulative_popularity: Vec<f64>,
}

impl Pgs {
    fn new(options: &Options, placement_seed: u32) -> Self {
        let mut pgs = Self {
            replicas: Vec::with_capacity(options.pgs * options.replicas),
            replica_count: options.replicas,
            placement_seeds: Vec::with_capacity(options.pgs),
            cumulative_popularity: Vec::with_capacity(options.pgs),
        };
        let mut sum = 0.0;
        for number in 0..options.pgs {
            let seed = hash_pair(placement_seed, number as u32);
            pgs.place(seed, options.stores);
            sum += ((number + 1) as f64).powf(-options.zipf_exponent);
            pgs.placement_seeds.push(seed);
            pgs.cumulative_popularity.push(sum);
        }
        pgs
    }

    /// Different stores, pseudorandom by the PG's seed.
    fn place(&mut self, seed: u32, stores: usize) {
        let start = self.replicas.len();
        let mut draw = 0;
        while self.replicas.len() < start + self.replica_count {
            // Off the numbers of stores, which the choice of the primary hashes.
            let store = hash_pair(seed, u32::MAX - draw) as usize % stores;
            draw += 1;
            if !self.replicas[start..].contains(&store) {
                self.replicas.push(store);
            }
        }
    }

    /// Number of PGs.
    pub fn count(&self) -> usize {
        self.placement_seeds.len()
    }

    /// The stores that hold a PG.
    pub fn replicas(&self, pg: usize) -> &[OsdIndex] {
        &self.replicas[pg * self.replica_count..(pg + 1) * self.replica_count]
    }

    /// The true share of the reads, in any unit.
    pub fn popularity(&self, pg: usize) -> f64 {
        let before = pg.checked_sub(1).map_or(0.0, |earlier| self.cumulative_popularity[earlier]);
        self.cumulative_popularity[pg] - before
    }

    /// The model's view of the PGs, with these loads.
    pub fn placement(&self, store_count: usize, load: impl Fn(usize) -> f64) -> Placement {
        let ids: Vec<u32> = (0..store_count as u32).collect();
        let group = |pg: usize| PlacementGroup {
            seed: self.placement_seeds[pg],
            osds: self.replicas(pg).iter().map(|store| *store as u32).collect(),
            read_load: load(pg),
        };
        Placement::new(&ids, &(0..self.count()).map(group).collect::<Vec<_>>())
    }

    fn draw(&self, rng: &mut Rng) -> usize {
        let total = self.cumulative_popularity.last().copied().unwrap_or(0.0);
        let target = rng.f64() * total;
        self.cumulative_popularity.partition_point(|sum| *sum <= target).min(self.count() - 1)
    }
}

/// A read, independent of the store that serves it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ReadDemand {
    pub pg: usize,
    /// Service time in units of a store's mean.
    pub work: f64,
}

/// The sequence of reads.
#[derive(Debug)]
pub(super) struct Reads<'a> {
    rng: Rng,
    world: &'a World,
}

impl Reads<'_> {
    /// The next read.
    pub fn draw(&mut self) -> ReadDemand {
        let pg = self.world.pgs.draw(&mut self.rng);
        let exponential = -(1.0 - self.rng.f64()).ln();
        let variation = self.world.service_variation;
        ReadDemand { pg, work: 1.0 - variation + variation * exponential }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(options: Options) -> World {
        World::new(&options)
    }

    #[test]
    fn replicas_are_different_stores_and_spread_evenly() {
        let world = world(Options { stores: 10, pgs: 8000, replicas: 3, ..Options::default() });
        let mut held = [0_u32; 10];
        for pg in 0..8000 {
            let mut replicas = world.pgs.replicas(pg).to_vec();
            replicas.iter().for_each(|store| held[*store] += 1);
            replicas.sort_unstable();
            replicas.dedup();
            assert_eq!(replicas.len(), 3);
        }
        assert!(held.iter().all(|count| (2200..2600).contains(count)), "{held:?}");
    }

    #[test]
    fn zipf_reads_popular_pgs_more_often() {
        let world = world(Options { zipf_exponent: 1.0, ..Options::default() });
        let mut reads = world.reads();
        let mut counts = [0_u32; 128];
        (0..20_000).for_each(|_| counts[reads.draw().pg] += 1);
        let ratio = f64::from(counts[0]) / f64::from(counts[9]);
        assert!((8.0..12.5).contains(&ratio), "{ratio}");
        assert!((world.pgs.popularity(0) / world.pgs.popularity(9) - 10.0).abs() < 1e-6);
    }

    #[test]
    fn service_times_have_the_requested_mean_and_variation() {
        for variation in [0.0, 0.5, 1.0] {
            let world = world(Options { service_variation: variation, ..Options::default() });
            let mut reads = world.reads();
            let works: Vec<f64> = (0..20_000).map(|_| reads.draw().work).collect();
            let mean = works.iter().sum::<f64>() / 20_000.0;
            let variance = works.iter().map(|work| (work - mean).powi(2)).sum::<f64>() / 20_000.0;
            assert!((mean - 1.0).abs() < 0.03, "{mean}");
            assert!((variance.sqrt() - variation).abs() < 0.04, "{variance}");
        }
    }
}
