//! Limits that S3 and Swift share. They are the limits of the protocols, or choices that hold for any remote store;
//! limits of one protocol only are next to their use.

use tradewind_core::error::{Error, Reason};

/// Maximum number of entries requested per page: S3's limit, and below Swift's 10,000.
pub(crate) const MAX_PAGE_ENTRIES: usize = 1000;
/// Maximum size of an object or a part in one request, in bytes: S3's limit, and the default of Swift's
/// `max_file_size`.
pub(crate) const MAX_REQUEST_OBJECT_BYTES: u64 = 5 << 30;
/// Objects and parts up to this size are buffered, so that they can be retried.
pub(crate) const MAX_BUFFERED_BYTES: u64 = 256 << 10;

/// The error of a part larger than [`MAX_REQUEST_OBJECT_BYTES`].
pub(crate) fn part_too_large_error() -> Error {
    Error::new(Reason::EntityTooLarge, "a part is limited to 5 GiB")
}
