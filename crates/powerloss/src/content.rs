//! The bytes of one file: a length and sparse 4 KiB pages.
//!
//! Pages are reference-counted and copied on write, so that the volatile and the durable content of
//! a synced file share their memory. A missing page is a hole and reads as zeros; a page that is
//! present counts as allocated space, also when it lies past the end (as `fallocate` may leave it).
//! Invariant: no page holds non-zero bytes at or after `len`.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// Bytes in a page.
pub const PAGE_BYTES: u64 = 4096;

type Page = Arc<[u8; PAGE_BYTES as usize]>;

static ZEROS: LazyLock<Page> = LazyLock::new(|| Arc::new([0; PAGE_BYTES as usize]));

/// Sparse bytes with cheap clones.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pages: BTreeMap<u64, Page>,
    len: u64,
}

impl Content {
    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of allocated pages.
    pub fn allocated(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    /// Bytes that writing or allocating `length` bytes at `offset` would newly allocate.
    pub fn missing(&self, offset: u64, length: u64) -> u64 {
        let Some((first, last)) = page_span(offset, length) else { return 0 };
        (last - first + 1 - self.pages.range(first..=last).count() as u64) * PAGE_BYTES
    }

    /// Returns true if the page that contains `offset` is allocated.
    pub fn is_allocated(&self, offset: u64) -> bool {
        self.pages.contains_key(&(offset / PAGE_BYTES))
    }

    /// Up to `size` bytes from `offset`; shorter at the end of the file.
    pub fn read(&self, offset: u64, size: usize) -> Vec<u8> {
        let end = self.len.min(offset.saturating_add(size as u64));
        if offset >= end {
            return Vec::new();
        }
        let mut bytes = vec![0; (end - offset) as usize];
        for (&index, page) in self.pages.range(offset / PAGE_BYTES..=(end - 1) / PAGE_BYTES) {
            let start = (index * PAGE_BYTES).max(offset);
            let stop = ((index + 1) * PAGE_BYTES).min(end);
            bytes[(start - offset) as usize..(stop - offset) as usize].copy_from_slice(
                &page[(start - index * PAGE_BYTES) as usize..(stop - index * PAGE_BYTES) as usize],
            );
        }
        bytes
    }

    /// Writes `data` at `offset`; the length grows to cover it.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.patch(offset, data);
        if !data.is_empty() {
            self.len = self.len.max(offset + data.len() as u64);
        }
    }

    /// Writes bytes without changing the length. If they extend beyond the end, the caller restores the invariant by
    /// a later [`set_len`](Self::set_len).
    pub fn patch(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % PAGE_BYTES) as usize;
            let (piece, tail) = rest.split_at(rest.len().min(PAGE_BYTES as usize - within));
            let page = self.pages.entry(at / PAGE_BYTES).or_insert_with(|| ZEROS.clone());
            if let Ok(whole) = <&[u8; PAGE_BYTES as usize]>::try_from(piece) {
                *page = Arc::new(*whole);
            } else {
                Arc::make_mut(page)[within..within + piece.len()].copy_from_slice(piece);
            }
            at += piece.len() as u64;
            rest = tail;
        }
    }

    /// Zeros a range without changing the length; whole pages in it are freed.
    pub fn zero(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        let Some((first, last)) = page_span(offset, length) else { return };
        let touched: Vec<u64> = self.pages.range(first..=last).map(|(&index, _)| index).collect();
        for index in touched {
            let start = (index * PAGE_BYTES).max(offset);
            let stop = (index * PAGE_BYTES).saturating_add(PAGE_BYTES).min(end);
            if stop - start == PAGE_BYTES {
                self.pages.remove(&index);
            } else if let Some(page) = self.pages.get_mut(&index) {
                Arc::make_mut(page)
                    [(start - index * PAGE_BYTES) as usize..(stop - index * PAGE_BYTES) as usize]
                    .fill(0);
            }
        }
    }

    /// Sets the length: bytes past it are gone, bytes gained are a hole.
    pub fn set_len(&mut self, len: u64) {
        drop(self.pages.split_off(&len.div_ceil(PAGE_BYTES)));
        if !len.is_multiple_of(PAGE_BYTES)
            && let Some(page) = self.pages.get_mut(&(len / PAGE_BYTES))
            && page[(len % PAGE_BYTES) as usize..].iter().any(|&byte| byte != 0)
        {
            Arc::make_mut(page)[(len % PAGE_BYTES) as usize..].fill(0);
        }
        self.len = len;
    }

    /// Allocates the pages of a range; they read as zeros until written.
    pub fn allocate(&mut self, offset: u64, length: u64) {
        let Some((first, last)) = page_span(offset, length) else { return };
        for index in first..=last {
            self.pages.entry(index).or_insert_with(|| ZEROS.clone());
        }
    }

    /// Makes the pages of a range equal to those of `other` by sharing them. The length is unchanged.
    pub fn share(&mut self, other: &Self, offset: u64, length: u64) {
        let Some((first, last)) = page_span(offset, length) else { return };
        if first == last {
            match other.pages.get(&first) {
                Some(page) => self.pages.insert(first, page.clone()),
                None => self.pages.remove(&first),
            };
            return;
        }
        let stale: Vec<u64> = self.pages.range(first..=last).map(|(&index, _)| index).collect();
        for index in stale {
            self.pages.remove(&index);
        }
        self.pages.extend(other.pages.range(first..=last).map(|(&index, page)| (index, page.clone())));
    }

    /// The first byte at or after `offset` that is in an allocated page (`SEEK_DATA`).
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let (&index, _) = self.pages.range(offset / PAGE_BYTES..).next()?;
        let at = (index * PAGE_BYTES).max(offset);
        (at < self.len).then_some(at)
    }

    /// The first byte at or after `offset` that is in a hole; the end counts as one (`SEEK_HOLE`).
    pub fn next_hole(&self, offset: u64) -> Option<u64> {
        if offset >= self.len {
            return None;
        }
        let mut expected = offset / PAGE_BYTES;
        for (&index, _) in self.pages.range(expected..) {
            if index != expected {
                break;
            }
            expected += 1;
        }
        Some((expected * PAGE_BYTES).max(offset).min(self.len))
    }
}

impl PartialEq for Content {
    /// Equal if they read the same: a hole equals zeros.
    fn eq(&self, other: &Self) -> bool {
        let same = |a: &Self, b: &Self| {
            a.pages.iter().all(|(index, page)| match b.pages.get(index) {
                Some(twin) => Arc::ptr_eq(page, twin) || page == twin,
                None => page.iter().all(|&byte| byte == 0),
            })
        };
        self.len == other.len && same(self, other) && same(other, self)
    }
}

/// First and last page of a range; `None` if it is empty.
fn page_span(offset: u64, length: u64) -> Option<(u64, u64)> {
    (length > 0).then(|| (offset / PAGE_BYTES, offset.saturating_add(length - 1) / PAGE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_returns_writes_across_pages() {
        let mut content = Content::default();
        let data: Vec<u8> = (0..10_000_u32).map(|i| i as u8).collect();
        content.write(4000, &data);
        assert_eq!(content.len(), 14_000);
        assert_eq!(content.read(4000, 20_000), data);
        assert_eq!(content.read(0, 4000), vec![0; 4000]);
        assert_eq!(content.allocated(), 4 * PAGE_BYTES);
    }

    #[test]
    fn truncated_bytes_never_reappear() {
        let mut content = Content::default();
        content.write(0, &[7; 5000]);
        content.set_len(100);
        content.set_len(5000);
        assert_eq!(content.read(0, 5000), [vec![7; 100], vec![0; 4900]].concat());
    }

    #[test]
    fn allocation_is_counted_and_freed() {
        let mut content = Content::default();
        assert_eq!(content.missing(10, 8192), 3 * PAGE_BYTES);
        content.allocate(10, 8192);
        assert_eq!(content.missing(10, 8192), 0);
        assert_eq!(content.allocated(), 3 * PAGE_BYTES);
        content.set_len(PAGE_BYTES);
        assert_eq!(content.allocated(), PAGE_BYTES);
        content.zero(0, PAGE_BYTES);
        assert_eq!(content.allocated(), 0);
    }

    #[test]
    fn data_and_holes_are_found() {
        let mut content = Content::default();
        content.write(2 * PAGE_BYTES, &[1; 100]);
        content.set_len(10 * PAGE_BYTES);
        assert_eq!(content.next_data(0), Some(2 * PAGE_BYTES));
        assert_eq!(content.next_hole(2 * PAGE_BYTES + 5), Some(3 * PAGE_BYTES));
        assert_eq!(content.next_data(3 * PAGE_BYTES), None);
        assert_eq!(content.next_hole(10 * PAGE_BYTES), None);
    }
}
