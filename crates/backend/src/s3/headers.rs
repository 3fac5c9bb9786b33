//! Object metadata, checksums and conditions as headers: written into requests and parsed from responses. Both
//! directions are in one module, so that they use the same names.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use http::{HeaderMap, HeaderName, HeaderValue};
use tradewind_core::condition::ETagMatch;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum, ChecksumScope, Metadata, Precondition, ReadConditions, Tags};
use tradewind_wire::headers::{
    CHECKSUM_TYPE, DEFAULT_TYPE, SYSTEM_HEADERS, TAGGING, TAGGING_COUNT, USER_PREFIX,
};
use tradewind_wire::http_date::http_date;
use tradewind_wire::sigv4::encode_query;

use super::classes;
use super::dialect::Dialect;
use crate::remote::header_fields::{etag_list, header_text, header_value, user_metadata_name};

/// The id of a conditional write, stored in the metadata of the object.
pub(super) const WRITE_ID: HeaderName = HeaderName::from_static("x-amz-meta-tradewind-write");

/// The MD5 of a body, in base64 (RFC 1864).
pub(super) const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// Writes an object's metadata, except its classes, into the request that creates it.
pub(super) fn write_metadata(metadata: &Metadata, headers: &mut HeaderMap) -> Result<()> {
    for (name, text) in SYSTEM_HEADERS.into_iter().zip(metadata.headers.values()) {
        if let Some(text) = text {
            headers.insert(name, header_value(text)?);
        }
    }
    for (name, text) in &metadata.user {
        let name = user_metadata_name(USER_PREFIX, name)?;
        // An id of another write, which a client has read from the service itself, would be taken for this one's.
        if name != WRITE_ID {
            headers.insert(name, header_value(text)?);
        }
    }
    if !metadata.tags.is_empty() {
        headers.insert(TAGGING, header_value(&tagging(&metadata.tags))?);
    }
    Ok(())
}

/// Tags as a query string.
pub(super) fn tagging(tags: &Tags) -> String {
    let mut text = Vec::new();
    for (key, value) in tags.pairs() {
        if !text.is_empty() {
            text.push(b'&');
        }
        encode_query(key, &mut text);
        text.push(b'=');
        encode_query(value, &mut text);
    }
    String::from_utf8(text).unwrap_or_default()
}

/// The storage class of this name; `None` for `STANDARD`, and if the service reports none.
pub(super) fn storage_class(name: &str) -> Option<String> {
    Some(name).filter(|name| !matches!(*name, "" | "STANDARD")).map(str::to_owned)
}

/// Parses an object's metadata from a response. Tags are omitted: the headers have only their number.
pub(super) fn read_metadata(headers: &HeaderMap) -> Result<Metadata> {
    let mut metadata = Metadata::default();
    for (name, value) in SYSTEM_HEADERS.into_iter().zip(metadata.headers.values_mut()) {
        *value = headers.get(name).map(header_text).transpose()?;
    }
    let system = &mut metadata.headers;
    system.content_type = system.content_type.take().filter(|kind| kind != DEFAULT_TYPE);
    system.storage_class = system.storage_class.take().and_then(|class| storage_class(&class));
    let dialect = Dialect::detect(headers).unwrap_or(Dialect::Plain);
    for (name, value) in headers {
        if let Some(short) = name.as_str().strip_prefix(USER_PREFIX).filter(|_| *name != WRITE_ID) {
            metadata.user.push((short.to_owned(), dialect.decode_metadata(header_text(value)?)));
        }
    }
    metadata.user.sort();
    metadata.classes = classes::read(headers, dialect, &mut metadata.user)?;
    Ok(metadata)
}

/// Returns true if the object has tags.
pub(super) fn has_tags(headers: &HeaderMap) -> bool {
    headers.get(TAGGING_COUNT).is_some_and(|count| count != "0")
}

/// The checksums in a response, and their scope.
pub(super) fn checksums(headers: &HeaderMap) -> Result<(Vec<Checksum>, ChecksumScope)> {
    let declared = headers.get(CHECKSUM_TYPE).and_then(|scope| scope.to_str().ok()?.parse().ok());
    let mut scope = declared.unwrap_or(ChecksumScope::FullObject);
    let mut found = Vec::new();
    for algorithm in Algorithm::ALL {
        if let Some(value) = headers.get(algorithm.header()) {
            let text = header_text(value)?;
            // A composite value may end in a hyphen and the number of parts.
            let (value, parts) = text.split_once('-').unwrap_or((&text, ""));
            if !parts.is_empty() {
                scope = ChecksumScope::Composite;
            }
            found.push(parse_response_checksum(algorithm, value)?);
        }
    }
    Ok((found, scope))
}

/// The checksum of the requested part; `None` if unknown. Only with composite checksums, and only for a value without a
/// number of parts, is it certain that the value belongs to the part.
pub(super) fn part_checksum(headers: &HeaderMap) -> Result<Option<Checksum>> {
    let is_composite =
        headers.get(CHECKSUM_TYPE).is_some_and(|scope| scope == ChecksumScope::Composite.name());
    for algorithm in Algorithm::ALL.into_iter().filter(|_| is_composite) {
        if let Some(value) = headers.get(algorithm.header()) {
            let text = header_text(value)?;
            return (!text.contains('-')).then(|| parse_response_checksum(algorithm, &text)).transpose();
        }
    }
    Ok(None)
}

/// Parses a checksum in a response. An invalid one is reported as an error of the store, not of the request.
fn parse_response_checksum(algorithm: Algorithm, text: &str) -> Result<Checksum> {
    Checksum::from_base64(algorithm, text)
        .map_err(|e| Error::with_source(Reason::Io, format!("the store sent an invalid checksum: {e}"), e))
}

/// The digests that the store verifies a body against.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BodyDigests {
    pub checksum: Option<Checksum>,
    pub md5: Option<[u8; 16]>,
}

impl From<Checksum> for BodyDigests {
    fn from(checksum: Checksum) -> Self {
        Self { checksum: Some(checksum), md5: None }
    }
}

/// Writes the digests that the store verifies the body against.
pub(super) fn write_body_digests(digests: BodyDigests, headers: &mut HeaderMap) -> Result<()> {
    let BodyDigests { checksum, md5 } = digests;
    if let Some(checksum) = checksum {
        headers.insert(checksum.algorithm().header(), header_value(&checksum.to_base64())?);
    }
    if let Some(md5) = md5 {
        headers.insert(CONTENT_MD5, header_value(&BASE64.encode(md5))?);
    }
    Ok(())
}

/// The checksum in an XML element named like `ChecksumCRC32`; `None` for other elements.
pub(super) fn checksum_element(name: &str, text: &str) -> Option<Checksum> {
    let algorithm = name.strip_prefix("Checksum")?.parse().ok()?;
    Checksum::from_base64(algorithm, strip_part_count(text)).ok()
}

/// Strips the number of parts from a composite value.
fn strip_part_count(text: &str) -> &str {
    text.split_once('-').map_or(text, |(value, _)| value)
}

/// Collects the checksums in the response document of a copy or a completion.
#[derive(Default)]
pub(super) struct ResponseChecksums {
    checksums: Vec<Checksum>,
    scope: Option<ChecksumScope>,
    /// A value ends in the number of parts.
    has_part_count: bool,
}

impl ResponseChecksums {
    /// Reads an element; others than checksums are ignored.
    pub fn read(&mut self, name: &str, text: &str) {
        if name == "ChecksumType" {
            self.scope = text.parse().ok();
        } else if let Some(checksum) = checksum_element(name, text) {
            self.checksums.push(checksum);
            self.has_part_count |= text.contains('-');
        }
    }

    /// The checksums, and their scope.
    pub fn finish(self) -> (Vec<Checksum>, ChecksumScope) {
        let inferred = if self.has_part_count { ChecksumScope::Composite } else { ChecksumScope::FullObject };
        (self.checksums, self.scope.unwrap_or(inferred))
    }
}

/// Writes the condition of a write.
pub(super) fn write_precondition(precondition: &Precondition, headers: &mut HeaderMap) -> Result<()> {
    match precondition {
        Precondition::None => {}
        Precondition::Absent => drop(headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"))),
        Precondition::Exists => drop(headers.insert(IF_MATCH, HeaderValue::from_static("*"))),
        Precondition::Matches(etag) => drop(headers.insert(IF_MATCH, header_value(&format!("\"{etag}\""))?)),
        Precondition::MatchesGeneration(_) => {
            return Err(Error::unsupported("compare generations: S3 has none"));
        }
    }
    Ok(())
}

/// The object that conditions apply to, which selects the header names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConditionTarget {
    /// The requested object.
    Object,
    /// The source of a copy.
    CopySource,
    /// The source of a copy, with radosgw's header names.
    CephCopySource,
}

/// Writes the conditions of a read.
pub(super) fn write_conditions(
    conditions: &ReadConditions,
    target: ConditionTarget,
    headers: &mut HeaderMap,
) -> Result<()> {
    let name = |plain: HeaderName| match target {
        ConditionTarget::Object => plain,
        ConditionTarget::CopySource => {
            HeaderName::try_from(format!("x-amz-copy-source-{plain}")).unwrap_or(plain)
        }
        ConditionTarget::CephCopySource => {
            HeaderName::try_from(format!("x-amz-copy-{plain}")).unwrap_or(plain)
        }
    };
    for (plain, tags) in [(IF_MATCH, &conditions.if_match), (IF_NONE_MATCH, &conditions.if_none_match)] {
        let text = match tags {
            None => continue,
            Some(ETagMatch::Any) => "*".to_owned(),
            Some(ETagMatch::OneOf(tags)) => etag_list(tags),
        };
        headers.insert(name(plain), header_value(&text)?);
    }
    for (plain, time) in [
        (IF_MODIFIED_SINCE, conditions.if_modified_since),
        (IF_UNMODIFIED_SINCE, conditions.if_unmodified_since),
    ] {
        if let Some(time) = time {
            headers.insert(name(plain), header_value(&http_date(time))?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::{SystemHeaders, Timestamp};

    #[test]
    fn metadata_round_trips_through_headers() {
        let metadata = Metadata {
            headers: SystemHeaders {
                content_type: Some("text/plain".to_owned()),
                cache_control: Some("no-store".to_owned()),
                ..SystemHeaders::default()
            },
            user: vec![("a".to_owned(), "Grüße".to_owned()), ("b".to_owned(), String::new())],
            ..Metadata::default()
        };
        let mut headers = HeaderMap::new();
        write_metadata(&metadata, &mut headers).unwrap();
        assert_eq!(read_metadata(&headers).unwrap(), metadata);
    }

    #[test]
    fn checksums_accept_a_composite_with_a_part_count() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-checksum-crc32", HeaderValue::from_static("y/Q5Jg==-2"));
        let (found, scope) = checksums(&headers).unwrap();
        assert_eq!(found, [Checksum::from_base64(Algorithm::Crc32, "y/Q5Jg==").unwrap()]);
        assert_eq!(scope, ChecksumScope::Composite);
    }

    #[test]
    fn write_conditions_clamps_extreme_times() {
        for (millis, date) in
            [(i64::MIN, "Thu, 01 Jan 1970 00:00:00 GMT"), (i64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT")]
        {
            let since = Some(Timestamp::from_millis(millis));
            let conditions =
                ReadConditions { if_modified_since: since, if_unmodified_since: since, ..Default::default() };
            let mut headers = HeaderMap::new();
            write_conditions(&conditions, ConditionTarget::Object, &mut headers).unwrap();
            assert_eq!([&headers[IF_MODIFIED_SINCE], &headers[IF_UNMODIFIED_SINCE]], [date; 2]);
        }
    }
}
