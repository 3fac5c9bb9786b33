//! The file `volume`: the version of a cache directory, the id of the cache, and the volume that it belongs to.
//!
//! ```text
//! tradewind-cache VERSION
//! id ID
//! volume NAME
//! checksum CRC
//! ```
//! The id and the checksum have 16 hexadecimal digits. The checksum is the CRC-64/NVME of the lines before it. Earlier
//! programs wrote no such line, and ignore it.
//!
//! A directory whose file is damaged or missing can be emptied if it has nothing but the files of a cache. One of them
//! must show that by its content: any directory may have a file of the name `index`.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use tradewind_core::checksum::crc64nvme;

use super::checkpoint::begins_as_checkpoint;
use super::directory::{DirectoryError, rejected, replace};
use super::session_record::begins_as_record;

/// The version of the format of the directory.
pub(super) const VERSION: u32 = 3;
const TITLE: &str = "tradewind-cache";
const FILE_NAME: &str = "volume";
const LOCK_NAME: &str = "lock";
/// Extension of a file until it is durable.
pub(super) const UNFINISHED: &str = "unfinished";
/// The files of a cache, besides those that are unfinished.
const FILE_NAMES: [&str; 6] = [FILE_NAME, "extents", "index", "session", "pins", LOCK_NAME];
/// The largest file that can be a damaged `volume`.
const MAX_FILE_BYTES: u64 = 4096;
/// Bytes that are read of a file to see whether it is of a cache.
const MAX_PROOF_BYTES: u64 = 64;

/// The cache that a directory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// The directory is empty.
    Absent,
    /// A cache with this id.
    Current(u64),
    /// A cache of this older format version.
    Outdated(u32),
    /// A cache whose file `volume` is damaged or missing.
    Unreadable,
}

/// The content of the file.
enum Parsed {
    Volume { version: u32, cache_id: u64, owner: String },
    Newer(u32),
    Damaged,
}

impl Identity {
    /// Reads the cache in a directory. Rejects a directory that is no cache of this volume, and newer versions.
    pub fn read(directory: &Path, volume_id: &str) -> Result<Self, DirectoryError> {
        let shown = directory.display();
        let text = match fs::read(directory.join(FILE_NAME)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == ErrorKind::NotFound => return Self::without_file(directory),
            Err(e) => return Err(e.into()),
        };
        match parse(&text) {
            Parsed::Newer(version) => Err(rejected(format!(
                "cache directory {shown} has format version {version}, which is newer than this program's {VERSION}; \
                 update the program, or name another directory"
            ))),
            Parsed::Volume { owner, .. } if owner != volume_id => Err(rejected(format!(
                "cache directory {shown} belongs to volume {owner:?}, not {volume_id:?}; name another directory"
            ))),
            Parsed::Volume { version, .. } if version < VERSION => Ok(Self::Outdated(version)),
            Parsed::Volume { cache_id, .. } => Ok(Self::Current(cache_id)),
            Parsed::Damaged => match find_foreign_name(directory)? {
                None if is_cache(directory)? => Ok(Self::Unreadable),
                None => Err(rejected(format!(
                    "{shown}/{FILE_NAME} is damaged, and nothing else shows that the directory is a cache; remove the \
                     directory to start an empty cache, or name another one"
                ))),
                Some(name) => Err(rejected(format!(
                    "{shown}/{FILE_NAME} is damaged, and the directory holds {name:?}, which is not of a cache; move that \
                     elsewhere, or name an empty directory"
                ))),
            },
        }
    }

    /// The identity of a directory without the file.
    fn without_file(directory: &Path) -> Result<Self, DirectoryError> {
        let mut first_name = None;
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != LOCK_NAME && name != format!("{FILE_NAME}.{UNFINISHED}") {
                first_name.get_or_insert(name);
            }
        }
        let Some(first_name) = first_name else { return Ok(Self::Absent) };
        let name = match find_foreign_name(directory)? {
            None if is_cache(directory)? => return Ok(Self::Unreadable),
            None => first_name,
            Some(foreign) => foreign,
        };
        let shown = directory.display();
        let message = format!("{shown} is not a cache directory: it holds {name:?}");
        Err(rejected(format!("{message}; name an empty directory")))
    }

    /// Replaces the file durably.
    pub fn write(directory: &Path, cache_id: u64, volume_id: &str) -> io::Result<()> {
        replace(&directory.join(FILE_NAME), encode(cache_id, volume_id).as_bytes())
    }
}

fn encode(cache_id: u64, volume_id: &str) -> String {
    let text = format!("{TITLE} {VERSION}\nid {cache_id:016x}\nvolume {volume_id}\n");
    format!("{text}{}\n", checksum_line(&text))
}

fn checksum_line(covered: &str) -> String {
    format!("checksum {:016x}", crc64nvme(covered.as_bytes()))
}

fn parse(text: &str) -> Parsed {
    parse_lines(text).unwrap_or(Parsed::Damaged)
}

/// The parsed text; `None` if it is damaged.
fn parse_lines(text: &str) -> Option<Parsed> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let value = |index: usize, name: &str| {
        let line: &str = lines.get(index)?;
        line.strip_suffix('\n')?.strip_prefix(name)?.strip_prefix(' ')
    };
    let checksum_bytes = checksum_line("").len();
    let has_checksum = match lines.len() {
        // If the end of the third line is damaged, it has the checksum, too.
        3 => lines[2].trim_end().get(lines[2].trim_end().len().saturating_sub(checksum_bytes)..).is_some_and(
            |end| end.strip_prefix("checksum ").is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok()),
        ),
        lines => lines > 3,
    };
    let version: u32 = value(0, TITLE)?.parse().ok()?;
    if has_checksum {
        let covered = text.len().checked_sub(checksum_bytes + 1).and_then(|end| text.get(..end))?;
        if text.get(covered.len()..) != Some(&format!("{}\n", checksum_line(covered))) {
            return None;
        }
    }
    if version > VERSION {
        return Some(Parsed::Newer(version));
    }
    let cache_id = u64::from_str_radix(value(1, "id")?, 16).ok()?;
    let owner = value(2, "volume")?.to_owned();
    Some(Parsed::Volume { version, cache_id, owner })
}

/// The name of an entry that is not a file of a cache, if there is one.
fn find_foreign_name(directory: &Path) -> io::Result<Option<String>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let stem = name.strip_suffix(UNFINISHED).and_then(|stem| stem.strip_suffix('.')).unwrap_or(&name);
        let is_known = FILE_NAMES.contains(&stem) && entry.file_type()?.is_file();
        let is_too_large = name == FILE_NAME && entry.metadata()?.len() > MAX_FILE_BYTES;
        if !is_known || is_too_large {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Returns true if the content of a file shows that the directory belongs to a cache, or if the file is empty.
fn is_cache(directory: &Path) -> io::Result<bool> {
    let begin = |name: &str| -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(directory.join(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_PROOF_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    };
    let (volume, index, session) = (begin(FILE_NAME)?, begin("index")?, begin("session")?);
    let shows = |bytes: &Option<Vec<u8>>, test: fn(&[u8]) -> bool| bytes.as_deref().is_some_and(test);
    Ok(shows(&volume, |bytes| bytes.starts_with(TITLE.as_bytes()))
        || shows(&index, begins_as_checkpoint)
        || shows(&session, begins_as_record))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u64 = 0x0123_4567_89ab_cdef;

    fn is_intact(text: &str) -> bool {
        matches!(parse(text), Parsed::Volume { version: VERSION, cache_id: ID, owner } if owner == "photos")
    }

    #[test]
    fn volume_file_with_any_flipped_bit_is_damaged() {
        let text = encode(ID, "photos");
        assert!(is_intact(&text));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let damaged = String::from_utf8_lossy(&bytes).into_owned();
            assert!(matches!(parse(&damaged), Parsed::Damaged), "bit {bit}: {damaged:?}");
        }
    }

    #[test]
    fn volume_file_without_checksum_is_read() {
        let text = encode(ID, "photos");
        let earlier: String = text.split_inclusive('\n').take(3).collect();
        assert!(is_intact(&earlier));
        assert!(matches!(parse(&earlier.replace("cache 3", "cache 4")), Parsed::Newer(4)));
    }
}
