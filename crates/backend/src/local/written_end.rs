//! The end of what was written to a log segment. The committer writes zeros ahead of the log, so a file may be longer
//! than its records: after a crash, or if the zeros could not be dropped. Only zeros follow the last record then.
//!
//! A record may end with zeros as well, in its payload or fields. So a segment never ends within a record whose head is
//! intact: a damaged payload is damage of that record, as anywhere else in the log. The last record is searched
//! backwards, since a scan of the whole segment would slow down the start.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tradewind_core::error::Result;

use super::frame::{ALIGNMENT, HEADER_BYTES, MAGIC, MAX_RECORD_BYTES, NotARecord, RecordHeader};
use super::io_threads::io_error;
use super::position::Position;
use super::scan::{ScanItem, ScannedRecord, Scanner, record_at};
use super::segment::{SEGMENT_HEADER_BYTES, Segment};

/// Bytes of one backward read.
const READ_BYTES: u32 = 256 << 10;
/// Bytes of the first backward read: most segments do not end with zeros.
const FIRST_READ_BYTES: u32 = 512;
/// Maximum positions that look like a record and are none, before the segment is scanned forwards instead. A client can
/// store bytes that look like records.
const MAX_FALSE_HEADS: usize = 64;
/// Bytes that are skipped after a byte that cannot be read, up to the next multiple of this.
const DEVICE_BLOCK_BYTES: u32 = 4 << 10;
/// Maximum unreadable blocks after the last record. Each may cost a failing device seconds.
const MAX_UNREADABLE_BLOCKS: u32 = 256;

/// The end of what was written to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrittenEnd {
    /// Offset after the last written byte, at most the length of the file.
    pub offset: u32,
    /// True if some of the bytes after `offset` cannot be read; all others are zero.
    pub is_assumed: bool,
}

impl WrittenEnd {
    /// Finds the end in a log segment that is not being written, and whose [`end`](Segment::end) is the length of its
    /// file.
    pub fn find(segment: &Arc<Segment>, salt: u64) -> Result<Self> {
        match find_offset(segment, salt) {
            Ok(offset) => Ok(Self { offset, is_assumed: false }),
            Err(e) => match end_before_unreadable(segment, salt) {
                Some(offset) => {
                    tracing::warn!(
                        segment = %segment.path.display(), offset, error = ?e,
                        "zeros at the end of a segment cannot be read"
                    );
                    Ok(Self { offset, is_assumed: true })
                }
                None => Err(e),
            },
        }
    }
}

fn find_offset(segment: &Arc<Segment>, salt: u64) -> Result<u32> {
    let file_end = segment.bytes();
    let nonzero_end = nonzero_end(segment, file_end)?;
    if nonzero_end == file_end {
        return Ok(file_end);
    }
    let last = match last_record(segment, salt, nonzero_end, file_end)? {
        BackwardSearch::Found(last) => last,
        BackwardSearch::Abandoned => last_record_by_scan(segment, salt)?,
    };
    Ok(last.map_or(nonzero_end, |last| last.end().max(nonzero_end)))
}

/// The offset after the last byte that is not zero, rounded up to the alignment of records; at most `file_end`. At
/// least the end of the segment's header.
fn nonzero_end(segment: &Segment, file_end: u32) -> Result<u32> {
    let mut end = file_end;
    let mut read_bytes = FIRST_READ_BYTES;
    while end > SEGMENT_HEADER_BYTES {
        let begin = end.saturating_sub(read_bytes);
        let bytes = read(segment, begin, end)?;
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            let nonzero_end = begin + offset_in(last + 1);
            return Ok(nonzero_end
                .next_multiple_of(offset_in(ALIGNMENT))
                .max(SEGMENT_HEADER_BYTES)
                .min(file_end));
        }
        end = begin;
        read_bytes = READ_BYTES;
    }
    Ok(SEGMENT_HEADER_BYTES.min(file_end))
}

/// The result of a backward search for a record.
enum BackwardSearch {
    /// The last record that begins before the given offset; `None` if there is none.
    Found(Option<ScannedRecord>),
    /// The search was not worthwhile.
    Abandoned,
}

/// Searches backwards for the last record that begins before `before` and ends at or before `file_end`.
fn last_record(segment: &Arc<Segment>, salt: u64, before: u32, file_end: u32) -> Result<BackwardSearch> {
    let step = offset_in(ALIGNMENT);
    let (mut end, mut false_heads) = (before, 0);
    while end > SEGMENT_HEADER_BYTES {
        if (before - end) as usize > MAX_RECORD_BYTES {
            return Ok(BackwardSearch::Abandoned);
        }
        let begin = end.saturating_sub(READ_BYTES).max(SEGMENT_HEADER_BYTES).next_multiple_of(step);
        let bytes = read(segment, begin, end)?;
        for index in (0..bytes.len()).step_by(ALIGNMENT).rev() {
            if bytes[index..].starts_with(&MAGIC.to_le_bytes()) {
                match record_before(segment, salt, begin + offset_in(index), file_end)? {
                    Some(record) => return Ok(BackwardSearch::Found(Some(record))),
                    None => false_heads += 1,
                }
                if false_heads > MAX_FALSE_HEADS {
                    return Ok(BackwardSearch::Abandoned);
                }
            }
        }
        end = begin;
    }
    Ok(BackwardSearch::Found(None))
}

/// The record at `offset` if its head is intact and it ends at or before `file_end`. Reads the header first: what it
/// announces may be long.
fn record_before(
    segment: &Arc<Segment>,
    salt: u64,
    offset: u32,
    file_end: u32,
) -> Result<Option<ScannedRecord>> {
    let available_bytes = file_end - offset;
    let header = read(segment, offset, offset + available_bytes.min(offset_in(HEADER_BYTES)))?;
    match RecordHeader::peek(&header) {
        Ok(header) if header.record_bytes() <= available_bytes as usize => record_at(segment, salt, offset),
        _ => Ok(None),
    }
}

fn last_record_by_scan(segment: &Arc<Segment>, salt: u64) -> Result<Option<ScannedRecord>> {
    let mut scanner = Scanner::new(segment.clone(), salt, 0);
    let mut last = None;
    while let Some(item) = scanner.next()? {
        if let ScanItem::Record(scanned) = item {
            last = Some(scanned);
        }
    }
    Ok(last)
}

/// The end of the segment if it has unreadable bytes, and these are certainly zeros written ahead: each record from the
/// start on is readable, the bytes where the next one would begin are zero, and so are all others that can be read.
/// `None` if a record may be among the unreadable bytes.
fn end_before_unreadable(segment: &Segment, salt: u64) -> Option<u32> {
    let file_end = segment.bytes();
    let mut end = SEGMENT_HEADER_BYTES;
    while let Some(record_end) = readable_record_end(segment, salt, end, file_end) {
        end = record_end;
    }
    let next_bytes = readable_prefix(segment, end, (file_end.saturating_sub(end)).min(offset_in(ALIGNMENT)));
    (next_bytes.len() == ALIGNMENT && are_readable_bytes_zero(segment, end, file_end)).then_some(end)
}

/// The end of the record at `offset` if its head is readable and intact, and it ends at or before `file_end`.
fn readable_record_end(segment: &Segment, salt: u64, offset: u32, file_end: u32) -> Option<u32> {
    let available_bytes = file_end.checked_sub(offset)?;
    let position = Position::new(segment.number, offset);
    let mut bytes = readable_prefix(segment, offset, available_bytes.min(FIRST_READ_BYTES));
    if let Err(NotARecord::Short(head_bytes)) = RecordHeader::decode(salt, position, &bytes) {
        bytes = readable_prefix(segment, offset, available_bytes.min(offset_in(head_bytes)));
    }
    let (header, _) = RecordHeader::decode(salt, position, &bytes).ok()?;
    (header.record_bytes() <= available_bytes as usize).then(|| offset + offset_in(header.record_bytes()))
}

/// Returns true if all bytes of a range are zero, except for a limited number of unreadable blocks.
fn are_readable_bytes_zero(segment: &Segment, begin: u32, end: u32) -> bool {
    let (mut offset, mut unreadable_blocks) = (begin, 0);
    while offset < end {
        let bytes = readable_prefix(segment, offset, (end - offset).min(READ_BYTES));
        if bytes.iter().any(|byte| *byte != 0) {
            return false;
        }
        offset += offset_in(bytes.len());
        if bytes.is_empty() {
            unreadable_blocks += 1;
            if unreadable_blocks > MAX_UNREADABLE_BLOCKS {
                return false;
            }
            offset = (offset + 1).next_multiple_of(DEVICE_BLOCK_BYTES);
        }
    }
    true
}

/// Up to `length` bytes from `offset` on: those before the first one that cannot be read.
fn readable_prefix(segment: &Segment, offset: u32, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match segment.file.read_at(&mut bytes[filled..], u64::from(offset) + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    bytes.truncate(filled);
    bytes
}

fn read(segment: &Segment, begin: u32, end: u32) -> Result<Vec<u8>> {
    let mut bytes = vec![0; (end - begin) as usize];
    segment
        .file
        .read_exact_at(&mut bytes, begin.into())
        .map_err(|e| io_error(&format!("{} could not be read", segment.path.display()), e))?;
    Ok(bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "a segment is shorter than 4 GiB")]
const fn offset_in(bytes: usize) -> u32 {
    bytes as u32
}

#[cfg(test)]
mod tests;
