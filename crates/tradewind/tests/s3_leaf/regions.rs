//! Buckets in another region than the configured one.

use std::sync::{Arc, Barrier};

use bytes::Bytes;
use tradewind_core::error::Reason;
use tradewind_core::listing::ListRequest;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Address, BucketName, ObjectStore};

use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedResponse, ScriptedServer};

const THERE: &str = "eu-central-1";

/// S3's error response to a request that is signed for another region.
fn refusal(how: &str) -> ScriptedResponse {
    match how {
        "malformed" => {
            let region = format!("<Region>{THERE}</Region>");
            ScriptedResponse::error_with(400, "AuthorizationHeaderMalformed", "The region is wrong.", &region)
        }
        "moved" => ScriptedResponse::error(301, "PermanentRedirect", "It is elsewhere.")
            .with_header("x-amz-bucket-region", THERE),
        "new" => ScriptedResponse::error(307, "TemporaryRedirect", "It is new.")
            .with_header("x-amz-bucket-region", THERE),
        _ => ScriptedResponse { status: 400, headers: Vec::new(), body: Vec::new() }
            .with_header("x-amz-bucket-region", THERE),
    }
}

fn is_signed_for(request: &Request, region: &str) -> bool {
    request.header("authorization").contains(&format!("/{region}/s3/aws4_request"))
}

#[tokio::test(flavor = "multi_thread")]
async fn request_is_signed_again_and_the_region_cached() {
    for how in ["malformed", "moved", "new", "silent"] {
        let server = ScriptedServer::start(move |request, answer| {
            Reply::Respond(if is_signed_for(request, THERE) { answer } else { refusal(how) })
        });
        server.put_object("x", b"bytes".to_vec());
        let (store, context) = (crate::leaf_over(server.address, |_| {}), context());
        let address = Address::parse(BUCKET, "x").unwrap();
        // A response to HEAD has no body with the region.
        let found = if how == "silent" {
            store.head(&context, &address, GetRequest::default()).await.unwrap().info
        } else {
            store.get(&context, &address, GetRequest::default()).await.unwrap().info
        };
        assert_eq!((found.size, server.requests().len()), (5, 2), "{how}: {:?}", server.request_counts());
        let list = ListRequest { limit: 10, ..ListRequest::default() };
        assert_eq!(store.list(&context, &address.bucket, &list).await.unwrap().entries.len(), 1);
        let mut staged = store.stage(&context, &address, StageRequest::default()).await.unwrap();
        staged.write(Bytes::from_static(b"new")).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
        assert_eq!(server.requests().len(), 4, "the region is cached: {:?}", server.request_counts());
        assert_eq!(server.object("x").unwrap(), b"new");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrently_redirected_requests_all_succeed() {
    for how in ["malformed", "moved"] {
        let together = Arc::new(Barrier::new(2));
        let server = ScriptedServer::start(move |request, answer| {
            if is_signed_for(request, THERE) {
                return Reply::Respond(answer);
            }
            together.wait();
            Reply::Respond(refusal(how))
        });
        server.put_object("x", b"bytes".to_vec());
        let store = crate::leaf_over(server.address, |_| {});
        let list = async || {
            let all = ListRequest { limit: 10, ..ListRequest::default() };
            store.list(&context(), &BucketName::new(BUCKET).unwrap(), &all).await.unwrap().entries.len()
        };
        assert_eq!(tokio::join!(list(), list()), (1, 1), "{how}");
        assert_eq!(server.requests().len(), 4, "{how}: {:?}", server.request_counts());
    }
}

/// A streamed body cannot be sent again: the write fails with a retryable error, and a retry succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn redirected_streamed_write_succeeds_on_retry() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(if is_signed_for(request, THERE) { answer } else { refusal("malformed") })
    });
    let (store, context, bytes) =
        (crate::leaf_over(server.address, |_| {}), context(), Bytes::from(vec![7; 300_000]));
    let address = Address::parse(BUCKET, "x").unwrap();
    let write = async || {
        let request = StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() };
        let mut staged = store.stage(&context, &address, request).await?;
        staged.write(bytes.clone()).await?;
        staged.commit(Expected::default()).await
    };
    assert!(write().await.unwrap_err().kind().is_retryable());
    write().await.unwrap();
    assert!(server.object("x").unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_redirects_are_not_followed() {
    let server = ScriptedServer::start(|request, _| {
        let next = if is_signed_for(request, THERE) { "ap-south-1" } else { THERE };
        Reply::Respond(refusal("moved").with_header("x-amz-bucket-region", next))
    });
    let store = crate::leaf_over(server.address, |_| {});
    let address = Address::parse(BUCKET, "x").unwrap();
    for requests in [2, 3] {
        let failed = store.get(&context(), &address, GetRequest::default()).await.unwrap_err();
        assert_eq!(failed.reason(), Reason::InvalidRequest);
        assert!(failed.message().contains("the bucket is in region ap-south-1"), "{failed}");
        assert_eq!(server.requests().len(), requests);
    }
}

/// Errors that name a region but are no redirects, or redirect to the same region.
#[tokio::test(flavor = "multi_thread")]
async fn other_errors_are_not_redirects() {
    for answer in [
        ScriptedResponse::error(403, "AccessDenied", "No.").with_header("x-amz-bucket-region", THERE),
        refusal("moved").with_header("x-amz-bucket-region", "us-east-1"),
    ] {
        let server = ScriptedServer::start(move |_, _| Reply::Respond(answer.clone()));
        let store = crate::leaf_over(server.address, |_| {});
        let address = Address::parse(BUCKET, "x").unwrap();
        store.get(&context(), &address, GetRequest::default()).await.unwrap_err();
        assert_eq!(server.requests().len(), 1);
    }
}
