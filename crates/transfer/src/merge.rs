//! Merge join of two trees for sync, both listed in byte order of names. Memory stays constant whatever the number of
//! items: only the current item of each side is held.

use std::collections::VecDeque;

use tradewind_core::Timestamp;

use crate::freshness::{Freshness, StoreClock, compare_times, end_of_race};
use crate::names::is_folder_marker;
use crate::unlisted::UnlistedNames;
use crate::{Extent, Item, ItemFeed, NamedError};

/// An action of `cp` or `sync` on a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Copy the item: it is missing at the destination, or differs.
    Copy(Item),
    /// Copy the item again: both times are in one second, and the item may have changed since it was copied.
    CopyAgain {
        /// The item.
        item: Item,
        /// The listed item of the destination.
        destination: Box<Item>,
        /// The time by this machine's clock from which a copy gets a time that tells the two apart.
        not_before: Timestamp,
    },
    /// Compare the contents: the sizes are equal.
    CompareContents(Item),
    /// Compare the times: the sizes are equal, and one of the times is not in the listing.
    CompareTimes(Item),
    /// Remove the item from the destination: it is not in the source.
    Remove(Item),
    /// Leave the item at the destination: the source may have it in a part that could not be listed.
    SkipRemoval(Item),
}

impl Action {
    /// The item that the action concerns.
    #[must_use]
    pub const fn item(&self) -> &Item {
        match self {
            Self::Copy(item)
            | Self::CopyAgain { item, .. }
            | Self::CompareContents(item)
            | Self::CompareTimes(item)
            | Self::Remove(item)
            | Self::SkipRemoval(item) => item,
        }
    }
}

/// The criterion by which items of both sides count as equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Comparison {
    /// Equal sizes, and the source is not newer, and cannot be newer within the second of the times.
    #[default]
    SizeAndTime,
    /// Like `SizeAndTime`, but if the source seems newer, the file time stored with the object decides. The upload
    /// time is always later than the file's.
    PreservedTime,
    /// Equal sizes.
    Size,
    /// Equal sizes and checksums.
    Checksum,
}

/// The merge join of a source and a destination listing.
#[derive(Debug)]
pub struct Merge {
    source: Side,
    destination: Side,
    comparison: Comparison,
    clock: StoreClock,
    /// The failure to report if the source is empty; nothing is removed then.
    if_empty: Option<IfEmpty>,
    /// The source is empty, and that was reported.
    is_rejected: bool,
}

/// The treatment of an empty source.
#[derive(Debug)]
struct IfEmpty {
    failure: NamedError,
    /// Folder markers do not count as content.
    ignores_markers: bool,
}

#[derive(Debug)]
struct Side {
    items: ItemFeed,
    /// Items read ahead of `next`.
    read_ahead: VecDeque<Item>,
    next: Option<Item>,
    is_exhausted: bool,
    /// A part of the tree could not be listed, which was reported.
    is_incomplete: bool,
    /// The names that may exist without being listed.
    unlisted: UnlistedNames,
    /// An item was listed, or a part could not be listed.
    has_found: bool,
    /// An item other than a folder marker was listed, or a part could not be listed.
    has_content: bool,
    /// An item was listed.
    has_listed: bool,
    /// Nothing could be listed.
    has_failed_early: bool,
}

impl Side {
    async fn fill(&mut self) -> Result<(), NamedError> {
        while self.next.is_none() {
            self.next = self.read_ahead.pop_front();
            if self.next.is_some() || self.is_exhausted {
                return Ok(());
            }
            self.read_next().await?;
        }
        Ok(())
    }

    /// Reads ahead until an item that is no folder marker is found, or the listing ends.
    async fn find_content(&mut self) -> Result<(), NamedError> {
        while !self.has_content && !self.is_exhausted {
            self.read_next().await?;
        }
        Ok(())
    }

    async fn read_next(&mut self) -> Result<(), NamedError> {
        match self.items.recv().await {
            None => self.is_exhausted = true,
            Some(Ok(item)) => {
                (self.has_found, self.has_listed) = (true, true);
                self.has_content |= !is_folder_marker(&item.name);
                self.read_ahead.push_back(item);
            }
            Some(Err(part)) => {
                (self.has_found, self.has_content) = (true, true);
                self.has_failed_early |= part.extent == Extent::Rest && !self.has_listed;
                self.unlisted.add(part.extent.clone());
                if !part.is_excluded {
                    self.is_incomplete = true;
                    return Err(part.into_named_error());
                }
            }
        }
        Ok(())
    }
}

impl Merge {
    /// A merge of the source and destination listings.
    #[must_use]
    pub fn new(source: ItemFeed, destination: ItemFeed, comparison: Comparison) -> Self {
        let side = |items| Side {
            items,
            read_ahead: VecDeque::new(),
            next: None,
            is_exhausted: false,
            is_incomplete: false,
            unlisted: UnlistedNames::default(),
            has_found: false,
            has_content: false,
            has_listed: false,
            has_failed_early: false,
        };
        let (source, destination) = (side(source), side(destination));
        Self {
            source,
            destination,
            comparison,
            clock: StoreClock::default(),
            if_empty: None,
            is_rejected: false,
        }
    }

    /// Compares the times of changes of files with times of objects that `clock` set. Without it, both have one clock.
    #[must_use]
    pub fn with_clock(self, clock: StoreClock) -> Self {
        Self { clock, ..self }
    }

    /// Reports `failure` and removes nothing if the source is empty: a mistyped or unmounted location looks empty. With
    /// `ignores_markers`, folder markers do not count as content.
    #[must_use]
    pub fn with_empty_source_error(self, failure: NamedError, ignores_markers: bool) -> Self {
        Self { if_empty: Some(IfEmpty { failure, ignores_markers }), ..self }
    }

    /// Checks once, before the first action, whether the source is empty. Returns the failure to report, if any.
    async fn check_emptiness(&mut self) -> Option<NamedError> {
        let ignores_markers = self.if_empty.as_ref()?.ignores_markers;
        let listed =
            if ignores_markers { self.source.find_content().await } else { self.source.fill().await };
        if let Err(failed) = listed {
            self.if_empty = None;
            return Some(failed);
        }
        let IfEmpty { failure, .. } = self.if_empty.take()?;
        let is_empty = if ignores_markers { !self.source.has_content } else { !self.source.has_found };
        self.is_rejected = is_empty;
        is_empty.then_some(failure)
    }

    /// The next action, or a failure if a part of a tree could not be listed; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Action, NamedError>> {
        loop {
            if let Some(failure) = self.check_emptiness().await {
                return Some(Err(failure));
            }
            if let Err(failed) = self.source.fill().await {
                return Some(Err(failed));
            }
            // Nothing more is copied or removed. A source that could not be listed at all says nothing about removals.
            let is_source_done = self.source.is_exhausted && self.source.next.is_none();
            if is_source_done && (self.is_rejected || self.source.has_failed_early) {
                return None;
            }
            if let Err(failed) = self.destination.fill().await {
                return Some(Err(failed));
            }
            let order = match (&self.source.next, &self.destination.next) {
                (None, None) => return None,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(source), Some(destination)) => source.name.cmp(&destination.name),
            };
            if order.is_gt() {
                let item = self.destination.next.take()?;
                // An excluded part of the source may contain it.
                if self.is_rejected
                    || (!self.source.is_incomplete && self.source.unlisted.may_hold(&item.name))
                {
                    continue;
                }
                // Any failure forbids removals from there on, even of names that the failed part cannot hold.
                let is_forbidden = self.source.is_incomplete;
                return Some(Ok(if is_forbidden { Action::SkipRemoval(item) } else { Action::Remove(item) }));
            }
            let source = self.source.next.take()?;
            if order.is_lt() {
                // The unlisted part of the destination may contain it, and a newer version.
                if self.destination.unlisted.may_hold(&source.name) {
                    continue;
                }
                return Some(Ok(Action::Copy(source)));
            }
            let destination = self.destination.next.take()?;
            if source.size != destination.size {
                return Some(Ok(Action::Copy(source)));
            }
            match self.comparison {
                Comparison::SizeAndTime | Comparison::PreservedTime => {
                    if let Some(action) = self.action_by_time(source, destination) {
                        return Some(Ok(action));
                    }
                }
                Comparison::Checksum => return Some(Ok(Action::CompareContents(source))),
                Comparison::Size => {}
            }
        }
    }

    /// The action for items of equal size, by their times; `None` if the destination is up to date.
    fn action_by_time(&self, source: Item, destination: Item) -> Option<Action> {
        let (is_preserved, clock) = (self.comparison == Comparison::PreservedTime, self.clock.object_clock());
        match compare_times(&source, &destination, clock) {
            Freshness::Current => None,
            Freshness::Newer | Freshness::NewerWithinSecond if is_preserved => {
                Some(Action::CompareTimes(source))
            }
            Freshness::Newer => Some(Action::Copy(source)),
            Freshness::NewerWithinSecond | Freshness::Racy => {
                let not_before = end_of_race(&source, &destination, clock);
                let destination = Box::new(destination);
                Some(Action::CopyAgain { item: source, destination, not_before })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileNanos, ListedItem, Unlisted};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tokio::sync::mpsc;
    use tradewind_core::error::{Error, Reason};

    fn feed(items: Vec<ListedItem>) -> ItemFeed {
        let (sender, receiver) = mpsc::channel(items.len().max(1));
        items.into_iter().for_each(|item| sender.try_send(item).unwrap());
        receiver.into()
    }

    /// A file that was copied long after its modification.
    fn item(name: &str, size: u64, seconds: i64) -> Item {
        let modified = Timestamp::from_millis(seconds * 1000);
        let changed = Some(Timestamp::from_millis(seconds * 1000 + 3_600_001));
        Item { name: name.to_owned(), size, modified, changed, nanos: FileNanos::default(), version: None }
    }

    async fn actions(
        source: Vec<ListedItem>,
        destination: Vec<ListedItem>,
        comparison: Comparison,
    ) -> Vec<String> {
        let mut merge = Merge::new(feed(source), feed(destination), comparison);
        let mut all = Vec::new();
        while let Some(next) = merge.next().await {
            all.push(match next {
                Ok(Action::Copy(item)) => format!("copy {}", item.name),
                Ok(Action::CopyAgain { item, .. }) => format!("copy {} again", item.name),
                Ok(Action::CompareContents(item)) => format!("compare {}", item.name),
                Ok(Action::CompareTimes(item)) => format!("compare times of {}", item.name),
                Ok(Action::Remove(item)) => format!("remove {}", item.name),
                Ok(Action::SkipRemoval(item)) => format!("keep {}", item.name),
                Err((name, _)) => format!("fail {name}"),
            });
        }
        all
    }

    #[tokio::test]
    async fn items_that_differ_are_copied() {
        let source = || ["a", "b", "c", "d"].map(|name| Ok(item(name, 1, 10))).into_iter().collect();
        let destination =
            || vec![Ok(item("a", 1, 10)), Ok(item("b", 2, 20)), Ok(item("c", 1, 9)), Ok(item("x", 1, 1))];
        assert_eq!(
            actions(source(), destination(), Comparison::SizeAndTime).await,
            ["copy b", "copy c", "copy d", "remove x"]
        );
        assert_eq!(
            actions(source(), destination(), Comparison::Size).await,
            ["copy b", "copy d", "remove x"]
        );
        assert_eq!(
            actions(source(), destination(), Comparison::Checksum).await,
            ["compare a", "copy b", "compare c", "copy d", "remove x"]
        );
        assert_eq!(
            actions(source(), destination(), Comparison::PreservedTime).await,
            ["copy b", "compare times of c", "copy d", "remove x"]
        );
    }

    #[tokio::test]
    async fn items_of_one_second_are_copied_again() {
        let at = |millis| Timestamp::from_millis(millis);
        let file = |name, modified, changed| {
            Ok(Item { modified: at(modified), changed: Some(at(changed)), ..item(name, 1, 0) })
        };
        let source =
            || vec![file("new", 10_500, 50_000), file("old", 10_000, 50_000), file("racy", 10_000, 10_900)];
        let destination = || {
            ["new", "old", "racy"]
                .map(|name| Ok(Item { changed: None, ..item(name, 1, 10) }))
                .into_iter()
                .collect()
        };
        for (comparison, expected) in [
            (Comparison::SizeAndTime, &["copy new again", "copy racy again"][..]),
            (Comparison::PreservedTime, &["compare times of new", "copy racy again"]),
            (Comparison::Size, &[]),
            (Comparison::Checksum, &["compare new", "compare old", "compare racy"]),
        ] {
            assert_eq!(actions(source(), destination(), comparison).await, expected, "{comparison:?}");
        }
    }

    #[tokio::test]
    async fn rejected_empty_source_removes_nothing() {
        let destination = || feed(vec![Ok(item("a", 1, 1)), Ok(item("z", 1, 1))]);
        let failure = || ("place".to_owned(), Error::new(Reason::NoSuchKey, "nothing at place"));
        let mut merge = Merge::new(feed(Vec::new()), destination(), Comparison::Size)
            .with_empty_source_error(failure(), false);
        assert_eq!(merge.next().await.unwrap().unwrap_err().0, "place");
        assert_eq!(merge.next().await.map(|next| next.is_ok()), None);
        // Folder markers are no content, at any depth.
        let markers = || feed(vec![Ok(item("", 0, 1)), Ok(item("m/", 0, 1)), Ok(item("x/y/", 0, 1))]);
        let mut merge =
            Merge::new(markers(), destination(), Comparison::Size).with_empty_source_error(failure(), true);
        assert_eq!(merge.next().await.unwrap().unwrap_err().0, "place");
        for name in ["", "m/", "x/y/"] {
            assert_eq!(merge.next().await.unwrap().unwrap(), Action::Copy(item(name, 0, 1)));
        }
        assert_eq!(merge.next().await.map(|next| next.is_ok()), None);
        let content = feed(vec![Ok(item("m/", 0, 1)), Ok(item("n", 1, 1))]);
        let mut merge =
            Merge::new(content, destination(), Comparison::Size).with_empty_source_error(failure(), true);
        assert_eq!(merge.next().await.unwrap().unwrap(), Action::Remove(item("a", 1, 1)));
        let one = feed(vec![Ok(item("a", 1, 1))]);
        let mut merge =
            Merge::new(one, destination(), Comparison::Size).with_empty_source_error(failure(), true);
        assert_eq!(merge.next().await.unwrap().unwrap(), Action::Remove(item("z", 1, 1)));
    }

    fn unlisted(extent: Extent, is_excluded: bool) -> ListedItem {
        let error = Box::new(Error::new(Reason::AccessDenied, "no"));
        Err(Unlisted { location: "part".to_owned(), error, extent, is_excluded })
    }

    fn tree(name: &str) -> Extent {
        Extent::Tree(name.to_owned())
    }

    fn named(names: &[&str]) -> Vec<ListedItem> {
        names.iter().map(|name| Ok(item(name, 1, 1))).collect()
    }

    #[tokio::test]
    async fn unlisted_part_of_the_source_removes_nothing() {
        let destination = || named(&["a", "dir/a", "z"]);
        for extent in [tree("dir"), Extent::Nothing, Extent::Rest] {
            let source = vec![Ok(item("b", 1, 1)), unlisted(extent, false), Ok(item("y", 1, 1))];
            assert_eq!(
                actions(source, destination(), Comparison::Size).await,
                ["remove a", "copy b", "fail part", "keep dir/a", "copy y", "keep z"]
            );
        }
        let nothing_listed = vec![unlisted(Extent::Rest, false)];
        assert_eq!(actions(nothing_listed, destination(), Comparison::Size).await, ["fail part"]);
    }

    #[tokio::test]
    async fn excluded_part_of_the_source_forbids_only_its_own_removals() {
        let source = vec![unlisted(tree("dir"), true), Ok(item("y", 1, 1))];
        assert_eq!(
            actions(source, named(&["a", "dir", "dir/a", "z"]), Comparison::Size).await,
            ["remove a", "copy y", "remove z"]
        );
    }

    #[tokio::test]
    async fn unlisted_part_of_the_destination_stops_only_names_in_it() {
        let source = || named(&["a", "pipe", "pipe.txt", "pipe/x", "z"]);
        let destination = |extent| vec![Ok(item("b", 1, 1)), unlisted(extent, false), Ok(item("q", 1, 1))];
        assert_eq!(
            actions(source(), destination(tree("pipe")), Comparison::Size).await,
            ["copy a", "remove b", "fail part", "copy pipe.txt", "remove q", "copy z"]
        );
        assert_eq!(
            actions(source(), destination(Extent::Nothing), Comparison::Size).await,
            [
                "copy a",
                "remove b",
                "fail part",
                "copy pipe",
                "copy pipe.txt",
                "copy pipe/x",
                "remove q",
                "copy z"
            ]
        );
        // The rest of a listing may hold a newer version of anything.
        assert_eq!(
            actions(source(), destination(Extent::Rest), Comparison::Size).await,
            ["copy a", "remove b", "fail part", "remove q"]
        );
    }

    proptest! {
        #[test]
        fn every_difference_yields_exactly_one_action(
            source in prop::collection::btree_map("[ab/.]{1,4}", 0_u64..3, 0..20),
            destination in prop::collection::btree_map("[ab/.]{1,4}", 0_u64..3, 0..20),
        ) {
            let list = |tree: &BTreeMap<String, u64>| -> Vec<ListedItem> {
                tree.iter().map(|(name, size)| Ok(item(name, *size, 1))).collect()
            };
            let mut expected: Vec<(&str, &String)> = Vec::new();
            for (name, size) in &source {
                if destination.get(name) != Some(size) {
                    expected.push(("copy", name));
                }
            }
            expected.extend(destination.keys().filter(|name| !source.contains_key(*name)).map(|name| ("remove", name)));
            expected.sort_by(|a, b| a.1.cmp(b.1));
            let expected: Vec<String> = expected.iter().map(|(what, name)| format!("{what} {name}")).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = runtime.block_on(actions(list(&source), list(&destination), Comparison::SizeAndTime));
            prop_assert_eq!(found, expected);
        }
    }
}
