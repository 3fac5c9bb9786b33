//! Headers that request unsupported features. A request with one is rejected, because ignoring it would pretend that
//! the feature works. The same holds for a checksum that would not be verified.

use http::{HeaderMap, HeaderValue};
use tradewind_core::{Algorithm, ChecksumScope};

use super::checksums;
use super::failure::{Failure, Result};
use crate::error::Code;

/// Rejected regardless of their value.
const REJECTED_NAMES: &[&str] = &[
    "x-amz-if-match-initiated-time",
    "x-amz-if-match-last-modified-time",
    "x-amz-if-match-size",
    "x-amz-mfa",
    "x-amz-rename-source",
    "x-amz-write-offset-bytes",
];

/// Rejected if a name begins with one of these.
const REJECTED_PREFIXES: &[&str] =
    &["x-amz-copy-source-server-side-encryption", "x-amz-server-side-encryption"];

/// Rejected unless they request the existing behaviour.
const ALLOWED_VALUES: &[(&str, &[&str])] = &[
    ("x-amz-bucket-object-lock-enabled", &["false", "False"]),
    ("x-amz-object-ownership", &["BucketOwnerEnforced"]),
];

/// Values of `x-amz-acl` that request the existing behaviour.
const ALLOWED_ACLS: &[&[u8]] = &[b"private", b"bucket-owner-full-control"];

/// S3's message for retention in a bucket without object lock.
pub(super) const NO_OBJECT_LOCK: &str = "Bucket is missing Object Lock Configuration";

/// An error that S3 has for a bucket without a feature. It is returned only if the bucket exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FixedError {
    /// Access control lists are disabled. Unlike a 501, clients do not retry it.
    Acl,
    /// The bucket has no object lock.
    ObjectLock,
}

impl From<FixedError> for Failure {
    fn from(error: FixedError) -> Self {
        match error {
            FixedError::Acl => {
                Self::new(Code::AccessControlListNotSupported, "The bucket does not allow ACLs.")
            }
            FixedError::ObjectLock => Self::new(Code::InvalidRequest, NO_OBJECT_LOCK),
        }
    }
}

/// Checks a request's headers. Returns the error that they cause if the bucket exists.
///
/// # Errors
/// A header requests a feature that no bucket has, or is malformed.
pub(super) fn check(headers: &HeaderMap) -> Result<Option<FixedError>> {
    let mut fixed = None;
    for (name, value) in headers {
        let name = name.as_str();
        if !name.starts_with("x-amz-") {
            continue;
        }
        let is_rejected = REJECTED_NAMES.contains(&name)
            || REJECTED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || ALLOWED_VALUES.iter().any(|(other, allowed)| {
                *other == name && !allowed.iter().any(|v| v.as_bytes() == value.as_bytes())
            });
        if is_rejected {
            return Err(Failure::not_implemented(name));
        }
        if name.starts_with("x-amz-grant-")
            || name == "x-amz-acl" && !ALLOWED_ACLS.contains(&value.as_bytes())
        {
            fixed.get_or_insert(FixedError::Acl);
        }
        if name.starts_with("x-amz-object-lock-") {
            fixed.get_or_insert(FixedError::ObjectLock);
        }
        check_checksum(name, value)?;
    }
    Ok(fixed)
}

/// Rejects a checksum of an unknown algorithm, and one without a value.
fn check_checksum(name: &str, value: &HeaderValue) -> Result<()> {
    let is_about_checksums = match name {
        "x-amz-checksum-mode" => return Ok(()),
        "x-amz-checksum-type" | "x-amz-checksum-algorithm" | "x-amz-sdk-checksum-algorithm" => true,
        _ => name.starts_with("x-amz-checksum-"),
    };
    if !is_about_checksums {
        return Ok(());
    }
    let text = value.to_str().map_or("", str::trim);
    match name {
        _ if text.is_empty() => Err(checksums::invalid_value(name)),
        "x-amz-checksum-algorithm" | "x-amz-sdk-checksum-algorithm" => {
            text.parse::<Algorithm>().map(drop).map_err(|_| checksums::unknown_algorithm(name))
        }
        "x-amz-checksum-type" => {
            text.parse::<ChecksumScope>().map(drop).map_err(|_| checksums::invalid_value(name))
        }
        _ if Algorithm::from_header(name).is_none() => Err(checksums::unknown_algorithm(name)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn only_headers_without_effect_are_accepted() {
        let passes = |name: &'static str, value: &'static str| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            check(&headers).is_ok_and(|fixed| fixed.is_none())
        };
        assert!(passes("x-amz-acl", "private"));
        assert!(!passes("x-amz-acl", "public-read"));
        assert!(!passes("x-amz-server-side-encryption", "AES256"));
        assert!(!passes("x-amz-grant-read", "id=1"));
        assert!(!passes("x-amz-object-lock-mode", "GOVERNANCE"));
        assert!(passes("x-amz-meta-server-side-encryption", "AES256"));
        assert!(passes("x-amz-request-payer", "requester"));
    }

    #[test]
    fn checksums_that_would_not_be_verified_are_rejected() {
        let rejection_code = |name: &'static str, value: &'static str| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            check(&headers).err().map(|failure| {
                assert!(failure.error.message().contains(name), "{}", failure.error.message());
                failure.code()
            })
        };
        let invalid = Some(crate::error::Code::InvalidRequest);
        for algorithm in Algorithm::ALL {
            assert_eq!(rejection_code(algorithm.header(), "AAAA"), None, "its value is verified later");
            assert_eq!(rejection_code(algorithm.header(), " "), invalid);
            assert_eq!(rejection_code("x-amz-checksum-algorithm", algorithm.name()), None);
            assert_eq!(rejection_code("x-amz-sdk-checksum-algorithm", algorithm.name()), None);
        }
        for name in ["x-amz-checksum-blake3", "x-amz-checksum-", "x-amz-checksum-sha-256"] {
            assert_eq!(rejection_code(name, "AAAA"), invalid, "{name}");
        }
        for name in ["x-amz-checksum-algorithm", "x-amz-sdk-checksum-algorithm"] {
            assert_eq!((rejection_code(name, "BLAKE3"), rejection_code(name, "")), (invalid, invalid));
        }
        for value in ["", "full", "FULL-OBJECT", "WHOLE"] {
            assert_eq!(rejection_code("x-amz-checksum-type", value), invalid, "{value}");
        }
        for value in ["FULL_OBJECT", "COMPOSITE", "full_object", "Composite"] {
            assert_eq!(rejection_code("x-amz-checksum-type", value), None, "{value}");
        }
        assert_eq!(rejection_code("x-amz-checksum-mode", ""), None);
        assert_eq!(rejection_code("x-amz-meta-x-amz-checksum-blake3", "x"), None);
    }
}
