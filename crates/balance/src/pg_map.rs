//! The placement groups, as `ceph pg dump --format json` prints them.

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::osd_map::PgId;

/// A placement group.
#[derive(Debug, Clone, PartialEq)]
pub struct Pg {
    /// Its id.
    pub id: PgId,
    /// The OSDs that the map assigns, the primary first.
    pub up: Vec<u32>,
    /// The OSDs that serve it, the primary first.
    pub acting: Vec<u32>,
    /// The OSD that leads it now.
    pub acting_primary: Option<u32>,
    /// Objects in it.
    pub objects: u64,
    /// Reads since its creation. Some versions of Ceph report it with a delay of several seconds.
    pub reads: u64,
    /// KiB that they returned.
    pub read_kib: u64,
    /// For example `active+clean`.
    pub state: String,
}

#[derive(Deserialize)]
struct RawDump {
    pg_map: RawMap,
}

#[derive(Deserialize)]
struct RawMap {
    pg_stats: Vec<RawPg>,
}

#[derive(Deserialize)]
struct RawPg {
    pgid: String,
    state: String,
    up: Vec<i64>,
    acting: Vec<i64>,
    acting_primary: i64,
    stat_sum: RawSum,
}

#[derive(Deserialize)]
struct RawSum {
    #[serde(default)]
    num_objects: i64,
    #[serde(default)]
    num_read: i64,
    #[serde(default)]
    num_read_kb: i64,
}

/// An OSD's id; `None` for a place without an OSD.
fn osd_id(value: i64) -> Option<u32> {
    const NO_OSD: u32 = 0x7fff_ffff;
    u32::try_from(value).ok().filter(|id| *id != NO_OSD)
}

/// Parses the response to `pg dump`.
pub fn parse(dump: Value) -> Result<Vec<Pg>> {
    let malformed = |message: String| Error::Malformed { command: "pg dump".to_owned(), message };
    let raw: RawDump = serde_json::from_value(dump).map_err(|e| malformed(e.to_string()))?;
    let pgs = raw.pg_map.pg_stats.into_iter().map(|pg| {
        let id = PgId::parse(&pg.pgid)
            .ok_or_else(|| malformed(format!("no placement group is called {}", pg.pgid)))?;
        Ok(Pg {
            id,
            up: pg.up.into_iter().filter_map(osd_id).collect(),
            acting: pg.acting.into_iter().filter_map(osd_id).collect(),
            acting_primary: osd_id(pg.acting_primary),
            objects: pg.stat_sum.num_objects.max(0).unsigned_abs(),
            reads: pg.stat_sum.num_read.max(0).unsigned_abs(),
            read_kib: pg.stat_sum.num_read_kb.max(0).unsigned_abs(),
            state: pg.state,
        })
    });
    pgs.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pg_dump_is_read() {
        let pg = json!({
            "pgid": "6.7a", "state": "active+clean", "up": [2, 3], "acting": [2, 2_147_483_647], "acting_primary": -1,
            "stat_sum": {"num_objects": 5, "num_read": 17, "num_read_kb": 9},
        });
        let pgs = parse(json!({"pg_ready": true, "pg_map": {"pg_stats": [pg]}})).unwrap();
        let expected = Pg {
            id: PgId { pool: 6, number: 0x7a },
            up: vec![2, 3],
            acting: vec![2],
            acting_primary: None,
            objects: 5,
            reads: 17,
            read_kib: 9,
            state: "active+clean".to_owned(),
        };
        assert_eq!(pgs, [expected]);
        let error = parse(json!({"pg_map": {"pg_stats": [{"pgid": "x"}]}})).unwrap_err();
        assert!(error.to_string().contains("pg dump"), "{error}");
    }
}
