//! A window of time in slices: what is newest takes the place of what is oldest.
//!
//! Feeding is a load and a comparison beside what the slice itself costs; a lock is taken once a slice, by whoever comes
//! first, so that nobody adds to what is being cleared. A thread that sleeps for a whole window between finding its slice
//! and adding to it misplaces that one sample.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a slice holds.
pub(super) trait Forget: Default {
    /// Becomes as it was at first.
    fn forget(&self);
}

/// The last `N` slices.
#[derive(Debug)]
pub(super) struct Ring<T, const N: usize> {
    slots: [Slot<T>; N],
    turning: Mutex<()>,
}

#[derive(Debug, Default)]
struct Slot<T> {
    /// One more than the slice's number; 0 where there was none yet.
    mark: AtomicU64,
    held: T,
}

impl<T: Forget, const N: usize> Default for Ring<T, N> {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| Slot { mark: AtomicU64::new(0), held: T::default() }),
            turning: Mutex::default(),
        }
    }
}

impl<T: Forget, const N: usize> Ring<T, N> {
    /// The slice of this number; `None` where a later one has taken its place.
    pub fn at(&self, number: u64) -> Option<&T> {
        let slot = &self.slots[(number % N as u64) as usize];
        let mark = number.saturating_add(1);
        if slot.mark.load(Ordering::Acquire) < mark {
            let _turn = self.turning.lock().unwrap_or_else(PoisonError::into_inner);
            if slot.mark.load(Ordering::Acquire) < mark {
                slot.held.forget();
                slot.mark.store(mark, Ordering::Release);
            }
        }
        (slot.mark.load(Ordering::Acquire) == mark).then_some(&slot.held)
    }

    /// The last `count` slices of all until `number`, and what is later.
    pub fn last(&self, number: u64, count: u64) -> impl Iterator<Item = &T> {
        let oldest = (number + 1).saturating_sub(count);
        let is_in = move |slot: &&Slot<T>| slot.mark.load(Ordering::Acquire) > oldest;
        self.slots.iter().filter(is_in).map(|slot| &slot.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Forget for Count {
        fn forget(&self) {
            // Long enough for others to come.
            std::thread::yield_now();
            self.0.store(0, Ordering::Relaxed);
        }
    }

    fn add(ring: &Ring<Count, 4>, number: u64) -> bool {
        ring.at(number).map(|count| count.0.fetch_add(1, Ordering::Relaxed)).is_some()
    }

    fn sum(ring: &Ring<Count, 4>, number: u64, count: u64) -> u64 {
        ring.last(number, count).map(|count| count.0.load(Ordering::Relaxed)).sum()
    }

    #[test]
    fn what_is_newest_takes_the_place_of_what_is_oldest() {
        let ring = Ring::default();
        for number in [0, 1, 1, 3] {
            assert!(add(&ring, number));
        }
        assert_eq!([sum(&ring, 3, 4), sum(&ring, 3, 3), sum(&ring, 3, 1), sum(&ring, 4, 4)], [4, 3, 1, 3]);
        assert!(add(&ring, 5), "takes the place of 1");
        assert!(!add(&ring, 1), "has passed");
        assert_eq!([sum(&ring, 5, 4), sum(&ring, 100, 4)], [2, 0]);
    }

    #[test]
    fn nothing_is_lost_where_many_come_first() {
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
