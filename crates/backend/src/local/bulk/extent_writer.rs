//! Writing one extent to a bulk segment. Its range is allocated first; its payload is written there as it arrives,
//! after the space for its head; the head comes last. Until then the range contains no record, and after an abort it
//! never does.

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
    shared: Arc<StoreState>,
    queue: Arc<WriteQueue>,
    pin: SegmentPin,
    /// The head for a payload of full capacity.
    header: RecordHeader,
    fields: Vec<u8>,
    /// Offset of the payload in the segment.
    payload_offset: u32,
    /// Payload bytes submitted so far.
    submitted_bytes: usize,
    /// The last submission; everything before it is in the file.
    in_flight: Option<PendingWrite>,
}

impl ExtentWriter {
    /// Allocates a range for an extent of at most `capacity` bytes; `None` if no segment has room.
    pub fn begin(
        bulk: &ExtentAllocator,
        shared: &Arc<StoreState>,
        (id, relocated): (u64, bool),
        capacity: usize,
    ) -> Result<Option<Self>> {
        let fields = Record::Extent { id }.encode();
        let header = RecordHeader {
            kind: RecordKind::Extent,
            is_relocated: relocated,
            fields_bytes: offset(fields.len())?,
            payload_bytes: offset(capacity)?,
            seq: id,
            durable: Position::default(),
        };
        let record_bytes = offset(header.record_bytes())?;
        let Some((pin, at)) = bulk.allocate(shared, record_bytes) else { return Ok(None) };
        Ok(Some(Self {
            shared: shared.clone(),
            queue: bulk.queue.clone(),
            pin,
            payload_offset: at.offset + offset(header.head_bytes())?,
            header,
            fields,
            submitted_bytes: 0,
            in_flight: None,
        }))
    }

    /// Payload bytes submitted so far.
    pub const fn handed(&self) -> usize {
        self.submitted_bytes
    }

    /// Remaining payload capacity in bytes.
    pub const fn remaining_bytes(&self) -> usize {
        self.header.payload_bytes as usize - self.submitted_bytes
    }

    /// Submits payload to be written, after everything before it is in the file. An error if that failed.
    pub async fn append(&mut self, payload: Vec<Bytes>) -> Result<()> {
        let bytes = self.check_length(&payload)?;
        self.admit(bytes)?;
        self.await_in_flight().await?;
        self.in_flight = Some(self.submit(self.payload_offset + offset(self.submitted_bytes)?, payload));
        self.submitted_bytes += bytes;
        Ok(())
    }

    /// Writes the rest of the payload and the head. `table` has the checksums of all blocks. The extent becomes
    /// durable with a sync of its segment.
    pub async fn finish(
        mut self,
        payload: Vec<Bytes>,
        table: &[u64],
    ) -> Result<(ExtentLocation, SegmentPin)> {
        let payload_bytes = self.submitted_bytes + self.check_length(&payload)?;
        let header = RecordHeader { payload_bytes: offset(payload_bytes)?, ..self.header };
        self.admit(header.record_bytes() - self.submitted_bytes)?;
        // The payload stays where it is. The head of a shorter payload is shorter, by whole units of alignment, so
        // the record begins later.
        let begin = self.payload_offset - offset(header.head_bytes())?;
        let at = Position::new(self.pin.0.number, begin);
        let head = Bytes::from(header.encode_head(self.shared.layout.salt, at, &self.fields, table));
        let pad = Bytes::from_static(&[0; 8]).slice(..padding(header.head_bytes() + payload_bytes));
        let rest = payload.into_iter().chain([pad]).filter(|piece| !piece.is_empty());
        if self.submitted_bytes == 0 {
            self.submit(begin, std::iter::once(head).chain(rest).collect()).completed().await?;
        } else {
            let mut tail = self.submit(self.payload_offset + offset(self.submitted_bytes)?, rest.collect());
            let mut head = self.submit(begin, vec![head]);
            self.await_in_flight().await?;
            tail.completed().await?;
            head.completed().await?;
        }
        let record_bytes = offset(header.record_bytes())?;
        start_write_out(&self.shared, &self.pin.0, begin, record_bytes);
        Ok((ExtentLocation { id: header.seq, position: at, record_bytes }, self.pin))
    }

    fn submit(&self, offset: u32, pieces: Vec<Bytes>) -> PendingWrite {
        self.queue.submit(&self.shared.io, self.pin.0.clone(), offset, pieces)
    }

    /// Checks that the device has room for the bytes about to be written.
    fn admit(&self, bytes: usize) -> Result<()> {
        // Compaction has reserved room for everything that it writes.
        if self.header.is_relocated { Ok(()) } else { self.shared.space.admit(bytes as u64) }
    }

    async fn await_in_flight(&mut self) -> Result<()> {
        if let Some(underway) = &mut self.in_flight {
            let written = underway.completed().await;
            self.in_flight = None;
            written?;
        }
        Ok(())
    }

    fn check_length(&self, payload: &[Bytes]) -> Result<usize> {
        let bytes = payload.iter().map(Bytes::len).sum();
        if bytes > self.remaining_bytes() {
            return Err(Error::new(Reason::Defect, "an extent exceeds its reserved range"));
        }
        Ok(bytes)
    }
}

/// A length within a segment.
fn offset(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).map_err(|_| Error::new(Reason::Defect, "an extent is too long"))
}
