//! Checksums between the wire and the port: what a request promises about its bytes, in headers or in
//! the trailer of a chunked body, and how the kept values are answered. The store does the comparing,
//! before anything is committed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use tradewind_core::object::Expected;
use tradewind_core::{Algorithm, Checksum, ChecksumScope};

use super::call::Call;
use super::failure::{Failure, Result};
use super::operation::Operation;
use crate::error::Code;

/// What a request promises about its body.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// `Content-MD5`.
    pub(super) md5: Option<[u8; 16]>,
    /// A value from a header.
    pub(super) promised: Option<Checksum>,
    /// The value will come in the trailer.
    pub(super) trailing: Option<Algorithm>,
}

impl Plan {
    /// Reads the headers.
    pub(super) fn read(call: &Call) -> Result<Self> {
        let promised = header_value(call)?;
        let mut trailing = None;
        for name in &call.auth.announced_trailers {
            let algorithm =
                Algorithm::ALL.into_iter().find(|a| name.as_str() == a.header()).ok_or_else(|| {
                    Failure::request("The value specified in the x-amz-trailer header is not supported")
                })?;
            if trailing.is_some() || promised.is_some() {
                return Err(several());
            }
            trailing = Some(algorithm);
        }
        let plan = Self { md5: content_md5(call)?, promised, trailing };
        if let Some(named) = call.header("x-amz-sdk-checksum-algorithm")? {
            let named: Algorithm = named
                .parse()
                .map_err(|_| Failure::request("Value for x-amz-sdk-checksum-algorithm header is invalid."))?;
            match plan.algorithm() {
                Some(algorithm) if algorithm == named => {}
                Some(_) => {
                    return Err(Failure::request(
                        "Value for x-amz-sdk-checksum-algorithm header is invalid.",
                    ));
                }
                None if plan.md5.is_some() => {}
                None => {
                    return Err(Failure::request(
                        "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or \
                         x-amz-trailer headers were found.",
                    ));
                }
            }
        }
        Ok(plan)
    }

    /// Reads the headers of a request whose body is XML. A completion's checksum headers speak of the object
    /// that it makes, not of the XML.
    pub(super) fn of_document(call: &Call) -> Result<Self> {
        if call.operation == Operation::CompleteMultipartUpload {
            return Ok(Self { md5: content_md5(call)?, ..Self::default() });
        }
        Self::read(call)
    }

    /// The algorithm that the client named, by value or by trailer.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.promised.map(|c| c.algorithm()).or(self.trailing)
    }

    /// What the commit must find, once the body was read to its end.
    pub(super) fn expected(&self, call: &Call, size: Option<u64>) -> Result<Expected> {
        let mut checksums: Vec<Checksum> = self.promised.into_iter().collect();
        if let Some(algorithm) = self.trailing {
            let value = call.auth.trailers.get().and_then(|trailers| trailers.get(algorithm.header()));
            let value = value.and_then(|value| value.to_str().ok()).ok_or_else(|| {
                Failure::new(
                    Code::MalformedTrailer,
                    format!(
                        "The request contained trailing data that was not well-formed: {} is missing",
                        algorithm.header()
                    ),
                )
            })?;
            checksums.push(parse(algorithm, value)?);
        }
        Ok(Expected { size, md5: self.md5, checksums })
    }

    /// Compares with a body that is in memory.
    pub(super) fn verify(&self, call: &Call, body: &[u8]) -> Result<()> {
        let expected = self.expected(call, None)?;
        let computed: Vec<Checksum> =
            expected.checksums.iter().map(|c| Checksum::of(c.algorithm(), body)).collect();
        let md5 = expected.md5.map(|_| {
            use md5::Digest as _;
            md5::Md5::digest(body).into()
        });
        Ok(expected.verify(body.len() as u64, md5, &computed)?)
    }

    /// Whether nothing was promised.
    pub(super) const fn is_empty(&self) -> bool {
        self.md5.is_none() && self.promised.is_none() && self.trailing.is_none()
    }
}

/// The one value in `x-amz-checksum-*` headers.
fn header_value(call: &Call) -> Result<Option<Checksum>> {
    let mut found = None;
    for algorithm in Algorithm::ALL {
        let Some(text) = call.header(algorithm.header())? else { continue };
        if found.replace(parse(algorithm, text)?).is_some() {
            return Err(several());
        }
    }
    Ok(found)
}

/// The value that a completion promises of the whole object, with the number of parts where it is
/// composite.
pub(super) fn of_completion(call: &Call) -> Result<Option<(Checksum, Option<usize>)>> {
    let mut found = None;
    for algorithm in Algorithm::ALL {
        let Some(text) = call.header(algorithm.header())? else { continue };
        let (value, parts) = match text.split_once('-') {
            Some((value, parts)) => {
                let parts = parts.parse().map_err(|_| invalid_value(algorithm))?;
                (value, Some(parts))
            }
            None => (text, None),
        };
        if found.replace((parse(algorithm, value)?, parts)).is_some() {
            return Err(several());
        }
    }
    Ok(found)
}

fn several() -> Failure {
    Failure::request("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
}

fn invalid_value(algorithm: Algorithm) -> Failure {
    Failure::request(format!("Value for {} header is invalid.", algorithm.header()))
}

/// Reads a value in base64.
pub(super) fn parse(algorithm: Algorithm, text: &str) -> Result<Checksum> {
    Checksum::from_base64(algorithm, text).map_err(|_| invalid_value(algorithm))
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

/// The algorithm in a header that names one.
pub(super) fn named(call: &Call, header: &str) -> Result<Option<Algorithm>> {
    call.header(header)?
        .map(|text| {
            text.parse().map_err(|_| {
                Failure::request("Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]")
            })
        })
        .transpose()
}

/// How S3 writes a value: composite ones end in the number of parts.
pub(super) fn value(checksum: &Checksum, scope: ChecksumScope, parts: Option<u32>) -> String {
    match (scope, parts) {
        (ChecksumScope::Composite, Some(parts)) => format!("{}-{parts}", checksum.to_base64()),
        _ => checksum.to_base64(),
    }
}

/// Adds the headers that answer the values kept.
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

/// Fills the five checksum fields that many outputs of `s3s` have.
macro_rules! fill_checksums {
    ($output:expr, $checksums:expr, $scope:expr, $parts:expr) => {
        for checksum in $checksums {
            let text = Some($crate::s3::checksums::value(checksum, $scope, $parts));
            match checksum.algorithm() {
                tradewind_core::Algorithm::Crc32 => $output.checksum_crc32 = text,
                tradewind_core::Algorithm::Crc32c => $output.checksum_crc32c = text,
                tradewind_core::Algorithm::Crc64Nvme => $output.checksum_crc64nvme = text,
                tradewind_core::Algorithm::Sha1 => $output.checksum_sha1 = text,
                tradewind_core::Algorithm::Sha256 => $output.checksum_sha256 = text,
            }
        }
    };
}
pub(super) use fill_checksums;
