//! Pinned prefixes: what the cache keeps of a bucket. A file in its directory has them across restarts.
//!
//! One line for each: the bucket, a space, and the prefix, of which all bytes but letters, digits and `-._/` are
//! percent-encoded.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use tradewind_core::{Address, BucketName};

use crate::disk::replace_file;

/// Pinned prefixes at most: each read compares its key with all of them.
pub(crate) const MAX_PINNED_PREFIXES: usize = 64;

/// Keys of a bucket that the cache keeps, within its bound for pins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedPrefix {
    /// The bucket.
    pub bucket: BucketName,
    /// The beginning of the keys; empty for all.
    pub prefix: String,
}

impl PinnedPrefix {
    /// Returns true if an object is pinned.
    #[must_use]
    pub fn contains(&self, address: &Address) -> bool {
        address.bucket == self.bucket && address.key.as_str().starts_with(&self.prefix)
    }

    fn line(&self) -> String {
        let mut line = format!("{} ", self.bucket.as_str());
        for byte in self.prefix.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._/".contains(&byte) {
                line.push(char::from(byte));
            } else {
                line += &format!("%{byte:02X}");
            }
        }
        line + "\n"
    }

    fn parse(line: &str) -> Option<Self> {
        let (bucket, encoded) = line.split_once(' ')?;
        let mut bytes = Vec::new();
        let mut rest = encoded.bytes();
        while let Some(byte) = rest.next() {
            if byte == b'%' {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            } else {
                bytes.push(byte);
            }
        }
        Some(Self { bucket: BucketName::new(bucket).ok()?, prefix: String::from_utf8(bytes).ok()? })
    }
}

/// Reads the file. Lines that are damaged are reported and skipped: they cost hits, not data.
pub(crate) fn read_pins(path: &Path) -> io::Result<Vec<PinnedPrefix>> {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut pins = Vec::new();
    for line in text.lines().take(MAX_PINNED_PREFIXES) {
        match PinnedPrefix::parse(line) {
            Some(pin) => pins.push(pin),
            None => {
                tracing::warn!(path = %path.display(), "a line of the pinned prefixes is damaged; it is skipped")
            }
        }
    }
    Ok(pins)
}

/// Replaces the file durably.
pub(crate) fn write_pins(path: &Path, pins: &[PinnedPrefix]) -> io::Result<()> {
    let text: String = pins.iter().map(PinnedPrefix::line).collect();
    replace_file(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_restore_any_prefix(prefix in any::<String>()) {
            let pin = PinnedPrefix { bucket: BucketName::new("bucket").unwrap(), prefix };
            let line = pin.line();
            prop_assert_eq!(line.lines().count(), 1);
            prop_assert_eq!(PinnedPrefix::parse(line.trim_end_matches('\n')), Some(pin));
        }

        #[test]
        fn hostile_lines_never_panic(line in any::<String>()) {
            let _ = PinnedPrefix::parse(&line);
        }
    }
}
