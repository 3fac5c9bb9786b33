//! What a file has besides its bytes: when it was written, its mode, its owner. As user metadata of an object it is
//! written as rclone does with `--metadata` (`mtime` in seconds with nine decimals, `mode` in octal, `uid` and `gid`), and
//! read from s3fs as well, which writes the same names and the mode in decimal.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Gid, Mode, Uid, fchmod, fchown};
use rustix::io::Errno;
use rustix::process::geteuid;
use tradewind_core::Timestamp;
use tradewind_core::error::{Reason, Result};
use tradewind_core::metadata::UserMetadata;
use tradewind_core::store::GetRequest;
use tradewind_volume::Carrier;

use crate::ends::End;
use crate::files::{Directory, Links};
use crate::names::path_of;
use crate::objects::Objects;

const NANOS: i128 = 1_000_000_000;
/// Times further away than this many seconds are nobody's: some 35,000 years.
const MOST_SECONDS: i128 = 1 << 40;

/// Bits of a mode that say what is no file's to say for others: who may read, write and execute.
const PERMISSIONS: u32 = 0o777;
/// Bits of a mode that say what kind of a file it is, and those of a plain file.
const KIND: u32 = 0o170_000;
const PLAIN: u32 = 0o100_000;

/// A moment to the nanosecond, counted since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileTime(i128);

impl From<Timestamp> for FileTime {
    fn from(time: Timestamp) -> Self {
        Self(i128::from(time.millis()) * 1_000_000)
    }
}

impl FileTime {
    /// From what `stat` says.
    #[must_use]
    pub fn new(seconds: i64, nanos: i64) -> Self {
        Self(i128::from(seconds) * NANOS + i128::from(nanos))
    }

    /// As the standard library's time; `None` where it has none for it.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let away = self.0.unsigned_abs();
        let seconds = u64::try_from(away / NANOS.unsigned_abs()).ok()?;
        let away = Duration::new(seconds, u32::try_from(away % NANOS.unsigned_abs()).ok()?);
        if self.0 >= 0 { UNIX_EPOCH.checked_add(away) } else { UNIX_EPOCH.checked_sub(away) }
    }

    fn parse(text: &str) -> Option<Self> {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text),
        };
        let (seconds, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if seconds.is_empty() || !is_number(seconds) || !is_number(fraction) {
            return None;
        }
        let seconds: i128 = seconds.parse().ok().filter(|seconds| *seconds <= MOST_SECONDS)?;
        let nanos: i128 = format!("{:0<9.9}", fraction).parse().ok()?;
        Some(Self(sign * (seconds * NANOS + nanos)))
    }

    fn write(self) -> String {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (seconds, nanos) =
            (self.0.unsigned_abs() / NANOS.unsigned_abs(), self.0.unsigned_abs() % NANOS.unsigned_abs());
        format!("{sign}{seconds}.{nanos:09}")
    }

    /// Whether both are the same moment, as far as the coarser of the two tells: not every file system, and not every
    /// program that writes such metadata, keeps nanoseconds.
    #[must_use]
    pub fn is_same(self, other: Self) -> bool {
        const GRAINS: [i128; 6] = [1, 100, 1_000, 1_000_000, NANOS, 2 * NANOS];
        GRAINS.iter().any(|grain| {
            let floor = |time: Self| time.0.div_euclid(*grain) * grain;
            floor(self) == floor(other) && (floor(self) == self.0 || floor(other) == other.0)
        })
    }
}

/// What is kept of a file, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// When it was written last.
    pub modified: Option<FileTime>,
    /// Its mode, without what kind of a file it is.
    pub mode: Option<u32>,
    /// User and group that own it.
    pub owner: Option<(u32, u32)>,
}

impl Attributes {
    /// Those of a file.
    #[must_use]
    pub fn of(file: &fs::Metadata) -> Self {
        Self {
            modified: Some(FileTime::new(file.mtime(), file.mtime_nsec())),
            mode: Some(file.mode() & !KIND),
            owner: Some((file.uid(), file.gid())),
        }
    }

    /// Of something of which only its time is known.
    #[must_use]
    pub fn dated(modified: Timestamp) -> Self {
        Self { modified: Some(modified.into()), ..Self::default() }
    }

    /// Those that an object carries. What cannot be read is as good as absent.
    #[must_use]
    pub fn read(user: &UserMetadata) -> Self {
        let value = |name: &str| user.iter().find(|(known, _)| known == name).map(|(_, value)| value.trim());
        // The last number means nobody to the system.
        let id = |name| value(name)?.parse().ok().filter(|id| *id != u32::MAX);
        Self {
            modified: value("mtime").and_then(FileTime::parse),
            mode: value("mode").and_then(parse_mode),
            owner: id("uid").zip(id("gid")),
        }
    }

    /// Writes them for an object to carry.
    pub fn write(&self, user: &mut UserMetadata) {
        let mut set = |name: &str, value: String| user.push((name.to_owned(), value));
        if let Some((uid, gid)) = self.owner {
            set("gid", gid.to_string());
            set("uid", uid.to_string());
        }
        if let Some(mode) = self.mode {
            set("mode", format!("{:o}", PLAIN | mode));
        }
        if let Some(modified) = self.modified {
            set("mtime", modified.write());
        }
        user.sort();
    }

    /// Gives them to a file. Who may write a bucket must not be able to make a program run as somebody else: of the mode
    /// only the permissions are taken. The owner is root's to give, and left where this is not root.
    pub(crate) fn give(&self, file: &File) -> io::Result<()> {
        if let Some((uid, gid)) = self.owner
            && geteuid().is_root()
        {
            match fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
                // Root of a container may not give to everybody: the bytes are worth more than their owner.
                Err(e @ (Errno::PERM | Errno::INVAL)) => {
                    tracing::warn!(uid, gid, error = %e, "a file keeps this process's owner");
                }
                given => given?,
            }
        }
        if let Some(mode) = self.mode {
            fchmod(file, Mode::from_raw_mode(mode & PERMISSIONS))?;
        }
        match self.modified.and_then(FileTime::to_system_time) {
            Some(time) => file.set_modified(time),
            None => Ok(()),
        }
    }
}

/// A mode in octal, with or without what kind of a file it is, or in decimal with it. No text is both: the kind of a plain
/// file begins with 10 in octal, and takes five digits in decimal.
fn parse_mode(text: &str) -> Option<u32> {
    let is_plain = |mode: &u32| mode & KIND == PLAIN || mode & KIND == 0;
    let octal = u32::from_str_radix(text, 8).ok().filter(is_plain);
    let decimal = || text.parse().ok().filter(|mode: &u32| mode & KIND == PLAIN);
    octal.or_else(decimal).filter(|mode| *mode <= KIND | 0o7777).map(|mode| mode & !KIND)
}

/// Whether a file and an object have the same time under a name: the one that the object carries, which no listing tells.
/// What is gone, and what carries none, has not.
pub(crate) async fn have_same_time(carrier: &Arc<Carrier>, from: &End, to: &End, name: &str) -> Result<bool> {
    let (directory, links, objects) = match (from, to) {
        (End::Files(directory, links), End::Objects(objects))
        | (End::Objects(objects), End::Files(directory, links)) => (directory, *links, objects),
        (End::Files(..), End::Files(..)) | (End::Objects(_), End::Objects(_)) => return Ok(false),
    };
    let Some(file) = time_of_file(directory, links, name)? else { return Ok(false) };
    let kept = time_of_object(carrier, objects, name).await?;
    Ok(kept.is_some_and(|kept| kept.is_same(file)))
}

fn time_of_file(directory: &Directory, links: Links, name: &str) -> Result<Option<FileTime>> {
    let found = directory.tree()?.stat(&path_of(name)?, links);
    // What cannot be looked at is told of when it is copied.
    Ok(found.ok().map(|found| FileTime::new(found.st_mtime, i64::try_from(found.st_mtime_nsec).unwrap_or(0))))
}

async fn time_of_object(carrier: &Arc<Carrier>, objects: &Objects, name: &str) -> Result<Option<FileTime>> {
    let address = &objects.address(name)?;
    let found = carrier.again(|| async move {
        let slot = carrier.slot(0).await?;
        objects.store.head(&slot.context, address, GetRequest::default()).await
    });
    match found.await {
        Ok(found) => Ok(Attributes::read(&found.info.metadata.user).modified),
        Err(e) if e.reason() == Reason::NoSuchKey => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_as_others_write_them() {
        for (text, nanos) in [
            ("1700000000.123456789", 1_700_000_000_123_456_789),
            ("1700000000", 1_700_000_000 * NANOS),
            ("1700000000.5", 1_700_000_000_500_000_000),
            ("0.0000000019", 1),
            ("-1.5", -1_500_000_000),
        ] {
            assert_eq!(FileTime::parse(text), Some(FileTime(nanos)), "{text}");
        }
        for bad in
            ["", ".", ".5", "-", "1e9", "1.-5", "+1", "1.2.3", "99999999999999999999", "2023-01-01T00:00:00Z"]
        {
            assert_eq!(FileTime::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn modes_are_read_as_others_write_them() {
        for (text, mode) in [
            ("100644", 0o644),
            ("0100755", 0o755),
            ("644", 0o644),
            ("33188", 0o644),
            ("33206", 0o666),
            ("36863", 0o7777),
        ] {
            assert_eq!(parse_mode(text), Some(mode), "{text}");
        }
        for bad in ["", "rw-r--r--", "40755", "16877", "120777", "99999", "4294967295", "-644"] {
            assert_eq!(parse_mode(bad), None, "{bad}");
        }
    }

    #[test]
    fn nobody_owns_a_file() {
        let read = |uid: &str, gid: &str| {
            let user = vec![("gid".to_owned(), gid.to_owned()), ("uid".to_owned(), uid.to_owned())];
            Attributes::read(&user).owner
        };
        assert_eq!(read("0", "1000"), Some((0, 1000)));
        for (uid, gid) in [("4294967295", "0"), ("0", "4294967295"), ("-1", "0"), ("root", "0")] {
            assert_eq!(read(uid, gid), None, "{uid} {gid}");
        }
    }

    #[test]
    fn the_coarser_one_decides_what_is_the_same() {
        let time = |seconds, nanos| FileTime::new(seconds, nanos);
        let kept = time(1001, 123_456_789);
        for same in [
            kept,
            time(1001, 123_456_700),
            time(1001, 123_456_000),
            time(1001, 123_000_000),
            time(1001, 0),
            time(1000, 0),
        ] {
            assert!(kept.is_same(same) && same.is_same(kept), "{same:?}");
        }
        for other in [
            time(1001, 123_456_788),
            time(1001, 124_000_000),
            time(1002, 0),
            time(999, 0),
            time(1001, 500_000_000),
        ] {
            assert!(!kept.is_same(other) && !other.is_same(kept), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(seconds in -1_i64 << 35..1 << 35, nanos in 0_i64..1_000_000_000, mode in 0_u32..0o10000) {
            let kept = Attributes { modified: Some(FileTime::new(seconds, nanos)), mode: Some(mode), owner: Some((1, 2)) };
            let mut user = vec![("zebra".to_owned(), "x".to_owned())];
            kept.write(&mut user);
            prop_assert!(user.is_sorted());
            prop_assert_eq!(Attributes::read(&user), kept);
            prop_assert!(kept.modified.unwrap().to_system_time().is_some());
        }

        #[test]
        fn nothing_that_is_read_can_break_anything(mtime in "[-0-9.]{0,24}", mode in "[0-9]{0,12}") {
            let user = vec![("mode".to_owned(), mode), ("mtime".to_owned(), mtime)];
            let read = Attributes::read(&user);
            prop_assert!(read.mode.is_none_or(|mode| mode <= 0o7777));
            prop_assert!(read.modified.is_none_or(|time| time.to_system_time().is_some()));
        }
    }
}
