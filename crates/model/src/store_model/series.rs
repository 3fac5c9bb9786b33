//! Live latency statistics of one operation and size class.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::ring::{Forget, Ring};
use super::spread::{Histogram, Spread, nanos};
use super::{SLICES, SizeClass, slice_of};

/// Latency histograms of the window, and totals since the start.
#[derive(Debug, Default)]
pub(super) struct Series {
    window: Ring<Slice, SLICES>,
    service_total: Tally,
    first_byte_total: Tally,
}

/// Totals since the start.
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

/// Number and total duration of requests since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// Number of requests.
    pub count: u64,
    /// Their total duration.
    pub time: Duration,
}

#[derive(Debug, Default)]
struct Slice {
    service: Histogram,
    first_byte: Histogram,
    /// Bytes of the requests in `service`.
    bytes: AtomicU64,
}

impl Forget for Slice {
    fn forget(&self) {
        self.service.forget();
        self.first_byte.forget();
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// Latency statistics of one operation and size class in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alike {
    /// The size class.
    pub sizes: SizeClass,
    /// Mean size of the requests completed in the window.
    pub mean_bytes: u64,
    /// Total time that the caller waited, of completed requests.
    pub service: Spread,
    /// Time to the first byte of the response: of a read the first byte of the object, of a write the response after
    /// the last byte sent. Other operations have none.
    pub first_byte: Spread,
    /// `service` since the beginning.
    pub done: Total,
    /// `first_byte` since the beginning.
    pub answered: Total,
}

impl Series {
    pub fn done(&self, now: Duration, bytes: u64, service: Duration) {
        self.service_total.add(service);
        if let Some(slice) = self.window.at(slice_of(now)) {
            slice.service.add(service);
            slice.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub fn answered(&self, now: Duration, first_byte: Duration) {
        self.first_byte_total.add(first_byte);
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
            done: self.service_total.read(),
            answered: self.first_byte_total.read(),
        }
    }
}
