//! Judges a page of a listing, in stretches. A trace may have millions of keys that a page leaves out, and each of them has to
//! be looked at: whoever did so all at once would hold up everybody who asks from the same thread.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::slice::Iter;

use super::Objects;

/// Keys of a stretch, which take some tens of microseconds.
pub(crate) const STRETCH: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Judging<'a> {
    objects: &'a Objects,
    prefix: &'a str,
    /// When the listing began, and when it was answered.
    times: (u64, u64),
    /// What no key has been found for.
    listed: Peekable<Iter<'a, (String, u64)>>,
    is_cut: bool,
    /// The key that is looked at next.
    next: usize,
}

impl Objects {
    /// Begins to judge a page from the first name on that begins with `prefix`, whose listing began and was answered at these
    /// moments. Behind the last name of a page that `is_cut` there may be more.
    #[must_use]
    pub fn judge<'a>(
        &'a self,
        prefix: &'a str,
        times: (u64, u64),
        page: &'a [(String, u64)],
        is_cut: bool,
    ) -> Judging<'a> {
        let next = self.known.partition_point(|(key, _)| **key < *prefix);
        Judging { objects: self, prefix, times, listed: page.iter().peekable(), is_cut, next }
    }
}

impl Judging<'_> {
    /// Looks at the next keys. What is wrong with the page, if anything is; `None` where there are more keys.
    pub fn go_on(&mut self) -> Option<Result<(), String>> {
        let all = self.objects.known.len();
        for object in self.next..all.min(self.next + STRETCH) {
            match self.look_at(object) {
                Ok(true) => self.next += 1,
                Ok(false) => return Some(self.conclude()),
                Err(wrong) => return Some(Err(wrong)),
            }
        }
        (self.next == all).then(|| self.conclude())
    }

    /// Judges a key. Whether one behind it may belong to the page.
    fn look_at(&mut self, object: usize) -> Result<bool, String> {
        let Some((listed, size)) = self.listed.peek() else {
            let (key, _) = &self.objects.known[object];
            if self.is_cut || !key.starts_with(self.prefix) {
                return Ok(false);
            }
            return self.judge_size(object, None);
        };
        match listed.cmp(&self.objects.name(object)) {
            Ordering::Less => Ok(false),
            Ordering::Greater => self.judge_size(object, None),
            Ordering::Equal => {
                let size = Some(*size);
                self.listed.next();
                self.judge_size(object, size)
            }
        }
    }

    /// Whether a key may have been listed with this size; without one, whether it may have been left out.
    fn judge_size(&self, object: usize, size: Option<u64>) -> Result<bool, String> {
        let (begun, answered) = self.times;
        let history = self.objects.histories[object].lock();
        if history.possible(begun, answered).any(|version| version.size == size) {
            return Ok(true);
        }
        let name = self.objects.name(object);
        Err(match size {
            Some(size) => format!("{name} is listed with {size} bytes, which it did not have at that time"),
            None => format!("{name} is not listed, and was there"),
        })
    }

    /// Whatever is left was found for no key.
    fn conclude(&mut self) -> Result<(), String> {
        match self.listed.next() {
            Some((name, _)) => Err(format!("{name} is listed, which was never made or is out of order")),
            None => Ok(()),
        }
    }
}
