//! Checks a page of a listing, in chunks. A trace may have millions of keys that the page omits, each of which must be
//! checked. Doing so at once would block the other tasks of the thread.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::slice::Iter;

use super::ReplayObjects;

/// Keys checked without yielding; they take some tens of microseconds.
pub(crate) const CHUNK_KEYS: usize = 256;

/// A check in progress.
#[derive(Debug)]
pub struct ListingCheck<'a> {
    objects: &'a ReplayObjects,
    prefix: &'a str,
    /// Ticks at which the listing started and was answered.
    times: (u64, u64),
    /// Entries of the page not yet matched with a key.
    listed: Peekable<Iter<'a, (String, u64)>>,
    is_truncated: bool,
    /// The object to check next.
    next: usize,
}

impl ReplayObjects {
    /// Starts the check of the first page of a listing of `prefix`, with the ticks at which it started and was
    /// answered. If `is_truncated`, the page is truncated and keys may follow its last name.
    #[must_use]
    pub fn check_listing<'a>(
        &'a self,
        prefix: &'a str,
        times: (u64, u64),
        page: &'a [(String, u64)],
        is_truncated: bool,
    ) -> ListingCheck<'a> {
        let next = self.keys.partition_point(|(key, _)| **key < *prefix);
        ListingCheck { objects: self, prefix, times, listed: page.iter().peekable(), is_truncated, next }
    }
}

impl ListingCheck<'_> {
    /// Checks the next keys. Returns the result of the check, or `None` if keys remain. The error describes what is
    /// wrong with the page.
    pub fn check_chunk(&mut self) -> Option<Result<(), String>> {
        let key_count = self.objects.keys.len();
        for object in self.next..key_count.min(self.next + CHUNK_KEYS) {
            match self.check_key(object) {
                Ok(true) => self.next += 1,
                Ok(false) => return Some(self.conclude()),
                Err(error) => return Some(Err(error)),
            }
        }
        (self.next == key_count).then(|| self.conclude())
    }

    /// Checks a key. Returns true if later keys may belong to the page.
    fn check_key(&mut self, object: usize) -> Result<bool, String> {
        let Some((listed, size)) = self.listed.peek() else {
            let (key, _) = &self.objects.keys[object];
            if self.is_truncated || !key.starts_with(self.prefix) {
                return Ok(false);
            }
            return self.check_size(object, None);
        };
        match listed.cmp(&self.objects.name(object)) {
            Ordering::Less => Ok(false),
            Ordering::Greater => self.check_size(object, None),
            Ordering::Equal => {
                let size = Some(*size);
                self.listed.next();
                self.check_size(object, size)
            }
        }
    }

    /// Returns `Ok(true)` if a key may have been listed with this size or, for `None`, may have been omitted.
    fn check_size(&self, object: usize, size: Option<u64>) -> Result<bool, String> {
        let (start, read_end) = self.times;
        let history = self.objects.histories[object].lock();
        if history.possible_versions(start, read_end).any(|version| version.size == size) {
            return Ok(true);
        }
        let name = self.objects.name(object);
        Err(match size {
            Some(size) => {
                format!("{name} is listed with {size} bytes, but did not have that size at the time")
            }
            None => format!("{name} is not listed, but existed"),
        })
    }

    /// Fails if entries of the page remain that match no key.
    fn conclude(&mut self) -> Result<(), String> {
        match self.listed.next() {
            Some((name, _)) => Err(format!("{name} is listed, but was never created or is out of order")),
            None => Ok(()),
        }
    }
}
