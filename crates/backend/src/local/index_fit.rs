//! Checks that an index belongs to the log next to it, and brings it up to date.

use tradewind_core::error::Result;

use super::index::entries::{Coverage, SegmentEntry};
use super::index::{Index, keys};
use super::loss::{Loss, LossProof, LostRange};
use super::loss_evidence::{LossVerdict, MissingRanges, segment_number};
use super::recovery::Recovery;
use super::replay::{LogSurvey, ReplayMode, replay_log};
use super::segment_files::SegmentFiles;

/// The relation of an index to the log.
pub(super) enum IndexFit {
    /// It covers the whole log; the records beyond its coverage were replayed.
    Current(Coverage),
    /// It has no coverage: its creation was interrupted, or it lost files.
    Empty,
    /// It is an older copy that the log cannot bring up to date. No loss is known.
    Outdated(String),
    /// It refers to acknowledged changes that are lost. It was not changed.
    Lost(Loss),
    /// Either a loss, or the index is an older copy: the two cannot be distinguished.
    Ambiguous(Loss),
}

/// Compares an index with the log and replays the records beyond its coverage. Does not change an index that proves a loss.
pub(super) fn catch_up(index: &Index, files: &SegmentFiles, recovery: &mut Recovery) -> Result<IndexFit> {
    let Some(coverage) = index.coverage()? else { return Ok(IndexFit::Empty) };
    let missing = MissingRanges::find_in_index(index, coverage, files)?;
    if !missing.is_empty() {
        return Ok(match missing.classify(index, coverage, files)? {
            LossVerdict::Lost(loss) => IndexFit::Lost(loss),
            LossVerdict::Ambiguous(loss) => IndexFit::Ambiguous(loss),
            LossVerdict::Harmless => IndexFit::Outdated(format!(
                "the index refers to removed data that no longer counts: {missing}"
            )),
        });
    }
    // Segments that were created after the index was last written, and are missing. A compaction would have recorded
    // their removal in this index first, and it has no such record. So they are lost, or the index is an older copy.
    let missing_segments = missing_segments(files, coverage.next_segment);
    if !missing_segments.is_empty() {
        return Ok(IndexFit::Ambiguous(Loss::new(LossProof::Index, missing_segments)));
    }
    replay_tail(index, coverage, files, recovery)
}

/// The missing segments whose number is at least `from` and precedes an existing one.
fn missing_segments(files: &SegmentFiles, from: u32) -> Vec<LostRange> {
    let mut missing = Vec::new();
    let mut expected = from;
    for number in files.numbers.iter().filter(|number| **number >= from) {
        missing.extend((expected..*number).map(|segment| LostRange {
            segment,
            existing_bytes: 0,
            recorded_end: None,
        }));
        expected = number.saturating_add(1);
    }
    missing
}

/// Applies the log after the index's coverage.
pub(super) fn replay_tail(
    index: &Index,
    coverage: Coverage,
    files: &SegmentFiles,
    recovery: &mut Recovery,
) -> Result<IndexFit> {
    files.make_log_durable(coverage.covered_end)?;
    let survey = LogSurvey::scan(files, coverage)?;
    replay_log(files, index, ReplayMode::Resume(coverage.covered_end), &survey, recovery)?;
    // The applied records may refer to a segment that was created, filled and removed after this index was written.
    let missing = MissingRanges::find_in_index(index, survey.coverage, files)?.relevant();
    if !missing.is_empty() {
        return Ok(IndexFit::Ambiguous(missing.to_loss(LossProof::Index)));
    }
    Ok(IndexFit::Current(survey.coverage))
}

/// Records the current ends of segments for which an earlier version recorded none, or the length of a file with zeros
/// after its records. That is safe, because an existing segment is never written to after the store is opened. An end
/// that is only assumed is not recorded.
pub(super) fn record_segment_ends(index: &Index, files: &SegmentFiles) -> Result<()> {
    let mut changes = index.changes();
    for entry in index.snapshot().prefix(&[keys::prefix::SEGMENT]) {
        let (key, value) = entry?;
        let entry = SegmentEntry::decode(&value)?;
        let number = segment_number(&key)?;
        let is_wrong = |end| entry.end == 0 || entry.end > end;
        if !entry.is_retired
            && files.is_end_verified(number)
            && let Some(segment) = files.segments.get(number).filter(|segment| is_wrong(segment.bytes()))
        {
            files.make_segment_durable(&segment)?;
            changes.put(key.to_vec(), SegmentEntry { end: segment.bytes(), ..entry }.encode());
        }
    }
    changes.apply()
}
