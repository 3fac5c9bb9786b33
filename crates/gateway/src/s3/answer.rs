//! Answers without XML, and the headers of a read: made once here for GET, HEAD and the fast path.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use tradewind_core::clock::Timestamp;
use tradewind_core::object::ETag;
use tradewind_core::{Body, ObjectInfo, Span};

use super::encoded_word;
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

/// The type of an object that was given none.
const DEFAULT_TYPE: HeaderValue = HeaderValue::from_static("binary/octet-stream");

/// Everything a GET or a HEAD says of an object, but checksums (asked for by a header) and parts.
/// `is_partial` adds `Content-Range`.
#[must_use]
pub fn object_headers(info: &ObjectInfo, span: Span, is_partial: bool) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(16);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, span.length.into());
    if is_partial {
        let range = format!("bytes {}-{}/{}", span.offset, span.end().saturating_sub(1), info.size);
        insert(&mut headers, header::CONTENT_RANGE, &range);
    }
    headers.insert(header::ETAG, quoted(&info.etag));
    headers.insert(header::LAST_MODIFIED, http_date(info.modified));
    let system = &info.metadata.headers;
    headers.insert(header::CONTENT_TYPE, DEFAULT_TYPE);
    for (name, value) in [
        (header::CONTENT_TYPE, &system.content_type),
        (header::CONTENT_ENCODING, &system.content_encoding),
        (header::CONTENT_DISPOSITION, &system.content_disposition),
        (header::CONTENT_LANGUAGE, &system.content_language),
        (header::CACHE_CONTROL, &system.cache_control),
        (header::EXPIRES, &system.expires),
        (HeaderName::from_static("x-amz-website-redirect-location"), &system.website_redirect),
        (HeaderName::from_static("x-amz-storage-class"), &system.storage_class),
    ] {
        if let Some(value) = value {
            insert(&mut headers, name, value);
        }
    }
    for (name, value) in &info.metadata.user {
        if let Ok(name) = HeaderName::try_from(format!("x-amz-meta-{name}")) {
            headers.insert(name, encoded_word::header_value(value));
        }
    }
    let tags = info.metadata.tags.pairs().len();
    if tags > 0 {
        headers.insert("x-amz-tagging-count", tags.into());
    }
    if let Some(class) = info.metadata.classes.object {
        headers.insert(super::metadata::OBJECT_CLASS, u16::from(class.value()).into());
    }
    if let Some(ranges) = info.metadata.classes.format_ranges() {
        insert(&mut headers, HeaderName::from_static(super::metadata::RANGE_CLASS), &ranges);
    }
    headers
}

/// Stored text came out of a header, so that it fits into one; text of another store that does not is
/// left out.
fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
        headers.insert(name, value);
    }
}

/// An entity tag in its quotes.
pub(super) fn quoted(etag: &ETag) -> HeaderValue {
    HeaderValue::try_from(format!("\"{etag}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

/// A time as HTTP writes it.
pub(super) fn http_date(time: Timestamp) -> HeaderValue {
    HeaderValue::try_from(httpdate::fmt_http_date(time.to_system_time()))
        .unwrap_or(HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

/// A time as XML has it: to the second, as `Last-Modified` is, so that both agree.
pub(super) fn xml_time(time: Timestamp) -> s3s::dto::Timestamp {
    Timestamp::from_millis(time.seconds().saturating_mul(1000)).to_system_time().into()
}

/// An entity tag as XML has it.
pub(super) fn xml_tag(etag: &ETag) -> s3s::dto::ETag {
    s3s::dto::ETag::Strong(etag.as_str().to_owned())
}
