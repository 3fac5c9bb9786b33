//! Reading: from an index entry to verified bytes. Every head and every block is verified before any of its bytes is
//! returned. A piece that the page cache has is read on the calling task, any other on an I/O thread. On a file system
//! without non-blocking reads, every piece is read on the calling task.

mod extents;

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartInfo, PartNumber};
use tradewind_core::object::{Generation, ObjectInfo};
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::stored_form::{StoredForm, StoredSegment, needs_layer};
use tradewind_core::{Address, Body, Context, DeviceGate, Observation, Reservation, Span, Versioning};

use self::extents::ExtentBody;
use super::buffer_pool::PooledBuffer;
use super::current_version::{find_version, newest_other};
use super::frame::{BLOCK_BYTES, RecordHeader, RecordKind};
use super::index::IndexSnapshot;
use super::index::entries::ObjectEntry;
use super::index::keys;
use super::open_store::OpenStore;
use super::page_cache::is_cached;
use super::position::Position;
use super::record::{BucketId, Object, ObjectContent, PartSummary, Record, TransformedBytes, VersionSlot};
use super::segment::{Segment, SegmentMap};

/// Maximum payload bytes of one piece of a body.
const MAX_PIECE_BYTES: usize = 256 << 10;
/// Maximum lookups of an object while compaction moves its record between the lookups of its entry and of its segment.
const MAX_LOOKUPS: usize = 100;

/// An object's record, read and verified.
pub(super) struct ObjectRecord {
    pub seq: u64,
    pub object: Arc<Object>,
    /// The object's bytes if they were requested and the object is inline.
    pub payload: Option<Bytes>,
    /// The checksums of the payload's blocks; empty if the object is in extents.
    pub block_crcs: Vec<u64>,
}

impl OpenStore {
    /// Looks up the entry of an object and the segment of its record in the current index.
    fn locate(&self, address: &Address) -> Result<(ObjectEntry, Arc<Segment>)> {
        let bucket = self.state.bucket_id(address.bucket.as_str())?;
        let mut missing_location = None;
        for _ in 0..MAX_LOOKUPS {
            let current = match address.version {
                None => self.state.index.object(&keys::object(bucket, address.key.as_str()))?,
                Some(_) => None,
            };
            let entry = match current {
                Some(value) => ObjectEntry::decode(&value)?,
                // A version may move between its two places: only a snapshot shows it at exactly one.
                None => find_in_snapshot(&self.state.index.snapshot(), address, bucket)?,
            };
            match self.state.segments.get(entry.location.position.segment) {
                Some(segment) => return Ok((entry, segment)),
                // Compaction moved the record and removed its segment after the index was read: the next lookup finds
                // another location. The same location missing twice is damage.
                None if missing_location.replace(entry.location) == Some(entry.location) => {
                    return Err(corrupt(entry.location.position, "its segment is missing"));
                }
                None => {}
            }
        }
        Err(Error::new(Reason::Overloaded, "the object moved too often while it was looked up; retry"))
    }

    /// Like [`locate`](Self::locate), but in a snapshot, in which no record moves.
    fn locate_in(&self, snapshot: &StoreSnapshot, address: &Address) -> Result<(ObjectEntry, Arc<Segment>)> {
        let bucket = self.state.bucket_id(address.bucket.as_str())?;
        let entry = find_in_snapshot(&snapshot.index, address, bucket)?;
        let position = entry.location.position;
        let segment = snapshot.segments.get(&position.segment).cloned();
        segment.map(|segment| (entry, segment)).ok_or_else(|| corrupt(position, "its segment is missing"))
    }

    /// Reads an object's record, with its payload if `with_payload` is set and the object is inline.
    pub(super) async fn object(
        &self,
        context: &Context,
        address: &Address,
        with_payload: bool,
    ) -> Result<ObjectRecord> {
        let (entry, segment) = self.locate(address)?;
        self.read_object_record(context, address, &segment, &entry, with_payload).await
    }

    /// Reads the record of an object that was located.
    async fn read_object_record(
        &self,
        context: &Context,
        address: &Address,
        segment: &Arc<Segment>,
        entry: &ObjectEntry,
        with_payload: bool,
    ) -> Result<ObjectRecord> {
        let position = entry.location.position;
        let cached =
            if entry.in_extents { self.state.manifests.get(position, entry.head_bytes) } else { None };
        if let Some(object) = cached.filter(|object| object.key == address.key.as_str()) {
            return Ok(ObjectRecord { seq: entry.seq, object, payload: None, block_crcs: Vec::new() });
        }
        let head_bytes = entry.head_bytes as usize;
        let has_payload = with_payload && !entry.in_extents;
        // The index has the size that clients see, which is not that of the payload if a layer transformed it.
        let read_bytes =
            if has_payload { (entry.location.record_bytes as usize).max(head_bytes) } else { head_bytes };
        // A head is not returned to a consumer that would pace its reads: it waits for no other buffer of the request.
        let reservation = match has_payload {
            true => self.reserve_paced(context, read_bytes).await?,
            false => context.window.reserve_unpaced(read_bytes),
        };
        let bytes = self.read(context, segment, position.offset.into(), read_bytes, reservation).await?;
        let (header, head) = RecordHeader::decode(self.state.layout.salt, position, &bytes)
            .map_err(|_| corrupt(position, "its head is damaged"))?;
        if header.kind != RecordKind::Object {
            return Err(corrupt(position, "it is not an object"));
        }
        let Record::Object(object) = Record::decode(header.kind, head.fields)? else {
            return Err(corrupt(position, "it is not an object"));
        };
        if object.key != address.key.as_str() {
            return Err(corrupt(position, "it is of another key"));
        }
        let payload_end = head_bytes + header.payload_bytes as usize;
        if has_payload {
            let payload = bytes.get(head_bytes..payload_end);
            let payload = payload.ok_or_else(|| corrupt(position, "its data is incomplete"))?;
            for (index, block) in payload.chunks(BLOCK_BYTES).enumerate() {
                if crc64nvme(block) != head.block_crc(index) {
                    return Err(corrupt(position, "its data is damaged"));
                }
            }
        }
        let block_crcs = head.block_crcs();
        let payload = has_payload.then(|| bytes.slice(head_bytes..payload_end));
        let object = Arc::new(*object);
        if entry.in_extents {
            self.state.manifests.put(position, entry.head_bytes, &object);
        }
        Ok(ObjectRecord { seq: header.seq, object, payload, block_crcs })
    }

    /// Waits until the request's own buffers leave room in its window for the next bytes of a body. A read larger than the
    /// window takes all of the window; the excess is not accounted.
    pub(super) async fn reserve_paced(&self, context: &Context, length: usize) -> Result<Reservation> {
        context.guard(context.window.reserve_own(length)).await
    }

    /// Reads bytes of a segment into memory of the reservation. A read that needs the device, or may start a read-ahead of the
    /// kernel, enters its gate first.
    pub(super) async fn read(
        &self,
        context: &Context,
        segment: &Arc<Segment>,
        offset: u64,
        length: usize,
        reservation: Reservation,
    ) -> Result<Bytes> {
        let gate = context.device_gate.as_ref();
        // A non-blocking read of what the page cache lacks starts a read of the device, so it is not attempted before.
        let may_pass =
            |gate: &dyn DeviceGate| gate.passes_cached_reads() && is_cached(&segment.file, offset, length);
        let gate_ahead = gate.filter(|gate| !may_pass(&***gate));
        if let Some(gate) = gate_ahead {
            gate.enter().await?;
        }
        let mut buffer = self.state.buffers.take(length);
        self.state.io.count_read(length);
        let buffer = match self.state.io.read_nowait(&segment.file, buffer.as_mut(), offset) {
            Some(result) => result.map(|()| buffer),
            None => {
                if let Some(gate) = gate.filter(|_| gate_ahead.is_none()) {
                    gate.enter().await?;
                }
                context.guard(self.read_on_io_thread(segment, buffer, offset)).await?
            }
        }?;
        Ok(reservation.attach(buffer))
    }

    async fn read_on_io_thread(
        &self,
        segment: &Arc<Segment>,
        mut buffer: PooledBuffer,
        offset: u64,
    ) -> Result<PooledBuffer> {
        let segment = segment.clone();
        let read_all = move || {
            std::os::unix::fs::FileExt::read_exact_at(&segment.file, buffer.as_mut(), offset)
                .map_err(|e| super::io_threads::io_error("a segment could not be read", e))?;
            Ok(buffer)
        };
        self.state.io.run(read_all).await
    }

    /// Opens an object for reading.
    pub(super) async fn open_object(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        context.check()?;
        let started = self.state.clock.now();
        let (record, snapshot) = loop {
            let (entry, segment) = self.locate(address)?;
            if !entry.in_extents {
                break (self.read_object_record(context, address, &segment, &entry, true).await?, None);
            }
            // The extents are located and read in one snapshot, because compaction may move them. The object is located
            // again in the snapshot, where it may have become inline.
            let snapshot = StoreSnapshot::capture(self);
            let (entry, segment) = self.locate_in(&snapshot, address)?;
            if entry.in_extents {
                let record = self.read_object_record(context, address, &segment, &entry, false).await?;
                break (record, Some(snapshot));
            }
        };
        let object = &record.object;
        request.conditions.check(&object.etag, object.modified)?;
        let span = match object.is_transformed() {
            false => select(object, request.select)?,
            true if request.stored => select_stored(object, request.select)?,
            true => return Err(needs_layer(address.key.as_str())),
        };
        let body = match (&object.content, record.payload, snapshot) {
            (ObjectContent::Inline, Some(payload), _) => Body::from_bytes(slice(&payload, span)?),
            (ObjectContent::Extents { runs, .. }, _, Some(snapshot)) => {
                ExtentBody::new(self.this(), context.clone(), snapshot, runs, span).into_body()
            }
            _ => {
                return Err(Error::new(
                    Reason::Defect,
                    "the index and the record disagree on where the bytes are",
                ));
            }
        };
        let observation = Observation {
            first_byte: self.state.clock.now().saturating_sub(started),
            body_bytes: span.length,
            ..Observation::default()
        };
        let versioning = self.state.versioning(address.bucket.as_str())?;
        Ok(GetResponse { info: object_info(record.object, record.seq, versioning)?, span, body, observation })
    }

    /// Like [`open_object`](Self::open_object), without the bytes.
    pub(super) async fn head_object(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        context.check()?;
        let started = self.state.clock.now();
        let record = self.object(context, address, false).await?;
        request.conditions.check(&record.object.etag, record.object.modified)?;
        let span = select(&record.object, request.select)?;
        let first_byte = self.state.clock.now().saturating_sub(started);
        let observation = Observation { first_byte, ..Observation::default() };
        let versioning = self.state.versioning(address.bucket.as_str())?;
        Ok(GetResponse {
            info: object_info(record.object, record.seq, versioning)?,
            span,
            body: (),
            observation,
        })
    }
}

/// A snapshot of the index together with the segments to which it refers. While it is held, all records in it can be
/// read, even if compaction removes their segments.
pub(super) struct StoreSnapshot {
    pub index: IndexSnapshot,
    pub segments: Arc<std::collections::HashMap<u32, Arc<Segment>>>,
}

impl StoreSnapshot {
    pub fn capture(store: &OpenStore) -> Self {
        let map: &SegmentMap = &store.state.segments;
        loop {
            let removals_before = map.removals();
            let index = store.state.index.snapshot();
            let segments = map.all();
            // A segment removed in between may be missing although the index snapshot refers to it.
            if map.removals() == removals_before {
                return Self { index, segments };
            }
        }
    }
}

/// The port's description of an object. Copies the fields only if the manifest cache shares the object.
pub(super) fn object_info(object: Arc<Object>, seq: u64, versioning: Versioning) -> Result<ObjectInfo> {
    let version = (versioning != Versioning::Off).then(|| object.slot(seq).id());
    let parts = u32::try_from(object.parts.len()).ok().filter(|parts| *parts > 0);
    let (size, modified, scope, generation) = (object.size, object.modified, object.scope, Generation(seq));
    let stored = stored_form(&object)?;
    let (etag, metadata, checksums) = match Arc::try_unwrap(object) {
        Ok(object) => (object.etag, object.metadata, object.checksums),
        Err(shared) => (shared.etag.clone(), shared.metadata.clone(), shared.checksums.clone()),
    };
    Ok(ObjectInfo { size, etag, modified, generation, metadata, checksums, scope, parts, version, stored })
}

/// The stored form of an object; `None` if its bytes are not transformed.
pub(super) fn stored_form(object: &Object) -> Result<Option<StoredForm>> {
    if let Some(TransformedBytes { size, description }) = &object.transformed {
        let (plain_bytes, stored_bytes, description) = (object.size, *size, description.clone());
        let segment = StoredSegment { part: None, plain_bytes, stored_bytes, description };
        return Ok(Some(StoredForm { segments: [segment].into() }));
    }
    if !object.is_transformed() {
        return Ok(None);
    }
    let segment = |part: &PartSummary| part_segment(part.number, part.size, part.transformed.as_ref());
    Ok(Some(StoredForm { segments: object.parts.iter().map(segment).collect::<Result<_>>()? }))
}

/// The stored form of a part of `plain_bytes`. Bytes that are not transformed have an empty description.
pub(super) fn part_segment(
    number: u16,
    plain_bytes: u64,
    transformed: Option<&TransformedBytes>,
) -> Result<StoredSegment> {
    Ok(StoredSegment {
        part: Some(PartNumber::new(number.into())?),
        plain_bytes,
        stored_bytes: transformed.map_or(plain_bytes, |transformed| transformed.size),
        description: transformed.map(|transformed| transformed.description.clone()).unwrap_or_default(),
    })
}

/// The stored bytes that a request selects.
fn select_stored(object: &Object, select: Select) -> Result<Span> {
    match select {
        Select::Whole => Ok(Span::whole(object.stored_bytes())),
        Select::Range(range) => range.resolve(object.stored_bytes()),
        Select::Part(_) => Err(Error::new(Reason::Defect, "a part of stored bytes was requested")),
    }
}

/// The entry of an object or version in a snapshot.
fn find_in_snapshot(snapshot: &IndexSnapshot, address: &Address, bucket: BucketId) -> Result<ObjectEntry> {
    let key = address.key.as_str();
    let Some(version) = &address.version else {
        return match snapshot.get(&keys::object(bucket, key))? {
            Some(value) => ObjectEntry::decode(&value),
            None => Err(missing_object(snapshot, bucket, key)?),
        };
    };
    version.check_numbered()?;
    let missing = || Error::no_such_version(key, version);
    let slot = VersionSlot::from_id(version).ok_or_else(missing)?;
    let entry = find_version(snapshot, bucket, key, slot)?.found.ok_or_else(missing)?.entry;
    if entry.is_delete_marker {
        return Err(Error::is_a_delete_marker(key, version.clone(), Some(entry.modified)));
    }
    Ok(entry)
}

/// The error of a key without a current object; it names the delete marker, if there is one.
fn missing_object(snapshot: &IndexSnapshot, bucket: BucketId, key: &str) -> Result<Error> {
    Ok(match newest_other(snapshot, bucket, key, None)? {
        Some(newest) => Error::deleted(key, newest.entry.slot.id()),
        None => Error::no_such_key(key),
    })
}

/// The bytes that a request selects.
fn select(object: &Object, select: Select) -> Result<Span> {
    match select {
        Select::Whole => Ok(Span::whole(object.size)),
        Select::Range(range) => range.resolve(object.size),
        Select::Part(number) if object.parts.is_empty() && number.get() == 1 => Ok(Span::whole(object.size)),
        Select::Part(number) => {
            let mut offset = 0;
            for part in &object.parts {
                if part.number == number.get() {
                    return Ok(Span { offset, length: part.size });
                }
                offset += part.size;
            }
            Err(Error::for_client(Reason::InvalidRange, format!("the object has no part {}", number.get())))
        }
    }
}

/// At most `limit` parts of an object after `after`, and true if there are more.
pub(super) fn object_parts(
    object: &Object,
    after: Option<PartNumber>,
    limit: usize,
) -> Result<(Vec<PartInfo>, bool)> {
    let is_after = |number: u16| after.is_none_or(|after| number > after.get());
    let mut parts = Vec::new();
    for part in object.parts.iter().filter(|part| is_after(part.number)) {
        if parts.len() == limit {
            return Ok((parts, true));
        }
        parts.push(PartInfo {
            number: PartNumber::new(part.number.into())?,
            size: part.size,
            etag: part.etag.clone(),
            modified: Some(object.modified),
            checksums: part.checksums.clone(),
        });
    }
    Ok((parts, false))
}

fn slice(payload: &Bytes, span: Span) -> Result<Bytes> {
    let (from, to) = (to_usize(span.offset)?, to_usize(span.end())?);
    if to > payload.len() {
        return Err(Error::new(Reason::CorruptData, "the object's record is shorter than the object"));
    }
    Ok(payload.slice(from..to))
}

pub(super) fn to_usize(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::new(Reason::Defect, "a length does not fit into memory"))
}

/// The error of a damaged or missing record.
pub(super) fn corrupt(position: Position, why: &str) -> Error {
    Error::new(Reason::CorruptData, format!("the record at {position} cannot be served: {why}"))
}
