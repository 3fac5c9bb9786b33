//! One memory budget for all buffers. A request reserves its whole *window* once, at admission, and
//! waits only there, while it holds nothing: so requests can never wait for each other's memory.
//! Inside, layers carve [`Reservation`]s out of the window, or out of what is free globally, without
//! ever waiting; where neither has room they work with less. A request that turns out to need less keeps less of its window.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::deadline::Deadline;
use crate::error::{Error, Reason, Result};

/// The grain of the budget in bytes.
pub const GRAIN: usize = 4096;

/// The budget: a fixed number of bytes, handed out first come, first served.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    capacity: usize,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    waited: AtomicU64,
}

impl Budget {
    /// A budget of `bytes`, rounded down to the grain (at least one).
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let grains = (bytes / GRAIN).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self(Arc::new(Shared {
            capacity: grains * GRAIN,
            free: Arc::new(Semaphore::new(grains)),
            waiting: AtomicUsize::new(0),
            waited: AtomicU64::new(0),
        }))
    }

    /// The budget's size in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Bytes not reserved now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.free.available_permits() * GRAIN
    }

    /// Requests that wait for a window now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
    }

    /// Admissions so far that had to wait.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.0.waited.load(Ordering::Relaxed)
    }

    /// Reserves a window of `bytes` (at most the whole budget), waiting for it until the deadline.
    /// Called once per request, at admission, by a caller that holds no memory of this budget.
    /// Dropping the future gives up the place in the queue.
    pub async fn admit(&self, bytes: usize, deadline: &Deadline) -> Result<Arc<Window>> {
        let grains = self.grains(bytes);
        let permit = match self.0.free.clone().try_acquire_many_owned(grains) {
            Ok(permit) => permit,
            Err(_) => {
                self.0.waited.fetch_add(1, Ordering::Relaxed);
                let _counted = Waiting::new(&self.0.waiting);
                let acquired = deadline.guard(self.0.free.clone().acquire_many_owned(grains)).await;
                acquired
                    .map_err(|e| {
                        Error::with_source(
                            Reason::Overloaded,
                            "no memory window was free in time; retry later",
                            e,
                        )
                    })?
                    .map_err(|e| Error::with_source(Reason::Defect, "the memory budget was closed", e))?
            }
        };
        Ok(self.window(permit))
    }

    /// Reserves a window for a request that somebody could do without: only where nobody has to wait for it.
    #[must_use]
    pub fn try_admit(&self, bytes: usize) -> Option<Arc<Window>> {
        Some(self.window(self.0.free.clone().try_acquire_many_owned(self.grains(bytes)).ok()?))
    }

    fn window(&self, permit: OwnedSemaphorePermit) -> Arc<Window> {
        let size = permit.num_permits() * GRAIN;
        let [size, left] = [size, size].map(AtomicUsize::new);
        Arc::new(Window {
            budget: self.clone(),
            size,
            left,
            freed: Notify::new(),
            permit: Mutex::new(permit),
        })
    }

    /// Takes `bytes` out of what is free; never waits. `None`: do with less.
    #[must_use]
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let permit = self.0.free.clone().try_acquire_many_owned(self.grains(bytes)).ok()?;
        (permit.num_permits() * GRAIN >= bytes).then_some(Reservation { bytes, held: Held::Extra(permit) })
    }

    fn grains(&self, bytes: usize) -> u32 {
        let grains = bytes.min(self.0.capacity).div_ceil(GRAIN).max(1);
        u32::try_from(grains).unwrap_or(u32::MAX)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} of {} bytes free)", self.free(), self.capacity())
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The memory of one request. Its bytes go back to the budget when the last holder (the request's
/// context or a buffer carved from it) is gone.
pub struct Window {
    budget: Budget,
    size: AtomicUsize,
    left: AtomicUsize,
    freed: Notify,
    permit: Mutex<OwnedSemaphorePermit>,
}

impl Window {
    /// Bytes of the window in all.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Acquire)
    }

    /// Gives back what is more than `bytes`, once a request is known to need no more than that: others need not wait for it. What
    /// is carved out stays. The window does not grow again.
    pub fn keep(&self, bytes: usize) {
        let mut permit = self.permit.lock();
        let over = permit.num_permits().saturating_sub(bytes.div_ceil(GRAIN).max(1));
        let taken = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
            Some(left - over.min(left / GRAIN) * GRAIN)
        });
        // What it was before: `Err` is what a closure that never says no cannot bring about.
        let (Ok(left) | Err(left)) = taken;
        let over = over.min(left / GRAIN);
        self.size.fetch_sub(over * GRAIN, Ordering::AcqRel);
        // Whoever waits for more than there is now takes what there is.
        self.freed.notify_waiters();
        drop(permit.split(over));
    }

    /// Bytes of the window not carved out now.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Carves `bytes` out of the window, else out of what is free in the whole budget; never waits.
    /// `None`: do with less.
    #[must_use]
    pub fn try_reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        if self.take(bytes) {
            return Some(Reservation { bytes, held: Held::Window(self.clone()) });
        }
        self.budget.try_reserve(bytes)
    }

    /// Carves `bytes` (at most the window) out of the window, waiting until this request's own
    /// buffers come back. That cannot deadlock: they belong to whoever reads this response or
    /// writes this request, and nobody else's memory is waited for.
    pub async fn reserve_own(self: &Arc<Self>, bytes: usize) -> Reservation {
        loop {
            let freed = self.freed.notified();
            // Less may be kept meanwhile.
            let bytes = bytes.min(self.size());
            if self.take(bytes) {
                return Reservation { bytes, held: Held::Window(self.clone()) };
            }
            freed.await;
        }
    }

    fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes)).is_ok()
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({} of {} bytes left)", self.left(), self.size())
    }
}

/// Bytes carved out of a window (or of the free budget). Given back on drop.
#[derive(Debug)]
pub struct Reservation {
    bytes: usize,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Window(Arc<Window>),
    Extra(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit),
}

impl Reservation {
    /// How many bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A buffer that gives the reservation back when its last reference is dropped.
    #[must_use]
    pub fn attach(self, buffer: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Attached { buffer, _reservation: self })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Held::Window(window) = &self.held {
            window.left.fetch_add(self.bytes, Ordering::AcqRel);
            window.freed.notify_one();
        }
    }
}

struct Attached<T> {
    buffer: T,
    _reservation: Reservation,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Attached<T> {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn no_deadline() -> Deadline {
        Deadline::none(SystemClock::shared())
    }

    #[tokio::test]
    async fn reservations_come_back() {
        let budget = Budget::new(4 * GRAIN);
        let window = budget.admit(2 * GRAIN, &no_deadline()).await.unwrap();
        let first = window.try_reserve(2 * GRAIN).unwrap();
        let extra = window.try_reserve(2 * GRAIN).unwrap();
        assert!(window.try_reserve(1).is_none(), "neither window nor budget has room");
        drop(extra);
        assert_eq!(budget.free(), 2 * GRAIN);
        let bytes = first.attach(vec![0_u8; 10]);
        let clone = bytes.clone();
        drop(bytes);
        assert_eq!(window.left(), 0);
        drop(clone);
        assert_eq!(window.left(), 2 * GRAIN);
        drop(window);
        assert_eq!(budget.free(), 4 * GRAIN);
    }

    #[tokio::test]
    async fn what_is_not_needed_is_given_back_and_what_is_carved_out_is_not() {
        let budget = Budget::new(8 * GRAIN);
        let window = budget.admit(8 * GRAIN, &no_deadline()).await.unwrap();
        let carved = window.reserve_own(3 * GRAIN).await;
        let nobody = no_deadline();
        let mut waiting = std::pin::pin!(budget.admit(4 * GRAIN, &nobody));
        assert!(futures::poll!(&mut waiting).is_pending());
        window.keep(3 * GRAIN + 1);
        assert_eq!((window.size(), window.left()), (4 * GRAIN, GRAIN));
        let other = waiting.await.unwrap();
        window.keep(GRAIN);
        assert_eq!(
            (window.size(), window.left(), budget.free()),
            (3 * GRAIN, 0, GRAIN),
            "what is carved out stays"
        );
        // Whoever waits for more than there is takes what there is.
        let mut more = std::pin::pin!(window.reserve_own(8 * GRAIN));
        assert!(futures::poll!(&mut more).is_pending());
        drop(carved);
        assert_eq!(more.await.bytes(), 3 * GRAIN);
        window.keep(1 << 30);
        assert_eq!((window.size(), window.left()), (3 * GRAIN, 3 * GRAIN), "it does not grow");
        let held = window.reserve_own(GRAIN).await;
        let mut rest = std::pin::pin!(window.reserve_own(3 * GRAIN));
        assert!(futures::poll!(&mut rest).is_pending());
        window.keep(GRAIN);
        assert!(futures::poll!(&mut rest).is_pending(), "all that there is now is carved out");
        drop(held);
        assert_eq!(rest.await.bytes(), GRAIN);
        drop(other);
        assert_eq!(budget.free(), 7 * GRAIN);
    }

    #[tokio::test]
    async fn who_could_do_without_takes_what_is_left_and_no_turn() {
        let budget = Budget::new(4 * GRAIN);
        let held = budget.admit(3 * GRAIN, &no_deadline()).await.unwrap();
        assert!(budget.try_admit(2 * GRAIN).is_none());
        assert_eq!(budget.try_admit(GRAIN).unwrap().left(), GRAIN);
        let nobody = no_deadline();
        let mut waiting = std::pin::pin!(budget.admit(2 * GRAIN, &nobody));
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(budget.try_admit(GRAIN).is_none(), "who waits comes first");
        drop(held);
        assert_eq!((waiting.await.unwrap().size(), budget.free()), (2 * GRAIN, 2 * GRAIN));
        assert_eq!(budget.waited(), 1);
    }

    #[tokio::test]
    async fn one_window_four_layers_sixty_four_requests() {
        // Each request holds its window through four nested layers that each want a buffer as large
        // as the window: they must degrade, never wait, and all requests complete.
        let budget = Budget::new(16 * GRAIN);
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let budget = budget.clone();
            requests.spawn(async move {
                let window = budget.admit(16 * GRAIN, &no_deadline()).await.unwrap();
                layer(4, window).await
            });
        }
        let all = tokio::time::timeout(std::time::Duration::from_secs(20), requests.join_all()).await;
        assert_eq!(all.expect("no deadlock").len(), 64);
        assert_eq!(budget.free(), 16 * GRAIN);
    }

    async fn layer(depth: usize, window: Arc<Window>) -> usize {
        let held = window.try_reserve(16 * GRAIN).or_else(|| window.try_reserve(GRAIN));
        tokio::task::yield_now().await;
        if depth == 0 {
            return 0;
        }
        Box::pin(layer(depth - 1, window)).await + usize::from(held.is_some())
    }

    #[tokio::test]
    async fn waiting_ends_at_the_deadline() {
        let budget = Budget::new(GRAIN);
        let _all = budget.admit(GRAIN, &no_deadline()).await.unwrap();
        let soon = Deadline::after(SystemClock::shared(), std::time::Duration::from_millis(5));
        assert_eq!(budget.admit(1, &soon).await.unwrap_err().reason(), Reason::Overloaded);
        assert_eq!((budget.waiting(), budget.waited()), (0, 1));
    }
}
