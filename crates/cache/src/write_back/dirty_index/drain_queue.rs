//! The keys that wait to be written back, by age and by the class of their size.

use std::collections::BTreeMap;
use std::time::Duration;

use tradewind_core::Address;
use tradewind_model::admission::DrainOrder;
use tradewind_model::class_policy::class_for_size;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct DrainQueue {
    /// The keys of each class of sizes, in order of age. No class is empty.
    by_size: BTreeMap<u8, BTreeMap<u64, QueuedKey>>,
}

/// A queued key.
#[derive(Debug)]
pub(super) struct QueuedKey {
    pub address: Address,
    /// When the key became dirty.
    pub since: Duration,
}

/// The place of a key in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuePlace {
    size_class: u8,
    /// The position in the order of age.
    pub order: u64,
}

impl QueuePlace {
    /// The place of an object of `size` bytes.
    pub fn new(size: u64, order: u64) -> Self {
        Self { size_class: class_for_size(size).value(), order }
    }
}

impl DrainQueue {
    pub fn is_empty(&self) -> bool {
        self.by_size.is_empty()
    }

    pub fn insert(&mut self, place: QueuePlace, key: QueuedKey) {
        self.by_size.entry(place.size_class).or_default().insert(place.order, key);
    }

    pub fn remove(&mut self, place: QueuePlace) -> Option<QueuedKey> {
        let keys = self.by_size.get_mut(&place.size_class)?;
        let removed = keys.remove(&place.order);
        if keys.is_empty() {
            self.by_size.remove(&place.size_class);
        }
        removed
    }

    /// The place and key that are first in an order at the time `now`.
    pub fn first(&self, order: DrainOrder, now: Duration) -> Option<(QueuePlace, &QueuedKey)> {
        let oldest = self.oldest()?;
        match order {
            DrainOrder::LargestUnlessAged { max_age } if oldest.1.since + max_age > now => {
                self.firsts().next_back()
            }
            _ => Some(oldest),
        }
    }

    /// The oldest key and its place.
    pub fn oldest(&self) -> Option<(QueuePlace, &QueuedKey)> {
        self.firsts().min_by_key(|(place, _)| place.order)
    }

    /// The oldest key of each class of sizes.
    fn firsts(&self) -> impl DoubleEndedIterator<Item = (QueuePlace, &QueuedKey)> {
        self.by_size.iter().filter_map(|(&size_class, keys)| {
            let (&order, key) = keys.first_key_value()?;
            Some((QueuePlace { size_class, order }, key))
        })
    }
}
