//! Version ids in requests and responses: the `versionId` of a query, a copy source or a document, and the headers that
//! name a version.

use http::{HeaderMap, HeaderName, HeaderValue};
use tradewind_core::store::Deleted;
use tradewind_core::version::VersionId;

use super::failure::{Failure, Result};

/// The query parameter that names a version.
pub(super) const PARAMETER: &str = "versionId";

/// The header that names the version that a request read, wrote or deleted.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-amz-version-id");

/// The header that states that a delete marker was added, deleted or found.
pub(super) const DELETE_MARKER_HEADER: HeaderName = HeaderName::from_static("x-amz-delete-marker");

/// Parses the id of a version. Fails with `InvalidArgument` if it is empty or malformed.
pub(super) fn parse(text: &str) -> Result<VersionId> {
    if text.is_empty() {
        return Err(Failure::invalid_argument("Version id cannot be the empty string", PARAMETER, text));
    }
    VersionId::parse(text)
        .map_err(|_| Failure::invalid_argument("Invalid version id specified", PARAMETER, text))
}

/// Adds the header of a version, if there is one. An id of another store that is no valid header value is omitted.
pub(super) fn add_header(headers: &mut HeaderMap, version: Option<&VersionId>) {
    if let Some(Ok(value)) = version.map(|version| HeaderValue::from_bytes(version.as_str().as_bytes())) {
        headers.insert(HEADER, value);
    }
}

/// The version that the response to a write names. S3 does not name the `null` version there: a write to a bucket whose
/// versioning is suspended has no version in its response, as if versioning had never been enabled.
pub(super) fn named_by_write(version: Option<&VersionId>) -> Option<&VersionId> {
    version.filter(|version| **version != VersionId::Null)
}

/// Adds the headers of a delete: the version, and whether it is a delete marker.
pub(super) fn add_deleted_headers(headers: &mut HeaderMap, deleted: &Deleted) {
    add_header(headers, deleted.version.as_ref());
    if deleted.is_delete_marker {
        headers.insert(DELETE_MARKER_HEADER, HeaderValue::from_static("true"));
    }
}

/// The headers of the error of a read that found a delete marker.
pub(super) fn delete_marker_headers(marker: &VersionId) -> HeaderMap {
    let mut headers = HeaderMap::new();
    add_header(&mut headers, Some(marker));
    headers.insert(DELETE_MARKER_HEADER, HeaderValue::from_static("true"));
    headers
}
