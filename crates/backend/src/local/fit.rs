//! Checks that an index belongs to the log next to it, and brings it up to date.

use tradewind_core::error::Result;

use super::evidence::{Gaps, Verdict, segment_number};
use super::index::entries::{Coverage, SegmentEntry};
use super::index::{Index, keys};
use super::log::Log;
use super::loss::{Loss, LossProof, LostRange};
use super::recovery::Recovery;
use super::replay::{Mode, Survey, take_log};

/// The relation of an index to the log.
pub(super) enum Fit {
    /// It covers the log; missing records were applied.
    Current(Coverage),
    /// It never covered anything: its creation was interrupted.
    Empty,
    /// It is an older copy that cannot be brought up to date completely. No loss is known.
    Outdated(String),
    /// It refers to acknowledged changes that are lost. It was not changed.
    Lost(Loss),
    /// Either that, or it is an older copy.
    Doubtful(Loss),
}

/// Compares an index with the log and applies missing records. Does not change an index that proves a loss.
pub(super) fn bring_up(index: &Index, log: &Log, recovery: &mut Recovery) -> Result<Fit> {
    let Some(coverage) = index.coverage()? else { return Ok(Fit::Empty) };
    let gaps = Gaps::find(index, coverage, log)?;
    if !gaps.is_empty() {
        return Ok(match gaps.judge(index, coverage, log)? {
            Verdict::Lost(loss) => Fit::Lost(loss),
            Verdict::Doubtful(loss) => Fit::Doubtful(loss),
            Verdict::Harmless => {
                Fit::Outdated(format!("the index refers to removed data that no longer counts: {gaps}"))
            }
        });
    }
    // Segments created after the index was last written: compaction records the removal of one in the index first.
    let missing = missing_numbers(log, coverage.next_segment);
    if !missing.is_empty() {
        return Ok(Fit::Doubtful(Loss::new(LossProof::Index, missing)));
    }
    take_in_tail(index, coverage, log, recovery)
}

/// The missing segment numbers from `from` on that precede an existing one.
fn missing_numbers(log: &Log, from: u32) -> Vec<LostRange> {
    let mut missing = Vec::new();
    let mut expected = from;
    for number in log.numbers.iter().filter(|number| **number >= from) {
        missing.extend((expected..*number).map(|segment| LostRange { segment, from: 0, until: None }));
        expected = number.saturating_add(1);
    }
    missing
}

/// Applies the log after the index's coverage.
pub(super) fn take_in_tail(
    index: &Index,
    coverage: Coverage,
    log: &Log,
    recovery: &mut Recovery,
) -> Result<Fit> {
    log.make_durable(coverage.covered)?;
    let survey = Survey::of(log, coverage)?;
    take_log(log, index, Mode::Onward(coverage.covered), &survey, recovery)?;
    // The applied records may refer to a segment that was created, filled and removed after this index was written.
    let gaps = Gaps::find(index, survey.coverage, log)?.counting();
    if !gaps.is_empty() {
        return Ok(Fit::Doubtful(gaps.as_loss(LossProof::Index)));
    }
    Ok(Fit::Current(survey.coverage))
}

/// Records the current file lengths as ends of segments for which an earlier version recorded none. No segment is
/// written to after a start.
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
