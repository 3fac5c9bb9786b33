//! Evidence of lost segments: references of the index to parts of the log, or to extents, that are missing.
//!
//! A segment that ends before the index records has lost its end; zeros after what was written do not count
//! (`written_end`). A missing segment has two explanations: it was lost, or a compaction removed it after this index was
//! written, and the index is an older copy.
//!
//! Compaction removes no live data without a replacement. Every live record has a newer version, or a copy, in the log
//! after the index's coverage, and every live extent has another copy. Data without a replacement is lost. Only if part
//! of the log after the coverage is missing as well do both explanations remain possible.

use std::collections::{BTreeMap, HashMap};

use tradewind_core::error::Result;

use super::apply::NO_LOCATION;
use super::fields::malformed;
use super::frame::RecordKind;
use super::index::entries::{
    BucketEntry, Coverage, DeletedEntry, ObjectEntry, PartEntry, RecordLocation, SegmentEntry, UploadEntry,
    UploadRecords,
};
use super::index::{Index, IndexSnapshot, keys};
use super::index_locations::segments_with_records_after;
use super::loss::{Loss, LossProof, LostRange};
use super::position::Position;
use super::record::{BucketId, ExtentRun, Record, VersionName};
use super::reindex::manifest_runs;
use super::replay::LogSurvey;
use super::scan::{ScanItem, ScannedRecord, Scanner, read_payload, record_at};
use super::segment::SegmentKind;
use super::segment_files::SegmentFiles;

/// The ranges of segments that are missing according to an index or to later records. At most one per segment, at its
/// end.
pub(super) struct MissingRanges(BTreeMap<u32, MissingRange>);

struct MissingRange {
    /// The end of what the existing file holds; 0 if it is missing.
    existing_bytes: u32,
    /// The offset up to which the segment held records, if known.
    recorded_end: Option<u32>,
    /// The kind of the segment if its file exists.
    kind: Option<SegmentKind>,
    /// True if the index refers to data in the segment.
    is_live: bool,
}

/// Expected contents of a segment, whether or not its file exists.
#[derive(Default)]
struct ExpectedSegment {
    /// The offset up to which it held records; 0 if unknown.
    recorded_end: u32,
    /// True if the index refers to data in it.
    is_live: bool,
}

/// The interpretation of missing ranges.
pub(super) enum LossVerdict {
    /// Acknowledged data is lost.
    Lost(Loss),
    /// Either acknowledged data is lost, or the index is an older copy and the data was deleted since.
    Ambiguous(Loss),
    /// Nothing is lost: the index is an older copy, or the missing data no longer counted.
    Harmless,
}

impl MissingRanges {
    /// Compares the index's record of each segment with its file.
    pub fn find_in_index(index: &Index, coverage: Coverage, files: &SegmentFiles) -> Result<Self> {
        let covered = coverage.covered_end;
        let mut expected_segments = BTreeMap::new();
        if files.segments.get(covered.segment).is_some() {
            let expected = ExpectedSegment { recorded_end: covered.offset, is_live: false };
            expected_segments.insert(covered.segment, expected);
        }
        for entry in index.snapshot().prefix(&[keys::prefix::SEGMENT]) {
            let (key, value) = entry?;
            let number = segment_number(&key)?;
            let entry = SegmentEntry::decode(&value)?;
            if entry.is_retired {
                expected_segments.remove(&number);
            } else {
                let covered_end = if number == covered.segment { covered.offset } else { 0 };
                let expected = ExpectedSegment {
                    recorded_end: entry.end.max(covered_end),
                    is_live: entry.live_bytes > 0,
                };
                expected_segments.insert(number, expected);
            }
        }
        let mut missing = Self::compare(files, expected_segments);
        missing.drop_file_lengths(index, covered, files)?;
        Ok(missing)
    }

    /// Drops the ranges that consist of zeros and were never records: an earlier version recorded the length of the file
    /// as the end of its records, zeros included. Neither the index's coverage nor a location in it is in such a range.
    fn drop_file_lengths(&mut self, index: &Index, covered: Position, files: &SegmentFiles) -> Result<()> {
        let may_be_length = |number: u32, range: &MissingRange| {
            range.recorded_end.is_some_and(|end| files.is_length_with_zeros(number, end))
                && !(number == covered.segment && covered.offset > range.existing_bytes)
        };
        let ends: BTreeMap<u32, u32> = self
            .0
            .iter()
            .filter(|(number, range)| may_be_length(**number, range))
            .map(|(number, range)| (*number, range.existing_bytes))
            .collect();
        if !ends.is_empty() {
            let referenced = segments_with_records_after(&index.snapshot(), &ends)?;
            self.0.retain(|number, _| !ends.contains_key(number) || referenced.contains(number));
        }
        Ok(())
    }

    /// Compares the ends that later records call durable with the existing files, except for accepted ends. Ignores
    /// missing files: the log alone does not show whether a compaction removed them. `is_voided` returns true if a void
    /// names a position.
    pub fn find_in_log(
        files: &SegmentFiles,
        durable_ends: impl IntoIterator<Item = (u32, u32)>,
        is_voided: impl Fn(Position) -> bool,
    ) -> Self {
        let existing = durable_ends.into_iter().filter(|(segment, _)| files.segments.get(*segment).is_some());
        let expected_segments =
            existing.map(|(segment, end)| (segment, ExpectedSegment { recorded_end: end, is_live: true }));
        let mut missing = Self::compare(files, expected_segments.collect());
        missing.0.retain(|segment, _| !files.accepted_ends(*segment).any(&is_voided));
        missing
    }

    /// The positions by which voids mark the ends of these segments as accepted. Only for ranges found in the log.
    pub fn accepted_ends(&self) -> impl Iterator<Item = Position> {
        self.0.iter().map(|(segment, range)| Position::accepted_end(*segment, range.existing_bytes))
    }

    fn compare(files: &SegmentFiles, expected_segments: BTreeMap<u32, ExpectedSegment>) -> Self {
        let mut missing = BTreeMap::new();
        for (number, ExpectedSegment { recorded_end, is_live }) in expected_segments {
            let segment = files.segments.get(number);
            let existing_bytes = segment.as_ref().map_or(0, |segment| segment.bytes());
            if segment.is_some() && existing_bytes >= recorded_end {
                continue;
            }
            let recorded_end = (recorded_end > 0).then_some(recorded_end);
            let kind = segment.map(|segment| segment.kind);
            missing.insert(number, MissingRange { existing_bytes, recorded_end, kind, is_live });
        }
        Self(missing)
    }

    /// Keeps only the ranges with live data and those of truncated files.
    pub fn relevant(mut self) -> Self {
        self.0.retain(|_, range| range.is_live || range.kind.is_some());
        self
    }

    /// Returns true if nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A loss of these ranges without further details.
    pub fn to_loss(&self, proof: LossProof) -> Loss {
        Loss::new(proof, self.ranges().collect())
    }

    fn ranges(&self) -> impl Iterator<Item = LostRange> {
        self.0.iter().map(|(segment, range)| LostRange {
            segment: *segment,
            existing_bytes: range.existing_bytes.into(),
            recorded_end: range.recorded_end.map(u64::from),
        })
    }

    fn contains(&self, location: RecordLocation) -> bool {
        location != NO_LOCATION
            && self
                .0
                .get(&location.position.segment)
                .is_some_and(|range| location.end() > range.existing_bytes)
    }

    /// Returns true if a log segment has lost its end.
    fn is_log_truncated(&self) -> bool {
        self.0.values().any(|range| range.kind == Some(SegmentKind::Log))
    }

    /// Determines what is lost with these ranges, by a walk through the whole index.
    pub fn classify(&self, index: &Index, coverage: Coverage, files: &SegmentFiles) -> Result<LossVerdict> {
        let tail = LogTail::read(files, coverage)?;
        let snapshot = index.snapshot();
        let lost_extents = LostExtents::find(&snapshot, files, self)?;
        let is_lost = |location: RecordLocation| Ok(self.contains(location));
        let loss = self.to_loss(LossProof::Index);
        let loss = LossSearch { is_lost: &is_lost, tail: &tail, names: bucket_names(&snapshot)?, loss }.run(
            &snapshot,
            files,
            &lost_extents,
        )?;
        Ok(if self.is_log_truncated() || loss.unreadable.count > 0 {
            LossVerdict::Lost(loss)
        } else if loss.is_empty() {
            LossVerdict::Harmless
        } else if tail.may_lack_changes {
            LossVerdict::Ambiguous(loss)
        } else {
            LossVerdict::Lost(loss)
        })
    }
}

impl std::fmt::Display for MissingRanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges: Vec<String> = self.ranges().map(|range| range.to_string()).collect();
        f.write_str(&ranges.join("; "))
    }
}

/// The number of a segment in an index key.
pub(super) fn segment_number(key: &[u8]) -> Result<u32> {
    u32::try_from(keys::number(key)?).map_err(|_| malformed("the index has an out-of-range segment number"))
}

fn bucket_names(snapshot: &IndexSnapshot) -> Result<HashMap<BucketId, String>> {
    let mut names = HashMap::new();
    for entry in snapshot.prefix(&[keys::prefix::BUCKET]) {
        let (key, value) = entry?;
        let bucket = BucketEntry::decode(&value)?.into_bucket(&key)?;
        names.insert(bucket.id, bucket.name);
    }
    Ok(names)
}

/// The log after the index's coverage.
struct LogTail {
    /// The highest seq in it of each index key; `u64::MAX` for the end of an upload, which supersedes everything.
    newest_seqs: HashMap<Vec<u8>, u64>,
    /// True if it has records, and a compaction may have removed other records from it.
    may_lack_changes: bool,
}

impl LogTail {
    fn read(files: &SegmentFiles, coverage: Coverage) -> Result<Self> {
        let survey = LogSurvey::scan(files, coverage)?;
        let mut newest_seqs = HashMap::new();
        let mut has_records = false;
        for (segment, first_offset) in files.log_segments_from(coverage.covered_end) {
            let mut scanner = Scanner::new(segment, files.salt, first_offset);
            while let Some(item) = scanner.next()? {
                let ScanItem::Record(scanned) = item else { continue };
                has_records = true;
                if survey.is_valid(scanned.position) {
                    add_newest_seqs(&mut newest_seqs, &scanned)?;
                }
            }
        }
        let is_first_segment_missing = files.segments.get(coverage.covered_end.segment).is_none();
        let newer = files.numbers.iter().filter(|number| **number >= coverage.next_segment);
        let has_removed_segments =
            newer.zip(coverage.next_segment..).any(|(number, expected)| *number != expected);
        Ok(Self {
            newest_seqs,
            may_lack_changes: has_records && (is_first_segment_missing || has_removed_segments),
        })
    }

    fn supersedes(&self, key: &[u8], seq: u64) -> bool {
        self.newest_seqs.get(key).is_some_and(|newest| *newest >= seq)
    }

    fn has(&self, key: &[u8]) -> bool {
        self.newest_seqs.contains_key(key)
    }
}

/// The key under which the newest seq of a version is noted, wherever its index entry is.
fn version_identity(name: &VersionName) -> Vec<u8> {
    keys::version(name.bucket, &name.key, name.slot)
}

fn add_newest_seqs(newest_seqs: &mut HashMap<Vec<u8>, u64>, scanned: &ScannedRecord) -> Result<()> {
    let seq = scanned.header.seq;
    let mut add = |key: Vec<u8>, seq: u64| {
        let newest_seq = newest_seqs.entry(key).or_default();
        *newest_seq = seq.max(*newest_seq);
    };
    match scanned.record()? {
        Record::BucketCreated(bucket) => add(keys::bucket(bucket.id).into(), seq),
        Record::BucketDeleted { id } => add(keys::bucket_deleted(id).into(), seq),
        Record::Object(object) => {
            add(
                version_identity(&VersionName {
                    bucket: object.bucket,
                    slot: object.slot(seq),
                    key: object.key.clone(),
                }),
                seq,
            );
            if let Some(upload) = object.upload {
                add(keys::upload_ended(upload).into(), u64::MAX);
            }
        }
        Record::Tombstone(name) => add(version_identity(&name), seq),
        Record::UploadCreated(_) => add(keys::upload(seq).into(), seq),
        Record::Part(part) => add(keys::part(part.upload, part.number).into(), seq),
        Record::UploadEnded { upload } => add(keys::upload_ended(upload).into(), u64::MAX),
        Record::Void { at } => add(keys::void(at).into(), seq),
        Record::Extent { .. } => {}
    }
    Ok(())
}

/// The ids, in order, of extents that the index locates in missing ranges and that have no copy elsewhere.
struct LostExtents(Vec<u64>);

impl LostExtents {
    fn find(snapshot: &IndexSnapshot, files: &SegmentFiles, missing: &MissingRanges) -> Result<Self> {
        let mut lost = Vec::new();
        for entry in snapshot.prefix(&[keys::prefix::EXTENT]) {
            let (key, value) = entry?;
            if missing.contains(RecordLocation::decode(&value)?) {
                lost.push(keys::number(&key)?);
            }
        }
        lost.sort_unstable();
        if lost.is_empty() {
            return Ok(Self(lost));
        }
        let mut found = std::collections::HashSet::new();
        for segment in files.bulk_segments() {
            let mut scanner = Scanner::new(segment.clone(), files.salt, 0);
            while let Some(item) = scanner.next()? {
                let ScanItem::Record(scanned) = item else { continue };
                let Record::Extent { id } = scanned.record()? else { continue };
                if lost.binary_search(&id).is_ok() && read_payload(&segment, &scanned)?.is_some() {
                    found.insert(id);
                }
            }
        }
        lost.retain(|id| !found.contains(id));
        Ok(Self(lost))
    }

    fn overlaps(&self, runs: &[ExtentRun]) -> bool {
        let has_lost_extent = |run: &ExtentRun| {
            let ids = run.ids();
            let first_candidate = self.0.partition_point(|id| *id < ids.start);
            self.0.get(first_candidate).is_some_and(|id| ids.contains(id))
        };
        runs.iter().any(has_lost_extent)
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Finds records to which an index refers but whose heads are damaged, so that a scan of the log does not find them. A
/// rebuilt index would lack them, and what they replaced or deleted would come back. The index must cover the whole
/// log.
pub(super) fn find_damaged_records(index: &Index, files: &SegmentFiles) -> Result<Option<Loss>> {
    let tail = LogTail { newest_seqs: HashMap::new(), may_lack_changes: false };
    let snapshot = index.snapshot();
    let is_lost = |location: RecordLocation| match files.segments.get(location.position.segment) {
        Some(segment) if location != NO_LOCATION => {
            Ok(record_at(&segment, files.salt, location.position.offset)?.is_none())
        }
        _ => Ok(false),
    };
    let loss = Loss::new(LossProof::Index, Vec::new());
    let search = LossSearch { is_lost: &is_lost, tail: &tail, names: bucket_names(&snapshot)?, loss };
    let loss = search.run(&snapshot, files, &LostExtents(Vec::new()))?;
    Ok((!loss.is_empty()).then_some(loss))
}

/// A walk through the index that collects losses.
struct LossSearch<'a> {
    is_lost: &'a dyn Fn(RecordLocation) -> Result<bool>,
    tail: &'a LogTail,
    names: HashMap<BucketId, String>,
    loss: Loss,
}

impl LossSearch<'_> {
    fn run(
        mut self,
        snapshot: &IndexSnapshot,
        files: &SegmentFiles,
        lost_extents: &LostExtents,
    ) -> Result<Loss> {
        self.objects(snapshot, files, lost_extents)?;
        self.deletions(snapshot)?;
        self.uploads(snapshot, lost_extents)?;
        self.other_records(snapshot, files)?;
        Ok(self.loss)
    }

    fn bucket(&self, id: BucketId) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| format!("(bucket {id})"))
    }

    fn objects(
        &mut self,
        snapshot: &IndexSnapshot,
        files: &SegmentFiles,
        lost_extents: &LostExtents,
    ) -> Result<()> {
        for entry in snapshot.all_versions() {
            let (key, value) = entry?;
            let entry = ObjectEntry::decode(&value)?;
            let bucket = keys::bucket_id(&key)?;
            let version = VersionName { bucket, key: keys::object_name(&key)?, slot: entry.slot };
            if self.tail.supersedes(&version_identity(&version), entry.seq)
                || self.tail.has(&keys::bucket_deleted(bucket))
            {
                continue;
            }
            if (self.is_lost)(entry.location)? {
                let name = version.describe(&self.bucket(bucket));
                self.loss.objects.add(name);
                self.loss.objects_with_older_records += u64::from(entry.other_records > 0);
            } else if entry.in_extents
                && !lost_extents.is_empty()
                && lost_extents.overlaps(&manifest_runs(files, entry.location)?)
            {
                let name = version.describe(&self.bucket(bucket));
                self.loss.unreadable.add(name);
            }
        }
        Ok(())
    }

    fn deletions(&mut self, snapshot: &IndexSnapshot) -> Result<()> {
        for entry in snapshot.prefix(&[keys::prefix::DELETED]) {
            let (key, value) = entry?;
            let entry = DeletedEntry::decode(&value)?;
            // A tombstone that hides nothing may be removed.
            if entry.other_records == 0 || !(self.is_lost)(entry.location)? {
                continue;
            }
            let name = keys::version_name(&key)?;
            if !self.tail.supersedes(&version_identity(&name), entry.seq) {
                let name = name.describe(&self.bucket(name.bucket));
                self.loss.deletions.add(name);
            }
        }
        Ok(())
    }

    fn uploads(&mut self, snapshot: &IndexSnapshot, lost_extents: &LostExtents) -> Result<()> {
        for entry in snapshot.prefix(&[keys::prefix::UPLOAD]) {
            let (key, value) = entry?;
            let (upload, entry) = (keys::number(&key)?, UploadEntry::decode(&value)?);
            if self.tail.has(&keys::upload_ended(upload)) {
                continue;
            }
            if (self.is_lost)(entry.location)? && !self.tail.has(&key) {
                self.loss.other_records += 1;
            }
            for part in snapshot.prefix(&keys::parts(upload)) {
                let (part_key, value) = part?;
                let part = PartEntry::decode(&value)?;
                if self.tail.supersedes(&part_key, part.seq) {
                    continue;
                }
                if (self.is_lost)(part.location)? {
                    self.loss.other_records += 1;
                } else if let Record::Part(record) = Record::decode(RecordKind::Part, &part.fields)?
                    && lost_extents.overlaps(&record.runs)
                {
                    let name = format!("{}/{}", self.bucket(entry.bucket), entry.key);
                    let upload = super::uploads::format_id(upload);
                    self.loss.unreadable.add(format!("part {} of upload {upload} of {name}", record.number));
                }
            }
        }
        Ok(())
    }

    fn other_records(&mut self, snapshot: &IndexSnapshot, files: &SegmentFiles) -> Result<()> {
        for entry in snapshot.prefix(&[keys::prefix::BUCKET]) {
            let (key, value) = entry?;
            let entry = BucketEntry::decode(&value)?;
            let bucket = keys::number(&key)?;
            let id = BucketId::try_from(bucket).map_err(|_| malformed("a bucket id is out of range"))?;
            let is_superseded =
                self.tail.supersedes(&key, entry.seq) || self.tail.has(&keys::bucket_deleted(id));
            if !is_superseded && (self.is_lost)(entry.location)? {
                self.loss.buckets.add(entry.name);
            }
        }
        for prefix in [keys::prefix::BUCKET_DELETED, keys::prefix::UPLOAD_ENDED, keys::prefix::VOID] {
            for entry in snapshot.prefix(&[prefix]) {
                let (key, value) = entry?;
                if self.tail.has(&key) || !(self.is_lost)(RecordLocation::decode(&value)?)? {
                    continue;
                }
                // As in compaction, a void of a removed segment, or the end of an upload without records, hides
                // nothing.
                let number = keys::number(&key)?;
                let hides_something = match prefix {
                    keys::prefix::UPLOAD_ENDED => {
                        let records = snapshot.get(&keys::upload_records(number))?;
                        let records = records.map(|value| UploadRecords::decode(&value)).transpose()?;
                        records.is_some_and(|records| records.count > 0)
                    }
                    keys::prefix::VOID => files.segments.get(Position::unpack(number).segment).is_some(),
                    _ => true,
                };
                self.loss.other_records += u64::from(hides_something);
            }
        }
        Ok(())
    }
}
