//! One batch of changes: its records, the state after them, and how they become durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};

use super::active_segment::ActiveSegment;
use crate::local::apply::{LocatedRecord, apply};
use crate::local::frame::{BatchRange, MAX_FIELDS_BYTES, RecordHeader, padding, seal_head};
use crate::local::index::entries::{Coverage, ID_MARGIN};
use crate::local::index::{IndexChanges, keys};
use crate::local::io_threads::io_error;
use crate::local::position::Position;
use crate::local::record::{Bucket, BucketId, Record};
use crate::local::segment::{Segment, SegmentKind, sync_failed};
use crate::local::store_state::StoreState;

/// The end of the log and the active segment. Owned by the committer's thread.
pub(crate) struct LogWriter {
    active: Option<ActiveSegment>,
    /// Every record before this position is in the index.
    covered_end: Position,
    /// Every record before this position is durable, or voided by a durable record. Lower than `covered_end` only after
    /// an open with pending voids, until they are written.
    durable_end: Position,
    /// Bytes written to the log since the last checkpoint of the index.
    uncheckpointed_bytes: u64,
    next_bucket: BucketId,
}

impl LogWriter {
    /// A writer that starts a new segment with its first batch: nothing is ever appended after a tail that a crash
    /// may have torn.
    pub const fn new(covered_end: Position, durable_end: Position, next_bucket: BucketId) -> Self {
        Self { active: None, covered_end, durable_end, uncheckpointed_bytes: 0, next_bucket }
    }

    /// Starts a batch.
    pub fn begin_batch<'a>(&'a mut self, state: &'a StoreState) -> Batch<'a> {
        let begin = self.active.as_ref().map_or(0, |active| active.segment().bytes());
        Batch {
            begin,
            end: begin,
            buffers: Vec::new(),
            heads: Vec::new(),
            index_changes: state.index.changes(),
            buckets: Vec::new(),
            next_bucket: self.next_bucket,
            durable_end: self.durable_end,
            may_use_reserve: false,
            log: self,
            state,
        }
    }

    fn segment_for_batch(&mut self, state: &StoreState) -> Result<Arc<Segment>> {
        if let Some(active) = &self.active
            && active.segment().bytes() < state.options.segment_bytes
        {
            return Ok(active.segment().clone());
        }
        if let Some(full) = self.active.take() {
            full.seal();
        }
        let segment = state.create_segment(SegmentKind::Log)?;
        self.active = Some(ActiveSegment::new(segment.clone()));
        Ok(segment)
    }

    /// Drops the zeros after the log. No batch may follow.
    pub fn close(mut self) {
        if let Some(active) = &mut self.active {
            active.drop_zeros();
        }
    }
}

/// A batch under construction.
pub(crate) struct Batch<'a> {
    pub state: &'a StoreState,
    /// The index as it will be after this batch.
    pub index_changes: IndexChanges<'a>,
    log: &'a mut LogWriter,
    /// Offset in the active segment at which the batch begins.
    begin: u32,
    /// Offset in the active segment at which the batch ends so far.
    end: u32,
    /// The bytes of the batch in order. Each record's head is an empty placeholder until it is sealed.
    buffers: Vec<Bytes>,
    /// The head of each record, sealed when the batch is complete.
    heads: Vec<UnsealedHead>,
    buckets: Vec<BucketChange>,
    next_bucket: BucketId,
    /// See [`LogWriter::durable_end`].
    durable_end: Position,
    /// True if the change being decided frees space in the end, and may use the reserve for that.
    may_use_reserve: bool,
}

/// A head without batch range and checksum: the end of the batch is not known yet.
struct UnsealedHead {
    position: Position,
    bytes: Vec<u8>,
    /// Index of the head's placeholder in [`Batch::buffers`].
    buffer_index: usize,
}

enum BucketChange {
    Written(Bucket),
    Deleted(String),
}

impl Batch<'_> {
    /// Bytes of the records so far.
    pub const fn bytes(&self) -> usize {
        (self.end - self.begin) as usize
    }

    /// Starts the next change. Returns the number of records before it.
    pub const fn begin_change(&mut self) -> usize {
        self.may_use_reserve = false;
        self.record_count()
    }

    /// Number of records so far.
    pub const fn record_count(&self) -> usize {
        self.heads.len()
    }

    /// Allocates a seq.
    pub fn next_id(&self) -> u64 {
        self.state.next_id.fetch_add(1, Ordering::AcqRel)
    }

    /// The bucket in the state after this batch.
    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        for change in self.buckets.iter().rev() {
            match change {
                BucketChange::Written(bucket) if bucket.name == name => return Ok(bucket.clone()),
                BucketChange::Deleted(deleted) if deleted == name => return Err(Error::no_such_bucket(name)),
                _ => {}
            }
        }
        self.state.bucket(name)
    }

    /// Creates a bucket and assigns its number.
    pub fn create_bucket(&mut self, mut bucket: Bucket) -> Result<()> {
        bucket.id = self.next_bucket;
        self.next_bucket += 1;
        self.rewrite_bucket(bucket)
    }

    /// Writes the record of an existing bucket again.
    pub fn rewrite_bucket(&mut self, bucket: Bucket) -> Result<()> {
        let seq = self.next_id();
        self.append(&Record::BucketCreated(bucket.clone()), seq)?;
        self.buckets.push(BucketChange::Written(bucket));
        Ok(())
    }

    /// Removes a bucket.
    pub fn delete_bucket(&mut self, bucket: Bucket) -> Result<()> {
        let seq = self.next_id();
        self.append(&Record::BucketDeleted { id: bucket.id }, seq)?;
        self.buckets.push(BucketChange::Deleted(bucket.name));
        Ok(())
    }

    /// Allows the current change to use the reserved space, because it frees space in the end.
    pub fn allow_reserve(&mut self) {
        self.may_use_reserve = true;
    }

    /// Adds a record without payload.
    pub fn append(&mut self, record: &Record, seq: u64) -> Result<()> {
        self.append_with_payload(record, seq, &[], &[])
    }

    /// Adds a record and applies it to the state. If a change fails after adding a record, the whole batch fails.
    pub fn append_with_payload(
        &mut self,
        record: &Record,
        seq: u64,
        payload: &[Bytes],
        block_crcs: &[u64],
    ) -> Result<()> {
        self.append_fields(record, &record.encode(), seq, false, payload, block_crcs)
    }

    /// Adds a copy of a record with exactly the original fields.
    pub fn append_copy(
        &mut self,
        record: &Record,
        fields: &[u8],
        seq: u64,
        payload: &Bytes,
        block_crcs: &[u64],
    ) -> Result<()> {
        self.append_fields(record, fields, seq, true, std::slice::from_ref(payload), block_crcs)
    }

    fn append_fields(
        &mut self,
        record: &Record,
        fields: &[u8],
        seq: u64,
        is_relocated: bool,
        payload: &[Bytes],
        block_crcs: &[u64],
    ) -> Result<()> {
        let payload_bytes: usize = payload.iter().map(Bytes::len).sum();
        let too_long =
            |_| Error::for_client(Reason::EntityTooLarge, "the object's metadata or part list is too long");
        let header = RecordHeader {
            kind: record.kind(),
            is_relocated,
            fields_bytes: u32::try_from(fields.len()).map_err(too_long)?,
            payload_bytes: u32::try_from(payload_bytes).map_err(too_long)?,
            seq,
            durable_end: self.durable_end,
        };
        if fields.len() > MAX_FIELDS_BYTES {
            return Err(Error::for_client(
                Reason::EntityTooLarge,
                "the object's metadata or part list is too long",
            ));
        }
        let record_bytes = u32::try_from(header.record_bytes()).map_err(too_long)?;
        if !self.may_use_reserve {
            self.state.space.admit(record_bytes.into())?;
        }
        if self.record_count() == 0 {
            let segment = self.segment()?;
            self.begin = segment.bytes();
            self.end = self.begin;
        }
        let segment = self.log.active.as_ref().map_or(0, |active| active.segment().number);
        let position = Position::new(segment, self.end);
        let end = self.end.checked_add(record_bytes);
        let end = end.ok_or_else(|| Error::new(Reason::Defect, "a batch is longer than a segment can be"))?;
        let bytes = header.encode_unsealed_head(fields, block_crcs);
        self.heads.push(UnsealedHead { position, bytes, buffer_index: self.buffers.len() });
        self.buffers.push(Bytes::new());
        let located = LocatedRecord {
            header: &header,
            record,
            fields,
            position,
            are_extent_positions_valid: !is_relocated,
        };
        apply(&mut self.index_changes, &located)?;
        self.buffers.extend(payload.iter().filter(|buffer| !buffer.is_empty()).cloned());
        let pad = padding(header.head_bytes() + payload_bytes);
        if pad > 0 {
            self.buffers.push(Bytes::from_static(&[0; 8]).slice(..pad));
        }
        self.end = end;
        Ok(())
    }

    fn segment(&mut self) -> Result<Arc<Segment>> {
        match self.log.segment_for_batch(self.state) {
            Err(e)
                if e.reason() == Reason::Full
                    && self.may_use_reserve
                    && self.state.space.release_reserve_if_full()? =>
            {
                self.log.segment_for_batch(self.state)
            }
            other => other,
        }
    }

    /// Writes, syncs and applies the batch.
    pub fn commit(mut self) -> Result<(), BatchError> {
        if self.record_count() == 0 && self.index_changes.is_empty() {
            return Ok(());
        }
        if self.record_count() > 0 {
            self.write()?;
        }
        self.apply().map_err(|e| BatchError::permanent(index_failed_error(e)))
    }

    fn apply(mut self) -> Result<()> {
        let active = self.log.active.as_ref();
        let covered_end =
            active.map_or(self.log.covered_end, |active| Position::new(active.segment().number, self.end));
        let coverage = Coverage {
            covered_end,
            next_id: self.state.next_id.load(Ordering::Acquire) + ID_MARGIN,
            next_bucket: self.next_bucket,
            next_segment: self.state.next_segment.load(Ordering::Acquire),
        };
        let has_records = self.record_count() > 0;
        self.index_changes.put(keys::META, coverage.encode());
        self.index_changes.apply()?;
        for change in self.buckets {
            match change {
                BucketChange::Written(bucket) => {
                    self.state.buckets.write().insert(bucket.name.clone(), bucket)
                }
                BucketChange::Deleted(name) => self.state.buckets.write().remove(&name),
            };
        }
        self.log.covered_end = covered_end;
        if has_records {
            self.log.durable_end = covered_end;
        }
        self.log.next_bucket = self.next_bucket;
        self.log.uncheckpointed_bytes += u64::from(self.end - self.begin);
        if self.log.uncheckpointed_bytes >= self.state.options.checkpoint_bytes {
            self.state.index.checkpoint()?;
            self.log.uncheckpointed_bytes = 0;
        }
        Ok(())
    }

    /// Seals all heads with the range of the batch: after a crash, either all of its records count or none.
    fn seal(&mut self) {
        let range = BatchRange { begin: self.begin, end: self.end };
        for UnsealedHead { position, bytes, buffer_index } in &mut self.heads {
            seal_head(self.state.layout.salt, *position, range, bytes);
            self.buffers[*buffer_index] = std::mem::take(bytes).into();
        }
    }

    fn write(&mut self) -> Result<(), BatchError> {
        self.seal();
        let Some(active) = &mut self.log.active else {
            return Err(BatchError::permanent(Error::new(
                Reason::Defect,
                "a batch has records but no segment",
            )));
        };
        let segment = active.segment().clone();
        if let Err(e) = segment.write_all(&self.buffers, self.begin.into()) {
            // The next batch goes to another segment, so that no bytes of this batch can end up between the records of
            // the next batch. Later records will state that everything before them was durable. So the bytes of this
            // batch are cut off, and the cut is synced.
            segment.is_sealed.store(true, Ordering::Release);
            self.log.active = None;
            let cut_off = || segment.file.set_len(self.begin.into()).and_then(|()| segment.file.sync_data());
            if let Err(cut_error) = cut_off() {
                tracing::error!(error = %cut_error, "a failed write could not be undone");
                return Err(BatchError::permanent(sync_failed(Some(cut_error))));
            }
            let e = io_error("the log could not be written", e);
            return Err(if e.reason() == Reason::Full {
                BatchError::transient(e)
            } else {
                BatchError::permanent(e)
            });
        }
        active.write_ahead(self.begin..self.end, self.state.options.segment_bytes, &self.state.space);
        if let Err(e) = segment.file.sync_data() {
            // No change of this batch was acknowledged, and its state on the device is unknown. It is cut off, because
            // the next open of the store might find it only in the page cache and take it for complete.
            if let Err(cut_error) = segment.file.set_len(self.begin.into()) {
                tracing::error!(error = %cut_error, "a failed write could not be cut off");
            }
            return Err(BatchError::permanent(sync_failed(Some(e))));
        }
        segment.end.store(self.end, Ordering::Release);
        Ok(())
    }
}

/// The failure of a batch.
pub(crate) struct BatchError {
    pub error: Error,
    /// True if the batch had no effect and the next one may succeed. Otherwise the store is read-only until it is
    /// reopened.
    pub is_transient: bool,
}

impl BatchError {
    pub const fn transient(error: Error) -> Self {
        Self { error, is_transient: true }
    }

    pub const fn permanent(error: Error) -> Self {
        Self { error, is_transient: false }
    }
}

/// The error of a batch whose index changes could not be applied or made durable, whatever the cause. Its changes may be
/// visible, at the latest after the store is reopened, so no response may claim that they did not happen.
fn index_failed_error(cause: Error) -> Error {
    let what = "the index could not be updated or made durable; the change may be visible; the store is read-only until \
                it is reopened";
    Error::with_source(Reason::ReadOnly, what, cause)
}
