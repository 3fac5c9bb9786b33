//! A new file system mounted at a directory, on a loop device over a file in that directory. It is visible to one
//! command or to all processes. Device and file vanish with its last user.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::statvfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change};
use rustix::process::chdir;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::loop_device::{self, LoopDevice};
use super::throttle::{DeviceNumber, LOOP_MAJOR};
use super::{AppliedLimits, DiskOptions, IoLimits};
use crate::error::{LabError, cannot};

/// Maximum default size of a file system.
const MAX_DEFAULT_BYTES: u64 = 16 << 30;
/// Smaller file systems have no room for a journal.
const MIN_BYTES: u64 = 16 << 20;
/// The kernel's default read-ahead.
const DEFAULT_READ_AHEAD_KIB: u64 = 128;
const MAX_READ_AHEAD_KIB: u64 = 8 << 10;

/// Attempts to unmount a busy file system.
const MAX_UNMOUNT_ATTEMPTS: u32 = 20;
const UNMOUNT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Visibility of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MountVisibility {
    /// This thread, which leaves the mount namespace of the others, and its children.
    ThisThread,
    AllProcesses,
}

/// The mounted file system. Dropping it unmounts it.
#[derive(Debug)]
pub(super) struct DiskMount {
    directory: PathBuf,
    number: u32,
    bytes: u64,
    stays_mounted: bool,
}

impl DiskMount {
    pub fn create(directory: &Path, bytes: Option<u64>, seen: MountVisibility) -> Result<Self, LabError> {
        let what = |what: &str| format!("{what} {}", directory.display());
        let directory = directory.canonicalize().map_err(cannot(what("find")))?;
        let entries = fs::read_dir(&directory).map_err(cannot(what("read")))?.flatten();
        let (leftovers, files): (Vec<_>, Vec<_>) =
            entries.partition(|entry| loop_device::is_backing_file_name(&entry.file_name()));
        // The loop device keeps an unlinked file alive.
        leftovers.iter().for_each(|leftover| _ = fs::remove_file(leftover.path()));
        if !files.is_empty() {
            let why = "the directory is not empty, and a new file system would hide its files; use an empty directory";
            return Err(cannot(what("create a disk at"))(io::Error::other(why)));
        }
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => default_bytes(&directory).map_err(cannot(what("read the free space of")))?,
        };
        if bytes < MIN_BYTES {
            let why = format!("the minimum size is {} MiB", MIN_BYTES >> 20);
            return Err(cannot(what("create a disk at"))(io::Error::other(why)));
        }
        let device =
            LoopDevice::create(&directory, bytes).map_err(cannot(what("create a loop device in")))?;
        make_file_system(&device.path())?;
        if seen == MountVisibility::ThisThread {
            unshare_mounts().map_err(cannot("create a mount namespace"))?;
        }
        let is_here = is_working_directory(&directory);
        // Otherwise the kernel initializes the inode tables later, in the background.
        mount(device.path(), &directory, "ext4", MountFlags::NOATIME, Some(c"noinit_itable"))
            .map_err(cannot(what("mount a file system at")))?;
        let disk_mount = Self { directory, number: device.number, bytes, stays_mounted: false };
        if is_here {
            // Relative paths would still refer to the directory below the mount.
            chdir(&disk_mount.directory).map_err(cannot(what("re-enter")))?;
        }
        Ok(disk_mount)
    }

    pub const fn device(&self) -> DeviceNumber {
        DeviceNumber { major: LOOP_MAJOR, minor: self.number }
    }

    /// The limits in force. The caller sets `later_writes`.
    pub fn applied_limits(&self, rates: IoLimits) -> AppliedLimits {
        let device = loop_device::device_path(self.number).display().to_string();
        AppliedLimits { device, file_system_bytes: Some(self.bytes), limits: rates, limits_writeback: true }
    }

    /// Applies the device settings that are not cgroup limits.
    pub fn prepare(&self, options: DiskOptions) -> Result<(), LabError> {
        // An earlier user of the device may have been killed before it reset them.
        reset_device_settings(self.number);
        self.read_ahead(options.limits);
        options.max_dirty_bytes.map_or(Ok(()), |bytes| self.write_behind(bytes))
    }

    /// Sets a read-ahead at which a sequential reader stays within the request limit. A disk reads on without a seek,
    /// but the request limit counts every request.
    fn read_ahead(&self, rates: IoLimits) {
        if let (Some(bandwidth), Some(requests)) = (rates.read_bytes_per_second, rates.read_iops) {
            let kibi = (2 * bandwidth / requests.max(1) / 1024).next_power_of_two();
            set_read_ahead(self.number, kibi.clamp(DEFAULT_READ_AHEAD_KIB, MAX_READ_AHEAD_KIB));
        }
    }

    /// Limits dirty bytes: a writer beyond the limit blocks, as on a client that has been writing for a long time.
    fn write_behind(&self, bytes: u64) -> Result<(), LabError> {
        set_write_behind(self.number, bytes)
            .map_err(cannot("limit write-behind (the /sys/class/bdi settings need Linux 6.2)"))
    }

    /// Keeps the file system mounted.
    pub fn keep_mounted(mut self) {
        self.stays_mounted = true;
    }
}

impl Drop for DiskMount {
    fn drop(&mut self) {
        if !self.stays_mounted {
            reset_device_settings(self.number);
            // Otherwise the kernel unmounts it when its last user ends.
            let _ = rustix::mount::unmount(&self.directory, UnmountFlags::DETACH);
        }
    }
}

/// Returns true if a directory is the working directory.
fn is_working_directory(directory: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(Path::new(".")).is_some_and(|here| identity(directory) == Some(here))
}

fn set_read_ahead(number: u32, kibi: u64) {
    // A failure only makes reads slower.
    let _ = fs::write(loop_device::sysfs_path(number, "queue/read_ahead_kb"), kibi.to_string());
}

fn set_write_behind(number: u32, bytes: u64) -> io::Result<()> {
    let settings = write_behind_settings(number);
    fs::write(settings.join("strict_limit"), "1")?;
    fs::write(settings.join("max_bytes"), bytes.to_string())
}

fn write_behind_settings(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/class/bdi/{LOOP_MAJOR}:{number}"))
}

/// Resets the write-behind limits of detached loop devices, left by processes that were killed.
pub(super) fn reset_leftovers() {
    let devices = fs::read_dir("/sys/class/bdi").into_iter().flatten().flatten();
    let numbers = devices.filter_map(|device| {
        let (major, minor) =
            device.file_name().to_str()?.split_once(':').map(|(a, b)| (a.parse(), b.parse()))?;
        (major == Ok(LOOP_MAJOR)).then_some(minor.ok()?)
    });
    for number in numbers {
        let is_strict = fs::read_to_string(write_behind_settings(number).join("strict_limit"));
        if is_strict.is_ok_and(|text| text.trim() == "1") && !loop_device::is_attached(number) {
            reset_device_settings(number);
        }
    }
}

/// Resets the device for its next user.
fn reset_device_settings(number: u32) {
    set_read_ahead(number, DEFAULT_READ_AHEAD_KIB);
    // An attribute that cannot be reset was never set.
    let settings = write_behind_settings(number);
    let _ = fs::write(settings.join("max_ratio"), "100");
    let _ = fs::write(settings.join("strict_limit"), "0");
}

/// The number of the loop device that [`DiskMount`] mounted at a directory.
pub(super) fn find_mounted(directory: &Path) -> Result<u32, LabError> {
    let what = || format!("find a disk at {}", directory.display());
    let directory = directory.canonicalize().map_err(cannot(what()))?;
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")
        .map_err(cannot("read /proc/thread-self/mountinfo"))?;
    // The last mount at a path is the one that would be unmounted.
    let last =
        mounts.lines().rev().find(|line| parse_mount(line).is_some_and(|(_, point)| point == directory));
    let number = last.and_then(mounted_loop_number);
    number
        .filter(|number| loop_device::is_created_here(*number))
        .ok_or_else(|| cannot(what())(io::Error::other("`lab disk up` created none there")))
}

/// Device and mount point, from a line of /proc/thread-self/mountinfo (proc(5)).
fn parse_mount(line: &str) -> Option<(&str, PathBuf)> {
    let mut words = line.split(' ').skip(2);
    let (device, point) = (words.next()?, words.nth(1)?);
    Some((device, PathBuf::from(OsString::from_vec(unescaped(point)))))
}

/// The number of the loop device in a mountinfo line.
fn mounted_loop_number(line: &str) -> Option<u32> {
    let (device, _) = parse_mount(line)?;
    let (major, minor) = device.split_once(':')?;
    if major.parse() == Ok(LOOP_MAJOR) { minor.parse().ok() } else { None }
}

/// Decodes octal escapes of the kernel, such as \040 for a space.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// Waits until the file system is unused. A process that has just ended may hold it briefly.
pub(super) fn wait_until_unused(directory: &Path) -> Result<(), LabError> {
    let mut tries = MAX_UNMOUNT_ATTEMPTS;
    loop {
        tries -= 1;
        // The first call tests for use; a second one would unmount.
        match rustix::mount::unmount(directory, UnmountFlags::EXPIRE) {
            Ok(()) | Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::BUSY) if tries > 0 => std::thread::sleep(UNMOUNT_RETRY_DELAY),
            Err(e) => return Err(cannot(format!("unmount {}", directory.display()))(e)),
        }
    }
}

/// Unmounts the file system.
pub(super) fn unmount(directory: &Path, number: u32) -> Result<(), LabError> {
    let mut tries = MAX_UNMOUNT_ATTEMPTS;
    loop {
        tries -= 1;
        match rustix::mount::unmount(directory, UnmountFlags::empty()) {
            Ok(()) => break,
            // A process that walks all mounts holds it briefly.
            Err(Errno::BUSY) if tries > 0 => std::thread::sleep(UNMOUNT_RETRY_DELAY),
            Err(e) => return Err(cannot(format!("unmount {}", directory.display()))(e)),
        }
    }
    reset_device_settings(number);
    Ok(())
}

fn default_bytes(directory: &Path) -> io::Result<u64> {
    let room = statvfs(directory)?;
    Ok((room.f_bavail * room.f_frsize / 2).min(MAX_DEFAULT_BYTES))
}

/// Formats a device. A throttle counts each block of a journal commit of ext4, which a disk gets as one request. A fast
/// commit has one or two blocks. e2fsprogs before 1.46 has no fast commits.
fn make_file_system(device: &Path) -> Result<(), LabError> {
    run_mkfs(device, &["-O", "fast_commit"]).or_else(|_| run_mkfs(device, &[]))
}

fn run_mkfs(device: &Path, features: &[&str]) -> Result<(), LabError> {
    let what = || format!("run mkfs.ext4 (Debian: e2fsprogs) on {}", device.display());
    // It is often outside the PATH of non-root users.
    let paths = std::iter::once("mkfs.ext4").chain(["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"]);
    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    for program in paths {
        let mut command = Command::new(program);
        command.args(["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"]);
        match command.args(features).arg(device).stdin(Stdio::null()).output() {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => {
                let stderr = String::from_utf8_lossy(&done.stderr).trim().to_owned();
                return Err(cannot(what())(io::Error::other(stderr)));
            }
            Err(e) => last_error = e,
        }
    }
    Err(cannot(what())(last_error))
}

fn unshare_mounts() -> io::Result<()> {
    // SAFETY: a mount namespace is not memory, and only the calling thread is affected, as the module states.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    // Mounts of the parent namespace remain visible here, but not the reverse.
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounted_loop_parses_mountinfo() {
        let line = "88 27 7:3 / /srv/a\\040b rw,noatime shared:1 - ext4 /dev/loop3 rw";
        assert_eq!(parse_mount(line), Some(("7:3", PathBuf::from("/srv/a b"))));
        assert_eq!(mounted_loop_number(line), Some(3));
        assert_eq!(mounted_loop_number(&line.replace("7:3", "254:3")), None);
        assert_eq!(unescaped("a\\134b\\"), b"a\\b\\");
    }
}
