//! Copies: separate writes whose bytes come from the store itself.

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::error::Reason;
use crate::metadata::Metadata;
use crate::multipart::CreateUpload;
use crate::name::Address;
use crate::object::Committed;
use crate::store::{CopyRequest, ETagForm, Feature, GetRequest, StageRequest};
use crate::testing::context;

use super::fixture::{
    Fixture, copy_request, drain, full_metadata, key_address, key_address_two, md5_etag, pattern, reason,
    tags,
};

super::theme! { "copy":
    keeps_everything_but_redirect_and_storage_class,
    onto_itself_takes_new_metadata,
    takes_new_tags_or_keeps_them,
    onto_itself_without_changes,
    stands_alone,
    computes_the_requested_checksum needs Checksums,
    of_parts_is_one_object needs Multipart,
    of_what_is_missing_is_refused,
    can_have_a_unique_tag needs UniqueTags,
}

async fn copy(desk: &Fixture, request: CopyRequest) -> Committed {
    desk.store.copy(&context(), request).await.expect("a copy succeeds")
}

async fn keeps_everything_but_redirect_and_storage_class(desk: Fixture) {
    for (size, target) in [
        (0, key_address("to")),
        (100, key_address("to")),
        (200_001, key_address_two("from")),
        (5 << 20, key_address("to")),
    ] {
        let bytes = pattern(size, size as u64);
        let algorithms = vec![Algorithm::Sha1];
        let request = StageRequest { metadata: full_metadata(), algorithms, ..StageRequest::default() };
        let source = desk.put_as("from", bytes.clone(), request).await;
        let copied = copy(&desk, copy_request(key_address("from"), target.clone())).await;
        assert_eq!((copied.size, &copied.etag), (size as u64, &md5_etag(&bytes)));
        let grows = desk.capabilities().generations;
        assert!(copied.generation > source.generation || !grows, "a copy is a write of its own");
        assert!(copied.modified >= source.modified);
        let found = desk.store.get(&context(), &target, GetRequest::default()).await.expect("a GET succeeds");
        assert_eq!(found.info.metadata, desk.stored_metadata(full_metadata().for_copy()));
        assert_eq!(found.info.checksums, desk.stored_checksums([Checksum::compute(Algorithm::Sha1, &bytes)]));
        assert_eq!(found.info.checksums, copied.checksums);
        if grows {
            assert_eq!((found.info.generation, found.info.modified), (copied.generation, copied.modified));
        }
        assert!(drain(found.body).await.expect("the body is read") == bytes);
    }
}

async fn onto_itself_takes_new_metadata(desk: Fixture) {
    let bytes = pattern(70_000, 1);
    let old = StageRequest { metadata: full_metadata(), ..StageRequest::default() };
    let before = desk.put_as("k", bytes.clone(), old).await;
    let mut new = Metadata { tags: tags(&[("ignored", "yes")]), ..Metadata::default() };
    new.headers.content_type = Some("image/png".to_owned());
    new.user = vec![("new".to_owned(), "value".to_owned())];
    new.classes.object = Some(crate::class::Class::new(3).expect("a legal class"));
    let request =
        CopyRequest { metadata: Some(new.clone()), ..copy_request(key_address("k"), key_address("k")) };
    let copied = copy(&desk, request).await;
    assert!(copied.generation > before.generation || !desk.capabilities().generations);
    let info = desk.head("k").await;
    assert_eq!(info.metadata, desk.stored_metadata(Metadata { tags: full_metadata().tags, ..new }));
    assert_eq!(info.etag, before.etag);
    assert!(desk.read("k").await == bytes);
}

async fn takes_new_tags_or_keeps_them(desk: Fixture) {
    let metadata = full_metadata();
    let request = StageRequest { metadata: metadata.clone(), ..StageRequest::default() };
    desk.put_as("from", "bytes", request).await;
    let new = tags(&[("colour", "green")]);
    let request =
        CopyRequest { tags: Some(new.clone()), ..copy_request(key_address("from"), key_address("to")) };
    copy(&desk, request).await;
    assert_eq!(
        desk.head("to").await.metadata,
        desk.stored_metadata(Metadata { tags: new, ..metadata.clone().for_copy() })
    );
    let request =
        CopyRequest { tags: Some(tags(&[])), ..copy_request(key_address("from"), key_address("to")) };
    copy(&desk, request).await;
    assert!(desk.head("to").await.metadata.tags.is_empty());
    assert_eq!(desk.head("from").await.metadata, desk.stored_metadata(metadata));
}

async fn onto_itself_without_changes(desk: Fixture) {
    let request = StageRequest { metadata: full_metadata(), ..StageRequest::default() };
    desk.put_as("k", pattern(100_000, 2), request).await;
    let before = desk.head("k").await;
    copy(&desk, copy_request(key_address("k"), key_address("k"))).await;
    let after = desk.head("k").await;
    assert_eq!((after.etag, after.metadata), (before.etag, before.metadata.for_copy()));
    assert_eq!((after.size, &after.checksums), (before.size, &before.checksums));
    assert!(desk.read("k").await == pattern(100_000, 2));
}

async fn stands_alone(desk: Fixture) {
    let bytes = pattern(300_000, 3);
    desk.put("from", bytes.clone()).await;
    copy(&desk, copy_request(key_address("from"), key_address("one"))).await;
    desk.put("from", "overwritten").await;
    assert!(desk.read("one").await == bytes);
    copy(&desk, copy_request(key_address("one"), key_address("two"))).await;
    desk.delete("one").await;
    desk.delete("from").await;
    assert!(desk.read("two").await == bytes);
    assert_eq!(desk.names().await, ["two"]);
}

async fn computes_the_requested_checksum(desk: Fixture) {
    let bytes = pattern(123_456, 4);
    desk.put("from", bytes.clone()).await;
    for algorithm in Algorithm::ALL {
        let request = CopyRequest {
            algorithm: Some(algorithm),
            ..copy_request(key_address("from"), key_address("to"))
        };
        assert_eq!(copy(&desk, request).await.checksums, [Checksum::compute(algorithm, &bytes)]);
        let kept = copy(&desk, copy_request(key_address("to"), key_address("again"))).await;
        assert_eq!(
            kept.checksums,
            [Checksum::compute(algorithm, &bytes)],
            "the source's algorithm is preserved"
        );
        assert_eq!(desk.head("again").await.scope, ChecksumScope::FullObject);
    }
}

async fn of_parts_is_one_object(desk: Fixture) {
    let parts = [pattern(5 << 20, 1), pattern(77, 2)];
    let checksum = Some((Algorithm::Sha256, ChecksumScope::Composite));
    let create = CreateUpload { metadata: full_metadata(), checksum };
    let source = desk.put_parts("from", create, &parts).await;
    let whole = parts.concat();
    let copied = copy(&desk, copy_request(key_address("from"), key_address("to"))).await;
    let is_joined = desk.supports(Feature::CopiesDropParts);
    if is_joined {
        assert_eq!(copied.etag, md5_etag(&whole), "its tag is the MD5 of all its bytes");
    }
    // The algorithm of the source is preserved, over the whole.
    let algorithm = source.checksums.first().map_or(Algorithm::Crc64Nvme, Checksum::algorithm);
    assert_eq!(copied.checksums, desk.stored_checksums([Checksum::compute(algorithm, &whole)]));
    let info = desk.head("to").await;
    assert_eq!(info.parts, if is_joined { None } else { Some(2) });
    assert_eq!(
        (info.scope, info.metadata),
        (ChecksumScope::FullObject, desk.stored_metadata(full_metadata().for_copy()))
    );
    assert!(desk.read("to").await == whole);
    assert_eq!(desk.head("from").await.parts, Some(2));
}

async fn of_what_is_missing_is_refused(desk: Fixture) {
    desk.put("here", "bytes").await;
    let missing = desk.store.copy(&context(), copy_request(key_address("no"), key_address("here"))).await;
    assert_eq!(reason(missing), Reason::NoSuchKey);
    assert_eq!(desk.read("here").await, "bytes");
    if desk.store.capabilities().owns_buckets {
        let gone = Address::parse("no-such-bucket", "k").expect("a legal address");
        let from_gone = desk.store.copy(&context(), copy_request(gone.clone(), key_address("to"))).await;
        assert_eq!(reason(from_gone), Reason::NoSuchBucket);
        let to_gone = desk.store.copy(&context(), copy_request(key_address("here"), gone)).await;
        assert_eq!(reason(to_gone), Reason::NoSuchBucket);
    }
}

async fn can_have_a_unique_tag(desk: Fixture) {
    desk.put("from", "bytes").await;
    let request =
        || CopyRequest { etag: ETagForm::Unique, ..copy_request(key_address("from"), key_address("to")) };
    let (one, two) = (copy(&desk, request()).await.etag, copy(&desk, request()).await.etag);
    assert!(one != two && one.md5().is_none() && one.as_str().contains('-'), "{one} and {two}");
    assert_eq!(desk.head("to").await.etag, two);
}
