//! Before whom others have to wait, and how much: those that go first are to be nearly as fast as they are alone.
//!
//! How fast requests of a kind are alone is the least mean of eight in a row within a minute. Others go the slower the more is
//! added to that by now: where as much is as they may bear, as fast as they were seen to go, which keeps what is behind the sender
//! busy and its queue short. Every ten seconds they hold back for a moment, so that the least is seen again.

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
const SILENT: f64 = 0.95;
/// Who asked so long ago is still waited for.
const HELD: Duration = Duration::from_secs(10);
/// What is known of how fast requests are now is as old at the most.
const FRESH: Duration = Duration::from_secs(1);
/// How often others hold back so that the least is seen, how soon at first, and what they go at then.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOK_FIRST: Duration = Duration::from_millis(500);
const LOOKING: f64 = 0.75;
/// For so many times the time of a request: as much as it takes to go through a queue that is as long.
const LOOK_TIMES: u32 = 4;
/// No longer.
const LOOK_LONGEST: Duration = Duration::from_secs(2);
/// Requests of which the mean is taken.
const GROUP: u32 = 8;
/// How much the youngest request says of how fast they are now.
const YOUNGEST: f64 = 0.25;
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
    /// Until when they hold back.
    looking: Duration,
    /// Some kind of requests has been faster since than it was ever seen.
    found: bool,
    /// Holding back found nothing better last: what requests were seen to take is what they take alone.
    is_sure: bool,
}

/// How fast requests are now.
#[derive(Debug, Clone, Copy)]
struct Speed {
    /// How many times what they take alone.
    times: f64,
    seconds: f64,
    at: Duration,
    /// Since when hardly anything is added.
    easy: Option<Duration>,
}

/// How fast requests of a kind usually are.
#[derive(Debug, Default)]
struct Usual {
    /// Seconds of those that came since the last group, and how many.
    sum: f64,
    count: u32,
    /// The least mean of each slice.
    least: VecDeque<(u64, f64)>,
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
        let usual = self.usual.entry(kind).or_default();
        self.found |= usual.took(seconds, now);
        let Some(least) = usual.least(now) else { return };
        let (rank, times) = (kind.rank(), seconds / least);
        let before = self.speeds[rank].filter(|speed| speed.is_fresh(now));
        let mut speed = before.unwrap_or(Speed { times, seconds, at: now, easy: None });
        speed.times += (times - speed.times) * YOUNGEST;
        speed.seconds += (seconds - speed.seconds) * YOUNGEST;
        speed.at = now;
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
        let lost = (1.0 - self.factor(first, at)).max(0.0);
        self.allowance = (self.allowance + (ALLOWED - lost) * since).clamp(0.0, ALLOWED_AT_ONCE);
        if self.look.is_none() {
            self.found = true;
        }
        let look = *self.look.get_or_insert(now + LOOK_FIRST);
        let takes = self.speeds[first].map_or(Duration::ZERO, |speed| Duration::from_secs_f64(speed.seconds));
        if now >= look {
            self.is_sure &= !self.found;
            self.looking = now + (takes * LOOK_TIMES).min(LOOK_LONGEST);
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

    /// How fast requests of a priority in a lane are to go, of what the lane carries; `None` where they go before everybody.
    pub fn factor_of(&self, lane: usize, priority: Priority, now: Duration) -> Option<f64> {
        let rank = rank_in(lane, priority);
        let first = self.first(now).filter(|first| *first < rank)?;
        let factor = self.factor(first, now);
        // Those of the same lane would share what it carries with them, and take no longer than they were ever seen to.
        let is_shared = (0..rank).any(|other| other % 2 == rank % 2 && self.is_there(other, now));
        Some(if is_shared { factor.min(SILENT) } else { factor })
    }

    fn factor(&self, first: usize, now: Duration) -> f64 {
        let least = if self.allowance > 0.0 { LEAST } else { 1.0 - ALLOWED };
        if now < self.looking {
            return LOOKING.max(least);
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
        fresh.map_or(SILENT, factor).clamp(least, MOST)
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
    fn is_fresh(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) < FRESH
    }
}

impl Usual {
    /// Whether that is clearly less than it ever was.
    fn took(&mut self, seconds: f64, now: Duration) -> bool {
        (self.sum, self.count) = (self.sum + seconds, self.count + 1);
        if self.count < GROUP {
            return false;
        }
        let before = self.least(now);
        let mean = self.sum / f64::from(self.count);
        (self.sum, self.count) = (0.0, 0);
        let slice = now.as_secs() / SLICE_SECONDS;
        match self.least.back_mut() {
            Some((last, least)) if *last >= slice => *least = least.min(mean),
            _ => self.least.push_back((slice, mean)),
        }
        while self.least.front().is_some_and(|(first, _)| first + SLICES <= slice) {
            self.least.pop_front();
        }
        before.is_some_and(|before| mean < before * CLEARLY)
    }

    fn least(&self, now: Duration) -> Option<f64> {
        let slice = now.as_secs() / SLICE_SECONDS;
        let known = self.least.iter().filter(|(of, _)| of + SLICES > slice);
        known.map(|(_, mean)| *mean).reduce(f64::min)
    }
}
