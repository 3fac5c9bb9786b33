//! What is seen of requests in a look, and what they carried in it by that.

use std::time::Duration;

use tradewind_model::steering::REQUEST;

use super::nanos;

/// A queue overruns where one packet in so many is sent again, and so many are, and where such a part of the requests stands still.
const ONE_IN: u64 = 33;
const FEWEST_AGAIN: u64 = 10;
const STANDING: f64 = 0.1;

/// A look that goes on. Times are the clock's, turns those that requests have.
#[derive(Debug)]
pub(super) struct Look {
    began: Duration,
    /// Requests that ended, how many nanoseconds they took, that times their turns, and the same as far as it lies in the look.
    ended: u64,
    took: u64,
    took_turns: u64,
    inside: u128,
    /// Of requests that are under way: their turns, and the nanoseconds at which they began times those.
    held: u64,
    held_since: u128,
    /// Packets that were sent by its beginning, and those that were sent again.
    packets: (u64, u64),
}

/// One that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Looked {
    /// What was carried a second, as [`Steering`](tradewind_model::steering::Steering) counts.
    pub carried: f64,
    /// Many packets were sent again, and requests stood still.
    pub overruns: bool,
    /// How long a request took in the mean; very long where none ended.
    pub latency: Duration,
}

impl Look {
    /// The first one.
    pub const fn new(began: Duration, packets: (u64, u64)) -> Self {
        Self { began, ended: 0, took: 0, took_turns: 0, inside: 0, held: 0, held_since: 0, packets }
    }

    /// When it began.
    pub const fn began(&self) -> Duration {
        self.began
    }

    /// A request begins.
    pub const fn begin(&mut self, turns: u64, now: Duration) {
        self.held += turns;
        self.held_since += now.as_nanos() * turns as u128;
    }

    /// A request that began then ends.
    pub fn end(&mut self, turns: u64, began: Duration, now: Duration) {
        let took = nanos(now.saturating_sub(began));
        self.ended += 1;
        self.took += took;
        self.took_turns = self.took_turns.saturating_add(took.saturating_mul(turns));
        self.inside += now.saturating_sub(began.max(self.began)).as_nanos() * u128::from(turns);
        self.held -= turns;
        self.held_since -= began.as_nanos() * u128::from(turns);
    }

    /// It ends, and another begins. There were so many turns; so many bytes passed, and so many requests were done.
    pub fn end_look(
        &mut self,
        now: Duration,
        turns: usize,
        (bytes, done): (u64, u64),
        packets: (u64, u64),
    ) -> Looked {
        let elapsed = nanos(now.saturating_sub(self.began)).max(1);
        // One of which none ended may still take long.
        let latency = self.took.checked_div(self.ended).unwrap_or(u64::MAX / 4);
        let moving = self.moving(turns as u128 * u128::from(elapsed), latency, now);
        let carried = (done as f64).mul_add(REQUEST, bytes as f64) * 1e9;
        // Requests that begin together end together: in a look there are a wave more of them, or fewer. What they carry in the
        // time that they take has no waves (Little 1961), but of those that take longer than the look too few end in it.
        let carried = if 2 * latency <= elapsed {
            carried / self.took_turns.max(1) as f64 * moving * turns as f64
        } else {
            carried / elapsed as f64
        };
        let sent = packets.0.saturating_sub(self.packets.0);
        let again = packets.1.saturating_sub(self.packets.1);
        let overruns = again >= FEWEST_AGAIN && again * ONE_IN >= sent && moving < 1.0 - STANDING;
        tracing::trace!(carried, latency, elapsed, sent, again, moving, "looked");
        (self.began, self.packets) = (now, packets);
        (self.ended, self.took, self.took_turns, self.inside) = (0, 0, 0, 0);
        Looked { carried, overruns, latency: Duration::from_nanos(latency) }
    }

    /// The part of all turns and time in which as much is carried as by requests that ended. Those that are under way for longer than
    /// these took may stand still: they count as if they had carried what is usual in all their time.
    fn moving(&self, all: u128, latency: u64, now: Duration) -> f64 {
        let pending = all.saturating_sub(self.inside) as f64;
        let age = now.as_nanos() as f64 - self.held_since as f64 / self.held.max(1) as f64;
        let moving = self.inside as f64 + pending * (latency as f64 / age.max(1.0)).min(1.0);
        (moving / all.max(1) as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 << 10;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A look of 400 ms: some ask every 50 ms, others began with them and stand still.
    fn look(asking: u64, standing: u64, packets: (u64, u64)) -> Looked {
        let mut look = Look::new(at(0), (0, 0));
        (0..asking + standing).for_each(|_| look.begin(1, at(0)));
        for round in 0..8 {
            for _ in 0..asking {
                look.end(1, at(round * 50), at(round * 50 + 50));
                look.begin(1, at(round * 50 + 50));
            }
        }
        let done = 8 * asking;
        look.end_look(at(400), (asking + standing) as usize, (done * BYTES, done), packets)
    }

    /// What so many carry a second.
    fn carried(asking: u64) -> f64 {
        asking as f64 * 20.0 * (BYTES as f64 + REQUEST)
    }

    #[test]
    fn what_stands_still_hardly_counts() {
        let all = look(16, 0, (0, 0)).carried / carried(16);
        assert!((all - 1.0).abs() < 0.01, "{all}");
        let half = look(8, 8, (0, 0)).carried / carried(8);
        assert!((1.0..1.3).contains(&half), "{half}");
    }

    #[test]
    fn a_queue_overruns_where_packets_are_lost_and_requests_stand_still() {
        assert!(look(8, 8, (1000, 60)).overruns);
        assert!(!look(16, 0, (1000, 60)).overruns, "nobody stands still");
        assert!(!look(8, 8, (1000, 20)).overruns, "few are lost");
        assert!(!look(8, 8, (100, 6)).overruns, "that may be chance");
    }

    #[test]
    fn a_look_knows_nothing_of_those_before() {
        let mut look = Look::new(at(0), (0, 0));
        look.begin(4, at(0));
        look.end(4, at(0), at(100));
        look.begin(4, at(100));
        let first = look.end_look(at(300), 4, (BYTES, 1), (1000, 500));
        assert_eq!(first.latency, at(100));
        look.end(4, at(100), at(600));
        let next = look.end_look(at(600), 4, (BYTES, 1), (2000, 500));
        assert_eq!((next.latency, next.overruns), (at(500), false));
        // It took longer than the look: by bytes.
        assert!((next.carried / ((BYTES as f64 + REQUEST) / 0.3) - 1.0).abs() < 1e-9, "{next:?}");
    }
}
