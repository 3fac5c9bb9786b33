//! Writing one extent to a bulk segment. Its range is allocated first; its payload is written there as it arrives,
//! after the space for its head; the head comes last. Until then the range contains no record, and after an abort it
//! never does.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};

use super::queue::{Underway, WriteQueue};
use super::{BulkWriter, start_write_out};
use crate::local::frame::{Header, RecordKind, padding};
use crate::local::position::Position;
use crate::local::record::{ExtentAt, Record};
use crate::local::segment::Pin;
use crate::local::shared::Shared;

/// An extent being written. Dropping it aborts it.
pub(crate) struct ExtentWriter {
    shared: Arc<Shared>,
    queue: Arc<WriteQueue>,
    pin: Pin,
    /// The head for a payload of full capacity.
    header: Header,
    fields: Vec<u8>,
    /// Offset of the payload in the segment.
    payload_offset: u32,
    /// Payload bytes submitted so far.
    handed: usize,
    /// The last submission; everything before it is in the file.
    underway: Option<Underway>,
}

impl ExtentWriter {
    /// Allocates a range for an extent of at most `capacity` bytes; `None` if no segment has room.
    pub fn begin(
        bulk: &BulkWriter,
        shared: &Arc<Shared>,
        (id, relocated): (u64, bool),
        capacity: usize,
    ) -> Result<Option<Self>> {
        let fields = Record::Extent { id }.encode();
        let header = Header {
            kind: RecordKind::Extent,
            relocated,
            fields_bytes: offset(fields.len())?,
            payload_bytes: offset(capacity)?,
            seq: id,
            durable: Position::default(),
        };
        let record_bytes = offset(header.record_bytes())?;
        let Some((pin, at)) = bulk.take_place(shared, record_bytes) else { return Ok(None) };
        Ok(Some(Self {
            shared: shared.clone(),
            queue: bulk.queue.clone(),
            pin,
            payload_offset: at.offset + offset(header.head_bytes())?,
            header,
            fields,
            handed: 0,
            underway: None,
        }))
    }

    /// Payload bytes submitted so far.
    pub const fn handed(&self) -> usize {
        self.handed
    }

    /// Remaining payload capacity in bytes.
    pub const fn room(&self) -> usize {
        self.header.payload_bytes as usize - self.handed
    }

    /// Submits payload to be written, after everything before it is in the file. An error if that failed.
    pub async fn append(&mut self, payload: Vec<Bytes>) -> Result<()> {
        let bytes = self.measure(&payload)?;
        self.admit(bytes)?;
        self.settle().await?;
        self.underway = Some(self.submit(self.payload_offset + offset(self.handed)?, payload));
        self.handed += bytes;
        Ok(())
    }

    /// Writes the rest of the payload and the head. `table` has the checksums of all blocks. The extent becomes
    /// durable with a sync of its segment.
    pub async fn finish(mut self, payload: Vec<Bytes>, table: &[u64]) -> Result<(ExtentAt, Pin)> {
        let payload_bytes = self.handed + self.measure(&payload)?;
        let header = Header { payload_bytes: offset(payload_bytes)?, ..self.header };
        self.admit(header.record_bytes() - self.handed)?;
        // The payload stays where it is. The head of a shorter payload is shorter, by whole units of alignment, so
        // the record begins later.
        let begin = self.payload_offset - offset(header.head_bytes())?;
        let at = Position::new(self.pin.0.number, begin);
        let head = Bytes::from(header.encode_head(self.shared.layout.salt, at, &self.fields, table));
        let pad = Bytes::from_static(&[0; 8]).slice(..padding(header.head_bytes() + payload_bytes));
        let rest = payload.into_iter().chain([pad]).filter(|piece| !piece.is_empty());
        if self.handed == 0 {
            self.submit(begin, std::iter::once(head).chain(rest).collect()).written().await?;
        } else {
            let mut tail = self.submit(self.payload_offset + offset(self.handed)?, rest.collect());
            let mut head = self.submit(begin, vec![head]);
            self.settle().await?;
            tail.written().await?;
            head.written().await?;
        }
        let record_bytes = offset(header.record_bytes())?;
        start_write_out(&self.shared, &self.pin.0, begin, record_bytes);
        Ok((ExtentAt { id: header.seq, at, record_bytes }, self.pin))
    }

    fn submit(&self, offset: u32, pieces: Vec<Bytes>) -> Underway {
        self.queue.submit(&self.shared.io, self.pin.0.clone(), offset, pieces)
    }

    /// Checks that the device has room for the bytes about to be written.
    fn admit(&self, bytes: usize) -> Result<()> {
        // Compaction has reserved room for everything that it writes.
        if self.header.relocated { Ok(()) } else { self.shared.space.admit(bytes as u64) }
    }

    async fn settle(&mut self) -> Result<()> {
        if let Some(underway) = &mut self.underway {
            let written = underway.written().await;
            self.underway = None;
            written?;
        }
        Ok(())
    }

    fn measure(&self, payload: &[Bytes]) -> Result<usize> {
        let bytes = payload.iter().map(Bytes::len).sum();
        if bytes > self.room() {
            return Err(Error::new(Reason::Defect, "an extent exceeds its reserved range"));
        }
        Ok(bytes)
    }
}

/// A length within a segment.
fn offset(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).map_err(|_| Error::new(Reason::Defect, "an extent is too long"))
}
