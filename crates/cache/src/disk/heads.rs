//! Heads on the SSD whose data is apart. The eviction policy does not rank them: a block of a head saves as much as the 18
//! of an extent, so that heads of data that is gone would take the place of data. A head follows its data: beyond a part
//! of the index, heads are freed that have no data on the SSD when they are examined twice in a row, unless data was read in
//! between. Data may be written after its head.

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

/// Places that are looked up at each insertion of a head at most, because the lock is held: enough to free several heads.
const MAX_LOOKUPS: u32 = 512;

/// Places of the data of a head that are looked up at most, evenly spread over the object. Other ones in each round.
const MAX_EXAMINED_PLACES: u32 = 64;

/// The number and size of the heads, and the position of the search for those without data.
#[derive(Debug, Default)]
pub(super) struct StoredHeads {
    count: u32,
    blocks: u64,
    next_slot: Slot,
    /// Rounds through the index so far.
    rounds: u32,
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
        let mut lookups = 0;
        // A head that was just written is not examined twice by one call.
        for _ in 0..MAX_EXAMINED_SLOTS.min(self.index.slots() / 2) {
            if self.heads.count as usize <= unchecked || lookups >= MAX_LOOKUPS {
                return;
            }
            let slot = self.heads.next_slot;
            self.heads.next_slot = slot + 1;
            if self.heads.next_slot >= self.index.slots() {
                self.heads.next_slot = 0;
                self.heads.rounds = self.heads.rounds.wrapping_add(1);
            }
            let Some(entry) = self.index.get(slot) else { continue };
            let ExtentKind::Head { extents, is_stale: was_stale } = entry.kind else { continue };
            lookups += extents.min(MAX_EXAMINED_PLACES) + 1;
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

    /// Records that data of an object is read: its head has data, also where that is not examined.
    pub(super) fn record_data_of(&mut self, address: u64) {
        let Some(slot) = self.index.find(address) else { return };
        if let Some(ExtentKind::Head { extents, is_stale: true }) =
            self.index.get(slot).map(|entry| entry.kind)
        {
            self.index.set_kind(slot, ExtentKind::Head { extents, is_stale: false });
        }
    }

    /// Returns true if the index has data of an object, as far as is examined: at some places, and at the end.
    fn has_data(&self, address: u64, extents: u32, fingerprints: Fingerprints) -> bool {
        let step = extents.div_ceil(MAX_EXAMINED_PLACES).max(1);
        let first = self.heads.rounds % step;
        let numbers = (first..extents).step_by(step as usize).chain(extents.checked_sub(1));
        let mut places = numbers.map(|number| Place { address, number });
        places.any(|place| self.index.find(fingerprints.place(place)).is_some())
    }
}
