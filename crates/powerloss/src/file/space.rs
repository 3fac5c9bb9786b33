//! Which lost sectors lie in blocks that may show what they held before they were the file's.
//!
//! Blocks that were the file's on disk show its own bytes, and allocated ones zeros. Those that it
//! gained for a write that was lost show anything, also where it had blocks before that it freed by a
//! truncation or by a punched hole: it gets others. What is freed again later is a hole.

use std::collections::BTreeSet;

use super::sectors::SECTOR;
use crate::content::{Content, PAGE};

/// The blocks of a file, as the changes that are on disk leave them one by one.
pub struct Space {
    /// Only what is allocated in it counts.
    blocks: Content,
    /// Pages freed, from the first to before the last, and by which change.
    freed: Vec<(u64, u64, usize)>,
    lost: BTreeSet<u64>,
}

impl Space {
    /// The blocks of a file as it is on disk.
    pub fn new(content: &Content) -> Self {
        Self { blocks: content.clone(), freed: Vec::new(), lost: BTreeSet::new() }
    }

    /// A write of a sector was lost; the disk shows the change `survivor` there, if any.
    pub fn lose(&mut self, sector: u64, survivor: Option<usize>) {
        let page = sector * SECTOR / PAGE;
        let is_freed = |survivor: usize| {
            self.freed.iter().any(|&(first, end, by)| by > survivor && (first..end).contains(&page))
        };
        if survivor.is_none_or(is_freed) && !self.blocks.is_allocated(sector * SECTOR) {
            self.lost.insert(sector);
        }
    }

    /// Change `by` set the length.
    pub fn cut(&mut self, by: usize, len: u64) {
        self.freed.push((len.div_ceil(PAGE), u64::MAX, by));
        self.blocks.set_len(len);
        self.lost.split_off(&len.div_ceil(SECTOR));
    }

    /// Change `by` freed the pages in a range.
    pub fn punch(&mut self, by: usize, offset: u64, length: u64) {
        let (first, end) = (offset.div_ceil(PAGE), offset.saturating_add(length) / PAGE);
        if first < end {
            self.freed.push((first, end, by));
            let sectors = PAGE / SECTOR;
            self.lost.retain(|sector| !(first..end).contains(&(sector / sectors)));
        }
        self.blocks.zero(offset, length);
    }

    /// A range was allocated.
    pub fn allocate(&mut self, offset: u64, length: u64) {
        self.blocks.allocate(offset, length);
    }

    /// The sectors lost in blocks that show anything.
    pub fn into_lost(self) -> BTreeSet<u64> {
        self.lost
    }
}
