//! Changes of affinities, many at once.

use std::thread::{Builder, ScopedJoinHandle};

use tradewind_model::affinity::Affinity;

use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::monitors::Monitors;
use crate::osd_map::OsdMap;

/// Maximum number of connections that set affinities at the same time. Each may be a `ceph` process, with half a second of
/// CPU to start.
const MAX_CONNECTIONS: usize = 8;
const MIN_CHANGES_PER_CONNECTION: usize = 2;
/// Maximum number of affinities that are set after one look at the map. Another command may set one of them before its turn,
/// which would be overwritten.
pub(crate) const MAX_BATCH_CHANGES: usize = MAX_CONNECTIONS * MIN_CHANGES_PER_CONNECTION;

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
/// A monitor publishes a map about once a second, with all changes since the last one, and a connection waits for
/// each of its changes. Several connections let them share maps.
pub fn apply(ceph: &mut Monitors, changes: &[AffinityChange]) -> Result<()> {
    let size = changes.len().div_ceil(MAX_CONNECTIONS).max(MIN_CHANGES_PER_CONNECTION);
    let mut shares = changes.chunks(size);
    let own_share = shares.next().unwrap_or_default();
    let options = ceph.options().clone();
    std::thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|share| {
                let apply = || apply_in_turn(&mut Monitors::connect(options.clone())?, share);
                (share, Builder::new().spawn_scoped(scope, apply))
            })
            .collect();
        let mut result = apply_in_turn(ceph, own_share);
        for (share, other) in others {
            let applied = match other.map(ScopedJoinHandle::join) {
                Ok(ended) => {
                    let ended = ended.map_err(|_| Error::Start(std::io::ErrorKind::Other.into()));
                    ended.and_then(|applied| applied)
                }
                // Without another thread, one share after the other.
                Err(_) => apply_in_turn(ceph, share),
            };
            result = result.and(applied);
        }
        result
    })
}

/// The changes of OSDs whose current affinity is one that the balancer of this journal set or found.
pub(crate) fn own_changes(
    ceph: &mut Monitors,
    journal: &Journal,
    changes: &[AffinityChange],
) -> Result<Vec<AffinityChange>> {
    let map = OsdMap::parse(ceph.json(&["osd", "dump"])?)?;
    let is_own = |change: &&AffinityChange| {
        map.affinity(change.osd).is_some_and(|affinity| journal.is_own(change.osd, affinity))
    };
    Ok(changes.iter().filter(is_own).copied().collect())
}

fn apply_in_turn(ceph: &mut Monitors, changes: &[AffinityChange]) -> Result<()> {
    for AffinityChange { osd, affinity } in changes {
        // All digits: the monitor rounds down.
        ceph.run(&["osd", "primary-affinity", &format!("osd.{osd}"), &affinity.ratio().to_string()])?;
    }
    Ok(())
}
