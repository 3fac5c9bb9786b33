//! Evidence about lost connections: whether a request without a response is the sign of a failover, which breaks all
//! connections, or the fault of its operation.
//!
//! An operation that fails on each connection, such as a listing that always takes too long, would otherwise close all
//! connections again and again. So an operation ends a generation of connections only once until it gets a response. And a
//! time-out is no failover if a connection of the same age has brought a response while the request waited.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

/// Maximum number of operations that are remembered for having ended a generation.
const MAX_FAILED_OPERATIONS: usize = 64;
/// Time for which an operation is remembered for having ended a generation: a few response time-outs. A later failover may
/// hit it, too.
const FAILED_OPERATION_LIFETIME: Duration = Duration::from_secs(300);
/// Number of connections from which on closed ones are removed from the list.
const MIN_PRUNED_CONNECTIONS: usize = 128;

/// A request that was written, and has got no byte of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LostRequest {
    /// Identifies the operation: requests for the same thing have the same number.
    pub operation: u64,
    /// The time of the last progress; for a time-out, its beginning.
    pub silent_since: Duration,
    /// Nothing happened for too long. Otherwise, the connection was reset or closed.
    pub is_timeout: bool,
}

/// An operation that has ended a generation.
#[derive(Debug, Clone, Copy)]
struct FailedOperation {
    operation: u64,
    until: Duration,
}

/// The life of one connection.
#[derive(Debug)]
pub(super) struct ConnectionLife {
    opened_at: Duration,
    /// The time of the last response, in nanoseconds; 0 before the first.
    responded_at_nanos: AtomicU64,
}

impl ConnectionLife {
    /// Records that a response has begun.
    pub fn record_response(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.responded_at_nanos.store(nanos, Ordering::Relaxed);
    }

    fn responded_at(&self) -> Duration {
        Duration::from_nanos(self.responded_at_nanos.load(Ordering::Relaxed))
    }
}

/// The evidence of one pool.
#[derive(Debug, Default)]
pub(super) struct FailoverEvidence {
    connections: Mutex<Vec<Weak<ConnectionLife>>>,
    /// Operations that have ended a generation, and have got no response since; oldest first.
    failed_operations: Mutex<Vec<FailedOperation>>,
    has_failed_operations: AtomicBool,
}

impl FailoverEvidence {
    /// Adds a connection that was opened at `now`.
    pub fn add_connection(&self, now: Duration) -> Arc<ConnectionLife> {
        let life = Arc::new(ConnectionLife { opened_at: now, responded_at_nanos: AtomicU64::new(0) });
        let mut connections = self.connections.lock();
        if connections.len() >= MIN_PRUNED_CONNECTIONS && connections.len() == connections.capacity() {
            connections.retain(|connection| connection.strong_count() > 0);
        }
        connections.push(Arc::downgrade(&life));
        life
    }

    /// Records a response to an operation.
    pub fn record_response(&self, operation: impl FnOnce() -> u64) {
        if self.has_failed_operations.load(Ordering::Relaxed) {
            let (operation, mut failed) = (operation(), self.failed_operations.lock());
            failed.retain(|known| known.operation != operation);
            self.has_failed_operations.store(!failed.is_empty(), Ordering::Relaxed);
        }
    }

    /// Returns true if a request that was lost at `now` on a reused connection shows that other connections of its age are
    /// lost, too.
    pub fn shows_failover(&self, lost: LostRequest, now: Duration) -> bool {
        let mut failed = self.failed_operations.lock();
        failed.retain(|known| now < known.until);
        if failed.iter().any(|known| known.operation == lost.operation) {
            return false;
        }
        if lost.is_timeout && self.has_response_during(lost.silent_since, now) {
            return false;
        }
        if failed.len() == MAX_FAILED_OPERATIONS {
            failed.remove(0);
        }
        failed.push(FailedOperation { operation: lost.operation, until: now + FAILED_OPERATION_LIFETIME });
        self.has_failed_operations.store(true, Ordering::Relaxed);
        true
    }

    /// Returns true if a connection that was opened before `silent_since` has brought a response in the second half of the
    /// time since. In the first half, the failover may not have happened yet.
    fn has_response_during(&self, silent_since: Duration, now: Duration) -> bool {
        let begin = silent_since + now.saturating_sub(silent_since) / 2;
        let is_alive =
            |life: Arc<ConnectionLife>| life.opened_at < silent_since && life.responded_at() > begin;
        self.connections.lock().iter().filter_map(Weak::upgrade).any(is_alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT_SINCE: Duration = Duration::from_secs(100);
    const LOST_AT: Duration = Duration::from_secs(160);

    fn lost(operation: u64) -> LostRequest {
        LostRequest { operation, silent_since: SILENT_SINCE, is_timeout: true }
    }

    #[test]
    fn operation_shows_a_failover_once_until_it_gets_a_response() {
        let evidence = FailoverEvidence::default();
        assert!(evidence.shows_failover(lost(1), LOST_AT) && evidence.shows_failover(lost(2), LOST_AT));
        assert!(!evidence.shows_failover(lost(1), LOST_AT));
        evidence.record_response(|| 3);
        assert!(!evidence.shows_failover(lost(1), LOST_AT));
        evidence.record_response(|| 1);
        assert!(evidence.shows_failover(lost(1), LOST_AT));
        evidence.record_response(|| 1);
        evidence.record_response(|| 2);
        evidence.record_response(|| unreachable!("no operation has failed"));
    }

    #[test]
    fn failed_operation_is_forgotten_in_time() {
        let evidence = FailoverEvidence::default();
        assert!(evidence.shows_failover(lost(1), LOST_AT));
        let last = LOST_AT + FAILED_OPERATION_LIFETIME - Duration::from_nanos(1);
        assert!(!evidence.shows_failover(lost(1), last));
        assert!(evidence.shows_failover(lost(1), LOST_AT + FAILED_OPERATION_LIFETIME));
    }

    #[test]
    fn failed_operations_are_bounded() {
        let evidence = FailoverEvidence::default();
        for operation in 0..=MAX_FAILED_OPERATIONS as u64 {
            assert!(evidence.shows_failover(lost(operation), LOST_AT));
        }
        assert_eq!(evidence.failed_operations.lock().len(), MAX_FAILED_OPERATIONS);
        assert!(evidence.shows_failover(lost(0), LOST_AT), "the oldest one was forgotten");
    }

    #[test]
    fn late_response_on_an_older_connection_excludes_a_failover_for_timeouts() {
        let second = Duration::from_secs(1);
        let begin = SILENT_SINCE + 30 * second;
        for (opened_at, responded_at, is_failover) in [
            (SILENT_SINCE - second, begin + second, false),
            (SILENT_SINCE - second, begin - second, true),
            (SILENT_SINCE + second, begin + second, true),
        ] {
            let evidence = FailoverEvidence::default();
            let life = evidence.add_connection(opened_at);
            life.record_response(responded_at);
            assert_eq!(
                evidence.shows_failover(lost(1), LOST_AT),
                is_failover,
                "{opened_at:?} {responded_at:?}"
            );
            assert!(
                evidence.shows_failover(LostRequest { is_timeout: false, ..lost(2) }, LOST_AT),
                "a reset"
            );
        }
    }

    #[test]
    fn closed_connections_are_removed() {
        let evidence = FailoverEvidence::default();
        let open: Vec<_> = (0..5).map(|_| evidence.add_connection(SILENT_SINCE)).collect();
        for _ in 0..10_000 {
            evidence.add_connection(SILENT_SINCE);
        }
        assert!(evidence.connections.lock().len() <= 2 * MIN_PRUNED_CONNECTIONS);
        assert_eq!(open.len(), 5);
    }
}
