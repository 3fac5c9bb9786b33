//! Disk slices and traffic control (Chen, Mesnier and Hahn, *Client-aware Cloud Storage*, MSST 2014, section V.D): how
//! long a large stream may hold a disk, which request a device serves next, and which device takes an object.
//!
//! - [`DiskSpeed`] derives the *slice*: the bytes that one stream transfers before the disk turns to another one.
//! - [`SliceQueue`] is the queue of one device. The first request of a stream has priority over the slices of others.
//! - [`DiskScheduler`] decides with it which requests have a disk, and for how long.
//! - [`TrafficRouter`] sends each object to the device that is expected to finish it first.
//!
//! All are pure: no I/O and no clock.

mod queue;
mod router;
mod scheduler;
mod statistics;

use std::time::Duration;

pub use self::queue::{MAX_FIRST_IN_A_ROW, SliceQueue, StreamShare, Urgency};
pub use self::router::{Device, DeviceSpeed, TrafficRouter};
pub use self::scheduler::{
    DiskScheduler, DiskWork, MAX_BUSY_TIME, MAX_CONCURRENT_SMALL, MAX_QUEUED_REQUESTS, QueueFull, TurnId,
    TurnRequest,
};
pub use self::statistics::{DiskStatistics, GroupStatistics, RequestGroup, RequestKind, WaitingRequests};

/// Objects above this size are streams: the disk serves them slice by slice.
pub const MAX_UNSLICED_BYTES: u64 = 4 << 20;
/// The first bytes of larger objects. A cache has a reserved share for them, so that the first byte of a stream need not
/// wait for the disk ([`ClassPolicyTable::listed_class`](crate::class_policy::ClassPolicyTable::listed_class)).
pub const HEAD_BYTES: u64 = 256 << 10;

/// Share of a disk's time in which a slice transfers data; the rest is positioning.
const SLICE_EFFICIENCY: f64 = 5.0 / 6.0;
const MIN_SLICE_BYTES: u64 = 256 << 10;
const MAX_SLICE_BYTES: u64 = 64 << 20;
/// Slices are multiples of this.
const SLICE_UNIT_BYTES: u64 = 64 << 10;

/// The speed of a rotating disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskSpeed {
    /// Mean time until a transfer at another place begins: seek and rotational delay.
    pub positioning_time: Duration,
    /// Sequential transfer rate.
    pub bytes_per_second: u64,
}

impl DiskSpeed {
    /// The bytes that a stream transfers before another one is served. The disk then achieves at least 5/6 of its
    /// sequential rate with any number of streams, and another request waits for no longer than that takes.
    ///
    /// From 256 KiB to 64 MiB.
    #[must_use]
    pub fn slice_bytes(&self) -> u64 {
        let transfer_seconds =
            self.positioning_time.as_secs_f64() * SLICE_EFFICIENCY / (1.0 - SLICE_EFFICIENCY);
        let bytes = (transfer_seconds * self.bytes_per_second as f64).ceil() as u64;
        bytes
            .div_ceil(SLICE_UNIT_BYTES)
            .saturating_mul(SLICE_UNIT_BYTES)
            .clamp(MIN_SLICE_BYTES, MAX_SLICE_BYTES)
    }

    /// The time for which a slice holds the disk.
    #[must_use]
    pub fn slice_time(&self) -> Duration {
        let transfer = self.slice_bytes() as f64 / self.bytes_per_second.max(1) as f64;
        self.positioning_time + Duration::from_secs_f64(transfer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slice_of_the_papers_disk_is_about_8_mib() {
        let disk = DiskSpeed { positioning_time: Duration::from_millis(12), bytes_per_second: 140_000_000 };
        assert_eq!(disk.slice_bytes(), 8_454_144);
        assert!(disk.slice_time() < Duration::from_millis(73), "{:?}", disk.slice_time());
    }

    proptest! {
        #[test]
        fn slice_uses_five_sixths_of_the_disk_within_its_bounds(
            positioning_us in 0_u64..100_000, bytes_per_second in 1_u64..10_000_000_000,
        ) {
            let disk = DiskSpeed { positioning_time: Duration::from_micros(positioning_us), bytes_per_second };
            let bytes = disk.slice_bytes();
            prop_assert!((MIN_SLICE_BYTES..=MAX_SLICE_BYTES).contains(&bytes));
            let transfer = bytes as f64 / bytes_per_second as f64;
            let efficiency = transfer / (transfer + disk.positioning_time.as_secs_f64());
            prop_assert!(efficiency >= SLICE_EFFICIENCY - 1e-9 || bytes == MAX_SLICE_BYTES, "{efficiency}");
        }
    }
}
