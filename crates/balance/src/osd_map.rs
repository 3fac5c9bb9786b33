//! The OSD map, as `ceph osd dump --format json` prints it.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde_json::Value;
use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::hash::placement_seed;

use crate::error::{Error, Result};

/// Placement groups are named `POOL.NUMBER`, the number in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgId {
    /// The pool's id.
    pub pool: u32,
    /// The number within the pool.
    pub number: u32,
}

impl PgId {
    /// Parses `6.7d`.
    pub fn parse(text: &str) -> Option<Self> {
        let (pool, number) = text.split_once('.')?;
        Some(Self { pool: pool.parse().ok()?, number: u32::from_str_radix(number, 16).ok()? })
    }
}

/// An OSD.
#[derive(Debug, Clone, PartialEq)]
pub struct Osd {
    /// Its id.
    pub id: u32,
    /// True if it runs.
    pub is_up: bool,
    /// True if it holds data.
    pub is_in: bool,
    /// Its primary affinity.
    pub affinity: Affinity,
}

/// How a pool protects its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Whole copies: clients read from the primary.
    Replicated,
    /// Erasure code: every read involves several OSDs, and the primary only coordinates.
    ErasureCoded,
}

/// A pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Replicated or erasure coded.
    pub kind: PoolKind,
    /// `pg_placement_num`.
    pub placement_count: u32,
    /// The flag `hashpspool`.
    pub is_pool_hashed: bool,
    /// True if it is a cache tier, or has one.
    pub has_tier: bool,
}

/// The OSD map.
#[derive(Debug, Clone)]
pub struct OsdMap {
    /// Its number.
    pub epoch: u64,
    /// OSDs in ascending order.
    pub osds: Vec<Osd>,
    /// Pools by id.
    pub pools: BTreeMap<u32, Pool>,
    /// PGs with a temporary set of OSDs or a temporary primary: affinity does not decide about them.
    pub temporary: HashSet<PgId>,
    /// PGs with explicit primaries (`pg_upmap_primaries`, Ceph 18).
    pub explicit_primaries: HashSet<PgId>,
}

#[derive(Deserialize)]
struct RawMap {
    epoch: u64,
    osds: Vec<RawOsd>,
    pools: Vec<RawPool>,
    #[serde(default)]
    pg_temp: Vec<Value>,
    #[serde(default)]
    primary_temp: Vec<Value>,
    #[serde(default)]
    pg_upmap_primaries: Vec<Value>,
}

#[derive(Deserialize)]
struct RawOsd {
    osd: u32,
    up: u8,
    #[serde(rename = "in")]
    is_in: u8,
    primary_affinity: f64,
}

#[derive(Deserialize)]
struct RawPool {
    pool: u32,
    pool_name: String,
    #[serde(rename = "type")]
    kind: u32,
    pg_placement_num: u32,
    #[serde(default)]
    flags_names: String,
    #[serde(default)]
    tiers: Vec<Value>,
    #[serde(default = "no_tier")]
    tier_of: i64,
}

fn no_tier() -> i64 {
    -1
}

const REPLICATED: u32 = 1;
const ERASURE_CODED: u32 = 3;

impl OsdMap {
    /// Parses the response to `osd dump`.
    pub fn parse(dump: Value) -> Result<Self> {
        let malformed = |message: String| Error::Malformed { command: "osd dump".to_owned(), message };
        let raw: RawMap = serde_json::from_value(dump).map_err(|e| malformed(e.to_string()))?;
        let mut osds: Vec<Osd> = raw.osds.iter().map(Osd::from_raw).collect();
        osds.sort_by_key(|osd| osd.id);
        let mut pools = BTreeMap::new();
        for pool in raw.pools {
            let kind = match pool.kind {
                REPLICATED => PoolKind::Replicated,
                ERASURE_CODED => PoolKind::ErasureCoded,
                other => {
                    return Err(malformed(format!("pool {} has the unknown type {other}", pool.pool_name)));
                }
            };
            let parsed = Pool {
                kind,
                placement_count: pool.pg_placement_num,
                is_pool_hashed: pool.flags_names.split(',').any(|flag| flag == "hashpspool"),
                has_tier: !pool.tiers.is_empty() || pool.tier_of >= 0,
                name: pool.pool_name,
            };
            pools.insert(pool.pool, parsed);
        }
        let pg_ids = |entries: &[Value]| -> Result<HashSet<PgId>> {
            let ids = entries.iter().map(|entry| {
                let id = entry.get("pgid").and_then(Value::as_str).and_then(PgId::parse);
                id.ok_or_else(|| malformed(format!("no placement group in {entry}")))
            });
            ids.collect()
        };
        let mut temporary = pg_ids(&raw.pg_temp)?;
        temporary.extend(pg_ids(&raw.primary_temp)?);
        let explicit_primaries = pg_ids(&raw.pg_upmap_primaries)?;
        Ok(Self { epoch: raw.epoch, osds, pools, temporary, explicit_primaries })
    }

    /// The placement seed of a PG; `None` if its pool is unknown.
    pub fn placement_seed(&self, id: PgId) -> Option<u32> {
        let pool = self.pools.get(&id.pool)?;
        Some(placement_seed(id.number, pool.placement_count, id.pool, pool.is_pool_hashed))
    }

    /// The affinity of an OSD; `None` if there is no such OSD.
    pub fn affinity(&self, osd: u32) -> Option<Affinity> {
        let position = self.osds.binary_search_by_key(&osd, |osd| osd.id).ok()?;
        Some(self.osds[position].affinity)
    }

    /// The OSDs that run and hold data.
    pub fn active_osds(&self) -> impl Iterator<Item = &Osd> {
        self.osds.iter().filter(|osd| osd.is_up && osd.is_in)
    }
}

impl Osd {
    fn from_raw(raw: &RawOsd) -> Self {
        Self {
            id: raw.osd,
            is_up: raw.up == 1,
            is_in: raw.is_in == 1,
            affinity: Affinity::from_printed(raw.primary_affinity),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dump() -> Value {
        json!({
            "epoch": 60, "fsid": "f",
            "osds": [
                {"osd": 1, "up": 0, "in": 1, "primary_affinity": 0.109375},
                {"osd": 0, "up": 1, "in": 1, "primary_affinity": 1},
            ],
            "pools": [
                {"pool": 6, "pool_name": "bench", "type": 1, "pg_placement_num": 128, "flags_names": "hashpspool,nodelete"},
                {"pool": 7, "pool_name": "ec", "type": 3, "pg_placement_num": 32, "tiers": [9], "tier_of": -1},
            ],
            "pg_temp": [{"pgid": "6.1f", "osds": [1, 0]}],
            "primary_temp": [{"pgid": "6.a", "osd": 1}],
        })
    }

    #[test]
    fn osd_dump_is_read() {
        let map = OsdMap::parse(dump()).unwrap();
        assert_eq!(map.epoch, 60);
        assert_eq!(map.osds[0], Osd { id: 0, is_up: true, is_in: true, affinity: Affinity::MAX });
        let second = Osd { id: 1, is_up: false, is_in: true, affinity: Affinity::from_steps(7) };
        assert_eq!(map.osds[1], second);
        assert_eq!(map.active_osds().map(|osd| osd.id).collect::<Vec<_>>(), [0]);
        assert!(map.pools[&6].is_pool_hashed && !map.pools[&6].has_tier);
        assert_eq!((map.pools[&7].kind, map.pools[&7].has_tier), (PoolKind::ErasureCoded, true));
        let temporary = HashSet::from([PgId { pool: 6, number: 0x1f }, PgId { pool: 6, number: 10 }]);
        assert_eq!(map.temporary, temporary);
    }

    #[test]
    fn malformed_dumps_are_rejected_with_what_is_wrong() {
        let mut unknown = dump();
        unknown["pools"][0]["type"] = json!(2);
        let error = OsdMap::parse(unknown).unwrap_err();
        assert!(error.to_string().contains("pool bench has the unknown type 2"), "{error}");
        let mut missing = dump();
        missing["osds"][0].as_object_mut().unwrap().remove("primary_affinity");
        let error = OsdMap::parse(missing).unwrap_err();
        assert!(error.to_string().contains("primary_affinity"), "{error}");
    }
}
