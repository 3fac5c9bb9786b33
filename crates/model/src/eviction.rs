//! Eviction and admission of a cache: which entry leaves, and which one is not worth a place.
//!
//! A policy is a pure state machine without I/O, clock or randomness, so that the cache and simulations run the same
//! code. It orders *slots*: dense numbers that the caller assigns. Per slot it keeps 8 bytes and no copy of the key; the
//! caller passes the [`Entry`] instead, which its index holds anyway. What a policy remembers of evicted entries
//! (*ghosts*) is bounded. All operations take amortized constant time and allocate nothing.
//!
//! | policy | victim |
//! |---|---|
//! | [`Lru`] | the least recently used entry |
//! | [`S3Fifo`] | by S3-FIFO (Yang 2023) |
//! | [`AdaptiveWindow`] | like S3-FIFO behind an LRU window, whose size adapts to the requests. The default |
//! | [`StaticDss`] | the least recently used entry of the lowest priority (Chen 2014) |
//!
//! Cited as in `docs/experiments.md`. SIEVE (Zhang 2024), LIRS (Jiang and Zhang 2002) and ARC (Megiddo and Modha 2003) are
//! the other policies to which these were compared.
//!
//! [`KeyedCache`] joins a policy with an index by key.

mod adaptive_window;
mod classes;
mod ghosts;
mod keyed_cache;
mod lru;
mod miniature;
mod reserve_evidence;
mod s3_fifo;
mod slot_table;
mod static_dss;
#[cfg(test)]
mod tests;
mod window_clock;

pub use self::adaptive_window::AdaptiveWindow;
pub use self::classes::{CLASSES, ClassOccupancy, ClassPolicies, ClassPolicy};
pub use self::keyed_cache::{KeyedCache, Lookup};
pub use self::lru::Lru;
pub use self::miniature::MissCost;
pub use self::s3_fifo::S3Fifo;
pub use self::slot_table::MAX_SLOTS;
pub use self::static_dss::StaticDss;

/// A place in the cache, below [`Capacity::slots`]. The caller assigns slots and may reuse one that is free.
pub type Slot = u32;

/// An entry of the cache, or one that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Hash of the entry's name. The bits must be uniformly distributed. It identifies the entry after its eviction.
    pub key: u64,
    /// Size in blocks, at least 1.
    pub blocks: u32,
    /// Class, below [`CLASSES`]. 0 is unclassified.
    pub class: u8,
}

/// The limits of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum blocks of all entries.
    pub blocks: u64,
    /// Maximum number of entries, at most [`MAX_SLOTS`].
    pub slots: u32,
}

impl Capacity {
    /// A capacity for entries of one block each. Above [`MAX_SLOTS`] entries, slots are the limit.
    #[must_use]
    pub fn of_unit_entries(blocks: u64) -> Self {
        Self { blocks, slots: u32::try_from(blocks).unwrap_or(MAX_SLOTS).min(MAX_SLOTS) }
    }
}

/// The caller's table of the entries in slots.
pub trait Entries {
    /// Returns the entry in an occupied slot.
    fn entry(&self, slot: Slot) -> Entry;
}

/// Decides which entries a cache admits and evicts.
///
/// For each request, the caller calls [`hit`](Self::hit) if the entry is in the cache. Otherwise it calls
/// [`admits`](Self::admits) once; if that returns true, it may evict entries until the new one fits, and insert it.
/// The key, blocks and class of an entry must not change between insertion and removal.
///
/// # Panics
///
/// Methods panic if a slot is not below the capacity, if an inserted slot is occupied, or if another one is not.
pub trait EvictionPolicy {
    /// Records a request for an entry that is not in the cache. Returns false if it should not be cached.
    fn admits(&mut self, entry: &Entry) -> bool;

    /// Adds an entry in a free slot.
    fn insert(&mut self, slot: Slot, entry: &Entry);

    /// Records a request for an entry in the cache.
    fn hit(&mut self, slot: Slot, entry: &Entry);

    /// Removes an entry for another reason than space, such as a deletion.
    fn remove(&mut self, slot: Slot, entry: &Entry);

    /// Chooses a victim and removes it. Returns `None` only if the cache is empty, or all entries are pinned.
    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot>;

    /// Returns true if entries should be evicted although no other one waits: a class occupies more than its share.
    /// The next victim is then an entry of such a class.
    fn has_excess(&self) -> bool {
        false
    }
}

impl<P: EvictionPolicy + ?Sized> EvictionPolicy for Box<P> {
    fn admits(&mut self, entry: &Entry) -> bool {
        (**self).admits(entry)
    }

    fn insert(&mut self, slot: Slot, entry: &Entry) {
        (**self).insert(slot, entry);
    }

    fn hit(&mut self, slot: Slot, entry: &Entry) {
        (**self).hit(slot, entry);
    }

    fn remove(&mut self, slot: Slot, entry: &Entry) {
        (**self).remove(slot, entry);
    }

    fn evict(&mut self, entries: &dyn Entries) -> Option<Slot> {
        (**self).evict(entries)
    }

    fn has_excess(&self) -> bool {
        (**self).has_excess()
    }
}
