//! Free space of the store's device. Writes are rejected once only the *reserve* is left: the free space that deletes,
//! compaction and the index need. Part of the reserve is the *reserve file* (`RESERVE`): allocated blocks, which other
//! programs cannot take. The store releases them when the device is full, and allocates them again when there is room.

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

/// Maximum size of the reserve file.
const MAX_RESERVE_FILE_BYTES: u64 = 32 << 20;
/// The reserve is at most the device's capacity divided by this.
const RESERVE_DEVICE_DIVISOR: u64 = 8;
/// Minimum segment size on a small device.
const MIN_SEGMENT_BYTES: u32 = 1 << 20;
/// The device is queried again after this many bytes, or when it was close to the limit.
const QUERY_INTERVAL_BYTES: u64 = 16 << 20;
/// The device is queried before each write of at least this size: another program may have taken the free space.
const MIN_QUERIED_WRITE_BYTES: u64 = 1 << 20;
/// Free bytes above the reserve that a write ahead of need leaves.
const MIN_SPARE_BYTES: u64 = 16 << 20;

/// Tracks the device's free space.
pub(crate) struct DeviceSpace {
    directory: File,
    /// Total reserve, including the reserve file.
    reserve_bytes: u64,
    /// The configured reserve, before the limit by the device's size.
    configured_reserve_bytes: u64,
    reserve_file: File,
    reserve_file_bytes: u64,
    /// True if the reserve file has its blocks.
    is_reserve_allocated: AtomicBool,
    /// Bytes that compaction is about to write.
    claimed_bytes: AtomicU64,
    /// Bytes of the largest write that [`admit_whole`](Self::admit_whole) rejected since the last round of upkeep; 0 if
    /// none.
    largest_rejected_write: AtomicU64,
    /// Capacity of the device.
    device_bytes: u64,
    free_space: Mutex<FreeSpace>,
}

/// A claim on the space for a compaction's writes, until it is dropped.
pub(crate) struct SpaceClaim<'a>(&'a DeviceSpace);

impl Drop for SpaceClaim<'_> {
    fn drop(&mut self) {
        self.0.claimed_bytes.store(0, Ordering::Release);
    }
}

/// Free space when last queried, and the bytes written since.
#[derive(Default)]
struct FreeSpace {
    free_bytes: u64,
    written_bytes: u64,
}

impl DeviceSpace {
    pub fn open(layout: &Layout, configured_reserve_bytes: u64) -> Result<Self> {
        let directory = File::open(layout.segments())
            .map_err(|e| io_error("the store's directory could not be opened", e))?;
        let path = layout.reserve();
        let reserve_file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| io_error(&format!("{} could not be opened", path.display()), e))?;
        let device = stat(&directory)?;
        let reserve_bytes = configured_reserve_bytes.min(device.total / RESERVE_DEVICE_DIVISOR);
        let reserve_file_bytes = (reserve_bytes / 4).min(MAX_RESERVE_FILE_BYTES);
        let allocated_bytes =
            reserve_file.metadata().map_err(|e| io_error("the reserve could not be read", e))?.blocks() * 512;
        let is_reserve_allocated =
            AtomicBool::new(reserve_file_bytes > 0 && allocated_bytes >= reserve_file_bytes);
        let space = Self {
            directory,
            reserve_bytes,
            configured_reserve_bytes,
            reserve_file,
            reserve_file_bytes,
            is_reserve_allocated,
            claimed_bytes: AtomicU64::new(0),
            largest_rejected_write: AtomicU64::new(0),
            device_bytes: device.total,
            free_space: Mutex::default(),
        };
        space.restore_reserve()?;
        // Opening the store writes to the index, which must not lack space.
        space.release_reserve_if_full()?;
        Ok(space)
    }

    /// Counts a write of `bytes`, or rejects it if it would use the reserve.
    pub fn admit(&self, bytes: u64) -> Result<()> {
        self.ensure_free(bytes)?.written_bytes += bytes;
        Ok(())
    }

    /// Counts `bytes` that are written ahead of need. An error if the device is nearly full: the last space above the
    /// reserve is for data.
    pub fn admit_ahead(&self, bytes: u64) -> Result<()> {
        self.ensure_free(bytes.saturating_add(MIN_SPARE_BYTES))?.written_bytes += bytes;
        Ok(())
    }

    /// Rejects a write of `bytes` in total, of which nothing is written yet, if it cannot fit: otherwise it would
    /// take the free space from all other writes until it fails. Claims nothing: the bytes are admitted again
    /// when they are written. Upkeep counts a rejection as a shortage, unless the device is too small for the write.
    pub fn admit_whole(&self, bytes: u64) -> Result<()> {
        let admitted = self.ensure_free(bytes).map(drop);
        if admitted.is_err() && bytes.saturating_add(self.reserve_bytes) < self.device_bytes {
            self.largest_rejected_write.fetch_max(bytes, Ordering::AcqRel);
        }
        admitted
    }

    /// Bytes of the largest write that [`admit_whole`](Self::admit_whole) rejected since the last round of upkeep; 0 if
    /// none.
    pub fn largest_rejected_write(&self) -> u64 {
        self.largest_rejected_write.load(Ordering::Acquire)
    }

    /// Forgets the rejected write at the end of a round of upkeep. `bytes` is its size when the round began.
    pub fn clear_rejected_write(&self, bytes: u64) {
        // A larger write that was rejected during the round remains.
        let _ = self.largest_rejected_write.compare_exchange(bytes, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// An error if `bytes` more would use the reserve or the space that a compaction has claimed.
    fn ensure_free(&self, bytes: u64) -> Result<MutexGuard<'_, FreeSpace>> {
        let claimed_bytes = self.claimed_bytes.load(Ordering::Acquire);
        // The reserve also serves compaction. While a compaction runs, writes must leave its claim and, for deletes and
        // the index, as much as the reserve file.
        let reserved_bytes = self.min_free_bytes().max(if claimed_bytes > 0 {
            claimed_bytes + self.reserve_file_bytes
        } else {
            0
        });
        let mut free_space = self.free_space.lock();
        let needed_bytes = reserved_bytes.saturating_add(bytes);
        let remaining_bytes =
            |free_space: &FreeSpace| free_space.free_bytes.saturating_sub(free_space.written_bytes);
        if bytes >= MIN_QUERIED_WRITE_BYTES
            || free_space.written_bytes >= QUERY_INTERVAL_BYTES
            || remaining_bytes(&free_space) < needed_bytes.saturating_add(QUERY_INTERVAL_BYTES)
        {
            *free_space = FreeSpace { free_bytes: self.free()?, written_bytes: 0 };
        }
        if remaining_bytes(&free_space) < needed_bytes {
            return Err(Error::new(
                Reason::Full,
                format!(
                    "the store's device has {} MiB free, of which {} MiB are reserved for deletes and \
                     compaction; {} MiB more do not fit; delete objects or add space",
                    free_space.free_bytes >> 20,
                    reserved_bytes >> 20,
                    bytes.div_ceil(1 << 20)
                ),
            ));
        }
        Ok(free_space)
    }

    /// Releases the reserve file's blocks if the device has less free space than they take. Returns true if it did.
    /// Called before every batch of changes: another program may have filled the device, and the index must not lack
    /// space for a batch that is already in the log.
    pub fn release_reserve_if_full(&self) -> Result<bool> {
        let free_bytes = self.free()?;
        *self.free_space.lock() = FreeSpace { free_bytes, written_bytes: 0 };
        if !self.is_reserve_allocated.load(Ordering::Acquire) || free_bytes >= self.reserve_file_bytes {
            return Ok(false);
        }
        tracing::warn!("the device is full; the store's reserve is used for deletes and compaction");
        self.reserve_file.set_len(0).map_err(|e| io_error("the reserve could not be released", e))?;
        self.is_reserve_allocated.store(false, Ordering::Release);
        *self.free_space.lock() = FreeSpace::default();
        Ok(true)
    }

    /// Allocates the reserve file's blocks again if there is room for the whole reserve.
    pub fn restore_reserve(&self) -> Result<()> {
        if self.reserve_file_bytes == 0
            || self.is_reserve_allocated.load(Ordering::Acquire)
            || self.free()? < self.reserve_bytes
        {
            return Ok(());
        }
        if let Err(e) = allocate(&self.reserve_file, self.reserve_file_bytes) {
            tracing::warn!(error = %e, "no blocks could be reserved; free space is only monitored");
            return self
                .reserve_file
                .set_len(0)
                .map_err(|e| io_error("the reserve could not be released", e));
        }
        self.is_reserve_allocated.store(true, Ordering::Release);
        *self.free_space.lock() = FreeSpace::default();
        Ok(())
    }

    /// Returns true if a compaction that copies `bytes` leaves enough for deletes and the index. Always true for 0.
    pub fn has_room(&self, bytes: u64) -> Result<bool> {
        Ok(bytes == 0 || self.free()? >= bytes + self.reserve_file_bytes)
    }

    /// Claims space for the copies of a compaction. At most one claim exists at any time. `None` if there is too
    /// little space.
    pub fn claim(&self, bytes: u64) -> Result<Option<SpaceClaim<'_>>> {
        if !self.has_room(bytes)? {
            return Ok(None);
        }
        self.claimed_bytes.store(bytes, Ordering::Release);
        Ok(Some(SpaceClaim(self)))
    }

    /// The segment size at which any segment with a live fraction of up to `max_live_fraction` can be compacted. Equal
    /// to `configured_bytes`, except on a small device.
    pub fn segment_bytes(&self, configured_bytes: u32, max_live_fraction: f64) -> u32 {
        if self.reserve_bytes == self.configured_reserve_bytes {
            return configured_bytes;
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a fraction"
        )]
        let fits = (self.reserve_bytes.saturating_sub(2 * self.reserve_file_bytes) as f64 / max_live_fraction)
            as u64;
        configured_bytes.min(u32::try_from(fits).unwrap_or(u32::MAX).max(MIN_SEGMENT_BYTES))
    }

    /// The shortage of space, from 0 to 1: 0 while twice the reserve is free, 1 when writes are rejected. The largest
    /// rejected write counts as if it were stored.
    pub fn shortage(&self) -> f64 {
        let Ok(free_bytes) = self.free() else { return 0.0 };
        let spare_bytes =
            free_bytes.saturating_sub(self.min_free_bytes().saturating_add(self.largest_rejected_write()));
        #[expect(clippy::cast_precision_loss, reason = "a fraction")]
        let spare_fraction = spare_bytes as f64 / self.reserve_bytes.max(1) as f64;
        if self.reserve_bytes == 0 { 0.0 } else { (1.0 - spare_fraction).clamp(0.0, 1.0) }
    }

    /// Free space below which writes are rejected.
    fn min_free_bytes(&self) -> u64 {
        self.reserve_bytes
            - if self.is_reserve_allocated.load(Ordering::Acquire) { self.reserve_file_bytes } else { 0 }
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
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(bytes - offset).unwrap_or(zeros.len()).min(zeros.len());
        file.write_all_at(&zeros[..length], offset)?;
        offset += length as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(configured_reserve_bytes: u64) -> (DeviceSpace, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(&directory.path().join("store")).unwrap();
        (DeviceSpace::open(&layout, configured_reserve_bytes).unwrap(), directory)
    }

    #[test]
    fn claimed_space_is_not_given_to_writes() {
        let (space, _directory) = space(8 * MIB);
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
        let (space, _directory) = space(8 * MIB);
        let free = space.free().unwrap();
        for bytes in [free, free + 1, u64::MAX] {
            assert_eq!(space.admit_whole(bytes).unwrap_err().reason(), Reason::Full, "{bytes}");
        }
        // Nothing is claimed.
        for _ in 0..3 {
            assert!(space.admit_whole(free / 2).is_ok());
        }
    }

    #[test]
    fn rejected_write_counts_as_shortage_until_upkeep() {
        let (space, _directory) = space(8 * MIB);
        assert!(space.admit_whole(u64::MAX).is_err());
        assert_eq!(
            (space.shortage() > 0.0, space.largest_rejected_write()),
            (false, 0),
            "no compaction can make that much room"
        );
        let bytes = space.free().unwrap();
        if bytes + 8 * MIB >= space.device_bytes {
            return;
        }
        assert!(space.admit_whole(bytes).is_err());
        assert!(space.shortage() >= 1.0);
        space.clear_rejected_write(bytes - 1);
        assert_eq!(space.largest_rejected_write(), bytes);
        space.clear_rejected_write(bytes);
        assert!(space.shortage() <= 0.0);
    }

    #[test]
    fn segments_are_smaller_on_a_small_device() {
        let (mut space, _directory) = space(8 * MIB);
        assert_eq!(space.segment_bytes(512 << 20, 0.9), 512 << 20);
        space.configured_reserve_bytes = 64 * MIB;
        // Of 8 MiB, 2 are the reserve file, and as much remains for deletes and the index.
        assert_eq!(space.segment_bytes(512 << 20, 0.5), 8 << 20);
        assert_eq!(space.segment_bytes(64 << 10, 0.5), 64 << 10, "never larger than configured");
    }

    #[test]
    fn shortage_grows_from_twice_the_reserve_down_to_it() {
        let (mut space, _directory) = space(8 * MIB);
        assert!(space.shortage() <= 0.0);
        space.reserve_bytes = space.free().unwrap() / 3 * 2;
        assert!((0.3..0.7).contains(&space.shortage()), "{}", space.shortage());
        space.reserve_bytes *= 2;
        assert!(space.shortage() >= 1.0);
    }
}
