//! The start and the end of a balancer's changes: the claim of a cluster, and the restoration of its affinities.

use std::time::Duration;

use crate::apply::{AffinityChange, MAX_BATCH_CHANGES, apply, own_changes};
use crate::error::{Error, Result};
use crate::journal::{Journal, Restoration};
use crate::monitors::Monitors;
use crate::osd_map::OsdMap;
use crate::status::{ObservedJournal, observe};

/// Time in which PGs elect primaries and report them.
const ELECTION_WAIT: Duration = Duration::from_secs(5);
/// Time after which the journal belongs to the last of several balancers that start at once.
const START_RACE_WAIT: Duration = Duration::from_secs(1);

/// The result of a restoration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// Number of OSDs whose affinity changed.
    pub changed: usize,
    /// OSDs whose affinity another command had set, with that affinity. It remains.
    pub operators: Vec<AffinityChange>,
}

/// Restores the affinities of the cluster's journal and removes it. `None` if there is no journal.
pub fn restore(ceph: &mut Monitors) -> Result<Option<Restored>> {
    Journal::load(ceph)?.map(|journal| restore_from(ceph, &journal)).transpose()
}

/// Restores the affinities that a balancer changed, and removes its journal.
pub(crate) fn restore_from(ceph: &mut Monitors, journal: &Journal) -> Result<Restored> {
    let map = OsdMap::parse(ceph.json(&["osd", "dump"])?)?;
    let Restoration { changes, mut operators } = journal.restoration(&map);
    let is_different =
        |change: &&AffinityChange| map.affinity(change.osd).is_some_and(|current| current != change.affinity);
    let (mut changed, mut is_overtaken) = (0, false);
    for batch in changes.chunks(MAX_BATCH_CHANGES) {
        let own = own_changes(ceph, journal, batch)?;
        changed += own.iter().filter(is_different).count();
        apply(ceph, &own)?;
        is_overtaken |= own.len() < batch.len();
    }
    if is_overtaken {
        // Another command has set affinities since the first look at the map.
        let map = OsdMap::parse(ceph.json(&["osd", "dump"])?)?;
        operators = journal.restoration(&map).operators;
    }
    // Another balancer may have begun with its own.
    if Journal::load(ceph)?.is_some_and(|current| current.has_same_owner(journal)) {
        Journal::remove(ceph)?;
    }
    Ok(Restored { changed, operators })
}

/// Restores what a balancer left behind that no longer runs.
pub(crate) fn take_over(ceph: &mut Monitors) -> Result<Restored> {
    let found = Journal::load(ceph)?;
    match observe(ceph, found)? {
        Some(ObservedJournal { journal, is_alive: true }) => Err(claimed_by(&journal)),
        Some(ObservedJournal { journal, is_alive: false }) => {
            let restored = restore_from(ceph, &journal)?;
            if restored.changed > 0 {
                // The PGs elect their primaries, and report them.
                std::thread::sleep(ELECTION_WAIT);
            }
            Ok(restored)
        }
        None => Ok(Restored::default()),
    }
}

/// Writes the journal with the affinities of this map. Of several balancers that do so at once, the last one wins.
///
/// # Errors
/// [`Error::Unsuitable`] if another balancer has a journal: it may have changed affinities.
pub(crate) fn claim(ceph: &mut Monitors, owner: String, map: &OsdMap) -> Result<Journal> {
    if let Some(current) = Journal::load(ceph)? {
        return Err(claimed_by(&current));
    }
    let journal = Journal::new(owner, map);
    journal.save(ceph)?;
    std::thread::sleep(START_RACE_WAIT);
    match Journal::load(ceph)? {
        Some(current) if current.has_same_owner(&journal) => Ok(journal),
        Some(current) => Err(claimed_by(&current)),
        None => Err(Error::Unsuitable("another command removed the journal; try again".to_owned())),
    }
}

fn claimed_by(journal: &Journal) -> Error {
    Error::Unsuitable(format!("{} balances this cluster already; stop it first", journal.owner))
}
