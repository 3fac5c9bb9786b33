//! Opening a store: what is on disk becomes an open store again. The index says how far it covers the
//! log; the rest is replayed. An index that is broken, or that is not of this log, is made anew.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};

use super::buffers::Buffers;
use super::bulk::BulkWriter;
use super::commit::{Committer, LogWriter};
use super::index::entries::{BucketEntry, Coverage, ID_MARGIN, SegmentEntry};
use super::index::{Index, keys};
use super::io::{IoThreads, io_error};
use super::layout::Layout;
use super::leaf::Local;
use super::manifests::Manifests;
use super::options::LocalOptions;
use super::record::Bucket;
use super::recovery::Recovery;
use super::reindex::reindex;
use super::repair::Unsaid;
use super::replay::{Mode, Survey, apply_with_coverage, take_log};
use super::scan::{Item, Scanner};
use super::segment::{HeaderState, Segment, Segments, parse_name, parse_unfinished};
use super::shared::Shared;
use super::space::Space;
use super::upkeep::MOST_LIVE;

impl Local {
    /// Opens the store in `root`, making an empty one where there is none.
    pub fn open(root: &Path, options: LocalOptions, clock: Arc<dyn Clock>) -> Result<(Arc<Self>, Recovery)> {
        let layout = Layout::open_or_create(root)?;
        Self::open_layout(layout, options, clock)
    }

    pub fn open_layout(
        layout: Layout,
        mut options: LocalOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(Arc<Self>, Recovery)> {
        let mut recovery = Recovery::default();
        let found = open_segments(&layout)?;
        let space = Space::open(&layout, options.reserve_bytes)?;
        options.segment_bytes = space.segment_bytes(options.segment_bytes, MOST_LIVE);
        let segments = found.segments;
        layout.remove_old_index();
        let Ready { index, coverage, buckets, unsaid } =
            ready_index(&layout, &segments, &found.numbers, &mut recovery)?;
        recovery.voided = unsaid.voids;
        found.unfinished.iter().try_for_each(|path| remove_unfinished(path))?;
        let io = IoThreads::start(options.io_threads.max(1))?;
        let shared = Arc::new(Shared {
            space,
            hashing: tradewind_digest::Engine::new(options.hash_threads.max(1)),
            buffers: Arc::new(Buffers::default()),
            manifests: Manifests::default(),
            gathered: Arc::default(),
            buckets: RwLock::new(buckets),
            next_id: AtomicU64::new(coverage.next_id),
            next_segment: AtomicU32::new(coverage.next_segment),
            making: Mutex::default(),
            layout,
            options,
            clock,
            index,
            segments,
            io,
        });
        let durable = unsaid.durable.unwrap_or(coverage.covered);
        let log = LogWriter::new(coverage.covered, durable, coverage.next_bucket);
        let committer = Committer::start(shared.clone(), log)?;
        let local = Arc::new_cyclic(|this| Self {
            this: this.clone(),
            shared,
            committer,
            bulk: BulkWriter::default(),
            round: Mutex::new(()),
        });
        unsaid.say(&local)?;
        Ok((local, recovery))
    }
}

/// The files among the segments.
struct Found {
    segments: Segments,
    /// The numbers of all files, unfinished ones included, in order.
    numbers: Vec<u32>,
    unfinished: Vec<PathBuf>,
}

fn open_segments(layout: &Layout) -> Result<Found> {
    let directory = layout.segments();
    let failed = |e| io_error(&format!("{} could not be read", directory.display()), e);
    let (mut segments, mut numbers, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
    for entry in std::fs::read_dir(&directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if let Some(number) = parse_unfinished(&path) {
            numbers.push(number);
            unfinished.push(path);
            continue;
        }
        let Some(name) = parse_name(&path) else {
            tracing::warn!(path = %path.display(), "a file among the segments is not a segment; it is left alone");
            continue;
        };
        numbers.push(name.0);
        let (segment, header) = Segment::open(&path, name, layout.salt)?;
        if header == HeaderState::Sound {
            segments.push(segment);
        } else if holds_records(&segment, layout.salt)? {
            tracing::error!(path = %path.display(), "a segment's header is damaged; its records are read all the same");
            segments.push(segment);
        } else {
            unfinished.push(path);
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(Found { segments: Segments::new(segments), numbers, unfinished })
}

fn holds_records(segment: &Arc<Segment>, salt: u64) -> Result<bool> {
    let mut scanner = Scanner::new(segment.clone(), salt, 0);
    while let Some(item) = scanner.next()? {
        if matches!(item, Item::Record(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes what a crash left of a segment that was being made: it has neither a header nor a single
/// whole record, so nothing in it was ever acknowledged.
fn remove_unfinished(path: &Path) -> Result<()> {
    tracing::warn!(path = %path.display(), "an unfinished segment is removed");
    std::fs::remove_file(path).map_err(|e| io_error(&format!("{} could not be removed", path.display()), e))
}

/// An index that says what the log says, and what was read from it.
struct Ready {
    index: Index,
    coverage: Coverage,
    buckets: BTreeMap<String, Bucket>,
    unsaid: Unsaid,
}

/// The index, brought up to the log. One that is broken, or is not of this log, is not worth a repair:
/// it is made anew.
fn ready_index(
    layout: &Layout,
    segments: &Segments,
    numbers: &[u32],
    recovery: &mut Recovery,
) -> Result<Ready> {
    let kept = || bring_up(layout, segments, numbers, recovery);
    // The library panics on some of what it did not write, wherever it is read.
    let kept = catch_unwind(AssertUnwindSafe(kept))
        .unwrap_or_else(|_| Err(Error::new(Reason::CorruptData, "the index cannot be read")));
    match kept {
        Ok(Some(ready)) => return Ok(ready),
        Ok(None) => {}
        Err(e) if e.reason() == Reason::CorruptData => {
            tracing::error!(error = ?e, "the index cannot be used; it is made anew from the log");
        }
        Err(e) => return Err(e),
    }
    *recovery = Recovery::default();
    layout.remove_index()?;
    layout.end_opening();
    let index = Index::open(&layout.index())?;
    let coverage = if segments.is_empty() {
        Coverage { next_id: 1, next_bucket: 1, ..Coverage::default() }
    } else {
        recovery.reindexed = true;
        reindex(layout, &index, segments, recovery)?
    };
    settle(layout, index, segments, numbers, coverage)
}

/// Replays into the index that is there; `None` where there is none.
fn bring_up(
    layout: &Layout,
    segments: &Segments,
    numbers: &[u32],
    recovery: &mut Recovery,
) -> Result<Option<Ready>> {
    if !layout.index().exists() {
        return Ok(None);
    }
    if layout.begin_opening() {
        return Err(Error::new(Reason::CorruptData, "it broke in use, or took the process down"));
    }
    let opened = Index::open(&layout.index());
    layout.end_opening();
    let index = opened?;
    let Some(coverage) = index.coverage()? else { return Ok(None) };
    if let Some(why) = misfit(&index, coverage, segments, numbers)? {
        return Err(Error::new(Reason::CorruptData, why));
    }
    let known = Survey::of(layout, segments, coverage)?;
    take_log(layout, &index, segments, (coverage.covered, Mode::Onward), &known, recovery)?;
    // What was taken in may refer to a segment that was made, filled and removed after this index was written.
    if let Some(number) = lost_segment(&index, numbers, |entry| entry.live_bytes > 0)? {
        let why = format!("the log refers to segment {number} as the index never knew it");
        return Err(Error::new(Reason::CorruptData, why));
    }
    settle(layout, index, segments, numbers, known.coverage).map(Some)
}

/// Does and reads what is left to do and to read.
fn settle(
    layout: &Layout,
    index: Index,
    segments: &Segments,
    numbers: &[u32],
    mut coverage: Coverage,
) -> Result<Ready> {
    remove_retired(layout, &index, segments)?;
    let last = numbers.last().copied().unwrap_or(0).max(coverage.covered.segment);
    coverage.next_segment = coverage.next_segment.max(last + 1);
    reserve_numbers(&index, coverage)?;
    let (buckets, unsaid) = (read_buckets(&index)?, Unsaid::of(&index)?);
    Ok(Ready { index, coverage, buckets, unsaid })
}

/// Why an index is not of this log, where it is not: the log is shorter than it, or segments went that
/// it has not taken leave of (a copy from before a compaction).
fn misfit(index: &Index, coverage: Coverage, segments: &Segments, numbers: &[u32]) -> Result<Option<String>> {
    if let Some(segment) = segments.get(coverage.covered.segment)
        && segment.end.load(Ordering::Acquire) < coverage.covered.offset
    {
        return Ok(Some(format!("the index covers the log up to {}, where there is none", coverage.covered)));
    }
    if let Some(number) = lost_segment(index, numbers, |_| true)? {
        return Ok(Some(format!("the index refers to segment {number}, which is not there")));
    }
    // Segments made after the index was last written: none can have gone without its being told.
    let newer = numbers.iter().filter(|number| **number >= coverage.next_segment);
    for (expected, number) in (coverage.next_segment..).zip(newer) {
        if *number != expected {
            return Ok(Some(format!("segment {expected} came and went after the index was written")));
        }
    }
    Ok(None)
}

/// A segment that is not there and that the index has not taken leave of, of those that are wanted.
fn lost_segment(
    index: &Index,
    numbers: &[u32],
    is_wanted: impl Fn(&SegmentEntry) -> bool,
) -> Result<Option<u32>> {
    for entry in index.view().prefix(&[keys::space::SEGMENT]) {
        let (key, value) = entry?;
        let (number, entry) = (segment_number(&key)?, SegmentEntry::decode(&value)?);
        if numbers.binary_search(&number).is_err() && !entry.retired && is_wanted(&entry) {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Makes durable that the numbers used from now on are used: those given to writes that were never
/// committed must not be given out again after a crash.
fn reserve_numbers(index: &Index, coverage: Coverage) -> Result<()> {
    let reserved = Coverage { next_id: coverage.next_id + ID_MARGIN, ..coverage };
    apply_with_coverage(index.changes(), reserved)?;
    index.checkpoint()
}

fn segment_number(key: &[u8]) -> Result<u32> {
    u32::try_from(keys::number(key)?)
        .map_err(|e| Error::with_source(Reason::CorruptData, "the index names a segment that cannot be", e))
}

/// Removes segments that were emptied before the last stop.
fn remove_retired(layout: &Layout, index: &Index, segments: &Segments) -> Result<()> {
    let mut changes = index.changes();
    for entry in index.view().prefix(&[keys::space::SEGMENT]) {
        let (key, value) = entry?;
        if !SegmentEntry::decode(&value)?.retired {
            continue;
        }
        let number = segment_number(&key)?;
        if let Some(segment) = segments.get(number) {
            index.checkpoint()?;
            segments.unlink(&layout.segments(), &segment)?;
        }
        changes.remove(keys::segment(number));
    }
    changes.apply()
}

fn read_buckets(index: &Index) -> Result<BTreeMap<String, Bucket>> {
    let mut buckets = BTreeMap::new();
    for entry in index.view().prefix(&[keys::space::BUCKET]) {
        let (key, value) = entry?;
        let bucket = BucketEntry::decode(&value)?.into_bucket(&key)?;
        buckets.insert(bucket.name.clone(), bucket);
    }
    Ok(buckets)
}

#[cfg(test)]
mod tests;
