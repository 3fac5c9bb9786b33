//! Mounting, and the handle by which a test cuts and restores the power.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::fuse::PowerLoss;
use crate::mode::CrashMode;
use crate::model::{Counters, CrashReport, FsyncFailure, Model};
use crate::shared::SharedModel;
use crate::tree;

/// Maximum time that an unmount waits for open files.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why mounting is impossible here, for a skipped test; `None` if it is possible.
pub fn mount_unavailable() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root to mount".to_owned());
    }
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .err()
        .map(|error| format!("/dev/fuse: {error}"))
}

/// The file system to mount.
#[derive(Debug, Clone, Copy)]
pub struct PowerLossFs;

/// Options of the mount.
#[derive(Debug, Clone, Copy)]
pub struct MountOptions {
    /// Threads that serve requests; a delayed sync occupies one.
    pub threads: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self { threads: 8 }
    }
}

impl PowerLossFs {
    /// Mounts at `mountpoint`, with a copy of `initial_tree` as the durable state, or empty. A dead mount of a killed
    /// process is removed first.
    pub fn mount(mountpoint: &Path, initial_tree: Option<&Path>) -> io::Result<MountHandle> {
        Self::mount_with(mountpoint, initial_tree, MountOptions::default())
    }

    /// [`mount`](Self::mount) with options.
    pub fn mount_with(
        mountpoint: &Path,
        initial_tree: Option<&Path>,
        options: MountOptions,
    ) -> io::Result<MountHandle> {
        if fs::metadata(mountpoint)
            .is_err_and(|error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
        {
            rustix::mount::unmount(mountpoint, UnmountFlags::DETACH)?;
        }
        let mountpoint = mountpoint.canonicalize()?;
        let model = initial_tree.map_or_else(|| Ok(Model::new()), tree::load)?;
        let shared = Arc::new(SharedModel::new(model));
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("powerloss".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoSuid,
            MountOption::NoDev,
        ];
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = true;
        let session = fuser::spawn_mount(PowerLoss::new(shared.clone()), &mountpoint, &config)?;
        Ok(MountHandle { shared, mountpoint, session: Some(session) })
    }
}

/// A mounted file system; dropping it unmounts.
pub struct MountHandle {
    shared: Arc<SharedModel>,
    mountpoint: PathBuf,
    session: Option<BackgroundSession>,
}

impl MountHandle {
    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Cuts the power. By `seed` and `mode`, some unsynced changes reach the disk; the disk's state is all that
    /// remains. From this moment every request returns EIO, until [`revive`](Self::revive); handles opened before
    /// remain invalid forever.
    pub fn crash(&self, seed: u64, mode: CrashMode) -> CrashReport {
        self.shared.model().crash(seed, mode)
    }

    /// Serves requests again, on the state after the crash.
    pub fn revive(&self) {
        self.shared.model().revive();
    }

    /// Writes the visible tree (after a crash: the disk's) to the new or empty directory `to`.
    pub fn export(&self, to: &Path) -> io::Result<()> {
        let model = self.shared.model().clone();
        tree::export(&model, to)
    }

    /// Lets `successes` further syncs succeed and the next one fail with EIO, once.
    pub fn fail_fsync_after(&self, successes: u64, failure: FsyncFailure) {
        self.shared.model().fail_fsync_after(successes, failure);
    }

    /// Lets reads of these bytes of a file, given by its inode number, fail with EIO, instead of those of an earlier
    /// call. An empty range ends that.
    pub fn fail_reads(&self, ino: u64, bytes: Range<u64>) {
        self.shared.model().fail_reads(ino, bytes);
    }

    /// Limits the space for file contents; `None` removes the limit.
    pub fn limit_bytes(&self, limit: Option<u64>) {
        self.shared.model().limit_bytes(limit);
    }

    /// Delays each sync by this time. Changes during the delay are not covered, so a crash finds more pending ones.
    pub fn set_sync_delay(&self, delay: Duration) {
        self.shared.set_sync_delay(delay);
    }

    /// The request counters.
    pub fn counters(&self) -> Counters {
        self.shared.model().counters()
    }

    /// Numbers of unsynced file changes and entry operations.
    pub fn pending(&self) -> (usize, usize) {
        self.shared.model().pending()
    }

    /// Unmounts, waiting briefly for open files and then detaching the mount.
    pub fn unmount(mut self) -> io::Result<()> {
        self.detach()
    }

    fn detach(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        let deadline = Instant::now() + UNMOUNT_TIMEOUT;
        loop {
            match rustix::mount::unmount(&self.mountpoint, UnmountFlags::empty()) {
                Err(Errno::BUSY) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(Errno::BUSY) => {
                    // The threads end when the last file is closed.
                    self.shared.model().crash(0, CrashMode::DropAll);
                    rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH)?;
                    drop(session);
                    return Ok(());
                }
                // INVAL: already unmounted by another process.
                Ok(()) | Err(Errno::INVAL) => return join(session),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Waits for the threads of an unmounted session, which the kernel may end by an abort.
fn join(session: BackgroundSession) -> io::Result<()> {
    match session.join() {
        Err(error) if error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => Ok(()),
        ended => ended,
    }
}

impl Drop for MountHandle {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            eprintln!("powerloss: unmounting {}: {error}", self.mountpoint.display());
        }
    }
}
