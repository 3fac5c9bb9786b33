//! Repeats of changes. In a bucket that keeps versions, a change that is carried out twice leaves two versions, or two
//! delete markers, of which the caller knows one. There, a change whose whole body may have reached the service is not
//! sent again. See `docs/decisions/0016-the-s3-leaf-and-other-stores.md`.
//!
//! The responses to writes show whether a bucket keeps versions, so no request is needed until an outcome is unknown.
//! Then the service is asked, because the bucket may have changed since.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use parking_lot::Mutex;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::version::Versioning;
use tradewind_core::{BucketName, Context};

use super::{S3Store, versions};
use crate::remote::client::{Call, RepeatGuard};
use crate::remote::response::ResponseHead;

/// Maximum number of buckets with an observation.
const MAX_OBSERVED_BUCKETS: usize = 4096;
/// Maximum age of the observation that a bucket keeps no versions, if the service does not return its versioning. S3
/// applies a change of the versioning within 15 minutes, and advises to write nothing before.
const MAX_OBSERVATION_AGE: Duration = Duration::from_secs(60);

/// The last observation of each bucket's versioning, from responses to writes.
#[derive(Default)]
pub(super) struct ObservedVersioning {
    by_bucket: Mutex<HashMap<Box<str>, Observation>>,
}

#[derive(Debug, Clone, Copy)]
struct Observation {
    keeps_versions: bool,
    at: Duration,
}

impl ObservedVersioning {
    /// Records whether a successful write has created a version with an id of its own.
    pub fn record(&self, bucket: &str, keeps_versions: bool, now: Duration) {
        let observation = Observation { keeps_versions, at: now };
        let mut by_bucket = self.by_bucket.lock();
        if let Some(known) = by_bucket.get_mut(bucket) {
            *known = observation;
            return;
        }
        if by_bucket.len() == MAX_OBSERVED_BUCKETS {
            by_bucket.clear();
        }
        by_bucket.insert(bucket.into(), observation);
    }

    /// Returns true unless the last observation is that the bucket keeps no versions.
    pub fn may_keep_versions(&self, bucket: &str) -> bool {
        self.by_bucket.lock().get(bucket).is_none_or(|known| known.keeps_versions)
    }

    /// Returns true if the last observation is that the bucket keeps versions.
    fn keeps_versions(&self, bucket: &str) -> bool {
        self.by_bucket.lock().get(bucket).is_some_and(|known| known.keeps_versions)
    }

    /// Returns true if the bucket recently kept no versions.
    fn recently_kept_none(&self, bucket: &str, now: Duration) -> bool {
        let known = self.by_bucket.lock().get(bucket).copied();
        known
            .is_some_and(|known| !known.keeps_versions && now.saturating_sub(known.at) <= MAX_OBSERVATION_AGE)
    }
}

/// Allows a change of an object to be repeated if its bucket keeps no versions.
pub(super) struct ChangeGuard<'a> {
    store: &'a S3Store,
    /// The context of the change.
    pub context: &'a Context,
    bucket: &'a BucketName,
    /// The bucket kept versions when it was queried, or may have kept some. Final for this change.
    is_denied: AtomicBool,
}

impl<'a> ChangeGuard<'a> {
    pub const fn new(store: &'a S3Store, context: &'a Context, bucket: &'a BucketName) -> Self {
        Self { store, context, bucket, is_denied: AtomicBool::new(false) }
    }

    /// The error of a change whose outcome is unknown, and that is not sent again.
    pub fn unknown_outcome_error(&self, error: Error) -> Error {
        let message = format!(
            "{error}; bucket {} may keep versions, and the service may have carried out the request or may still do \
             so: it was not sent again. List the versions of the key before you retry",
            self.bucket
        );
        Error::with_source(Reason::Io, message, error).without_retry()
    }

    /// The error of a change that the service carried out, and that failed afterwards: a caller that retried it would
    /// create another version.
    pub async fn error_after_change(&self, error: Error) -> Error {
        // Callers retry damage in transit too.
        let is_damage = error.kind() == ErrorKind::Corrupt || error.reason() == Reason::BadDigest;
        let is_retried = (error.kind().is_retryable() || is_damage) && !error.is_final();
        match is_retried && !self.may_repeat().await {
            true => error.without_retry(),
            false => error,
        }
    }
}

#[async_trait]
impl RepeatGuard for ChangeGuard<'_> {
    fn expects_denial(&self) -> bool {
        self.store.observed_versioning.keeps_versions(self.bucket.as_str())
    }

    async fn may_repeat(&self) -> bool {
        if self.is_denied.load(Ordering::Relaxed) {
            return false;
        }
        let may_repeat = match self.store.read_versioning(self.context, self.bucket).await {
            Ok(versioning) => versioning != Versioning::Enabled,
            // A proxy may reject the query although the service keeps versions.
            Err(e) if matches!(e.reason(), Reason::Unsupported | Reason::NoSuchBucket) => {
                !self.store.observed_versioning.keeps_versions(self.bucket.as_str())
            }
            Err(e) => {
                tracing::debug!(error = %e, bucket = %self.bucket, "cannot determine whether a bucket keeps versions");
                let now = self.store.client.clock.now();
                self.store.observed_versioning.recently_kept_none(self.bucket.as_str(), now)
            }
        };
        self.is_denied.fetch_or(!may_repeat, Ordering::Relaxed);
        may_repeat
    }
}

impl S3Store {
    /// Sends a change of an object and reads the response, without its body. The outcome is unknown, too, if the
    /// response ends early.
    pub(super) async fn send_change(&self, call: &Call<'_>, guard: &ChangeGuard<'_>) -> Result<ResponseHead> {
        let sent = self.send_guarded(guard.context, call, Some(guard)).await;
        let response = sent.map_err(|error| match call.may_have_arrived.load(Ordering::Relaxed) {
            // Connections were refused, for instance.
            false => error.before_sending(),
            true => error,
        })?;
        response.drain().await.inspect_err(|_| call.outcome_unknown.store(true, Ordering::Relaxed))
    }

    /// Records what the response to a successful PUT of an object says about the versioning of its bucket.
    pub(super) fn observe_versioning(&self, bucket: &BucketName, headers: &HeaderMap) {
        let now = self.client.clock.now();
        self.observed_versioning.record(bucket.as_str(), versions::names_version(headers), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observation_that_a_bucket_keeps_no_versions_expires() {
        let (observed, at) = (ObservedVersioning::default(), Duration::from_secs(1000));
        assert!(observed.may_keep_versions("b") && !observed.recently_kept_none("b", at));
        observed.record("b", false, at);
        assert!(!observed.may_keep_versions("b"));
        assert!(observed.recently_kept_none("b", at + MAX_OBSERVATION_AGE));
        assert!(!observed.recently_kept_none("b", at + MAX_OBSERVATION_AGE + Duration::from_millis(1)));
        observed.record("b", true, at);
        assert!(observed.may_keep_versions("b") && !observed.recently_kept_none("b", at));
    }

    #[test]
    fn observed_buckets_are_bounded() {
        let observed = ObservedVersioning::default();
        for number in 0..=MAX_OBSERVED_BUCKETS {
            observed.record(&format!("bucket-{number}"), false, Duration::ZERO);
        }
        assert_eq!(observed.by_bucket.lock().len(), 1);
    }
}
