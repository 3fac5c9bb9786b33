//! Checksums between the wire and the port: the values that a request declares for its bytes, in headers or in the
//! trailer of a chunked body, and the stored values in responses. The store compares them before it commits.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use tradewind_core::object::Expected;
use tradewind_core::{Algorithm, Checksum, ChecksumScope};

use super::call::Call;
use super::failure::{Failure, Result};
use super::operation::Operation;
use crate::chunked::malformed_trailer;
use crate::error::Code;

/// The checksums that a request declares for its body.
#[derive(Debug, Default)]
pub(super) struct DeclaredChecksums {
    /// `Content-MD5`.
    pub(super) md5: Option<[u8; 16]>,
    /// The value of a header.
    pub(super) in_header: Option<Checksum>,
    /// The algorithm of a value that follows in the trailer.
    pub(super) trailing: Option<Algorithm>,
}

impl DeclaredChecksums {
    /// Reads the headers. Headers with unknown names were rejected before.
    pub(super) fn read(call: &Call) -> Result<Self> {
        let declared =
            Self { md5: content_md5(call)?, in_header: header_value(call)?, trailing: trailing(call)? };
        if declared.in_header.is_some() && declared.trailing.is_some() {
            return Err(more_than_one());
        }
        if let Some(named) = named_algorithm(call, "x-amz-sdk-checksum-algorithm")? {
            match declared.algorithm() {
                Some(algorithm) if algorithm == named => {}
                Some(_) => return Err(invalid_value("x-amz-sdk-checksum-algorithm")),
                None if declared.md5.is_some() => {}
                None => {
                    return Err(Failure::invalid_request(
                        "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or \
                         x-amz-trailer headers were found.",
                    ));
                }
            }
        }
        Ok(declared)
    }

    /// Reads the headers of a request with an XML body. A completion's checksum headers refer to the object that it
    /// creates, its trailer to the XML.
    pub(super) fn for_document(call: &Call) -> Result<Self> {
        if call.operation == Operation::CompleteMultipartUpload {
            return Ok(Self { md5: content_md5(call)?, in_header: None, trailing: trailing(call)? });
        }
        Self::read(call)
    }

    /// The algorithm declared by the client, in a header or for the trailer.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.in_header.map(|c| c.algorithm()).or(self.trailing)
    }

    /// The values that the commit must verify. Call after the body was read to its end.
    pub(super) fn expected(&self, call: &Call, size: Option<u64>) -> Result<Expected> {
        let mut checksums: Vec<Checksum> = self.in_header.into_iter().collect();
        if let Some(algorithm) = self.trailing {
            let value = call.auth.trailers.get().and_then(|trailers| trailers.get(algorithm.header()));
            let value = value
                .and_then(|value| value.to_str().ok())
                .ok_or_else(|| malformed_trailer(format!("{} is missing", algorithm.header())))?;
            let value = Checksum::from_base64(algorithm, value).map_err(|_| {
                Failure::invalid_request(format!(
                    "Value for {} trailing header is invalid.",
                    algorithm.header()
                ))
            })?;
            checksums.push(value);
        }
        Ok(Expected { size, md5: self.md5, checksums, reported: None })
    }

    /// Verifies a body in memory.
    pub(super) fn verify(&self, call: &Call, body: &[u8]) -> Result<()> {
        let expected = self.expected(call, None)?;
        let computed: Vec<Checksum> =
            expected.checksums.iter().map(|c| Checksum::compute(c.algorithm(), body)).collect();
        let md5 = expected.md5.map(|_| {
            use md5::Digest as _;
            md5::Md5::digest(body).into()
        });
        Ok(expected.verify(body.len() as u64, md5, &computed)?)
    }

    /// Returns true if no checksum was declared.
    pub(super) const fn is_empty(&self) -> bool {
        self.md5.is_none() && self.in_header.is_none() && self.trailing.is_none()
    }
}

/// The single value in `x-amz-checksum-*` headers.
fn header_value(call: &Call) -> Result<Option<Checksum>> {
    let Some((algorithm, text)) = value_text(call)? else { return Ok(None) };
    parse_value(algorithm, text).map(Some)
}

/// The value that a completion declares for the whole object, with the number of parts if it is composite.
pub(super) fn completion_checksum(call: &Call) -> Result<Option<(Checksum, Option<usize>)>> {
    let Some((algorithm, text)) = value_text(call)? else { return Ok(None) };
    let (value, parts) = match text.split_once('-') {
        Some((value, parts)) => {
            let parts = parts.parse().map_err(|_| invalid_value(algorithm.header()))?;
            (value, Some(parts))
        }
        None => (text, None),
    };
    Ok(Some((parse_value(algorithm, value)?, parts)))
}

/// The single header with a value. Visits all headers once, regardless of the number of algorithms.
fn value_text(call: &Call) -> Result<Option<(Algorithm, &str)>> {
    let mut found = None;
    for (name, value) in &call.headers {
        let Some(algorithm) = Algorithm::from_header(name.as_str()) else { continue };
        let text = value.to_str().map_err(|_| invalid_value(algorithm.header()))?;
        if found.replace((algorithm, text)).is_some() {
            return Err(more_than_one());
        }
    }
    Ok(found)
}

/// The algorithm of the single value in the trailer.
fn trailing(call: &Call) -> Result<Option<Algorithm>> {
    match &call.auth.announced_trailers[..] {
        [] => Ok(None),
        [name] => {
            Algorithm::from_header(name.as_str()).map(Some).ok_or_else(|| unknown_algorithm(name.as_str()))
        }
        _ => Err(more_than_one()),
    }
}

fn more_than_one() -> Failure {
    Failure::invalid_request(
        "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.",
    )
}

/// The error of a checksum header with an invalid value.
pub(super) fn invalid_value(header: &str) -> Failure {
    Failure::invalid_request(format!("Value for {header} header is invalid."))
}

/// The error of a header with an unsupported algorithm.
pub(super) fn unknown_algorithm(header: &str) -> Failure {
    let known = Algorithm::ALL.map(Algorithm::name).join(", ");
    Failure::invalid_request(format!(
        "The checksum algorithm in {header} is unsupported. Please try again with any of the valid types: [{known}]"
    ))
}

/// The error of a checksum of another algorithm than the upload's, or of a missing one.
pub(super) fn type_mismatch(expected: Algorithm, actual: Option<Algorithm>) -> Failure {
    Failure::invalid_request(format!(
        "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
        expected.name().to_ascii_lowercase(),
        actual.map_or("null".to_owned(), |actual| actual.name().to_ascii_lowercase())
    ))
}

/// Parses a value in Base64.
pub(super) fn parse_value(algorithm: Algorithm, text: &str) -> Result<Checksum> {
    Checksum::from_base64(algorithm, text).map_err(|_| invalid_value(algorithm.header()))
}

fn content_md5(call: &Call) -> Result<Option<[u8; 16]>> {
    let invalid = || Failure::new(Code::InvalidDigest, "The Content-MD5 you specified was invalid.");
    if !call.headers.contains_key("content-md5") {
        return Ok(None);
    }
    let text = call.header("content-md5")?.ok_or_else(invalid)?;
    let bytes = BASE64.decode(text).map_err(|_| invalid())?;
    bytes.try_into().map(Some).map_err(|_| invalid())
}

/// The algorithm named by a header; `None` if the header is absent.
pub(super) fn named_algorithm(call: &Call, header: &str) -> Result<Option<Algorithm>> {
    call.header(header)?.map(|text| text.parse().map_err(|_| unknown_algorithm(header))).transpose()
}

/// A value in S3's format: a composite one ends with the number of parts.
pub(super) fn value(checksum: &Checksum, scope: ChecksumScope, parts: Option<u32>) -> String {
    match (scope, parts) {
        (ChecksumScope::Composite, Some(parts)) => format!("{}-{parts}", checksum.to_base64()),
        _ => checksum.to_base64(),
    }
}

/// Adds the response headers for the stored values.
pub(crate) fn add_headers(
    headers: &mut HeaderMap,
    checksums: &[Checksum],
    scope: Option<ChecksumScope>,
    parts: Option<u32>,
) {
    for checksum in checksums {
        let text = value(checksum, scope.unwrap_or(ChecksumScope::FullObject), parts);
        if let Ok(text) = HeaderValue::from_str(&text) {
            headers.insert(HeaderName::from_static(checksum.algorithm().header()), text);
        }
    }
    if let (Some(scope), false) = (scope, checksums.is_empty()) {
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(scope.name()));
    }
}

/// Fills the checksum fields common to many outputs of `s3s`. It supports five algorithms; values of the others are
/// encoded in the field of SHA-256 (see [`elements`](super::elements)).
macro_rules! fill_checksums {
    ($output:expr, $checksums:expr, $scope:expr, $parts:expr) => {
        for checksum in $checksums {
            let text = $crate::s3::checksums::value(checksum, $scope, $parts);
            match checksum.algorithm() {
                tradewind_core::Algorithm::Crc32 => $output.checksum_crc32 = Some(text),
                tradewind_core::Algorithm::Crc32c => $output.checksum_crc32c = Some(text),
                tradewind_core::Algorithm::Crc64Nvme => $output.checksum_crc64nvme = Some(text),
                tradewind_core::Algorithm::Sha1 => $output.checksum_sha1 = Some(text),
                other => $crate::s3::elements::add(&mut $output.checksum_sha256, other, &text),
            }
        }
    };
}
pub(super) use fill_checksums;
