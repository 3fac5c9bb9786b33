//! Locations that comparisons or events could not access. Each counts as failing until a later complete comparison
//! covers it without failing again.

use std::collections::HashMap;
use std::path::Path;

/// Maximum number of locations kept by name; further ones are only counted.
const MAX_NAMED_LOCATIONS: usize = 1000;

/// The locations that could not be accessed.
#[derive(Debug, Default)]
pub(super) struct FailedLocations {
    /// By location: the tree compared when it failed, and the number of that comparison.
    locations: HashMap<String, (String, u64)>,
    /// Number of unnamed locations before and since the start of the last comparison.
    unnamed: (u64, u64),
    /// Number of comparisons started.
    comparisons: u64,
}

impl FailedLocations {
    /// Starts a comparison. Earlier failures count until it ends, because it may be cancelled.
    pub fn start_comparison(&mut self) {
        self.comparisons += 1;
        // Most of them will fail again, so the two counts are not added.
        self.unnamed = (self.unnamed.0.max(self.unnamed.1), 0);
    }

    /// Records a location that could not be accessed while `tree` was compared; an empty `tree` means that only a full
    /// comparison resolves it.
    pub fn add(&mut self, location: &str, tree: &str) {
        let found = (tree.to_owned(), self.comparisons);
        if self.locations.len() < MAX_NAMED_LOCATIONS || self.locations.contains_key(location) {
            self.locations.insert(location.to_owned(), found);
        } else {
            self.unnamed.1 += 1;
        }
    }

    /// Ends a complete comparison of `tree`, which lies at `path`: failures in it that did not recur are resolved.
    pub fn resolve(&mut self, tree: &str, path: &Path) {
        let current = self.comparisons;
        self.locations.retain(|location, (compared, comparison)| {
            *comparison == current || !(compared.starts_with(tree) || Path::new(location).starts_with(path))
        });
        if tree.is_empty() {
            self.unnamed.0 = 0;
        }
    }

    /// The number of locations, including unnamed ones.
    pub fn count(&self) -> u64 {
        self.locations.len() as u64 + self.unnamed.0.max(self.unnamed.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_that_does_not_recur_is_resolved() {
        let mut failed = FailedLocations::default();
        failed.start_comparison();
        failed.add("/here/dir/a", "");
        failed.add("/here/b", "");
        failed.resolve("", Path::new("/here"));
        assert_eq!(failed.count(), 2, "failures of this comparison remain");
        failed.start_comparison();
        assert_eq!(failed.count(), 2, "the new comparison may be cancelled");
        failed.resolve("dir/", Path::new("/here/dir/"));
        assert_eq!(failed.count(), 1, "the other one is outside the tree");
        failed.add("s3://bucket/dir/", "dir/");
        failed.start_comparison();
        failed.add("/here/b", "");
        failed.resolve("", Path::new("/here"));
        assert_eq!(failed.count(), 1);
    }

    #[test]
    fn failures_beyond_the_limit_are_only_counted() {
        let mut failed = FailedLocations::default();
        for _ in 0..3 {
            failed.start_comparison();
            for n in 0..1500 {
                failed.add(&n.to_string(), "");
            }
            assert_eq!((failed.count(), failed.locations.len()), (1500, MAX_NAMED_LOCATIONS));
            failed.resolve("", Path::new("/here"));
            assert_eq!((failed.count(), failed.locations.len()), (1500, MAX_NAMED_LOCATIONS));
        }
        failed.start_comparison();
        failed.resolve("", Path::new("/here"));
        assert_eq!(failed.count(), 0);
    }
}
