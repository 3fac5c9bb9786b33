//! A rotating disk: a request takes a seek, a rotational delay and the transfer.
//!
//! A request that starts where the last one ended costs only the transfer, because disks read ahead and gather
//! writes. All tracks have the same speed; the faster outer tracks of a real disk are not modelled.

use std::time::Duration;

use super::{Access, Chance, Request, Served, transfer};

/// Parameters of a rotating disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpindleFigures {
    /// Capacity.
    pub bytes: u64,
    /// Minimum seek time: to the next track.
    pub shortest_seek: Duration,
    /// Maximum seek time: across the disk. Between the two, the time grows with the square root of the distance.
    pub longest_seek: Duration,
    /// Time of one rotation. The mean rotational delay is half of it.
    pub rotation: Duration,
    /// Read bandwidth in bytes per second.
    pub read_bandwidth: u64,
    /// Write bandwidth in bytes per second.
    pub write_bandwidth: u64,
}

impl SpindleFigures {
    /// Mean seek time between random offsets: the mean square root of their distance is 8/15.
    #[must_use]
    pub fn mean_seek(&self) -> Duration {
        self.shortest_seek + self.longest_seek.saturating_sub(self.shortest_seek) * 8 / 15
    }
}

#[derive(Debug)]
pub(super) struct Spindle {
    figures: SpindleFigures,
    /// Offset of the head.
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
