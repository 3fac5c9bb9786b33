//! What a sync has to do: two trees, both in the byte order of their names, walked side by side. Nothing is kept of
//! either but the item at hand, so that a million of them need no more memory than ten.

use std::collections::VecDeque;

use tradewind_core::Timestamp;

use crate::{Found, FoundFailure, Item};

/// What is to be done about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Copy it: it is missing there, or differs.
    Copy(Item),
    /// Compare what they hold: their sizes are equal.
    Compare(Item),
    /// Compare their times, of which one is not in the listing: their sizes are equal.
    CompareTimes(Item),
    /// Remove it there: it is not here.
    Remove(Item),
}

impl Action {
    /// What it is about.
    #[must_use]
    pub const fn item(&self) -> &Item {
        match self {
            Self::Copy(item) | Self::Compare(item) | Self::CompareTimes(item) | Self::Remove(item) => item,
        }
    }
}

/// How items are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Comparison {
    /// They are equal where their sizes are and the source is not the newer one.
    #[default]
    SizeAndTime,
    /// The same, but where the source seems newer, the time that the object carries decides: that at which it was
    /// uploaded is always later than that of its file.
    PreservedTime,
    /// They are equal where their sizes are.
    Size,
    /// Where their sizes are equal, their checksums decide.
    Checksum,
}

/// The trees that are walked side by side.
#[derive(Debug)]
pub struct Merge {
    here: Side,
    there: Side,
    comparison: Comparison,
    /// What is reported where the source is empty; then nothing is removed.
    if_empty: Option<IfEmpty>,
}

/// What an empty source means.
#[derive(Debug)]
struct IfEmpty {
    failure: FoundFailure,
    /// Objects that stand for folders do not count: only what they hold does.
    ignores_markers: bool,
}

#[derive(Debug)]
struct Side {
    found: Found,
    /// Found, and to be decided before what is still to be found.
    ahead: VecDeque<Item>,
    next: Option<Item>,
    is_over: bool,
    /// Something could not be looked at: what is not found may be there all the same.
    has_failed: bool,
    /// Something was found, or could not be looked at.
    has_found: bool,
    /// Something was that is no marker of a folder.
    has_content: bool,
}

impl Side {
    async fn fill(&mut self) -> Result<(), FoundFailure> {
        while self.next.is_none() {
            self.next = self.ahead.pop_front();
            if self.next.is_some() || self.is_over {
                return Ok(());
            }
            self.look().await?;
        }
        Ok(())
    }

    /// Looks ahead until it is known whether there is more than markers of folders.
    async fn find_content(&mut self) -> Result<(), FoundFailure> {
        while !self.has_content && !self.is_over {
            self.look().await?;
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<(), FoundFailure> {
        match self.found.recv().await {
            None => self.is_over = true,
            Some(Ok(item)) => {
                self.has_found = true;
                self.has_content |= !is_folder_marker(&item.name);
                self.ahead.push_back(item);
            }
            Some(Err(failed)) => {
                (self.has_failed, self.has_found, self.has_content) = (true, true, true);
                return Err(failed);
            }
        }
        Ok(())
    }
}

/// An object that stands for a folder: its name is that of the folder, below which it is found.
fn is_folder_marker(name: &str) -> bool {
    name.is_empty() || name.ends_with('/')
}

impl Merge {
    /// Of what is found in the source and at the destination.
    #[must_use]
    pub fn new(here: Found, there: Found, comparison: Comparison) -> Self {
        let side = |found| Side {
            found,
            ahead: VecDeque::new(),
            next: None,
            is_over: false,
            has_failed: false,
            has_found: false,
            has_content: false,
        };
        let (here, there) = (side(here), side(there));
        Self { here, there, comparison, if_empty: None }
    }

    /// Reports this where nothing is found in the source, and removes nothing then: a place that is mistyped, or not
    /// mounted, looks like an empty one. With `ignores_markers`, objects that stand for folders are nothing.
    #[must_use]
    pub fn refusing_empty(self, failure: FoundFailure, ignores_markers: bool) -> Self {
        Self { if_empty: Some(IfEmpty { failure, ignores_markers }), ..self }
    }

    /// Before anything is decided: what is to be reported of a source that is empty, or cannot be looked at.
    async fn judge_emptiness(&mut self) -> Option<FoundFailure> {
        let ignores_markers = self.if_empty.as_ref()?.ignores_markers;
        let looked = if ignores_markers { self.here.find_content().await } else { self.here.fill().await };
        if let Err(failed) = looked {
            self.if_empty = None;
            return Some(failed);
        }
        let IfEmpty { failure, .. } = self.if_empty.take()?;
        let is_empty = if ignores_markers { !self.here.has_content } else { !self.here.has_found };
        self.here.has_failed |= is_empty;
        is_empty.then_some(failure)
    }

    /// The next thing to do; an error where something could not be looked at.
    pub async fn next(&mut self) -> Option<Result<Action, FoundFailure>> {
        loop {
            if let Some(failure) = self.judge_emptiness().await {
                return Some(Err(failure));
            }
            if let Err(failed) = self.here.fill().await {
                return Some(Err(failed));
            }
            // Nothing is left to copy, and nothing may be removed.
            if self.here.is_over && self.here.next.is_none() && self.here.has_failed {
                return None;
            }
            if let Err(failed) = self.there.fill().await {
                return Some(Err(failed));
            }
            let order = match (&self.here.next, &self.there.next) {
                (None, None) => return None,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(here), Some(there)) => here.name.cmp(&there.name),
            };
            if order.is_gt() {
                let item = self.there.next.take()?;
                // What could not be looked at may hold it.
                if self.here.has_failed {
                    continue;
                }
                return Some(Ok(Action::Remove(item)));
            }
            let here = self.here.next.take()?;
            if order.is_lt() {
                // What could not be looked at may hold it, and a newer one.
                if self.there.has_failed {
                    continue;
                }
                return Some(Ok(Action::Copy(here)));
            }
            let there = self.there.next.take()?;
            if here.size != there.size {
                return Some(Ok(Action::Copy(here)));
            }
            match self.comparison {
                Comparison::SizeAndTime if is_newer(here.modified, there.modified) => {
                    return Some(Ok(Action::Copy(here)));
                }
                Comparison::PreservedTime if is_newer(here.modified, there.modified) => {
                    return Some(Ok(Action::CompareTimes(here)));
                }
                Comparison::Checksum => return Some(Ok(Action::Compare(here))),
                Comparison::SizeAndTime | Comparison::PreservedTime | Comparison::Size => {}
            }
        }
    }
}

/// By the second: stores tell no more of an object in all their answers.
const fn is_newer(here: Timestamp, there: Timestamp) -> bool {
    here.seconds() > there.seconds()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FoundItem;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tokio::sync::mpsc;
    use tradewind_core::error::{Error, Reason};

    fn feed(items: Vec<FoundItem>) -> Found {
        let (found, receiver) = mpsc::channel(items.len().max(1));
        items.into_iter().for_each(|item| found.try_send(item).unwrap());
        receiver.into()
    }

    fn item(name: &str, size: u64, seconds: i64) -> Item {
        Item { name: name.to_owned(), size, modified: Timestamp::from_millis(seconds * 1000) }
    }

    async fn actions(here: Vec<FoundItem>, there: Vec<FoundItem>, comparison: Comparison) -> Vec<String> {
        let mut merge = Merge::new(feed(here), feed(there), comparison);
        let mut all = Vec::new();
        while let Some(next) = merge.next().await {
            all.push(match next {
                Ok(Action::Copy(item)) => format!("copy {}", item.name),
                Ok(Action::Compare(item)) => format!("compare {}", item.name),
                Ok(Action::CompareTimes(item)) => format!("compare times of {}", item.name),
                Ok(Action::Remove(item)) => format!("remove {}", item.name),
                Err((name, _)) => format!("fail {name}"),
            });
        }
        all
    }

    #[tokio::test]
    async fn what_differs_is_copied() {
        let here = || ["a", "b", "c", "d"].map(|name| Ok(item(name, 1, 10))).into_iter().collect();
        let there =
            || vec![Ok(item("a", 1, 10)), Ok(item("b", 2, 20)), Ok(item("c", 1, 9)), Ok(item("x", 1, 1))];
        assert_eq!(
            actions(here(), there(), Comparison::SizeAndTime).await,
            ["copy b", "copy c", "copy d", "remove x"]
        );
        assert_eq!(actions(here(), there(), Comparison::Size).await, ["copy b", "copy d", "remove x"]);
        assert_eq!(
            actions(here(), there(), Comparison::Checksum).await,
            ["compare a", "copy b", "compare c", "copy d", "remove x"]
        );
        assert_eq!(
            actions(here(), there(), Comparison::PreservedTime).await,
            ["copy b", "compare times of c", "copy d", "remove x"]
        );
    }

    #[tokio::test]
    async fn an_empty_source_that_is_refused_removes_nothing() {
        let there = || feed(vec![Ok(item("a", 1, 1)), Ok(item("z", 1, 1))]);
        let failure = || ("place".to_owned(), Error::new(Reason::NoSuchKey, "nothing at place"));
        let mut merge =
            Merge::new(feed(Vec::new()), there(), Comparison::Size).refusing_empty(failure(), false);
        assert_eq!(merge.next().await.unwrap().unwrap_err().0, "place");
        assert_eq!(merge.next().await.map(|next| next.is_ok()), None);
        // Markers of folders are no content, wherever they stand.
        let markers = || feed(vec![Ok(item("", 0, 1)), Ok(item("m/", 0, 1)), Ok(item("x/y/", 0, 1))]);
        let mut merge = Merge::new(markers(), there(), Comparison::Size).refusing_empty(failure(), true);
        assert_eq!(merge.next().await.unwrap().unwrap_err().0, "place");
        for name in ["", "m/", "x/y/"] {
            assert_eq!(merge.next().await.unwrap().unwrap(), Action::Copy(item(name, 0, 1)));
        }
        assert_eq!(merge.next().await.map(|next| next.is_ok()), None);
        let content = feed(vec![Ok(item("m/", 0, 1)), Ok(item("n", 1, 1))]);
        let mut merge = Merge::new(content, there(), Comparison::Size).refusing_empty(failure(), true);
        assert_eq!(merge.next().await.unwrap().unwrap(), Action::Remove(item("a", 1, 1)));
        let one = feed(vec![Ok(item("a", 1, 1))]);
        let mut merge = Merge::new(one, there(), Comparison::Size).refusing_empty(failure(), true);
        assert_eq!(merge.next().await.unwrap().unwrap(), Action::Remove(item("z", 1, 1)));
    }

    #[tokio::test]
    async fn nothing_is_removed_for_what_could_not_be_looked_at() {
        let failed = Err(("dir".to_owned(), Error::new(Reason::AccessDenied, "no")));
        let there = vec![Ok(item("dir/a", 1, 1)), Ok(item("z", 1, 1))];
        assert_eq!(actions(vec![failed], there, Comparison::Size).await, ["fail dir"]);
    }

    proptest! {
        #[test]
        fn every_name_is_decided_once(
            here in prop::collection::btree_map("[ab/.]{1,4}", 0_u64..3, 0..20),
            there in prop::collection::btree_map("[ab/.]{1,4}", 0_u64..3, 0..20),
        ) {
            let list = |tree: &BTreeMap<String, u64>| -> Vec<FoundItem> {
                tree.iter().map(|(name, size)| Ok(item(name, *size, 1))).collect()
            };
            let mut expected: Vec<(&str, &String)> = Vec::new();
            for (name, size) in &here {
                if there.get(name) != Some(size) {
                    expected.push(("copy", name));
                }
            }
            expected.extend(there.keys().filter(|name| !here.contains_key(*name)).map(|name| ("remove", name)));
            expected.sort_by(|a, b| a.1.cmp(b.1));
            let expected: Vec<String> = expected.iter().map(|(what, name)| format!("{what} {name}")).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = runtime.block_on(actions(list(&here), list(&there), Comparison::SizeAndTime));
            prop_assert_eq!(found, expected);
        }
    }
}
