//! Reads: of a whole object with one request to the store below, of a range with two or three (its head, an entry of the
//! table, the frames). All must be about the same write: otherwise the read begins again.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{GetRequest, GetResponse, ObjectStore, Select};
use tradewind_core::stored_form::StoredForm;
use tradewind_core::{Address, Body, ByteRange, Context, Generation, Span};

use super::decoder::{DecodePlan, Decoder, SegmentOpener, StoredPosition, StoredRange, corrupt};
use super::keys::Keyring;
use super::segment::{CHUNK_BYTES, ENTRY_BYTES};

/// Both ends of a range are read from the table at once if they are not farther apart.
const MAX_TABLE_READ_BYTES: u64 = 16 << 10;
/// Attempts to read one write of an object that is replaced again and again.
const MAX_ATTEMPTS: usize = 100;

/// Reads objects of the store below.
pub(super) struct Reader<'a> {
    pub inner: &'a Arc<dyn ObjectStore>,
    pub keys: &'a Arc<Keyring>,
    pub context: &'a Context,
    pub address: &'a Address,
}

impl Reader<'_> {
    /// Reads what a request selects of the plain bytes.
    pub async fn read(&self, request: GetRequest) -> Result<GetResponse<Body>> {
        if request.select == Select::Whole {
            return self.read_whole(request).await;
        }
        for _ in 0..MAX_ATTEMPTS {
            if let Some(found) = self.try_read_span(&request).await? {
                return Ok(found);
            }
        }
        Err(Error::new(Reason::Overloaded, "the object was replaced too often while it was read; retry"))
    }

    async fn read_whole(&self, request: GetRequest) -> Result<GetResponse<Body>> {
        let request = GetRequest { stored: true, ..request };
        let mut found = self.inner.get(self.context, self.address, request).await?;
        let Some(stored) = found.info.stored.take() else { return Ok(found) };
        let span = Span::whole(found.info.size);
        if span.length == 0 {
            return Ok(GetResponse { span, body: Body::from_bytes(Bytes::new()), ..found });
        }
        let plan = self.plan(&stored, span)?;
        let body = self.decode(plan.decoder, found.body).await?;
        Ok(GetResponse { span, body, ..found })
    }

    /// Reads a span; `None` if the object was replaced meanwhile.
    async fn try_read_span(&self, request: &GetRequest) -> Result<Option<GetResponse<Body>>> {
        let head = self.inner.head(self.context, self.address, request.clone()).await?;
        let (mut info, span) = (head.info, head.span);
        let Some(stored) = info.stored.take() else {
            // Not the stored bytes: those of an object that was transformed meanwhile have no parts.
            return replaced_as_none(self.inner.get(self.context, self.address, request.clone()).await);
        };
        if span.length == 0 {
            let body = Body::from_bytes(Bytes::new());
            return Ok(Some(GetResponse { info, span, body, observation: head.observation }));
        }
        let DecodePlan { decoder, range } = self.plan(&stored, span)?;
        let Some(stored_span) = self.locate(range, info.generation).await? else { return Ok(None) };
        let Some(found) = self.get_stored(stored_span, info.generation).await? else { return Ok(None) };
        let body = self.decode(decoder, found.body).await?;
        Ok(Some(GetResponse { info, span, body, observation: found.observation }))
    }

    fn plan(&self, stored: &StoredForm, span: Span) -> Result<DecodePlan> {
        let (keys, address, segments) = (self.keys.clone(), self.address.clone(), stored.segments.clone());
        DecodePlan::new(SegmentOpener { keys, address, segments }, span)
    }

    /// The stored bytes of a range, from the table if necessary; `None` if the object was replaced.
    async fn locate(&self, range: StoredRange, generation: Generation) -> Result<Option<Span>> {
        let (mut start_entry, mut end_entry) = (None, None);
        if let (StoredPosition::InTable(start), StoredPosition::InTable(end)) = (range.start, range.end) {
            let length = (end.entry + ENTRY_BYTES).saturating_sub(start.entry);
            if length <= MAX_TABLE_READ_BYTES {
                let span = Span { offset: start.entry, length };
                let Some(entries) = self.read_table(span, generation).await? else { return Ok(None) };
                end_entry = Some(entries.slice(entries.len() - ENTRY_BYTES as usize..));
                start_entry = Some(entries);
            }
        }
        let Some(start) = self.position(range.start, start_entry, generation).await? else { return Ok(None) };
        let Some(end) = self.position(range.end, end_entry, generation).await? else { return Ok(None) };
        let length = end.checked_sub(start).filter(|length| *length > 0);
        let length = length.ok_or_else(|| corrupt("has a damaged table"))?;
        Ok(Some(Span { offset: start, length }))
    }

    /// The offset of a boundary, given its table entry if that was read; `None` if the object was replaced.
    async fn position(
        &self,
        position: StoredPosition,
        entry: Option<Bytes>,
        generation: Generation,
    ) -> Result<Option<u64>> {
        let position = match position {
            StoredPosition::At(offset) => return Ok(Some(offset)),
            StoredPosition::InTable(position) => position,
        };
        if let Some(entry) = entry {
            return position.offset(&entry).map(Some);
        }
        let span = Span { offset: position.entry, length: ENTRY_BYTES };
        let entry = self.read_table(span, generation).await?;
        entry.map(|entry| position.offset(&entry)).transpose()
    }

    /// Reads entries of a table; `None` if the object was replaced.
    async fn read_table(&self, span: Span, generation: Generation) -> Result<Option<Bytes>> {
        let Some(found) = self.get_stored(span, generation).await? else { return Ok(None) };
        let entries = self.context.guard(found.body.collect()).await??;
        match entries.len() as u64 == span.length {
            true => Ok(Some(entries)),
            false => Err(corrupt("has a truncated table")),
        }
    }

    /// Reads stored bytes of one write of the object; `None` if it was replaced.
    async fn get_stored(&self, span: Span, generation: Generation) -> Result<Option<GetResponse<Body>>> {
        let range = ByteRange::Inclusive { first: span.offset, last: span.end() - 1 };
        let request = GetRequest { select: Select::Range(range), stored: true, ..GetRequest::default() };
        let found = replaced_as_none(self.inner.get(self.context, self.address, request).await)?;
        Ok(found.filter(|found| found.info.generation == generation))
    }

    /// The plain body of stored bytes. That of at most one chunk is read here, so that an error fails the request.
    async fn decode(&self, mut decoder: Decoder, mut stored: Body) -> Result<Body> {
        let length = decoder.rest_bytes();
        if length <= CHUNK_BYTES as u64 {
            // A reservation for a piece could hold the memory for which the next read of stored bytes waits.
            let mut pieces = Vec::new();
            while let Some(piece) = next_piece(self.context, &mut decoder, &mut stored).await? {
                pieces.push(piece);
            }
            let plain = match &pieces[..] {
                [piece] => piece.clone(),
                pieces => Bytes::from(pieces.concat()),
            };
            return Ok(Body::from_bytes(reserve(self.context, plain)));
        }
        let context = self.context.clone();
        let pieces = futures::stream::try_unfold((decoder, stored), move |(mut decoder, mut stored)| {
            let context = context.clone();
            async move {
                let piece = next_piece(&context, &mut decoder, &mut stored).await?;
                Ok(piece.map(|piece| (reserve(&context, piece), (decoder, stored))))
            }
        });
        Ok(Body::from_stream(length, pieces))
    }
}

/// The next plain bytes; `None` at the end of the span.
async fn next_piece(context: &Context, decoder: &mut Decoder, stored: &mut Body) -> Result<Option<Bytes>> {
    context.check()?;
    loop {
        if let Some(piece) = decoder.next()? {
            if decoder.rest_bytes() == 0 {
                // Only a table follows. A body that is not read to its end counts as cancelled.
                while let Some(Ok(_)) = stored.next().await {}
            }
            return Ok(Some(piece));
        }
        if decoder.rest_bytes() == 0 {
            return Ok(None);
        }
        let Some(received) = stored.next().await else {
            return Err(corrupt("has fewer stored bytes than its description says"));
        };
        decoder.push(received?);
    }
}

/// Counts plain bytes in the window of the request. Without memory there, they are not counted: waiting could block the
/// read.
pub(crate) fn reserve(context: &Context, plain: Bytes) -> Bytes {
    match context.window.try_reserve(plain.len()) {
        Some(reservation) => reservation.attach(plain),
        None => plain,
    }
}

/// A range that is not within the object any more, or plain bytes of a transformed object, show that the object was
/// replaced.
pub(crate) fn replaced_as_none(found: Result<GetResponse<Body>>) -> Result<Option<GetResponse<Body>>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.reason(), Reason::InvalidRange | Reason::Unsupported) => Ok(None),
        Err(error) => Err(error),
    }
}
