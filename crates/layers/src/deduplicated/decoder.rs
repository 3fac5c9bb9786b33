//! From stored bytes, as they arrive, to the chunks and plain bytes of a span.

use std::collections::VecDeque;

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::stored_form::{StoredForm, StoredSegment, needs_layer};
use tradewind_core::{ObjectKey, Span};

use super::chunker::MIN_CHUNK_BYTES;
use super::manifest::{ChunkId, Description, ENTRY_BYTES, Entry, SegmentForm, corrupt};
use crate::transformed::stored_input::StoredInput;

/// Bytes of a plain segment that are copied at once.
const PLAIN_PIECE_BYTES: usize = 256 << 10;
/// Entries that are read at once to find one of a range.
pub(super) const MAX_SEARCH_ENTRIES: u64 = 512;

/// A segment of which a span has a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SegmentPart {
    /// `None` for bytes as they are.
    manifest: Option<Description>,
    /// Where its stored bytes begin.
    stored_start: u64,
    stored_bytes: u64,
    plain_bytes: u64,
    /// The first plain byte of the span, relative to the segment.
    first: u64,
    /// The end of the span, relative to the segment.
    end: u64,
}

/// The segments of a span.
#[derive(Debug, Clone)]
pub(super) struct ReadPlan {
    segments: VecDeque<SegmentPart>,
}

/// A search for the entry of a byte in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntrySearch {
    /// Where the manifest begins.
    pub stored_start: u64,
    /// The number of its entries.
    pub entries: u64,
    /// The byte, relative to the segment.
    pub byte: u64,
    /// The entry of the byte, or one before it.
    pub from: EntryPosition,
}

/// An entry at which a read of a manifest begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EntryPosition {
    /// Its number.
    pub number: u64,
    /// The end of the chunk before it.
    pub previous_end: u64,
}

/// The entries to read of the manifests in which a range begins and ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EntryBounds {
    /// Where the read of the first manifest begins.
    pub first: EntryPosition,
    /// The number of an entry of the last manifest up to which all chunks of the range are; `None` if it was not searched.
    pub end: Option<u64>,
}

/// Bytes of the span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes that are stored as they are.
    Plain(Bytes),
    /// A part of a chunk.
    Chunk(ChunkPart),
}

/// A part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkPart {
    pub chunk: ChunkId,
    /// The length of the chunk.
    pub length: usize,
    /// The first byte of the part.
    pub start: usize,
    /// The end of the part.
    pub end: usize,
}

impl SegmentPart {
    /// The search for the entry of a byte; `None` for bytes as they are.
    fn search(&self, byte: u64, from: EntryPosition) -> Option<EntrySearch> {
        self.manifest?;
        let (stored_start, entries) = (self.stored_start, self.stored_bytes / ENTRY_BYTES as u64);
        Some(EntrySearch { stored_start, entries, byte, from })
    }

    /// The highest number of entries up to the end of the range, if no chunk but the last one has fewer bytes.
    fn max_entries(&self, from: EntryPosition, min_chunk_bytes: u64) -> u64 {
        let bytes = self.end.saturating_sub(from.previous_end);
        let entries = from.number + bytes.div_ceil(min_chunk_bytes) + 1;
        entries.min(self.stored_bytes / ENTRY_BYTES as u64)
    }
}

impl ReadPlan {
    /// The plan of a read of a span, which is not empty.
    ///
    /// Fails with [`Unsupported`](Reason::Unsupported) if the layer `transformed` is needed.
    pub fn new(stored: &StoredForm, span: Span, key: &ObjectKey) -> Result<Self> {
        let (mut plain_start, mut stored_start) = (0, 0);
        let mut segments = VecDeque::new();
        for segment in stored.segments.iter() {
            let StoredSegment { plain_bytes, stored_bytes, .. } = *segment;
            let plain_end = plain_start + plain_bytes;
            if plain_end > span.offset && plain_start < span.end() {
                let manifest = match SegmentForm::of_segment(segment)? {
                    SegmentForm::Plain => None,
                    SegmentForm::Manifest(description) => Some(description),
                    SegmentForm::Transformed => return Err(needs_layer(key.as_str())),
                };
                segments.push_back(SegmentPart {
                    manifest,
                    stored_start,
                    stored_bytes,
                    plain_bytes,
                    first: span.offset.saturating_sub(plain_start),
                    end: span.end().min(plain_end) - plain_start,
                });
            }
            plain_start = plain_end;
            stored_start += stored_bytes;
        }
        match segments.is_empty() || span.end() > plain_start {
            true => Err(corrupt("has fewer segments than its size says")),
            false => Ok(Self { segments }),
        }
    }

    /// The search for the first chunk, unless the range begins with the first byte of a manifest or in plain bytes.
    pub fn first_search(&self) -> Option<EntrySearch> {
        let part = self.segments.front().filter(|part| part.first > 0)?;
        part.search(part.first, EntryPosition::default())
    }

    /// The search for the last chunk, if short chunks would make the read of its manifest much too long. `first` is that of
    /// [`EntryBounds`].
    pub fn last_search(&self, first: EntryPosition) -> Option<EntrySearch> {
        let part = self.segments.back()?;
        let (from, usual_bytes) = (self.first_of_last(first), MIN_CHUNK_BYTES as u64);
        let bound = part.max_entries(from, u64::from(part.manifest?.min_chunk_bytes));
        let usual = part.max_entries(from, usual_bytes);
        match bound > usual + MAX_SEARCH_ENTRIES {
            true => part.search(part.end - 1, from),
            false => None,
        }
    }

    /// The position in the last manifest that is known without a search.
    fn first_of_last(&self, first: EntryPosition) -> EntryPosition {
        if self.segments.len() == 1 { first } else { EntryPosition::default() }
    }

    /// The stored bytes to read, and the decoder for them.
    pub fn begin(mut self, bounds: EntryBounds) -> Result<(Span, Decoder)> {
        let position = bounds.first;
        let (Some(first), Some(last)) = (self.segments.front().copied(), self.segments.back().copied())
        else {
            return Err(corrupt("has no segments"));
        };
        let start = match first.manifest {
            None => first.stored_start + first.first,
            Some(_) => first.stored_start + position.number * ENTRY_BYTES as u64,
        };
        let end = match last.manifest {
            None => last.stored_start + last.end,
            Some(description) => {
                let from = self.first_of_last(position);
                let entries = last.max_entries(from, u64::from(description.min_chunk_bytes));
                let entries = bounds.end.map_or(entries, |end| end.min(entries));
                last.stored_start + entries * ENTRY_BYTES as u64
            }
        };
        let length = end.checked_sub(start).filter(|length| *length > 0);
        let length = length.ok_or_else(|| corrupt("has a damaged entry"))?;
        let is_manifest = first.manifest.is_some();
        if let Some(part) = self.segments.front_mut().filter(|_| is_manifest) {
            // The range of the first manifest begins at `position`.
            part.stored_bytes = part.stored_bytes.saturating_sub(position.number * ENTRY_BYTES as u64);
        }
        let rest_bytes = self.segments.iter().map(|part| part.end - part.first).sum();
        let decoder = Decoder {
            segments: self.segments,
            previous_end: if is_manifest { position.previous_end } else { first.first },
            stored_taken: 0,
            rest_bytes,
            input: StoredInput::default(),
        };
        Ok((Span { offset: start, length }, decoder))
    }
}

/// Decodes the stored bytes of a span.
#[derive(Debug)]
pub(super) struct Decoder {
    segments: VecDeque<SegmentPart>,
    /// The plain bytes of the first segment before the next entry or byte.
    previous_end: u64,
    /// Stored bytes of the first segment that were taken.
    stored_taken: u64,
    rest_bytes: u64,
    input: StoredInput,
}

impl Decoder {
    /// Plain bytes of the span that no returned piece has.
    pub const fn rest_bytes(&self) -> u64 {
        self.rest_bytes
    }

    /// Adds stored bytes. They are copied: the reads of chunks need the memory of the request.
    pub fn push(&mut self, stored: Bytes) {
        self.input.push(stored);
        self.input.release_received();
    }

    /// The next piece; `None` if stored bytes are missing, or at the end of the span.
    pub fn next(&mut self) -> Result<Option<Piece>> {
        loop {
            let Some(part) = self.segments.front().copied() else { return Ok(None) };
            if self.previous_end >= part.end {
                if !self.finish_segment(part) {
                    return Ok(None);
                }
                continue;
            }
            if part.manifest.is_none() {
                return Ok(self.next_plain(part));
            }
            match self.next_entry(part)? {
                EntryRead::Missing => return Ok(None),
                EntryRead::BeforeSpan => {}
                EntryRead::Chunk(chunk) => return Ok(Some(Piece::Chunk(chunk))),
            }
        }
    }

    fn next_plain(&mut self, part: SegmentPart) -> Option<Piece> {
        let rest = usize::try_from(part.end - self.previous_end).unwrap_or(usize::MAX);
        let bytes = self.input.take(rest.min(PLAIN_PIECE_BYTES)).freeze();
        if bytes.is_empty() {
            return None;
        }
        self.previous_end += bytes.len() as u64;
        self.stored_taken += bytes.len() as u64;
        self.rest_bytes -= bytes.len() as u64;
        Some(Piece::Plain(bytes))
    }

    fn next_entry(&mut self, part: SegmentPart) -> Result<EntryRead> {
        if self.stored_taken >= part.stored_bytes {
            return Err(corrupt("ends before its object"));
        }
        let Some(entry) = self.input.peek::<ENTRY_BYTES>() else { return Ok(EntryRead::Missing) };
        self.input.skip(ENTRY_BYTES as u64);
        self.stored_taken += ENTRY_BYTES as u64;
        let entry = Entry::decode(&entry);
        let previous_end = self.previous_end;
        let length = entry.length_after(previous_end)?;
        if entry.end > part.plain_bytes {
            return Err(corrupt("is longer than its object"));
        }
        self.previous_end = entry.end;
        if entry.end <= part.first {
            return Ok(EntryRead::BeforeSpan);
        }
        let within = |offset: u64| usize::try_from(offset - previous_end).unwrap_or(usize::MAX).min(length);
        let (start, end) = (within(part.first.max(previous_end)), within(part.end.min(entry.end)));
        self.rest_bytes -= (end - start) as u64;
        Ok(EntryRead::Chunk(ChunkPart { chunk: entry.chunk, length, start, end }))
    }

    /// Skips the remaining stored bytes of a segment, and goes on to the next one. Returns false if more bytes are needed.
    fn finish_segment(&mut self, part: SegmentPart) -> bool {
        if self.segments.len() > 1 && part.manifest.is_some() {
            // A segment that is not the last of a span is read to its end, so its last entry was taken.
            let rest = part.stored_bytes.saturating_sub(self.stored_taken);
            let skipped = self.input.skip(rest);
            self.stored_taken += skipped;
            if skipped < rest {
                return false;
            }
        }
        self.segments.pop_front();
        (self.previous_end, self.stored_taken) = (0, 0);
        true
    }
}

enum EntryRead {
    /// Stored bytes are missing.
    Missing,
    /// The chunk ends before the span.
    BeforeSpan,
    Chunk(ChunkPart),
}

/// The error of a read that got fewer stored bytes than it needs.
pub(super) fn truncated() -> Error {
    Error::new(Reason::CorruptData, "a deduplicated object has fewer stored bytes than its description says")
}
