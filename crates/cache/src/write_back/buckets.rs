//! Buckets: whether writes to them may be written back, and whether this journal owns them.
//!
//! A bucket is examined at the first access: its versioning, and its [marker](super::marker). A bucket whose marker names
//! another journal may have newer data there, so that it is neither read nor written. The marker is written before the
//! first dirty write, and removed when nothing of the bucket is dirty: at a clean close, before the bucket is deleted and
//! before its versioning changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::{BucketName, Context, Precondition, Versioning};

use super::Shared;
use super::marker::{MARKER_KEY, Owner, read_marker, remove_marker, write_marker};

/// A bucket. It exists in memory while it is known or in use, so that all tasks share its gate.
#[derive(Debug)]
pub(super) struct Bucket {
    pub name: BucketName,
    /// Held for reading by each change of a key, for writing by changes of the bucket.
    pub gate: Arc<RwLock<()>>,
    state: Mutex<BucketState>,
    /// Held while the bucket is examined and while its marker is written.
    examining: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BucketState {
    /// Must be examined before the next access.
    Unknown,
    /// Writes may be written back, once the marker is written.
    Unclaimed,
    /// The marker names this journal. It was compared at this time.
    Claimed { checked: Duration },
    /// The bucket has versions: writes go through.
    Versioned,
}

impl Bucket {
    /// True if the marker names this journal, so that dirty writes are allowed.
    pub fn is_claimed(&self) -> bool {
        matches!(*self.state.lock(), BucketState::Claimed { .. })
    }

    /// True if dirty writes are allowed, perhaps after [`Shared::claim`].
    pub fn may_write_back(&self) -> bool {
        matches!(*self.state.lock(), BucketState::Claimed { .. } | BucketState::Unclaimed)
    }

    /// Examines the bucket again before the next access.
    pub fn forget(&self) {
        self.set(BucketState::Unknown);
    }

    fn is_known(&self) -> bool {
        *self.state.lock() != BucketState::Unknown
    }

    fn set(&self, state: BucketState) {
        *self.state.lock() = state;
    }
}

/// The buckets, and what the journal knows about its ownership.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    buckets: Mutex<HashMap<BucketName, Arc<Bucket>>>,
    /// The owner that the journal recorded for each bucket.
    pub owners: Mutex<HashMap<BucketName, Owner>>,
}

impl Buckets {
    /// The bucket, perhaps not examined yet.
    pub fn get(&self, name: &BucketName) -> Arc<Bucket> {
        let new = || {
            Arc::new(Bucket {
                name: name.clone(),
                gate: Arc::default(),
                state: Mutex::new(BucketState::Unknown),
                examining: tokio::sync::Mutex::default(),
            })
        };
        self.buckets.lock().entry(name.clone()).or_insert_with(new).clone()
    }

    /// Removes a bucket that is not known from memory, unless another task uses it.
    fn discard(&self, bucket: &Arc<Bucket>) {
        let mut buckets = self.buckets.lock();
        // The map and the caller refer to it; others do so only under the map's lock.
        if Arc::strong_count(bucket) == 2 && !bucket.is_known() {
            buckets.remove(&bucket.name);
        }
    }

    fn owner(&self, bucket: &BucketName) -> Option<Owner> {
        self.owners.lock().get(bucket).cloned()
    }
}

impl Shared {
    /// The bucket, which exists and is not owned by another journal.
    pub async fn bucket(&self, context: &Context, name: &BucketName) -> Result<Arc<Bucket>> {
        let bucket = self.buckets.get(name);
        if !bucket.is_known() {
            let _entered = context.guard(bucket.gate.read()).await?;
            self.examine(context, &bucket).await?;
        }
        Ok(bucket)
    }

    /// The bucket, with its gate held for a change of a key.
    pub async fn enter(
        &self,
        context: &Context,
        name: &BucketName,
    ) -> Result<(Arc<Bucket>, OwnedRwLockReadGuard<()>)> {
        let bucket = self.buckets.get(name);
        let entered = context.guard(bucket.gate.clone().read_owned()).await?;
        self.examine(context, &bucket).await?;
        Ok((bucket, entered))
    }

    /// Examines a bucket that is not known. The caller holds its gate.
    pub async fn examine(&self, context: &Context, bucket: &Arc<Bucket>) -> Result<()> {
        if bucket.is_known() {
            return Ok(());
        }
        let _examining = context.guard(bucket.examining.lock()).await?;
        if bucket.is_known() {
            return Ok(());
        }
        match self.find_state(context, &bucket.name).await {
            Ok(state) => {
                bucket.set(state);
                Ok(())
            }
            Err(e) => {
                self.buckets.discard(bucket);
                Err(e)
            }
        }
    }

    async fn find_state(&self, context: &Context, name: &BucketName) -> Result<BucketState> {
        let versioning = match self.backing.versioning(context, name).await {
            // Unknown to this client: as if there were versions.
            Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::Invalid) => Versioning::Suspended,
            other => other?,
        };
        let checked = self.clock.now();
        let found = read_marker(&*self.backing, context, name).await?;
        let own = self.buckets.owner(name);
        let is_dirty = self.index.has_bucket(name);
        match (found, own) {
            (None, _) if is_dirty => Err(lost_ownership(name)),
            (Some(found), Some(own)) if found == own => Ok(BucketState::Claimed { checked }),
            (Some(found), _) => Err(foreign_owner(name, &found)),
            (None, _) if versioning != Versioning::Off => Ok(BucketState::Versioned),
            (None, _) => Ok(BucketState::Unclaimed),
        }
    }

    /// Makes this journal the owner of a bucket that was examined. The caller holds its gate.
    pub async fn claim(&self, context: &Context, bucket: &Bucket) -> Result<()> {
        let _examining = context.guard(bucket.examining.lock()).await?;
        if bucket.is_claimed() {
            return Ok(());
        }
        if !bucket.may_write_back() {
            return Err(Error::new(Reason::Conflict, "the bucket was changed concurrently"));
        }
        let is_conditional = self.backing.capabilities().conditional_writes;
        if !is_conditional && !self.options.is_sole_writer {
            let why = "the backing store has no conditional writes, and it is not confirmed that nothing else writes it";
            return Err(Error::new(Reason::Unsupported, why));
        }
        let owner = match self.buckets.owner(&bucket.name) {
            Some(owner) => owner.next(),
            None => Owner::new()?,
        };
        // Recorded in the journal first: a marker that the journal does not know would lock everybody out.
        self.journal.create_bucket(context, &bucket.name).await?;
        write_marker(&*self.journal.store, context, &bucket.name, &owner, Precondition::None).await?;
        self.buckets.owners.lock().insert(bucket.name.clone(), owner.clone());
        let precondition = if is_conditional { Precondition::Absent } else { Precondition::None };
        let written = write_marker(&*self.backing, context, &bucket.name, &owner, precondition).await;
        let checked = self.clock.now();
        if let Err(e) = written {
            // It may have been written although the response was lost.
            bucket.forget();
            match read_marker(&*self.backing, context, &bucket.name).await? {
                Some(found) if found == owner => {}
                Some(found) => return Err(foreign_owner(&bucket.name, &found)),
                None => return Err(e),
            }
        }
        bucket.set(BucketState::Claimed { checked });
        Ok(())
    }

    /// Compares the marker of a claimed bucket, unless it was compared recently. Afterwards the bucket is examined at
    /// each access if it is owned by another journal.
    pub async fn verify_owner(&self, context: &Context, bucket: &Bucket) -> Result<()> {
        let BucketState::Claimed { checked } = *bucket.state.lock() else { return Ok(()) };
        let now = self.clock.now();
        if now.saturating_sub(checked) < self.options.ownership_check && checked <= now {
            return Ok(());
        }
        let found = read_marker(&*self.backing, context, &bucket.name).await?;
        let own = self.buckets.owner(&bucket.name);
        let _examining = context.guard(bucket.examining.lock()).await?;
        if !bucket.is_claimed() {
            return Ok(());
        }
        if found.is_some() && found == own {
            bucket.set(BucketState::Claimed { checked: now });
            return Ok(());
        }
        bucket.forget();
        Err(match found {
            Some(found) => foreign_owner(&bucket.name, &found),
            None => lost_ownership(&bucket.name),
        })
    }

    /// Ends the ownership of a bucket of which nothing is dirty. The caller holds its gate for writing.
    pub async fn release_owner(&self, context: &Context, bucket: &Bucket) -> Result<()> {
        if !bucket.is_claimed() || self.index.has_bucket(&bucket.name) {
            return Ok(());
        }
        // If the outcome is unknown, the next access finds out.
        bucket.forget();
        remove_marker(&*self.backing, context, &bucket.name).await
    }
}

fn foreign_owner(bucket: &BucketName, found: &Owner) -> Error {
    let message = format!(
        "bucket {bucket:?} belongs to the journal {} (epoch {}), which may hold newer data: serve it with that journal; \
         or, to give up the data that only that journal has, delete the object {MARKER_KEY:?} of the bucket in the \
         backing store",
        found.journal, found.epoch
    );
    Error::new(Reason::Io, message).affecting_whole_bucket()
}

fn lost_ownership(bucket: &BucketName) -> Error {
    let message = format!(
        "the journal has data of bucket {bucket:?} that was not written back, but the bucket has no object \
         {MARKER_KEY:?} any more: another owner took it. Serve the volume with an empty journal"
    );
    Error::new(Reason::Io, message).affecting_whole_bucket()
}
