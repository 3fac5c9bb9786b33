//! Sizing of batches: the number of files, bytes per call, and whether the file system supports an access form.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tradewind_core::error::{Error, Reason, Result};

use super::access_form::{AccessForm, DIRECT_ALIGNMENT_BYTES};
use super::phase::PosixEnv;

/// Default limits of a batch. Each thread has at least one file, even beyond `MAX_BATCH_BYTES`.
const MAX_BATCH_FILES: u64 = 10_000;
const MAX_BATCH_BYTES: u64 = 512 << 20;
/// Buffer memory of all threads together, for generating and comparing contents.
pub(super) const MAX_BUFFER_BYTES: u64 = 512 << 20;

/// The number of files per thread, given the requested total; `None` for the default total.
pub(super) fn files_per_thread(size: u64, threads: usize, requested: Option<u64>) -> u64 {
    let all = requested.unwrap_or_else(|| (MAX_BATCH_BYTES / size.max(1)).clamp(1, MAX_BATCH_FILES));
    all.div_ceil(threads.max(1) as u64)
}

/// Bytes per call: a whole file, or as many whole blocks of it as fit into a thread's buffer.
pub(super) fn call_bytes(size: u64, threads: usize) -> u64 {
    let max_bytes = MAX_BUFFER_BYTES / threads.max(1) as u64;
    if size <= max_bytes {
        size
    } else {
        (max_bytes / DIRECT_ALIGNMENT_BYTES * DIRECT_ALIGNMENT_BYTES).max(DIRECT_ALIGNMENT_BYTES)
    }
}

/// Opens a file in the given form. Returns the reason if the file system does not support it, otherwise `None`.
pub(super) fn unsupported_reason(env: &PosixEnv, form: AccessForm) -> Result<Option<String>> {
    let path = env.directory.file_path(env.directory.new_file(0)?);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | form.open_flags();
    let opened = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600));
    let unsupported = match opened {
        Ok(_) => None,
        Err(e @ (Errno::INVAL | Errno::OPNOTSUPP)) if form == AccessForm::Direct => {
            Some(format!("the file system does not support direct access: {e}"))
        }
        Err(e) => {
            let message = format!("cannot create {}: {e}", path.display());
            return Err(Error::with_source(Reason::Io, message, e));
        }
    };
    // The kernel may have created it before it rejected the flags.
    let _ = std::fs::remove_file(&path);
    Ok(unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_fills_all_threads_and_memory_bounds_calls() {
        assert_eq!(files_per_thread(4096, 1, None), 10_000);
        assert_eq!(files_per_thread(4096, 64, None), 157);
        assert_eq!(files_per_thread(16 << 20, 64, None), 1);
        assert_eq!(files_per_thread(1 << 40, 1, None), 1);
        assert_eq!(files_per_thread(4096, 8, Some(20)), 3);
        assert_eq!(call_bytes(16 << 20, 1), 16 << 20);
        assert_eq!(call_bytes(16 << 20, 64), 8 << 20);
        assert_eq!(call_bytes(4096, 64), 4096);
    }
}
