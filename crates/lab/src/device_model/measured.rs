//! A device of which only this is known: how fast it was with requests of some sizes, one at a time.
//!
//! The time that a request takes goes evenly from one measured size to the next; one smaller than all takes as long as
//! the smallest, one larger has the speed of the largest. Nothing is known of places or of parallel requests, so they
//! make no difference.

use std::time::Duration;

use super::{Access, Request, Served, nanos, transfer};

/// What was measured, from the smallest size to the largest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredFigures(
    /// At least one row.
    pub Vec<Row>,
);

/// The speed with one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Of a request.
    pub bytes: u64,
    /// Bytes a second.
    pub read: u64,
    /// The same for writes.
    pub write: u64,
}

impl Row {
    pub(super) const fn bandwidth(&self, access: Access) -> u64 {
        match access {
            Access::Read => self.read,
            Access::Write => self.write,
        }
    }

    /// How long one request of this size took.
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
        let (least, most) = (low.time(access).as_nanos(), high.time(access).as_nanos());
        let (part, whole) = (u128::from(bytes - low.bytes), u128::from(high.bytes - low.bytes));
        nanos((least * (whole - part) + most * part).div_ceil(whole))
    }
}
