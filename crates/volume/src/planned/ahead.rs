//! The memory for what is fetched ahead, of all requests together: what a request's window has more than it needs, and a part of
//! the budget that requests are admitted to. Nobody waits for it; who gets none hands bytes on as they come.
//!
//! A request may hold as much as is left (Choudhury and Hahne 1998): one alone has half of all, of many each has its part, and whoever
//! comes next finds some. So clients that read slowly cannot keep all of it. Whoever has taken something may hold so much more, up to
//! twice what is left: that it will be read is likely.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tradewind_core::{Reservation, Window};

/// The part of a request's window that is left for bytes that are handed on as they come.
const MIN_REST_BYTES: usize = 512 << 10;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Ahead {
    most: u64,
    held: AtomicU64,
}

impl Ahead {
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most, held: AtomicU64::new(0) })
    }

    /// Bytes that are held now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Acquire)
    }
}

/// What one request holds of it.
#[derive(Debug)]
pub(super) struct Shares {
    ahead: Arc<Ahead>,
    held: Arc<AtomicU64>,
    /// What the reader has taken so far.
    taken: AtomicU64,
    window: Arc<Window>,
}

impl Shares {
    /// For a request with this window, which holds none yet.
    pub fn new(ahead: &Arc<Ahead>, window: &Arc<Window>) -> Self {
        Self { ahead: ahead.clone(), held: Arc::default(), taken: AtomicU64::new(0), window: window.clone() }
    }

    /// The reader has taken so many bytes more.
    pub fn taken(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Memory for so many bytes; `None` where there is none to be had.
    pub fn take(&self, bytes: u64) -> Option<Share> {
        let left = self.ahead.most.saturating_sub(self.ahead.held());
        let part = left.saturating_add(left.min(self.taken.load(Ordering::Relaxed)));
        let held = self.held.load(Ordering::Acquire);
        if held.saturating_add(bytes) > part {
            return None;
        }
        let within = |held: u64| held.checked_add(bytes).filter(|held| *held <= self.ahead.most);
        self.ahead.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, within).ok()?;
        self.held.fetch_add(bytes, Ordering::AcqRel);
        let counted = Counted { ahead: self.ahead.clone(), held: self.held.clone(), bytes };
        // Admissions may have taken it.
        let memory = self.window.try_reserve_beside(usize::try_from(bytes).ok()?, MIN_REST_BYTES)?;
        Some(Share { memory, counted })
    }
}

/// Memory for a range. Given back when the last of its bytes is dropped.
#[derive(Debug)]
pub(super) struct Share {
    memory: Reservation,
    counted: Counted,
}

impl Share {
    /// The bytes that it was taken for.
    pub fn attach(self, bytes: Bytes) -> Bytes {
        let Self { memory, counted } = self;
        memory.attach(Held { bytes, _counted: counted })
    }
}

#[derive(Debug)]
struct Counted {
    ahead: Arc<Ahead>,
    held: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::AcqRel);
        self.ahead.held.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

struct Held {
    bytes: Bytes,
    _counted: Counted,
}

impl AsRef<[u8]> for Held {
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
    async fn each_has_its_part_and_gives_it_back() {
        let budget = Budget::new(1 << 20);
        let window = budget.admit(4096, &Deadline::none(SystemClock::shared())).await.unwrap();
        let ahead = Ahead::new(64 << 10);
        let of = || Shares::new(&ahead, &window);
        let take = |shares: &Shares| std::iter::from_fn(|| shares.take(8 << 10)).collect::<Vec<_>>();
        let (one, other) = (of(), of());
        let first = take(&one);
        let second = take(&other);
        assert_eq!((first.len(), second.len()), (4, 2), "each at most what is left");
        assert_eq!(ahead.held(), 48 << 10);
        assert!(take(&other).is_empty());
        other.taken(1 << 20);
        assert_eq!(take(&other).len(), 1, "who reads has twice its part");
        let bytes = first.into_iter().map(|share| share.attach(Bytes::from_static(b"some")));
        let kept: Vec<Bytes> = bytes.collect();
        assert!(one.take(8 << 10).is_none(), "they are held as long as anybody has them");
        drop(kept);
        assert!(one.take(8 << 10).is_some());
        drop(second);
        assert_eq!((ahead.held(), budget.free()), (0, budget.capacity() - 4096));
    }

    #[tokio::test]
    async fn what_is_admitted_goes_before() {
        let budget = Budget::new(64 << 10);
        let deadline = Deadline::none(SystemClock::shared());
        let window = budget.admit(4096, &deadline).await.unwrap();
        let _others = budget.admit(48 << 10, &deadline).await.unwrap();
        let ahead = Ahead::new(1 << 20);
        let shares = Shares::new(&ahead, &window);
        assert!(shares.take(16 << 10).is_none());
        assert_eq!(ahead.held(), 0, "what was not there is not counted");
        assert!(shares.take(8 << 10).is_some());
    }
}
