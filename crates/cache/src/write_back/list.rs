//! Listings: the pages of the backing store, merged with the dirty index.
//!
//! The dirty names of a range are read before the page of the backing store: a key that is written back in between is
//! in both, and one that is not dirty any more is in the backing store. A common prefix that the backing store reports may
//! consist of deleted keys only. It is therefore examined if the dirty index has a deletion below it. The key of the marker
//! counts as deleted. Pages of a backing store that does not list in byte order cannot be merged: they are rejected.

use std::cmp::Ordering;
use std::sync::Arc;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary, common_prefix};
use tradewind_core::version::{ListVersions, VersionsPage, null_versions};
use tradewind_core::{BucketName, Context, VersionId};

use super::Shared;
use super::dirty_index::{DirtyName, DirtyNames};
use super::marker::MARKER_KEY;

/// Keys that are examined at once to find one that is not deleted.
const EXAMINED_KEYS: usize = 1000;

/// The next part of a listing: complete up to `end`, or to the end of the listing.
struct Part {
    dirty: Vec<DirtyName>,
    backing: Vec<ListEntry<ObjectSummary>>,
    end: Option<ListPosition>,
}

impl Shared {
    /// See [`ObjectStore::list`](tradewind_core::ObjectStore::list).
    pub async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.check_open(context)?;
        // A marker may appear late in a bucket that is not claimed.
        let is_versioned = self.bucket(context, bucket).await?.is_versioned();
        if request.limit == 0 || (is_versioned && !self.index.has_bucket(bucket)) {
            return self.backing.list(context, bucket, request).await;
        }
        let mut rest = request.clone();
        let mut entries: Vec<ListEntry<ObjectSummary>> = Vec::new();
        loop {
            let removed = self.index.removed_tombstones();
            let part = self.next_part(context, bucket, &rest).await?;
            let end = part.end.clone();
            for entry in self.merge(context, bucket, part).await? {
                if entries.len() == request.limit {
                    return Ok(page_with_more(entries));
                }
                entries.push(entry);
            }
            let Some(end) = end else { return Ok(ListPage { entries, next: None }) };
            if entries.len() == request.limit && !self.may_end_after(bucket, &request.prefix, &end.name) {
                // A deletion that was written back meanwhile may have been of the rest. It is counted after the look at the
                // deletions, so that none is missed by both.
                if removed == self.index.removed_tombstones() {
                    return Ok(page_with_more(entries));
                }
            }
            rest.after = Some(end);
        }
    }

    async fn next_part(&self, context: &Context, bucket: &BucketName, rest: &ListRequest) -> Result<Part> {
        let DirtyNames { mut names, is_truncated } = self.index.names(bucket, rest, rest.limit + 1);
        let dirty_end = names.last().filter(|_| is_truncated).map(|name| ListPosition::after(name.name()));
        hide_marker(&mut names, rest);
        let page = self.backing.list(context, bucket, rest).await?;
        page.check_order(rest.after.as_ref())?;
        // The token of the backing store continues after its page only.
        let ends = [page.next.clone(), dirty_end];
        let end = ends.into_iter().flatten().min_by(|a, b| a.name.cmp(&b.name));
        let is_within = |name: &str| end.as_ref().is_none_or(|end| name <= end.name.as_str());
        names.retain(|name| is_within(name.name()));
        let backing = page.entries.into_iter().filter(|entry| is_within(entry.name())).collect();
        Ok(Part { dirty: names, backing, end })
    }

    /// The entries of a part, in order.
    async fn merge(
        &self,
        context: &Context,
        bucket: &BucketName,
        part: Part,
    ) -> Result<Vec<ListEntry<ObjectSummary>>> {
        let mut merged = Vec::with_capacity(part.dirty.len() + part.backing.len());
        let (mut dirty, mut backing) =
            (part.dirty.into_iter().peekable(), part.backing.into_iter().peekable());
        loop {
            let order = match (dirty.peek(), backing.peek()) {
                (None, None) => return Ok(merged),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(dirty), Some(backing)) => dirty.name().cmp(backing.name()),
            };
            let found = if order == Ordering::Less { None } else { backing.next() };
            let known = if order == Ordering::Greater { None } else { dirty.next() };
            match known {
                None => merged.extend(found),
                Some(DirtyName::Key(key, summary)) => {
                    merged.extend(summary.map(|summary| ListEntry::Key(key, summary)));
                }
                Some(DirtyName::CommonPrefix { name, has_object }) => {
                    if has_object || self.is_prefix_used(context, bucket, &name).await? {
                        merged.push(ListEntry::CommonPrefix(name));
                    }
                }
            }
        }
    }

    /// True if a key begins with a prefix of which keys are known to be deleted.
    async fn is_prefix_used(&self, context: &Context, bucket: &BucketName, prefix: &str) -> Result<bool> {
        let mut rest =
            ListRequest { prefix: prefix.to_owned(), limit: EXAMINED_KEYS, ..ListRequest::default() };
        loop {
            let part = self.next_part(context, bucket, &rest).await?;
            let end = part.end.clone();
            let mut dirty = part.dirty.iter().peekable();
            if part.dirty.iter().any(|name| matches!(name, DirtyName::Key(_, Some(_)))) {
                return Ok(true);
            }
            // All dirty names of the part are deletions.
            for entry in &part.backing {
                while dirty.next_if(|name| name.name() < entry.name()).is_some() {}
                if dirty.peek().is_none_or(|name| name.name() != entry.name()) {
                    return Ok(true);
                }
            }
            match end {
                Some(end) => rest.after = Some(end),
                None => return Ok(false),
            }
        }
    }

    /// True if all that follows a full page may be deleted.
    fn may_end_after(&self, bucket: &BucketName, prefix: &str, after: &str) -> bool {
        (MARKER_KEY > after && MARKER_KEY.starts_with(prefix))
            || self.index.has_tombstone_after(bucket, prefix, after)
    }

    /// See [`ObjectStore::list_versions`](tradewind_core::ObjectStore::list_versions).
    pub async fn list_versions(
        self: Arc<Self>,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        self.check_open(context)?;
        let found = self.bucket(context, bucket).await?;
        if !found.is_claimed() {
            return self.backing.list_versions(context, bucket, request).await;
        }
        if found.has_versions() {
            // The marker stays until nothing of the bucket is dirty.
            self.clone().flush_versions(context, bucket).await?;
            let mut page = self.backing.list_versions(context, bucket, request).await?;
            page.entries.retain(|entry| entry.name() != MARKER_KEY);
            return Ok(page);
        }
        // The bucket keeps no versions: each object is its `null` version.
        if let Some(VersionId::Id(id)) = request.after.as_ref().and_then(|after| after.version.as_ref())
            && VersionId::Id(id.clone()).number().is_none()
        {
            return Err(Error::for_client(Reason::InvalidArgument, "Invalid version id specified"));
        }
        null_versions(self.list(context, bucket, &request.as_list_request()).await?, request)
    }
}

/// Adds the marker as a deleted key, in the place where the listing would report it.
fn hide_marker(names: &mut Vec<DirtyName>, request: &ListRequest) {
    if !MARKER_KEY.starts_with(&request.prefix) {
        return;
    }
    let common = common_prefix(MARKER_KEY, request);
    let name = common.unwrap_or(MARKER_KEY);
    if request.after_name().is_some_and(|after| name <= after) {
        return;
    }
    if let Err(position) = names.binary_search_by(|known| known.name().cmp(name)) {
        let hidden = match common {
            Some(common) => DirtyName::CommonPrefix { name: common.to_owned(), has_object: false },
            None => DirtyName::Key(name.to_owned(), None),
        };
        names.insert(position, hidden);
    }
}

/// A full page that is not the last one.
fn page_with_more(entries: Vec<ListEntry<ObjectSummary>>) -> ListPage<ObjectSummary> {
    let next = entries.last().map(|entry| ListPosition::after(entry.name()));
    ListPage { entries, next }
}
