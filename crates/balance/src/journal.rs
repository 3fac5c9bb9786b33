//! The affinities from before the first change and those that the balancer set, kept by the cluster's monitors
//! (`config-key`). After the end of this process, however it ended, any host can restore them.
//!
//! A value is written here before it is set. An affinity that is neither the value last set, nor one that an
//! incomplete change may leave, was set by another command: it belongs to the operator. The balancer neither changes nor restores it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ring::digest;
use serde::{Deserialize, Serialize};
use tradewind_model::affinity::Affinity;

use crate::apply::AffinityChange;
use crate::config_key;
use crate::error::{Error, Result};
use crate::last_step::unix_seconds;
use crate::monitors::Monitors;
use crate::osd_location::this_host;
use crate::osd_map::OsdMap;

const KEY: &str = "tradewind/balance/journal";
const VERSION: u32 = 2;
/// The earliest version that is read. Its journals lack the values that were set.
const MIN_VERSION: u32 = 1;
/// Length of the checksum, the first bytes of SHA-256.
const CHECKSUM_BYTES: usize = 8;
/// The lowest affinity that the balancers of [`MIN_VERSION`] set, in steps of 1/64.
const MIN_UNRECORDED_STEPS: u32 = 4;
/// Maximum number of values that incomplete changes may leave at an OSD, per OSD.
const MAX_EARLIER_VALUES: usize = 8;

/// The journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    /// The process that wrote it, for people.
    pub owner: String,
    /// Random: identifies the owner among processes of the same name.
    #[serde(default)]
    instance: String,
    /// The owner's process; `None` if it is not known.
    #[serde(default)]
    process: Option<ProcessIdentity>,
    /// Grows while the owner is alive.
    pub heartbeat: u64,
    /// When the owner started, in seconds since 1970. Journals of earlier versions lack it.
    #[serde(default)]
    pub started_at_unix_seconds: Option<u64>,
    /// Original affinities by OSD, in 1/65,536. The stored form leaves out affinities of 1, as a value has at most 64 KiB.
    originals: BTreeMap<u32, u32>,
    /// In journals of version 1, OSDs that the owner changed or was about to change; the first ones lack even that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<BTreeSet<u32>>,
    /// OSDs that the owner changed or was about to change, with the values that it set.
    #[serde(default)]
    set: BTreeMap<u32, SetValues>,
    /// OSDs whose affinity another command set since the owner started.
    #[serde(default)]
    operators: BTreeSet<u32>,
    /// The checksum of the affinities and OSDs above, in the stored form. Earlier journals lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

/// The values that a balancer may have left at an OSD, in 1/65,536: first the one that it set last, then those that are
/// in force until a change is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SetValues(Vec<u32>);

impl SetValues {
    /// Adds a value that is about to be set over the current one.
    fn add(&mut self, value: Affinity, current: Affinity) {
        let latest = [value.raw(), current.raw()];
        let earlier = self.0.iter().copied().filter(|earlier| !latest.contains(earlier));
        let mut values: Vec<u32> = latest.into_iter().chain(earlier).collect();
        values.dedup();
        values.truncate(1 + MAX_EARLIER_VALUES);
        self.0 = values;
    }

    fn contains(&self, affinity: Affinity) -> bool {
        self.0.contains(&affinity.raw())
    }
}

/// The end of a balancer's changes: what is restored, and what is not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restoration {
    /// Original affinities of the OSDs that the balancer changed. Also of those that have them now: an incomplete change
    /// may not have reached the map yet.
    pub changes: Vec<AffinityChange>,
    /// Current affinities of the OSDs that another command set. They remain.
    pub operators: Vec<AffinityChange>,
}

/// A process of some host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ProcessIdentity {
    id: u32,
    /// The host since its last boot.
    boot: String,
    /// The namespace of process ids.
    namespace: String,
}

impl ProcessIdentity {
    /// That of this process.
    fn own() -> Option<Self> {
        Some(Self { id: std::process::id(), boot: random_id("boot_id")?, namespace: pid_namespace()? })
    }

    /// True if it can be seen from here that it does not run any more.
    fn has_ended(&self) -> bool {
        let is_visible = random_id("boot_id").is_some_and(|boot| boot == self.boot)
            && pid_namespace().is_some_and(|namespace| namespace == self.namespace);
        is_visible && !Path::new("/proc").join(self.id.to_string()).exists()
    }
}

impl Journal {
    /// A journal of the affinities in this map.
    pub fn new(owner: String, map: &OsdMap) -> Self {
        let originals = map.osds.iter().map(|osd| (osd.id, osd.affinity.raw())).collect();
        let started_at_unix_seconds = Some(unix_seconds());
        Self {
            version: VERSION,
            owner,
            instance: random_id("uuid").unwrap_or_default(),
            process: ProcessIdentity::own(),
            heartbeat: 0,
            started_at_unix_seconds,
            originals,
            changed: None,
            set: BTreeMap::new(),
            operators: BTreeSet::new(),
            checksum: None,
        }
    }

    /// True if the owner was a process of this host that does not run any more. False for owners on other hosts.
    pub fn is_of_an_ended_process(&self) -> bool {
        self.process.as_ref().is_some_and(ProcessIdentity::has_ended)
    }

    /// True if both were written by the same process.
    pub fn has_same_owner(&self, other: &Self) -> bool {
        self.owner == other.owner && self.instance == other.instance
    }

    /// Notes changes that are about to be made. `map` has the current affinities.
    pub fn note(&mut self, changes: &[AffinityChange], map: &OsdMap) {
        for AffinityChange { osd, affinity } in changes {
            if let Some(current) = map.affinity(*osd) {
                self.originals.entry(*osd).or_insert(current.raw());
                self.set.entry(*osd).or_insert_with(|| SetValues(Vec::new())).add(*affinity, current);
            }
        }
    }

    /// Notes that changes are complete: from now on, an earlier value is the operator's.
    pub fn confirm(&mut self, changes: &[AffinityChange]) {
        for AffinityChange { osd, affinity } in changes {
            if let Some(set) = self.set.get_mut(osd) {
                set.0 = vec![affinity.raw()];
            }
        }
    }

    /// Finds the OSDs whose affinity another command has set since the last call, with that affinity. From now on, they
    /// are the operator's. Records the affinities of OSDs that are new in the map.
    pub fn find_operators(&mut self, map: &OsdMap) -> Vec<AffinityChange> {
        let mut found = Vec::new();
        for osd in &map.osds {
            self.originals.entry(osd.id).or_insert(osd.affinity.raw());
            if !self.is_own(osd.id, osd.affinity) && self.operators.insert(osd.id) {
                self.set.remove(&osd.id);
                found.push(AffinityChange { osd: osd.id, affinity: osd.affinity });
            }
        }
        found
    }

    /// True if another command has set the affinity of this OSD.
    pub fn is_operators(&self, osd: u32) -> bool {
        self.operators.contains(&osd)
    }

    /// True if an OSD with this affinity has a value that the balancer set or found.
    pub fn is_own(&self, osd: u32, affinity: Affinity) -> bool {
        if self.is_operators(osd) {
            return false;
        }
        match self.set.get(&osd) {
            Some(set) => set.contains(affinity),
            // It is not recorded what the owner set.
            None if self.version < VERSION => {
                affinity >= Affinity::from_steps(MIN_UNRECORDED_STEPS) || self.original(osd) == Some(affinity)
            }
            None => self.original(osd) == Some(affinity),
        }
    }

    /// Reads the cluster's journal; `None` if there is none.
    pub fn load(ceph: &mut Monitors) -> Result<Option<Self>> {
        let journal: Option<Self> = config_key::load(ceph, KEY)?;
        match journal {
            Some(journal) if !(MIN_VERSION..=VERSION).contains(&journal.version) => Err(Error::Malformed {
                command: format!("config-key get {KEY}"),
                message: format!("version {} is not known", journal.version),
            }),
            Some(journal) if !journal.is_intact() => Err(Error::Malformed {
                command: format!("config-key get {KEY}"),
                message: format!(
                    "its checksum is wrong; set the affinities by hand, then remove it with `ceph config-key rm {KEY}`"
                ),
            }),
            other => Ok(other),
        }
    }

    /// False if a stored journal was damaged.
    fn is_intact(&self) -> bool {
        self.checksum.as_ref().is_none_or(|checksum| *checksum == self.compute_checksum())
    }

    fn compute_checksum(&self) -> String {
        let mut context = digest::Context::new(&digest::SHA256);
        let mut add = |value: &u32| context.update(&value.to_le_bytes());
        for (osd, original) in &self.originals {
            [osd, original].into_iter().for_each(&mut add);
        }
        for (osd, SetValues(values)) in &self.set {
            std::iter::once(osd).chain(values).for_each(&mut add);
        }
        self.operators.iter().for_each(add);
        hex::encode(&context.finish().as_ref()[..CHECKSUM_BYTES])
    }

    /// Writes it. The monitors have it when this returns.
    pub fn save(&self, ceph: &mut Monitors) -> Result<()> {
        config_key::save(ceph, KEY, &self.stored())
    }

    /// The stored form of the journal: an affinity of 1 need not be recorded.
    fn stored(&self) -> Self {
        let mut stored = self.clone();
        stored.originals.retain(|_, original| self.version < VERSION || *original != Affinity::MAX.raw());
        stored.checksum = Some(stored.compute_checksum());
        stored
    }

    /// Removes the cluster's journal, if there is one.
    pub fn remove(ceph: &mut Monitors) -> Result<()> {
        config_key::remove(ceph, KEY)
    }

    /// The original affinity of an OSD. `None` if it is not known: of an OSD that is new since a journal of version 1.
    pub fn original(&self, osd: u32) -> Option<Affinity> {
        let default = (self.version >= VERSION).then_some(Affinity::MAX);
        self.originals.get(&osd).copied().map(Affinity::from_raw).or(default)
    }

    /// The changes that restore the original affinities, and the OSDs that another command has set in the meantime.
    pub fn restoration(&self, map: &OsdMap) -> Restoration {
        let mut restoration = Restoration::default();
        for osd in &map.osds {
            let current = AffinityChange { osd: osd.id, affinity: osd.affinity };
            if self.is_changed(osd.id) && self.is_own(osd.id, osd.affinity) {
                let original = self.original(osd.id);
                restoration.changes.extend(original.map(|affinity| AffinityChange { affinity, ..current }));
            } else if self.is_operators(osd.id)
                || self.is_changed(osd.id) && self.original(osd.id) != Some(osd.affinity)
            {
                restoration.operators.push(current);
            }
        }
        restoration
    }

    fn is_changed(&self, osd: u32) -> bool {
        if self.version < VERSION {
            self.changed.as_ref().is_none_or(|changed| changed.contains(&osd))
        } else {
            self.set.contains_key(&osd)
        }
    }
}

/// Identifies this process among the balancers of a cluster.
pub fn process_owner() -> String {
    format!("process {} on {}", std::process::id(), this_host())
}

/// An id from the kernel: `boot_id` or, another one each time, `uuid`.
fn random_id(name: &str) -> Option<String> {
    let id = std::fs::read_to_string(Path::new("/proc/sys/kernel/random").join(name)).ok()?;
    Some(id.trim().to_owned())
}

fn pid_namespace() -> Option<String> {
    Some(std::fs::read_link("/proc/self/ns/pid").ok()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
