use proptest::prelude::*;
use tradewind_core::class::{Class, ClassRange};
use tradewind_core::{Classes, Retention, SystemHeaders, Tags};

use super::*;
use crate::local::fields::{Decoder, FieldReader, FieldWriter};

fn metadata() -> Metadata {
    Metadata {
        headers: SystemHeaders {
            content_type: Some("text/plain".into()),
            expires: Some("soon".into()),
            ..SystemHeaders::default()
        },
        user: vec![("name".into(), "välue".into()), ("z".into(), String::new())],
        tags: Tags::new(vec![("k".into(), "v".into())]).unwrap(),
        classes: Classes {
            object: Some(Class::new(25).unwrap()),
            ranges: vec![ClassRange { first_sector: 0, sectors: 64, class: Class::new(26).unwrap() }],
            retention: Retention::new(1 << 33, 3600).ok(),
        },
    }
}

fn examples() -> Vec<Record> {
    let checksum = Checksum::compute(Algorithm::Crc64Nvme, b"x");
    let transformed = |size| Some(TransformedBytes { size, description: vec![1, 0, 255] });
    let summary = PartSummary {
        number: 3,
        size: 9,
        etag: ETag::from_text("abc-3"),
        checksums: vec![checksum],
        transformed: None,
    };
    let later = Checksum::compute(Algorithm::Sha512, b"x");
    let summary_of_later = PartSummary {
        number: 4,
        checksums: vec![checksum, later],
        transformed: transformed(1 << 33),
        ..summary.clone()
    };
    let object = Object {
        bucket: 4,
        key: "a/\0/é".into(),
        size: 1 << 40,
        modified: Timestamp::from_millis(-5),
        etag: ETag::from_md5(&[0; 16]),
        metadata: metadata(),
        checksums: vec![later, checksum, Checksum::compute(Algorithm::Sha256, b"")],
        scope: ChecksumScope::Composite,
        content: ObjectContent::Extents {
            runs: vec![ExtentRun { first_id: 7, bytes: (3 << 20) + 1 }],
            new_extents: vec![ExtentLocation { id: 7, position: Position::new(1, 64), record_bytes: 4096 }],
        },
        parts: vec![summary, summary_of_later],
        upload: Some(12),
        rewritten_seq: Some(11),
        is_versioned: true,
        creation_seq: Some(8),
        is_delete_marker: false,
        transformed: None,
    };
    vec![
        Record::BucketCreated(Bucket {
            id: 1,
            name: "b".into(),
            created: Timestamp::from_millis(5),
            versioning: Versioning::Suspended,
        }),
        Record::BucketDeleted { id: 1 },
        Record::Object(Box::new(object.clone())),
        Record::Object(Box::new(Object {
            etag: ETag::from_text("deadbeef-2"),
            content: ObjectContent::Inline,
            parts: Vec::new(),
            upload: None,
            rewritten_seq: None,
            is_versioned: false,
            creation_seq: None,
            is_delete_marker: true,
            transformed: transformed(0),
            metadata: Metadata::default(),
            scope: ChecksumScope::FullObject,
            ..object
        })),
        Record::Tombstone(VersionName { bucket: 3, key: "k".into(), slot: VersionSlot::Null }),
        Record::Tombstone(VersionName { bucket: 3, key: "k".into(), slot: VersionSlot::Own(9) }),
        Record::Extent { id: u64::MAX },
        Record::UploadCreated(Box::new(Upload {
            bucket: 3,
            key: "k".into(),
            initiated: Timestamp::from_millis(9),
            metadata: metadata(),
            checksum: Some((Algorithm::Sha1, ChecksumScope::Composite)),
        })),
        Record::UploadCreated(Box::new(Upload {
            bucket: 3,
            key: "k".into(),
            initiated: Timestamp::from_millis(9),
            metadata: Metadata::default(),
            checksum: Some((Algorithm::XxHash128, ChecksumScope::Composite)),
        })),
        Record::Part(Box::new(Part {
            upload: 12,
            number: 10_000,
            size: 5,
            modified: Timestamp::from_millis(1),
            etag: ETag::from_text("x-1"),
            checksums: vec![checksum, Checksum::compute(Algorithm::Md5, b"x")],
            runs: vec![ExtentRun { first_id: 1, bytes: 5 }],
            transformed: transformed(3),
            rewritten_seq: Some(9),
            new_extents: Vec::new(),
        })),
        Record::UploadEnded { upload: 12 },
        Record::Void { at: Position::new(9, 8) },
    ]
}

#[test]
fn every_kind_round_trips() {
    for record in examples() {
        assert_eq!(Record::decode(record.kind(), &record.encode()).unwrap(), record);
    }
}

/// A program that knows five algorithms skips unknown fields; all others must be as it expects.
#[test]
fn later_algorithms_use_separate_fields() {
    let is_first = |byte: u8| (1..=5).contains(&byte);
    for record in examples() {
        let encoded = record.encode();
        let mut fields = FieldReader::new(&encoded);
        while let Some((tag, mut value)) = fields.next().unwrap() {
            match tag {
                tag::CHECKSUM | tag::UPLOAD_CHECKSUM => assert!(is_first(value.byte().unwrap())),
                tag::PARTS => {
                    let parts = PartSummary::decode_all(value).unwrap();
                    let mut sums = parts.iter().flat_map(|part| &part.checksums);
                    assert!(parts.len() == 2 && sums.all(|sum| is_first(algorithm_byte(sum.algorithm()))));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn unknown_later_algorithms_are_skipped() {
    for record in examples() {
        let mut out = record.encode();
        // A checksum of two bytes, and one of part 3.
        out.extend_from_slice(&[tag::LATER_CHECKSUMS, 3, 99, 1, 2]);
        if matches!(&record, Record::Object(object) if !object.parts.is_empty()) {
            out.extend_from_slice(&[tag::LATER_PART_CHECKSUMS, 6, 5, 3, 99, 2, 1, 2]);
        }
        assert_eq!(Record::decode(record.kind(), &out).unwrap(), record);
    }
    let field = [tag::LATER_UPLOAD_CHECKSUM, 2, 99, 1];
    let decoded = Record::decode(RecordKind::UploadCreated, &field).unwrap();
    assert!(matches!(decoded, Record::UploadCreated(upload) if upload.checksum.is_none()));
    // The first fields hold no other algorithms, and the others none of the first.
    for algorithm in [99, algorithm_byte(Algorithm::XxHash64)] {
        let field = [tag::CHECKSUM, 9, algorithm, 1, 2, 3, 4, 5, 6, 7, 8];
        assert!(Record::decode(RecordKind::Object, &field).is_err(), "{algorithm}");
    }
    let field = [tag::LATER_CHECKSUMS, 5, algorithm_byte(Algorithm::Crc32), 1, 2, 3, 4];
    let decoded = Record::decode(RecordKind::Object, &field).unwrap();
    assert!(matches!(decoded, Record::Object(object) if object.checksums.is_empty()));
}

#[test]
fn run_beyond_the_number_range_is_rejected() {
    let (max_run, overflowing_run) =
        (ExtentRun { first_id: u64::MAX - 1, bytes: 1 }, ExtentRun { first_id: u64::MAX, bytes: 1 });
    assert_eq!(ExtentRun::decode_all(Decoder(&ExtentRun::encode_all(&[max_run]))).unwrap(), [max_run]);
    assert!(ExtentRun::decode_all(Decoder(&ExtentRun::encode_all(&[overflowing_run]))).is_err());
}

#[test]
fn unknown_fields_are_skipped() {
    for record in examples() {
        let mut out = record.encode();
        out.extend_from_slice(&[200, 3, 1, 2, 3]);
        assert_eq!(Record::decode(record.kind(), &out).unwrap(), record);
    }
}

proptest! {
    #[test]
    fn decoding_garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        for kind in RecordKind::ALL {
            let _ = Record::decode(kind, &bytes);
        }
    }
}

/// A tag is preserved regardless of its contents: quotes and whitespace at its ends have no HTTP meaning here.
#[test]
fn etags_round_trip_unchanged() {
    for tag in ["abc-3", "\"\"a\",\"\n\n", " a ", "W/a", ""] {
        for mut record in examples() {
            match &mut record {
                Record::Object(object) => object.etag = ETag::from_tag(tag),
                Record::Part(part) => part.etag = ETag::from_tag(tag),
                _ => continue,
            }
            assert_eq!(Record::decode(record.kind(), &record.encode()).unwrap(), record, "{tag:?}");
        }
    }
}

#[test]
fn metadata_of_older_records_has_no_retention() {
    let decode = |fields: &[u8], skipped: u8| -> Result<Metadata> {
        let (mut decoded, mut reader) = (Metadata::default(), FieldReader::new(fields));
        while let Some((tag, value)) = reader.next()? {
            if tag != skipped {
                super::metadata::read_metadata_field(&mut decoded, tag, value)?;
            }
        }
        Ok(decoded)
    };
    let mut out = FieldWriter::default();
    super::metadata::put_metadata(&mut out, &metadata());
    let fields = out.finish();
    assert_eq!(decode(&fields, 0).unwrap(), metadata());
    let mut expected = metadata();
    expected.classes.retention = None;
    assert_eq!(decode(&fields, 44).unwrap(), expected, "other fields are as without the one of a retention");
    for illegal in [&[1_u8, 0][..], &[1], &[]] {
        let mut out = FieldWriter::default();
        out.bytes(44, illegal);
        assert_eq!(
            decode(&out.finish(), 0).unwrap_err().reason(),
            tradewind_core::Reason::CorruptData,
            "{illegal:?}"
        );
    }
}
