//! Mounts below the watched directory (proc_pid_mountinfo(5)).
//!
//! A mount or unmount hides files that were not removed. Invariant: once something was mounted or unmounted at a
//! point, no file below it ever counts as removed, even if the first mount returns. It is not recorded which of the
//! file systems an object came from.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tradewind_core::error::{Error, Reason, Result};

use crate::files::file_error;

const MOUNTINFO: &str = "/proc/self/mountinfo";
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The mounts at and below a directory, and the points where they changed.
#[derive(Debug)]
pub(super) struct Mounts {
    /// The canonical path, as the mount table has it.
    root: PathBuf,
    state: Mutex<MountState>,
}

#[derive(Debug)]
struct MountState {
    table: File,
    /// The kernel has signalled a change of the table that was not read yet.
    is_outdated: bool,
    points: Points,
}

impl Mounts {
    /// Records the current mounts at and below `root` as the reference.
    pub fn below(root: &Path) -> Result<Self> {
        let root = fs::canonicalize(root).map_err(|e| file_error("access", root, e))?;
        let mut table = File::open(MOUNTINFO).map_err(|e| file_error("open", Path::new(MOUNTINFO), e))?;
        let points = Points::new(read(&mut table, &root)?);
        Ok(Self { root, state: Mutex::new(MountState { table, is_outdated: false, points }) })
    }

    /// Reads the mount table if it changed. Every mount and unmount before this call is known after it.
    pub fn refresh(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let MountState { table, is_outdated, points } = &mut *state;
        // The kernel signals each change once per open file of the table.
        let signalled = poll(&mut [PollFd::new(&*table, PollFlags::PRI)], Some(&NO_WAIT));
        *is_outdated |= signalled.map_err(|e| file_error("access", Path::new(MOUNTINFO), e))? > 0;
        if *is_outdated {
            points.update(read(table, &self.root)?);
            *is_outdated = false;
        }
        Ok(())
    }

    /// The point at or above a name where something was mounted or unmounted before the last update.
    pub fn changed_above(&self, name: &str) -> Option<PathBuf> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.points.changed_above(Path::new(name)).map(Path::to_owned)
    }
}

/// The error for objects that are not removed because the mounts at `point` changed.
pub(super) fn not_removed_error(point: &Path) -> Error {
    let why = format!(
        "something was mounted or unmounted at {}: files missing there are not removed from the destination; restart \
         the command to remove them",
        point.display()
    );
    Error::new(Reason::Conflict, why)
}

/// The identity of a mount: its id, device, root directory within the device, file system type and source. Mount
/// options may change and are not part of it.
type Mount = [Vec<u8>; 5];

/// The visible mounts by mount point, relative to the directory.
type Table = BTreeMap<PathBuf, Mount>;

/// The initial mounts, and the points where they ever differed since.
#[derive(Debug)]
struct Points {
    initial: Table,
    changed: BTreeSet<PathBuf>,
}

impl Points {
    const fn new(initial: Table) -> Self {
        Self { initial, changed: BTreeSet::new() }
    }

    /// Compares the current table with the initial one, and records the points that differ.
    fn update(&mut self, current: Table) {
        let differs = |point: &&PathBuf| self.initial.get(*point) != current.get(*point);
        self.changed.extend(self.initial.keys().chain(current.keys()).filter(differs).cloned());
    }

    fn changed_above(&self, name: &Path) -> Option<&Path> {
        self.changed.iter().map(PathBuf::as_path).find(|point| name.starts_with(point))
    }
}

fn read(table: &mut File, root: &Path) -> Result<Table> {
    let mut text = Vec::new();
    let done = table.rewind().and_then(|()| table.read_to_end(&mut text));
    done.map_err(|e| file_error("read", Path::new(MOUNTINFO), e))?;
    Ok(mounted_below(&text, root))
}

/// Parses the mounts at and below a directory from a mount table.
fn mounted_below(table: &[u8], root: &Path) -> Table {
    let mount = |line: &[u8]| {
        // ID PARENT DEVICE ROOT MOUNT_POINT OPTIONS [OPTIONAL...] - TYPE SOURCE SUPER_OPTIONS
        let mut fields = line.split(|byte| *byte == b' ');
        let (number, _parent, device) = (fields.next()?, fields.next()?, fields.next()?);
        let (directory, point) = (fields.next()?, fields.next()?);
        fields.find(|field| *field == b"-")?;
        let (kind, source) = (fields.next()?, fields.next()?);
        let point = PathBuf::from(OsString::from_vec(unescaped(point)));
        let below = point.strip_prefix(root).ok()?.to_owned();
        Some((below, [number, device, directory, kind, source].map(<[u8]>::to_vec)))
    };
    // Later lines win: a mount over another one at the same point comes after it.
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Decodes a field: bytes that would end it, and backslashes, are written as `\ooo` in octal.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| matches!(byte, b'0'..=b'7').then(|| byte - b'0');
    let escaped = |after: &[u8]| match after {
        [high @ b'0'..=b'3', middle, low, ..] => {
            Some((digit(*high)? << 6) | (digit(*middle)? << 3) | digit(*low)?)
        }
        _ => None,
    };
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let byte = if *first == b'\\' { escaped(after) } else { None };
        rest = if byte.is_some() { &after[3..] } else { after };
        bytes.push(byte.unwrap_or(*first));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /w rw,relatime shared:3 - tmpfs tmpfs rw
31 30 0:41 / /w/disk rw,relatime shared:1 master:2 - tmpfs tmpfs rw
32 30 8:1 /sub /w/a\\040b\\134134/c\\011\\012 rw - ext4 /dev/sda1 rw
33 27 0:42 / /world rw - tmpfs tmpfs rw
";

    fn table(text: &str) -> Table {
        mounted_below(text.as_bytes(), Path::new("/w"))
    }

    /// The points after reading the initial table and then each of `later`.
    fn points(later: &[&str]) -> Points {
        let mut points = Points::new(table(INITIAL));
        later.iter().for_each(|text| points.update(table(text)));
        points
    }

    fn without(number: &str) -> String {
        INITIAL.lines().filter(|line| !line.starts_with(number)).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn mount_table_yields_the_mounts_below_the_root() {
        let table = table(INITIAL);
        let points: Vec<&Path> = table.keys().map(PathBuf::as_path).collect();
        assert_eq!(points, ["", "a b\\134/c\t\n", "disk"].map(Path::new));
        let disk: [&[u8]; 5] = [b"31", b"0:41", b"/", b"tmpfs", b"tmpfs"];
        assert_eq!(table[Path::new("disk")], disk.map(<[u8]>::to_vec));
        assert!(
            mounted_below(b"31 30 0:41 / /w/disk rw", Path::new("/w")).is_empty(),
            "the line is incomplete"
        );
    }

    #[test]
    fn only_octal_escapes_are_decoded() {
        for (field, bytes) in [
            (&b"plain"[..], &b"plain"[..]),
            (b"a\\040b", b"a b"),
            (b"\\134040", b"\\040"),
            (b"\\377", b"\xff"),
            (b"\\400", b"\\400"),
            (b"\\04", b"\\04"),
            (b"\\048", b"\\048"),
            (b"\\", b"\\"),
        ] {
            assert_eq!(unescaped(field), bytes, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn unmount_protects_the_names_below_it() {
        let points = points(&[&without("31")]);
        let above = |name: &str| points.changed_above(Path::new(name));
        for name in ["disk", "disk/x", "disk/dir/y"] {
            assert_eq!(above(name), Some(Path::new("disk")), "{name}");
        }
        for name in ["x", "disk2", "disk.txt", "dir/disk/x"] {
            assert_eq!(above(name), None, "{name}");
        }
    }

    #[test]
    fn changed_mount_point_stays_changed() {
        let other_number = INITIAL.replace("31 30", "39 30");
        let other_device = INITIAL.replace("0:41", "0:49");
        let other_directory = INITIAL.replace("0:41 /", "0:41 /dir");
        let other_source =
            INITIAL.replace("/w/disk rw,relatime shared:1 master:2 - tmpfs tmpfs", "/w/disk rw - nfs a:/b");
        let over_it = format!("{INITIAL}40 31 0:50 / /w/disk rw - tmpfs tmpfs rw\n");
        let gone = without("31");
        for later in [&gone, &other_number, &other_device, &other_directory, &other_source, &over_it] {
            for then in [later, INITIAL] {
                let points = points(&[later, then]);
                assert_eq!(points.changed.iter().collect::<Vec<_>>(), [Path::new("disk")], "{later}");
            }
        }
    }

    #[test]
    fn temporary_mount_protects_the_names_below_it() {
        let came = format!("{INITIAL}40 30 0:50 / /w/new rw - tmpfs tmpfs rw\n");
        let points = points(&[&came, INITIAL]);
        assert_eq!(points.changed_above(Path::new("new/x")), Some(Path::new("new")));
        assert_eq!(points.changed_above(Path::new("disk/x")), None);
    }

    #[test]
    fn mounts_elsewhere_and_options_change_nothing() {
        let elsewhere = without("33");
        let read_only = INITIAL.replace("/w/disk rw,relatime shared:1 master:2", "/w/disk ro");
        assert_ne!((elsewhere.as_str(), read_only.as_str()), (INITIAL, INITIAL));
        assert!(points(&[&elsewhere, &read_only]).changed.is_empty());
    }

    #[test]
    fn unmount_of_the_root_protects_every_name() {
        let points = points(&[&without("30")]);
        assert_eq!(points.changed_above(Path::new("x")), Some(Path::new("")));
    }
}
