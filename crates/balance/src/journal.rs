//! The affinities from before the first change, kept by the cluster's monitors (`config-key`). After the end of this
//! process, however it ended, any host can restore them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tradewind_model::affinity::Affinity;

use crate::ceph_process::CephProcess;
use crate::error::{Error, Result};
use crate::osd_map::OsdMap;

const KEY: &str = "tradewind/balance/journal";
const VERSION: u32 = 1;

/// The journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    /// The process that wrote it: identifies it among others.
    pub owner: String,
    /// Grows while the owner is alive.
    pub heartbeat: u64,
    /// Original affinities by OSD, in 1/65,536.
    originals: BTreeMap<u32, u32>,
}

impl Journal {
    /// A journal of the affinities in this map.
    pub fn new(owner: String, map: &OsdMap) -> Self {
        let originals = map.osds.iter().map(|osd| (osd.id, osd.affinity.raw())).collect();
        Self { version: VERSION, owner, heartbeat: 0, originals }
    }

    /// Reads the cluster's journal; `None` if there is none.
    pub fn load(ceph: &mut CephProcess) -> Result<Option<Self>> {
        match ceph.json(&["config-key", "get", KEY]) {
            Ok(value) => {
                let malformed =
                    |message: String| Error::Malformed { command: format!("config-key get {KEY}"), message };
                let journal: Self = serde_json::from_value(value).map_err(|e| malformed(e.to_string()))?;
                if journal.version != VERSION {
                    return Err(malformed(format!("version {} is not known", journal.version)));
                }
                Ok(Some(journal))
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Writes it. The monitors have it when this returns.
    pub fn save(&self, ceph: &mut CephProcess) -> Result<()> {
        let text = serde_json::to_string(self).map_err(|e| Error::Malformed {
            command: format!("config-key set {KEY}"),
            message: e.to_string(),
        })?;
        ceph.run(&["config-key", "set", KEY, &text]).map(drop)
    }

    /// Removes the cluster's journal, if there is one.
    pub fn remove(ceph: &mut CephProcess) -> Result<()> {
        match ceph.run(&["config-key", "rm", KEY]) {
            Ok(_) => Ok(()),
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The original affinities of OSDs in the map that differ from it now.
    pub fn changes_to_restore(&self, map: &OsdMap) -> Vec<AffinityChange> {
        let restored = map.osds.iter().filter_map(|osd| {
            let original = Affinity::from_raw(*self.originals.get(&osd.id)?);
            (original != osd.affinity).then_some(AffinityChange { osd: osd.id, affinity: original })
        });
        restored.collect()
    }
}

/// A new affinity for an OSD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffinityChange {
    /// Its id.
    pub osd: u32,
    /// The affinity to set.
    pub affinity: Affinity,
}

/// Sets affinities. After an error, some may be set: the journal must have been saved before.
pub fn apply(ceph: &mut CephProcess, changes: &[AffinityChange]) -> Result<()> {
    for AffinityChange { osd, affinity } in changes {
        // All digits: the monitor rounds down.
        ceph.run(&["osd", "primary-affinity", &format!("osd.{osd}"), &affinity.ratio().to_string()])?;
    }
    Ok(())
}
