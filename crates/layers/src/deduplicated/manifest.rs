//! The stored form of a deduplicated object or part: the list of its chunks.
//!
//! A manifest is an entry of 40 bytes for each chunk: the BLAKE3 hash of its bytes, and its end in the plain bytes of the
//! segment (8 bytes little-endian). Ends instead of lengths let a range find its first entry by a binary search. The
//! description, which the store keeps with the object, has the version and the shortest chunk.

use std::fmt;

use tradewind_core::ObjectKey;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::stored_form::StoredSegment;

use super::chunker::MAX_CHUNK_BYTES;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 40;

/// The begin of all descriptions of this layer. Those of `transformed` begin with a byte from 1 to 31.
const MAGIC: [u8; 5] = *b"dedup";
const VERSION: u8 = 1;
/// The flag of an object whose entity tag is the MD5 of its bytes.
const ETAG_IS_MD5: u8 = 1;

/// The name of a chunk: the BLAKE3 hash of its bytes. Equal hashes mean equal bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChunkId(pub [u8; 32]);

impl ChunkId {
    /// The id of these bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The key of the chunk in the bucket of chunks.
    pub fn key(&self) -> Result<ObjectKey> {
        ObjectKey::new(&self.to_string())
    }

    /// The chunk of a key; `None` for keys of other objects.
    pub fn from_key(key: &str) -> Option<Self> {
        Some(Self(*blake3::Hash::from_hex(key).ok()?.as_bytes())).filter(|id| id.to_string() == key)
    }

    /// A part of the hash, for sets that may take different chunks for the same one.
    pub fn tag(&self) -> u64 {
        self.0.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An entry of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The chunk.
    pub chunk: ChunkId,
    /// The end of its bytes in the segment.
    pub end: u64,
}

impl Entry {
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..32].copy_from_slice(&self.chunk.0);
        bytes[32..].copy_from_slice(&self.end.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let (mut hash, mut end) = ([0; 32], [0; 8]);
        hash.copy_from_slice(&bytes[..32]);
        end.copy_from_slice(&bytes[32..]);
        Self { chunk: ChunkId(hash), end: u64::from_le_bytes(end) }
    }

    /// The bytes of the chunk, given the end of the one before. Fails with [`CorruptData`](Reason::CorruptData) if it is
    /// empty or too long.
    pub fn length_after(&self, previous_end: u64) -> Result<usize> {
        let length = self.end.checked_sub(previous_end).and_then(|length| usize::try_from(length).ok());
        length
            .filter(|length| (1..=MAX_CHUNK_BYTES).contains(length))
            .ok_or_else(|| corrupt("has a chunk of an impossible length"))
    }
}

/// The entries of a manifest that is in memory. Fails with [`CorruptData`](Reason::CorruptData) if it is truncated.
pub(super) fn entries(manifest: &[u8]) -> Result<impl Iterator<Item = Entry>> {
    let (entries, []) = manifest.as_chunks::<ENTRY_BYTES>() else {
        return Err(corrupt("has an incomplete entry"));
    };
    Ok(entries.iter().map(Entry::decode))
}

/// The parameters of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Description {
    /// The shortest chunk but the last.
    pub min_chunk_bytes: u32,
    /// True if the entity tag is the MD5 of the bytes.
    pub etag_is_md5: bool,
}

/// The form of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentForm {
    /// The bytes as they are.
    Plain,
    /// A manifest.
    Manifest(Description),
    /// Bytes that the layer `transformed` has written.
    Transformed,
}

impl Description {
    /// A description with the usual minimum.
    #[cfg(test)]
    fn new(etag_is_md5: bool) -> Self {
        Self { min_chunk_bytes: 16 << 10, etag_is_md5 }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.min_chunk_bytes.to_le_bytes());
        bytes.push(if self.etag_is_md5 { ETAG_IS_MD5 } else { 0 });
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let [b'd', b'e', b'd', b'u', b'p', VERSION, a, b, c, d, flags @ 0..=ETAG_IS_MD5] = bytes else {
            return None;
        };
        let min_chunk_bytes = u32::from_le_bytes([*a, *b, *c, *d]);
        (min_chunk_bytes > 0).then_some(Self { min_chunk_bytes, etag_is_md5: *flags == ETAG_IS_MD5 })
    }
}

impl SegmentForm {
    /// Fails with [`Unsupported`](Reason::Unsupported) for a form that this version does not know, and with
    /// [`CorruptData`](Reason::CorruptData) for impossible numbers of bytes.
    pub fn of_segment(segment: &StoredSegment) -> Result<Self> {
        match &segment.description[..] {
            [] if segment.plain_bytes == segment.stored_bytes => Ok(Self::Plain),
            [] => Err(corrupt("has a segment of another length")),
            [1..32, ..] => Ok(Self::Transformed),
            bytes => {
                let description = Description::decode(bytes).ok_or_else(|| {
                    Error::new(
                        Reason::Unsupported,
                        "an object is stored in a form of a later version; update the server",
                    )
                })?;
                match segment.stored_bytes.is_multiple_of(ENTRY_BYTES as u64) {
                    true => Ok(Self::Manifest(description)),
                    false => Err(corrupt("has an incomplete entry")),
                }
            }
        }
    }
}

pub(super) fn corrupt(why: &str) -> Error {
    Error::new(Reason::CorruptData, format!("the manifest of a deduplicated object {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_descriptions_are_read_as_written() {
        let chunk = ChunkId::of_bytes(b"x");
        let entry = Entry { chunk, end: 1 << 40 };
        assert_eq!(Entry::decode(&entry.encode()), entry);
        assert_eq!(ChunkId::from_key(chunk.key().unwrap().as_str()), Some(chunk));
        for description in [Description::new(false), Description::new(true)] {
            assert_eq!(Description::decode(&description.encode()), Some(description));
        }
        assert!(entries(&[0; ENTRY_BYTES + 1]).is_err());
    }

    #[test]
    fn other_keys_are_no_chunks() {
        let key = ChunkId::of_bytes(b"x").to_string();
        for key in [&key[1..], &format!("{key}0"), &key.to_uppercase(), "format"] {
            assert_eq!(ChunkId::from_key(key), None, "{key}");
        }
    }

    #[test]
    fn unknown_forms_are_rejected() {
        let segment = |description: &[u8], stored_bytes| StoredSegment {
            part: None,
            plain_bytes: 100_000,
            stored_bytes,
            description: description.to_vec(),
        };
        let good = Description::new(true).encode();
        let form = |description: &[u8], stored| SegmentForm::of_segment(&segment(description, stored));
        assert_eq!(form(&good, 80).unwrap(), SegmentForm::Manifest(Description::new(true)));
        assert_eq!(form(&[], 100_000).unwrap(), SegmentForm::Plain);
        assert_eq!(form(&[1, 16], 7).unwrap(), SegmentForm::Transformed);
        for (description, stored) in [(&good[..], 81), (&[], 80), (&good[..10], 80), (b"dedup\x02", 80)] {
            form(description, stored).unwrap_err();
        }
    }

    #[test]
    fn impossible_lengths_are_rejected() {
        let entry = |end| Entry { chunk: ChunkId([0; 32]), end };
        assert_eq!(entry(10).length_after(7).unwrap(), 3);
        for (end, previous) in [(7, 7), (6, 7), (u64::MAX, 7), (8 + MAX_CHUNK_BYTES as u64, 7)] {
            assert_eq!(entry(end).length_after(previous).unwrap_err().reason(), Reason::CorruptData);
        }
    }
}
