//! The affinities from before the first change, kept by the cluster's monitors (`config-key`). After the end of this
//! process, however it ended, any host can restore them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tradewind_model::affinity::Affinity;

use crate::ceph_process::CephProcess;
use crate::config_key;
use crate::error::{Error, Result};
use crate::last_step::unix_seconds;
use crate::osd_location::this_host;
use crate::osd_map::OsdMap;

const KEY: &str = "tradewind/balance/journal";
const VERSION: u32 = 1;
/// Maximum number of `ceph` processes that set affinities at the same time, each with half a second of CPU to start.
const MAX_APPLY_PROCESSES: usize = 8;
const MIN_CHANGES_PER_PROCESS: usize = 2;

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
    /// Original affinities by OSD, in 1/65,536.
    originals: BTreeMap<u32, u32>,
    /// OSDs that the owner changed or was about to change. Journals of earlier versions lack it.
    #[serde(default)]
    changed: Option<BTreeSet<u32>>,
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
            changed: Some(BTreeSet::new()),
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

    /// Notes changes that are about to be made, with the current affinities of OSDs that are not known yet.
    pub fn note(&mut self, changes: &[AffinityChange], map: &OsdMap) {
        let changed = self.changed.get_or_insert_with(|| self.originals.keys().copied().collect());
        for AffinityChange { osd, .. } in changes {
            changed.insert(*osd);
            if let Some(current) = map.osds.iter().find(|current| current.id == *osd) {
                self.originals.entry(*osd).or_insert(current.affinity.raw());
            }
        }
    }

    /// Reads the cluster's journal; `None` if there is none.
    pub fn load(ceph: &mut CephProcess) -> Result<Option<Self>> {
        let journal: Option<Self> = config_key::load(ceph, KEY)?;
        match journal {
            Some(journal) if journal.version != VERSION => Err(Error::Malformed {
                command: format!("config-key get {KEY}"),
                message: format!("version {} is not known", journal.version),
            }),
            other => Ok(other),
        }
    }

    /// Writes it. The monitors have it when this returns.
    pub fn save(&self, ceph: &mut CephProcess) -> Result<()> {
        config_key::save(ceph, KEY, self)
    }

    /// Removes the cluster's journal, if there is one.
    pub fn remove(ceph: &mut CephProcess) -> Result<()> {
        config_key::remove(ceph, KEY)
    }

    /// The original affinity of an OSD; `None` if it did not exist then.
    pub fn original(&self, osd: u32) -> Option<Affinity> {
        self.originals.get(&osd).copied().map(Affinity::from_raw)
    }

    /// The original affinities of all OSDs in the map that the owner changed. Also of those that have them now: a change
    /// from before may not have reached the map yet.
    pub fn changes_to_restore(&self, map: &OsdMap) -> Vec<AffinityChange> {
        let is_changed = |osd: u32| self.changed.as_ref().is_none_or(|changed| changed.contains(&osd));
        let changed = map.osds.iter().filter(|osd| is_changed(osd.id));
        changed
            .filter_map(|osd| Some(AffinityChange { osd: osd.id, affinity: self.original(osd.id)? }))
            .collect()
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

/// A new affinity for an OSD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffinityChange {
    /// Its id.
    pub osd: u32,
    /// The affinity to set.
    pub affinity: Affinity,
}

/// Sets affinities. After an error, some may be set: the journal must have been saved before.
///
/// A monitor publishes a map about once a second, with all changes since the last one, and a `ceph` process waits for
/// each of its changes. Several processes let them share maps.
pub fn apply(ceph: &mut CephProcess, changes: &[AffinityChange]) -> Result<()> {
    let size = changes.len().div_ceil(MAX_APPLY_PROCESSES).max(MIN_CHANGES_PER_PROCESS);
    let mut shares = changes.chunks(size);
    let own_share = shares.next().unwrap_or_default();
    let options = ceph.options().clone();
    std::thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|share| scope.spawn(|| apply_in_turn(&mut CephProcess::start(options.clone())?, share)))
            .collect();
        let mut result = apply_in_turn(ceph, own_share);
        for other in others {
            let ended = other.join().map_err(|_| Error::Start(std::io::ErrorKind::Other.into()));
            result = result.and(ended.and_then(|applied| applied));
        }
        result
    })
}

fn apply_in_turn(ceph: &mut CephProcess, changes: &[AffinityChange]) -> Result<()> {
    for AffinityChange { osd, affinity } in changes {
        // All digits: the monitor rounds down.
        ceph.run(&["osd", "primary-affinity", &format!("osd.{osd}"), &affinity.ratio().to_string()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;
    use crate::osd_map::Osd;

    #[test]
    fn journal_of_an_earlier_version_is_read() {
        let text = r#"{"version":1,"owner":"a","heartbeat":3,"originals":{"0":65536,"1":32768}}"#;
        let journal: Journal = serde_json::from_str(text).unwrap();
        assert_eq!(journal.started_at_unix_seconds, None);
        assert_eq!(journal.original(0), Some(Affinity::MAX));
        assert_eq!((journal.original(1), journal.original(2)), (Some(Affinity::from_ratio(0.5)), None));
    }

    fn map(affinities: &[f64]) -> OsdMap {
        let osds = (0..).zip(affinities).map(|(id, affinity)| Osd {
            id,
            is_up: true,
            is_in: true,
            affinity: Affinity::from_ratio(*affinity),
        });
        OsdMap {
            epoch: 1,
            osds: osds.collect(),
            pools: BTreeMap::new(),
            temporary: HashSet::new(),
            explicit_primaries: HashSet::new(),
        }
    }

    #[test]
    fn changed_osds_are_restored_and_others_left_alone() {
        let mut journal = Journal::new("a".to_owned(), &map(&[1.0, 0.5, 1.0]));
        let change = |osd, ratio| AffinityChange { osd, affinity: Affinity::from_ratio(ratio) };
        assert_eq!(journal.changes_to_restore(&map(&[0.0, 0.0, 0.0])), []);
        // OSD 3 came later.
        journal.note(&[change(1, 0.25), change(3, 0.25)], &map(&[1.0, 0.5, 1.0, 0.75]));
        let restored = journal.changes_to_restore(&map(&[0.0, 0.5, 1.0, 0.25]));
        assert_eq!(
            restored,
            [change(1, 0.5), change(3, 0.75)],
            "osd.1 has it in the map, but a change may follow"
        );
        assert_eq!(journal.changes_to_restore(&map(&[1.0])), []);
    }

    #[test]
    fn only_a_process_of_this_boot_and_namespace_is_known_to_have_ended() {
        let journal = Journal::new(process_owner(), &map(&[1.0]));
        assert!(!journal.is_of_an_ended_process(), "alive");
        let process = journal.process.clone().unwrap();
        // Above the largest process id of Linux.
        let ended = ProcessIdentity { id: 4_194_305, ..process };
        assert!(ended.has_ended());
        assert!(!ProcessIdentity { boot: "another".to_owned(), ..ended.clone() }.has_ended());
        assert!(!ProcessIdentity { namespace: "pid:[1]".to_owned(), ..ended }.has_ended());
        assert!(!journal.has_same_owner(&Journal::new(process_owner(), &map(&[1.0]))), "another instance");
    }
}
