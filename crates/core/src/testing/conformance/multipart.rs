//! Completion: the parts become one object atomically, or nothing happens and the upload stays.

use bytes::Bytes;

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::clock::Timestamp;
use crate::condition::Precondition;
use crate::error::Reason;
use crate::multipart::{CompletePart, CompleteUpload, CreateUpload, UploadId};
use crate::object::{ETag, Identity};
use crate::range::{ByteRange, Span};
use crate::store::{ETagForm, Feature, Select, StageRequest};
use crate::testing::context;

use super::fixture::{Fixture, full_metadata, key_address, md5, named_parts, part_number, pattern, reason};

super::theme! { "multipart":
    parts_in_any_order_become_one_object needs Multipart,
    parts_are_read_one_by_one needs SingleParts,
    ranges_cross_parts needs Multipart,
    metadata_is_that_of_the_beginning needs Multipart,
    one_small_part_is_enough needs Multipart,
    parts_not_named_are_dropped needs LeavingPartsOut,
    replaces_what_was_there needs Multipart,
    refuses_wrong_parts_and_keeps_the_upload needs Multipart,
    refuses_wrong_promises_and_keeps_the_upload needs Multipart,
    refuses_a_failed_precondition_and_keeps_the_upload needs ConditionsAndMultipart,
    makes_checksums_of_all_kinds needs ChecksumsOfParts,
    refuses_checksums_that_cannot_be_made needs Multipart,
    can_have_a_unique_tag needs UniqueTags,
    has_the_identity_of_an_object_that_is_moved needs IdentityAndMultipart,
}

const PART: usize = 5 << 20;

fn three_parts() -> [Bytes; 4] {
    [pattern(PART, 1), pattern(PART + 1, 2), pattern(PART, 3), pattern(10_001, 4)]
}

async fn parts_in_any_order_become_one_object(desk: Fixture) {
    let bytes = three_parts();
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let mut named = Vec::new();
    for (n, number) in [(2, 500), (0, 1), (3, 10_000), (1, 7)] {
        desk.part("k", &upload, number, pattern(10, 99)).await;
        named.push(desk.part("k", &upload, number, bytes[n].clone()).await);
    }
    named.sort_by_key(|part| part.number);
    let committed = desk.complete("k", &upload, named_parts(named)).await.expect("a completion succeeds");
    let whole = bytes.concat();
    let md5s: Vec<[u8; 16]> = bytes.iter().map(|part| md5(part)).collect();
    assert_eq!(committed.etag, ETag::from_parts(&md5(&md5s.concat()), 4));
    assert_eq!(committed.size, whole.len() as u64);
    assert_eq!(committed.checksums, desk.stored_checksums([Checksum::compute(Algorithm::Crc64Nvme, &whole)]));
    assert_eq!(committed.scope, ChecksumScope::FullObject);
    let info = desk.head("k").await;
    assert_eq!((info.parts, info.size, &info.etag), (Some(4), whole.len() as u64, &committed.etag));
    if desk.capabilities().generations {
        assert_eq!((info.generation, info.modified), (committed.generation, committed.modified));
    }
    assert_eq!((&info.checksums, info.scope), (&committed.checksums, committed.scope));
    assert!(desk.read("k").await == whole);
    assert_eq!(desk.names().await, ["k"]);
}

/// Writes an object of the parts 2 and 9 and returns their bytes.
async fn two_and_nine(desk: &Fixture) -> [Bytes; 2] {
    let bytes = [pattern(PART + 5, 1), pattern(70_000, 2)];
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let two = desk.part("k", &upload, 2, bytes[0].clone()).await;
    let nine = desk.part("k", &upload, 9, bytes[1].clone()).await;
    desk.complete("k", &upload, named_parts(vec![two, nine])).await.expect("a completion succeeds");
    bytes
}

async fn parts_are_read_one_by_one(desk: Fixture) {
    let [two, nine] = two_and_nine(&desk).await;
    let all = (two.len() + nine.len()) as u64;
    let (info, span, read) = desk.select("k", Select::Part(part_number(2))).await.expect("part 2 is there");
    assert_eq!((span, info.size), (Span { offset: 0, length: two.len() as u64 }, all));
    assert!(read == two);
    let (_, span, read) = desk.select("k", Select::Part(part_number(9))).await.expect("part 9 is there");
    assert_eq!(span, Span { offset: two.len() as u64, length: nine.len() as u64 });
    assert!(read == nine);
    for missing in [1, 3, 10] {
        let part = desk.select("k", Select::Part(part_number(missing))).await;
        assert_eq!(reason(part), Reason::InvalidRange, "part {missing}");
    }
    if !desk.capabilities().reports_all_parts {
        return;
    }
    let parts =
        async |after, limit| desk.store.object_parts(&context(), &key_address("k"), after, limit).await;
    let (first, more) = parts(None, 1).await.expect("parts are listed");
    assert_eq!((first[0].number.get(), first[0].size, more), (2, two.len() as u64, true));
    let (second, more) = parts(Some(part_number(2)), 1).await.expect("parts are listed");
    assert_eq!((second[0].number.get(), second[0].size, more), (9, nine.len() as u64, false));
    assert!(second[0].checksums.contains(&Checksum::compute(Algorithm::Crc64Nvme, &nine)));
    desk.put("k", "no parts").await;
    let (none, more) = parts(None, 10).await.expect("parts are listed");
    assert!(none.is_empty() && !more);
}

async fn ranges_cross_parts(desk: Fixture) {
    let whole = two_and_nine(&desk).await.concat();
    let (border, size) = (PART as u64 + 5, whole.len() as u64);
    let firsts = [0, border - 65_536, border - 1, border, border + 1, size - 1];
    for first in firsts {
        for length in [1, 2, 4096, 65_537, 140_000, size] {
            let range = ByteRange::Inclusive { first, last: first + length - 1 };
            let (_, span, read) =
                desk.select("k", Select::Range(range)).await.expect("the range holds bytes");
            let index = |n: u64| usize::try_from(n).expect("a small number");
            assert!(read == whole[index(span.offset)..index(span.end())], "{range:?}");
            assert_eq!(span.end(), size.min(first + length));
        }
    }
}

async fn metadata_is_that_of_the_beginning(desk: Fixture) {
    desk.put("k", "old").await;
    let create = CreateUpload { metadata: full_metadata(), checksum: None };
    desk.put_parts("k", create, &[pattern(10, 1)]).await;
    assert_eq!(desk.head("k").await.metadata, desk.stored_metadata(full_metadata()));
}

async fn one_small_part_is_enough(desk: Fixture) {
    for (n, size) in [0, 1, 5000].into_iter().enumerate() {
        let bytes = pattern(size, n as u64);
        let committed = desk.put_parts("k", CreateUpload::default(), std::slice::from_ref(&bytes)).await;
        assert_eq!(committed.etag, ETag::from_parts(&md5(&md5(&bytes)), 1));
        assert!(desk.read("k").await == bytes);
        assert_eq!(desk.head("k").await.parts, Some(1));
    }
}

async fn parts_not_named_are_dropped(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let mut named = Vec::new();
    for (number, size) in [(1, 100), (2, PART), (3, 200), (4, 300)] {
        named.push(desk.part("k", &upload, number, pattern(size, 1)).await);
    }
    let chosen = named_parts(vec![named[1].clone(), named[3].clone()]);
    desk.complete("k", &upload, chosen).await.expect("a completion succeeds");
    assert!(desk.read("k").await == [pattern(PART, 1), pattern(300, 1)].concat());
    assert_eq!(desk.head("k").await.parts, Some(2));
}

async fn replaces_what_was_there(desk: Fixture) {
    let old = desk.put("k", pattern(100_000, 1)).await;
    let new = desk.put_parts("k", CreateUpload::default(), &[pattern(5, 2)]).await;
    assert!(new.generation > old.generation || !desk.capabilities().generations);
    assert!(desk.read("k").await == pattern(5, 2));
    desk.put("k", pattern(6, 3)).await;
    assert!(desk.read("k").await == pattern(6, 3));
    assert_eq!(desk.head("k").await.parts, None);
}

async fn assert_refused(desk: &Fixture, upload: &UploadId, request: CompleteUpload, why: Reason) {
    let before = desk.head("k").await;
    assert_eq!(reason(desk.complete("k", upload, request.clone()).await), why, "{request:?}");
    assert_eq!(desk.head("k").await, before, "a failed completion changes nothing");
    assert_eq!(desk.read("k").await, "old");
}

async fn refuses_wrong_parts_and_keeps_the_upload(desk: Fixture) {
    desk.put("k", "old").await;
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let one = desk.part("k", &upload, 1, pattern(PART, 1)).await;
    let two = desk.part("k", &upload, 2, pattern(100, 2)).await;
    let three = desk.part("k", &upload, 3, pattern(50, 3)).await;
    let missing = CompletePart { number: part_number(9), ..two.clone() };
    let other_tag = CompletePart { etag: ETag::from_text("other"), ..two.clone() };
    let other_sum =
        CompletePart { checksum: Some(Checksum::compute(Algorithm::Crc64Nvme, b"other")), ..two.clone() };
    for (parts, why) in [
        (vec![], Reason::InvalidRequest),
        (vec![two.clone(), one.clone()], Reason::InvalidPartOrder),
        (vec![one.clone(), one.clone()], Reason::InvalidPartOrder),
        (vec![one.clone(), missing], Reason::InvalidPart),
        (vec![one.clone(), other_tag], Reason::InvalidPart),
        (vec![one.clone(), other_sum], Reason::InvalidPart),
        (vec![one.clone(), two.clone(), three], Reason::EntityTooSmall),
    ] {
        if parts.iter().any(|part| part.checksum.is_some()) && !desk.supports(Feature::Checksums) {
            continue;
        }
        assert_refused(&desk, &upload, named_parts(parts), why).await;
    }
    let checksum = Some(Checksum::compute(Algorithm::Crc64Nvme, &pattern(100, 2)));
    if !desk.supports(Feature::PartialCompletion) {
        return;
    }
    let right = named_parts(vec![one, CompletePart { checksum, ..two }]);
    desk.complete("k", &upload, right).await.expect("the upload is still there");
    assert!(desk.read("k").await == [pattern(PART, 1), pattern(100, 2)].concat());
}

async fn refuses_wrong_promises_and_keeps_the_upload(desk: Fixture) {
    desk.put("k", "old").await;
    let checksum = Some((Algorithm::Crc32c, ChecksumScope::FullObject));
    let upload = desk.create_upload("k", CreateUpload { checksum, ..CreateUpload::default() }).await;
    let (one, two) = (pattern(PART, 1), pattern(100, 2));
    let parts =
        vec![desk.part("k", &upload, 1, one.clone()).await, desk.part("k", &upload, 2, two.clone()).await];
    let whole = [one, two].concat();
    let promise = |expected_size: Option<u64>, expected_checksum: Option<Checksum>| CompleteUpload {
        expected_size,
        expected_checksum,
        ..named_parts(parts.clone())
    };
    let size = whole.len() as u64;
    assert_refused(&desk, &upload, promise(Some(size - 1), None), Reason::InvalidRequest).await;
    assert_refused(&desk, &upload, promise(Some(size + 1), None), Reason::InvalidRequest).await;
    if desk.supports(Feature::Checksums) {
        let wrong = Checksum::compute(Algorithm::Crc32c, b"other");
        assert_refused(&desk, &upload, promise(None, Some(wrong)), Reason::BadDigest).await;
        let other_algorithm = Checksum::compute(Algorithm::Sha1, &whole);
        assert_refused(&desk, &upload, promise(None, Some(other_algorithm)), Reason::InvalidRequest).await;
    }
    let right = promise(Some(size), Some(Checksum::compute(Algorithm::Crc32c, &whole)));
    desk.complete("k", &upload, right).await.expect("the declared values are correct");
    assert!(desk.read("k").await == whole);
}

async fn refuses_a_failed_precondition_and_keeps_the_upload(desk: Fixture) {
    let old = desk.put("k", "old").await;
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let part = desk.part("k", &upload, 1, pattern(10, 1)).await;
    let when = |precondition| CompleteUpload { precondition, ..named_parts(vec![part.clone()]) };
    assert_refused(&desk, &upload, when(Precondition::Absent), Reason::PreconditionFailed).await;
    let other = Precondition::Matches(ETag::from_text("other"));
    assert_refused(&desk, &upload, when(other), Reason::PreconditionFailed).await;
    desk.complete("k", &upload, when(Precondition::Matches(old.etag))).await.expect("the tag matches");
    assert!(desk.read("k").await == pattern(10, 1));

    let upload = desk.create_upload("new", CreateUpload::default()).await;
    let part = desk.part("new", &upload, 1, pattern(20, 1)).await;
    let when = |precondition| CompleteUpload { precondition, ..named_parts(vec![part.clone()]) };
    assert_eq!(reason(desk.complete("new", &upload, when(Precondition::Exists)).await), Reason::NoSuchKey);
    desk.complete("new", &upload, when(Precondition::Absent)).await.expect("the key is absent");
}

async fn makes_checksums_of_all_kinds(desk: Fixture) {
    let bytes = [pattern(PART, 1), pattern(1234, 2)];
    let whole = bytes.concat();
    for algorithm in Algorithm::ALL {
        for scope in [ChecksumScope::FullObject, ChecksumScope::Composite] {
            if !algorithm.supports(scope) {
                continue;
            }
            let create = CreateUpload { checksum: Some((algorithm, scope)), ..CreateUpload::default() };
            let upload = desk.create_upload("k", create).await;
            let (mut named, mut of_parts) = (Vec::new(), Vec::new());
            for (number, part) in (1..).zip(&bytes) {
                let algorithms = vec![algorithm];
                let request = StageRequest { algorithms, ..StageRequest::default() };
                let taken = desk.try_part("k", &upload, number, part.clone(), request).await;
                let (mut part_named, committed) = taken.expect("a part is taken");
                let value = Checksum::compute(algorithm, part);
                assert!(committed.checksums.contains(&value));
                part_named.checksum = Some(value);
                of_parts.push(value);
                named.push(part_named);
            }
            let expected = match scope {
                ChecksumScope::FullObject => Checksum::compute(algorithm, &whole),
                ChecksumScope::Composite => Checksum::composite(algorithm, &of_parts),
            };
            let request = CompleteUpload { expected_checksum: Some(expected), ..named_parts(named) };
            let committed = desk.complete("k", &upload, request).await.expect("a completion succeeds");
            assert_eq!((&committed.checksums[..], committed.scope), (&[expected][..], scope));
            let info = desk.head("k").await;
            assert_eq!((&info.checksums[..], info.scope), (&[expected][..], scope), "{algorithm:?}");
            if !desk.capabilities().reports_all_parts {
                continue;
            }
            let parts = desk
                .store
                .object_parts(&context(), &key_address("k"), None, 10)
                .await
                .expect("parts are listed")
                .0;
            let has_checksums =
                parts.iter().zip(&of_parts).all(|(part, value)| part.checksums.contains(value));
            assert!(has_checksums && parts.len() == 2, "the parts keep their checksums: {parts:?}");
        }
    }
}

/// Rejected at creation rather than at completion. S3 has no composite CRC-64/NVME, and only CRCs of parts combine into
/// a checksum of the whole.
async fn refuses_checksums_that_cannot_be_made(desk: Fixture) {
    let of_whole = Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.is_crc());
    let of_whole = of_whole.map(|algorithm| (algorithm, ChecksumScope::FullObject));
    for checksum in of_whole.chain([(Algorithm::Crc64Nvme, ChecksumScope::Composite)]) {
        let create = CreateUpload { checksum: Some(checksum), ..CreateUpload::default() };
        let refused = desk.store.create_upload(&context(), &key_address("k"), create).await;
        assert_eq!(reason(refused), Reason::InvalidRequest, "{checksum:?}");
    }
}

async fn has_the_identity_of_an_object_that_is_moved(desk: Fixture) {
    let identity = Identity { etag: ETag::from_tag("0-moved"), modified: Timestamp::from_millis(1_234_567) };
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let part = desk.part("k", &upload, 1, pattern(10, 1)).await;
    let complete = CompleteUpload { identity: Some(identity.clone()), ..named_parts(vec![part]) };
    let committed = desk.complete("k", &upload, complete).await.expect("a completion succeeds");
    assert_eq!((&committed.etag, committed.modified), (&identity.etag, identity.modified));
    assert_eq!(desk.head("k").await.identity(), identity);
}

async fn can_have_a_unique_tag(desk: Fixture) {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let upload = desk.create_upload("k", CreateUpload::default()).await;
        let request = StageRequest { etag: ETagForm::Unique, ..StageRequest::default() };
        let part = desk.try_part("k", &upload, 1, pattern(10, 1), request).await.expect("a part is taken").0;
        let committed = desk.complete("k", &upload, named_parts(vec![part.clone()])).await;
        seen.push(part.etag);
        seen.push(committed.expect("a completion succeeds").etag);
    }
    assert!(seen.iter().all(|etag| etag.md5().is_none() && etag.as_str().contains('-')), "{seen:?}");
    let distinct: std::collections::HashSet<&ETag> = seen.iter().collect();
    assert_eq!(distinct.len(), 4, "each write has a tag of its own: {seen:?}");
}
