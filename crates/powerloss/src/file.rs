//! One regular file in its two states: the volatile one that programs see and the durable one on disk.
//!
//! Between the two is the ordered list of changes since the last sync. A sync moves them to the durable side; a power
//! cut draws their fates (`fate`) and applies these (`settle`). Invariant: the durable content with all pending
//! changes applied in order reads like the volatile content, unless a failed sync dropped some of them.

mod change;
mod crash;
mod failed_sectors;
mod fate;
mod garbage;
mod sectors;
mod space;

use crate::content::Content;
use crate::mode::CrashMode;
use crate::rng::Rng;
use change::{FileChange, contents_before_frees};
use failed_sectors::FailedSectors;

pub use fate::FileFates;

/// The volatile and the durable content of a file.
#[derive(Debug, Clone, Default)]
pub struct FileState {
    volatile: Content,
    durable: Content,
    pending: Vec<FileChange>,
    /// Number of changes ever made; the pending ones are the last, except for writes lost by a failed sync.
    issued: u64,
    /// Sectors that a failed sync may have written.
    failed: FailedSectors,
    /// True if no program can see the file any more; see [`release_volatile`](Self::release_volatile).
    released: bool,
}

impl FileState {
    /// A file that is completely on disk.
    pub fn durable(content: Content) -> Self {
        Self { volatile: content.clone(), durable: content, ..Self::default() }
    }

    /// The volatile content.
    pub fn content(&self) -> &Content {
        &self.volatile
    }

    /// Returns true if a power cut changes nothing.
    pub fn is_durable(&self) -> bool {
        self.pending.is_empty() && self.failed.is_empty()
    }

    /// Number of unsynced changes.
    pub fn pending_changes(&self) -> usize {
        self.pending.len()
    }

    /// Writes bytes; the file grows to cover them.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.change(FileChange::Write { offset, data: data.into() });
    }

    /// Truncates or extends.
    pub fn set_len(&mut self, len: u64) {
        self.change(FileChange::SetLen(len));
    }

    /// Zeros a range within the file.
    pub fn zero(&mut self, offset: u64, length: u64) {
        self.change(FileChange::Zero { offset, length });
    }

    /// Allocates a range, extending the file unless `keep_size`.
    pub fn allocate(&mut self, offset: u64, length: u64, keep_size: bool) {
        self.change(FileChange::Allocate { offset, length, keep_size });
    }

    /// The number of changes that a sync starting now must cover.
    pub fn mark(&self) -> u64 {
        self.issued
    }

    /// Makes every change up to `mark` durable; later ones stay pending. If that frees blocks, it returns the file's
    /// previous content.
    pub fn sync(&mut self, mark: u64) -> Option<Content> {
        let count = self.changes_before(mark);
        let freed =
            contents_before_frees(&self.durable, self.pending[..count].iter().map(|change| (change, true)))
                .pop();
        if count == self.pending.len() && !self.released {
            self.sync_all();
        } else {
            for change in self.pending.drain(..count) {
                if let Some((offset, length)) = change.range() {
                    self.failed.write_pages(&mut self.durable, offset, length);
                } else if let FileChange::SetLen(len) = change {
                    self.failed.truncate(len);
                }
                change.apply(&mut self.durable);
            }
        }
        freed
    }

    /// Loses the writes up to `mark` while programs still see them, as Linux does when a write-back fails: the pages
    /// are marked clean and no later sync writes them, although some sectors may be on disk. Later changes, and those
    /// of lengths and blocks, wait for the next sync.
    pub fn drop_pending(&mut self, mark: u64) {
        let count = self.changes_before(mark);
        let later = self.pending.split_off(count);
        self.pending.retain(|change| {
            if let FileChange::Write { offset, data } = change {
                self.failed.add(&self.volatile, *offset, data.len() as u64);
            }
            !matches!(change, FileChange::Write { .. })
        });
        self.pending.extend(later);
    }

    /// Frees the volatile content: the file has no name and is not open. Pending changes still await their fate,
    /// because a crash may restore the name.
    pub fn release_volatile(&mut self) {
        self.volatile = Content::default();
        self.released = true;
    }

    /// Bytes that pending changes hold in memory.
    pub fn pending_bytes(&self) -> u64 {
        self.pending.iter().filter_map(FileChange::written).sum()
    }

    /// The disk's content if all pending changes had reached it.
    pub fn latest(&self) -> Content {
        let mut content = self.durable.clone();
        for change in self.failed.writes().iter().chain(&self.pending) {
            change.apply(&mut content);
        }
        content
    }

    /// The disk's content after a power cut; `stale` is the content of freed blocks of files of the same kind.
    pub fn crash(self, mode: CrashMode, stale: &[Content], rng: &mut Rng) -> (Content, FileFates) {
        let mut changes = if mode == CrashMode::Random { self.failed.writes() } else { Vec::new() };
        changes.extend(self.pending);
        crash::apply_fates(self.durable, &changes, mode, stale, rng)
    }

    fn change(&mut self, change: FileChange) {
        change.apply(&mut self.volatile);
        self.pending.push(change);
        self.issued += 1;
    }

    /// Number of pending changes before a mark.
    fn changes_before(&self, mark: u64) -> usize {
        let settled = self.issued - self.pending.len() as u64;
        mark.saturating_sub(settled).min(self.pending.len() as u64) as usize
    }

    /// Shares the touched pages instead of copying the bytes once more.
    fn sync_all(&mut self) {
        // Bytes beyond the shortest intermediate length are gone; later ones are in a touched range.
        let shortest = self.pending.iter().filter_map(|change| match change {
            FileChange::SetLen(len) => Some(*len),
            _ => None,
        });
        if let Some(len) = shortest.min() {
            self.durable.set_len(len);
            self.failed.truncate(len);
        }
        for (offset, length) in self.pending.iter().filter_map(FileChange::range) {
            self.durable.share(&self.volatile, offset, length);
            self.failed.forget(offset, length);
        }
        if self.durable.len() != self.volatile.len() {
            self.durable.set_len(self.volatile.len());
        }
        // The capacity is retained: the next sync probably covers as many changes.
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests;
