//! Whether an index belongs to the log beside it, and bringing it up to the log where it does.

use tradewind_core::error::Result;

use super::evidence::{Gaps, Verdict, segment_number};
use super::index::entries::{Coverage, SegmentEntry};
use super::index::{Index, keys};
use super::log::Log;
use super::loss::{Loss, LossProof, LostRange};
use super::recovery::Recovery;
use super::replay::{Mode, Survey, take_log};

/// How an index stands to the log.
pub(super) enum Fit {
    /// It covers the log; what it lacked was taken in.
    Current(Coverage),
    /// It never covered anything: its making was interrupted.
    Empty,
    /// It is an older copy, of which parts cannot be brought up. Nothing is known to be lost.
    Outdated(String),
    /// It knows of acknowledged changes that are not there any more. It was not changed.
    Lost(Loss),
    /// Either that, or it is an older copy.
    Doubtful(Loss),
}

/// Compares an index with the log and takes in what it lacks. Changes nothing of an index that proves a loss.
pub(super) fn bring_up(index: &Index, log: &Log, recovery: &mut Recovery) -> Result<Fit> {
    let Some(coverage) = index.coverage()? else { return Ok(Fit::Empty) };
    let gaps = Gaps::find(index, coverage, log)?;
    if !gaps.is_empty() {
        return Ok(match gaps.judge(index, coverage, log)? {
            Verdict::Lost(loss) => Fit::Lost(loss),
            Verdict::Doubtful(loss) => Fit::Doubtful(loss),
            Verdict::Harmless => {
                Fit::Outdated(format!("the index knows of what is gone, and counts no more: {gaps}"))
            }
        });
    }
    // Segments made after the index was last written: compaction tells the index before it removes one.
    let missing = missing_numbers(log, coverage.next_segment);
    if !missing.is_empty() {
        return Ok(Fit::Doubtful(Loss::new(LossProof::Index, missing)));
    }
    take_in_tail(index, coverage, log, recovery)
}

/// The segments from a number on that are not there though later ones are.
fn missing_numbers(log: &Log, from: u32) -> Vec<LostRange> {
    let mut missing = Vec::new();
    let mut expected = from;
    for number in log.numbers.iter().filter(|number| **number >= from) {
        missing.extend((expected..*number).map(|segment| LostRange { segment, from: 0, until: None }));
        expected = number.saturating_add(1);
    }
    missing
}

/// Takes in the log behind what the index covers.
pub(super) fn take_in_tail(
    index: &Index,
    coverage: Coverage,
    log: &Log,
    recovery: &mut Recovery,
) -> Result<Fit> {
    log.make_durable(coverage.covered)?;
    let known = Survey::of(log, coverage)?;
    take_log(log, index, Mode::Onward(coverage.covered), &known, recovery)?;
    // What was taken in may refer to a segment that was made, filled and removed after this index was written.
    let gaps = Gaps::find(index, known.coverage, log)?.counting();
    if !gaps.is_empty() {
        return Ok(Fit::Doubtful(gaps.as_loss(LossProof::Index)));
    }
    Ok(Fit::Current(known.coverage))
}

/// Gives an end to the entries of segments that an earlier version left without one: where their files end now. No
/// segment is written to after a start.
pub(super) fn note_ends(index: &Index, log: &Log) -> Result<()> {
    let mut changes = index.changes();
    for entry in index.view().prefix(&[keys::space::SEGMENT]) {
        let (key, value) = entry?;
        let entry = SegmentEntry::decode(&value)?;
        let file = log.segments.get(segment_number(&key)?);
        if let Some(segment) = file.filter(|_| entry.end == 0 && !entry.retired) {
            log.make_segment_durable(&segment)?;
            changes.put(key.to_vec(), SegmentEntry { end: segment.bytes(), ..entry }.encode());
        }
    }
    changes.apply()
}
