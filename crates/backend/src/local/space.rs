//! Free space: writes are refused while some is left, so that what frees space (deletes, compaction)
//! and the index can still be written.

use std::fs::File;
use std::path::PathBuf;

use parking_lot::Mutex;
use tradewind_core::error::{Error, Reason, Result};

use super::io::io_error;

/// Watches the device's free space.
pub(crate) struct Space {
    directory: File,
    reserve_bytes: u64,
    known: Mutex<Known>,
}

/// What was free when last asked, less what was written since.
#[derive(Default)]
struct Known {
    free: u64,
    written_since: u64,
}

/// The device is asked again after this many bytes, or when its answer was near the reserve.
const ASK_EVERY_BYTES: u64 = 16 << 20;

impl Space {
    pub fn open(directory: PathBuf, reserve_bytes: u64) -> Result<Self> {
        let directory = File::open(&directory).map_err(|e| io_error("the store's directory could not be opened", e))?;
        Ok(Self { directory, reserve_bytes, known: Mutex::default() })
    }

    /// Refuses a write of `bytes` that would leave less than the reserve; `uses_reserve` is for writes
    /// that free space in the end.
    pub fn admit(&self, bytes: u64, uses_reserve: bool) -> Result<()> {
        if uses_reserve {
            return Ok(());
        }
        let mut known = self.known.lock();
        let left = |known: &Known| known.free.saturating_sub(known.written_since + bytes);
        if known.written_since >= ASK_EVERY_BYTES || left(&known) < self.reserve_bytes + ASK_EVERY_BYTES {
            *known = Known { free: self.free()?, written_since: 0 };
        }
        if left(&known) < self.reserve_bytes {
            return Err(Error::new(
                Reason::Full,
                format!(
                    "the store's device has {} MiB free and keeps {} MiB for deletes and compaction; delete objects or add space",
                    known.free >> 20,
                    self.reserve_bytes >> 20
                ),
            ));
        }
        known.written_since += bytes;
        Ok(())
    }

    /// Bytes free on the device for this process.
    pub fn free(&self) -> Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.directory)
            .map_err(|e| io_error("the device's free space could not be read", e.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
