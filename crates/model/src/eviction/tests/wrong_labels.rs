//! Labels that predict nothing, or the contrary, on the requests of the cache's own test: popular small objects, and a scan
//! of larger ones in turn.

use super::*;
use crate::class_policy::{ClassPolicyTable, class_for_size};

const KIB: u64 = 1 << 10;
const OBJECTS: u64 = 300;
const SMALL_OBJECTS: u64 = 200;
/// The unit of the memory tier.
const BLOCK_BYTES: u64 = 256;
/// Blocks of 4 KiB.
const SIZE_UNIT_BLOCKS: u32 = 16;
const BYTES_PER_SLOT: u64 = 1024;
/// Memory of an object besides its bytes.
const OVERHEAD_BYTES: u64 = 500;

/// Sizes of the objects and of the cache.
#[derive(Debug, Clone, Copy)]
struct Setting {
    small_kib: u64,
    large_kib: u64,
    cache_kib: u64,
}

impl Setting {
    fn capacity(self) -> Capacity {
        let bytes = self.cache_kib * KIB;
        Capacity { blocks: bytes / BLOCK_BYTES, slots: u32::try_from(bytes / BYTES_PER_SLOT).unwrap() }
    }

    fn bytes(self, number: u64) -> u64 {
        if number < SMALL_OBJECTS { self.small_kib * KIB } else { self.large_kib * KIB }
    }

    /// The misses with the class of each object that `label` gives, or that of its size.
    fn misses(self, label: impl Fn(u64) -> Option<u8>) -> usize {
        let policies = ClassPolicyTable::default().eviction_policies();
        let mut policy = AdaptiveWindow::class_aware(self.capacity(), &policies, MissCost::default());
        policy.set_size_unit(SIZE_UNIT_BLOCKS);
        let mut cache = KeyedCache::new(self.capacity(), policy);
        let mut numbers = Numbers(7);
        let mut is_miss = |request: u64| {
            let mut random = || (numbers.next() * SMALL_OBJECTS) >> 16;
            let number = if request.is_multiple_of(3) {
                SMALL_OBJECTS + request / 3 % (OBJECTS - SMALL_OBJECTS)
            } else {
                random() * random() / SMALL_OBJECTS
            };
            let bytes = self.bytes(number);
            let class = label(number).unwrap_or_else(|| class_for_size(bytes).value());
            let blocks = u32::try_from((bytes + OVERHEAD_BYTES).div_ceil(BLOCK_BYTES)).unwrap();
            cache.request(&entry(key(number), blocks, class)) != Lookup::Hit
        };
        (0..12_000).filter(|&request| is_miss(request)).count()
    }
}

const fn setting(small_kib: u64, large_kib: u64, cache_kib: u64) -> Setting {
    Setting { small_kib, large_kib, cache_kib }
}

const SETTINGS: [Setting; 8] = [
    setting(16, 40, 2048),
    setting(16, 40, 3072),
    setting(16, 40, 4096),
    setting(16, 60, 2048),
    setting(16, 60, 2867),
    setting(16, 60, 3072),
    setting(16, 200, 4096),
    setting(4, 60, 1500),
];

/// The most misses with wrong labels, in percent of those without labels.
const MAX_PERCENT: usize = 103;

#[test]
fn wrong_labels_cost_little_in_caches_of_few_entries() {
    for setting in SETTINGS {
        let unlabelled = setting.misses(|_| None);
        let shuffled = setting.misses(|number| Some([25, 27, 29, 31][number as usize * 7 % 4]));
        let inverted = setting.misses(|number| Some(if number < SMALL_OBJECTS { 31 } else { 25 }));
        let flooding = setting.misses(|number| (number >= SMALL_OBJECTS).then_some(24));
        for (name, misses) in [("shuffled", shuffled), ("inverted", inverted), ("flooding", flooding)] {
            assert!(
                misses * 100 <= unlabelled * MAX_PERCENT,
                "{setting:?}: {misses} misses if {name}, {unlabelled} without labels"
            );
        }
    }
}

#[test]
fn correct_labels_cost_no_more_than_none_in_caches_of_few_entries() {
    for setting in SETTINGS {
        let unlabelled = setting.misses(|_| None);
        let correct = setting.misses(|number| Some(if number < SMALL_OBJECTS { 25 } else { 31 }));
        assert!(correct <= unlabelled, "{setting:?}: {correct} misses, {unlabelled} without labels");
    }
}
