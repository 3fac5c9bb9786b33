//! A scan whose entries all have the best class, beside entries that are reused.

use super::*;
use crate::class_policy::ClassPolicyTable;

/// Requests of entries that are reused, and of a scan that begins later.
#[derive(Debug, Clone, Copy)]
struct Mixture {
    entries: u32,
    blocks: u32,
    /// Entries that are reused, in percent of the capacity.
    reused_percent: u64,
    seed: u64,
}

/// Capacities of requests for reused entries before the scan.
const CALM_CAPACITIES: u64 = 2;

impl Mixture {
    /// Misses of the reused entries after a capacity of requests with the scan.
    fn misses(self, reused_class: u8, scanned_class: u8) -> usize {
        let capacity = Capacity { blocks: u64::from(self.entries * self.blocks), slots: self.entries };
        let policies = ClassPolicyTable::default().eviction_policies();
        let policy = AdaptiveWindow::class_aware(capacity, &policies, MissCost::default());
        let mut cache = KeyedCache::new(capacity, policy);
        let entries = u64::from(self.entries);
        let reused = entries * self.reused_percent / 100;
        let mut numbers = Numbers(self.seed);
        let mut draw = || {
            let random = ((numbers.next() << 16 | numbers.next()) + 1) as f64 / (1_u64 << 32) as f64;
            // Zipf's law with an exponent of 1.
            ((reused as f64).powf(random) as u64).clamp(1, reused) - 1
        };
        let scan_begin = entries * CALM_CAPACITIES;
        let mut misses = 0;
        for request in 0..entries * 8 {
            let is_hit = cache.request(&entry(key(draw()), self.blocks, reused_class)) == Lookup::Hit;
            misses += usize::from(!is_hit && request >= scan_begin + entries / 2);
            if request >= scan_begin {
                cache.request(&entry(key(1_000_000 + request), self.blocks, scanned_class));
            }
        }
        misses
    }
}

/// The most misses of the others, in percent of their misses without labels.
const MAX_PERCENT: usize = 105;
/// A class of a size, and classes of the types of user data.
const UNLABELLED: u8 = 15;
const GOOD: u8 = 27;
const BEST: u8 = 24;

#[test]
fn scan_of_the_best_class_costs_others_little() {
    for (entries, blocks) in [(128, 2), (227, 18), (500, 18), (2000, 18)] {
        for reused_percent in [50, 100, 150] {
            let misses = |reused_class: u8, scanned_class: u8| -> usize {
                let of_seed = |seed| {
                    Mixture { entries, blocks, reused_percent, seed }.misses(reused_class, scanned_class)
                };
                (1..6).map(of_seed).sum()
            };
            let unlabelled = misses(UNLABELLED, UNLABELLED);
            for reused_class in [GOOD, UNLABELLED] {
                let flooded = misses(reused_class, BEST);
                assert!(
                    flooded * 100 <= unlabelled * MAX_PERCENT,
                    "{entries} entries, {reused_percent} % reused, class {reused_class}: {flooded} misses, {unlabelled} \
                     without labels"
                );
            }
        }
    }
}
