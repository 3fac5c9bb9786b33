//! Counters of write-back, for metrics.

use std::time::Duration;

use super::Shared;
use super::drain::{DrainPause, PauseCause};
use crate::counters::Counter;

#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Writes and deletions acknowledged by the journal, deletions of absent keys included.
    pub journaled: Counter,
    /// Changes of keys that went to the backing store at once.
    pub through: Counter,
    /// Writes that went there because the journal kept its room for writes of higher rank.
    pub bypassed: Counter,
    pub written_back: Counter,
    pub written_back_bytes: Counter,
    /// Attempts that failed and are repeated.
    pub failures: Counter,
    /// Attempts that the backing store rejected.
    pub rejected: Counter,
}

/// The reason for which nothing is written back at the moment, although it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBackPause {
    /// The backing store failed. The next attempt is after this time.
    StoreUnavailable {
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// A request whose outcome is unknown may still be applied, so that no other one for its key is sent before.
    OutcomeUnknown {
        /// The time until the first of these keys is written back again.
        retry_in: Duration,
    },
}

/// The dirty data, and what was done since write-back was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteBackStatus {
    /// Bytes of objects that only the journal has.
    pub dirty_bytes: u64,
    /// Objects and deletions that only the journal has.
    pub dirty_objects: usize,
    /// The time since the oldest of them was written. Zero if there are none.
    pub oldest_age: Duration,
    /// Writes and deletions that the journal acknowledged. Deletions of absent keys count, although they change nothing.
    pub journaled: u64,
    /// Changes of keys that went to the backing store at once: writes, deletions, copies, completed uploads, and changes of
    /// tags, classes and descriptions.
    pub through: u64,
    /// Writes for which the journal had room that it kept for writes of higher rank.
    pub bypassed: u64,
    /// Objects and deletions that were written back.
    pub written_back: u64,
    /// Bytes of the objects that were written back.
    pub written_back_bytes: u64,
    /// Attempts to write back that failed and are repeated.
    pub failures: u64,
    /// Attempts to write back that the backing store rejected. They are repeated rarely.
    pub rejected: u64,
    /// The reason for which nothing is written back now; `None` if data is written back, or none is due.
    pub pause: Option<WriteBackPause>,
}

impl Shared {
    pub fn status(&self) -> WriteBackStatus {
        let (totals, counters) = (self.index.totals(), &self.counters);
        let since = self.index.oldest();
        WriteBackStatus {
            dirty_bytes: totals.bytes,
            dirty_objects: totals.entries,
            oldest_age: since.map_or(Duration::ZERO, |since| self.clock.now().saturating_sub(since)),
            journaled: counters.journaled.value(),
            through: counters.through.value(),
            bypassed: counters.bypassed.value(),
            written_back: counters.written_back.value(),
            written_back_bytes: counters.written_back_bytes.value(),
            failures: counters.failures.value(),
            rejected: counters.rejected.value(),
            pause: self.drain_pause.lock().filter(|_| totals.entries > 0).and_then(|pause| self.pause(pause)),
        }
    }

    /// The pause of the drain, if it lasts.
    fn pause(&self, pause: DrainPause) -> Option<WriteBackPause> {
        let retry_in = pause.until.saturating_sub(self.clock.now());
        match pause.cause {
            _ if retry_in.is_zero() => None,
            PauseCause::StoreUnavailable => Some(WriteBackPause::StoreUnavailable { retry_in }),
            PauseCause::OutcomeUnknown => Some(WriteBackPause::OutcomeUnknown { retry_in }),
        }
    }
}
