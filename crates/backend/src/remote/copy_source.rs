//! The source of a server-side copy: its header, and the errors that both protocols report about it. The destination
//! may be a part; its bytes never pass through this process.

use http::HeaderValue;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::version::VersionId;
use tradewind_core::{Address, BucketName, ByteRange};
use tradewind_wire::sigv4::{encode_path, encode_query};

/// The header value that names the source: `/bucket/key`, percent-encoded, and S3's parameter for a version.
pub(crate) fn copy_source(
    bucket: &BucketName,
    key: &str,
    version: Option<&VersionId>,
) -> Result<HeaderValue> {
    let mut path = format!("/{bucket}/").into_bytes();
    encode_path(key, &mut path);
    if let Some(version) = version {
        path.extend_from_slice(b"?versionId=");
        encode_query(version.as_str(), &mut path);
    }
    HeaderValue::from_bytes(&path)
        .map_err(|e| Error::with_source(Reason::InvalidKey, "the source's key cannot be sent in a header", e))
}

/// Rejects a range beyond the end of a source of `size` bytes. S3 does, and so does the port.
pub(crate) fn check_source_range(range: ByteRange, size: u64) -> Result<()> {
    match range {
        ByteRange::Inclusive { last, .. } if last >= size => {
            Err(Error::new(Reason::InvalidRange, "the range must be within the source object"))
        }
        _ => Ok(()),
    }
}

/// The error of a copy during which another client has overwritten the object at `address`.
pub(crate) fn overwritten_error(address: &Address) -> Error {
    Error::new(Reason::Conflict, format!("key {:?} was overwritten during the copy", address.key.as_str()))
}
