//! Locks by key. A lock exists while a task holds it or waits for it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tradewind_core::Address;

type KeyLock = Arc<tokio::sync::Mutex<()>>;

/// A lock for each key, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct KeyLocks {
    locks: Mutex<HashMap<Address, KeyLock>>,
}

/// A held lock. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct KeyGuard {
    owner: Arc<KeyLocks>,
    address: Address,
    lock: KeyLock,
    held: Option<OwnedMutexGuard<()>>,
}

impl KeyLocks {
    /// Waits for the lock of a key.
    pub async fn lock(self: &Arc<Self>, address: &Address) -> KeyGuard {
        let lock = self.locks.lock().entry(address.clone()).or_default().clone();
        // Created before the wait, so that a waiter that is dropped removes an unused lock.
        let mut guard = KeyGuard { owner: self.clone(), address: address.clone(), lock, held: None };
        guard.held = Some(guard.lock.clone().lock_owned().await);
        guard
    }
}

impl KeyLocks {
    /// The lock of a key, if no task holds it or waits for it.
    pub fn try_lock(self: &Arc<Self>, address: &Address) -> Option<KeyGuard> {
        let mut locks = self.locks.lock();
        if locks.contains_key(address) {
            return None;
        }
        let lock = KeyLock::default();
        let held = lock.clone().try_lock_owned().ok()?;
        locks.insert(address.clone(), lock.clone());
        Some(KeyGuard { owner: self.clone(), address: address.clone(), lock, held: Some(held) })
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        self.held = None;
        let mut locks = self.owner.locks.lock();
        // The map and this guard refer to it; others do so only under the map's lock.
        if Arc::strong_count(&self.lock) == 2 {
            locks.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn key(name: &str) -> Address {
        Address::parse("bucket", name).unwrap()
    }

    #[tokio::test]
    async fn a_key_is_held_by_one_task() {
        let locks: Arc<KeyLocks> = Arc::default();
        let held = locks.lock(&key("a")).await;
        assert!(locks.lock(&key("a")).now_or_never().is_none() && locks.try_lock(&key("a")).is_none());
        assert!(locks.lock(&key("b")).now_or_never().is_some() && locks.try_lock(&key("b")).is_some());
        drop(held);
        let held = locks.try_lock(&key("a"));
        assert!(held.is_some() && locks.lock(&key("a")).now_or_never().is_none());
        drop(held);
        assert!(locks.lock(&key("a")).now_or_never().is_some());
    }

    #[tokio::test]
    async fn unused_locks_are_removed() {
        let locks: Arc<KeyLocks> = Arc::default();
        let held = locks.lock(&key("a")).await;
        let cancelled = locks.lock(&key("a")).now_or_never();
        assert!(cancelled.is_none());
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { drop(locks.lock(&key("a")).await) }
        });
        tokio::task::yield_now().await;
        drop(held);
        waiting.await.unwrap();
        assert!(locks.locks.lock().is_empty());
    }
}
