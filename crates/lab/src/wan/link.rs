//! One direction of a link: when each packet arrives, decided without a clock of its own.

use std::time::Duration;

/// What a direction does to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkOptions {
    /// From the moment when the line took a packet's last bit.
    pub delay: Duration,
    /// Bits a second, of whole IP packets; `None`: the line takes them at once.
    pub rate: Option<u64>,
    /// Bytes that wait for the line at the most: what comes on top is lost.
    pub queue_bytes: u64,
}

/// What a direction carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that arrived.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
    /// The most bytes that waited for the line.
    pub longest_queue: u64,
}

/// A direction.
#[derive(Debug)]
pub struct Link {
    options: LinkOptions,
    /// When the line has taken all that it was offered.
    free_at: Duration,
    counts: Counts,
}

const SECOND: u128 = 1_000_000_000;

impl Link {
    /// Nothing is on it yet.
    #[must_use]
    pub fn new(options: LinkOptions) -> Self {
        Self { options, free_at: Duration::ZERO, counts: Counts::default() }
    }

    /// When a packet of so many bytes arrives that is offered `now`; `None` where it is lost. Time does not go back.
    pub fn offer(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        let bytes = bytes as u64;
        if let Some(rate) = self.options.rate {
            let rate = u128::from(rate.max(1));
            let ahead = self.free_at.saturating_sub(now).as_nanos() * rate / (8 * SECOND);
            let queue = u64::try_from(ahead).unwrap_or(u64::MAX).saturating_add(bytes);
            if queue > self.options.queue_bytes {
                self.counts.dropped += 1;
                return None;
            }
            self.counts.longest_queue = self.counts.longest_queue.max(queue);
            let nanos = u128::from(bytes) * 8 * SECOND / rate;
            let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            self.free_at = self.free_at.max(now) + takes;
        } else {
            self.free_at = now;
        }
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        Some(self.free_at + self.options.delay)
    }

    /// How long it delays.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        self.options.delay
    }

    /// What it carried, with what is still under way.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn a_line_without_a_rate_only_delays() {
        let mut link = Link::new(LinkOptions { delay: 25 * MILLI, rate: None, queue_bytes: 0 });
        assert_eq!(link.offer(3 * MILLI, 1500), Some(28 * MILLI));
        assert_eq!(link.offer(3 * MILLI, 1500), Some(28 * MILLI));
        assert_eq!(link.counts(), Counts { packets: 2, bytes: 3000, ..Counts::default() });
    }

    #[test]
    fn packets_wait_for_the_line_and_are_lost_where_too_many_do() {
        // A byte takes 10 microseconds.
        let mut link = Link::new(LinkOptions { delay: MILLI, rate: Some(800_000), queue_bytes: 250 });
        assert_eq!(link.offer(Duration::ZERO, 100), Some(2 * MILLI));
        assert_eq!(link.offer(Duration::ZERO, 100), Some(3 * MILLI));
        assert_eq!(link.offer(Duration::ZERO, 100), None);
        assert_eq!(link.offer(MILLI, 100), Some(4 * MILLI));
        assert_eq!(link.counts(), Counts { packets: 3, bytes: 300, dropped: 1, longest_queue: 200 });
    }

    proptest! {
        #[test]
        fn packets_stay_in_order_and_within_the_rate(
            offers in proptest::collection::vec((0_u64..2_000_000, 20_usize..1500), 2..200),
            rate in 1_000_000_u64..1_000_000_000,
        ) {
            let mut link = Link::new(LinkOptions { delay: 5 * MILLI, rate: Some(rate), queue_bytes: 20_000 });
            let (mut now, mut last, mut bytes, mut first) = (Duration::ZERO, Duration::ZERO, 0_u64, None);
            for (pause, size) in offers {
                now += Duration::from_nanos(pause);
                let Some(due) = link.offer(now, size) else { continue };
                prop_assert!(due >= now + 5 * MILLI && due >= last);
                last = due;
                bytes += size as u64;
                first.get_or_insert(now);
            }
            let took = (last - 5 * MILLI - first.unwrap()).as_secs_f64();
            // Rounded to nanoseconds, packet by packet.
            prop_assert!(bytes as f64 * 8.0 / rate as f64 <= took + 200e-9);
        }
    }
}
