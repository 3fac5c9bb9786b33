//! The form of a segment: the transformed bytes of one write.
//!
//! A segment is a frame for each chunk of plain bytes, and after more than one frame the table of their offsets: 8 bytes
//! little-endian for each frame but the first. All else is in the description, which the store keeps with the object.
//! The position of a table entry follows from the numbers of plain and stored bytes, so that a range takes one read of
//! an entry and one read of frames.

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::stored_form::StoredSegment;

use super::keys::{
    MAX_KEY_NAME_BYTES, SEGMENT_ID_BYTES, SegmentId, TAG_BYTES, WRAPPED_KEY_BYTES, WrappedKey,
};

/// Plain bytes in a chunk, as a power of two.
pub(super) const CHUNK_BITS: u8 = 16;
/// Plain bytes in each chunk but the last.
pub(super) const CHUNK_BYTES: usize = 1 << CHUNK_BITS;
/// Bytes of the header of a frame.
pub(super) const FRAME_HEADER_BYTES: usize = 8;

/// Bytes of a table entry.
pub(super) const ENTRY_BYTES: u64 = 8;

const DESCRIPTION_VERSION: u8 = 1;
const MIN_CHUNK_BITS: u8 = 12;
const MAX_CHUNK_BITS: u8 = 22;

/// The parameters of a segment's transformation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Description {
    /// Plain bytes in a chunk, as a power of two.
    pub chunk_bits: u8,
    /// A random number, to which all chunks are bound.
    pub id: SegmentId,
    /// The data key, if the chunks are encrypted.
    pub key: Option<WrappedKey>,
}

impl Description {
    /// Version, chunk size, id; if encrypted, wrapped key and name of the master key.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![DESCRIPTION_VERSION, self.chunk_bits];
        out.extend_from_slice(&self.id);
        if let Some(key) = &self.key {
            out.extend_from_slice(&key.wrapped);
            out.extend_from_slice(key.master.as_bytes());
        }
        out
    }

    /// Fails with [`CorruptData`](Reason::CorruptData) if these are not the bytes of a description.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let [version, chunk_bits, rest @ ..] = bytes else { return Err(unknown_form("it is too short")) };
        if *version != DESCRIPTION_VERSION {
            return Err(unknown_form("it is of a later version"));
        }
        if !(MIN_CHUNK_BITS..=MAX_CHUNK_BITS).contains(chunk_bits) {
            return Err(unknown_form("its chunk size is out of range"));
        }
        let (id, rest) =
            rest.split_first_chunk::<SEGMENT_ID_BYTES>().ok_or_else(|| unknown_form("it is too short"))?;
        let key = match rest.split_first_chunk::<WRAPPED_KEY_BYTES>() {
            None if rest.is_empty() => None,
            Some((wrapped, name)) if (1..=MAX_KEY_NAME_BYTES).contains(&name.len()) => {
                let name = std::str::from_utf8(name).map_err(|_| unknown_form("it names no key"))?;
                Some(WrappedKey { master: name.to_owned(), wrapped: *wrapped })
            }
            _ => return Err(unknown_form("it names no key")),
        };
        Ok(Self { chunk_bits: *chunk_bits, id: *id, key })
    }
}

fn unknown_form(why: &str) -> Error {
    Error::new(Reason::CorruptData, format!("the description of a transformed object is unknown: {why}"))
}

/// Sizes and positions within a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    plain_bytes: u64,
    stored_bytes: u64,
    chunk_bits: u8,
}

impl Layout {
    /// Fails with [`CorruptData`](Reason::CorruptData) if the segment is shorter than its table.
    pub fn new(segment: &StoredSegment, chunk_bits: u8) -> Result<Self> {
        let (plain_bytes, stored_bytes) = (segment.plain_bytes, segment.stored_bytes);
        let layout = Self { plain_bytes, stored_bytes, chunk_bits };
        if layout.table_bytes() > stored_bytes {
            return Err(Error::new(Reason::CorruptData, "a transformed object is shorter than its table"));
        }
        Ok(layout)
    }

    /// The number of chunks: one for an empty segment.
    pub fn chunks(&self) -> u64 {
        self.plain_bytes.div_ceil(1 << self.chunk_bits).max(1)
    }

    /// The chunk that holds a plain byte.
    pub const fn chunk_of(&self, plain_offset: u64) -> u64 {
        plain_offset >> self.chunk_bits
    }

    /// The number of plain bytes before a chunk.
    pub const fn plain_start(&self, chunk: u64) -> u64 {
        chunk << self.chunk_bits
    }

    /// The number of plain bytes in a chunk.
    pub fn plain_length(&self, chunk: u64) -> usize {
        let rest = self.plain_bytes.saturating_sub(self.plain_start(chunk));
        usize::try_from(rest).unwrap_or(usize::MAX).min(1 << self.chunk_bits)
    }

    /// Bytes of the table of offsets.
    pub fn table_bytes(&self) -> u64 {
        (self.chunks() - 1) * ENTRY_BYTES
    }

    /// The offset of the table: the end of the last frame.
    pub fn table_start(&self) -> u64 {
        self.stored_bytes - self.table_bytes()
    }

    /// The offset of the table's entry for a chunk; `None` for the first, whose offset is 0.
    pub fn entry_offset(&self, chunk: u64) -> Option<u64> {
        Some(self.table_start() + chunk.checked_sub(1)? * ENTRY_BYTES)
    }

    /// The most bytes of a frame without its header.
    pub const fn max_body_bytes(&self) -> usize {
        (1 << self.chunk_bits) + TAG_BYTES
    }
}

/// The stored bytes of a segment that is encrypted, but not compressed.
pub(super) fn encrypted_bytes(plain_bytes: u64) -> u64 {
    let chunks = plain_bytes.div_ceil(CHUNK_BYTES as u64).max(1);
    let frames = plain_bytes.saturating_add(chunks * (FRAME_HEADER_BYTES + TAG_BYTES) as u64);
    frames.saturating_add((chunks - 1) * ENTRY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_round_trip() {
        let key = |name: &str| Some(WrappedKey { master: name.into(), wrapped: [7; WRAPPED_KEY_BYTES] });
        for key in [None, key("k"), key(&"n".repeat(MAX_KEY_NAME_BYTES))] {
            let description = Description { chunk_bits: CHUNK_BITS, id: [9; SEGMENT_ID_BYTES], key };
            let encoded = description.encode();
            assert!(encoded.len() <= tradewind_core::stored_form::MAX_DESCRIPTION_BYTES);
            assert_eq!(Description::decode(&encoded).unwrap(), description);
        }
    }

    #[test]
    fn unknown_descriptions_are_rejected() {
        let good = Description { chunk_bits: CHUNK_BITS, id: [9; SEGMENT_ID_BYTES], key: None }.encode();
        let with = |index: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[index] = byte;
            bytes
        };
        let bad = [
            Vec::new(),
            good[..17].to_vec(),
            with(0, 2),
            with(1, 11),
            with(1, 23),
            [&good[..], &[0; 47]].concat(),
            [&good[..], &[0; 48]].concat(),
            [&good[..], &[255; 49]].concat(),
        ];
        for bytes in bad {
            assert_eq!(Description::decode(&bytes).unwrap_err().reason(), Reason::CorruptData, "{bytes:?}");
        }
    }

    #[test]
    fn layouts_know_chunks_and_table() {
        let layout = |plain_bytes, stored_bytes| {
            let segment = StoredSegment { part: None, plain_bytes, stored_bytes, description: Vec::new() };
            Layout::new(&segment, CHUNK_BITS)
        };
        let chunk = CHUNK_BYTES as u64;
        for (plain, chunks, last) in [(0, 1, 0), (1, 1, 1), (chunk, 1, chunk), (chunk + 1, 2, 1)] {
            let layout = layout(plain, 1000).unwrap();
            assert_eq!((layout.chunks(), layout.plain_length(chunks - 1) as u64), (chunks, last));
            assert_eq!(
                (layout.table_bytes(), layout.table_start()),
                ((chunks - 1) * 8, 1000 - (chunks - 1) * 8)
            );
            assert_eq!(layout.entry_offset(0), None);
        }
        assert_eq!(layout(3 * chunk, 1000).unwrap().entry_offset(2), Some(992));
        assert_eq!(layout(3 * chunk, 15).unwrap_err().reason(), Reason::CorruptData);
    }
}
