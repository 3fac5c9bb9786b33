//! The tar format of a bundle (POSIX.1-2017, pax): headers, padding and the end of the archive.

use tar::{EntryType, Header};
use tradewind_core::Timestamp;

/// Block size of a tar archive.
pub const BLOCK_BYTES: u64 = 512;
/// The end-of-archive marker. Readers ignore everything after it.
pub const END_OF_ARCHIVE: [u8; 2 * 512] = [0; 1024];
/// The largest number that all readers support in a 12-byte numeric field.
const MAX_OCTAL_FIELD: u64 = 0o777_7777_7777;
/// The content of the name field if the real name is in a pax record.
const LONG_NAME_PLACEHOLDER: &str = "long-name";

/// Appends the header of a member. Names that are not ASCII or do not fit, and numbers that are negative or too large,
/// are written as pax records, which override the header fields.
pub fn write_header(archive: &mut Vec<u8>, name: &str, size: u64, modified: Timestamp, mode: u32) {
    let mut header = header(EntryType::Regular, size, mode & 0o7777);
    let mut records = Vec::new();
    if !name.is_ascii() || header.set_path(name).is_err() {
        record(&mut records, "path", name);
        // Cannot fail: the placeholder is a valid, short path.
        let _ = header.set_path(LONG_NAME_PLACEHOLDER);
    }
    if size > MAX_OCTAL_FIELD {
        record(&mut records, "size", &size.to_string());
    }
    // Rounded down, also before 1970.
    let seconds = modified.millis().div_euclid(1000);
    match u64::try_from(seconds) {
        Ok(seconds) if seconds <= MAX_OCTAL_FIELD => header.set_mtime(seconds),
        _ => record(&mut records, "mtime", &seconds.to_string()),
    }
    if !records.is_empty() {
        let mut before = self::header(EntryType::XHeader, records.len() as u64, 0o644);
        let _ = before.set_path("PaxHeader/long-name");
        before.set_cksum();
        archive.extend_from_slice(before.as_bytes());
        archive.extend_from_slice(&records);
        write_padding(archive, records.len() as u64);
    }
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
}

/// Appends the padding after `size` bytes of content.
pub fn write_padding(archive: &mut Vec<u8>, size: u64) {
    archive.resize(archive.len() + padding_len(size), 0);
}

/// Number of padding bytes after `size` bytes, up to the next block boundary.
pub const fn padding_len(size: u64) -> usize {
    (size.next_multiple_of(BLOCK_BYTES) - size) as usize
}

/// A header with neutral owner ids: the owner at the packing machine means nothing elsewhere.
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

/// Appends a pax record. Its leading decimal length counts the whole record, including the length's own digits.
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
        write_header(&mut archive, name, bytes.len() as u64, modified, mode);
        archive.extend_from_slice(bytes);
        write_padding(&mut archive, bytes.len() as u64);
        archive
    }

    #[test]
    fn pax_record_length_counts_its_own_digits() {
        for length in [1, 3, 90, 91, 92, 93, 94, 95, 980, 990, 991, 992, 993, 994, 995, 4000] {
            let mut records = Vec::new();
            record(&mut records, "path", &"x".repeat(length));
            let declared: usize =
                std::str::from_utf8(&records).unwrap().split(' ').next().unwrap().parse().unwrap();
            assert_eq!(declared, records.len());
        }
    }

    #[test]
    fn numbers_out_of_field_range_become_pax_records() {
        let mut bytes = Vec::new();
        write_header(&mut bytes, "x", MAX_OCTAL_FIELD + 1, Timestamp::from_millis(-1500), 0o100_644);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("19 size=8589934592\n") && text.contains("12 mtime=-2\n"), "{text}");
        assert_eq!(bytes.len(), 3 * 512);
    }

    proptest! {
        /// An independent tar reader returns the members that were written.
        #[test]
        fn independent_reader_finds_every_member(
            names in proptest::collection::vec("[a-z\u{e9}]{1,120}(/[a-z \u{1f600}]{1,120}){0,4}", 1..5),
            bytes in proptest::collection::vec(any::<u8>(), 0..1500),
            millis in 0_i64..8_589_934_592_000,
            mode in 0_u32..0o10000,
        ) {
            let modified = Timestamp::from_millis(millis);
            let mut whole = Vec::new();
            names.iter().for_each(|name| whole.extend(archive(name, &bytes, modified, mode)));
            prop_assert_eq!(whole.len() % 512, 0);
            whole.extend(END_OF_ARCHIVE);
            // Readers must ignore bytes after the end marker.
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
