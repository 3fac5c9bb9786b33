//! How many files a measurement has, how they are accessed, and whether a form of access is possible at all.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tradewind_core::error::{Error, Reason, Result};

use super::form::{ALIGNMENT, Form};
use super::phase::Site;

/// Files of a batch, at the most, and how many bytes they take together unless each thread has but one.
const MOST_FILES: u64 = 10_000;
const MOST_BYTES: u64 = 512 << 20;
/// Memory of all threads together, in which contents are made and compared.
pub(super) const MOST_BUFFERS: u64 = 512 << 20;

/// Files of each of so many threads; all together as many as were asked for, or as are usual.
pub(super) fn files_of_thread(size: u64, threads: usize, asked: Option<u64>) -> u64 {
    let all = asked.unwrap_or_else(|| (MOST_BYTES / size.max(1)).clamp(1, MOST_FILES));
    all.div_ceil(threads.max(1) as u64)
}

/// Bytes of a call: a whole file, or as much of it as memory takes, in whole blocks.
pub(super) fn unit(size: u64, threads: usize) -> u64 {
    let most = MOST_BUFFERS / threads.max(1) as u64;
    if size <= most { size } else { (most / ALIGNMENT * ALIGNMENT).max(ALIGNMENT) }
}

/// Why a file cannot be opened in a form; `None` where it can.
pub(super) fn try_form(site: &Site, form: Form) -> Result<Option<String>> {
    let path = site.place.path(site.place.file(0)?);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | form.flags();
    let opened = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600));
    let told = match opened {
        Ok(_) => None,
        Err(e @ (Errno::INVAL | Errno::OPNOTSUPP)) if form == Form::Direct => {
            Some(format!("the file system does not support direct access: {e}"))
        }
        Err(e) => {
            let what = format!("{} cannot be made: {e}", path.display());
            return Err(Error::with_source(Reason::Io, what, e));
        }
    };
    // The kernel may have made it before it refused; nobody needs it either way.
    let _ = std::fs::remove_file(&path);
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_fill_threads_and_memory_bounds_calls() {
        assert_eq!(files_of_thread(4096, 1, None), 10_000);
        assert_eq!(files_of_thread(4096, 64, None), 157);
        assert_eq!(files_of_thread(16 << 20, 64, None), 1);
        assert_eq!(files_of_thread(1 << 40, 1, None), 1);
        assert_eq!(files_of_thread(4096, 8, Some(20)), 3);
        assert_eq!(unit(16 << 20, 1), 16 << 20);
        assert_eq!(unit(16 << 20, 64), 8 << 20);
        assert_eq!(unit(4096, 64), 4096);
    }
}
