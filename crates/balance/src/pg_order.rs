//! The OSDs of each placement group in CRUSH's order. Ceph compares hashes with affinities in this order, and then moves the
//! primary to the front: the order of a PG in `pg dump` is CRUSH's while all affinities are 1. Otherwise it is if the
//! second OSD accepts the PG: had it been before the primary, it would lead.

use std::collections::HashMap;

use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::hash::primary_hash;

use crate::osd_map::{OsdMap, PgId};
use crate::pg_map::Pg;

/// The age of an OSD map, compared with the reports of the PGs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapAge {
    /// The PGs may not have reported since it changed.
    New,
    /// They have.
    Settled,
}

/// The orders recorded so far.
#[derive(Debug, Clone, Default)]
pub struct PgOrders {
    orders: HashMap<PgId, Vec<u32>>,
}

impl PgOrders {
    /// Records every order that is certain, and forgets the orders of PGs whose set of OSDs changed.
    ///
    /// PGs report seconds after a change of the map. With a new map, a known order with the same OSDs stays.
    pub fn update(&mut self, map: &OsdMap, pgs: &[Pg], age: MapAge) {
        let affinities: HashMap<u32, Affinity> = map.osds.iter().map(|osd| (osd.id, osd.affinity)).collect();
        let known = std::mem::take(&mut self.orders);
        for pg in pgs {
            let order = match known.get(&pg.id) {
                Some(order) if age == MapAge::New && is_permutation(order, &pg.up) => order,
                _ if is_certain(map, pg, &affinities) => &pg.up,
                Some(order) if is_permutation(order, &pg.up) => order,
                _ => continue,
            };
            self.orders.insert(pg.id, order.clone());
        }
    }

    /// The order of a PG; `None` if it is unknown.
    pub fn get(&self, id: PgId) -> Option<&[u32]> {
        self.orders.get(&id).map(Vec::as_slice)
    }
}

fn is_certain(map: &OsdMap, pg: &Pg, affinities: &HashMap<u32, Affinity>) -> bool {
    let Some(second) = pg.up.get(1) else { return true };
    let Some(seed) = map.placement_seed(pg.id) else { return false };
    affinities.get(second).is_some_and(|affinity| affinity.accepts(primary_hash(seed, *second)))
}

fn is_permutation(left: &[u32], right: &[u32]) -> bool {
    left.len() == right.len() && left.iter().all(|id| right.contains(id))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::osd_map::{Osd, Pool, PoolKind};

    fn map(affinity: Affinity) -> OsdMap {
        let pool = Pool {
            name: "data".to_owned(),
            kind: PoolKind::Replicated,
            placement_count: 4,
            is_pool_hashed: true,
            has_tier: false,
        };
        let osds = (0..4).map(|id| Osd { id, is_up: true, is_in: true, affinity });
        OsdMap {
            epoch: 1,
            osds: osds.collect(),
            pools: BTreeMap::from([(1, pool)]),
            temporary: HashSet::new(),
            explicit_primaries: HashSet::new(),
        }
    }

    fn pg(number: u32, up: &[u32]) -> Pg {
        Pg {
            id: PgId { pool: 1, number },
            up: up.to_vec(),
            acting: up.to_vec(),
            acting_primary: up.first().copied(),
            objects: 0,
            reads: 0,
            read_kib: 0,
            state: String::new(),
        }
    }

    #[test]
    fn orders_are_recorded_at_affinity_one_and_kept_while_the_set_is_the_same() {
        let order = |orders: &PgOrders, number| orders.get(PgId { pool: 1, number }).map(<[u32]>::to_vec);
        let mut orders = PgOrders::default();
        orders.update(&map(Affinity::MAX), &[pg(0, &[2, 3]), pg(1, &[0, 1])], MapAge::Settled);
        // PG 0 has another primary now, PG 1 another OSD; no OSD accepts any.
        orders.update(
            &map(Affinity::from_steps(0)),
            &[pg(0, &[3, 2]), pg(1, &[0, 2]), pg(2, &[1, 3])],
            MapAge::Settled,
        );
        assert_eq!([0, 1, 2].map(|number| order(&orders, number)), [Some(vec![2, 3]), None, None]);
        orders.update(&map(Affinity::MAX), &[pg(0, &[3, 2])], MapAge::Settled);
        assert_eq!(order(&orders, 0), Some(vec![3, 2]));
        // The report of this PG is from before the map.
        orders.update(&map(Affinity::MAX), &[pg(0, &[2, 3])], MapAge::New);
        assert_eq!(order(&orders, 0), Some(vec![3, 2]));
    }

    #[test]
    fn order_is_certain_if_the_second_osd_accepts() {
        let map = map(Affinity::from_ratio(0.5));
        let mut orders = PgOrders::default();
        orders.update(&map, &(0..4).map(|number| pg(number, &[0, 1])).collect::<Vec<_>>(), MapAge::Settled);
        for number in 0..4 {
            let id = PgId { pool: 1, number };
            let accepts = primary_hash(map.placement_seed(id).unwrap(), 1) < 0x8000;
            assert_eq!(orders.get(id).is_some(), accepts, "{number}");
        }
        orders.update(&map, &[pg(0, &[3])], MapAge::Settled);
        assert!(orders.get(PgId { pool: 1, number: 0 }).is_some(), "one OSD has one order");
    }
}
