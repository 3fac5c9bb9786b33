//! Objects in the cache that a retention ranks above their class: what a sweep needs to rank them again as the retention
//! decays, without reading their heads. Bounded: objects beyond the bound are ranked by their class.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tradewind_core::{Classes, Timestamp};

use crate::extent::EXTENT_BYTES;
use crate::head::{ContentId, Head};
use crate::policy::PinReason;

/// The most that all objects together may cost, in units of a small object without ranges of classes.
const MAX_COST: usize = 1 << 16;

/// Ranges of classes that take about the memory of an object.
const RANGES_PER_UNIT: usize = 8;

/// Extents of an object whose ranking takes about the time of that of a small object.
const EXTENTS_PER_UNIT: u64 = 64;

/// The largest object that a retention ranks, in bytes: a larger one would take the room of all others.
pub(crate) const MAX_RETAINED_BYTES: u64 = 16 << 30;

/// An object is ranked again after each of these parts of its period.
const PARTS_PER_PERIOD: u32 = 16;

/// The shortest time between two rankings of an object, except before its end.
const MIN_INTERVAL_SECONDS: i64 = 60;

/// The longest time until an object is examined again: one that is no longer cached makes room for others.
const MAX_INTERVAL_SECONDS: i64 = 600;

/// An object with a retention, and what of it may be cached.
#[derive(Debug, Clone)]
pub(crate) struct RetainedObject {
    pub content: ContentId,
    pub size: u64,
    pub classes: Classes,
    /// The reason for which it is pinned, if not for its class.
    pub pin: Option<PinReason>,
    /// True if its data is cached with its head.
    pub is_small: bool,
    /// The time at which its rank is due, in seconds since 1970.
    rank_seconds: i64,
    /// The time at which it is examined again, at the latest that of its rank.
    next_seconds: i64,
    /// True if its rank is due, in what [`RetainedObjects::take_due`] returns.
    pub is_rank_due: bool,
}

impl RetainedObject {
    fn new(head: &Head, pin: Option<PinReason>, now: Timestamp) -> Self {
        let classes = head.info.metadata.classes.clone();
        let is_small = head.data.is_some();
        let mut object = Self {
            content: head.content,
            size: head.info.size,
            classes,
            pin,
            is_small,
            rank_seconds: 0,
            next_seconds: 0,
            is_rank_due: true,
        };
        object.schedule(now);
        object
    }

    /// Sets the next times after it is examined at `now`.
    fn schedule(&mut self, now: Timestamp) {
        self.is_rank_due = self.rank_seconds <= now.seconds();
        if self.is_rank_due {
            self.rank_seconds = next_rank_seconds(&self.classes, now);
        }
        self.next_seconds = self.rank_seconds.min(now.seconds() + MAX_INTERVAL_SECONDS);
    }

    /// The number of extents of its data, apart from its head.
    pub fn extents(&self) -> u32 {
        let bytes = if self.is_small { 0 } else { self.size };
        u32::try_from(bytes.div_ceil(EXTENT_BYTES as u64)).unwrap_or(u32::MAX)
    }

    fn cost(&self) -> usize {
        let extents = u64::from(self.extents()) / EXTENTS_PER_UNIT;
        1 + self.classes.ranges.len() / RANGES_PER_UNIT + usize::try_from(extents).unwrap_or(MAX_COST)
    }
}

/// The next time at which the rank of an object may have to change.
fn next_rank_seconds(classes: &Classes, now: Timestamp) -> i64 {
    let Some(retention) = classes.retention else { return now.seconds() };
    let part = i64::from(retention.period_seconds() / PARTS_PER_PERIOD).max(MIN_INTERVAL_SECONDS);
    let remaining = i64::from(retention.remaining_seconds(now));
    now.seconds() + part.min(remaining)
}

/// See the module's head. The keys are fingerprints of heads.
#[derive(Debug, Default)]
pub(crate) struct RetainedObjects {
    state: Mutex<State>,
    /// Notified when the first object is added.
    added: Notify,
    is_full_reported: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<u64, RetainedObject>,
    cost: usize,
}

impl State {
    fn remove(&mut self, key: u64) {
        if let Some(removed) = self.objects.remove(&key) {
            self.cost -= removed.cost();
        }
    }
}

impl RetainedObjects {
    /// Returns true if a retention ranks the object of this key: it is known, or there is room for it.
    pub fn may_rank(&self, key: u64) -> bool {
        let is_accepted = {
            let state = self.state.lock();
            state.cost < MAX_COST || state.objects.contains_key(&key)
        };
        if !is_accepted && !self.is_full_reported.swap(true, Ordering::Relaxed) {
            let max_objects = MAX_COST;
            tracing::warn!(
                max_objects,
                "too many cached objects have a retention; others are ranked by their class"
            );
        }
        is_accepted
    }

    /// Adds or replaces an object.
    pub fn track(&self, key: u64, head: &Head, pin: Option<PinReason>, now: Timestamp) {
        let object = RetainedObject::new(head, pin, now);
        let mut state = self.state.lock();
        if let Some(known) = state.objects.get_mut(&key)
            && known.content == object.content
            && known.classes.retention == object.classes.retention
        {
            known.pin = object.pin;
            return;
        }
        state.remove(key);
        if state.cost < MAX_COST {
            state.cost += object.cost();
            state.objects.insert(key, object);
            self.added.notify_one();
        }
    }

    /// Forgets the object of a key, which was changed.
    pub fn remove(&self, key: u64) {
        self.state.lock().remove(key);
    }

    /// Forgets an object, unless it was replaced.
    pub fn forget(&self, key: u64, content: ContentId) {
        let mut state = self.state.lock();
        if state.objects.get(&key).is_some_and(|known| known.content == content) {
            state.remove(key);
        }
    }

    /// The objects to examine at `now`.
    pub fn take_due(&self, now: Timestamp) -> Vec<(u64, RetainedObject)> {
        let mut due = Vec::new();
        for (key, object) in &mut self.state.lock().objects {
            if object.next_seconds <= now.seconds() {
                object.schedule(now);
                due.push((*key, object.clone()));
            }
        }
        due
    }

    /// Waits until there are objects.
    pub async fn wait_until_present(&self) {
        while self.state.lock().objects.is_empty() {
            self.added.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tradewind_core::{Address, ETag, Generation, Metadata, ObjectInfo, Retention};

    use crate::head::Stamp;

    const PERIOD_SECONDS: u32 = 1600;

    fn timestamp(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    /// The head of an object whose retention ends at 1600 s.
    fn head(content: u64) -> Head {
        let retention = Retention::new(u64::from(PERIOD_SECONDS), PERIOD_SECONDS).ok();
        let classes = Classes { retention, ..Classes::default() };
        let info = ObjectInfo {
            size: 100,
            etag: ETag::from_text("e"),
            modified: timestamp(0),
            generation: Generation(1),
            metadata: Metadata { classes, ..Metadata::default() },
            checksums: Vec::new(),
            scope: tradewind_core::ChecksumScope::FullObject,
            parts: None,
            version: None,
            stored: None,
        };
        let stamp = Stamp { session: 1, sequence: 1, time: Duration::ZERO };
        Head::new(Address::parse("bucket", "key").unwrap(), info, ContentId(content), None, stamp)
    }

    #[test]
    fn objects_are_due_after_each_part_and_at_the_end() {
        let retained = RetainedObjects::default();
        retained.track(1, &head(1), None, timestamp(0));
        let due = |seconds| retained.take_due(timestamp(seconds)).len();
        assert_eq!([99, 100, 100, 199, 200, 1580, 1599, 1600].map(due), [0, 1, 0, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn objects_are_examined_before_their_rank_is_due() {
        let retained = RetainedObjects::default();
        let mut long = head(1);
        long.info.metadata.classes.retention = Retention::new(160_000, 160_000).ok();
        retained.track(1, &long, None, timestamp(0));
        let due =
            |seconds| retained.take_due(timestamp(seconds)).first().map(|(_, object)| object.is_rank_due);
        assert_eq!(
            [599, 600, 1200, 9999, 10_000].map(due),
            [None, Some(false), Some(false), Some(false), Some(true)]
        );
    }

    #[test]
    fn large_objects_and_ranges_cost_more() {
        let mut large = head(1);
        large.info.size = MAX_RETAINED_BYTES;
        let cost = |head: &Head| RetainedObject::new(head, None, timestamp(0)).cost();
        assert_eq!(cost(&head(1)), 1);
        assert!((MAX_COST / 32..MAX_COST / 8).contains(&cost(&large)), "{}", cost(&large));
    }

    #[test]
    fn changed_object_makes_room() {
        let retained = RetainedObjects::default();
        for key in 0..MAX_COST as u64 {
            retained.track(key, &head(key), None, timestamp(0));
        }
        assert!(!retained.may_rank(MAX_COST as u64));
        retained.remove(5);
        assert!(retained.may_rank(MAX_COST as u64));
    }

    #[test]
    fn objects_beyond_the_bound_are_not_ranked() {
        let retained = RetainedObjects::default();
        for key in 0..MAX_COST as u64 {
            assert!(retained.may_rank(key));
            retained.track(key, &head(key), None, timestamp(0));
        }
        assert!(!retained.may_rank(MAX_COST as u64) && retained.may_rank(5), "known objects stay");
        retained.forget(5, ContentId(6));
        assert!(!retained.may_rank(MAX_COST as u64), "another content replaced the object");
        retained.forget(5, ContentId(5));
        assert!(retained.may_rank(MAX_COST as u64));
    }
}
