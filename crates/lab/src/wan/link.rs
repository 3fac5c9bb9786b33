//! One direction of a link: decides the fate of each packet, without a clock of its own.
//!
//! A packet waits in the queue, or is dropped if the queue is full. The link transmits it at its rate, may lose it,
//! and delivers it after the delay plus jitter. Lost packets use transmission time. Losses and jitter come from
//! separate seeded sequences: one does not affect the other for the n-th packet.

use std::f64::consts::TAU;
use std::time::Duration;

use fastrand::Rng;

/// Distribution of jitter around the delay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JitterKind {
    /// Normal: the jitter is the standard deviation. A negative delay counts as zero.
    #[default]
    Normal,
    /// Uniform: the jitter is half the width.
    Uniform,
}

/// Properties of one direction of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkOptions {
    /// Delay after the last bit of a packet was transmitted.
    pub delay: Duration,
    /// Variation of the delay.
    pub jitter: Duration,
    /// Distribution of the variation.
    pub jitter_kind: JitterKind,
    /// True if packets may overtake each other. Otherwise a packet arrives no earlier than those before it, as on any
    /// single link: packets closer together than the jitter wait for the slowest of their neighbours.
    pub allow_reordering: bool,
    /// Probability that the link loses a packet, from 0 to 1, independently for each.
    pub loss: f64,
    /// Rate in bits per second of whole IP packets; `None` for unlimited.
    pub bits_per_second: Option<u64>,
    /// Maximum bytes in the queue; further packets are dropped.
    pub queue_bytes: u64,
}

impl Default for LinkOptions {
    /// A perfect link.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            jitter_kind: JitterKind::Normal,
            allow_reordering: false,
            loss: 0.0,
            bits_per_second: None,
            queue_bytes: u64::MAX,
        }
    }
}

impl LinkOptions {
    /// Maximum delay of a packet excluding queueing; normal jitter very rarely exceeds it.
    pub(super) fn max_delay(&self) -> Duration {
        self.delay + self.jitter * 4
    }
}

/// Time to keep forwarding after the last sender has stopped: the queueing delay, one round trip, and a margin for
/// responses.
pub(super) fn drain_time(waits: Duration, [out, back]: [Duration; 2]) -> Duration {
    waits.min(MAX_QUEUE_DRAIN) + out + back + DRAIN_MARGIN
}

/// Counters of a direction. Each offered packet is counted once: as delivered, lost, dropped or missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Delivered packets.
    pub packets: u64,
    /// Their bytes, as whole IP packets.
    pub bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
    /// Packets lost because this machine was too slow to forward them.
    pub missed: u64,
    /// Maximum queue length in bytes.
    pub max_queue_bytes: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    options: LinkOptions,
    losses: Rng,
    jitters: Rng,
    /// Time at which everything offered so far is transmitted.
    free_at: Duration,
    /// Arrival time of the last packet in flight.
    last_arrival: Duration,
    counts: LinkCounts,
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Margin after the last round trip.
const DRAIN_MARGIN: Duration = Duration::from_millis(20);
/// Maximum time to drain the queue of a slow link.
const MAX_QUEUE_DRAIN: Duration = Duration::from_secs(5);

impl Link {
    /// An idle link. The same seed repeats the same losses and delays.
    #[must_use]
    pub fn new(options: LinkOptions, seed: u64) -> Self {
        let mut seeds = Rng::with_seed(seed);
        Self {
            options,
            losses: seeds.fork(),
            jitters: seeds.fork(),
            free_at: Duration::ZERO,
            last_arrival: Duration::ZERO,
            counts: LinkCounts::default(),
        }
    }

    /// Returns the arrival time of a packet of `bytes` offered at `now`; `None` if it is lost or dropped. `now` must
    /// not decrease.
    pub fn offer(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        let bytes = bytes as u64;
        if !self.enqueue(now, bytes) {
            self.counts.dropped += 1;
            return None;
        }
        if self.options.loss > 0.0 && self.losses.f64() < self.options.loss {
            self.counts.lost += 1;
            return None;
        }
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        let due = self.free_at + self.next_delay();
        if self.options.allow_reordering {
            return Some(due);
        }
        self.last_arrival = self.last_arrival.max(due);
        Some(self.last_arrival)
    }

    /// Counts packets that could not be offered.
    pub const fn count_missed(&mut self, packets: u64) {
        self.counts.missed += packets;
    }

    /// Recounts a packet as missed: the far end did not accept it, or the link was already gone.
    pub fn count_undelivered(&mut self, bytes: usize) {
        self.counts.packets = self.counts.packets.saturating_sub(1);
        self.counts.bytes = self.counts.bytes.saturating_sub(bytes as u64);
        self.counts.missed += 1;
    }

    /// Adds a packet to the queue, unless that is full.
    fn enqueue(&mut self, now: Duration, bytes: u64) -> bool {
        let Some(rate) = self.options.bits_per_second else {
            self.free_at = now;
            return true;
        };
        let rate = u128::from(rate.max(1));
        let ahead = self.free_at.saturating_sub(now).as_nanos() * rate / (8 * NANOS_PER_SECOND);
        let queue = u64::try_from(ahead).unwrap_or(u64::MAX).saturating_add(bytes);
        if queue > self.options.queue_bytes {
            return false;
        }
        self.counts.max_queue_bytes = self.counts.max_queue_bytes.max(queue);
        let nanos = u128::from(bytes) * 8 * NANOS_PER_SECOND / rate;
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free_at = self.free_at.max(now) + takes;
        true
    }

    /// Returns the delay of the next packet, with jitter.
    fn next_delay(&mut self) -> Duration {
        let LinkOptions { delay, jitter, jitter_kind, .. } = self.options;
        if jitter.is_zero() {
            return delay;
        }
        let off = match jitter_kind {
            JitterKind::Uniform => 2.0 * self.jitters.f64() - 1.0,
            // Box-Muller; the logarithm's argument is above 0.
            JitterKind::Normal => {
                let (first, second) = (1.0 - self.jitters.f64(), self.jitters.f64());
                (-2.0 * first.ln()).sqrt() * (TAU * second).cos()
            }
        };
        let off_by = jitter.mul_f64(off.abs());
        if off < 0.0 { delay.saturating_sub(off_by) } else { delay + off_by }
    }

    /// Queueing delay: the time to transmit what is queued.
    #[must_use]
    pub fn queue_delay(&self, now: Duration) -> Duration {
        self.free_at.saturating_sub(now)
    }

    /// Maximum delay of a packet excluding queueing; normal jitter very rarely exceeds it.
    #[must_use]
    pub fn max_delay(&self) -> Duration {
        self.options.max_delay()
    }

    /// Its counters, including packets in flight.
    #[must_use]
    pub const fn counts(&self) -> LinkCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
