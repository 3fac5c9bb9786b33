//! Buckets that are in another region than was thought.

use std::sync::{Arc, Barrier};

use bytes::Bytes;
use tradewind_core::error::Reason;
use tradewind_core::listing::ListRequest;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Address, BucketName, ObjectStore};

use crate::support::scripted::{Answer, BUCKET, Reply, Request, Scripted};

const THERE: &str = "eu-central-1";

/// What S3 answers to a request that is signed for another region.
fn refusal(how: &str) -> Answer {
    match how {
        "malformed" => {
            let region = format!("<Region>{THERE}</Region>");
            Answer::refusal_with(400, "AuthorizationHeaderMalformed", "The region is wrong.", &region)
        }
        "moved" => {
            Answer::refusal(301, "PermanentRedirect", "It is elsewhere.").with("x-amz-bucket-region", THERE)
        }
        "new" => Answer::refusal(307, "TemporaryRedirect", "It is new.").with("x-amz-bucket-region", THERE),
        _ => Answer { status: 400, headers: Vec::new(), body: Vec::new() }.with("x-amz-bucket-region", THERE),
    }
}

fn is_signed_for(request: &Request, region: &str) -> bool {
    request.header("authorization").contains(&format!("/{region}/s3/aws4_request"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_is_signed_again_and_the_region_remembered() {
    for how in ["malformed", "moved", "new", "silent"] {
        let server = Scripted::start(move |request, answer| {
            Reply::Answer(if is_signed_for(request, THERE) { answer } else { refusal(how) })
        });
        server.lay("x", b"bytes".to_vec());
        let (store, context) = (crate::leaf_over(server.address, |_| {}), context());
        let address = Address::parse(BUCKET, "x").unwrap();
        // An answer to HEAD has no body to say it in.
        let found = if how == "silent" {
            store.head(&context, &address, GetRequest::default()).await.unwrap().info
        } else {
            store.get(&context, &address, GetRequest::default()).await.unwrap().info
        };
        assert_eq!((found.size, server.seen().len()), (5, 2), "{how}: {:?}", server.counts());
        let list = ListRequest { limit: 10, ..ListRequest::default() };
        assert_eq!(store.list(&context, &address.bucket, &list).await.unwrap().entries.len(), 1);
        let mut staged = store.stage(&context, &address, StageRequest::default()).await.unwrap();
        staged.write(Bytes::from_static(b"new")).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
        assert_eq!(server.seen().len(), 4, "it is remembered: {:?}", server.counts());
        assert_eq!(server.object("x").unwrap(), b"new");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_refused_together_go_there_together() {
    for how in ["malformed", "moved"] {
        let together = Arc::new(Barrier::new(2));
        let server = Scripted::start(move |request, answer| {
            if is_signed_for(request, THERE) {
                return Reply::Answer(answer);
            }
            together.wait();
            Reply::Answer(refusal(how))
        });
        server.lay("x", b"bytes".to_vec());
        let store = crate::leaf_over(server.address, |_| {});
        let list = async || {
            let all = ListRequest { limit: 10, ..ListRequest::default() };
            store.list(&context(), &BucketName::new(BUCKET).unwrap(), &all).await.unwrap().entries.len()
        };
        assert_eq!(tokio::join!(list(), list()), (1, 1), "{how}");
        assert_eq!(server.seen().len(), 4, "{how}: {:?}", server.counts());
    }
}

/// Its bytes are gone: it fails as what may pass does, and goes through when it is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_under_way_goes_there_the_next_time() {
    let server = Scripted::start(|request, answer| {
        Reply::Answer(if is_signed_for(request, THERE) { answer } else { refusal("malformed") })
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
async fn nobody_is_sent_from_one_region_to_the_next() {
    let server = Scripted::start(|request, _| {
        let next = if is_signed_for(request, THERE) { "ap-south-1" } else { THERE };
        Reply::Answer(refusal("moved").with("x-amz-bucket-region", next))
    });
    let store = crate::leaf_over(server.address, |_| {});
    let address = Address::parse(BUCKET, "x").unwrap();
    for asked in [2, 3] {
        let failed = store.get(&context(), &address, GetRequest::default()).await.unwrap_err();
        assert_eq!(failed.reason(), Reason::InvalidRequest);
        assert!(failed.message().contains("the bucket is in region ap-south-1"), "{failed}");
        assert_eq!(server.seen().len(), asked);
    }
}

/// A store that says where a bucket is while it refuses for another reason, or names the region that was asked.
#[tokio::test(flavor = "multi_thread")]
async fn other_refusals_are_refusals() {
    for answer in [
        Answer::refusal(403, "AccessDenied", "No.").with("x-amz-bucket-region", THERE),
        refusal("moved").with("x-amz-bucket-region", "us-east-1"),
    ] {
        let server = Scripted::start(move |_, _| Reply::Answer(answer.clone()));
        let store = crate::leaf_over(server.address, |_| {});
        let address = Address::parse(BUCKET, "x").unwrap();
        store.get(&context(), &address, GetRequest::default()).await.unwrap_err();
        assert_eq!(server.seen().len(), 1);
    }
}
