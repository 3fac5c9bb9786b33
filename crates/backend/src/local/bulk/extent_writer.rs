//! Writing one extent to a bulk segment. First a range is allocated for it. The payload is written there as it arrives,
//! after the space for the head. The head is written last: until then the range contains no record, and after an abort
//! it never does.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};

use super::write_queue::{PendingWrite, WriteQueue};
use super::{ExtentAllocator, start_write_out};
use crate::local::frame::{RecordHeader, RecordKind, padding};
use crate::local::position::Position;
use crate::local::record::{ExtentLocation, Record};
use crate::local::segment::SegmentPin;
use crate::local::store_state::StoreState;

/// An extent being written. Dropping it aborts it.
pub(crate) struct ExtentWriter {
    state: Arc<StoreState>,
    queue: Arc<WriteQueue>,
    pin: SegmentPin,
    /// The header for a payload of full capacity.
    header: RecordHeader,
    fields: Vec<u8>,
    /// Offset of the payload in the segment.
    payload_offset: u32,
    /// Payload bytes submitted so far.
    submitted_bytes: usize,
    /// The last submitted write. All earlier ones are completed.
    in_flight: Option<PendingWrite>,
}

impl ExtentWriter {
    /// Allocates a range for an extent of at most `capacity` bytes; `None` if no bulk segment is open.
    pub fn begin(
        allocator: &ExtentAllocator,
        state: &Arc<StoreState>,
        (id, is_relocated): (u64, bool),
        capacity: usize,
    ) -> Result<Option<Self>> {
        let fields = Record::Extent { id }.encode();
        let header = RecordHeader {
            kind: RecordKind::Extent,
            is_relocated,
            fields_bytes: segment_length(fields.len())?,
            payload_bytes: segment_length(capacity)?,
            seq: id,
            durable_end: Position::default(),
        };
        let record_bytes = segment_length(header.record_bytes())?;
        let Some((pin, range_begin)) = allocator.allocate(state, record_bytes) else { return Ok(None) };
        Ok(Some(Self {
            state: state.clone(),
            queue: allocator.queue.clone(),
            pin,
            payload_offset: range_begin.offset + segment_length(header.head_bytes())?,
            header,
            fields,
            submitted_bytes: 0,
            in_flight: None,
        }))
    }

    /// Payload bytes submitted so far.
    pub const fn submitted_bytes(&self) -> usize {
        self.submitted_bytes
    }

    /// Remaining payload capacity in bytes.
    pub const fn remaining_bytes(&self) -> usize {
        self.header.payload_bytes as usize - self.submitted_bytes
    }

    /// Waits until the previous write is completed and submits the next payload. An error if the previous write failed.
    pub async fn append(&mut self, payload: Vec<Bytes>) -> Result<()> {
        let bytes = self.check_length(&payload)?;
        self.admit(bytes)?;
        self.await_in_flight().await?;
        self.in_flight =
            Some(self.submit(self.payload_offset + segment_length(self.submitted_bytes)?, payload));
        self.submitted_bytes += bytes;
        Ok(())
    }

    /// Writes the rest of the payload and the head, given the checksums of all blocks. The extent becomes durable with
    /// a sync of its segment.
    pub async fn finish(
        mut self,
        payload: Vec<Bytes>,
        block_crcs: &[u64],
    ) -> Result<(ExtentLocation, SegmentPin)> {
        let payload_bytes = self.submitted_bytes + self.check_length(&payload)?;
        let header = RecordHeader { payload_bytes: segment_length(payload_bytes)?, ..self.header };
        self.admit(header.record_bytes() - self.submitted_bytes)?;
        // If the payload is shorter than the capacity, so is the head, by a multiple of the alignment. The payload is
        // already in place, so the record begins later than the allocated range.
        let begin = self.payload_offset - segment_length(header.head_bytes())?;
        let position = Position::new(self.pin.0.number, begin);
        let head =
            Bytes::from(header.encode_head(self.state.layout.salt, position, &self.fields, block_crcs));
        let pad = Bytes::from_static(&[0; 8]).slice(..padding(header.head_bytes() + payload_bytes));
        let rest = payload.into_iter().chain([pad]).filter(|buffer| !buffer.is_empty());
        if self.submitted_bytes == 0 {
            self.submit(begin, std::iter::once(head).chain(rest).collect()).completed().await?;
        } else {
            let mut tail_write =
                self.submit(self.payload_offset + segment_length(self.submitted_bytes)?, rest.collect());
            let mut head_write = self.submit(begin, vec![head]);
            self.await_in_flight().await?;
            tail_write.completed().await?;
            head_write.completed().await?;
        }
        let record_bytes = segment_length(header.record_bytes())?;
        start_write_out(&self.state, &self.pin.0, begin, record_bytes);
        Ok((ExtentLocation { id: header.seq, position, record_bytes }, self.pin))
    }

    fn submit(&self, offset: u32, buffers: Vec<Bytes>) -> PendingWrite {
        self.queue.submit(&self.state.io, self.pin.0.clone(), offset, buffers)
    }

    /// An error if the device has no room for the bytes about to be written.
    fn admit(&self, bytes: usize) -> Result<()> {
        // Compaction has claimed space for everything that it writes.
        if self.header.is_relocated { Ok(()) } else { self.state.space.admit(bytes as u64) }
    }

    async fn await_in_flight(&mut self) -> Result<()> {
        if let Some(write) = &mut self.in_flight {
            let written = write.completed().await;
            self.in_flight = None;
            written?;
        }
        Ok(())
    }

    fn check_length(&self, payload: &[Bytes]) -> Result<usize> {
        let bytes = payload.iter().map(Bytes::len).sum();
        if bytes > self.remaining_bytes() {
            return Err(Error::new(Reason::Defect, "an extent exceeds its allocated range"));
        }
        Ok(bytes)
    }
}

/// A length or an offset within a segment.
fn segment_length(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).map_err(|_| Error::new(Reason::Defect, "an extent is too long"))
}
