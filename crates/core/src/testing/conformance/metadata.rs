//! Metadata: returned unchanged, and replaced together with the bytes.

use std::collections::HashSet;

use crate::clock::Timestamp;
use crate::error::Reason;
use crate::listing::{ListEntry, ListRequest};
use crate::metadata::{MAX_USER_METADATA_BYTES, Metadata};
use crate::object::{ETag, Expected, Identity};
use crate::store::{ETagForm, GetRequest, StageRequest};

use crate::testing::context;

use super::fixture::{Fixture, full_metadata, key_address, md5, pattern, reason, tags};

super::theme! { "metadata":
    comes_back_unchanged,
    without_a_value_is_refused,
    is_replaced_with_the_bytes,
    of_the_largest_size_comes_back needs LargeTags,
    has_unique_tags_if_requested needs UniqueTags,
    has_the_identity_of_an_object_that_is_moved needs Identity,
}

fn with(metadata: Metadata) -> StageRequest {
    StageRequest { metadata, ..StageRequest::default() }
}

async fn comes_back_unchanged(desk: Fixture) {
    let only_type = {
        let mut metadata = Metadata::default();
        metadata.headers.content_type = Some("x".to_owned());
        metadata
    };
    let only_user = Metadata {
        user: vec![("k".to_owned(), "=?UTF-8?Q?=C3=A9?= \t\"".to_owned())],
        ..Metadata::default()
    };
    let only_tags = Metadata { tags: tags(&[("b", "2"), ("a", "1"), ("ü", "π")]), ..Metadata::default() };
    for metadata in [Metadata::default(), full_metadata(), only_type, only_user, only_tags] {
        for size in [0, 100, 200_000] {
            desk.put_as("k", pattern(size, 1), with(metadata.clone())).await;
            let metadata = desk.stored_metadata(metadata.clone());
            assert_eq!(desk.head("k").await.metadata, metadata);
            let (info, ..) = desk.get("k", GetRequest::default()).await.expect("a GET succeeds");
            assert_eq!(info.metadata, metadata);
        }
    }
}

async fn has_the_identity_of_an_object_that_is_moved(desk: Fixture) {
    let identity = Identity { etag: ETag::from_tag("0-moved"), modified: Timestamp::from_millis(1_234_567) };
    for size in [0, 100, 70_000, 2_000_000] {
        let request = StageRequest { identity: Some(identity.clone()), ..StageRequest::default() };
        let committed = desk.put_as("k", pattern(size, 1), request).await;
        assert_eq!((committed.etag, committed.modified), (identity.etag.clone(), identity.modified));
        assert_eq!(desk.head("k").await.identity(), identity);
        let listed = desk.list(ListRequest { limit: 1, ..ListRequest::default() }).await;
        let [ListEntry::Key(_, summary)] = &listed[..] else { panic!("one key: {listed:?}") };
        assert_eq!((&summary.etag, summary.modified), (&identity.etag, identity.modified));
        assert_eq!(desk.read("k").await, pattern(size, 1));
    }
    let new = desk.put("k", "new").await;
    assert!(new.etag != identity.etag && new.modified > identity.modified);
}

/// HTTP does not distinguish an empty header from an absent one, so no store accepts one.
async fn without_a_value_is_refused(desk: Fixture) {
    for place in 0..8 {
        let mut metadata = Metadata::default();
        *metadata.headers.values_mut()[place] = Some(String::new());
        let staged = desk.store.stage(&context(), &key_address("k"), with(metadata)).await;
        assert_eq!(reason(staged), Reason::InvalidArgument);
    }
    desk.assert_absent("k").await;
}

async fn is_replaced_with_the_bytes(desk: Fixture) {
    desk.put_as("k", "old", with(full_metadata())).await;
    desk.put("k", "new").await;
    assert_eq!(desk.head("k").await.metadata, Metadata::default());
    desk.delete("k").await;
    desk.put("k", "again").await;
    assert_eq!(desk.head("k").await.metadata, Metadata::default());
}

async fn of_the_largest_size_comes_back(desk: Fixture) {
    let user = vec![("long".to_owned(), "v".repeat(MAX_USER_METADATA_BYTES - 4))];
    let pairs: Vec<(String, String)> =
        (0..10).map(|n| (format!("{n}{}", "ä".repeat(127)), "ö".repeat(256))).collect();
    let tags = crate::metadata::Tags::new(pairs).expect("tags at the limits");
    // Services without headers for classes keep them within the limit of user metadata.
    let metadata = Metadata { user, tags, classes: Default::default(), ..full_metadata() };
    metadata.check().expect("metadata at the limit");
    desk.put_as("k", "bytes", with(metadata.clone())).await;
    assert_eq!(desk.head("k").await.metadata, metadata);
}

/// A unique tag never looks like an MD5, and a declared MD5 is still verified.
async fn has_unique_tags_if_requested(desk: Fixture) {
    let unique = || StageRequest { etag: ETagForm::Unique, ..StageRequest::default() };
    let mut seen: HashSet<ETag> = HashSet::new();
    for n in 0..20 {
        let committed = desk.put_as(["a", "b"][n % 2], "same bytes", unique()).await;
        let etag = committed.etag;
        assert!(etag.as_str().contains('-') && etag.md5().is_none(), "{etag}");
        assert_eq!(desk.head(["a", "b"][n % 2]).await.etag, etag);
        assert!(seen.insert(etag), "a unique tag came twice");
    }
    let promise = |bytes: &[u8]| Expected { md5: Some(md5(bytes)), ..Expected::default() };
    let staged = || StageRequest { verify_md5: true, ..unique() };
    let wrong = desk.try_put("c", "bytes", staged(), promise(b"other")).await;
    assert_eq!(reason(wrong), Reason::BadDigest);
    desk.assert_absent("c").await;
    let right = desk.try_put("c", "bytes", staged(), promise(b"bytes")).await.expect("the MD5 is right");
    assert!(right.etag.md5().is_none());
}
