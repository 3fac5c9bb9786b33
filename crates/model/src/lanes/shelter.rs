//! Before whom others have to wait, and how much: those that go first are to be nearly as fast as they are alone.
//!
//! How fast requests of a kind are alone is the least mean of eight in a row within a minute. Others go the slower the more is
//! added to that by now: where as much is as they may bear, as fast as they were seen to go, which keeps what is behind the sender
//! busy and its queue short. Every ten seconds they hold back for a moment, so that the least is seen again.
//!
//! What requests take while others hold back is what holding back can do for them. Where that is more than the least, they are
//! slow for a reason of their own, and nobody holds back for that.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::kind::{Kind, Priority, rank_in};

/// So much may be added to what requests of each rank take alone, in the mean: nobody waits for the last.
const GOALS: [f64; Kind::RANKS - 1] = [0.15, 0.15, 0.25];
/// What is too much is to be gone in so many times the time of a request.
const WITHIN: f64 = 2.0;
/// While less than so much of that is added, others may go faster and faster.
const EASY: f64 = 0.5;
/// For so many times the time of a request that need not mean anything: they have just held back.
const EASY_TIMES: f64 = 8.0;
/// Others never go slower, of what they carry.
const LEAST: f64 = 0.5;
/// Nor faster.
const MOST: f64 = 2.0;
/// What they may lose in the long run.
const ALLOWED: f64 = 0.08;
/// Seconds of all they carry that they may lose at once.
const ALLOWED_AT_ONCE: f64 = 2.0;
/// How fast others go while those that go first are silent.
const SILENT: Share = Share { factor: 0.95, is_felt: false };
/// How fast others of the same lane go at the most.
const SHARED: Share = Share { factor: 0.9, is_felt: false };
/// Who asked so long ago is still waited for.
const HELD: Duration = Duration::from_secs(10);
/// What is known of how fast requests are now is as old at the most.
const FRESH: Duration = Duration::from_secs(1);
/// How often others hold back so that the least is seen, how soon at first, and what they go at then.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOK_FIRST: Duration = Duration::from_millis(500);
const LOOKING: f64 = 0.75;
/// For so many times the time of a request: as much as it takes to go through a queue that is as long.
const LOOK_TIMES: f64 = 4.0;
/// No longer.
const LOOK_LONGEST: Duration = Duration::from_secs(2);
/// Requests of which the mean is taken.
const GROUP: u32 = 8;
/// How much the youngest request says of how fast they are now.
const YOUNGEST: f64 = 0.25;
/// How much of what may be added to the least is already there where others hold back: a queue takes a while to end, and the
/// least is taken for what it is where they are no slower than that.
const LEFT: f64 = 0.25;
/// So many requests that began while others held back are known at the most.
const CALM: u32 = 32;
/// A group of such that takes less than so much of what was known says that the store is another than it was.
const FAR: f64 = 0.25;
/// What is less than so much of the least is clearly less.
const CLEARLY: f64 = 0.95;
/// The least is remembered for so many slices of so long.
const SLICES: u64 = 6;
const SLICE_SECONDS: u64 = 10;

#[derive(Debug)]
pub(super) struct Shelter {
    /// When somebody of each rank was heard of last.
    seen: [Option<Duration>; Kind::RANKS],
    /// How fast those of each rank are now.
    speeds: [Option<Speed>; Kind::RANKS],
    usual: BTreeMap<Kind, Usual>,
    /// Seconds of all that they carry that others may lose now.
    allowance: f64,
    /// Until when that was counted.
    at: Duration,
    /// When others hold back next, where somebody goes before somebody.
    look: Option<Duration>,
    /// Since when and until when they hold back, behind the half that it takes until the queue has ended.
    looked: Duration,
    looking: Duration,
    /// Some kind of requests has been faster since than it was ever seen.
    found: bool,
    /// Holding back found nothing better last: what requests were seen to take is what they take alone.
    is_sure: bool,
}

/// How fast requests are to go that others go before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// Of what their lane carries.
    pub factor: f64,
    /// What those that go first take says so. Otherwise nobody knows what it is good for.
    pub is_felt: bool,
}

/// How fast requests are now.
#[derive(Debug, Clone, Copy)]
struct Speed {
    /// How many times what they take alone.
    times: f64,
    seconds: f64,
    /// What they take while others hold back is known, and hardly more than the least.
    is_steady: bool,
    at: Duration,
    /// Since when hardly anything is added.
    easy: Option<Duration>,
}

/// How fast requests of a kind usually are.
#[derive(Debug, Default)]
struct Usual {
    /// Those that came since the last group.
    group: Mean,
    /// The least mean of each slice.
    least: VecDeque<(u64, f64)>,
    /// Those that began while others held back since the last group of such.
    calm: Mean,
    /// Those of the last such groups.
    held: Mean,
}

/// What requests take in the mean.
#[derive(Debug, Default)]
struct Mean {
    seconds: f64,
    count: u32,
}

impl Default for Shelter {
    fn default() -> Self {
        Self {
            seen: [None; Kind::RANKS],
            speeds: [None; Kind::RANKS],
            usual: BTreeMap::new(),
            allowance: ALLOWED_AT_ONCE,
            at: Duration::ZERO,
            look: None,
            looked: Duration::ZERO,
            looking: Duration::ZERO,
            found: false,
            is_sure: false,
        }
    }
}

impl Shelter {
    /// Somebody asks.
    pub fn came(&mut self, kind: Kind, now: Duration) {
        if !kind.is_guessed {
            self.seen[kind.rank()] = Some(now);
        }
    }

    /// A request was done.
    pub fn took(&mut self, kind: Kind, service: Duration, now: Duration) {
        let seconds = service.as_secs_f64().max(1e-6);
        let (rank, usual) = (kind.rank(), self.usual.entry(kind).or_default());
        self.found |= usual.took(seconds, now);
        if (self.looked..self.looking).contains(&now.saturating_sub(service)) {
            usual.is_calm(seconds);
        }
        let goal = GOALS.get(rank).copied().unwrap_or_default();
        let Some(alone) = usual.alone(goal * LEFT, now) else { return };
        let (times, is_steady) = (seconds / alone, usual.is_steady(goal, now));
        let before = self.speeds[rank].filter(|speed| speed.is_fresh(now));
        let first = Speed { times, seconds, is_steady, at: now, easy: None };
        let mut speed = before.unwrap_or(first);
        speed.times += (times - speed.times) * YOUNGEST;
        speed.seconds += (seconds - speed.seconds) * YOUNGEST;
        (speed.is_steady, speed.at) = (is_steady, now);
        let is_easy = GOALS.get(rank).is_some_and(|goal| speed.times < 1.0 + goal * EASY);
        speed.easy = is_easy.then(|| speed.easy.unwrap_or(now));
        self.speeds[rank] = Some(speed);
    }

    /// Time goes on. Nothing is lost while nobody who is to wait `is_paced`.
    pub fn pass(&mut self, is_paced: bool, now: Duration) {
        let (since, at) = (now.saturating_sub(self.at).as_secs_f64(), self.at);
        self.at = self.at.max(now);
        let Some(first) = self.first(now).filter(|_| is_paced) else {
            (self.look, self.is_sure) = (None, false);
            self.allowance = (self.allowance + ALLOWED * since).min(ALLOWED_AT_ONCE);
            return;
        };
        let lost = (1.0 - self.share(first, at).factor).max(0.0);
        self.allowance = (self.allowance + (ALLOWED - lost) * since).clamp(0.0, ALLOWED_AT_ONCE);
        if self.look.is_none() {
            self.found = true;
        }
        let look = *self.look.get_or_insert(now + LOOK_FIRST);
        let takes = self.speeds[first].map_or(Duration::ZERO, |speed| Duration::from_secs_f64(speed.seconds));
        if now >= look {
            self.is_sure &= !self.found;
            let long = self.speeds[first].map_or(Duration::ZERO, |speed| speed.look());
            (self.looked, self.looking) = (now + long / 2, now + long);
            self.look = Some(now + LOOK_EVERY);
            self.found = false;
        } else if now >= self.looking {
            self.is_sure = !self.found;
            if self.found {
                // There was a queue, and may still be one.
                self.look = Some(look.min(now + takes));
            }
        }
    }

    /// How fast requests of a priority in a lane are to go; `None` where they go before everybody.
    pub fn share_of(&self, lane: usize, priority: Priority, now: Duration) -> Option<Share> {
        let rank = rank_in(lane, priority);
        let first = self.first(now).filter(|first| *first < rank)?;
        let share = self.share(first, now);
        // Those of the same lane would share what it carries with them, and take no longer than they were ever seen to.
        let is_shared = (0..rank).any(|other| other % 2 == rank % 2 && self.is_there(other, now));
        Some(if is_shared && share.factor > SHARED.factor { SHARED } else { share })
    }

    fn share(&self, first: usize, now: Duration) -> Share {
        let least = if self.allowance > 0.0 { LEAST } else { 1.0 - ALLOWED };
        let felt = |factor| Share { factor, is_felt: true };
        if now < self.looking {
            return felt(LOOKING.max(least));
        }
        let mut speeds = self.speeds.into_iter().zip(GOALS).skip(first);
        let fresh = speeds.find_map(|(speed, goal)| Some((speed.filter(|speed| speed.is_fresh(now))?, goal)));
        let factor = |(speed, goal): (Speed, f64)| {
            // They may have had less to carry than they could: twice as fast after a second.
            let easy = speed.easy.filter(|_| self.is_sure);
            let since = easy.map_or(0.0, |since| now.saturating_sub(since).as_secs_f64());
            let more = (since - speed.seconds * EASY_TIMES).max(0.0);
            (1.0 + (1.0 + goal - speed.times) / WITHIN) * (1.0 + more)
        };
        fresh.map_or(SILENT, |speed| felt(factor(speed).clamp(least, MOST)))
    }

    /// Who goes first of those that asked of late.
    fn first(&self, now: Duration) -> Option<usize> {
        (0..Kind::RANKS).find(|rank| self.is_there(*rank, now))
    }

    /// Whether somebody of the lane has others before it.
    pub fn has_waiting(&self, lane: usize, now: Duration) -> bool {
        let first = self.first(now);
        let mut ranks =
            [Priority::High, Priority::Normal].map(|priority| rank_in(lane, priority)).into_iter();
        ranks.any(|rank| self.is_there(rank, now) && first.is_some_and(|first| first < rank))
    }

    fn is_there(&self, rank: usize, now: Duration) -> bool {
        self.seen[rank].is_some_and(|seen| now.saturating_sub(seen) < HELD)
    }
}

impl Speed {
    /// How long others are to hold back: until a queue has ended, and as long as may be where none was seen to end.
    fn look(&self) -> Duration {
        let queue = Duration::from_secs_f64(self.seconds * LOOK_TIMES);
        if self.is_steady { queue.min(LOOK_LONGEST) } else { LOOK_LONGEST }
    }

    fn is_fresh(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) < FRESH
    }
}

impl Usual {
    /// Whether that is clearly less than it ever was.
    fn took(&mut self, seconds: f64, now: Duration) -> bool {
        let Some(group) = self.group.add(seconds) else { return false };
        let (before, mean) = (self.least(now), group.mean());
        let slice = now.as_secs() / SLICE_SECONDS;
        match self.least.back_mut() {
            Some((last, least)) if *last >= slice => *least = least.min(mean),
            _ => self.least.push_back((slice, mean)),
        }
        while self.least.front().is_some_and(|(first, _)| first + SLICES <= slice) {
            self.least.pop_front();
        }
        let Some(before) = before.filter(|before| mean < before * CLEARLY) else { return false };
        // What they took while others held back was too much by as much: the queue had not ended.
        self.held.seconds *= mean / before;
        true
    }

    /// One began while others held back.
    fn is_calm(&mut self, seconds: f64) {
        let Some(group) = self.calm.add(seconds) else { return };
        if group.mean() < self.held.mean() * FAR {
            self.held = Mean::default();
        } else if self.held.count >= CALM {
            // What was seen long ago counts for less and less.
            self.held = Mean { seconds: self.held.seconds / 2.0, count: self.held.count / 2 };
        }
        self.held.seconds += group.seconds;
        self.held.count += group.count;
    }

    /// What they take alone, or as good as alone: so much may still be added to what they take while others hold back.
    fn alone(&self, left: f64, now: Duration) -> Option<f64> {
        Some(self.least(now)?.max(self.held.mean() / (1.0 + left)))
    }

    /// What they take while others hold back is known, and no more than this is added to the least.
    fn is_steady(&self, goal: f64, now: Duration) -> bool {
        let least = self.least(now).filter(|_| self.held.count > 0);
        least.is_some_and(|least| self.held.mean() < least * (1.0 + goal))
    }

    fn least(&self, now: Duration) -> Option<f64> {
        let slice = now.as_secs() / SLICE_SECONDS;
        let known = self.least.iter().filter(|(of, _)| of + SLICES > slice);
        known.map(|(_, mean)| *mean).reduce(f64::min)
    }
}

impl Mean {
    /// What the group takes, where it is whole now: another begins.
    fn add(&mut self, seconds: f64) -> Option<Self> {
        (self.seconds, self.count) = (self.seconds + seconds, self.count + 1);
        (self.count >= GROUP).then(|| std::mem::take(self))
    }

    /// Nothing where there are none.
    fn mean(&self) -> f64 {
        self.seconds / f64::from(self.count.max(1))
    }
}
