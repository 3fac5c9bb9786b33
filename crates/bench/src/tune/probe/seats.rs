//! What those that ask have done, and what of it counts.

use std::time::Duration;

use parking_lot::Mutex;
use tradewind_model::tune::{Cell, Sample};

/// How unsure one round is, whatever it says: windows of connections and queues still change.
const OF_ONE_ROUND: f64 = 0.08;
/// Whoever does so much more in the second half has not settled.
const GROWTH: f64 = 0.15;
/// And who did so much more in the first.
const FALL: f64 = 0.1;
/// What is not settled is looked at without so many tenths of it, at the most.
const MOST_LEFT_OUT: u32 = 5;
/// A request that takes longer than all that have ended takes so many times as long as it has by now.
const UNKNOWN_REST: f64 = 1.5;
/// Fewer requests say nothing of the slowest.
const FEWEST_FOR_TAIL: u64 = 20;
/// Stretches that are compared, at the most.
const MOST_STRETCHES: u32 = 10;

/// A request that has ended.
#[derive(Debug, Clone, Copy)]
struct Ended {
    begun: Duration,
    ended: Duration,
    is_done: bool,
}

type Seat = Mutex<(Vec<Ended>, Option<Duration>)>;

/// By each of those that ask: its requests, and when the one under way began.
#[derive(Debug)]
pub(super) struct Seats(Vec<Seat>);

/// What was done in a window.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Requests that ended in it.
    pub done: u64,
    /// Requests, those that lie in it with a part of them by that part.
    pub amount: f64,
    /// The same for each of those that ask.
    pub rounds: f64,
    /// How long one took in the mean, in seconds, and the standard error as a part of it.
    pub latency: f64,
    pub error: f64,
    pub tail: [f64; 2],
}

impl Counted {
    /// What is known by it.
    pub fn sample(&self, cell: Cell) -> Option<Sample> {
        let tail = (self.done >= FEWEST_FOR_TAIL).then_some(self.tail);
        (self.done > 0).then_some(Sample {
            cell,
            latency: self.latency,
            error: self.error,
            tail,
            is_seen: false,
        })
    }
}

impl Seats {
    /// For so many.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| Mutex::default()).collect())
    }

    /// One of them asks.
    pub fn begin(&self, number: usize, now: Duration) {
        self.0[number].lock().1 = Some(now);
    }

    /// It was answered.
    pub fn end(&self, number: usize, now: Duration, is_done: bool) {
        let mut seat = self.0[number].lock();
        if let Some(begun) = seat.1.take() {
            seat.0.push(Ended { begun, ended: now, is_done });
        }
    }

    /// Whether each was answered once.
    pub fn is_warm(&self) -> bool {
        self.0.iter().all(|seat| !seat.lock().0.is_empty())
    }

    /// Whether anything was done.
    pub fn has_done(&self) -> bool {
        self.0.iter().any(|seat| seat.lock().0.iter().any(|ended| ended.is_done))
    }

    /// Requests that were begun.
    pub fn begun(&self) -> u64 {
        let begun = |seat: &Seat| {
            let seat = seat.lock();
            (seat.0.len() + usize::from(seat.1.is_some())) as u64
        };
        self.0.iter().map(begun).sum()
    }

    /// Those that failed.
    pub fn failed(&self) -> u64 {
        let failed = |seat: &Seat| seat.lock().0.iter().filter(|ended| !ended.is_done).count() as u64;
        self.0.iter().map(failed).sum()
    }

    /// From when on as much was done as later, and whether there is such a moment in the first half.
    pub fn settled(&self, (from, to): (Duration, Duration)) -> (Duration, bool) {
        let mut starts = (0..=MOST_LEFT_OUT).map(|tenths| from + (to - from) * tenths / 10);
        let is_settled = |start: &Duration| {
            let middle = (*start + to) / 2;
            let [before, after] = [(*start, middle), (middle, to)].map(|half| self.amount(half).amount);
            before <= after * (1.0 + FALL)
        };
        match starts.clone().find(is_settled) {
            Some(start) => (start, true),
            None => (starts.next_back().unwrap_or(from), false),
        }
    }

    /// Whether more is done at the end than at the beginning: windows still open.
    pub fn grows(&self, (from, to): (Duration, Duration)) -> bool {
        let middle = (from + to) / 2;
        let (before, after) = (self.amount((from, middle)), self.amount((middle, to)));
        after.amount > before.amount * (1.0 + GROWTH)
    }

    /// What was done from one moment to another, and how sure that is by how it went: as far as stretches of a round differ
    /// (batch means, Law and Carson 1979).
    pub fn count(&self, (from, to): (Duration, Duration)) -> Counted {
        let mut counted = self.amount((from, to));
        if counted.done == 0 {
            return counted;
        }
        let stretches = (counted.rounds as u32).clamp(2, MOST_STRETCHES);
        let stretch = (to - from) / stretches;
        let amounts =
            (0..stretches).map(|n| self.amount((from + stretch * n, from + stretch * (n + 1))).amount);
        let mean = counted.amount / f64::from(stretches);
        let squares: f64 = amounts.map(|amount| (amount / mean - 1.0).powi(2)).sum();
        let error = (squares / f64::from(stretches - 1) / f64::from(stretches)).sqrt();
        counted.error = error.max(OF_ONE_ROUND / counted.rounds);
        counted
    }

    /// What was done from one moment to another. A request counts with the part of its time that lies there; one that has not
    /// ended would take as long as those that took longer than it has by now.
    pub fn amount(&self, (from, to): (Duration, Duration)) -> Counted {
        let (mut latencies, mut amount, mut pending) = (Vec::new(), 0.0, Vec::new());
        for seat in &self.0 {
            let seat = seat.lock();
            // They lie one behind the other.
            let first = seat.0.partition_point(|ended| ended.ended <= from);
            let last = seat.0.partition_point(|ended| ended.begun < to);
            for ended in seat.0[first..last.max(first)].iter().filter(|ended| ended.is_done) {
                let whole = (ended.ended - ended.begun).as_secs_f64();
                let inside = (ended.ended.min(to) - ended.begun.max(from)).as_secs_f64();
                amount += if whole > 0.0 { inside / whole } else { 1.0 };
                if ended.ended <= to {
                    latencies.push(whole);
                }
            }
            pending.extend(seat.1.filter(|begun| *begun < to));
        }
        let done = latencies.len();
        latencies.sort_by(f64::total_cmp);
        for begun in pending {
            let elapsed = (to - begun).as_secs_f64();
            let longer = &latencies[latencies.partition_point(|latency| *latency <= elapsed)..];
            let mean = longer.iter().sum::<f64>() / longer.len() as f64;
            let whole = if longer.is_empty() { elapsed * UNKNOWN_REST } else { mean };
            amount += (to - begun.max(from)).as_secs_f64() / whole;
        }
        let count = done as f64;
        let rounds = amount / self.0.len() as f64;
        let at = |part: f64| {
            let place = ((count * part) as usize).min(done.saturating_sub(1));
            latencies.get(place).copied().unwrap_or_default()
        };
        Counted {
            done: done as u64,
            amount,
            rounds,
            latency: if rounds > 0.0 { (to - from).as_secs_f64() / rounds } else { 0.0 },
            error: f64::INFINITY,
            tail: [at(0.95), at(0.99)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// One that asks again and again, each request for so many milliseconds.
    fn seats(times: impl IntoIterator<Item = u64>) -> (Seats, Duration) {
        let (seats, mut now) = (Seats::new(1), 0);
        for time in times {
            seats.begin(0, at(now));
            now += time;
            seats.end(0, at(now), true);
        }
        (seats, at(now))
    }

    #[test]
    fn what_becomes_slower_counts_from_when_on_it_is_so() {
        let (seats, end) = seats([10; 30].into_iter().chain([40; 60]));
        let (from, is_settled) = seats.settled((at(0), end));
        assert!(is_settled && from > at(0) && from <= at(810), "{from:?} of {end:?}");
        let counted = seats.count((from, end));
        assert!((counted.latency / 0.04 - 1.0).abs() < 0.15, "{counted:?}");
    }

    #[test]
    fn what_goes_on_to_become_slower_is_not_settled() {
        let (seats, end) = seats((0..60).map(|n| 10 + n * n / 10));
        assert_eq!(seats.settled((at(0), end)), (end / 2, false));
    }

    #[test]
    fn stretches_make_up_the_whole() {
        let (seats, end) = seats((0..200).map(|n| 5 + n * 7 % 31));
        // Failures lie between, and one is under way.
        seats.begin(0, end);
        seats.end(0, end + at(40), false);
        seats.begin(0, end + at(40));
        let to = end + at(45);
        for parts in [1, 7, 500] {
            let border = |n: u32| to * n / parts;
            let amounts = (0..parts).map(|n| seats.amount((border(n), border(n + 1))));
            let ended: f64 = amounts.map(|counted| counted.amount).sum();
            // What is under way counts in each by what is known there.
            assert!((199.99..201.5).contains(&ended), "{ended} in {parts}");
        }
        assert_eq!(seats.amount((end + at(1), end + at(2))).done, 0);
    }

    #[test]
    fn what_goes_on_as_it_began_counts_from_the_beginning() {
        let (seats, end) = seats([20; 50]);
        assert_eq!(seats.settled((at(0), end)), (at(0), true));
        assert!(!seats.grows((at(0), end)));
    }
}
