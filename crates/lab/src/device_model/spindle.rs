//! A rotating disk: a request takes a seek, a rotational delay and the transfer.
//!
//! A request that starts where the last one ended costs only the transfer, because disks read ahead and gather
//! writes. All tracks have the same speed; the faster outer tracks of a real disk are not modelled.

use std::time::Duration;

use super::{Access, DeviceRequest, ServiceTimes, SplitMix64, transfer_time};

/// Parameters of a rotating disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpindleParams {
    /// Capacity.
    pub capacity_bytes: u64,
    /// Minimum seek time: to the next track.
    pub min_seek: Duration,
    /// Maximum seek time: across the disk. Between the two, the time grows with the square root of the distance.
    pub max_seek: Duration,
    /// Time of one rotation. The mean rotational delay is half of it.
    pub rotation_time: Duration,
    /// Read bandwidth in bytes per second.
    pub read_bytes_per_second: u64,
    /// Write bandwidth in bytes per second.
    pub write_bytes_per_second: u64,
}

impl SpindleParams {
    /// Mean seek time between random offsets: the mean square root of their distance is 8/15.
    #[must_use]
    pub fn mean_seek(&self) -> Duration {
        self.min_seek + self.max_seek.saturating_sub(self.min_seek) * 8 / 15
    }
}

#[derive(Debug)]
pub(super) struct Spindle {
    params: SpindleParams,
    /// Offset of the head.
    head: u64,
    free_at: Duration,
}

impl Spindle {
    pub const fn new(params: SpindleParams) -> Self {
        Self { params, head: 0, free_at: Duration::ZERO }
    }

    pub fn serve(
        &mut self,
        now: Duration,
        request: DeviceRequest,
        is_sequential: bool,
        rng: &mut SplitMix64,
    ) -> ServiceTimes {
        let params = self.params;
        let started_at = self.free_at.max(now);
        let reached = if is_sequential {
            started_at
        } else {
            started_at + self.seek(request.offset) + rng.below(params.rotation_time)
        };
        let bandwidth = match request.access {
            Access::Read => params.read_bytes_per_second,
            Access::Write => params.write_bytes_per_second,
        };
        self.free_at = reached + transfer_time(request.bytes, bandwidth);
        self.head = request.offset.saturating_add(request.bytes).min(params.capacity_bytes);
        ServiceTimes { started_at, done_at: self.free_at }
    }

    fn seek(&self, to: u64) -> Duration {
        let distance = self.head.abs_diff(to.min(self.params.capacity_bytes));
        let part = distance as f64 / self.params.capacity_bytes.max(1) as f64;
        let range = self.params.max_seek.saturating_sub(self.params.min_seek);
        self.params.min_seek + range.mul_f64(part.clamp(0.0, 1.0).sqrt())
    }
}
