//! The source of an upload.

use tradewind_core::error::Result;
use tradewind_core::multipart::UploadId;

/// Bytes that can be reread at any offset.
pub trait UploadSource: Send + Sync {
    /// Fills the buffer with the bytes at `offset`. It may block on the file system, but on nothing else.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// Called with the change in bytes sent; negative when a failed attempt is rolled back.
    fn report_sent(&self, bytes: i64) {
        let _ = bytes;
    }

    /// Fails if the bytes have changed since reading began.
    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }

    /// An earlier upload of the same bytes to resume, with its part size.
    fn resumable_upload(&self) -> Option<(UploadId, u64)> {
        None
    }

    /// An earlier upload of bytes that have changed since, to be aborted.
    fn stale_upload(&self) -> Option<UploadId> {
        None
    }

    /// Called when an upload in parts of `part_bytes` has been created. Returns true if that was persisted: a resumable
    /// failure ([`Error::is_resumable`](tradewind_core::error::Error::is_resumable)) then leaves the upload in the
    /// store, to be resumed later.
    fn upload_started(&self, upload: &UploadId, part_bytes: u64) -> bool {
        let _ = (upload, part_bytes);
        false
    }
}
