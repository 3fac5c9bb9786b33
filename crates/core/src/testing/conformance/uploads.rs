//! The lifecycle of multipart uploads: created, listed, aborted, and gone once they have ended.

use std::collections::BTreeSet;

use crate::error::Reason;
use crate::listing::ListEntry;
use crate::multipart::{CreateUpload, ListUploads, UploadId, UploadInfo};
use crate::name::Address;
use crate::object::Expected;
use crate::store::{Feature, StageRequest};
use crate::testing::context;

use super::fixture::{Fixture, full_metadata, key_address, named_parts, part_number, pattern, reason};

super::theme! { "uploads":
    have_names_of_their_own needs Multipart,
    are_no_objects needs Multipart,
    are_dead_after_completion needs EndOfUploads,
    are_dead_after_abort needs Multipart,
    belong_to_one_key needs Multipart,
    refuse_a_part_staged_before_their_end needs Multipart,
    that_never_were_are_missing needs Multipart,
    of_a_missing_bucket_name_the_bucket needs Multipart,
    are_not_listed_after_an_unknown_one needs Multipart,
    are_listed_with_what_they_will_become needs Multipart,
    are_listed_in_pages needs Multipart,
}

async fn have_names_of_their_own(desk: Fixture) {
    let mut ids = BTreeSet::new();
    for n in 0..20 {
        let key = ["a", "b"][n % 2];
        let id = desk.create_upload(key, CreateUpload::default()).await;
        assert!(!id.0.is_empty() && !id.0.contains([' ', '/']), "{id}");
        if n % 3 == 0 {
            desk.store.abort_upload(&context(), &key_address(key), &id).await.expect("an abort succeeds");
        }
        assert!(ids.insert(id), "an upload id was used twice");
    }
}

async fn are_no_objects(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    desk.assert_absent("k").await;
    desk.part("k", &upload, 1, pattern(100_000, 1)).await;
    desk.assert_absent("k").await;
    assert!(desk.names().await.is_empty());
    desk.put("k", "object").await;
    desk.store.abort_upload(&context(), &key_address("k"), &upload).await.expect("an abort succeeds");
    assert_eq!(desk.read("k").await, "object");
}

async fn assert_dead(desk: &Fixture, key: &str, upload: &UploadId) {
    let part = crate::multipart::CompletePart {
        number: part_number(1),
        etag: crate::object::ETag::from_text("x"),
        checksum: None,
    };
    let refused = [
        reason(desk.complete(key, upload, named_parts(vec![part])).await),
        reason(desk.store.abort_upload(&context(), &key_address(key), upload).await),
        reason(desk.store.list_parts(&context(), &key_address(key), upload, None, 10).await),
        reason(desk.try_part(key, upload, 1, pattern(1, 1), StageRequest::default()).await),
    ];
    assert_eq!(refused, [Reason::NoSuchUpload; 4]);
    assert!(list(desk, ListUploads { limit: 1000, ..ListUploads::default() }).await.iter().all(
        |e| match e {
            ListEntry::Key(_, info) => info.id != *upload,
            ListEntry::CommonPrefix(_) => true,
        }
    ));
}

async fn are_dead_after_completion(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let part = desk.part("k", &upload, 1, pattern(1000, 1)).await;
    desk.complete("k", &upload, named_parts(vec![part.clone()])).await.expect("a completion succeeds");
    let info = desk.head("k").await;
    assert_eq!(reason(desk.complete("k", &upload, named_parts(vec![part])).await), Reason::NoSuchUpload);
    assert_dead(&desk, "k", &upload).await;
    assert_eq!(desk.head("k").await, info);
}

async fn are_dead_after_abort(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    desk.part("k", &upload, 1, pattern(1000, 1)).await;
    desk.store.abort_upload(&context(), &key_address("k"), &upload).await.expect("an abort succeeds");
    assert_dead(&desk, "k", &upload).await;
    desk.assert_absent("k").await;
}

async fn belong_to_one_key(desk: Fixture) {
    let upload = desk.create_upload("mine", CreateUpload::default()).await;
    let part = desk.part("mine", &upload, 1, pattern(1000, 1)).await;
    assert_eq!(
        reason(desk.complete("other", &upload, named_parts(vec![part.clone()])).await),
        Reason::NoSuchUpload
    );
    assert_eq!(
        reason(desk.store.abort_upload(&context(), &key_address("other"), &upload).await),
        Reason::NoSuchUpload
    );
    assert_eq!(
        reason(desk.store.list_parts(&context(), &key_address("other"), &upload, None, 10).await),
        Reason::NoSuchUpload
    );
    let foreign = desk.try_part("other", &upload, 1, pattern(1, 1), StageRequest::default()).await;
    assert_eq!(reason(foreign), Reason::NoSuchUpload);
    desk.complete("mine", &upload, named_parts(vec![part])).await.expect("a completion succeeds");
    desk.assert_absent("other").await;
}

async fn refuse_a_part_staged_before_their_end(desk: Fixture) {
    for is_aborted in [true, false] {
        let context = context();
        let upload = desk.create_upload("k", CreateUpload::default()).await;
        let part = desk.part("k", &upload, 1, pattern(1000, 1)).await;
        let staged = desk
            .store
            .stage_part(&context, &key_address("k"), &upload, part_number(1), StageRequest::default())
            .await;
        let mut staged = staged.expect("staging begins");
        staged.write(pattern(500, 2)).await.expect("bytes are staged");
        if is_aborted {
            desk.store.abort_upload(&context, &key_address("k"), &upload).await.expect("an abort succeeds");
        } else {
            desk.complete("k", &upload, named_parts(vec![part])).await.expect("a completion succeeds");
        }
        assert_eq!(reason(staged.commit(Expected::default()).await), Reason::NoSuchUpload);
        if is_aborted {
            desk.assert_absent("k").await;
        } else {
            assert!(desk.read("k").await == pattern(1000, 1));
        }
    }
}

async fn that_never_were_are_missing(desk: Fixture) {
    for name in ["nothing", "0", "0000000000000001-ffffffff", "é", "a.b_c~d"] {
        assert_dead(&desk, "k", &UploadId(name.to_owned())).await;
    }
}

async fn of_a_missing_bucket_name_the_bucket(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let missing = Address::parse("missing-bucket", "k").expect("a valid address");
    for id in [upload, UploadId("nothing".to_owned()), UploadId("0000000000000001".to_owned())] {
        let part = crate::multipart::CompletePart {
            number: part_number(1),
            etag: crate::object::ETag::from_text("x"),
            checksum: None,
        };
        let (store, context) = (&desk.store, context());
        let staged = store.stage_part(&context, &missing, &id, part_number(1), StageRequest::default()).await;
        // A store may check the upload only when the part is committed.
        let part_result = match staged {
            Ok(staged) => staged.commit(Expected::default()).await.map(drop),
            Err(error) => Err(error),
        };
        let reasons = [
            reason(part_result),
            reason(store.list_parts(&context, &missing, &id, None, 10).await),
            reason(store.complete_upload(&context, &missing, &id, named_parts(vec![part])).await),
            reason(store.abort_upload(&context, &missing, &id).await),
        ];
        assert_eq!(reasons, [Reason::NoSuchBucket; 4], "{id}");
    }
}

async fn are_not_listed_after_an_unknown_one(desk: Fixture) {
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let after = |id: &str| ListUploads {
        after_key: Some("k".to_owned()),
        after_upload: Some(UploadId(id.to_owned())),
        limit: 1000,
        ..ListUploads::default()
    };
    let bucket = key_address("k").bucket;
    for unknown in ["nothing", "5"] {
        let page = desk.store.list_uploads(&context(), &bucket, &after(unknown)).await;
        // A service may ignore the id, but must not begin the key again.
        match page {
            Ok(page) => assert!(page.entries.is_empty(), "{page:?}"),
            Err(error) => assert_eq!(error.reason(), Reason::InvalidArgument),
        }
    }
    desk.store.abort_upload(&context(), &key_address("k"), &upload).await.expect("an abort succeeds");
    let later = desk.create_upload("k", CreateUpload::default()).await;
    if desk.supports(Feature::UploadOrder) {
        let listed = list(&desk, after(&upload.0)).await;
        let [ListEntry::Key(_, info)] = &listed[..] else { panic!("one upload, not {listed:?}") };
        assert_eq!(info.id, later, "the page begins after an upload that has ended");
    }
}

async fn list(desk: &Fixture, request: ListUploads) -> Vec<ListEntry<UploadInfo>> {
    let page = desk.store.list_uploads(&context(), &key_address("x").bucket, &request).await;
    page.expect("uploads are listed").entries
}

async fn are_listed_with_what_they_will_become(desk: Fixture) {
    let checksum = Some((crate::checksum::Algorithm::Sha1, crate::checksum::ChecksumScope::Composite));
    let plain = desk.create_upload("plain", CreateUpload::default()).await;
    let full = desk.create_upload("full", CreateUpload { metadata: full_metadata(), checksum }).await;
    let listed = list(&desk, ListUploads { limit: 10, ..ListUploads::default() }).await;
    let [ListEntry::Key(first, one), ListEntry::Key(second, two)] = &listed[..] else {
        panic!("two uploads, not {listed:?}")
    };
    assert_eq!((first.as_str(), one.key.as_str(), &one.id), ("full", "full", &full));
    assert_eq!(one.checksum, checksum.filter(|_| desk.supports(Feature::Checksums)));
    assert!(one.metadata == full_metadata() || !desk.capabilities().upload_metadata);
    assert_eq!((second.as_str(), two.key.as_str(), &two.id), ("plain", "plain", &plain));
    assert_eq!(two.checksum, None);
    assert!(two.initiated <= one.initiated);
}

/// Pages are in order of key, then of initiation, with any limit.
async fn are_listed_in_pages(desk: Fixture) {
    let mut uploads = Vec::new();
    for n in 0..24 {
        let key = ["b", "a/2", "a/1", "c/d/e", "é/1", "a"][n % 6];
        uploads.push((key.to_owned(), n, desk.create_upload(key, CreateUpload::default()).await));
    }
    uploads.sort();
    let all = |prefix: &str| -> Vec<(String, UploadId)> {
        let with_prefix = uploads.iter().filter(|(key, ..)| key.starts_with(prefix));
        with_prefix.map(|(key, _, id)| (key.clone(), id.clone())).collect()
    };
    for prefix in ["", "a", "a/", "é", "x"] {
        for limit in [1, 5, 1000] {
            let request = ListUploads { prefix: prefix.to_owned(), limit, ..ListUploads::default() };
            let listed = list_all(&desk, request).await.into_iter().map(|entry| match entry {
                ListEntry::Key(key, info) => (key, info.id),
                ListEntry::CommonPrefix(name) => panic!("{name:?} without a delimiter"),
            });
            let (mut listed, mut all) = (listed.collect::<Vec<_>>(), all(prefix));
            if !desk.supports(Feature::UploadOrder) {
                assert!(listed.is_sorted_by_key(|(key, _)| key));
                listed.sort();
                all.sort();
            }
            assert_eq!(listed, all, "prefix {prefix:?} in pages of {limit}");
        }
    }
    for limit in [1, 2, 1000] {
        let delimiter = Some("/".to_owned());
        let listed = list_all(&desk, ListUploads { delimiter, limit, ..ListUploads::default() }).await;
        let names: Vec<&str> = listed.iter().map(ListEntry::name).collect();
        assert_eq!(names, ["a", "a", "a", "a", "a/", "b", "b", "b", "b", "c/", "é/"], "in pages of {limit}");
    }
    let after_key = Some("a/1".to_owned());
    let behind = list(&desk, ListUploads { after_key, limit: 1000, ..ListUploads::default() }).await;
    assert_eq!(
        behind.first().map(ListEntry::name),
        Some("a/2"),
        "without an upload the whole key is skipped"
    );
}

async fn list_all(desk: &Fixture, mut request: ListUploads) -> Vec<ListEntry<UploadInfo>> {
    let mut all = Vec::new();
    loop {
        let page = desk.store.list_uploads(&context(), &key_address("x").bucket, &request).await;
        let page = page.expect("uploads are listed");
        assert!(page.entries.len() <= request.limit);
        all.extend(page.entries);
        match page.next {
            Some((key, upload)) => {
                request.after_key = Some(key);
                request.after_upload = upload;
            }
            None => return all,
        }
    }
}
