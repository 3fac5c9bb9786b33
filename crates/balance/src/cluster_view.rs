//! A cluster as the solver sees it: OSDs, affinities, and placement groups with their share of the reads.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::placement::{Placement, PlacementGroup};
use tradewind_model::affinity::queueing::read_cost;

use crate::osd_map::{OsdMap, PgId, PoolKind};
use crate::pg_map::Pg;
use crate::pg_order::PgOrders;

/// Reads per PG of a pool that weigh as much as the assumption that all its objects are read equally often.
const PRIOR_READS_PER_PG: f64 = 20.0;

/// Samples of the PGs' reads, and the time between two: reads of the last 5 to 15 minutes count.
const MAX_READ_SAMPLES: usize = 3;
const READ_SAMPLE_INTERVAL: Duration = Duration::from_secs(300);

/// PGs that affinities do not decide about, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FixedPgs {
    /// They have a temporary set of OSDs or a temporary primary.
    pub temporary: usize,
    /// Their primaries are set explicitly.
    pub explicit: usize,
    /// Their order of OSDs is unknown, because affinities were not 1 at the start.
    pub unknown_order: usize,
    /// They belong to erasure-coded pools.
    pub erasure_coded: usize,
    /// They belong to cache tiers or to pools with one.
    pub tiered: usize,
}

impl FixedPgs {
    /// Number of all.
    pub fn total(self) -> usize {
        self.temporary + self.explicit + self.unknown_order + self.erasure_coded + self.tiered
    }
}

/// The cluster in one round.
#[derive(Debug, Clone)]
pub struct ClusterView {
    /// The OSDs that are up and in, in ascending order: the order of all vectors.
    pub osd_ids: Vec<u32>,
    /// Their affinities.
    pub affinities: Vec<Affinity>,
    /// The PGs. Those that affinities do not decide about have their primary as the only OSD.
    pub placement: Placement,
    /// The PGs' ids, in the order of [`Placement::primaries`].
    pub pg_ids: Vec<PgId>,
    /// PGs that affinities do not decide about.
    pub fixed: FixedPgs,
}

/// The reads of each PG at some time, for the difference to a later one.
#[derive(Debug, Clone, Default)]
pub struct PgReads(HashMap<PgId, Reads>);

/// Reads, and their cost ([`read_cost`]).
#[derive(Debug, Clone, Copy, Default)]
struct Reads {
    number: f64,
    cost: f64,
}

impl Reads {
    /// Those of a PG since its creation.
    fn from_pg(pg: &Pg) -> Self {
        let number = pg.reads as f64;
        Self { number, cost: read_cost(number, pg.read_kib as f64 * 1024.0) }
    }
}

impl PgReads {
    /// Notes the reads of these PGs.
    pub fn of(pgs: &[Pg]) -> Self {
        Self(pgs.iter().map(|pg| (pg.id, Reads::from_pg(pg))).collect())
    }

    /// None of a PG that is new or whose counters went back.
    fn since(&self, pg: &Pg) -> Reads {
        let Some(earlier) = self.0.get(&pg.id) else { return Reads::default() };
        let now = Reads::from_pg(pg);
        let (number, cost) = (now.number - earlier.number, now.cost - earlier.cost);
        if number < 0.0 || cost < 0.0 { Reads::default() } else { Reads { number, cost } }
    }
}

/// The reads of PGs of the last minutes: popularity changes.
#[derive(Debug, Clone)]
pub struct RecentPgReads {
    samples: VecDeque<PgReadSample>,
}

#[derive(Debug, Clone)]
struct PgReadSample {
    at: Instant,
    reads: PgReads,
}

impl RecentPgReads {
    /// Begins with these PGs.
    pub fn new(pgs: &[Pg]) -> Self {
        let sample = PgReadSample { at: Instant::now(), reads: PgReads::of(pgs) };
        Self { samples: VecDeque::from([sample]) }
    }

    /// Adds a sample if the last one is old enough, and drops those that are too old.
    pub fn record(&mut self, pgs: &[Pg]) {
        if self.samples.back().is_some_and(|last| last.at.elapsed() < READ_SAMPLE_INTERVAL) {
            return;
        }
        if self.samples.len() == MAX_READ_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(PgReadSample { at: Instant::now(), reads: PgReads::of(pgs) });
    }

    /// The reads from which the recent ones are counted.
    pub fn earliest(&self) -> &PgReads {
        // There is always a sample.
        &self.samples[0].reads
    }
}

impl ClusterView {
    /// Builds the view. `earlier` are the reads from which the recent ones are counted.
    pub fn new(map: &OsdMap, pgs: &[Pg], orders: &PgOrders, earlier: &PgReads) -> Self {
        let osd_ids: Vec<u32> = map.active_osds().map(|osd| osd.id).collect();
        let affinities = map.active_osds().map(|osd| osd.affinity).collect();
        let loads = PoolLoads::new(pgs, earlier);
        let (mut fixed, mut groups, mut pg_ids) = (FixedPgs::default(), Vec::new(), Vec::new());
        for pg in pgs {
            let (Some(pool), Some(primary)) = (map.pools.get(&pg.id.pool), pg.acting_primary) else {
                continue;
            };
            if pool.kind == PoolKind::ErasureCoded {
                fixed.erasure_coded += 1;
                continue;
            }
            let count = if pool.has_tier {
                Some(&mut fixed.tiered)
            } else if map.temporary.contains(&pg.id) {
                Some(&mut fixed.temporary)
            } else if map.explicit_primaries.contains(&pg.id) {
                Some(&mut fixed.explicit)
            } else if orders.get(pg.id).is_none() {
                Some(&mut fixed.unknown_order)
            } else {
                None
            };
            let is_fixed = count.map(|count| *count += 1).is_some();
            let osds = match orders.get(pg.id) {
                Some(order) if !is_fixed => order.to_vec(),
                _ => vec![primary],
            };
            // A group without any known OSD is left out by the placement too.
            if osds.iter().any(|id| osd_ids.binary_search(id).is_ok()) {
                let seed = map.placement_seed(pg.id).unwrap_or_default();
                groups.push(PlacementGroup { seed, osds, read_load: loads.of(pg, earlier) });
                pg_ids.push(pg.id);
            }
        }
        Self { placement: Placement::new(&osd_ids, &groups), osd_ids, affinities, pg_ids, fixed }
    }

    /// The share of the reads that each OSD serves under these affinities, from 0 to 1.
    pub fn shares(&self, affinities: &[Affinity]) -> Vec<f64> {
        let loads = self.placement.loads(affinities);
        let total = loads.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        loads.into_iter().map(|load| load / total).collect()
    }

    /// The ids of the PGs' primaries under these affinities.
    pub fn primary_ids(&self, affinities: &[Affinity]) -> Vec<u32> {
        self.placement.primaries(affinities).into_iter().map(|osd| self.osd_ids[osd]).collect()
    }
}

/// Recent reads and objects of a pool.
#[derive(Debug, Clone, Copy, Default)]
struct PoolLoad {
    reads: Reads,
    objects: f64,
    pgs: f64,
}

struct PoolLoads {
    pools: HashMap<u32, PoolLoad>,
    has_reads: bool,
}

impl PoolLoads {
    fn new(pgs: &[Pg], earlier: &PgReads) -> Self {
        let mut pools: HashMap<u32, PoolLoad> = HashMap::new();
        for pg in pgs {
            let pool = pools.entry(pg.id.pool).or_default();
            let reads = earlier.since(pg);
            pool.reads.number += reads.number;
            pool.reads.cost += reads.cost;
            pool.objects += pg.objects as f64;
            pool.pgs += 1.0;
        }
        let has_reads = pools.values().any(|pool| pool.reads.number > 0.0);
        Self { pools, has_reads }
    }

    /// The expected cost of a PG's reads. Few reads per PG say little about popularity: then the number of objects decides.
    /// Before the first reads it decides about all pools.
    fn of(&self, pg: &Pg, earlier: &PgReads) -> f64 {
        let pool = self.pools.get(&pg.id.pool).copied().unwrap_or_default();
        let objects = pg.objects as f64;
        if !self.has_reads {
            return objects;
        }
        let object_share = if pool.objects > 0.0 { objects / pool.objects } else { 1.0 / pool.pgs.max(1.0) };
        let read_share = earlier.since(pg).cost / pool.reads.cost.max(f64::MIN_POSITIVE);
        let prior = PRIOR_READS_PER_PG * pool.pgs;
        let number = pool.reads.number;
        pool.reads.cost * (object_share * prior + read_share * number) / (prior + number)
    }
}

#[cfg(test)]
mod tests;
