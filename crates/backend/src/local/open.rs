//! Opening a store: what is on disk becomes an open store again. The index says how far it covers the
//! log; the rest is replayed. A commit record that a crash tore was never acknowledged: it is voided,
//! so that no later rebuild takes it for a whole one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};

use super::apply::{Located, apply};
use super::buffers::Buffers;
use super::bulk::BulkWriter;
use super::commit::{Amendment, Batch, Committer, LogWriter};
use super::index::entries::{BucketEntry, Coverage, DeletedEntry, SegmentEntry};
use super::index::{Changes, Index, keys};
use super::io::{IoThreads, io_error};
use super::layout::Layout;
use super::options::LocalOptions;
use super::position::Position;
use super::record::{Bucket, Record};
use super::reindex::reindex;
use super::scan::{Item, Scanned, Scanner, read_payload};
use super::segment::{Segment, SegmentKind, Segments, parse_name};
use super::shared::Shared;
use super::space::Space;
use super::upkeep::Upkeep;

/// Entries changed in one batch of a replay.
pub(super) const REPLAY_BATCH: usize = 4096;
/// Numbers kept ahead of those in use, so that numbers given to writes that were never committed are
/// not given out again after a crash.
pub(super) const ID_MARGIN: u64 = 1 << 32;

/// An open store.
pub(crate) struct Local {
    this: Weak<Local>,
    pub shared: Arc<Shared>,
    pub committer: Committer,
    pub bulk: BulkWriter,
    pub upkeep: Mutex<Option<Upkeep>>,
}

/// What opening did, for logs and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The index was made anew from the whole log.
    pub reindexed: bool,
    /// Commit records replayed into the index.
    pub replayed: u64,
    /// Bytes of log that were neither record nor torn tail: damage.
    pub damaged_bytes: u64,
    /// Torn commit records that were voided.
    pub voided: u64,
}

impl Local {
    /// Opens the store in `root`, making an empty one where there is none.
    pub fn open(root: &Path, options: LocalOptions, clock: Arc<dyn Clock>) -> Result<(Arc<Self>, Recovery)> {
        let layout = Layout::open_or_create(root)?;
        Self::open_layout(layout, options, clock)
    }

    pub fn open_layout(layout: Layout, options: LocalOptions, clock: Arc<dyn Clock>) -> Result<(Arc<Self>, Recovery)> {
        let mut recovery = Recovery::default();
        let segments = open_segments(&layout)?;
        let mut index = open_index(&layout)?;
        if !covers(&index, &segments)? {
            if index.coverage()?.is_some() {
                tracing::warn!("the index does not fit the log; it is made anew");
            }
            drop(index);
            layout.remove_index()?;
            index = Index::open(&layout.index())?;
        }
        let (coverage, voids) = match index.coverage()? {
            Some(coverage) => replay(&layout, &index, &segments, coverage, &mut recovery)?,
            None if segments.is_empty() => (Coverage { next_id: 1, next_bucket: 1, ..Coverage::default() }, Vec::new()),
            None => {
                recovery.reindexed = true;
                reindex(&layout, &index, &segments, &mut recovery)?
            }
        };
        remove_retired(&layout, &index, &segments)?;
        let last = segments.all().keys().max().copied().unwrap_or(0);
        let io = IoThreads::start(options.io_threads.max(1))?;
        let shared = Arc::new(Shared {
            space: Space::open(layout.segments(), options.reserve_bytes)?,
            hashing: tradewind_digest::Engine::new(options.hash_threads.max(1)),
            buffers: Arc::new(Buffers::default()),
            buckets: RwLock::new(read_buckets(&index)?),
            next_id: AtomicU64::new(coverage.next_id),
            next_segment: AtomicU32::new(last + 1),
            layout,
            options,
            clock,
            index,
            segments,
            io,
        });
        let log = LogWriter::new(coverage.covered, coverage.next_bucket);
        let committer = Committer::start(shared.clone(), log)?;
        let local = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            shared,
            committer,
            bulk: BulkWriter::default(),
            upkeep: Mutex::new(None),
        });
        recovery.voided = voids.len() as u64;
        local.repair(voids)?;
        Ok((local, recovery))
    }

    /// This store, for what outlives a call.
    pub fn this(&self) -> Arc<Self> {
        match self.this.upgrade() {
            Some(this) => this,
            // `&self` came out of the very `Arc` that `this` refers to.
            None => unreachable!("a store is used only through its handle"),
        }
    }

    /// Writes what a crash left unsaid: voids of torn records, ends of completed uploads.
    fn repair(&self, voids: Vec<Position>) -> Result<()> {
        let mut unended = Vec::new();
        for entry in self.shared.index.view().prefix(&[keys::space::UPLOAD_ENDED]) {
            let (key, value) = entry?;
            if DeletedEntry::decode(&value)?.place.record_bytes == 0 {
                unended.push(keys::number(&key)?);
            }
        }
        if voids.is_empty() && unended.is_empty() {
            return Ok(());
        }
        self.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
            for at in &voids {
                let seq = batch.next_id();
                batch.append(&Record::Void { at: *at }, seq)?;
            }
            for upload in &unended {
                let seq = batch.next_id();
                batch.append(&Record::UploadEnded { upload: *upload }, seq)?;
            }
            Ok(())
        }))
    }
}

fn open_segments(layout: &Layout) -> Result<Segments> {
    let directory = layout.segments();
    let failed = |e| io_error(&format!("{} could not be read", directory.display()), e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if parse_name(&path).is_none() {
            tracing::warn!(path = %path.display(), "a file among the segments is not a segment; it is left alone");
            continue;
        }
        match Segment::open(&path, layout.salt)? {
            Some(segment) => found.push(segment),
            None => {
                // A crash while it was made: nothing in it was ever acknowledged.
                tracing::warn!(path = %path.display(), "an unfinished segment is removed");
                std::fs::remove_file(&path).map_err(failed)?;
            }
        }
    }
    Ok(Segments::new(found))
}

/// A broken index is not worth a repair: it is made anew from the log.
fn open_index(layout: &Layout) -> Result<Index> {
    match Index::open(&layout.index()) {
        Ok(index) => Ok(index),
        Err(e) => {
            tracing::error!(error = ?e, "the index cannot be opened; it is made anew from the log");
            layout.remove_index()?;
            Index::open(&layout.index())
        }
    }
}

/// Whether the log reaches as far as the index says.
fn covers(index: &Index, segments: &Segments) -> Result<bool> {
    let covered = match index.coverage() {
        Ok(Some(coverage)) => coverage.covered,
        Ok(None) => return Ok(true),
        Err(e) if e.reason() == Reason::CorruptData => return Ok(false),
        Err(e) => return Err(e),
    };
    let Some(segment) = segments.get(covered.segment) else { return Ok(true) };
    Ok(segment.end.load(std::sync::atomic::Ordering::Acquire) >= covered.offset)
}

/// The log segments in the order they were written.
pub(super) fn log_segments(segments: &Segments) -> Vec<Arc<Segment>> {
    let mut logs: Vec<_> = segments.all().values().filter(|s| s.kind == SegmentKind::Log).cloned().collect();
    logs.sort_by_key(|segment| segment.number);
    logs
}

/// Takes into the index what the log has beyond it. Answers the new coverage and the torn records.
fn replay(
    layout: &Layout,
    index: &Index,
    segments: &Segments,
    coverage: Coverage,
    recovery: &mut Recovery,
) -> Result<(Coverage, Vec<Position>)> {
    let mut new = coverage;
    let mut voids = Vec::new();
    let mut changes = index.changes();
    let from = coverage.covered;
    for segment in log_segments(segments).into_iter().filter(|s| s.number >= from.segment) {
        let start = if segment.number == from.segment { from.offset } else { 0 };
        let mut scanner = Scanner::new(segment.clone(), layout.salt, start);
        let mut replayed = false;
        while let Some(item) = scanner.next()? {
            let scanned = match item {
                Item::Record(scanned) => scanned,
                Item::Gap { from, to } => {
                    tracing::warn!(segment = %segment.path.display(), from, to, "bytes that are no record");
                    recovery.damaged_bytes += u64::from(to - from);
                    continue;
                }
            };
            replayed = true;
            new.next_id = new.next_id.max(scanned.header.seq + 1);
            new.covered = Position::new(segment.number, scanned.end());
            if read_payload(&segment, &scanned)?.is_none() {
                voids.push(scanned.at);
                continue;
            }
            let record = scanned.record()?;
            if let Record::BucketCreated(bucket) = &record {
                new.next_bucket = new.next_bucket.max(bucket.id + 1);
            }
            take_in(&mut changes, &scanned, &record)?;
            recovery.replayed += 1;
            if changes.len() >= REPLAY_BATCH {
                apply_with_coverage(std::mem::replace(&mut changes, index.changes()), new)?;
            }
        }
        if replayed {
            // What is served from now on must not be lost any more.
            segment.file.sync_data().map_err(|e| io_error("a segment could not be made durable", e))?;
        }
    }
    apply_with_coverage(changes, new)?;
    Ok((new, voids))
}

pub(super) fn take_in(changes: &mut Changes<'_>, scanned: &Scanned, record: &Record) -> Result<()> {
    let located = Located { header: &scanned.header, record, fields: &scanned.fields, at: scanned.at };
    apply(changes, &located)
}

pub(super) fn apply_with_coverage(mut changes: Changes<'_>, coverage: Coverage) -> Result<()> {
    changes.put(keys::META, coverage.encode());
    changes.apply()
}

/// Removes segments that were emptied before the last stop.
fn remove_retired(layout: &Layout, index: &Index, segments: &Segments) -> Result<()> {
    let mut changes = index.changes();
    for entry in index.view().prefix(&[keys::space::SEGMENT]) {
        let (key, value) = entry?;
        if !SegmentEntry::decode(&value)?.retired {
            continue;
        }
        let number = u32::try_from(keys::number(&key)?).map_err(|e| {
            Error::with_source(Reason::CorruptData, "the index names a segment that cannot be", e)
        })?;
        if let Some(segment) = segments.get(number) {
            index.checkpoint()?;
            super::upkeep::unlink(layout, segments, &segment)?;
        }
        changes.remove(keys::segment(number));
    }
    changes.apply()
}

fn read_buckets(index: &Index) -> Result<BTreeMap<String, Bucket>> {
    let mut buckets = BTreeMap::new();
    for entry in index.view().prefix(&[keys::space::BUCKET]) {
        let (key, value) = entry?;
        let entry = BucketEntry::decode(&value)?;
        let id = u32::try_from(keys::number(&key)?)
            .map_err(|e| Error::with_source(Reason::CorruptData, "the index names a bucket that cannot be", e))?;
        buckets.insert(entry.name.clone(), Bucket { id, name: entry.name, created: entry.created });
    }
    Ok(buckets)
}
