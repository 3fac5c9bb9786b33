//! Uploads by an HTML form: a POST to a bucket. They are not implemented, so the response is S3's error for a form that is
//! none, and otherwise `NotImplemented`.

use http::{HeaderMap, HeaderValue, Method, header};

use super::operation::{Target, is_subresource, not_implemented_error};
use super::query::Query;
use crate::error::{Code, WireError};

/// The only media type of a form with a file.
const FORM: &str = "multipart/form-data";

/// Returns true for a request that S3 takes for an upload by a form.
pub(super) fn is_target(method: &Method, target: &Target, query: &Query) -> bool {
    *method == Method::POST
        && target.bucket.is_some()
        && target.key.is_none()
        && !query.names().any(is_subresource)
}

/// The error of an upload with these headers.
pub(super) fn error(headers: &HeaderMap) -> WireError {
    let media_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let media_type = String::from_utf8_lossy(media_type);
    let mut fields = media_type.split(';').map(str::trim);
    if !fields.next().is_some_and(|name| name.eq_ignore_ascii_case(FORM)) {
        return WireError::new(
            Code::PreconditionFailed,
            "At least one of the pre-conditions you specified did not hold.",
        )
        .with_field("Condition", "Bucket POST must be of the enclosure-type multipart/form-data");
    }
    let is_boundary = |field: &str| {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        name.eq_ignore_ascii_case("boundary") && !value.trim_matches('"').is_empty()
    };
    if !fields.any(is_boundary) {
        return WireError::new(
            Code::MalformedPostRequest,
            "The body of your POST request is not well-formed multipart/form-data.",
        );
    }
    not_implemented_error("form uploads by POST")
}
