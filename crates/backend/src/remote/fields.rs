//! The headers that both protocols write and read alike.

use http::header::{CONTENT_RANGE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{ByteRange, ETag, Generation, Span, Timestamp};

/// Text as a header's value: any UTF-8 but control characters.
pub(crate) fn value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|e| {
        Error::with_source(Reason::InvalidArgument, format!("{text:?} cannot be sent in a header"), e)
    })
}

/// A header's value as text.
pub(crate) fn text(value: &HeaderValue) -> Result<String> {
    String::from_utf8(value.as_bytes().to_vec())
        .map_err(|e| Error::with_source(Reason::Io, "the store answered a header that is not UTF-8", e))
}

/// The entity tag.
pub(crate) fn etag(headers: &HeaderMap) -> Result<ETag> {
    let tag = headers.get(ETAG).map(text).transpose()?;
    let tag = tag.ok_or_else(|| Error::new(Reason::Io, "the store's answer has no entity tag"))?;
    Ok(ETag::from_text(&tag))
}

/// A header that holds a date.
pub(crate) fn date(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Timestamp>> {
    let Some(value) = headers.get(name).map(text).transpose()? else { return Ok(None) };
    let time = httpdate::parse_http_date(&value)
        .map_err(|e| Error::with_source(Reason::Io, format!("the store answered {value:?} as a date"), e))?;
    Ok(Some(Timestamp::from(time)))
}

/// A range, as a request asks for it.
pub(crate) fn range(range: ByteRange) -> HeaderValue {
    let text = match range {
        ByteRange::Inclusive { first, last } => format!("bytes={first}-{last}"),
        ByteRange::From(first) => format!("bytes={first}-"),
        ByteRange::Suffix(length) => format!("bytes=-{length}"),
    };
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// `bytes first-last/size`: what an answer holds, and of how much.
pub(crate) fn content_range(headers: &HeaderMap) -> Result<Option<(Span, u64)>> {
    let Some(value) = headers.get(CONTENT_RANGE) else { return Ok(None) };
    let read = || {
        let (span, size) = value.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = span.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let length = last.checked_sub(first)?.checked_add(1)?;
        Some((Span { offset: first, length }, size.parse().ok()?))
    };
    let found = read();
    found.map(Some).ok_or_else(|| Error::new(Reason::Io, format!("the store answered {value:?} as a range")))
}

/// Which write this is, as far as a service says that keeps times to the second: equal for equal tags and times. It
/// grows with time at that grain only; `Capabilities::generations` says so.
pub(crate) fn generation(modified: Timestamp, etag: &str) -> Generation {
    let seconds = u64::try_from(modified.seconds()).unwrap_or(0);
    Generation(seconds << 24 | tradewind_core::checksum::crc64nvme(etag.as_bytes()) >> 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_answers() {
        let read = |text| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, HeaderValue::from_static(text));
            content_range(&headers).map(Option::unwrap)
        };
        assert_eq!(read("bytes 5-9/20").unwrap(), (Span { offset: 5, length: 5 }, 20));
        for bad in
            ["bytes 9-5/20", "bytes */20", "items 1-2/3", "bytes 1-2", "bytes 0-18446744073709551615/1"]
        {
            assert_eq!(read(bad).unwrap_err().reason(), Reason::Io, "{bad}");
        }
    }
}
