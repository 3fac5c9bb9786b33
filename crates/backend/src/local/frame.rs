//! The frame around every record of a segment, by which a reader detects that it is complete.
//!
//! `header (48) | fields | block table (8 per 64 KiB of payload) | payload | padding to 8`.
//! Header, fields and block table together are the *head*. Its checksum also covers the store's salt and the record's
//! own position: payload that happens to look like a record, or a record copied from elsewhere, never passes. The block
//! table has a CRC-64/NVME of each payload block, so that any block can be verified alone. `docs/format.md` describes
//! the byte layout.

use tradewind_core::checksum::crc64nvme;

use super::position::Position;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 48;
/// Payload bytes under one checksum.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;
/// Maximum payload of one record: the size of a full extent.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Maximum bytes of fields of one record, ample for a manifest of 10,000 parts with checksums.
pub(crate) const MAX_FIELDS_BYTES: usize = 16 << 20;
/// Maximum bytes of one record with its padding.
pub(crate) const MAX_RECORD_BYTES: usize =
    (HEADER_BYTES + MAX_FIELDS_BYTES + 8 * block_count(MAX_PAYLOAD_BYTES) + MAX_PAYLOAD_BYTES)
        .next_multiple_of(ALIGNMENT);
/// Records begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;

/// The first four bytes of a record.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"TWr1");
const VERSION: u8 = 1;

/// The kind of a record. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum RecordKind {
    BucketCreated = 1,
    BucketDeleted = 2,
    Object = 3,
    Tombstone = 4,
    Extent = 5,
    UploadCreated = 6,
    Part = 7,
    UploadEnded = 8,
    Void = 9,
}

impl RecordKind {
    pub const ALL: [Self; 9] = [
        Self::BucketCreated,
        Self::BucketDeleted,
        Self::Object,
        Self::Tombstone,
        Self::Extent,
        Self::UploadCreated,
        Self::Part,
        Self::UploadEnded,
        Self::Void,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A header's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub kind: RecordKind,
    /// True for a copy made by compaction.
    pub is_relocated: bool,
    pub fields_bytes: u32,
    pub payload_bytes: u32,
    /// Sequence number of a log record; of an extent, its id. Copies keep it.
    pub seq: u64,
    /// Everything in the log before this position was durable when the record was written. Zero in extents.
    pub durable_end: Position,
}

/// The range of a record's batch in its segment. A batch is written and synced as a whole: no change of an incomplete
/// batch was acknowledged, and none of its records counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BatchRange {
    pub begin: u32,
    /// Zero if the record stands alone.
    pub end: u32,
}

/// The reason why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotARecord {
    /// No magic number, or lengths that no record has.
    NoHeader,
    /// An unknown format version or kind.
    Unknown,
    /// The record extends beyond the bytes given; its head needs this many.
    Short(usize),
    /// The head's checksum does not match.
    BadChecksum,
}

impl RecordHeader {
    /// Bytes of header, fields and block table together.
    pub const fn head_bytes(&self) -> usize {
        HEADER_BYTES + self.fields_bytes as usize + 8 * block_count(self.payload_bytes as usize)
    }

    /// Bytes of the whole record with its padding.
    pub const fn record_bytes(&self) -> usize {
        (self.head_bytes() + self.payload_bytes as usize).next_multiple_of(ALIGNMENT)
    }

    /// Encodes header, fields and block table as stored at `position`, for a record without a batch.
    pub fn encode_head(&self, salt: u64, position: Position, fields: &[u8], block_crcs: &[u64]) -> Vec<u8> {
        let mut head = self.encode_unsealed_head(fields, block_crcs);
        seal_head(salt, position, BatchRange::default(), &mut head);
        head
    }

    /// Encodes a head without batch range and checksum, which [`seal_head`] adds once the end of the batch is known.
    pub fn encode_unsealed_head(&self, fields: &[u8], block_crcs: &[u64]) -> Vec<u8> {
        debug_assert_eq!(
            (fields.len(), block_crcs.len()),
            (self.fields_bytes as usize, block_count(self.payload_bytes as usize))
        );
        let mut head = Vec::with_capacity(self.head_bytes());
        head.extend_from_slice(&MAGIC.to_le_bytes());
        head.push(self.kind as u8);
        head.push(u8::from(self.is_relocated));
        head.push(VERSION);
        head.push(0);
        head.extend_from_slice(&self.fields_bytes.to_le_bytes());
        head.extend_from_slice(&self.payload_bytes.to_le_bytes());
        head.extend_from_slice(&self.seq.to_le_bytes());
        head.extend_from_slice(&self.durable_end.pack().to_le_bytes());
        head.extend_from_slice(&[0; 16]);
        head.extend_from_slice(fields);
        for crc in block_crcs {
            head.extend_from_slice(&crc.to_le_bytes());
        }
        head
    }

    /// Reads only the header, without its checksum: enough to know how many bytes to read.
    pub fn peek(bytes: &[u8]) -> Result<Self, NotARecord> {
        if bytes.len() < HEADER_BYTES {
            return Err(NotARecord::Short(HEADER_BYTES));
        }
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u32_at(0) != MAGIC {
            return Err(NotARecord::NoHeader);
        }
        if bytes[6] != VERSION {
            return Err(NotARecord::Unknown);
        }
        let kind = RecordKind::from_byte(bytes[4]).ok_or(NotARecord::Unknown)?;
        let (fields_bytes, payload_bytes) = (u32_at(8), u32_at(12));
        if fields_bytes as usize > MAX_FIELDS_BYTES
            || payload_bytes as usize > MAX_PAYLOAD_BYTES
            || bytes[5] > 1
        {
            return Err(NotARecord::NoHeader);
        }
        Ok(Self {
            kind,
            is_relocated: bytes[5] == 1,
            fields_bytes,
            payload_bytes,
            seq: u64_at(16),
            durable_end: Position::unpack(u64_at(24)),
        })
    }

    /// Reads and verifies the head of the record at `position`, whose bytes begin at `bytes[0]`.
    pub fn decode(salt: u64, position: Position, bytes: &[u8]) -> Result<(Self, RecordHead<'_>), NotARecord> {
        let header = Self::peek(bytes)?;
        let head_bytes = header.head_bytes();
        let Some(head) = bytes.get(..head_bytes) else { return Err(NotARecord::Short(head_bytes)) };
        let stored = u64::from_le_bytes(head[40..48].try_into().unwrap_or_default());
        if stored != head_checksum(salt, position, head) {
            return Err(NotARecord::BadChecksum);
        }
        let fields_end = HEADER_BYTES + header.fields_bytes as usize;
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
        let batch = BatchRange { begin: u32_at(32), end: u32_at(36) };
        Ok((
            header,
            RecordHead { batch, fields: &head[HEADER_BYTES..fields_end], block_table: &head[fields_end..] },
        ))
    }
}

/// Adds the batch range and the checksum to an unsealed head.
pub(crate) fn seal_head(salt: u64, position: Position, batch: BatchRange, head: &mut [u8]) {
    head[32..36].copy_from_slice(&batch.begin.to_le_bytes());
    head[36..40].copy_from_slice(&batch.end.to_le_bytes());
    let crc = head_checksum(salt, position, head);
    head[40..48].copy_from_slice(&crc.to_le_bytes());
}

/// The verified variable parts of a head.
#[derive(Clone, Copy)]
pub(crate) struct RecordHead<'a> {
    pub batch: BatchRange,
    pub fields: &'a [u8],
    /// The encoded block table.
    pub block_table: &'a [u8],
}

impl RecordHead<'_> {
    /// The checksum of payload block `index`.
    pub fn block_crc(&self, index: usize) -> u64 {
        let offset = index * 8;
        u64::from_le_bytes(self.block_table[offset..offset + 8].try_into().unwrap_or_default())
    }

    /// The checksums of all payload blocks.
    pub fn block_crcs(&self) -> Vec<u64> {
        (0..self.block_table.len() / 8).map(|index| self.block_crc(index)).collect()
    }
}

/// Number of payload blocks.
pub(crate) const fn block_count(payload_bytes: usize) -> usize {
    payload_bytes.div_ceil(BLOCK_BYTES)
}

/// Bytes of padding after a record of `bytes`.
pub(crate) const fn padding(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT) - bytes
}

fn head_checksum(salt: u64, position: Position, head: &[u8]) -> u64 {
    // A CRC of three CRCs: of salt and position, of the header before this checksum, and of fields and block table. So
    // the head need not be copied around its checksum. The rotation is part of the format (docs/format.md).
    let mut salt_and_position = [0_u8; 16];
    salt_and_position[..8].copy_from_slice(&salt.to_le_bytes());
    salt_and_position[8..].copy_from_slice(&position.pack().to_le_bytes());
    let header_crc = crc64nvme(&head[..40]);
    let crcs = [
        crc64nvme(&salt_and_position).rotate_left(17) ^ header_crc,
        header_crc,
        crc64nvme(&head[HEADER_BYTES..]),
    ];
    let mut bytes = [0_u8; 24];
    for (chunk, crc) in bytes.chunks_exact_mut(8).zip(crcs) {
        chunk.copy_from_slice(&crc.to_le_bytes());
    }
    crc64nvme(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(fields: &[u8], payload: u32) -> (RecordHeader, Vec<u64>) {
        let header = RecordHeader {
            kind: RecordKind::Object,
            is_relocated: false,
            fields_bytes: u32::try_from(fields.len()).unwrap(),
            payload_bytes: payload,
            seq: 7,
            durable_end: Position::new(1, 8),
        };
        let block_crcs = (0..block_count(payload as usize) as u64).collect();
        (header, block_crcs)
    }

    proptest! {
        #[test]
        fn heads_round_trip(fields in prop::collection::vec(any::<u8>(), 0..200), payload in 0_u32..(1 << 20), at in 0_u32..1000) {
            let (header, block_crcs) = sample(&fields, payload);
            let position = Position::new(3, at * 8);
            let batch = BatchRange { begin: at * 4, end: at * 8 + payload };
            let mut encoded = header.encode_unsealed_head(&fields, &block_crcs);
            seal_head(99, position, batch, &mut encoded);
            let (decoded, head) = RecordHeader::decode(99, position, &encoded).unwrap();
            prop_assert_eq!((decoded, head.batch), (header, batch));
            prop_assert_eq!(head.fields, &fields[..]);
            prop_assert_eq!((0..block_crcs.len()).map(|i| head.block_crc(i)).collect::<Vec<_>>(), block_crcs);
        }

        #[test]
        fn any_flipped_bit_is_detected(bit in 0_usize..(48 + 20 + 8) * 8) {
            let (header, block_crcs) = sample(&[5; 20], 100);
            let position = Position::new(3, 16);
            let mut encoded = header.encode_head(99, position, &[5; 20], &block_crcs);
            encoded[bit / 8] ^= 1 << (bit % 8);
            // The reserved byte and the flag byte's unused bits are covered as well.
            prop_assert!(RecordHeader::decode(99, position, &encoded).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut with_magic = bytes.clone();
            if with_magic.len() >= 4 { with_magic[..4].copy_from_slice(b"TWr1"); }
            let _ = RecordHeader::decode(1, Position::default(), &bytes);
            let _ = RecordHeader::decode(1, Position::default(), &with_magic);
        }
    }

    #[test]
    fn record_at_other_position_or_salt_is_rejected() {
        let (header, block_crcs) = sample(b"x", 0);
        let encoded = header.encode_head(1, Position::new(1, 0), b"x", &block_crcs);
        assert!(RecordHeader::decode(1, Position::new(1, 0), &encoded).is_ok());
        assert_eq!(
            RecordHeader::decode(1, Position::new(1, 8), &encoded).err(),
            Some(NotARecord::BadChecksum)
        );
        assert_eq!(
            RecordHeader::decode(1, Position::new(2, 0), &encoded).err(),
            Some(NotARecord::BadChecksum)
        );
        assert_eq!(
            RecordHeader::decode(2, Position::new(1, 0), &encoded).err(),
            Some(NotARecord::BadChecksum)
        );
    }
}
