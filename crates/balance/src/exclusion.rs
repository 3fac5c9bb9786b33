//! OSDs whose affinity the user does not want to change: by id, by device class, or because they serve a pool.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::monitors::Monitors;
use crate::osd_map::OsdMap;
use crate::pg_map::Pg;

/// The exclusions that a user asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exclusions {
    /// OSDs, by id.
    pub osds: BTreeSet<u32>,
    /// Device classes, such as `ssd`.
    pub device_classes: BTreeSet<String>,
    /// Names of pools: every OSD that holds a placement group of one is excluded.
    pub pools: BTreeSet<String>,
}

impl Exclusions {
    /// Adds an OSD (`osd.3` or `3`) or a device class.
    pub fn add(&mut self, text: &str) {
        match text.strip_prefix("osd.").unwrap_or(text).parse() {
            Ok(osd) => drop(self.osds.insert(osd)),
            Err(_) => drop(self.device_classes.insert(text.to_owned())),
        }
    }

    /// The excluded OSDs that the device classes and the ids name.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] if there is no such OSD, device class or pool: a misspelled exclusion must not be ignored.
    pub(crate) fn find_osds(&self, ceph: &mut Monitors, map: &OsdMap) -> Result<BTreeSet<u32>> {
        let unknown = |what: String| {
            Error::Unsuitable(format!("cannot exclude {what}: the cluster has none; check its name"))
        };
        if let Some(osd) = self.osds.iter().find(|osd| map.affinity(**osd).is_none()) {
            return Err(unknown(format!("osd.{osd}")));
        }
        if let Some(name) = self.pools.iter().find(|name| !map.pools.values().any(|pool| pool.name == **name))
        {
            return Err(unknown(format!("the pool {name}")));
        }
        let mut osds = self.osds.clone();
        if self.device_classes.is_empty() {
            return Ok(osds);
        }
        let classes = parse_classes(&ceph.json(&["osd", "tree"])?);
        for class in &self.device_classes {
            let members: Vec<u32> =
                classes.iter().filter(|(_, other)| other == class).map(|(osd, _)| *osd).collect();
            if members.is_empty() {
                return Err(unknown(format!("the device class {class}")));
            }
            osds.extend(members);
        }
        Ok(osds)
    }

    /// The OSDs that hold placement groups of the excluded pools.
    pub(crate) fn osds_of_pools(&self, map: &OsdMap, pgs: &[Pg]) -> BTreeSet<u32> {
        let is_excluded =
            |pg: &&Pg| map.pools.get(&pg.id.pool).is_some_and(|pool| self.pools.contains(&pool.name));
        pgs.iter().filter(is_excluded).flat_map(|pg| pg.up.iter().chain(&pg.acting).copied()).collect()
    }
}

/// The device class of each OSD that has one, from the response to `osd tree`.
fn parse_classes(tree: &Value) -> Vec<(u32, String)> {
    let nodes = ["nodes", "stray"].iter().filter_map(|list| tree.get(list)?.as_array()).flatten();
    let classes = nodes.filter_map(|node| {
        let osd = node.get("id")?.as_i64().and_then(|id| u32::try_from(id).ok())?;
        Some((osd, node.get("device_class")?.as_str()?.to_owned()))
    });
    classes.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn exclusions_distinguish_osds_from_device_classes() {
        let mut exclusions = Exclusions::default();
        ["osd.3", "12", "ssd", "osd.x"].iter().for_each(|text| exclusions.add(text));
        assert_eq!(exclusions.osds, BTreeSet::from([3, 12]));
        assert_eq!(exclusions.device_classes, BTreeSet::from(["ssd".to_owned(), "osd.x".to_owned()]));
    }

    #[test]
    fn device_classes_are_those_of_the_tree() {
        let tree = json!({
            "nodes": [
                {"id": -1, "type": "root"}, {"id": 0, "type": "osd", "device_class": "hdd"}, {"id": 1, "type": "osd"},
            ],
            "stray": [{"id": 7, "type": "osd", "device_class": "ssd"}],
        });
        assert_eq!(parse_classes(&tree), [(0, "hdd".to_owned()), (7, "ssd".to_owned())]);
    }
}
