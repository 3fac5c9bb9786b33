//! How many requests of each size are under way at a time, for whoever moves objects of all sizes.

use super::{Cell, Surface};
use crate::store_model::SizeClass;

/// Parallelisms that are considered.
const CONSIDERED: [usize; 15] = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256];
/// More of them are not worth it for less.
const WORTH: f64 = 0.03;
/// What a new connection has under way when its window stops doubling, in bytes: it carries that much in a round trip, and for
/// seconds little more.
const NEW_WINDOW: f64 = 256e3;
/// So many new connections fill any line that one client has.
const MOST_NEW: f64 = 64.0;

/// Requests at a time, by their size. The fewest that carry what any number does, and fill the line on new connections; four at the
/// least: between two objects somebody else has to fill it. Never more of large ones than of small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtATime([usize; SizeClass::COUNT]);

impl AtATime {
    /// What surfaces say, of each the larger number; `None` where there are none.
    #[must_use]
    pub fn of(surfaces: &[Surface]) -> Option<Self> {
        if surfaces.is_empty() {
            return None;
        }
        let mut all = [0; SizeClass::COUNT];
        let mut larger = 0;
        for class in SizeClass::all().collect::<Vec<_>>().into_iter().rev() {
            let bytes = class.most_bytes().unwrap_or(1 << 29);
            let of = |surface: &Surface| fewest(surface, bytes).max(filling(surface));
            let wanted = surfaces.iter().map(of).max().unwrap_or(0);
            larger = larger.max(wanted);
            all[class.index()] = larger;
        }
        Some(Self(all))
    }

    /// Of a class of sizes.
    #[must_use]
    pub const fn at(&self, sizes: SizeClass) -> usize {
        self.0[sizes.index()]
    }

    /// Of the smallest.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.0[0]
    }
}

/// Those that fill the line before windows have opened, which takes longer than most transfers far away: windows were open when the
/// surface was sampled.
fn filling(surface: &Surface) -> usize {
    let law = surface.law();
    let under_way = law.fixed() / law.shared_per_byte();
    (under_way / NEW_WINDOW).min(MOST_NEW).ceil() as usize
}

fn fewest(surface: &Surface, bytes: u64) -> usize {
    let rates = CONSIDERED.map(|parallel| surface.infer(Cell { bytes, parallel }).rate());
    let best = rates.into_iter().fold(0.0, f64::max);
    let enough = rates.iter().position(|rate| *rate >= best * (1.0 - WORTH)).unwrap_or(0);
    CONSIDERED[enough]
}
