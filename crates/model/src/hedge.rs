//! When a chunk that is long in coming is asked for a second time: a *hedge* (Dean and Barroso 2013, "The Tail at
//! Scale"). The race of replicas (Wang 2012, section 3) asks for everything more than once; a hedge is for the few
//! requests that fall behind others like them, and for no more than a few.
//!
//! A chunk is hedged once at the most, and only where all of this holds:
//! - It has been waited for four times as long as chunks of its size usually take, and for half a second.
//! - What is missing would come later, at the pace of late, than another request usually takes for all of it. One that
//!   has stalled or crawls does not end soon; one that began late and comes well does.
//! - In the same time, from its beginning to now, others came twice as fast. Where everything is slow, the store or the
//!   line is, and more requests would make it worse.
//! - Hedges are no more than one, and one in twenty requests.
//!
//! A chunk is as old as its bytes have been waited for, without what the reader took to deal with those that came.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::store_model::SizeClass;

/// So many times what is usual is late.
const TIMES_USUAL: u32 = 4;
/// So many times what others take at the same time is late.
const TIMES_OTHERS: u32 = 2;
/// Nothing is late before: a lost packet or a store's own second try is over by then.
const LEAST_LATE: Duration = Duration::from_millis(500);
/// What ends within this need not be asked for again.
const SOON: Duration = Duration::from_millis(100);
/// Chunks of a size that have to have come before anybody knows what is usual.
const KNOWN: usize = 8;
/// What is usual is the median of so many that came last.
const REMEMBERED: usize = 32;
/// One request in so many may be hedged.
const ONE_IN: u64 = 20;

/// What is known of chunks that came, and how many are under way or were hedged.
#[derive(Debug, Default)]
pub struct Hedges {
    begun: u64,
    hedged: u64,
    under_way: u32,
    /// Bytes of all chunks.
    came: u64,
    /// How long all chunks were under way, added up, and until when.
    spent: Duration,
    spent_until: Duration,
    /// How long those took that came last, by their size.
    times: BTreeMap<SizeClass, VecDeque<Duration>>,
}

/// A chunk that is under way. It must come to its [`end`](Hedges::end), once.
#[derive(Debug)]
#[must_use = "a chunk that does not end counts for ever"]
pub struct Chunk {
    bytes: u64,
    done: u64,
    begun: Duration,
    /// What had come and been spent when it began.
    before: (u64, Duration),
    /// How far it was when it was looked at last, and how old.
    seen: (u64, Duration),
    is_hedged: bool,
}

/// What is to become of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// It may be hedged now.
    pub is_due: bool,
    /// It is to be looked at again when it is so old.
    pub again: Duration,
}

impl Hedges {
    /// A chunk of so many bytes is asked for.
    pub fn begin(&mut self, now: Duration, bytes: u64) -> Chunk {
        self.spend(now);
        self.begun += 1;
        self.under_way += 1;
        let (before, seen) = ((self.came, self.spent), (0, Duration::ZERO));
        Chunk { bytes, done: 0, begun: now, before, seen, is_hedged: false }
    }

    /// Bytes of a chunk have come.
    pub const fn came(&mut self, chunk: &mut Chunk, bytes: u64) {
        self.came += bytes;
        chunk.done += bytes;
    }

    /// How old a chunk has to be when it is looked at first.
    #[must_use]
    pub fn first_look(&self, chunk: &Chunk) -> Duration {
        self.usual(chunk.bytes).map_or(LEAST_LATE, late) / 2
    }

    /// Looks at a chunk that is so old.
    pub fn look(&mut self, chunk: &mut Chunk, now: Duration, age: Duration) -> Look {
        let (seen, seen_at) = std::mem::replace(&mut chunk.seen, (chunk.done, age));
        let Some(usual) = self.usual(chunk.bytes) else {
            return Look { is_due: false, again: age + LEAST_LATE / 2 };
        };
        let late = late(usual);
        let again = if age < late / 2 { late / 2 } else { late.max(age + late / 4) };
        let missing = chunk.bytes.saturating_sub(chunk.done);
        let is_due = age >= late
            && !chunk.is_hedged
            && self.hedged < 1 + self.begun / ONE_IN
            && self.of_others(chunk, now).is_some_and(|others| {
                let left = time(missing, chunk.done - seen, age.saturating_sub(seen_at));
                age >= others * TIMES_OTHERS && left.is_none_or(|left| left > usual.max(others).max(SOON))
            });
        Look { is_due, again }
    }

    /// The chunk is asked for a second time.
    pub const fn hedge(&mut self, chunk: &mut Chunk) {
        if !chunk.is_hedged {
            chunk.is_hedged = true;
            self.hedged += 1;
        }
    }

    /// The chunk is over: it has come, and was so old; `None` where it failed or was given up.
    pub fn end(&mut self, chunk: Chunk, now: Duration, came_at: Option<Duration>) {
        self.spend(now);
        self.under_way -= 1;
        // The time of one that was hedged is that of two.
        if let Some(age) = came_at.filter(|_| !chunk.is_hedged) {
            let times = self.times.entry(SizeClass::of(chunk.bytes)).or_default();
            if times.len() == REMEMBERED {
                times.pop_front();
            }
            times.push_back(age);
        }
    }

    /// Chunks that were hedged.
    #[must_use]
    pub const fn hedged(&self) -> u64 {
        self.hedged
    }

    /// Chunks that have not come to their end.
    #[must_use]
    pub const fn under_way(&self) -> u32 {
        self.under_way
    }

    /// How long a chunk usually takes: as its like do, or the next larger ones.
    fn usual(&self, bytes: u64) -> Option<Duration> {
        let class = SizeClass::of(bytes);
        // What is larger still may be of any size.
        class.most_bytes()?;
        let (_, times) = self.times.range(class..).find(|(_, times)| times.len() >= KNOWN)?;
        let mut sorted: Vec<Duration> = times.iter().copied().collect();
        let middle = sorted.len() / 2;
        Some(*sorted.select_nth_unstable(middle).1)
    }

    /// How long others would take for as many bytes, at the pace that they had from when this one began; `None` where
    /// they brought fewer.
    fn of_others(&mut self, chunk: &Chunk, now: Duration) -> Option<Duration> {
        self.spend(now);
        let (came, spent) = chunk.before;
        let came = self.came - came - chunk.done;
        let own = now.saturating_sub(chunk.begun);
        let spent = (self.spent - spent).saturating_sub(own);
        if came < chunk.bytes { None } else { time(chunk.bytes, came, spent) }
    }

    /// All that are under way got older. Threads may come with their times in another order.
    fn spend(&mut self, now: Duration) {
        let now = now.max(self.spent_until);
        self.spent += (now - self.spent_until) * self.under_way;
        self.spent_until = now;
    }
}

impl Chunk {
    /// It turned out to be of another size.
    pub const fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// Whether it was asked for a second time.
    #[must_use]
    pub const fn is_hedged(&self) -> bool {
        self.is_hedged
    }
}

fn late(usual: Duration) -> Duration {
    usual.saturating_mul(TIMES_USUAL).max(LEAST_LATE)
}

/// How long `bytes` take where so many came in this time; `None` where none did.
fn time(bytes: u64, came: u64, within: Duration) -> Option<Duration> {
    let nanos = (u128::from(bytes) * within.as_nanos()).checked_div(u128::from(came))?;
    Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests;
