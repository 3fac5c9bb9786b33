//! Free space. Writes are rejected while there is still room for what frees space: deletes, compaction and the index.
//! Part of that room is a file of allocated blocks, which other programs cannot take; it is released when a delete
//! needs it and allocated again when there is room.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use tradewind_core::error::{Error, Reason, Result};

use super::io_threads::io_error;
use super::layout::Layout;

/// Maximum size of the file.
const MAX_FILE_BYTES: u64 = 32 << 20;
/// The reserve is at most the device's capacity divided by this.
const MAX_RESERVE_DIVISOR: u64 = 8;
/// Minimum segment size on a small device.
const MIN_SEGMENT_BYTES: u32 = 1 << 20;
/// The device is queried again after this many bytes, or when it was close to the limit.
const QUERY_INTERVAL_BYTES: u64 = 16 << 20;
/// The device is queried before each write of at least this size: another program may have taken the free space.
const MIN_QUERIED_WRITE_BYTES: u64 = 1 << 20;

/// Tracks the device's free space.
pub(crate) struct DeviceSpace {
    directory: File,
    /// Total reserve, including the file.
    reserve_bytes: u64,
    /// The configured reserve, before the limit by the device's size.
    configured_reserve_bytes: u64,
    file: File,
    file_bytes: u64,
    /// True if the file has its blocks.
    is_allocated: AtomicBool,
    /// Bytes that compaction is about to write.
    claimed: AtomicU64,
    /// Size of the largest write rejected as a whole since upkeep last did what it could.
    rejected_bytes: AtomicU64,
    /// Capacity of the device.
    device_bytes: u64,
    free_space: Mutex<FreeSpace>,
}

/// Space reserved for a compaction's writes until it is dropped.
pub(crate) struct SpaceClaim<'a>(&'a DeviceSpace);

impl Drop for SpaceClaim<'_> {
    fn drop(&mut self) {
        self.0.claimed.store(0, Ordering::Release);
    }
}

/// Free space when last queried, and the bytes written since.
#[derive(Default)]
struct FreeSpace {
    free: u64,
    written_since: u64,
}

impl DeviceSpace {
    pub fn open(layout: &Layout, configured_reserve_bytes: u64) -> Result<Self> {
        let directory = File::open(layout.segments())
            .map_err(|e| io_error("the store's directory could not be opened", e))?;
        let path = layout.reserve();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| io_error(&format!("{} could not be opened", path.display()), e))?;
        let device = stat(&directory)?;
        let reserve_bytes = configured_reserve_bytes.min(device.total / MAX_RESERVE_DIVISOR);
        let file_bytes = (reserve_bytes / 4).min(MAX_FILE_BYTES);
        let allocated =
            file.metadata().map_err(|e| io_error("the reserve could not be read", e))?.blocks() * 512;
        let held = AtomicBool::new(file_bytes > 0 && allocated >= file_bytes);
        let space = Self {
            directory,
            reserve_bytes,
            configured_reserve_bytes,
            file,
            file_bytes,
            is_allocated: held,
            claimed: AtomicU64::new(0),
            rejected_bytes: AtomicU64::new(0),
            device_bytes: device.total,
            free_space: Mutex::default(),
        };
        space.restore_file()?;
        // Opening itself writes to the index.
        space.release_file_if_full()?;
        Ok(space)
    }

    /// Rejects a write of `bytes` that would use the reserve.
    pub fn admit(&self, bytes: u64) -> Result<()> {
        self.ensure_room(bytes)?.written_since += bytes;
        Ok(())
    }

    /// Rejects a write of `bytes` in total, of which nothing is written yet, if it cannot fit: otherwise it would
    /// take the free space from all other writes until it fails. Reserves nothing; each piece is still admitted on
    /// its own. A rejection counts as a shortage for upkeep.
    pub fn admit_whole(&self, bytes: u64) -> Result<()> {
        let admitted = self.ensure_room(bytes).map(drop);
        if admitted.is_err() && bytes.saturating_add(self.reserve_bytes) < self.device_bytes {
            self.rejected_bytes.fetch_max(bytes, Ordering::AcqRel);
        }
        admitted
    }

    /// Size of the largest write that was rejected as a whole.
    pub fn wanted(&self) -> u64 {
        self.rejected_bytes.load(Ordering::Acquire)
    }

    /// Called when upkeep has done what it could for the `bytes` wanted when it began.
    pub fn clear_rejected(&self, bytes: u64) {
        // A larger request that came since remains.
        let _ = self.rejected_bytes.compare_exchange(bytes, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    fn ensure_room(&self, bytes: u64) -> Result<MutexGuard<'_, FreeSpace>> {
        let claimed = self.claimed.load(Ordering::Acquire);
        // The reserve also serves compaction; what exceeds it is added.
        let reserved = self.min_free_bytes().max(if claimed > 0 { claimed + self.file_bytes } else { 0 });
        let mut free_space = self.free_space.lock();
        let needed = reserved.saturating_add(bytes);
        let left = |free_space: &FreeSpace| free_space.free.saturating_sub(free_space.written_since);
        if bytes >= MIN_QUERIED_WRITE_BYTES
            || free_space.written_since >= QUERY_INTERVAL_BYTES
            || left(&free_space) < needed.saturating_add(QUERY_INTERVAL_BYTES)
        {
            *free_space = FreeSpace { free: self.free()?, written_since: 0 };
        }
        if left(&free_space) < needed {
            return Err(Error::new(
                Reason::Full,
                format!(
                    "the store's device has {} MiB free, of which {} MiB are reserved for deletes and \
                     compaction; {} MiB more do not fit; delete objects or add space",
                    free_space.free >> 20,
                    reserved >> 20,
                    bytes.div_ceil(1 << 20)
                ),
            ));
        }
        Ok(free_space)
    }

    /// Queries the device before every batch of changes and releases the file if little space is left: another
    /// program may have taken it, and the index must not lack space after the log. Returns true if that freed space.
    pub fn release_file_if_full(&self) -> Result<bool> {
        let free = self.free()?;
        *self.free_space.lock() = FreeSpace { free, written_since: 0 };
        if !self.is_allocated.load(Ordering::Acquire) || free >= self.file_bytes {
            return Ok(false);
        }
        tracing::warn!("the device is full; the store's reserve is used for deletes and compaction");
        self.file.set_len(0).map_err(|e| io_error("the reserve could not be released", e))?;
        self.is_allocated.store(false, Ordering::Release);
        *self.free_space.lock() = FreeSpace::default();
        Ok(true)
    }

    /// Allocates the file's blocks again if there is room for the whole reserve.
    pub fn restore_file(&self) -> Result<()> {
        if self.file_bytes == 0
            || self.is_allocated.load(Ordering::Acquire)
            || self.free()? < self.reserve_bytes
        {
            return Ok(());
        }
        if let Err(e) = allocate(&self.file, self.file_bytes) {
            tracing::warn!(error = %e, "no blocks could be reserved; free space is only monitored");
            return self.file.set_len(0).map_err(|e| io_error("the reserve could not be released", e));
        }
        self.is_allocated.store(true, Ordering::Release);
        *self.free_space.lock() = FreeSpace::default();
        Ok(())
    }

    /// Returns true if copies of `bytes` leave enough for deletes and the index. Always true for 0 bytes.
    pub fn has_room(&self, bytes: u64) -> Result<bool> {
        Ok(bytes == 0 || self.free()? >= bytes + self.file_bytes)
    }

    /// Reserves space for the copies of a compaction; there is one at a time. `None` if there is too little.
    pub fn claim(&self, bytes: u64) -> Result<Option<SpaceClaim<'_>>> {
        if !self.has_room(bytes)? {
            return Ok(None);
        }
        self.claimed.store(bytes, Ordering::Release);
        Ok(Some(SpaceClaim(self)))
    }

    /// The segment size at which any segment with a live fraction of up to `max_live` can be compacted. Equal to
    /// `asked`, except on a small device.
    pub fn segment_bytes(&self, asked: u32, max_live: f64) -> u32 {
        if self.reserve_bytes == self.configured_reserve_bytes {
            return asked;
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share"
        )]
        let fits = (self.reserve_bytes.saturating_sub(2 * self.file_bytes) as f64 / max_live) as u64;
        asked.min(u32::try_from(fits).unwrap_or(u32::MAX).max(MIN_SEGMENT_BYTES))
    }

    /// The shortage of space: 0 while twice the reserve is free, 1 when writes are rejected. A large rejected write
    /// counts as if it were stored.
    pub fn shortage(&self) -> f64 {
        let Ok(free) = self.free() else { return 0.0 };
        let spare = free.saturating_sub(self.min_free_bytes().saturating_add(self.wanted()));
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = spare as f64 / self.reserve_bytes.max(1) as f64;
        if self.reserve_bytes == 0 { 0.0 } else { (1.0 - share).clamp(0.0, 1.0) }
    }

    /// Free space below which writes are rejected.
    fn min_free_bytes(&self) -> u64 {
        self.reserve_bytes - if self.is_allocated.load(Ordering::Acquire) { self.file_bytes } else { 0 }
    }

    /// Free bytes of the device for this process.
    pub fn free(&self) -> Result<u64> {
        Ok(stat(&self.directory)?.free)
    }
}

/// Free bytes, for this process, of the device of a closed store.
pub(super) fn free_bytes(root: &Path) -> Result<u64> {
    let directory = File::open(root);
    let directory = directory.map_err(|e| io_error("the store's directory could not be opened", e))?;
    Ok(stat(&directory)?.free)
}

struct DeviceCapacity {
    total: u64,
    free: u64,
}

fn stat(directory: &File) -> Result<DeviceCapacity> {
    let stat = rustix::fs::fstatvfs(directory)
        .map_err(|e| io_error("the device's free space could not be read", e.into()))?;
    Ok(DeviceCapacity {
        total: stat.f_blocks.saturating_mul(stat.f_frsize),
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

/// Allocates blocks for a file.
fn allocate(file: &File, bytes: u64) -> std::io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        done => return Ok(done?),
    }
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let piece = usize::try_from(bytes - at).unwrap_or(zeros.len()).min(zeros.len());
        file.write_all_at(&zeros[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(configured_reserve_bytes: u64) -> (DeviceSpace, tempfile::TempDir) {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(&place.path().join("store")).unwrap();
        (DeviceSpace::open(&layout, configured_reserve_bytes).unwrap(), place)
    }

    #[test]
    fn claimed_space_is_not_given_to_writes() {
        let (space, _place) = space(8 * MIB);
        let free = space.free().unwrap();
        assert!(space.claim(free + 1).unwrap().is_none());
        assert!(space.admit(free / 2).is_ok());
        let claim = space.claim(free / 4 * 3).unwrap();
        assert!(claim.is_some());
        assert_eq!(space.admit(free / 2).unwrap_err().reason(), Reason::Full);
        drop(claim);
        assert!(space.admit(free / 2).is_ok());
    }

    #[test]
    fn whole_writes_are_checked_against_free_space() {
        let (space, _place) = space(8 * MIB);
        let free = space.free().unwrap();
        for bytes in [free, free + 1, u64::MAX] {
            assert_eq!(space.admit_whole(bytes).unwrap_err().reason(), Reason::Full, "{bytes}");
        }
        // Nothing is reserved.
        for _ in 0..3 {
            assert!(space.admit_whole(free / 2).is_ok());
        }
    }

    #[test]
    fn rejected_write_counts_as_shortage_until_upkeep() {
        let (space, _place) = space(8 * MIB);
        assert!(space.admit_whole(u64::MAX).is_err());
        assert_eq!(
            (space.shortage() > 0.0, space.wanted()),
            (false, 0),
            "no compaction can make that much room"
        );
        let bytes = space.free().unwrap();
        if bytes + 8 * MIB >= space.device_bytes {
            return;
        }
        assert!(space.admit_whole(bytes).is_err());
        assert!(space.shortage() >= 1.0);
        space.clear_rejected(bytes - 1);
        assert_eq!(space.wanted(), bytes);
        space.clear_rejected(bytes);
        assert!(space.shortage() <= 0.0);
    }

    #[test]
    fn segments_are_smaller_on_a_small_device() {
        let (mut space, _place) = space(8 * MIB);
        assert_eq!(space.segment_bytes(512 << 20, 0.9), 512 << 20);
        space.configured_reserve_bytes = 64 * MIB;
        // Of 8 MiB, 2 are the file, and as much remains for deletes and the index.
        assert_eq!(space.segment_bytes(512 << 20, 0.5), 8 << 20);
        assert_eq!(space.segment_bytes(64 << 10, 0.5), 64 << 10, "never larger than configured");
    }

    #[test]
    fn shortage_grows_from_twice_the_reserve_down_to_it() {
        let (mut space, _place) = space(8 * MIB);
        assert!(space.shortage() <= 0.0);
        space.reserve_bytes = space.free().unwrap() / 3 * 2;
        assert!((0.3..0.7).contains(&space.shortage()), "{}", space.shortage());
        space.reserve_bytes *= 2;
        assert!(space.shortage() >= 1.0);
    }
}
