//! Requests of one kind and of sizes that are alike.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::ring::{Forget, Ring};
use super::spread::{Histogram, Spread, nanos};
use super::{SLICES, SizeClass, slice_of};

/// What is kept of them.
#[derive(Debug, Default)]
pub(super) struct Series {
    window: Ring<Slice, SLICES>,
    done: Tally,
    answered: Tally,
}

/// All since the beginning.
#[derive(Debug, Default)]
struct Tally {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Tally {
    fn add(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos(time), Ordering::Relaxed);
    }

    fn read(&self) -> Total {
        let time = Duration::from_nanos(self.nanos.load(Ordering::Relaxed));
        Total { count: self.count.load(Ordering::Relaxed), time }
    }
}

/// How many there were since the beginning, and how long they took together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// How many.
    pub count: u64,
    /// How long, together.
    pub time: Duration,
}

#[derive(Debug, Default)]
struct Slice {
    service: Histogram,
    first_byte: Histogram,
    /// Of those in `service`.
    bytes: AtomicU64,
}

impl Forget for Slice {
    fn forget(&self) {
        self.service.forget();
        self.first_byte.forget();
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// Requests of one kind and of sizes that are alike: how long they took in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alike {
    /// Their sizes.
    pub sizes: SizeClass,
    /// The mean size of those that were done in the window.
    pub mean_bytes: u64,
    /// How long the caller waited in all, of those that were done.
    pub service: Spread,
    /// How long the caller waited for the first byte of the answer. Of reads that is the first of the object; of writes the
    /// answer behind the last byte that was handed over. Other kinds have none.
    pub first_byte: Spread,
    /// `service` since the beginning.
    pub done: Total,
    /// `first_byte` since the beginning.
    pub answered: Total,
}

impl Series {
    pub fn done(&self, now: Duration, bytes: u64, service: Duration) {
        self.done.add(service);
        if let Some(slice) = self.window.at(slice_of(now)) {
            slice.service.add(service);
            slice.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub fn answered(&self, now: Duration, first_byte: Duration) {
        self.answered.add(first_byte);
        if let Some(slice) = self.window.at(slice_of(now)) {
            slice.first_byte.add(first_byte);
        }
    }

    pub fn read(&self, now: Duration, sizes: SizeClass) -> Alike {
        let (mut service, mut first_byte, mut bytes) = (Spread::default(), Spread::default(), 0_u64);
        for slice in self.window.last(slice_of(now), SLICES as u64) {
            service.add(&slice.service);
            first_byte.add(&slice.first_byte);
            bytes = bytes.saturating_add(slice.bytes.load(Ordering::Relaxed));
        }
        let mean_bytes = bytes.checked_div(service.count()).unwrap_or_default();
        Alike {
            sizes,
            mean_bytes,
            service,
            first_byte,
            done: self.done.read(),
            answered: self.answered.read(),
        }
    }
}
