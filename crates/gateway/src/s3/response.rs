//! Responses without XML; the headers of a read, for GET, HEAD and the fast path; and the formats of times and entity
//! tags, so that headers and XML agree.

use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use tradewind_core::clock::Timestamp;
use tradewind_core::object::ETag;
use tradewind_core::{Body, ObjectInfo, Observation, Span};

use super::{metadata, version_id};
use crate::body::ResponseBody;

/// The response of an operation that returns no XML.
#[derive(Debug)]
pub(super) struct PlainResponse {
    /// The status.
    pub(super) status: StatusCode,
    /// All headers of the operation itself.
    pub(super) headers: HeaderMap,
    /// An object's bytes.
    pub(super) body: Option<Body>,
}

impl PlainResponse {
    /// A response without a body.
    pub(super) const fn new(status: StatusCode, headers: HeaderMap) -> Self {
        Self { status, headers, body: None }
    }

    /// Converts it into an HTTP response.
    pub(super) fn into_response(self) -> Response<ResponseBody> {
        let mut response = Response::new(self.body.map_or_else(ResponseBody::empty, ResponseBody::from));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// Adds `Cache-Status` (RFC 9211) if a cache took part in a read.
pub(crate) fn add_cache_status(headers: &mut HeaderMap, observation: &Observation) {
    let Some(status) = observation.cache else { return };
    if let Ok(value) = HeaderValue::try_from(status.to_string()) {
        headers.insert("cache-status", value);
    }
}

/// The headers of a GET or HEAD response, except checksums (sent on request), parts and the
/// retention, which depends on the time. `is_partial` adds
/// `Content-Range`.
#[must_use]
pub fn object_headers(info: &ObjectInfo, span: Span, is_partial: bool) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(16);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, span.length.into());
    if is_partial {
        let range = format!("bytes {}-{}/{}", span.offset, span.end().saturating_sub(1), info.size);
        if let Ok(range) = HeaderValue::try_from(range) {
            headers.insert(header::CONTENT_RANGE, range);
        }
    }
    headers.insert(header::ETAG, quoted_etag(&info.etag));
    headers.insert(header::LAST_MODIFIED, http_date(info.modified));
    version_id::add_header(&mut headers, info.version.as_ref());
    metadata::add_headers(&mut headers, &info.metadata);
    headers
}

/// An entity tag in quotes.
pub(super) fn quoted_etag(etag: &ETag) -> HeaderValue {
    HeaderValue::try_from(format!("\"{etag}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

/// A time in HTTP's format.
pub(super) fn http_date(time: Timestamp) -> HeaderValue {
    HeaderValue::try_from(tradewind_wire::http_date::http_date(time))
        .unwrap_or(HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

/// A time for XML: truncated to seconds and clamped to the range of HTTP dates, so that it agrees with `Last-Modified`.
pub(super) fn xml_time(time: Timestamp) -> s3s::dto::Timestamp {
    Timestamp::from_millis(time.clamp_to_calendar().seconds() * 1000).to_system_time().into()
}

/// An entity tag for XML.
pub(super) fn xml_etag(etag: &ETag) -> s3s::dto::ETag {
    s3s::dto::ETag::Strong(etag.as_str().to_owned())
}
