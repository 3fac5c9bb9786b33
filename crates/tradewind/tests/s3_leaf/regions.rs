//! Buckets in another region than the configured one.

use std::sync::{Arc, Barrier, Mutex};

use bytes::Bytes;
use tradewind_backend::s3::S3Store;
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Address, BucketName, ObjectStore};

use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedResponse, ScriptedServer};

const HERE: &str = "us-east-1";
const THERE: &str = "eu-central-1";

/// S3's error response to a request that is signed for another region than [`THERE`].
fn refusal(how: &str) -> ScriptedResponse {
    refusal_naming(THERE, how)
}

/// S3's error response to a request for a bucket in `region` that is signed for another one.
fn refusal_naming(region: &str, how: &str) -> ScriptedResponse {
    match how {
        "malformed" => {
            let region = format!("<Region>{region}</Region>");
            ScriptedResponse::error_with(400, "AuthorizationHeaderMalformed", "The region is wrong.", &region)
        }
        "moved" => ScriptedResponse::error(301, "PermanentRedirect", "It is elsewhere.")
            .with_header("x-amz-bucket-region", region),
        "new" => ScriptedResponse::error(307, "TemporaryRedirect", "It is new.")
            .with_header("x-amz-bucket-region", region),
        _ => ScriptedResponse { status: 400, headers: Vec::new(), body: Vec::new() }
            .with_header("x-amz-bucket-region", region),
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

async fn write_streamed(store: &S3Store, bytes: &Bytes) -> Result<()> {
    let request = StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() };
    let mut staged = store.stage(&context(), &Address::parse(BUCKET, "x")?, request).await?;
    staged.write(bytes.clone()).await?;
    staged.commit(Expected::default()).await.map(drop)
}

/// A service whose bucket is in the region that the mutex holds, and a leaf over it.
fn movable(how: &'static str) -> (ScriptedServer, Arc<S3Store>, Arc<Mutex<&'static str>>) {
    let current = Arc::new(Mutex::new(HERE));
    let shared = current.clone();
    let server = ScriptedServer::start(move |request, answer| {
        let region = *shared.lock().unwrap();
        Reply::Respond(if is_signed_for(request, region) { answer } else { refusal_naming(region, how) })
    });
    server.put_object("x", b"bytes".to_vec());
    let store = crate::leaf_over(server.address, |_| {});
    (server, store, current)
}

#[tokio::test(flavor = "multi_thread")]
async fn bucket_created_again_in_another_region_is_found() {
    for how in ["malformed", "moved", "new", "silent"] {
        let (server, store, current) = movable(how);
        let (context, address) = (context(), Address::parse(BUCKET, "x").unwrap());
        // A response to HEAD has no body with the region.
        let read = async || match how {
            "silent" => store.head(&context, &address, GetRequest::default()).await.map(drop),
            _ => store.get(&context, &address, GetRequest::default()).await.map(drop),
        };
        let mut requests = 0;
        for (region, needed) in
            [(HERE, 1), (THERE, 2), (HERE, 2), (THERE, 2), ("ap-south-1", 2), (THERE, 2), (HERE, 2)]
        {
            *current.lock().unwrap() = region;
            // A redirect, and later none.
            for needed in [needed, 1] {
                read().await.unwrap();
                requests += needed;
                assert_eq!(server.requests().len(), requests, "{how} {region}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_find_a_bucket_that_moves_again() {
    let (server, store, current) = movable("moved");
    let read = async || {
        let address = Address::parse(BUCKET, "x").unwrap();
        store.head(&context(), &address, GetRequest::default()).await.map(drop)
    };
    for region in [THERE, HERE, "ap-south-1", THERE] {
        *current.lock().unwrap() = region;
        futures::future::try_join_all((0..8).map(|_| read())).await.unwrap();
    }
    let requests = server.requests().len();
    read().await.unwrap();
    assert_eq!(server.requests().len(), requests + 1, "the region is cached");
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_write_to_a_bucket_that_moved_again_succeeds_on_retry() {
    let (server, store, current) = movable("malformed");
    let bytes = Bytes::from(vec![7; 300_000]);
    for region in [THERE, HERE] {
        *current.lock().unwrap() = region;
        assert!(write_streamed(&store, &bytes).await.unwrap_err().kind().is_retryable());
        write_streamed(&store, &bytes).await.unwrap();
    }
    assert!(server.object("x").unwrap() == bytes);
}

/// A service of several regions without redirects: the deleted bucket does not exist in the cached region.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_bucket_is_looked_up_in_the_own_region() {
    let is_here = Arc::new(Mutex::new(false));
    let shared = is_here.clone();
    let server = ScriptedServer::start(move |request, answer| {
        let is_here = *shared.lock().unwrap();
        Reply::Respond(match (is_here, is_signed_for(request, THERE)) {
            (false, true) | (true, false) => answer,
            (false, false) => refusal("moved"),
            (true, true) => ScriptedResponse::error(404, "NoSuchBucket", "It was deleted."),
        })
    });
    server.put_object("x", b"bytes".to_vec());
    let (store, address) = (crate::leaf_over(server.address, |_| {}), Address::parse(BUCKET, "x").unwrap());
    let read = async || store.get(&context(), &address, GetRequest::default()).await.map(drop);
    for (moves_here, requests) in [(false, 2), (true, 4)] {
        *is_here.lock().unwrap() = moves_here;
        read().await.unwrap();
        assert_eq!(server.requests().len(), requests);
    }
    read().await.unwrap();
    assert_eq!(server.requests().len(), 5);
}

/// The bucket was deleted in the cached region, and created again in a third one, which the own region names.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_bucket_is_looked_up_and_redirected_in_one_request() {
    let has_moved = Arc::new(Mutex::new(false));
    let shared = has_moved.clone();
    let server = ScriptedServer::start(move |request, answer| {
        let region = if *shared.lock().unwrap() { "ap-south-1" } else { THERE };
        Reply::Respond(match is_signed_for(request, HERE) {
            _ if is_signed_for(request, region) => answer,
            true => refusal_naming(region, "moved"),
            false => ScriptedResponse::error(404, "NoSuchBucket", "It was deleted."),
        })
    });
    server.put_object("x", b"bytes".to_vec());
    let (store, address) = (crate::leaf_over(server.address, |_| {}), Address::parse(BUCKET, "x").unwrap());
    let read = async || store.get(&context(), &address, GetRequest::default()).await.map(drop);
    read().await.unwrap();
    *has_moved.lock().unwrap() = true;
    read().await.unwrap();
    assert_eq!(server.requests().len(), 5, "the cached region, the own one, and the third");
    read().await.unwrap();
    assert_eq!(server.requests().len(), 6);
}

/// A streamed body cannot be sent again: the write fails with a retryable error, and a retry succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn redirected_streamed_write_succeeds_on_retry() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(if is_signed_for(request, THERE) { answer } else { refusal("malformed") })
    });
    let (store, bytes) = (crate::leaf_over(server.address, |_| {}), Bytes::from(vec![7; 300_000]));
    assert!(write_streamed(&store, &bytes).await.unwrap_err().kind().is_retryable());
    write_streamed(&store, &bytes).await.unwrap();
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
    // The second request begins with the region that was named last.
    for requests in [2, 4] {
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
        refusal("moved").with_header("x-amz-bucket-region", HERE),
    ] {
        let server = ScriptedServer::start(move |_, _| Reply::Respond(answer.clone()));
        let store = crate::leaf_over(server.address, |_| {});
        let address = Address::parse(BUCKET, "x").unwrap();
        store.get(&context(), &address, GetRequest::default()).await.unwrap_err();
        assert_eq!(server.requests().len(), 1);
    }
}
