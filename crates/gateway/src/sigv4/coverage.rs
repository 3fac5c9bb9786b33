//! What a signature must cover, and in which form it says so.

use http::HeaderMap;

use super::credential::does_not_match;
use crate::error::{Code, WireError};

/// Refuses names that are not in the one form that the signature's text has: in lower case, in ascending
/// order, each once, no more than there are headers. Other names would make that text longer than the
/// request by a factor of the client's choice.
pub(crate) fn check_names(headers: &HeaderMap, names: &str) -> Result<(), WireError> {
    let mut last = "";
    for (n, name) in names.split(';').enumerate() {
        if name <= last || name.bytes().any(|c| c.is_ascii_uppercase()) || n >= headers.keys_len() {
            return Err(does_not_match());
        }
        last = name;
    }
    Ok(())
}

/// Refuses a request with a header that matters and is not signed.
pub(crate) fn check_coverage(headers: &HeaderMap, names: &str) -> Result<(), WireError> {
    let signed = |name: &str| names.split(';').any(|n| n == name);
    let matters =
        |name: &str| name.starts_with("x-amz-") || name.starts_with("x-dss-") || name == "content-md5";
    let uncovered = headers.keys().map(http::HeaderName::as_str).any(|name| matters(name) && !signed(name));
    if uncovered || !signed("host") {
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
    fn names_have_one_form() {
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
