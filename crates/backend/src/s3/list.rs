//! ListObjectsV2.

use http::header::ACCEPT_ENCODING;
use http::{HeaderValue, Method};
use percent_encoding::percent_decode_str;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::{self, ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary};
use tradewind_core::store::{Feature, ObjectStore as _};
use tradewind_core::{Algorithm, BucketName, ChecksumScope, Context, ETag, Timestamp};

use super::S3Store;
use super::headers::storage_class;
use super::xml::DocumentKind;
use crate::remote::client::Call;
use crate::remote::decimal::parse_size;
use crate::remote::header_fields::generation;
use crate::remote::limits::MAX_PAGE_ENTRIES;
use crate::remote::query::Query;
use crate::remote::sorted_entries::SortedEntries;
use crate::remote::time::parse_time;

/// Longest page of a listing: 1000 keys of 1000 bytes, each byte percent-encoded in three characters.
pub(super) const MAX_PAGE_BYTES: usize = 8 << 20;
/// Longest token of a service. The tokens of this program's server contain it.
const MAX_TOKEN_BYTES: usize = 16 << 10;
const LISTING: DocumentKind = DocumentKind { name: "a listing", roots: &["ListBucketResult"] };

/// An object of a listing that is being parsed.
#[derive(Default)]
pub(super) struct PartialEntry {
    key: String,
    pub size: Option<u64>,
    etag: String,
    modified: Option<Timestamp>,
    algorithm: Option<Algorithm>,
    scope: Option<ChecksumScope>,
    storage_class: Option<String>,
}

impl S3Store {
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
        let has_long_delimiter = request.delimiter.as_ref().is_some_and(|delimiter| delimiter.len() > 1);
        if has_long_delimiter && self.is_ceph(context).await? {
            return self.list_rolled_up(context, bucket, request).await;
        }
        if self.capabilities().supports(Feature::ByteOrder) {
            return self.next_page(context, bucket, request).await;
        }
        if request.after.as_ref().is_some_and(|after| after.token.is_none()) {
            if let Some(known) = self.listed_pages.find(bucket, request) {
                match self.list_from_known_page(context, bucket, request, known).await {
                    // The service accepts its tokens for a limited time.
                    Err(error) if error.kind() == ErrorKind::Invalid => {
                        self.listed_pages.forget(bucket, request)
                    }
                    page => return page,
                }
            }
            if self.listed_pages.is_unordered(bucket) {
                return Err(Error::unsupported("list in byte order, as this listing requires"));
            }
        }
        let page = self.next_page(context, bucket, request).await?;
        self.listed_pages.record(bucket, request, &page);
        Ok(page)
    }

    /// Lists one page after a name, from the page of the service that has the name.
    ///
    /// # Errors
    /// `Unsupported` if a page is not in byte order.
    async fn list_from_known_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
        mut known: ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        let name = request.after_name().unwrap_or_default();
        loop {
            let mut page = self.next_page(context, bucket, &known).await?;
            self.listed_pages.record(bucket, &known, &page);
            page.check_order(known.after.as_ref())?;
            page.entries.retain(|entry| entry.name() > name);
            if page.entries.len() > request.limit {
                page.entries.truncate(request.limit);
                page.next = page.entries.last().map(|entry| ListPosition::after(entry.name()));
            }
            if page.next.is_none() || !page.entries.is_empty() {
                return Ok(page);
            }
            known.after = page.next;
        }
    }

    /// Lists the next page that is not empty.
    async fn next_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        let mut fetched = request.clone();
        let mut has_repeated = false;
        loop {
            let mut page = self.fetch_page(context, bucket, &fetched).await?;
            let is_repeated = match &fetched.after {
                Some(after) => drop_repeated(&mut page.entries, after)?,
                None => false,
            };
            let Some(next) = &page.next else { return Ok(page) };
            let makes_progress = fetched.after.as_ref().is_none_or(|after| makes_progress(after, next));
            if !page.entries.is_empty() && makes_progress {
                return Ok(page);
            }
            if !makes_progress || (is_repeated && has_repeated) {
                let why = format!("the store's listing makes no progress after {:?}", next.name);
                return Err(Error::new(Reason::Io, why));
            }
            has_repeated = is_repeated;
            fetched.after = page.next;
        }
    }

    /// Lists one page, with common prefixes computed here. radosgw matches a delimiter of several characters also where
    /// it overlaps the prefix, and skips keys under what it takes for a common prefix.
    async fn list_rolled_up(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        let mut request = request.clone();
        let mut flat = ListRequest { delimiter: None, limit: MAX_PAGE_ENTRIES, ..request.clone() };
        let mut entries = Vec::new();
        loop {
            let page = self.fetch_page(context, bucket, &flat).await?;
            page.check_order(flat.after.as_ref())?;
            let keys = page.entries.into_iter().filter_map(|entry| match entry {
                ListEntry::Key(key, summary) => Some((key, summary)),
                ListEntry::CommonPrefix(_) => None,
            });
            let rolled = listing::page(&mut SortedEntries::new(keys), &request)?;
            request.limit -= rolled.entries.len();
            entries.extend(rolled.entries);
            let last = entries.last().map(|entry: &ListEntry<_>| ListPosition::after(entry.name()));
            request.after = last.or(request.after);
            let is_full = request.limit == 0;
            if is_full || page.next.is_none() {
                let next =
                    request.after.filter(|_| rolled.next.is_some() || (is_full && page.next.is_some()));
                return Ok(ListPage { entries, next });
            }
            flat.after = page.next;
        }
    }

    async fn fetch_page(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        let token = request.after.as_ref().and_then(|after| after.token.as_deref());
        let name = request.after_name().unwrap_or_default();
        let start_after = Some(name).filter(|name| !name.is_empty() && token.is_none());
        let mut call = Call::bucket(Method::GET, bucket);
        call.query = Query::default()
            .with("list-type", "2")
            // Keys may contain characters that XML cannot represent.
            .with("encoding-type", "url")
            .with("max-keys", &request.limit.min(MAX_PAGE_ENTRIES).to_string())
            .with_optional("prefix", Some(request.prefix.as_str()).filter(|prefix| !prefix.is_empty()))
            .with_optional(
                "delimiter",
                request.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty()),
            )
            .with_optional("start-after", start_after)
            .with_optional("continuation-token", token);
        // gzip reduces the page to about 10 %, which saves two to four round trips on a new connection in slow start.
        call.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let document = self.send(context, &call).await?.collect_document(MAX_PAGE_BYTES).await?;
        parse_page(&document, name)
    }
}

/// Removes the names that a service lists again: the name at which the previous page ended, and the common prefix that the
/// name of a position lies in. Returns true if there was such a key.
///
/// # Errors
/// `Unsupported` if the page has names before a position that is a name only: the service ignores it, or has another order.
/// `Io` if a page after a token begins before the end of the previous page: the service ignores the token.
fn drop_repeated(entries: &mut Vec<ListEntry<ObjectSummary>>, after: &ListPosition) -> Result<bool> {
    let ListPosition { name: after, token } = after;
    let is_repeated = |entry: &ListEntry<_>| match entry {
        ListEntry::Key(key, _) => key == after && token.is_some(),
        ListEntry::CommonPrefix(prefix) => after.starts_with(prefix),
    };
    let first = entries.iter().position(is_repeated);
    let is_repeated_key = first.is_some_and(|first| matches!(entries[first], ListEntry::Key(..)));
    if is_repeated_key && first != Some(0) {
        let why =
            format!("the store's listing makes no progress: a page repeats {after:?} of the previous page");
        return Err(Error::new(Reason::Io, why));
    }
    entries.retain(|entry| !is_repeated(entry));
    if token.is_none() && entries.iter().any(|entry| entry.name() <= after.as_str()) {
        let why = format!(
            "the store's listing does not continue after {after:?}: it has another order, or ignores start-after"
        );
        return Err(Error::new(Reason::Unsupported, why));
    }
    Ok(is_repeated_key)
}

/// Returns true unless the next page begins where this page began.
fn makes_progress(after: &ListPosition, next: &ListPosition) -> bool {
    match &next.token {
        Some(_) => next.token != after.token,
        None => next.name != after.name,
    }
}

/// Parses the page after a name, which is empty for the first page. The entries are in byte order, unless the service lists
/// in another order.
pub(super) fn parse_page(document: &[u8], after: &str) -> Result<ListPage<ObjectSummary>> {
    let (mut entries, mut token) = (Vec::new(), None);
    let (mut is_encoded, mut is_truncated) = (false, false);
    let mut entry = PartialEntry::default();
    let mut failure = None;
    LISTING.for_each_element(document, |path, text| match path {
        [_, "EncodingType"] => is_encoded = text == "url",
        [_, "IsTruncated"] => is_truncated = text == "true",
        [_, "NextContinuationToken"] => token = Some(text.to_owned()),
        [_, "Contents", name] => entry.read(name, text),
        [_, "Contents"] => match std::mem::take(&mut entry).into_object() {
            Some((key, object)) => entries.push(ListEntry::Key(key, object)),
            None => {
                failure = Some("an entry of the store's listing has no key, no valid Size or no LastModified")
            }
        },
        [_, "CommonPrefixes", "Prefix"] => entries.push(ListEntry::CommonPrefix(text.to_owned())),
        _ => {}
    })?;
    if let Some(failure) = failure {
        return Err(Error::new(Reason::Io, failure));
    }
    if is_encoded {
        entries.iter_mut().try_for_each(decode_entry)?;
    }
    let is_ordered = is_ordered(&entries);
    if is_ordered {
        // S3 lists keys first, then common prefixes; a page of the port has both in one order.
        entries.sort_by(|a, b| a.name().cmp(b.name()));
    }
    let token = token.filter(|token| !token.is_empty());
    if is_truncated && token.is_none() && (entries.is_empty() || !is_ordered) {
        let what = if entries.is_empty() { "is empty" } else { "lists keys out of order" };
        let why = format!("a page of the store's listing {what}, and has no token to continue after it");
        return Err(Error::new(Reason::Io, why));
    }
    if token.as_ref().is_some_and(|token| token.len() > MAX_TOKEN_BYTES) {
        return Err(Error::new(Reason::Io, "the continuation token of the store's listing is too long"));
    }
    let name = entries.iter().map(ListEntry::name).max().unwrap_or_default().max(after).to_owned();
    let next = is_truncated.then_some(ListPosition { name, token });
    Ok(ListPage { entries, next })
}

/// Returns true if the keys, and separately the prefixes, are in the order of their bytes.
fn is_ordered(entries: &[ListEntry<ObjectSummary>]) -> bool {
    let is_key = |entry: &&ListEntry<_>| matches!(entry, ListEntry::Key(..));
    let keys = entries.iter().filter(is_key).map(ListEntry::name);
    let prefixes = entries.iter().filter(|entry| !is_key(entry)).map(ListEntry::name);
    keys.is_sorted() && prefixes.is_sorted()
}

impl PartialEntry {
    /// Reads a child element of the object.
    pub fn read(&mut self, name: &str, text: &str) {
        match name {
            "Key" => self.key = text.to_owned(),
            "Size" => self.size = parse_size(text),
            "ETag" => self.etag = text.to_owned(),
            "LastModified" => self.modified = parse_time(text),
            "ChecksumAlgorithm" => self.algorithm = text.parse().ok(),
            "ChecksumType" => self.scope = text.parse().ok(),
            "StorageClass" => self.storage_class = storage_class(text),
            _ => {}
        }
    }

    /// The key and the object; `None` without a key, a valid size or a modification time.
    pub fn into_object(self) -> Option<(String, ObjectSummary)> {
        // Truncated to seconds, like `Last-Modified` of the object's head.
        let modified = Timestamp::from_millis(self.modified?.seconds() * 1000);
        if self.key.is_empty() {
            return None;
        }
        let etag = ETag::from_text(&self.etag);
        let generation = generation(modified, etag.as_str());
        let checksum = self.algorithm.map(|a| (a, self.scope.unwrap_or(ChecksumScope::FullObject)));
        let storage_class = self.storage_class;
        let size = self.size?;
        let object = ObjectSummary { size, etag, modified, generation, checksum, storage_class };
        Some((self.key, object))
    }
}

fn decode_entry(entry: &mut ListEntry<ObjectSummary>) -> Result<()> {
    let (ListEntry::Key(name, _) | ListEntry::CommonPrefix(name)) = entry;
    *name = decode_key(name)?;
    Ok(())
}

/// Decodes a key of a response with `encoding-type=url`: percent-encoding as in a form, with a plus for a space.
pub(super) fn decode_key(text: &str) -> Result<String> {
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8().map_err(|e| {
        Error::with_source(Reason::Io, format!("the store lists a key that is not UTF-8: {text:?}"), e)
    })?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_page_merges_keys_and_prefixes_in_order() {
        let page = parse_page(
            b"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
            <Contents><Key>a+b%2Fc%26</Key><Size>5</Size><ETag>&quot;x-2&quot;</ETag>\
            <LastModified>2026-01-02T03:04:05.678Z</LastModified><ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm>\
            <StorageClass>STANDARD</StorageClass></Contents>\
            <Contents><Key>z</Key><Size>1</Size><ETag>y</ETag><LastModified>2026-01-02T03:04:05Z</LastModified>\
            <StorageClass>GLACIER_IR</StorageClass></Contents>\
            <CommonPrefixes><Prefix>m/</Prefix></CommonPrefixes></ListBucketResult>",
            "",
        )
        .unwrap();
        let names: Vec<&str> = page.entries.iter().map(ListEntry::name).collect();
        assert_eq!(names, ["a b/c&", "m/", "z"]);
        assert_eq!(page.next, Some(ListPosition::after("z")));
        let ListEntry::Key(_, first) = &page.entries[0] else { panic!("the first entry is not a key") };
        assert_eq!((first.size, first.etag.as_str(), first.modified.millis()), (5, "x-2", 1_767_323_045_000));
        assert_eq!(first.checksum, Some((Algorithm::Crc64Nvme, ChecksumScope::FullObject)));
        let ListEntry::Key(_, last) = &page.entries[2] else { panic!("the last entry is not a key") };
        assert_eq!((&first.storage_class, last.storage_class.as_deref()), (&None, Some("GLACIER_IR")));
    }

    #[test]
    fn page_that_is_incomplete_or_cannot_be_continued_is_rejected() {
        for bad in [
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
            <Contents><Key>b</Key><LastModified>2026-01-02T03:04:05Z</LastModified></Contents>\
            <Contents><Key>a</Key><LastModified>2026-01-02T03:04:05Z</LastModified></Contents></ListBucketResult>",
            "<ListBucketResult>",
            "<Welcome></Welcome>",
            "",
        ] {
            assert_eq!(parse_page(bad.as_bytes(), "").unwrap_err().reason(), Reason::Io, "{bad}");
        }
    }

    const DATE: &str = "<Size>1</Size><ETag>x</ETag><LastModified>2026-01-02T03:04:05Z</LastModified>";

    #[test]
    fn page_in_another_order_is_continued_by_its_token() {
        let page = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;1</NextContinuationToken>\
            <Contents><Key>b</Key>{DATE}</Contents><Contents><Key>a</Key>{DATE}</Contents></ListBucketResult>"
        );
        let page = parse_page(page.as_bytes(), "c").unwrap();
        let names: Vec<&str> = page.entries.iter().map(ListEntry::name).collect();
        assert_eq!(names, ["b", "a"], "the order of the service");
        let next = ListPosition { name: "c".to_owned(), token: Some("t&1".to_owned()) };
        assert_eq!(page.next, Some(next));
        assert_eq!(page.check_order(None).unwrap_err().reason(), Reason::Unsupported);
    }

    #[test]
    fn names_that_a_service_repeats_are_dropped() {
        let key = |name: &str| {
            let page =
                format!("<ListBucketResult><Contents><Key>{name}</Key>{DATE}</Contents></ListBucketResult>");
            parse_page(page.as_bytes(), "").unwrap().entries.remove(0)
        };
        let prefix = |name: &str| ListEntry::CommonPrefix(name.to_owned());
        let rest = |mut entries: Vec<ListEntry<ObjectSummary>>, name: &str, token: Option<&str>| {
            let after = ListPosition { name: name.to_owned(), token: token.map(str::to_owned) };
            drop_repeated(&mut entries, &after)?;
            Ok::<_, Error>(entries.iter().map(|entry| entry.name().to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(rest(vec![prefix("a/"), key("b")], "a/x", None).unwrap(), ["b"]);
        assert_eq!(rest(vec![key("b"), prefix("c/")], "b", Some("t")).unwrap(), ["c/"]);
        assert_eq!(rest(vec![key("z"), key("a")], "k", Some("t")).unwrap(), ["z", "a"], "its own order");
        let ignored = rest(vec![key("a"), key("b")], "b", Some("t")).unwrap_err();
        assert_eq!(ignored.reason(), Reason::Io, "the service ignores the token");
        for unordered in [vec![key("b"), key("c")], vec![key("c"), key("a")], vec![key("c"), prefix("a/")]] {
            assert_eq!(rest(unordered, "b", None).unwrap_err().reason(), Reason::Unsupported);
        }
    }

    #[test]
    fn a_page_at_the_position_of_the_page_before_makes_no_progress() {
        let at = |name: &str, token: Option<&str>| ListPosition {
            name: name.to_owned(),
            token: token.map(str::to_owned),
        };
        assert!(makes_progress(&at("b", Some("1")), &at("b", Some("2"))));
        assert!(makes_progress(&at("b", None), &at("c", None)));
        assert!(makes_progress(&at("b", None), &at("b", Some("1"))));
        assert!(!makes_progress(&at("b", Some("1")), &at("c", Some("1"))));
        assert!(!makes_progress(&at("b", None), &at("b", None)));
    }
}
