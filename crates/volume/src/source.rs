//! What is stored.

use tradewind_core::error::Result;
use tradewind_core::multipart::UploadId;

/// Bytes that can be read again, at any offset.
pub trait Source: Send + Sync {
    /// Fills the buffer with the bytes at `offset`. Short of blocking calls of the file system it does not wait.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// `bytes` more have left for the store. Those of an attempt that failed are told as a negative number.
    fn sent(&self, bytes: i64) {
        let _ = bytes;
    }

    /// An error where the bytes are not those that they were when reading began.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// An upload of these bytes that was begun before, with the size of its parts: it goes on.
    fn earlier(&self) -> Option<(UploadId, u64)> {
        None
    }

    /// An upload that was begun before, of bytes that are no longer these: it is given up.
    fn outdated(&self) -> Option<UploadId> {
        None
    }

    /// An upload begins, in parts of so many bytes. True where it is remembered: then what fails for now is left in the
    /// store, for it to go on another time.
    fn begun(&self, upload: &UploadId, part_bytes: u64) -> bool {
        let _ = (upload, part_bytes);
        false
    }
}
