//! Keys with a request to the backing store whose outcome is unknown: it may still be applied, over a newer object.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tradewind_core::Address;

/// The uncertain keys. A key stays one until its last request can no longer be applied.
#[derive(Debug, Default)]
pub(super) struct UncertainKeys {
    content: Mutex<UncertainContent>,
}

#[derive(Debug, Default)]
struct UncertainContent {
    until: HashMap<Address, Duration>,
    /// All additions, in their order, so that keys without later requests are removed too.
    added: VecDeque<Addition>,
}

#[derive(Debug)]
struct Addition {
    address: Address,
    until: Duration,
}

impl UncertainKeys {
    /// Adds a key for `window` from `now`. Does nothing if the window is zero.
    pub fn add(&self, address: &Address, now: Duration, window: Duration) {
        if window.is_zero() {
            return;
        }
        let until = now + window;
        let mut content = self.content.lock();
        content.remove_expired(now);
        content.until.insert(address.clone(), until);
        content.added.push_back(Addition { address: address.clone(), until });
    }

    /// The time until which an earlier request may still change the key.
    pub fn until(&self, address: &Address, now: Duration) -> Option<Duration> {
        let mut content = self.content.lock();
        content.remove_expired(now);
        content.until.get(address).copied()
    }
}

impl UncertainContent {
    fn remove_expired(&mut self, now: Duration) {
        while let Some(first) = self.added.pop_front_if(|first| first.until <= now) {
            if self.until.get(&first.address) == Some(&first.until) {
                self.until.remove(&first.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    #[test]
    fn a_key_is_uncertain_until_its_last_window_ends() {
        let keys = UncertainKeys::default();
        let key = Address::parse("bucket", "a").unwrap();
        let second = |seconds| Duration::from_secs(seconds);
        keys.add(&key, second(0), WINDOW);
        keys.add(&key, second(30), WINDOW);
        assert_eq!(keys.until(&key, second(60)), Some(second(90)));
        assert_eq!(keys.until(&key, second(90)), None);
        assert!(keys.content.lock().until.is_empty() && keys.content.lock().added.is_empty());
    }

    #[test]
    fn a_window_of_zero_makes_no_key_uncertain() {
        let keys = UncertainKeys::default();
        let key = Address::parse("bucket", "a").unwrap();
        keys.add(&key, Duration::ZERO, Duration::ZERO);
        assert_eq!(keys.until(&key, Duration::ZERO), None);
    }
}
