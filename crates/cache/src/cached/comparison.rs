//! Comparisons of cached heads with the backing store, and reads that go on without one while that store does not respond.
//!
//! A request of the previous process, or one whose outcome is unknown, may replace an object at any time, but no client has its
//! acknowledgement. So a head that was compared since the cache was opened may be served while the comparison gets no response,
//! unless a client may have seen a newer object: by a read that began later and that the backing store answered
//! ([`Changes::observed_at`](crate::changes::Changes::observed_at)). A head of an earlier session is never served: a later
//! session, whose record was lost, may have replaced the object.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tradewind_core::context::Deadline;
use tradewind_core::error::Result;
use tradewind_core::store::{GetRequest, GetResponse};
use tradewind_core::{Clock, Reason};

use super::Cached;
use super::read::ReadAttempt;
use crate::changes::KeyHash;
use crate::head::Head;
use crate::options::Validation;

/// The time after a comparison without a response in which reads do not wait for another one.
const COMPARISON_PAUSE: Duration = Duration::from_secs(1);

/// Buckets that share a pause, by hash.
const PAUSES: usize = 64;

/// The pauses of all buckets. Buckets may be in different stores.
#[derive(Debug)]
pub(super) struct ComparisonPauses([ComparisonPause; PAUSES]);

impl Default for ComparisonPauses {
    fn default() -> Self {
        Self(std::array::from_fn(|_| ComparisonPause::default()))
    }
}

impl ComparisonPauses {
    fn of_bucket(&self, hash: KeyHash) -> &ComparisonPause {
        &self.0[usize::try_from(hash.bucket >> 32).unwrap_or(0) % PAUSES]
    }
}

/// The time before which no comparison is waited for, if a head may be served without one.
#[derive(Debug, Default)]
struct ComparisonPause {
    /// Milliseconds since the clock's origin; 0 if the last comparison was answered.
    until_ms: AtomicU64,
}

impl ComparisonPause {
    /// Returns true if a read may wait for a comparison, for `max_wait`: one read after each pause. All, if the last
    /// comparison was answered.
    fn may_compare(&self, clock: &dyn Clock, max_wait: Duration) -> bool {
        let until = self.until_ms.load(Ordering::Acquire);
        if until == 0 {
            return true;
        }
        let now = clock.now();
        let next = millis(now + max_wait + COMPARISON_PAUSE);
        millis(now) >= until
            && self.until_ms.compare_exchange(until, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn begin(&self, clock: &dyn Clock) {
        self.until_ms.store(millis(clock.now() + COMPARISON_PAUSE), Ordering::Release);
    }

    fn end(&self) {
        self.until_ms.store(0, Ordering::Release);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// True if the backing store has responded: not if the request is over, for instance.
fn is_answer<T>(result: &Result<T>) -> bool {
    result.as_ref().err().is_none_or(|error| !error.kind().is_retryable() || error.affects_whole_bucket())
}

impl Cached {
    /// Reads the head of an object from the backing store, to compare it with a cached one. If that may be served without a
    /// comparison, waits for a limited time only: `None` if the store does not respond.
    pub(super) async fn compare(
        &self,
        attempt: &ReadAttempt<'_>,
        cached: &Head,
        request: GetRequest,
    ) -> Result<Option<GetResponse<()>>> {
        let found = self.inner.head(attempt.context, attempt.address, request);
        // An answer that differs is not cached, or not yet: an older head must not be served after it.
        let noted = |answer: Result<GetResponse<()>>| match answer {
            Ok(found) if found.info == cached.info => Ok(found),
            other => self.observed(attempt.hash, attempt.started, other),
        };
        if !self.may_serve_uncompared(attempt, cached) {
            return noted(found.await).map(Some);
        }
        let (max_wait, pause) =
            (self.outage.max_comparison_wait, self.comparison_pauses.of_bucket(attempt.hash));
        if !pause.may_compare(&*self.clock, max_wait) {
            return Ok(self.note_unanswered());
        }
        let limit = Deadline::after(self.clock.clone(), max_wait);
        match limit.guard(found).await {
            Err(_) => {
                pause.begin(&*self.clock);
                Ok(self.note_unanswered())
            }
            // The store below failed, but no answer about the bucket: as that another journal owns it.
            Ok(Err(error)) if error.reason() == Reason::Io && !error.affects_whole_bucket() => {
                if error.is_unsent() {
                    pause.begin(&*self.clock);
                }
                Ok(self.note_unanswered())
            }
            Ok(result) => {
                if is_answer(&result) {
                    pause.end();
                }
                noted(result).map(Some)
            }
        }
    }

    fn note_unanswered(&self) -> Option<GetResponse<()>> {
        self.tiers.counters.uncompared.increment();
        None
    }

    /// Notes an answer of the backing store to a read which began at `started`, and returns it: an object, or none. Nothing is
    /// noted while heads of this key need no comparison.
    pub(super) fn observed<T>(&self, hash: KeyHash, started: Duration, answer: Result<T>) -> Result<T> {
        let must_compare = match self.validation {
            // Also after that time, an older head must be compared before it is served.
            Validation::Owner | Validation::SoleWriter => !self.tiers.changes.uncertain_until(hash).is_zero(),
            Validation::MaxAge(_) | Validation::Always => self.outage.stale_if_unavailable.is_some(),
        };
        if must_compare && is_answer(&answer) {
            self.tiers.changes.note_observed(hash, started);
        }
        answer
    }

    /// True if a head may be served while the backing store does not respond.
    fn may_serve_uncompared(&self, attempt: &ReadAttempt<'_>, head: &Head) -> bool {
        let stamp = head.stamp();
        let changes = &self.tiers.changes;
        if stamp.session != self.session
            || stamp.sequence < changes.unchanged_since(attempt.hash.bucket)
            || stamp.time < changes.observed_at(attempt.hash)
        {
            return false;
        }
        match self.validation {
            Validation::Owner | Validation::SoleWriter => true,
            Validation::MaxAge(_) | Validation::Always => {
                let age = attempt.started.saturating_sub(stamp.time);
                self.outage.stale_if_unavailable.is_some_and(|max_age| age < max_age)
            }
        }
    }
}
