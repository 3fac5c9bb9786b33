//! What comparisons and events could not look at, until a comparison has looked at all of it.

use std::collections::HashMap;
use std::path::Path;

/// Places that are remembered by name; of more only how many.
const MOST_NAMED: usize = 1000;

/// Places that could not be looked at.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// With the tree that was compared then, and which comparison that was.
    places: HashMap<String, (String, u64)>,
    /// How many more there were before the last comparison began, and how many since.
    more: (u64, u64),
    /// Comparisons that have begun.
    begun: u64,
}

impl Unseen {
    /// A comparison begins. What failed before goes on counting until it is over: it may be given up.
    pub fn begin(&mut self) {
        self.begun += 1;
        // It comes upon most of them again.
        self.more = (self.more.0.max(self.more.1), 0);
    }

    /// A place could not be looked at, while a tree was compared, or everything waits for that.
    pub fn failed(&mut self, place: &str, tree: &str) {
        let found = (tree.to_owned(), self.begun);
        if self.places.len() < MOST_NAMED || self.places.contains_key(place) {
            self.places.insert(place.to_owned(), found);
        } else {
            self.more.1 += 1;
        }
    }

    /// All of a tree was looked at, which is at this path: what it did not come upon again is made good.
    pub fn looked_at(&mut self, tree: &str, path: &Path) {
        let now = self.begun;
        self.places.retain(|place, (of, when)| {
            *when == now || !(of.starts_with(tree) || Path::new(place).starts_with(path))
        });
        if tree.is_empty() {
            self.more.0 = 0;
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.places.len() as u64 + self.more.0.max(self.more.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_come_upon_again_is_made_good() {
        let mut unseen = Unseen::default();
        unseen.begin();
        unseen.failed("/here/dir/a", "");
        unseen.failed("/here/b", "");
        unseen.looked_at("", Path::new("/here"));
        assert_eq!(unseen.count(), 2, "it was come upon just now");
        unseen.begin();
        assert_eq!(unseen.count(), 2, "it may be given up");
        unseen.looked_at("dir/", Path::new("/here/dir/"));
        assert_eq!(unseen.count(), 1, "the other one is elsewhere");
        unseen.failed("s3://bucket/dir/", "dir/");
        unseen.begin();
        unseen.failed("/here/b", "");
        unseen.looked_at("", Path::new("/here"));
        assert_eq!(unseen.count(), 1);
    }

    #[test]
    fn of_many_only_the_number_is_kept() {
        let mut unseen = Unseen::default();
        for _ in 0..3 {
            unseen.begin();
            for n in 0..1500 {
                unseen.failed(&n.to_string(), "");
            }
            assert_eq!((unseen.count(), unseen.places.len()), (1500, MOST_NAMED));
            unseen.looked_at("", Path::new("/here"));
            assert_eq!((unseen.count(), unseen.places.len()), (1500, MOST_NAMED));
        }
        unseen.begin();
        unseen.looked_at("", Path::new("/here"));
        assert_eq!(unseen.count(), 0);
    }
}
