//! The pace and order in which a journal is drained.
//!
//! Below the low watermark, writing back can wait: while clients write to the backing store themselves, it would only delay
//! them. Under pressure the largest objects are written back first, because they free most room for each request to a disk
//! that seeks. An age bound holds in any case.

use std::time::Duration;

/// The percentage of the limit above which selective allocation begins, and up to which writing back yields to clients.
pub const LOW_WATERMARK_PERCENT: u32 = 50;

/// The percentage of a limit above which data is written back at once.
pub const PRESSURE_PERCENT: u32 = 75;

/// The age from which dirty data is written back before anything else, and in any case.
const MAX_YIELD_AGE: Duration = Duration::from_secs(30);

/// The bytes that are written back without pressure, beyond which only a quarter of the concurrency is used.
const MAX_SMALL_BYTES: u64 = 256 << 10;

/// The dirty data in relation to its limits, and what else needs the backing store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirtyLoad {
    /// The percentage of the limit of bytes that is dirty.
    pub bytes_percent: u32,
    /// The percentage of the limit of objects that is dirty.
    pub entries_percent: u32,
    /// Writes of clients to the backing store in flight.
    pub writes_through: usize,
    /// All must be written back now.
    pub is_closing: bool,
}

/// The order in which dirty objects are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOrder {
    /// The oldest first.
    Oldest,
    /// Those older than the bound first, then the oldest of the largest ones.
    LargestUnlessAged {
        /// The age from which an object is taken first.
        max_age: Duration,
    },
}

/// The pace of writing back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainPace {
    /// The highest number of objects that are written back concurrently, at least 1.
    pub concurrency: usize,
    /// The number of objects up to which their bytes do not matter, at least 1.
    pub large_concurrency: usize,
    /// The age before which no object is written back.
    pub min_age: Duration,
    /// The order.
    pub order: DrainOrder,
}

impl DrainPace {
    /// True if another object may be begun while `running` objects of `running_bytes` in sum are written back. Small objects
    /// may be more: a store commits them together.
    #[must_use]
    pub const fn may_begin(&self, running: usize, running_bytes: u64) -> bool {
        running < self.large_concurrency || (running < self.concurrency && running_bytes < MAX_SMALL_BYTES)
    }
}

impl DirtyLoad {
    /// True if data is written back at once, whatever its age.
    #[must_use]
    pub const fn is_urgent(self) -> bool {
        self.is_closing || self.bytes_percent > PRESSURE_PERCENT || self.entries_percent > PRESSURE_PERCENT
    }

    /// True if the dirty data is below the low watermark.
    #[must_use]
    pub const fn is_low(self) -> bool {
        !self.is_closing
            && self.bytes_percent <= LOW_WATERMARK_PERCENT
            && self.entries_percent <= LOW_WATERMARK_PERCENT
    }

    /// The pace at this load, for at most `concurrency` objects at once, and `delay` as the age that data reaches without
    /// pressure.
    #[must_use]
    pub fn pace(self, concurrency: usize, delay: Duration) -> DrainPace {
        if self.is_urgent() {
            let is_full_of_bytes = !self.is_closing && self.entries_percent <= PRESSURE_PERCENT;
            let order = match is_full_of_bytes {
                true => DrainOrder::LargestUnlessAged { max_age: delay.max(MAX_YIELD_AGE) },
                false => DrainOrder::Oldest,
            };
            let concurrency = concurrency.max(1);
            return DrainPace { concurrency, large_concurrency: concurrency, min_age: Duration::ZERO, order };
        }
        let yields = self.is_low() && self.writes_through > 0;
        let min_age = if yields { delay.max(MAX_YIELD_AGE) } else { delay };
        let large_concurrency = (concurrency / 4).max(1);
        DrainPace { concurrency: concurrency.max(1), large_concurrency, min_age, order: DrainOrder::Oldest }
    }
}
