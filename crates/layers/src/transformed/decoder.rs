//! From stored bytes, as they arrive, to plain bytes.

use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::stored_form::StoredSegment;
use tradewind_core::{Address, Span};

use super::frame::{ChunkPlace, FrameCodec, FrameHeader};
use super::keys::Keyring;
use super::segment::{CHUNK_BYTES, Description, FRAME_HEADER_BYTES, Layout};
use super::stored_input::StoredInput;

/// Where the stored bytes of a span begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredRange {
    /// First stored byte.
    pub start: StoredPosition,
    /// One past the last stored byte.
    pub end: StoredPosition,
}

/// The boundary of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredPosition {
    /// It is at this offset.
    At(u64),
    /// It is in the table of a segment.
    InTable(TablePosition),
}

/// The boundary of a frame, as the table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TablePosition {
    /// The offset of the table entry.
    pub entry: u64,
    segment_start: u64,
    table_start: u64,
}

impl TablePosition {
    /// The offset of the boundary, given the bytes of the entry. Fails with [`CorruptData`](Reason::CorruptData) if it is
    /// not within the frames.
    pub fn offset(self, entry: &[u8]) -> Result<u64> {
        let distance = entry.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let offset = distance.and_then(|distance| self.segment_start.checked_add(distance));
        let offset = offset.filter(|offset| *offset <= self.table_start);
        offset.ok_or_else(|| corrupt("has a damaged table"))
    }
}

/// Opens the segments of an object.
#[derive(Clone)]
pub(super) struct SegmentOpener {
    pub keys: Arc<Keyring>,
    pub address: Address,
    /// The segments of the object; in a decoder, only those of its span.
    pub segments: Arc<[StoredSegment]>,
}

/// A segment that is being read.
enum SegmentSource {
    /// Bytes that were not transformed.
    Plain {
        rest_bytes: u64,
    },
    Frames {
        codec: Box<FrameCodec>,
        layout: Layout,
        next_chunk: u64,
    },
}

impl SegmentOpener {
    /// Opens a segment at the chunk of a plain byte.
    fn open(&self, segment: &StoredSegment, first: u64) -> Result<SegmentSource> {
        let Some((description, layout)) = describe(segment)? else {
            return Ok(SegmentSource::Plain { rest_bytes: segment.plain_bytes - first });
        };
        let unwrap = |key| self.keys.unwrap(key, &description.id, self.address.key.as_str());
        let key = description.key.as_ref().map(unwrap).transpose()?;
        let codec = Box::new(FrameCodec::new(description.id, key, &self.address, segment.part));
        Ok(SegmentSource::Frames { codec, layout, next_chunk: layout.chunk_of(first) })
    }
}

/// The form of a segment; `None` if it is not transformed.
fn describe(segment: &StoredSegment) -> Result<Option<(Description, Layout)>> {
    if segment.description.is_empty() {
        return match segment.plain_bytes == segment.stored_bytes {
            true => Ok(None),
            false => Err(corrupt("has a segment of another length")),
        };
    }
    let description = Description::decode(&segment.description)?;
    let layout = Layout::new(segment, description.chunk_bits)?;
    Ok(Some((description, layout)))
}

/// The first stored byte of the chunk of a plain byte.
fn start_of(segment: &StoredSegment, segment_start: u64, first: u64) -> Result<StoredPosition> {
    Ok(match describe(segment)? {
        None => StoredPosition::At(segment_start + first),
        Some((_, layout)) => frame_boundary(&layout, layout.chunk_of(first), segment_start),
    })
}

/// One past the last stored byte of the chunk before a plain offset, which is not 0.
fn end_of(segment: &StoredSegment, segment_start: u64, end: u64) -> Result<StoredPosition> {
    Ok(match describe(segment)? {
        None => StoredPosition::At(segment_start + end),
        Some((_, layout)) => {
            frame_boundary(&layout, layout.chunk_of(end.saturating_sub(1)) + 1, segment_start)
        }
    })
}

/// The boundary before a chunk; after the last one, the start of the table.
fn frame_boundary(layout: &Layout, chunk: u64, segment_start: u64) -> StoredPosition {
    let table_start = segment_start + layout.table_start();
    match layout.entry_offset(chunk) {
        None => StoredPosition::At(segment_start),
        Some(_) if chunk == layout.chunks() => StoredPosition::At(table_start),
        Some(entry) => {
            let entry = segment_start + entry;
            StoredPosition::InTable(TablePosition { entry, segment_start, table_start })
        }
    }
}

/// Decodes the stored bytes of a span of plain bytes.
pub(super) struct Decoder {
    opener: SegmentOpener,
    segment: SegmentSource,
    /// The index of the segment after `segment`.
    next_segment: usize,
    stored: StoredInput,
    /// Stored bytes to skip: the table of a segment that was read.
    skipped_stored_bytes: u64,
    /// Plain bytes to skip: those before the span in its first chunk.
    skipped_bytes: u64,
    /// Plain bytes of the span that are not returned yet.
    rest_bytes: u64,
}

/// A decoder, and the stored bytes that it needs.
pub(super) struct DecodePlan {
    pub decoder: Decoder,
    pub range: StoredRange,
}

impl DecodePlan {
    /// Plans the read of a span of at least one byte.
    pub fn new(mut opener: SegmentOpener, span: Span) -> Result<Self> {
        let (mut first, mut last, mut range) = (None, 0, None);
        let (mut plain_start, mut stored_start) = (0, 0);
        for (index, segment) in opener.segments.iter().enumerate() {
            let plain_end = plain_start + segment.plain_bytes;
            if plain_start <= span.offset && span.offset < plain_end {
                let offset = span.offset - plain_start;
                first = Some((index, offset));
                last = index;
                let start = start_of(segment, stored_start, offset)?;
                range = Some(StoredRange { start, end: start });
            }
            if let Some(range) =
                range.as_mut().filter(|_| plain_start < span.end() && span.end() <= plain_end)
            {
                range.end = end_of(segment, stored_start, span.end() - plain_start)?;
                last = index;
            }
            (plain_start, stored_start) = (plain_end, stored_start + segment.stored_bytes);
        }
        let (Some((index, offset)), Some(range)) = (first, range) else {
            return Err(corrupt("has no segment for the span requested"));
        };
        if last - index + 1 < opener.segments.len() {
            opener.segments = opener.segments[index..=last].into();
        }
        let segment = opener.open(&opener.segments[0], offset)?;
        let skipped_bytes = match &segment {
            SegmentSource::Plain { .. } => 0,
            SegmentSource::Frames { layout, next_chunk, .. } => offset - layout.plain_start(*next_chunk),
        };
        let decoder = Decoder {
            opener,
            segment,
            next_segment: 1,
            stored: StoredInput::default(),
            skipped_stored_bytes: 0,
            skipped_bytes,
            rest_bytes: span.length,
        };
        Ok(Self { decoder, range })
    }
}

impl Decoder {
    /// Adds stored bytes, after [`Self::next`] has returned `None`. They are held until they are decoded, but not while
    /// more are needed.
    pub fn push(&mut self, stored: Bytes) {
        self.stored.push(stored);
    }

    /// Plain bytes of the span that are not returned yet.
    pub const fn rest_bytes(&self) -> u64 {
        self.rest_bytes
    }

    /// The next plain bytes; `None` if more stored bytes are needed, or all plain bytes were returned.
    pub fn next(&mut self) -> Result<Option<Bytes>> {
        while self.rest_bytes > 0 {
            self.skipped_stored_bytes -= self.stored.skip(self.skipped_stored_bytes);
            let Some(decoded) = self.decode_next()? else {
                self.stored.release_received();
                return Ok(None);
            };
            let piece = self.within_span(decoded);
            if self.rest_bytes == 0 {
                self.stored = StoredInput::default();
            }
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// The next plain bytes, of the span or before it; `None` if more stored bytes are needed. Empty at the end of a
    /// segment.
    fn decode_next(&mut self) -> Result<Option<Bytes>> {
        if self.skipped_stored_bytes > 0 {
            return Ok(None);
        }
        match &mut self.segment {
            SegmentSource::Plain { rest_bytes: 0 } => self.open_next(0),
            SegmentSource::Plain { rest_bytes } => Ok(take_plain(&mut self.stored, rest_bytes)),
            SegmentSource::Frames { layout, next_chunk, .. } if *next_chunk == layout.chunks() => {
                let table_bytes = layout.table_bytes();
                self.open_next(table_bytes)
            }
            SegmentSource::Frames { codec, layout, next_chunk } => {
                let chunk = open_frame(codec, layout, *next_chunk, &mut self.stored)?;
                *next_chunk += u64::from(chunk.is_some());
                Ok(chunk)
            }
        }
    }

    /// Goes on with the next segment, after the table of the current one.
    fn open_next(&mut self, table_bytes: u64) -> Result<Option<Bytes>> {
        let segment = self.opener.segments.get(self.next_segment);
        let segment = segment.ok_or_else(|| corrupt("has fewer bytes than its size"))?;
        self.segment = self.opener.open(segment, 0)?;
        self.next_segment += 1;
        self.skipped_stored_bytes = table_bytes;
        Ok(Some(Bytes::new()))
    }

    /// The bytes of a decoded piece that are in the span.
    fn within_span(&mut self, mut piece: Bytes) -> Bytes {
        let skipped = usize::try_from(self.skipped_bytes).unwrap_or(usize::MAX).min(piece.len());
        piece.advance(skipped);
        self.skipped_bytes -= skipped as u64;
        piece.truncate(usize::try_from(self.rest_bytes).unwrap_or(usize::MAX));
        self.rest_bytes -= piece.len() as u64;
        piece
    }
}

/// The next plain bytes, at most a chunk.
fn take_plain(stored: &mut StoredInput, rest_bytes: &mut u64) -> Option<Bytes> {
    let length = usize::try_from(*rest_bytes).unwrap_or(usize::MAX).min(stored.len()).min(CHUNK_BYTES);
    if length == 0 {
        return None;
    }
    *rest_bytes -= length as u64;
    Some(stored.take(length).freeze())
}

/// The plain chunk of the next frame; `None` if the frame is incomplete.
fn open_frame(
    codec: &FrameCodec,
    layout: &Layout,
    number: u64,
    stored: &mut StoredInput,
) -> Result<Option<Bytes>> {
    let Some(header) = stored.peek::<FRAME_HEADER_BYTES>() else { return Ok(None) };
    let header = FrameHeader::decode(header);
    if header.body_bytes > layout.max_body_bytes() {
        return Err(corrupt("has a chunk that is too long"));
    }
    if stored.len() < FRAME_HEADER_BYTES + header.body_bytes {
        return Ok(None);
    }
    stored.skip(FRAME_HEADER_BYTES as u64);
    let mut body = stored.take(header.body_bytes);
    let place = ChunkPlace { number, is_last: number + 1 == layout.chunks() };
    codec.open(place, header, &mut body, layout.plain_length(number)).map(|plain| Some(Bytes::from(plain)))
}

/// The error of stored bytes that are not what the description says.
pub(super) fn corrupt(why: &str) -> Error {
    Error::new(Reason::CorruptData, format!("a transformed object {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(span: Span) -> Result<DecodePlan> {
        let segment =
            || StoredSegment { part: None, plain_bytes: 10, stored_bytes: 10, description: Vec::new() };
        let segments = (0..4).map(|_| segment()).collect();
        let address = Address::parse("bucket", "key")?;
        DecodePlan::new(SegmentOpener { keys: Arc::default(), address, segments }, span)
    }

    #[test]
    fn decoder_has_the_segments_of_its_span_only() {
        for (span, segments) in [
            (Span { offset: 12, length: 5 }, 1),
            (Span { offset: 12, length: 9 }, 2),
            (Span { offset: 0, length: 40 }, 4),
        ] {
            let DecodePlan { mut decoder, range } = plan(span).unwrap();
            assert_eq!(decoder.opener.segments.len(), segments, "{span:?}");
            let at = StoredPosition::At;
            assert_eq!((range.start, range.end), (at(span.offset), at(span.end())));
            decoder.push(Bytes::from(vec![7; usize::try_from(span.length).unwrap()]));
            let pieces: Vec<Bytes> = std::iter::from_fn(|| decoder.next().unwrap()).collect();
            assert_eq!((pieces.concat().len() as u64, decoder.rest_bytes()), (span.length, 0));
        }
    }

    #[test]
    fn span_beyond_the_segments_is_corrupt() {
        assert_eq!(plan(Span { offset: 40, length: 1 }).err().unwrap().reason(), Reason::CorruptData);
        let mut decoder = plan(Span { offset: 35, length: 10 }).unwrap().decoder;
        decoder.push(Bytes::from_static(b"abcdefghij"));
        assert_eq!(decoder.next().unwrap().unwrap(), "abcde");
        assert_eq!(decoder.next().unwrap_err().reason(), Reason::CorruptData);
    }
}
