//! ListObjectVersions.

use std::sync::atomic::Ordering;

use http::header::ACCEPT_ENCODING;
use http::{HeaderValue, Method};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::version::{
    ListVersions, ListedVersion, VersionCursor, VersionId, VersionPosition, VersionsPage, null_versions,
    page_versions,
};
use tradewind_core::{BucketName, Context};

use super::S3Store;
use super::list::{MAX_PAGE_BYTES, PartialEntry, decode_key};
use super::xml::DocumentKind;
use crate::remote::client::Call;
use crate::remote::limits::MAX_PAGE_ENTRIES;
use crate::remote::query::Query;

const VERSIONS: DocumentKind =
    DocumentKind { name: "a listing of versions", roots: &["ListVersionsResult", "ListBucketResult"] };

type Entry = ListEntry<ListedVersion>;

impl S3Store {
    /// Lists one page. It may have fewer entries than requested even if another page follows. The objects of a service
    /// without versions are listed as their `null` versions.
    pub(super) async fn versions_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        if request.limit == 0 {
            self.find_bucket(context, bucket).await?;
            return Ok(VersionsPage { entries: Vec::new(), next: None });
        }
        let has_long_delimiter = request.delimiter.as_ref().is_some_and(|delimiter| delimiter.len() > 1);
        let page = if has_long_delimiter && self.is_ceph(context).await? {
            self.list_versions_rolled_up(context, bucket, request).await
        } else {
            self.list_versions_after(context, bucket, request).await
        };
        match page {
            Err(e) if e.reason() == Reason::Unsupported => {
                let objects = self.list_page(context, bucket, &request.as_list_request()).await?;
                null_versions(objects, request)
            }
            page => page,
        }
    }

    /// Lists one page without the entries up to the request's position, which some services repeat.
    async fn list_versions_after(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        let mut fetched = request.clone();
        loop {
            let mut page = self.fetch_versions_page(context, bucket, &fetched).await?;
            if page.next.is_some() && page.next == fetched.after {
                let after = fetched.after.map(|after| after.key).unwrap_or_default();
                let why = format!("the store's listing of versions makes no progress after {after:?}");
                return Err(Error::new(Reason::Io, why));
            }
            for after in request.after.iter().chain(&fetched.after) {
                let is_before = |entry: &Entry| matches!(entry, ListEntry::Key(key, _) if *key < after.key);
                if page.entries.iter().any(is_before) {
                    let why = format!(
                        "the store's listing of versions does not continue after {:?}: it has another order, or ignores \
                         key-marker",
                        after.key
                    );
                    return Err(Error::new(Reason::Io, why));
                }
                page.entries.retain(|entry| is_after(entry, after));
            }
            if !page.entries.is_empty() || page.next.is_none() {
                return Ok(page);
            }
            fetched.after = page.next;
        }
    }

    /// Lists one page, with common prefixes computed here, for the reason of
    /// [`list_rolled_up`](Self::list_rolled_up).
    async fn list_versions_rolled_up(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        let mut request = request.clone();
        let mut flat = ListVersions { delimiter: None, limit: MAX_PAGE_ENTRIES, ..request.clone() };
        let mut entries = Vec::new();
        loop {
            let page = self.list_versions_after(context, bucket, &flat).await?;
            let rolled = page_versions(&mut ListedPage::new(page.entries), &request)?;
            request.limit -= rolled.entries.len();
            request.after = rolled.entries.last().map(position).or(request.after);
            entries.extend(rolled.entries);
            let is_full = request.limit == 0;
            if is_full || page.next.is_none() {
                let has_more = rolled.next.is_some() || (is_full && page.next.is_some());
                return Ok(VersionsPage { entries, next: request.after.filter(|_| has_more) });
            }
            flat.after = page.next;
        }
    }

    async fn fetch_versions_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        let not_empty = |text: &&str| !text.is_empty();
        let after = request.after.as_ref().filter(|after| !after.key.is_empty());
        let version = after.and_then(|after| after.version.as_ref());
        let mut call = Call::bucket(Method::GET, bucket);
        call.query = Query::default()
            .flag("versions")
            .with("encoding-type", "url")
            .with("max-keys", &request.limit.min(MAX_PAGE_ENTRIES).to_string())
            .with_optional("prefix", Some(request.prefix.as_str()).filter(not_empty))
            .with_optional("delimiter", request.delimiter.as_deref().filter(not_empty))
            .with_optional("key-marker", after.map(|after| after.key.as_str()))
            .with_optional("version-id-marker", version.map(VersionId::as_str));
        call.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let document = self.send(context, &call).await?.collect_document(MAX_PAGE_BYTES).await?;
        let page = parse_page(&document)?;
        // A service that lists versions knows the parameter `versionId`.
        self.names_versions.store(true, Ordering::Relaxed);
        Ok(page)
    }
}

/// A version or a delete marker that is being parsed.
#[derive(Default)]
struct PartialVersion {
    entry: PartialEntry,
    version: Option<VersionId>,
    is_latest: bool,
}

impl PartialVersion {
    fn read(&mut self, name: &str, text: &str) {
        match name {
            "VersionId" => self.version = VersionId::parse(text).ok(),
            "IsLatest" => self.is_latest = text == "true",
            name => self.entry.read(name, text),
        }
    }

    fn into_entry(self, is_delete_marker: bool) -> Option<Entry> {
        let mut entry = self.entry;
        if is_delete_marker {
            entry.size = Some(0);
        }
        let (key, object) = entry.into_object()?;
        let listed = ListedVersion {
            version: self.version?,
            is_latest: self.is_latest,
            modified: object.modified,
            object: (!is_delete_marker).then_some(object),
        };
        Some(ListEntry::Key(key, listed))
    }
}

/// Parses a page. Fails with [`Unsupported`](Reason::Unsupported) if it lists objects: the service has no versions.
fn parse_page(document: &[u8]) -> Result<VersionsPage> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut partial = PartialVersion::default();
    let (mut is_encoded, mut is_truncated, mut is_object_listing) = (false, false, false);
    let (mut next_key, mut next_version) = (String::new(), None);
    let mut is_incomplete = false;
    VERSIONS.for_each_element(document, |path, text| match path {
        ["ListBucketResult"] => is_object_listing = true,
        [_, "EncodingType"] => is_encoded = text == "url",
        [_, "IsTruncated"] => is_truncated = text == "true",
        [_, "NextKeyMarker"] => next_key = text.to_owned(),
        [_, "NextVersionIdMarker"] => next_version = VersionId::parse(text).ok(),
        [_, "Version" | "DeleteMarker", name] => partial.read(name, text),
        [_, kind @ ("Version" | "DeleteMarker")] => {
            match std::mem::take(&mut partial).into_entry(*kind == "DeleteMarker") {
                Some(entry) => entries.push(entry),
                None => is_incomplete = true,
            }
        }
        [_, "CommonPrefixes", "Prefix"] => entries.push(ListEntry::CommonPrefix(text.to_owned())),
        _ => {}
    })?;
    if is_object_listing {
        return Err(Error::unsupported("list versions: the service has listed the objects"));
    }
    if is_incomplete {
        let why =
            "an entry of the store's listing has no key, no VersionId, no valid Size or no LastModified";
        return Err(Error::new(Reason::Io, why));
    }
    if is_encoded {
        for entry in &mut entries {
            let (ListEntry::Key(name, _) | ListEntry::CommonPrefix(name)) = entry;
            *name = decode_key(name)?;
        }
    }
    if is_truncated && !is_ordered(&entries) {
        let why = "the store lists versions out of order: the listing cannot be continued";
        return Err(Error::new(Reason::Io, why));
    }
    // A stable sort: the versions of a key keep their order.
    entries.sort_by(|a, b| a.name().cmp(b.name()));
    let Some(last) = entries.last().filter(|_| is_truncated) else {
        if is_truncated {
            let why = "the store sent a page of a listing that is truncated but empty";
            return Err(Error::new(Reason::Io, why));
        }
        return Ok(VersionsPage { entries, next: None });
    };
    // radosgw declares an encoding, but does not encode this key.
    let is_last = next_key.is_empty() || next_key == last.name();
    let key = if is_encoded && !is_last { decode_key(&next_key)? } else { next_key };
    let next = if is_last || key == last.name() {
        VersionPosition { version: next_version.or(position(last).version), ..position(last) }
    } else {
        VersionPosition { key, version: next_version }
    };
    Ok(VersionsPage { entries, next: Some(next) })
}

/// Returns true if the versions, the delete markers and the prefixes, each separately, are in the order of their names.
fn is_ordered(entries: &[Entry]) -> bool {
    let kind = |entry: &Entry| match entry {
        ListEntry::Key(_, listed) => (true, listed.object.is_some()),
        ListEntry::CommonPrefix(_) => (false, false),
    };
    let is_sorted = |wanted| entries.iter().filter(|e| kind(e) == wanted).map(ListEntry::name).is_sorted();
    is_sorted((true, true)) && is_sorted((true, false)) && is_sorted((false, false))
}

/// Returns true if an entry of a page belongs after the position at which the page was requested. Versions of the
/// position's own key do if it names one of them.
fn is_after(entry: &Entry, after: &VersionPosition) -> bool {
    match entry {
        ListEntry::Key(key, listed) if *key == after.key => {
            after.version.as_ref().is_some_and(|version| *version != listed.version)
        }
        entry => *entry.name() > *after.key,
    }
}

/// The position of an entry.
fn position(entry: &Entry) -> VersionPosition {
    match entry {
        ListEntry::Key(key, listed) => {
            VersionPosition { key: key.clone(), version: Some(listed.version.clone()) }
        }
        ListEntry::CommonPrefix(prefix) => VersionPosition { key: prefix.clone(), version: None },
    }
}

/// A cursor over the versions of a page.
struct ListedPage {
    versions: Vec<(String, ListedVersion)>,
    index: usize,
}

impl ListedPage {
    fn new(entries: Vec<Entry>) -> Self {
        let version = |entry| match entry {
            ListEntry::Key(key, listed) => Some((key, listed)),
            ListEntry::CommonPrefix(_) => None,
        };
        Self { versions: entries.into_iter().filter_map(version).collect(), index: 0 }
    }
}

impl VersionCursor for ListedPage {
    fn seek(&mut self, bytes: &[u8]) -> Result<()> {
        self.index = self.versions.partition_point(|(key, _)| key.as_bytes() < bytes);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(String, ListedVersion)>> {
        let entry = self.versions.get(self.index).cloned();
        self.index += usize::from(entry.is_some());
        Ok(entry)
    }
}

#[cfg(test)]
mod tests;
