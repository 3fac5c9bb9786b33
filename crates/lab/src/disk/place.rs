//! A new file system in the place of a directory, on a loop device over a file in the same directory. It is seen by a
//! command only, or by everybody; with its device and its file it is gone when the last who sees it ends.

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
use super::{DiskOptions, InForce, Rates};
use crate::failed::{Failed, failed};

/// The most that a file system has that nobody said the size of.
const USUAL_BYTES: u64 = 16 << 30;
/// Smaller ones have no room for a journal.
const LEAST_BYTES: u64 = 16 << 20;
/// What the kernel reads ahead of a reader, in KiB.
const USUAL_READ_AHEAD: u64 = 128;
const MOST_READ_AHEAD: u64 = 8 << 10;

/// How often it is tried to unmount what is in use.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Who sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// This thread, which leaves the mounts of all others, and what it starts.
    ByThisThread,
    ByAll,
}

/// The file system. Dropped, it is unmounted.
#[derive(Debug)]
pub(super) struct Place {
    directory: PathBuf,
    number: u32,
    bytes: u64,
    is_left: bool,
}

impl Place {
    pub fn make(directory: &Path, bytes: Option<u64>, seen: Seen) -> Result<Self, Failed> {
        let what = |what: &str| format!("{what} {}", directory.display());
        let directory = directory.canonicalize().map_err(failed(what("find")))?;
        let entries = fs::read_dir(&directory).map_err(failed(what("read")))?.flatten();
        let (leftovers, files): (Vec<_>, Vec<_>) =
            entries.partition(|entry| loop_device::is_file_of_one(&entry.file_name()));
        // Without a name a file is as good as with it.
        leftovers.iter().for_each(|leftover| _ = fs::remove_file(leftover.path()));
        if !files.is_empty() {
            let why = "it holds files, which a new file system would hide; name an empty directory";
            return Err(failed(what("make a disk of"))(io::Error::other(why)));
        }
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => usual_bytes(&directory).map_err(failed(what("find the room in")))?,
        };
        if bytes < LEAST_BYTES {
            let why = format!("{} MiB are the least", LEAST_BYTES >> 20);
            return Err(failed(what("make a disk of"))(io::Error::other(why)));
        }
        let device = LoopDevice::make(&directory, bytes).map_err(failed(what("make a loop device in")))?;
        make_file_system(&device.path())?;
        if seen == Seen::ByThisThread {
            leave_the_mounts_of_others().map_err(failed("make a mount namespace"))?;
        }
        let is_here = is_here(&directory);
        // Otherwise the kernel writes empty tables later, at a time of its own.
        mount(device.path(), &directory, "ext4", MountFlags::NOATIME, Some(c"noinit_itable"))
            .map_err(failed(what("mount a file system at")))?;
        let place = Self { directory, number: device.number, bytes, is_left: false };
        if is_here {
            // Relative paths lead below the file system until then.
            chdir(&place.directory).map_err(failed(what("enter again")))?;
        }
        Ok(place)
    }

    pub const fn device(&self) -> DeviceNumber {
        DeviceNumber { major: LOOP_MAJOR, minor: self.number }
    }

    /// What is in force here; whether later writes are slowed is for the caller to say.
    pub fn in_force(&self, rates: Rates) -> InForce {
        let device = loop_device::path(self.number).display().to_string();
        InForce { device, file_system: Some(self.bytes), rates, later_writes: true }
    }

    /// Sets what belongs to the device and is no bound of a control group.
    pub fn prepare(&self, options: DiskOptions) -> Result<(), Failed> {
        // Whoever had the device before may have been killed.
        set_usual(self.number);
        self.read_ahead(options.rates);
        options.write_behind.map_or(Ok(()), |bytes| self.write_behind(bytes))
    }

    /// Has the kernel read so far ahead that a reader of a whole file needs no more requests than the device has: a
    /// disk reads on without a seek, but a bound on requests does not know.
    fn read_ahead(&self, rates: Rates) {
        if let (Some(bandwidth), Some(requests)) = (rates.read_bandwidth, rates.read_requests) {
            let kibi = (2 * bandwidth / requests.max(1) / 1024).next_power_of_two();
            set_read_ahead(self.number, kibi.clamp(USUAL_READ_AHEAD, MOST_READ_AHEAD));
        }
    }

    /// Bounds what is written and waits in memory for the device: whoever writes more waits, as on a client that has
    /// written for long already.
    fn write_behind(&self, bytes: u64) -> Result<(), Failed> {
        set_write_behind(self.number, bytes).map_err(failed(
            "bound what waits to be written (/sys/class/bdi has no such setting before Linux 6.2)",
        ))
    }

    /// Leaves it mounted.
    pub fn leave(mut self) {
        self.is_left = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_left {
            set_usual(self.number);
            // The kernel does it when the last who sees it ends, at the latest.
            let _ = rustix::mount::unmount(&self.directory, UnmountFlags::DETACH);
        }
    }
}

/// Whether a directory is the calling thread's working directory.
fn is_here(directory: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    identity(Path::new(".")).is_some_and(|here| identity(directory) == Some(here))
}

fn set_read_ahead(number: u32, kibi: u64) {
    // Slower than it might be is not wrong.
    let _ = fs::write(loop_device::told(number, "queue/read_ahead_kb"), kibi.to_string());
}

fn set_write_behind(number: u32, bytes: u64) -> io::Result<()> {
    let settings = write_behind_settings(number);
    fs::write(settings.join("strict_limit"), "1")?;
    fs::write(settings.join("max_bytes"), bytes.to_string())
}

fn write_behind_settings(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/class/bdi/{LOOP_MAJOR}:{number}"))
}

/// Lifts the bounds on what waits of loop devices that have no file: whoever set them was killed.
pub(super) fn lift_leftovers() {
    let devices = fs::read_dir("/sys/class/bdi").into_iter().flatten().flatten();
    let numbers = devices.filter_map(|device| {
        let (major, minor) =
            device.file_name().to_str()?.split_once(':').map(|(a, b)| (a.parse(), b.parse()))?;
        (major == Ok(LOOP_MAJOR)).then_some(minor.ok()?)
    });
    for number in numbers {
        let is_strict = fs::read_to_string(write_behind_settings(number).join("strict_limit"));
        if is_strict.is_ok_and(|text| text.trim() == "1") && !loop_device::is_attached(number) {
            set_usual(number);
        }
    }
}

/// The next to use the device may be anybody.
fn set_usual(number: u32) {
    set_read_ahead(number, USUAL_READ_AHEAD);
    // What cannot be set back could not be set.
    let settings = write_behind_settings(number);
    let _ = fs::write(settings.join("max_ratio"), "100");
    let _ = fs::write(settings.join("strict_limit"), "0");
}

/// The number of the loop device that was mounted at a directory by [`Place`].
pub(super) fn made_at(directory: &Path) -> Result<u32, Failed> {
    let what = || format!("find a disk at {}", directory.display());
    let directory = directory.canonicalize().map_err(failed(what()))?;
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")
        .map_err(failed("read /proc/thread-self/mountinfo"))?;
    // What was mounted there last is what would be unmounted.
    let last =
        mounts.lines().rev().find(|line| mounted_at(line).is_some_and(|(_, point)| point == directory));
    let number = last.and_then(mounted_loop);
    number
        .filter(|number| loop_device::is_ours(*number))
        .ok_or_else(|| failed(what())(io::Error::other("none was made there by `lab disk up`")))
}

/// Device and directory, from a line of /proc/thread-self/mountinfo (proc(5)).
fn mounted_at(line: &str) -> Option<(&str, PathBuf)> {
    let mut words = line.split(' ').skip(2);
    let (device, point) = (words.next()?, words.nth(1)?);
    Some((device, PathBuf::from(OsString::from_vec(unescaped(point)))))
}

/// The number of the loop device that a line is about.
fn mounted_loop(line: &str) -> Option<u32> {
    let (device, _) = mounted_at(line)?;
    let (major, minor) = device.split_once(':')?;
    if major.parse() == Ok(LOOP_MAJOR) { minor.parse().ok() } else { None }
}

/// The kernel writes blanks and the like as \040.
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

/// Waits until nobody uses it. Whoever has just ended may hold it for a moment.
pub(super) fn wait_until_unused(directory: &Path) -> Result<(), Failed> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        // The first call says whether it is in use, the second would unmount it.
        match rustix::mount::unmount(directory, UnmountFlags::EXPIRE) {
            Ok(()) | Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::BUSY) if tries > 0 => std::thread::sleep(BETWEEN_TRIES),
            Err(e) => return Err(failed(format!("unmount {}", directory.display()))(e)),
        }
    }
}

/// Unmounts it.
pub(super) fn unmount(directory: &Path, number: u32) -> Result<(), Failed> {
    let mut tries = TRIES;
    loop {
        tries -= 1;
        match rustix::mount::unmount(directory, UnmountFlags::empty()) {
            Ok(()) => break,
            // Whoever looks at all that is mounted holds it for a moment.
            Err(Errno::BUSY) if tries > 0 => std::thread::sleep(BETWEEN_TRIES),
            Err(e) => return Err(failed(format!("unmount {}", directory.display()))(e)),
        }
    }
    set_usual(number);
    Ok(())
}

fn usual_bytes(directory: &Path) -> io::Result<u64> {
    let room = statvfs(directory)?;
    Ok((room.f_bavail * room.f_frsize / 2).min(USUAL_BYTES))
}

fn make_file_system(device: &Path) -> Result<(), Failed> {
    let what = || format!("run mkfs.ext4 (Debian: e2fsprogs) on {}", device.display());
    // It often lies where only administrators look for programs.
    let paths = std::iter::once("mkfs.ext4").chain(["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"]);
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for program in paths {
        let mut command = Command::new(program);
        command.args(["-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"]);
        match command.arg(device).stdin(Stdio::null()).output() {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
                return Err(failed(what())(io::Error::other(said)));
            }
            Err(e) => refused = e,
        }
    }
    Err(failed(what())(refused))
}

fn leave_the_mounts_of_others() -> io::Result<()> {
    // SAFETY: mounts are no memory; it concerns the calling thread only, as this module says.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    // What others mount later is still seen, what is mounted here is not.
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_loop_device_is_found() {
        let line = "88 27 7:3 / /srv/a\\040b rw,noatime shared:1 - ext4 /dev/loop3 rw";
        assert_eq!(mounted_at(line), Some(("7:3", PathBuf::from("/srv/a b"))));
        assert_eq!(mounted_loop(line), Some(3));
        assert_eq!(mounted_loop(&line.replace("7:3", "254:3")), None);
        assert_eq!(unescaped("a\\134b\\"), b"a\\b\\");
    }
}
