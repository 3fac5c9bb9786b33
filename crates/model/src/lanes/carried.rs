//! What a lane carries where nobody holds it back.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use super::shelter::Share;

/// How long a slice is, in milliseconds.
const SLICE_MILLIS: u64 = 500;
const SLICES_A_SECOND: f64 = 1000.0 / SLICE_MILLIS as f64;
/// Slices that are remembered: ten seconds, and those that are not over.
const SLICES: usize = 56;
/// Slices of which the best counts.
const COUNTING: u64 = 20;
/// What takes longer is counted before its end.
pub(super) const LONGEST: Duration = Duration::from_secs(16);

/// How fast a lane goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Amount a second: a share of the most that the lane carries.
    pub rate: f64,
    pub most: f64,
    pub share: Share,
}

/// Amounts by when they were carried. What a request carried is spread over the time that it took: when its bytes
/// left a buffer nobody knows.
#[derive(Debug)]
pub(super) struct Carried {
    slices: [Slice; SLICES],
    /// What began and is not counted yet.
    open: BTreeSet<(Duration, u64)>,
    /// The most before a slice, as it was found out last.
    most: Cell<Option<(u64, f64)>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Slice {
    number: u64,
    amount: f64,
    /// The lane's own requests carried some of it: otherwise it says nothing of what they could.
    is_own: bool,
    /// At which pace somebody had to wait though nobody knows what that is good for.
    held: Option<Pace>,
}

impl Default for Carried {
    fn default() -> Self {
        Self { slices: [Slice::default(); SLICES], open: BTreeSet::new(), most: Cell::default() }
    }
}

impl Carried {
    /// Something begins.
    pub fn begin(&mut self, id: u64, now: Duration) {
        self.open.insert((now, id));
    }

    /// It is counted.
    pub fn count(&mut self, id: u64, since: Duration, now: Duration, amount: u64) {
        self.forget(id, since);
        self.spread(since, now, amount, true);
    }

    /// So much was carried by others, where the lane's own go too.
    pub fn add(&mut self, since: Duration, now: Duration, amount: u64) {
        self.spread(since, now, amount, false);
    }

    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    fn spread(&mut self, since: Duration, now: Duration, amount: u64, is_own: bool) {
        let (first, last) = (slice_of(since), slice_of(now));
        let whole = (now.saturating_sub(since)).as_secs_f64().max(1e-9);
        for number in first.max((last + 1).saturating_sub(SLICES as u64))..=last {
            let begin = Duration::from_millis(number * SLICE_MILLIS);
            let end = begin + Duration::from_millis(SLICE_MILLIS);
            let overlap = end.min(now).saturating_sub(begin.max(since)).as_secs_f64();
            let part = if whole > 1e-9 { overlap / whole } else { 1.0 };
            let slice = self.slice(number);
            slice.amount += amount as f64 * part;
            slice.is_own |= is_own;
        }
    }

    /// Somebody had to wait at this pace.
    pub fn hold(&mut self, pace: Pace, now: Duration) {
        self.slice(slice_of(now)).held = Some(pace);
    }

    #[allow(clippy::cast_possible_truncation, reason = "fewer than slices")]
    fn slice(&mut self, number: u64) -> &mut Slice {
        let slice = &mut self.slices[(number % SLICES as u64) as usize];
        if slice.number != number {
            *slice = Slice { number, ..Slice::default() };
        }
        slice
    }

    /// It is not counted.
    pub fn forget(&mut self, id: u64, since: Duration) {
        self.open.remove(&(since, id));
    }

    /// What began and is not counted.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The most a second in a slice of the last ten seconds that is over; `None` where there is none.
    pub fn most(&self, now: Duration) -> Option<f64> {
        let oldest = self.open.first().map_or(now, |(since, _)| *since);
        // What took longer than that was counted in parts.
        let over = slice_of(oldest.max(now.saturating_sub(LONGEST)));
        let most = match self.most.get() {
            Some((before, most)) if before == over => most,
            _ => {
                let from = over.saturating_sub(COUNTING);
                let is_known = |slice: &&Slice| slice.is_own && (from..over).contains(&slice.number);
                let known = self.slices.iter().filter(is_known);
                let most = known.map(Slice::worth).fold(0.0, f64::max);
                self.most.set(Some((over, most)));
                most
            }
        };
        (most > 0.0).then_some(most * SLICES_A_SECOND)
    }
}

impl Slice {
    /// What would have been carried had nobody been held back without need: what was given was used up as far as it was carried.
    /// More than what was carried before that it cannot tell.
    fn worth(&self) -> f64 {
        let before = |pace: Pace| (self.amount / pace.share.factor).min(pace.most / SLICES_A_SECOND);
        self.held.map_or(self.amount, |pace| before(pace).max(self.amount))
    }
}

fn slice_of(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX) / SLICE_MILLIS
}
