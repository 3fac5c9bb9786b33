//! The index after a bundle's archive; `docs/bundles.md` specifies the format.
//!
//! Decoded bytes are untrusted: every number is checked against the actual size before it is used.

use tradewind_core::Timestamp;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::{Error, Reason, Result};

use super::archive::{BLOCK_BYTES, END_OF_ARCHIVE};

/// Size of the footer.
pub const FOOTER_BYTES: usize = 64;
/// Maximum accepted size of an index, four times the size at which a bundle is closed. One more entry with a name of
/// 64 KiB may come on top.
pub const MAX_INDEX_BYTES: u64 = 8 << 20;
/// Maximum length of a name.
pub const MAX_NAME_BYTES: usize = u16::MAX as usize;
/// Size of an entry without its name.
const ENTRY_BYTES: usize = 38;
const MAGIC: [u8; 16] = *b"tradewind bundle";
const VERSION: u32 = 1;

/// A file in a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name, as a key relative to the packed directory.
    pub name: String,
    /// Offset of the content in the object.
    pub offset: u64,
    /// Size of the content in bytes.
    pub size: u64,
    /// Modification time.
    pub modified: Timestamp,
    /// Unix permission bits.
    pub mode: u32,
    /// CRC-64/NVME of the content.
    pub checksum: u64,
}

impl Member {
    /// Size of its entry in the index.
    #[must_use]
    pub const fn index_bytes(&self) -> u64 {
        (ENTRY_BYTES + self.name.len()) as u64
    }

    /// Offset of the first byte after its content.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }
}

/// The footer: the last bytes of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// Random id of the set, shared by the bundles that were packed together.
    pub set: u64,
    /// Number of the bundle in its set, from 1.
    pub number: u32,
    /// True if it is not the last bundle of its set.
    pub has_next: bool,
    /// Number of members.
    pub members: u32,
    /// Size of the index.
    pub index_bytes: u64,
    /// CRC-64/NVME of the index.
    pub index_checksum: u64,
}

/// Encoder of an index.
#[derive(Debug)]
pub struct IndexWriter {
    bytes: Vec<u8>,
    members: u32,
}

impl IndexWriter {
    /// An empty index with capacity for `declared_bytes`, since growing would copy it and briefly hold it twice.
    #[must_use]
    pub fn new(expected_bytes: u64) -> Self {
        let expected = usize::try_from(expected_bytes.min(MAX_INDEX_BYTES)).unwrap_or(0);
        Self { bytes: Vec::with_capacity(expected + FOOTER_BYTES), members: 0 }
    }

    /// Appends a member, whose name and offset must be greater than all before.
    pub fn add(&mut self, member: &Member) {
        let length = u16::try_from(member.name.len()).unwrap_or(u16::MAX);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(member.name.as_bytes());
        for number in [member.offset, member.size] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.bytes.extend_from_slice(&member.modified.millis().to_le_bytes());
        self.bytes.extend_from_slice(&member.mode.to_le_bytes());
        self.bytes.extend_from_slice(&member.checksum.to_le_bytes());
        self.members += 1;
    }

    /// Number of members.
    #[must_use]
    pub const fn members(&self) -> u32 {
        self.members
    }

    /// CRC-64/NVME of all entries.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        crc64nvme(&self.bytes)
    }

    /// The index with its footer: everything that follows the archive.
    #[must_use]
    pub fn finish(mut self, set: u64, number: u32, has_next: bool) -> Vec<u8> {
        let footer = Footer {
            set,
            number,
            has_next,
            members: self.members,
            index_bytes: self.bytes.len() as u64,
            index_checksum: self.checksum(),
        };
        self.bytes.extend_from_slice(&footer.encode());
        self.bytes
    }
}

impl Footer {
    fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = Vec::with_capacity(FOOTER_BYTES);
        bytes.extend_from_slice(&MAGIC);
        for number in [VERSION, self.number, u32::from(self.has_next), self.members] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.set, self.index_bytes, self.index_checksum] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc64nvme(&bytes).to_le_bytes());
        let mut footer = [0; FOOTER_BYTES];
        footer.copy_from_slice(&bytes);
        footer
    }

    /// Decodes the footer from the last bytes of an object of `size` bytes.
    pub fn decode(tail: &[u8], size: u64) -> Result<Self> {
        let footer = tail.len().checked_sub(FOOTER_BYTES).map(|at| &tail[at..]);
        let Some(footer) = footer.filter(|footer| footer.starts_with(&MAGIC)) else {
            let why = "not a bundle, or truncated: it does not end with an index as `cp --bundle` writes it";
            return Err(Error::new(Reason::InvalidRequest, why));
        };
        let mut fields = Fields(&footer[MAGIC.len()..]);
        let damaged = || damaged("the checksum of its footer does not match");
        let version = fields.u32().ok_or_else(damaged)?;
        let (body, checksum) = footer.split_at(FOOTER_BYTES - 8);
        if crc64nvme(body).to_le_bytes() != checksum {
            return Err(damaged());
        }
        if version != VERSION {
            let why = format!("unsupported bundle version {version}; this program reads version {VERSION}");
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        let read = |fields: &mut Fields<'_>| {
            let (number, has_next) = (fields.u32()?, fields.u32()? != 0);
            let members = fields.u32()?;
            let (set, index_bytes, index_checksum) = (fields.u64()?, fields.u64()?, fields.u64()?);
            Some(Self { set, number, has_next, members, index_bytes, index_checksum })
        };
        let footer = read(&mut fields).ok_or_else(damaged)?;
        let max_index_bytes = MAX_INDEX_BYTES + (ENTRY_BYTES + MAX_NAME_BYTES) as u64;
        let is_possible = footer.index_bytes <= max_index_bytes
            && footer.index_bytes.saturating_add((FOOTER_BYTES + END_OF_ARCHIVE.len()) as u64) <= size;
        if is_possible { Ok(footer) } else { Err(self::damaged("its index is longer than possible")) }
    }
}

/// Decodes the index of an archive of `archive_bytes` bytes.
///
/// Checks that members are sorted by name and by offset, and that none overlaps another or the end of the archive.
pub fn decode(index: &[u8], footer: &Footer, archive_bytes: u64) -> Result<Vec<Member>> {
    if index.len() as u64 != footer.index_bytes || crc64nvme(index) != footer.index_checksum {
        return Err(damaged("the checksum of its index does not match"));
    }
    // The declared number is untrusted: allocate at most what the index can hold.
    let max_members = index.len() / ENTRY_BYTES;
    let mut members: Vec<Member> = Vec::with_capacity(max_members.min(footer.members as usize));
    let mut fields = Fields(index);
    while !fields.0.is_empty() {
        let member = fields.member().ok_or_else(|| damaged("its index ends in the middle of an entry"))?;
        let (name, end) = members.last().map_or(("", 0), |last| (last.name.as_str(), last.end()));
        let is_ordered = !member.name.is_empty() && name < member.name.as_str();
        let is_in_bounds = member.offset >= end.saturating_add(BLOCK_BYTES)
            && member.offset.is_multiple_of(BLOCK_BYTES)
            && member.offset.checked_add(member.size).is_some_and(|end| end <= archive_bytes);
        if !is_ordered || !is_in_bounds {
            return Err(damaged(&format!("{:?} is out of place in its index", member.name)));
        }
        members.push(member);
    }
    if members.len() as u64 != u64::from(footer.members) {
        return Err(damaged("the number of members in its index does not match its footer"));
    }
    Ok(members)
}

fn damaged(why: &str) -> Error {
    Error::new(Reason::CorruptData, format!("the bundle is damaged: {why}"))
}

/// Cursor over the fields of an index or a footer.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn member(&mut self) -> Option<Member> {
        let length = self.array().map(u16::from_le_bytes)?;
        let name = std::str::from_utf8(self.bytes(length.into())?).ok()?.to_owned();
        let (offset, size) = (self.u64()?, self.u64()?);
        let modified = Timestamp::from_millis(self.array().map(i64::from_le_bytes)?);
        let (mode, checksum) = (self.u32()?, self.u64()?);
        Some(Member { name, offset, size, modified, mode, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Members at the offsets that an archive gives them, and the size of that archive.
    fn laid_out(names: impl IntoIterator<Item = (String, u32)>) -> (Vec<Member>, u64) {
        let mut end = 0_u64;
        let lay = |(name, size): (String, u32)| {
            let offset = end.next_multiple_of(512) + 512;
            let size = u64::from(size);
            end = offset + size;
            let (modified, checksum) = (Timestamp::from_millis(-5), size.wrapping_mul(0x1234_5678_9abc));
            Member { name, offset, size, modified, mode: 0o640, checksum }
        };
        let members = names.into_iter().map(lay).collect();
        (members, end.next_multiple_of(512) + END_OF_ARCHIVE.len() as u64)
    }

    fn encode(members: &[Member]) -> Vec<u8> {
        let mut writer = IndexWriter::new(0);
        members.iter().for_each(|member| writer.add(member));
        writer.finish(7, 3, true)
    }

    /// Decodes footer and index like a reader, for an object whose archive has `archive_bytes` bytes.
    fn read(bytes: &[u8], archive_bytes: u64) -> Result<(Footer, Vec<Member>)> {
        let footer = Footer::decode(bytes, archive_bytes + bytes.len() as u64)?;
        let end = bytes.len() - FOOTER_BYTES;
        let start = end.saturating_sub(usize::try_from(footer.index_bytes).unwrap());
        decode(&bytes[start..end], &footer, archive_bytes).map(|members| (footer, members))
    }

    fn why(bytes: &[u8], archive_bytes: u64) -> String {
        read(bytes, archive_bytes).unwrap_err().to_string()
    }

    #[test]
    fn object_without_footer_is_no_bundle() {
        for bytes in [&b""[..], b"x", &[0; 64], &[b'x'; 1000]] {
            assert!(why(bytes, 4096).starts_with("not a bundle, or truncated"));
        }
        let (members, archive) = laid_out([("a".to_owned(), 5)]);
        let whole = encode(&members);
        assert!(why(&whole[..whole.len() - 1], archive).starts_with("not a bundle, or truncated"));
    }

    #[test]
    fn newer_version_is_reported() {
        let (members, archive) = laid_out([("a".to_owned(), 5)]);
        let mut bytes = encode(&members);
        let footer = bytes.len() - FOOTER_BYTES;
        bytes[footer + 16] = 2;
        let checksum = crc64nvme(&bytes[footer..footer + 56]).to_le_bytes();
        bytes[footer + 56..].copy_from_slice(&checksum);
        assert_eq!(why(&bytes, archive), "unsupported bundle version 2; this program reads version 1");
    }

    #[test]
    fn misplaced_members_are_rejected() {
        let named = |names: [&str; 2]| laid_out(names.map(|name| (name.to_owned(), 600)));
        let (good, archive) = named(["a", "b"]);
        assert_eq!(read(&encode(&good), archive).unwrap().1, good);
        for names in [["b", "a"], ["a", "a"], ["", "a"]] {
            assert!(why(&encode(&named(names).0), archive).contains("out of place"), "{names:?}");
        }
        type Wrong = fn(&mut Member);
        let wrongs: [Wrong; 5] = [
            |member| member.offset += 1,
            |member| member.offset -= 512,
            |member| member.size += 1 << 20,
            |member| member.size = u64::MAX,
            |member| member.offset = u64::MAX - 511,
        ];
        for wrong in wrongs {
            let mut members = good.clone();
            wrong(&mut members[1]);
            assert!(why(&encode(&members), archive).contains("\"b\" is out of place"));
        }
    }

    #[test]
    fn declared_index_size_is_checked_before_use() {
        let footer = |index_bytes| {
            let footer = Footer {
                set: 1,
                number: 1,
                has_next: false,
                members: u32::MAX,
                index_bytes,
                index_checksum: 0,
            };
            footer.encode()
        };
        for index_bytes in [u64::MAX, 1 << 40, 5000] {
            let message = Footer::decode(&footer(index_bytes), 5000).unwrap_err().to_string();
            assert_eq!(message, "the bundle is damaged: its index is longer than possible");
        }
        let many = Footer::decode(&footer(0), 5000).unwrap();
        assert!(decode(&[], &many, 4096).unwrap_err().to_string().contains("number of members"));
    }

    proptest! {
        #[test]
        fn encoded_index_decodes_unchanged(
            names in proptest::collection::btree_set("[a-c/\u{e9}]{1,40}", 0..20),
            sizes in proptest::collection::vec(0_u32..3000, 20),
        ) {
            let (members, archive) = laid_out(names.into_iter().zip(sizes));
            let (footer, found) = read(&encode(&members), archive).unwrap();
            prop_assert_eq!(found, members);
            prop_assert_eq!((footer.set, footer.number, footer.has_next), (7, 3, true));
        }

        #[test]
        fn any_bit_flip_is_detected(
            sizes in proptest::collection::vec(0_u32..3000, 1..5),
            at in any::<proptest::sample::Index>(),
            bit in 0..8,
        ) {
            let (members, archive) =
                laid_out(sizes.into_iter().enumerate().map(|(n, size)| (format!("{n}"), size)));
            let mut bytes = encode(&members);
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(read(&bytes, archive).is_err());
        }

        /// Decoding arbitrary bytes never panics, and never allocates more than the input's size implies.
        #[test]
        fn arbitrary_bytes_decode_or_fail_without_panic(
            index in proptest::collection::vec(any::<u8>(), 0..400),
            (number, members, archive) in (any::<u32>(), 0_u32..20, any::<u64>()),
        ) {
            let (index_bytes, index_checksum) = (index.len() as u64, crc64nvme(&index));
            let footer =
                Footer { set: 0, number, has_next: false, members, index_bytes, index_checksum };
            for found in decode(&index, &footer, archive).into_iter().flatten() {
                prop_assert!(found.end() <= archive);
            }
            let mut tail = index;
            // Its result is an error almost always, and a footer otherwise.
            let _ = Footer::decode(&tail, archive);
            tail.extend_from_slice(&footer.encode());
            let read = Footer::decode(&tail, archive);
            prop_assert_eq!(read.is_ok(), index_bytes.saturating_add(64 + 1024) <= archive);
        }
    }
}
