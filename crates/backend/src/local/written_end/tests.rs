//! Segments with zeros after, within and instead of their records.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tradewind_core::checksum::crc64nvme;

use super::super::frame::{BLOCK_BYTES, RecordKind};
use super::super::segment::SegmentKind;
use super::*;

const SALT: u64 = 7;
const NUMBER: u32 = 1;

/// A log segment under construction.
struct Log {
    segment: Arc<Segment>,
    _directory: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let segment = Segment::create(directory.path(), SALT, NUMBER, SegmentKind::Log).unwrap();
        Self { segment, _directory: directory }
    }

    /// Adds a record. Returns its position.
    fn add(&self, payload: &[u8]) -> u32 {
        let at = self.segment.bytes();
        let header = RecordHeader {
            kind: RecordKind::Object,
            is_relocated: false,
            fields_bytes: 0,
            payload_bytes: offset_in(payload.len()),
            seq: 1,
            durable_end: Position::default(),
        };
        let block_crcs: Vec<u64> = payload.chunks(BLOCK_BYTES).map(crc64nvme).collect();
        let mut bytes = header.encode_head(SALT, Position::new(NUMBER, at), &[], &block_crcs);
        bytes.extend_from_slice(payload);
        bytes.resize(header.record_bytes(), 0);
        self.write(at, &bytes);
        self.segment.end.store(at + offset_in(bytes.len()), Ordering::Release);
        at
    }

    fn write(&self, at: u32, bytes: &[u8]) {
        self.segment.file.write_all_at(bytes, at.into()).unwrap();
    }

    fn zero(&self, from: u32, to: u32) {
        self.write(from, &vec![0; (to - from) as usize]);
    }

    /// Opens the segment with a file of `file_bytes`, and returns the end of what was written.
    fn end(&self, file_bytes: u32) -> WrittenEnd {
        self.segment.file.set_len(file_bytes.into()).unwrap();
        let opened = Segment::open(&self.segment.path, (NUMBER, SegmentKind::Log), SALT).unwrap().0;
        WrittenEnd::find(&opened, SALT).unwrap()
    }
}

const fn sound(offset: u32) -> WrittenEnd {
    WrittenEnd { offset, is_assumed: false }
}

#[test]
fn zeros_after_the_last_record_do_not_count() {
    let log = Log::new();
    for tail in [0, 8, 4096, 1 << 20] {
        assert_eq!(log.end(SEGMENT_HEADER_BYTES + tail), sound(SEGMENT_HEADER_BYTES), "{tail}, no record");
    }
    for payload in [&b"x"[..], &[1; 3000], &[0; 3000], &[0; 300_000], &[0; 4], &[]] {
        log.add(payload);
        let end = log.segment.bytes();
        for tail in [0, 4, 8, 4096, 1 << 20] {
            assert_eq!(log.end(end + tail), sound(end), "{} bytes, tail {tail}", payload.len());
        }
    }
}

#[test]
fn lost_records_end_where_the_previous_one_ends() {
    for previous in [&[1; 3000], &[0; 3000]] {
        let log = Log::new();
        log.add(previous);
        let at = log.add(&[2; 3000]);
        let end = log.segment.bytes();
        log.zero(at, end);
        assert_eq!(log.end(end), sound(at));
        assert_eq!(log.end(end + (1 << 20)), sound(at));
    }
}

#[test]
fn segment_does_not_end_within_an_intact_head() {
    let log = Log::new();
    let at = log.add(&[2; 3000]);
    let end = log.segment.bytes();
    log.zero(at + 1000, end);
    assert_eq!(log.end(end), sound(end));
    assert_eq!(log.end(end + 4096), sound(end));
    assert_eq!(log.end(end - 8), sound(at + 1000), "the file does not reach the record's end");
    // Of a record without its head, nothing is known.
    log.write(at, &[0xff]);
    assert_eq!(log.end(end), sound(at + 1000));
}

#[test]
fn payload_that_imitates_records_does_not_hide_the_last_one() {
    let log = Log::new();
    let header = RecordHeader {
        kind: RecordKind::Object,
        is_relocated: false,
        fields_bytes: 0,
        payload_bytes: 0,
        seq: 1,
        durable_end: Position::default(),
    };
    let imitation = header.encode_unsealed_head(&[], &[]);
    for copies in [1, MAX_FALSE_HEADS, 20 * MAX_FALSE_HEADS] {
        let mut payload = imitation.repeat(copies);
        payload.resize(payload.len() + 5000, 0);
        log.add(&payload);
        let end = log.segment.bytes();
        assert_eq!(log.end(end + (1 << 20)), sound(end), "{copies}");
    }
}

/// In other bytes, each possible position of a record is examined.
#[test]
fn scan_examines_few_positions_in_zeros() {
    const GAP_BYTES: u32 = 4 << 20;
    let positions = |is_zero: bool| {
        let log = Log::new();
        log.add(&[1; 3000]);
        let gap = log.segment.end.fetch_add(GAP_BYTES, Ordering::AcqRel);
        if !is_zero {
            log.write(gap, &vec![0xff; GAP_BYTES as usize]);
        }
        let last = log.add(&[1; 3000]);
        let mut scanner = Scanner::new(log.segment.clone(), SALT, 0);
        let mut records = Vec::new();
        while let Some(item) = scanner.next().unwrap() {
            if let ScanItem::Record(record) = item {
                records.push(record.position.offset);
            }
        }
        assert_eq!(records, [SEGMENT_HEADER_BYTES, last]);
        scanner.examined_positions
    };
    let (zeros, others) = (positions(true), positions(false));
    assert!(zeros < 1000 && others > 500_000, "{zeros} in zeros, {others} in other bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The end agrees with the one derived from the file's contents before and after the loss.
    #[test]
    fn end_is_that_of_the_last_byte_or_intact_head(
        payloads in prop::collection::vec((0_usize..9000, 0_usize..9000), 1..6),
        lost in 0_u32..12_000,
        tail in 0_u32..20_000,
    ) {
        let log = Log::new();
        let mut records = Vec::new();
        for (nonzero, zero) in payloads {
            let begin = log.add(&[vec![3; nonzero], vec![0; zero]].concat()) as usize;
            let head_end = begin + 48 + 8 * (nonzero + zero).div_ceil(64 << 10);
            records.push((begin..head_end, log.segment.bytes()));
        }
        let end = log.segment.bytes();
        log.segment.file.set_len(end.into()).unwrap();
        let before = std::fs::read(&log.segment.path).unwrap();
        log.zero(end.saturating_sub(lost).max(SEGMENT_HEADER_BYTES), end);
        let found = log.end(end + tail);
        let after = std::fs::read(&log.segment.path).unwrap();
        let last_byte = after.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let intact_end = records
            .into_iter()
            .filter(|(head, _)| before[head.clone()] == after[head.clone()])
            .map(|(_, end)| end)
            .max();
        let written_end = last_byte.next_multiple_of(8).max(SEGMENT_HEADER_BYTES as usize);
        let expected = intact_end.unwrap_or(0).max(u32::try_from(written_end).unwrap());
        prop_assert_eq!(found, sound(expected));
    }
}
