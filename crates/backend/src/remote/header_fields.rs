//! Headers that S3 and Swift share: how they are written into requests and parsed from responses.

use std::time::Duration;

use http::header::{CONTENT_RANGE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{ByteRange, ETag, Generation, Span, Timestamp};

use super::decimal::{parse_seconds, parse_size};

/// Converts text to a header value. Any UTF-8 is allowed except control characters.
pub(crate) fn header_value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|e| {
        Error::with_source(Reason::InvalidArgument, format!("{text:?} cannot be sent in a header"), e)
    })
}

/// Converts a host, with an optional port, to the value of `Host`.
pub(crate) fn host_value(host: String) -> Result<HeaderValue> {
    HeaderValue::try_from(host)
        .map_err(|e| Error::with_source(Reason::InvalidArgument, "the endpoint is not a valid host name", e))
}

/// The header value as UTF-8 text.
pub(crate) fn header_text(value: &HeaderValue) -> Result<String> {
    String::from_utf8(value.as_bytes().to_vec())
        .map_err(|e| Error::with_source(Reason::Io, "the store sent a header that is not UTF-8", e))
}

/// The `ETag` header. Fails if it is absent.
pub(crate) fn etag(headers: &HeaderMap) -> Result<ETag> {
    let tag = headers.get(ETAG).map(header_text).transpose()?;
    let tag = tag.ok_or_else(|| Error::new(Reason::Io, "the store's response has no ETag"))?;
    Ok(ETag::from_text(&tag))
}

/// ETags as the value of `If-Match` or `If-None-Match`.
pub(crate) fn etag_list(tags: &[ETag]) -> String {
    tags.iter().map(|tag| format!("\"{tag}\"")).collect::<Vec<_>>().join(", ")
}

/// The name of the header with the user metadata `name`.
pub(crate) fn user_metadata_name(prefix: &str, name: &str) -> Result<HeaderName> {
    HeaderName::try_from(format!("{prefix}{name}")).map_err(|e| {
        Error::with_source(Reason::InvalidArgument, format!("metadata name {name:?} cannot be sent"), e)
    })
}

/// Parses a header that holds an HTTP date.
pub(crate) fn parse_date(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Timestamp>> {
    let Some(value) = headers.get(name).map(header_text).transpose()? else { return Ok(None) };
    let time = httpdate::parse_http_date(&value).map_err(|e| {
        Error::with_source(Reason::Io, format!("the store sent {name}: {value:?}, which is not a date"), e)
    })?;
    Ok(Some(Timestamp::from(time)))
}

/// Parses `Retry-After`: seconds, or a date. `None` if it is absent or invalid. The caller limits the delay.
pub(crate) fn parse_retry_after(value: Option<&HeaderValue>, now: Timestamp) -> Option<Duration> {
    let text = value?.to_str().ok()?.trim();
    if let Some(delay) = parse_seconds(text) {
        return Some(delay);
    }
    let time = Timestamp::from(httpdate::parse_http_date(text).ok()?);
    Some(Duration::from_millis(u64::try_from(time.millis() - now.millis()).unwrap_or(0)))
}

/// The object's modification time, with a resolution of one second. Fails if it is absent.
pub(crate) fn last_modified(headers: &HeaderMap) -> Result<Timestamp> {
    parse_date(headers, &LAST_MODIFIED)?
        .ok_or_else(|| Error::new(Reason::Io, "the store's response has no Last-Modified"))
}

/// The value of a request's `Range` header.
pub(crate) fn range_value(range: ByteRange) -> HeaderValue {
    let text = match range {
        ByteRange::Inclusive { first, last } => format!("bytes={first}-{last}"),
        ByteRange::From(first) => format!("bytes={first}-"),
        ByteRange::Suffix(length) => format!("bytes=-{length}"),
    };
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// A `Content-Range` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentRange {
    /// The span in the response.
    pub span: Span,
    /// The size of the whole object.
    pub size: u64,
}

/// Parses `Content-Range: bytes first-last/size`.
pub(crate) fn content_range(headers: &HeaderMap) -> Result<Option<ContentRange>> {
    let Some(value) = headers.get(CONTENT_RANGE) else { return Ok(None) };
    let read = || {
        let (span, size) = value.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = span.split_once('-')?;
        let (first, last, size) = (parse_size(first)?, parse_size(last)?, parse_size(size)?);
        let length = last.checked_sub(first)?.checked_add(1)?;
        (last < size).then_some(ContentRange { span: Span { offset: first, length }, size })
    };
    let found = read();
    found.map(Some).ok_or_else(|| {
        Error::new(Reason::Io, format!("the store sent Content-Range: {value:?}, which is invalid"))
    })
}

/// Identifies a write to a service whose timestamps have a resolution of one second: the seconds, then 24 bits of the
/// ETag's CRC. Ordered by time at that resolution only; see `Capabilities::generations`.
pub(crate) fn generation(modified: Timestamp, etag: &str) -> Generation {
    let seconds = u64::try_from(modified.seconds()).unwrap_or(0);
    Generation(seconds << 24 | tradewind_core::checksum::crc64nvme(etag.as_bytes()) >> 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = Timestamp::from(httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap());
        let parsed = |text| parse_retry_after(Some(&HeaderValue::from_static(text)), now);
        assert_eq!(parsed("4"), Some(Duration::from_secs(4)));
        assert_eq!(parsed("Sun, 06 Nov 1994 08:49:40 GMT"), Some(Duration::from_secs(3)));
        assert_eq!(parsed("Sun, 06 Nov 1994 08:49:30 GMT"), Some(Duration::ZERO));
        assert_eq!((parsed("soon"), parse_retry_after(None, now)), (None, None));
    }

    #[test]
    fn content_range_parses_or_fails_with_io() {
        let read = |text| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, HeaderValue::from_static(text));
            content_range(&headers).map(Option::unwrap)
        };
        let found = ContentRange { span: Span { offset: 5, length: 5 }, size: 20 };
        assert_eq!(read("bytes 5-9/20").unwrap(), found);
        for bad in
            ["bytes 9-5/20", "bytes */20", "items 1-2/3", "bytes 1-2", "bytes 0-18446744073709551615/1"]
        {
            assert_eq!(read(bad).unwrap_err().reason(), Reason::Io, "{bad}");
        }
    }
}
