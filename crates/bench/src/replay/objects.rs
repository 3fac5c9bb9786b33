//! The objects of a replay: names below the prefix of the run, and what may be found at each of them.

mod judging;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tradewind_pattern::ContentId;

#[cfg(test)]
pub(super) use self::judging::STRETCH;
use super::history::{History, Version};
use super::plan::Plan;
use crate::samples::Names;

/// See the module.
#[derive(Debug)]
pub struct Objects {
    /// All names begin with this.
    prefix: String,
    /// Keys as the trace has them, in order, and the sizes of what has to be there at the beginning.
    known: Arc<[(Box<str>, Option<u64>)]>,
    histories: Vec<Mutex<History>>,
    tick: AtomicU64,
    /// When the listings began that are under way.
    listings: Mutex<Vec<u64>>,
}

impl Objects {
    /// As they are at the beginning.
    #[must_use]
    pub fn new(prefix: String, plan: &Plan) -> Self {
        Self {
            prefix,
            known: plan.objects.clone(),
            histories: plan.objects.iter().map(|(_, size)| Mutex::new(History::new(*size))).collect(),
            tick: AtomicU64::new(1),
            listings: Mutex::default(),
        }
    }

    /// What has to be there at the beginning, and its size.
    pub fn needed(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let sizes = self.known.iter().map(|(_, size)| *size).enumerate();
        sizes.filter_map(|(object, size)| Some((object, size?)))
    }

    /// The object of a key of the trace.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<usize> {
        self.known.binary_search_by(|(known, _)| (**known).cmp(key)).ok()
    }

    /// Its name in the store; of a listing, what names begin with.
    #[must_use]
    pub fn below(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The name of an object in the store.
    #[must_use]
    pub fn name(&self, object: usize) -> String {
        self.below(&self.known[object].0)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// What a version holds: no two of a key are alike, and no two keys.
    #[must_use]
    pub fn content(name: &str, number: u32, size: u64) -> ContentId {
        ContentId::new(&format!("{name}\n{number}"), size)
    }

    /// The present moment, later than all before it.
    pub fn now(&self) -> u64 {
        self.tick.fetch_add(1, Ordering::SeqCst)
    }

    /// The earliest moment that a listing asks about, and at the latest now.
    fn needed_by_listings(&self) -> u64 {
        // Before they are looked at: one that begins meanwhile begins later than this.
        let now = self.now();
        self.listings.lock().iter().copied().min().unwrap_or(now).min(now)
    }

    /// It failed once to make what has to be there at the beginning: that may be done a while later.
    pub fn doubt(&self, object: usize) {
        self.histories[object].lock().doubt();
    }

    /// A write begins, before anything of it is sent.
    pub fn begin_write(&self, object: usize, size: Option<u64>) -> Version {
        let mut history = self.histories[object].lock();
        history.begin_write(size, self.now())
    }

    /// A write was acknowledged.
    pub fn end_write(&self, object: usize, version: Version) {
        let (now, needed) = (self.now(), self.needed_by_listings());
        self.histories[object].lock().end_write(version, now, needed);
    }

    /// A read begins, before anything of it is sent. When that is.
    pub fn begin_read(&self, object: usize) -> u64 {
        let mut history = self.histories[object].lock();
        let now = self.now();
        history.begin_read(now);
        now
    }

    /// What a read may find that began then and is answered now.
    #[must_use]
    pub fn possible(&self, object: usize, begun: u64) -> Vec<Version> {
        self.histories[object].lock().possible(begun, self.now()).collect()
    }

    /// A read that began then was judged.
    pub fn end_read(&self, object: usize, begun: u64) {
        let needed = self.needed_by_listings();
        self.histories[object].lock().end_read(begun, needed);
    }

    /// A listing begins, before anything of it is sent. When that is.
    pub fn begin_listing(&self) -> u64 {
        let mut listings = self.listings.lock();
        let now = self.now();
        listings.push(now);
        now
    }

    /// A listing was judged.
    pub fn end_listing(&self, begun: u64) {
        let mut listings = self.listings.lock();
        if let Some(at) = listings.iter().position(|listing| *listing == begun) {
            listings.swap_remove(at);
        }
    }
}

impl Names for Objects {
    fn name(&self, number: u64) -> String {
        usize::try_from(number).map_or_else(|_| String::new(), |object| Self::name(self, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> Objects {
        let known = [("a", Some(1)), ("b/1", Some(2)), ("b/2", None), ("b/3", Some(4)), ("c", None)];
        let objects = known.map(|(key, size)| (key.into(), size)).into_iter().collect();
        Objects::new("run/".to_owned(), &Plan { objects, ..Plan::default() })
    }

    fn judge(
        objects: &Objects,
        (prefix, begun): (&str, u64),
        page: &[(String, u64)],
        is_cut: bool,
    ) -> Result<(), String> {
        let mut judging = objects.judge(prefix, (begun, objects.now()), page, is_cut);
        std::iter::from_fn(|| Some(judging.go_on())).flatten().next().unwrap()
    }

    fn judged(objects: &Objects, prefix: &str, page: &[(&str, u64)], is_cut: bool) -> Result<(), String> {
        let page: Vec<(String, u64)> = page.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        let begun = objects.begin_listing();
        let judged = judge(objects, (prefix, begun), &page, is_cut);
        objects.end_listing(begun);
        judged
    }

    #[test]
    fn a_page_has_what_is_there_and_nothing_else() {
        let objects = objects();
        assert_eq!(judged(&objects, "", &[("run/a", 1), ("run/b/1", 2), ("run/b/3", 4)], false), Ok(()));
        assert_eq!(judged(&objects, "", &[("run/a", 1), ("run/b/1", 2)], true), Ok(()));
        assert_eq!(judged(&objects, "b/", &[("run/b/1", 2), ("run/b/3", 4)], false), Ok(()));
        assert_eq!(judged(&objects, "x", &[], false), Ok(()));
        for (prefix, page, why) in [
            ("", vec![("run/a", 1), ("run/b/1", 2)], "run/b/3 is not listed"),
            ("", vec![("run/a", 1), ("run/b/3", 4)], "run/b/1 is not listed"),
            ("", vec![("run/a", 2), ("run/b/1", 2), ("run/b/3", 4)], "run/a is listed with 2 bytes"),
            ("b", vec![("run/b/1", 2), ("run/b/2", 3), ("run/b/3", 4)], "run/b/2 is listed with 3 bytes"),
            ("b", vec![("run/a", 1), ("run/b/1", 2), ("run/b/3", 4)], "run/a is listed, which"),
            ("b", vec![("run/b/3", 4), ("run/b/1", 2)], "run/b/1 is not listed"),
            ("b", vec![("run/b/1", 2), ("run/b/3", 4), ("run/b/4", 4)], "run/b/4 is listed, which"),
            ("b", vec![("run/b/1", 2), ("run/b/3", 4), ("run/b/3", 4)], "run/b/3 is listed, which"),
        ] {
            let wrong = judged(&objects, prefix, &page, false).unwrap_err();
            assert!(wrong.contains(why), "{page:?}: {wrong}");
        }
    }

    #[test]
    fn what_changes_meanwhile_may_be_listed_or_not() {
        let objects = objects();
        let begun = objects.begin_listing();
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
            assert_eq!(judge(&objects, ("b/", begun), page, false), Ok(()));
        }
        let later = objects.begin_listing();
        assert!(judge(&objects, ("b/", later), &before, false).is_err());
        assert_eq!(judge(&objects, ("b/", later), &after, false), Ok(()));
    }
}
