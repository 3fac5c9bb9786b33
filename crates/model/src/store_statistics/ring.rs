//! A sliding time window of `N` slices, in which the newest slice replaces the oldest.
//!
//! An update costs one load and one comparison on top of the slice itself. The first thread to reach a new slice takes
//! a lock to clear it, so that no other thread adds to a slice being cleared. A thread that sleeps for a whole window
//! between finding its slice and adding to it misplaces that one sample.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The contents of a slice.
pub(super) trait Reset: Default {
    /// Resets it to the initial state.
    fn reset(&self);
}

/// The last `N` slices.
#[derive(Debug)]
pub(super) struct Ring<T, const N: usize> {
    slots: [Slot<T>; N],
    rotation: Mutex<()>,
}

#[derive(Debug, Default)]
struct Slot<T> {
    /// The number of the slice plus one; 0 if there was none.
    mark: AtomicU64,
    value: T,
}

impl<T: Reset, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| Slot { mark: AtomicU64::new(0), value: T::default() }),
            rotation: Mutex::default(),
        }
    }
}

impl<T: Reset, const N: usize> Ring<T, N> {
    /// The slice with this number; `None` if a later one has replaced it.
    pub fn slice(&self, number: u64) -> Option<&T> {
        let slot = &self.slots[(number % N as u64) as usize];
        let mark = number.saturating_add(1);
        if slot.mark.load(Ordering::Acquire) < mark {
            let _guard = self.rotation.lock().unwrap_or_else(PoisonError::into_inner);
            if slot.mark.load(Ordering::Acquire) < mark {
                slot.value.reset();
                slot.mark.store(mark, Ordering::Release);
            }
        }
        (slot.mark.load(Ordering::Acquire) == mark).then_some(&slot.value)
    }

    /// The last `count` slices up to `number`, and any later ones.
    pub fn last(&self, number: u64, count: u64) -> impl Iterator<Item = &T> {
        let oldest = (number + 1).saturating_sub(count);
        let is_in = move |slot: &&Slot<T>| slot.mark.load(Ordering::Acquire) > oldest;
        self.slots.iter().filter(is_in).map(|slot| &slot.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Reset for Count {
        fn reset(&self) {
            // Gives other threads time to race for the slice.
            std::thread::yield_now();
            self.0.store(0, Ordering::Relaxed);
        }
    }

    fn add(ring: &Ring<Count, 4>, number: u64) -> bool {
        ring.slice(number).map(|count| count.0.fetch_add(1, Ordering::Relaxed)).is_some()
    }

    fn sum(ring: &Ring<Count, 4>, number: u64, count: u64) -> u64 {
        ring.last(number, count).map(|count| count.0.load(Ordering::Relaxed)).sum()
    }

    #[test]
    fn newest_slice_replaces_the_oldest() {
        let ring = Ring::default();
        for number in [0, 1, 1, 3] {
            assert!(add(&ring, number));
        }
        assert_eq!([sum(&ring, 3, 4), sum(&ring, 3, 3), sum(&ring, 3, 1), sum(&ring, 4, 4)], [4, 3, 1, 3]);
        assert!(add(&ring, 5), "replaces slice 1");
        assert!(!add(&ring, 1), "slice 1 is no longer in the window");
        assert_eq!([sum(&ring, 5, 4), sum(&ring, 100, 4)], [2, 0]);
    }

    #[test]
    fn no_count_is_lost_when_threads_race_for_a_slice() {
        let ring = Ring::<Count, 4>::default();
        for number in 0..200 {
            let together = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        together.wait();
                        (0..50).for_each(|_| assert!(add(&ring, number)));
                    });
                }
            });
            assert_eq!(sum(&ring, number, 1), 200);
        }
    }
}
