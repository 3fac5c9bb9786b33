//! One extent on its way into a bulk segment. Its place is taken when it begins; its payload is written there
//! as it arrives, behind the room for its head; its head comes last. Until then the place holds no record, and
//! where the extent is given up it never does.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};

use super::queue::{Underway, WriteQueue};
use super::start_write_out;
use crate::local::frame::{Header, RecordKind, padding};
use crate::local::position::Position;
use crate::local::record::{ExtentAt, Record};
use crate::local::segment::Pin;
use crate::local::shared::Shared;

/// An extent that has begun. Dropping it gives it up.
pub(crate) struct ExtentWriter {
    shared: Arc<Shared>,
    queue: Arc<WriteQueue>,
    pin: Pin,
    id: u64,
    relocated: bool,
    fields: Vec<u8>,
    /// Where the payload begins in the segment.
    payload_offset: u32,
    capacity: usize,
    /// Payload bytes handed over so far.
    handed: usize,
    /// What was handed over last; everything before it is in the file.
    underway: Option<Underway>,
}

/// The frame's header of an extent.
pub(super) fn header(id: u64, relocated: bool, fields: &[u8], payload_bytes: usize) -> Result<Header> {
    let too_long = |_| Error::new(Reason::Defect, "an extent is too long");
    Ok(Header {
        kind: RecordKind::Extent,
        relocated,
        fields_bytes: u32::try_from(fields.len()).map_err(too_long)?,
        payload_bytes: u32::try_from(payload_bytes).map_err(too_long)?,
        seq: id,
        durable: Position::default(),
    })
}

/// The bytes of a record's fields.
pub(super) fn fields(id: u64) -> Vec<u8> {
    Record::Extent { id }.encode()
}

impl ExtentWriter {
    /// Over a place at `at`, large enough for a record whose payload has `capacity` bytes.
    pub(super) fn over(
        (shared, queue): (Arc<Shared>, Arc<WriteQueue>),
        (pin, at): (Pin, Position),
        (id, relocated): (u64, bool),
        capacity: usize,
    ) -> Result<Self> {
        let fields = fields(id);
        let head_bytes = offset(header(id, relocated, &fields, capacity)?.head_bytes())?;
        Ok(Self {
            shared,
            queue,
            pin,
            id,
            relocated,
            fields,
            payload_offset: at.offset + head_bytes,
            capacity,
            handed: 0,
            underway: None,
        })
    }

    /// Payload bytes handed over so far.
    pub const fn handed(&self) -> usize {
        self.handed
    }

    /// Payload bytes that still fit.
    pub const fn room(&self) -> usize {
        self.capacity - self.handed
    }

    /// Hands over payload to be written, once everything before it is in the file. Where that failed so has
    /// the extent.
    pub async fn append(&mut self, payload: Vec<Bytes>) -> Result<()> {
        let bytes = self.measure(&payload)?;
        self.admit(bytes)?;
        self.settle().await?;
        self.underway = Some(self.submit(self.payload_offset + offset(self.handed)?, payload));
        self.handed += bytes;
        Ok(())
    }

    /// Writes the rest of the payload and the head. `table` has the checksums of all blocks. The extent is not
    /// durable until its segment is synced.
    pub async fn finish(mut self, payload: Vec<Bytes>, table: &[u64]) -> Result<(ExtentAt, Pin)> {
        let payload_bytes = self.handed + self.measure(&payload)?;
        let header = header(self.id, self.relocated, &self.fields, payload_bytes)?;
        self.admit(header.record_bytes() - self.handed)?;
        // The payload stays where it is. The head of a shorter one is shorter, by whole units of alignment, and
        // so the record begins later.
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
        Ok((ExtentAt { id: self.id, at, record_bytes }, self.pin))
    }

    fn submit(&self, offset: u32, pieces: Vec<Bytes>) -> Underway {
        self.queue.submit(&self.shared.io, self.pin.0.clone(), offset, pieces)
    }

    /// Asks whether there is room for what is about to be written.
    fn admit(&self, bytes: usize) -> Result<()> {
        // Compaction has seen to it that there is room for all that it writes.
        if self.relocated { Ok(()) } else { self.shared.space.admit(bytes as u64) }
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
            return Err(Error::new(Reason::Defect, "an extent would leave its place"));
        }
        Ok(bytes)
    }
}

/// A length within a segment.
fn offset(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).map_err(|_| Error::new(Reason::Defect, "an extent is too long"))
}
