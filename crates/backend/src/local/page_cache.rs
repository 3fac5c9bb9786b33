//! A look into the page cache that starts no I/O. A non-blocking read does not qualify: since Linux 5.10 it starts a
//! read of the device for what is missing.

use std::ffi::c_long;
use std::fs::File;
use std::os::fd::AsRawFd as _;

/// Number of the system call `cachestat` (Linux 6.5), the same on all architectures that Tradewind runs on.
const SYS_CACHESTAT: c_long = 451;

/// `struct cachestat_range`.
#[repr(C)]
struct CacheRange {
    offset: u64,
    length: u64,
}

/// `struct cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct CacheStatistics {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns true if the page cache has all pages of a range, possibly some that the device is still reading. Returns
/// false if the kernel does not say: before Linux 6.5, or in a sandbox without `cachestat`.
pub(super) fn is_cached(file: &File, offset: u64, length: usize) -> bool {
    let Some(last) = (length as u64).checked_sub(1).and_then(|last| offset.checked_add(last)) else {
        return true;
    };
    let page_bytes = rustix::param::page_size() as u64;
    let pages = last / page_bytes - offset / page_bytes + 1;
    let range = CacheRange { offset, length: length as u64 };
    let mut statistics = CacheStatistics::default();
    let no_flags = 0_u32;
    // SAFETY: the kernel reads the first structure and writes the second one, both of which outlive the call and have
    // the layout of its interface. The descriptor is open.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut statistics, no_flags)
    };
    result == 0 && statistics.cached >= pages
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// A file of 4 MiB below the build directory, whose file system has a device in most cases. `None`, with a line in the
    /// output, where the test can prove nothing: without `cachestat`, or on a file system that has its data only in the
    /// page cache.
    fn file_on_a_device() -> Option<File> {
        let tests = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(tests.parent().unwrap()).unwrap();
        file.write_all_at(&vec![7; 4 << 20], 0).unwrap();
        if !is_cached(&file, 0, 4 << 20) {
            println!("skipped: cachestat needs Linux 6.5, and is refused in some sandboxes");
            return None;
        }
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if is_cached(&file, 0, 1) {
            println!("skipped: the file system of the build directory keeps its data in the page cache");
            return None;
        }
        Some(file)
    }

    #[test]
    fn range_is_cached_if_all_of_its_pages_are() {
        let Some(file) = file_on_a_device() else { return };
        assert!(is_cached(&file, 5, 0));
        file.read_exact_at(&mut [0; 1], 2 << 20).unwrap();
        assert!(is_cached(&file, 2 << 20, 4_096));
        assert!(!is_cached(&file, (2 << 20) - (1 << 20), 2 << 20), "its beginning is missing");
        assert!(!is_cached(&file, (4 << 20) - 1, 4_096), "its end is missing");
    }

    #[test]
    fn look_into_the_page_cache_reads_nothing() {
        let Some(file) = file_on_a_device() else { return };
        for _ in 0..10 {
            assert!(!is_cached(&file, 0, 1 << 20));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!is_cached(&file, 0, 1), "a look started a read");
    }
}
