//! Flash memory: units that work in parallel, and one bus shared by all transfers.
//!
//! A request occupies the first free unit, then takes its turn on the bus. The offset is irrelevant. Background work
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
    figures: FlashParams,
    /// The time at which each unit becomes free.
    units: Vec<Duration>,
    bus_free_at: Duration,
}

impl Flash {
    pub fn new(figures: FlashParams) -> Self {
        let units = vec![Duration::ZERO; figures.units.max(1)];
        Self { figures, units, bus_free_at: Duration::ZERO }
    }

    pub fn serve(&mut self, now: Duration, request: DeviceRequest, chance: &mut SplitMix64) -> ServiceTimes {
        let (latency, bandwidth) = match request.access {
            Access::Read => (self.figures.read_latency, self.figures.read_bytes_per_second),
            Access::Write => (self.figures.write_latency, self.figures.write_bytes_per_second),
        };
        let unit = (0..self.units.len()).min_by_key(|unit| self.units[*unit]).unwrap_or_default();
        let begun = self.units[unit].max(now);
        let ready = begun + latency + chance.below(self.figures.latency_jitter);
        self.bus_free_at = self.bus_free_at.max(ready) + transfer_time(request.bytes, bandwidth);
        self.units[unit] = self.bus_free_at;
        ServiceTimes { started_at: begun, done_at: self.bus_free_at }
    }
}
