//! Selective allocation of a write-back journal: which writes enter it while it fills, and in which order it is drained.
//!
//! Chen, Mesnier and Hahn, *Client-aware cloud storage*, MSST 2014, section III.D.1, let data of low priority bypass a cache
//! that is being cleaned. Here the line is graded: the fuller the journal, the higher the rank that a write needs. A
//! rank yields room only to the higher ranks that arrive. So writes of one rank, with or without labels, may fill the whole
//! journal.

mod drain_pace;

use tradewind_core::{Class, Classes};

use crate::class_policy::{ClassPolicyTable, ClassPriority};

pub use drain_pace::{DirtyLoad, DrainOrder, DrainPace, LOW_WATERMARK_PERCENT, PRESSURE_PERCENT};

/// The number of ranks.
const RANKS: usize = ClassPriority::LOWEST.value() as usize + 1;

/// The number of recent writes after which older ones count half.
const WINDOW_WRITES: u32 = 512;

/// The rank of a write for the journal: 0 enters first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteRank(u8);

impl WriteRank {
    /// The rank of writes that enter while there is room.
    pub const HIGHEST: Self = Self(0);

    /// The rank of an object of `size` bytes: the priority of its most important byte. Classes without a priority of their
    /// own, those of objects without a label, are ranked by size.
    #[must_use]
    pub fn for_object(policies: &ClassPolicyTable, classes: &Classes, size: u64) -> Self {
        let class = policies.class_of_span(classes, size, &(0..size));
        if policies.is_ranked_by_reuse(class) {
            return Self::for_size_class(class);
        }
        Self(policies.priority(class).value())
    }

    /// The rank of a class of sizes. It is Table II of the paper, with steps between 256 KiB and 4 MiB.
    const fn for_size_class(class: Class) -> Self {
        Self(match class.value() {
            0..=14 => 1,
            15 => 4,
            16 => 7,
            _ => 10,
        })
    }
}

/// The ranks of recent writes, and the part of the journal that each rank may fill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteAdmission {
    /// Recent writes by rank. Older ones count less.
    recent: [u32; RANKS],
    total: u32,
}

impl WriteAdmission {
    /// Records a write, whether it enters the journal or not.
    pub fn record(&mut self, rank: WriteRank) {
        self.recent[usize::from(rank.0)] += 1;
        self.total += 1;
        if self.total >= 2 * WINDOW_WRITES {
            self.recent.iter_mut().for_each(|count| *count /= 2);
            self.total = self.recent.iter().sum();
        }
    }

    /// The dirty bytes that a write of this rank may lead to, of a journal with the limit `max_dirty_bytes`: all of them, less
    /// the part above the low watermark that is kept for the higher ranks among recent writes.
    #[must_use]
    pub fn allowed_bytes(&self, rank: WriteRank, max_dirty_bytes: u64) -> u64 {
        self.allowed(rank, max_dirty_bytes)
    }

    /// The dirty objects that a write of this rank may lead to, graded as [`Self::allowed_bytes`].
    #[must_use]
    pub fn allowed_entries(&self, rank: WriteRank, max_dirty_objects: usize) -> usize {
        usize::try_from(self.allowed(rank, max_dirty_objects as u64)).unwrap_or(max_dirty_objects)
    }

    fn allowed(&self, rank: WriteRank, limit: u64) -> u64 {
        let higher: u32 = self.recent[..usize::from(rank.0)].iter().sum();
        let graded = u128::from(limit) * u128::from(100 - LOW_WATERMARK_PERCENT) / 100;
        let kept = graded * u128::from(higher) / u128::from(self.total.max(1));
        limit - u64::try_from(kept).unwrap_or(limit)
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
