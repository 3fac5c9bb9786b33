//! Buckets: whether writes to them may be written back, and whether this journal owns them.
//!
//! A bucket is examined at the first access: its versioning, and its [marker](super::marker). A bucket whose marker names
//! another journal may have newer data there, so that it is neither read nor written. The marker is written, or renewed,
//! at the first access too, so that no other server serves older data. It is compared again at accesses, and removed when
//! nothing of the bucket is dirty: at a clean close, before the bucket is deleted and before its versioning changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::{BucketName, Context, ETag, Precondition, Versioning};

use super::Shared;
use super::marker::{
    FoundMarker, MARKER_KEY, OwnerRecord, read_marker, remove_marker, write_marker, write_record,
};

/// The longest time for which a read, or a write to the journal, waits for the marker to be compared.
const LENIENT_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// The time after which such an access compares the marker again, if the backing store did not respond.
const LENIENT_CHECK_PAUSE: Duration = Duration::from_secs(30);

/// The longest time for which a change waits for the response of a backing store that is taken for away.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The message to a client whose change neither the journal nor the backing store can accept.
const AWAY: &str = "The server keeps writes in its journal while the store behind it is away. The journal has no room \
                    for this request. Nothing was changed: send the request again later.";

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
    /// There is no marker, and none could be written. It was looked for at this time.
    Unclaimed { checked: Duration },
    /// The marker names this journal.
    Claimed(Claim),
    /// The bucket has versions: writes go through.
    Versioned,
}

/// A marker that names this journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim {
    /// When the marker was compared.
    checked: Duration,
    /// Lenient accesses do not compare the marker before this time.
    paused_until: Duration,
    /// The marker was written by this opening of the journal.
    is_renewed: bool,
}

/// The behaviour of an access if the marker cannot be compared because the backing store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerCheck {
    /// It fails: it changes the backing store.
    Strict,
    /// It goes on.
    Lenient,
}

/// The outcome of writing a marker.
enum MarkerWrite {
    Written,
    /// The journal cannot record the claim, or the backing store does not accept the marker.
    Refused(Error),
}

impl Bucket {
    /// True if the marker names this journal, so that dirty writes are allowed.
    pub fn is_claimed(&self) -> bool {
        matches!(*self.state.lock(), BucketState::Claimed(_))
    }

    /// True if the bucket has versions, which are never written back.
    pub fn is_versioned(&self) -> bool {
        *self.state.lock() == BucketState::Versioned
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
    /// The owners of each bucket that the journal recorded.
    pub records: Mutex<HashMap<BucketName, OwnerRecord>>,
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

    fn record(&self, bucket: &BucketName) -> Option<OwnerRecord> {
        self.records.lock().get(bucket).cloned()
    }
}

impl Shared {
    /// The bucket, which exists and is not owned by another journal.
    pub async fn bucket(&self, context: &Context, name: &BucketName) -> Result<Arc<Bucket>> {
        let bucket = self.buckets.get(name);
        if !self.is_current(&bucket, OwnerCheck::Lenient) {
            let _entered = context.guard(bucket.gate.read()).await?;
            self.examine(context, &bucket, OwnerCheck::Lenient).await?;
        }
        Ok(bucket)
    }

    /// The bucket, with its gate held for a change of a key.
    pub async fn enter(
        &self,
        context: &Context,
        name: &BucketName,
        check: OwnerCheck,
    ) -> Result<(Arc<Bucket>, OwnedRwLockReadGuard<()>)> {
        let bucket = self.buckets.get(name);
        let entered = context.guard(bucket.gate.clone().read_owned()).await?;
        self.examine(context, &bucket, check).await?;
        Ok((bucket, entered))
    }

    /// Examines a bucket that is not known, or that was not examined recently. The caller holds its gate.
    pub async fn examine(&self, context: &Context, bucket: &Arc<Bucket>, check: OwnerCheck) -> Result<()> {
        if self.is_current(bucket, check) {
            return Ok(());
        }
        let _examining = context.guard(bucket.examining.lock()).await?;
        if self.is_current(bucket, check) {
            return Ok(());
        }
        let state = *bucket.state.lock();
        let found = match state {
            BucketState::Claimed(claim) => self.compare_owner(context, &bucket.name, claim, check).await,
            _ => self.find_state(context, &bucket.name).await,
        };
        match found {
            Ok(state) => bucket.set(state),
            Err(e) => {
                if e.affects_whole_bucket() {
                    bucket.forget();
                }
                self.buckets.discard(bucket);
                return Err(e);
            }
        }
        Ok(())
    }

    /// True if a bucket need not be examined before an access.
    fn is_current(&self, bucket: &Bucket, check: OwnerCheck) -> bool {
        let now = self.clock.now();
        let is_recent = |checked: Duration| now.saturating_sub(checked) < self.options.ownership_check;
        match *bucket.state.lock() {
            BucketState::Unknown => false,
            BucketState::Versioned => true,
            BucketState::Unclaimed { checked } => is_recent(checked),
            BucketState::Claimed(claim) => {
                is_recent(claim.checked) || (check == OwnerCheck::Lenient && now < claim.paused_until)
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
        let Some(found) = read_marker(&*self.backing, context, name).await? else {
            if self.index.has_bucket(name) {
                return Err(self.lost_ownership(name));
            }
            if versioning != Versioning::Off {
                return Ok(BucketState::Versioned);
            }
            return self.claim(context, name, checked).await;
        };
        self.check_owner(name, &found)?;
        let is_renewed = self.renew(context, name, found.etag).await?;
        Ok(BucketState::Claimed(Claim { checked, paused_until: checked, is_renewed }))
    }

    /// Compares the marker of a claimed bucket.
    async fn compare_owner(
        &self,
        context: &Context,
        name: &BucketName,
        claim: Claim,
        check: OwnerCheck,
    ) -> Result<BucketState> {
        let now = self.clock.now();
        let found = match check {
            OwnerCheck::Strict => read_marker(&*self.backing, context, name).await,
            OwnerCheck::Lenient => {
                let deadline = Deadline::after(self.clock.clone(), LENIENT_CHECK_TIMEOUT);
                let limited = Context { deadline, ..context.clone() };
                let read = async {
                    limited.guard(read_marker(&*self.backing, &limited, name)).await.and_then(|read| read)
                };
                context.guard(read).await?
            }
        };
        let found = match found {
            Err(e) if check == OwnerCheck::Lenient && e.kind().is_retryable() => {
                let paused_until = now + LENIENT_CHECK_PAUSE;
                return Ok(BucketState::Claimed(Claim { paused_until, ..claim }));
            }
            found => found?,
        };
        let Some(found) = found else {
            if self.index.has_bucket(name) {
                return Err(self.lost_ownership(name));
            }
            return self.find_state(context, name).await;
        };
        self.check_owner(name, &found)?;
        let is_latest =
            self.buckets.record(name).and_then(|own| own.current()).as_ref() == Some(&found.owner);
        let is_renewed = (claim.is_renewed && is_latest) || self.renew(context, name, found.etag).await?;
        Ok(BucketState::Claimed(Claim { checked: now, paused_until: now, is_renewed }))
    }

    /// An error if a marker is not of this journal.
    fn check_owner(&self, name: &BucketName, found: &FoundMarker) -> Result<()> {
        match self.buckets.record(name) {
            Some(own) if own.has(&found.owner) => Ok(()),
            _ => Err(foreign_owner(name, found)),
        }
    }

    /// Makes this journal the owner of a bucket without a marker and without dirty data, if that is possible.
    async fn claim(&self, context: &Context, name: &BucketName, checked: Duration) -> Result<BucketState> {
        let is_safe = self.backing.capabilities().conditional_writes || self.options.is_sole_writer;
        if !is_safe || !self.policy.claims_buckets() || !self.journal.is_writable(checked) {
            return Ok(BucketState::Unclaimed { checked });
        }
        match self.write_owner(context, name, None).await? {
            MarkerWrite::Written => {
                Ok(BucketState::Claimed(Claim { checked, paused_until: checked, is_renewed: true }))
            }
            MarkerWrite::Refused(error) => {
                tracing::debug!(?error, bucket = %name, "the marker of a bucket cannot be written");
                Ok(BucketState::Unclaimed { checked })
            }
        }
    }

    /// Replaces the marker of an earlier opening of the journal. Returns false if that is not possible now: the bucket is
    /// still served and written back.
    async fn renew(&self, context: &Context, name: &BucketName, found: ETag) -> Result<bool> {
        match self.write_owner(context, name, Some(found)).await? {
            MarkerWrite::Written => Ok(true),
            MarkerWrite::Refused(error) => {
                tracing::warn!(?error, bucket = %name, "the marker of a bucket cannot be renewed");
                Ok(false)
            }
        }
    }

    /// Writes the marker of a new claim, over the one with the tag `replaced`. The journal records the claim first: a
    /// marker that it does not know would lock everybody out.
    async fn write_owner(
        &self,
        context: &Context,
        name: &BucketName,
        replaced: Option<ETag>,
    ) -> Result<MarkerWrite> {
        let mut record = match self.buckets.record(name) {
            Some(record) => record,
            None => OwnerRecord::new()?,
        };
        let owner = record.begin_claim()?;
        if let Err(e) = self.save_record(context, name, &record).await {
            let is_its_own = self.journal.note_error(&e, self.clock.now());
            return if is_its_own { Ok(MarkerWrite::Refused(e)) } else { Err(e) };
        }
        let precondition = match replaced {
            _ if !self.backing.capabilities().conditional_writes => Precondition::None,
            Some(etag) => Precondition::Matches(etag),
            None => Precondition::Absent,
        };
        if let Err(e) = write_marker(&*self.backing, context, name, &owner, precondition).await {
            // It may have been written although the response was lost.
            match read_marker(&*self.backing, context, name).await? {
                Some(found) if found.owner == owner => {}
                Some(found) if !record.has(&found.owner) => return Err(foreign_owner(name, &found)),
                _ if e.kind().is_retryable() => return Err(e),
                _ if e.kind() == ErrorKind::Precondition => {
                    let why = "the marker of the bucket was changed concurrently";
                    return Err(Error::with_source(Reason::Overloaded, why, e));
                }
                _ => return Ok(MarkerWrite::Refused(e)),
            }
        }
        record.confirm(&owner);
        if let Err(e) = self.save_record(context, name, &record).await {
            // The record before has the claim too.
            self.journal.note_error(&e, self.clock.now());
        }
        Ok(MarkerWrite::Written)
    }

    /// Records the owner in the journal.
    async fn save_record(&self, context: &Context, name: &BucketName, record: &OwnerRecord) -> Result<()> {
        // Also after a failure: a record in memory that has more claims does no harm.
        self.buckets.records.lock().insert(name.clone(), record.clone());
        self.journal.create_bucket(context, name).await?;
        write_record(&*self.journal.store, context, name, record).await
    }

    /// Ends the ownership of a bucket of which nothing is dirty. The caller holds its gate for writing.
    pub async fn release_owner(&self, context: &Context, bucket: &Bucket) -> Result<()> {
        let name = &bucket.name;
        if self.buckets.record(name).is_none() || self.index.has_bucket(name) {
            return Ok(());
        }
        // If the outcome is unknown, the next access finds out.
        bucket.forget();
        let Some(found) = read_marker(&*self.backing, context, name).await? else { return Ok(()) };
        self.check_owner(name, &found)?;
        remove_marker(&*self.backing, context, name, found).await
    }

    /// Rejects a change that the journal has no room for, or does not accept, while the backing store is away. Nothing was
    /// sent, so that the client can repeat it safely.
    pub async fn check_backing(&self, context: &Context, name: &BucketName) -> Result<()> {
        if !self.is_backing_away.load(Ordering::Relaxed) {
            return Ok(());
        }
        let deadline = Deadline::after(self.clock.clone(), PROBE_TIMEOUT);
        let limited = Context { deadline, ..context.clone() };
        let probe = limited.guard(read_marker(&*self.backing, &limited, name));
        let probed = context.guard(async { probe.await.and_then(|probed| probed) }).await?;
        match probed {
            Err(e) if e.kind().is_retryable() => {
                Err(Error::for_client(Reason::Overloaded, AWAY).caused_by(e))
            }
            _ => Ok(()),
        }
    }

    fn lost_ownership(&self, bucket: &BucketName) -> Error {
        let own = self.buckets.record(bucket).and_then(|record| record.current());
        let restore = own.map_or_else(String::new, |own| {
            format!(
                " If that is certainly not so, store the object again, with the content {:?}",
                own.encode()
            )
        });
        let message = format!(
            "the journal has data of bucket {bucket:?} that was not written back, but the bucket has no object \
             {MARKER_KEY:?} any more. Another server may have written newer data since: find out whether another \
             journal owned the bucket, and keep this journal until then.{restore}"
        );
        Error::new(Reason::Io, message).affecting_whole_bucket()
    }
}

fn foreign_owner(bucket: &BucketName, found: &FoundMarker) -> Error {
    let message = format!(
        "bucket {bucket:?} belongs to the journal {} (claim {}), which may hold newer data: serve it with that journal; \
         or, to give up the data that only that journal has, delete the object {MARKER_KEY:?} of the bucket in the \
         backing store",
        found.owner.journal, found.owner.claim
    );
    Error::new(Reason::Io, message).affecting_whole_bucket()
}
