//! The read-ahead budget of all requests together: the spare part of each request's window, and a part of the admission
//! budget. No request waits for it; without read-ahead memory, bytes are forwarded as they arrive.
//!
//! A request may hold as much as remains (dynamic thresholds, Choudhury and Hahne 1998). One request alone gets half of
//! the budget, several share it, and some always remains for the next. Slow readers therefore cannot occupy all of it.
//! The limit grows by the bytes that the reader has consumed, up to twice the remaining bytes, because an active reader
//! is likely to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tradewind_core::{Reservation, Window};

/// The part of a request's window reserved for bytes that are forwarded as they arrive.
const MIN_REST_BYTES: usize = 512 << 10;

/// The budget of all requests. See the module documentation.
#[derive(Debug)]
pub(super) struct ReadAheadBudget {
    max_bytes: u64,
    held_bytes: AtomicU64,
}

impl ReadAheadBudget {
    pub fn new(max_bytes: u64) -> Arc<Self> {
        Arc::new(Self { max_bytes, held_bytes: AtomicU64::new(0) })
    }

    /// Bytes currently held.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Acquire)
    }
}

/// The share of one request.
#[derive(Debug)]
pub(super) struct RequestReadAhead {
    budget: Arc<ReadAheadBudget>,
    held: Arc<AtomicU64>,
    /// Bytes that the reader has consumed.
    consumed: AtomicU64,
    window: Arc<Window>,
}

impl RequestReadAhead {
    /// Creates an empty share for a request with this window.
    pub fn new(ahead: &Arc<ReadAheadBudget>, window: &Arc<Window>) -> Self {
        Self {
            budget: ahead.clone(),
            held: Arc::default(),
            consumed: AtomicU64::new(0),
            window: window.clone(),
        }
    }

    /// Records that the reader consumed `bytes` more.
    pub fn record_consumed(&self, bytes: u64) {
        self.consumed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Reserves memory for `bytes`; `None` if the limits do not allow it.
    pub fn try_reserve(&self, bytes: u64) -> Option<RangeReservation> {
        let left = self.budget.max_bytes.saturating_sub(self.budget.held_bytes());
        let limit = left.saturating_add(left.min(self.consumed.load(Ordering::Relaxed)));
        let held = self.held.load(Ordering::Acquire);
        if held.saturating_add(bytes) > limit {
            return None;
        }
        let increase = |held: u64| held.checked_add(bytes).filter(|held| *held <= self.budget.max_bytes);
        self.budget.held_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, increase).ok()?;
        self.held.fetch_add(bytes, Ordering::AcqRel);
        let held_bytes = HeldBytes { ahead: self.budget.clone(), held: self.held.clone(), bytes };
        // The admission budget may be exhausted by admitted requests.
        let memory = self.window.try_reserve_leaving(usize::try_from(bytes).ok()?, MIN_REST_BYTES)?;
        Some(RangeReservation { memory, held_bytes })
    }
}

/// Memory for a range, released when the last of its bytes is dropped.
#[derive(Debug)]
pub(super) struct RangeReservation {
    memory: Reservation,
    held_bytes: HeldBytes,
}

impl RangeReservation {
    /// Ties the reservation to the bytes of the range.
    pub fn attach(self, bytes: Bytes) -> Bytes {
        let Self { memory, held_bytes } = self;
        memory.attach(AccountedBytes { bytes, _held: held_bytes })
    }
}

#[derive(Debug)]
struct HeldBytes {
    ahead: Arc<ReadAheadBudget>,
    held: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::AcqRel);
        self.ahead.held_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

struct AccountedBytes {
    bytes: Bytes,
    _held: HeldBytes,
}

impl AsRef<[u8]> for AccountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::deadline::Deadline;
    use tradewind_core::{Budget, SystemClock};

    #[tokio::test]
    async fn take_limits_a_request_to_the_remaining_bytes() {
        let budget = Budget::new(1 << 20);
        let window = budget.admit(4096, &Deadline::none(SystemClock::shared())).await.unwrap();
        let ahead = ReadAheadBudget::new(64 << 10);
        let share = || RequestReadAhead::new(&ahead, &window);
        let take = |shares: &RequestReadAhead| {
            std::iter::from_fn(|| shares.try_reserve(8 << 10)).collect::<Vec<_>>()
        };
        let (one, other) = (share(), share());
        let first = take(&one);
        let second = take(&other);
        assert_eq!((first.len(), second.len()), (4, 2), "each may hold at most the remaining bytes");
        assert_eq!(ahead.held_bytes(), 48 << 10);
        assert!(take(&other).is_empty());
        other.record_consumed(1 << 20);
        assert_eq!(take(&other).len(), 1, "an active reader may hold twice as much");
        let bytes = first.into_iter().map(|share| share.attach(Bytes::from_static(b"some")));
        let kept: Vec<Bytes> = bytes.collect();
        assert!(
            one.try_reserve(8 << 10).is_none(),
            "bytes count as held until the last reference is dropped"
        );
        drop(kept);
        assert!(one.try_reserve(8 << 10).is_some());
        drop(second);
        assert_eq!((ahead.held_bytes(), budget.free()), (0, budget.capacity() - 4096));
    }

    #[tokio::test]
    async fn take_fails_if_admissions_hold_the_memory() {
        let budget = Budget::new(64 << 10);
        let deadline = Deadline::none(SystemClock::shared());
        let window = budget.admit(4096, &deadline).await.unwrap();
        let _others = budget.admit(48 << 10, &deadline).await.unwrap();
        let ahead = ReadAheadBudget::new(1 << 20);
        let shares = RequestReadAhead::new(&ahead, &window);
        assert!(shares.try_reserve(16 << 10).is_none());
        assert_eq!(ahead.held_bytes(), 0, "a failed reservation is not counted");
        assert!(shares.try_reserve(8 << 10).is_some());
    }
}
