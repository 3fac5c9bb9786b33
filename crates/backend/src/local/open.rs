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

use super::buffers::Buffers;
use super::bulk::BulkWriter;
use super::commit::{Committer, LogWriter};
use super::evidence::{Gaps, find_damaged, segment_number};
use super::fit::{Fit, bring_up, note_ends};
use super::index::entries::{BucketEntry, Coverage, ID_MARGIN, SegmentEntry};
use super::index::{Index, keys};
use super::io::{IoThreads, io_error};
use super::layout::Layout;
use super::leaf::Local;
use super::log::{Log, Purpose};
use super::loss::{Loss, LossProof};
use super::manifests::Manifests;
use super::options::LocalOptions;
use super::record::Bucket;
use super::recovery::Recovery;
use super::reindex::reindex;
use super::repair::{Legacy, Unsaid};
use super::replay::{Survey, apply_with_coverage};
use super::segment::{Segment, Segments};
use super::shared::Shared;
use super::space::Space;
use super::upkeep::MOST_LIVE;

/// The use of an existing index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexUse {
    /// Use it if possible.
    Keep,
    /// Rebuild it, after checking it for proof of a loss.
    Rebuild,
}

impl Local {
    /// Opens the store in `root`, creating an empty one if there is none.
    pub fn open(root: &Path, options: LocalOptions, clock: Arc<dyn Clock>) -> Result<(Arc<Self>, Recovery)> {
        let layout = Layout::open_or_create(root)?;
        Self::open_layout(layout, options, clock, IndexUse::Keep)
    }

    pub(super) fn open_layout(
        layout: Layout,
        mut options: LocalOptions,
        clock: Arc<dyn Clock>,
        index_use: IndexUse,
    ) -> Result<(Arc<Self>, Recovery)> {
        let mut recovery = Recovery::default();
        let log = Log::open(&layout.segments(), layout.salt, Purpose::Work)?;
        let space = Space::open(&layout, options.reserve_bytes)?;
        options.segment_bytes = space.segment_bytes(options.segment_bytes, MOST_LIVE);
        layout.remove_old_index();
        let opening = Opening { layout: &layout, log: &log, accept_loss: options.accept_loss, index_use };
        let Ready { index, coverage, buckets, unsaid } = opening.ready_index(&mut recovery)?;
        recovery.voided = unsaid.voids;
        log.unfinished.iter().try_for_each(|path| remove_unfinished(path))?;
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
            segments: log.segments,
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

/// Removes a segment whose creation a crash interrupted: it has neither a header nor a complete record, so nothing in
/// it was ever acknowledged.
fn remove_unfinished(path: &Path) -> Result<()> {
    tracing::warn!(path = %path.display(), "removing an unfinished segment");
    std::fs::remove_file(path).map_err(|e| io_error(&format!("{} could not be removed", path.display()), e))
}

/// An index that agrees with the log, and what was read from it.
struct Ready {
    index: Index,
    coverage: Coverage,
    buckets: BTreeMap<String, Bucket>,
    unsaid: Unsaid,
}

/// The result of opening the existing index.
enum Found {
    Ready(Box<Ready>),
    Nothing,
    /// Its creation was interrupted.
    Empty(Index),
    /// It is unusable, for this reason.
    Outdated(Index, String),
    Lost(Index, Loss),
    Doubtful(Index, Loss),
}

/// An index about to be replaced.
#[derive(Default)]
struct Former {
    /// `None` if it must not be read.
    index: Option<Index>,
    /// The loss that it proves.
    loss: Option<Loss>,
    /// Either a loss, or an index that is an older copy.
    doubt: Option<Loss>,
}

impl From<Index> for Former {
    fn from(index: Index) -> Self {
        Self { index: Some(index), loss: None, doubt: None }
    }
}

/// The inputs for opening the index.
struct Opening<'a> {
    layout: &'a Layout,
    log: &'a Log,
    accept_loss: bool,
    index_use: IndexUse,
}

impl Opening<'_> {
    /// Returns the index, brought up to date. A broken or outdated one is rebuilt. One that proves a loss stays
    /// unchanged, with an error, unless the loss is accepted.
    fn ready_index(&self, recovery: &mut Recovery) -> Result<Ready> {
        let Self { layout, log, index_use, .. } = self;
        // The library panics on some data that it did not write, wherever it is read.
        let found = catch_unwind(AssertUnwindSafe(|| self.open_index(recovery)))
            .unwrap_or_else(|_| Err(Error::new(Reason::CorruptData, "the index cannot be read")));
        let former = match found {
            Ok(Found::Ready(ready)) if *index_use == IndexUse::Keep => return Ok(*ready),
            Ok(Found::Ready(ready)) => {
                Former { loss: find_damaged(&ready.index, log)?, ..Former::from(ready.index) }
            }
            Ok(Found::Nothing) if log.segments.is_empty() => Former::default(),
            Ok(Found::Nothing) => {
                tracing::warn!(
                    "the index is missing and is rebuilt from the log; without it, a loss at the end of the log cannot \
                     be detected"
                );
                Former::default()
            }
            Ok(Found::Empty(index)) => {
                tracing::warn!("the creation of the index was interrupted; it is rebuilt from the log");
                Former::from(index)
            }
            Ok(Found::Outdated(index, why)) => {
                tracing::error!(why, "the index does not match the log; it is rebuilt from it");
                Former::from(index)
            }
            Ok(Found::Lost(index, loss)) => Former { loss: Some(loss), ..Former::from(index) },
            Ok(Found::Doubtful(index, doubt)) => {
                tracing::warn!(
                    doubt = %doubt,
                    "the index is an older copy, or parts of the log are lost, which cannot be distinguished; the \
                     index is rebuilt from the log, and the old one is kept as index.doubtful"
                );
                Former { doubt: Some(doubt), ..Former::from(index) }
            }
            Err(e) if e.reason() == Reason::CorruptData => {
                tracing::error!(
                    error = ?e,
                    "the index cannot be used and is rebuilt from the log; without it, a loss at the end of the log \
                     cannot be detected"
                );
                // The library may have dropped what it could not read, and would take the rest for complete.
                layout.give_up_index();
                Former::default()
            }
            Err(e) => return Err(e),
        };
        *recovery = Recovery::default();
        self.replace(former, recovery)
    }

    /// Rebuilds the index. The existing one stays if a loss is not accepted.
    fn replace(&self, former: Former, recovery: &mut Recovery) -> Result<Ready> {
        let Self { layout, log, .. } = self;
        let Former { index, mut loss, doubt } = former;
        let mut survey = Survey::of(log, Coverage::NOTHING)?;
        let legacy = index.as_ref().map(|index| Legacy::of(index, log)).transpose()?;
        let mut legacy = legacy.unwrap_or_default();
        let is_accepted = |end| survey.is_voided(end) || legacy.has_accepted(end);
        let cuts = Gaps::find_in_log(log, survey.durable_ends(), is_accepted);
        if loss.is_none() && !cuts.is_empty() {
            loss = Some(cuts.as_loss(LossProof::Log));
        }
        if let Some(loss) = loss {
            self.accept(&loss)?;
            recovery.loss = Some(loss);
        }
        legacy.accept(cuts.accepted_ends());
        legacy.raise(&mut survey.coverage);
        if let Some(index) = index {
            let is_emptied = |segment: &Segment| {
                [&recovery.loss, &doubt].into_iter().flatten().all(|loss| loss.spares_copies_of(segment))
            };
            if remove_retired(layout, &index, &log.segments, is_emptied)? > 0 {
                let numbers = survey.coverage;
                survey = Survey::of(log, Coverage::NOTHING)?;
                survey.coverage.raise_numbers(numbers);
            }
        }
        if doubt.is_some() {
            layout.put_index_aside()?;
        } else {
            layout.remove_index()?;
        }
        // The doubts were about the previous index.
        layout.end_opening();
        let index = Index::open(&layout.index())?;
        legacy.enter(&index, survey.coverage)?;
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
        settle(layout, index, log, coverage)
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
    fn open_index(&self, recovery: &mut Recovery) -> Result<Found> {
        let Self { layout, log, .. } = self;
        if !layout.index().exists() {
            return Ok(Found::Nothing);
        }
        if layout.begin_opening() {
            return Err(Error::new(Reason::CorruptData, "it broke in use, or crashed the process"));
        }
        let opened = Index::open(&layout.index());
        layout.end_opening();
        let index = opened?;
        Ok(match bring_up(&index, log, recovery)? {
            Fit::Current(coverage) => {
                note_ends(&index, log)?;
                Found::Ready(Box::new(settle(layout, index, log, coverage)?))
            }
            Fit::Empty if Legacy::is_in(&index)? => Found::Empty(index),
            // The library leaves this of an index that lost files, and finds parts of it on a second opening.
            Fit::Empty => {
                return Err(Error::new(Reason::CorruptData, "it does not record its coverage"));
            }
            Fit::Outdated(why) => Found::Outdated(index, why),
            Fit::Lost(loss) => Found::Lost(index, loss),
            Fit::Doubtful(doubt) => Found::Doubtful(index, doubt),
        })
    }
}

/// Completes the opening: removes retired segments, reserves numbers, reads buckets and pending records.
fn settle(layout: &Layout, index: Index, log: &Log, mut coverage: Coverage) -> Result<Ready> {
    remove_retired(layout, &index, &log.segments, |_| true)?;
    let last = log.numbers.last().copied().unwrap_or(0).max(coverage.covered.segment);
    coverage.next_segment = coverage.next_segment.max(last + 1);
    reserve_numbers(&index, coverage)?;
    let (buckets, unsaid) = (read_buckets(&index)?, Unsaid::of(&index)?);
    Ok(Ready { index, coverage, buckets, unsaid })
}

/// Makes durable that the numbers from now on are in use: those given to uncommitted writes must not be allocated
/// again after a crash.
fn reserve_numbers(index: &Index, coverage: Coverage) -> Result<()> {
    let reserved = Coverage { next_id: coverage.next_id + ID_MARGIN, ..coverage };
    let mut changes = index.changes();
    changes.remove(keys::NUMBERS);
    apply_with_coverage(changes, reserved)?;
    index.checkpoint()
}

/// Removes segments that were emptied before the last stop, if `is_emptied` confirms it. Returns their number.
fn remove_retired(
    layout: &Layout,
    index: &Index,
    segments: &Segments,
    is_emptied: impl Fn(&Segment) -> bool,
) -> Result<u64> {
    let mut changes = index.changes();
    let mut removed = 0;
    for entry in index.view().prefix(&[keys::space::SEGMENT]) {
        let (key, value) = entry?;
        if !SegmentEntry::decode(&value)?.retired {
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
    for entry in index.view().prefix(&[keys::space::BUCKET]) {
        let (key, value) = entry?;
        let bucket = BucketEntry::decode(&value)?.into_bucket(&key)?;
        buckets.insert(bucket.name.clone(), bucket);
    }
    Ok(buckets)
}

#[cfg(test)]
mod tests;
