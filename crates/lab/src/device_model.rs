//! A storage device: when each request is done, decided without a clock of its own and without I/O, so that a simulator
//! and tests can share it. The same requests at the same times with the same seed give the same answers.
//!
//! Requests are served in the order in which they are offered. A disk that picked the nearest of those that wait would
//! make an answer depend on requests that come later; here each answer is final when it is given. Real disks gain by
//! that at great depths, so this one is slow there by up to a half.

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

/// What is asked of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// In which direction bytes go.
    pub access: Access,
    /// The first byte's place on the device. Places beyond its end count as its end.
    pub offset: u64,
    /// How many; none is a request all the same.
    pub bytes: u64,
}

/// In which direction bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// From the device.
    Read,
    /// To it. They are on the medium when the request is done: a cache that forgets is not modelled.
    Write,
}

/// How a device works inside.
#[derive(Debug, Clone, PartialEq)]
pub enum Medium {
    /// A rotating disk: one arm, so one request at a time.
    Spindle(SpindleFigures),
    /// Flash memory: many units behind one line.
    Flash(FlashFigures),
    /// A device of which only the speed by size of request is known.
    Measured(MeasuredFigures),
}

/// What a device did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Requests, with those that are under way.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that went on where the one before had ended.
    pub sequential: u64,
    /// The longest that one waited for those before it.
    pub longest_wait: Duration,
}

/// A device.
#[derive(Debug)]
pub struct DeviceModel {
    inside: Inside,
    chance: Chance,
    /// Where the last request ended.
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

/// When a request leaves its queue, and when it is done.
struct Served {
    begun: Duration,
    done: Duration,
}

impl DeviceModel {
    /// An idle one.
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

    /// When a request is done that is offered `now`: never before one that was offered earlier. Time does not go back.
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

    /// What it did, with what is still under way.
    #[must_use]
    pub const fn work(&self) -> Work {
        self.work
    }
}

/// Numbers that look like chance and follow from a seed (SplitMix64, as its authors publish it).
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    /// Evenly from 0 to less than `bound`.
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

/// How long so many bytes take at so many a second, rounded up: nothing is faster than its bandwidth.
fn transfer(bytes: u64, bytes_a_second: u64) -> Duration {
    nanos((u128::from(bytes) * SECOND).div_ceil(u128::from(bytes_a_second.max(1))))
}

fn nanos(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
