//! The index of all records, in an LSM tree. It is derived from the log and can be rebuilt from an undamaged one. Every
//! batch is applied to the index before it is acknowledged, but the index is not synced for that: after a crash, the
//! log beyond the index's coverage is replayed. All entries and the coverage are in one key space, so that what
//! survives a crash is an exact prefix of the applied batches with the log position that this prefix covers.

pub(crate) mod entries;
mod entry_cache;
pub(crate) mod keys;
pub(crate) mod trust;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use fjall::config::PartitioningPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use tradewind_core::error::{Error, Reason, Result};

use self::entries::Coverage;
use self::entry_cache::EntryCache;
use self::trust::{IndexTrust, index_error};
use super::io_threads::io_error;
use super::segment::sync_directory;

const KEYSPACE: &str = "index";
/// Message of read errors.
const READ_FAILED: &str = "the index could not be read";
/// Size of the cache of the tree's blocks in the index library (fjall).
const BLOCK_CACHE_BYTES: u64 = 20 << 20;
/// Size of the cache of object entries.
const ENTRY_CACHE_BYTES: u64 = 24 << 20;
/// Size of a memtable. Up to five are in memory while flushing lags, and the allocator retains their memory.
const MEMTABLE_BYTES: u64 = 6 << 20;
const JOURNAL_BYTES: u64 = 64 << 20;

/// Partitioning of file filters and indexes into blocks of a few KiB, below the first level. Unpartitioned, those of
/// a large file take a MiB or more: too much to cache, or to read and verify for one lookup. First-level files are
/// small.
fn partitioned_below_first_level() -> PartitioningPolicy {
    PartitioningPolicy::new([false, true])
}

/// The index of one store.
pub(crate) struct Index {
    tree: Option<Tree>,
    cache: EntryCache,
    pub trust: Arc<IndexTrust>,
}

struct Tree {
    database: Database,
    entries: Keyspace,
}

impl Drop for Index {
    fn drop(&mut self) {
        let tree = self.tree.take();
        // If one of its threads panicked, the library panics again when closed.
        if catch_unwind(AssertUnwindSafe(|| drop(tree))).is_err() {
            tracing::error!("the index could not be closed");
        }
    }
}

/// Maximum index files that stay open between reads: a fraction of the process's limit of descriptors.
fn max_cached_files() -> usize {
    const MAX_FILES: usize = 900;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(MAX_FILES, |limit| usize::try_from(limit / 8).unwrap_or(MAX_FILES).clamp(8, MAX_FILES))
}

impl Index {
    /// Opens or creates the index in `directory`.
    pub fn open(directory: &Path) -> Result<Self> {
        // The library panics on some journals torn by a power failure.
        let opened = catch_unwind(|| Self::open_database(directory));
        opened.unwrap_or_else(|_| Err(Error::new(Reason::CorruptData, "the index cannot be read")))
    }

    fn open_database(directory: &Path) -> Result<Self> {
        let failed = |e: fjall::Error| index_error("the index could not be opened", e);
        let database = Database::builder(directory)
            .cache_size(BLOCK_CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .max_cached_files(Some(max_cached_files()))
            .manual_journal_persist(true)
            // A single worker can deadlock: it both flushes and requests flushes through one bounded queue.
            .worker_threads(2)
            .open()
            .map_err(failed)?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .filter_block_partitioning_policy(partitioned_below_first_level())
                .index_block_partitioning_policy(partitioned_below_first_level())
                .manual_journal_persist(true)
        };
        let entries = database.keyspace(KEYSPACE, options).map_err(failed)?;
        // The library does not make all of its directory entries durable. So every open of the store syncs the
        // directories, including the store's own, before anything is acknowledged.
        for created in [directory.join("keyspaces"), directory.to_owned(), directory.join("..")] {
            sync_directory(&created)
                .map_err(|e| io_error("the index's directory could not be made durable", e))?;
        }
        Ok(Self {
            tree: Some(Tree { database, entries }),
            cache: EntryCache::new(ENTRY_CACHE_BYTES),
            trust: Arc::new(IndexTrust::new(directory)),
        })
    }

    fn tree(&self) -> &Tree {
        match &self.tree {
            Some(tree) => tree,
            None => unreachable!("only drop takes the tree"),
        }
    }

    /// The entry of a key, read from the tree.
    pub fn get(&self, key: &[u8]) -> Result<Option<fjall::Slice>> {
        self.tree().entries.get(key).map_err(|e| self.trust.classify_and_record(READ_FAILED, e))
    }

    /// The entry of an object, from the entry cache if it is there.
    pub fn object(&self, key: &[u8]) -> Result<Option<fjall::Slice>> {
        self.cache.get(key, || self.get(key))
    }

    /// A consistent snapshot.
    pub fn snapshot(&self) -> IndexSnapshot {
        let Tree { database, entries } = self.tree();
        IndexSnapshot { snapshot: database.snapshot(), entries: entries.clone(), trust: self.trust.clone() }
    }

    /// The covered part of the log; `None` for a new index.
    pub fn coverage(&self) -> Result<Option<Coverage>> {
        self.get(&keys::META)?.map(|value| Coverage::decode(&value)).transpose()
    }

    /// Starts a set of changes to be applied atomically.
    pub fn changes(&self) -> IndexChanges<'_> {
        IndexChanges { index: self, pending: BTreeMap::new() }
    }

    /// Makes all applied changes survive a power loss, which bounds replay.
    pub fn checkpoint(&self) -> Result<()> {
        self.tree()
            .database
            .persist(PersistMode::SyncAll)
            .map_err(|e| self.trust.classify_and_record("the index could not be made durable", e))
    }
}

/// A snapshot of the index.
pub(crate) struct IndexSnapshot {
    snapshot: Snapshot,
    entries: Keyspace,
    trust: Arc<IndexTrust>,
}

impl IndexSnapshot {
    pub fn get(&self, key: &[u8]) -> Result<Option<fjall::Slice>> {
        self.snapshot.get(&self.entries, key).map_err(|e| self.trust.classify_and_record(READ_FAILED, e))
    }

    /// Entries from `from` (inclusive) to `to` (exclusive), in order.
    pub fn range(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(fjall::Slice, fjall::Slice)>> + use<> {
        // Treat an inverted range as empty; the tree would panic.
        let to = if to < from { from } else { to };
        self.entries(self.snapshot.range(&self.entries, from.to_vec()..to.to_vec()))
    }

    /// Entries whose key starts with `prefix`, in order.
    pub fn prefix(
        &self,
        prefix: &[u8],
    ) -> impl Iterator<Item = Result<(fjall::Slice, fjall::Slice)>> + use<> {
        self.entries(self.snapshot.prefix(&self.entries, prefix))
    }

    /// The entries of all current objects, then those of all other versions and delete markers.
    pub fn all_versions(&self) -> impl Iterator<Item = Result<(fjall::Slice, fjall::Slice)>> + use<> {
        self.prefix(&[keys::prefix::OBJECT]).chain(self.prefix(&[keys::prefix::VERSION]))
    }

    fn entries(
        &self,
        found: fjall::Iter,
    ) -> impl Iterator<Item = Result<(fjall::Slice, fjall::Slice)>> + use<> {
        let trust = self.trust.clone();
        found.map(move |guard| guard.into_inner().map_err(|e| trust.classify_and_record(READ_FAILED, e)))
    }
}

/// Lookups in the index at one moment.
pub(crate) trait IndexReader {
    /// The value of a key.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// The first entry within `from..to`.
    fn first_in_range(&self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>>;
}

impl IndexReader for IndexSnapshot {
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get(key)?.map(|value| value.to_vec()))
    }

    fn first_in_range(&self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let first = self.range(from, to).next().transpose()?;
        Ok(first.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }
}

impl IndexReader for IndexChanges<'_> {
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get(key)
    }

    fn first_in_range(&self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut pending = self.pending.range(from.to_vec()..to.to_vec());
        let added = pending.find_map(|(key, value)| Some((key.clone(), value.clone()?)));
        // Entries behind the first pending one are not needed.
        let end = added.as_ref().map_or(to, |(key, _)| &key[..]);
        for entry in self.index.snapshot().range(from, end) {
            let (key, value) = entry?;
            // A pending change of this key is a removal: an addition would have been found above.
            if !self.pending.contains_key(&key[..]) {
                return Ok(Some((key.to_vec(), value.to_vec())));
            }
        }
        Ok(added)
    }
}

/// Changes that are applied atomically. Reads see the changes made so far.
pub(crate) struct IndexChanges<'a> {
    index: &'a Index,
    pending: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl IndexChanges<'_> {
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(pending) = self.pending.get(key) {
            return Ok(pending.clone());
        }
        Ok(self.index.get(key)?.map(|value| value.to_vec()))
    }

    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: Vec<u8>) {
        self.pending.insert(key.into(), Some(value));
    }

    pub fn remove(&mut self, key: impl Into<Vec<u8>>) {
        self.pending.insert(key.into(), None);
    }

    /// All entries whose key starts with `prefix`, given these changes.
    pub fn with_prefix(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = BTreeMap::new();
        for entry in self.index.snapshot().prefix(prefix) {
            let (key, value) = entry?;
            found.insert(key.to_vec(), value.to_vec());
        }
        for (key, value) in
            self.pending.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix))
        {
            match value {
                Some(value) => found.insert(key.clone(), value.clone()),
                None => found.remove(key),
            };
        }
        Ok(found.into_iter().collect())
    }

    /// Returns true if any entry is within `from..to`, given these changes.
    pub fn any_in_range(&self, from: &[u8], to: &[u8]) -> Result<bool> {
        Ok(self.first_in_range(from, to)?.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Applies all changes; they become visible at the same moment.
    pub fn apply(self) -> Result<()> {
        let objects =
            self.pending.keys().map(Vec::as_slice).filter(|key| key.first() == Some(&keys::prefix::OBJECT));
        let _guard = self.index.cache.begin_change(objects);
        let Tree { database, entries } = self.index.tree();
        let mut batch = database.batch();
        for (key, value) in self.pending {
            match value {
                Some(value) => batch.insert(entries, key, value),
                None => batch.remove(entries, key),
            }
        }
        batch.commit().map_err(|e| self.index.trust.classify_and_record("the index could not be updated", e))
    }
}
