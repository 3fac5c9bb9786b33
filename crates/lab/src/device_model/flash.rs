//! Flash memory: units that work in parallel, and one bus shared by all transfers.
//!
//! A request occupies the first free unit, then waits for the bus. The offset is irrelevant. Background work
//! (garbage collection, wear levelling) is not modelled.

use std::time::Duration;

use super::{Access, DeviceRequest, ServiceTimes, SplitMix64, transfer_time};

/// Parameters of a flash device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlashParams {
    /// Number of requests processed in parallel.
    pub units: usize,
    /// Minimum latency of a read before its transfer.
    pub read_latency: Duration,
    /// Minimum latency of a write.
    pub write_latency: Duration,
    /// Both latencies grow by a uniform random value up to this.
    pub latency_jitter: Duration,
    /// Bytes per second of all units together.
    pub read_bytes_per_second: u64,
    /// Bytes per second of all units together.
    pub write_bytes_per_second: u64,
}

#[derive(Debug)]
pub(super) struct Flash {
    params: FlashParams,
    /// The time at which each unit becomes free.
    units: Vec<Duration>,
    bus_free_at: Duration,
}

impl Flash {
    pub fn new(params: FlashParams) -> Self {
        let units = vec![Duration::ZERO; params.units.max(1)];
        Self { params, units, bus_free_at: Duration::ZERO }
    }

    pub fn serve(&mut self, now: Duration, request: DeviceRequest, rng: &mut SplitMix64) -> ServiceTimes {
        let (latency, bandwidth) = match request.access {
            Access::Read => (self.params.read_latency, self.params.read_bytes_per_second),
            Access::Write => (self.params.write_latency, self.params.write_bytes_per_second),
        };
        let unit = (0..self.units.len()).min_by_key(|unit| self.units[*unit]).unwrap_or_default();
        let started_at = self.units[unit].max(now);
        let ready = started_at + latency + rng.below(self.params.latency_jitter);
        self.bus_free_at = self.bus_free_at.max(ready) + transfer_time(request.bytes, bandwidth);
        self.units[unit] = self.bus_free_at;
        ServiceTimes { started_at, done_at: self.bus_free_at }
    }
}
