//! Sectors that a failed write-back may have left on the disk.
//!
//! After a failure the page cache marks the pages clean: programs still see the bytes and no later sync writes them.
//! The state of the disk is unknown, so a power cut decides about these sectors as about those of a pending write. A
//! change of the same page makes all of it dirty again, and a sync of that change writes them as well.

use std::collections::BTreeMap;

use super::change::FileChange;
use super::sectors::{SECTOR_BYTES, sectors};
use crate::content::{Content, PAGE_BYTES};

/// Sectors by number, with the bytes of the page cache; the one at the end of a file is short.
#[derive(Debug, Clone, Default)]
pub struct FailedSectors {
    sectors: BTreeMap<u64, Box<[u8]>>,
}

impl FailedSectors {
    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// Adds a range whose write-back failed; `seen` is the volatile content.
    pub fn add(&mut self, seen: &Content, offset: u64, length: u64) {
        for sector in sectors(offset, length) {
            let bytes = seen.read(sector * SECTOR_BYTES, SECTOR_BYTES as usize);
            if !bytes.is_empty() {
                self.sectors.insert(sector, bytes.into());
            }
        }
    }

    /// Writes the sectors in the pages of a range, because a sync writes whole pages.
    pub fn write_pages(&mut self, disk: &mut Content, offset: u64, length: u64) {
        for (sector, bytes) in self.remove_pages(offset, length) {
            disk.write(sector * SECTOR_BYTES, &bytes);
        }
    }

    /// Removes the sectors in the pages of a range, which are on disk as programs see them.
    pub fn forget(&mut self, offset: u64, length: u64) {
        drop(self.remove_pages(offset, length));
    }

    /// Truncates the file on disk.
    pub fn truncate(&mut self, len: u64) {
        drop(self.sectors.split_off(&len.div_ceil(SECTOR_BYTES)));
        if let Some(bytes) = self.sectors.get_mut(&(len / SECTOR_BYTES)) {
            *bytes = bytes[..bytes.len().min((len % SECTOR_BYTES) as usize)].into();
        }
    }

    /// The sectors as writes, one per consecutive run.
    pub fn writes(&self) -> Vec<FileChange> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (sector, bytes) in &self.sectors {
            match runs.last_mut() {
                Some((offset, run)) if *offset + run.len() as u64 == sector * SECTOR_BYTES => {
                    run.extend(bytes)
                }
                _ => runs.push((sector * SECTOR_BYTES, bytes.to_vec())),
            }
        }
        runs.into_iter().map(|(offset, run)| FileChange::Write { offset, data: run.into() }).collect()
    }

    fn remove_pages(&mut self, offset: u64, length: u64) -> Vec<(u64, Box<[u8]>)> {
        if length == 0 || self.is_empty() {
            return Vec::new();
        }
        let per_page = PAGE_BYTES / SECTOR_BYTES;
        let (first, last) = (offset / PAGE_BYTES, offset.saturating_add(length - 1) / PAGE_BYTES);
        let found = self.sectors.range(first * per_page..(last + 1) * per_page);
        let numbers: Vec<u64> = found.map(|(&sector, _)| sector).collect();
        numbers.into_iter().filter_map(|sector| self.sectors.remove_entry(&sector)).collect()
    }
}
