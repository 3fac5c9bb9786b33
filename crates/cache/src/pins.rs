//! Pinned prefixes: what the cache keeps of a bucket. A file in its directory has them across restarts.
//!
//! One line for each: the bucket, a space, and the prefix, of which all bytes but letters, digits and `-._/` are
//! percent-encoded. The last line is `# checksum CRC`: the CRC-64/NVME of the lines before it, in 16 hexadecimal digits.
//! Files of earlier versions have no such line.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use tradewind_core::checksum::crc64nvme;
use tradewind_core::{Address, BucketName};

use crate::disk::replace_file;

/// Pinned prefixes at most: each read compares its key with all of them.
pub(crate) const MAX_PINNED_PREFIXES: usize = 64;

/// The begin of the last line. No bucket has such a name.
const CHECKSUM_TITLE: &str = "# checksum ";

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

/// The content of the file.
#[derive(Debug, PartialEq, Eq)]
struct DecodedPins {
    pins: Vec<PinnedPrefix>,
    /// True if pins may be missing or wrong.
    is_damaged: bool,
}

/// Reads the file. Damage is reported, and lines that cannot be read are skipped: they cost hits, not data.
pub(crate) fn read_pins(path: &Path) -> io::Result<Vec<PinnedPrefix>> {
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let DecodedPins { pins, is_damaged } = decode_pins(&text);
    if is_damaged {
        tracing::warn!(
            path = %path.display(),
            "the pinned prefixes are damaged: some may be missing or wrong; list them, and pin or unpin what is wrong"
        );
    }
    Ok(pins)
}

fn decode_pins(text: &str) -> DecodedPins {
    let (lines, is_damaged) = match text.rsplit_once(CHECKSUM_TITLE) {
        Some((lines, checksum)) => (lines, checksum != checksum_text(lines)),
        None => (text, false),
    };
    let parsed: Vec<_> = lines.lines().take(MAX_PINNED_PREFIXES).map(PinnedPrefix::parse).collect();
    let is_damaged = is_damaged || parsed.contains(&None);
    DecodedPins { pins: parsed.into_iter().flatten().collect(), is_damaged }
}

fn encode_pins(pins: &[PinnedPrefix]) -> String {
    let lines: String = pins.iter().map(PinnedPrefix::line).collect();
    format!("{lines}{CHECKSUM_TITLE}{}", checksum_text(&lines))
}

/// Replaces the file durably.
pub(crate) fn write_pins(path: &Path, pins: &[PinnedPrefix]) -> io::Result<()> {
    replace_file(path, encode_pins(pins).as_bytes())
}

/// The rest of the last line.
fn checksum_text(lines: &str) -> String {
    format!("{:016x}\n", crc64nvme(lines.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pin(bucket: &str, prefix: &str) -> PinnedPrefix {
        PinnedPrefix { bucket: BucketName::new(bucket).unwrap(), prefix: prefix.to_owned() }
    }

    #[test]
    fn pins_with_any_flipped_bit_are_known_to_be_damaged() {
        let pins = vec![pin("photos", "2026/"), pin("mail", "")];
        let text = encode_pins(&pins);
        assert_eq!(decode_pins(&text), DecodedPins { pins: pins.clone(), is_damaged: false });
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_pins(&String::from_utf8_lossy(&bytes)).is_damaged, "bit {bit}");
        }
        let earlier = "photos 2026/\nmail \n";
        assert_eq!(decode_pins(earlier), DecodedPins { pins, is_damaged: false });
    }

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
