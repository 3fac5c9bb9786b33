//! Determines which lost sectors are in blocks that may show their previous contents.
//!
//! Blocks that were the file's on disk show its own bytes, and allocated ones zeros. Blocks gained for a lost write
//! show anything, even where the file had freed blocks by a truncation or a punched hole before: it gets different
//! ones. Blocks freed again later are holes.

use std::collections::BTreeSet;

use super::sectors::SECTOR_BYTES;
use crate::content::{Content, PAGE_BYTES};

/// The blocks of a file after each change that is on disk.
pub struct BlockSpace {
    /// Only its allocation matters.
    blocks: Content,
    /// Freed page ranges (first, end) and the change that freed them.
    freed: Vec<(u64, u64, usize)>,
    lost: BTreeSet<u64>,
}

impl BlockSpace {
    /// The blocks of a file on disk.
    pub fn new(content: &Content) -> Self {
        Self { blocks: content.clone(), freed: Vec::new(), lost: BTreeSet::new() }
    }

    /// Records a lost sector of a write; the disk shows the change `survivor` there, if any.
    pub fn lose(&mut self, sector: u64, survivor: Option<usize>) {
        let page = sector * SECTOR_BYTES / PAGE_BYTES;
        let is_freed = |survivor: usize| {
            self.freed.iter().any(|&(first, end, by)| by > survivor && (first..end).contains(&page))
        };
        if survivor.is_none_or(is_freed) && !self.blocks.is_allocated(sector * SECTOR_BYTES) {
            self.lost.insert(sector);
        }
    }

    /// Records that change `by` set the length.
    pub fn truncate(&mut self, by: usize, len: u64) {
        self.freed.push((len.div_ceil(PAGE_BYTES), u64::MAX, by));
        self.blocks.set_len(len);
        self.lost.split_off(&len.div_ceil(SECTOR_BYTES));
    }

    /// Records that change `by` freed the pages in a range.
    pub fn punch(&mut self, by: usize, offset: u64, length: u64) {
        let (first, end) = (offset.div_ceil(PAGE_BYTES), offset.saturating_add(length) / PAGE_BYTES);
        if first < end {
            self.freed.push((first, end, by));
            let sectors = PAGE_BYTES / SECTOR_BYTES;
            self.lost.retain(|sector| !(first..end).contains(&(sector / sectors)));
        }
        self.blocks.zero(offset, length);
    }

    /// Records that a range was allocated.
    pub fn allocate(&mut self, offset: u64, length: u64) {
        self.blocks.allocate(offset, length);
    }

    /// The lost sectors in blocks that show anything.
    pub fn into_lost(self) -> BTreeSet<u64> {
        self.lost
    }
}
