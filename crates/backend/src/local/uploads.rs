//! External upload ids: the number of the upload's creation in hexadecimal.

use tradewind_core::error::{Error, Result};
use tradewind_core::multipart::UploadId;

use super::record::UploadSeq;

/// The id visible to clients.
pub(crate) fn format_id(upload: UploadSeq) -> String {
    format!("{upload:016x}")
}

/// The number in an id; any other text identifies no upload.
pub(crate) fn parse_id(id: &UploadId) -> Result<UploadSeq> {
    let digits = &id.0;
    let canonical =
        digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let number = canonical.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    number.ok_or_else(|| Error::no_such_upload(digits))
}
