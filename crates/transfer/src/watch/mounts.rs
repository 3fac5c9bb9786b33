//! What is mounted below the watched directory, as the system tells it (proc_pid_mountinfo(5)). Where something is
//! mounted or unmounted, files go out of sight that nobody removed: below such a point nothing is taken for removed from
//! then on. Which of the file systems that were there an object came from is not known, and so none of them counts again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tradewind_core::error::{Error, Reason, Result};

use crate::files::failed;

const TABLE: &str = "/proc/self/mountinfo";
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What is mounted at and below a directory, and where that changed.
#[derive(Debug)]
pub(super) struct Mounts {
    /// Without links, as the table has it.
    root: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    table: File,
    /// It was told that the table is another one, which was not read yet.
    is_outdated: bool,
    points: Points,
}

impl Mounts {
    /// What is mounted now is what has to stay.
    pub fn below(root: &Path) -> Result<Self> {
        let root = fs::canonicalize(root).map_err(|e| failed("look at", root, e))?;
        let mut table = File::open(TABLE).map_err(|e| failed("open", Path::new(TABLE), e))?;
        let points = Points::new(read(&mut table, &root)?);
        Ok(Self { root, known: Mutex::new(Known { table, is_outdated: false, points }) })
    }

    /// Looks at what is mounted. What is found afterwards to have been mounted or unmounted was so before.
    pub fn look(&self) -> Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { table, is_outdated, points } = &mut *known;
        // The system tells once of each change, to whoever has the table open.
        let told = poll(&mut [PollFd::new(&*table, PollFlags::PRI)], Some(&AT_ONCE));
        *is_outdated |= told.map_err(|e| failed("look at", Path::new(TABLE), e))? > 0;
        if *is_outdated {
            points.look(read(table, &self.root)?);
            *is_outdated = false;
        }
        Ok(())
    }

    /// The point on the way to a name, or at it, where something was mounted or unmounted before the last look.
    pub fn changed_above(&self, name: &str) -> Option<PathBuf> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.points.changed_above(Path::new(name)).map(Path::to_owned)
    }
}

/// What is missing below a point is left in the store.
pub(super) fn changed(point: &Path) -> Error {
    let why = format!(
        "something was mounted or unmounted at {}: what is missing there is not removed; start the command again if it \
         is to be",
        point.display()
    );
    Error::new(Reason::Conflict, why)
}

/// What tells a mount from others: its number, the device, which directory of that, the kind of the file system, and
/// where it is from. How it is mounted may change.
type Mount = [Vec<u8>; 5];

/// By their points below a directory; of those at one point the one that is seen.
type Table = BTreeMap<PathBuf, Mount>;

/// Points below a directory where something is mounted, or was.
#[derive(Debug)]
struct Points {
    at_first: Table,
    changed: BTreeSet<PathBuf>,
}

impl Points {
    const fn new(at_first: Table) -> Self {
        Self { at_first, changed: BTreeSet::new() }
    }

    /// This is mounted now.
    fn look(&mut self, now: Table) {
        let is_other = |point: &&PathBuf| self.at_first.get(*point) != now.get(*point);
        self.changed.extend(self.at_first.keys().chain(now.keys()).filter(is_other).cloned());
    }

    fn changed_above(&self, below: &Path) -> Option<&Path> {
        self.changed.iter().map(PathBuf::as_path).find(|point| below.starts_with(point))
    }
}

fn read(table: &mut File, root: &Path) -> Result<Table> {
    let mut text = Vec::new();
    let done = table.rewind().and_then(|()| table.read_to_end(&mut text));
    done.map_err(|e| failed("read", Path::new(TABLE), e))?;
    Ok(mounted_below(&text, root))
}

/// What a table says of a directory and what is below it.
fn mounted_below(table: &[u8], root: &Path) -> Table {
    let mount = |line: &[u8]| {
        // NUMBER PARENT DEVICE DIRECTORY POINT OPTIONS [WHATEVER...] - KIND SOURCE OPTIONS
        let mut fields = line.split(|byte| *byte == b' ');
        let (number, _parent, device) = (fields.next()?, fields.next()?, fields.next()?);
        let (directory, point) = (fields.next()?, fields.next()?);
        fields.find(|field| *field == b"-")?;
        let (kind, source) = (fields.next()?, fields.next()?);
        let point = PathBuf::from(OsString::from_vec(unescaped(point)));
        let below = point.strip_prefix(root).ok()?.to_owned();
        Some((below, [number, device, directory, kind, source].map(<[u8]>::to_vec)))
    };
    // One that is mounted over another comes later.
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Bytes that would end a field are written as a backslash and three octal digits, and so is a backslash.
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

    const AT_FIRST: &str = "\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /w rw,relatime shared:3 - tmpfs tmpfs rw
31 30 0:41 / /w/disk rw,relatime shared:1 master:2 - tmpfs tmpfs rw
32 30 8:1 /sub /w/a\\040b\\134134/c\\011\\012 rw - ext4 /dev/sda1 rw
33 27 0:42 / /world rw - tmpfs tmpfs rw
";

    fn table(text: &str) -> Table {
        mounted_below(text.as_bytes(), Path::new("/w"))
    }

    /// Of the text at the beginning, and then of others.
    fn points(later: &[&str]) -> Points {
        let mut points = Points::new(table(AT_FIRST));
        later.iter().for_each(|text| points.look(table(text)));
        points
    }

    fn without(number: &str) -> String {
        AT_FIRST.lines().filter(|line| !line.starts_with(number)).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_table_names_what_is_mounted_below() {
        let table = table(AT_FIRST);
        let points: Vec<&Path> = table.keys().map(PathBuf::as_path).collect();
        assert_eq!(points, ["", "a b\\134/c\t\n", "disk"].map(Path::new));
        let disk: [&[u8]; 5] = [b"31", b"0:41", b"/", b"tmpfs", b"tmpfs"];
        assert_eq!(table[Path::new("disk")], disk.map(<[u8]>::to_vec));
        assert!(mounted_below(b"31 30 0:41 / /w/disk rw", Path::new("/w")).is_empty(), "no whole line");
    }

    #[test]
    fn only_bytes_in_octal_are_unescaped() {
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
    fn where_something_is_unmounted_names_below_are_held() {
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
    fn a_point_that_changed_is_never_trusted_again() {
        let other_number = AT_FIRST.replace("31 30", "39 30");
        let other_device = AT_FIRST.replace("0:41", "0:49");
        let other_directory = AT_FIRST.replace("0:41 /", "0:41 /dir");
        let other_source =
            AT_FIRST.replace("/w/disk rw,relatime shared:1 master:2 - tmpfs tmpfs", "/w/disk rw - nfs a:/b");
        let over_it = format!("{AT_FIRST}40 31 0:50 / /w/disk rw - tmpfs tmpfs rw\n");
        let gone = without("31");
        for later in [&gone, &other_number, &other_device, &other_directory, &other_source, &over_it] {
            for then in [later, AT_FIRST] {
                let points = points(&[later, then]);
                assert_eq!(points.changed.iter().collect::<Vec<_>>(), [Path::new("disk")], "{later}");
            }
        }
    }

    #[test]
    fn what_comes_and_goes_holds_what_is_below() {
        let came = format!("{AT_FIRST}40 30 0:50 / /w/new rw - tmpfs tmpfs rw\n");
        let points = points(&[&came, AT_FIRST]);
        assert_eq!(points.changed_above(Path::new("new/x")), Some(Path::new("new")));
        assert_eq!(points.changed_above(Path::new("disk/x")), None);
    }

    #[test]
    fn what_is_mounted_elsewhere_or_otherwise_changes_nothing() {
        let elsewhere = without("33");
        let read_only = AT_FIRST.replace("/w/disk rw,relatime shared:1 master:2", "/w/disk ro");
        assert_ne!((elsewhere.as_str(), read_only.as_str()), (AT_FIRST, AT_FIRST));
        assert!(points(&[&elsewhere, &read_only]).changed.is_empty());
    }

    #[test]
    fn where_the_directory_itself_is_unmounted_everything_is_held() {
        let points = points(&[&without("30")]);
        assert_eq!(points.changed_above(Path::new("x")), Some(Path::new("")));
    }
}
