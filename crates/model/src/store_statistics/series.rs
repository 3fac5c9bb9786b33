//! Live latency statistics of one operation and size class.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::histogram::{AtomicHistogram, LatencyHistogram, nanos};
use super::ring::{Reset, Ring};
use super::{SLICES, SizeClass, slice_of};

/// Latency histograms of the window, and totals since the start.
#[derive(Debug, Default)]
pub(super) struct Series {
    window: Ring<Slice, SLICES>,
    response_time_total: AtomicTotal,
    first_byte_total: AtomicTotal,
}

/// Totals since the start.
#[derive(Debug, Default)]
struct AtomicTotal {
    count: AtomicU64,
    nanos: AtomicU64,
}

impl AtomicTotal {
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
    response_time: AtomicHistogram,
    first_byte: AtomicHistogram,
    /// Bytes of the requests in `response_time`.
    bytes: AtomicU64,
}

impl Reset for Slice {
    fn reset(&self) {
        self.response_time.reset();
        self.first_byte.reset();
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// Latency statistics of one operation and size class in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeClassStats {
    /// The size class.
    pub size_class: SizeClass,
    /// Mean size of the requests completed in the window.
    pub mean_bytes: u64,
    /// Response time of completed requests: total time that the caller waited, including any queueing.
    pub response_time: LatencyHistogram,
    /// Time to the first byte of the response: of a read the first byte of the object, of a write the response after
    /// the last byte sent. Other operations have none.
    pub first_byte: LatencyHistogram,
    /// Response time since the start.
    pub response_time_total: Total,
    /// Time to the first byte since the start.
    pub first_byte_total: Total,
}

impl Series {
    pub fn record_response_time(&self, now: Duration, bytes: u64, response_time: Duration) {
        self.response_time_total.add(response_time);
        if let Some(slice) = self.window.slice(slice_of(now)) {
            slice.response_time.add(response_time);
            slice.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub fn record_first_byte(&self, now: Duration, first_byte: Duration) {
        self.first_byte_total.add(first_byte);
        if let Some(slice) = self.window.slice(slice_of(now)) {
            slice.first_byte.add(first_byte);
        }
    }

    pub fn snapshot(&self, now: Duration, size_class: SizeClass) -> SizeClassStats {
        let (mut response_time, mut first_byte, mut bytes) =
            (LatencyHistogram::default(), LatencyHistogram::default(), 0_u64);
        for slice in self.window.last(slice_of(now), SLICES as u64) {
            response_time.add_live(&slice.response_time);
            first_byte.add_live(&slice.first_byte);
            bytes = bytes.saturating_add(slice.bytes.load(Ordering::Relaxed));
        }
        let mean_bytes = bytes.checked_div(response_time.count()).unwrap_or_default();
        SizeClassStats {
            size_class,
            mean_bytes,
            response_time,
            first_byte,
            response_time_total: self.response_time_total.read(),
            first_byte_total: self.first_byte_total.read(),
        }
    }
}
