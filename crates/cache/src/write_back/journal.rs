//! The journal: a store with one bucket for each bucket that has dirty data. A dirty object has its own key, bytes and
//! metadata; a deletion is an empty object with a reserved storage class.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::{ListEntry, ListRequest, ObjectSummary};
use tradewind_core::object::{Expected, ObjectInfo};
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::{
    Address, BucketName, Context, Generation, Metadata, ObjectKey, ObjectStore, Precondition,
};

use super::dirty_index::DirtyState;
use super::marker::MARKER_KEY;

/// The storage class of a deletion. A write with this class is not put into the journal.
const TOMBSTONE_CLASS: &str = "tradewind/tombstone";

/// Set in the generation of each dirty object, so that it differs from all of the backing store.
const DIRTY_GENERATION: u64 = 1 << 63;

/// The time for which writes go through after an error of the journal.
const PAUSE: Duration = Duration::from_secs(30);

const PAGE_ENTRIES: usize = 1000;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Journal {
    pub store: Arc<dyn ObjectStore>,
    /// True after an error with [`ReadOnly`](Reason::ReadOnly): the journal accepts no change until it is reopened.
    is_read_only: AtomicBool,
    /// Milliseconds of the clock until which writes go through.
    paused_until: AtomicU64,
    /// Keys of which the journal may hold a write that was reported as failed.
    doubtful: Mutex<HashSet<Address>>,
}

/// The journal after the removal of one generation of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// It had the generation, and has nothing of the key now.
    Removed,
    /// It had nothing of the key. It may have a write after a restart that was reported as failed.
    Absent,
    /// It has a newer generation, which stays.
    Replaced,
}

/// A dirty key, as the journal lists it.
pub(super) struct ListedEntry {
    pub address: Address,
    pub state: DirtyState,
    pub generation: Generation,
    pub modified: tradewind_core::Timestamp,
}

impl Journal {
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self {
            store,
            is_read_only: AtomicBool::new(false),
            paused_until: AtomicU64::new(0),
            doubtful: Mutex::default(),
        }
    }

    /// Creates the bucket, if it does not exist.
    pub async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        match self.store.create_bucket(context, bucket).await {
            Err(e) if e.reason() == Reason::BucketExists => Ok(()),
            other => other,
        }
    }

    /// Replaces what the journal has of a key by a deletion. Returns its generation.
    pub async fn put_tombstone(&self, context: &Context, address: &Address) -> Result<Generation> {
        let mut metadata = Metadata::default();
        metadata.headers.storage_class = Some(TOMBSTONE_CLASS.to_owned());
        let request = StageRequest { metadata, size: Some(0), ..StageRequest::default() };
        let staged = self.store.stage(context, address, request).await?;
        let (committed, _) = staged.commit(Expected { size: Some(0), ..Expected::default() }).await?;
        Ok(committed.generation)
    }

    /// The context of a change of the journal. The deadline ends the wait of the request, but not a commit, whose outcome must
    /// be known.
    pub fn change_context(context: &Context) -> Context {
        Context { deadline: Deadline::none(context.deadline.clock().clone()), ..context.clone() }
    }

    /// Removes a key if it still has this generation. The context has no deadline.
    pub async fn remove(
        &self,
        context: &Context,
        address: &Address,
        generation: Generation,
    ) -> Result<Removal> {
        let precondition = Precondition::MatchesGeneration(generation);
        match self.store.delete(context, address, precondition).await {
            Ok(_) => Ok(Removal::Removed),
            // Stores report an absent key as either.
            Err(e) if matches!(e.reason(), Reason::Conflict | Reason::NoSuchKey) => {
                Ok(if self.is_absent(context, address).await? { Removal::Absent } else { Removal::Replaced })
            }
            Err(e) => Err(e),
        }
    }

    /// True if the journal has nothing of a key.
    pub async fn is_absent(&self, context: &Context, address: &Address) -> Result<bool> {
        match self.store.head(context, address, GetRequest::default()).await {
            Ok(_) => Ok(false),
            Err(e) if e.reason() == Reason::NoSuchKey => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// All dirty keys of a bucket.
    pub async fn list(&self, context: &Context, bucket: &BucketName) -> Result<Vec<ListedEntry>> {
        let mut request = ListRequest { limit: PAGE_ENTRIES, ..ListRequest::default() };
        let mut listed = Vec::new();
        loop {
            let page = self.store.list(context, bucket, &request).await?;
            for entry in page.entries {
                let ListEntry::Key(key, summary) = entry else { continue };
                if key == MARKER_KEY {
                    continue;
                }
                let address = Address::new(bucket.clone(), ObjectKey::new(&key)?);
                let (generation, modified) = (summary.generation, summary.modified);
                listed.push(ListedEntry { address, state: listed_state(summary), generation, modified });
            }
            match page.next {
                Some(next) => request.after = Some(next),
                None => return Ok(listed),
            }
        }
    }

    /// True if writes may be put into the journal now.
    pub fn is_writable(&self, now: Duration) -> bool {
        !self.is_read_only() && now >= Duration::from_millis(self.paused_until.load(Ordering::Relaxed))
    }

    /// True if the journal accepts no change until it is reopened.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    /// Records an error of the journal. Returns true if it is one of the journal, and not one of the request.
    pub fn note_error(&self, error: &Error, now: Duration) -> bool {
        let is_its_own = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Corrupt | ErrorKind::Internal
        ) && !matches!(error.reason(), Reason::DeadlineExceeded | Reason::Cancelled);
        if !is_its_own {
            return false;
        }
        let is_first = self.is_writable(now);
        if error.reason() == Reason::ReadOnly {
            self.is_read_only.store(true, Ordering::Relaxed);
        }
        let until = (now + PAUSE).as_millis();
        self.paused_until.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
        if is_first {
            tracing::warn!(
                ?error,
                "the journal of write-back cannot be written; writes go to the backing store"
            );
        }
        true
    }

    /// Records that a change of a key failed: the journal may hold it nevertheless, unless it rejected it.
    pub fn note_failed_change(&self, address: &Address, error: &Error, now: Duration) {
        let is_applied_never = matches!(
            error.kind(),
            ErrorKind::NotFound | ErrorKind::Precondition | ErrorKind::Invalid | ErrorKind::Denied
        ) || matches!(error.reason(), Reason::Full | Reason::Overloaded);
        self.note_error(error, now);
        if !is_applied_never {
            self.doubtful.lock().insert(address.clone());
        }
    }

    /// Records that a later change of a key succeeded.
    pub fn note_change(&self, address: &Address) {
        let mut doubtful = self.doubtful.lock();
        if !doubtful.is_empty() {
            doubtful.remove(address);
        }
    }

    /// True if the journal may hold a write to this bucket that was reported as failed. The bucket counts as dirty: after a
    /// restart, the journal has data of it.
    pub fn is_doubtful(&self, bucket: &BucketName) -> bool {
        self.doubtful.lock().iter().any(|address| address.bucket == *bucket)
    }

    /// An error if [`Self::is_doubtful`].
    pub fn check_bucket_certain(&self, bucket: &BucketName) -> Result<()> {
        match self.doubtful.lock().iter().find(|address| address.bucket == *bucket) {
            Some(address) => Err(doubt(address)),
            None => Ok(()),
        }
    }

    /// An error if the journal may hold a write of this key that was reported as failed. After a restart it would replace
    /// what is written to the backing store now.
    pub fn check_certain(&self, address: &Address) -> Result<()> {
        let doubtful = self.doubtful.lock();
        if doubtful.is_empty() || !doubtful.contains(address) {
            return Ok(());
        }
        Err(doubt(address))
    }
}

/// The error of a change that an earlier write could replace after a restart.
fn doubt(address: &Address) -> Error {
    let message = format!(
        "an earlier write of key {:?} failed in the journal and may be found in it after a restart; restart the \
         server, and check the device of the journal first",
        address.key
    );
    Error::new(Reason::ReadOnly, message)
}

/// True if a write with this metadata would be taken for a deletion.
pub(super) fn is_reserved(metadata: &Metadata) -> bool {
    metadata.headers.storage_class.as_deref() == Some(TOMBSTONE_CLASS)
}

/// True if an object of the journal is a deletion.
pub(super) fn is_tombstone(info: &ObjectInfo) -> bool {
    is_reserved(&info.metadata)
}

/// The state of a listed key.
fn listed_state(summary: ObjectSummary) -> DirtyState {
    if summary.storage_class.as_deref() == Some(TOMBSTONE_CLASS) {
        return DirtyState::Tombstone;
    }
    let generation = dirty_generation(summary.generation);
    DirtyState::Object(ObjectSummary { generation, ..summary })
}

/// The generation of a dirty object for callers.
pub(super) const fn dirty_generation(generation: Generation) -> Generation {
    Generation(generation.0 | DIRTY_GENERATION)
}

/// True for the generation of a dirty object.
pub(crate) const fn is_dirty_generation(generation: Generation) -> bool {
    generation.0 & DIRTY_GENERATION != 0
}
