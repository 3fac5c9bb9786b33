//! Copies and completions that take longer than the time after which the head of their response is sent.

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::Reason;
use tradewind_core::store::GetRequest;
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, context};
use tradewind_core::{Address, Clock, ObjectStore as _, SystemClock};

use super::super::early_head::MAX_ABANDONED_OPERATIONS;
use super::client::{Client, UNSIGNED, signed};
use super::{SignerClock, TestGateway, config, start_gateway_on};
use crate::config::GatewayConfig;

const EARLY: Duration = Duration::from_millis(100);

/// A gateway with a bucket and an object, and the faults of its store.
async fn gateway_with_object() -> (TestGateway, Arc<Faulty<MemoryStore>>, Client) {
    let clock: Arc<dyn Clock> = Arc::new(SignerClock(SystemClock::new()));
    let store = Faulty::new(MemoryStore::new(clock.clone()), FaultPlan::none());
    let config = GatewayConfig { early_head_time: EARLY, ..config(|_| ()) };
    let server = start_gateway_on(config, store.clone(), clock).await;
    let mut client = Client::new(&server).await;
    assert_eq!(client.request("PUT", "/bucket", &[], b"").await.status, 200);
    assert_eq!(client.request("PUT", "/bucket/source", &[], b"bytes").await.status, 200);
    (server, store, client)
}

fn slow(operation: Operation) -> FaultPlan {
    FaultPlan::none().with_fault(operation, FaultSchedule::Always, Fault::Delay(4 * EARLY))
}

const COPY: [(&str, &str); 1] = [("x-amz-copy-source", "bucket/source")];

#[tokio::test]
async fn slow_copy_sends_its_head_early_and_then_its_result() {
    let (_server, store, mut client) = gateway_with_object().await;
    let fast = client.request("PUT", "/bucket/fast", &COPY, b"").await;
    assert!(fast.header("content-length").is_some(), "{fast:?}");
    store.set_plan(slow(Operation::Copy));
    let copied = client.request("PUT", "/bucket/copy", &COPY, b"").await;
    assert_eq!((copied.status, copied.header("content-type")), (200, Some("application/xml")));
    let rest =
        copied.text().strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").expect("a declaration");
    let document = rest.trim_start_matches(' ');
    assert!((2..=4).contains(&(rest.len() - document.len())), "{rest:?}");
    assert_eq!(document.trim_start(), fast.text().split_once("?>").unwrap().1.trim_start());
    assert_eq!(client.request("GET", "/bucket/copy", &[], b"").await.text(), "bytes");
}

#[tokio::test]
async fn error_after_an_early_head_is_one_that_clients_retry() {
    let (_server, store, mut client) = gateway_with_object().await;
    for (reason, code) in [(Reason::Io, "SlowDown"), (Reason::CorruptData, "InternalError")] {
        store.set_plan(FaultPlan::none().with_fault(
            Operation::Copy,
            FaultSchedule::Always,
            Fault::DelayedFailure(4 * EARLY, reason),
        ));
        let copied = client.request("PUT", "/bucket/copy", &COPY, b"").await;
        assert_eq!((copied.status, copied.code()), (200, code), "{reason:?}: {copied:?}");
        assert_eq!(copied.text().matches("<?xml").count(), 1, "{copied:?}");
    }
    store.set_plan(FaultPlan::none());
    // Before the head, errors have their own status.
    let missing = client.request("PUT", "/bucket/copy", &[("x-amz-copy-source", "bucket/none")], b"").await;
    assert_eq!((missing.status, missing.code()), (404, "NoSuchKey"));
}

#[tokio::test]
async fn copy_runs_to_its_end_after_its_client_has_disconnected() {
    let (server, store, mut client) = gateway_with_object().await;
    store.set_plan(slow(Operation::Copy));
    let mut gone = Client::new(&server).await;
    let headers = [COPY[0], ("content-length", "0")];
    gone.send(signed("PUT", "/bucket/copy", &headers, UNSIGNED).0).await;
    tokio::time::sleep(2 * EARLY).await;
    drop(gone);
    let mut status = 404;
    for _ in 0..100 {
        status = client.request("GET", "/bucket/copy", &[], b"").await.status;
        if status == 200 {
            break;
        }
        tokio::time::sleep(EARLY / 2).await;
    }
    assert_eq!(status, 200);
}

#[tokio::test]
async fn slow_completion_and_slow_copy_of_a_part_send_their_heads_early() {
    let (_server, store, mut client) = gateway_with_object().await;
    let created = client.request("POST", "/bucket/upload?uploads", &[], b"").await;
    let upload = created.text().split_once("<UploadId>").unwrap().1.split_once('<').unwrap().0.to_owned();
    store.set_plan(slow(Operation::CopyPart));
    let part = format!("/bucket/upload?partNumber=1&uploadId={upload}");
    let copied = client.request("PUT", &part, &COPY, b"").await;
    assert!(
        copied.header("transfer-encoding").is_some() && copied.text().contains("<CopyPartResult"),
        "{copied:?}"
    );
    let etag = copied.text().split_once("<ETag>").unwrap().1.split_once('<').unwrap().0.to_owned();
    store.set_plan(slow(Operation::CompleteUpload));
    let complete = format!("/bucket/upload?uploadId={upload}");
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let completed = client.request("POST", &complete, &[], body.as_bytes()).await;
    assert!(completed.header("transfer-encoding").is_some(), "{completed:?}");
    let blanks =
        completed.text().split_once("?>\n").unwrap().1.bytes().take_while(|byte| *byte == b' ').count();
    assert!(blanks >= 2, "the head was late: {completed:?}");
    assert!(completed.text().contains("<CompleteMultipartUploadResult"), "{completed:?}");
    store.set_plan(FaultPlan::none());
    let repeated = client.request("POST", &complete, &[], body.as_bytes()).await;
    assert_eq!(repeated.status, 200, "a repeated completion gets the same result");
    assert_eq!(client.request("GET", "/bucket/upload", &[], b"").await.text(), "bytes");
}

/// Sends a copy to each key, and disconnects after the heads of the responses.
async fn abandon_copies(server: &TestGateway, keys: &[String]) {
    let mut clients = Vec::new();
    for key in keys {
        let mut client = Client::new(server).await;
        let headers = [COPY[0], ("content-length", "0")];
        client.send(signed("PUT", &format!("/bucket/{key}"), &headers, UNSIGNED).0).await;
        clients.push(client);
    }
    tokio::time::sleep(2 * EARLY).await;
}

#[tokio::test]
async fn shutdown_waits_for_a_copy_whose_client_has_disconnected() {
    let (server, store, _client) = gateway_with_object().await;
    store.set_plan(slow(Operation::Copy));
    abandon_copies(&server, &["copy".to_owned()]).await;
    server.shutdown.cancel();
    server.serve_task.await.unwrap();
    let copy = Address::parse("bucket", "copy").unwrap();
    assert!(store.head(&context(), &copy, GetRequest::default()).await.is_ok());
}

#[tokio::test]
async fn abandoned_copies_beyond_the_limit_are_cancelled() {
    let (server, store, _client) = gateway_with_object().await;
    store.set_plan(FaultPlan::none().with_fault(
        Operation::Copy,
        FaultSchedule::Always,
        Fault::Delay(10 * EARLY),
    ));
    let keys: Vec<String> =
        (0..MAX_ABANDONED_OPERATIONS + 4).map(|number| format!("copy-{number}")).collect();
    abandon_copies(&server, &keys).await;
    server.shutdown.cancel();
    server.serve_task.await.unwrap();
    let mut copied = 0;
    for key in &keys {
        let copy = Address::parse("bucket", key).unwrap();
        copied += usize::from(store.head(&context(), &copy, GetRequest::default()).await.is_ok());
    }
    assert_eq!(copied, MAX_ABANDONED_OPERATIONS);
}

#[tokio::test]
async fn condition_on_the_destination_of_a_slow_copy_fails_with_412() {
    let (_server, store, mut client) = gateway_with_object().await;
    assert_eq!(client.request("PUT", "/bucket/present", &[], b"old").await.status, 200);
    store.set_plan(slow(Operation::Copy));
    for (condition, destination, status) in [
        (("if-none-match", "*"), "present", 412),
        (("if-match", "\"0\""), "present", 412),
        (("if-match", "\"0\""), "absent", 404),
        (("if-none-match", "*"), "absent", 200),
    ] {
        let copied =
            client.request("PUT", &format!("/bucket/{destination}"), &[COPY[0], condition], b"").await;
        assert_eq!(copied.status, status, "{condition:?} on {destination}: {copied:?}");
    }
    assert_eq!(client.request("GET", "/bucket/present", &[], b"").await.text(), "old");
}

#[tokio::test]
async fn condition_on_a_slow_completion_fails_with_412() {
    let (_server, store, mut client) = gateway_with_object().await;
    let created = client.request("POST", "/bucket/source?uploads", &[], b"").await;
    let upload = created.text().split_once("<UploadId>").unwrap().1.split_once('<').unwrap().0.to_owned();
    let part = format!("/bucket/source?partNumber=1&uploadId={upload}");
    let etag = client.request("PUT", &part, &[], b"part").await.header("etag").unwrap().to_owned();
    store.set_plan(slow(Operation::CompleteUpload));
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let complete = format!("/bucket/source?uploadId={upload}");
    let rejected = client.request("POST", &complete, &[("if-none-match", "*")], body.as_bytes()).await;
    assert_eq!((rejected.status, rejected.code()), (412, "PreconditionFailed"), "{rejected:?}");
    let completed = client.request("POST", &complete, &[], body.as_bytes()).await;
    assert!(completed.text().contains("<CompleteMultipartUploadResult"), "{completed:?}");
}

#[tokio::test]
async fn error_after_an_early_head_counts_as_an_error() {
    let (server, store, mut client) = gateway_with_object().await;
    store.set_plan(FaultPlan::none().with_fault(
        Operation::Copy,
        FaultSchedule::Always,
        Fault::DelayedFailure(4 * EARLY, Reason::Io),
    ));
    let copied = client.request("PUT", "/bucket/copy", &COPY, b"").await;
    assert_eq!((copied.status, copied.code()), (200, "SlowDown"));
    // The request ends when the connection drops its response, before it accepts the next request.
    client.request("GET", "/bucket/source", &[], b"").await;
    let text = crate::metrics::to_text(server.gateway.metrics());
    let copies: Vec<_> = text
        .lines()
        .filter(|l| l.starts_with("tradewind_s3_requests_total{operation=\"CopyObject\""))
        .collect();
    assert_eq!(copies, ["tradewind_s3_requests_total{operation=\"CopyObject\",status=\"5xx\"} 1"]);
}

#[tokio::test]
async fn late_error_ends_the_response_early_for_minio_go() {
    let (server, store, _client) = gateway_with_object().await;
    store.set_plan(FaultPlan::none().with_fault(
        Operation::Copy,
        FaultSchedule::Always,
        Fault::DelayedFailure(4 * EARLY, Reason::Io),
    ));
    let mut client = Client::new(&server).await;
    let agent = ("user-agent", "MinIO (linux; amd64) minio-go/v7.4.1");
    let headers = [COPY[0], ("content-length", "0"), agent];
    client.send(signed("PUT", "/bucket/copy", &headers, UNSIGNED).0).await;
    assert_eq!(client.read_response(false).await.map(|response| response.status), None, "no end of the body");
}
