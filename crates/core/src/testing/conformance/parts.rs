//! Parts: accepted in any order, replaced by number, copied from stored objects, and listed.

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::condition::{ETagMatch, ReadConditions};
use crate::error::{ErrorKind, Reason, Result};
use crate::multipart::{CreateUpload, PartNumber, UploadId};
use crate::object::{Committed, ETag, Expected};
use crate::range::ByteRange;
use crate::store::{CopyPartRequest, ETagForm, Feature, StageRequest};
use crate::testing::context;

use super::fixture::{
    Fixture, full_metadata, key_address, md5, md5_etag, named_parts, part_number, pattern, reason,
};

super::theme! { "parts":
    answer_like_objects needs Multipart,
    are_replaced_by_number needs Multipart,
    are_listed_in_pages needs Multipart,
    leave_nothing_when_dropped needs Multipart,
    are_verified needs Multipart,
    are_copied_from_objects needs Multipart,
    are_copied_from_ranges_within_the_source needs Multipart,
    are_not_copied_where_a_condition_fails needs Multipart,
}

async fn answer_like_objects(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    for (number, size) in [(10_000, 0), (1, 1), (77, 65_537)] {
        let bytes = pattern(size, 1);
        let request = StageRequest { algorithms: vec![Algorithm::Sha256], ..StageRequest::default() };
        let part = desk.try_part("k", &upload, number, bytes.clone(), request).await;
        let (_, committed) = part.expect("a part is taken");
        assert_eq!((committed.size, committed.etag), (size as u64, md5_etag(&bytes)));
        assert!(committed.checksums.contains(&Checksum::compute(Algorithm::Sha256, &bytes)));
    }
}

async fn sizes(desk: &Fixture, upload: &UploadId) -> Vec<(u16, u64, ETag)> {
    let page = desk.store.list_parts(&context(), &key_address("k"), upload, None, 1000).await;
    let parts = page.expect("parts are listed").parts;
    parts.into_iter().map(|part| (part.number.get(), part.size, part.etag)).collect()
}

async fn are_replaced_by_number(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let first = desk.part("k", &upload, 1, pattern(1000, 1)).await;
    desk.part("k", &upload, 2, pattern(10, 1)).await;
    let second = desk.part("k", &upload, 1, pattern(70_000, 2)).await;
    let listed = sizes(&desk, &upload).await;
    assert_eq!(listed, [(1, 70_000, second.etag.clone()), (2, 10, md5_etag(&pattern(10, 1)))]);
    let with_old = desk.complete("k", &upload, named_parts(vec![first])).await;
    assert_eq!(reason(with_old), Reason::InvalidPart, "a replaced part is gone");
    if !desk.supports(Feature::PartialCompletion) {
        return;
    }
    desk.complete("k", &upload, named_parts(vec![second])).await.expect("a completion succeeds");
    assert!(desk.read("k").await == pattern(70_000, 2));
}

async fn are_listed_in_pages(desk: Fixture) {
    let checksum = Some((Algorithm::Crc32, ChecksumScope::Composite));
    let create = CreateUpload { metadata: full_metadata(), checksum };
    let upload = desk.create_upload("k", create).await;
    let mut numbers: Vec<i64> = (1..=12).map(|n| n * n).chain([10_000, 9_999]).collect();
    numbers.rotate_left(5);
    for &number in &numbers {
        let size = usize::try_from(number).expect("a small number");
        let algorithms = vec![Algorithm::Crc32];
        let request = StageRequest { algorithms, ..StageRequest::default() };
        desk.try_part("k", &upload, number, pattern(size, 1), request).await.expect("a part is taken");
    }
    numbers.sort_unstable();
    for limit in [1, 4, 14, 1000] {
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let page = desk.store.list_parts(&context(), &key_address("k"), &upload, after, limit).await;
            let page = page.expect("parts are listed");
            assert!(page.parts.len() <= limit);
            assert_eq!((&page.upload.id, page.upload.key.as_str()), (&upload, "k"));
            assert_eq!(page.upload.checksum, checksum.filter(|_| desk.supports(Feature::Checksums)));
            assert!(page.upload.metadata == full_metadata() || !desk.capabilities().upload_metadata);
            for part in &page.parts {
                let bytes = pattern(usize::from(part.number.get()), 1);
                assert_eq!((part.size, &part.etag), (bytes.len() as u64, &md5_etag(&bytes)));
                let kept = desk.stored_checksums([Checksum::compute(Algorithm::Crc32, &bytes)]);
                assert!(kept.iter().all(|sum| part.checksums.contains(sum)));
            }
            seen.extend(page.parts.iter().map(|part| i64::from(part.number.get())));
            assert!(
                page.next.is_none() || page.next.map(PartNumber::get).map(i64::from) == seen.last().copied()
            );
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, numbers, "in pages of {limit}");
    }
}

async fn leave_nothing_when_dropped(desk: Fixture) {
    let context = context();
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    desk.part("k", &upload, 1, pattern(10, 1)).await;
    let before = sizes(&desk, &upload).await;
    for number in [1, 2] {
        let number = part_number(number);
        let staged = desk
            .store
            .stage_part(&context, &key_address("k"), &upload, number, StageRequest::default())
            .await;
        let mut staged = staged.expect("staging begins");
        staged.write(pattern(300_000, 2)).await.expect("bytes are staged");
        drop(staged);
        assert_eq!(sizes(&desk, &upload).await, before);
    }
}

async fn are_verified(desk: Fixture) {
    let (context, bytes) = (context(), pattern(70_000, 1));
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let wrong = [
        (Expected { size: Some(70_001), ..Expected::default() }, Reason::IncompleteBody),
        (Expected { size: Some(69_999), ..Expected::default() }, Reason::InvalidRequest),
        (Expected { md5: Some(md5(b"other")), ..Expected::default() }, Reason::BadDigest),
        (
            Expected {
                checksums: vec![Checksum::compute(Algorithm::Crc32c, b"other")],
                ..Expected::default()
            },
            Reason::BadDigest,
        ),
    ];
    for (expected, refused) in wrong {
        let request =
            StageRequest { algorithms: vec![Algorithm::Crc32c], verify_md5: true, ..StageRequest::default() };
        let staged =
            desk.store.stage_part(&context, &key_address("k"), &upload, part_number(1), request).await;
        let mut staged = staged.expect("staging begins");
        staged.write(bytes.clone()).await.expect("bytes are staged");
        let commit = expected.clone();
        assert_eq!(reason(staged.commit(commit).await), refused, "{expected:?}");
        assert!(sizes(&desk, &upload).await.is_empty(), "a rejected part is not stored");
    }
}

async fn copy_part(
    desk: &Fixture,
    upload: &UploadId,
    number: i64,
    source: &str,
    range: Option<ByteRange>,
    source_conditions: ReadConditions,
) -> Result<Committed> {
    let request = CopyPartRequest {
        source: key_address(source),
        range,
        source_conditions,
        destination: key_address("k"),
        upload: upload.clone(),
        number: part_number(number),
        etag: ETagForm::Md5,
    };
    desk.store.copy_part(&context(), request).await
}

async fn are_copied_from_objects(desk: Fixture) {
    let (big, small) = (pattern(6 << 20, 1), pattern(1000, 2));
    desk.put("big", big.clone()).await;
    desk.put("small", small.clone()).await;
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let mut parts = Vec::new();
    let range = ByteRange::Inclusive { first: 13, last: 12 + (5 << 20) };
    for (number, source, range) in [(3, "small", None), (1, "big", Some(range)), (2, "big", None)] {
        let copied = copy_part(&desk, &upload, number, source, range, ReadConditions::default()).await;
        let etag = copied.expect("a part is copied").etag;
        parts.push(crate::multipart::CompletePart { number: part_number(number), etag, checksum: None });
    }
    desk.delete("small").await;
    parts.sort_by_key(|part| part.number);
    let expected = [&big[13..13 + (5 << 20)], &big, &small].concat();
    assert_eq!(parts[0].etag, md5_etag(&expected[..5 << 20]));
    let committed = desk.complete("k", &upload, named_parts(parts)).await.expect("a completion succeeds");
    assert_eq!(
        committed.checksums,
        desk.stored_checksums([Checksum::compute(Algorithm::Crc64Nvme, &expected)])
    );
    assert!(desk.read("k").await == expected);
}

async fn are_copied_from_ranges_within_the_source(desk: Fixture) {
    let bytes = pattern(200_000, 1);
    desk.put("from", bytes.clone()).await;
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    for (first, last) in [(0, 0), (65_535, 65_536), (199_999, 199_999), (0, 199_999), (70_000, 150_000)] {
        let range = Some(ByteRange::Inclusive { first, last });
        let part = copy_part(&desk, &upload, 1, "from", range, ReadConditions::default()).await;
        let part = part.expect("a range within the source is copied");
        let index = |n: u64| usize::try_from(n).expect("a small number");
        assert_eq!(part.etag, md5_etag(&bytes[index(first)..=index(last)]), "{first} to {last}");
    }
    let before = sizes(&desk, &upload).await;
    for (first, last) in [(200_000, 200_001), (0, 200_000), (199_999, u64::MAX)] {
        let range = Some(ByteRange::Inclusive { first, last });
        let part = copy_part(&desk, &upload, 1, "from", range, ReadConditions::default()).await;
        assert_eq!(reason(part), Reason::InvalidRange, "{first} to {last}");
    }
    assert_eq!(sizes(&desk, &upload).await, before);
}

async fn are_not_copied_where_a_condition_fails(desk: Fixture) {
    let etag = desk.put("from", "bytes").await.etag;
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let tags = |etag: &ETag| Some(ETagMatch::OneOf(vec![etag.clone()]));
    let none = ReadConditions::default;
    let other = ETag::from_text("other");
    let unmatched = ReadConditions { if_match: tags(&other), ..none() };
    let refused = copy_part(&desk, &upload, 1, "from", None, unmatched).await;
    assert_eq!(reason(refused), Reason::PreconditionFailed);
    let known = ReadConditions { if_none_match: tags(&etag), ..none() };
    let refused = copy_part(&desk, &upload, 1, "from", None, known).await;
    assert_eq!(reason(refused).kind(), ErrorKind::Precondition);
    let missing = copy_part(&desk, &upload, 1, "no", None, none()).await;
    assert_eq!(reason(missing), Reason::NoSuchKey);
    let dead = UploadId("no-such-upload".to_owned());
    assert_eq!(reason(copy_part(&desk, &dead, 1, "from", None, none()).await), Reason::NoSuchUpload);
    assert!(sizes(&desk, &upload).await.is_empty());
    let matched = ReadConditions { if_match: tags(&etag), ..none() };
    copy_part(&desk, &upload, 1, "from", None, matched).await.expect("the tag matches");
}
