//! Cancellation: by token or by dropping the future, at any moment. An uncommitted write leaves
//! no trace; a committed one is complete.

use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::budget::Budget;
use crate::clock::SystemClock;
use crate::context::{Context, Deadline};
use crate::error::Reason;
use crate::multipart::{CreateUpload, ListUploads};
use crate::object::Expected;
use crate::store::{GetRequest, StageRequest};
use crate::testing::{context, context_until};

use super::deadlines::{
    assert_buckets_refused, assert_objects_refused, assert_tags_refused, assert_uploads_refused,
};
use super::fixture::{Fixture, drain, key_address, named_parts, pattern, reason};

super::theme! { "cancellation":
    by_token_refuses_objects,
    by_token_refuses_buckets needs Buckets,
    by_token_refuses_tags needs Tags,
    by_token_refuses_uploads needs Multipart,
    by_token_ends_a_staged_write,
    by_token_ends_a_body,
    of_a_write_leaves_all_or_nothing,
    of_a_completion_leaves_all_or_nothing needs Multipart,
    of_reads_leaves_the_store_working,
}

/// A request with a token that cancels it.
fn cancellable() -> (CancellationToken, Context) {
    let token = CancellationToken::new();
    let deadline = Deadline::none(SystemClock::shared()).with_cancellation(token.clone());
    (token, context_until(&Budget::new(1 << 20), deadline))
}

fn cancelled() -> Context {
    let (token, context) = cancellable();
    token.cancel();
    context
}

async fn by_token_refuses_objects(desk: Fixture) {
    assert_objects_refused(&desk, &cancelled(), Reason::Cancelled).await;
}

async fn by_token_refuses_buckets(desk: Fixture) {
    assert_buckets_refused(&desk, &cancelled(), Reason::Cancelled).await;
}

async fn by_token_refuses_tags(desk: Fixture) {
    assert_tags_refused(&desk, &cancelled(), Reason::Cancelled).await;
}

async fn by_token_refuses_uploads(desk: Fixture) {
    assert_uploads_refused(&desk, &cancelled(), Reason::Cancelled).await;
}

async fn by_token_ends_a_staged_write(desk: Fixture) {
    for is_commit in [true, false] {
        let (token, context) = cancellable();
        let mut staged =
            desk.store.stage(&context, &key_address("k"), StageRequest::default()).await.expect("begins");
        staged.write(pattern(70_000, 1)).await.expect("it is not cancelled yet");
        token.cancel();
        let refused = if is_commit {
            reason(staged.commit(Expected::default()).await)
        } else {
            reason(staged.write(pattern(70_000, 1)).await)
        };
        assert_eq!(refused, Reason::Cancelled);
        desk.assert_absent("k").await;
    }
}

async fn by_token_ends_a_body(desk: Fixture) {
    desk.put("k", pattern((5 << 20) + 3, 1)).await;
    let (token, context) = cancellable();
    let found =
        desk.store.get(&context, &key_address("k"), GetRequest::default()).await.expect("a GET succeeds");
    let mut body = found.body;
    body.next().await.expect("a first piece").expect("it is not cancelled yet");
    token.cancel();
    assert_eq!(reason(drain(body).await), Reason::Cancelled);
}

/// Polls `work` `polls` times, letting other tasks run in between, and then drops it.
async fn dropped_after<F: Future>(work: F, polls: usize) -> Option<F::Output> {
    let mut work = std::pin::pin!(work);
    for n in 0..polls {
        if let Poll::Ready(output) = futures::poll!(work.as_mut()) {
            return Some(output);
        }
        match n % 3 {
            0 => tokio::task::yield_now().await,
            _ => tokio::time::sleep(Duration::from_micros(50)).await,
        }
    }
    None
}

async fn of_a_write_leaves_all_or_nothing(desk: Fixture) {
    let (old, new) = (pattern(50_000, 1), pattern(210_000, 2));
    for polls in 0..40 {
        let (fresh, present) = (format!("fresh-{polls}"), format!("present-{polls}"));
        desk.put(&present, old.clone()).await;
        for key in [&fresh, &present] {
            let (context, address) = (context(), key_address(key));
            let write = async {
                let mut staged = desk.store.stage(&context, &address, StageRequest::default()).await?;
                for piece in new.chunks(70_000) {
                    staged.write(piece.to_vec().into()).await?;
                }
                staged.commit(Expected::default()).await
            };
            let outcome = dropped_after(write, polls).await;
            let is_done = outcome.map(|result| result.expect("a PUT succeeds")).is_some();
            let found = desk.get(key, GetRequest::default()).await;
            match found {
                Ok((_, _, bytes)) if is_done => assert!(bytes == new, "after {polls} polls"),
                Ok((_, _, bytes)) => assert!(bytes == new || (key == &present && bytes == old)),
                Err(e) => {
                    assert_eq!(e.reason(), Reason::NoSuchKey);
                    assert!(!is_done && key == &fresh, "{key} is lost after {polls} polls");
                }
            }
        }
    }
    for key in desk.names().await {
        let bytes = desk.read(&key).await;
        assert!(bytes == new || bytes == old, "{key} is neither old nor new");
    }
}

async fn of_a_completion_leaves_all_or_nothing(desk: Fixture) {
    let bytes = pattern(70_000, 1);
    for polls in 0..25 {
        let key = format!("k-{polls}");
        let upload = desk.create_upload(&key, CreateUpload::default()).await;
        let part = desk.part(&key, &upload, 1, bytes.clone()).await;
        let completion = desk.complete(&key, &upload, named_parts(vec![part.clone()]));
        if let Some(result) = dropped_after(completion, polls).await {
            result.expect("a completion succeeds");
            assert!(desk.read(&key).await == bytes);
        }
        // The dropped completion was applied, will be applied, or never will be: a second one reveals which.
        match desk.complete(&key, &upload, named_parts(vec![part])).await {
            Ok(_) => {}
            Err(e) => assert_eq!(e.reason(), Reason::NoSuchUpload),
        }
        assert!(desk.read(&key).await == bytes);
    }
    let request = ListUploads { limit: 1000, ..ListUploads::default() };
    let left = desk.store.list_uploads(&context(), &key_address("k").bucket, &request).await;
    assert!(left.expect("uploads are listed").entries.is_empty());
}

async fn of_reads_leaves_the_store_working(desk: Fixture) {
    let bytes = pattern(3 << 20, 1);
    desk.put("k", bytes.clone()).await;
    for polls in 0..25 {
        let context = context();
        let read = async {
            let found = desk.store.get(&context, &key_address("k"), GetRequest::default()).await?;
            drain(found.body).await
        };
        if let Some(result) = dropped_after(read, polls).await {
            assert!(result.expect("a GET succeeds") == bytes);
        }
        let list = crate::listing::ListRequest { limit: 10, ..Default::default() };
        let key = key_address("k");
        dropped_after(desk.store.list(&context, &key.bucket, &list), polls).await;
    }
    assert!(desk.read("k").await == bytes);
    assert_eq!(desk.names().await, ["k"]);
}
