//! Fair sharing of the budget's memory. Pure bookkeeping under one lock: the free memory, what each account holds, and
//! the waiting requests.
//!
//! - A **tenant** is a client identity, an **account** one of its sources (a network address). What an account holds
//!   also counts for its tenant.
//! - A **share** is a dynamic threshold (Choudhury and Hahne, *Dynamic queue length thresholds*, 1998). An account may
//!   hold at most [`ACCOUNT_FREE_MULTIPLE`] times the memory that is free after the allocation, and a tenant
//!   [`TENANT_FREE_MULTIPLE`] times. One tenant alone gets nearly everything, and a second one still gets memory at
//!   once.
//! - An **equal part** is always within the share. For a tenant, it is the capacity divided by n + 1, where n tenants
//!   hold memory. For an account, it is the tenant's part divided by m + 1, where m accounts of the tenant hold memory.
//! - A **first request**, of an account that holds nothing, is always within the account's share. The share of its
//!   tenant still applies, unless the tenant holds nothing either.
//! - **Order**: of the requests within their share, that of the tenant that holds least is granted first, then that of
//!   the account that holds least, then the oldest. If that request does not fit, all others wait as well. Requests of
//!   one account stay in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Allocation, GRAIN_BYTES};

/// The maximum memory of an account, as a multiple α of the memory that is free after the allocation. An account alone
/// may hold α/(α + 1) of the budget: 7/8.
const ACCOUNT_FREE_MULTIPLE: usize = 7;

/// The maximum memory of a tenant, as a multiple of the memory that is free after the allocation. Larger than
/// [`ACCOUNT_FREE_MULTIPLE`], so that an account at its limit leaves memory for another account of its tenant.
const TENANT_FREE_MULTIPLE: usize = 15;

/// A client identity that shares a budget with others. Cheap to clone; clones are the same tenant. Must be used with
/// one budget only.
#[derive(Clone, Debug, Default)]
pub struct Tenant(Arc<TenantCounts>);

#[derive(Debug, Default)]
struct TenantCounts {
    /// Grains held. Changed under the lock of [`Shares`] only.
    held: AtomicUsize,
    /// Accounts that hold memory.
    accounts: AtomicUsize,
}

/// One source of a tenant's requests, for instance a network address. Cheap to clone; clones are the same account.
#[derive(Clone, Debug)]
pub struct Account(Arc<AccountCounts>);

#[derive(Debug)]
struct AccountCounts {
    tenant: Tenant,
    held: AtomicUsize,
    /// True if the account is limited to its share. The process's own work is exempt.
    is_limited: bool,
}

impl Account {
    /// A new account of a tenant.
    #[must_use]
    pub fn new(tenant: &Tenant) -> Self {
        Self(Arc::new(AccountCounts { tenant: tenant.clone(), held: AtomicUsize::new(0), is_limited: true }))
    }

    /// An account that no share limits.
    pub(super) fn unlimited() -> Self {
        let tenant = Tenant::default();
        Self(Arc::new(AccountCounts { tenant, held: AtomicUsize::new(0), is_limited: false }))
    }

    /// Bytes that the tenant holds now.
    #[must_use]
    pub fn tenant_held(&self) -> usize {
        self.0.tenant.0.held.load(Ordering::Relaxed) * GRAIN_BYTES
    }

    /// Bytes that this account holds now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed) * GRAIN_BYTES
    }

    /// Returns true if no other clone exists: no request of this account holds memory or waits.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The precedence of the account's requests. The lowest value is granted first.
    fn precedence(&self) -> Precedence {
        Precedence {
            tenant_held: self.0.tenant.0.held.load(Ordering::Relaxed),
            held: self.0.held.load(Ordering::Relaxed),
        }
    }
}

/// The order in which accounts get memory, the lowest first. The oldest request decides between equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    tenant_held: usize,
    held: usize,
}

/// The purpose of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A request cannot start without the memory. Granted in order of precedence.
    Admission,
    /// The caller can proceed without the memory. Every waiting request has priority.
    Optional,
}

/// The unmet demand of one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that the waiting requests of the account need in total.
    pub bytes: usize,
    /// Bytes that the account's tenant holds.
    pub tenant_held: usize,
    /// Waiting time of the oldest request.
    pub waited: Duration,
}

/// Memory taken for a waiting request, to be delivered to it as an [`Allocation`].
pub(super) struct Grant {
    pub(super) sender: oneshot::Sender<Allocation>,
    pub(super) account: Account,
    pub(super) grains: usize,
}

/// The state of a budget, in grains.
#[derive(Debug)]
pub(super) struct Shares {
    capacity: usize,
    free: usize,
    /// Tenants that hold memory.
    tenants: usize,
    /// Accounts with waiting requests, in no particular order.
    queues: Vec<AccountQueue>,
    last_ticket: u64,
}

#[derive(Debug)]
struct AccountQueue {
    account: Account,
    /// Oldest first, by ticket. Never empty.
    requests: VecDeque<QueuedRequest>,
}

#[derive(Debug)]
struct QueuedRequest {
    ticket: u64,
    grains: usize,
    queued_at: Duration,
    sender: oneshot::Sender<Allocation>,
}

impl Shares {
    pub(super) const fn new(capacity: usize) -> Self {
        Self { capacity, free: capacity, tenants: 0, queues: Vec::new(), last_ticket: 0 }
    }

    pub(super) const fn free(&self) -> usize {
        self.free
    }

    /// Takes `grains` for an account if they are free and within its share, and no waiting request has priority. A
    /// waiting request that exceeds its account's share has priority only over later requests of its account.
    pub(super) fn try_take(&mut self, account: &Account, grains: usize, purpose: Purpose) -> bool {
        if grains > self.free || !self.is_within_share(account, grains) {
            return false;
        }
        if !self.queues.is_empty() {
            let has_queue = self.queues.iter().any(|queue| queue.account.is_same(account));
            let has_priority = |next: usize| match purpose {
                Purpose::Admission => self.queues[next].account.precedence() <= account.precedence(),
                Purpose::Optional => true,
            };
            if has_queue || self.next_queue().is_some_and(has_priority) {
                return false;
            }
        }
        self.take(account, grains);
        true
    }

    /// Puts a request in its account's queue and returns its ticket. The caller must call
    /// [`grant_all`](Self::grant_all) next.
    pub(super) fn enqueue(
        &mut self,
        account: &Account,
        grains: usize,
        now: Duration,
        sender: oneshot::Sender<Allocation>,
    ) -> u64 {
        self.last_ticket += 1;
        let request = QueuedRequest { ticket: self.last_ticket, grains, queued_at: now, sender };
        match self.queues.iter_mut().find(|queue| queue.account.is_same(account)) {
            Some(queue) => queue.requests.push_back(request),
            None => self
                .queues
                .push(AccountQueue { account: account.clone(), requests: VecDeque::from([request]) }),
        }
        self.last_ticket
    }

    /// Removes a request from its queue. Does nothing if it has been granted.
    pub(super) fn dequeue(&mut self, account: &Account, ticket: u64) {
        let Some(index) = self.queues.iter().position(|queue| queue.account.is_same(account)) else { return };
        let requests = &mut self.queues[index].requests;
        if let Ok(position) = requests.binary_search_by_key(&ticket, |request| request.ticket) {
            requests.remove(position);
        }
        if requests.is_empty() {
            self.queues.swap_remove(index);
        }
    }

    /// Takes memory for every waiting request that may have it now. The caller delivers the grants once the lock is
    /// released.
    pub(super) fn grant_all(&mut self) -> Vec<Grant> {
        let mut grants = Vec::new();
        while let Some(index) = self.next_queue() {
            let queue = &mut self.queues[index];
            if queue.requests.front().is_none_or(|request| request.grains > self.free) {
                break;
            }
            let Some(request) = queue.requests.pop_front() else { break };
            let account = queue.account.clone();
            if queue.requests.is_empty() {
                self.queues.swap_remove(index);
            }
            self.take(&account, request.grains);
            grants.push(Grant { sender: request.sender, account, grains: request.grains });
        }
        grants
    }

    /// Returns memory of an account to the free budget. The caller must call [`grant_all`](Self::grant_all) next.
    pub(super) fn release(&mut self, account: &Account, grains: usize) {
        self.free += grains;
        let AccountCounts { tenant, held, .. } = &*account.0;
        if decrement(held, grains) && decrement(&tenant.0.accounts, 1) {
            self.tenants -= 1;
        }
        tenant.0.held.fetch_sub(grains, Ordering::Relaxed);
    }

    /// The demands of all accounts whose oldest request has waited for `min_wait`.
    pub(super) fn demands(&self, now: Duration, min_wait: Duration) -> Vec<Demand> {
        let demand = |queue: &AccountQueue| {
            let waited = now.saturating_sub(queue.requests.front()?.queued_at);
            let grains: usize = queue.requests.iter().map(|request| request.grains).sum();
            (waited >= min_wait).then(|| Demand {
                bytes: grains * GRAIN_BYTES,
                tenant_held: queue.account.tenant_held(),
                waited,
            })
        };
        self.queues.iter().filter_map(demand).collect()
    }

    /// The index of the queue whose oldest request is granted next. That request is within its share, but may have to
    /// wait for memory.
    fn next_queue(&self) -> Option<usize> {
        let mut best: Option<(Precedence, u64, usize)> = None;
        for (index, queue) in self.queues.iter().enumerate() {
            let Some(request) = queue.requests.front() else { continue };
            if !self.is_within_share(&queue.account, request.grains) {
                continue;
            }
            let candidate = (queue.account.precedence(), request.ticket, index);
            if best.is_none_or(|best| candidate < best) {
                best = Some(candidate);
            }
        }
        best.map(|(_, _, index)| index)
    }

    fn is_within_share(&self, account: &Account, grains: usize) -> bool {
        let AccountCounts { tenant, held, is_limited } = &*account.0;
        if !is_limited {
            return true;
        }
        let free_after = self.free.saturating_sub(grains);
        let (held, tenant_held) = (held.load(Ordering::Relaxed), tenant.0.held.load(Ordering::Relaxed));
        // Equal parts, with one more part for a tenant or account that does not hold memory yet.
        let tenant_part = self.capacity / (self.tenants + 1);
        let account_part = tenant_part / (tenant.0.accounts.load(Ordering::Relaxed) + 1);
        let is_within = |held: usize, share: usize| held == 0 || held + grains <= share;
        is_within(held, (ACCOUNT_FREE_MULTIPLE * free_after).max(account_part))
            && is_within(tenant_held, (TENANT_FREE_MULTIPLE * free_after).max(tenant_part))
    }

    fn take(&mut self, account: &Account, grains: usize) {
        self.free -= grains;
        let AccountCounts { tenant, held, .. } = &*account.0;
        if held.fetch_add(grains, Ordering::Relaxed) == 0
            && tenant.0.accounts.fetch_add(1, Ordering::Relaxed) == 0
        {
            self.tenants += 1;
        }
        tenant.0.held.fetch_add(grains, Ordering::Relaxed);
    }
}

/// Subtracts `by`. Returns true if that makes the count zero.
fn decrement(count: &AtomicUsize, by: usize) -> bool {
    by > 0 && count.fetch_sub(by, Ordering::Relaxed) == by
}

#[cfg(test)]
mod tests;
