//! Listings, merged from the listings of all tiers. Pages of a tier that does not list in byte order cannot be merged: they
//! are rejected.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use futures::future::join_all;
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::{ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary};
use tradewind_core::{BucketName, Context};

use super::tier_set::TierSet;

/// Listings without a lock before one takes it.
const MAX_UNLOCKED_LISTINGS: usize = 3;

impl TierSet {
    /// Lists one page. A key that changes its tier meanwhile is listed exactly once.
    pub async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        context.check()?;
        let moves = self.locks.moves_in_bucket(bucket);
        for _ in 0..MAX_UNLOCKED_LISTINGS {
            let before = moves.at_rest();
            let page = self.merged_page(context, bucket, request).await?;
            if moves.is_still(before) {
                return Ok(page);
            }
        }
        let _exclusive = context.guard(self.locks.lock_bucket(bucket)).await?;
        self.merged_page(context, bucket, request).await
    }

    async fn merged_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        let pages = self.tiers.iter().map(|tier| tier.store.list(context, bucket, request));
        let mut listed = Vec::with_capacity(self.tiers.len());
        for (index, page) in join_all(pages).await.into_iter().enumerate() {
            match page {
                Ok(page) => {
                    self.tiers[index].named(page.check_order(request.after.as_ref()))?;
                    listed.push(self.outer_page(index, page));
                }
                Err(error) if index < self.base() && error.reason() == Reason::NoSuchBucket => {}
                Err(error) => return self.tiers[index].named(Err(error)),
            }
        }
        Ok(merge(listed, request.limit))
    }

    fn outer_page(&self, tier: usize, page: ListPage<ObjectSummary>) -> ListPage<ObjectSummary> {
        let outer = |entry| match entry {
            ListEntry::Key(key, object) => {
                let ObjectSummary { generation, .. } = object;
                ListEntry::Key(key, ObjectSummary { generation: self.generation(tier, generation), ..object })
            }
            ListEntry::CommonPrefix(prefix) => ListEntry::CommonPrefix(prefix),
        };
        ListPage { entries: page.entries.into_iter().map(outer).collect(), next: page.next }
    }
}

/// Merges pages for the same request. Of several entries with the same name, that of the first page counts.
///
/// The merged page ends where the first of the pages ends that are not the last: what follows there is not known. Such a page
/// of a service may have fewer than `limit` entries.
fn merge<T>(pages: Vec<ListPage<T>>, limit: usize) -> ListPage<T> {
    let end = pages.iter().filter_map(|page| page.next.as_ref()).map(|next| next.name.clone()).min();
    let mut merged: BTreeMap<String, ListEntry<T>> = BTreeMap::new();
    for entry in pages.into_iter().flat_map(|page| page.entries) {
        if let Entry::Vacant(vacant) = merged.entry(entry.name().to_owned()) {
            vacant.insert(entry);
        }
    }
    if let Some(end) = &end {
        merged.retain(|name, _| name <= end);
    }
    let is_full = merged.len() > limit;
    let entries: Vec<ListEntry<T>> = merged.into_values().take(limit).collect();
    let last = entries.last().filter(|_| is_full).map(|entry| entry.name().to_owned());
    ListPage { entries, next: last.or(end).map(ListPosition::after) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use tradewind_core::listing::{KeyCursor, page};

    use super::*;

    /// Keys with the number of their tier.
    struct Keys<'a> {
        keys: &'a BTreeMap<String, usize>,
        at: Vec<u8>,
    }

    impl KeyCursor for Keys<'_> {
        type Item = usize;

        fn seek(&mut self, bytes: &[u8]) -> Result<()> {
            self.at = bytes.to_vec();
            Ok(())
        }

        fn next(&mut self) -> Result<Option<(String, usize)>> {
            let found = self.keys.iter().find(|(key, _)| key.as_bytes() >= self.at.as_slice());
            Ok(found.map(|(key, tier)| {
                self.at = [key.as_bytes(), &[0]].concat();
                (key.clone(), *tier)
            }))
        }
    }

    fn page_of(keys: &BTreeMap<String, usize>, request: &ListRequest) -> ListPage<usize> {
        page(&mut Keys { keys, at: Vec::new() }, request).unwrap()
    }

    #[test]
    fn short_page_of_a_service_ends_the_merged_page() {
        let entry = |key: &str| ListEntry::Key(key.to_owned(), ());
        let short = ListPage { entries: vec![entry("b")], next: Some(ListPosition::after("b")) };
        let whole = ListPage { entries: ["a", "c", "d"].map(entry).into(), next: None };
        let merged = merge(vec![short, whole], 10);
        assert_eq!(
            merged,
            ListPage { entries: ["a", "b"].map(entry).into(), next: Some(ListPosition::after("b")) }
        );
    }

    proptest! {
        /// The merged pages of several tiers are the pages of one store with all keys.
        #[test]
        fn merged_pages_are_those_of_one_store(
            keys in prop::collection::btree_map("[ab/é]{1,5}", prop::collection::btree_set(0_usize..3, 1..4), 0..40),
            prefix in "[ab/]{0,2}", delimiter in prop::option::of("[/a]{1,2}"), limit in 0_usize..5,
        ) {
            let visible = |tiers: &BTreeSet<usize>| tiers.first().copied().unwrap();
            let all: BTreeMap<String, usize> =
                keys.iter().map(|(key, tiers)| (key.clone(), visible(tiers))).collect();
            let tier = |tier: usize| -> BTreeMap<String, usize> {
                keys.keys().filter(|key| keys[*key].contains(&tier)).map(|key| (key.clone(), tier)).collect()
            };
            let tiers = [tier(0), tier(1), tier(2)];
            let mut request = ListRequest { prefix, delimiter, after: None, limit };
            loop {
                let merged = merge(tiers.iter().map(|keys| page_of(keys, &request)).collect(), limit);
                let expected = page_of(&all, &request);
                prop_assert_eq!(&merged, &expected);
                match expected.next {
                    Some(next) => request.after = Some(next),
                    None => break,
                }
            }
        }
    }
}
