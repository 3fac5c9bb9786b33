//! The dirty index: what is in the journal and not yet in the backing store, by bucket and key, and in order of age.
//!
//! It is changed after the journal, by a change that runs to its end: if its request is dropped in between, in a task of
//! its own. An entry leaves it only after the backing store has its data and the journal no longer has it.

mod drain_queue;
mod names;
mod reservations;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use tradewind_core::listing::ObjectSummary;
use tradewind_core::{Address, BucketName, Generation, ObjectKey};
use tradewind_model::admission::{DrainPace, WriteAdmission, WriteRank};

use drain_queue::{DrainQueue, QueuePlace, QueuedKey};
pub(super) use names::{DirtyName, DirtyNames};
pub(super) use reservations::Reservation;
use reservations::{Reservations, growth};

/// The state of a key that the backing store does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DirtyState {
    /// An object, with what a listing reports.
    Object(ObjectSummary),
    /// A deletion.
    Tombstone,
}

/// An entry of the index.
#[derive(Debug, Clone)]
pub(super) struct DirtyEntry {
    pub state: DirtyState,
    /// The generation in the journal.
    pub generation: Generation,
    /// When the key became dirty.
    pub since: Duration,
    /// The position in the order of age: the generation with which the key became dirty.
    order: u64,
    /// False while it is being written back, or waits after a failure.
    is_queued: bool,
}

impl DirtyEntry {
    const fn size(&self) -> u64 {
        match &self.state {
            DirtyState::Object(summary) => summary.size,
            DirtyState::Tombstone => 0,
        }
    }

    fn place(&self) -> QueuePlace {
        QueuePlace::new(self.size(), self.order)
    }
}

/// The index after an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inserted {
    /// True if no key was queued before.
    pub is_first: bool,
    pub totals: DirtyTotals,
}

/// A key that was taken from the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TakenKey {
    pub address: Address,
    /// The bytes of its object, 0 for a deletion.
    pub bytes: u64,
}

/// The decision on a write that may enter the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Room is reserved.
    Reserved(Reservation),
    /// The room that is left is kept for writes of higher rank.
    Kept,
    /// The limits are reached.
    Full,
}

/// The amount of dirty data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DirtyTotals {
    /// Bytes of objects.
    pub bytes: u64,
    /// Objects and deletions.
    pub entries: usize,
}

impl DirtyTotals {
    const fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.entries += other.entries;
    }

    const fn subtract(&mut self, other: Self) {
        self.bytes -= other.bytes;
        self.entries -= other.entries;
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct DirtyIndex {
    content: Mutex<IndexContent>,
}

/// The dirty keys of a bucket. There is one at least.
#[derive(Debug, Default)]
struct BucketEntries {
    keys: BTreeMap<ObjectKey, DirtyEntry>,
    /// Those of `keys` that are deletions.
    tombstones: BTreeSet<ObjectKey>,
}

#[derive(Debug, Default)]
struct IndexContent {
    buckets: HashMap<BucketName, BucketEntries>,
    queued: DrainQueue,
    unqueued: BTreeMap<u64, Address>,
    totals: DirtyTotals,
    /// Changes that are being made in the journal.
    reservations: Reservations,
    admission: WriteAdmission,
    removed_tombstones: u64,
}

impl DirtyIndex {
    /// The entry of a key.
    pub fn get(&self, address: &Address) -> Option<DirtyEntry> {
        self.content.lock().buckets.get(&address.bucket)?.keys.get(&address.key).cloned()
    }

    /// The bytes of the object of a dirty key, 0 for a deletion. `None` if the key is not dirty.
    pub fn bytes(&self, address: &Address) -> Option<u64> {
        self.content.lock().bytes(address)
    }

    /// Adds or replaces the entry of a key.
    pub fn insert(
        &self,
        address: &Address,
        state: DirtyState,
        generation: Generation,
        now: Duration,
    ) -> Inserted {
        let mut content = self.content.lock();
        let is_first = content.queued.is_empty();
        content.insert(address, state, generation, now);
        Inserted { is_first, totals: content.totals }
    }

    /// Removes the entry of a key, of which the journal has nothing any more. The caller holds the commit lock of the key.
    pub fn remove(&self, address: &Address) {
        let mut content = self.content.lock();
        let IndexContent { buckets, queued, unqueued, totals, removed_tombstones, reservations, .. } =
            &mut *content;
        let Some(entries) = buckets.get_mut(&address.bucket) else { return };
        if let Some(entry) = entries.keys.remove(&address.key) {
            totals.bytes -= entry.size();
            totals.entries -= 1;
            reservations.follow(address, None);
            if entry.state == DirtyState::Tombstone {
                entries.tombstones.remove(&address.key);
                *removed_tombstones += 1;
            }
            if entry.is_queued {
                queued.remove(entry.place());
            } else {
                unqueued.remove(&entry.order);
            }
        }
        if entries.keys.is_empty() {
            buckets.remove(&address.bucket);
        }
    }

    /// Takes the entry that is next at a pace. It counts as being written back until [`Self::requeue`]. `None` if the oldest
    /// one is younger than the pace allows.
    pub fn take(&self, pace: &DrainPace, now: Duration) -> Option<TakenKey> {
        let mut content = self.content.lock();
        let IndexContent { buckets, queued, unqueued, .. } = &mut *content;
        let (_, oldest) = queued.oldest()?;
        if oldest.since + pace.min_age > now {
            return None;
        }
        let (place, _) = queued.first(pace.order, now)?;
        let QueuedKey { address, .. } = queued.remove(place)?;
        let entry = buckets.get_mut(&address.bucket)?.keys.get_mut(&address.key)?;
        entry.is_queued = false;
        unqueued.insert(place.order, address.clone());
        Some(TakenKey { address, bytes: entry.size() })
    }

    /// Queues a key again, if it is still dirty.
    pub fn requeue(&self, address: &Address) {
        let mut content = self.content.lock();
        let IndexContent { buckets, queued, unqueued, .. } = &mut *content;
        let entries = buckets.get_mut(&address.bucket);
        let entry = entries.and_then(|entries| entries.keys.get_mut(&address.key));
        if let Some(entry) = entry.filter(|entry| !entry.is_queued) {
            entry.is_queued = true;
            unqueued.remove(&entry.order);
            queued.insert(entry.place(), QueuedKey { address: address.clone(), since: entry.since });
        }
    }

    /// When the oldest queued entry became dirty.
    pub fn oldest_queued(&self) -> Option<Duration> {
        self.content.lock().queued.oldest().map(|(_, key)| key.since)
    }

    /// When the oldest entry became dirty.
    pub fn oldest(&self) -> Option<Duration> {
        let content = self.content.lock();
        let queued = content.queued.oldest().map(|(place, key)| (place.order, &key.address));
        let unqueued = content.unqueued.first_key_value().map(|(order, address)| (*order, address));
        let (_, address) = queued.into_iter().chain(unqueued).min_by_key(|(order, _)| *order)?;
        content.since(address)
    }

    /// The dirty data.
    pub fn totals(&self) -> DirtyTotals {
        self.content.lock().totals
    }

    /// The number of deletions that were removed so far.
    pub fn removed_tombstones(&self) -> u64 {
        self.content.lock().removed_tombstones
    }

    /// True if a key of the bucket is dirty.
    pub fn has_bucket(&self, bucket: &BucketName) -> bool {
        self.content.lock().buckets.contains_key(bucket)
    }

    /// True if an object of the bucket is dirty.
    pub fn has_object(&self, bucket: &BucketName) -> bool {
        let content = self.content.lock();
        content.buckets.get(bucket).is_some_and(|entries| entries.tombstones.len() < entries.keys.len())
    }

    /// The dirty keys of a bucket.
    pub fn keys(&self, bucket: &BucketName) -> Vec<Address> {
        let content = self.content.lock();
        let keys = content.buckets.get(bucket).into_iter().flat_map(|entries| entries.keys.keys());
        keys.map(|key| Address::new(bucket.clone(), key.clone())).collect()
    }

    /// Reserves room for the growth of a key to `bytes`, unless the remainder is kept for higher ranks.
    pub fn admit(&self, address: &Address, rank: WriteRank, bytes: u64, limits: DirtyTotals) -> Admission {
        let mut content = self.content.lock();
        content.admission.record(rank);
        let IndexContent { admission, .. } = &*content;
        let allowed = DirtyTotals {
            bytes: admission.allowed_bytes(rank, limits.bytes),
            entries: admission.allowed_entries(rank, limits.entries),
        };
        if let Some(reservation) = content.reserve(address, bytes, allowed) {
            return Admission::Reserved(reservation);
        }
        let growth = growth(bytes, content.bytes(address));
        if content.fits(growth, limits) { Admission::Kept } else { Admission::Full }
    }

    /// Reserves room for the growth of a key to `bytes`. `None` if the dirty data and all reservations would exceed the
    /// limits. A change without growth needs no room.
    pub fn reserve(&self, address: &Address, bytes: u64, limits: DirtyTotals) -> Option<Reservation> {
        self.content.lock().reserve(address, bytes, limits)
    }

    /// Ends a reservation of a key.
    pub fn release(&self, address: &Address, reservation: Reservation) {
        self.content.lock().reservations.remove(address, reservation);
    }
}

impl IndexContent {
    fn fits(&self, growth: DirtyTotals, limits: DirtyTotals) -> bool {
        let mut all = self.totals;
        all.add(self.reservations.totals);
        all.add(growth);
        (growth.bytes == 0 || all.bytes <= limits.bytes)
            && (growth.entries == 0 || all.entries <= limits.entries)
    }

    fn reserve(&mut self, address: &Address, bytes: u64, limits: DirtyTotals) -> Option<Reservation> {
        let current = self.bytes(address);
        let fits = self.fits(growth(bytes, current), limits);
        fits.then(|| self.reservations.add(address, bytes, current))
    }

    fn bytes(&self, address: &Address) -> Option<u64> {
        self.buckets.get(&address.bucket)?.keys.get(&address.key).map(DirtyEntry::size)
    }

    fn since(&self, address: &Address) -> Option<Duration> {
        Some(self.buckets.get(&address.bucket)?.keys.get(&address.key)?.since)
    }

    fn insert(&mut self, address: &Address, state: DirtyState, generation: Generation, now: Duration) {
        let Self { buckets, queued, unqueued, totals, reservations, .. } = self;
        let entries = buckets.entry(address.bucket.clone()).or_default();
        let mut new = DirtyEntry { state, generation, since: now, order: generation.0, is_queued: true };
        totals.bytes += new.size();
        reservations.follow(address, Some(new.size()));
        match new.state {
            DirtyState::Tombstone => entries.tombstones.insert(address.key.clone()),
            DirtyState::Object(_) => entries.tombstones.remove(&address.key),
        };
        match entries.keys.get_mut(&address.key) {
            Some(old) => {
                totals.bytes -= old.size();
                if old.is_queued {
                    // A key that is written again and again keeps its place in the order.
                    (new.order, new.since) = (old.order, old.since);
                    if let Some(key) = queued.remove(old.place()) {
                        queued.insert(new.place(), key);
                    }
                } else {
                    new.is_queued = false;
                    unqueued.remove(&old.order);
                    unqueued.insert(new.order, address.clone());
                }
                *old = new;
            }
            None => {
                totals.entries += 1;
                queued.insert(new.place(), QueuedKey { address: address.clone(), since: now });
                entries.keys.insert(address.key.clone(), new);
            }
        }
    }
}

#[cfg(test)]
mod tests;
