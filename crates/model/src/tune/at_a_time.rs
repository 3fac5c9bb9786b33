//! How many requests of each size are under way at a time, for whoever moves objects of all sizes.

use super::{Cell, Law, Surface};
use crate::store_model::SizeClass;

/// Parallelisms that are considered.
const CONSIDERED: [usize; 17] = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384];
/// More than these were never tried: only where the line has room for the bytes of all of them.
const TRIED: usize = 256;
/// More of them are not worth it for less.
const WORTH: f64 = 0.03;
/// What a new connection has under way when its window stops doubling, in bytes: it carries that much in a round trip, and for
/// seconds little more.
const NEW_WINDOW: f64 = 256e3;
/// So many new connections fill any line that one client has.
const MOST_NEW: f64 = 64.0;
/// Who lost the last packets of a request waits for a fifth of a second (RFC 6298 with Linux's least time): behind a round trip that is
/// longer than a part of that, in seconds, it is worse that nobody asks.
const SHORT: f64 = 0.2 / 5.0;
/// So many small requests over new connections are never too many: between two of them somebody else has to fill the line.
const FEW_NEW: usize = 4;
/// What is under way on a line that is full has room on it so often: once on the line, and half of it in the queue in front.
const ROOM: f64 = 1.5;

/// Requests at a time, by their size. The fewest that carry what any number does, and fill the line on new connections; four at the
/// least: between two objects somebody else has to fill it. Never more of large ones than of small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtATime {
    all: [usize; SizeClass::COUNT],
    new: [usize; SizeClass::COUNT],
}

impl AtATime {
    /// What surfaces say, of each the larger number; `None` where there are none.
    #[must_use]
    pub fn of(surfaces: &[Surface]) -> Option<Self> {
        if surfaces.is_empty() {
            return None;
        }
        let [mut all, mut new] = [[0; SizeClass::COUNT]; 2];
        let mut larger = 0;
        for class in SizeClass::all().collect::<Vec<_>>().into_iter().rev() {
            let bytes = class.most_bytes().unwrap_or(1 << 29);
            let of = |surface: &Surface| fewest(surface, bytes).max(filling(surface));
            let wanted = surfaces.iter().map(of).max().unwrap_or(0);
            larger = larger.max(wanted);
            all[class.index()] = larger;
            let having_room = surfaces.iter().map(|surface| having_room(surface, bytes)).max();
            new[class.index()] = having_room.map_or(larger, |most| larger.min(most));
        }
        Some(Self { all, new })
    }

    /// Of a class of sizes.
    #[must_use]
    pub const fn at(&self, sizes: SizeClass) -> usize {
        self.all[sizes.index()]
    }

    /// The same as long as connections are new. Windows that open together overrun the queue in front of the line together, and who
    /// lost the last packets of a request waits for a fifth of a second. Later they are as large as the line lets them be.
    #[must_use]
    pub const fn at_first(&self, sizes: SizeClass) -> usize {
        self.new[sizes.index()]
    }

    /// Of the smallest.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.all[0]
    }
}

/// Those that fill the line before windows have opened, which takes longer than most transfers far away: windows were open when the
/// surface was sampled.
fn filling(surface: &Surface) -> usize {
    let law = surface.law();
    (under_way(law) / NEW_WINDOW).min(MOST_NEW).ceil() as usize
}

/// Those of small requests whose bytes all have room at once. Of large ones no window has opened so far that it had all of one.
fn having_room(surface: &Surface, bytes: u64) -> usize {
    let law = surface.law();
    if bytes as f64 >= NEW_WINDOW || law.fixed() > SHORT {
        return usize::MAX;
    }
    let room = ROOM * under_way(law);
    FEW_NEW.max((room / bytes.max(1) as f64) as usize)
}

/// Bytes that are under way on a line that is full.
fn under_way(law: &Law) -> f64 {
    law.fixed() / law.shared_per_byte()
}

fn fewest(surface: &Surface, bytes: u64) -> usize {
    let room = ROOM * under_way(surface.law());
    let has_room = |parallel: usize| parallel <= TRIED || Cell { bytes, parallel }.in_flight() <= room;
    let considered = CONSIDERED.into_iter().filter(|parallel| has_room(*parallel));
    let rates: Vec<_> =
        considered.map(|parallel| (parallel, surface.infer(Cell { bytes, parallel }).rate())).collect();
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let enough = rates.iter().find(|(_, rate)| *rate >= best * (1.0 - WORTH));
    enough.map_or(CONSIDERED[0], |(parallel, _)| *parallel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Belief, Sample};

    /// What is known of a store behind so many seconds and 1 Gbit/s.
    fn known(round_trip: f64) -> AtATime {
        let sample = |(bytes, parallel, besides): (u64, usize, f64)| {
            let cell = Cell { bytes, parallel };
            let latency = (round_trip + besides).max(cell.in_flight() / 115e6);
            Sample { cell, latency, error: 0.02, tail: None, is_seen: false }
        };
        let samples = [(4 << 10, 1, 0.5e-3), (64 << 10, 1, 1e-3), (64 << 10, 64, 0.0), (8 << 20, 16, 0.0)];
        let belief = Belief::default().with_round_trip(round_trip);
        AtATime::of(&[Surface::new(belief, samples.map(sample).to_vec())]).unwrap()
    }

    #[test]
    fn new_connections_are_no_more_than_have_room() {
        let region = known(0.01);
        let of = |bytes| [region.at(SizeClass::of(bytes)), region.at_first(SizeClass::of(bytes))];
        // 1.2 MB are under way: half as much again are 27 requests of 64 KiB.
        let [all, new] = of(64 << 10);
        assert!(all >= 48 && (24..=32).contains(&new), "{all} {new}");
        for bytes in [4 << 10, 1 << 20, 16 << 20] {
            let [all, new] = of(bytes);
            assert_eq!(all, new, "{bytes}");
        }
        // Far away nobody waits for long who lost something, beside a round trip.
        let far = known(0.05);
        assert!(SizeClass::all().all(|class| far.at(class) == far.at_first(class)), "{far:?}");
        // 20 MB are under way at the other end of the world.
        let small = SizeClass::of(64 << 10);
        assert!(known(0.176).at(small) > TRIED, "{:?}", known(0.176));
        // Next door hardly anything is under way.
        let near = known(0.3e-3);
        assert_eq!(near.at_first(SizeClass::of(64 << 10)), FEW_NEW);
        for class in SizeClass::all() {
            let [all, new] = [near.at(class), near.at_first(class)];
            assert!(new == all || new < all && new >= FEW_NEW, "{class:?}: {all} {new}");
        }
    }
}
