//! A model of a storage device: computes when each request completes, without a clock and without I/O, so that
//! simulators and tests can share it. Equal requests, times and seed give equal results.
//!
//! Requests are served in the order of submission. A disk that chose the nearest waiting request would make a result
//! depend on later requests; here each result is final when returned. Real disks gain from reordering at high queue
//! depths, where this model is slower by up to half.

mod flash;
mod measured;
mod profile;
mod spindle;

use std::time::Duration;

pub use self::flash::FlashFigures;
pub use self::measured::{MeasuredFigures, Row};
pub use self::profile::{Profile, Rates};
pub use self::spindle::SpindleFigures;

use self::flash::Flash;
use self::measured::Measured;
use self::spindle::Spindle;

/// A request to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The transfer direction.
    pub access: Access,
    /// Offset of the first byte. Offsets beyond the end count as the end.
    pub offset: u64,
    /// The size; 0 is still a request.
    pub bytes: u64,
}

/// The transfer direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// From the device.
    Read,
    /// To the device. The data is on the medium when the request completes: a volatile cache is not modelled.
    Write,
}

/// The internals of a device.
#[derive(Debug, Clone, PartialEq)]
pub enum Medium {
    /// A rotating disk: a single arm, so one request at a time.
    Spindle(SpindleFigures),
    /// Flash memory: many units on a shared bus.
    Flash(FlashFigures),
    /// A device known only by its speed per request size.
    Measured(MeasuredFigures),
}

/// Counters of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Requests, including those in flight.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Requests that started where the previous one had ended.
    pub sequential: u64,
    /// The longest time that a request waited for earlier ones.
    pub longest_wait: Duration,
}

/// A device.
#[derive(Debug)]
pub struct DeviceModel {
    inside: Inside,
    chance: Chance,
    /// End offset of the last request.
    next_offset: Option<u64>,
    last_done: Duration,
    work: Work,
}

#[derive(Debug)]
enum Inside {
    Spindle(Spindle),
    Flash(Flash),
    Measured(Measured),
}

/// The times at which a request leaves the queue and completes.
struct Served {
    begun: Duration,
    done: Duration,
}

impl DeviceModel {
    /// An idle device.
    #[must_use]
    pub fn new(medium: Medium, seed: u64) -> Self {
        let inside = match medium {
            Medium::Spindle(figures) => Inside::Spindle(Spindle::new(figures)),
            Medium::Flash(figures) => Inside::Flash(Flash::new(figures)),
            Medium::Measured(figures) => Inside::Measured(Measured::new(figures)),
        };
        let work = Work::default();
        Self { inside, chance: Chance(seed), next_offset: None, last_done: Duration::ZERO, work }
    }

    /// Returns the completion time of a request submitted at `now`. It is never before that of an earlier request.
    /// `now` must not decrease.
    pub fn offer(&mut self, now: Duration, request: Request) -> Duration {
        let is_sequential = self.next_offset == Some(request.offset);
        self.next_offset = Some(request.offset.saturating_add(request.bytes));
        let served = match &mut self.inside {
            Inside::Spindle(spindle) => spindle.serve(now, request, is_sequential, &mut self.chance),
            Inside::Flash(flash) => flash.serve(now, request, &mut self.chance),
            Inside::Measured(measured) => measured.serve(now, request),
        };
        self.work.requests += 1;
        self.work.bytes = self.work.bytes.saturating_add(request.bytes);
        self.work.sequential += u64::from(is_sequential);
        self.work.longest_wait = self.work.longest_wait.max(served.begun.saturating_sub(now));
        self.last_done = self.last_done.max(served.done);
        self.last_done
    }

    /// Its counters, including requests in flight.
    #[must_use]
    pub const fn work(&self) -> Work {
        self.work
    }
}

/// A seeded pseudo-random generator (SplitMix64, as published by its authors).
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    /// A uniform value from 0 to less than `bound`.
    fn below(&mut self, bound: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let part = u128::from(mixed ^ (mixed >> 31));
        nanos((bound.as_nanos() * part) >> 64)
    }
}

const SECOND: u128 = 1_000_000_000;

/// The transfer time of `bytes`, rounded up so that no transfer exceeds the bandwidth.
fn transfer(bytes: u64, bytes_per_second: u64) -> Duration {
    nanos((u128::from(bytes) * SECOND).div_ceil(u128::from(bytes_per_second.max(1))))
}

fn nanos(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
