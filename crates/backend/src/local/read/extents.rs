//! The body of an object in extents: its pieces in order, each verified block by block.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::Result;
use tradewind_core::{Body, Context, Span};

use super::{MAX_PIECE_BYTES, StoreSnapshot, corrupt, to_usize};
use crate::local::frame::{BLOCK_BYTES, MAX_PAYLOAD_BYTES, RecordHeader, RecordKind, block_count};
use crate::local::index::entries::RecordLocation;
use crate::local::index::keys;
use crate::local::open_store::OpenStore;
use crate::local::position::Position;
use crate::local::record::{ExtentRun, Record};
use crate::local::segment::Segment;

/// The state of a body.
pub(super) struct ExtentBody {
    store: Arc<OpenStore>,
    context: Context,
    snapshot: StoreSnapshot,
    /// The remaining runs.
    runs: std::collections::VecDeque<ExtentRun>,
    /// Offset of the first run's first byte in the object.
    run_offset: u64,
    span: Span,
    at: u64,
    open: Option<OpenExtent>,
}

/// The extent being read.
struct OpenExtent {
    id: u64,
    at: Position,
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
        let mut wanted = std::collections::VecDeque::new();
        let mut reached = run_offset;
        for run in &runs[first..] {
            if reached >= span.end() {
                break;
            }
            wanted.push_back(*run);
            reached += run.bytes;
        }
        Self { store, context, snapshot, runs: wanted, run_offset, span, at: span.offset, open: None }
    }

    pub fn into_body(self) -> Body {
        let length = self.span.length;
        let pieces = stream::unfold(Some(self), |state| async {
            let mut body = state?;
            if body.at == body.span.end() {
                return None;
            }
            match body.next_piece().await {
                Ok(piece) => Some((Ok(piece), Some(body))),
                Err(e) => Some((Err(e), None)),
            }
        });
        Body::from_stream(length, pieces)
    }

    /// Reads the next piece: up to [`MAX_PIECE_BYTES`] of one extent, in whole blocks, cut to the span.
    async fn next_piece(&mut self) -> Result<Bytes> {
        self.context.check()?;
        let (id, payload_bytes, offset) = self.locate()?;
        let first_block = offset / BLOCK_BYTES;
        let wanted = usize::try_from(self.span.end() - self.at).unwrap_or(usize::MAX);
        let end = (offset.saturating_add(wanted))
            .min(payload_bytes)
            .min((first_block * BLOCK_BYTES) + MAX_PIECE_BYTES);
        let from = first_block * BLOCK_BYTES;
        let to = end.next_multiple_of(BLOCK_BYTES).min(payload_bytes);
        let bytes = match self.open.take().filter(|open| open.id == id) {
            Some(open) => {
                let start = open.at.offset as usize + open.head_bytes + from;
                let bytes = self.store.read(&self.context, &open.segment, start as u64, to - from).await?;
                self.open = Some(open);
                bytes
            }
            None => self.open_and_read(id, payload_bytes, from, to).await?,
        };
        if let Some(open) = &self.open {
            for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
                if crc64nvme(block) != open.block_crcs[first_block + index] {
                    return Err(corrupt(open.at, "its data is damaged"));
                }
            }
        }
        self.at += (end - offset) as u64;
        Ok(bytes.slice(offset - from..end - from))
    }

    /// The extent with the next byte, its size, and the byte's offset in it.
    fn locate(&mut self) -> Result<(u64, usize, usize)> {
        while let Some(run) = self.runs.front() {
            if self.at < self.run_offset + run.bytes {
                let within = self.at - self.run_offset;
                let full = MAX_PAYLOAD_BYTES as u64;
                let number = within / full;
                let payload_bytes = (run.bytes - number * full).min(full);
                return Ok((run.first + number, to_usize(payload_bytes)?, to_usize(within % full)?));
            }
            self.run_offset += run.bytes;
            self.runs.pop_front();
        }
        Err(corrupt(Position::default(), "the manifest is shorter than the object"))
    }

    /// Finds an extent, verifies its head and reads blocks of it, in a single read if they follow the head.
    async fn open_and_read(
        &mut self,
        id: u64,
        payload_bytes: usize,
        from: usize,
        to: usize,
    ) -> Result<Bytes> {
        let missing = || corrupt(Position::default(), &format!("extent {id} is missing"));
        let place = self.snapshot.index.get(&keys::extent(id))?.ok_or_else(missing)?;
        let at = RecordLocation::decode(&place)?.position;
        let segment = self.snapshot.segments.get(&at.segment).cloned().ok_or_else(missing)?;
        let head_bytes = head_bytes(id, payload_bytes);
        let bytes_with_head = if from == 0 { to } else { 0 };
        let bytes =
            self.store.read(&self.context, &segment, at.offset.into(), head_bytes + bytes_with_head).await?;
        let (header, head) = RecordHeader::decode(self.store.state.layout.salt, at, &bytes)
            .map_err(|_| corrupt(at, "its head is damaged"))?;
        let is_expected = header.kind == RecordKind::Extent
            && header.payload_bytes as usize == payload_bytes
            && Record::decode(header.kind, head.fields)? == (Record::Extent { id });
        if !is_expected {
            return Err(corrupt(at, "it is another extent"));
        }
        let block_crcs = (0..block_count(payload_bytes)).map(|index| head.block_crc(index)).collect();
        let rest = bytes.slice(head_bytes..);
        let payload_start = at.offset as usize + head_bytes;
        self.open = Some(OpenExtent { id, at, segment: segment.clone(), head_bytes, block_crcs });
        drop(bytes);
        if bytes_with_head > 0 {
            return Ok(rest);
        }
        drop(rest);
        self.store.read(&self.context, &segment, (payload_start + from) as u64, to - from).await
    }
}

/// Bytes of an extent's head, whose only field is its number.
fn head_bytes(id: u64, payload_bytes: usize) -> usize {
    let fields = Record::Extent { id }.encode().len();
    super::super::frame::HEADER_BYTES + fields + 8 * block_count(payload_bytes)
}
