//! Reads of objects and their metadata.

use bytes::Bytes;
use http::header::{ETAG, IF_NONE_MATCH, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tradewind_core::condition::ETagMatch;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::{Address, Body, ByteRange, ChecksumScope, Context, ETag, ObjectInfo, Span};

use super::part_records::part_number;
use super::stored_metadata::{StoredMetadata, large_object_etag};
use super::{SwiftStore, names};
use crate::remote::client::{Call, ResourceKind};
use crate::remote::decimal::json_size;
use crate::remote::header_fields::{self, etag_list, header_value};
use crate::remote::query::Query;
use crate::remote::response::{ExpectedDigest, StoreResponse, check_empty};

/// Longest metadata in the companion.
const MAX_METADATA_BYTES: usize = 256 << 10;
/// Longest manifest: slightly more than Swift's `max_manifest_size`.
const MAX_MANIFEST_BYTES: usize = 16 << 20;
/// Maximum number of attempts to read an object that changes meanwhile.
const MAX_ATTEMPTS: usize = 5;

/// An entry of a manifest.
struct ManifestEntry {
    /// `/container/name`.
    path: String,
    size: u64,
    /// The entry is a manifest itself.
    is_manifest: bool,
}

/// The request of a read.
struct Read {
    method: Method,
    range: Option<ByteRange>,
    caller_holds_connection: bool,
}

impl Read {
    const fn new(method: Method, range: Option<ByteRange>) -> Self {
        Self { method, range, caller_holds_connection: false }
    }
}

impl SwiftStore {
    /// Reads an object's description.
    pub(super) async fn read_head(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
    ) -> Result<GetResponse<()>> {
        let response = self.send_read(context, address, request, Read::new(Method::HEAD, None)).await?;
        let length = response.require_content_length()?;
        let (info, stored) = self.describe(context, address, &response, length).await?;
        request.conditions.check(&info.etag, info.modified)?;
        let span = match request.select {
            Select::Whole => Span::whole(info.size),
            Select::Range(range) => range.resolve(info.size)?,
            Select::Part(number) => self.part_span(context, address, &info, &stored, number).await?,
        };
        let observation = response.observation.clone();
        response.collect(0).await?;
        Ok(GetResponse { info, span, body: (), observation })
    }

    /// Reads an object's bytes.
    pub(super) async fn read_object(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
    ) -> Result<GetResponse<Body>> {
        for _ in 0..MAX_ATTEMPTS {
            let (range, of_write) = match request.select {
                Select::Whole => (None, None),
                Select::Range(range) => (Some(range), None),
                Select::Part(_) => {
                    let found = self.read_head(context, address, request).await?;
                    let Span { offset, length } = found.span;
                    let range = (length > 0)
                        .then(|| ByteRange::Inclusive { first: offset, last: offset + length - 1 });
                    (range, Some(found.info.generation))
                }
            };
            let found = self.read_range(context, address, request, range).await?;
            // The object was overwritten, so the part's span is outdated.
            if of_write.is_some_and(|write| write != found.info.generation) {
                continue;
            }
            return Ok(found);
        }
        Err(Error::new(
            Reason::Conflict,
            format!("key {:?} changes too often to be read", address.key.as_str()),
        ))
    }

    async fn read_range(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        range: Option<ByteRange>,
    ) -> Result<GetResponse<Body>> {
        let read = Read::new(Method::GET, range);
        let mut response = match self.send_read(context, address, request, read).await {
            Err(e) if e.reason() == Reason::InvalidRange => {
                // Conditions take precedence over ranges, and the error response does not describe the object.
                let head = GetRequest { conditions: request.conditions.clone(), ..GetRequest::default() };
                self.read_head(context, address, &head).await?;
                return Err(e);
            }
            sent => sent?,
        };
        // Boxed, because it is rarely needed.
        let length = match response.has_content_length() {
            true => response.require_content_length()?,
            false => Box::pin(self.find_length(context, address, &mut response)).await?,
        };
        let (info, _) = self.describe(context, address, &response, length).await?;
        request.conditions.check(&info.etag, info.modified)?;
        let span = match header_fields::content_range(&response.head.headers)? {
            Some(found) if response.head.status == StatusCode::PARTIAL_CONTENT => found.span,
            _ => Span::whole(info.size),
        };
        // An empty object has no valid range; emptiness is confirmed below.
        let requested = match range {
            Some(range) if info.size > 0 => range.resolve(info.size)?,
            _ => Span::whole(info.size),
        };
        if span != requested || length != span.length {
            return Err(Error::new(
                Reason::Io,
                format!("the store sent {span:?} in {length} bytes, but {requested:?} was requested"),
            ));
        }
        let expected = if span == Span::whole(info.size) { expected_digest(&info) } else { None };
        let observation = response.observation.clone();
        let body = response.into_body(context.clone(), span.length, expected)?;
        if span.length == 0 && (expected.is_none() || range.is_some()) {
            self.confirm_empty(context, address, range).await?;
        }
        Ok(GetResponse { info, span, body, observation })
    }

    /// Confirms an empty response without a checksum by requesting the object's head: a response whose body was lost
    /// looks the same.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if the object is not empty, [`InvalidRange`](Reason::InvalidRange) if it is empty and a range
    /// was requested.
    async fn confirm_empty(
        &self,
        context: &Context,
        address: &Address,
        range: Option<ByteRange>,
    ) -> Result<()> {
        // Boxed, because it is rarely needed.
        let head = Box::pin(self.read_head(context, address, &GetRequest::default())).await?;
        check_empty(head.info.size, range)
    }

    /// The length of the body of a response to GET without `Content-Length`, as from a proxy: the length of its range, or
    /// the one in a HEAD with the same ETag. Reads the end of an empty body.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if the object has been replaced since the GET.
    async fn find_length(
        &self,
        context: &Context,
        address: &Address,
        response: &mut StoreResponse,
    ) -> Result<u64> {
        let length = match header_fields::content_range(&response.head.headers)? {
            Some(range) if response.head.status == StatusCode::PARTIAL_CONTENT => range.span.length,
            _ => {
                let read = Read { caller_holds_connection: true, ..Read::new(Method::HEAD, None) };
                let head = self.send_read(context, address, &GetRequest::default(), read).await?;
                if head.head.headers.get(ETAG) != response.head.headers.get(ETAG) {
                    let why = "the store's response has no Content-Length, and its ETag is that of another object \
                               than the HEAD of";
                    return Err(Error::new(Reason::Io, format!("{why} {}; retry", address.key)));
                }
                let length = head.require_content_length()?;
                head.drain().await?;
                length
            }
        };
        if length == 0 {
            response.read_end().await?;
        }
        Ok(length)
    }

    /// Sends a read. Of the conditions only `If-None-Match` is sent. Swift compares its native ETag, which differs from
    /// the ETag of a large object; if it nevertheless responds "not modified", that is correct.
    async fn send_read(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        read: Read,
    ) -> Result<StoreResponse> {
        let name = names::object(address.key.as_str())?;
        let Read { method, range, caller_holds_connection } = read;
        let mut call = Call::object(method, &address.bucket, &name);
        call.caller_holds_connection = caller_holds_connection;
        if self.read_newest {
            call.headers.insert("x-newest", HeaderValue::from_static("true"));
        }
        let conditions = &request.conditions;
        if let (Some(ETagMatch::OneOf(tags)), None, None) =
            (&conditions.if_none_match, &conditions.if_match, conditions.if_unmodified_since)
        {
            call.headers.insert(IF_NONE_MATCH, header_value(&etag_list(tags))?);
        }
        if let Some(range) = range {
            call.headers.insert(RANGE, header_fields::range_value(range));
        }
        for _ in 1..MAX_ATTEMPTS {
            match self.send(context, &call).await {
                // An object server looks up the name of the file, then opens it. If the object is replaced in between,
                // and no other replica responds, an object that existed all the time is not found.
                Err(e) if e.reason() == Reason::NoSuchKey => {
                    // This also fails with the right error if the bucket is missing.
                    if !self.is_listed(context, &address.bucket, &name).await? {
                        return Err(e);
                    }
                }
                sent => return sent,
            }
        }
        self.send(context, &call).await
    }

    /// Parses the object's description from a response with a body of `length` bytes. Also reads metadata in the companion.
    async fn describe(
        &self,
        context: &Context,
        address: &Address,
        response: &StoreResponse,
        length: u64,
    ) -> Result<(ObjectInfo, StoredMetadata)> {
        let headers = &response.head.headers;
        let size = header_fields::content_range(headers)?.map_or(length, |found| found.size);
        let overflow = match StoredMetadata::companion_id(headers) {
            Some(write) => {
                let found = self.read_companion_object(context, address, &names::metadata(write), true).await;
                Some(found.map_err(|e| match e.reason() {
                    Reason::NoSuchUpload => {
                        Error::new(Reason::Io, "the object was replaced while it was read; retry")
                    }
                    _ => e,
                })?)
            }
            None => None,
        };
        let stored = StoredMetadata::decode(headers, overflow.as_deref())?;
        let etag = stored.etag.clone().map_or_else(|| etag_of(headers), Ok)?;
        let modified = header_fields::last_modified(headers)?;
        let info = ObjectInfo {
            size,
            modified,
            generation: header_fields::generation(modified, etag.as_str()),
            etag,
            metadata: stored.metadata.clone(),
            checksums: stored.checksums.clone(),
            scope: stored.scope.unwrap_or(ChecksumScope::FullObject),
            parts: stored.parts,
            version: None,
            stored: None,
        };
        Ok((info, stored))
    }

    /// Reads a small object of the companion. `holds_one`: the caller holds the connection of another response.
    pub(super) async fn read_companion_object(
        &self,
        context: &Context,
        address: &Address,
        name: &str,
        holds_one: bool,
    ) -> Result<Bytes> {
        let companion = names::companion(&address.bucket);
        let mut call = Call::in_container(Method::GET, ResourceKind::Upload, &companion, Some(name));
        call.caller_holds_connection = holds_one;
        if self.read_newest {
            call.headers.insert("x-newest", HeaderValue::from_static("true"));
        }
        self.send(context, &call).await?.collect(MAX_METADATA_BYTES).await
    }

    /// The span of a part in an object, by its part number.
    async fn part_span(
        &self,
        context: &Context,
        address: &Address,
        info: &ObjectInfo,
        stored: &StoredMetadata,
        number: PartNumber,
    ) -> Result<Span> {
        let missing = || Error::new(Reason::InvalidRange, format!("the object has no part {}", number.get()));
        if stored.parts.is_none() {
            return if number.get() == 1 { Ok(Span::whole(info.size)) } else { Err(missing()) };
        }
        let mut offset = 0;
        let mut pending =
            vec![(address.bucket.to_string(), names::object(address.key.as_str())?.into_owned())];
        // Nested manifests are read in order: the stack has the next one on top.
        while let Some((container, name)) = pending.pop() {
            let mut inner = Vec::new();
            for ManifestEntry { path, size, is_manifest } in
                self.read_manifest(context, &container, &name).await?
            {
                let (container, name) = path.trim_start_matches('/').split_once('/').ok_or_else(missing)?;
                if is_manifest {
                    inner.push((container.to_owned(), name.to_owned()));
                    continue;
                }
                if part_number(name) == Some(number) {
                    return Ok(Span { offset, length: size });
                }
                offset = u64::checked_add(offset, size).ok_or_else(missing)?;
            }
            pending.extend(inner.into_iter().rev());
        }
        Err(missing())
    }

    /// The entries of a manifest. Empty if the object has no segments.
    async fn read_manifest(
        &self,
        context: &Context,
        container: &str,
        name: &str,
    ) -> Result<Vec<ManifestEntry>> {
        let mut call = Call::in_container(Method::GET, ResourceKind::Object, container, Some(name));
        call.query = Query::default().with("multipart-manifest", "get");
        if self.read_newest {
            call.headers.insert("x-newest", HeaderValue::from_static("true"));
        }
        let response = self.send(context, &call).await?;
        // An object with only empty parts has no segments.
        if response.header("x-static-large-object").is_none() {
            return Ok(Vec::new());
        }
        let document = response.collect(MAX_MANIFEST_BYTES).await?;
        let manifest: serde_json::Value = serde_json::from_slice(&document)
            .map_err(|e| Error::with_source(Reason::Io, "the store's manifest is not JSON", e))?;
        let segment = |entry: &serde_json::Value| {
            Some(ManifestEntry {
                path: entry["name"].as_str()?.to_owned(),
                size: json_size(&entry["bytes"])?,
                is_manifest: entry["sub_slo"].as_bool().unwrap_or(false),
            })
        };
        let all: Option<Vec<_>> =
            manifest.as_array().and_then(|entries| entries.iter().map(segment).collect());
        all.ok_or_else(|| Error::new(Reason::Io, "the store's response is not a manifest"))
    }
}

/// The ETag of an object without an ETag in its metadata.
fn etag_of(headers: &HeaderMap) -> Result<ETag> {
    let is_assembled =
        headers.contains_key("x-static-large-object") || headers.contains_key("x-object-manifest");
    match headers.get(ETAG).and_then(|tag| tag.to_str().ok()) {
        Some(tag) if is_assembled => Ok(large_object_etag(tag)),
        _ => header_fields::etag(headers),
    }
}

/// The expected digest of the whole object: a checksum in its metadata, otherwise Swift's MD5, if any.
fn expected_digest(info: &ObjectInfo) -> Option<ExpectedDigest> {
    if info.scope == ChecksumScope::FullObject
        && let Some(checksum) = info.checksums.first()
    {
        return Some(ExpectedDigest::Checksum(*checksum));
    }
    info.etag.md5().map(ExpectedDigest::Md5)
}
