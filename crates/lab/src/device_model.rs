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

pub use self::flash::FlashParams;
pub use self::measured::{MeasuredParams, MeasuredRow};
pub use self::profile::{DeviceProfile, IoLimits};
pub use self::spindle::SpindleParams;

use self::flash::Flash;
use self::measured::Measured;
use self::spindle::Spindle;

/// A request to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRequest {
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
    /// A rotating disk: its single arm serves requests one after another.
    Spindle(SpindleParams),
    /// Flash memory: many units on a shared bus.
    Flash(FlashParams),
    /// A device known only by its speed per request size.
    Measured(MeasuredParams),
}

/// Counters of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Requests, including those in flight.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Requests that started where the previous one had ended.
    pub sequential_requests: u64,
    /// The longest time that a request waited for earlier ones.
    pub max_queue_wait: Duration,
}

/// A device.
#[derive(Debug)]
pub struct DeviceModel {
    state: MediumState,
    rng: SplitMix64,
    /// End offset of the last request.
    next_offset: Option<u64>,
    last_done: Duration,
    stats: DeviceStats,
}

#[derive(Debug)]
enum MediumState {
    Spindle(Spindle),
    Flash(Flash),
    Measured(Measured),
}

/// The times at which a request leaves the queue and completes.
struct ServiceTimes {
    started_at: Duration,
    done_at: Duration,
}

impl DeviceModel {
    /// An idle device.
    #[must_use]
    pub fn new(medium: Medium, seed: u64) -> Self {
        let state = match medium {
            Medium::Spindle(params) => MediumState::Spindle(Spindle::new(params)),
            Medium::Flash(params) => MediumState::Flash(Flash::new(params)),
            Medium::Measured(params) => MediumState::Measured(Measured::new(params)),
        };
        Self {
            state,
            rng: SplitMix64(seed),
            next_offset: None,
            last_done: Duration::ZERO,
            stats: DeviceStats::default(),
        }
    }

    /// Returns the completion time of a request submitted at `now`. It is never before that of an earlier request.
    /// `now` must not decrease.
    pub fn submit(&mut self, now: Duration, request: DeviceRequest) -> Duration {
        let is_sequential = self.next_offset == Some(request.offset);
        self.next_offset = Some(request.offset.saturating_add(request.bytes));
        let served = match &mut self.state {
            MediumState::Spindle(spindle) => spindle.serve(now, request, is_sequential, &mut self.rng),
            MediumState::Flash(flash) => flash.serve(now, request, &mut self.rng),
            MediumState::Measured(measured) => measured.serve(now, request),
        };
        self.stats.requests += 1;
        self.stats.bytes = self.stats.bytes.saturating_add(request.bytes);
        self.stats.sequential_requests += u64::from(is_sequential);
        self.stats.max_queue_wait = self.stats.max_queue_wait.max(served.started_at.saturating_sub(now));
        self.last_done = self.last_done.max(served.done_at);
        self.last_done
    }

    /// Its counters, including requests in flight.
    #[must_use]
    pub const fn stats(&self) -> DeviceStats {
        self.stats
    }
}

/// A seeded pseudo-random generator (SplitMix64, as published by its authors).
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
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

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The transfer time of `bytes`, rounded up so that no transfer exceeds the bandwidth.
fn transfer_time(bytes: u64, bytes_per_second: u64) -> Duration {
    nanos((u128::from(bytes) * NANOS_PER_SECOND).div_ceil(u128::from(bytes_per_second.max(1))))
}

fn nanos(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
