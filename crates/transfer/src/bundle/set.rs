//! The set of bundles that one packing creates, recorded in a journal. An interrupted packing resumes after the stored
//! bundles whose files are unchanged.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tradewind_core::Algorithm;
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};

use super::file_queue::{FileQueue, QueuedFile};
use super::index::Member;
use super::packer::{PackOutcome, Packer, check_member_size};
use super::reader::{Bundle, bundle_key};
use crate::Item;
use crate::files::FileSource;
use crate::journal::Journal;

/// A set of bundles.
pub struct BundleSet {
    /// Random id, stored in the footer of every bundle of the set.
    pub id: u64,
    bundle_bytes: u64,
    journal: Option<Journal>,
    /// True if the journal describes this set, not the previous one.
    is_written: bool,
    /// Bundles that an earlier packing may have stored, by number.
    earlier: BTreeMap<u32, BundleFingerprint>,
    /// The highest bundle number that earlier packings may have started.
    last: u32,
}

/// A record of the journal, one JSON line. A set is recorded only when its first bundle is about to be stored; until
/// then the records of the previous set stay valid. The variant and field names are the file format.
#[derive(Debug, Serialize, Deserialize)]
enum JournalRecord {
    /// The set being packed. `bundle_bytes` is the size limit of its bundles, `last` the highest bundle number that
    /// previous sets may have started.
    Set { id: u64, bundle_bytes: u64, last: u32 },
    /// A bundle that is uploaded except for its end. The last record of a number is valid.
    Bundle { number: u32, ended: BundleFingerprint },
}

/// Fingerprint of a bundle that is about to be stored. It distinguishes the bundle from an older object at its key.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct BundleFingerprint {
    /// Hash of the names and versions of its files.
    pub files: u64,
    /// The checksum of its index, which contains those of its members.
    pub index: u64,
}

/// Hasher of the names and versions of files.
pub struct FilesHasher(Hasher);

impl Default for FilesHasher {
    fn default() -> Self {
        Self(Hasher::new(Algorithm::Crc64Nvme))
    }
}

impl FilesHasher {
    /// Adds a file.
    pub fn add(&mut self, name: &str, version: u64) {
        self.0.update(name.as_bytes());
        self.0.update(&[0]);
        self.0.update(&version.to_le_bytes());
    }

    /// The hash.
    pub fn finish(self) -> u64 {
        self.0.finish().crc64_value()
    }
}

impl BundleSet {
    /// Opens the interrupted set of the journal, or starts a new one if there is none or its bundles had another size
    /// limit.
    pub fn open(journal: Option<Journal>, bundle_bytes: u64) -> Result<Self> {
        let mut set =
            Self { id: 0, bundle_bytes, journal, is_written: false, earlier: BTreeMap::new(), last: 1 };
        for record in set.journal.iter().flat_map(Journal::records::<JournalRecord>) {
            match record {
                JournalRecord::Set { id, bundle_bytes, last } => {
                    set.last = set.last.max(last);
                    (set.id, set.is_written) = (id, bundle_bytes == set.bundle_bytes);
                }
                JournalRecord::Bundle { number, ended } => {
                    set.last = set.last.max(number.saturating_add(1));
                    set.earlier.insert(number, ended);
                }
            }
        }
        if !set.is_written {
            set.start_new_set()?;
        }
        Ok(set)
    }

    /// Switches to a new set without stored bundles.
    fn start_new_set(&mut self) -> Result<()> {
        self.id = getrandom::u64()
            .map_err(|e| Error::new(Reason::Defect, format!("cannot get random bytes: {e}")))?;
        self.is_written = false;
        self.earlier.clear();
        Ok(())
    }

    /// Records a bundle that is about to be stored.
    pub fn record_bundle(&mut self, number: u32, ended: BundleFingerprint) {
        self.write(Some(&JournalRecord::Bundle { number, ended }));
    }

    /// Appends a record; the set's own record is written first if it is missing. An I/O error is only logged.
    fn write(&mut self, record: Option<&JournalRecord>) {
        let Some(journal) = &mut self.journal else { return };
        let mut written = Ok(());
        if !self.is_written {
            let set_record =
                JournalRecord::Set { id: self.id, bundle_bytes: self.bundle_bytes, last: self.last };
            written = journal.reset().and_then(|()| journal.append(&set_record));
            self.is_written = written.is_ok();
        }
        if let Err(e) = written.and_then(|()| record.map_or(Ok(()), |record| journal.append(record))) {
            tracing::warn!(error = %e, "cannot record a bundle in the journal; a resumed packing repeats it");
        }
    }

    /// Removes the journal: the whole set is stored.
    pub fn finish(self) {
        if let Some(Err(e)) = self.journal.map(Journal::remove) {
            tracing::warn!(error = %e, "cannot remove a journal");
        }
    }

    /// The highest bundle number that an earlier packing may have started.
    pub const fn last(&self) -> u32 {
        self.last
    }

    /// Skips the files that are in stored bundles already. Returns the number of the next bundle to pack.
    ///
    /// Later bundles of the interrupted set would be mistaken for successors of the new ones, so they are removed. If
    /// the store rejects that, the error is returned and the journal switches to a new set.
    pub async fn skip_packed(
        &mut self,
        packer: &Packer,
        pending: &mut FileQueue,
        packed: &mut PackOutcome,
    ) -> Result<u32> {
        let mut queue = VersionedQueue { packer, pending, packed, ready: VecDeque::new() };
        let mut number = 1;
        while let Some(&BundleFingerprint { files, index }) = self.earlier.get(&number)
            && let Some(bundle) = self.stored(packer, number).await?
            && bundle.has_next()
            && bundle.index_checksum() == index
            && queue.take_files_of(&bundle, files).await?
        {
            queue.packed.add_existing(&bundle, &packer.progress);
            packer.abort_upload(number).await?;
            number += 1;
        }
        queue.put_back(&[]);
        if number == 1 {
            self.start_new_set()?;
        } else if let Err(e) = self.remove_after(packer, number).await {
            if !e.is_inconclusive() {
                // Without permission to remove them, the next packing starts over with a new set.
                self.start_new_set()?;
                self.write(None);
            }
            return Err(e);
        }
        Ok(number)
    }

    /// Removes the bundles of this set after `number`, including those that a damaged journal does not list.
    async fn remove_after(&self, packer: &Packer, number: u32) -> Result<()> {
        let mut stored = Vec::new();
        for later in number.saturating_add(1).. {
            if self.stored(packer, later).await?.is_some() {
                stored.push(later);
            } else if later >= self.last {
                break;
            }
        }
        for later in stored.into_iter().rev() {
            let address = packer.to.address(&bundle_key(&packer.key, later))?;
            packer.to.remove(&packer.transfers, &address).await?;
        }
        Ok(())
    }

    /// Opens bundle `number` if it is a valid bundle of this set; otherwise `None`.
    async fn stored(&self, packer: &Packer, number: u32) -> Result<Option<Bundle>> {
        match Bundle::open(&packer.transfers, &packer.to, &bundle_key(&packer.key, number)).await {
            Ok(bundle) => Ok(Some(bundle).filter(|bundle| bundle.belongs_to(self.id, number))),
            Err(e) if e.is_inconclusive() => Err(e),
            Err(e) => {
                tracing::debug!(error = %e, number, "cannot resume after this bundle");
                Ok(None)
            }
        }
    }
}

/// The queued files with their versions. Files that cannot be read are reported and dropped.
struct VersionedQueue<'a> {
    packer: &'a Packer,
    pending: &'a mut FileQueue,
    packed: &'a mut PackOutcome,
    ready: VecDeque<(Item, u64)>,
}

impl VersionedQueue<'_> {
    async fn peek(&mut self) -> Result<Option<&(Item, u64)>> {
        while self.ready.is_empty() {
            let batch = self.pending.next_batch().await;
            if batch.is_empty() {
                break;
            }
            let (tree, links) = (self.packer.from.clone(), self.packer.links);
            let read_version = move |found: QueuedFile| {
                let item = found?;
                let version = FileSource::open(&tree, &item.name, links, Default::default())
                    .and_then(|source| check_member_size(source.size()).map(|()| source.version()));
                match version {
                    Ok(version) => Ok((item, version)),
                    Err(e) => Err((item.name, e)),
                }
            };
            let results =
                tokio::task::spawn_blocking(move || batch.into_iter().map(read_version).collect::<Vec<_>>());
            for found in results.await.map_err(|e| Error::new(Reason::Defect, e.to_string()))? {
                match found {
                    Ok(file) => self.ready.push_back(file),
                    Err((name, e)) => self.packed.outcome.record(name, Err(e), &self.packer.progress),
                }
            }
        }
        Ok(self.ready.front())
    }

    /// Returns true and takes the next files if they are those of `bundle` and further files follow. Otherwise puts
    /// all of them back.
    async fn take_files_of(&mut self, bundle: &Bundle, files: u64) -> Result<bool> {
        let mut found = FilesHasher::default();
        for (n, member) in bundle.members().iter().enumerate() {
            match self.peek().await? {
                Some((item, version)) if item.name == member.name => found.add(&item.name, *version),
                _ => {
                    self.put_back(&bundle.members()[..n]);
                    return Ok(false);
                }
            }
            self.ready.pop_front();
        }
        let is_same = found.finish() == files && self.peek().await?.is_some();
        if !is_same {
            self.put_back(bundle.members());
        }
        Ok(is_same)
    }

    /// Puts `members` and then the peeked files back into the queue.
    fn put_back(&mut self, members: &[Member]) {
        self.pending.put_back(self.ready.drain(..).map(|(item, _)| item));
        let item = |member: &Member| Item {
            name: member.name.clone(),
            size: member.size,
            modified: member.modified,
            changed: None,
            nanos: Default::default(),
            version: None,
        };
        self.pending.put_back(members.iter().map(item));
    }
}
