//! A bundle as a tar archive (POSIX.1-2017, pax): what frames a member, and the end.

use tar::{EntryType, Header};
use tradewind_core::Timestamp;

/// What everything in an archive is a multiple of, in bytes.
pub const BLOCK_BYTES: u64 = 512;
/// What ends an archive. What is behind it is nothing to those who read archives.
pub const END: [u8; 2 * 512] = [0; 1024];
/// The largest number that all readers know in a field of twelve bytes.
const MOST_OCTAL: u64 = 0o777_7777_7777;
/// The name in the field for one, where the whole name stands elsewhere.
const ELSEWHERE: &str = "long-name";

/// Appends what stands before a member's bytes. Names that the field for them cannot hold, or that are not ASCII, and
/// numbers that are too large or negative, are in records of their own, which every reader of today prefers.
pub fn begin(archive: &mut Vec<u8>, name: &str, size: u64, modified: Timestamp, mode: u32) {
    let mut header = header(EntryType::Regular, size, mode & 0o7777);
    let mut records = Vec::new();
    if !name.is_ascii() || header.set_path(name).is_err() {
        record(&mut records, "path", name);
        // It fits, and is no path that the setter would refuse.
        let _ = header.set_path(ELSEWHERE);
    }
    if size > MOST_OCTAL {
        record(&mut records, "size", &size.to_string());
    }
    // Rounded down, also before 1970.
    let seconds = modified.millis().div_euclid(1000);
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= MOST_OCTAL => header.set_mtime(seconds),
        _ => record(&mut records, "mtime", &seconds.to_string()),
    }
    if !records.is_empty() {
        let mut before = self::header(EntryType::XHeader, records.len() as u64, 0o644);
        let _ = before.set_path("PaxHeader/long-name");
        before.set_cksum();
        archive.extend_from_slice(before.as_bytes());
        archive.extend_from_slice(&records);
        pad(archive, records.len() as u64);
    }
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
}

/// Fills up the last block of `size` bytes.
pub fn pad(archive: &mut Vec<u8>, size: u64) {
    archive.resize(archive.len() + padding(size), 0);
}

/// Bytes behind `size` bytes that fill up their last block.
pub const fn padding(size: u64) -> usize {
    (size.next_multiple_of(BLOCK_BYTES) - size) as usize
}

/// Nobody's: who packed is no matter of who unpacks.
fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// A record says its own length, that of the digits of the length among it.
fn record(records: &mut Vec<u8>, key: &str, value: &str) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {key}={value}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read as _;

    fn archive(name: &str, bytes: &[u8], modified: Timestamp, mode: u32) -> Vec<u8> {
        let mut archive = Vec::new();
        begin(&mut archive, name, bytes.len() as u64, modified, mode);
        archive.extend_from_slice(bytes);
        pad(&mut archive, bytes.len() as u64);
        archive
    }

    #[test]
    fn lengths_of_records_count_their_own_digits() {
        for length in [1, 3, 90, 91, 92, 93, 94, 95, 980, 990, 991, 992, 993, 994, 995, 4000] {
            let mut records = Vec::new();
            record(&mut records, "path", &"x".repeat(length));
            let said: usize =
                std::str::from_utf8(&records).unwrap().split(' ').next().unwrap().parse().unwrap();
            assert_eq!(said, records.len());
        }
    }

    #[test]
    fn numbers_that_fields_do_not_hold_are_in_records() {
        let mut bytes = Vec::new();
        begin(&mut bytes, "x", MOST_OCTAL + 1, Timestamp::from_millis(-1500), 0o100_644);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("19 size=8589934592\n") && text.contains("12 mtime=-2\n"), "{text}");
        assert_eq!(bytes.len(), 3 * 512);
    }

    proptest! {
        /// Another reader of archives finds what went in.
        #[test]
        fn what_went_in_is_found(
            names in proptest::collection::vec("[a-z\u{e9}]{1,120}(/[a-z \u{1f600}]{1,120}){0,4}", 1..5),
            bytes in proptest::collection::vec(any::<u8>(), 0..1500),
            millis in 0_i64..8_589_934_592_000,
            mode in 0_u32..0o10000,
        ) {
            let modified = Timestamp::from_millis(millis);
            let mut whole = Vec::new();
            names.iter().for_each(|name| whole.extend(archive(name, &bytes, modified, mode)));
            prop_assert_eq!(whole.len() % 512, 0);
            whole.extend(END);
            // What stands behind the end is nobody's.
            whole.extend_from_slice(b"tradewind bundle");
            let mut found = Vec::new();
            let mut reader = tar::Archive::new(whole.as_slice());
            for entry in reader.entries().unwrap() {
                let mut entry = entry.unwrap();
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                prop_assert_eq!(&content, &bytes);
                let header = entry.header();
                prop_assert_eq!(header.mode().unwrap(), mode);
                prop_assert_eq!(header.mtime().unwrap(), u64::try_from(millis / 1000).unwrap());
                found.push(entry.path().unwrap().to_str().unwrap().to_owned());
            }
            prop_assert_eq!(found, names);
        }
    }
}
