//! Extents: the unit of the SSD. Each has a header that says what it is, and a checksum over both: a reader that gets
//! another extent's bytes, or torn ones, notices. A stale index entry is therefore a miss and never wrong bytes.
//!
//! ```text
//! magic u32 | checksum u64 (CRC-64/NVME of all that follows) | cache id u64 | kind u8 | class u8 | reserved u16 |
//! number u32 | address u64 | content u64 | length u32 | payload
//! ```
//! The address is the fingerprint of the object's address. The content is the id of the content for data, and 0 for a
//! head. Numbers are little-endian.

use bytes::Bytes;
use tradewind_core::checksum::crc64nvme;

use crate::aligned::{AlignedBuffer, BLOCK_BYTES};
use crate::fields::{FieldReader, FieldWriter};
use crate::head::ContentId;

/// Blocks in a frame of the SSD: an object of 64 KiB and its head fit into it.
pub(crate) const FRAME_BLOCKS: usize = 18;

/// The largest extent with its header: a frame.
pub(crate) const FRAME_BYTES: usize = FRAME_BLOCKS * BLOCK_BYTES;

/// The sizes of extents on the SSD in blocks, ascending. Objects of a power of two of bytes, with a head of up to 4
/// KiB, take such a size exactly up to 8 KiB, and waste at most a block of it above.
pub(crate) const EXTENT_SIZES_BLOCKS: [usize; 8] = [1, 2, 3, 4, 6, 9, 13, FRAME_BLOCKS];

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 48;

/// The largest payload of a head.
pub(crate) const MAX_HEAD_BYTES: usize = FRAME_BYTES - HEADER_BYTES;

/// Bytes of an object in one data extent: the sectors of 512 bytes (the unit of classes) that fit into a frame.
pub(crate) const EXTENT_BYTES: usize = (FRAME_BYTES - HEADER_BYTES) / 512 * 512;

const MAGIC: u32 = u32::from_le_bytes(*b"TWx2");

/// Offset of the bytes that the checksum covers.
const COVERED_OFFSET: usize = 12;

/// The place of a data extent: equal for all contents of an address. Reuse shows by it, because each fill is a new
/// content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The fingerprint of the object's address.
    pub address: u64,
    /// The number of the extent in the object.
    pub number: u32,
}

/// The identity of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ExtentKey {
    /// The head of the address with this fingerprint.
    Head(u64),
    /// The extent of one content at a place.
    Data(Place, ContentId),
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentHeader {
    pub cache_id: u64,
    pub key: ExtentKey,
    pub class: u8,
    pub length: usize,
}

/// Blocks of the buffer of an extent with this payload. Its space on the SSD may have more.
pub(crate) const fn buffer_blocks_for(payload_bytes: usize) -> usize {
    (HEADER_BYTES + payload_bytes).div_ceil(BLOCK_BYTES)
}

/// Blocks of an extent with this payload, rounded up to one of [`EXTENT_SIZES_BLOCKS`] if a frame can hold it.
pub(crate) const fn blocks_for(payload_bytes: usize) -> usize {
    let blocks = buffer_blocks_for(payload_bytes);
    let mut size = 0;
    while size < EXTENT_SIZES_BLOCKS.len() {
        if EXTENT_SIZES_BLOCKS[size] >= blocks {
            return EXTENT_SIZES_BLOCKS[size];
        }
        size += 1;
    }
    blocks
}

/// The buffer of an extent whose payload is still being filled.
pub(crate) struct ExtentBuffer {
    buffer: AlignedBuffer,
    length: usize,
}

impl ExtentBuffer {
    /// A buffer for a payload of at most `payload_bytes`.
    pub fn new(payload_bytes: usize) -> Self {
        Self { buffer: AlignedBuffer::zeroed(buffer_blocks_for(payload_bytes)), length: 0 }
    }

    /// Appends bytes that fit.
    pub fn append(&mut self, bytes: &[u8]) {
        let start = HEADER_BYTES + self.length;
        self.buffer.as_mut_slice()[start..start + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Writes the header.
    pub fn seal(mut self, cache_id: u64, key: ExtentKey, class: u8) -> SealedExtent {
        let length = self.length;
        let bytes = self.buffer.as_mut_slice();
        bytes[COVERED_OFFSET..HEADER_BYTES].copy_from_slice(&covered_header(&ExtentHeader {
            cache_id,
            key,
            class,
            length,
        }));
        let checksum = crc64nvme(&bytes[COVERED_OFFSET..HEADER_BYTES + length]);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..COVERED_OFFSET].copy_from_slice(&checksum.to_le_bytes());
        SealedExtent { key, class, bytes: self.buffer.into_bytes(), length }
    }
}

/// An extent in its form on the SSD.
#[derive(Debug, Clone)]
pub(crate) struct SealedExtent {
    pub key: ExtentKey,
    pub class: u8,
    /// Whole blocks.
    pub bytes: Bytes,
    length: usize,
}

impl SealedExtent {
    /// The size of its space as an index in [`EXTENT_SIZES_BLOCKS`].
    pub fn size(&self) -> Option<u8> {
        let blocks = self.bytes.len() / BLOCK_BYTES;
        EXTENT_SIZES_BLOCKS.iter().position(|size| *size >= blocks).and_then(|size| u8::try_from(size).ok())
    }

    pub fn payload(&self) -> Bytes {
        self.bytes.slice(HEADER_BYTES..HEADER_BYTES + self.length)
    }
}

fn covered_header(header: &ExtentHeader) -> Vec<u8> {
    let mut out = FieldWriter::default();
    let (kind, place, content) = match header.key {
        ExtentKey::Head(address) => (0, Place { address, number: 0 }, 0),
        ExtentKey::Data(place, content) => (1, place, content.0),
    };
    out.u64(header.cache_id);
    out.u8(kind);
    out.u8(header.class);
    out.u16(0);
    out.u32(place.number);
    out.u64(place.address);
    out.u64(content);
    out.u32(u32::try_from(header.length).unwrap_or(u32::MAX));
    out.finish()
}

/// The header at the start of `bytes`, unverified.
pub(crate) fn read_header(bytes: &[u8]) -> Option<ExtentHeader> {
    let mut fields = FieldReader::new(bytes);
    if fields.u32()? != MAGIC {
        return None;
    }
    let _checksum = fields.u64()?;
    let cache_id = fields.u64()?;
    let (kind, class, _reserved) = (fields.u8()?, fields.u8()?, fields.u16()?);
    let (number, address, content) = (fields.u32()?, fields.u64()?, fields.u64()?);
    let length = usize::try_from(fields.u32()?).ok()?;
    let key = match kind {
        0 => ExtentKey::Head(address),
        1 => ExtentKey::Data(Place { address, number }, ContentId(content)),
        _ => return None,
    };
    Some(ExtentHeader { cache_id, key, class, length })
}

/// The payload, if the bytes are the whole extent `key` of the cache `cache_id`.
pub(crate) fn verify(bytes: &Bytes, cache_id: u64, key: ExtentKey) -> Option<Bytes> {
    let header = read_header(bytes)?;
    if header.cache_id != cache_id || header.key != key {
        return None;
    }
    let end = HEADER_BYTES.checked_add(header.length)?;
    let covered = bytes.get(COVERED_OFFSET..end)?;
    let checksum = FieldReader::new(bytes.get(4..COVERED_OFFSET)?).u64()?;
    (crc64nvme(covered) == checksum).then(|| bytes.slice(HEADER_BYTES..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place { address: 7, number: 3 };
    const KEY: ExtentKey = ExtentKey::Data(PLACE, ContentId(5));

    fn sealed(payload: &[u8]) -> SealedExtent {
        let mut buffer = ExtentBuffer::new(payload.len());
        buffer.append(payload);
        buffer.seal(9, KEY, 25)
    }

    #[test]
    fn objects_and_their_heads_fit_into_their_blocks() {
        let with_head = [0, 4, 8, 16, 32, 48, 64].map(|kib| blocks_for((kib << 10) + 500));
        assert_eq!(with_head, [1, 2, 3, 6, 9, 13, FRAME_BLOCKS]);
        assert_eq!(blocks_for(EXTENT_BYTES), FRAME_BLOCKS);
        assert_eq!((blocks_for(MAX_HEAD_BYTES), EXTENT_BYTES), (FRAME_BLOCKS, 143 * 512));
        assert_eq!(blocks_for(MAX_HEAD_BYTES + 1), FRAME_BLOCKS + 1, "it does not fit");
    }

    #[test]
    fn extent_of_another_identity_is_rejected() {
        let extent = sealed(b"data");
        assert_eq!(verify(&extent.bytes, 9, KEY).unwrap(), "data");
        assert!(verify(&extent.bytes, 8, KEY).is_none());
        for place in [Place { number: 4, ..PLACE }, Place { address: 8, ..PLACE }] {
            assert!(verify(&extent.bytes, 9, ExtentKey::Data(place, ContentId(5))).is_none());
        }
        assert!(verify(&extent.bytes, 9, ExtentKey::Data(PLACE, ContentId(6))).is_none());
        assert!(verify(&extent.bytes, 9, ExtentKey::Head(7)).is_none());
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(payload in prop::collection::vec(any::<u8>(), 0..5000), at in any::<prop::sample::Index>(), bit in 0_u8..8) {
            let extent = sealed(&payload);
            let mut bytes = extent.bytes.to_vec();
            let at = at.index(HEADER_BYTES + payload.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(verify(&bytes.into(), 9, KEY).is_none());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            }
            prop_assert!(verify(&bytes.into(), 9, KEY).is_none());
        }
    }
}
