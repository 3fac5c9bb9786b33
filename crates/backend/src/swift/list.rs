//! Lists containers.
//!
//! Swift's marker is a name, and a common prefix is skipped only if it equals the marker: after a marker inside a
//! common prefix, that prefix is listed again. A page of the port contains only entries after `after`, prefixes
//! included.

use http::Method;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary, page};
use tradewind_core::{BucketName, Context, ETag};

use super::SwiftStore;
use super::json::{self, ListedObject, ListingEntry, MAX_PAGE_BYTES};
use super::names;
use super::stored_metadata::{ListedType, large_object_etag};
use crate::remote::client::{Call, ResourceKind};
use crate::remote::header_fields::generation;
use crate::remote::limits::MAX_PAGE_ENTRIES;
use crate::remote::query::Query;
use crate::remote::sorted_entries::SortedEntries;

/// Appended to a common prefix, it sorts after all names under the prefix, except names that continue with this
/// character. Those are rolled up into the same prefix, which is skipped.
const LAST_CHAR: char = '\u{10ffff}';
/// Characters without a successor. Swift computes the end of a prefix by incrementing its last character, and fails for
/// these.
const WITHOUT_SUCCESSOR: [char; 2] = ['\u{d7ff}', LAST_CHAR];

/// The parameters of a container listing, in escaped names.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ListingQuery<'a> {
    pub prefix: &'a str,
    pub delimiter: Option<&'a str>,
    pub marker: Option<&'a str>,
    pub limit: usize,
}

impl SwiftStore {
    /// Lists one page. It may have fewer entries than requested even if another page follows.
    pub(super) async fn list_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        if request.limit == 0 {
            self.find_bucket(context, bucket).await?;
            return Ok(ListPage { entries: Vec::new(), next: None });
        }
        let prefix = names::escape(&request.prefix);
        let delimiter =
            request.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty()).map(names::escape);
        let after = request.after_name().map(names::escape).unwrap_or_default();
        let mut marker = first_marker(&after, &prefix, delimiter.as_deref());
        let limit = request.limit.min(MAX_PAGE_ENTRIES);
        if [Some(&*prefix), delimiter.as_deref()].into_iter().flatten().any(ends_without_successor) {
            return self.list_rolled_up(context, bucket, request, &prefix).await;
        }
        loop {
            let request = ListingQuery {
                prefix: &prefix,
                delimiter: delimiter.as_deref(),
                marker: Some(marker.as_str()).filter(|marker| !marker.is_empty()),
                // One more than needed, to know whether more follow.
                limit: limit + 1,
            };
            let mut lines = self.fetch_entries(context, bucket.as_str(), request).await?;
            let is_last = lines.len() <= limit;
            lines.truncate(limit);
            let last = lines.last().map(|line| line.name().to_owned());
            // A common prefix that contains the marker is listed again.
            let is_before = |line: &ListingEntry| match line {
                ListingEntry::Object(object) => *object.name <= *after,
                ListingEntry::Prefix(_) => false,
            };
            if lines.iter().any(is_before) {
                return Err(Error::new(Reason::Io, "the container is not listed in the order of its names"));
            }
            lines.retain(|line| line.name() > &*after);
            if lines.is_empty() && !is_last {
                marker = last.unwrap_or_default();
                continue;
            }
            let entries: Vec<_> = lines.into_iter().map(entry).collect();
            let last = entries.last().map(|entry: &ListEntry<_>| ListPosition::after(entry.name()));
            let next = last.filter(|_| !is_last);
            return Ok(ListPage { entries, next });
        }
    }

    /// Lists one page for a prefix or delimiter that Swift cannot increment. Reads everything under the longest prefix
    /// that Swift supports, and builds the page here.
    async fn list_rolled_up(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
        prefix: &str,
    ) -> Result<ListPage<ObjectSummary>> {
        let supported = prefix.trim_end_matches(WITHOUT_SUCCESSOR);
        let lines = self.list_objects(context, bucket.as_str(), supported).await?;
        let entries = lines.into_iter().map(|object| (names::unescape(&object.name), summary(object)));
        page(&mut SortedEntries::new(entries), request)
    }

    /// Returns true if a container lists an object. For a name that ends in a character that Swift cannot increment, a
    /// shorter prefix is used; the object is then not found if another name with that prefix sorts before it.
    pub(super) async fn is_listed(&self, context: &Context, bucket: &BucketName, name: &str) -> Result<bool> {
        let prefix = name.trim_end_matches(WITHOUT_SUCCESSOR);
        let first = ListingQuery { prefix, limit: 1, ..ListingQuery::default() };
        let lines = self.fetch_entries(context, bucket.as_str(), first).await?;
        Ok(lines.iter().any(|line| line.name() == name))
    }

    /// Fetches one page of a container. A missing container is reported as a missing bucket.
    pub(super) async fn fetch_entries(
        &self,
        context: &Context,
        container: &str,
        names: ListingQuery<'_>,
    ) -> Result<Vec<ListingEntry>> {
        let mut call = Call::in_container(Method::GET, ResourceKind::Bucket, container, None);
        call.query = Query::default()
            .with("format", "json")
            .with("limit", &names.limit.to_string())
            .with_optional("prefix", Some(names.prefix).filter(|prefix| !prefix.is_empty()))
            .with_optional("delimiter", names.delimiter)
            .with_optional("marker", names.marker);
        let response = self.send(context, &call).await?;
        let status = response.head.status;
        json::parse_container(status, &response.collect(MAX_PAGE_BYTES).await?)
    }

    /// Lists all objects of a container whose names begin with `prefix`.
    pub(super) async fn list_objects(
        &self,
        context: &Context,
        container: &str,
        prefix: &str,
    ) -> Result<Vec<ListedObject>> {
        let (mut all, mut marker) = (Vec::new(), None::<String>);
        loop {
            let names =
                ListingQuery { prefix, delimiter: None, marker: marker.as_deref(), limit: MAX_PAGE_ENTRIES };
            let lines = self.fetch_entries(context, container, names).await?;
            let is_last = lines.len() < MAX_PAGE_ENTRIES;
            all.extend(lines.into_iter().filter_map(|line| match line {
                ListingEntry::Object(object) => Some(object),
                ListingEntry::Prefix(_) => None,
            }));
            marker = all.last().map(|object| object.name.clone());
            if is_last || marker.is_none() {
                return Ok(all);
            }
        }
    }
}

/// The marker of the first page: past the common prefix that contains `after`, if any.
fn first_marker(after: &str, prefix: &str, delimiter: Option<&str>) -> String {
    let within = |delimiter: &str| {
        let at = after.strip_prefix(prefix)?.find(delimiter)?;
        Some(format!("{}{LAST_CHAR}", &after[..prefix.len() + at + delimiter.len()]))
    };
    delimiter.and_then(within).unwrap_or_else(|| after.to_owned())
}

fn entry(line: ListingEntry) -> ListEntry<ObjectSummary> {
    let object = match line {
        ListingEntry::Prefix(name) => return ListEntry::CommonPrefix(names::unescape(&name)),
        ListingEntry::Object(object) => object,
    };
    ListEntry::Key(names::unescape(&object.name), summary(object))
}

fn summary(object: ListedObject) -> ObjectSummary {
    let listed = ListedType::parse(&object.content_type);
    let storage_class = listed.storage_class.map(str::to_owned);
    let etag = match (listed.etag, object.slo_etag) {
        (Some(etag), _) => etag,
        (None, Some(tag)) => large_object_etag(&tag),
        (None, None) => ETag::from_text(&object.hash),
    };
    let generation = generation(object.modified, etag.as_str());
    ObjectSummary {
        size: object.size,
        etag,
        modified: object.modified,
        generation,
        checksum: None,
        storage_class,
    }
}

fn ends_without_successor(text: &str) -> bool {
    text.ends_with(WITHOUT_SUCCESSOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_skips_the_common_prefix_of_the_marker() {
        assert_eq!(first_marker("a/b", "", None), "a/b");
        assert_eq!(first_marker("a/b", "", Some("/")), "a/\u{10ffff}");
        assert_eq!(first_marker("a/b", "a/", Some("/")), "a/b");
        assert_eq!(first_marker("b", "a/", Some("/")), "b");
    }
}
