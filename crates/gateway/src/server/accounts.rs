//! The memory accounts of requests: one for each pair of identity and peer. All anonymous clients share one identity.
//! An account is removed some time after its last request has released its memory and its last connection has closed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tradewind_core::{Account, Tenant};

use super::peer::Peer;
use crate::auth::Identity;

/// Unused accounts are removed once the number of accounts is twice that after the last removal, plus this number.
const MIN_GROWTH: usize = 64;

/// All accounts of a gateway.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<AccountTable>);

#[derive(Debug, Default)]
struct AccountTable {
    /// By access key ID; `None` for anonymous clients.
    tenants: HashMap<Option<Arc<str>>, TenantAccounts>,
    accounts: usize,
    next_cleanup_at: usize,
}

#[derive(Debug, Default)]
struct TenantAccounts {
    tenant: Tenant,
    by_peer: HashMap<Peer, Account>,
}

impl Accounts {
    /// The account of an identity's requests from a peer.
    pub(crate) fn find(&self, identity: &Identity, peer: Peer) -> Account {
        let mut table = self.0.lock();
        if table.accounts >= table.next_cleanup_at {
            table.remove_unused();
        }
        let TenantAccounts { tenant, by_peer } = table.tenants.entry(identity.shared_key_id()).or_default();
        if let Some(account) = by_peer.get(&peer) {
            return account.clone();
        }
        let account = Account::new(tenant);
        by_peer.insert(peer, account.clone());
        table.accounts += 1;
        account
    }
}

impl AccountTable {
    fn remove_unused(&mut self) {
        self.tenants.retain(|_, tenant| {
            tenant.by_peer.retain(|_, account| !account.is_unused());
            !tenant.by_peer.is_empty()
        });
        self.accounts = self.tenants.values().map(|tenant| tenant.by_peer.len()).sum();
        self.next_cleanup_at = 2 * self.accounts + MIN_GROWTH;
    }
}

/// Cache of a connection's latest account: connections rarely change their identity.
#[derive(Debug, Default)]
pub(crate) struct CachedAccount(Mutex<Option<(Arc<Identity>, Account)>>);

impl CachedAccount {
    /// Like [`Accounts::find`], but cached.
    pub(crate) fn find(&self, accounts: &Accounts, identity: &Arc<Identity>, peer: Peer) -> Account {
        let mut latest = self.0.lock();
        if let Some((cached, account)) = &*latest
            && Arc::ptr_eq(cached, identity)
        {
            return account.clone();
        }
        let account = accounts.find(identity, peer);
        *latest = Some((identity.clone(), account.clone()));
        account
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::auth::{Buckets, Permissions};
    use tradewind_core::Budget;

    fn peer(last: u32) -> Peer {
        IpAddr::V4(Ipv4Addr::from_bits(last)).into()
    }

    fn key(id: &str) -> Arc<Identity> {
        Arc::new(Identity::key(id.into(), Permissions::ReadWrite, Buckets::All))
    }

    #[test]
    fn an_identity_has_one_tenant_and_an_account_per_peer() {
        let (accounts, budget) = (Accounts::default(), Budget::new(1 << 20));
        let (one, other) = (key("one"), key("other"));
        let first = accounts.find(&one, peer(1));
        let _window = budget.try_admit_for(&first, 4096).unwrap();
        // Keys may be replaced while requests of the old set are in flight.
        assert_eq!(accounts.find(&key("one"), peer(1)).held(), 4096);
        let second = accounts.find(&one, peer(2));
        assert_eq!((second.held(), second.tenant_held()), (0, 4096));
        assert_eq!(accounts.find(&other, peer(1)).tenant_held(), 0);
        let cached = CachedAccount::default();
        assert_eq!(cached.find(&accounts, &one, peer(1)).held(), 4096);
        assert_eq!(cached.find(&accounts, &one, peer(1)).held(), 4096);
        assert_eq!(cached.find(&accounts, &other, peer(1)).held(), 0);
    }

    #[test]
    fn unused_accounts_are_removed() {
        let (accounts, one) = (Accounts::default(), key("one"));
        let kept = accounts.find(&one, peer(0));
        for n in 1..10_000 {
            accounts.find(&one, peer(n));
        }
        assert!(accounts.0.lock().accounts < 1000);
        let budget = Budget::new(1 << 20);
        let _window = budget.try_admit_for(&kept, 4096).unwrap();
        assert_eq!(accounts.find(&one, peer(0)).held(), 4096, "an account in use is kept");
    }
}
