//! Object metadata as Swift stores it.
//!
//! Swift stores content headers and `X-Object-Meta-*`. The latter are limited to names of 128 bytes, values of 256, 90
//! headers and 4096 bytes in total (<https://docs.openstack.org/swift/latest/api/object_api_v1_overview.html>). Swift
//! changes the case of names, merges `a_b` with `a-b`, and trims blanks. Metadata that survives this is a header,
//! visible to other clients. The rest is JSON, in Base64, in the headers `X-Object-Meta-Tradewind-More-N`; if it
//! exceeds the limits, it is an object in the companion.
//!
//! Further headers under `X-Object-Meta-Tradewind`: `-ETag` if it is not Swift's, `-Checksums` and `-Later-Checksums`,
//! `-Scope`, `-Parts`, `-Object-Class`, `-Retention` (its end and its length, in seconds), and `-Write`, the id under
//! which the companion has segments or metadata of the object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value as Json, json};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum, ChecksumScope, Classes, ETag, Metadata, Retention, Tags};
use tradewind_wire::headers::{DEFAULT_TYPE, DSS_OBJECT_CLASS, DSS_RANGE_CLASS, SYSTEM_HEADERS};

use crate::remote::decimal::parse_count;
use crate::remote::header_fields::{header_value, user_metadata_name};

const USER_PREFIX: &str = "x-object-meta-";
const OWN_PREFIX: &str = "tradewind-";
/// Suffix of the content type with the ETag, if that is not the MD5 that Swift lists. The content type is the only
/// metadata in a listing.
const ETAG_SUFFIX: &str = ";tradewind-etag=";
/// Suffix of the content type, before that of the ETag, with the storage class, if the object has one.
const CLASS_SUFFIX: &str = ";tradewind-class=";

/// Swift's `max_meta_value_length`.
const MAX_VALUE_BYTES: usize = 256;
/// Below Swift's `max_meta_name_length`, with a margin.
const MAX_NAME_BYTES: usize = 100;
/// Below Swift's `max_meta_overall_size`, with a margin.
const MAX_TOTAL_BYTES: usize = 3900;
/// Below Swift's `max_meta_count`, with a margin.
const MAX_COUNT: usize = 85;
/// Longer range classes are stored, but not sent as a header of their own: Swift rejects header lines over
/// `max_header_size` (8 KiB).
const MAX_DSS_RANGE_CLASS_BYTES: usize = 4 << 10;

/// The headers of checksums, and whether they contain algorithms added later. Older versions of this program reject
/// unknown algorithms in the first header, and ignore the second.
const CHECKSUMS: [(&str, bool); 2] = [("checksums", false), ("later-checksums", true)];

/// The stored description of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StoredMetadata {
    pub metadata: Metadata,
    /// `None` if it is Swift's native ETag.
    pub etag: Option<ETag>,
    pub checksums: Vec<Checksum>,
    pub scope: Option<ChecksumScope>,
    /// Number of parts; `None` if it is not a multipart object.
    pub parts: Option<u32>,
    /// The id of its segments and metadata in the companion, if any.
    pub id: Option<String>,
}

/// Headers, and the metadata that does not fit into them.
pub(super) struct EncodedMetadata {
    pub headers: HeaderMap,
    pub overflow: Option<Bytes>,
}

impl StoredMetadata {
    /// Encodes the description for the request that creates the object.
    pub fn encode(&self) -> Result<EncodedMetadata> {
        let (mut headers, user) = (self.own_headers()?, self.user_headers()?);
        let mut rest = self.remaining_json(false);
        let (mut bytes, mut count) = metadata_size(&headers);
        let (user_bytes, user_count) = metadata_size(&user);
        (bytes, count) = (bytes + user_bytes, count + user_count);
        let encode_text =
            |rest: &Json| if is_empty_json(rest) { String::new() } else { BASE64.encode(rest.to_string()) };
        let mut text = encode_text(&rest);
        let chunks = text.len().div_ceil(MAX_VALUE_BYTES);
        if bytes + text.len() + chunks * (OWN_PREFIX.len() + 8) > MAX_TOTAL_BYTES
            || count + chunks > MAX_COUNT
        {
            rest = self.remaining_json(true);
            text.clear();
            headers.insert(own_header("aside"), HeaderValue::from_static("1"));
            return Ok(EncodedMetadata { headers, overflow: Some(Bytes::from(rest.to_string())) });
        }
        headers.extend(user);
        for (n, chunk) in text.as_bytes().chunks(MAX_VALUE_BYTES).enumerate() {
            let chunk = HeaderValue::from_bytes(chunk)
                .map_err(|e| Error::with_source(Reason::Defect, "Base64 is not a valid header value", e))?;
            headers.insert(own_header(&format!("more-{n}")), chunk);
        }
        Ok(EncodedMetadata { headers, overflow: None })
    }

    /// The headers that are always sent.
    fn own_headers(&self) -> Result<HeaderMap> {
        let system = &self.metadata.headers;
        let mut headers = HeaderMap::new();
        // Without a content type, Swift guesses one from the name.
        let mut kind = system
            .content_type
            .clone()
            .filter(|kind| is_preserved_value(kind))
            .unwrap_or_else(|| DEFAULT_TYPE.to_owned());
        if let Some(class) = system.storage_class.as_ref().filter(|class| is_listable_class(class)) {
            kind.push_str(CLASS_SUFFIX);
            kind.push_str(class);
        }
        if let Some(etag) = &self.etag {
            kind.push_str(ETAG_SUFFIX);
            kind.push_str(etag.as_str());
            headers.insert(own_header("etag"), header_value(etag.as_str())?);
        }
        headers.insert(CONTENT_TYPE, header_value(&kind)?);
        for (name, text) in
            [(CONTENT_ENCODING, &system.content_encoding), (CONTENT_DISPOSITION, &system.content_disposition)]
        {
            if let Some(text) = text.as_ref().filter(|text| is_preserved_value(text)) {
                headers.insert(name, header_value(text)?);
            }
        }
        for (name, is_later) in CHECKSUMS {
            let format =
                |checksum: &Checksum| format!("{}={}", checksum.algorithm().name(), checksum.to_base64());
            let checksums =
                self.checksums.iter().filter(|checksum| is_later_algorithm(checksum.algorithm()) == is_later);
            let all: Vec<String> = checksums.map(format).collect();
            if !all.is_empty() {
                headers.insert(own_header(name), header_value(&all.join(" "))?);
            }
        }
        if let Some(scope) = self.scope {
            headers.insert(own_header("scope"), HeaderValue::from_static(scope.name()));
        }
        if let Some(parts) = self.parts {
            headers.insert(own_header("parts"), parts.into());
        }
        if let Some(write) = &self.id {
            headers.insert(own_header("write"), header_value(write)?);
        }
        // The class headers are for intermediate components that act upon them. Object servers drop unknown headers,
        // so the classes are stored separately.
        let classes = &self.metadata.classes;
        if let Some(class) = classes.object {
            headers.insert(DSS_OBJECT_CLASS, u16::from(class.value()).into());
            headers.insert(own_header("object-class"), u16::from(class.value()).into());
        }
        if let Some(ranges) =
            classes.format_ranges().filter(|ranges| ranges.len() <= MAX_DSS_RANGE_CLASS_BYTES)
        {
            headers.insert(DSS_RANGE_CLASS, header_value(&ranges)?);
        }
        if let Some(retention) = classes.retention {
            headers.insert(own_header("retention"), header_value(&retention.to_string())?);
        }
        Ok(headers)
    }

    /// The user metadata that Swift preserves unchanged.
    fn user_headers(&self) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, text) in self.metadata.user.iter().filter(|(name, text)| is_preserved_pair(name, text)) {
            headers.insert(user_metadata_name(USER_PREFIX, name)?, header_value(text)?);
        }
        Ok(headers)
    }

    /// The metadata without a header of its own; with `all`, this includes all user metadata.
    fn remaining_json(&self, all: bool) -> Json {
        let metadata = &self.metadata;
        let is_native = |name: &HeaderName, text: &str| {
            (*name == CONTENT_TYPE || *name == CONTENT_ENCODING || *name == CONTENT_DISPOSITION)
                && is_preserved_value(text)
        };
        let system = SYSTEM_HEADERS.into_iter().zip(metadata.headers.values()).filter_map(|(name, text)| {
            let text = text.as_ref().filter(|text| !is_native(&name, text))?;
            Some((name.to_string(), Json::from(text.as_str())))
        });
        let user = metadata.user.iter().filter(|(name, text)| all || !is_preserved_pair(name, text));
        json!({
            "headers": system.collect::<serde_json::Map<_, _>>(),
            "user": user.collect::<Vec<_>>(),
            "tags": metadata.tags.pairs(),
            "ranges": metadata.classes.format_ranges(),
        })
    }

    /// The id under which the companion has data of the object, if any.
    pub fn id_in_headers(headers: &HeaderMap) -> Option<String> {
        headers.get(own_header("write")).map(lossy)
    }

    /// The id of the object's metadata in the companion; `None` if the headers contain all of it.
    pub fn companion_id(headers: &HeaderMap) -> Option<&str> {
        headers.get(own_header("aside"))?;
        headers.get(own_header("write"))?.to_str().ok()
    }

    /// Decodes the headers of a response, and the metadata in the companion, if any.
    pub fn decode(headers: &HeaderMap, overflow: Option<&[u8]>) -> Result<Self> {
        let mut stored = Self::default();
        let text = |name: &str| headers.get(own_header(name)).map(lossy);
        stored.etag = text("etag").map(|tag| ETag::from_tag(&tag));
        for (name, is_later) in CHECKSUMS {
            for checksum in text(name).iter().flat_map(|all| all.split(' ')) {
                let (algorithm, checksum) =
                    checksum.split_once('=').ok_or_else(|| invalid_metadata("a checksum"))?;
                match algorithm.parse::<Algorithm>() {
                    Ok(algorithm) => {
                        let checksum = Checksum::from_base64(algorithm, checksum)
                            .map_err(|_| invalid_metadata("a checksum"))?;
                        stored.checksums.push(checksum);
                    }
                    // Written by a newer version of this program.
                    Err(_) if is_later => {}
                    Err(_) => return Err(invalid_metadata("a checksum")),
                }
            }
        }
        stored.scope =
            text("scope").map(|scope| scope.parse().map_err(|_| invalid_metadata("a scope"))).transpose()?;
        stored.parts = text("parts")
            .map(|parts| parse_count(&parts).ok_or_else(|| invalid_metadata("a number of parts")))
            .transpose()?;
        stored.id = Self::id_in_headers(headers);
        let classes = &mut stored.metadata.classes;
        classes.object = text("object-class").map(|class| Classes::parse_object(&class)).transpose()?;
        classes.retention = text("retention").map(|span| Retention::parse_span(&span)).transpose()?;
        for (name, value) in SYSTEM_HEADERS.iter().zip(stored.metadata.headers.values_mut()) {
            *value = headers.get(name).map(lossy).filter(|text| !text.is_empty());
        }
        if let Some(kind) = stored.metadata.headers.content_type.take() {
            let kind = ListedType::parse(&kind).media_type;
            stored.metadata.headers.content_type = Some(kind.to_owned()).filter(|kind| kind != DEFAULT_TYPE);
        }
        for (name, value) in headers {
            match name.as_str().strip_prefix(USER_PREFIX) {
                Some(short) if !short.starts_with(OWN_PREFIX) => {
                    stored.metadata.user.push((short.to_owned(), lossy(value)));
                }
                _ => {}
            }
        }
        let mut rest = String::new();
        while let Some(chunk) =
            headers.get(own_header(&format!("more-{}", rest.len().div_ceil(MAX_VALUE_BYTES))))
        {
            rest.push_str(&lossy(chunk));
        }
        let decoded = if rest.is_empty() {
            None
        } else {
            Some(BASE64.decode(rest).map_err(|_| invalid_metadata("metadata"))?)
        };
        if let Some(document) = overflow.or(decoded.as_deref()) {
            stored.decode_remaining(document)?;
        }
        stored.metadata.user.sort();
        Ok(stored)
    }

    fn decode_remaining(&mut self, document: &[u8]) -> Result<()> {
        let rest: Json = serde_json::from_slice(document).map_err(|_| invalid_metadata("metadata"))?;
        let metadata = &mut self.metadata;
        for (name, value) in SYSTEM_HEADERS.iter().zip(metadata.headers.values_mut()) {
            if let Some(text) = rest["headers"][name.as_str()].as_str() {
                *value = Some(text.to_owned());
            }
        }
        metadata.user.extend(parse_pairs(&rest["user"])?);
        metadata.tags = Tags::new(parse_pairs(&rest["tags"])?)?;
        if let Some(ranges) = rest["ranges"].as_str() {
            metadata.classes.ranges = Classes::parse_ranges(ranges)?;
        }
        Ok(())
    }

    /// All of the metadata as JSON, for the marker of an upload.
    pub fn to_json(&self) -> Json {
        let mut rest = self.remaining_json(true);
        let kind = &self.metadata.headers.content_type;
        let system = SYSTEM_HEADERS.into_iter().zip(self.metadata.headers.values());
        let system = system.filter_map(|(name, text)| Some((name.to_string(), Json::from(text.as_deref()?))));
        rest["headers"] = Json::Object(system.collect());
        rest["headers"][CONTENT_TYPE.as_str()] = json!(kind);
        rest["class"] = json!(self.metadata.classes.object.map(|class| class.value()));
        rest["retention"] = json!(self.metadata.classes.retention.map(|retention| retention.to_string()));
        rest
    }

    /// Parses the result of [`Self::to_json`].
    pub fn from_json(document: &Json) -> Result<Self> {
        let mut stored = Self::default();
        stored.decode_remaining(document.to_string().as_bytes())?;
        if let Some(class) = document["class"].as_u64() {
            stored.metadata.classes.object = Some(Classes::parse_object(&class.to_string())?);
        }
        if let Some(span) = document["retention"].as_str() {
            stored.metadata.classes.retention = Some(Retention::parse_span(span)?);
        }
        Ok(stored)
    }
}

/// The parts of a stored content type.
pub(super) struct ListedType<'a> {
    /// The content type itself.
    pub media_type: &'a str,
    /// The ETag, if it is not the MD5 that Swift lists.
    pub etag: Option<ETag>,
    /// The storage class, if the object has one.
    pub storage_class: Option<&'a str>,
}

impl<'a> ListedType<'a> {
    pub fn parse(kind: &'a str) -> Self {
        let (kind, tag) = split_suffix(kind, ETAG_SUFFIX);
        let (media_type, storage_class) = split_suffix(kind, CLASS_SUFFIX);
        Self { media_type, etag: tag.map(ETag::from_tag), storage_class }
    }
}

fn split_suffix<'a>(kind: &'a str, suffix: &str) -> (&'a str, Option<&'a str>) {
    kind.rsplit_once(suffix).map_or((kind, None), |(kind, value)| (kind, Some(value)))
}

/// Returns true if a listing can report the storage class: its name is a token of HTTP, as those of S3.
fn is_listable_class(class: &str) -> bool {
    !class.is_empty()
        && class.len() <= MAX_NAME_BYTES
        && class.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// The ETag of a large object without an own ETag: Swift's, with a suffix, because it is not the MD5 of the bytes.
pub(super) fn large_object_etag(tag: &str) -> ETag {
    ETag::from_tag(&format!("{}-slo", ETag::from_text(tag).as_str()))
}

fn own_header(name: &str) -> HeaderName {
    HeaderName::try_from(format!("{USER_PREFIX}{OWN_PREFIX}{name}"))
        .unwrap_or(HeaderName::from_static("x-object-meta-tradewind"))
}

fn metadata_size(headers: &HeaderMap) -> (usize, usize) {
    let metadata =
        headers.iter().filter_map(|(name, value)| Some((name.as_str().strip_prefix(USER_PREFIX)?, value)));
    metadata.fold((0, 0), |(bytes, count), (name, value)| (bytes + name.len() + value.len(), count + 1))
}

fn is_empty_json(rest: &Json) -> bool {
    let is_empty = |value: &Json| match value {
        Json::Object(map) => map.is_empty(),
        Json::Array(list) => list.is_empty(),
        value => value.is_null(),
    };
    rest.as_object().is_none_or(|fields| fields.values().all(is_empty))
}

/// Returns true if Swift preserves the text of a header unchanged.
fn is_preserved_value(text: &str) -> bool {
    let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    is_printable
        && text.trim() == text
        && !text.is_empty()
        && text.len() <= MAX_VALUE_BYTES
        && !text.contains(ETAG_SUFFIX)
        && !text.contains(CLASS_SUFFIX)
}

/// Returns true if Swift preserves this user metadata unchanged.
fn is_preserved_pair(name: &str, text: &str) -> bool {
    let is_preserved = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_name = name.bytes().all(is_preserved) && !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    is_name && !name.starts_with(OWN_PREFIX) && is_preserved_value(text)
}

fn lossy(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn parse_pairs(list: &Json) -> Result<Vec<(String, String)>> {
    let pair = |pair: &Json| Some((pair[0].as_str()?.to_owned(), pair[1].as_str()?.to_owned()));
    let all: Option<Vec<_>> =
        list.as_array().map_or(Some(Vec::new()), |list| list.iter().map(pair).collect());
    all.ok_or_else(|| invalid_metadata("metadata"))
}

/// Returns true for algorithms that older versions of this program do not support.
const fn is_later_algorithm(algorithm: Algorithm) -> bool {
    !matches!(
        algorithm,
        Algorithm::Crc32 | Algorithm::Crc32c | Algorithm::Crc64Nvme | Algorithm::Sha1 | Algorithm::Sha256
    )
}

fn invalid_metadata(what: &str) -> Error {
    Error::new(
        Reason::CorruptData,
        format!("the object's stored metadata is corrupt: {what} cannot be parsed"),
    )
}

#[cfg(test)]
mod tests;
