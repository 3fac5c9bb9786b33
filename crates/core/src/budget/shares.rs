//! Who gets the budget's memory next. Pure bookkeeping under one lock: what is free, what each account holds, and
//! the requests that wait.
//!
//! - A **tenant** is a client identity, an **account** one of its sources (a network address). What an account holds
//!   also counts for its tenant.
//! - A **share** is at most [`ACCOUNT_SHARE`] or [`TENANT_SHARE`] times what stays free (Choudhury and Hahne, *Dynamic
//!   queue length thresholds*, 1998). One tenant alone gets nearly everything; a second one still finds room at once.
//!   An equal part is always within the share, and so is the first request of an account that holds nothing.
//! - **Order**: of the requests within their share, that of the tenant which holds least goes first, then that of the
//!   account which holds least, then the oldest. If it does not fit, later ones wait as well. Requests of one account
//!   stay in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::{GRAIN, Permit};

/// An account may hold this many times what stays free: seven eighths of the budget if it is alone.
const ACCOUNT_SHARE: usize = 7;

/// A tenant may hold this many times what stays free. More than [`ACCOUNT_SHARE`], so that an account that holds all
/// it may leaves room for the next account of its tenant.
const TENANT_SHARE: usize = 15;

/// A client identity that shares a budget with others. Cheap to clone; clones are the same tenant. To be used with
/// one budget only.
#[derive(Clone, Debug, Default)]
pub struct Tenant(Arc<TenantCounts>);

#[derive(Debug, Default)]
struct TenantCounts {
    /// Grains held. Changed under the lock of [`Shares`] only.
    held: AtomicUsize,
    /// Accounts that hold some.
    accounts: AtomicUsize,
}

/// One source of a tenant's requests, for instance a network address. Cheap to clone; clones are the same account.
#[derive(Clone, Debug)]
pub struct Account(Arc<AccountCounts>);

#[derive(Debug)]
struct AccountCounts {
    tenant: Tenant,
    held: AtomicUsize,
    /// Whether shares bound it. The process's own work is exempt.
    is_limited: bool,
}

impl Account {
    /// A new account of a tenant.
    #[must_use]
    pub fn new(tenant: &Tenant) -> Self {
        Self(Arc::new(AccountCounts { tenant: tenant.clone(), held: AtomicUsize::new(0), is_limited: true }))
    }

    /// An account that no share bounds.
    pub(super) fn unlimited() -> Self {
        let tenant = Tenant::default();
        Self(Arc::new(AccountCounts { tenant, held: AtomicUsize::new(0), is_limited: false }))
    }

    /// Bytes that the tenant holds now.
    #[must_use]
    pub fn tenant_held(&self) -> usize {
        self.0.tenant.0.held.load(Ordering::Relaxed) * GRAIN
    }

    /// Bytes that this account holds now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed) * GRAIN
    }

    /// Returns true if no other clone exists: no request of this account holds memory or waits.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Smaller ranks go first.
    fn rank(&self) -> Rank {
        Rank {
            tenant_held: self.0.tenant.0.held.load(Ordering::Relaxed),
            held: self.0.held.load(Ordering::Relaxed),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    tenant_held: usize,
    held: usize,
}

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A request cannot start without it. It is served in the order of ranks.
    Admission,
    /// The caller can do without it. Every waiting request goes first.
    Optional,
}

/// What the requests of one account wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that all of them ask for.
    pub bytes: usize,
    /// Bytes that their tenant holds.
    pub tenant_held: usize,
    /// How long the oldest has waited.
    pub waited: Duration,
}

/// A waiting request that has got its memory.
pub(super) type Grant = (oneshot::Sender<Permit>, Account, usize);

/// The state of a budget, in grains.
#[derive(Debug)]
pub(super) struct Shares {
    capacity: usize,
    free: usize,
    /// Tenants that hold some.
    tenants: usize,
    /// Accounts with waiting requests, in no order.
    lines: Vec<Line>,
    last_ticket: u64,
}

#[derive(Debug)]
struct Line {
    account: Account,
    /// Oldest first, by ticket. Never empty.
    requests: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    grains: usize,
    since: Duration,
    granted: oneshot::Sender<Permit>,
}

impl Shares {
    pub(super) const fn new(capacity: usize) -> Self {
        Self { capacity, free: capacity, tenants: 0, lines: Vec::new(), last_ticket: 0 }
    }

    pub(super) const fn free(&self) -> usize {
        self.free
    }

    /// Takes `grains` for an account if they are free, within its share, and no waiting request goes first. Where a
    /// waiting request is beyond its account's share, it only goes before that account.
    pub(super) fn try_take(&mut self, account: &Account, grains: usize, purpose: Purpose) -> bool {
        if grains > self.free || !self.is_within_share(account, grains) {
            return false;
        }
        if !self.lines.is_empty() {
            let is_behind_own = self.lines.iter().any(|line| line.account.is(account));
            let goes_first = |first: usize| match purpose {
                Purpose::Admission => self.lines[first].account.rank() <= account.rank(),
                Purpose::Optional => true,
            };
            if is_behind_own || self.first().is_some_and(goes_first) {
                return false;
            }
        }
        self.take(account, grains);
        true
    }

    /// Puts a request in its account's line, and returns its ticket. [`grant_all`](Self::grant_all) is due after it.
    pub(super) fn wait(
        &mut self,
        account: &Account,
        grains: usize,
        since: Duration,
        granted: oneshot::Sender<Permit>,
    ) -> u64 {
        self.last_ticket += 1;
        let waiting = Waiting { ticket: self.last_ticket, grains, since, granted };
        match self.lines.iter_mut().find(|line| line.account.is(account)) {
            Some(line) => line.requests.push_back(waiting),
            None => self.lines.push(Line { account: account.clone(), requests: VecDeque::from([waiting]) }),
        }
        self.last_ticket
    }

    /// Removes a request that waits no longer. Nothing happens if it has been granted.
    pub(super) fn leave(&mut self, account: &Account, ticket: u64) {
        let Some(index) = self.lines.iter().position(|line| line.account.is(account)) else { return };
        let requests = &mut self.lines[index].requests;
        if let Ok(at) = requests.binary_search_by_key(&ticket, |waiting| waiting.ticket) {
            requests.remove(at);
        }
        if requests.is_empty() {
            self.lines.swap_remove(index);
        }
    }

    /// Takes memory for every waiting request that may have it now. The caller delivers the grants once the lock is
    /// released.
    pub(super) fn grant_all(&mut self) -> Vec<Grant> {
        let mut grants = Vec::new();
        while let Some(index) = self.first() {
            let line = &mut self.lines[index];
            if line.requests.front().is_none_or(|first| first.grains > self.free) {
                break;
            }
            let Some(first) = line.requests.pop_front() else { break };
            let account = line.account.clone();
            if line.requests.is_empty() {
                self.lines.swap_remove(index);
            }
            self.take(&account, first.grains);
            grants.push((first.granted, account, first.grains));
        }
        grants
    }

    /// Takes back what an account held. [`grant_all`](Self::grant_all) is due after it.
    pub(super) fn release(&mut self, account: &Account, grains: usize) {
        self.free += grains;
        let AccountCounts { tenant, held, .. } = &*account.0;
        if lower(held, grains) && lower(&tenant.0.accounts, 1) {
            self.tenants -= 1;
        }
        tenant.0.held.fetch_sub(grains, Ordering::Relaxed);
    }

    /// What accounts wait for whose oldest request has waited for `at_least`.
    pub(super) fn demands(&self, now: Duration, at_least: Duration) -> Vec<Demand> {
        let demand = |line: &Line| {
            let waited = now.saturating_sub(line.requests.front()?.since);
            let grains: usize = line.requests.iter().map(|waiting| waiting.grains).sum();
            (waited >= at_least).then(|| Demand {
                bytes: grains * GRAIN,
                tenant_held: line.account.tenant_held(),
                waited,
            })
        };
        self.lines.iter().filter_map(demand).collect()
    }

    /// The line whose oldest request is next. That request is within its share; it may have to wait for memory.
    fn first(&self) -> Option<usize> {
        let mut best: Option<(Rank, u64, usize)> = None;
        for (index, line) in self.lines.iter().enumerate() {
            let Some(waiting) = line.requests.front() else { continue };
            if !self.is_within_share(&line.account, waiting.grains) {
                continue;
            }
            let candidate = (line.account.rank(), waiting.ticket, index);
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
        let left = self.free.saturating_sub(grains);
        let (held, tenant_held) = (held.load(Ordering::Relaxed), tenant.0.held.load(Ordering::Relaxed));
        // Equal parts, one of them for whoever comes next.
        let tenant_part = self.capacity / (self.tenants + 1);
        let part = tenant_part / (tenant.0.accounts.load(Ordering::Relaxed) + 1);
        let is_within = |held: usize, share: usize| held == 0 || held + grains <= share;
        is_within(held, (ACCOUNT_SHARE * left).max(part))
            && is_within(tenant_held, (TENANT_SHARE * left).max(tenant_part))
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

/// Subtracts, and returns true if nothing is left.
fn lower(count: &AtomicUsize, by: usize) -> bool {
    by > 0 && count.fetch_sub(by, Ordering::Relaxed) == by
}

#[cfg(test)]
mod tests;
