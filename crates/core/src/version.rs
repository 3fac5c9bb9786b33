//! Versions of objects: their ids, the versioning of a bucket, and pages of versions.

use std::fmt;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::error::{Error, Reason, Result};
use crate::listing::{
    ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary, common_prefix, successor,
};

/// The longest version id, in bytes, as in S3.
pub const MAX_VERSION_ID_BYTES: usize = 1024;

/// The id of a version, unique within its key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VersionId {
    /// The version written while versioning was off or suspended: `null` in S3. A key has at most one.
    Null,
    /// A version with an id of its own, which only the store interprets.
    Id(Arc<str>),
}

impl VersionId {
    /// Parses the text of an id. Fails with [`InvalidVersionId`](Reason::InvalidVersionId) if it is empty, too long or
    /// has control characters.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "null" {
            return Ok(Self::Null);
        }
        if text.is_empty() || text.len() > MAX_VERSION_ID_BYTES || text.chars().any(char::is_control) {
            return Err(Error::for_client(Reason::InvalidVersionId, "Invalid version id specified"));
        }
        Ok(Self::Id(text.into()))
    }

    /// The id of a version that a store numbers: `v` and 16 letters. Ids order like their numbers, and no parser takes
    /// one for a number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self::Id(format!("v{}", crate::token::letters(number)).into())
    }

    /// Checks that a version of a store with ids by [`Self::from_number`] can have this id.
    ///
    /// # Errors
    /// [`InvalidVersionId`](Reason::InvalidVersionId) if the id is neither `null` nor of that form.
    pub fn check_numbered(&self) -> Result<()> {
        match self {
            Self::Id(_) if self.number().is_none() => Err(Error::invalid_version_id(self)),
            Self::Null | Self::Id(_) => Ok(()),
        }
    }

    /// The number of an id by [`Self::from_number`].
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Null => None,
            Self::Id(text) => crate::token::number_of_letters(text.strip_prefix('v')?),
        }
    }

    /// The id as text; `null` for [`Self::Null`].
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Null => "null",
            Self::Id(text) => text,
        }
    }
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The versioning of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Versioning {
    /// Never enabled: a write replaces the object, a delete removes it.
    #[default]
    Off,
    /// A write adds a version, a delete adds a delete marker.
    Enabled,
    /// A write replaces the `null` version, a delete replaces it by a delete marker. Other versions stay.
    Suspended,
}

/// A version or a delete marker, as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedVersion {
    /// Its id.
    pub version: VersionId,
    /// True for the newest version of its key.
    pub is_latest: bool,
    /// When it was written.
    pub modified: Timestamp,
    /// The object; `None` for a delete marker.
    pub object: Option<ObjectSummary>,
}

/// Parameters of a page of versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListVersions {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Keys that contain this after the prefix are rolled up into one common prefix.
    pub delimiter: Option<String>,
    /// Only versions after this position.
    pub after: Option<VersionPosition>,
    /// The maximum number of entries on the page: versions, delete markers and common prefixes.
    pub limit: usize,
}

/// A position in a listing of versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionPosition {
    /// A key or a common prefix.
    pub key: String,
    /// A version of the key; `None` for the position after all of them. If it no longer exists: see
    /// [`VersionCursor::seek_after`].
    pub version: Option<VersionId>,
}

/// One page of versions: keys in byte order, the versions of each key from the newest to the oldest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionsPage {
    /// Versions and common prefixes.
    pub entries: Vec<ListEntry<ListedVersion>>,
    /// The `after` of the next page, if there are more entries.
    pub next: Option<VersionPosition>,
}

/// An ordered, seekable view of one snapshot of a bucket's versions.
pub trait VersionCursor {
    /// Moves to the newest version of the first key at or after `bytes`, which need not be UTF-8.
    fn seek(&mut self, bytes: &[u8]) -> Result<()>;

    /// Moves behind a version of a key. If it does not exist, moves to the newest version of the key that is older, where
    /// the ids of a store order by age, else to the newest version.
    fn seek_after(&mut self, key: &str, version: &VersionId) -> Result<()> {
        self.seek(key.as_bytes())?;
        while let Some((found, listed)) = self.next()? {
            if found != key {
                break;
            }
            if listed.version == *version {
                return Ok(());
            }
        }
        self.seek(key.as_bytes())
    }

    /// Returns the current version and its key, and moves on; `None` at the end.
    fn next(&mut self) -> Result<Option<(String, ListedVersion)>>;
}

/// Builds one page of versions, of a store whose ids are those of [`VersionId::from_number`].
///
/// # Errors
/// `InvalidVersionId` if the position has another id: from a position that is not known, a client would read the versions
/// of its key again. An id whose version is gone is valid.
pub fn page_versions(cursor: &mut impl VersionCursor, request: &ListVersions) -> Result<VersionsPage> {
    let version = request.after.as_ref().and_then(|after| after.version.as_ref());
    version.map_or(Ok(()), VersionId::check_numbered)?;
    let mut entries: Vec<ListEntry<ListedVersion>> = Vec::new();
    if request.limit == 0 {
        return Ok(VersionsPage { entries, next: None });
    }
    let names = ListRequest {
        prefix: request.prefix.clone(),
        delimiter: request.delimiter.clone(),
        after: request.after.as_ref().map(|after| ListPosition::after(&after.key)),
        limit: request.limit,
    };
    // Entries of the position's own key that precede its version are skipped.
    let mut partial_key = None;
    match &request.after {
        Some(VersionPosition { key, version: Some(version) })
            if key.starts_with(&request.prefix) && common_prefix(key, &names).is_none() =>
        {
            cursor.seek_after(key, version)?;
            partial_key = Some(key.as_str());
        }
        _ => cursor.seek(&names.start_position())?,
    }
    while let Some((key, version)) = cursor.next()? {
        if !key.starts_with(&request.prefix) {
            break;
        }
        let common = common_prefix(&key, &names).map(str::to_owned);
        let name = common.as_deref().unwrap_or(&key);
        let is_after = names.after_name().is_none_or(|after| name > after) || partial_key == Some(name);
        if is_after && entries.len() == request.limit {
            return Ok(VersionsPage { next: entries.last().map(position), entries });
        }
        match common {
            Some(common) => {
                cursor.seek(&successor(common.as_bytes()))?;
                if is_after {
                    entries.push(ListEntry::CommonPrefix(common));
                }
            }
            None if is_after => entries.push(ListEntry::Key(key, version)),
            None => {}
        }
    }
    Ok(VersionsPage { entries, next: None })
}

/// The position of an entry.
fn position(entry: &ListEntry<ListedVersion>) -> VersionPosition {
    match entry {
        ListEntry::Key(key, listed) => {
            VersionPosition { key: key.clone(), version: Some(listed.version.clone()) }
        }
        ListEntry::CommonPrefix(prefix) => VersionPosition { key: prefix.clone(), version: None },
    }
}

/// The versions page of a store without versions, from the page of its objects: each is the `null` version. As of any
/// store, the position after an object names its version, and the position after a common prefix has none.
///
/// # Errors
/// `Unsupported` if this is not the only page and the store does not list in byte order: a version's position is a name.
pub fn null_versions(page: ListPage<ObjectSummary>, request: &ListVersions) -> Result<VersionsPage> {
    let after = request.as_list_request().after;
    if after.is_some() || page.next.is_some() {
        page.check_order(after.as_ref())?;
    }
    let entry = |entry| match entry {
        ListEntry::Key(key, object) => ListEntry::Key(key, ListedVersion::null(object)),
        ListEntry::CommonPrefix(prefix) => ListEntry::CommonPrefix(prefix),
    };
    let entries: Vec<_> = page.entries.into_iter().map(entry).collect();
    let next = page.next.map(|ListPosition { name: key, .. }| {
        let is_of_object = |entry: &ListEntry<_>| matches!(entry, ListEntry::Key(last, _) if *last == key);
        let version = entries.last().is_some_and(is_of_object).then_some(VersionId::Null);
        VersionPosition { key, version }
    });
    Ok(VersionsPage { entries, next })
}

impl ListVersions {
    /// The request for the objects whose `null` versions make up this page, in a store without versions.
    #[must_use]
    pub fn as_list_request(&self) -> ListRequest {
        ListRequest {
            prefix: self.prefix.clone(),
            delimiter: self.delimiter.clone(),
            after: self.after.as_ref().map(|after| ListPosition::after(&after.key)),
            limit: self.limit,
        }
    }
}

impl ListedVersion {
    /// The only version of an object in a bucket without versions.
    fn null(object: ObjectSummary) -> Self {
        Self { version: VersionId::Null, is_latest: true, modified: object.modified, object: Some(object) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Versions in order: (key, version number).
    struct Sorted<'a> {
        versions: &'a [(String, u64)],
        at: usize,
    }

    impl VersionCursor for Sorted<'_> {
        fn seek(&mut self, bytes: &[u8]) -> Result<()> {
            self.at = self.versions.partition_point(|(key, _)| key.as_bytes() < bytes);
            Ok(())
        }

        fn next(&mut self) -> Result<Option<(String, ListedVersion)>> {
            let Some((key, number)) = self.versions.get(self.at) else { return Ok(None) };
            self.at += 1;
            Ok(Some((key.clone(), listed(*number))))
        }
    }

    fn listed(number: u64) -> ListedVersion {
        let version = if number == 3 { VersionId::Null } else { VersionId::from_number(number) };
        ListedVersion { version, is_latest: false, modified: Timestamp::default(), object: None }
    }

    #[test]
    fn an_id_of_another_store_is_no_position() {
        let versions = [("k".to_owned(), 2), ("k".to_owned(), 1)];
        let page = |version: VersionId| {
            let after = Some(VersionPosition { key: "k".to_owned(), version: Some(version) });
            let request = ListVersions { after, limit: 10, ..ListVersions::default() };
            page_versions(&mut Sorted { versions: &versions, at: 0 }, &request)
        };
        let unknown = page(VersionId::parse("zzz").unwrap());
        assert_eq!(unknown.unwrap_err().reason(), Reason::InvalidVersionId);
        assert_eq!(page(VersionId::from_number(2)).unwrap().entries.len(), 1);
        // The version may be gone.
        assert!(page(VersionId::from_number(9)).is_ok() && page(VersionId::Null).is_ok());
    }

    proptest! {
        /// The pages of any size together are the versions, with those of a common prefix rolled up into one entry.
        #[test]
        fn pages_match_the_definition(
            keys in prop::collection::btree_map("[ab/é]{1,4}", prop::collection::btree_set(0_u64..6, 1..4), 0..20),
            prefix in "[ab/]{0,2}", delimiter in prop::option::of("[/a]{1,2}"), limit in 1_usize..5,
        ) {
            let versions: Vec<(String, u64)> = keys
                .iter()
                .flat_map(|(key, numbers)| numbers.iter().rev().map(|number| (key.clone(), *number)))
                .collect();
            let mut request = ListVersions { prefix, delimiter, after: None, limit };
            let mut expected: Vec<(String, Option<VersionId>)> = Vec::new();
            for (key, number) in versions.iter().filter(|(key, _)| key.starts_with(&request.prefix)) {
                let entry = match common_prefix(key, &request.as_list_request()) {
                    Some(common) => (common.to_owned(), None),
                    None => (key.clone(), Some(listed(*number).version)),
                };
                if expected.last() != Some(&entry) {
                    expected.push(entry);
                }
            }
            let mut seen = Vec::new();
            loop {
                let page = page_versions(&mut Sorted { versions: &versions, at: 0 }, &request).unwrap();
                prop_assert!(page.entries.len() <= limit);
                seen.extend(page.entries.iter().map(position).map(|at| (at.key, at.version)));
                match page.next {
                    Some(next) => { prop_assert_eq!(page.entries.len(), limit); request.after = Some(next) }
                    None => break,
                }
            }
            prop_assert_eq!(seen, expected);
        }
    }

    #[test]
    fn ids_round_trip_and_order_like_their_numbers() {
        for number in [0, 1, 15, 16, u64::MAX] {
            assert_eq!(VersionId::from_number(number).number(), Some(number));
        }
        assert!(VersionId::from_number(9) < VersionId::from_number(10));
        assert_eq!(VersionId::parse("null").unwrap(), VersionId::Null);
        assert_eq!(VersionId::parse("v5").unwrap().number(), None);
        assert!(VersionId::parse("").is_err());
        assert!(VersionId::parse("a\nb").is_err());
    }

    #[test]
    fn missing_version_of_the_position_restarts_its_key() {
        let versions = [("a".to_owned(), 2), ("a".to_owned(), 1), ("b".to_owned(), 4)];
        let after = Some(VersionPosition { key: "a".to_owned(), version: Some(VersionId::from_number(9)) });
        let request = ListVersions { after, limit: 10, ..ListVersions::default() };
        let page = page_versions(&mut Sorted { versions: &versions, at: 0 }, &request).unwrap();
        assert_eq!(page.entries.len(), 3);
    }
}
