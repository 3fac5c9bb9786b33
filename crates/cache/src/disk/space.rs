//! The room for the extents on their file system: a cache never takes the last part of it.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::statvfs;
use tradewind_core::quantity::ByteSize;

/// The part of a file system that a cache leaves free: one in this many bytes.
const KEPT_SHARE_DIVISOR: u64 = 20;

/// A cache that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LackOfSpace {
    /// The size of the cache in bytes.
    pub wanted_bytes: u64,
    /// The largest size that fits, in bytes: what the cache has already, and the free space without the part that is kept.
    pub available_bytes: u64,
    /// The free bytes of the file system.
    pub free_bytes: u64,
}

impl fmt::Display for LackOfSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded =
            |bytes: u64| ByteSize(if bytes < 10 << 30 { bytes >> 20 << 20 } else { bytes >> 30 << 30 });
        write!(
            f,
            "the cache has {}, but its file system has {} free, and a cache leaves 5 % of a file system: \
             set a size of at most {}",
            ByteSize(self.wanted_bytes),
            rounded(self.free_bytes),
            rounded(self.available_bytes),
        )
    }
}

/// Verifies that a cache of this size fits into a directory, which need not exist. `Ok(None)` if it does.
///
/// # Errors
/// The file system cannot be queried.
pub fn lack_of_space(directory: &Path, wanted_bytes: u64) -> io::Result<Option<LackOfSpace>> {
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let found = statvfs(existing)?;
    let allocated_bytes = match fs::metadata(directory.join(super::directory::EXTENTS)) {
        Ok(metadata) => metadata.blocks() * 512,
        Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
        Err(e) => return Err(e),
    };
    let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
    let kept_bytes = found.f_blocks.saturating_mul(found.f_frsize) / KEPT_SHARE_DIVISOR;
    let available_bytes = allocated_bytes.saturating_add(free_bytes.saturating_sub(kept_bytes));
    Ok((wanted_bytes > available_bytes).then_some(LackOfSpace { wanted_bytes, available_bytes, free_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_larger_than_the_free_space_lacks_space() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("not/yet");
        assert_eq!(lack_of_space(&missing, 1 << 20).unwrap(), None);
        let lack = lack_of_space(&missing, u64::MAX).unwrap().unwrap();
        assert!(lack.available_bytes < lack.free_bytes, "a part is kept: {lack:?}");
        let file = fs::File::create(directory.path().join("extents")).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
        let with_file = lack_of_space(directory.path(), u64::MAX).unwrap().unwrap();
        assert!(with_file.available_bytes > lack.available_bytes / 2, "{with_file:?}");
    }
}
