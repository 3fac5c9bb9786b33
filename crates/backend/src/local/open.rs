//! Opening a store. The index records how far it covers the log; the rest is replayed. A broken or outdated index is
//! rebuilt. One that proves the loss of acknowledged changes is retained, and the store is not opened, until the user
//! accepts the loss.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use parking_lot::{Mutex, RwLock};
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};

use super::buffer_pool::BufferPool;
use super::bulk::ExtentAllocator;
use super::commit::{Committer, LogWriter};
use super::index::entries::{BucketEntry, Coverage, ID_MARGIN, SegmentEntry};
use super::index::{Index, keys};
use super::index_fit::{IndexFit, catch_up, record_segment_ends};
use super::io_threads::{IoThreads, io_error};
use super::layout::Layout;
use super::log_files::{LogFiles, LogPurpose};
use super::loss::{Loss, LossProof};
use super::loss_evidence::{LogGaps, find_damaged_records, segment_number};
use super::manifest_cache::ManifestCache;
use super::open_store::OpenStore;
use super::options::LocalOptions;
use super::pending_records::{InheritedFacts, PendingRecords};
use super::record::Bucket;
use super::recovery::Recovery;
use super::reindex::reindex;
use super::replay::{LogSurvey, apply_with_coverage};
use super::segment::{Segment, SegmentMap};
use super::space::DeviceSpace;
use super::store_state::StoreState;
use super::upkeep::MAX_LIVE_FRACTION;

/// The use of an existing index.
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
        let mut recovery = Recovery::default();
        let log = LogFiles::open(&layout.segments(), layout.salt, LogPurpose::Serving)?;
        let space = DeviceSpace::open(&layout, options.reserve_bytes)?;
        options.segment_bytes = space.segment_bytes(options.segment_bytes, MAX_LIVE_FRACTION);
        layout.remove_old_index();
        let opening = IndexOpener { layout: &layout, log: &log, accept_loss: options.accept_loss, index_use };
        let ReadyIndex { index, coverage, buckets, pending_records: unsaid } =
            opening.ready_index(&mut recovery)?;
        recovery.voided_records = unsaid.void_count;
        log.unfinished.iter().try_for_each(|path| remove_unfinished(path))?;
        let io = IoThreads::start(options.io_threads.max(1))?;
        let state = Arc::new(StoreState {
            space,
            hashing: tradewind_digest::Engine::new(options.hash_threads.max(1)),
            buffers: Arc::new(BufferPool::default()),
            manifests: ManifestCache::default(),
            buffered_bytes: Arc::default(),
            buckets: RwLock::new(buckets),
            next_id: AtomicU64::new(coverage.next_id),
            next_segment: AtomicU32::new(coverage.next_segment),
            segment_creation: Mutex::default(),
            layout,
            options,
            clock,
            index,
            segments: log.segments,
            io,
        });
        let durable = unsaid.durable_end.unwrap_or(coverage.covered_end);
        let log = LogWriter::new(coverage.covered_end, durable, coverage.next_bucket);
        let committer = Committer::start(state.clone(), log)?;
        let store = Arc::new_cyclic(|this| Self {
            handle: this.clone(),
            state,
            committer,
            bulk: ExtentAllocator::default(),
            upkeep_round: Mutex::new(()),
        });
        unsaid.write(&store)?;
        Ok((store, recovery))
    }
}

/// Removes a segment whose creation a crash interrupted: it has neither a header nor a complete record, so nothing in
/// it was ever acknowledged.
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
    Nothing,
    /// Its creation was interrupted.
    Empty(Index),
    /// It is unusable, for this reason.
    Outdated(Index, String),
    Lost(Index, Loss),
    Ambiguous(Index, Loss),
}

/// An index about to be replaced.
#[derive(Default)]
struct PreviousIndex {
    /// `None` if it must not be read.
    index: Option<Index>,
    /// The loss that it proves.
    loss: Option<Loss>,
    /// Either a loss, or an index that is an older copy.
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
    log: &'a LogFiles,
    accept_loss: bool,
    index_use: IndexUse,
}

impl IndexOpener<'_> {
    /// Returns the index, brought up to date. A broken or outdated one is rebuilt. One that proves a loss stays
    /// unchanged, with an error, unless the loss is accepted.
    fn ready_index(&self, recovery: &mut Recovery) -> Result<ReadyIndex> {
        let Self { layout, log, index_use, .. } = self;
        // The library panics on some data that it did not write, wherever it is read.
        let found = catch_unwind(AssertUnwindSafe(|| self.open_index(recovery)))
            .unwrap_or_else(|_| Err(Error::new(Reason::CorruptData, "the index cannot be read")));
        let former = match found {
            Ok(OpenedIndex::Ready(ready)) if *index_use == IndexUse::Reuse => return Ok(*ready),
            Ok(OpenedIndex::Ready(ready)) => PreviousIndex {
                loss: find_damaged_records(&ready.index, log)?,
                ..PreviousIndex::from(ready.index)
            },
            Ok(OpenedIndex::Nothing) if log.segments.is_empty() => PreviousIndex::default(),
            Ok(OpenedIndex::Nothing) => {
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
            Ok(OpenedIndex::Ambiguous(index, doubt)) => {
                tracing::warn!(
                    doubt = %doubt,
                    "the index is an older copy, or parts of the log are lost, which cannot be distinguished; the \
                     index is rebuilt from the log, and the old one is kept as index.doubtful"
                );
                PreviousIndex { possible_loss: Some(doubt), ..PreviousIndex::from(index) }
            }
            Err(e) if e.reason() == Reason::CorruptData => {
                tracing::error!(
                    error = ?e,
                    "the index cannot be used and is rebuilt from the log; without it, a loss at the end of the log \
                     cannot be detected"
                );
                // The library may have dropped what it could not read, and would take the rest for complete.
                layout.abandon_index();
                PreviousIndex::default()
            }
            Err(e) => return Err(e),
        };
        *recovery = Recovery::default();
        self.replace(former, recovery)
    }

    /// Rebuilds the index. The existing one stays if a loss is not accepted.
    fn replace(&self, former: PreviousIndex, recovery: &mut Recovery) -> Result<ReadyIndex> {
        let Self { layout, log, .. } = self;
        let PreviousIndex { index, mut loss, possible_loss: doubt } = former;
        let mut survey = LogSurvey::scan(log, Coverage::EMPTY)?;
        let legacy = index.as_ref().map(|index| InheritedFacts::read_from(index, log)).transpose()?;
        let mut legacy = legacy.unwrap_or_default();
        let is_accepted = |end| survey.is_voided(end) || legacy.has_accepted(end);
        let cuts = LogGaps::find_in_log(log, survey.durable_ends(), is_accepted);
        if loss.is_none() && !cuts.is_empty() {
            loss = Some(cuts.to_loss(LossProof::Log));
        }
        if let Some(loss) = loss {
            self.accept(&loss)?;
            recovery.loss = Some(loss);
        }
        legacy.accept(cuts.accepted_ends());
        legacy.raise_numbers(&mut survey.coverage);
        if let Some(index) = index {
            let is_emptied = |segment: &Segment| {
                [&recovery.loss, &doubt].into_iter().flatten().all(|loss| loss.spares_copies(segment))
            };
            if remove_retired(layout, &index, &log.segments, is_emptied)? > 0 {
                let numbers = survey.coverage;
                survey = LogSurvey::scan(log, Coverage::EMPTY)?;
                survey.coverage.raise_numbers(numbers);
            }
        }
        if doubt.is_some() {
            layout.set_index_aside()?;
        } else {
            layout.remove_index()?;
        }
        // The doubts were about the previous index.
        layout.clear_doubts();
        let index = Index::open(&layout.index())?;
        legacy.write_to(&index, survey.coverage)?;
        let coverage = if log.segments.is_empty() {
            survey.coverage
        } else {
            recovery.reindexed = true;
            reindex(log, &index, &survey, recovery)?
        };
        if recovery.unreadable.count > 0 {
            tracing::error!(
                unreadable = %recovery.unreadable,
                "object data is damaged or missing and cannot be read; see `tradewind store check`"
            );
        }
        finish_opening(layout, index, log, coverage)
    }

    /// Proceeds without the lost data if the user accepted that.
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
        let Self { layout, log, .. } = self;
        if !layout.index().exists() {
            return Ok(OpenedIndex::Nothing);
        }
        if layout.count_open_attempt() {
            return Err(Error::new(Reason::CorruptData, "it broke in use, or crashed the process"));
        }
        let opened = Index::open(&layout.index());
        layout.clear_doubts();
        let index = opened?;
        Ok(match catch_up(&index, log, recovery)? {
            IndexFit::Current(coverage) => {
                record_segment_ends(&index, log)?;
                OpenedIndex::Ready(Box::new(finish_opening(layout, index, log, coverage)?))
            }
            IndexFit::Empty if InheritedFacts::is_interrupted_rebuild(&index)? => OpenedIndex::Empty(index),
            // The library leaves this of an index that lost files, and finds parts of it on a second opening.
            IndexFit::Empty => {
                return Err(Error::new(Reason::CorruptData, "it does not record its coverage"));
            }
            IndexFit::Outdated(why) => OpenedIndex::Outdated(index, why),
            IndexFit::Lost(loss) => OpenedIndex::Lost(index, loss),
            IndexFit::Ambiguous(doubt) => OpenedIndex::Ambiguous(index, doubt),
        })
    }
}

/// Completes the opening: removes retired segments, reserves numbers, reads buckets and pending records.
fn finish_opening(
    layout: &Layout,
    index: Index,
    log: &LogFiles,
    mut coverage: Coverage,
) -> Result<ReadyIndex> {
    remove_retired(layout, &index, &log.segments, |_| true)?;
    let last = log.numbers.last().copied().unwrap_or(0).max(coverage.covered_end.segment);
    coverage.next_segment = coverage.next_segment.max(last + 1);
    reserve_numbers(&index, coverage)?;
    let (buckets, unsaid) = (read_buckets(&index)?, PendingRecords::collect(&index)?);
    Ok(ReadyIndex { index, coverage, buckets, pending_records: unsaid })
}

/// Makes durable that the numbers from now on are in use: those given to uncommitted writes must not be allocated
/// again after a crash.
fn reserve_numbers(index: &Index, coverage: Coverage) -> Result<()> {
    let reserved = Coverage { next_id: coverage.next_id + ID_MARGIN, ..coverage };
    let mut changes = index.changes();
    changes.remove(keys::NEXT_NUMBERS);
    apply_with_coverage(changes, reserved)?;
    index.checkpoint()
}

/// Removes segments that were emptied before the last stop, if `is_emptied` confirms it. Returns their number.
fn remove_retired(
    layout: &Layout,
    index: &Index,
    segments: &SegmentMap,
    is_emptied: impl Fn(&Segment) -> bool,
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
            if !is_emptied(&segment) {
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
