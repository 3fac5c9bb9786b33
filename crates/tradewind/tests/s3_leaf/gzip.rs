//! Listings encoded as gzip, and responses that falsely claim to be.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::testing::context;
use tradewind_core::{BucketName, ObjectStore};

use crate::support::scripted_server::{BUCKET, Reply, ScriptedResponse, ScriptedServer};

fn gzip(answer: &ScriptedResponse) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&answer.body).unwrap();
    encoder.finish().unwrap()
}

/// The number of keys in a listing whose response is modified by `change`, and the number of requests.
async fn listed(
    change: impl Fn(ScriptedResponse) -> ScriptedResponse + Send + Sync + 'static,
) -> (Result<usize>, usize) {
    let server = ScriptedServer::start(move |request, answer| {
        assert!(!request.query.contains_key("list-type") || request.header("accept-encoding") == "gzip");
        Reply::Respond(change(answer))
    });
    for key in ["a", "b", "c"] {
        server.put_object(key, b"bytes".to_vec());
    }
    let store = crate::leaf_over(server.address, |_| {});
    let list = ListRequest { limit: 10, ..ListRequest::default() };
    let page = store.list(&context(), &BucketName::new(BUCKET).unwrap(), &list).await;
    (page.map(|page| page.entries.len()), server.requests().len())
}

#[tokio::test(flavor = "multi_thread")]
async fn listing_is_decoded_from_gzip() {
    let (plain, _) = listed(|answer| answer).await;
    assert_eq!(plain.unwrap(), 3);
    for name in ["gzip", "GZIP"] {
        let (found, requests) = listed(move |answer| {
            ScriptedResponse { body: gzip(&answer), ..answer }.with_header("content-encoding", name)
        })
        .await;
        assert_eq!((found.unwrap(), requests), (3, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_gzip_is_rejected() {
    let (plain, _) = listed(|answer| answer.with_header("content-encoding", "gzip")).await;
    let (torn, _) = listed(|answer| {
        let mut body = gzip(&answer);
        body.truncate(body.len() / 2);
        ScriptedResponse { body, ..answer }.with_header("content-encoding", "gzip")
    })
    .await;
    let (damaged, _) = listed(|answer| {
        let body = gzip(&answer);
        let at = body.len() - 6;
        ScriptedResponse { body, ..answer }.with_header("content-encoding", "gzip").with_flipped_bit(at)
    })
    .await;
    let (without, _) = listed(|answer| ScriptedResponse { body: gzip(&answer), ..answer }).await;
    for (what, found) in [("plain", plain), ("torn", torn), ("damaged", damaged)] {
        let e = found.unwrap_err();
        assert_eq!(e.reason(), Reason::Io, "{what}: {e}");
        assert!(e.to_string().contains("gzip"), "{what}: {e}");
    }
    assert!(without.is_err(), "gzip without Content-Encoding must fail");
}

#[tokio::test(flavor = "multi_thread")]
async fn error_response_is_decoded_from_gzip() {
    let (refused, _) = listed(|_| {
        let answer = ScriptedResponse::error(403, "AccessDenied", "Not yours.");
        ScriptedResponse { body: gzip(&answer), ..answer }.with_header("content-encoding", "x-gzip")
    })
    .await;
    let e = refused.unwrap_err();
    assert!(e.to_string().contains("Not yours (AccessDenied)"), "{e}");
}
