//! Attributes that a layer declares for transformed bytes: the store reports and compares them, and serves the bytes
//! themselves only to the layer.

use std::sync::Arc;

use bytes::Bytes;

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::condition::{Precondition, ReadConditions};
use crate::error::Reason;
use crate::listing::{ListEntry, ListRequest};
use crate::multipart::{CompletePart, CreateUpload, MIN_PART_BYTES};
use crate::object::{ETag, Expected, Generation, ObjectInfo};
use crate::range::ByteRange;
use crate::store::{CopyPartRequest, ETagForm, GetRequest, Select, StageRequest};
use crate::stored_form::{
    DescriptionChange, MAX_DESCRIPTION_BYTES, PlainAttributes, Redescribed, Reported, StoredSegment,
};
use crate::testing::{context, write_all};

use super::fixture::{
    Fixture, copy_request, key_address, key_address_two, md5_etag, named_parts, part_number, pattern, reason,
    tags,
};

super::theme! { "reported":
    attributes_replace_those_of_the_bytes needs ReportedAttributes,
    attributes_are_those_of_conditions needs ReportedAttributes,
    bytes_are_not_served_without_the_layer needs ReportedAttributes,
    bytes_are_verified_against_the_declared_ones needs ReportedAttributes,
    attributes_end_with_the_object needs ReportedAttributes,
    attributes_survive_other_metadata needs ReportedAttributes,
    attributes_are_of_one_version needs ReportedVersions,
    parts_make_an_object needs ReportedParts,
    descriptions_change_alone needs ReportedAttributes,
    descriptions_of_old_versions_change needs ReportedVersions,
    descriptions_of_parts_change needs ReportedParts,
}

/// The attributes of these bytes, and a description.
fn reported(plain: &[u8], description: &[u8]) -> Reported {
    let checksums = vec![Checksum::compute(Algorithm::Sha256, plain), crc64(plain)];
    Reported {
        plain: PlainAttributes { size: plain.len() as u64, etag: md5_etag(plain), checksums },
        description: description.to_vec(),
    }
}

fn crc64(plain: &[u8]) -> Checksum {
    Checksum::compute(Algorithm::Crc64Nvme, plain)
}

fn expecting(reported: Reported) -> Expected {
    Expected { reported: Some(reported), ..Expected::default() }
}

fn unique() -> StageRequest {
    StageRequest { etag: ETagForm::Unique, ..StageRequest::default() }
}

/// Writes `stored` as the form of `plain`.
async fn put(desk: &Fixture, key: &str, plain: &[u8], stored: &Bytes) {
    let expected = expecting(reported(plain, b"form"));
    let committed = desk.try_put(key, stored.clone(), unique(), expected).await.expect("a PUT succeeds");
    assert_eq!((committed.size, committed.etag), (plain.len() as u64, md5_etag(plain)));
    assert_eq!(committed.checksums, reported(plain, b"form").plain.checksums);
}

fn assert_reported(info: &ObjectInfo, plain: &[u8], stored: &[u8]) {
    assert_eq!((info.size, &info.etag), (plain.len() as u64, &md5_etag(plain)));
    assert_eq!(info.checksums, reported(plain, b"form").plain.checksums);
    let form = info.stored.as_ref().expect("the stored form is reported");
    let segment = StoredSegment {
        part: None,
        plain_bytes: plain.len() as u64,
        stored_bytes: stored.len() as u64,
        description: b"form".to_vec(),
    };
    assert_eq!((&form.segments[..], form.size()), (&[segment][..], stored.len() as u64));
}

async fn read_stored(desk: &Fixture, key: &str, select: Select) -> Bytes {
    let request = GetRequest { select, stored: true, ..GetRequest::default() };
    desk.get(key, request).await.expect("stored bytes are read").2
}

async fn attributes_replace_those_of_the_bytes(desk: Fixture) {
    // Inline and in extents, shorter and longer than the plain bytes, and empty ones.
    for (plain, stored) in [(1000, 100), (100, 1000), (2_000_000, 1_500_000), (10, 3_000_000), (7, 0), (0, 5)]
    {
        let (plain, stored) = (pattern(plain, 1), pattern(stored, 2));
        put(&desk, "k", &plain, &stored).await;
        assert_reported(&desk.head("k").await, &plain, &stored);
        let request = GetRequest { stored: true, ..GetRequest::default() };
        let (info, span, bytes) = desk.get("k", request).await.expect("stored bytes are read");
        assert_reported(&info, &plain, &stored);
        assert!(bytes == stored && span.length == stored.len() as u64);
        if stored.len() > 50 {
            let range = Select::Range(ByteRange::Inclusive { first: 20, last: 49 });
            assert!(read_stored(&desk, "k", range).await == stored.slice(20..50));
        }
        let listed = desk.list(ListRequest { limit: 10, ..ListRequest::default() }).await;
        let [ListEntry::Key(_, summary)] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!((summary.size, &summary.etag), (plain.len() as u64, &md5_etag(&plain)));
        let checksum = Some((Algorithm::Sha256, ChecksumScope::FullObject));
        assert_eq!(summary.checksum, checksum.filter(|_| desk.capabilities().listing_reports_checksums));
    }
}

async fn attributes_are_those_of_conditions(desk: Fixture) {
    let (plain, stored) = (pattern(1000, 1), pattern(500, 2));
    put(&desk, "k", &plain, &stored).await;
    let if_match = |etag: ETag| ReadConditions {
        if_match: Some(crate::condition::ETagMatch::OneOf(vec![etag])),
        ..ReadConditions::default()
    };
    for (etag, is_right) in [(md5_etag(&plain), true), (md5_etag(&stored), false)] {
        let request =
            GetRequest { conditions: if_match(etag.clone()), stored: true, ..GetRequest::default() };
        assert_eq!(desk.get("k", request).await.is_ok(), is_right);
    }
    if desk.capabilities().conditional_writes {
        let refused = desk.put_if("k", "new", Precondition::Matches(md5_etag(&stored))).await;
        assert_eq!(reason(refused), Reason::PreconditionFailed);
        desk.put_if("k", "new", Precondition::Matches(md5_etag(&plain))).await.expect("the tag is reported");
    }
}

async fn bytes_are_not_served_without_the_layer(desk: Fixture) {
    let (plain, stored) = (pattern(200_000, 1), pattern(150_000, 2));
    put(&desk, "k", &plain, &stored).await;
    for select in [Select::Whole, Select::Range(ByteRange::From(5)), Select::Part(part_number(1))] {
        assert_eq!(reason(desk.select("k", select).await), Reason::Unsupported);
        let request = GetRequest { select, ..GetRequest::default() };
        let head = desk.store.head(&context(), &key_address("k"), request).await.expect("a HEAD succeeds");
        let skipped = if matches!(select, Select::Range(_)) { 5 } else { 0 };
        assert_eq!(
            (head.span.offset, head.span.end()),
            (skipped, 200_000),
            "a HEAD is about the plain bytes"
        );
    }
    let copy = copy_request(key_address("k"), key_address_two("copy"));
    assert_eq!(reason(desk.store.copy(&context(), copy).await), Reason::Unsupported);
    if desk.capabilities().multipart {
        let upload = desk.create_upload("u", CreateUpload::default()).await;
        let copy = CopyPartRequest {
            source: key_address("k"),
            range: None,
            source_conditions: ReadConditions::default(),
            destination: key_address("u"),
            upload,
            number: part_number(1),
            etag: ETagForm::Md5,
        };
        assert_eq!(reason(desk.store.copy_part(&context(), copy).await), Reason::Unsupported);
    }
}

async fn bytes_are_verified_against_the_declared_ones(desk: Fixture) {
    let stored = pattern(70_000, 1);
    let wrong = [
        Expected { size: Some(69_999), ..expecting(reported(b"plain", b"form")) },
        Expected { checksums: vec![crc64(b"other")], ..expecting(reported(b"plain", b"form")) },
        expecting(reported(b"plain", b"")),
        expecting(reported(b"plain", &[1; MAX_DESCRIPTION_BYTES + 1])),
    ];
    for expected in wrong {
        desk.try_put("k", stored.clone(), unique(), expected).await.expect_err("the declaration is wrong");
        desk.assert_absent("k").await;
    }
    let right =
        Expected { size: Some(70_000), checksums: vec![crc64(&stored)], ..expecting(reported(b"p", b"f")) };
    desk.try_put("k", stored, unique(), right).await.expect("the declaration is right");
}

async fn attributes_end_with_the_object(desk: Fixture) {
    let (plain, stored) = (pattern(1000, 1), pattern(500, 2));
    put(&desk, "k", &plain, &stored).await;
    desk.put("k", plain.clone()).await;
    let info = desk.head("k").await;
    assert_eq!((info.stored, info.size), (None, 1000));
    let request = GetRequest { stored: true, ..GetRequest::default() };
    let found = desk.get("k", request).await.expect("`stored` is ignored for plain objects");
    assert!(found.2 == plain && desk.read("k").await == plain);
}

async fn attributes_survive_other_metadata(desk: Fixture) {
    for (plain, stored) in [(1000, 500), (100, 2_000_000)] {
        let (plain, stored) = (pattern(plain, 1), pattern(stored, 2));
        put(&desk, "k", &plain, &stored).await;
        if desk.capabilities().tags {
            let set = desk.store.set_tags(&context(), &key_address("k"), tags(&[("a", "1")])).await;
            set.expect("tags are set");
        }
        assert_reported(&desk.head("k").await, &plain, &stored);
        assert!(read_stored(&desk, "k", Select::Whole).await == stored);
    }
}

async fn attributes_are_of_one_version(desk: Fixture) {
    desk.enable_versioning().await;
    let (plain, stored) = (pattern(1000, 1), pattern(500, 2));
    put(&desk, "k", &plain, &stored).await;
    desk.put("k", "new").await;
    let sizes: Vec<Option<u64>> = desk
        .versions("k")
        .await
        .into_iter()
        .map(|(_, version)| version.object.map(|object| object.size))
        .collect();
    assert_eq!(sizes, [Some(3), Some(1000)]);
    assert_eq!(desk.head("k").await.stored, None);
}

async fn parts_make_an_object(desk: Fixture) {
    let minimum = usize::try_from(MIN_PART_BYTES).expect("a part fits into memory");
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    // Shorter than the minimum only as stored, not transformed, and longer than the plain bytes.
    let plain = [pattern(minimum, 1), pattern(minimum, 2), pattern(10, 3)];
    let stored = [pattern(1000, 4), plain[1].clone(), pattern(2_000_000, 5)];
    let mut named = Vec::new();
    for (index, number) in [2, 5, 9].into_iter().enumerate() {
        let context = context();
        let request = StageRequest::default();
        let address = key_address("k");
        let staged = desk.store.stage_part(&context, &address, &upload, part_number(number), request).await;
        let mut staged = staged.expect("a part begins");
        write_all(&mut *staged, stored[index].clone()).await.expect("a part is written");
        let is_transformed = index != 1;
        let reported = is_transformed.then(|| reported(&plain[index], &[index as u8 + 1]));
        let expected = Expected { reported, ..Expected::default() };
        let (committed, _) = staged.commit(expected).await.expect("a part is committed");
        assert_eq!(committed.size, plain[index].len() as u64);
        named.push(CompletePart { number: part_number(number), etag: committed.etag, checksum: None });
    }
    let whole = plain.concat();
    let completed = desk.complete("k", &upload, named_parts(named)).await.expect("a completion succeeds");
    assert_eq!((completed.size, &completed.checksums[..]), (whole.len() as u64, &[crc64(&whole)][..]));
    let info = desk.head("k").await;
    assert_eq!((info.size, &info.checksums[..]), (whole.len() as u64, &[crc64(&whole)][..]));
    let form = info.stored.expect("the stored form is reported");
    let expected: Vec<StoredSegment> = [(2, vec![1]), (5, vec![]), (9, vec![3])]
        .into_iter()
        .enumerate()
        .map(|(index, (number, description))| StoredSegment {
            part: Some(part_number(number)),
            plain_bytes: plain[index].len() as u64,
            stored_bytes: stored[index].len() as u64,
            description,
        })
        .collect();
    assert_eq!(form.segments[..], expected);
    assert!(read_stored(&desk, "k", Select::Whole).await == stored.concat());
    let request = GetRequest { select: Select::Part(part_number(9)), ..GetRequest::default() };
    let head = desk.store.head(&context(), &key_address("k"), request).await.expect("a HEAD of a part");
    assert_eq!((head.span.offset, head.span.length), (2 * MIN_PART_BYTES, 10));
}

/// Replaces each description that is not `kept` by `new`.
struct NewDescription {
    new: &'static [u8],
    kept: &'static [u8],
}

impl DescriptionChange for NewDescription {
    fn new_description(&self, segment: &StoredSegment) -> Option<Vec<u8>> {
        (segment.description != self.kept).then(|| self.new.to_vec())
    }
}

fn new_description(new: &'static [u8], kept: &'static [u8]) -> Arc<dyn DescriptionChange> {
    Arc::new(NewDescription { new, kept })
}

fn descriptions(segments: &[StoredSegment]) -> Vec<&[u8]> {
    segments.iter().map(|segment| &segment.description[..]).collect()
}

/// The attributes without those that a change of descriptions changes.
fn without_form(info: ObjectInfo) -> ObjectInfo {
    ObjectInfo { stored: None, generation: Generation(0), ..info }
}

async fn descriptions_change_alone(desk: Fixture) {
    // Inline and in extents.
    for (plain, stored) in [(1000, 500), (100, 2_000_000)] {
        let (plain, stored) = (pattern(plain, 1), pattern(stored, 2));
        put(&desk, "k", &plain, &stored).await;
        let before = desk.head("k").await;
        let redescribe = |change| {
            let store = desk.store.clone();
            async move { store.redescribe(&context(), &key_address("k"), change).await }
        };
        let changed = redescribe(new_description(b"longer form", b"")).await.expect("a description changes");
        assert_eq!((changed.changed, descriptions(&changed.segments)), (1, vec![&b"longer form"[..]]));
        let after = desk.head("k").await;
        assert!(after.generation > before.generation, "the generation grows");
        assert_eq!(after.stored.as_ref().map(|form| form.segments.to_vec()), Some(changed.segments));
        assert_eq!(without_form(after.clone()), without_form(before));
        assert!(read_stored(&desk, "k", Select::Whole).await == stored);
        let kept = redescribe(new_description(b"other", b"longer form")).await.expect("nothing changes");
        assert_eq!((kept.changed, desk.head("k").await), (0, after));
        for illegal in [&b""[..], &[1; MAX_DESCRIPTION_BYTES + 1]] {
            assert_eq!(reason(redescribe(new_description(illegal, b"")).await), Reason::Defect);
        }
    }
    desk.put("plain", "plain").await;
    let before = desk.head("plain").await;
    let plain = desk.store.redescribe(&context(), &key_address("plain"), new_description(b"x", b"")).await;
    let plain = plain.expect("a plain object has nothing to change");
    assert_eq!((plain, desk.head("plain").await), (Redescribed::default(), before));
    let absent = desk.store.redescribe(&context(), &key_address("absent"), new_description(b"x", b"")).await;
    assert_eq!(reason(absent), Reason::NoSuchKey);
}

async fn descriptions_of_old_versions_change(desk: Fixture) {
    desk.enable_versioning().await;
    let (plain, stored) = (pattern(1000, 1), pattern(500, 2));
    put(&desk, "k", &plain, &stored).await;
    let old = desk.head("k").await.version;
    put(&desk, "k", &plain, &stored).await;
    let new = desk.head("k").await;
    let address = key_address("k").with_version(old);
    let changed = desk.store.redescribe(&context(), &address, new_description(b"other", b"")).await;
    assert_eq!(changed.expect("a description changes").changed, 1);
    assert_eq!(desk.head("k").await, new, "the newest version stays");
    let found = desk.store.head(&context(), &address, GetRequest::default()).await.expect("it exists").info;
    assert_eq!(found.version, address.version);
    assert_eq!(descriptions(&found.stored.expect("it is transformed").segments), [b"other"]);
}

async fn descriptions_of_parts_change(desk: Fixture) {
    let minimum = usize::try_from(MIN_PART_BYTES).expect("a part fits into memory");
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let plain = [pattern(minimum, 1), pattern(minimum, 2), pattern(10, 3)];
    let mut named = Vec::new();
    for (index, plain) in plain.iter().enumerate() {
        let (context, address) = (context(), key_address("k"));
        let number = part_number(index as i64 + 1);
        let staged = desk.store.stage_part(&context, &address, &upload, number, StageRequest::default());
        let mut staged = staged.await.expect("a part begins");
        write_all(&mut *staged, plain.clone()).await.expect("a part is written");
        let reported = (index != 1).then(|| reported(plain, b"form"));
        let (committed, _) =
            staged.commit(Expected { reported, ..Expected::default() }).await.expect("a part is committed");
        named.push(CompletePart { number, etag: committed.etag, checksum: None });
    }
    let list = || async {
        let listed = desk.store.list_parts(&context(), &key_address("k"), &upload, None, 10).await;
        let parts = listed.expect("parts are listed").parts;
        parts
            .into_iter()
            .map(|part| (part.size, part.etag, part.modified, part.checksums))
            .collect::<Vec<_>>()
    };
    let before = list().await;
    let redescribe = |change| {
        let (store, upload) = (desk.store.clone(), upload.clone());
        async move { store.redescribe_upload(&context(), &key_address("k"), &upload, change).await }
    };
    let changed = redescribe(new_description(b"other", b"")).await.expect("descriptions change");
    assert_eq!((changed.changed, descriptions(&changed.segments)), (2, vec![&b"other"[..], b"", b"other"]));
    assert_eq!(redescribe(new_description(b"x", b"other")).await.expect("nothing changes").changed, 0);
    assert_eq!(list().await, before);
    desk.complete("k", &upload, named_parts(named)).await.expect("a completion succeeds");
    let form = desk.head("k").await.stored.expect("the stored form is reported");
    assert_eq!(descriptions(&form.segments), [&b"other"[..], b"", b"other"]);
    assert!(read_stored(&desk, "k", Select::Whole).await == plain.concat());
    assert_eq!(reason(redescribe(new_description(b"x", b"")).await), Reason::NoSuchUpload);
}
