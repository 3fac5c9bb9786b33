//! The objects of a replay: their names below the prefix of the run, and the versions that each may have.

mod listing_check;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tradewind_pattern::ContentId;

#[cfg(test)]
pub(super) use self::listing_check::CHUNK_KEYS;
use super::history::{KeyHistory, KeyVersion};
use super::trace_summary::TraceSummary;
use crate::samples::ObjectNames;

/// The objects of a replay and their histories. An object is identified by its index in the sorted keys of the trace.
#[derive(Debug)]
pub struct ReplayObjects {
    /// The prefix of all names in the store.
    prefix: String,
    /// Sorted keys of the trace, with the sizes of the objects that must exist initially.
    keys: Arc<[(Box<str>, Option<u64>)]>,
    histories: Vec<Mutex<KeyHistory>>,
    tick: AtomicU64,
    /// Start times of the listings in flight.
    listings: Mutex<Vec<u64>>,
}

impl ReplayObjects {
    /// The objects in their initial state.
    #[must_use]
    pub fn new(prefix: String, summary: &TraceSummary) -> Self {
        Self {
            prefix,
            keys: summary.objects.clone(),
            histories: summary.objects.iter().map(|(_, size)| Mutex::new(KeyHistory::new(*size))).collect(),
            tick: AtomicU64::new(1),
            listings: Mutex::default(),
        }
    }

    /// The objects that must exist initially, with their sizes.
    pub fn initial_objects(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let sizes = self.keys.iter().map(|(_, size)| *size).enumerate();
        sizes.filter_map(|(object, size)| Some((object, size?)))
    }

    /// The object with the given key of the trace.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<usize> {
        self.keys.binary_search_by(|(known, _)| (**known).cmp(key)).ok()
    }

    /// The name in the store of a key of the trace, or of the prefix of a listing.
    #[must_use]
    pub fn store_name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The name of an object in the store.
    #[must_use]
    pub fn name(&self, object: usize) -> String {
        self.store_name(&self.keys[object].0)
    }

    /// The number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// The contents of a version. They differ between all versions and all keys.
    #[must_use]
    pub fn content(name: &str, number: u32, size: u64) -> ContentId {
        ContentId::new(&format!("{name}\n{number}"), size)
    }

    /// The current tick, greater than all earlier ones.
    pub fn next_tick(&self) -> u64 {
        self.tick.fetch_add(1, Ordering::SeqCst)
    }

    /// The start of the earliest listing in flight, or the current tick if there is none.
    fn earliest_listing(&self) -> u64 {
        // Taken before reading the listings: a listing that starts in between starts later than this.
        let now = self.next_tick();
        self.listings.lock().iter().copied().min().unwrap_or(now).min(now)
    }

    /// Records a failed attempt to create an initial object, which may still take effect later.
    pub fn mark_creation_ambiguous(&self, object: usize) {
        self.histories[object].lock().mark_creation_ambiguous();
    }

    /// Records the start of a write. Call it before anything is sent.
    pub fn begin_write(&self, object: usize, size: Option<u64>) -> KeyVersion {
        let mut history = self.histories[object].lock();
        history.begin_write(size, self.next_tick())
    }

    /// Records that a write was acknowledged.
    pub fn end_write(&self, object: usize, version: KeyVersion) {
        let (now, needed) = (self.next_tick(), self.earliest_listing());
        self.histories[object].lock().end_write(version, now, needed);
    }

    /// Records the start of a read and returns its tick. Call it before anything is sent.
    pub fn begin_read(&self, object: usize) -> u64 {
        let mut history = self.histories[object].lock();
        let now = self.next_tick();
        history.begin_read(now);
        now
    }

    /// The versions that a read may return that started at `start` and is answered now.
    #[must_use]
    pub fn possible_versions(&self, object: usize, start: u64) -> Vec<KeyVersion> {
        self.histories[object].lock().possible_versions(start, self.next_tick()).collect()
    }

    /// Ends a read that started at `start`, after its response was checked.
    pub fn end_read(&self, object: usize, start: u64) {
        let needed = self.earliest_listing();
        self.histories[object].lock().end_read(start, needed);
    }

    /// Records the start of a listing and returns its tick. Call it before anything is sent.
    pub fn begin_listing(&self) -> u64 {
        let mut listings = self.listings.lock();
        let now = self.next_tick();
        listings.push(now);
        now
    }

    /// Ends a listing that started at `start`, after its response was checked.
    pub fn end_listing(&self, start: u64) {
        let mut listings = self.listings.lock();
        if let Some(index) = listings.iter().position(|listing| *listing == start) {
            listings.swap_remove(index);
        }
    }
}

impl ObjectNames for ReplayObjects {
    fn name(&self, number: u64) -> String {
        usize::try_from(number).map_or_else(|_| String::new(), |object| Self::name(self, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> ReplayObjects {
        let known = [("a", Some(1)), ("b/1", Some(2)), ("b/2", None), ("b/3", Some(4)), ("c", None)];
        let objects = known.map(|(key, size)| (key.into(), size)).into_iter().collect();
        ReplayObjects::new("run/".to_owned(), &TraceSummary { objects, ..TraceSummary::default() })
    }

    fn check_page(
        objects: &ReplayObjects,
        (prefix, start): (&str, u64),
        page: &[(String, u64)],
        is_truncated: bool,
    ) -> Result<(), String> {
        let mut check = objects.check_listing(prefix, (start, objects.next_tick()), page, is_truncated);
        std::iter::from_fn(|| Some(check.check_chunk())).flatten().next().unwrap()
    }

    fn check_new_listing(
        objects: &ReplayObjects,
        prefix: &str,
        page: &[(&str, u64)],
        is_truncated: bool,
    ) -> Result<(), String> {
        let page: Vec<(String, u64)> = page.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        let start = objects.begin_listing();
        let result = check_page(objects, (prefix, start), &page, is_truncated);
        objects.end_listing(start);
        result
    }

    #[test]
    fn check_accepts_only_a_page_with_all_existing_objects() {
        let objects = objects();
        assert_eq!(
            check_new_listing(&objects, "", &[("run/a", 1), ("run/b/1", 2), ("run/b/3", 4)], false),
            Ok(())
        );
        assert_eq!(check_new_listing(&objects, "", &[("run/a", 1), ("run/b/1", 2)], true), Ok(()));
        assert_eq!(check_new_listing(&objects, "b/", &[("run/b/1", 2), ("run/b/3", 4)], false), Ok(()));
        assert_eq!(check_new_listing(&objects, "x", &[], false), Ok(()));
        for (prefix, page, problem) in [
            ("", vec![("run/a", 1), ("run/b/1", 2)], "run/b/3 is not listed"),
            ("", vec![("run/a", 1), ("run/b/3", 4)], "run/b/1 is not listed"),
            ("", vec![("run/a", 2), ("run/b/1", 2), ("run/b/3", 4)], "run/a is listed with 2 bytes"),
            ("b", vec![("run/b/1", 2), ("run/b/2", 3), ("run/b/3", 4)], "run/b/2 is listed with 3 bytes"),
            ("b", vec![("run/a", 1), ("run/b/1", 2), ("run/b/3", 4)], "run/a is listed, but"),
            ("b", vec![("run/b/3", 4), ("run/b/1", 2)], "run/b/1 is not listed"),
            ("b", vec![("run/b/1", 2), ("run/b/3", 4), ("run/b/4", 4)], "run/b/4 is listed, but"),
            ("b", vec![("run/b/1", 2), ("run/b/3", 4), ("run/b/3", 4)], "run/b/3 is listed, but"),
        ] {
            let error = check_new_listing(&objects, prefix, &page, false).unwrap_err();
            assert!(error.contains(problem), "{page:?}: {error}");
        }
    }

    #[test]
    fn check_accepts_both_states_of_concurrently_changed_keys() {
        let objects = objects();
        let start = objects.begin_listing();
        let written = objects.begin_write(2, Some(3));
        let removed = objects.begin_write(1, None);
        objects.end_write(2, written);
        objects.end_write(1, removed);
        let page = |names: &[(&str, u64)]| -> Vec<(String, u64)> {
            names.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect()
        };
        let (before, after) =
            (page(&[("run/b/1", 2), ("run/b/3", 4)]), page(&[("run/b/2", 3), ("run/b/3", 4)]));
        for page in [&before, &after] {
            assert_eq!(check_page(&objects, ("b/", start), page, false), Ok(()));
        }
        let later = objects.begin_listing();
        assert!(check_page(&objects, ("b/", later), &before, false).is_err());
        assert_eq!(check_page(&objects, ("b/", later), &after, false), Ok(()));
    }
}
