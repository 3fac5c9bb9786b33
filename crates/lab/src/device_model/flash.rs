//! Flash memory: units that look up or store at the same time, and one line over which all bytes pass.
//!
//! A request takes one unit, that which is free first, and then its turn on the line. Where a byte lies does not matter.
//! What the device does for itself (collecting blocks, wearing them evenly) is not modelled.

use std::time::Duration;

use super::{Access, Chance, Request, Served, transfer};

/// What flash memory is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlashFigures {
    /// Requests that are worked on at a time.
    pub units: usize,
    /// What a read takes before its bytes pass, at the least.
    pub read_latency: Duration,
    /// What a write takes, at the least.
    pub write_latency: Duration,
    /// Both take so much more by chance, evenly from nothing.
    pub spread: Duration,
    /// Bytes a second, of all units together.
    pub read_bandwidth: u64,
    /// The same for writes.
    pub write_bandwidth: u64,
}

#[derive(Debug)]
pub(super) struct Flash {
    figures: FlashFigures,
    /// When each unit is free.
    units: Vec<Duration>,
    line_free_at: Duration,
}

impl Flash {
    pub fn new(figures: FlashFigures) -> Self {
        let units = vec![Duration::ZERO; figures.units.max(1)];
        Self { figures, units, line_free_at: Duration::ZERO }
    }

    pub fn serve(&mut self, now: Duration, request: Request, chance: &mut Chance) -> Served {
        let (latency, bandwidth) = match request.access {
            Access::Read => (self.figures.read_latency, self.figures.read_bandwidth),
            Access::Write => (self.figures.write_latency, self.figures.write_bandwidth),
        };
        let unit = (0..self.units.len()).min_by_key(|unit| self.units[*unit]).unwrap_or_default();
        let begun = self.units[unit].max(now);
        let ready = begun + latency + chance.below(self.figures.spread);
        self.line_free_at = self.line_free_at.max(ready) + transfer(request.bytes, bandwidth);
        self.units[unit] = self.line_free_at;
        Served { begun, done: self.line_free_at }
    }
}
