//! Frames: a chunk of plain bytes, compressed or not, encrypted or not.
//!
//! A frame is a header of 8 bytes and a body. The header has the body's length in 31 bits and a bit that the chunk is
//! compressed (4 bytes little-endian), and a check value (4 bytes). Of an encrypted chunk, the body ends with the tag of
//! AES-256-GCM and the check value is 0. Of any other, it is the CRC-32C of the plain chunk. Both are bound to the
//! segment's id and to the number of the chunk and whether it is the last, so that chunks cannot be moved, and the tag
//! also to bucket, key and part.

use std::cell::RefCell;

use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::PartNumber;
use tradewind_core::{Address, Algorithm};
use zstd::bulk::{Compressor, Decompressor};

use super::keys::{DataKey, SegmentId, TAG_BYTES};
use super::segment::FRAME_HEADER_BYTES;

const COMPRESSION_LEVEL: i32 = 1;
const COMPRESSED: u32 = 1 << 31;
const LABEL: &[u8] = b"tradewind transformed chunk 1";

/// The place of a chunk in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkPlace {
    /// The number of the chunk, from 0.
    pub number: u64,
    /// True for the last chunk.
    pub is_last: bool,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Bytes of the body.
    pub body_bytes: usize,
    is_compressed: bool,
    check: u32,
}

impl FrameHeader {
    fn encode(self) -> Result<[u8; FRAME_HEADER_BYTES]> {
        let length = u32::try_from(self.body_bytes).ok().filter(|length| length & COMPRESSED == 0);
        let length = length.ok_or_else(|| Error::new(Reason::Defect, "a chunk is too long"))?;
        let first = length | if self.is_compressed { COMPRESSED } else { 0 };
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&first.to_le_bytes());
        bytes[4..].copy_from_slice(&self.check.to_le_bytes());
        Ok(bytes)
    }

    pub fn decode(bytes: [u8; FRAME_HEADER_BYTES]) -> Self {
        let [a, b, c, d, check @ ..] = bytes;
        let first = u32::from_le_bytes([a, b, c, d]);
        Self {
            body_bytes: (first & !COMPRESSED) as usize,
            is_compressed: first & COMPRESSED != 0,
            check: u32::from_le_bytes(check),
        }
    }
}

/// Makes and opens the frames of one segment.
pub(super) struct FrameCodec {
    id: SegmentId,
    key: Option<DataKey>,
    /// The associated data of all chunks, without their place.
    binding: Vec<u8>,
}

impl FrameCodec {
    /// The codec of a segment of an object; with a key, chunks are encrypted.
    pub fn new(id: SegmentId, key: Option<DataKey>, address: &Address, part: Option<PartNumber>) -> Self {
        let mut binding = LABEL.to_vec();
        for text in [address.bucket.as_str(), address.key.as_str()] {
            binding.extend_from_slice(&(text.len() as u64).to_le_bytes());
            binding.extend_from_slice(text.as_bytes());
        }
        binding.extend_from_slice(&id);
        binding.extend_from_slice(&part.map_or(0, PartNumber::get).to_le_bytes());
        Self { id, key, binding }
    }

    /// Appends the frame of a chunk to `out`. `compressed` is the chunk's compressed form, if that is stored.
    pub fn seal(
        &self,
        place: ChunkPlace,
        plain: &[u8],
        compressed: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let start = out.len();
        let content = compressed.unwrap_or(plain);
        // Exactly, because the store below may hold many frames before it writes them.
        out.reserve_exact(FRAME_HEADER_BYTES + content.len() + TAG_BYTES);
        out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
        out.extend_from_slice(content);
        let is_compressed = compressed.is_some();
        let mut check = 0;
        match &self.key {
            Some(key) => {
                let associated = self.associated(place, is_compressed);
                let tag = key.seal(place.number, &associated, &mut out[start + FRAME_HEADER_BYTES..])?;
                out.extend_from_slice(&tag);
            }
            None => check = self.check_value(place, plain),
        }
        let body_bytes = out.len() - start - FRAME_HEADER_BYTES;
        let header = FrameHeader { body_bytes, is_compressed, check }.encode()?;
        out[start..start + FRAME_HEADER_BYTES].copy_from_slice(&header);
        Ok(())
    }

    /// The plain chunk of a frame, which must have `plain_bytes`. Fails with [`CorruptData`](Reason::CorruptData) if it is
    /// damaged, or not the chunk of this place.
    pub fn open(
        &self,
        place: ChunkPlace,
        header: FrameHeader,
        body: &mut [u8],
        plain_bytes: usize,
    ) -> Result<Vec<u8>> {
        let content: &[u8] = match &self.key {
            Some(key) => {
                let associated = self.associated(place, header.is_compressed);
                let opened = key.open(place.number, &associated, body).filter(|_| header.check == 0);
                opened.ok_or_else(|| damaged(place, "is not authentic"))?
            }
            None => body,
        };
        let plain = match header.is_compressed {
            true => decompress(content, plain_bytes).ok_or_else(|| damaged(place, "cannot be expanded"))?,
            false => content.to_vec(),
        };
        if plain.len() != plain_bytes {
            return Err(damaged(place, "has another length"));
        }
        if self.key.is_none() && self.check_value(place, &plain) != header.check {
            return Err(damaged(place, "fails its checksum"));
        }
        Ok(plain)
    }

    fn associated(&self, place: ChunkPlace, is_compressed: bool) -> Vec<u8> {
        let mut associated = self.binding.clone();
        associated.extend_from_slice(&place.number.to_le_bytes());
        associated.extend_from_slice(&[u8::from(place.is_last), u8::from(is_compressed)]);
        associated
    }

    fn check_value(&self, place: ChunkPlace, plain: &[u8]) -> u32 {
        let mut hasher = Hasher::new(Algorithm::Crc32c);
        hasher.update(plain);
        hasher.update(&self.id);
        hasher.update(&place.number.to_le_bytes());
        hasher.update(&[u8::from(place.is_last)]);
        let value = hasher.finish();
        value.bytes().iter().fold(0, |check, byte| check << 8 | u32::from(*byte))
    }
}

fn damaged(place: ChunkPlace, why: &str) -> Error {
    Error::new(Reason::CorruptData, format!("chunk {} of a transformed object {why}", place.number))
}

struct CompressionContext {
    compressor: Compressor<'static>,
    compressed: Vec<u8>,
}

thread_local! {
    // One for each thread and not for each request: it takes more memory than a small request.
    static COMPRESSION: RefCell<Option<CompressionContext>> = const { RefCell::new(None) };
    static DECOMPRESSION: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Calls `use_compressed` with the compressed chunk; with `None` if it is not shorter than `max_bytes`.
pub(super) fn with_compressed<T>(
    plain: &[u8],
    max_bytes: usize,
    use_compressed: impl FnOnce(Option<&[u8]>) -> T,
) -> T {
    COMPRESSION.with_borrow_mut(|slot| {
        if slot.is_none() {
            let compressor = Compressor::new(COMPRESSION_LEVEL).ok();
            *slot = compressor.map(|compressor| CompressionContext { compressor, compressed: Vec::new() });
        }
        let Some(context) = slot else { return use_compressed(None) };
        context.compressed.clear();
        context.compressed.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        let written = context.compressor.compress_to_buffer(plain, &mut context.compressed);
        let is_shorter = written.is_ok_and(|bytes| bytes < max_bytes);
        use_compressed(is_shorter.then_some(&context.compressed[..]))
    })
}

/// The expanded bytes; `None` if they are damaged or more than `plain_bytes`.
fn decompress(compressed: &[u8], plain_bytes: usize) -> Option<Vec<u8>> {
    DECOMPRESSION.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Decompressor::new().ok();
        }
        let mut plain = Vec::with_capacity(plain_bytes);
        slot.as_mut()?.decompress_to_buffer(compressed, &mut plain).ok()?;
        Some(plain)
    })
}
