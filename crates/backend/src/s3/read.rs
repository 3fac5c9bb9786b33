//! HeadObject, GetObject and GetObjectAttributes.

use std::sync::Arc;

use http::header::{ACCEPT_ENCODING, ETAG, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::{PartInfo, PartNumber};
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::{Address, Body, ByteRange, ChecksumScope, Context, ETag, ObjectInfo, Span};

use super::S3Store;
use super::etag_checks::{ETagJudge, etag_md5};
use super::headers::{self, ConditionTarget};
use super::list::{MAX_PAGE_BYTES, parse_page};
use super::partial_part::{PartialPart, invalid_part_error};
use super::substitute_proofs::SubstituteProof;
use super::versions::version_query;
use super::xml::DocumentKind;
use crate::remote::client::Call;
use crate::remote::decimal::parse_count;
use crate::remote::header_fields;
use crate::remote::limits::MAX_PAGE_ENTRIES;
use crate::remote::query::Query;
use crate::remote::response::{ExpectedDigest, Md5Judge as _, StoreResponse, check_empty};

/// Number of keys listed to find one of them: it is the first in the order of bytes.
const MAX_LISTED_KEYS: &str = "10";
/// Maximum size of a page of parts, as XML.
const MAX_PARTS_PAGE_BYTES: usize = 1 << 20;
/// The root that Amazon S3 sends, and the one in its documentation.
const ATTRIBUTES: DocumentKind = DocumentKind {
    name: "attributes of an object",
    roots: &["GetObjectAttributesResponse", "GetObjectAttributesOutput"],
};
const MD5_OF_EMPTY: [u8; 16] = 0xd41d_8cd9_8f00_b204_e980_0998_ecf8_427e_u128.to_be_bytes();

/// The proof of a body without a checksum.
enum ExpectedProof {
    /// Its MD5 must be this one.
    Md5([u8; 16]),
    /// Its length alone.
    Length,
    /// It was compared already, and has been counted.
    Accepted,
}

impl S3Store {
    /// HeadObject.
    pub(super) async fn read_head(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
    ) -> Result<GetResponse<()>> {
        let response = match self.send_read(context, address, request, Method::HEAD).await {
            // A response to HEAD has no body that says whether the bucket, the key or the version is missing.
            Err(e) if is_missing(&e) && e.delete_marker().is_none() => {
                self.send(context, &Call::bucket(Method::HEAD, &address.bucket)).await?;
                return Err(e);
            }
            sent => sent?,
        };
        let length = match response.has_content_length() {
            true => response.require_content_length()?,
            // Boxed, because it is rarely needed.
            false => Box::pin(self.length_without_header(context, address, &response)).await?,
        };
        let (info, span) = self.describe(context, address, request, &response, length).await?;
        if let Select::Range(range) = request.select {
            range.resolve(info.size)?;
        }
        let observation = response.observation.clone();
        // Reads the end of the empty body, so that the connection can be reused.
        response.collect(0).await?;
        Ok(GetResponse { info, span, body: (), observation })
    }

    /// GetObject.
    pub(super) async fn read_object(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
    ) -> Result<GetResponse<Body>> {
        let mut response = self.send_read(context, address, request, Method::GET).await?;
        let is_declared = response.has_content_length();
        let length = if is_declared {
            response.require_content_length()?
        } else {
            // Boxed, because it is rarely needed.
            let found = Box::pin(self.find_length(context, address, request, response)).await?;
            response = found.response;
            found.length
        };
        if length == 0 && !response.has_content_length() {
            response.read_end().await?;
        }
        let (info, span) = self.describe(context, address, request, &response, length).await?;
        if length != span.length {
            return Err(Error::new(
                Reason::Io,
                format!("the store sent {length} bytes instead of the {} requested", span.length),
            ));
        }
        let is_whole = span == Span::whole(info.size) && info.scope == ChecksumScope::FullObject;
        let expected = match request.select {
            Select::Part(_) if info.parts.is_some() => headers::part_checksum(&response.head.headers)?,
            _ => info.checksums.first().copied().filter(|_| is_whole),
        };
        let mut expected = expected.map(ExpectedDigest::Checksum);
        if expected.is_none() && response.omitted_checksums.is_some() {
            let is_all = request.select == Select::Whole && span == Span::whole(info.size);
            let proof = match is_all {
                true => self.expect_etag(context, address, &mut response, length).await?,
                false => ExpectedProof::Length,
            };
            match proof {
                ExpectedProof::Md5(md5) => expected = Some(ExpectedDigest::Md5(md5)),
                ExpectedProof::Length => self.record_proof(SubstituteProof::Length),
                ExpectedProof::Accepted => {}
            }
        }
        let observation = response.observation.clone();
        let body = response.into_body(context.clone(), length, expected)?;
        if length == 0 && expected.is_none() && is_declared {
            self.confirm_empty(context, address, request, &info).await?;
        }
        Ok(GetResponse { info, span, body, observation })
    }

    /// The proof of a whole object of `size` bytes without a checksum, according to its ETag. Counts it, except
    /// [`Length`](ExpectedProof::Length); for a body with bytes, this happens at its end.
    ///
    /// # Errors
    /// [`CorruptData`](Reason::CorruptData) if an empty object has the ETag of another one.
    async fn expect_etag(
        &self,
        context: &Context,
        address: &Address,
        response: &mut StoreResponse,
        size: u64,
    ) -> Result<ExpectedProof> {
        let headers = &response.head.headers;
        let (Some(expected), Some(etag), Some(store)) =
            (etag_md5(headers), headers.get(ETAG).cloned(), self.this.upgrade())
        else {
            return Ok(ExpectedProof::Length);
        };
        let (context, address) = (context.clone(), address.clone());
        let judge = ETagJudge { store, context, address, etag, expected, size };
        if size > 0 {
            response.md5_judge = Some(Arc::new(judge));
            return Ok(ExpectedProof::Md5(expected));
        }
        // There is no end of a body that could wait for a decision.
        if expected == MD5_OF_EMPTY {
            judge.record_match();
            return Ok(ExpectedProof::Md5(expected));
        }
        // Boxed, because it is rarely needed.
        match Box::pin(judge.accepts(MD5_OF_EMPTY)).await? {
            true => Ok(ExpectedProof::Accepted),
            false => Ok(ExpectedProof::Md5(expected)),
        }
    }

    /// The GET of a whole object or version, without conditions.
    pub(super) fn whole_read_call<'a>(&self, address: &'a Address) -> Call<'a> {
        let mut call = Call::object(Method::GET, &address.bucket, address.key.as_str());
        call.query = version_query(address);
        call
    }

    /// Confirms an empty response without a checksum by requesting the object's head: a response whose body was lost
    /// looks the same. An ETag that is the MD5 of no bytes is sufficient proof.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if the object is not empty, [`InvalidRange`](Reason::InvalidRange) if it is empty and a range
    /// was requested.
    async fn confirm_empty(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        info: &ObjectInfo,
    ) -> Result<()> {
        if request.select == Select::Whole && info.etag.md5() == Some(MD5_OF_EMPTY) {
            return Ok(());
        }
        let select = match request.select {
            Select::Range(_) => Select::Whole,
            select => select,
        };
        let head = GetRequest { select, ..GetRequest::default() };
        // Boxed, because it is rarely needed.
        let actual = Box::pin(self.read_head(context, address, &head)).await?.span.length;
        let range = match request.select {
            Select::Range(range) => Some(range),
            Select::Whole | Select::Part(_) => None,
        };
        check_empty(actual, range)
    }

    /// Sends a GET or HEAD with the request's conditions and selection.
    pub(super) async fn send_read(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        method: Method,
    ) -> Result<StoreResponse> {
        if request.select == Select::Range(ByteRange::Suffix(0)) {
            // Not all services reject it: radosgw returns the whole object.
            self.evaluate_conditions(context, address, &request.conditions).await?;
            return Err(Error::new(Reason::InvalidRange, "a range of no bytes cannot be satisfied"));
        }
        let call = self.read_call(context, address, request, method).await?;
        self.send_versioned(context, address, &call).await
    }

    /// The request of a GET or HEAD with the request's conditions and selection.
    async fn read_call<'a>(
        &self,
        context: &Context,
        address: &'a Address,
        request: &GetRequest,
        method: Method,
    ) -> Result<Call<'a>> {
        let select = self.resolve_select(context, address, request).await?;
        let conditions = self.resolve_conditions(context, address, &request.conditions).await?;
        let mut call = Call::object(method, &address.bucket, address.key.as_str());
        call.query = version_query(address);
        call.headers.insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
        headers::write_conditions(&conditions, ConditionTarget::Object, &mut call.headers)?;
        match select {
            Select::Whole => {}
            Select::Range(range) => drop(call.headers.insert(RANGE, header_fields::range_value(range))),
            Select::Part(number) => call.query = call.query.with("partNumber", &number.get().to_string()),
        }
        Ok(call)
    }

    /// Finds the length of the body of a response to GET that has no `Content-Length`. A proxy may have decoded an object
    /// that is stored as gzip: then the object is requested again, as gzip.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if the object has been replaced since the GET, or if it is decoded again.
    async fn find_length(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        response: StoreResponse,
    ) -> Result<MeasuredResponse> {
        if response.head.status == StatusCode::PARTIAL_CONTENT {
            let length = range_length(&response.head.headers)?;
            return Ok(MeasuredResponse { response, length });
        }
        let mut call = self.read_call(context, address, &GetRequest::default(), Method::HEAD).await?;
        call.caller_holds_connection = true;
        let head = self.send_versioned(context, address, &call).await?;
        let is_stored_as_gzip = [&response, &head].into_iter().any(|response| {
            response.is_gzip() || response.header("x-goog-stored-content-encoding") == Some("gzip")
        });
        let mut response = response;
        if is_stored_as_gzip {
            // Closes the connection, because the body is of no use.
            drop(response);
            let mut call = self.read_call(context, address, request, Method::GET).await?;
            call.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
            response = self.send_versioned(context, address, &call).await?;
            if !response.is_gzip() {
                let why =
                    "a proxy decodes the object, which the store has as gzip, although gzip was requested";
                return Err(Error::new(Reason::Io, why));
            }
            if response.has_content_length() {
                let length = response.require_content_length()?;
                return Ok(MeasuredResponse { response, length });
            }
            if response.head.status == StatusCode::PARTIAL_CONTENT {
                let length = range_length(&response.head.headers)?;
                return Ok(MeasuredResponse { response, length });
            }
        }
        if !head.has_content_length() {
            head.drain().await?;
            let length = self.length_without_header(context, address, &response).await?;
            return Ok(MeasuredResponse { response, length });
        }
        // A weak tag does not promise the same bytes, so the tags are compared as they are.
        if head.head.headers.get(ETAG) != response.head.headers.get(ETAG) {
            return Err(replaced_error(address));
        }
        let length = head.require_content_length()?;
        head.drain().await?;
        Ok(MeasuredResponse { response, length })
    }

    /// The length of a response without `Content-Length`, according to its range or to a listing that has the same ETag.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if neither has a length.
    async fn length_without_header(
        &self,
        context: &Context,
        address: &Address,
        response: &StoreResponse,
    ) -> Result<u64> {
        if response.head.status == StatusCode::PARTIAL_CONTENT {
            return range_length(&response.head.headers);
        }
        let is_weak = response.header(ETAG.as_str()).is_some_and(|etag| etag.starts_with("W/"));
        let etag = header_fields::etag(&response.head.headers)?;
        if address.version.is_some() || is_weak {
            return response.require_content_length();
        }
        let mut call = Call::bucket(Method::GET, &address.bucket);
        call.caller_holds_connection = true;
        call.query = Query::default()
            .with("list-type", "2")
            .with("encoding-type", "url")
            .with("max-keys", MAX_LISTED_KEYS)
            .with("prefix", address.key.as_str());
        let document = self.send(context, &call).await?.collect_document(MAX_PAGE_BYTES).await?;
        let page = parse_page(&document, "")?;
        let listed = page.entries.into_iter().find_map(|entry| match entry {
            ListEntry::Key(key, object) if key == address.key.as_str() => Some(object),
            _ => None,
        });
        match listed {
            Some(object) if object.etag == etag => Ok(object.size),
            _ => Err(replaced_error(address)),
        }
    }

    /// Parses the object's description from a response, and the span that the response contains. `length` is the length of
    /// the body in bytes. Fails if the span is not the requested one.
    async fn describe(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
        response: &StoreResponse,
        length: u64,
    ) -> Result<(ObjectInfo, Span)> {
        let headers = &response.head.headers;
        let version = self.read_version(address, headers)?;
        let is_partial = response.head.status == StatusCode::PARTIAL_CONTENT;
        let (span, size) = match header_fields::content_range(headers)? {
            Some(found) if is_partial => (found.span, found.size),
            // Without a range its length would be taken for the object's.
            None if is_partial => {
                let why = "the store sent a partial response without Content-Range";
                return Err(Error::new(Reason::Io, why));
            }
            _ => (Span::whole(length), length),
        };
        let mut metadata = headers::read_metadata(headers)?;
        if headers::has_tags(headers) {
            metadata.tags = Box::pin(self.read_tags(context, address)).await?;
        }
        let (mut checksums, scope) = headers::checksums(headers)?;
        if !checksums.is_empty() {
            self.checksum_headers.record_returned_checksum();
        }
        let (etag, modified) = (header_fields::etag(headers)?, header_fields::last_modified(headers)?);
        let parts = etag.as_str().rsplit_once('-').and_then(|(_, parts)| parse_count(parts));
        let is_requested = match request.select {
            Select::Whole => span == Span::whole(size),
            // An empty object has no valid range; some services accept one nevertheless.
            Select::Range(range) => size == 0 || range.resolve(size).is_ok_and(|requested| requested == span),
            Select::Part(_) => is_partial || size == 0 || parts.is_none_or(|parts: u32| parts <= 1),
        };
        if !is_requested {
            let (select, Span { offset, length }) = (request.select, span);
            let why =
                format!("the store sent {length} bytes at {offset} of {size}, but {select:?} was requested");
            return Err(Error::new(Reason::Io, why));
        }
        if matches!(request.select, Select::Part(_)) && parts.is_some() {
            // They are the part's checksums, not the object's.
            checksums.clear();
        }
        let generation = header_fields::generation(modified, etag.as_str());
        Ok((
            ObjectInfo {
                size,
                etag,
                modified,
                generation,
                metadata,
                checksums,
                scope,
                parts,
                version,
                stored: None,
            },
            span,
        ))
    }

    /// GetObjectAttributes: numbers, sizes and checksums of the parts, and whether more follow. Amazon S3 lists parts
    /// only for objects with a composite checksum.
    pub(super) async fn list_object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        if self.is_ceph(context).await? {
            // It has no attributes, and would return the object.
            self.read_head(context, address, &GetRequest::default()).await?;
            return Ok((Vec::new(), false));
        }
        self.confirm_version(context, address).await?;
        let mut call = Call::object(Method::GET, &address.bucket, address.key.as_str());
        call.query = version_query(address).flag("attributes");
        call.headers.insert("x-amz-object-attributes", HeaderValue::from_static("ObjectParts"));
        call.headers.insert("x-amz-max-parts", limit.clamp(1, MAX_PAGE_ENTRIES).into());
        if let Some(after) = after {
            call.headers.insert("x-amz-part-number-marker", after.get().into());
        }
        let document = self.send_versioned(context, address, &call).await?;
        let document = document.collect(MAX_PARTS_PAGE_BYTES).await?;
        let (mut parts, mut is_truncated) = (Vec::new(), false);
        let (mut part, mut is_incomplete) = (PartialPart::default(), false);
        ATTRIBUTES.for_each_element(&document, |path, text| match path {
            [.., "ObjectParts", "IsTruncated"] => is_truncated = text == "true",
            [.., "ObjectParts", "Part", name] => part.read(name, text),
            [.., "ObjectParts", "Part"] => {
                // Attributes have no ETags of parts.
                let part = PartialPart { etag: Some(ETag::from_tag("")), ..std::mem::take(&mut part) };
                match part.into_info() {
                    Some(part) => parts.push(part),
                    None => is_incomplete = true,
                }
            }
            _ => {}
        })?;
        if is_incomplete {
            return Err(invalid_part_error());
        }
        if limit == 0 {
            return Ok((Vec::new(), !parts.is_empty()));
        }
        Ok((parts, is_truncated))
    }
}

/// A response to GET without `Content-Length`, or the response to its repetition, and the length of its body in bytes.
struct MeasuredResponse {
    response: StoreResponse,
    length: u64,
}

/// The length of the body of a partial response, in bytes.
fn range_length(headers: &HeaderMap) -> Result<u64> {
    header_fields::content_range(headers)?
        .map(|range| range.span.length)
        .ok_or_else(|| Error::new(Reason::Io, "the store sent a partial response without Content-Range"))
}

/// The error of a read whose length is unknown because another object was found.
fn replaced_error(address: &Address) -> Error {
    let why = "the store's response has no Content-Length, and its ETag is that of another object than";
    Error::new(Reason::Io, format!("{why} the HEAD or the listing of {}; retry", address.key))
}

/// Returns true if the object, or the version named, does not exist.
fn is_missing(error: &Error) -> bool {
    matches!(error.reason(), Reason::NoSuchKey | Reason::NoSuchVersion)
}
