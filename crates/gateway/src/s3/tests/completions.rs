//! Completions that are sent again.

use tradewind_core::{Algorithm, Checksum};

use super::TestServer;

const PART: &[u8] = b"part";

async fn upload(server: &TestServer) -> (String, String) {
    let id = server.send("POST", "/abc/k?uploads").await.assert_success().element("UploadId").unwrap();
    let part = server.put(&format!("/abc/k?partNumber=1&uploadId={id}"), PART).await.assert_success();
    (id, part.header("etag").unwrap().to_owned())
}

fn completion(tag: &str) -> String {
    let part = format!("<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>");
    format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>")
}

#[tokio::test]
async fn a_completion_sent_again_has_the_same_response() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = |key: &str, tag: &str| {
        server.request("POST", format!("/abc/{key}?uploadId={id}")).body(completion(tag))
    };
    let first = complete("k", &tag).header("if-none-match", "*").send().await.assert_success();
    let again = complete("k", &tag).header("if-none-match", "*").send().await.assert_success();
    assert_eq!(again.body, first.body);
    // The object may have been replaced since.
    server.put("/abc/k", b"replaced").await.assert_success();
    let again = complete("k", &tag).header("if-none-match", "*").send().await.assert_success();
    assert_eq!(again.body, first.body);
    assert_eq!(server.send("GET", "/abc/k").await.text(), "replaced");
    // Other parts and another key are other completions.
    complete("k", "\"other\"").send().await.assert_error("NoSuchUpload", 404);
    complete("other", &tag).send().await.assert_error("NoSuchUpload", 404);
}

#[tokio::test]
async fn concurrent_completions_have_the_same_response() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = || server.request("POST", format!("/abc/k?uploadId={id}")).body(completion(&tag)).send();
    let responses = futures::future::join_all((0..20).map(|_| complete())).await;
    assert!(responses.iter().all(|response| response.status == 200 && response.body == responses[0].body));
}

#[tokio::test]
async fn a_completion_continues_without_its_client() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = || server.request("POST", format!("/abc/k?uploadId={id}")).body(completion(&tag)).send();
    let mut lost = Box::pin(complete());
    assert!(futures::poll!(&mut lost).is_pending(), "the completion runs in a task of its own");
    drop(lost);
    let mut polls = 0;
    while server.send("HEAD", "/abc/k").await.status != 200 {
        tokio::task::yield_now().await;
        polls += 1;
        assert!(polls < 1000, "the completion continues without its client");
    }
    complete().await.assert_success();
}

#[tokio::test]
async fn a_completion_after_an_abort_fails() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let uri = format!("/abc/k?uploadId={id}");
    let complete = || server.request("POST", uri.clone()).body(completion(&tag)).send();
    complete().await.assert_success();
    server.send("DELETE", &uri).await.assert_error("NoSuchUpload", 404);
    complete().await.assert_error("NoSuchUpload", 404);
    let (id, tag) = upload(&server).await;
    let uri = format!("/abc/k?uploadId={id}");
    assert_eq!(server.send("DELETE", &uri).await.status, 204);
    server.request("POST", uri).body(completion(&tag)).send().await.assert_error("NoSuchUpload", 404);
}

#[tokio::test]
async fn a_failed_completion_may_be_sent_again() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = || server.request("POST", format!("/abc/k?uploadId={id}")).body(completion(&tag));
    complete().header("x-amz-mp-object-size", "9").send().await.assert_error("InvalidRequest", 400);
    complete().send().await.assert_success();
}

#[tokio::test]
async fn a_repeated_completion_with_other_headers_fails() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = || server.request("POST", format!("/abc/k?uploadId={id}")).body(completion(&tag));
    let crc = Checksum::compute(Algorithm::Crc64Nvme, PART).to_base64();
    let first = || complete().header("x-amz-checksum-crc64nvme", &crc).header("x-amz-mp-object-size", "4");
    let body = first().send().await.assert_success().body;
    for (name, value) in [
        ("x-amz-checksum-type", "COMPOSITE"),
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("if-match", "\"other\""),
        ("if-none-match", "*"),
    ] {
        first().header(name, value).send().await.assert_error("NoSuchUpload", 404);
    }
    for (crc, size) in [("AAAAAAAAAAA=", "4"), (crc.as_str(), "5")] {
        let request = complete().header("x-amz-checksum-crc64nvme", crc).header("x-amz-mp-object-size", size);
        request.send().await.assert_error("NoSuchUpload", 404);
    }
    complete().send().await.assert_error("NoSuchUpload", 404);
    // Headers that change nothing may differ, and the order may.
    let reordered = complete().header("x-amz-mp-object-size", "4").header("x-amz-checksum-crc64nvme", &crc);
    let reordered = reordered.header("user-agent", "other").send().await.assert_success();
    assert_eq!(reordered.body, body);
}

#[tokio::test]
async fn a_repeated_completion_with_other_part_sums_fails() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = |checksum: &str| {
        let element = format!("<ETag>{tag}</ETag>");
        let body = completion(&tag).replace(&element, &format!("{element}{checksum}"));
        server.request("POST", format!("/abc/k?uploadId={id}")).body(body)
    };
    let crc = Checksum::compute(Algorithm::Crc64Nvme, PART).to_base64();
    let named = format!("<ChecksumCRC64NVME>{crc}</ChecksumCRC64NVME>");
    let first = complete(&named).send().await.assert_success();
    for other in
        ["", "<ChecksumCRC64NVME>AAAAAAAAAAA=</ChecksumCRC64NVME>", "<ChecksumCRC32>AAAAAA==</ChecksumCRC32>"]
    {
        complete(other).send().await.assert_error("NoSuchUpload", 404);
    }
    assert_eq!(complete(&named).send().await.assert_success().body, first.body);
}

#[tokio::test]
async fn a_repeated_completion_in_a_deleted_bucket_fails() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = || server.request("POST", format!("/abc/k?uploadId={id}")).body(completion(&tag)).send();
    complete().await.assert_success();
    complete().await.assert_success();
    server.send("DELETE", "/abc/k").await.assert_success();
    server.send("DELETE", "/abc").await.assert_success();
    complete().await.assert_error("NoSuchBucket", 404);
    server.send("PUT", "/abc").await.assert_success();
    complete().await.assert_error("NoSuchUpload", 404);
}

/// Another process may delete the bucket.
#[tokio::test]
async fn a_repeated_completion_needs_its_bucket() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = || server.request("POST", format!("/abc/k?uploadId={id}")).body(completion(&tag)).send();
    complete().await.assert_success();
    server.send("DELETE", "/abc/k").await.assert_success();
    server.delete_bucket_in_store("abc").await;
    complete().await.assert_error("NoSuchBucket", 404);
}

/// A part's checksum in the query may be that of an empty body; a completion's is that of the object.
#[tokio::test]
async fn a_presigned_completion_has_its_checksum_compared() {
    let server = TestServer::with_bucket().await;
    let (id, tag) = upload(&server).await;
    let complete = |value: &str| {
        let query = format!("X-Amz-Signature=s&x-amz-checksum-crc64nvme={}", value.replace('=', "%3D"));
        server.request("POST", format!("/abc/k?uploadId={id}&{query}")).body(completion(&tag)).send()
    };
    complete("AAAAAAAAAAA=").await.assert_error("BadDigest", 400);
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
    let crc = Checksum::compute(Algorithm::Crc64Nvme, PART).to_base64().replace('+', "%2B");
    complete(&crc).await.assert_success();
}

#[tokio::test]
async fn a_presigned_document_has_its_checksum_compared() {
    let server = TestServer::with_bucket().await;
    let xml = "<Delete><Object><Key>k</Key></Object></Delete>";
    let delete = |body: &str| {
        let crc = Checksum::compute(Algorithm::Crc32, body.as_bytes()).to_base64();
        let crc = crc.replace('=', "%3D").replace('+', "%2B");
        let query =
            format!("X-Amz-Signature=s&x-amz-sdk-checksum-algorithm=CRC32&x-amz-checksum-crc32={crc}");
        server.request("POST", format!("/abc?delete&{query}")).body(xml).send()
    };
    delete("").await.assert_error("BadDigest", 400);
    delete(xml).await.assert_success();
}
