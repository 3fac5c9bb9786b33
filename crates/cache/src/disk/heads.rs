//! Heads on the SSD whose data is apart. The eviction policy does not rank them: a block of a head saves as much as the 18
//! of an extent, so that heads of data that is gone would take the place of data. A head follows its data: beyond a part
//! of the index, heads are freed that have no data on the SSD when they are examined twice in a row. Data may be written
//! after its head.

use tradewind_model::eviction::Slot;

use super::DiskState;
use super::index::{ExtentKind, IndexEntry};
use crate::extent::Place;
use crate::fingerprint::Fingerprints;
use crate::policy::SlotEntries;

/// The part of the index that heads may have without regard to their data.
const ENTRIES_PER_UNCHECKED_HEAD: usize = 32;

/// Slots that are examined at each insertion of a head beyond that part. About two of as many slots are heads without
/// data then.
const MAX_EXAMINED_SLOTS: Slot = 128;

/// Places of the data of a head that are looked up at most, evenly spread over the object.
const MAX_EXAMINED_PLACES: u32 = 1024;

/// The number and size of the heads, and the position of the search for those without data.
#[derive(Debug, Default)]
pub(super) struct StoredHeads {
    count: u32,
    blocks: u64,
    next_slot: Slot,
}

impl StoredHeads {
    pub fn add(&mut self, head: &IndexEntry) {
        self.count += 1;
        self.blocks += u64::from(head.space.blocks());
    }

    pub fn remove(&mut self, head: &IndexEntry) {
        self.count -= 1;
        self.blocks -= u64::from(head.space.blocks());
    }

    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Blocks of all heads.
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }
}

impl DiskState {
    /// Frees some heads without data, if heads have more than their part of the index.
    pub(super) fn free_stale_heads(&mut self, fingerprints: Fingerprints) {
        let unchecked = self.index.max_entries() / ENTRIES_PER_UNCHECKED_HEAD;
        for _ in 0..MAX_EXAMINED_SLOTS {
            if self.heads.count as usize <= unchecked {
                return;
            }
            let slot = self.heads.next_slot;
            self.heads.next_slot = if slot + 1 < self.index.slots() { slot + 1 } else { 0 };
            let Some(entry) = self.index.get(slot) else { continue };
            let ExtentKind::Head { extents, is_stale: was_stale } = entry.kind else { continue };
            let is_stale = !self.has_data(entry.place, extents, fingerprints);
            if is_stale && was_stale {
                self.release_slot(slot);
            } else {
                self.index.set_kind(slot, ExtentKind::Head { extents, is_stale });
            }
        }
    }

    /// Blocks of heads and of data whose head is in the index.
    #[cfg(test)]
    pub(super) fn headed_blocks(&self, fingerprints: Fingerprints) -> u64 {
        let blocks_of = |entry: IndexEntry| {
            let ExtentKind::Head { extents, .. } = entry.kind else { return 0 };
            let places = (0..extents).map(|number| Place { address: entry.place, number });
            let data = places.filter_map(|place| self.index.get(self.index.find(fingerprints.place(place))?));
            data.chain([entry]).map(|entry| u64::from(entry.space.blocks())).sum()
        };
        (0..self.index.slots()).filter_map(|slot| self.index.get(slot)).map(blocks_of).sum()
    }

    /// Returns true if the index has data of an object, as far as is examined.
    fn has_data(&self, address: u64, extents: u32, fingerprints: Fingerprints) -> bool {
        let step = extents.div_ceil(MAX_EXAMINED_PLACES).max(1);
        let mut places = (0..extents).step_by(step as usize).map(|number| Place { address, number });
        places.any(|place| self.index.find(fingerprints.place(place)).is_some())
    }
}
