//! Scanning a segment record by record. Bytes that are not a record are skipped up to the next record, so that damage
//! hides only the damaged record.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tradewind_core::checksum::crc64nvme;
use tradewind_core::error::Result;

use super::frame::{
    ALIGNMENT, BLOCK_BYTES, BatchRange, HEADER_BYTES, NotARecord, RecordHead, RecordHeader, RecordKind,
};
use super::io_threads::io_error;
use super::position::Position;
use super::record::Record;
use super::segment::{SEGMENT_HEADER_BYTES, Segment, SegmentKind};

/// Maximum bytes per read. Reads grow up to this while records are small and follow each other closely.
const MAX_READ_BYTES: usize = 1 << 20;
/// Bytes of the first read, and of a read after a skipped payload: the next head and little else.
const HEAD_READ_BYTES: usize = 4 << 10;
/// Upper bound of an extent's fields, in bytes.
const MAX_EXTENT_FIELDS_BYTES: u32 = 1 << 10;
/// First read of a single head.
const INITIAL_HEAD_BYTES: usize = 512;

/// A record with a verified head.
pub(crate) struct ScannedRecord {
    pub position: Position,
    pub header: RecordHeader,
    pub batch: BatchRange,
    pub fields: Vec<u8>,
    pub block_crcs: Vec<u64>,
}

impl ScannedRecord {
    fn new(at: Position, header: RecordHeader, head: RecordHead<'_>) -> Self {
        let block_crcs = head.block_crcs();
        Self { position: at, header, batch: head.batch, fields: head.fields.to_vec(), block_crcs }
    }

    pub fn record(&self) -> Result<Record> {
        Record::decode(self.header.kind, &self.fields)
    }

    /// One past the record's last byte.
    #[expect(clippy::cast_possible_truncation, reason = "a record lies within its segment")]
    pub fn end(&self) -> u32 {
        self.position.offset + self.header.record_bytes() as u32
    }
}

/// An item of a segment.
pub(crate) enum ScanItem {
    Record(ScannedRecord),
    /// Existing bytes that are not a record: a torn tail, an aborted write, or damage.
    NoRecord {
        from: u32,
        to: u32,
    },
}

/// Reads a segment from an offset to its end.
pub(crate) struct Scanner {
    segment: Arc<Segment>,
    salt: u64,
    /// Offset of the next item.
    offset: u32,
    end: u32,
    buffer: Vec<u8>,
    /// Offset of the buffer's first byte in the segment.
    buffer_offset: u32,
    /// Positions that were examined for a record.
    #[cfg(test)]
    pub examined_positions: u64,
}

impl Scanner {
    /// A scanner from `offset` on, or from the end of the segment's header if that is later.
    pub fn new(segment: Arc<Segment>, salt: u64, offset: u32) -> Self {
        let end = segment.end.load(Ordering::Acquire);
        let offset = offset.max(SEGMENT_HEADER_BYTES);
        Self {
            segment,
            salt,
            offset,
            end,
            buffer: Vec::new(),
            buffer_offset: 0,
            #[cfg(test)]
            examined_positions: 0,
        }
    }

    /// The next item; `None` at the end.
    pub fn next(&mut self) -> Result<Option<ScanItem>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        if let Some(scanned) = self.record_at(self.offset)? {
            self.offset = scanned.end();
            return Ok(Some(ScanItem::Record(scanned)));
        }
        let from = self.offset;
        #[expect(clippy::cast_possible_truncation, reason = "eight")]
        let step = ALIGNMENT as u32;
        self.offset = self.offset.next_multiple_of(step);
        while self.offset < self.end {
            if self.offset > from && self.record_at(self.offset)?.is_some() {
                break;
            }
            self.offset = self.offset.saturating_add(step);
            self.skip_buffered_zeros();
        }
        self.offset = self.offset.min(self.end);
        Ok(Some(ScanItem::NoRecord { from, to: self.offset }))
    }

    /// Skips zeros that are in the buffer: no record begins there.
    fn skip_buffered_zeros(&mut self) {
        let index = self.offset.checked_sub(self.buffer_offset).map(|index| index as usize);
        let Some(bytes) = index.and_then(|index| self.buffer.get(index..)) else { return };
        let zero_words = bytes.chunks_exact(ALIGNMENT).take_while(|word| **word == [0; ALIGNMENT]).count();
        #[expect(clippy::cast_possible_truncation, reason = "a buffer is shorter than 4 GiB")]
        let zero_bytes = (zero_words * ALIGNMENT) as u32;
        self.offset = self.offset.saturating_add(zero_bytes);
    }

    fn record_at(&mut self, at: u32) -> Result<Option<ScannedRecord>> {
        #[cfg(test)]
        {
            self.examined_positions += 1;
        }
        let (position, kind) = (Position::new(self.segment.number, at), self.segment.kind);
        let (salt, end) = (self.salt, self.end);
        let mut needed_bytes = HEADER_BYTES;
        loop {
            let Some(bytes) = self.bytes(at, needed_bytes)? else { return Ok(None) };
            if !may_be_record(kind, bytes) {
                return Ok(None);
            }
            match RecordHeader::decode(salt, position, bytes) {
                Ok((header, head)) => {
                    let fits = header.record_bytes() <= (end - at) as usize;
                    return Ok(fits.then(|| ScannedRecord::new(position, header, head)));
                }
                Err(NotARecord::Short(head_bytes)) if head_bytes > needed_bytes => needed_bytes = head_bytes,
                Err(_) => return Ok(None),
            }
        }
    }

    /// At least `length` bytes from offset `at` on; `None` if the segment ends before.
    fn bytes(&mut self, at: u32, length: usize) -> Result<Option<&[u8]>> {
        if length > (self.end - at) as usize {
            return Ok(None);
        }
        let is_buffered =
            at >= self.buffer_offset && (at - self.buffer_offset) as usize + length <= self.buffer.len();
        if !is_buffered {
            let buffer_end = self.buffer_offset as usize + self.buffer.len();
            let is_close = at as usize <= buffer_end + HEAD_READ_BYTES;
            let read_ahead = if is_close { (2 * self.buffer.len()).min(MAX_READ_BYTES) } else { 0 };
            let read_bytes = read_ahead.max(HEAD_READ_BYTES).max(length).min((self.end - at) as usize);
            self.buffer.resize(read_bytes, 0);
            self.buffer_offset = at;
            let filled = read_up_to(&self.segment, &mut self.buffer, at)?;
            self.buffer.truncate(filled);
            if filled < read_bytes {
                // The file is shorter than the allocated bytes: a write at the end failed.
                #[expect(clippy::cast_possible_truncation, reason = "a segment is shorter than 4 GiB")]
                let filled = filled as u32;
                self.end = at + filled;
            }
        }
        Ok(self.buffer.get((at - self.buffer_offset) as usize..).filter(|bytes| bytes.len() >= length))
    }
}

/// Returns true if the head announced by these bytes is worth reading and verifying. After an aborted write, a bulk
/// segment has client bytes without a head: whatever they announce must cost little.
fn may_be_record(kind: SegmentKind, bytes: &[u8]) -> bool {
    kind == SegmentKind::Log
        || RecordHeader::peek(bytes).is_ok_and(|header| {
            header.kind == RecordKind::Extent && header.fields_bytes <= MAX_EXTENT_FIELDS_BYTES
        })
}

/// The record at an offset, with a verified head; `None` if there is none.
pub(crate) fn record_at(segment: &Arc<Segment>, salt: u64, offset: u32) -> Result<Option<ScannedRecord>> {
    let position = Position::new(segment.number, offset);
    let mut bytes = vec![0; INITIAL_HEAD_BYTES];
    loop {
        let filled = read_up_to(segment, &mut bytes, offset)?;
        match RecordHeader::decode(salt, position, &bytes[..filled]) {
            Ok((header, head)) => return Ok(Some(ScannedRecord::new(position, header, head))),
            Err(NotARecord::Short(head_bytes)) if head_bytes > bytes.len() => bytes.resize(head_bytes, 0),
            Err(_) => return Ok(None),
        }
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
fn read_up_to(segment: &Segment, buffer: &mut [u8], offset: u32) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match segment.file.read_at(&mut buffer[filled..], u64::from(offset) + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io_error(&format!("{} could not be read", segment.path.display()), e)),
        }
    }
    Ok(filled)
}

/// Reads and verifies a record's payload; `None` if it is damaged.
pub(crate) fn read_payload(segment: &Segment, scanned: &ScannedRecord) -> Result<Option<Bytes>> {
    let mut payload = vec![0; scanned.header.payload_bytes as usize];
    #[expect(clippy::cast_possible_truncation, reason = "a record lies within its segment")]
    let offset = scanned.position.offset + scanned.header.head_bytes() as u32;
    if read_up_to(segment, &mut payload, offset)? < payload.len() {
        return Ok(None);
    }
    let is_intact =
        payload.chunks(BLOCK_BYTES).zip(&scanned.block_crcs).all(|(block, crc)| crc64nvme(block) == *crc);
    Ok(is_intact.then(|| payload.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::frame::RecordKind;
    use crate::local::segment::SegmentKind;

    /// A scan for live records in a segment of large records does not read their payload.
    #[test]
    fn scan_skips_payload() {
        let directory = tempfile::tempdir().unwrap();
        for (payload_bytes, records, max_read) in [(1 << 20, 20, 21 * HEAD_READ_BYTES), (1000, 5000, 6 << 20)]
        {
            let number = payload_bytes;
            let segment = Segment::create(directory.path(), 7, number, SegmentKind::Bulk).unwrap();
            let header = RecordHeader {
                kind: RecordKind::Extent,
                is_relocated: false,
                fields_bytes: 0,
                payload_bytes,
                seq: 1,
                durable_end: Position::default(),
            };
            let payload = vec![1; payload_bytes as usize];
            let block_crcs: Vec<u64> = payload.chunks(BLOCK_BYTES).map(crc64nvme).collect();
            let mut end = SEGMENT_HEADER_BYTES;
            for _ in 0..records {
                let head = header.encode_head(7, Position::new(number, end), &[], &block_crcs);
                segment.write_all(&[head.into(), payload.clone().into()], end.into()).unwrap();
                end += u32::try_from(header.record_bytes()).unwrap();
            }
            // The padding of the last record.
            segment.file.set_len(end.into()).unwrap();
            segment.end.store(end, Ordering::Release);
            let mut scanner = Scanner::new(segment, 7, 0);
            let (mut found, mut read, mut buffer_offset) = (0, 0, 0);
            while let Some(item) = scanner.next().unwrap() {
                assert!(matches!(item, ScanItem::Record(_)), "record {found}");
                found += 1;
                if std::mem::replace(&mut buffer_offset, scanner.buffer_offset) != scanner.buffer_offset {
                    read += scanner.buffer.len();
                }
            }
            assert_eq!(found, records);
            assert!(read <= max_read, "{read} bytes read for {records} records of {payload_bytes}");
        }
    }

    /// After an aborted write, a bulk segment has client bytes without a head. Whatever heads they announce, they
    /// cost little and hide nothing.
    #[test]
    fn bytes_announcing_large_heads_cost_little() {
        const HOSTILE: usize = 4 << 20;
        let directory = tempfile::tempdir().unwrap();
        let header = |kind, fields_bytes| RecordHeader {
            kind,
            is_relocated: false,
            fields_bytes,
            payload_bytes: 0,
            seq: 1,
            durable_end: Position::default(),
        };
        let segment = Segment::create(directory.path(), 7, 1, SegmentKind::Bulk).unwrap();
        for (kind, fields_bytes) in
            [(RecordKind::Extent, 512 << 10), (RecordKind::Object, 512 << 10), (RecordKind::Object, 12)]
        {
            let announced =
                header(kind, fields_bytes).encode_unsealed_head(&vec![0; fields_bytes as usize], &[]);
            // Another such head begins every 16 bytes.
            let hostile = announced[..16].repeat(HOSTILE / 16);
            let at = SEGMENT_HEADER_BYTES + u32::try_from(HOSTILE).unwrap();
            let whole = header(RecordKind::Extent, 12).encode_head(7, Position::new(1, at), &[0; 12], &[]);
            let end = at + u32::try_from(whole.len().next_multiple_of(ALIGNMENT)).unwrap();
            segment
                .write_all(&[hostile.into(), whole.into(), vec![0; 8].into()], SEGMENT_HEADER_BYTES.into())
                .unwrap();
            segment.end.store(end, Ordering::Release);
            let started = std::time::Instant::now();
            let mut scanner = Scanner::new(segment.clone(), 7, 0);
            let Some(ScanItem::NoRecord { from: SEGMENT_HEADER_BYTES, to }) = scanner.next().unwrap() else {
                panic!("bytes that are not a record are one item")
            };
            assert!(to == at && matches!(scanner.next().unwrap(), Some(ScanItem::Record(_))));
            // Verifying what is announced would take minutes.
            assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
        }
    }
}
