//! Straggling parts at the end of an upload. A part that other connections would finish sooner is left to them; a part
//! that fell behind is aborted and sent again over a faster connection.
//!
//! Connections of one transfer differ: one whose congestion window stopped opening early has 10 % of the throughput of
//! another, and with a long RTT stays slow for minutes. While parts wait, faster connections take more of them. After
//! the last part is assigned, the upload waits for the slowest connection. The previous part of a connection predicts
//! its speed, so slow connections get none of the last parts ([`should_start_part`]).
//!
//! A store discards an incomplete part, so a part that is aborted before its last bytes were sent is stored exactly
//! once. The bytes already sent are wasted, and are bounded. Downloads instead request a second time and keep
//! the first request ([`hedge`](crate::hedge)); if a part were sent twice, it would be unknown which copy the store
//! kept.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of most recent parts that the reference duration is taken from.
const SAMPLE_WINDOW: usize = 16;
/// A part is not judged before this number of other parts completed since it started.
const MIN_SAMPLES: usize = 3;
/// The reference duration of a part is that of the fastest quarter of the completed parts: their first quartile.
const FAST_QUANTILE_DIVISOR: usize = 4;
/// A part is a straggler if its rest takes longer than this multiple of the reference duration, …
const STRAGGLER_FACTOR: f64 = 1.5;
/// … plus this constant.
const STRAGGLER_EXTRA_SECONDS: f64 = 0.2;
/// If no part completed for this multiple of that limit, all connections may have stalled, and no part is a straggler.
const STALL_FACTOR: f64 = 3.0;
/// At most this fraction of the object (1/8) may be wasted.
const WASTE_DIVISOR: u64 = 8;

/// Returns true if one of `waiting` parts of `part_bytes` each should start on an idle connection whose previous part
/// took `seconds_per_byte`, and false if it is better left to the busy connections.
///
/// A busy connection is expected to start its next part as soon as the current one is done. Each further part is
/// expected to take as long as its previous part, or as long as its current part has taken so far, if that is longer.
#[must_use]
pub fn should_start_part(
    waiting: usize,
    part_bytes: u64,
    seconds_per_byte: f64,
    busy: impl IntoIterator<Item = BusyConnection>,
    now: Duration,
) -> bool {
    let own_seconds = part_bytes as f64 * seconds_per_byte;
    let parts_done_by = |BusyConnection { part, previous_seconds_per_byte }| {
        let seconds_per_byte = previous_seconds_per_byte.or_else(|| part.seconds_per_byte(now))?;
        let seconds = (seconds_per_byte * part_bytes as f64).max(part.elapsed_seconds(now));
        Some(((own_seconds - part.seconds_left(seconds, now)) / seconds).floor().max(0.0))
    };
    busy.into_iter().filter_map(parts_done_by).sum::<f64>() < waiting as f64
}

/// A connection with a part in flight.
#[derive(Debug, Clone, Copy)]
pub struct BusyConnection {
    /// The part in flight.
    pub part: PartInFlight,
    /// Seconds per byte of its previous part; `None` if this is its first one.
    pub previous_seconds_per_byte: Option<f64>,
}

/// The completed parts of one upload.
#[derive(Debug)]
pub struct StragglerDetector {
    completed: VecDeque<CompletedPart>,
    /// Bytes that may still be wasted.
    waste_budget_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct CompletedPart {
    completed: Duration,
    seconds_per_byte: f64,
}

/// A part in flight. Times are on the clock of the caller.
#[derive(Debug, Clone, Copy)]
pub struct PartInFlight {
    /// Size of the part.
    pub bytes: u64,
    /// Bytes sent so far.
    pub sent: u64,
    /// Start time.
    pub started: Duration,
    /// Time of the last progress, or the start time.
    pub last_progress: Duration,
}

impl PartInFlight {
    /// Seconds since the start.
    fn elapsed_seconds(&self, now: Duration) -> f64 {
        now.saturating_sub(self.started).as_secs_f64()
    }

    /// Seconds per byte so far; `None` before any progress.
    fn seconds_per_byte(&self, now: Duration) -> Option<f64> {
        let took = self.elapsed_seconds(now);
        (self.sent > 0 && took > 0.0).then(|| took / self.sent as f64)
    }

    /// Seconds left if the whole part takes `total_seconds`. A part without progress for some time is expected to make
    /// none for as long again.
    fn seconds_left(&self, total_seconds: f64, now: Duration) -> f64 {
        let rest = self.bytes.saturating_sub(self.sent) as f64 / self.bytes.max(1) as f64 * total_seconds;
        rest.max(total_seconds - self.elapsed_seconds(now))
            .max(now.saturating_sub(self.last_progress).as_secs_f64())
    }
}

impl StragglerDetector {
    /// No completed parts yet of an object of `size` bytes.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { completed: VecDeque::with_capacity(SAMPLE_WINDOW), waste_budget_bytes: size / WASTE_DIVISOR }
    }

    /// Records a stored part. Returns its seconds per byte.
    pub fn complete(&mut self, part: PartInFlight, now: Duration) -> f64 {
        if self.completed.len() == SAMPLE_WINDOW {
            self.completed.pop_front();
        }
        let took = part.elapsed_seconds(now);
        let seconds_per_byte = took / part.bytes.max(1) as f64;
        self.completed.push_back(CompletedPart { completed: now, seconds_per_byte });
        seconds_per_byte
    }

    /// Seconds that the rest of a part is expected to take, if it is a straggler that should be aborted.
    #[must_use]
    pub fn straggler_seconds_left(&self, part: PartInFlight, now: Duration) -> Option<f64> {
        if part.sent > self.waste_budget_bytes {
            return None;
        }
        // Only parts completed since this one started count: if the link became slower for all, no part is a straggler.
        let since = self.completed.iter().filter(|ended| ended.completed >= part.started);
        let mut paces: Vec<f64> = since.map(|ended| ended.seconds_per_byte).collect();
        if paces.len() < MIN_SAMPLES {
            return None;
        }
        paces.sort_by(f64::total_cmp);
        let reference_seconds = paces[paces.len() / FAST_QUANTILE_DIVISOR] * part.bytes as f64;
        let max_seconds_left = STRAGGLER_FACTOR.mul_add(reference_seconds, STRAGGLER_EXTRA_SECONDS);
        let elapsed = part.elapsed_seconds(now);
        let seconds_since_completion = now.saturating_sub(self.completed.back()?.completed).as_secs_f64();
        if elapsed < reference_seconds || seconds_since_completion > max_seconds_left * STALL_FACTOR {
            return None;
        }
        let seconds_left = part.seconds_left(elapsed * part.bytes as f64 / part.sent.max(1) as f64, now);
        (seconds_left > max_seconds_left).then_some(seconds_left)
    }

    /// Records an aborted part of which `sent` bytes had been sent.
    pub fn record_abort(&mut self, sent: u64) {
        self.waste_budget_bytes = self.waste_budget_bytes.saturating_sub(sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 5 << 20;
    const SIZE: u64 = 50 * BYTES;

    fn millis(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn part(sent: u64, started: u64) -> PartInFlight {
        PartInFlight { bytes: BYTES, sent, started: millis(started), last_progress: millis(2000) }
    }

    /// A connection whose previous part took this long.
    fn busy(part: PartInFlight, previous_seconds: Option<f64>) -> BusyConnection {
        BusyConnection { part, previous_seconds_per_byte: previous_seconds.map(per_byte) }
    }

    /// Parts that take 0.5 s each; the last one ended at 2 s.
    fn typical_parts() -> StragglerDetector {
        let mut parts = StragglerDetector::new(SIZE);
        for n in 1..=6 {
            parts.complete(part(BYTES, 900 + n * 100), millis(1400 + n * 100));
        }
        parts
    }

    #[test]
    fn part_much_slower_than_others_is_a_straggler() {
        let parts = typical_parts();
        let left = parts.straggler_seconds_left(part(BYTES / 4, 1000), millis(2000)).unwrap();
        assert!((left - 3.0).abs() < 1e-6, "{left}");
        assert!(parts.straggler_seconds_left(part(0, 1000), millis(2000)).is_some(), "no byte was sent");
        assert_eq!(
            parts.straggler_seconds_left(part(BYTES * 2 / 3, 1000), millis(2000)),
            None,
            "the rest takes half a second"
        );
        assert_eq!(parts.straggler_seconds_left(part(0, 1600), millis(2000)), None, "it has just started");
        let standing = PartInFlight { last_progress: millis(1200), ..part(BYTES * 9 / 10, 1000) };
        assert_eq!(parts.straggler_seconds_left(standing, millis(2000)), None);
        assert!(
            parts.straggler_seconds_left(standing, millis(2400)).is_some(),
            "no byte was sent for longer than the straggler time"
        );
    }

    /// Seconds per byte of a part that takes this long.
    fn per_byte(seconds: f64) -> f64 {
        seconds / BYTES as f64
    }

    #[test]
    fn slow_connection_gets_none_of_the_last_parts() {
        // Two others take 0.5 s per part and have a quarter of one left.
        let others = [busy(part(BYTES / 2, 1625), Some(0.5)); 2];
        let begins =
            |waiting, seconds| should_start_part(waiting, BYTES, per_byte(seconds), others, millis(2000));
        assert!(begins(1, 0.5) && begins(1, 0.6), "an equally fast connection starts a part");
        // In 4 s each of them completes seven parts.
        assert!(!begins(1, 4.0) && !begins(14, 4.0));
        assert!(begins(15, 4.0), "they cannot complete that many");
        let stalled = others.map(|other| BusyConnection {
            part: PartInFlight { last_progress: millis(0), ..other.part },
            ..other
        });
        let starts_next_to = |others: &[BusyConnection], seconds| {
            should_start_part(1, BYTES, per_byte(seconds), others.to_vec(), millis(2000))
        };
        assert!(starts_next_to(&stalled, 2.0), "the others have stalled");
        assert!(starts_next_to(&[], 60.0), "there is no other connection");
        let first = [busy(part(BYTES / 2, 1500), None)];
        assert!(
            !starts_next_to(&first, 4.0) && starts_next_to(&first, 1.0),
            "the bytes sent so far give its speed"
        );
        assert!(starts_next_to(&[busy(part(0, 1500), None)], 60.0), "its speed is unknown");
        // Its previous part was fast, but the current one has taken 4 s so far: a 6 s connection is better.
        let slower = [busy(part(BYTES / 2, 0), Some(0.5))];
        let starts = |seconds| should_start_part(2, BYTES, per_byte(seconds), slower, millis(4000));
        assert!(starts(6.0) && !starts(12.0), "it completes both in 10 s");
    }

    /// Time in milliseconds at which the last part ends, over connections that take the given milliseconds per part.
    /// Parts start as soon as a connection is idle, or only where they end first if `chosen`.
    fn ended(parts: usize, connections: &[u64], chosen: bool) -> u64 {
        let (mut now, mut waiting) = (0, parts);
        let mut idle: Vec<(u64, Option<f64>)> = connections.iter().map(|each| (*each, None)).collect();
        let mut in_flight: Vec<(u64, u64, Option<f64>)> = Vec::new();
        loop {
            while waiting > 0
                && let Some((each, before)) = idle.last().copied()
            {
                let others = in_flight.iter().map(|&(began, each, before)| {
                    let sent = BYTES * (now - began) / each;
                    let part = PartInFlight {
                        bytes: BYTES,
                        sent,
                        started: millis(began),
                        last_progress: millis(now),
                    };
                    BusyConnection { part, previous_seconds_per_byte: before }
                });
                if chosen
                    && before.is_some_and(|seconds_per_byte| {
                        !should_start_part(waiting, BYTES, seconds_per_byte, others, millis(now))
                    })
                {
                    break;
                }
                idle.pop();
                in_flight.push((now, each, before));
                waiting -= 1;
            }
            in_flight.sort_by_key(|(began, each, _)| std::cmp::Reverse(began + each));
            let Some((began, each, _)) = in_flight.pop() else { return now };
            now = began + each;
            idle.push((each, Some(per_byte(each as f64 / 1e3))));
        }
    }

    #[test]
    fn no_straggler_if_all_parts_are_slow() {
        let parts = typical_parts();
        assert_eq!(
            parts.straggler_seconds_left(part(BYTES / 4, 1000), millis(5000)),
            None,
            "no part has completed for long"
        );
        let mut slow = typical_parts();
        for n in 1..=8 {
            slow.complete(part(BYTES, 2000), millis(6000 + n * 10));
        }
        assert_eq!(
            slow.straggler_seconds_left(part(BYTES / 4, 2500), millis(6080)),
            None,
            "the others take 4 s, too"
        );
        assert_eq!(
            StragglerDetector::new(SIZE).straggler_seconds_left(part(0, 0), millis(60_000)),
            None,
            "there is no part to compare with"
        );
    }

    #[test]
    fn last_parts_avoid_the_slowest_connection() {
        let connections = [250, 2000, 2000, 2000];
        assert_eq!(ended(13, &connections, false), 4000);
        assert_eq!(ended(13, &connections, true), 2500);
    }

    proptest! {
        #[test]
        fn choosing_connections_never_takes_longer(
            parts in 1_usize..60,
            connections in proptest::collection::vec(100_u64..10_000, 1..20),
        ) {
            prop_assert!(ended(parts, &connections, true) <= ended(parts, &connections, false));
        }

        #[test]
        fn wasted_bytes_are_bounded(sent in proptest::collection::vec(0..BYTES / 4, 1..200)) {
            let (mut parts, mut wasted) = (typical_parts(), 0);
            for sent in sent {
                if parts.straggler_seconds_left(part(sent, 1000), millis(2000)).is_some() {
                    parts.record_abort(sent);
                    wasted += sent;
                }
            }
            prop_assert!(wasted <= SIZE / WASTE_DIVISOR);
        }

        #[test]
        fn fewer_bytes_sent_means_more_time_left(less in 0..BYTES, more in 0..BYTES) {
            let parts = typical_parts();
            let late = |sent| parts.straggler_seconds_left(part(sent, 1000), millis(2000)).unwrap_or(0.0);
            prop_assert!(less > more || late(less) >= late(more));
        }
    }
}
