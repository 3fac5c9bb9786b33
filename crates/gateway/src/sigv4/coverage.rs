//! The headers that a signature must cover, and the canonical form of their list.

use http::HeaderMap;

use super::credential::signature_mismatch;
use crate::error::{Code, WireError};

/// Rejects a list of names that is not canonical: in lower case, in ascending order, each once, and no more names than
/// headers. Otherwise a client could make the canonical request longer than the request by any factor.
pub(crate) fn check_names(headers: &HeaderMap, names: &str) -> Result<(), WireError> {
    let mut last = "";
    for (n, name) in names.split(';').enumerate() {
        if name <= last || name.bytes().any(|c| c.is_ascii_uppercase()) || n >= headers.keys_len() {
            return Err(signature_mismatch());
        }
        last = name;
    }
    Ok(())
}

/// Rejects a request with an unsigned header that must be signed.
pub(crate) fn check_coverage(headers: &HeaderMap, names: &str) -> Result<(), WireError> {
    let is_signed = |name: &str| names.split(';').any(|n| n == name);
    let is_required =
        |name: &str| name.starts_with("x-amz-") || name.starts_with("x-dss-") || name == "content-md5";
    let is_uncovered =
        headers.keys().map(http::HeaderName::as_str).any(|name| is_required(name) && !is_signed(name));
    if is_uncovered || !is_signed("host") {
        return Err(WireError::new(
            Code::AccessDenied,
            "There were headers present in the request which were not signed",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_accepted() {
        let headers: HeaderMap = ["host", "x-amz-date", "content-type"]
            .map(|name| (http::HeaderName::from_static(name), http::HeaderValue::from_static("v")))
            .into_iter()
            .collect();
        let check = |names| check_names(&headers, names).map_err(|e| e.code());
        assert_eq!(check("host"), Ok(()));
        assert_eq!(check("content-type;host;x-amz-date"), Ok(()));
        for names in
            ["", "host;host", "x-amz-date;host", "Host;host", "host;", ";host", "a;b;content-type;host"]
        {
            assert_eq!(check(names), Err(Code::SignatureDoesNotMatch), "{names}");
        }
    }
}
