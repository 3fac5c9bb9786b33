//! A device known only by its speed for some request sizes, one request at a time.
//!
//! The request time is interpolated linearly between measured sizes. A smaller request takes as long as the smallest;
//! a larger one has the speed of the largest. Offsets and concurrency are not measured and have no effect.

use std::time::Duration;

use super::{Access, Request, Served, nanos, transfer};

/// Measured rows, in ascending order of size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredFigures(
    /// At least one row.
    pub Vec<Row>,
);

/// The measured speed for one request size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Request size.
    pub bytes: u64,
    /// Read bandwidth in bytes per second.
    pub read: u64,
    /// Write bandwidth in bytes per second.
    pub write: u64,
}

impl Row {
    pub(super) const fn bandwidth(&self, access: Access) -> u64 {
        match access {
            Access::Read => self.read,
            Access::Write => self.write,
        }
    }

    /// The time of one request of this size.
    fn time(&self, access: Access) -> Duration {
        transfer(self.bytes, self.bandwidth(access))
    }
}

#[derive(Debug)]
pub(super) struct Measured {
    figures: MeasuredFigures,
    free_at: Duration,
}

impl Measured {
    pub const fn new(figures: MeasuredFigures) -> Self {
        Self { figures, free_at: Duration::ZERO }
    }

    pub fn serve(&mut self, now: Duration, request: Request) -> Served {
        let begun = self.free_at.max(now);
        self.free_at = begun + self.figures.time(request.access, request.bytes);
        Served { begun, done: self.free_at }
    }
}

impl MeasuredFigures {
    fn time(&self, access: Access, bytes: u64) -> Duration {
        let Some(above) = self.0.iter().position(|row| row.bytes >= bytes) else {
            return self.0.last().map_or(Duration::ZERO, |row| transfer(bytes, row.bandwidth(access)));
        };
        let high = self.0[above];
        let Some(low) = above.checked_sub(1).map(|below| self.0[below]) else {
            return high.time(access);
        };
        let (low_time, high_time) = (low.time(access).as_nanos(), high.time(access).as_nanos());
        let (part, whole) = (u128::from(bytes - low.bytes), u128::from(high.bytes - low.bytes));
        nanos((low_time * (whole - part) + high_time * part).div_ceil(whole))
    }
}
