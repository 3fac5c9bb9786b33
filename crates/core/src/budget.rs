//! The memory budget of requests. A request reserves its whole *window* once, at admission. It waits for the memory of
//! other requests only there, while it holds none itself. Without hold and wait, no cycle of requests that wait for
//! memory can form.
//!
//! After admission, reads and XML bodies carve their buffers ([`Reservation`]s) out of the window, or out of the free
//! budget, without waiting for other requests. If neither suffices, they use less memory or fail. A request that turns
//! out to need less shrinks its window.
//!
//! A request waits for its own buffers in one place: [`Window::reserve_own`], for the next bytes of a body. So no buffer of
//! a window may be held across a wait for work that reads a body with the same window
//! ([decision 54](../../../docs/decisions/0054-no-buffer-across-a-wait.md)). Reads that no consumer paces, such as heads of objects, call
//! [`Window::reserve_unpaced`], which never waits.
//!
//! For a write the window is an estimate: its buffers are not carved out of it. The store may hold further bytes
//! (`LocalOptions::max_buffered_bytes`).
//!
//! Clients share the budget by [`Account`]: no client can starve another, and each account has its own queue
//! (module `shares`).

mod shares;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::deadline::Deadline;
use crate::error::{Error, Reason, Result};
use shares::{Grant, Purpose, Shares};

pub use shares::{Account, Demand, Tenant};

/// The unit of allocation in bytes.
pub const GRAIN_BYTES: usize = 4096;

/// The budget: a fixed number of bytes, shared by accounts.
#[derive(Clone)]
pub struct Budget(Arc<BudgetInner>);

struct BudgetInner {
    capacity: usize,
    shares: Mutex<Shares>,
    /// The account of the process itself, for requests without another account.
    own: Account,
    waiting: AtomicUsize,
    total_waits: AtomicU64,
    /// Bytes of buffers that the budget had no room for.
    excess: AtomicUsize,
}

impl Budget {
    /// A budget of `bytes`, rounded down to the grain (at least one).
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let grains = (bytes / GRAIN_BYTES).max(1);
        Self(Arc::new(BudgetInner {
            capacity: grains * GRAIN_BYTES,
            shares: Mutex::new(Shares::new(grains)),
            own: Account::unlimited(),
            waiting: AtomicUsize::new(0),
            total_waits: AtomicU64::new(0),
            excess: AtomicUsize::new(0),
        }))
    }

    /// The budget's size in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Bytes of the budget that no request holds.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.shares.lock().free() * GRAIN_BYTES
    }

    /// Bytes beyond the capacity that requests hold at the moment: buffers of [`Window::reserve_unpaced`] for which neither
    /// the window nor the budget had room.
    #[must_use]
    pub fn excess(&self) -> usize {
        self.0.excess.load(Ordering::Relaxed)
    }

    /// The number of requests that wait for a window.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
    }

    /// The number of admissions so far that had to wait.
    #[must_use]
    pub fn total_waits(&self) -> u64 {
        self.0.total_waits.load(Ordering::Relaxed)
    }

    /// The demand of waiting requests, one entry for each account whose oldest request has waited for `min_wait`. `now`
    /// is the current time of the clock that admission deadlines use.
    #[must_use]
    pub fn demands(&self, now: Duration, min_wait: Duration) -> Vec<Demand> {
        if self.waiting() == 0 { Vec::new() } else { self.0.shares.lock().demands(now, min_wait) }
    }

    /// Reserves a window of `bytes` (at most the whole budget), waiting for it until the deadline. No share limits it:
    /// it is charged to the process's own account.
    ///
    /// Call it once per request, at admission, while holding no memory of this budget. Dropping the future removes the
    /// request from the queue.
    pub async fn admit(&self, bytes: usize, deadline: &Deadline) -> Result<Arc<Window>> {
        self.admit_for(&self.0.own, bytes, deadline).await
    }

    /// Like [`admit`](Self::admit), but within the share of an account.
    pub async fn admit_for(
        &self,
        account: &Account,
        bytes: usize,
        deadline: &Deadline,
    ) -> Result<Arc<Window>> {
        if let Some(window) = self.try_admit_for(account, bytes) {
            return Ok(window);
        }
        let (mut queued, grants) = self.enqueue(account, self.grains(bytes), deadline.clock().now());
        self.deliver(grants);
        let granted = deadline.guard(&mut queued.receiver).await;
        let allocation = granted
            .map_err(|e| {
                Error::with_source(Reason::Overloaded, "no memory window was free in time; retry later", e)
            })?
            .map_err(|e| Error::with_source(Reason::Defect, "the memory budget was closed", e))?;
        Ok(Window::new(allocation))
    }

    /// Reserves a window for optional work, without waiting and at the lowest priority: fails if the memory is not free
    /// or if it would delay a waiting request.
    #[must_use]
    pub fn try_admit_optional(&self, bytes: usize) -> Option<Arc<Window>> {
        Some(Window::new(self.try_take(&self.0.own, self.grains(bytes), Purpose::Optional)?))
    }

    /// Reserves a window of `bytes` (at most the whole budget) if that is possible without waiting.
    #[must_use]
    pub fn try_admit_for(&self, account: &Account, bytes: usize) -> Option<Arc<Window>> {
        Some(Window::new(self.try_take(account, self.grains(bytes), Purpose::Admission)?))
    }

    /// Takes `bytes` of the free budget, without waiting and at the lowest priority: fails if it would delay a waiting
    /// request. On `None`, use less memory.
    #[must_use]
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        self.try_reserve_for(&self.0.own, bytes)
    }

    fn try_reserve_for(&self, account: &Account, bytes: usize) -> Option<Reservation> {
        let grains = bytes.div_ceil(GRAIN_BYTES).max(1);
        let allocation = self.try_take(account, grains, Purpose::Optional)?;
        Some(Reservation { bytes, origin: Origin::Budget(allocation) })
    }

    fn try_take(&self, account: &Account, grains: usize, purpose: Purpose) -> Option<Allocation> {
        let is_taken = self.0.shares.lock().try_take(account, grains, purpose);
        is_taken.then(|| self.allocation(account.clone(), grains))
    }

    /// Queues a request. Returns it with the grants that the caller delivers.
    fn enqueue(&self, account: &Account, grains: usize, now: Duration) -> (WaitingRequest, Vec<Grant>) {
        self.0.total_waits.fetch_add(1, Ordering::Relaxed);
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let mut shares = self.0.shares.lock();
        let ticket = shares.enqueue(account, grains, now, sender);
        let grants = shares.grant_all();
        let (budget, account) = (self.clone(), account.clone());
        (WaitingRequest { budget, account, ticket, receiver }, grants)
    }

    /// Delivers the grants. If a request was dropped in the meantime, its allocation is released immediately.
    fn deliver(&self, grants: Vec<Grant>) {
        for Grant { sender, account, grains } in grants {
            let _gone = sender.send(self.allocation(account, grains));
        }
    }

    fn release(&self, account: &Account, grains: usize) {
        let grants = {
            let mut shares = self.0.shares.lock();
            shares.release(account, grains);
            shares.grant_all()
        };
        self.deliver(grants);
    }

    fn allocation(&self, account: Account, grains: usize) -> Allocation {
        Allocation { budget: self.clone(), account, grains: AtomicUsize::new(grains) }
    }

    fn grains(&self, bytes: usize) -> usize {
        bytes.min(self.0.capacity).div_ceil(GRAIN_BYTES).max(1)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} of {} bytes free)", self.free(), self.capacity())
    }
}

/// A queued request. Dropping it removes it from the queue.
struct WaitingRequest {
    budget: Budget,
    account: Account,
    ticket: u64,
    receiver: oneshot::Receiver<Allocation>,
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        let shared = &self.budget.0;
        shared.waiting.fetch_sub(1, Ordering::Relaxed);
        let grants = {
            let mut shares = shared.shares.lock();
            shares.dequeue(&self.account, self.ticket);
            // This request may have blocked others.
            shares.grant_all()
        };
        self.budget.deliver(grants);
    }
}

/// Memory of the budget that is charged to an account. Released on drop.
struct Allocation {
    budget: Budget,
    account: Account,
    grains: AtomicUsize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.budget.release(&self.account, *self.grains.get_mut());
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocation({} grains)", self.grains.load(Ordering::Relaxed))
    }
}

/// The memory of one request. Its bytes go back to the budget when the last holder (the request's
/// context or a buffer carved from it) is gone.
pub struct Window {
    size: AtomicUsize,
    /// Bytes of the allocation that are not part of the window.
    overhead: AtomicUsize,
    min_size: AtomicUsize,
    /// Bytes of the window that are not carved out.
    left: AtomicUsize,
    freed: Notify,
    allocation: Allocation,
}

impl Window {
    fn new(allocation: Allocation) -> Arc<Self> {
        let size = allocation.grains.load(Ordering::Relaxed) * GRAIN_BYTES;
        let [size, left] = [size, size].map(AtomicUsize::new);
        let [overhead, min_size] = [0, 0].map(AtomicUsize::new);
        Arc::new(Self { size, overhead, min_size, left, freed: Notify::new(), allocation })
    }

    /// The account that the memory is charged to.
    #[must_use]
    pub const fn account(&self) -> &Account {
        &self.allocation.account
    }

    /// The total size of the window in bytes, without the overhead.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Acquire)
    }

    /// Bytes of the budget that the request holds: the window and the overhead.
    #[must_use]
    pub fn held(&self) -> usize {
        self.allocation.grains.load(Ordering::Acquire) * GRAIN_BYTES
    }

    /// Moves `bytes` from the window to the request's overhead: memory that the request holds until the window is
    /// dropped. `bytes` is rounded down to the grain and limited to [`left`](Self::left).
    ///
    /// [`size`](Self::size) and [`left`](Self::left) exclude the overhead, so no reservation waits for it.
    /// [`shrink_to`](Self::shrink_to) does not release it.
    pub fn add_overhead(&self, bytes: usize) {
        // The lock excludes a concurrent `shrink_to`, which also moves bytes out of `left` and `size`.
        let _shares = self.allocation.budget.0.shares.lock();
        let bytes = bytes.min(self.left()) / GRAIN_BYTES * GRAIN_BYTES;
        if self.take(bytes) {
            self.overhead.fetch_add(bytes, Ordering::AcqRel);
            self.size.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// Sets the minimum size that [`shrink_to`](Self::shrink_to) leaves. A request that also occupies another resource,
    /// such as a connection to a service, keeps a minimum, so that sharing the memory also shares that resource.
    pub fn set_min_size(&self, bytes: usize) {
        self.min_size.store(bytes, Ordering::Release);
    }

    /// Shrinks the window to `bytes` and releases the rest. Bytes that are carved out stay reserved. The window never
    /// grows again.
    pub fn shrink_to(&self, bytes: usize) {
        let Allocation { budget, account, grains } = &self.allocation;
        let needed = bytes.max(self.min_size.load(Ordering::Acquire)).div_ceil(GRAIN_BYTES).max(1);
        let needed = needed.saturating_add(self.overhead.load(Ordering::Acquire) / GRAIN_BYTES);
        if needed >= grains.load(Ordering::Acquire) {
            return;
        }
        let grants = {
            let mut shares = budget.0.shares.lock();
            let excess = grains.load(Ordering::Relaxed).saturating_sub(needed);
            let update = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                Some(left - excess.min(left / GRAIN_BYTES) * GRAIN_BYTES)
            });
            // `fetch_update` returns the previous value, always as `Ok`: the closure never returns `None`.
            let (Ok(previous_left) | Err(previous_left)) = update;
            let released = excess.min(previous_left / GRAIN_BYTES);
            grains.fetch_sub(released, Ordering::AcqRel);
            self.size.fetch_sub(released * GRAIN_BYTES, Ordering::AcqRel);
            shares.release(account, released);
            shares.grant_all()
        };
        budget.deliver(grants);
        // `reserve_own` reads the size again: a caller that waits for more than the new size now takes the new size.
        self.freed.notify_waiters();
    }

    /// Bytes of the window that are not carved out.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Acquire)
    }

    /// Carves `bytes` out of the window. If too little is left there, takes them from the free budget, within the share
    /// of the request's account. Never waits. On `None`, use less memory.
    #[must_use]
    pub fn try_reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        if self.take(bytes) {
            return Some(Reservation { bytes, origin: Origin::Window(self.clone()) });
        }
        self.allocation.budget.try_reserve_for(&self.allocation.account, bytes)
    }

    /// Like [`try_reserve`](Self::try_reserve), but leaves `rest` bytes of the window for work that must not wait.
    #[must_use]
    pub fn try_reserve_leaving(self: &Arc<Self>, bytes: usize, rest: usize) -> Option<Reservation> {
        // The check may race with another reservation, but only with one of the same request.
        if self.left() >= bytes.saturating_add(rest) {
            return self.try_reserve(bytes);
        }
        self.allocation.budget.try_reserve_for(&self.allocation.account, bytes)
    }

    /// Like [`try_reserve`](Self::try_reserve), but succeeds beyond the budget too: [`Budget::excess`] counts those bytes. For
    /// short reads whose buffers are dropped before the call that reads returns.
    #[must_use]
    pub fn reserve_unpaced(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.try_reserve(bytes).unwrap_or_else(|| {
            let budget = self.allocation.budget.clone();
            budget.0.excess.fetch_add(bytes, Ordering::Relaxed);
            Reservation { bytes, origin: Origin::Excess(budget) }
        })
    }

    /// Carves `bytes` (at most the window) out of the window, waiting until this request's own buffers are released.
    ///
    /// The caller returns the buffer to a consumer, whose pace the wait follows. It ends only if the consumer drops earlier
    /// buffers without waiting for this call, or for another one of the same window. A layer that passes bytes on to a
    /// store copies and drops each buffer first ([`Body::next_copied`](crate::Body::next_copied)).
    pub async fn reserve_own(self: &Arc<Self>, bytes: usize) -> Reservation {
        loop {
            let freed = self.freed.notified();
            // The window may have shrunk since the last iteration.
            let bytes = bytes.min(self.size());
            if self.take(bytes) {
                return Reservation { bytes, origin: Origin::Window(self.clone()) };
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

/// Bytes carved out of a window or of the free budget. Released on drop.
#[derive(Debug)]
pub struct Reservation {
    bytes: usize,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Window(Arc<Window>),
    Budget(#[expect(dead_code, reason = "held for its drop")] Allocation),
    /// Bytes beyond the budget.
    Excess(Budget),
}

impl Reservation {
    /// The number of bytes reserved.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A buffer that releases the reservation when its last reference is dropped.
    #[must_use]
    pub fn attach(self, buffer: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Attached { buffer, _reservation: self })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        match &self.origin {
            Origin::Window(window) => {
                window.left.fetch_add(self.bytes, Ordering::AcqRel);
                // All of them: the first one may need more than was released, and one may not be polled at the moment.
                window.freed.notify_waiters();
            }
            Origin::Excess(budget) => {
                budget.0.excess.fetch_sub(self.bytes, Ordering::Relaxed);
            }
            Origin::Budget(_) => {}
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
    use futures::FutureExt as _;

    use super::*;
    use crate::clock::SystemClock;

    fn no_deadline() -> Deadline {
        Deadline::none(SystemClock::shared())
    }

    #[tokio::test]
    async fn reservations_come_back() {
        let budget = Budget::new(4 * GRAIN_BYTES);
        let window = budget.admit(2 * GRAIN_BYTES, &no_deadline()).await.unwrap();
        let first = window.try_reserve(2 * GRAIN_BYTES).unwrap();
        let extra = window.try_reserve(2 * GRAIN_BYTES).unwrap();
        assert!(window.try_reserve(1).is_none(), "neither window nor budget has free memory");
        drop(extra);
        assert_eq!(budget.free(), 2 * GRAIN_BYTES);
        let bytes = first.attach(vec![0_u8; 10]);
        let clone = bytes.clone();
        drop(bytes);
        assert_eq!(window.left(), 0);
        drop(clone);
        assert_eq!(window.left(), 2 * GRAIN_BYTES);
        drop(window);
        assert_eq!(budget.free(), 4 * GRAIN_BYTES);
    }

    #[tokio::test]
    async fn shrinking_releases_only_bytes_not_carved_out() {
        let budget = Budget::new(8 * GRAIN_BYTES);
        let window = budget.admit(8 * GRAIN_BYTES, &no_deadline()).await.unwrap();
        let carved = window.reserve_own(3 * GRAIN_BYTES).await;
        let deadline = no_deadline();
        let mut waiting = std::pin::pin!(budget.admit(4 * GRAIN_BYTES, &deadline));
        assert!(futures::poll!(&mut waiting).is_pending());
        window.shrink_to(3 * GRAIN_BYTES + 1);
        assert_eq!((window.size(), window.left()), (4 * GRAIN_BYTES, GRAIN_BYTES));
        let other = waiting.await.unwrap();
        window.shrink_to(GRAIN_BYTES);
        assert_eq!(
            (window.size(), window.left(), budget.free()),
            (3 * GRAIN_BYTES, 0, GRAIN_BYTES),
            "what is carved out stays"
        );
        // A waiter for more than the window takes the whole window.
        let mut more = std::pin::pin!(window.reserve_own(8 * GRAIN_BYTES));
        assert!(futures::poll!(&mut more).is_pending());
        drop(carved);
        assert_eq!(more.await.bytes(), 3 * GRAIN_BYTES);
        window.shrink_to(1 << 30);
        assert_eq!((window.size(), window.left()), (3 * GRAIN_BYTES, 3 * GRAIN_BYTES), "it does not grow");
        let held = window.reserve_own(GRAIN_BYTES).await;
        let mut rest = std::pin::pin!(window.reserve_own(3 * GRAIN_BYTES));
        assert!(futures::poll!(&mut rest).is_pending());
        window.shrink_to(GRAIN_BYTES);
        assert!(futures::poll!(&mut rest).is_pending(), "all that there is now is carved out");
        drop(held);
        assert_eq!(rest.await.bytes(), GRAIN_BYTES);
        drop(other);
        assert_eq!(budget.free(), 7 * GRAIN_BYTES);
    }

    #[tokio::test]
    async fn a_release_wakes_each_waiter_that_now_has_room() {
        let budget = Budget::new(4 * GRAIN_BYTES);
        let window = budget.admit(4 * GRAIN_BYTES, &no_deadline()).await.unwrap();
        let [small, rest] = [GRAIN_BYTES, 3 * GRAIN_BYTES].map(|bytes| window.try_reserve(bytes).unwrap());
        let mut large_waiter = std::pin::pin!(window.reserve_own(4 * GRAIN_BYTES));
        assert!(futures::poll!(&mut large_waiter).is_pending());
        let small_waiter = tokio::spawn({
            let window = window.clone();
            async move { window.reserve_own(GRAIN_BYTES).await.bytes() }
        });
        tokio::task::yield_now().await;
        // The large waiter is first in the queue, and is not polled.
        drop(small);
        let woken = tokio::time::timeout(Duration::from_secs(20), small_waiter).await;
        assert_eq!(woken.expect("the small waiter is woken").unwrap(), GRAIN_BYTES);
        drop(rest);
        assert_eq!(large_waiter.await.bytes(), 4 * GRAIN_BYTES);
    }

    #[tokio::test]
    async fn unpaced_reservations_never_wait_and_are_counted() {
        let budget = Budget::new(4 * GRAIN_BYTES);
        let window = budget.admit(2 * GRAIN_BYTES, &no_deadline()).await.unwrap();
        let of_window = window.reserve_unpaced(2 * GRAIN_BYTES);
        let of_budget = window.reserve_unpaced(2 * GRAIN_BYTES);
        assert_eq!((window.left(), budget.free(), budget.excess()), (0, 0, 0));
        let excess = window.reserve_unpaced(3 * GRAIN_BYTES);
        assert_eq!(budget.excess(), 3 * GRAIN_BYTES);
        drop((of_budget, excess));
        assert_eq!((budget.free(), budget.excess()), (2 * GRAIN_BYTES, 0));
        drop(of_window);
        assert_eq!(window.left(), 2 * GRAIN_BYTES);
    }

    #[tokio::test]
    async fn try_reserve_leaving_spares_the_rest_of_the_window() {
        let budget = Budget::new(8 * GRAIN_BYTES);
        let window = budget.admit(4 * GRAIN_BYTES, &no_deadline()).await.unwrap();
        let _first = window.try_reserve_leaving(2 * GRAIN_BYTES, 2 * GRAIN_BYTES).unwrap();
        assert_eq!((window.left(), budget.free()), (2 * GRAIN_BYTES, 4 * GRAIN_BYTES));
        let _second = window.try_reserve_leaving(2 * GRAIN_BYTES, 2 * GRAIN_BYTES).unwrap();
        assert_eq!((window.left(), budget.free()), (2 * GRAIN_BYTES, 2 * GRAIN_BYTES), "out of what is free");
        assert!(window.try_reserve_leaving(3 * GRAIN_BYTES, 2 * GRAIN_BYTES).is_none());
    }

    #[tokio::test]
    async fn a_window_is_not_shrunk_below_its_minimum() {
        let budget = Budget::new(8 * GRAIN_BYTES);
        let window = budget.admit(8 * GRAIN_BYTES, &no_deadline()).await.unwrap();
        window.set_min_size(4 * GRAIN_BYTES);
        window.shrink_to(GRAIN_BYTES);
        assert_eq!((window.size(), budget.free()), (4 * GRAIN_BYTES, 4 * GRAIN_BYTES));
        window.set_min_size(0);
        window.shrink_to(GRAIN_BYTES);
        assert_eq!((window.size(), budget.free()), (GRAIN_BYTES, 7 * GRAIN_BYTES));
    }

    #[tokio::test]
    async fn overhead_is_neither_reservable_nor_released_by_shrinking() {
        let budget = Budget::new(16 * GRAIN_BYTES);
        let window = budget.admit(12 * GRAIN_BYTES, &no_deadline()).await.unwrap();
        window.add_overhead(4 * GRAIN_BYTES + 1);
        assert_eq!(
            (window.size(), window.left(), window.held()),
            (8 * GRAIN_BYTES, 8 * GRAIN_BYTES, 12 * GRAIN_BYTES)
        );
        let all = window.reserve_own(100 * GRAIN_BYTES).now_or_never().expect("the whole window is left");
        assert_eq!(all.bytes(), 8 * GRAIN_BYTES);
        drop(all);
        window.shrink_to(2 * GRAIN_BYTES);
        assert_eq!(
            (window.size(), window.left(), window.held()),
            (2 * GRAIN_BYTES, 2 * GRAIN_BYTES, 6 * GRAIN_BYTES)
        );
        assert_eq!(budget.free(), 10 * GRAIN_BYTES);
        let all = window.reserve_own(8 * GRAIN_BYTES).now_or_never().expect("what was kept is left");
        assert_eq!(all.bytes(), 2 * GRAIN_BYTES);
        drop(all);
        drop(window);
        assert_eq!(budget.free(), 16 * GRAIN_BYTES);
    }

    #[tokio::test]
    async fn try_admit_optional_takes_free_memory_without_queueing() {
        let budget = Budget::new(4 * GRAIN_BYTES);
        let held = budget.admit(3 * GRAIN_BYTES, &no_deadline()).await.unwrap();
        assert!(budget.try_admit_optional(2 * GRAIN_BYTES).is_none());
        assert_eq!(budget.try_admit_optional(GRAIN_BYTES).unwrap().left(), GRAIN_BYTES);
        let deadline = no_deadline();
        let mut waiting = std::pin::pin!(budget.admit(2 * GRAIN_BYTES, &deadline));
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(budget.try_admit_optional(GRAIN_BYTES).is_none(), "a queued request has priority");
        drop(held);
        assert_eq!((waiting.await.unwrap().size(), budget.free()), (2 * GRAIN_BYTES, 2 * GRAIN_BYTES));
        assert_eq!(budget.total_waits(), 1);
    }

    #[tokio::test]
    async fn one_window_four_layers_sixty_four_requests() {
        // Each request holds its window through four nested layers that each want a buffer as large
        // as the window: they must degrade, never wait, and all requests complete.
        let budget = Budget::new(16 * GRAIN_BYTES);
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let budget = budget.clone();
            requests.spawn(async move {
                let window = budget.admit(16 * GRAIN_BYTES, &no_deadline()).await.unwrap();
                layer(4, window).await
            });
        }
        let all = tokio::time::timeout(std::time::Duration::from_secs(20), requests.join_all()).await;
        assert_eq!(all.expect("no deadlock").len(), 64);
        assert_eq!(budget.free(), 16 * GRAIN_BYTES);
    }

    async fn layer(depth: usize, window: Arc<Window>) -> usize {
        let held = window.try_reserve(16 * GRAIN_BYTES).or_else(|| window.try_reserve(GRAIN_BYTES));
        tokio::task::yield_now().await;
        if depth == 0 {
            return 0;
        }
        Box::pin(layer(depth - 1, window)).await + usize::from(held.is_some())
    }

    #[tokio::test]
    async fn waiting_ends_at_the_deadline() {
        let budget = Budget::new(GRAIN_BYTES);
        let _all = budget.admit(GRAIN_BYTES, &no_deadline()).await.unwrap();
        let soon = Deadline::after(SystemClock::shared(), std::time::Duration::from_millis(5));
        assert_eq!(budget.admit(1, &soon).await.unwrap_err().reason(), Reason::Overloaded);
        assert_eq!((budget.waiting(), budget.total_waits()), (0, 1));
    }
}
