//! Why balancing cannot help a cluster, or should not touch it now.

use std::fmt;

use serde_json::Value;

use crate::error::Result;
use crate::monitors::Monitors;
use crate::osd_map::{OsdMap, PoolKind};
use crate::pg_map::Pg;

/// The configuration option by which clients read from other OSDs than the primary.
const READ_POLICY: &str = "rados_replica_read_policy";
/// Share of PGs that must be active and clean.
const MIN_CLEAN_SHARE: f64 = 0.99;

/// A reason not to act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// The cluster reports an error.
    Unhealthy(String),
    /// OSDs that hold data do not run.
    OsdsDown(Vec<u32>),
    /// Fewer than two OSDs run.
    TooFewOsds,
    /// Too many PGs are being moved or repaired, or elect their primaries.
    UncleanPgs {
        /// PGs that do not serve reads, or move data.
        unclean: usize,
        /// All PGs.
        total: usize,
    },
    /// The daemons have different versions: an upgrade is under way.
    MixedVersions(usize),
    /// No pool has copies among which a primary could be chosen.
    NoReplicatedPool,
    /// Clients are configured to read from other OSDs than the primary.
    ReadPolicy(String),
    /// The primaries of PGs are not those that the affinities give.
    UnexpectedPrimaries {
        /// PGs whose primary is predicted.
        predicted: usize,
        /// Those that are as predicted.
        correct: usize,
    },
    /// The reads of the OSDs follow the PGs that they hold, and not those that they lead.
    ReplicaReads,
    /// Every OSD is excluded or has an affinity that another command set.
    NothingToChange,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unhealthy(checks) => write!(f, "the cluster is in HEALTH_ERR ({checks}); repair it first"),
            Self::OsdsDown(osds) => {
                let names: Vec<String> = osds.iter().map(|id| format!("osd.{id}")).collect();
                write!(f, "{} down: Ceph is about to move data; start them or mark them out", names.join(", "))
            }
            Self::TooFewOsds => f.write_str("fewer than two OSDs are up and in: there is no other OSD to read from"),
            Self::UncleanPgs { unclean, total } => {
                write!(f, "{unclean} of {total} placement groups are not active+clean; waiting until they are")
            }
            Self::MixedVersions(count) => {
                write!(f, "the daemons run {count} different versions of Ceph; finish the upgrade first")
            }
            Self::NoReplicatedPool => f.write_str(
                "no replicated pool without a cache tier: in erasure-coded pools, reads involve several OSDs, and the \
                 primary only coordinates",
            ),
            Self::ReadPolicy(policy) => write!(
                f,
                "clients read with {READ_POLICY} = {policy}, from other OSDs than the primary: affinities do not \
                 move their reads"
            ),
            Self::UnexpectedPrimaries { predicted, correct } => write!(
                f,
                "only {correct} of {predicted} primaries are as predicted; waiting for the reports of the placement groups"
            ),
            Self::NothingToChange => {
                f.write_str("every OSD is excluded, or has an affinity that another command set")
            }
            Self::ReplicaReads => write!(
                f,
                "clients read from all replicas, not only from the primary ({READ_POLICY} in their own configuration): \
                 affinities do not move their reads"
            ),
        }
    }
}

/// Finds all obstacles.
pub fn find_obstacles(ceph: &mut Monitors, map: &OsdMap, pgs: &[Pg]) -> Result<Vec<Obstacle>> {
    let health = ceph.json(&["health"])?;
    let versions = ceph.json(&["versions"])?;
    let config = ceph.json(&["config", "dump"])?;
    let mut obstacles = Vec::new();
    obstacles.extend(unhealthy(&health));
    obstacles.extend(map_obstacles(map, pgs));
    obstacles.extend(mixed_versions(&versions));
    obstacles.extend(read_policy(&config));
    Ok(obstacles)
}

fn unhealthy(health: &Value) -> Option<Obstacle> {
    if health.get("status")?.as_str()? != "HEALTH_ERR" {
        return None;
    }
    let checks = health.get("checks").and_then(Value::as_object);
    let names: Vec<&str> = checks.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    Some(Obstacle::Unhealthy(names.join(", ")))
}

fn map_obstacles(map: &OsdMap, pgs: &[Pg]) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    let down: Vec<u32> = map.osds.iter().filter(|osd| osd.is_in && !osd.is_up).map(|osd| osd.id).collect();
    if !down.is_empty() {
        obstacles.push(Obstacle::OsdsDown(down));
    }
    if map.active_osds().count() < 2 {
        obstacles.push(Obstacle::TooFewOsds);
    }
    let unclean = pgs.iter().filter(|pg| !is_clean(&pg.state)).count();
    if unclean as f64 > (1.0 - MIN_CLEAN_SHARE) * pgs.len() as f64 {
        obstacles.push(Obstacle::UncleanPgs { unclean, total: pgs.len() });
    }
    if !map.pools.values().any(|pool| pool.kind == PoolKind::Replicated && !pool.has_tier) {
        obstacles.push(Obstacle::NoReplicatedPool);
    }
    obstacles
}

/// Returns true if a PG serves reads and moves no data. For a moment after the election of a primary it is `active`, but not yet
/// `clean`.
fn is_clean(state: &str) -> bool {
    let is_calm = |part: &str| {
        matches!(
            part,
            "active" | "clean" | "scrubbing" | "deep" | "snaptrim" | "snaptrim_wait" | "laggy" | "wait"
        )
    };
    state.split('+').all(is_calm) && state.split('+').any(|part| part == "active")
}

fn mixed_versions(versions: &Value) -> Option<Obstacle> {
    let count = versions.get("overall")?.as_object()?.len();
    (count > 1).then_some(Obstacle::MixedVersions(count))
}

fn read_policy(config: &Value) -> Option<Obstacle> {
    let entries = config.as_array()?.iter();
    let mut policies = entries.filter(|entry| entry.get("name").and_then(Value::as_str) == Some(READ_POLICY));
    policies.find_map(|entry| {
        let policy = entry.get("value")?.as_str()?;
        matches!(policy, "balance" | "localize").then(|| Obstacle::ReadPolicy(policy.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use serde_json::json;
    use tradewind_model::affinity::Affinity;

    use super::*;
    use crate::osd_map::{Osd, PgId, Pool};

    fn map(kind: PoolKind, up: &[bool]) -> OsdMap {
        let pool =
            Pool { name: "p".to_owned(), kind, placement_count: 1, is_pool_hashed: true, has_tier: false };
        let osds =
            (0..).zip(up).map(|(id, is_up)| Osd { id, is_up: *is_up, is_in: true, affinity: Affinity::MAX });
        OsdMap {
            epoch: 1,
            osds: osds.collect(),
            pools: BTreeMap::from([(1, pool)]),
            temporary: HashSet::new(),
            explicit_primaries: HashSet::new(),
        }
    }

    fn pg(state: &str) -> Pg {
        Pg {
            id: PgId { pool: 1, number: 0 },
            up: vec![0],
            acting: vec![0],
            acting_primary: Some(0),
            objects: 0,
            reads: 0,
            read_kib: 0,
            state: state.to_owned(),
        }
    }

    #[test]
    fn sound_cluster_has_no_obstacle() {
        let map = map(PoolKind::Replicated, &[true, true]);
        let calm = ["active", "active+clean", "active+clean+scrubbing+deep"].map(pg);
        assert_eq!(map_obstacles(&map, &calm), []);
        for state in ["peering", "activating", "active+remapped+backfilling", "active+recovery_wait"] {
            assert_eq!(map_obstacles(&map, &[pg(state)]).len(), 1, "{state}");
        }
        assert_eq!(unhealthy(&json!({"status": "HEALTH_WARN", "checks": {"X": {}}})), None);
        assert_eq!(mixed_versions(&json!({"overall": {"ceph version 16.2.15": 17}})), None);
        assert_eq!(
            read_policy(
                &json!([{"name": READ_POLICY, "value": "default"}, {"name": "x", "value": "balance"}])
            ),
            None
        );
    }

    #[test]
    fn each_obstacle_is_named() {
        let map = map(PoolKind::ErasureCoded, &[true, false]);
        let expected = [
            Obstacle::OsdsDown(vec![1]),
            Obstacle::TooFewOsds,
            Obstacle::UncleanPgs { unclean: 1, total: 1 },
            Obstacle::NoReplicatedPool,
        ];
        assert_eq!(map_obstacles(&map, &[pg("active+undersized+degraded")]), expected);
        let health =
            unhealthy(&json!({"status": "HEALTH_ERR", "checks": {"OSD_FULL": {}, "PG_DAMAGED": {}}}));
        assert_eq!(health, Some(Obstacle::Unhealthy("OSD_FULL, PG_DAMAGED".to_owned())));
        assert_eq!(mixed_versions(&json!({"overall": {"16": 3, "17": 1}})), Some(Obstacle::MixedVersions(2)));
        let policy = read_policy(&json!([{"section": "client", "name": READ_POLICY, "value": "localize"}]));
        assert_eq!(policy, Some(Obstacle::ReadPolicy("localize".to_owned())));
        for obstacle in expected {
            assert!(!obstacle.to_string().contains('\n'), "{obstacle}");
        }
    }
}
