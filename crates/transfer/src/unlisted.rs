//! Parts of a tree that a listing cannot show, and the names that they may hold.
//!
//! A failed part puts only the names in doubt that may lie in it: such an item may exist at this side without being
//! listed.

use std::path::Path;

use tradewind_core::error::Error;

use crate::NamedError;
use crate::names::path_to_key;

/// Maximum number of parts whose names are kept; with more, every further name is in doubt.
const MAX_PARTS: usize = 1024;

/// A part of a tree that could not be listed.
#[derive(Debug)]
pub struct Unlisted {
    /// The path or URL, for messages.
    pub location: String,
    /// The cause.
    pub error: Box<Error>,
    /// The names that the part may hold.
    pub extent: Extent,
    /// The filter excludes the part, so that its failure is not reported.
    pub is_excluded: bool,
}

/// The names in a part of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Every name not listed so far.
    Rest,
    /// A name, and the names below it.
    Tree(String),
    /// None: no key has such a name.
    Nothing,
}

impl Extent {
    /// The extent of a path relative to the root of its tree; an empty path is the root.
    pub(crate) fn of_path(relative: &Path) -> Self {
        match path_to_key(relative) {
            Ok(name) if name.is_empty() => Self::Rest,
            Ok(name) => Self::Tree(name),
            Err(_) => Self::Nothing,
        }
    }
}

impl Unlisted {
    /// The location and the cause, for reports.
    #[must_use]
    pub fn into_named_error(self) -> NamedError {
        (self.location, *self.error)
    }
}

/// A failure of the whole listing.
impl From<NamedError> for Unlisted {
    fn from((location, error): NamedError) -> Self {
        Self { location, error: Box::new(error), extent: Extent::Rest, is_excluded: false }
    }
}

/// The names that may exist at one side without being listed. Names are looked up in ascending order.
#[derive(Debug, Default)]
pub(crate) struct UnlistedNames {
    /// Names whose trees are in doubt.
    trees: Vec<String>,
    /// Every further name is in doubt.
    has_rest: bool,
}

impl UnlistedNames {
    pub fn add(&mut self, extent: Extent) {
        match extent {
            Extent::Nothing => {}
            Extent::Tree(name) if self.trees.len() < MAX_PARTS => self.trees.push(name),
            Extent::Tree(_) | Extent::Rest => self.has_rest = true,
        }
    }

    /// Returns true if an item of this name may exist.
    pub fn may_hold(&mut self, name: &str) -> bool {
        self.trees.retain(|tree| !is_past(name, tree));
        self.has_rest || self.trees.iter().any(|tree| is_at_or_below(name, tree))
    }
}

fn is_at_or_below(name: &str, tree: &str) -> bool {
    name.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns true if a name comes after all names of a tree.
fn is_past(name: &str, tree: &str) -> bool {
    name > tree && name.strip_prefix(tree).is_none_or(|rest| rest.as_bytes()[0] > b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_or_below_an_unlisted_part_are_in_doubt() {
        let mut unlisted = UnlistedNames::default();
        for tree in ["d", "d-e", "f"] {
            unlisted.add(Extent::Tree(tree.to_owned()));
        }
        unlisted.add(Extent::Nothing);
        let names = [
            ("c", false),
            ("d", true),
            ("d!", false),
            ("d-e/x", true),
            ("d/", true),
            ("d/x/y", true),
            ("d0", false),
            ("e", false),
            ("f", true),
            ("f.txt", false),
            ("f/x", true),
            ("g", false),
        ];
        for (name, is_in_doubt) in names {
            assert_eq!(unlisted.may_hold(name), is_in_doubt, "{name}");
        }
        assert!(unlisted.trees.is_empty(), "{unlisted:?}");
    }

    #[test]
    fn too_many_unlisted_parts_put_every_name_in_doubt() {
        let mut unlisted = UnlistedNames::default();
        for n in 0..MAX_PARTS {
            unlisted.add(Extent::Tree(format!("{n:06}")));
        }
        assert!(!unlisted.may_hold("0"));
        unlisted.add(Extent::Tree("1".to_owned()));
        assert!(unlisted.may_hold("z"));
    }
}
