//! The body of an object in extents: pieces in order, each verified block by block.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Body, Context, Span};

use super::{MAX_PIECE_BYTES, StoreSnapshot, corrupt, to_usize};
use crate::local::frame::{
    BLOCK_BYTES, HEADER_BYTES, MAX_PAYLOAD_BYTES, RecordHeader, RecordKind, block_count,
};
use crate::local::index::entries::RecordLocation;
use crate::local::index::keys;
use crate::local::open_store::OpenStore;
use crate::local::position::Position;
use crate::local::record::{ExtentRun, Record};
use crate::local::segment::Segment;

/// The body of a read of an object in extents.
pub(super) struct ExtentBody {
    store: Arc<OpenStore>,
    context: Context,
    snapshot: StoreSnapshot,
    /// The runs that hold the rest of the span.
    runs: std::collections::VecDeque<ExtentRun>,
    /// Offset in the object of the first byte of the first of `runs`.
    run_offset: u64,
    /// The requested range of the object.
    span: Span,
    /// Offset in the object of the next byte to return.
    object_offset: u64,
    open_extent: Option<OpenExtent>,
}

/// The extent being read, with a verified head.
struct OpenExtent {
    id: u64,
    position: Position,
    segment: Arc<Segment>,
    head_bytes: usize,
    block_crcs: Vec<u64>,
}

impl ExtentBody {
    pub fn new(
        store: Arc<OpenStore>,
        context: Context,
        snapshot: StoreSnapshot,
        runs: &[ExtentRun],
        span: Span,
    ) -> Self {
        // A range needs only one or two runs of a manifest of 10,000 parts.
        let (mut run_offset, mut first) = (0, 0);
        while first < runs.len() && run_offset + runs[first].bytes <= span.offset {
            run_offset += runs[first].bytes;
            first += 1;
        }
        let mut span_runs = std::collections::VecDeque::new();
        let mut end_offset = run_offset;
        for run in &runs[first..] {
            if end_offset >= span.end() {
                break;
            }
            span_runs.push_back(*run);
            end_offset += run.bytes;
        }
        Self {
            store,
            context,
            snapshot,
            runs: span_runs,
            run_offset,
            span,
            object_offset: span.offset,
            open_extent: None,
        }
    }

    pub fn into_body(self) -> Body {
        let length = self.span.length;
        let pieces = stream::unfold(Some(self), |state| async {
            let mut body = state?;
            if body.object_offset == body.span.end() {
                return None;
            }
            match body.next_piece().await {
                Ok(piece) => Some((Ok(piece), Some(body))),
                Err(e) => Some((Err(e), None)),
            }
        });
        Body::from_stream(length, pieces)
    }

    /// Reads the next piece: up to [`MAX_PIECE_BYTES`] of one extent, in whole blocks. Bytes outside the span are cut
    /// off. The offsets of piece and blocks are in the extent's payload.
    async fn next_piece(&mut self) -> Result<Bytes> {
        self.context.check()?;
        let (id, payload_bytes, piece_begin) = self.locate()?;
        let first_block = piece_begin / BLOCK_BYTES;
        let blocks_begin = first_block * BLOCK_BYTES;
        let remaining_bytes = usize::try_from(self.span.end() - self.object_offset).unwrap_or(usize::MAX);
        let piece_end = piece_begin
            .saturating_add(remaining_bytes)
            .min(payload_bytes)
            .min(blocks_begin + MAX_PIECE_BYTES);
        let blocks_end = piece_end.next_multiple_of(BLOCK_BYTES).min(payload_bytes);
        let (extent, blocks) = match self.open_extent.take().filter(|extent| extent.id == id) {
            Some(extent) => {
                let blocks = self.read_blocks(&extent, blocks_begin..blocks_end).await?;
                (extent, blocks)
            }
            None => self.open_and_read(id, payload_bytes, blocks_begin..blocks_end).await?,
        };
        for (index, block) in blocks.chunks(BLOCK_BYTES).enumerate() {
            if crc64nvme(block) != extent.block_crcs[first_block + index] {
                return Err(corrupt(extent.position, "its data is damaged"));
            }
        }
        self.open_extent = Some(extent);
        self.object_offset += (piece_end - piece_begin) as u64;
        Ok(blocks.slice(piece_begin - blocks_begin..piece_end - blocks_begin))
    }

    /// The id of the extent with the next byte, the size of its payload, and the byte's offset in the payload.
    fn locate(&mut self) -> Result<(u64, usize, usize)> {
        while let Some(run) = self.runs.front() {
            if self.object_offset < self.run_offset + run.bytes {
                let offset_in_run = self.object_offset - self.run_offset;
                let full_bytes = MAX_PAYLOAD_BYTES as u64;
                let extent_index = offset_in_run / full_bytes;
                let payload_bytes = (run.bytes - extent_index * full_bytes).min(full_bytes);
                let offset = to_usize(offset_in_run % full_bytes)?;
                return Ok((run.first_id + extent_index, to_usize(payload_bytes)?, offset));
            }
            self.run_offset += run.bytes;
            self.runs.pop_front();
        }
        Err(unservable("its manifest is shorter than the object"))
    }

    /// Looks up an extent, verifies its head and reads blocks of it: in a single read if they directly follow the head.
    async fn open_and_read(
        &self,
        id: u64,
        payload_bytes: usize,
        blocks: Range<usize>,
    ) -> Result<(OpenExtent, Bytes)> {
        let value = self.snapshot.index.get(&keys::extent(id))?;
        let value = value.ok_or_else(|| unservable(&format!("its extent {id} is not in the index")))?;
        let position = RecordLocation::decode(&value)?.position;
        let segment = self.snapshot.segments.get(&position.segment).cloned();
        let segment = segment.ok_or_else(|| corrupt(position, "its segment is missing"))?;
        let head_bytes = head_bytes(id, payload_bytes);
        let bytes_after_head = if blocks.start == 0 { blocks.end } else { 0 };
        let bytes = self.read(&segment, position.offset.into(), head_bytes + bytes_after_head).await?;
        let (header, head) = RecordHeader::decode(self.store.state.layout.salt, position, &bytes)
            .map_err(|_| corrupt(position, "its head is damaged"))?;
        let is_expected = header.kind == RecordKind::Extent
            && header.payload_bytes as usize == payload_bytes
            && Record::decode(header.kind, head.fields)? == (Record::Extent { id });
        if !is_expected {
            return Err(corrupt(position, "it is another extent"));
        }
        let extent = OpenExtent { id, position, segment, head_bytes, block_crcs: head.block_crcs() };
        if bytes_after_head > 0 {
            return Ok((extent, bytes.slice(head_bytes..)));
        }
        // Release the head's reservation first: the next read may need the whole window.
        drop(bytes);
        let payload = self.read_blocks(&extent, blocks).await?;
        Ok((extent, payload))
    }

    /// Reads the given range of an extent's payload.
    async fn read_blocks(&self, extent: &OpenExtent, range: Range<usize>) -> Result<Bytes> {
        let offset = extent.position.offset as usize + extent.head_bytes + range.start;
        self.read(&extent.segment, offset as u64, range.len()).await
    }

    async fn read(&self, segment: &Arc<Segment>, offset: u64, length: usize) -> Result<Bytes> {
        let reservation = self.store.reserve_paced(&self.context, length).await?;
        self.store.read(&self.context, segment, offset, length, reservation).await
    }
}

/// An error for damage whose position is unknown.
fn unservable(why: &str) -> Error {
    Error::new(Reason::CorruptData, format!("the object cannot be served: {why}"))
}

/// Bytes of an extent's head, whose only field is its number.
fn head_bytes(id: u64, payload_bytes: usize) -> usize {
    let fields_bytes = Record::Extent { id }.encode().len();
    HEADER_BYTES + fields_bytes + 8 * block_count(payload_bytes)
}
