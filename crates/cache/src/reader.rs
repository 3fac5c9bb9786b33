//! The body of a cached object, from its extents: those in memory, those on the SSD (a few are read ahead), and those
//! that are in neither, in runs, from the backing store. All bytes are of one content: if the backing store has another
//! object by then, the body fails.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use tradewind_core::condition::ETagMatch;
use tradewind_core::error::Result;
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::{
    Address, Body, ByteRange, Context, Error, ObjectInfo, ObjectStore, ReadConditions, Reason, Reservation,
    Span,
};

use crate::changes::KeyHash;
use crate::disk::DiskRead;
use crate::extent::{EXTENT_BYTES, FRAME_BYTES};
use crate::fill::{FillBody, Filler};
use crate::head::{ContentId, Head};
use crate::tiers::Tiers;
use crate::write_back::is_dirty_generation;

/// Extents read from the SSD ahead of the one that is delivered.
const MAX_READS_AHEAD: usize = 4;

/// Contents that are being read. The extents of a replaced content are not freed until the read ends.
#[derive(Debug, Default)]
pub(crate) struct Pins(Mutex<HashMap<u64, usize>>);

/// A content that is being read.
pub(crate) struct Pin {
    pins: Arc<Pins>,
    content: ContentId,
}

impl Pins {
    pub fn pin(self: &Arc<Self>, content: ContentId) -> Pin {
        *self.0.lock().entry(content.0).or_default() += 1;
        Pin { pins: self.clone(), content }
    }

    pub fn is_pinned(&self, content: ContentId) -> bool {
        self.0.lock().contains_key(&content.0)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.pins.0.lock();
        if let Some(count) = pins.get_mut(&self.content.0) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.content.0);
            }
        }
    }
}

/// The source of an object: where the extents are that the cache lacks.
#[derive(Clone)]
pub(crate) struct Origin {
    pub store: Arc<dyn ObjectStore>,
    pub context: Context,
    pub address: Address,
    pub hash: KeyHash,
    pub head: Arc<Head>,
    pub tiers: Arc<Tiers>,
    pub pins: Arc<Pins>,
}

impl Origin {
    /// All cached bytes of a short span. Then neither an eviction nor a change of the object ends the body early.
    pub async fn gather(&self, span: Span) -> Gathered {
        let (head, tiers) = (&self.head, &self.tiers);
        let mut pieces = VecDeque::new();
        for number in extents(span) {
            let (bytes, reservation) = match tiers.ram_data(head, number) {
                Some(bytes) => (Some(bytes), None),
                None => {
                    let reservation = self.context.window.try_reserve_leaving(FRAME_BYTES, FRAME_BYTES);
                    let Some(reservation) = reservation else { return Gathered::NoMemory };
                    let bytes = match tiers.start_read(head, number) {
                        Some(read) => tiers.finish_read(head, number, read).await,
                        None => None,
                    };
                    (bytes, Some(reservation))
                }
            };
            let counters = &tiers.counters;
            let counter = if reservation.is_some() { &counters.ssd_bytes } else { &counters.ram_bytes };
            let Some(bytes) = bytes.and_then(|bytes| slice_of_extent(&bytes, head, number, span)) else {
                return Gathered::Missing;
            };
            counter.add(bytes.len() as u64);
            pieces.push_back(GatheredPiece { bytes, _reservation: reservation });
        }
        let stream = futures::stream::iter(pieces.into_iter().map(|piece| Ok(piece.bytes)));
        Gathered::All(Body::from_stream(span.length, stream))
    }

    /// Drops the head: the backing store has another object.
    fn drop_head(&self) {
        let pins = self.pins.clone();
        self.tiers.remove_head(self.hash, move |content| pins.is_pinned(content));
    }

    /// The bytes of `span` that are in the extents of `run`, from the backing store. Fills these extents. Fails with
    /// [`Reason::Conflict`] if the backing store has another object.
    pub async fn open_run(&self, run: Range<u32>, span: Span) -> Result<FillBody> {
        let head = &self.head;
        let wanted = extents_span(&run, head.info.size);
        let select = if wanted == Span::whole(head.info.size) {
            Select::Whole
        } else {
            Select::Range(ByteRange::Inclusive { first: wanted.offset, last: wanted.end() - 1 })
        };
        let if_match = Some(ETagMatch::OneOf(vec![head.info.etag.clone()]));
        let conditions = ReadConditions { if_match, ..ReadConditions::default() };
        let request = GetRequest { select, conditions, ..GetRequest::default() };
        let found = self.store.get(&self.context, &self.address, request).await;
        let found = found.map_err(|e| match e.reason() {
            Reason::PreconditionFailed | Reason::NoSuchKey | Reason::InvalidRange => changed(&self.address),
            _ => e,
        })?;
        if !is_same_object(&found.info, &head.info) || found.span != wanted {
            return Err(changed(&self.address));
        }
        let filler = Filler::new(self.tiers.clone(), head.clone(), wanted);
        let delivered = intersection(wanted, span);
        Ok(FillBody::new(found.body, Some(filler), wanted, delivered, self.tiers.clone()))
    }
}

/// Compares what identifies the bytes of an object. The response to a range may lack the checksums of the whole. When
/// write-back moves an object to its backing store, the object gets another generation, and from a service another time.
pub(crate) fn is_same_object(one: &ObjectInfo, other: &ObjectInfo) -> bool {
    let is_dirty = is_dirty_generation(one.generation) || is_dirty_generation(other.generation);
    one.etag == other.etag
        && one.size == other.size
        && (is_dirty || (one.modified == other.modified && one.version == other.version))
}

fn changed(address: &Address) -> Error {
    let key = address.key.as_str();
    Error::new(Reason::Conflict, format!("key {key:?} was changed while it was read; read it again"))
}

/// See [`Origin::gather`].
pub(crate) enum Gathered {
    All(Body),
    /// An extent was evicted meanwhile.
    Missing,
    /// The window has no memory for extents from the SSD.
    NoMemory,
}

/// A part of a gathered body, with the memory that it occupies.
struct GatheredPiece {
    bytes: Bytes,
    _reservation: Option<Reservation>,
}

/// The extents that hold a span of at least one byte.
pub(crate) fn extents(span: Span) -> Range<u32> {
    let number = |offset: u64| u32::try_from(offset / EXTENT_BYTES as u64).unwrap_or(u32::MAX - 1);
    number(span.offset)..number(span.end() - 1) + 1
}

fn extents_span(extents: &Range<u32>, size: u64) -> Span {
    let offset = u64::from(extents.start) * EXTENT_BYTES as u64;
    let end = (u64::from(extents.end) * EXTENT_BYTES as u64).min(size);
    Span { offset, length: end.saturating_sub(offset) }
}

fn intersection(a: Span, b: Span) -> Span {
    let offset = a.offset.max(b.offset);
    Span { offset, length: a.end().min(b.end()).saturating_sub(offset) }
}

/// See the module's head.
pub(crate) struct CachedReader {
    origin: Origin,
    span: Span,
    /// Extents that are not delivered yet.
    left: Range<u32>,
    ahead: VecDeque<ReadAhead>,
    run: Option<FillBody>,
    run_end: u32,
    _pin: Pin,
}

/// A read from the SSD that began before its turn. The reservation bounds the memory of the request.
struct ReadAhead {
    number: u32,
    read: DiskRead,
    _reservation: Option<Reservation>,
}

impl CachedReader {
    /// A reader of a span of at least one byte.
    pub fn new(origin: Origin, span: Span, pin: Pin) -> Self {
        let left = extents(span);
        let run_end = left.start;
        Self { origin, span, left, ahead: VecDeque::new(), run: None, run_end, _pin: pin }
    }

    /// Turns it into a body.
    pub fn into_body(self) -> Body {
        let length = self.span.length;
        let pieces = futures::stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(reader))),
                Ok(None) => None,
                Err(e) => Some((Err(e), None)),
            }
        });
        Body::from_stream(length, pieces)
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            self.origin.context.check()?;
            if let Some(run) = &mut self.run {
                if let Some(piece) = run.next().await {
                    return piece.map(Some);
                }
                self.run = None;
                self.left.start = self.run_end;
            }
            if self.left.is_empty() {
                return Ok(None);
            }
            let number = self.left.start;
            if let Some(bytes) = self.cached(number).await {
                self.left.start += 1;
                return Ok(Some(bytes));
            }
            let tiers = &self.origin.tiers;
            let content = self.origin.head.content;
            let is_missing = |number: &u32| tiers.locate(content, *number).is_none();
            self.run_end =
                (number + 1..self.left.end).find(|number| !is_missing(number)).unwrap_or(self.left.end);
            self.ahead.clear();
            let opened = self.origin.open_run(number..self.run_end, self.span).await;
            if opened.as_ref().is_err_and(|e| e.reason() == Reason::Conflict) {
                self.origin.drop_head();
            }
            self.run = Some(opened?);
        }
    }

    /// The wanted bytes of an extent, if a tier has it.
    async fn cached(&mut self, number: u32) -> Option<Bytes> {
        let tiers = self.origin.tiers.clone();
        let head = self.origin.head.clone();
        self.ahead.retain(|ahead| ahead.number >= number);
        let started = self.ahead.front().is_some_and(|ahead| ahead.number == number);
        let started = if started { self.ahead.pop_front() } else { None };
        let (bytes, counter) = match tiers.ram_data(&head, number) {
            Some(bytes) => (bytes, &tiers.counters.ram_bytes),
            None => {
                let read = match started {
                    Some(ahead) => ahead.read,
                    None => tiers.start_read(&head, number)?,
                };
                self.read_ahead(number + 1);
                (tiers.finish_read(&head, number, read).await?, &tiers.counters.ssd_bytes)
            }
        };
        let bytes = slice_of_extent(&bytes, &head, number, self.span)?;
        counter.add(bytes.len() as u64);
        Some(bytes)
    }

    /// Begins to read the next extents that are on the SSD, if there is memory for them.
    fn read_ahead(&mut self, from: u32) {
        let tiers = &self.origin.tiers;
        let content = self.origin.head.content;
        let next = self.ahead.back().map_or(from, |last| last.number + 1);
        for number in next..self.left.end.min(from + MAX_READS_AHEAD as u32) {
            if tiers.ram.contains(tiers.fingerprints.data(content, number)) {
                continue;
            }
            let reservation = self.origin.context.window.try_reserve_leaving(FRAME_BYTES, FRAME_BYTES);
            if reservation.is_none() {
                return;
            }
            let Some(read) = tiers.start_read(&self.origin.head, number) else { return };
            self.ahead.push_back(ReadAhead { number, read, _reservation: reservation });
        }
    }
}

/// The bytes of `span` that are in an extent. `None` if the extent does not have the length that it must have.
pub(crate) fn slice_of_extent(bytes: &Bytes, head: &Head, number: u32, span: Span) -> Option<Bytes> {
    let extent = extents_span(&(number..number + 1), head.info.size);
    if bytes.len() as u64 != extent.length {
        return None;
    }
    let wanted = intersection(extent, span);
    let start = usize::try_from(wanted.offset - extent.offset).ok()?;
    let length = usize::try_from(wanted.length).ok()?;
    Some(bytes.slice(start..start + length))
}

#[cfg(test)]
mod tests {
    use tradewind_core::checksum::ChecksumScope;
    use tradewind_core::{ETag, Generation, Metadata, Timestamp};

    use super::*;

    #[test]
    fn extents_of_spans_at_their_borders() {
        let extent = EXTENT_BYTES as u64;
        assert_eq!(extents(Span { offset: 0, length: extent }), 0..1);
        assert_eq!(extents(Span { offset: extent - 1, length: 2 }), 0..2);
        assert_eq!(extents(Span { offset: extent, length: 1 }), 1..2);
        assert_eq!(extents_span(&(1..3), extent * 2 + 5), Span { offset: extent, length: extent + 5 });
    }
    /// A service sets its own time when a dirty object is written back.
    #[test]
    fn dirty_object_is_the_same_with_the_time_of_a_service() {
        let info = |generation: u64, modified: i64, size: u64| ObjectInfo {
            size,
            etag: ETag::from_text("\"tag\""),
            modified: Timestamp::from_millis(modified),
            generation: Generation(generation),
            metadata: Metadata::default(),
            checksums: Vec::new(),
            scope: ChecksumScope::FullObject,
            parts: None,
            version: None,
            stored: None,
        };
        let dirty = 1 << 63 | 7;
        assert!(is_same_object(&info(dirty, 1, 5), &info(3, 2, 5)));
        assert!(is_same_object(&info(3, 2, 5), &info(dirty, 1, 5)));
        assert!(!is_same_object(&info(dirty, 1, 5), &info(3, 2, 6)));
        assert!(!is_same_object(&info(7, 1, 5), &info(3, 2, 5)));
    }
}
