//! One regular file in its two states: what programs see and what the disk holds.
//!
//! Between the two lies the ordered list of changes since the last sync. A sync moves them to the
//! durable side; a power cut draws their fates (`fate`) and makes what they leave (`settle`). Invariant: the durable content with all
//! pending changes applied in order reads like the volatile content, unless a failed sync dropped
//! some of them.

mod change;
mod failed;
mod fate;
mod garbage;
mod sectors;
mod settle;
mod space;

use crate::content::Content;
use crate::mode::Mode;
use crate::rng::Rng;
use change::{Change, freed};
use failed::FailedSectors;

pub use fate::FileFates;

/// The volatile and the durable content of a file.
#[derive(Debug, Clone, Default)]
pub struct FileState {
    volatile: Content,
    durable: Content,
    pending: Vec<Change>,
    /// Changes ever made; the pending ones are the last of them, but for writes that a failed sync lost.
    issued: u64,
    /// What a failed sync may have written.
    failed: FailedSectors,
    /// Nothing is to be seen any more; see [`release_volatile`](Self::release_volatile).
    released: bool,
}

impl FileState {
    /// A file that is wholly on disk.
    pub fn durable(content: Content) -> Self {
        Self { volatile: content.clone(), durable: content, ..Self::default() }
    }

    /// What programs see.
    pub fn content(&self) -> &Content {
        &self.volatile
    }

    /// Whether a power cut has nothing to decide.
    pub fn is_durable(&self) -> bool {
        self.pending.is_empty() && self.failed.is_empty()
    }

    /// How many changes wait for a sync.
    pub fn pending_changes(&self) -> usize {
        self.pending.len()
    }

    /// Writes bytes; the file grows to cover them.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.change(Change::Write { offset, data: data.into() });
    }

    /// Truncates or extends.
    pub fn set_len(&mut self, len: u64) {
        self.change(Change::SetLen(len));
    }

    /// Zeros a range within the file.
    pub fn zero(&mut self, offset: u64, length: u64) {
        self.change(Change::Zero { offset, length });
    }

    /// Allocates a range, extending the file unless `keep_size`.
    pub fn allocate(&mut self, offset: u64, length: u64, keep_size: bool) {
        self.change(Change::Allocate { offset, length, keep_size });
    }

    /// The point that a sync starting now has to reach.
    pub fn mark(&self) -> u64 {
        self.issued
    }

    /// Makes every change up to `mark` durable; later ones stay pending. Where that frees blocks, it
    /// returns what the file held before.
    pub fn sync(&mut self, mark: u64) -> Option<Content> {
        let count = self.reached(mark);
        let freed = freed(&self.durable, self.pending[..count].iter().map(|change| (change, true))).pop();
        if count == self.pending.len() && !self.released {
            self.sync_all();
        } else {
            for change in self.pending.drain(..count) {
                if let Some((offset, length)) = change.range() {
                    self.failed.take_along(&mut self.durable, offset, length);
                } else if let Change::SetLen(len) = change {
                    self.failed.cut(len);
                }
                change.apply(&mut self.durable);
            }
        }
        freed
    }

    /// Loses the writes up to `mark` while programs go on seeing them, as Linux does when a write-back
    /// fails: the pages are marked clean and no later sync writes them, though the disk may have taken
    /// some sectors. Later changes, and those of lengths and blocks, wait for the next sync.
    pub fn drop_pending(&mut self, mark: u64) {
        let count = self.reached(mark);
        let later = self.pending.split_off(count);
        self.pending.retain(|change| {
            if let Change::Write { offset, data } = change {
                self.failed.add(&self.volatile, *offset, data.len() as u64);
            }
            !matches!(change, Change::Write { .. })
        });
        self.pending.extend(later);
    }

    /// Frees what programs saw: the file has no name and is not open. What is pending waits for its
    /// fate all the same, since a crash may bring the name back.
    pub fn release_volatile(&mut self) {
        self.volatile = Content::default();
        self.released = true;
    }

    /// Bytes that pending changes hold in memory.
    pub fn pending_bytes(&self) -> u64 {
        self.pending.iter().filter_map(Change::written).sum()
    }

    /// What the disk would hold if all that is pending had reached it.
    pub fn latest(&self) -> Content {
        let mut content = self.durable.clone();
        for change in self.failed.writes().iter().chain(&self.pending) {
            change.apply(&mut content);
        }
        content
    }

    /// What the disk holds after a power cut; `stale` is what freed blocks hold of files of its kind.
    pub fn crash(self, mode: Mode, stale: &[Content], rng: &mut Rng) -> (Content, FileFates) {
        let mut changes = if mode == Mode::Random { self.failed.writes() } else { Vec::new() };
        changes.extend(self.pending);
        settle::settle(self.durable, &changes, mode, stale, rng)
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.volatile);
        self.pending.push(change);
        self.issued += 1;
    }

    /// How many of the pending changes lie before a mark.
    fn reached(&self, mark: u64) -> usize {
        let settled = self.issued - self.pending.len() as u64;
        mark.saturating_sub(settled).min(self.pending.len() as u64) as usize
    }

    /// Shares the touched pages instead of copying the bytes once more.
    fn sync_all(&mut self) {
        // What lay past the shortest length on the way is gone; what came there later was touched.
        let shortest = self.pending.iter().filter_map(|change| match change {
            Change::SetLen(len) => Some(*len),
            _ => None,
        });
        if let Some(len) = shortest.min() {
            self.durable.set_len(len);
            self.failed.cut(len);
        }
        for (offset, length) in self.pending.iter().filter_map(Change::range) {
            self.durable.share(&self.volatile, offset, length);
            self.failed.forget(offset, length);
        }
        if self.durable.len() != self.volatile.len() {
            self.durable.set_len(self.volatile.len());
        }
        // Capacity is kept: the next sync is likely to come after as many changes.
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests;
