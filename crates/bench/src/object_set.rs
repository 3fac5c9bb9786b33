//! The objects that a run created. Each is a number, from which its name, size and content are derived.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tradewind_pattern::ContentId;

use crate::random::mix;
use crate::samples::ObjectNames;
use crate::size_distribution::SizeDistribution;

/// A set of objects with one size distribution.
#[derive(Debug)]
pub struct ObjectSet {
    /// Prefix of all object names.
    prefix: String,
    sizes: SizeDistribution,
    next_number: AtomicU64,
    /// Number of source files; 0 if contents are generated in memory.
    files: AtomicU64,
    live: Mutex<Vec<ObjectEntry>>,
    /// Numbers of the objects that were distributed last, in order.
    distributed: Mutex<Arc<[u64]>>,
    /// A write or delete failed: it is unknown which objects exist.
    is_uncertain: AtomicBool,
}

impl ObjectSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new(prefix: String, sizes: SizeDistribution) -> Self {
        Self {
            prefix,
            sizes,
            next_number: AtomicU64::new(0),
            files: AtomicU64::new(0),
            live: Mutex::default(),
            distributed: Mutex::default(),
            is_uncertain: AtomicBool::new(false),
        }
    }

    /// The name of an object. Names sort in the order of the numbers.
    #[must_use]
    pub fn key(&self, number: u64) -> String {
        format!("{}{number:010}", self.prefix)
    }

    /// The number of the object with the given name; `None` if the name is not of this set.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        key.strip_prefix(&*self.prefix)?.parse().ok()
    }

    /// The size of an object, in bytes.
    #[must_use]
    pub fn size(&self, number: u64) -> u64 {
        self.sizes.size_of(self.source(number))
    }

    /// The number of the source of an object: its own number, or that of a source file.
    fn source(&self, number: u64) -> u64 {
        number.checked_rem(self.files.load(Ordering::Relaxed)).unwrap_or(number)
    }

    /// The name of the source of an object: its own name, or that of a file, which all sets with the same sizes share.
    #[must_use]
    pub fn source_key(&self, number: u64) -> String {
        if self.has_files() {
            let mut hasher = DefaultHasher::new();
            self.sizes.to_string().hash(&mut hasher);
            return format!("source {:016x} {:010}", hasher.finish(), self.source(number));
        }
        self.key(number)
    }

    /// The content of an object, derived from the name of its source.
    #[must_use]
    pub fn content(&self, number: u64) -> ContentId {
        ContentId::new(&self.source_key(number), self.size(number))
    }

    /// Returns true if objects are uploaded from files.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.files.load(Ordering::Relaxed) > 0
    }

    /// Uses `count` source files from now on.
    pub fn use_source_files(&self, count: u64) {
        self.files.store(count, Ordering::Relaxed);
    }

    /// Records that a write or delete failed, so that it is unknown which objects exist.
    pub fn mark_uncertain(&self) {
        self.is_uncertain.store(true, Ordering::Relaxed);
    }

    /// Returns true if it is known which objects exist.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !self.is_uncertain.load(Ordering::Relaxed)
    }

    /// The prefix of all object names.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Allocates an unused object number.
    pub fn new_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of allocated object numbers, an exclusive upper bound of all numbers.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.next_number.load(Ordering::Relaxed)
    }

    /// The number of existing objects, without those that are distributed to workers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.lock().len()
    }

    /// The numbers of existing objects, without those that are distributed to workers.
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        self.live.lock().iter().map(|entry| entry.number).collect()
    }

    /// Returns true if no object exists, apart from those that are distributed to workers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Distributes the objects among the workers in random order, unread ones first.
    pub fn distribute(&self, workers: usize, seed: u64) -> Vec<ObjectShare> {
        let mut live = std::mem::take(&mut *self.live.lock());
        live.sort_unstable_by_key(|entry| entry.number);
        *self.distributed.lock() = live.iter().map(|entry| entry.number).collect();
        // A stream of its own: other draws use the same seed.
        let seed = mix(seed ^ 0x6465_616c);
        for last in (1..live.len()).rev() {
            let other = mix(seed ^ mix(last as u64)) % (last as u64 + 1);
            live.swap(last, usize::try_from(other).unwrap_or(0));
        }
        live.sort_by_key(|entry| entry.was_read);
        let mut shares = vec![ObjectShare::default(); workers.max(1)];
        let count = shares.len();
        for (n, entry) in live.into_iter().enumerate() {
            shares[n % count].own.push(entry);
        }
        shares
    }

    /// Puts all objects into one pool that the workers share, so that they all finish at about the same time.
    pub fn pool(&self, workers: usize, seed: u64) -> Vec<ObjectShare> {
        let all = self.distribute(1, seed).into_iter().flat_map(|share| share.own).collect();
        vec![ObjectShare { pool: Arc::new(Mutex::new(all)), ..ObjectShare::default() }; workers.max(1)]
    }

    /// The numbers of the objects that were distributed last, in listing order.
    #[must_use]
    pub fn distributed_numbers(&self) -> Arc<[u64]> {
        self.distributed.lock().clone()
    }

    /// Takes back the objects of a worker.
    pub fn reclaim(&self, share: ObjectShare) {
        let mut live = self.live.lock();
        live.extend(share.own);
        live.append(&mut share.pool.lock());
    }
}

impl ObjectNames for ObjectSet {
    fn name(&self, number: u64) -> String {
        self.key(number)
    }
}

/// An existing object.
#[derive(Debug, Clone, Copy)]
struct ObjectEntry {
    number: u64,
    was_read: bool,
}

/// The objects of one worker: exclusive ones, or a pool shared by all workers.
#[derive(Debug, Clone, Default)]
pub struct ObjectShare {
    own: Vec<ObjectEntry>,
    /// Index of the next object to read.
    next_read: usize,
    /// Reads of objects that had been read before.
    pub repeated_reads: u64,
    pool: Arc<Mutex<Vec<ObjectEntry>>>,
}

impl ObjectShare {
    /// The next object to read. Every object is returned once before any is repeated.
    pub fn next_to_read(&mut self) -> Option<u64> {
        if self.next_read >= self.own.len() {
            self.next_read = 0;
        }
        let entry = self.own.get_mut(self.next_read)?;
        self.next_read += 1;
        self.repeated_reads += u64::from(entry.was_read);
        entry.was_read = true;
        Some(entry.number)
    }

    /// Returns true if no object is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.pool.lock().is_empty()
    }

    /// Removes an object from the set, to be deleted.
    pub fn take_for_delete(&mut self) -> Option<u64> {
        let entry = self.own.pop().or_else(|| self.pool.lock().pop())?;
        Some(entry.number)
    }

    /// Adds an object that was written.
    pub fn add(&mut self, number: u64) {
        self.own.push(ObjectEntry { number, was_read: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_reads_its_whole_share_before_repeating() {
        let object_set = ObjectSet::new("p/".to_owned(), SizeDistribution::Fixed(1));
        let mut all = ObjectShare::default();
        (0..10).for_each(|_| all.add(object_set.new_number()));
        object_set.reclaim(all);
        let mut shares = object_set.distribute(3, 1);
        assert!(object_set.is_empty());
        let mut numbers: Vec<u64> = shares
            .iter_mut()
            .flat_map(|share| (0..3).map(|_| share.next_to_read().unwrap()).collect::<Vec<_>>())
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 9);
        let share = &mut shares[2];
        assert_eq!(share.repeated_reads, 0);
        share.next_to_read();
        assert_eq!(share.repeated_reads, 1);
        assert!(share.take_for_delete().is_some());
        shares.into_iter().for_each(|share| object_set.reclaim(share));
        assert_eq!((object_set.len(), object_set.allocated()), (9, 10));
        let mut later = object_set.distribute(1, 1).remove(0);
        assert!(later.next_to_read().is_some());
        assert_eq!(later.repeated_reads, 0, "one object is still unread");
        assert!(later.next_to_read().is_some());
        assert_eq!(later.repeated_reads, 1, "an earlier measurement read it");
        later.add(object_set.new_number());
        object_set.reclaim(later);
        let mut last = object_set.distribute(1, 2).remove(0);
        assert!(last.next_to_read().is_some());
        assert_eq!(last.repeated_reads, 0, "unread objects come first");
        object_set.reclaim(last);
        let mut pooled = object_set.pool(2, 1);
        assert!(
            (0..10).all(|_| pooled[0].take_for_delete().is_some())
                && pooled.iter().all(ObjectShare::is_empty),
            "one worker can take all objects of the pool"
        );
        assert_eq!(object_set.key(7), "p/0000000007");
        assert_eq!((object_set.number("p/0000000007"), object_set.number("q/0000000007")), (Some(7), None));
    }
}
