//! A rotating disk: the arm moves to the track, the sector comes round, the bytes pass under the head.
//!
//! A request that goes on where the last one ended costs the passing only: the disk reads on by itself and gathers
//! writes. All tracks have the same speed; the faster outer ones of a real disk are not modelled.

use std::time::Duration;

use super::{Access, Chance, Request, Served, transfer};

/// What a rotating disk is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpindleFigures {
    /// Its size.
    pub bytes: u64,
    /// The least that moving the arm takes: to the next track.
    pub shortest_seek: Duration,
    /// The most: from one end to the other. Between them it goes with the root of the distance.
    pub longest_seek: Duration,
    /// One turn. A sector is half of it away in the mean.
    pub rotation: Duration,
    /// Bytes a second that pass under the head.
    pub read_bandwidth: u64,
    /// The same for writes.
    pub write_bandwidth: u64,
}

impl SpindleFigures {
    /// The mean seek between places by chance: the root of their distance is 8/15 in the mean.
    #[must_use]
    pub fn mean_seek(&self) -> Duration {
        self.shortest_seek + self.longest_seek.saturating_sub(self.shortest_seek) * 8 / 15
    }
}

#[derive(Debug)]
pub(super) struct Spindle {
    figures: SpindleFigures,
    /// Where the head is.
    head: u64,
    free_at: Duration,
}

impl Spindle {
    pub const fn new(figures: SpindleFigures) -> Self {
        Self { figures, head: 0, free_at: Duration::ZERO }
    }

    pub fn serve(
        &mut self,
        now: Duration,
        request: Request,
        is_sequential: bool,
        chance: &mut Chance,
    ) -> Served {
        let figures = self.figures;
        let begun = self.free_at.max(now);
        let reached = if is_sequential {
            begun
        } else {
            begun + self.seek(request.offset) + chance.below(figures.rotation)
        };
        let bandwidth = match request.access {
            Access::Read => figures.read_bandwidth,
            Access::Write => figures.write_bandwidth,
        };
        self.free_at = reached + transfer(request.bytes, bandwidth);
        self.head = request.offset.saturating_add(request.bytes).min(figures.bytes);
        Served { begun, done: self.free_at }
    }

    fn seek(&self, to: u64) -> Duration {
        let distance = self.head.abs_diff(to.min(self.figures.bytes));
        let part = distance as f64 / self.figures.bytes.max(1) as f64;
        let range = self.figures.longest_seek.saturating_sub(self.figures.shortest_seek);
        self.figures.shortest_seek + range.mul_f64(part.clamp(0.0, 1.0).sqrt())
    }
}
