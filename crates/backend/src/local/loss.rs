//! Losses of acknowledged data, and their proof. The index is written after the log is durable. So if the index covers
//! more of the log than exists, the log has lost its end. Likewise, if a record states that a segment was durable up to
//! an offset and the segment ends before it, the segment has lost its end. See
//! `docs/decisions/0029-a-lost-log-is-reported.md`.

use std::fmt;

use super::segment::{Segment, SegmentKind};

/// Names retained per kind; further ones are only counted.
const MAX_NAMES: usize = 100_000;
/// Names in a message.
const MAX_SHOWN_NAMES: usize = 10;

/// The proof of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossProof {
    /// The index covers more of the log, or refers to more data, than exists.
    Index,
    /// Later records state that more of a segment was durable than exists. The lost data cannot be named.
    Log,
}

/// A lost segment, or the lost end of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRange {
    /// The segment's number, which its file name has in hexadecimal.
    pub segment: u32,
    /// The end of what the existing file holds, without zeros after it; 0 if it is missing or empty.
    pub existing_bytes: u64,
    /// The offset up to which the segment held records; `None` if unknown.
    pub recorded_end: Option<u64>,
}

impl fmt::Display for LostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, existing_bytes, recorded_end } = self;
        match (existing_bytes, recorded_end) {
            (0, Some(end)) => {
                write!(f, "segment {segment:08x} is missing (it held records up to offset {end})")
            }
            (0, None) => write!(f, "segment {segment:08x} is missing"),
            (bytes, Some(end)) => {
                write!(f, "segment {segment:08x} ends at offset {bytes} (it held records up to offset {end})")
            }
            (bytes, None) => write!(f, "segment {segment:08x} ends at offset {bytes}"),
        }
    }
}

/// A list of names that may be long: the count, and the first 100,000 names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameList {
    /// The number of names.
    pub count: u64,
    /// The first 100,000.
    pub first_names: Vec<String>,
}

impl NameList {
    /// Adds a name.
    pub(super) fn add(&mut self, name: String) {
        self.count += 1;
        if self.first_names.len() < MAX_NAMES {
            self.first_names.push(name);
        }
    }
}

impl fmt::Display for NameList {
    /// `2 (a/b, a/c)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<&str> = self.first_names.iter().take(MAX_SHOWN_NAMES).map(String::as_str).collect();
        write!(f, "{} ({}", self.count, shown.join(", "))?;
        if self.count > shown.len() as u64 { f.write_str(", ...)") } else { f.write_str(")") }
    }
}

/// Acknowledged changes that are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Its proof.
    pub proof: LossProof,
    /// The ranges of the lost records. Empty if the segments exist but records in them are damaged.
    pub ranges: Vec<LostRange>,
    /// Objects (`bucket/key`), or versions of them, whose newest record is lost. An older record counts again.
    pub objects: NameList,
    /// The number of `objects` with an older record, or a deletion, on disk.
    pub objects_with_older_records: u64,
    /// Deleted objects (`bucket/key`), or versions, whose deletion is lost while an older record is on disk, which
    /// counts again.
    pub deletions: NameList,
    /// Objects, and parts of unfinished uploads, whose record exists but whose data is lost: they cannot be read.
    pub unreadable: NameList,
    /// Buckets whose creation is lost.
    pub buckets: NameList,
    /// Other lost records: ends of buckets, uploads and their parts and ends, voids.
    pub other_records: u64,
}

impl Loss {
    /// A loss of which only the ranges are known.
    pub(crate) fn new(proof: LossProof, ranges: Vec<LostRange>) -> Self {
        Self {
            proof,
            ranges,
            objects: NameList::default(),
            objects_with_older_records: 0,
            deletions: NameList::default(),
            unreadable: NameList::default(),
            buckets: NameList::default(),
            other_records: 0,
        }
    }

    /// Returns true if the copies that compaction made from this segment are certainly not lost. Either nothing is
    /// lost, or, for a log segment, only ranges of segments that are not later: copies of log records are in later
    /// ones. If records are damaged at unknown places (no ranges), it is not certain.
    pub(super) fn are_copies_intact(&self, retired: &Segment) -> bool {
        let is_later = |range: &LostRange| range.segment > retired.number;
        self.is_empty()
            || (retired.kind == SegmentKind::Log
                && !self.ranges.is_empty()
                && !self.ranges.iter().any(is_later))
    }

    /// Returns true if no record and no data is known to be lost.
    pub(crate) const fn is_empty(&self) -> bool {
        let Self { objects, deletions, unreadable, buckets, other_records, .. } = self;
        objects.count == 0
            && deletions.count == 0
            && unreadable.count == 0
            && buckets.count == 0
            && *other_records == 0
    }
}

impl fmt::Display for Loss {
    /// A single line: the lost ranges and what they held.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.ranges.iter().map(ToString::to_string).collect();
        f.write_str(if ranges.is_empty() { "records of the log are damaged" } else { "" })?;
        f.write_str(&ranges.join("; "))?;
        let mut lost = Vec::new();
        if self.objects.count > 0 {
            lost.push(format!(
                "newest records of objects: {}, of which {} have an older record that counts again",
                self.objects, self.objects_with_older_records
            ));
        }
        if self.deletions.count > 0 {
            lost.push(format!("deletions of objects, which reappear: {}", self.deletions));
        }
        if self.unreadable.count > 0 {
            lost.push(format!("data of objects, which cannot be read: {}", self.unreadable));
        }
        if self.buckets.count > 0 {
            lost.push(format!("creations of buckets: {}", self.buckets));
        }
        if self.other_records > 0 {
            lost.push(format!("other records: {}", self.other_records));
        }
        match (self.proof, lost.is_empty()) {
            (_, false) => write!(f, "; lost: {}", lost.join("; ")),
            (LossProof::Index, true) => f.write_str("; no current data is known to be lost"),
            (LossProof::Log, true) => f.write_str("; without an index, the lost data cannot be named"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_limit_are_only_counted() {
        let mut names = NameList::default();
        (0..MAX_NAMES + 5).for_each(|n| names.add(n.to_string()));
        assert_eq!((names.count, names.first_names.len()), (MAX_NAMES as u64 + 5, MAX_NAMES));
        assert_eq!(names.to_string(), "100005 (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...)");
    }

    #[test]
    fn loss_display_names_position_and_objects() {
        let ranges = vec![
            LostRange { segment: 5, existing_bytes: 0, recorded_end: Some(4096) },
            LostRange { segment: 16, existing_bytes: 32, recorded_end: Some(64) },
        ];
        let mut loss = Loss::new(LossProof::Index, ranges);
        assert!(loss.is_empty());
        loss.objects.add("b/k".to_owned());
        loss.objects_with_older_records = 1;
        loss.deletions.add("b/gone".to_owned());
        assert_eq!(
            loss.to_string(),
            "segment 00000005 is missing (it held records up to offset 4096); segment 00000010 ends at offset \
             32 (it held records up to offset 64); lost: newest records of objects: 1 (b/k), of which 1 have an older record that \
             counts again; deletions of objects, which reappear: 1 (b/gone)"
        );
    }
}
