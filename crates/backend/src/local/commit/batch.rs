//! One batch of changes: its records, the state after them, and how they become durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tradewind_core::error::{Error, Reason, Result};

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
    active: Option<Arc<Segment>>,
    /// Everything before this is in the index.
    covered: Position,
    /// Everything before this is durable, or voided by a record that is.
    durable: Position,
    uncheckpointed_bytes: u64,
    next_bucket: BucketId,
}

impl LogWriter {
    /// A writer that starts a new segment with its first batch: nothing is ever appended after a tail that a crash
    /// may have torn.
    pub const fn new(covered: Position, durable: Position, next_bucket: BucketId) -> Self {
        Self { active: None, covered, durable, uncheckpointed_bytes: 0, next_bucket }
    }

    /// Starts a batch.
    pub fn begin_batch<'a>(&'a mut self, shared: &'a StoreState) -> Batch<'a> {
        let base = self.active.as_ref().map_or(0, |segment| segment.end.load(Ordering::Acquire));
        Batch {
            base,
            end: base,
            pieces: Vec::new(),
            heads: Vec::new(),
            changes: shared.index.changes(),
            buckets: Vec::new(),
            next_bucket: self.next_bucket,
            durable: self.durable,
            may_use_reserve: false,
            log: self,
            shared,
        }
    }

    fn segment_for_batch(&mut self, shared: &StoreState) -> Result<Arc<Segment>> {
        if let Some(active) = &self.active {
            if active.end.load(Ordering::Acquire) < shared.options.segment_bytes {
                return Ok(active.clone());
            }
            active.is_sealed.store(true, Ordering::Release);
            self.active = None;
        }
        let segment = shared.create_segment(SegmentKind::Log)?;
        self.active = Some(segment.clone());
        Ok(segment)
    }
}

/// A batch under construction.
pub(crate) struct Batch<'a> {
    pub shared: &'a StoreState,
    /// The state after this batch's changes.
    pub changes: IndexChanges<'a>,
    log: &'a mut LogWriter,
    base: u32,
    end: u32,
    pieces: Vec<Bytes>,
    /// The head of each record, sealed when the batch is complete.
    heads: Vec<OpenHead>,
    buckets: Vec<BucketChange>,
    next_bucket: BucketId,
    durable: Position,
    /// The change being decided frees space in the end.
    may_use_reserve: bool,
}

/// A head without the end of its batch.
struct OpenHead {
    at: Position,
    bytes: Vec<u8>,
    /// Index of the head among the batch's pieces.
    piece: usize,
}

enum BucketChange {
    Created(Bucket),
    Deleted(String),
}

impl Batch<'_> {
    /// Payload and record bytes so far.
    pub const fn bytes(&self) -> usize {
        (self.end - self.base) as usize
    }

    /// Starts the next change. Returns the number of records before it.
    pub const fn begin_change(&mut self) -> usize {
        self.may_use_reserve = false;
        self.records()
    }

    /// Records so far.
    pub const fn records(&self) -> usize {
        self.heads.len()
    }

    /// A number that was never used before.
    pub fn next_id(&self) -> u64 {
        self.shared.next_id.fetch_add(1, Ordering::AcqRel)
    }

    /// The bucket in the state after this batch.
    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        for change in self.buckets.iter().rev() {
            match change {
                BucketChange::Created(bucket) if bucket.name == name => return Ok(bucket.clone()),
                BucketChange::Deleted(deleted) if deleted == name => return Err(Error::no_such_bucket(name)),
                _ => {}
            }
        }
        self.shared.bucket(name)
    }

    /// Creates a bucket and assigns its number.
    pub fn create_bucket(&mut self, mut bucket: Bucket) -> Result<()> {
        bucket.id = self.next_bucket;
        self.next_bucket += 1;
        let seq = self.next_id();
        self.append(&Record::BucketCreated(bucket.clone()), seq)?;
        self.buckets.push(BucketChange::Created(bucket));
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
        table: &[u64],
    ) -> Result<()> {
        self.append_fields(record, &record.encode(), seq, false, payload, table)
    }

    /// Adds a copy of a record with the very same fields.
    pub fn append_copy(
        &mut self,
        record: &Record,
        fields: &[u8],
        seq: u64,
        payload: &Bytes,
        table: &[u64],
    ) -> Result<()> {
        self.append_fields(record, fields, seq, true, std::slice::from_ref(payload), table)
    }

    fn append_fields(
        &mut self,
        record: &Record,
        fields: &[u8],
        seq: u64,
        relocated: bool,
        payload: &[Bytes],
        table: &[u64],
    ) -> Result<()> {
        let payload_bytes: usize = payload.iter().map(Bytes::len).sum();
        let too_long =
            |_| Error::for_client(Reason::EntityTooLarge, "the object's metadata or part list is too long");
        let header = RecordHeader {
            kind: record.kind(),
            is_relocated: relocated,
            fields_bytes: u32::try_from(fields.len()).map_err(too_long)?,
            payload_bytes: u32::try_from(payload_bytes).map_err(too_long)?,
            seq,
            durable: self.durable,
        };
        if fields.len() > MAX_FIELDS_BYTES {
            return Err(Error::for_client(
                Reason::EntityTooLarge,
                "the object's metadata or part list is too long",
            ));
        }
        let record_bytes = u32::try_from(header.record_bytes()).map_err(too_long)?;
        if !self.may_use_reserve {
            self.shared.space.admit(record_bytes.into())?;
        }
        if self.records() == 0 {
            let segment = self.segment()?;
            self.base = segment.end.load(Ordering::Acquire);
            self.end = self.base;
        }
        let segment = self.log.active.as_ref().map_or(0, |segment| segment.number);
        let at = Position::new(segment, self.end);
        let end = self.end.checked_add(record_bytes);
        let end = end.ok_or_else(|| Error::new(Reason::Defect, "a batch is longer than a segment can be"))?;
        let bytes = header.encode_open_head(fields, table);
        self.heads.push(OpenHead { at, bytes, piece: self.pieces.len() });
        self.pieces.push(Bytes::new());
        let located = LocatedRecord {
            header: &header,
            record,
            fields,
            position: at,
            records_extent_positions: !relocated,
        };
        apply(&mut self.changes, &located)?;
        self.pieces.extend(payload.iter().filter(|piece| !piece.is_empty()).cloned());
        let pad = padding(header.head_bytes() + payload_bytes);
        if pad > 0 {
            self.pieces.push(Bytes::from_static(&[0; 8]).slice(..pad));
        }
        self.end = end;
        Ok(())
    }

    fn segment(&mut self) -> Result<Arc<Segment>> {
        match self.log.segment_for_batch(self.shared) {
            Err(e)
                if e.reason() == Reason::Full
                    && self.may_use_reserve
                    && self.shared.space.release_file_if_full()? =>
            {
                self.log.segment_for_batch(self.shared)
            }
            other => other,
        }
    }

    /// Writes, syncs and applies the batch.
    pub fn commit(mut self) -> Result<(), BatchError> {
        if self.records() == 0 && self.changes.is_empty() {
            return Ok(());
        }
        if self.records() > 0 {
            self.write()?;
        }
        self.apply().map_err(|e| BatchError::permanent(not_indexed_error(e)))
    }

    fn apply(mut self) -> Result<()> {
        let covered =
            self.log.active.as_ref().map_or(self.log.covered, |s| Position::new(s.number, self.end));
        let coverage = Coverage {
            covered_end: covered,
            next_id: self.shared.next_id.load(Ordering::Acquire) + ID_MARGIN,
            next_bucket: self.next_bucket,
            next_segment: self.shared.next_segment.load(Ordering::Acquire),
        };
        let has_records = self.records() > 0;
        self.changes.put(keys::META, coverage.encode());
        self.changes.apply()?;
        for change in self.buckets {
            match change {
                BucketChange::Created(bucket) => {
                    self.shared.buckets.write().insert(bucket.name.clone(), bucket)
                }
                BucketChange::Deleted(name) => self.shared.buckets.write().remove(&name),
            };
        }
        self.log.covered = covered;
        if has_records {
            self.log.durable = covered;
        }
        self.log.next_bucket = self.next_bucket;
        self.log.uncheckpointed_bytes += u64::from(self.end - self.base);
        if self.log.uncheckpointed_bytes >= self.shared.options.checkpoint_bytes {
            self.shared.index.checkpoint()?;
            self.log.uncheckpointed_bytes = 0;
        }
        Ok(())
    }

    /// Records in each head the range of the batch in the segment: either all of its records count, or none.
    fn seal(&mut self) {
        let span = BatchRange { begin: self.base, end: self.end };
        for OpenHead { at, bytes, piece } in &mut self.heads {
            seal_head(self.shared.layout.salt, *at, span, bytes);
            self.pieces[*piece] = std::mem::take(bytes).into();
        }
    }

    fn write(&mut self) -> Result<(), BatchError> {
        let Some(segment) = self.log.active.clone() else {
            return Err(BatchError::permanent(Error::new(
                Reason::Defect,
                "a batch has records but no segment",
            )));
        };
        self.seal();
        if let Err(e) = segment.write_all(&self.pieces, self.base.into()) {
            // The next batch goes to another segment, so that nothing of this one can end up between its records. And
            // because later records state that everything before them was durable, this one must be removed
            // permanently.
            segment.is_sealed.store(true, Ordering::Release);
            self.log.active = None;
            let cut = || segment.file.set_len(self.base.into()).and_then(|()| segment.file.sync_data());
            if let Err(worse) = cut() {
                tracing::error!(error = %worse, "a failed write could not be undone");
                return Err(BatchError::permanent(sync_failed(Some(worse))));
            }
            let e = io_error("the log could not be written", e);
            return Err(if e.reason() == Reason::Full {
                BatchError::resumable(e)
            } else {
                BatchError::permanent(e)
            });
        }
        if let Err(e) = segment.file.sync_data() {
            // Nothing of this batch was acknowledged, and its state on the device is unknown. Cut off, it is not
            // taken for complete by a start that finds it only in the page cache.
            if let Err(worse) = segment.file.set_len(self.base.into()) {
                tracing::error!(error = %worse, "a failed write could not be cut off");
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
    /// True if nothing of the batch happened and the next one may succeed. Otherwise the store is read-only until it
    /// is reopened.
    pub is_resumable: bool,
}

impl BatchError {
    pub const fn resumable(error: Error) -> Self {
        Self { error, is_resumable: true }
    }

    pub const fn permanent(error: Error) -> Self {
        Self { error, is_resumable: false }
    }
}

/// The error of a batch that is durable but not in the index, whatever the cause. Its changes are visible after the
/// store is reopened, so no response may claim that they did not happen.
fn not_indexed_error(cause: Error) -> Error {
    let what = "the change is in the log but not in the index; the store is read-only until it is reopened";
    Error::with_source(Reason::ReadOnly, what, cause)
}
