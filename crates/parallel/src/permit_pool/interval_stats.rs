//! Statistics of one control interval: the throughput, and signs that the bottleneck queue overflows.

use std::time::Duration;

use tradewind_model::concurrency_controller::REQUEST_COST_BYTES;

use super::nanos;

/// The bottleneck queue overflows if at least one packet in this many was retransmitted, …
const OVERFLOW_ONE_IN: u64 = 33;
/// … at least this many packets were retransmitted in all, …
const MIN_RETRANSMITS: u64 = 10;
/// … and at least this fraction of the permit time is not active (see `active_fraction`).
const MIN_STALLED_FRACTION: f64 = 0.1;

/// The interval in progress.
#[derive(Debug)]
pub(super) struct Interval {
    started: Duration,
    /// Number of requests that ended in the interval.
    ended: u64,
    /// Total duration of these requests, in nanoseconds.
    total_nanos: u64,
    /// Sum over these requests of duration in nanoseconds times permits.
    permit_nanos: u64,
    /// Like `permit_nanos`, but over the time since the start of the interval only.
    permit_nanos_inside: u128,
    /// Total permits of the requests in flight.
    held_permits: u64,
    /// Sum over the requests in flight of start time in nanoseconds times permits.
    held_start_permit_nanos: u128,
    /// Packet counters at the start of the interval: sent and retransmitted.
    packets: (u64, u64),
}

/// Statistics of an interval that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct IntervalStats {
    /// Bytes per second, with [`REQUEST_COST_BYTES`] for each successful request.
    pub throughput: f64,
    /// Many packets were retransmitted, and requests stalled.
    pub is_queue_overflow: bool,
    /// Mean duration of the requests that ended; very long if none did.
    pub latency: Duration,
}

impl Interval {
    /// Creates the first interval.
    pub const fn new(started: Duration, packets: (u64, u64)) -> Self {
        Self {
            started,
            ended: 0,
            total_nanos: 0,
            permit_nanos: 0,
            permit_nanos_inside: 0,
            held_permits: 0,
            held_start_permit_nanos: 0,
            packets,
        }
    }

    /// Start of the interval.
    pub const fn started(&self) -> Duration {
        self.started
    }

    /// Records the start of a request.
    pub const fn record_start(&mut self, permits: u64, now: Duration) {
        self.held_permits += permits;
        self.held_start_permit_nanos += now.as_nanos() * permits as u128;
    }

    /// Records the end of a request that started at `started`.
    pub fn record_end(&mut self, permits: u64, started: Duration, now: Duration) {
        let took = nanos(now.saturating_sub(started));
        self.ended += 1;
        self.total_nanos += took;
        self.permit_nanos = self.permit_nanos.saturating_add(took.saturating_mul(permits));
        self.permit_nanos_inside +=
            now.saturating_sub(started.max(self.started)).as_nanos() * u128::from(permits);
        self.held_permits -= permits;
        self.held_start_permit_nanos -= started.as_nanos() * u128::from(permits);
    }

    /// Ends the interval and starts the next. `permits` is their number in the pool; `bytes` were transferred and
    /// `succeeded` requests were successful.
    pub fn finish(
        &mut self,
        now: Duration,
        permits: usize,
        (bytes, succeeded): (u64, u64),
        packets: (u64, u64),
    ) -> IntervalStats {
        let elapsed = nanos(now.saturating_sub(self.started)).max(1);
        // If none ended, the duration is unknown and may be long.
        let latency = self.total_nanos.checked_div(self.ended).unwrap_or(u64::MAX / 4);
        let active_fraction = self.active_fraction(permits as u128 * u128::from(elapsed), latency, now);
        let work = (succeeded as f64).mul_add(REQUEST_COST_BYTES, bytes as f64) * 1e9;
        // Requests that start together end together, so the number that ends in an interval varies by all of them.
        // Throughput derived from their mean duration varies less (Little's law, Little 1961). That requires requests
        // that are short compared to the interval.
        let throughput = if 2 * latency <= elapsed {
            work / self.permit_nanos.max(1) as f64 * active_fraction * permits as f64
        } else {
            work / elapsed as f64
        };
        let sent = packets.0.saturating_sub(self.packets.0);
        let retransmitted = packets.1.saturating_sub(self.packets.1);
        let is_queue_overflow = retransmitted >= MIN_RETRANSMITS
            && retransmitted * OVERFLOW_ONE_IN >= sent
            && active_fraction < 1.0 - MIN_STALLED_FRACTION;
        tracing::trace!(throughput, latency, elapsed, sent, retransmitted, active_fraction, "interval ended");
        (self.started, self.packets) = (now, packets);
        (self.ended, self.total_nanos, self.permit_nanos, self.permit_nanos_inside) = (0, 0, 0, 0);
        IntervalStats { throughput, is_queue_overflow, latency: Duration::from_nanos(latency) }
    }

    /// The fraction of the permit time `all_nanos` in which requests progressed as fast as the ended ones. Permit time is
    /// the number of permits times the elapsed time. Ended requests used a part of it, which is all active. The remainder
    /// belongs to requests in flight and to free permits. It is active in full if the mean age of the requests in flight
    /// is at most `latency`, otherwise by `latency / mean age`.
    fn active_fraction(&self, all_nanos: u128, latency: u64, now: Duration) -> f64 {
        let remaining_nanos = all_nanos.saturating_sub(self.permit_nanos_inside) as f64;
        let mean_age =
            now.as_nanos() as f64 - self.held_start_permit_nanos as f64 / self.held_permits.max(1) as f64;
        let active_nanos =
            self.permit_nanos_inside as f64 + remaining_nanos * (latency as f64 / mean_age.max(1.0)).min(1.0);
        (active_nanos / all_nanos.max(1) as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 << 10;

    fn millis(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// An interval of 400 ms: `active` clients complete a request every 50 ms, `stalled` ones are stalled from the
    /// start.
    fn stats(active: u64, stalled: u64, packets: (u64, u64)) -> IntervalStats {
        let mut interval = Interval::new(millis(0), (0, 0));
        (0..active + stalled).for_each(|_| interval.record_start(1, millis(0)));
        for round in 0..8 {
            for _ in 0..active {
                interval.record_end(1, millis(round * 50), millis(round * 50 + 50));
                interval.record_start(1, millis(round * 50 + 50));
            }
        }
        let done = 8 * active;
        interval.finish(millis(400), (active + stalled) as usize, (done * BYTES, done), packets)
    }

    /// The throughput of `active` active clients per second.
    fn throughput(active: u64) -> f64 {
        active as f64 * 20.0 * (BYTES as f64 + REQUEST_COST_BYTES)
    }

    #[test]
    fn stalled_requests_hardly_count_as_throughput() {
        let all = stats(16, 0, (0, 0)).throughput / throughput(16);
        assert!((all - 1.0).abs() < 0.01, "{all}");
        let half = stats(8, 8, (0, 0)).throughput / throughput(8);
        assert!((1.0..1.3).contains(&half), "{half}");
    }

    #[test]
    fn queue_overflow_needs_retransmissions_and_stalled_requests() {
        assert!(stats(8, 8, (1000, 60)).is_queue_overflow);
        assert!(!stats(16, 0, (1000, 60)).is_queue_overflow, "no request is stalled");
        assert!(!stats(8, 8, (1000, 20)).is_queue_overflow, "few packets are lost");
        assert!(!stats(8, 8, (100, 6)).is_queue_overflow, "too few packets to be significant");
    }

    #[test]
    fn each_interval_has_statistics_of_its_own() {
        let mut interval = Interval::new(millis(0), (0, 0));
        interval.record_start(4, millis(0));
        interval.record_end(4, millis(0), millis(100));
        interval.record_start(4, millis(100));
        let first = interval.finish(millis(300), 4, (BYTES, 1), (1000, 500));
        assert_eq!(first.latency, millis(100));
        interval.record_end(4, millis(100), millis(600));
        let next = interval.finish(millis(600), 4, (BYTES, 1), (2000, 500));
        assert_eq!((next.latency, next.is_queue_overflow), (millis(500), false));
        // The request took longer than the interval, so throughput is computed from bytes.
        assert!(
            (next.throughput / ((BYTES as f64 + REQUEST_COST_BYTES) / 0.3) - 1.0).abs() < 1e-9,
            "{next:?}"
        );
    }
}
