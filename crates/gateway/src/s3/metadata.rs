//! Conversion between an object's metadata and headers: content headers, user metadata, tags and classes. Parsing and
//! writing are in one place, so that they use the same names.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tradewind_core::metadata::{SystemHeaders, UserMetadata};
use tradewind_core::{Classes, Error, Metadata, Reason, Retention, Tags, Timestamp};
use tradewind_wire::encoded_word;
use tradewind_wire::headers::{
    DEFAULT_TYPE, DSS_OBJECT_CLASS, DSS_RANGE_CLASS, DSS_RETENTION, DSS_RETENTION_SPAN, STORAGE_CLASS,
    SYSTEM_HEADERS, TAGGING, TAGGING_COUNT, USER_PREFIX, WEBSITE_REDIRECT,
};

use super::call::{Call, not_utf8};
use super::failure::{Failure, Result};
use super::query::form_decode;
use crate::error::Code;

/// S3's storage classes. The name is stored with the object and has no effect.
pub const STORAGE_CLASSES: &[&str] = &[
    "STANDARD",
    "REDUCED_REDUNDANCY",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "DEEP_ARCHIVE",
    "GLACIER_IR",
];

/// Reads all metadata from a request's headers.
pub(super) fn read(call: &Call) -> Result<Metadata> {
    let metadata = Metadata {
        headers: system_headers(call)?,
        user: user_metadata(call)?,
        tags: tags(call)?.unwrap_or_default(),
        classes: classes(call)?,
    };
    metadata.check()?;
    Ok(metadata)
}

fn system_headers(call: &Call) -> Result<SystemHeaders> {
    let text = |name| Ok::<_, Failure>(call.header(name)?.map(str::to_owned));
    Ok(SystemHeaders {
        content_type: text("content-type")?,
        content_encoding: content_encoding(call)?,
        content_disposition: text("content-disposition")?,
        content_language: text("content-language")?,
        cache_control: text("cache-control")?,
        expires: text("expires")?,
        website_redirect: website_redirect(call)?,
        storage_class: storage_class(call)?.flatten(),
    })
}

/// The value of `Content-Encoding` without `aws-chunked`, which is framing.
fn content_encoding(call: &Call) -> Result<Option<String>> {
    let Some(text) = call.header_list("content-encoding")? else { return Ok(None) };
    let kept: Vec<&str> = text
        .split(',')
        .map(str::trim)
        .filter(|token| !token.is_empty() && !token.eq_ignore_ascii_case("aws-chunked"))
        .collect();
    Ok(Some(kept.join(", ")).filter(|text| !text.is_empty()))
}

/// The value of `x-amz-website-redirect-location`.
pub(super) fn website_redirect(call: &Call) -> Result<Option<String>> {
    let Some(text) = call.header(WEBSITE_REDIRECT.as_str())? else { return Ok(None) };
    if !["/", "http://", "https://"].iter().any(|start| text.starts_with(start)) {
        return Err(Failure::new(
            Code::InvalidRedirectLocation,
            "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.",
        ));
    }
    Ok(Some(text.to_owned()))
}

/// The value of `x-amz-storage-class`: `None` if absent, `Some(None)` for `STANDARD`.
pub(super) fn storage_class(call: &Call) -> Result<Option<Option<String>>> {
    let Some(text) = call.header(STORAGE_CLASS.as_str())? else { return Ok(None) };
    if !STORAGE_CLASSES.contains(&text) {
        return Err(Failure::new(Code::InvalidStorageClass, "The storage class you specified is not valid"));
    }
    Ok(Some(Some(text.to_owned()).filter(|class| class != "STANDARD")))
}

/// The `x-amz-meta-*` headers, with sorted names in lower case. Repeated headers are joined, as in S3.
fn user_metadata(call: &Call) -> Result<UserMetadata> {
    let mut user = UserMetadata::new();
    for name in call.headers.keys() {
        let Some(short) = name.as_str().strip_prefix(USER_PREFIX).filter(|short| !short.is_empty()) else {
            continue;
        };
        let mut values = Vec::new();
        for value in call.headers.get_all(name) {
            let text = std::str::from_utf8(value.as_bytes()).map_err(|_| not_utf8(name.as_str(), value))?;
            values.push(text.trim());
        }
        user.push((short.to_owned(), values.join(",")));
    }
    user.sort();
    Ok(user)
}

/// The tags in `x-amz-tagging`, a query string; `None` if absent.
pub(super) fn tags(call: &Call) -> Result<Option<Tags>> {
    let Some(text) = call.header(TAGGING.as_str())? else { return Ok(None) };
    let malformed = || {
        Failure::invalid_argument(
            "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters \
             without tag name duplicates.",
            TAGGING.as_str(),
            text,
        )
    };
    let mut pairs: Vec<(String, String)> = Vec::new();
    for item in text.split('&').filter(|item| !item.is_empty()) {
        // Bounds the quadratic comparison below.
        if pairs.len() == Tags::MAX_TAGS {
            let message = format!("Object tags cannot be greater than {}", Tags::MAX_TAGS);
            return Err(Failure::new(Code::InvalidTag, message));
        }
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        let (key, value) =
            (form_decode(key).map_err(|_| malformed())?, form_decode(value).map_err(|_| malformed())?);
        if pairs.iter().any(|(other, _)| *other == key) {
            return Err(malformed());
        }
        pairs.push((key, value));
    }
    Ok(Some(checked_tags(pairs)?))
}

/// Checks tags against the limits and S3's reserved prefix.
pub(super) fn checked_tags(pairs: Vec<(String, String)>) -> Result<Tags> {
    if pairs.iter().any(|(key, _)| key.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("aws:"))) {
        return Err(Failure::new(Code::InvalidTag, "System tags cannot be added/updated by requester"));
    }
    Ok(Tags::new(pairs)?)
}

/// The classes in `X-DSS-Object-Class` and `X-DSS-Range-Class` (differentiated storage services, see
/// [`tradewind_core::class`]), and the retention.
pub(super) fn classes(call: &Call) -> Result<Classes> {
    Ok(Classes {
        object: object_class(call)?,
        ranges: range_classes(call)?.unwrap_or_default(),
        retention: retention(call)?,
    })
}

/// The retention of a new object; `None` if absent or 0. An empty header is an error, except on a copy.
fn retention(call: &Call) -> Result<Option<Retention>> {
    if !call.headers.contains_key("x-amz-copy-source") {
        for name in [DSS_RETENTION, DSS_RETENTION_SPAN] {
            if call.headers.get(&name).is_some_and(HeaderValue::is_empty) {
                let why = format!("the header {name} is empty");
                return Err(Error::new(Reason::InvalidArgument, why).into());
            }
        }
    }
    Ok(retention_update(call)?.flatten())
}

/// The change of the retention that `X-DSS-Retention` or `X-DSS-Retention-Span` describes: `None` without a header,
/// `Some(None)` for 0 seconds and for an empty header, which end it.
pub(super) fn retention_update(call: &Call) -> Result<Option<Option<Retention>>> {
    let has = |name| call.headers.contains_key(name);
    match (has(DSS_RETENTION), has(DSS_RETENTION_SPAN)) {
        (false, false) => Ok(None),
        (true, true) => Err(Failure::invalid_request(format!(
            "A retention is in one header: {DSS_RETENTION} excludes {DSS_RETENTION_SPAN}."
        ))),
        (true, false) => {
            let text = call.header(DSS_RETENTION.as_str())?;
            Ok(Some(text.map(|text| Retention::parse_seconds(text, now(call))).transpose()?.flatten()))
        }
        (false, true) => {
            let Some(text) = call.header(DSS_RETENTION_SPAN.as_str())? else { return Ok(Some(None)) };
            let retention = Retention::parse_span(text)?;
            retention.check_start(now(call))?;
            Ok(Some(Some(retention)))
        }
    }
}

/// Returns true if the headers of a copy replace the retention. 0 seconds and an empty header end it.
pub(super) fn has_retention(call: &Call) -> bool {
    call.headers.contains_key(DSS_RETENTION) || call.headers.contains_key(DSS_RETENTION_SPAN)
}

fn now(call: &Call) -> Timestamp {
    call.context.deadline.clock().wall()
}

/// Adds the response headers for a retention: the seconds that remain at `now`, if any, and the absolute time.
pub(crate) fn add_retention(headers: &mut HeaderMap, metadata: &Metadata, now: Timestamp) {
    let Some(retention) = metadata.classes.retention else { return };
    insert(headers, DSS_RETENTION_SPAN, &retention.to_string());
    let remaining = retention.remaining_seconds(now);
    if remaining > 0 {
        headers.insert(DSS_RETENTION, remaining.into());
    }
}

/// The object's class; `None` if absent. An empty header is an error, except on a copy, where it removes the class.
pub(super) fn object_class(call: &Call) -> Result<Option<tradewind_core::Class>> {
    let text = call.header(DSS_OBJECT_CLASS.as_str())?;
    let is_copy = call.headers.contains_key("x-amz-copy-source");
    if text.is_none() && (is_copy || !call.headers.contains_key(DSS_OBJECT_CLASS)) {
        return Ok(None);
    }
    Ok(Some(Classes::parse_object(text.unwrap_or_default())?))
}

/// Returns true if the headers of a copy replace the object's class. An empty header removes it.
pub(super) fn has_object_class(call: &Call) -> bool {
    call.headers.contains_key(DSS_OBJECT_CLASS)
}

/// Returns true if the headers of a copy replace the classes of ranges. An empty header removes them.
pub(super) fn has_range_classes(call: &Call) -> bool {
    call.headers.contains_key(DSS_RANGE_CLASS)
}

/// The classes of ranges; `None` if absent.
pub(super) fn range_classes(call: &Call) -> Result<Option<Vec<tradewind_core::class::ClassRange>>> {
    let Some(text) = call.header_list(DSS_RANGE_CLASS.as_str())? else { return Ok(None) };
    Ok(Some(Classes::parse_ranges(&text)?))
}

/// Adds the response headers for metadata. As in S3, tags are represented only by their number.
pub(super) fn add_headers(headers: &mut HeaderMap, metadata: &Metadata) {
    let system = &metadata.headers;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(DEFAULT_TYPE));
    for (name, value) in SYSTEM_HEADERS.into_iter().zip(system.values()) {
        if let Some(value) = value {
            insert(headers, name, value);
        }
    }
    for (name, value) in &metadata.user {
        if let Ok(name) = HeaderName::try_from(format!("{USER_PREFIX}{name}")) {
            headers.insert(name, encoded_word::encode(value));
        }
    }
    let tags = metadata.tags.pairs().len();
    if tags > 0 {
        headers.insert(TAGGING_COUNT, tags.into());
    }
    if let Some(class) = metadata.classes.object {
        headers.insert(DSS_OBJECT_CLASS, u16::from(class.value()).into());
    }
    if let Some(ranges) = metadata.classes.format_ranges() {
        insert(headers, DSS_RANGE_CLASS, &ranges);
    }
}

/// Inserts stored text, which usually came from a header. Text from another store that is no valid header value is
/// omitted.
fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
        headers.insert(name, value);
    }
}
