//! Answers without XML; the headers of a read, made once here for GET, HEAD and the fast path; and how times
//! and entity tags are written, so that headers and XML agree on them.

use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use tradewind_core::clock::Timestamp;
use tradewind_core::object::ETag;
use tradewind_core::{Body, ObjectInfo, Span};

use super::metadata;
use crate::body::ResponseBody;

/// The answer of an operation that answers no XML.
#[derive(Debug)]
pub(super) struct Plain {
    /// The status.
    pub(super) status: StatusCode,
    /// All of its own headers.
    pub(super) headers: HeaderMap,
    /// An object's bytes.
    pub(super) body: Option<Body>,
}

impl Plain {
    /// Without a body.
    pub(super) const fn new(status: StatusCode, headers: HeaderMap) -> Self {
        Self { status, headers, body: None }
    }

    /// As HTTP has it.
    pub(super) fn into_response(self) -> Response<ResponseBody> {
        let mut response = Response::new(self.body.map_or_else(ResponseBody::empty, ResponseBody::from));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// Everything a GET or a HEAD says of an object, but checksums (asked for by a header) and parts.
/// `is_partial` adds `Content-Range`.
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
    headers.insert(header::ETAG, quoted(&info.etag));
    headers.insert(header::LAST_MODIFIED, http_date(info.modified));
    metadata::add_headers(&mut headers, &info.metadata);
    headers
}

/// An entity tag in its quotes.
pub(super) fn quoted(etag: &ETag) -> HeaderValue {
    HeaderValue::try_from(format!("\"{etag}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

/// A time as HTTP writes it.
pub(super) fn http_date(time: Timestamp) -> HeaderValue {
    HeaderValue::try_from(tradewind_wire::http_date::http_date(time))
        .unwrap_or(HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

/// A time as XML has it: to the second, and within what HTTP can say, as `Last-Modified` is, so that both agree.
pub(super) fn xml_time(time: Timestamp) -> s3s::dto::Timestamp {
    Timestamp::from_millis(time.within_calendar().seconds() * 1000).to_system_time().into()
}

/// An entity tag as XML has it.
pub(super) fn xml_tag(etag: &ETag) -> s3s::dto::ETag {
    s3s::dto::ETag::Strong(etag.as_str().to_owned())
}
