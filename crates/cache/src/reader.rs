//! The body of a cached object, from its extents: those in memory, those on the SSD (neighbours by one request, and a
//! few requests ahead), and those that are in neither, in runs, from the backing store. All bytes are of one content:
//! if the backing store has another object by then, the body fails.

mod opening_run;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tradewind_core::condition::ETagMatch;
use tradewind_core::error::Result;
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::{
    Address, Body, ByteRange, Clock, Context, Error, ObjectInfo, ObjectStore, ReadConditions, Reason,
    Reservation, Span,
};

use self::opening_run::OpeningRun;
use crate::cached::MAX_EXAMINED_EXTENTS;
use crate::changes::KeyHash;
use crate::disk::{DiskRead, MAX_READ_EXTENTS};
use crate::extent::{EXTENT_BYTES, FRAME_BYTES, Place};
use crate::fill::{FillBody, Filler, SharedFills};
use crate::head::Head;
use crate::tiers::{ContentUse, Tier, Tiers};
use crate::write_back::is_dirty_generation;

/// Requests to the SSD ahead of the one that is delivered.
const MAX_READS_AHEAD: usize = 4;

/// Cached extents that a request to the backing store reads again to reach the next missing one: at most 286 KiB cost less
/// than another request.
const MAX_BRIDGED_EXTENTS: u32 = 4;

/// The wait for the backing store before a read begins with its cached slice. An error by then is that of the read.
const MAX_WAIT_FOR_REST: Duration = Duration::from_millis(10);

/// The source of an object: where the extents are that the cache lacks.
#[derive(Clone)]
pub(crate) struct Origin {
    pub store: Arc<dyn ObjectStore>,
    pub context: Context,
    pub address: Address,
    pub hash: KeyHash,
    pub head: Arc<Head>,
    pub tiers: Arc<Tiers>,
    /// Keeps the extents of the content.
    pub content_use: Arc<ContentUse>,
    /// `None` if the object was replaced since its head was found: extents of the content would have no head.
    pub fills: Option<Arc<SharedFills>>,
}

impl Origin {
    /// All cached bytes of a short span. Then neither an eviction nor a change of the object ends the body early.
    pub async fn gather(&self, span: Span) -> Gathered {
        let (head, tiers) = (&self.head, &self.tiers);
        let Range { start: mut number, end } = extents(span);
        let is_in_ram = |number: &u32| tiers.ram.contains(tiers.fingerprints.data(head.content, *number));
        let mut reserved = (number..end).filter(|number| !is_in_ram(number)).count();
        let reservation = self.context.window.try_reserve_leaving(reserved * FRAME_BYTES, FRAME_BYTES);
        let Some(reservation) = reservation.map(Arc::new) else { return Gathered::NoMemory };
        let mut sources = Vec::new();
        // All reads begin before the first one is awaited.
        while number < end {
            if let Some(bytes) = tiers.ram_data(head, number) {
                sources.push(Source::Ram { number, bytes });
                number += 1;
                continue;
            }
            let limit = self.end_of_read(number..end).min(number + u32::try_from(reserved).unwrap_or(0));
            if limit == number {
                // An extent left memory meanwhile.
                return Gathered::NoMemory;
            }
            let Some(read) = tiers.start_read(head, number..limit) else { return Gathered::Missing };
            let (first, count) = (number, read.count());
            reserved -= count;
            number += u32::try_from(count).unwrap_or(0);
            sources.push(Source::Ssd { first, read });
        }
        let is_on_ssd = |source: &Source| matches!(source, Source::Ssd { .. });
        if sources.iter().any(is_on_ssd) {
            for source in &sources {
                if let Source::Ram { number, .. } = source {
                    tiers.touch_on_ssd(head, *number);
                }
            }
        }
        let mut pieces = VecDeque::new();
        for source in sources {
            let (first, found, counter) = match source {
                Source::Ram { number, bytes } => (number, vec![Some(bytes)], &tiers.counters.ram_bytes),
                Source::Ssd { first, read } => (
                    first,
                    tiers.finish_read(head, first, read, self.fills.is_some()).await,
                    &tiers.counters.ssd_bytes,
                ),
            };
            for (number, bytes) in (first..).zip(found) {
                let Some(bytes) = bytes.and_then(|bytes| slice_of_extent(&bytes, head, number, span)) else {
                    return Gathered::Missing;
                };
                counter.add(bytes.len() as u64);
                pieces.push_back(GatheredPiece { bytes, _reservation: reservation.clone() });
            }
        }
        let stream = futures::stream::iter(pieces.into_iter().map(|piece| Ok(piece.bytes)));
        Gathered::All(Body::from_stream(span.length, stream))
    }

    /// The end of a read from the SSD that begins with the first of these extents: the next one in memory, at most
    /// [`MAX_READ_EXTENTS`] on.
    fn end_of_read(&self, numbers: Range<u32>) -> u32 {
        let (tiers, content) = (&self.tiers, self.head.content);
        let is_in_ram = |number: &u32| tiers.ram.contains(tiers.fingerprints.data(content, *number));
        let end = numbers.end.min(numbers.start.saturating_add(MAX_READ_EXTENTS as u32));
        (numbers.start + 1..end).find(is_in_ram).unwrap_or(end)
    }

    /// Begins to read the first of these extents that one request to the SSD reads, as far as there is memory.
    fn start_read(&self, numbers: Range<u32>) -> Started {
        let first = numbers.start;
        let end = self.end_of_read(numbers);
        let mut count = self.tiers.count_neighbours(&self.head, first..end);
        while count > 0 {
            if let Some(reservation) =
                self.context.window.try_reserve_leaving(count * FRAME_BYTES, FRAME_BYTES)
            {
                let last = first + u32::try_from(count).unwrap_or(0);
                return self.start_reserved(first..last, Some(reservation));
            }
            if count == 1 {
                return Started::NoMemory;
            }
            count = count.div_ceil(2);
        }
        Started::Missing
    }

    fn start_reserved(&self, numbers: Range<u32>, reservation: Option<Reservation>) -> Started {
        let first = numbers.start;
        match self.tiers.start_read(&self.head, numbers) {
            Some(read) => {
                let numbers = first..first + u32::try_from(read.count()).unwrap_or(0);
                Started::Read(StartedRead { numbers, read, reservation })
            }
            None => Started::Missing,
        }
    }

    /// Drops the head: the backing store has another object.
    fn drop_head(&self) {
        self.tiers.remove_head(self.hash);
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
        let new_filler = |fills| Filler::new(self.content_use.clone(), wanted, Some(Arc::clone(fills)));
        let filler = self.fills.as_ref().map(new_filler);
        let delivered = intersection(wanted, span);
        Ok(FillBody::new(found.body, filler, wanted, delivered, self.tiers.clone()))
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

/// A part of a gathered body, with the memory of all of it.
struct GatheredPiece {
    bytes: Bytes,
    _reservation: Arc<Reservation>,
}

/// Where a part of a gathered body comes from.
enum Source {
    Ram { number: u32, bytes: Bytes },
    Ssd { first: u32, read: DiskRead },
}

/// See [`Origin::start_read`].
enum Started {
    Read(StartedRead),
    /// The SSD does not have the first extent.
    Missing,
    /// The window has no memory for it.
    NoMemory,
}

/// A read of extents from the SSD. The reservation bounds the memory of the request.
struct StartedRead {
    numbers: Range<u32>,
    read: DiskRead,
    reservation: Option<Reservation>,
}

/// The extents of a finished read that are not delivered yet.
struct FinishedRead {
    next: u32,
    extents: VecDeque<Option<Bytes>>,
    _reservation: Option<Reservation>,
}

/// The extents that hold a span; none for an empty span.
pub(crate) fn extents(span: Span) -> Range<u32> {
    let number = |offset: u64| u32::try_from(offset / EXTENT_BYTES as u64).unwrap_or(u32::MAX - 1);
    let first = number(span.offset);
    if span.length == 0 { first..first } else { first..number(span.end() - 1) + 1 }
}

pub(crate) fn extents_span(extents: &Range<u32>, size: u64) -> Span {
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
    /// Reads that began before their turn.
    ahead: VecDeque<StartedRead>,
    finished: Option<FinishedRead>,
    run: Option<FillBody>,
    run_end: u32,
    /// The request for all extents from its first one on.
    rest: Option<OpeningRun>,
}

impl CachedReader {
    /// A reader of a span.
    pub fn new(origin: Origin, span: Span) -> Self {
        let left = extents(span);
        let run_end = left.start;
        Self { origin, span, left, ahead: VecDeque::new(), finished: None, run: None, run_end, rest: None }
    }

    /// Requests the extents from `first` on from the backing store, by one request, and waits for the response for up to
    /// [`MAX_WAIT_FOR_REST`]. Fails as [`Origin::open_run`] if the response is an error by then.
    pub async fn with_rest_from(self, first: u32, clock: &dyn Clock) -> Result<Self> {
        let (origin, run) = (self.origin.clone(), first..self.left.end);
        let rest = OpeningRun::start(origin, run, self.span, clock, MAX_WAIT_FOR_REST).await?;
        Ok(Self { rest: Some(rest), ..self })
    }

    /// The end of the extents that precede the rest.
    fn cached_end(&self) -> u32 {
        self.rest.as_ref().map_or(self.left.end, |rest| rest.first)
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
            if let Some(rest) = self.rest.take_if(|rest| rest.first <= number) {
                self.begin_run(self.left.end, rest.finish().await)?;
                continue;
            }
            if let Some(bytes) = self.cached(number).await {
                self.left.start += 1;
                return Ok(Some(bytes));
            }
            // Evicted before its turn. The request for the rest holds a connection that the next one may need.
            let is_rest_requested = self.rest.take().is_some();
            let end = if is_rest_requested { self.left.end } else { self.end_of_run(number) };
            self.ahead.clear();
            self.finished = None;
            let opened = self.origin.open_run(number..end, self.span).await;
            self.begin_run(end, opened)?;
        }
    }

    /// The end of a run that begins with an extent that could not be read: the next ones that a tier can read, if they
    /// are the last ones or more than [`MAX_BRIDGED_EXTENTS`]. If the SSD failed to read an extent that it has, only
    /// memory counts: further errors would cost a request each.
    pub(crate) fn end_of_run(&self, first: u32) -> u32 {
        let (tiers, head) = (&self.origin.tiers, &self.origin.head);
        let place = tiers.place(head, first);
        let locate = |number: u32| tiers.locate_place(Place { number, ..place }, head.content);
        let is_ssd_usable = locate(first).is_none();
        let is_readable = |number: &u32| match locate(*number) {
            Some(Tier::Ram) => true,
            Some(Tier::Ssd) => is_ssd_usable,
            None => false,
        };
        let mut end = first + 1;
        // One request per 4,096 missing extents costs nothing; a look at all of a huge object would block the thread.
        for number in first + 1..self.left.end.min(first.saturating_add(MAX_EXAMINED_EXTENTS)) {
            if !is_readable(&number) {
                end = number + 1;
            } else if number - end == MAX_BRIDGED_EXTENTS {
                break;
            }
        }
        end
    }

    /// Goes on with a run that ends before the extent `end`.
    fn begin_run(&mut self, end: u32, opened: Result<FillBody>) -> Result<()> {
        if opened.as_ref().is_err_and(|e| e.reason() == Reason::Conflict) {
            self.origin.drop_head();
        }
        self.run = Some(opened?);
        self.run_end = end;
        Ok(())
    }

    /// The wanted bytes of an extent, if a tier has it.
    async fn cached(&mut self, number: u32) -> Option<Bytes> {
        let tiers = self.origin.tiers.clone();
        let head = self.origin.head.clone();
        let (bytes, counter) = match self.take_finished(number) {
            Some(found) => (found?, &tiers.counters.ssd_bytes),
            None => match tiers.ram_data(&head, number) {
                Some(bytes) => {
                    tiers.touch_on_ssd(&head, number);
                    (bytes, &tiers.counters.ram_bytes)
                }
                None => {
                    let StartedRead { numbers, read, reservation } = self.started(number)?;
                    self.read_ahead(numbers.end);
                    let may_fill = self.origin.fills.is_some();
                    let extents = tiers.finish_read(&head, numbers.start, read, may_fill).await.into();
                    self.finished =
                        Some(FinishedRead { next: numbers.start, extents, _reservation: reservation });
                    (self.take_finished(number)??, &tiers.counters.ssd_bytes)
                }
            },
        };
        let bytes = slice_of_extent(&bytes, &head, number, self.span)?;
        counter.add(bytes.len() as u64);
        Some(bytes)
    }

    /// An extent of the finished read, which is `None` if it was not there after all. `None` if the read did not have
    /// it.
    fn take_finished(&mut self, number: u32) -> Option<Option<Bytes>> {
        let finished = self.finished.as_mut()?;
        let mut found = None;
        while finished.next <= number && !finished.extents.is_empty() {
            let bytes = finished.extents.pop_front()?;
            found = (finished.next == number).then_some(bytes);
            finished.next += 1;
        }
        if finished.extents.is_empty() {
            self.finished = None;
        }
        found
    }

    /// The read of an extent, which may have begun ahead. Without memory, one of this extent alone.
    fn started(&mut self, number: u32) -> Option<StartedRead> {
        self.ahead.retain(|ahead| ahead.numbers.end > number);
        if self.ahead.front().is_some_and(|ahead| ahead.numbers.contains(&number)) {
            return self.ahead.pop_front();
        }
        let started = match self.origin.start_read(number..self.cached_end()) {
            Started::NoMemory => self.origin.start_reserved(number..number + 1, None),
            started => started,
        };
        match started {
            Started::Read(read) => Some(read),
            Started::Missing | Started::NoMemory => None,
        }
    }

    /// Begins to read the next extents that are on the SSD, if there is memory for them.
    fn read_ahead(&mut self, from: u32) {
        let (tiers, content) = (self.origin.tiers.clone(), self.origin.head.content);
        let mut next = self.ahead.back().map_or(from, |last| last.numbers.end.max(from));
        let cached_end = self.cached_end();
        let end = cached_end.min(from.saturating_add(MAX_READ_EXTENTS as u32));
        while next < end && self.ahead.len() < MAX_READS_AHEAD {
            if tiers.ram.contains(tiers.fingerprints.data(content, next)) {
                next += 1;
                continue;
            }
            let Started::Read(read) = self.origin.start_read(next..cached_end) else { return };
            next = read.numbers.end;
            self.ahead.push_back(read);
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
        assert_eq!(extents(Span::whole(0)), 0..0);
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
