//! Versions: what each state of a bucket's versioning keeps, and what reads, deletes and listings see of it.

#![expect(clippy::unwrap_used, reason = "a case panics if a guarantee is violated")]

use crate::condition::Precondition;
use crate::error::Reason;
use crate::multipart::CreateUpload;
use crate::object::Generation;
use crate::store::{Feature, GetRequest};
use crate::testing::context;
use crate::version::{ListVersions, ListedVersion, VersionId, VersionPosition, Versioning};

use super::fixture::{Fixture, copy_request, key_address, pattern, reason, tags};

super::theme! { "versions":
    versioning_is_off_at_first,
    versioning_is_enabled_and_suspended_but_never_off_again needs Versions,
    writes_keep_earlier_versions needs Versions,
    objects_from_before_are_the_null_version needs Versions,
    deletes_add_a_marker_that_hides_the_object needs Versions,
    deleting_a_marker_restores_the_object needs Versions,
    deleting_the_newest_version_makes_the_next_one_current needs Versions,
    deleting_an_old_version_leaves_the_current_one needs Versions,
    suspended_writes_replace_only_the_null_version needs Versions,
    suspended_deletes_leave_one_null_marker needs Versions,
    suspended_writes_of_all_kinds_name_the_null_version needs Versions,
    missing_versions_and_markers_are_distinguished needs Versions,
    ids_that_no_version_can_have_are_invalid needs Versions,
    ids_that_no_write_got_name_nothing needs Versions,
    preconditions_compare_the_current_version needs Versions,
    tags_belong_to_a_version needs Versions,
    copies_read_the_version_named needs Versions,
    copy_onto_itself_keeps_the_old_bytes needs Versions,
    multipart_objects_are_versions needs Versions,
    listings_order_by_key_then_age needs Versions,
    listings_of_objects_omit_old_versions_and_markers needs Versions,
    buckets_with_versions_or_markers_are_not_empty needs Versions,
    stores_without_versions_list_null_versions,
}

fn labels(versions: &[(String, ListedVersion)]) -> Vec<String> {
    let label = |(key, version): &(String, ListedVersion)| {
        let kind = if version.object.is_some() { "" } else { " marker" };
        let null = if version.version == VersionId::Null { " null" } else { "" };
        let latest = if version.is_latest { " latest" } else { "" };
        format!("{key}{null}{kind}{latest}")
    };
    versions.iter().map(label).collect()
}

async fn versioning_is_off_at_first(desk: Fixture) {
    let bucket = key_address("x").bucket;
    assert_eq!(desk.store.versioning(&context(), &bucket).await.unwrap(), Versioning::Off);
    let missing = super::fixture::bucket("conformance-missing");
    if desk.capabilities().owns_buckets {
        assert_eq!(reason(desk.store.versioning(&context(), &missing).await), Reason::NoSuchBucket);
    }
    if !desk.capabilities().versions {
        let set = desk.store.set_versioning(&context(), &bucket, Versioning::Enabled).await;
        assert_eq!(reason(set), Reason::Unsupported);
    }
    desk.put("k", "bytes").await;
    assert_eq!(desk.head("k").await.version, None);
}

async fn versioning_is_enabled_and_suspended_but_never_off_again(desk: Fixture) {
    let bucket = key_address("x").bucket;
    for versioning in [Versioning::Enabled, Versioning::Suspended, Versioning::Enabled] {
        desk.set_versioning(versioning).await;
        assert_eq!(desk.store.versioning(&context(), &bucket).await.unwrap(), versioning);
    }
    let off = desk.store.set_versioning(&context(), &bucket, Versioning::Off).await;
    assert_eq!(reason(off), Reason::InvalidRequest);
}

async fn writes_keep_earlier_versions(desk: Fixture) {
    desk.enable_versioning().await;
    let mut ids = Vec::new();
    for seed in 0..3 {
        let committed = desk.put("k", pattern(70_000, seed)).await;
        ids.push(committed.version.expect("the bucket keeps versions"));
    }
    assert_eq!(desk.head("k").await.version.as_ref(), ids.last());
    assert!(desk.read("k").await == pattern(70_000, 2));
    for (seed, id) in (0..).zip(&ids) {
        let (info, bytes) = desk.get_version("k", id).await.unwrap();
        assert_eq!(info.version.as_ref(), Some(id));
        assert!(bytes == pattern(70_000, seed));
    }
    assert_eq!(labels(&desk.versions("").await), ["k latest", "k", "k"]);
}

async fn objects_from_before_are_the_null_version(desk: Fixture) {
    desk.put("k", "before").await;
    assert_eq!(labels(&desk.versions("").await), ["k null latest"]);
    desk.enable_versioning().await;
    let null = Some(VersionId::Null).filter(|_| desk.supports(Feature::VersionDetails));
    assert_eq!(desk.head("k").await.version, null);
    desk.put("k", "after").await;
    let (info, bytes) = desk.get_version("k", &VersionId::Null).await.unwrap();
    assert_eq!(&bytes[..], b"before");
    if desk.supports(Feature::VersionDetails) {
        assert_eq!(info.version, Some(VersionId::Null));
    }
    assert_eq!(labels(&desk.versions("").await), ["k latest", "k null"]);
}

async fn deletes_add_a_marker_that_hides_the_object(desk: Fixture) {
    desk.enable_versioning().await;
    let kept = desk.put("k", "bytes").await.version.unwrap();
    let deleted = desk.delete_version("k", None).await;
    assert!(deleted.is_delete_marker);
    desk.assert_absent("k").await;
    let hidden = desk.try_head("k").await.unwrap_err();
    if desk.supports(Feature::VersionDetails) {
        assert_eq!(hidden.delete_marker(), deleted.version.as_ref());
    }
    assert_eq!(&desk.get_version("k", &kept).await.unwrap().1[..], b"bytes");
    // Also for a key without any version, and again for one that is deleted already.
    desk.delete_version("k", None).await;
    desk.delete_version("none", None).await;
    let mut expected = vec!["k marker latest", "k marker", "k", "none marker latest"];
    if !desk.supports(Feature::VersionDetails) {
        expected.remove(1);
    }
    assert_eq!(labels(&desk.versions("").await), expected);
}

async fn deleting_a_marker_restores_the_object(desk: Fixture) {
    desk.enable_versioning().await;
    desk.put("k", "old").await;
    desk.put("k", "new").await;
    let marker = desk.delete_version("k", None).await.version;
    let deleted = desk.delete_version("k", marker.as_ref()).await;
    assert!(deleted.is_delete_marker && deleted.version == marker);
    assert_eq!(&desk.read("k").await[..], b"new");
    assert_eq!(labels(&desk.versions("").await), ["k latest", "k"]);
}

async fn deleting_the_newest_version_makes_the_next_one_current(desk: Fixture) {
    desk.put("k", "null").await;
    desk.enable_versioning().await;
    let old = desk.put("k", pattern(100_000, 1)).await.version;
    let new = desk.put("k", "new").await.version;
    let deleted = desk.delete_version("k", new.as_ref()).await;
    assert!(deleted.existed && !deleted.is_delete_marker && deleted.version == new);
    assert_eq!(desk.head("k").await.version, old);
    assert!(desk.read("k").await == pattern(100_000, 1));
    desk.delete_version("k", old.as_ref()).await;
    assert_eq!(&desk.read("k").await[..], b"null");
    desk.delete_version("k", Some(&VersionId::Null)).await;
    desk.assert_absent("k").await;
    assert!(desk.versions("").await.is_empty());
    // Deletion of an absent object or version succeeds.
    let again = desk.delete_version("k", old.as_ref()).await;
    assert!(!again.is_delete_marker);
    assert!(!again.existed || !desk.capabilities().reports_deleted);
}

async fn deleting_an_old_version_leaves_the_current_one(desk: Fixture) {
    desk.enable_versioning().await;
    let old = desk.put("k", "old").await.version.unwrap();
    desk.put("k", "new").await;
    desk.delete_version("k", Some(&old)).await;
    assert_eq!(&desk.read("k").await[..], b"new");
    assert_eq!(reason(desk.get_version("k", &old).await), Reason::NoSuchVersion);
    assert_eq!(labels(&desk.versions("").await), ["k latest"]);
}

async fn suspended_writes_replace_only_the_null_version(desk: Fixture) {
    desk.enable_versioning().await;
    let kept = desk.put("k", "kept").await.version.unwrap();
    desk.set_versioning(Versioning::Suspended).await;
    let null = Some(VersionId::Null).filter(|_| desk.supports(Feature::NullVersionOfWrites));
    assert_eq!(desk.put("k", "null one").await.version, null);
    assert_eq!(desk.put("k", "null two").await.version, null);
    assert_eq!(labels(&desk.versions("").await), ["k null latest", "k"]);
    assert_eq!(&desk.read("k").await[..], b"null two");
    assert_eq!(&desk.get_version("k", &kept).await.unwrap().1[..], b"kept");
    // Enabled again, the null version becomes an old one, and is replaced in its place by age.
    desk.enable_versioning().await;
    desk.put("k", "newest").await;
    assert_eq!(labels(&desk.versions("").await), ["k latest", "k null", "k"]);
    desk.set_versioning(Versioning::Suspended).await;
    desk.put("k", "null three").await;
    assert_eq!(labels(&desk.versions("").await), ["k null latest", "k", "k"]);
}

async fn suspended_writes_of_all_kinds_name_the_null_version(desk: Fixture) {
    desk.enable_versioning().await;
    desk.put("from", "bytes").await;
    desk.set_versioning(Versioning::Suspended).await;
    let null = Some(VersionId::Null).filter(|_| desk.supports(Feature::NullVersionOfWrites));
    let copied = desk.store.copy(&context(), copy_request(key_address("from"), key_address("copy"))).await;
    let copied = copied.unwrap();
    // A leaf that reads a copy's size also learns its version.
    assert!(copied.version == null || copied.version == Some(VersionId::Null), "{:?}", copied.version);
    let mut expected = vec!["copy null latest", "from latest"];
    if desk.capabilities().multipart {
        let completed = desk.put_parts("parts", CreateUpload::default(), &[pattern(1000, 1)]).await;
        assert_eq!(completed.version, null);
        expected.push("parts null latest");
    }
    assert_eq!(labels(&desk.versions("").await), expected);
    if desk.supports(Feature::VersionDetails) {
        assert_eq!(desk.head("copy").await.version, Some(VersionId::Null));
    }
}

async fn suspended_deletes_leave_one_null_marker(desk: Fixture) {
    desk.enable_versioning().await;
    desk.put("k", "kept").await;
    desk.set_versioning(Versioning::Suspended).await;
    desk.put("k", "null").await;
    for _ in 0..2 {
        let deleted = desk.delete_version("k", None).await;
        assert!(deleted.is_delete_marker && deleted.version == Some(VersionId::Null));
    }
    assert_eq!(labels(&desk.versions("").await), ["k null marker latest", "k"]);
    desk.delete_version("k", Some(&VersionId::Null)).await;
    assert_eq!(&desk.read("k").await[..], b"kept");
}

async fn missing_versions_and_markers_are_distinguished(desk: Fixture) {
    desk.enable_versioning().await;
    let other = desk.put("other", "bytes").await.version.unwrap();
    desk.put("k", "bytes").await;
    for missing in [&other, &VersionId::Null] {
        assert_eq!(reason(desk.get_version("k", missing).await), Reason::NoSuchVersion, "{missing}");
    }
    assert_eq!(reason(desk.get_version("none", &other).await), Reason::NoSuchVersion);
    let marker = desk.delete_version("k", None).await.version.unwrap();
    let failed = desk.get_version("k", &marker).await.unwrap_err();
    if desk.supports(Feature::VersionDetails) {
        assert_eq!((failed.reason(), failed.delete_marker()), (Reason::DeleteMarker, Some(&marker)));
    } else {
        assert_eq!(failed.reason(), Reason::NoSuchVersion);
    }
}

async fn ids_that_no_version_can_have_are_invalid(desk: Fixture) {
    let reported = match desk.supports(Feature::VersionIdForm) {
        true => Reason::InvalidVersionId,
        false => Reason::NoSuchVersion,
    };
    desk.enable_versioning().await;
    desk.put("k", "bytes").await;
    for text in ["no id of this store", "v", "0", "vaaaaaaaaaaaaaaa!"] {
        let impossible = key_address("k").with_version(Some(VersionId::parse(text).unwrap()));
        let found = desk.store.get(&context(), &impossible, GetRequest::default()).await;
        assert_eq!(reason(found), reported, "{text}");
        let found = desk.store.head(&context(), &impossible, GetRequest::default()).await;
        assert_eq!(reason(found), reported, "{text}");
        if desk.capabilities().tags {
            let set = desk.store.set_tags(&context(), &impossible, tags(&[("a", "b")])).await;
            assert_eq!(reason(set), reported, "{text}");
        }
        let copied = desk.store.copy(&context(), copy_request(impossible.clone(), key_address("to"))).await;
        assert_eq!(reason(copied), reported, "{text}");
        match desk.store.delete(&context(), &impossible, Precondition::None).await {
            Ok(deleted) => assert!(!desk.supports(Feature::VersionIdForm) && !deleted.is_delete_marker),
            Err(error) => assert_eq!(error.reason(), reported, "{text}"),
        }
    }
    assert_eq!(labels(&desk.versions("").await), ["k latest"]);
}

async fn ids_that_no_write_got_name_nothing(desk: Fixture) {
    desk.put("k", "null").await;
    desk.enable_versioning().await;
    desk.put("k", "new").await;
    for number in [0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX] {
        let invented = VersionId::from_number(number);
        assert_eq!(reason(desk.get_version("k", &invented).await), Reason::NoSuchVersion, "{number}");
        desk.delete_version("k", Some(&invented)).await;
    }
    assert_eq!(labels(&desk.versions("").await), ["k latest", "k null"]);
    assert_eq!(&desk.get_version("k", &VersionId::Null).await.unwrap().1[..], b"null");
}

async fn preconditions_compare_the_current_version(desk: Fixture) {
    if !desk.capabilities().conditional_writes {
        return;
    }
    desk.enable_versioning().await;
    let old = desk.put("k", "old").await;
    let failed = |result: crate::error::Result<_>| reason::<crate::object::Committed>(result);
    assert_eq!(failed(desk.put_if("k", "no", Precondition::Absent).await), Reason::PreconditionFailed);
    desk.put_if("k", "new", Precondition::Matches(old.etag.clone())).await.unwrap();
    let stale = desk.put_if("k", "no", Precondition::Matches(old.etag)).await;
    assert_eq!(failed(stale), Reason::PreconditionFailed);
    desk.delete("k").await;
    if desk.capabilities().generations {
        let gone = desk.put_if("k", "no", Precondition::MatchesGeneration(Generation(1))).await;
        assert_eq!(failed(gone), Reason::Conflict);
    }
    desk.put_if("k", "again", Precondition::Absent).await.unwrap();
}

async fn tags_belong_to_a_version(desk: Fixture) {
    desk.enable_versioning().await;
    let old = desk.put("k", pattern(70_000, 1)).await.version.unwrap();
    let new = desk.put("k", pattern(70_000, 2)).await.version.unwrap();
    for (version, value) in [(&old, "old"), (&new, "new")] {
        let address = key_address("k").with_version(Some(version.clone()));
        desk.store.set_tags(&context(), &address, tags(&[("age", value)])).await.unwrap();
    }
    desk.store.set_tags(&context(), &key_address("k"), tags(&[("age", "newest")])).await.unwrap();
    for (version, value, seed) in [(&old, "old", 1), (&new, "newest", 2)] {
        let (info, bytes) = desk.get_version("k", version).await.unwrap();
        assert_eq!(info.metadata.tags, tags(&[("age", value)]));
        assert!(bytes == pattern(70_000, seed));
    }
    assert_eq!(labels(&desk.versions("").await), ["k latest", "k"]);
    assert_eq!(desk.head("k").await.version, Some(new));
}

async fn copies_read_the_version_named(desk: Fixture) {
    desk.enable_versioning().await;
    let old = desk.put("k", pattern(70_000, 1)).await.version;
    let new = desk.put("k", pattern(70_000, 2)).await.version;
    for (version, source_version, seed) in [(old.clone(), &old, 1), (None, &new, 2)] {
        let source = key_address("k").with_version(version);
        let copied = desk.store.copy(&context(), copy_request(source, key_address("copy"))).await.unwrap();
        assert_eq!(copied.source_version, *source_version);
        assert_eq!(desk.head("copy").await.version, copied.version);
        assert!(desk.read("copy").await == pattern(70_000, seed));
    }
}

async fn copy_onto_itself_keeps_the_old_bytes(desk: Fixture) {
    desk.enable_versioning().await;
    let bytes = pattern(2_000_000, 1);
    let old = desk.put("k", bytes.clone()).await.version.unwrap();
    let mut request = copy_request(key_address("k"), key_address("k"));
    request.metadata = Some(super::fixture::full_metadata());
    let new = desk.store.copy(&context(), request).await.unwrap().version.unwrap();
    assert_ne!(old, new);
    desk.delete_version("k", Some(&new)).await;
    assert!(desk.read("k").await == bytes);
    assert!(desk.get_version("k", &old).await.unwrap().1 == bytes);
}

async fn multipart_objects_are_versions(desk: Fixture) {
    if !desk.capabilities().multipart {
        return;
    }
    desk.enable_versioning().await;
    let old = desk.put("k", "old").await.version.unwrap();
    let parts = [pattern(5 << 20, 1), pattern(1000, 2)];
    let new = desk.put_parts("k", CreateUpload::default(), &parts).await.version;
    assert_eq!(desk.head("k").await.version, new);
    assert_eq!(&desk.get_version("k", &old).await.unwrap().1[..], b"old");
    assert!(desk.read("k").await == parts.concat());
}

async fn listings_order_by_key_then_age(desk: Fixture) {
    desk.put("b", "null").await;
    desk.enable_versioning().await;
    for key in ["a", "b", "b", "dir/x", "dir/y", "z"] {
        desk.put(key, "bytes").await;
    }
    desk.delete("b").await;
    let expected =
        ["a latest", "b marker latest", "b", "b", "b null", "dir/x latest", "dir/y latest", "z latest"];
    assert_eq!(labels(&desk.versions("").await), expected);
    assert_eq!(labels(&desk.versions("b").await), expected[1..5]);
    // Pages of every size, with and without a delimiter, are the same in total.
    for delimiter in [None, Some("/".to_owned())] {
        let bucket = key_address("x").bucket;
        let mut totals = Vec::new();
        for limit in 1..=9 {
            let mut request = ListVersions { delimiter: delimiter.clone(), limit, ..ListVersions::default() };
            let mut total = Vec::new();
            loop {
                let page = desk.store.list_versions(&context(), &bucket, &request).await.unwrap();
                assert!(page.entries.len() <= limit);
                total.extend(page.entries);
                match page.next {
                    Some(next) => request.after = Some(next),
                    None => break,
                }
            }
            totals.push(total);
        }
        assert!(totals.windows(2).all(|pair| pair[0] == pair[1]));
        assert_eq!(totals[0].len(), if delimiter.is_some() { 7 } else { 8 });
    }
    // After a key alone come the versions of the next key.
    let after = Some(VersionPosition { key: "b".to_owned(), version: None });
    let request = ListVersions { after, limit: 1, ..ListVersions::default() };
    let page = desk.store.list_versions(&context(), &key_address("x").bucket, &request).await.unwrap();
    assert_eq!(page.entries[0].name(), "dir/x");
}

async fn listings_of_objects_omit_old_versions_and_markers(desk: Fixture) {
    desk.enable_versioning().await;
    for key in ["a", "a", "b", "c"] {
        desk.put(key, "bytes").await;
    }
    desk.delete("b").await;
    assert_eq!(desk.names().await, ["a", "c"]);
}

async fn buckets_with_versions_or_markers_are_not_empty(desk: Fixture) {
    if !desk.capabilities().owns_buckets {
        return;
    }
    let bucket = key_address("x").bucket;
    desk.enable_versioning().await;
    let old = desk.put("k", "bytes").await.version;
    let marker = desk.delete_version("k", None).await.version;
    for version in [old, marker] {
        let refused = desk.store.delete_bucket(&context(), &bucket).await;
        assert_eq!(reason(refused), Reason::BucketNotEmpty);
        desk.delete_version("k", version.as_ref()).await;
    }
    desk.store.delete_bucket(&context(), &bucket).await.unwrap();
}

async fn stores_without_versions_list_null_versions(desk: Fixture) {
    for key in ["a", "dir/x", "z"] {
        desk.put(key, "bytes").await;
    }
    assert_eq!(labels(&desk.versions("").await), ["a null latest", "dir/x null latest", "z null latest"]);
    let address = key_address("a").with_version(Some(VersionId::Null));
    let found = desk.store.head(&context(), &address, GetRequest::default()).await.unwrap();
    assert_eq!(found.info.size, 5);
    let missing = key_address("a").with_version(Some(VersionId::from_number(1)));
    assert_eq!(
        reason(desk.store.head(&context(), &missing, GetRequest::default()).await),
        Reason::NoSuchVersion
    );
    desk.store.delete(&context(), &address, Precondition::None).await.unwrap();
    desk.assert_absent("a").await;
}
