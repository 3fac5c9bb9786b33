//! Headers that ask for something that is not here. A request that carries one is refused with 501: to
//! ignore it would pretend.

use http::HeaderMap;

use super::failure::{Failure, Result};

/// Refused whatever they say.
const REFUSED: &[&str] = &[
    "x-amz-bypass-governance-retention",
    "x-amz-expected-bucket-owner",
    "x-amz-if-match-initiated-time",
    "x-amz-if-match-last-modified-time",
    "x-amz-if-match-size",
    "x-amz-mfa",
    "x-amz-rename-source",
    "x-amz-source-expected-bucket-owner",
    "x-amz-write-offset-bytes",
];

/// Refused with whatever follows.
const REFUSED_PREFIXES: &[&str] = &[
    "x-amz-copy-source-server-side-encryption",
    "x-amz-grant-",
    "x-amz-object-lock-",
    "x-amz-server-side-encryption",
];

/// Refused unless they say what is the case anyway.
const ALLOWED_VALUES: &[(&str, &[&str])] = &[
    ("x-amz-acl", &["private", "bucket-owner-full-control"]),
    ("x-amz-bucket-object-lock-enabled", &["false", "False"]),
    ("x-amz-object-ownership", &["BucketOwnerEnforced"]),
];

/// Looks for them.
pub(super) fn check(headers: &HeaderMap) -> Result<()> {
    for (name, value) in headers {
        let name = name.as_str();
        if !name.starts_with("x-amz-") {
            continue;
        }
        let is_refused = REFUSED.contains(&name)
            || REFUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || ALLOWED_VALUES.iter().any(|(other, allowed)| {
                *other == name && !allowed.iter().any(|v| v.as_bytes() == value.as_bytes())
            });
        if is_refused {
            return Err(Failure::not_implemented(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn only_what_is_so_anyway_passes() {
        let passes = |name: &'static str, value: &'static str| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            check(&headers).is_ok()
        };
        assert!(passes("x-amz-acl", "private"));
        assert!(!passes("x-amz-acl", "public-read"));
        assert!(!passes("x-amz-server-side-encryption", "AES256"));
        assert!(!passes("x-amz-grant-read", "id=1"));
        assert!(!passes("x-amz-object-lock-mode", "GOVERNANCE"));
        assert!(passes("x-amz-meta-server-side-encryption", "AES256"));
        assert!(passes("x-amz-request-payer", "requester"));
    }
}
