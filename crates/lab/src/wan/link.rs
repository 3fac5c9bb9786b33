//! One direction of a link: what becomes of each packet, decided without a clock of its own.
//!
//! A packet waits in the queue, or is dropped where that is full; the line takes it at its rate, may lose it, and holds it
//! for the delay, which jitter makes longer or shorter. Lost packets took their time on the line. Losses and jitter
//! follow from the seed, each from a sequence of its own: the fate of the n-th packet does not depend on the other.

use std::f64::consts::TAU;
use std::time::Duration;

use fastrand::Rng;

/// How jitter is distributed around the delay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JitterKind {
    /// Normal: the jitter is the standard deviation. What would arrive before it was sent arrives at once.
    #[default]
    Normal,
    /// Uniform: the jitter is half the width.
    Uniform,
}

/// What a direction does to packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkOptions {
    /// From the moment when the line took a packet's last bit.
    pub delay: Duration,
    /// How far the delay varies.
    pub jitter: Duration,
    /// In which way.
    pub jitter_kind: JitterKind,
    /// Whether a packet may overtake those in front of it. Where not, it arrives with the last of them at the earliest,
    /// as on any one line: packets that follow each other within the jitter then wait for the slowest of their neighbours.
    pub reorder: bool,
    /// The share of packets that the line loses, from 0 to 1, each by itself.
    pub loss: f64,
    /// Bits a second, of whole IP packets; `None`: the line takes them at once.
    pub rate: Option<u64>,
    /// Bytes that wait for the line at the most: what comes on top is dropped.
    pub queue_bytes: u64,
}

impl Default for LinkOptions {
    /// A line that does nothing to packets.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            jitter_kind: JitterKind::Normal,
            reorder: false,
            loss: 0.0,
            rate: None,
            queue_bytes: u64::MAX,
        }
    }
}

impl LinkOptions {
    /// How long a packet is on its way at the most, but for what waits for the line; of normal jitter, almost ever.
    pub(super) fn longest_delay(&self) -> Duration {
        self.delay + self.jitter * 4
    }
}

/// How long packets are carried when nobody will send more: what waits for the lines, there and back once more, and
/// a little for those who answer.
pub(super) fn last_words(waits: Duration, [out, back]: [Duration; 2]) -> Duration {
    waits.min(LONGEST_WAIT) + out + back + LAST_WORDS
}

/// What a direction carried. Each packet that it was offered is counted once: as arrived, lost, dropped or missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that arrived.
    pub packets: u64,
    /// Their bytes, of whole IP packets.
    pub bytes: u64,
    /// Packets that the line lost by chance.
    pub lost: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
    /// Packets that no line would have refused, but this machine was too slow for.
    pub missed: u64,
    /// The most bytes that waited for the line.
    pub longest_queue: u64,
}

/// A direction.
#[derive(Debug)]
pub struct Link {
    options: LinkOptions,
    losses: Rng,
    jitters: Rng,
    /// When the line has taken all that it was offered.
    free_at: Duration,
    /// When the last of what is under way arrives.
    last_arrival: Duration,
    counts: Counts,
}

const SECOND: u128 = 1_000_000_000;

/// So much longer than a round trip packets are carried at the end.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// What waits for a slow line is not waited for any longer.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Link {
    /// Nothing is on it yet. The same seed brings the same losses and delays again.
    #[must_use]
    pub fn new(options: LinkOptions, seed: u64) -> Self {
        let mut seeds = Rng::with_seed(seed);
        Self {
            options,
            losses: seeds.fork(),
            jitters: seeds.fork(),
            free_at: Duration::ZERO,
            last_arrival: Duration::ZERO,
            counts: Counts::default(),
        }
    }

    /// When a packet of so many bytes arrives that is offered `now`; `None` where it does not. Time does not go back.
    pub fn offer(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        let bytes = bytes as u64;
        if !self.take(now, bytes) {
            self.counts.dropped += 1;
            return None;
        }
        if self.options.loss > 0.0 && self.losses.f64() < self.options.loss {
            self.counts.lost += 1;
            return None;
        }
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        let due = self.free_at + self.delay_of_one();
        if self.options.reorder {
            return Some(due);
        }
        self.last_arrival = self.last_arrival.max(due);
        Some(self.last_arrival)
    }

    /// Counts packets that were not even offered.
    pub const fn miss(&mut self, packets: u64) {
        self.counts.missed += packets;
    }

    /// A packet that was to arrive was not taken at the far end, or the link was gone by then.
    pub fn refused(&mut self, bytes: usize) {
        self.counts.packets = self.counts.packets.saturating_sub(1);
        self.counts.bytes = self.counts.bytes.saturating_sub(bytes as u64);
        self.counts.missed += 1;
    }

    /// Puts a packet into the line's queue, if that has room.
    fn take(&mut self, now: Duration, bytes: u64) -> bool {
        let Some(rate) = self.options.rate else {
            self.free_at = now;
            return true;
        };
        let rate = u128::from(rate.max(1));
        let ahead = self.free_at.saturating_sub(now).as_nanos() * rate / (8 * SECOND);
        let queue = u64::try_from(ahead).unwrap_or(u64::MAX).saturating_add(bytes);
        if queue > self.options.queue_bytes {
            return false;
        }
        self.counts.longest_queue = self.counts.longest_queue.max(queue);
        let nanos = u128::from(bytes) * 8 * SECOND / rate;
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.free_at = self.free_at.max(now) + takes;
        true
    }

    /// The delay of the next packet, with its jitter.
    fn delay_of_one(&mut self) -> Duration {
        let LinkOptions { delay, jitter, jitter_kind, .. } = self.options;
        if jitter.is_zero() {
            return delay;
        }
        let off = match jitter_kind {
            JitterKind::Uniform => 2.0 * self.jitters.f64() - 1.0,
            // Box and Muller; the logarithm's argument is above 0.
            JitterKind::Normal => {
                let (first, second) = (1.0 - self.jitters.f64(), self.jitters.f64());
                (-2.0 * first.ln()).sqrt() * (TAU * second).cos()
            }
        };
        let off_by = jitter.mul_f64(off.abs());
        if off < 0.0 { delay.saturating_sub(off_by) } else { delay + off_by }
    }

    /// How long what waits for the line will take.
    #[must_use]
    pub fn waits(&self, now: Duration) -> Duration {
        self.free_at.saturating_sub(now)
    }

    /// How long a packet is on its way at the most, but for what waits for the line; of normal jitter, almost ever.
    #[must_use]
    pub fn longest_delay(&self) -> Duration {
        self.options.longest_delay()
    }

    /// What it carried, with what is still under way.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
