//! Deadlines: enforced by every call, and by bodies and staged writes that outlive their calls.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

use crate::budget::Budget;
use crate::clock::SystemClock;
use crate::condition::Precondition;
use crate::context::{Context, Deadline};
use crate::error::Reason;
use crate::listing::ListRequest;
use crate::metadata::Tags;
use crate::multipart::{CompletePart, CreateUpload, ListUploads, UploadId};
use crate::object::Expected;
use crate::store::{CopyPartRequest, ETagForm, GetRequest, StageRequest};
use crate::testing::{SimulatedClock, context, context_until};

use super::fixture::{
    Fixture, bucket, copy_request, drain, expired, key_address, named_parts, part_number, pattern, reason,
};

super::theme! { "deadlines":
    that_passed_refuse_objects,
    that_passed_refuse_buckets needs Buckets,
    that_passed_refuse_tags needs Tags,
    that_passed_refuse_uploads needs Multipart,
    that_are_far_disturb_nothing,
    end_a_staged_write,
    end_a_body,
}

async fn that_passed_refuse_objects(desk: Fixture) {
    assert_objects_refused(&desk, &expired(), Reason::DeadlineExceeded).await;
}

async fn that_passed_refuse_buckets(desk: Fixture) {
    assert_buckets_refused(&desk, &expired(), Reason::DeadlineExceeded).await;
}

async fn that_passed_refuse_tags(desk: Fixture) {
    assert_tags_refused(&desk, &expired(), Reason::DeadlineExceeded).await;
}

async fn that_passed_refuse_uploads(desk: Fixture) {
    assert_uploads_refused(&desk, &expired(), Reason::DeadlineExceeded).await;
}

/// Asserts that every call on objects fails for this reason, without effect, if the request is already over.
pub(super) async fn assert_objects_refused(desk: &Fixture, over: &Context, why: Reason) {
    desk.put("here", "bytes").await;
    let (store, here) = (&desk.store, key_address("here"));
    let refused = [
        reason(store.head(over, &here, GetRequest::default()).await),
        reason(store.get(over, &here, GetRequest::default()).await),
        reason(store.stage(over, &here, StageRequest::default()).await),
        reason(store.delete(over, &here, Precondition::None).await),
        reason(store.list(over, &here.bucket, &ListRequest { limit: 1, ..ListRequest::default() }).await),
        reason(store.copy(over, copy_request(here.clone(), key_address("there"))).await),
    ];
    assert_eq!(refused, [why; 6]);
    assert_eq!(desk.names().await, ["here"]);
    assert_eq!(desk.read("here").await, "bytes");
}

/// Like [`assert_objects_refused`], for calls on buckets.
pub(super) async fn assert_buckets_refused(desk: &Fixture, over: &Context, why: Reason) {
    let (store, here) = (&desk.store, key_address("here").bucket);
    let refused = [
        reason(store.create_bucket(over, &bucket("new-bucket")).await),
        reason(store.delete_bucket(over, &here).await),
        reason(store.head_bucket(over, &here).await),
        reason(store.list_buckets(over).await),
    ];
    assert_eq!(refused, [why; 4]);
    let left = store.list_buckets(&context()).await.expect("buckets are listed");
    assert_eq!(left.len(), 2, "nothing was created or deleted");
}

/// Like [`assert_objects_refused`], for calls on tags.
pub(super) async fn assert_tags_refused(desk: &Fixture, over: &Context, why: Reason) {
    desk.put("here", "bytes").await;
    let before = desk.head("here").await;
    let tags = Tags::new(vec![("a".to_owned(), "b".to_owned())]).expect("legal tags");
    assert_eq!(reason(desk.store.set_tags(over, &key_address("here"), tags).await), why);
    assert_eq!(desk.head("here").await, before);
}

/// Like [`assert_objects_refused`], for calls on uploads.
pub(super) async fn assert_uploads_refused(desk: &Fixture, over: &Context, why: Reason) {
    desk.put("here", "bytes").await;
    let (store, key) = (&desk.store, key_address("k"));
    let upload = desk.create_upload("k", CreateUpload::default()).await;
    let part = desk.part("k", &upload, 1, pattern(10, 1)).await;
    let all = ListUploads { limit: 10, ..ListUploads::default() };
    let refused = [
        reason(store.create_upload(over, &key, CreateUpload::default()).await),
        reason(store.stage_part(over, &key, &upload, part_number(1), StageRequest::default()).await),
        reason(store.copy_part(over, copy_part(upload.clone())).await),
        reason(store.list_parts(over, &key, &upload, None, 10).await),
        reason(store.list_uploads(over, &key.bucket, &all).await),
        reason(store.complete_upload(over, &key, &upload, named_parts(vec![part.clone()])).await),
        reason(store.abort_upload(over, &key, &upload).await),
        reason(store.object_parts(over, &key_address("here"), None, 10).await),
    ];
    assert_eq!(refused, [why; 8]);
    let left = store.list_uploads(&context(), &key.bucket, &all).await.expect("uploads are listed");
    assert_eq!(left.entries.len(), 1, "no upload was begun or ended");
    complete_with(desk, &upload, part).await;
}

fn copy_part(upload: UploadId) -> CopyPartRequest {
    CopyPartRequest {
        source: key_address("here"),
        range: None,
        source_conditions: crate::condition::ReadConditions::default(),
        destination: key_address("k"),
        upload,
        number: part_number(1),
        etag: ETagForm::Md5,
    }
}

async fn complete_with(desk: &Fixture, upload: &UploadId, part: CompletePart) {
    desk.complete("k", upload, named_parts(vec![part])).await.expect("the upload is unchanged");
    assert!(desk.read("k").await == pattern(10, 1));
}

async fn that_are_far_disturb_nothing(desk: Fixture) {
    let deadline = Deadline::after(SystemClock::shared(), Duration::from_secs(3600));
    let far = context_until(&Budget::new(1 << 20), deadline);
    let bytes = pattern(200_000, 1);
    let (staged, commit) = (StageRequest::default(), Expected::default());
    desk.put_within(&far, &key_address("k"), bytes.clone(), staged, commit).await.expect("there is time");
    let found = desk.store.get(&far, &key_address("k"), GetRequest::default()).await.expect("there is time");
    assert!(drain(found.body).await.expect("there is time") == bytes);
}

/// A clock, and a request on it with a deadline in ten seconds.
fn ten_seconds() -> (Arc<SimulatedClock>, Context) {
    let clock = SimulatedClock::new();
    let deadline = Deadline::after(clock.clone(), Duration::from_secs(10));
    (clock, context_until(&Budget::new(1 << 20), deadline))
}

async fn end_a_staged_write(desk: Fixture) {
    for is_commit in [true, false] {
        let (clock, context) = ten_seconds();
        let mut staged =
            desk.store.stage(&context, &key_address("k"), StageRequest::default()).await.expect("begins");
        clock.advance(Duration::from_secs(9));
        staged.write(pattern(70_000, 1)).await.expect("there is time");
        clock.advance(Duration::from_secs(2));
        let refused = if is_commit {
            reason(staged.commit(Expected::default()).await)
        } else {
            reason(staged.write(pattern(70_000, 1)).await)
        };
        assert_eq!(refused, Reason::DeadlineExceeded);
        desk.assert_absent("k").await;
    }
}

async fn end_a_body(desk: Fixture) {
    desk.put("k", pattern((5 << 20) + 3, 1)).await;
    let (clock, context) = ten_seconds();
    let found =
        desk.store.get(&context, &key_address("k"), GetRequest::default()).await.expect("there is time");
    let mut body = found.body;
    body.next().await.expect("a first piece").expect("there is time");
    clock.advance(Duration::from_secs(11));
    assert_eq!(reason(drain(body).await), Reason::DeadlineExceeded);
}
