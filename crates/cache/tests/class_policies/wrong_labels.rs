//! Labels that predict nothing, or the contrary, cost little more than none, whatever the sizes of objects and memory.

use super::*;

const KIB: usize = 1 << 10;
const OBJECTS: usize = 300;
const SMALL_OBJECTS: usize = 200;

/// A cache, and objects of which a third is a scan in turn.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// Above 48 KiB, an object has its data apart from its head.
    scanned_bytes: usize,
    /// Memory for data.
    data_bytes: usize,
}

/// Popular small objects and a scan of larger ones, all in the classes that `label` gives. Returns the reads that
/// reached the store.
async fn misses_of_a_trace(setting: Setting, label: impl Fn(usize) -> Classes) -> u64 {
    let desk = Desk::open(Tiers { memory_bytes: setting.data_bytes / 15 * 16, disk_bytes: 0 }).await;
    let size = |number: usize| if number < SMALL_OBJECTS { SMALL_BYTES } else { setting.scanned_bytes };
    for number in 0..OBJECTS {
        desk.put(&format!("{number}"), size(number), label(number)).await;
    }
    let before = desk.store.calls(Operation::Get);
    let mut random = fastrand::Rng::with_seed(7);
    for request in 0..12_000 {
        let number = if request % 3 == 0 {
            SMALL_OBJECTS + request / 3 % (OBJECTS - SMALL_OBJECTS)
        } else {
            random.usize(0..SMALL_OBJECTS) * random.usize(0..SMALL_OBJECTS) / SMALL_OBJECTS
        };
        desk.read(&format!("{number}")).await;
    }
    desk.store.calls(Operation::Get) - before
}

/// The most misses with wrong labels, in percent of those without labels.
const MAX_PERCENT: u64 = 110;

async fn check(setting: Setting) {
    let unlabelled = misses_of_a_trace(setting, |_| Classes::default()).await;
    let shuffled = misses_of_a_trace(setting, |number| of_class([25, 27, 29, 31][number * 7 % 4])).await;
    let inverted =
        misses_of_a_trace(setting, |number| of_class(if number < SMALL_OBJECTS { 31 } else { 25 })).await;
    for (name, misses) in [("shuffled", shuffled), ("inverted", inverted)] {
        assert!(
            misses * 100 <= unlabelled * MAX_PERCENT,
            "{setting:?}: {misses} misses if {name}, {unlabelled} without labels"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_labels_cost_little_with_data_in_heads() {
    for data_bytes in [2048 * KIB, 3072 * KIB] {
        check(Setting { scanned_bytes: 40 * KIB, data_bytes }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_labels_cost_little_with_data_apart() {
    for data_bytes in [2867 * KIB, 3072 * KIB] {
        check(Setting { scanned_bytes: 60 * KIB, data_bytes }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_labels_cost_little_with_several_extents() {
    check(Setting { scanned_bytes: 200 * KIB, data_bytes: 4096 * KIB }).await;
}
