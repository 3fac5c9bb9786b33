//! A device known only by its speed for some request sizes. It serves requests one after another.
//!
//! The request time is interpolated linearly between measured sizes. A smaller request takes as long as the smallest;
//! a larger one has the speed of the largest. Offsets and concurrency are not measured and have no effect.

use std::time::Duration;

use super::{Access, DeviceRequest, ServiceTimes, nanos, transfer_time};

/// Measured rows, in ascending order of size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredParams(
    /// At least one row.
    pub Vec<MeasuredRow>,
);

/// The measured speed for one request size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredRow {
    /// Request size.
    pub request_bytes: u64,
    /// Read bandwidth in bytes per second.
    pub read_bytes_per_second: u64,
    /// Write bandwidth in bytes per second.
    pub write_bytes_per_second: u64,
}

impl MeasuredRow {
    pub(super) const fn bandwidth(&self, access: Access) -> u64 {
        match access {
            Access::Read => self.read_bytes_per_second,
            Access::Write => self.write_bytes_per_second,
        }
    }

    /// The time of one request of this size.
    fn time(&self, access: Access) -> Duration {
        transfer_time(self.request_bytes, self.bandwidth(access))
    }
}

#[derive(Debug)]
pub(super) struct Measured {
    params: MeasuredParams,
    free_at: Duration,
}

impl Measured {
    pub const fn new(params: MeasuredParams) -> Self {
        Self { params, free_at: Duration::ZERO }
    }

    pub fn serve(&mut self, now: Duration, request: DeviceRequest) -> ServiceTimes {
        let started_at = self.free_at.max(now);
        self.free_at = started_at + self.params.time(request.access, request.bytes);
        ServiceTimes { started_at, done_at: self.free_at }
    }
}

impl MeasuredParams {
    fn time(&self, access: Access, bytes: u64) -> Duration {
        let Some(above) = self.0.iter().position(|row| row.request_bytes >= bytes) else {
            return self.0.last().map_or(Duration::ZERO, |row| transfer_time(bytes, row.bandwidth(access)));
        };
        let high = self.0[above];
        let Some(low) = above.checked_sub(1).map(|below| self.0[below]) else {
            return high.time(access);
        };
        let (low_time, high_time) = (low.time(access).as_nanos(), high.time(access).as_nanos());
        let (part, whole) =
            (u128::from(bytes - low.request_bytes), u128::from(high.request_bytes - low.request_bytes));
        nanos((low_time * (whole - part) + high_time * part).div_ceil(whole))
    }
}
