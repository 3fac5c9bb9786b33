//! Buckets: created once, deleted only when empty, with separate keys.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;

use crate::condition::Precondition;
use crate::error::{ErrorKind, Reason, Result};
use crate::listing::ListRequest;
use crate::metadata::Tags;
use crate::multipart::{CompletePart, CreateUpload, ListUploads, UploadId};
use crate::name::Address;
use crate::object::Committed;
use crate::object::Expected;
use crate::store::{CopyPartRequest, ETagForm, GetRequest, StageRequest};
use crate::testing::context;

use super::fixture::{
    BUCKETS, Fixture, bucket, copy_request, key_address, key_address_two, named_parts, part_number, pattern,
    reason,
};

super::theme! { "buckets":
    are_made_and_found needs Buckets,
    are_listed_in_order needs Buckets,
    are_removed_only_when_empty needs Buckets,
    keep_their_keys_apart,
    that_are_missing_refuse_everything needs Buckets,
    that_are_missing_refuse_uploads needs Multipart,
    are_created_by_one_of_many needs AtomicBuckets,
    removed_under_a_staged_write_refuse_it needs Buckets,
    removed_take_unfinished_uploads_along needs Buckets,
    removed_while_written_lose_nothing needs AtomicBuckets,
}

async fn are_made_and_found(desk: Fixture) {
    let name = bucket("made-here");
    assert_eq!(reason(desk.store.head_bucket(&context(), &name).await), Reason::NoSuchBucket);
    desk.store.create_bucket(&context(), &name).await.expect("a bucket can be created");
    desk.store.head_bucket(&context(), &name).await.expect("a made bucket is found");
    assert_eq!(reason(desk.store.create_bucket(&context(), &name).await), Reason::BucketExists);
    let listed = desk.store.list_buckets(&context()).await.expect("buckets are listed");
    assert!(listed.iter().any(|each| each.name == name), "it is listed");
}

async fn are_listed_in_order(desk: Fixture) {
    for name in ["zzz", "abc", "a.b", "0-0", "abc-d"] {
        desk.store.create_bucket(&context(), &bucket(name)).await.expect("a bucket can be created");
    }
    let listed = desk.store.list_buckets(&context()).await.expect("buckets are listed");
    let names: Vec<&str> = listed.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["0-0", "a.b", "abc", "abc-d", BUCKETS[0], BUCKETS[1], "zzz"]);
}

async fn are_removed_only_when_empty(desk: Fixture) {
    let name = key_address("k").bucket;
    desk.put("k", "kept").await;
    assert_eq!(reason(desk.store.delete_bucket(&context(), &name).await), Reason::BucketNotEmpty);
    assert_eq!(desk.read("k").await, "kept");
    assert!(desk.delete("k").await);
    desk.store.delete_bucket(&context(), &name).await.expect("an empty bucket can be removed");
    assert_eq!(reason(desk.store.head_bucket(&context(), &name).await), Reason::NoSuchBucket);
    assert_eq!(reason(desk.store.delete_bucket(&context(), &name).await), Reason::NoSuchBucket);
    desk.store.create_bucket(&context(), &name).await.expect("a removed bucket can be made again");
    assert!(desk.names().await.is_empty());
}

async fn keep_their_keys_apart(desk: Fixture) {
    desk.put("same", "one").await;
    let (staged, commit) = (StageRequest::default(), Expected::default());
    let two = desk.put_within(&context(), &key_address_two("same"), "two".into(), staged, commit).await;
    two.expect("a PUT succeeds");
    assert_eq!(desk.read("same").await, "one");
    assert!(desk.delete("same").await);
    let left = desk.store.head(&context(), &key_address_two("same"), GetRequest::default()).await;
    assert_eq!(left.expect("the other bucket's object stays").info.size, 3);
}

async fn that_are_missing_refuse_everything(desk: Fixture) {
    let (store, context) = (&desk.store, context());
    let gone = Address::parse("no-such-bucket", "k").expect("a legal address");
    desk.put("here", "bytes").await;
    let refusals = [
        reason(store.head(&context, &gone, GetRequest::default()).await),
        reason(store.get(&context, &gone, GetRequest::default()).await),
        reason(
            desk.put_within(&context, &gone, "x".into(), StageRequest::default(), Default::default()).await,
        ),
        reason(store.delete(&context, &gone, Precondition::None).await),
        reason(store.list(&context, &gone.bucket, &ListRequest::default()).await),
        reason(store.copy(&context, copy_request(gone.clone(), key_address("to"))).await),
        reason(store.copy(&context, copy_request(key_address("here"), gone.clone())).await),
        reason(store.delete_bucket(&context, &gone.bucket).await),
    ];
    assert_eq!(refusals, [Reason::NoSuchBucket; 8]);
    if desk.capabilities().tags {
        assert_eq!(reason(store.set_tags(&context, &gone, Tags::default()).await), Reason::NoSuchBucket);
    }
    if desk.capabilities().stage_checks_bucket {
        assert_eq!(reason(store.stage(&context, &gone, StageRequest::default()).await), Reason::NoSuchBucket);
    }
    if desk.capabilities().reports_all_parts {
        assert_eq!(reason(store.object_parts(&context, &gone, None, 10).await), Reason::NoSuchBucket);
    }
}

async fn that_are_missing_refuse_uploads(desk: Fixture) {
    let (store, context) = (&desk.store, context());
    let gone = Address::parse("no-such-bucket", "k").expect("a legal address");
    let (upload, one) = (UploadId("no-such-upload".to_owned()), part_number(1));
    assert_eq!(
        reason(store.create_upload(&context, &gone, CreateUpload::default()).await),
        Reason::NoSuchBucket
    );
    let listed = store.list_uploads(&context, &gone.bucket, &ListUploads::default()).await;
    assert_eq!(reason(listed), Reason::NoSuchBucket);
    desk.put("here", "bytes").await;
    let copy_part = CopyPartRequest {
        source: key_address("here"),
        range: None,
        source_conditions: crate::condition::ReadConditions::default(),
        destination: gone.clone(),
        upload: upload.clone(),
        number: one,
        etag: ETagForm::Md5,
    };
    let refusals = [
        reason(store.stage_part(&context, &gone, &upload, one, StageRequest::default()).await),
        reason(store.copy_part(&context, copy_part).await),
        reason(store.list_parts(&context, &gone, &upload, None, 10).await),
        reason(store.complete_upload(&context, &gone, &upload, named_parts(vec![])).await),
        reason(store.abort_upload(&context, &gone, &upload).await),
    ];
    // A store may report either the bucket or the upload as missing.
    assert!(refusals.iter().all(|reason| reason.kind() == ErrorKind::NotFound), "{refusals:?}");
}

async fn are_created_by_one_of_many(desk: Fixture) {
    let attempts = (0..50).map(|_| {
        let store = desk.store.clone();
        tokio::spawn(async move { store.create_bucket(&context(), &bucket("contested")).await })
    });
    let results: Vec<Result<()>> =
        join_all(attempts).await.into_iter().map(|r| r.expect("no panic")).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    let refused = results.into_iter().filter_map(Result::err);
    assert!(refused.map(|e| e.reason()).all(|reason| reason == Reason::BucketExists));
}

async fn removed_under_a_staged_write_refuse_it(desk: Fixture) {
    let (context, address) = (context(), key_address("late"));
    let mut staged =
        desk.store.stage(&context, &address, StageRequest::default()).await.expect("staging begins");
    staged.write(pattern(100_000, 1)).await.expect("bytes are staged");
    desk.store.delete_bucket(&context, &address.bucket).await.expect("staged bytes are not objects");
    assert_eq!(reason(staged.commit(Expected::default()).await), Reason::NoSuchBucket);
    desk.store.create_bucket(&context, &address.bucket).await.expect("a removed bucket can be made again");
    desk.assert_absent("late").await;
}

async fn removed_take_unfinished_uploads_along(desk: Fixture) {
    if !desk.store.capabilities().multipart {
        return;
    }
    let (context, address) = (context(), key_address("k"));
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let part = desk.part("k", &upload, 1, pattern(1000, 1)).await;
    desk.store.delete_bucket(&context, &address.bucket).await.expect("an upload is not an object");
    desk.store.create_bucket(&context, &address.bucket).await.expect("a removed bucket can be made again");
    let request = ListUploads { limit: 10, ..ListUploads::default() };
    let page =
        desk.store.list_uploads(&context, &address.bucket, &request).await.expect("uploads are listed");
    assert!(page.entries.is_empty());
    assert_eq!(reason(desk.complete("k", &upload, named_parts(vec![part])).await), Reason::NoSuchUpload);
    assert!(desk.names().await.is_empty());
}

/// Writers put a key and delete it again, one of them by multipart uploads, while the bucket is being
/// deleted. The deletion can succeed only at a moment without objects: an acknowledged write is
/// found.
async fn removed_while_written_lose_nothing(desk: Fixture) {
    let name = bucket("short-lived");
    let mut refusals = 0;
    for round in 0..25 {
        desk.store.create_bucket(&context(), &name).await.expect("a bucket can be created");
        let go = Arc::new(tokio::sync::Barrier::new(4));
        let writers = (0..3).map(|writer| tokio::spawn(come_and_go(desk.clone(), go.clone(), writer)));
        let writers: Vec<_> = writers.collect();
        go.wait().await;
        while let Err(e) = desk.store.delete_bucket(&context(), &name).await {
            assert_eq!(e.reason(), Reason::BucketNotEmpty, "round {round}");
            refusals += 1;
            if refusals % 10 == 0 {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        }
        for writer in join_all(writers).await {
            writer.expect("no acknowledged write is lost");
        }
        assert_eq!(reason(desk.store.head_bucket(&context(), &name).await), Reason::NoSuchBucket);
    }
    super::print_line(&format!("  {refusals} deletions failed"));
}

/// Writes and deletes a key until the bucket is gone.
async fn come_and_go(desk: Fixture, go: Arc<tokio::sync::Barrier>, writer: usize) {
    let address = Address::parse("short-lived", &format!("w{writer}")).expect("a legal address");
    for n in 0.. {
        let written = if writer == 0 && desk.store.capabilities().multipart {
            write_by_upload(&desk, &address).await
        } else {
            let (staged, commit) = (StageRequest::default(), Expected::default());
            desk.put_within(&context(), &address, "x".into(), staged, commit).await
        };
        if n == 0 {
            go.wait().await;
        }
        if let Err(e) = written {
            assert_eq!(e.kind(), ErrorKind::NotFound, "write {n} of writer {writer}: {e:?}");
            return;
        }
        // Occasional pauses with and without the key: otherwise the writers of a fast store run in lockstep,
        // and either some key always exists or hardly any ever does.
        if n % 16 == 5 * writer {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let deleted = desk.store.delete(&context(), &address, Precondition::None).await;
        assert!(deleted.expect("the bucket holds an object").existed, "write {n} of writer {writer} is lost");
        if n % 16 == (5 * writer + 8) % 16 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn write_by_upload(desk: &Fixture, address: &Address) -> Result<Committed> {
    let (store, context, number) = (&desk.store, context(), part_number(1));
    let upload = store.create_upload(&context, address, CreateUpload::default()).await?;
    let staged = store.stage_part(&context, address, &upload, number, StageRequest::default()).await?;
    let etag = staged.commit(Expected::default()).await?.0.etag;
    let request = named_parts(vec![CompletePart { number, etag, checksum: None }]);
    store.complete_upload(&context, address, &upload, request).await
}
