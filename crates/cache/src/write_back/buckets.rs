//! Buckets: whether writes to them may be written back, and whether this journal owns them.
//!
//! A bucket is examined at the first access: its versioning, and its [marker](super::marker). A bucket whose marker names
//! another journal may have newer data there. It is therefore neither read nor written. The marker is written, or renewed,
//! at the first access too, so that no other server serves older data. Both are examined again at accesses. The marker is
//! removed when nothing of the bucket is dirty: at a clean close, before the bucket is deleted, before its versioning
//! changes, and once it has versions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Context};

use super::Shared;
use super::marker::{OwnerRecord, read_marker};

/// The longest time for which a change waits for the response of a backing store that is taken for away.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time for which a read, or a write to the journal, waits for the marker to be compared.
pub(super) const LENIENT_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// The time after which such an access compares the marker again, if the backing store did not respond.
pub(super) const LENIENT_CHECK_PAUSE: Duration = Duration::from_secs(30);

/// The time after which a bucket with versions is examined again: the backing store may have hidden that there are none.
pub(super) const VERSIONED_CHECK_INTERVAL: Duration = Duration::from_secs(300);

/// The message to a client whose change neither the journal nor the backing store can accept.
const AWAY: &str = "The server keeps writes in its journal while the store behind it is away. The journal has no room \
                    for this request. Nothing was changed: send the request again later.";

/// A bucket. It exists in memory while it is known or in use, so that all tasks share its gate.
#[derive(Debug)]
pub(super) struct Bucket {
    pub name: BucketName,
    /// Held for reading by each change of a key, for writing by changes of the bucket.
    pub gate: Arc<RwLock<()>>,
    admission: Mutex<BucketAdmission>,
    /// Held while the bucket is examined and while its marker is written.
    examining: tokio::sync::Mutex<()>,
}

/// The state of a bucket, and what decides whether writes enter the journal.
#[derive(Debug)]
struct BucketAdmission {
    state: BucketState,
    /// Commits to the journal that are not in the index yet.
    commits: usize,
    /// Changes of the bucket that wait for its dirty data to be written back.
    changes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BucketState {
    /// Must be examined before the next access.
    Unknown,
    /// There was no marker when it was last looked for, and none could be written when that was last tried.
    Unclaimed { checked: Duration, tried: Duration },
    /// The marker names this journal.
    Claimed(Claim),
    /// The bucket has versions, or the backing store did not tell: writes go through. No journal can claim a bucket that
    /// certainly has versions. It is examined again some time after `checked`, and was found so, without a marker, at
    /// `found`.
    Versioned { checked: Duration, found: Duration, is_certain: bool },
}

/// A marker that names this journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// When the marker was compared.
    pub checked: Duration,
    /// Lenient accesses do not compare the marker before this time.
    pub paused_until: Duration,
    /// The marker was written by this opening of the journal.
    pub is_renewed: bool,
    /// The bucket has versions: writes go through, and the marker stays until nothing is dirty.
    pub has_versions: bool,
    /// When `has_versions` was read. Earlier than `checked` if the backing store did not tell at the last comparison.
    pub versioning_read: Duration,
}

/// The behaviour of an access if the marker cannot be compared because the backing store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerCheck {
    /// It fails: it changes the backing store.
    Strict,
    /// It goes on.
    Lenient,
}

impl Bucket {
    /// True if the marker names this journal.
    pub fn is_claimed(&self) -> bool {
        matches!(self.state(), BucketState::Claimed(_))
    }

    /// True if an access may rely on the state while the backing store does not respond: no other journal was the owner.
    fn has_known_state(&self) -> bool {
        self.is_claimed() || self.is_versioned()
    }

    /// True if the bucket has versions and no marker.
    pub fn is_versioned(&self) -> bool {
        matches!(self.state(), BucketState::Versioned { .. })
    }

    /// True if the bucket has versions, whose writes never enter the journal.
    pub fn has_versions(&self) -> bool {
        match self.state() {
            BucketState::Claimed(claim) => claim.has_versions,
            state => matches!(state, BucketState::Versioned { .. }),
        }
    }

    /// True if writes may begin in the journal now.
    pub fn admits_writes(&self) -> bool {
        let admission = self.admission.lock();
        admission.changes == 0 && admission.admits_commits()
    }

    /// Begins a commit to the journal, which lasts until the result is dropped: after it is in the index. `None` if the bucket
    /// does not allow it. The caller holds the gate.
    pub fn begin_commit(self: &Arc<Self>) -> Option<JournalCommit> {
        let mut admission = self.admission.lock();
        admission.admits_commits().then(|| {
            admission.commits += 1;
            JournalCommit { bucket: self.clone() }
        })
    }

    /// Notes that the bucket has versions: no commit begins any more. Returns true if none is in flight.
    pub fn close_to_writes(&self) -> bool {
        let mut admission = self.admission.lock();
        if let BucketState::Claimed(claim) = &mut admission.state {
            claim.has_versions = true;
        }
        admission.commits == 0
    }

    /// Begins a change of the bucket, which lasts until the result is dropped. No write begins in the journal meanwhile.
    pub fn begin_change(&self) -> BucketChange<'_> {
        self.admission.lock().changes += 1;
        BucketChange { bucket: self }
    }

    /// Lets lenient accesses go on without a comparison of the marker until a time. Returns false if the bucket is not
    /// claimed.
    fn pause_comparison(&self, until: Duration) -> bool {
        match &mut self.admission.lock().state {
            BucketState::Claimed(claim) => {
                claim.paused_until = claim.paused_until.max(until);
                true
            }
            _ => false,
        }
    }

    /// Examines the bucket again before the next access.
    pub fn forget(&self) {
        self.set(BucketState::Unknown);
    }

    /// True if it was found without a marker by requests that were sent after `time`. Concurrent changes share them.
    fn was_free_since(&self, time: Duration) -> bool {
        match self.state() {
            BucketState::Versioned { found, .. } => found > time,
            BucketState::Unclaimed { checked, .. } => checked > time,
            BucketState::Unknown | BucketState::Claimed(_) => false,
        }
    }

    fn is_known(&self) -> bool {
        self.state() != BucketState::Unknown
    }

    fn state(&self) -> BucketState {
        self.admission.lock().state
    }

    fn set(&self, state: BucketState) {
        self.admission.lock().state = state;
    }
}

impl BucketAdmission {
    const fn admits_commits(&self) -> bool {
        matches!(self.state, BucketState::Claimed(Claim { has_versions: false, .. }))
    }
}

/// A commit to the journal in flight. Dropping it ends it.
pub(super) struct JournalCommit {
    bucket: Arc<Bucket>,
}

impl Drop for JournalCommit {
    fn drop(&mut self) {
        self.bucket.admission.lock().commits -= 1;
    }
}

/// A change of a bucket in flight. Dropping it ends it.
pub(super) struct BucketChange<'a> {
    bucket: &'a Bucket,
}

impl Drop for BucketChange<'_> {
    fn drop(&mut self) {
        self.bucket.admission.lock().changes -= 1;
    }
}

/// A bucket with its gate held for reading.
pub(super) struct EnteredBucket {
    pub bucket: Arc<Bucket>,
    _gate: OwnedRwLockReadGuard<()>,
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
                admission: Mutex::new(BucketAdmission {
                    state: BucketState::Unknown,
                    commits: 0,
                    changes: 0,
                }),
                examining: tokio::sync::Mutex::default(),
            })
        };
        self.buckets.lock().entry(name.clone()).or_insert_with(new).clone()
    }

    #[cfg(test)]
    pub fn is_in_memory(&self, name: &BucketName) -> bool {
        self.buckets.lock().contains_key(name)
    }

    /// Removes a bucket that is not known from memory, unless another task uses it.
    pub fn discard(&self, bucket: &Arc<Bucket>) {
        let mut buckets = self.buckets.lock();
        // The map and the caller refer to it; others do so only under the map's lock.
        if Arc::strong_count(bucket) == 2 && !bucket.is_known() {
            buckets.remove(&bucket.name);
        }
    }

    /// The bucket with its gate held for reading. `None` if a change of the bucket holds it or waits for it.
    pub fn try_enter(&self, name: &BucketName) -> Option<EnteredBucket> {
        let bucket = self.get(name);
        let gate = bucket.gate.clone().try_read_owned().ok()?;
        Some(EnteredBucket { bucket, _gate: gate })
    }

    /// The owners of a bucket that the journal recorded.
    pub fn record(&self, bucket: &BucketName) -> Option<OwnerRecord> {
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
        let started = self.clock.now();
        let Some(_examining) = self.begin_examination(context, bucket, check).await? else { return Ok(()) };
        if self.is_current(bucket, check) || bucket.was_free_since(started) {
            return Ok(());
        }
        let found = match bucket.state() {
            BucketState::Claimed(claim) => self.compare_owner(context, bucket, claim, check).await,
            BucketState::Versioned { is_certain: false, .. } if check == OwnerCheck::Strict => {
                self.find_state(context, bucket, None).await
            }
            BucketState::Versioned { found, is_certain, .. } => {
                self.find_state_again(context, bucket, found, is_certain).await
            }
            BucketState::Unclaimed { tried, .. } => {
                let was_tried = self.clock.now().saturating_sub(tried) < self.options.ownership_check;
                self.find_state(context, bucket, Some(tried).filter(|_| was_tried)).await
            }
            BucketState::Unknown => self.find_state(context, bucket, None).await,
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

    /// Waits until no other task examines the bucket. A lenient access to a bucket whose state is known goes on without
    /// (`None`) if the other one takes long: the backing store hangs.
    async fn begin_examination<'a>(
        &self,
        context: &Context,
        bucket: &'a Bucket,
        check: OwnerCheck,
    ) -> Result<Option<tokio::sync::MutexGuard<'a, ()>>> {
        if check == OwnerCheck::Strict || !bucket.has_known_state() {
            return context.guard(bucket.examining.lock()).await.map(Some);
        }
        let deadline = Deadline::after(self.clock.clone(), LENIENT_CHECK_TIMEOUT);
        let limited = Context { deadline, ..context.clone() };
        let examining = async { limited.guard(bucket.examining.lock()).await.ok() };
        match context.guard(examining).await? {
            Some(examining) => Ok(Some(examining)),
            None if bucket.pause_comparison(self.clock.now() + LENIENT_CHECK_PAUSE) => Ok(None),
            None if bucket.is_versioned() => Ok(None),
            // The other one has found that it is not claimed any more.
            None => context.guard(bucket.examining.lock()).await.map(Some),
        }
    }

    /// True if a bucket need not be examined before an access.
    fn is_current(&self, bucket: &Bucket, check: OwnerCheck) -> bool {
        let now = self.clock.now();
        let is_recent = |checked: Duration| now.saturating_sub(checked) < self.options.ownership_check;
        match bucket.state() {
            BucketState::Unknown => false,
            BucketState::Versioned { checked, is_certain: true, .. } => {
                now.saturating_sub(checked) < VERSIONED_CHECK_INTERVAL
            }
            // Another journal may have claimed it since.
            BucketState::Versioned { checked, is_certain: false, .. }
            | BucketState::Unclaimed { checked, .. } => check == OwnerCheck::Lenient && is_recent(checked),
            BucketState::Claimed(claim) => {
                is_recent(claim.checked) || (check == OwnerCheck::Lenient && now < claim.paused_until)
            }
        }
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
}
