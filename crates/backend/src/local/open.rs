//! Opening a store: what is on disk becomes an open store again. The index says how far it covers the
//! log; the rest is replayed. An index that is broken, or that is an older copy, is made anew. One that proves that
//! acknowledged changes are lost is kept, and the store is not opened, until somebody says to go on without them.

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

/// What becomes of an index that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexUse {
    /// It is used if it can be.
    Keep,
    /// It is made anew, once it has been asked whether anything is lost.
    Rebuild,
}

impl Local {
    /// Opens the store in `root`, making an empty one where there is none.
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

/// What was found of the index that was there.
enum Found {
    Ready(Box<Ready>),
    Nothing,
    /// Its making was interrupted.
    Empty(Index),
    /// It is of no use, and why.
    Outdated(Index, String),
    Lost(Index, Loss),
    Doubtful(Index, Loss),
}

/// An index that another one is to take the place of.
#[derive(Default)]
struct Former {
    /// `None` if it must not be read.
    index: Option<Index>,
    /// The loss that it proves.
    loss: Option<Loss>,
    /// A loss, or else the index is an older copy.
    doubt: Option<Loss>,
}

impl From<Index> for Former {
    fn from(index: Index) -> Self {
        Self { index: Some(index), loss: None, doubt: None }
    }
}

/// What an index is made ready from, and how.
struct Opening<'a> {
    layout: &'a Layout,
    log: &'a Log,
    accept_loss: bool,
    index_use: IndexUse,
}

impl Opening<'_> {
    /// The index, brought up to the log. One that is broken, or an older copy, is not worth a repair: it is made
    /// anew. One that proves a loss stays as it is, with an error, unless the loss is accepted.
    fn ready_index(&self, recovery: &mut Recovery) -> Result<Ready> {
        let Self { layout, log, index_use, .. } = self;
        // The library panics on some of what it did not write, wherever it is read.
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
                    "there is no index; it is made anew from the log; without it nobody knows whether the log lost \
                     its end"
                );
                Former::default()
            }
            Ok(Found::Empty(index)) => {
                tracing::warn!("the making of the index was interrupted; it is made anew from the log");
                Former::from(index)
            }
            Ok(Found::Outdated(index, why)) => {
                tracing::error!(why, "the index is not of this log; it is made anew from it");
                Former::from(index)
            }
            Ok(Found::Lost(index, loss)) => Former { loss: Some(loss), ..Former::from(index) },
            Ok(Found::Doubtful(index, doubt)) => {
                tracing::warn!(
                    doubt = %doubt,
                    "the index is an older copy, or parts of the log are lost, which cannot be told apart; the index \
                     is made anew from the log, and the one that was there is kept as index.doubtful"
                );
                Former { doubt: Some(doubt), ..Former::from(index) }
            }
            Err(e) if e.reason() == Reason::CorruptData => {
                tracing::error!(
                    error = ?e,
                    "the index cannot be used; it is made anew from the log; without it nobody knows whether the log \
                     lost its end"
                );
                // The library may have dropped what it could not read, and would take the rest for whole.
                layout.give_up_index();
                Former::default()
            }
            Err(e) => return Err(e),
        };
        *recovery = Recovery::default();
        self.replace(former, recovery)
    }

    /// Makes the index anew. The one that is there stays where a loss is not accepted.
    fn replace(&self, former: Former, recovery: &mut Recovery) -> Result<Ready> {
        let Self { layout, log, .. } = self;
        let Former { index, mut loss, doubt } = former;
        let mut known = Survey::of(log, Coverage::NOTHING)?;
        let legacy = index.as_ref().map(|index| Legacy::of(index, log)).transpose()?;
        let mut legacy = legacy.unwrap_or_default();
        let is_accepted = |end| known.is_voided(end) || legacy.has_accepted(end);
        let cuts = Gaps::find_in_log(log, known.durable_ends(), is_accepted);
        if loss.is_none() && !cuts.is_empty() {
            loss = Some(cuts.as_loss(LossProof::Log));
        }
        if let Some(loss) = loss {
            self.accept(&loss)?;
            recovery.loss = Some(loss);
        }
        legacy.accept(cuts.accepted_ends());
        legacy.raise(&mut known.coverage);
        if let Some(index) = index {
            let is_emptied = |segment: &Segment| {
                [&recovery.loss, &doubt].into_iter().flatten().all(|loss| loss.spares_copies_of(segment))
            };
            if remove_retired(layout, &index, &log.segments, is_emptied)? > 0 {
                let numbers = known.coverage;
                known = Survey::of(log, Coverage::NOTHING)?;
                known.coverage.raise_numbers(numbers);
            }
        }
        if doubt.is_some() {
            layout.put_index_aside()?;
        } else {
            layout.remove_index()?;
        }
        // Of the index that is gone.
        layout.end_opening();
        let index = Index::open(&layout.index())?;
        legacy.enter(&index, known.coverage)?;
        let coverage = if log.segments.is_empty() {
            known.coverage
        } else {
            recovery.reindexed = true;
            reindex(log, &index, &known, recovery)?
        };
        if recovery.unreadable.count > 0 {
            tracing::error!(
                unreadable = %recovery.unreadable,
                "the data of objects is damaged or gone: they cannot be read; see `tradewind store check`"
            );
        }
        settle(layout, index, log, coverage)
    }

    /// Goes on without what is lost, if that is wanted.
    fn accept(&self, loss: &Loss) -> Result<()> {
        if self.accept_loss {
            tracing::warn!(loss = %loss, "acknowledged changes are lost; the store goes on without them, as asked for");
            return Ok(());
        }
        let root = self.layout.root().display();
        Err(Error::new(
            Reason::CorruptData,
            format!(
                "acknowledged changes are lost: {loss}. The store is not opened. Put the missing files back into \
                 {root}/segments; `tradewind store check {root}` tells more. To go on without what is lost, start \
                 once with `tradewind serve --accept-loss`, or use `tradewind store reindex {root} --accept-loss`"
            ),
        ))
    }

    /// Opens the index that is there and brings it up to the log.
    fn open_index(&self, recovery: &mut Recovery) -> Result<Found> {
        let Self { layout, log, .. } = self;
        if !layout.index().exists() {
            return Ok(Found::Nothing);
        }
        if layout.begin_opening() {
            return Err(Error::new(Reason::CorruptData, "it broke in use, or took the process down"));
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
            // The library leaves this of an index that lost files, and finds parts of it when it is opened again.
            Fit::Empty => {
                return Err(Error::new(Reason::CorruptData, "it does not say what it covers"));
            }
            Fit::Outdated(why) => Found::Outdated(index, why),
            Fit::Lost(loss) => Found::Lost(index, loss),
            Fit::Doubtful(doubt) => Found::Doubtful(index, doubt),
        })
    }
}

/// Does and reads what is left to do and to read.
fn settle(layout: &Layout, index: Index, log: &Log, mut coverage: Coverage) -> Result<Ready> {
    remove_retired(layout, &index, &log.segments, |_| true)?;
    let last = log.numbers.last().copied().unwrap_or(0).max(coverage.covered.segment);
    coverage.next_segment = coverage.next_segment.max(last + 1);
    reserve_numbers(&index, coverage)?;
    let (buckets, unsaid) = (read_buckets(&index)?, Unsaid::of(&index)?);
    Ok(Ready { index, coverage, buckets, unsaid })
}

/// Makes durable that the numbers used from now on are used: those given to writes that were never
/// committed must not be given out again after a crash.
fn reserve_numbers(index: &Index, coverage: Coverage) -> Result<()> {
    let reserved = Coverage { next_id: coverage.next_id + ID_MARGIN, ..coverage };
    let mut changes = index.changes();
    changes.remove(keys::NUMBERS);
    apply_with_coverage(changes, reserved)?;
    index.checkpoint()
}

/// Removes segments that were emptied before the last stop, and of which that still holds. Returns how many there were.
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
