//! The examination of a bucket, and the life of its marker: how a bucket is claimed, compared, and released.

use std::time::Duration;

use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::{BucketName, Context, ETag, Precondition, Versioning};

use super::Shared;
use super::buckets::{
    Bucket, BucketState, Claim, LENIENT_CHECK_PAUSE, LENIENT_CHECK_TIMEOUT, OwnerCheck,
    VERSIONED_CHECK_INTERVAL,
};
use super::marker::{
    FoundMarker, MARKER_KEY, OwnerRecord, read_marker, remove_marker, write_marker, write_record,
};

/// The outcome of writing a marker.
enum MarkerWrite {
    Written,
    /// The journal cannot record the claim, or the backing store does not accept the marker.
    Refused(Error),
}

/// A bucket in the backing store.
struct BackingBucket {
    /// When it was read.
    checked: Duration,
    /// `None` if the backing store does not tell this client.
    has_versions: Option<bool>,
    marker: Option<FoundMarker>,
}

impl Shared {
    /// The state of a bucket that is not claimed. `tried` is the time at which claiming it failed recently: that is not
    /// tried again.
    pub async fn find_state(
        &self,
        context: &Context,
        bucket: &Bucket,
        tried: Option<Duration>,
    ) -> Result<BucketState> {
        let found = self.read_backing_bucket(context, &bucket.name).await?;
        match found.marker {
            Some(marker) => {
                self.check_owner(&bucket.name, &marker)?;
                let found = BackingBucket { marker: None, ..found };
                self.owned_state(context, bucket, found, marker, None).await
            }
            None if self.may_have_data(&bucket.name) => Err(self.lost_ownership(&bucket.name)),
            // Unknown: as if there were versions.
            None if found.has_versions.unwrap_or(true) => {
                let (checked, is_certain) = (found.checked, found.has_versions == Some(true));
                Ok(BucketState::Versioned { checked, found: checked, is_certain })
            }
            None => match tried {
                Some(tried) => Ok(BucketState::Unclaimed { checked: found.checked, tried }),
                None => self.claim(context, &bucket.name, found.checked).await,
            },
        }
    }

    /// The state of a bucket that had versions at `found`. While the backing store fails or is slow, that counts: it admits
    /// no write to the journal.
    pub async fn find_state_again(
        &self,
        context: &Context,
        bucket: &Bucket,
        found: Duration,
        is_certain: bool,
    ) -> Result<BucketState> {
        let deadline = Deadline::after(self.clock.clone(), LENIENT_CHECK_TIMEOUT);
        let limited = Context { deadline, ..context.clone() };
        let find =
            async { limited.guard(self.find_state(&limited, bucket, None)).await.and_then(|found| found) };
        match context.guard(find).await? {
            Err(e) if e.kind().is_retryable() && !e.affects_whole_bucket() => {
                let now = self.clock.now();
                let again_at = now + LENIENT_CHECK_PAUSE;
                let checked =
                    if is_certain { again_at.saturating_sub(VERSIONED_CHECK_INTERVAL) } else { now };
                Ok(BucketState::Versioned { checked, found, is_certain })
            }
            found => found,
        }
    }

    /// The state of a claimed bucket: compares its marker, and whether it has versions now.
    pub async fn compare_owner(
        &self,
        context: &Context,
        bucket: &Bucket,
        claim: Claim,
        check: OwnerCheck,
    ) -> Result<BucketState> {
        let name = &bucket.name;
        let found = match check {
            OwnerCheck::Strict => self.read_backing_bucket(context, name).await,
            OwnerCheck::Lenient => {
                let deadline = Deadline::after(self.clock.clone(), LENIENT_CHECK_TIMEOUT);
                let limited = Context { deadline, ..context.clone() };
                let read = async {
                    limited.guard(self.read_backing_bucket(&limited, name)).await.and_then(|read| read)
                };
                context.guard(read).await?
            }
        };
        let mut found = match found {
            Err(e) if check == OwnerCheck::Lenient && e.kind().is_retryable() => {
                let paused_until = self.clock.now() + LENIENT_CHECK_PAUSE;
                return Ok(BucketState::Claimed(Claim { paused_until, ..claim }));
            }
            found => found?,
        };
        let Some(marker) = found.marker.take() else {
            if self.may_have_data(name) {
                return Err(self.lost_ownership(name));
            }
            return self.find_state(context, bucket, None).await;
        };
        self.check_owner(name, &marker)?;
        self.owned_state(context, bucket, found, marker, Some(claim)).await
    }

    /// The versioning and the marker of a bucket.
    async fn read_backing_bucket(&self, context: &Context, name: &BucketName) -> Result<BackingBucket> {
        let versioning = async {
            match self.backing.versioning(context, name).await {
                Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Invalid) => {
                    tracing::debug!(?error, bucket = %name, "the versioning of a bucket cannot be read");
                    Ok(None)
                }
                other => other.map(|versioning| Some(versioning != Versioning::Off)),
            }
        };
        let checked = self.clock.now();
        let marker = read_marker(&*self.backing, context, name);
        let (has_versions, marker) = futures::try_join!(versioning, marker)?;
        Ok(BackingBucket { checked, has_versions, marker })
    }

    /// The state of a bucket whose marker is of this journal. The marker of a bucket with versions is removed once nothing of
    /// the bucket is dirty; until then, no write enters the journal. `claim` is that of this opening of the journal, if there
    /// is one: what it knows of versions counts for a time if the backing store does not tell.
    async fn owned_state(
        &self,
        context: &Context,
        bucket: &Bucket,
        found: BackingBucket,
        marker: FoundMarker,
        claim: Option<Claim>,
    ) -> Result<BucketState> {
        let (name, etag) = (&bucket.name, marker.etag.clone());
        let checked = found.checked;
        let is_recent =
            |claim: &Claim| checked.saturating_sub(claim.versioning_read) < VERSIONED_CHECK_INTERVAL;
        let known_before = claim.filter(is_recent);
        let has_versions =
            found.has_versions.or(known_before.map(|claim| claim.has_versions)).unwrap_or(true);
        let versioning_read = match (found.has_versions, known_before) {
            (None, Some(claim)) => claim.versioning_read,
            _ => checked,
        };
        if found.has_versions.is_none() && claim.is_none_or(|claim| claim.versioning_read == claim.checked) {
            tracing::warn!(bucket = %name, has_versions, "the versioning of a bucket cannot be read; a value is assumed");
        }
        let is_latest =
            self.buckets.record(name).and_then(|own| own.current()).as_ref() == Some(&marker.owner);
        let is_renewed = is_latest && claim.is_some_and(|claim| claim.is_renewed);
        if has_versions {
            // In this order: no commit begins after the first line, and those in flight are counted by it.
            let is_idle = bucket.close_to_writes();
            if is_idle && !self.may_have_data(name) {
                match remove_marker(&*self.backing, context, name, marker).await {
                    Ok(()) => {
                        let is_certain = found.has_versions == Some(true);
                        return Ok(BucketState::Versioned { checked, found: checked, is_certain });
                    }
                    Err(error) => {
                        tracing::warn!(?error, bucket = %name, "the marker of a bucket with versions stays");
                    }
                }
            }
        }
        let is_renewed = is_renewed || self.renew(context, name, etag).await?;
        let paused_until = checked;
        Ok(BucketState::Claimed(Claim { checked, paused_until, is_renewed, has_versions, versioning_read }))
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
            return Ok(BucketState::Unclaimed { checked, tried: checked });
        }
        match self.write_owner(context, name, None).await? {
            MarkerWrite::Written => Ok(BucketState::Claimed(Claim {
                checked,
                paused_until: checked,
                is_renewed: true,
                has_versions: false,
                versioning_read: checked,
            })),
            MarkerWrite::Refused(error) => {
                tracing::debug!(?error, bucket = %name, "the marker of a bucket cannot be written");
                Ok(BucketState::Unclaimed { checked, tried: checked })
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

    /// Ends the ownership of a bucket of which nothing is dirty. The caller holds its gate for writing. Fails if the journal
    /// may have data of the bucket after a restart: without the marker, the next start would find its ownership lost.
    pub async fn release_owner(&self, context: &Context, bucket: &Bucket) -> Result<()> {
        let name = &bucket.name;
        self.journal.check_bucket_certain(name)?;
        if self.buckets.record(name).is_none() || self.index.has_bucket(name) {
            return Ok(());
        }
        // If the outcome is unknown, the next access finds out.
        bucket.forget();
        let Some(found) = read_marker(&*self.backing, context, name).await? else { return Ok(()) };
        self.check_owner(name, &found)?;
        remove_marker(&*self.backing, context, name, found).await
    }

    /// True if the journal has data of a bucket, or may have it after a restart.
    pub fn may_have_data(&self, bucket: &BucketName) -> bool {
        self.index.has_bucket(bucket) || self.journal.is_doubtful(bucket)
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
