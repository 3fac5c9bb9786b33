//! Opening a store. The index records how far it covers the log; the rest is replayed. A broken or outdated index is
//! rebuilt. One that proves the loss of acknowledged changes is retained, and the store is not opened, until the user
//! accepts the loss. Steps:
//!
//! 1. Compare the index with the segments: is it usable, outdated, or proof of a loss (`index_fit`)?
//! 2. Survey the log after the index's coverage, or all of it for a rebuild: voids, durable ends, next numbers.
//! 3. Find the *torn* batches in the part of the log that is not known to be durable.
//! 4. Replay all records that are neither voided nor torn. The same atomic changes put *void marks* into the index:
//!    entries without a record, for the torn positions.
//! 5. Collect the entries without a record, among them the pending voids (`pending_records`).
//! 6. Write the pending records as the first batch. Until then, no record states that the log beyond the first pending
//!    void is durable.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use parking_lot::{Mutex, RwLock};
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::threads::{require_threads, thread_error};

use super::buffer_pool::BufferPool;
use super::bulk::ExtentAllocator;
use super::commit::{Committer, LogWriter};
use super::index::entries::{BucketEntry, Coverage, ID_MARGIN, SegmentEntry};
use super::index::{Index, keys};
use super::index_fit::{IndexFit, catch_up, record_segment_ends};
use super::io_threads::{IoThreads, io_error};
use super::layout::Layout;
use super::loss::{Loss, LossProof};
use super::loss_evidence::{MissingRanges, find_damaged_records, segment_number};
use super::manifest_cache::ManifestCache;
use super::open_store::OpenStore;
use super::options::LocalOptions;
use super::pending_records::{InheritedFacts, PendingRecords};
use super::record::Bucket;
use super::recovery::Recovery;
use super::reindex::reindex;
use super::replay::{LogSurvey, apply_with_coverage};
use super::segment::{Segment, SegmentMap};
use super::segment_files::{OpenPurpose, SegmentFiles};
use super::space::DeviceSpace;
use super::store_state::StoreState;
use super::upkeep::MAX_LIVE_FRACTION;

/// Threads of the index (2), reads, hashes, commits and upkeep.
const MIN_THREADS: usize = 6;

/// The use of an existing index when a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexUse {
    /// Use it if possible.
    Reuse,
    /// Rebuild it, after checking it for proof of a loss.
    Rebuild,
}

impl OpenStore {
    /// Opens the store in `root`, creating an empty one if there is none.
    pub fn open(root: &Path, options: LocalOptions, clock: Arc<dyn Clock>) -> Result<(Arc<Self>, Recovery)> {
        let layout = Layout::open_or_create(root)?;
        Self::open_layout(layout, options, clock, IndexUse::Reuse)
    }

    pub(super) fn open_layout(
        layout: Layout,
        mut options: LocalOptions,
        clock: Arc<dyn Clock>,
        index_use: IndexUse,
    ) -> Result<(Arc<Self>, Recovery)> {
        require_threads("a local store", MIN_THREADS)?;
        let mut recovery = Recovery::default();
        let files = SegmentFiles::open(&layout.segments(), layout.salt, OpenPurpose::Serving)?;
        let space = DeviceSpace::open(&layout, options.reserve_bytes)?;
        options.segment_bytes = space.segment_bytes(options.segment_bytes, MAX_LIVE_FRACTION);
        layout.remove_old_index();
        let opener =
            IndexOpener { layout: &layout, files: &files, accept_loss: options.accept_loss, index_use };
        let ReadyIndex { index, coverage, buckets, pending_records } = opener.ready_index(&mut recovery)?;
        recovery.voided_records = pending_records.void_count;
        files.unfinished.iter().try_for_each(|path| remove_unfinished(path))?;
        let io = IoThreads::start(options.io_threads.max(1))?;
        let state = Arc::new(StoreState {
            space,
            hashing: tradewind_digest::Engine::start(options.hash_threads.max(1)).map_err(thread_error)?,
            buffers: Arc::new(BufferPool::default()),
            manifests: ManifestCache::default(),
            unwritten_bytes: Arc::default(),
            buckets: RwLock::new(buckets),
            next_id: AtomicU64::new(coverage.next_id),
            next_segment: AtomicU32::new(coverage.next_segment),
            segment_creation: Mutex::default(),
            layout,
            options,
            clock,
            index,
            segments: files.segments,
            io,
        });
        let durable_end = pending_records.durable_end.unwrap_or(coverage.covered_end);
        let log_writer = LogWriter::new(coverage.covered_end, durable_end, coverage.next_bucket);
        let committer = Committer::start(state.clone(), log_writer)?;
        let store = Arc::new_cyclic(|this| Self {
            weak_self: this.clone(),
            state,
            committer,
            extent_allocator: ExtentAllocator::default(),
            upkeep_round: Mutex::new(()),
        });
        pending_records.write(&store)?;
        Ok((store, recovery))
    }
}

/// Removes a segment without a valid header and without a complete record: nothing in it was ever acknowledged.
fn remove_unfinished(path: &Path) -> Result<()> {
    tracing::warn!(path = %path.display(), "removing an unfinished segment");
    std::fs::remove_file(path).map_err(|e| io_error(&format!("{} could not be removed", path.display()), e))
}

/// An index that agrees with the log, and what was read from it.
struct ReadyIndex {
    index: Index,
    coverage: Coverage,
    buckets: BTreeMap<String, Bucket>,
    pending_records: PendingRecords,
}

/// The result of opening the existing index.
enum OpenedIndex {
    Ready(Box<ReadyIndex>),
    /// There is no index.
    Missing,
    /// Its creation was interrupted.
    Empty(Index),
    /// See [`IndexFit::Outdated`].
    Outdated(Index, String),
    /// See [`IndexFit::Lost`].
    Lost(Index, Loss),
    /// See [`IndexFit::Ambiguous`].
    Ambiguous(Index, Loss),
}

/// An index about to be replaced.
#[derive(Default)]
struct PreviousIndex {
    /// `None` if there is none, or if it must not be read.
    index: Option<Index>,
    /// The loss that the index proves.
    loss: Option<Loss>,
    /// Lost unless the index is an older copy; the two cases cannot be distinguished.
    possible_loss: Option<Loss>,
}

impl From<Index> for PreviousIndex {
    fn from(index: Index) -> Self {
        Self { index: Some(index), loss: None, possible_loss: None }
    }
}

/// The inputs for opening the index.
struct IndexOpener<'a> {
    layout: &'a Layout,
    files: &'a SegmentFiles,
    accept_loss: bool,
    index_use: IndexUse,
}

impl IndexOpener<'_> {
    /// Returns the index, brought up to date. A broken or outdated one is rebuilt. One that proves a loss stays
    /// unchanged, with an error, unless the loss is accepted.
    fn ready_index(&self, recovery: &mut Recovery) -> Result<ReadyIndex> {
        let Self { layout, files, index_use, .. } = self;
        // The index library (fjall) panics on some data that it did not write, wherever it is read.
        let opened = catch_unwind(AssertUnwindSafe(|| self.open_index(recovery)))
            .unwrap_or_else(|_| Err(Error::new(Reason::CorruptData, "the index cannot be read")));
        let previous = match opened {
            Ok(OpenedIndex::Ready(ready)) if *index_use == IndexUse::Reuse => return Ok(*ready),
            Ok(OpenedIndex::Ready(ready)) => PreviousIndex {
                loss: find_damaged_records(&ready.index, files)?,
                ..PreviousIndex::from(ready.index)
            },
            Ok(OpenedIndex::Missing) if files.segments.is_empty() => PreviousIndex::default(),
            Ok(OpenedIndex::Missing) => {
                tracing::warn!(
                    "the index is missing and is rebuilt from the log; without it, a loss at the end of the log cannot \
                     be detected"
                );
                PreviousIndex::default()
            }
            Ok(OpenedIndex::Empty(index)) => {
                tracing::warn!("the creation of the index was interrupted; it is rebuilt from the log");
                PreviousIndex::from(index)
            }
            Ok(OpenedIndex::Outdated(index, why)) => {
                tracing::error!(why, "the index does not match the log; it is rebuilt from it");
                PreviousIndex::from(index)
            }
            Ok(OpenedIndex::Lost(index, loss)) => {
                PreviousIndex { loss: Some(loss), ..PreviousIndex::from(index) }
            }
            Ok(OpenedIndex::Ambiguous(index, possible_loss)) => {
                tracing::warn!(
                    %possible_loss,
                    "the index is an older copy, or parts of the log are lost, which cannot be distinguished; the \
                     index is rebuilt from the log, and the old one is kept as index.ambiguous"
                );
                PreviousIndex { possible_loss: Some(possible_loss), ..PreviousIndex::from(index) }
            }
            Err(e) if e.reason() == Reason::CorruptData => {
                tracing::error!(
                    error = ?e,
                    "the index cannot be used and is rebuilt from the log; without it, a loss at the end of the log \
                     cannot be detected"
                );
                // On another attempt, the library may drop what it cannot read, and take the rest for a complete index.
                layout.abandon_index();
                PreviousIndex::default()
            }
            Err(e) => return Err(e),
        };
        *recovery = Recovery::default();
        self.replace(previous, recovery)
    }

    /// Replaces the previous index by one rebuilt from the log. The previous one stays if there is a loss that is not
    /// accepted.
    fn replace(&self, previous: PreviousIndex, recovery: &mut Recovery) -> Result<ReadyIndex> {
        let Self { layout, files, .. } = self;
        let PreviousIndex { index, mut loss, possible_loss } = previous;
        let inherited = index.as_ref().map(|index| InheritedFacts::read_from(index, files)).transpose()?;
        let mut inherited = inherited.unwrap_or_default();
        let mut survey = LogSurvey::scan_durable(files, Coverage::EMPTY, inherited.durable_end)?;
        let is_voided = |at| survey.is_voided(at) || inherited.has_accepted(at);
        let missing = MissingRanges::find_in_log(files, survey.durable_ends(), is_voided);
        if loss.is_none() && !missing.is_empty() {
            loss = Some(missing.to_loss(LossProof::Log));
        }
        if let Some(loss) = loss {
            self.accept(&loss)?;
            recovery.loss = Some(loss);
        }
        inherited.accept(missing.accepted_ends());
        inherited.raise_numbers(&mut survey.coverage);
        if let Some(index) = index {
            let may_remove = |segment: &Segment| {
                [&recovery.loss, &possible_loss]
                    .into_iter()
                    .flatten()
                    .all(|loss| loss.are_copies_intact(segment))
            };
            if remove_retired(layout, &index, &files.segments, may_remove)? > 0 {
                let numbers = survey.coverage;
                survey = LogSurvey::scan_durable(files, Coverage::EMPTY, inherited.durable_end)?;
                survey.coverage.raise_numbers(numbers);
            }
        }
        if possible_loss.is_some() {
            layout.set_index_aside()?;
        } else {
            layout.remove_index()?;
        }
        // The doubts concerned the previous index.
        layout.clear_doubts();
        let index = Index::open(&layout.index())?;
        inherited.write_to(&index, survey.coverage)?;
        let coverage = if files.segments.is_empty() {
            survey.coverage
        } else {
            recovery.reindexed = true;
            reindex(files, &index, &survey, recovery)?
        };
        if recovery.unreadable.count > 0 {
            tracing::error!(
                unreadable = %recovery.unreadable,
                "object data is damaged or missing and cannot be read; see `tradewind store check`"
            );
        }
        finish_opening(layout, index, files, coverage)
    }

    /// An error unless the user accepted losses.
    fn accept(&self, loss: &Loss) -> Result<()> {
        if self.accept_loss {
            tracing::warn!(loss = %loss, "acknowledged changes are lost; opening the store without them, as requested");
            return Ok(());
        }
        let root = self.layout.root().display();
        Err(Error::new(
            Reason::CorruptData,
            format!(
                "acknowledged changes are lost: {loss}. The store was not opened. Put the missing files back into \
                 {root}/segments; see `tradewind store check {root}` for details. To continue without the lost data, \
                 start once with `tradewind serve --accept-loss`, or use `tradewind store reindex {root} --accept-loss`"
            ),
        ))
    }

    /// Opens the existing index and brings it up to date.
    fn open_index(&self, recovery: &mut Recovery) -> Result<OpenedIndex> {
        let Self { layout, files, .. } = self;
        if !layout.index().exists() {
            return Ok(OpenedIndex::Missing);
        }
        if layout.must_rebuild_index() {
            return Err(Error::new(Reason::CorruptData, "it broke in use, or crashed the process"));
        }
        layout.add_doubt();
        let opened = Index::open(&layout.index());
        layout.clear_doubts();
        let index = opened?;
        Ok(match catch_up(&index, files, recovery)? {
            IndexFit::Current(coverage) => {
                record_segment_ends(&index, files)?;
                OpenedIndex::Ready(Box::new(finish_opening(layout, index, files, coverage)?))
            }
            IndexFit::Empty if InheritedFacts::is_interrupted_rebuild(&index)? => OpenedIndex::Empty(index),
            // The library turns an index that lost files into an empty one, and may find parts of it when it is opened
            // again.
            IndexFit::Empty => {
                return Err(Error::new(Reason::CorruptData, "it does not record its coverage"));
            }
            IndexFit::Outdated(why) => OpenedIndex::Outdated(index, why),
            IndexFit::Lost(loss) => OpenedIndex::Lost(index, loss),
            IndexFit::Ambiguous(possible_loss) => OpenedIndex::Ambiguous(index, possible_loss),
        })
    }
}

/// Completes the open of the store: removes retired segments, reserves numbers, reads buckets and pending records.
fn finish_opening(
    layout: &Layout,
    index: Index,
    files: &SegmentFiles,
    mut coverage: Coverage,
) -> Result<ReadyIndex> {
    remove_retired(layout, &index, &files.segments, |_| true)?;
    let last_segment = files.numbers.last().copied().unwrap_or(0).max(coverage.covered_end.segment);
    coverage.next_segment = coverage.next_segment.max(last_segment + 1);
    reserve_numbers(&index, coverage)?;
    let (buckets, pending_records) = (read_buckets(&index)?, PendingRecords::collect(&index)?);
    Ok(ReadyIndex { index, coverage, buckets, pending_records })
}

/// Makes a higher `next_id` durable than is in use, so that the ids of uncommitted writes are not allocated again after
/// a crash.
fn reserve_numbers(index: &Index, coverage: Coverage) -> Result<()> {
    let reserved = Coverage { next_id: coverage.next_id + ID_MARGIN, ..coverage };
    let mut changes = index.changes();
    changes.remove(keys::NEXT_NUMBERS);
    apply_with_coverage(changes, reserved)?;
    index.checkpoint()
}

/// Removes retired segments, whose removal was interrupted when the store was last open, if `may_remove` permits it.
/// Returns the number of files removed.
fn remove_retired(
    layout: &Layout,
    index: &Index,
    segments: &SegmentMap,
    may_remove: impl Fn(&Segment) -> bool,
) -> Result<u64> {
    let mut changes = index.changes();
    let mut removed = 0;
    for entry in index.snapshot().prefix(&[keys::prefix::SEGMENT]) {
        let (key, value) = entry?;
        if !SegmentEntry::decode(&value)?.is_retired {
            continue;
        }
        let number = segment_number(&key)?;
        if let Some(segment) = segments.get(number) {
            if !may_remove(&segment) {
                continue;
            }
            index.checkpoint()?;
            segments.unlink(&layout.segments(), &segment)?;
            removed += 1;
        }
        changes.remove(keys::segment(number));
    }
    changes.apply()?;
    Ok(removed)
}

pub(super) fn read_buckets(index: &Index) -> Result<BTreeMap<String, Bucket>> {
    let mut buckets = BTreeMap::new();
    for entry in index.snapshot().prefix(&[keys::prefix::BUCKET]) {
        let (key, value) = entry?;
        let bucket = BucketEntry::decode(&value)?.into_bucket(&key)?;
        buckets.insert(bucket.name.clone(), bucket);
    }
    Ok(buckets)
}

#[cfg(test)]
mod tests;
