use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::osd_map::{Osd, Pool};
use crate::pg_order::MapAge;

fn pool(kind: PoolKind, has_tier: bool) -> Pool {
    Pool { name: "p".to_owned(), kind, placement_count: 4, is_pool_hashed: true, has_tier }
}

fn map() -> OsdMap {
    let osd = |id, is_up| Osd { id, is_up, is_in: true, affinity: Affinity::MAX };
    OsdMap {
        epoch: 1,
        osds: vec![osd(0, true), osd(1, true), osd(2, false), osd(3, true)],
        pools: BTreeMap::from([
            (1, pool(PoolKind::Replicated, false)),
            (2, pool(PoolKind::ErasureCoded, false)),
            (3, pool(PoolKind::Replicated, true)),
        ]),
        temporary: HashSet::from([PgId { pool: 1, number: 1 }]),
        explicit_primaries: HashSet::from([PgId { pool: 1, number: 2 }]),
    }
}

fn pg(pool: u32, number: u32, up: &[u32], objects: u64, reads: u64) -> Pg {
    Pg {
        id: PgId { pool, number },
        up: up.to_vec(),
        acting: up.to_vec(),
        acting_primary: up.first().copied(),
        objects,
        reads,
        read_kib: 0,
        state: "active+clean".to_owned(),
    }
}

#[test]
fn pgs_that_affinity_cannot_move_are_counted_and_stay_with_their_primary() {
    let pgs = [
        pg(1, 0, &[0, 1], 10, 0),
        pg(1, 1, &[1, 0], 10, 0),
        pg(1, 2, &[3, 0], 10, 0),
        pg(2, 0, &[0, 1, 3], 10, 0),
        pg(3, 0, &[0, 3], 10, 0),
    ];
    let mut orders = PgOrders::default();
    orders.update(&map(), &pgs, MapAge::Settled);
    let view = ClusterView::new(&map(), &pgs, &orders, &PgReads::default());
    assert_eq!(view.osd_ids, [0, 1, 3]);
    let fixed = FixedPgs { temporary: 1, explicit: 1, erasure_coded: 1, tiered: 1, unknown_order: 0 };
    assert_eq!((view.fixed, view.fixed.total()), (fixed, 4));
    assert_eq!(view.primary_ids(&[Affinity::MAX; 3]), [0, 1, 3, 0]);
    let no_first = [Affinity::from_steps(0), Affinity::MAX, Affinity::MAX];
    assert_eq!(view.primary_ids(&no_first), [1, 1, 3, 0], "only the first PG moves");
    let unknown = ClusterView::new(&map(), &pgs, &PgOrders::default(), &PgReads::default());
    assert_eq!(unknown.fixed.unknown_order, 1);
}

#[test]
fn reads_of_pgs_shrink_towards_their_objects() {
    let before = [pg(1, 0, &[0, 1], 30, 100), pg(1, 3, &[1, 0], 10, 100)];
    let mut orders = PgOrders::default();
    orders.update(&map(), &before, MapAge::Settled);
    let loads = |now: &[Pg], earlier: &PgReads| {
        ClusterView::new(&map(), now, &orders, earlier).placement.loads(&[Affinity::MAX; 3])
    };
    let earlier = PgReads::of(&before);
    assert_eq!(loads(&before, &earlier), [30.0, 10.0, 0.0], "no reads yet: objects");
    // 4 reads against a prior of 40: hardly more than the objects say.
    let few = loads(&[pg(1, 0, &[0, 1], 30, 100), pg(1, 3, &[1, 0], 10, 104)], &earlier);
    assert!(few[0] > 2.0 * few[1] && (few[0] + few[1] - read_cost(4.0, 0.0)).abs() < 1e-6, "{few:?}");
    let many = loads(&[pg(1, 0, &[0, 1], 30, 100), pg(1, 3, &[1, 0], 10, 4100)], &earlier);
    assert!(many[1] > 0.98 * read_cost(4000.0, 0.0), "{many:?}");
}

#[test]
fn long_reads_weigh_more_than_many_short_ones() {
    let before = [pg(1, 0, &[0, 1], 10, 100), pg(1, 3, &[1, 0], 10, 100)];
    let mut orders = PgOrders::default();
    orders.update(&map(), &before, MapAge::Settled);
    let now =
        [pg(1, 0, &[0, 1], 10, 20_100), Pg { read_kib: 4096 * 10_000, ..pg(1, 3, &[1, 0], 10, 10_100) }];
    let view = ClusterView::new(&map(), &now, &orders, &PgReads::of(&before));
    let loads = view.placement.loads(&[Affinity::MAX; 3]);
    let ratio = loads[1] / loads[0];
    assert!((30.0..34.0).contains(&ratio), "of 4,160 KiB and twice 64 KiB: {loads:?}");
}
