//! The names that a listing merges with those of the backing store.

use std::ops::Bound;

use tradewind_core::BucketName;
use tradewind_core::listing::{ListRequest, ObjectSummary, common_prefix};

use super::{DirtyEntry, DirtyIndex, DirtyState};

/// A name of a listing that the dirty index knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum DirtyName {
    /// A key: its object, or `None` if it is deleted.
    Key(String, Option<ObjectSummary>),
    /// A common prefix, and whether a dirty object is known to be below it.
    CommonPrefix { name: String, has_object: bool },
}

impl DirtyName {
    pub fn name(&self) -> &str {
        match self {
            Self::Key(name, _) | Self::CommonPrefix { name, .. } => name,
        }
    }
}

/// Part of the index, in the order of a listing.
#[derive(Debug, Default)]
pub(in super::super) struct DirtyNames {
    pub names: Vec<DirtyName>,
    /// True if there may be names after the last one.
    pub is_truncated: bool,
}

impl DirtyIndex {
    /// True if a deletion is known of a key after `after` that begins with `prefix`.
    pub fn has_tombstone_after(&self, bucket: &BucketName, prefix: &str, after: &str) -> bool {
        let content = self.content.lock();
        let Some(entries) = content.buckets.get(bucket) else { return false };
        let range = (start_bound(prefix, Some(after)), Bound::Unbounded);
        let first = entries.tombstones.range::<str, _>(range).next();
        first.is_some_and(|key| key.as_str().starts_with(prefix))
    }

    /// The names of a listing that the index knows, in order: at most `limit`, of which at most four times as many keys
    /// are examined.
    pub fn names(&self, bucket: &BucketName, request: &ListRequest, limit: usize) -> DirtyNames {
        let content = self.content.lock();
        let mut names = NamesBuilder { request, limit, examined: 0, found: DirtyNames::default() };
        let Some(entries) = content.buckets.get(bucket) else { return names.found };
        let after = request.after_name();
        let mut start = start_bound(&request.prefix, after).map(str::to_owned);
        loop {
            let mut seek = None;
            for (key, entry) in
                entries.keys.range::<str, _>((start.as_ref().map(String::as_str), Bound::Unbounded))
            {
                match names.add(key.as_str(), entry) {
                    NextKey::Following => {}
                    NextKey::AfterPrefix(common) => {
                        seek = Some(last_of_prefix(common).max(key.as_str().to_owned()));
                        break;
                    }
                    NextKey::End => return names.found,
                }
            }
            match seek {
                Some(last) => start = Bound::Excluded(last),
                None => return names.found,
            }
        }
    }
}

/// The first position of a listing.
fn start_bound<'a>(prefix: &'a str, after: Option<&'a str>) -> Bound<&'a str> {
    match after {
        Some(after) if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    }
}

/// A position at or before the end of a prefix, and after nearly all keys below it.
fn last_of_prefix(common: &str) -> String {
    format!("{common}{}", char::MAX)
}

/// The key that is examined next.
enum NextKey<'a> {
    Following,
    /// One after the keys with this prefix.
    AfterPrefix(&'a str),
    End,
}

struct NamesBuilder<'a> {
    request: &'a ListRequest,
    limit: usize,
    examined: usize,
    found: DirtyNames,
}

impl NamesBuilder<'_> {
    fn add<'k>(&mut self, key: &'k str, entry: &DirtyEntry) -> NextKey<'k> {
        if !key.starts_with(&self.request.prefix) {
            return NextKey::End;
        }
        let names = &mut self.found.names;
        let common = common_prefix(key, self.request);
        if let Some(common) = common
            && self.request.after_name().is_some_and(|after| common <= after)
        {
            return NextKey::AfterPrefix(common);
        }
        let is_known = common.is_some() && names.last().map(DirtyName::name) == common;
        if self.examined == self.limit.saturating_mul(4) || (names.len() == self.limit && !is_known) {
            self.found.is_truncated = true;
            return NextKey::End;
        }
        self.examined += 1;
        let Some(common) = common else {
            names.push(DirtyName::Key(key.to_owned(), entry.summary()));
            return NextKey::Following;
        };
        let is_object = entry.state != DirtyState::Tombstone;
        match names.last_mut() {
            Some(DirtyName::CommonPrefix { has_object, .. }) if is_known => *has_object |= is_object,
            _ => names.push(DirtyName::CommonPrefix { name: common.to_owned(), has_object: is_object }),
        }
        // After an object, the rest of the prefix changes nothing.
        if is_object { NextKey::AfterPrefix(common) } else { NextKey::Following }
    }
}

impl DirtyEntry {
    /// The item of a listing.
    fn summary(&self) -> Option<ObjectSummary> {
        match &self.state {
            DirtyState::Object(summary) => Some(summary.clone()),
            DirtyState::Tombstone => None,
        }
    }
}
