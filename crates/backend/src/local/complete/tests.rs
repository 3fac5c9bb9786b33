//! Manifests of the maximum size (10,000 parts), and the records that a listing of uploads reads.

use std::time::Instant;

use futures::StreamExt;
use tradewind_core::checksum::Checksum;
use tradewind_core::multipart::{CompletePart, CreateUpload, PartNumber};
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::testing::context;
use tradewind_core::{Address, BucketName, ByteRange, ETag, ObjectStore, SystemClock, Timestamp};

use super::super::bulk::ExtentBytes;
use super::super::commit::PutPart;
use super::super::frame::MAX_PAYLOAD_BYTES;
use super::super::index::entries::RecordLocation;
use super::super::options::LocalOptions;
use super::super::position::Position;
use super::super::record::{ExtentRun, Part};
use super::super::store::LocalStore;
use super::*;

const PARTS: u16 = 10_000;
/// Declared size of each part: the minimum.
const DECLARED_BYTES: u64 = 5 << 20;
/// The parts whose bytes are written.
const WRITTEN_PARTS: [u16; 3] = [1, 5000, 10_000];

/// The bytes of one extent of a part.
fn bytes_of(part: u16, extent: u64) -> Vec<u8> {
    let mark = (u64::from(part) << 8 | extent).to_le_bytes();
    mark.iter().copied().cycle().take(MAX_PAYLOAD_BYTES).collect()
}

/// Stores a part of five extents of 1 MiB, which are written only for [`WRITTEN_PARTS`] parts.
async fn put_part(open: &OpenStore, address: &Address, upload: UploadSeq, number: u16) -> ETag {
    let extents = DECLARED_BYTES / MAX_PAYLOAD_BYTES as u64;
    let first = open.state.next_id.fetch_add(extents, std::sync::atomic::Ordering::AcqRel);
    let (mut new_extents, mut pins) = (Vec::new(), Vec::new());
    for extent in (0..extents).filter(|_| WRITTEN_PARTS.contains(&number)) {
        let payload = bytes_of(number, extent);
        let block_crcs = payload.chunks(64 << 10).map(tradewind_core::checksum::crc64nvme).collect();
        let bytes = ExtentBytes {
            id: first + extent,
            payload: vec![payload.into()],
            payload_bytes: MAX_PAYLOAD_BYTES,
            block_crcs,
            is_relocated: false,
        };
        let (at, pin) = open.write_extent(bytes).await.unwrap();
        new_extents.push(at);
        pins.push(pin);
    }
    let etag = ETag::from_md5(&[u8::try_from(number % 251).unwrap(); 16]);
    let part = Part {
        upload,
        number,
        size: DECLARED_BYTES,
        modified: Timestamp::from_millis(1),
        etag: etag.clone(),
        checksums: vec![Checksum::crc64nvme(u64::from(number))],
        runs: vec![ExtentRun { first_id: first, bytes: DECLARED_BYTES }],
        rewritten_seq: None,
        new_extents,
        transformed: None,
    };
    let put = PutPart {
        bucket: address.bucket.as_str().to_owned(),
        key: address.key.as_str().to_owned(),
        part: Box::new(part),
        pins,
    };
    open.committer.submit(put).await.unwrap();
    etag
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_parts_complete_and_read_quickly() {
    let directory = tempfile::tempdir().unwrap();
    let (open, recovery) =
        OpenStore::open(directory.path(), LocalOptions::default(), SystemClock::shared()).unwrap();
    let store = LocalStore::from_open(open.clone(), recovery);
    let address = Address::parse("bucket", "huge").unwrap();
    store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
    let upload = store.create_upload(&context(), &address, CreateUpload::default()).await.unwrap();
    let seq = parse_id(&upload).unwrap();
    let started = Instant::now();
    let numbers = futures::stream::iter(1..=PARTS);
    let put = |number| {
        let (open, address) = (&open, &address);
        async move { (number, put_part(open, address, seq, number).await) }
    };
    let parts: Vec<(u16, ETag)> = numbers.map(put).buffered(64).collect().await;
    println!("{PARTS} parts: {:?}", started.elapsed());

    let started = Instant::now();
    let named = parts.into_iter().map(|(number, etag)| CompletePart {
        number: PartNumber::new(number.into()).unwrap(),
        etag,
        checksum: None,
    });
    let request = multipart::CompleteUpload { parts: named.collect(), ..Default::default() };
    let completed = store.complete_upload(&context(), &address, &upload, request).await.unwrap();
    println!("completion: {:?}", started.elapsed());
    assert!(started.elapsed().as_secs() < 5);
    assert_eq!(completed.size, u64::from(PARTS) * DECLARED_BYTES);

    let mut slowest = std::time::Duration::ZERO;
    let rounds = 20;
    let all = Instant::now();
    for round in 0..rounds {
        let part = WRITTEN_PARTS[round % WRITTEN_PARTS.len()];
        let extent = u64::try_from(round).unwrap() % 5;
        let first = u64::from(part - 1) * DECLARED_BYTES + extent * MAX_PAYLOAD_BYTES as u64 + 8192;
        let range = Select::Range(ByteRange::Inclusive { first, last: first + 4095 });
        let started = Instant::now();
        let request = GetRequest { select: range, ..GetRequest::default() };
        let mut body = store.get(&context(), &address, request).await.unwrap().body;
        slowest = slowest.max(started.elapsed());
        let mut got = Vec::new();
        while let Some(piece) = body.next().await {
            got.extend_from_slice(&piece.unwrap());
        }
        assert!(got == bytes_of(part, extent)[8192..8192 + 4096]);
    }
    // Even unoptimized: the manifest is decoded once, not for every range.
    assert!(all.elapsed().as_secs() < 10);
    println!(
        "4 KiB ranges: {:?} each, slowest open {slowest:?}",
        all.elapsed() / u32::try_from(rounds).unwrap()
    );

    let started = Instant::now();
    let head = store.head(&context(), &address, GetRequest::default()).await.unwrap();
    assert_eq!(head.info.parts, Some(PARTS.into()));
    println!("head: {:?}", started.elapsed());
    let (page, more) =
        store.object_parts(&context(), &address, PartNumber::new(9_990).ok(), 100).await.unwrap();
    assert_eq!((page.len(), more), (10, false));
    store.close().await.unwrap();
}

#[tokio::test]
async fn upload_listing_reads_only_records_on_its_page() {
    let directory = tempfile::tempdir().unwrap();
    let (open, recovery) =
        OpenStore::open(directory.path(), LocalOptions::default(), SystemClock::shared()).unwrap();
    let store = LocalStore::from_open(open.clone(), recovery);
    let bucket = BucketName::new("bucket").unwrap();
    store.create_bucket(&context(), &bucket).await.unwrap();
    for key in ["c", "a"] {
        let address = Address::parse("bucket", key).unwrap();
        store.create_upload(&context(), &address, CreateUpload::default()).await.unwrap();
    }
    // The record of the last one cannot be read.
    let mut changes = open.state.index.changes();
    let at = Position { segment: 999, offset: 0 };
    let id = open.state.bucket("bucket").unwrap().id;
    let lost = UploadEntry {
        bucket: id,
        key: "z".to_owned(),
        location: RecordLocation { position: at, record_bytes: 1 },
    };
    changes.put(keys::upload(1 << 40), lost.encode());
    changes.apply().unwrap();
    let page = |limit| {
        let request = ListUploads { limit, ..ListUploads::default() };
        open.uploads_page(&context(), &bucket, &request)
    };
    let first = page(2).unwrap();
    assert_eq!(first.entries.iter().map(ListEntry::name).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(first.next.unwrap().0, "c");
    assert_eq!(page(3).unwrap_err().reason(), Reason::CorruptData);

    let budget = tradewind_core::Budget::new(1 << 20);
    let expired_context = tradewind_core::testing::context_until(
        &budget,
        tradewind_core::context::Deadline::after(SystemClock::shared(), std::time::Duration::ZERO),
    );
    let expired = open.uploads_page(&expired_context, &bucket, &ListUploads::default());
    assert_eq!(expired.unwrap_err().reason(), Reason::DeadlineExceeded);
    store.close().await.unwrap();
}
