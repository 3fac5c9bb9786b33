//! File attributes (modification time, mode, owner) stored as user metadata of an object.
//!
//! They are written like rclone does with `--metadata`: `mtime` in seconds with nine decimals, `mode` in octal, `uid`
//! and `gid`. Those of s3fs are read as well: it uses the same names and writes the mode in decimal.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Gid, Mode, Stat, Uid, fchmod, fchown, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;
use tradewind_core::error::{Reason, Result};
use tradewind_core::metadata::UserMetadata;
use tradewind_core::store::GetRequest;
use tradewind_core::{ObjectInfo, Timestamp};
use tradewind_parallel::TransferContext;

use crate::endpoint::Endpoint;
use crate::files::{Directory, Links};
use crate::freshness::{StoreClock, is_close, may_race_with_copy};
use crate::names::key_to_path;
use crate::objects::Objects;

const NANOS_PER_SECOND: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;
/// Largest accepted distance from 1970, some 35,000 years; stored times beyond it are ignored.
const MAX_SECONDS: i128 = 1 << 40;

/// The permission bits of a mode: read, write and execute. Set-id and sticky bits are never restored.
const PERMISSION_BITS: u32 = 0o777;
/// The permission bits, set-id bits and the sticky bit.
const ALL_MODE_BITS: u32 = 0o7777;
/// The file type bits of a mode (`S_IFMT`).
const FILE_TYPE_BITS: u32 = 0o170_000;
/// The file type of a regular file (`S_IFREG`).
const REGULAR_FILE: u32 = 0o100_000;

/// A time in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileTime(i128);

impl From<Timestamp> for FileTime {
    fn from(time: Timestamp) -> Self {
        Self(i128::from(time.millis()) * NANOS_PER_MILLI)
    }
}

impl FileTime {
    /// A time from the seconds and nanoseconds of `stat`.
    #[must_use]
    pub fn new(seconds: i64, nanos: i64) -> Self {
        Self(i128::from(seconds) * NANOS_PER_SECOND + i128::from(nanos))
    }

    /// The time in milliseconds, rounded down.
    #[must_use]
    pub fn to_timestamp(self) -> Timestamp {
        let millis = self.0.div_euclid(NANOS_PER_MILLI);
        let limit = if millis < 0 { i64::MIN } else { i64::MAX };
        Timestamp::from_millis(i64::try_from(millis).unwrap_or(limit))
    }

    /// The nanoseconds after [`to_timestamp`](Self::to_timestamp).
    pub(crate) fn nanos_of_milli(self) -> u32 {
        u32::try_from(self.0.rem_euclid(NANOS_PER_MILLI)).unwrap_or(0)
    }

    pub(crate) fn plus_nanos(self, nanos: u32) -> Self {
        Self(self.0 + i128::from(nanos))
    }

    /// The time rounded down to a multiple of `grain` nanoseconds, as a file system with that resolution has it.
    pub(crate) fn floor(self, grain: i128) -> Self {
        Self(self.0.div_euclid(grain) * grain)
    }

    /// The time as a [`SystemTime`]; `None` if it is out of range.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let away = self.0.unsigned_abs();
        let seconds = u64::try_from(away / NANOS_PER_SECOND.unsigned_abs()).ok()?;
        let away = Duration::new(seconds, u32::try_from(away % NANOS_PER_SECOND.unsigned_abs()).ok()?);
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
        let seconds: i128 = seconds.parse().ok().filter(|seconds| *seconds <= MAX_SECONDS)?;
        let nanos: i128 = format!("{:0<9.9}", fraction).parse().ok()?;
        Some(Self(sign * (seconds * NANOS_PER_SECOND + nanos)))
    }

    fn write(self) -> String {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (seconds, nanos) = (
            self.0.unsigned_abs() / NANOS_PER_SECOND.unsigned_abs(),
            self.0.unsigned_abs() % NANOS_PER_SECOND.unsigned_abs(),
        );
        format!("{sign}{seconds}.{nanos:09}")
    }

    /// Returns true if both times are equal at the resolution of the coarser one. Some file systems, and some programs
    /// that write such metadata, do not store nanoseconds.
    #[must_use]
    pub fn is_same(self, other: Self) -> bool {
        const GRAINS: [i128; 6] = [1, 100, 1_000, 1_000_000, NANOS_PER_SECOND, 2 * NANOS_PER_SECOND];
        GRAINS.iter().any(|grain| {
            let (own, others) = (self.floor(*grain), other.floor(*grain));
            own == others && (own == self || others == other)
        })
    }
}

/// The times of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileTimes {
    /// Modification time, which programs may set.
    pub modified: FileTime,
    /// Time of the last change of data or attributes (ctime), which only the kernel sets.
    pub changed: FileTime,
}

impl FileTimes {
    pub(crate) fn from_stat(stat: &Stat) -> Self {
        // Their type depends on the architecture.
        let (modified, changed) = (i64::try_from(stat.st_mtime_nsec), i64::try_from(stat.st_ctime_nsec));
        Self {
            modified: FileTime::new(stat.st_mtime, modified.unwrap_or(0)),
            changed: FileTime::new(stat.st_ctime, changed.unwrap_or(0)),
        }
    }
}

/// The preserved attributes of a file; `None` if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Modification time.
    pub modified: Option<FileTime>,
    /// Mode, without the file type bits.
    pub mode: Option<u32>,
    /// User id and group id.
    pub owner: Option<(u32, u32)>,
}

impl Attributes {
    /// The attributes of a file.
    #[must_use]
    pub fn from_metadata(file: &fs::Metadata) -> Self {
        Self {
            modified: Some(FileTime::new(file.mtime(), file.mtime_nsec())),
            mode: Some(file.mode() & !FILE_TYPE_BITS),
            owner: Some((file.uid(), file.gid())),
        }
    }

    /// Attributes of which only the modification time is known.
    #[must_use]
    pub fn with_modified(modified: Timestamp) -> Self {
        Self { modified: Some(modified.into()), ..Self::default() }
    }

    /// Parses the attributes stored with an object. Invalid values count as absent.
    #[must_use]
    pub fn from_user_metadata(user: &UserMetadata) -> Self {
        let value = |name: &str| user.iter().find(|(known, _)| known == name).map(|(_, value)| value.trim());
        // `chown` takes the highest id as "unchanged"; no user has it.
        let id = |name| value(name)?.parse().ok().filter(|id| *id != u32::MAX);
        Self {
            modified: value("mtime").and_then(FileTime::parse),
            mode: value("mode").and_then(parse_mode),
            owner: id("uid").zip(id("gid")),
        }
    }

    /// Adds the attributes to the user metadata of an object.
    pub fn write_to(&self, user: &mut UserMetadata) {
        let mut set = |name: &str, value: String| user.push((name.to_owned(), value));
        if let Some((uid, gid)) = self.owner {
            set("gid", gid.to_string());
            set("uid", uid.to_string());
        }
        if let Some(mode) = self.mode {
            set("mode", format!("{:o}", REGULAR_FILE | mode));
        }
        if let Some(modified) = self.modified {
            set("mtime", modified.write());
        }
        user.sort();
    }

    /// Applies the attributes to a file.
    ///
    /// Of the mode only the permission bits are applied: a writer of the bucket must not be able to create a set-id
    /// program. The owner is applied only if this process runs as root.
    pub(crate) fn apply_to(&self, file: &File) -> io::Result<()> {
        if let Some((uid, gid)) = self.owner
            && geteuid().is_root()
        {
            match fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
                // Root of a user namespace cannot assign every id. Losing the owner is better than losing the file.
                Err(e @ (Errno::PERM | Errno::INVAL)) => {
                    tracing::warn!(uid, gid, error = %e, "cannot restore the owner of a file");
                }
                given => given?,
            }
        }
        if let Some(mode) = self.mode {
            let mode = mode & PERMISSION_BITS;
            // Some file systems cannot set it.
            if fstat(file)?.st_mode & ALL_MODE_BITS != mode {
                fchmod(file, Mode::from_raw_mode(mode))?;
            }
        }
        match self.modified.and_then(FileTime::to_system_time) {
            Some(time) => file.set_modified(time),
            None => Ok(()),
        }
    }
}

/// Parses a mode in octal, with or without file type bits, or in decimal with them. The two are never ambiguous: a
/// regular file's mode starts with 10 in octal, and has five digits in decimal.
fn parse_mode(text: &str) -> Option<u32> {
    let is_plain = |mode: &u32| mode & FILE_TYPE_BITS == REGULAR_FILE || mode & FILE_TYPE_BITS == 0;
    let octal = u32::from_str_radix(text, 8).ok().filter(is_plain);
    let decimal = || text.parse().ok().filter(|mode: &u32| mode & FILE_TYPE_BITS == REGULAR_FILE);
    octal.or_else(decimal).filter(|mode| *mode <= FILE_TYPE_BITS | 0o7777).map(|mode| mode & !FILE_TYPE_BITS)
}

/// Returns true if the file and the object of a name have the same time. The object's time is in its metadata, which no
/// listing includes. False if one is missing or the object has no time. Times that agree at a coarser resolution only are
/// the same unless the file changed within two seconds of the object's upload.
pub(crate) async fn has_same_time(
    transfers: &Arc<TransferContext>,
    from: &Endpoint,
    to: &Endpoint,
    name: &str,
) -> Result<bool> {
    let (directory, links, objects) = match (from, to) {
        (Endpoint::Files(directory, links), Endpoint::Objects(objects))
        | (Endpoint::Objects(objects), Endpoint::Files(directory, links)) => (directory, *links, objects),
        (Endpoint::Files(..), Endpoint::Files(..)) | (Endpoint::Objects(_), Endpoint::Objects(_)) => {
            return Ok(false);
        }
    };
    let Some(file) = times_of_file(directory, links, name)? else { return Ok(false) };
    let Some(object) = find_object(transfers, objects, name).await? else { return Ok(false) };
    let Some(stored) = Attributes::from_user_metadata(&object.metadata.user).modified else {
        return Ok(false);
    };
    if stored == file.modified {
        return Ok(true);
    }
    let (clock, written) = (StoreClock::new(from, to).object_clock(), object.modified);
    let is_racy = match to {
        Endpoint::Files(..) => may_race_with_copy(file, written, clock),
        Endpoint::Objects(_) => is_close(file.changed.to_timestamp(), written, clock),
    };
    Ok(stored.is_same(file.modified) && !is_racy)
}

fn times_of_file(directory: &Directory, links: Links, name: &str) -> Result<Option<FileTimes>> {
    let found = directory.tree()?.stat(&key_to_path(name)?, links);
    // A failing `stat` is reported when the file is copied.
    Ok(found.ok().map(|found| FileTimes::from_stat(&found)))
}

async fn find_object(
    transfers: &Arc<TransferContext>,
    objects: &Objects,
    name: &str,
) -> Result<Option<ObjectInfo>> {
    let address = &objects.address(name)?;
    let found = transfers.retry(|| async move {
        let permits = transfers.acquire_request_permits(0).await?;
        objects.store.head(&permits.context, address, GetRequest::default()).await
    });
    match found.await {
        Ok(found) => Ok(Some(found.info)),
        Err(e) if e.reason() == Reason::NoSuchKey => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_of_rclone_and_s3fs_are_parsed() {
        for (text, nanos) in [
            ("1700000000.123456789", 1_700_000_000_123_456_789),
            ("1700000000", 1_700_000_000 * NANOS_PER_SECOND),
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
    fn modes_of_rclone_and_s3fs_are_parsed() {
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
    fn invalid_owner_ids_are_ignored() {
        let read = |uid: &str, gid: &str| {
            let user = vec![("gid".to_owned(), gid.to_owned()), ("uid".to_owned(), uid.to_owned())];
            Attributes::from_user_metadata(&user).owner
        };
        assert_eq!(read("0", "1000"), Some((0, 1000)));
        for (uid, gid) in [("4294967295", "0"), ("0", "4294967295"), ("-1", "0"), ("root", "0")] {
            assert_eq!(read(uid, gid), None, "{uid} {gid}");
        }
    }

    #[test]
    fn times_are_compared_at_the_coarser_resolution() {
        let time = |seconds, nanos| FileTime::new(seconds, nanos);
        let stored = time(1001, 123_456_789);
        for same in [
            stored,
            time(1001, 123_456_700),
            time(1001, 123_456_000),
            time(1001, 123_000_000),
            time(1001, 0),
            time(1000, 0),
        ] {
            assert!(stored.is_same(same) && same.is_same(stored), "{same:?}");
        }
        for other in [
            time(1001, 123_456_788),
            time(1001, 124_000_000),
            time(1002, 0),
            time(999, 0),
            time(1001, 500_000_000),
        ] {
            assert!(!stored.is_same(other) && !other.is_same(stored), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn written_attributes_parse_back_unchanged(seconds in -1_i64 << 35..1 << 35, nanos in 0_i64..1_000_000_000, mode in 0_u32..0o10000) {
            let stored = Attributes { modified: Some(FileTime::new(seconds, nanos)), mode: Some(mode), owner: Some((1, 2)) };
            let mut user = vec![("zebra".to_owned(), "x".to_owned())];
            stored.write_to(&mut user);
            prop_assert!(user.is_sorted());
            prop_assert_eq!(Attributes::from_user_metadata(&user), stored);
            prop_assert!(stored.modified.unwrap().to_system_time().is_some());
        }

        #[test]
        fn arbitrary_metadata_parses_to_valid_attributes(mtime in "[-0-9.]{0,24}", mode in "[0-9]{0,12}") {
            let user = vec![("mode".to_owned(), mode), ("mtime".to_owned(), mtime)];
            let read = Attributes::from_user_metadata(&user);
            prop_assert!(read.mode.is_none_or(|mode| mode <= 0o7777));
            prop_assert!(read.modified.is_none_or(|time| time.to_system_time().is_some()));
        }
    }
}
