//! Paging of listings by prefix, delimiter, position and limit, implemented here once for
//! every store. A store supplies an ordered, seekable cursor over one snapshot; the pager seeks past
//! each common prefix instead of walking through it.

use crate::checksum::{Algorithm, ChecksumScope};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::object::{ETag, Generation};

/// Parameters of a listing page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Keys that contain this after the prefix are rolled up into one common prefix.
    pub delimiter: Option<String>,
    /// Only keys and common prefixes after this position.
    pub after: Option<ListPosition>,
    /// The maximum number of entries on the page: keys and common prefixes.
    pub limit: usize,
}

/// A position in a listing: its rest follows.
///
/// A position is a name, in byte order. A service may list in another order, of its directories or hashes. Such a listing
/// can be continued by the token of the service only, so a position that a page ended at carries both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPosition {
    /// The rest has only names after this one, in byte order. In another order, the largest name so far.
    pub name: String,
    /// The position in the order of the service, as its page named it. With it, the name does not decide.
    pub token: Option<String>,
}

impl ListPosition {
    /// The position after a name, in byte order.
    pub fn after(name: impl Into<String>) -> Self {
        Self { name: name.into(), token: None }
    }
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListEntry<T> {
    /// A key with its item.
    Key(String, T),
    /// Keys rolled up at the delimiter, which it ends with.
    CommonPrefix(String),
}

impl<T> ListEntry<T> {
    /// The key or the common prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Key(name, _) | Self::CommonPrefix(name) => name,
        }
    }
}

/// One page of one snapshot: in byte order, unless a service lists in an order of its own. See [`ListPage::check_order`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T> {
    /// Keys and common prefixes.
    pub entries: Vec<ListEntry<T>>,
    /// The `after` of the next page, if there are more entries.
    pub next: Option<ListPosition>,
}

impl<T> ListPage<T> {
    /// Checks that the entries follow the position of the request in byte order. A caller that merges pages, or continues after
    /// a name, depends on it.
    ///
    /// # Errors
    /// `Unsupported` if the service lists in another order.
    pub fn check_order(&self, after: Option<&ListPosition>) -> Result<()> {
        let names = self.entries.iter().map(ListEntry::name);
        let mut previous = after.map(|after| after.name.as_str());
        for name in names {
            if previous.is_some_and(|previous| name <= previous) {
                return Err(Error::unsupported("list in byte order, as this listing requires"));
            }
            previous = Some(name);
        }
        Ok(())
    }
}

/// The metadata that a listing reports for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    /// Bytes in the object.
    pub size: u64,
    /// Its entity tag.
    pub etag: ETag,
    /// When it was written.
    pub modified: Timestamp,
    /// The write that created this version.
    pub generation: Generation,
    /// The algorithm and scope of its checksum, if reported.
    pub checksum: Option<(Algorithm, ChecksumScope)>,
    /// Its storage class, if it is not `STANDARD`. See [`Feature::ListedStorageClass`](crate::store::Feature).
    pub storage_class: Option<String>,
}

/// An ordered, seekable view of one snapshot of a bucket's keys.
pub trait KeyCursor {
    /// The value that belongs to a key.
    type Item;

    /// Moves to the first key at or after `bytes`, which need not be UTF-8.
    fn seek(&mut self, bytes: &[u8]) -> Result<()>;

    /// Returns the current key and its item, and moves on; `None` at the end.
    fn next(&mut self) -> Result<Option<(String, Self::Item)>>;
}

/// Builds one page.
pub fn page<C: KeyCursor>(cursor: &mut C, request: &ListRequest) -> Result<ListPage<C::Item>> {
    let mut entries = Vec::new();
    if request.limit == 0 {
        return Ok(ListPage { entries, next: None });
    }
    cursor.seek(&request.start_position())?;
    while let Some((key, item)) = cursor.next()? {
        if !key.starts_with(&request.prefix) {
            break;
        }
        let common = common_prefix(&key, request).map(str::to_owned);
        let name = common.as_deref().unwrap_or(&key);
        let is_after = request.after_name().is_none_or(|after| name > after);
        if is_after && entries.len() == request.limit {
            let next = entries.last().map(|e: &ListEntry<C::Item>| ListPosition::after(e.name()));
            return Ok(ListPage { entries, next });
        }
        match common {
            Some(common) => {
                cursor.seek(&successor(common.as_bytes()))?;
                if is_after {
                    entries.push(ListEntry::CommonPrefix(common));
                }
            }
            None if is_after => entries.push(ListEntry::Key(key, item)),
            None => {}
        }
    }
    Ok(ListPage { entries, next: None })
}

/// The common prefix that a key is rolled up into, if any.
#[must_use]
pub fn common_prefix<'a>(key: &'a str, request: &ListRequest) -> Option<&'a str> {
    let delimiter = request.delimiter.as_deref().filter(|d| !d.is_empty())?;
    let rest = &key[request.prefix.len()..];
    let at = rest.find(delimiter)?;
    Some(&key[..request.prefix.len() + at + delimiter.len()])
}

impl ListRequest {
    /// The name of the position.
    #[must_use]
    pub fn after_name(&self) -> Option<&str> {
        self.after.as_ref().map(|after| after.name.as_str())
    }

    /// The first position at which the page can begin.
    pub(crate) fn start_position(&self) -> Vec<u8> {
        match self.after_name() {
            Some(after) if after >= self.prefix.as_str() => {
                if after.starts_with(&self.prefix)
                    && let Some(common) = common_prefix(after, self)
                {
                    return successor(common.as_bytes());
                }
                let mut next = after.as_bytes().to_vec();
                next.push(0);
                next
            }
            _ => self.prefix.as_bytes().to_vec(),
        }
    }
}

/// The first position after everything that begins with `prefix`. UTF-8 never contains the byte 0xff,
/// so the last byte can always be incremented.
#[must_use]
pub fn successor(prefix: &[u8]) -> Vec<u8> {
    let mut next = prefix.to_vec();
    match next.last_mut() {
        Some(last) => *last = last.saturating_add(1),
        None => next.push(0xff),
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    struct Sorted<'a> {
        keys: &'a BTreeSet<String>,
        at: Vec<u8>,
    }

    impl KeyCursor for Sorted<'_> {
        type Item = ();

        fn seek(&mut self, bytes: &[u8]) -> Result<()> {
            self.at = bytes.to_vec();
            Ok(())
        }

        fn next(&mut self) -> Result<Option<(String, ())>> {
            let found = self.keys.iter().find(|k| k.as_bytes() >= self.at.as_slice()).cloned();
            Ok(found.map(|key| {
                self.at = key.as_bytes().to_vec();
                self.at.push(0);
                (key, ())
            }))
        }
    }

    /// The definition, step by step: roll up, then drop what is not after `after`.
    fn reference(keys: &BTreeSet<String>, request: &ListRequest) -> BTreeSet<String> {
        keys.iter()
            .filter(|k| k.starts_with(&request.prefix))
            .map(|k| common_prefix(k, request).unwrap_or(k).to_owned())
            .filter(|name| request.after_name().is_none_or(|after| name.as_str() > after))
            .collect()
    }

    proptest! {
        #[test]
        fn pages_match_the_definition(
            keys in prop::collection::btree_set("[ab/é]{1,6}", 0..40),
            prefix in "[ab/]{0,2}", delimiter in prop::option::of("[/a]{1,2}"), after in prop::option::of("[ab/é]{0,4}"),
            limit in 1_usize..5,
        ) {
            let mut request = ListRequest { prefix, delimiter, after: after.map(ListPosition::after), limit };
            let expected = reference(&keys, &request);
            let mut seen = Vec::new();
            loop {
                let page = page(&mut Sorted { keys: &keys, at: Vec::new() }, &request).unwrap();
                prop_assert!(page.entries.len() <= limit);
                seen.extend(page.entries.iter().map(|e| e.name().to_owned()));
                match page.next {
                    Some(next) => { prop_assert_eq!(page.entries.len(), limit); request.after = Some(next) }
                    None => break,
                }
            }
            prop_assert_eq!(seen, expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn limit_zero_is_an_empty_last_page() {
        let keys = BTreeSet::from(["a".to_owned()]);
        let page = page(&mut Sorted { keys: &keys, at: Vec::new() }, &ListRequest::default()).unwrap();
        assert!(page.entries.is_empty() && page.next.is_none());
    }

    #[test]
    fn order_is_checked_from_the_position_on() {
        let page = |names: &[&str]| ListPage {
            entries: names.iter().map(|name| ListEntry::Key((*name).to_owned(), ())).collect(),
            next: None,
        };
        let after = ListPosition::after("b");
        assert!(page(&["a", "b", "c"]).check_order(None).is_ok());
        assert!(page(&["c", "d"]).check_order(Some(&after)).is_ok());
        assert!(page(&[]).check_order(Some(&after)).is_ok());
        for unordered in [&["c", "a"][..], &["b"], &["a", "c"], &["c", "c"]] {
            let error = page(unordered).check_order(Some(&after)).unwrap_err();
            assert_eq!(error.reason(), Reason::Unsupported, "{unordered:?}");
        }
    }
}
