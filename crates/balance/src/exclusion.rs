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
        let classes = self.read_classes(ceph)?;
        let is_unknown = |class: &&String| !classes.iter().any(|(_, other)| other == *class);
        if let Some(class) = self.device_classes.iter().find(is_unknown) {
            return Err(unknown(format!("the device class {class}")));
        }
        Ok(self.select_osds(&classes))
    }

    /// The excluded OSDs after a change of the map, which may have removed OSDs and device classes.
    pub(crate) fn find_current_osds(&self, ceph: &mut Monitors) -> Result<BTreeSet<u32>> {
        Ok(self.select_osds(&self.read_classes(ceph)?))
    }

    /// The device class of each OSD that has one, if any is excluded.
    fn read_classes(&self, ceph: &mut Monitors) -> Result<Vec<(u32, String)>> {
        if self.device_classes.is_empty() {
            return Ok(Vec::new());
        }
        Ok(parse_classes(&ceph.json(&["osd", "tree"])?))
    }

    fn select_osds(&self, classes: &[(u32, String)]) -> BTreeSet<u32> {
        let members = classes.iter().filter(|(_, class)| self.device_classes.contains(class));
        members.map(|(osd, _)| *osd).chain(self.osds.iter().copied()).collect()
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
    fn osds_that_join_an_excluded_class_are_selected() {
        let mut exclusions = Exclusions::default();
        ["osd.3", "ssd"].iter().for_each(|text| exclusions.add(text));
        let mut classes = vec![(0, "hdd".to_owned()), (1, "ssd".to_owned())];
        assert_eq!(exclusions.select_osds(&classes), BTreeSet::from([1, 3]));
        classes.push((4, "ssd".to_owned()));
        assert_eq!(exclusions.select_osds(&classes), BTreeSet::from([1, 3, 4]));
        assert_eq!(exclusions.select_osds(&[]), BTreeSet::from([3]));
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
