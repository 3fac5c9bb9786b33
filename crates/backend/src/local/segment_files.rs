//! The segment files of a store, as found when it is opened or inspected: which exist, the order in which log segments
//! are read, and how they are made durable before the index relies on them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tradewind_core::error::Result;

use super::index::entries::RecordLocation;
use super::io_threads::io_error;
use super::position::Position;
use super::scan::{ScanItem, Scanner};
use super::segment::{HeaderState, Segment, SegmentKind, SegmentMap, parse_name, parse_unfinished};
use super::written_end::WrittenEnd;

/// The purpose of opening the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenPurpose {
    /// Normal operation: records are made durable before the index covers them.
    Serving,
    /// Read-only inspection, perhaps on a read-only file system.
    Inspection,
}

/// The files of a store: log segments and bulk segments.
pub(super) struct SegmentFiles {
    /// The store's salt: see [`Layout::salt`](super::layout::Layout::salt).
    pub salt: u64,
    pub segments: SegmentMap,
    /// The numbers of all files in order, including unfinished ones.
    pub numbers: Vec<u32>,
    /// Files under a name of their creation, and segments with neither a valid header nor a complete record.
    pub unfinished: Vec<PathBuf>,
    /// The log segments whose file ends with zeros after what was written, by number.
    zero_tails: HashMap<u32, ZeroTail>,
    purpose: OpenPurpose,
}

/// The end of a file that has zeros after what was written.
struct ZeroTail {
    /// Length of the file.
    file_bytes: u32,
    /// See [`WrittenEnd::is_assumed`].
    is_assumed: bool,
}

impl SegmentFiles {
    /// Opens all segments in `directory`, which may be missing. Changes nothing.
    pub fn open(directory: &Path, salt: u64, purpose: OpenPurpose) -> Result<Self> {
        let failed = |e| io_error(&format!("{} could not be read", directory.display()), e);
        let (mut segments, mut numbers, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
        let mut zero_tails = HashMap::new();
        let mut paths: Vec<PathBuf> = match std::fs::read_dir(directory) {
            Ok(entries) => {
                entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().map_err(failed)?
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(failed(e)),
        };
        // In the order of their numbers, in which a disk most likely has them: each costs two reads.
        paths.sort_unstable();
        for path in paths {
            if let Some(number) = parse_unfinished(&path) {
                numbers.push(number);
                unfinished.push(path);
                continue;
            }
            let Some(name) = parse_name(&path) else {
                tracing::warn!(
                    path = %path.display(),
                    "ignoring a file among the segments that is not a segment"
                );
                continue;
            };
            numbers.push(name.0);
            let (segment, header) = Segment::open(&path, name, salt)?;
            if segment.kind == SegmentKind::Log {
                zero_tails.extend(drop_zero_tail(&segment, salt).map(|tail| (segment.number, tail)));
            }
            if header == HeaderState::Sound {
                segments.push(segment);
            } else if holds_records(&segment, salt)? {
                tracing::error!(
                    path = %path.display(),
                    "a segment's header is damaged; its records are read nevertheless"
                );
                segments.push(segment);
            } else {
                unfinished.push(path);
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(Self { salt, segments: SegmentMap::new(segments), numbers, unfinished, zero_tails, purpose })
    }

    /// The positions by which a void may mark the end of this segment as accepted: by the end of what was written, or,
    /// by an earlier version, by the length of the file.
    pub fn accepted_ends(&self, segment: u32) -> impl Iterator<Item = Position> {
        let written_bytes = self.segments.get(segment).map_or(0, |segment| segment.bytes());
        let file_bytes = self.zero_tails.get(&segment).map(|tail| tail.file_bytes);
        let ends = [written_bytes].into_iter().chain(file_bytes);
        ends.map(move |bytes| Position::accepted_end(segment, bytes))
    }

    /// Returns true if the file of a segment has zeros after what was written, and ends at `end`. Earlier versions
    /// counted these zeros as part of the segment.
    pub fn is_length_with_zeros(&self, segment: u32, end: u32) -> bool {
        self.zero_tails.get(&segment).is_some_and(|tail| tail.file_bytes == end)
    }

    /// Returns true if the end of a segment is known from each of its bytes. See [`WrittenEnd::is_assumed`].
    pub fn is_end_verified(&self, segment: u32) -> bool {
        self.zero_tails.get(&segment).is_none_or(|tail| !tail.is_assumed)
    }

    /// Returns true if the segment of a record exists and reaches its end.
    pub fn has_record(&self, location: RecordLocation) -> bool {
        location.record_bytes > 0
            && self.segments.get(location.position.segment).is_some_and(|s| location.end() <= s.bytes())
    }

    /// The log segments from a position on, in the order in which they were written, and the offset from which to read
    /// each.
    pub fn log_segments_from(&self, from: Position) -> Vec<(Arc<Segment>, u32)> {
        let all = self.segments.all();
        let mut logs: Vec<_> =
            all.values().filter(|s| s.kind == SegmentKind::Log && s.number >= from.segment).collect();
        logs.sort_by_key(|segment| segment.number);
        let first_offset = |number: u32| if number == from.segment { from.offset } else { 0 };
        logs.into_iter().map(|segment| (segment.clone(), first_offset(segment.number))).collect()
    }

    /// All bulk segments in the order of their numbers.
    pub fn bulk_segments(&self) -> Vec<Arc<Segment>> {
        let mut bulk: Vec<_> =
            self.segments.all().values().filter(|s| s.kind == SegmentKind::Bulk).cloned().collect();
        bulk.sort_by_key(|segment| segment.number);
        bulk
    }

    /// Makes the log from `from` on durable. After a crash of the process, records may be only in the page cache. An
    /// index that covers them could survive a power loss that they do not, and would then prove a loss that never
    /// happened.
    pub fn make_log_durable(&self, from: Position) -> Result<()> {
        self.log_segments_from(from).iter().try_for_each(|(segment, _)| self.make_segment_durable(segment))
    }

    /// Makes one segment durable.
    pub fn make_segment_durable(&self, segment: &Segment) -> Result<()> {
        if self.purpose == OpenPurpose::Inspection {
            return Ok(());
        }
        segment.file.sync_data().map_err(|e| io_error("a segment could not be made durable", e))
    }
}

/// Ends a log segment where what was written ends. Returns what follows it, if anything does.
fn drop_zero_tail(segment: &Arc<Segment>, salt: u64) -> Option<ZeroTail> {
    let file_bytes = segment.bytes();
    match WrittenEnd::find(segment, salt) {
        Ok(written) if written.offset == file_bytes => None,
        Ok(WrittenEnd { offset, is_assumed }) => {
            segment.end.store(offset, Ordering::Release);
            Some(ZeroTail { file_bytes, is_assumed })
        }
        Err(e) => {
            // Unreadable bytes are no zeros. Whatever needs them fails, as for those of any other record.
            tracing::error!(segment = %segment.path.display(), error = ?e, "the end of a segment cannot be read");
            None
        }
    }
}

fn holds_records(segment: &Arc<Segment>, salt: u64) -> Result<bool> {
    let mut scanner = Scanner::new(segment.clone(), salt, 0);
    while let Some(item) = scanner.next()? {
        if matches!(item, ScanItem::Record(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}
