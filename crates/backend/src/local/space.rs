//! Free space. Writes are refused while there is still room for what frees space: deletes, compaction
//! and the index. A part of that room is a real file of allocated blocks, so that other programs
//! cannot eat it; it is let go when a delete needs it and taken again when there is room.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use tradewind_core::error::{Error, Reason, Result};

use super::io::io_error;
use super::layout::Layout;

/// The most bytes of the file.
const LARGEST_FILE_BYTES: u64 = 32 << 20;
/// At most this share of a device is kept free.
const SHARE_OF_DEVICE: u64 = 8;
/// No segment is made smaller than this for want of space.
const LEAST_SEGMENT_BYTES: u32 = 1 << 20;
/// The device is asked again after this many bytes, or when its answer was near the limit.
const ASK_EVERY_BYTES: u64 = 16 << 20;
/// The device is asked before each write that is at least so long: another program may have taken what was free.
const MIN_ASKED_WRITE_BYTES: u64 = 1 << 20;

/// Watches the device's free space.
pub(crate) struct Space {
    directory: File,
    /// Kept free in all, the file included.
    reserve_bytes: u64,
    /// The same, but for the size of the device.
    asked_reserve_bytes: u64,
    file: File,
    file_bytes: u64,
    /// Whether the file has its blocks.
    held: AtomicBool,
    /// What compaction is about to write.
    claimed: AtomicU64,
    /// Bytes of the largest write that was refused as a whole since upkeep last did what it could.
    wanted: AtomicU64,
    /// Bytes of the device.
    device_bytes: u64,
    known: Mutex<Known>,
}

/// Room for what compaction is about to write, kept from all other writes until it is dropped.
pub(crate) struct Claim<'a>(&'a Space);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.claimed.store(0, Ordering::Release);
    }
}

/// What was free when last asked, less what was written since.
#[derive(Default)]
struct Known {
    free: u64,
    written_since: u64,
}

impl Space {
    pub fn open(layout: &Layout, asked_reserve_bytes: u64) -> Result<Self> {
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
        let reserve_bytes = asked_reserve_bytes.min(device.total / SHARE_OF_DEVICE);
        let file_bytes = (reserve_bytes / 4).min(LARGEST_FILE_BYTES);
        let allocated =
            file.metadata().map_err(|e| io_error("the reserve could not be read", e))?.blocks() * 512;
        let held = AtomicBool::new(file_bytes > 0 && allocated >= file_bytes);
        let space = Self {
            directory,
            reserve_bytes,
            asked_reserve_bytes,
            file,
            file_bytes,
            held,
            claimed: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            device_bytes: device.total,
            known: Mutex::default(),
        };
        space.restore()?;
        // Opening itself writes to the index.
        space.make_room()?;
        Ok(space)
    }

    /// Refuses a write of `bytes` that would leave less than is kept.
    pub fn admit(&self, bytes: u64) -> Result<()> {
        self.ensure_room(bytes)?.written_since += bytes;
        Ok(())
    }

    /// Refuses a write of `bytes` in all, of which nothing is written yet, that cannot fit: it must not take what is free
    /// from all other writes until it fails. Sets nothing aside; each piece is still admitted when it comes. Upkeep hears
    /// of what was refused: space is short for it.
    pub fn admit_whole(&self, bytes: u64) -> Result<()> {
        let admitted = self.ensure_room(bytes).map(drop);
        if admitted.is_err() && bytes.saturating_add(self.reserve_bytes) < self.device_bytes {
            self.wanted.fetch_max(bytes, Ordering::AcqRel);
        }
        admitted
    }

    /// Bytes of the largest write that was refused as a whole.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// Upkeep has done what it can for what was wanted when it began.
    pub fn forget_wanted(&self, bytes: u64) {
        // A larger one that came meanwhile has its turn.
        let _ = self.wanted.compare_exchange(bytes, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    fn ensure_room(&self, bytes: u64) -> Result<MutexGuard<'_, Known>> {
        let claimed = self.claimed.load(Ordering::Acquire);
        // The reserve is there for that, too; what it does not cover is kept beside it.
        let kept = self.kept().max(if claimed > 0 { claimed + self.file_bytes } else { 0 });
        let mut known = self.known.lock();
        let needed = kept.saturating_add(bytes);
        let left = |known: &Known| known.free.saturating_sub(known.written_since);
        if bytes >= MIN_ASKED_WRITE_BYTES
            || known.written_since >= ASK_EVERY_BYTES
            || left(&known) < needed.saturating_add(ASK_EVERY_BYTES)
        {
            *known = Known { free: self.free()?, written_since: 0 };
        }
        if left(&known) < needed {
            return Err(Error::new(
                Reason::Full,
                format!(
                    "the store's device has {} MiB free and keeps {} MiB for deletes and compaction; {} MiB more do not \
                     fit; delete objects or add space",
                    known.free >> 20,
                    kept >> 20,
                    bytes.div_ceil(1 << 20)
                ),
            ));
        }
        Ok(known)
    }

    /// Asks the device, before every batch of changes, and lets the file go where little else is left:
    /// another program may have taken what was free, and the index must not run out behind the log.
    /// True where that made room.
    pub fn make_room(&self) -> Result<bool> {
        let free = self.free()?;
        *self.known.lock() = Known { free, written_since: 0 };
        if !self.held.load(Ordering::Acquire) || free >= self.file_bytes {
            return Ok(false);
        }
        tracing::warn!("the device is full; the store's reserve is used for deletes and compaction");
        self.file.set_len(0).map_err(|e| io_error("the reserve could not be let go", e))?;
        self.held.store(false, Ordering::Release);
        *self.known.lock() = Known::default();
        Ok(true)
    }

    /// Takes the file's blocks again, where there is room for all that is kept.
    pub fn restore(&self) -> Result<()> {
        if self.file_bytes == 0 || self.held.load(Ordering::Acquire) || self.free()? < self.reserve_bytes {
            return Ok(());
        }
        if let Err(e) = allocate(&self.file, self.file_bytes) {
            tracing::warn!(error = %e, "no blocks could be reserved; free space is only watched");
            return self.file.set_len(0).map_err(|e| io_error("the reserve could not be let go", e));
        }
        self.held.store(true, Ordering::Release);
        *self.known.lock() = Known::default();
        Ok(())
    }

    /// Whether copies of so many bytes leave enough for deletes and the index. What copies nothing always may go on.
    pub fn has_room(&self, bytes: u64) -> Result<bool> {
        Ok(bytes == 0 || self.free()? >= bytes + self.file_bytes)
    }

    /// Takes room for the copies that compaction is about to make; one at a time. `None` where there is not so much.
    pub fn claim(&self, bytes: u64) -> Result<Option<Claim<'_>>> {
        if !self.has_room(bytes)? {
            return Ok(None);
        }
        self.claimed.store(bytes, Ordering::Release);
        Ok(Some(Claim(self)))
    }

    /// The most that a segment may hold so that there is always room to compact it, whatever the share of it that
    /// lives, up to `most_live`. Smaller than what was asked for on a small device only.
    pub fn segment_bytes(&self, asked: u32, most_live: f64) -> u32 {
        if self.reserve_bytes == self.asked_reserve_bytes {
            return asked;
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share"
        )]
        let fits = (self.reserve_bytes.saturating_sub(2 * self.file_bytes) as f64 / most_live) as u64;
        asked.min(u32::try_from(fits).unwrap_or(u32::MAX).max(LEAST_SEGMENT_BYTES))
    }

    /// How short space is: 0 where there is as much again as is kept, 1 where writes are refused. A large write that
    /// was refused counts as if it were there.
    pub fn shortage(&self) -> f64 {
        let Ok(free) = self.free() else { return 0.0 };
        let spare = free.saturating_sub(self.kept().saturating_add(self.wanted()));
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = spare as f64 / self.reserve_bytes.max(1) as f64;
        if self.reserve_bytes == 0 { 0.0 } else { (1.0 - share).clamp(0.0, 1.0) }
    }

    /// Free space below which writes are refused.
    fn kept(&self) -> u64 {
        self.reserve_bytes - if self.held.load(Ordering::Acquire) { self.file_bytes } else { 0 }
    }

    /// Bytes free on the device for this process.
    pub fn free(&self) -> Result<u64> {
        Ok(stat(&self.directory)?.free)
    }
}

/// Bytes free, for this process, on the device of a store that is not open.
pub(super) fn free_bytes(root: &Path) -> Result<u64> {
    let directory = File::open(root);
    let directory = directory.map_err(|e| io_error("the store's directory could not be opened", e))?;
    Ok(stat(&directory)?.free)
}

struct Device {
    total: u64,
    free: u64,
}

fn stat(directory: &File) -> Result<Device> {
    let stat = rustix::fs::fstatvfs(directory)
        .map_err(|e| io_error("the device's free space could not be read", e.into()))?;
    Ok(Device {
        total: stat.f_blocks.saturating_mul(stat.f_frsize),
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

/// Gives a file blocks of its own.
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

    fn space(asked_reserve_bytes: u64) -> (Space, tempfile::TempDir) {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(&place.path().join("store")).unwrap();
        (Space::open(&layout, asked_reserve_bytes).unwrap(), place)
    }

    #[test]
    fn what_compaction_claims_no_write_is_given() {
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
    fn whole_writes_are_compared_with_what_is_free() {
        let (space, _place) = space(8 * MIB);
        let free = space.free().unwrap();
        for bytes in [free, free + 1, u64::MAX] {
            assert_eq!(space.admit_whole(bytes).unwrap_err().reason(), Reason::Full, "{bytes}");
        }
        // Nothing is set aside.
        for _ in 0..3 {
            assert!(space.admit_whole(free / 2).is_ok());
        }
    }

    #[test]
    fn refused_write_counts_as_shortage_until_upkeep_is_done() {
        let (space, _place) = space(8 * MIB);
        assert!(space.admit_whole(u64::MAX).is_err());
        assert_eq!((space.shortage() > 0.0, space.wanted()), (false, 0), "no compaction makes room for that");
        let bytes = space.free().unwrap();
        if bytes + 8 * MIB >= space.device_bytes {
            return;
        }
        assert!(space.admit_whole(bytes).is_err());
        assert!(space.shortage() >= 1.0);
        space.forget_wanted(bytes - 1);
        assert_eq!(space.wanted(), bytes);
        space.forget_wanted(bytes);
        assert!(space.shortage() <= 0.0);
    }

    #[test]
    fn segments_are_smaller_where_the_device_bounds_the_reserve() {
        let (mut space, _place) = space(8 * MIB);
        assert_eq!(space.segment_bytes(512 << 20, 0.9), 512 << 20);
        space.asked_reserve_bytes = 64 * MIB;
        // Of 8 MiB, 2 are the file and as much is left for deletes and the index.
        assert_eq!(space.segment_bytes(512 << 20, 0.5), 8 << 20);
        assert_eq!(space.segment_bytes(64 << 10, 0.5), 64 << 10, "never larger than asked for");
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
