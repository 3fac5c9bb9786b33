//! What an object carries besides its bytes, as Swift keeps it.
//!
//! Swift keeps content headers and `X-Object-Meta-*`. Of the latter it takes names of 128 bytes, values of 256, 90 of
//! them and 4096 bytes in all (<https://docs.openstack.org/swift/latest/api/object_api_v1_overview.html>), answers names
//! in another case, joins `a_b` and `a-b`, and cuts blanks. What goes through that unharmed is a header, for other
//! clients to see; everything else goes as JSON in Base64 into as many headers as it takes (`X-Object-Meta-Tradewind-More-N`),
//! and where all of it is too much, into an object of the companion.
//!
//! Our own: `-ETag` where it is not Swift's own, `-Checksums` and `-Later-Checksums`, `-Scope`, `-Parts`, and `-Write`, the name under which
//! the companion holds something of the object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value as Json, json};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum, ChecksumScope, Classes, ETag, Metadata, Tags};
use tradewind_wire::headers::{DEFAULT_TYPE, OBJECT_CLASS, RANGE_CLASS, SYSTEM};

use crate::remote::fields::value;

const USER: &str = "x-object-meta-";
const OWN: &str = "tradewind-";
/// A listing shows no metadata but the type: there the tag stands where it is not the MD5 that Swift lists.
const LISTED_ETAG: &str = ";tradewind-etag=";

/// Swift's `max_meta_value_length`.
const MOST_VALUE_BYTES: usize = 256;
/// Of `max_meta_name_length`, what is left to be sure.
const MOST_NAME_BYTES: usize = 100;
/// Of `max_meta_overall_size` and `max_meta_count`, the same.
const MOST_BYTES: usize = 3900;
const MOST_COUNT: usize = 85;
/// Longer classes of ranges are kept, but do not pass through as a header: a line of Swift's `max_header_size` (8 KiB) is
/// refused.
const MOST_PASSED_BYTES: usize = 4 << 10;

/// The headers of checksums, and whether they hold later algorithms: programs that do not know those refuse them in the
/// first header, and pass over the second.
const CHECKSUMS: [(&str, bool); 2] = [("checksums", false), ("later-checksums", true)];

/// What is kept of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Kept {
    pub metadata: Metadata,
    /// `None`: it is Swift's own.
    pub etag: Option<ETag>,
    pub checksums: Vec<Checksum>,
    pub scope: Option<ChecksumScope>,
    /// Of how many parts it was made.
    pub parts: Option<u32>,
    /// What it has in the companion goes by this name.
    pub write: Option<String>,
}

/// Headers, and what did not find room in them.
pub(super) struct Written {
    pub headers: HeaderMap,
    pub aside: Option<Bytes>,
}

impl Kept {
    /// What the request that makes the object says.
    pub fn write(&self) -> Result<Written> {
        let (mut headers, user) = (self.own_headers()?, self.user_headers()?);
        let mut more = self.rest(false);
        let (mut bytes, mut count) = weigh(&headers);
        let (user_bytes, user_count) = weigh(&user);
        (bytes, count) = (bytes + user_bytes, count + user_count);
        let coded =
            |more: &Json| if more_is_empty(more) { String::new() } else { BASE64.encode(more.to_string()) };
        let mut text = coded(&more);
        let chunks = text.len().div_ceil(MOST_VALUE_BYTES);
        if bytes + text.len() + chunks * (OWN.len() + 8) > MOST_BYTES || count + chunks > MOST_COUNT {
            more = self.rest(true);
            text.clear();
            headers.insert(own("aside"), HeaderValue::from_static("1"));
            return Ok(Written { headers, aside: Some(Bytes::from(more.to_string())) });
        }
        headers.extend(user);
        for (n, chunk) in text.as_bytes().chunks(MOST_VALUE_BYTES).enumerate() {
            let chunk = HeaderValue::from_bytes(chunk)
                .map_err(|e| Error::with_source(Reason::Defect, "Base64 is no header's value", e))?;
            headers.insert(own(&format!("more-{n}")), chunk);
        }
        Ok(Written { headers, aside: None })
    }

    /// What stands in headers whatever happens.
    fn own_headers(&self) -> Result<HeaderMap> {
        let system = &self.metadata.headers;
        let mut headers = HeaderMap::new();
        // Swift guesses a type from the name where none is said.
        let mut kind = system
            .content_type
            .clone()
            .filter(|kind| is_plain(kind))
            .unwrap_or_else(|| DEFAULT_TYPE.to_owned());
        if let Some(etag) = &self.etag {
            kind.push_str(LISTED_ETAG);
            kind.push_str(etag.as_str());
            headers.insert(own("etag"), value(etag.as_str())?);
        }
        headers.insert(CONTENT_TYPE, value(&kind)?);
        for (name, text) in
            [(CONTENT_ENCODING, &system.content_encoding), (CONTENT_DISPOSITION, &system.content_disposition)]
        {
            if let Some(text) = text.as_ref().filter(|text| is_plain(text)) {
                headers.insert(name, value(text)?);
            }
        }
        for (name, is_later) in CHECKSUMS {
            let said = |sum: &Checksum| format!("{}={}", sum.algorithm().name(), sum.to_base64());
            let sums = self.checksums.iter().filter(|sum| is_of_later(sum.algorithm()) == is_later);
            let all: Vec<String> = sums.map(said).collect();
            if !all.is_empty() {
                headers.insert(own(name), value(&all.join(" "))?);
            }
        }
        if let Some(scope) = self.scope {
            headers.insert(own("scope"), HeaderValue::from_static(scope.name()));
        }
        if let Some(parts) = self.parts {
            headers.insert(own("parts"), parts.into());
        }
        if let Some(write) = &self.write {
            headers.insert(own("write"), value(write)?);
        }
        // The classes pass through to whatever acts upon them on the way, and are kept: the object servers drop what
        // they do not know.
        let classes = &self.metadata.classes;
        if let Some(class) = classes.object {
            headers.insert(OBJECT_CLASS, u16::from(class.value()).into());
            headers.insert(own("object-class"), u16::from(class.value()).into());
        }
        if let Some(ranges) = classes.format_ranges().filter(|ranges| ranges.len() <= MOST_PASSED_BYTES) {
            headers.insert(RANGE_CLASS, value(&ranges)?);
        }
        Ok(headers)
    }

    /// The user's metadata that goes through Swift unharmed.
    fn user_headers(&self) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, text) in self.metadata.user.iter().filter(|(name, text)| is_visible(name, text)) {
            let name = HeaderName::try_from(format!("{USER}{name}")).map_err(|e| {
                Error::with_source(
                    Reason::InvalidArgument,
                    format!("metadata name {name:?} cannot be sent"),
                    e,
                )
            })?;
            headers.insert(name, value(text)?);
        }
        Ok(headers)
    }

    /// What does not stand in headers of its own; with `all` none of the user's metadata does.
    fn rest(&self, all: bool) -> Json {
        let metadata = &self.metadata;
        let is_native = |name: &HeaderName, text: &str| {
            (*name == CONTENT_TYPE || *name == CONTENT_ENCODING || *name == CONTENT_DISPOSITION)
                && is_plain(text)
        };
        let system = SYSTEM.into_iter().zip(metadata.headers.values()).filter_map(|(name, text)| {
            let text = text.as_ref().filter(|text| !is_native(&name, text))?;
            Some((name.to_string(), Json::from(text.as_str())))
        });
        let user = metadata.user.iter().filter(|(name, text)| all || !is_visible(name, text));
        json!({
            "headers": system.collect::<serde_json::Map<_, _>>(),
            "user": user.collect::<Vec<_>>(),
            "tags": metadata.tags.pairs(),
            "ranges": metadata.classes.format_ranges(),
        })
    }

    /// The name under which the companion holds something of the object.
    pub fn write_of(headers: &HeaderMap) -> Option<String> {
        headers.get(own("write")).map(lossy)
    }

    /// Whether an answer's headers refer to metadata in the companion; then its name there.
    pub fn aside(headers: &HeaderMap) -> Option<&str> {
        headers.get(own("aside"))?;
        headers.get(own("write"))?.to_str().ok()
    }

    /// Reads what an answer says, with what lies in the companion where something does.
    pub fn read(headers: &HeaderMap, aside: Option<&[u8]>) -> Result<Self> {
        let mut kept = Self::default();
        let text = |name: &str| headers.get(own(name)).map(lossy);
        kept.etag = text("etag").map(|tag| ETag::from_tag(&tag));
        for (name, is_later) in CHECKSUMS {
            for sum in text(name).iter().flat_map(|all| all.split(' ')) {
                let (algorithm, sum) = sum.split_once('=').ok_or_else(|| broken("a checksum"))?;
                match algorithm.parse::<Algorithm>() {
                    Ok(algorithm) => {
                        let sum = Checksum::from_base64(algorithm, sum).map_err(|_| broken("a checksum"))?;
                        kept.checksums.push(sum);
                    }
                    // Of a later program.
                    Err(_) if is_later => {}
                    Err(_) => return Err(broken("a checksum")),
                }
            }
        }
        kept.scope = text("scope").map(|scope| scope.parse().map_err(|_| broken("a scope"))).transpose()?;
        kept.parts =
            text("parts").map(|parts| parts.parse().map_err(|_| broken("a number of parts"))).transpose()?;
        kept.write = Self::write_of(headers);
        let classes = &mut kept.metadata.classes;
        classes.object = text("object-class").map(|class| Classes::parse_object(&class)).transpose()?;
        for (name, place) in SYSTEM.iter().zip(kept.metadata.headers.values_mut()) {
            *place = headers.get(name).map(lossy).filter(|text| !text.is_empty());
        }
        if let Some(kind) = kept.metadata.headers.content_type.take() {
            let kind = listed_etag(&kind).0;
            kept.metadata.headers.content_type = Some(kind.to_owned()).filter(|kind| kind != DEFAULT_TYPE);
        }
        for (name, value) in headers {
            match name.as_str().strip_prefix(USER) {
                Some(short) if !short.starts_with(OWN) => {
                    kept.metadata.user.push((short.to_owned(), lossy(value)));
                }
                _ => {}
            }
        }
        let mut more = String::new();
        while let Some(chunk) = headers.get(own(&format!("more-{}", more.len().div_ceil(MOST_VALUE_BYTES)))) {
            more.push_str(&lossy(chunk));
        }
        let decoded =
            if more.is_empty() { None } else { Some(BASE64.decode(more).map_err(|_| broken("metadata"))?) };
        if let Some(document) = aside.or(decoded.as_deref()) {
            kept.read_rest(document)?;
        }
        kept.metadata.user.sort();
        Ok(kept)
    }

    fn read_rest(&mut self, document: &[u8]) -> Result<()> {
        let rest: Json = serde_json::from_slice(document).map_err(|_| broken("metadata"))?;
        let metadata = &mut self.metadata;
        for (name, place) in SYSTEM.iter().zip(metadata.headers.values_mut()) {
            if let Some(text) = rest["headers"][name.as_str()].as_str() {
                *place = Some(text.to_owned());
            }
        }
        metadata.user.extend(pairs(&rest["user"])?);
        metadata.tags = Tags::new(pairs(&rest["tags"])?)?;
        if let Some(ranges) = rest["ranges"].as_str() {
            metadata.classes.ranges = Classes::parse_ranges(ranges)?;
        }
        Ok(())
    }

    /// All of the metadata, as the marker of an upload keeps it.
    pub fn to_json(&self) -> Json {
        let mut rest = self.rest(true);
        let kind = &self.metadata.headers.content_type;
        let system = SYSTEM.into_iter().zip(self.metadata.headers.values());
        let system = system.filter_map(|(name, text)| Some((name.to_string(), Json::from(text.as_deref()?))));
        rest["headers"] = Json::Object(system.collect());
        rest["headers"][CONTENT_TYPE.as_str()] = json!(kind);
        rest["class"] = json!(self.metadata.classes.object.map(|class| class.value()));
        rest
    }

    /// Reads it back.
    pub fn from_json(document: &Json) -> Result<Self> {
        let mut kept = Self::default();
        kept.read_rest(document.to_string().as_bytes())?;
        if let Some(class) = document["class"].as_u64() {
            kept.metadata.classes.object = Some(Classes::parse_object(&class.to_string())?);
        }
        Ok(kept)
    }
}

/// A type as a listing or an answer has it: the type, and the tag that stands behind it.
pub(super) fn listed_etag(kind: &str) -> (&str, Option<ETag>) {
    match kind.rsplit_once(LISTED_ETAG) {
        Some((kind, tag)) => (kind, Some(ETag::from_tag(tag))),
        None => (kind, None),
    }
}

/// The tag of an object that Swift makes of others, where nobody said another: the MD5 of its bytes it is not.
pub(super) fn assembled_etag(tag: &str) -> ETag {
    ETag::from_tag(&format!("{}-slo", ETag::from_text(tag).as_str()))
}

fn own(name: &str) -> HeaderName {
    HeaderName::try_from(format!("{USER}{OWN}{name}"))
        .unwrap_or(HeaderName::from_static("x-object-meta-tradewind"))
}

fn weigh(headers: &HeaderMap) -> (usize, usize) {
    let metadata =
        headers.iter().filter_map(|(name, value)| Some((name.as_str().strip_prefix(USER)?, value)));
    metadata.fold((0, 0), |(bytes, count), (name, value)| (bytes + name.len() + value.len(), count + 1))
}

fn more_is_empty(more: &Json) -> bool {
    let is_empty = |value: &Json| match value {
        Json::Object(map) => map.is_empty(),
        Json::Array(list) => list.is_empty(),
        value => value.is_null(),
    };
    more.as_object().is_none_or(|fields| fields.values().all(is_empty))
}

/// Whether text goes through a header unharmed.
fn is_plain(text: &str) -> bool {
    let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    is_printable
        && text.trim() == text
        && !text.is_empty()
        && text.len() <= MOST_VALUE_BYTES
        && !text.contains(LISTED_ETAG)
}

fn is_visible(name: &str, text: &str) -> bool {
    let is_kept = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_name = name.bytes().all(is_kept) && !name.is_empty() && name.len() <= MOST_NAME_BYTES;
    is_name && !name.starts_with(OWN) && is_plain(text)
}

fn lossy(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn pairs(list: &Json) -> Result<Vec<(String, String)>> {
    let pair = |pair: &Json| Some((pair[0].as_str()?.to_owned(), pair[1].as_str()?.to_owned()));
    let all: Option<Vec<_>> =
        list.as_array().map_or(Some(Vec::new()), |list| list.iter().map(pair).collect());
    all.ok_or_else(|| broken("metadata"))
}

/// Whether there are programs that keep objects so and do not know the algorithm.
const fn is_of_later(algorithm: Algorithm) -> bool {
    !matches!(
        algorithm,
        Algorithm::Crc32 | Algorithm::Crc32c | Algorithm::Crc64Nvme | Algorithm::Sha1 | Algorithm::Sha256
    )
}

fn broken(what: &str) -> Error {
    Error::new(Reason::CorruptData, format!("the store answered {what} of an object that nobody wrote so"))
}

#[cfg(test)]
mod tests;
