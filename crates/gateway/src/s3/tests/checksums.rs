//! Checksums of every algorithm, in headers, trailers and XML, and of unknown algorithms.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::store::StageRequest;
use tradewind_core::testing::MemoryStore;
use tradewind_core::{
    Address, Algorithm, Checksum, ChecksumScope, Context, ObjectStore, Result, Staged, SystemClock,
};

use super::{Options, RequestBuilder, TestResponse, TestServer};

const PART: usize = 5 << 20;
const UNKNOWN: &str = "x-amz-checksum-blake3";

pub(super) fn sum(algorithm: Algorithm, data: &[u8]) -> String {
    Checksum::compute(algorithm, data).to_base64()
}

fn element(algorithm: Algorithm) -> String {
    format!("Checksum{}", algorithm.name())
}

/// A completion that names parts with their checksums.
fn completion(algorithm: Algorithm, parts: &[(String, String)]) -> String {
    let name = element(algorithm);
    let part = |(number, (tag, value)): (usize, &(String, String))| {
        format!("<Part><ETag>{tag}</ETag><{name}>{value}</{name}><PartNumber>{number}</PartNumber></Part>")
    };
    let parts: String = (1..).zip(parts).map(part).collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

#[tokio::test]
async fn uploads_support_every_algorithm() {
    let server = TestServer::with_bucket().await;
    let bodies = [vec![1; PART], vec![2; 10]];
    for algorithm in Algorithm::ALL {
        let (name, header) = (element(algorithm), algorithm.header());
        let begin =
            server.request("POST", "/abc/k?uploads").header("x-amz-checksum-algorithm", algorithm.name());
        let upload = begin.send().await.assert_success().element("UploadId").unwrap();
        let mut parts = Vec::new();
        for (number, body) in (1..).zip(&bodies) {
            let put = || server.request("PUT", format!("/abc/k?partNumber={number}&uploadId={upload}"));
            let value = sum(algorithm, body);
            put()
                .header(header, &sum(algorithm, b"x"))
                .body(body.clone())
                .send()
                .await
                .assert_error("BadDigest", 400);
            let put = put().header(header, &value).body(body.clone()).send().await.assert_success();
            assert_eq!(put.header(header), Some(&*value));
            parts.push((put.header("etag").unwrap().to_owned(), value));
        }
        let listed = server.send("GET", &format!("/abc/k?uploadId={upload}")).await.assert_success();
        let values: Vec<String> = parts.iter().map(|(_, value)| value.clone()).collect();
        assert_eq!(listed.elements(&name), values, "{}", listed.text());
        assert_eq!(listed.element("ChecksumAlgorithm").as_deref(), Some(algorithm.name()));

        let complete = |xml: String| server.request("POST", format!("/abc/k?uploadId={upload}")).body(xml);
        let mut wrong = parts.clone();
        wrong[1].1 = sum(algorithm, b"x");
        complete(completion(algorithm, &wrong)).send().await.assert_error("InvalidPart", 400);
        wrong[1].1 = "AAA".to_owned();
        complete(completion(algorithm, &wrong)).send().await.assert_error("InvalidArgument", 400);
        let done = complete(completion(algorithm, &parts)).send().await.assert_success();
        let of_parts: Vec<Checksum> = bodies.iter().map(|body| Checksum::compute(algorithm, body)).collect();
        let (plain, whole) = match algorithm.default_scope() {
            ChecksumScope::FullObject => {
                let value = sum(algorithm, &bodies.concat());
                (value.clone(), value)
            }
            ChecksumScope::Composite => {
                let value = Checksum::composite(algorithm, &of_parts).to_base64();
                (value.clone(), format!("{value}-2"))
            }
        };
        assert_eq!(done.elements(&name), std::slice::from_ref(&whole), "{}", done.text());
        let head = server
            .request("HEAD", "/abc/k")
            .header("x-amz-checksum-mode", "ENABLED")
            .send()
            .await
            .assert_success();
        assert_eq!(head.header(header), Some(&*whole));
        let part = server.request("GET", "/abc/k?partNumber=2").header("x-amz-checksum-mode", "ENABLED");
        assert_eq!(part.send().await.assert_success().header(header), Some(&*values[1]));
        let attributes = server.request("GET", "/abc/k?attributes");
        let attributes = attributes
            .header("x-amz-object-attributes", "Checksum,ObjectParts")
            .send()
            .await
            .assert_success();
        let of_all = match algorithm.default_scope() {
            ChecksumScope::Composite => [vec![plain], values].concat(),
            ChecksumScope::FullObject => vec![plain],
        };
        assert_eq!(attributes.elements(&name), of_all, "{}", attributes.text());
    }
}

#[tokio::test]
async fn copies_support_every_algorithm() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/s", b"hello").await.assert_success();
    for algorithm in Algorithm::ALL {
        let name = element(algorithm);
        let copy = server.request("PUT", "/abc/k").header("x-amz-copy-source", "abc/s");
        let copied = copy.header("x-amz-checksum-algorithm", algorithm.name()).send().await.assert_success();
        assert_eq!(copied.elements(&name), [sum(algorithm, b"hello")], "{}", copied.text());
        let begin =
            server.request("POST", "/abc/m?uploads").header("x-amz-checksum-algorithm", algorithm.name());
        let upload = begin.send().await.assert_success().element("UploadId").unwrap();
        let part = server.request("PUT", format!("/abc/m?partNumber=1&uploadId={upload}"));
        let part = part.header("x-amz-copy-source", "abc/s").send().await.assert_success();
        assert_eq!(part.elements(&name), [sum(algorithm, b"hello")], "{}", part.text());
    }
    let copy = server.request("PUT", "/abc/k").header("x-amz-copy-source", "abc/s");
    copy.header("x-amz-checksum-algorithm", "BLAKE3").send().await.assert_error("InvalidRequest", 400);
}

const TAGS: &str = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
const DELETE: &str = "<Delete><Object><Key>other</Key></Object></Delete>";

#[tokio::test]
async fn documents_are_verified_with_every_algorithm() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    for algorithm in Algorithm::ALL {
        let header = algorithm.header();
        let (tags, delete) = (sum(algorithm, TAGS.as_bytes()), sum(algorithm, DELETE.as_bytes()));
        for (method, uri, xml, value) in
            [("PUT", "/abc/k?tagging", TAGS, &tags), ("POST", "/abc?delete", DELETE, &delete)]
        {
            let ask = || server.request(method, uri).body(xml);
            ask().header(header, value).send().await.assert_success();
            ask().trailer(header, value).send().await.assert_success();
            let wrong = sum(algorithm, b"x");
            ask().header(header, &wrong).send().await.assert_error("BadDigest", 400);
            ask().trailer(header, &wrong).send().await.assert_error("BadDigest", 400);
            ask().header(header, "").send().await.assert_error("InvalidRequest", 400);
            ask().trailer(header, "").send().await.assert_error("InvalidRequest", 400);
        }
    }
    let empty = server.request("PUT", "/another").header("content-md5", "XUFAKrxLKna5cZ2REBfFkg==");
    empty.send().await.assert_error("BadDigest", 400);
    assert_eq!(server.send("HEAD", "/another").await.status, 404);
}

#[tokio::test]
async fn the_trailer_of_a_completion_covers_its_document() {
    let server = TestServer::with_bucket().await;
    let upload = server.send("POST", "/abc/k?uploads").await.assert_success().element("UploadId").unwrap();
    let part = server.request("PUT", format!("/abc/k?partNumber=1&uploadId={upload}")).body(&b"x"[..]);
    let tag = part.send().await.assert_success().header("etag").unwrap().to_owned();
    let xml = completion(Algorithm::Crc64Nvme, &[(tag, sum(Algorithm::Crc64Nvme, b"x"))]);
    let complete = |value: &str| {
        let request = server.request("POST", format!("/abc/k?uploadId={upload}")).body(xml.clone());
        request.trailer("x-amz-checksum-sha512", value)
    };
    complete(&sum(Algorithm::Sha512, b"x")).send().await.assert_error("BadDigest", 400);
    complete(&sum(Algorithm::Sha512, xml.as_bytes())).send().await.assert_success();
}

/// Requests that may carry a checksum.
fn requests<'a>(server: &'a TestServer, upload: &str) -> Vec<RequestBuilder<'a>> {
    let part = format!("/abc/k?partNumber=1&uploadId={upload}");
    vec![
        server.request("PUT", "/abc/k").body(&b"x"[..]),
        server.request("PUT", part).body(&b"x"[..]),
        server.request("POST", format!("/abc/k?uploadId={upload}")).body(completion(Algorithm::Md5, &[])),
        server.request("PUT", "/abc/k?tagging").body(TAGS),
        server.request("POST", "/abc?delete").body(DELETE),
        server.request("POST", "/abc/k?uploads"),
    ]
}

#[tokio::test]
async fn unknown_checksums_are_rejected_with_their_header() {
    let server = TestServer::with_bucket().await;
    let upload = server.send("POST", "/abc/k?uploads").await.assert_success().element("UploadId").unwrap();
    let named = |answer: TestResponse, header: &str| {
        answer.assert_error("InvalidRequest", 400);
        let message = answer.element("Message").unwrap();
        assert!(message.contains(header), "{message}");
    };
    for ask in requests(&server, &upload) {
        named(ask.header(UNKNOWN, "AAAA").send().await, UNKNOWN);
    }
    for header in ["x-amz-checksum-algorithm", "x-amz-sdk-checksum-algorithm"] {
        for ask in requests(&server, &upload) {
            named(ask.header(header, "BLAKE3").send().await, header);
        }
    }
    // The creation of an upload has no body and therefore no trailer.
    for ask in requests(&server, &upload).into_iter().take(5) {
        ask.trailer(UNKNOWN, "AAAA").send().await.assert_error("InvalidRequest", 400);
    }
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
    let listed = server.send("GET", &format!("/abc/k?uploadId={upload}")).await.assert_success();
    assert!(listed.elements("PartNumber").is_empty());
}

#[tokio::test]
async fn several_checksums_are_rejected() {
    let server = TestServer::with_bucket().await;
    let put = || server.request("PUT", "/abc/k").body(&b"x"[..]);
    let (crc, md5) = (sum(Algorithm::Crc32, b"x"), sum(Algorithm::Md5, b"x"));
    let two = put().header("x-amz-checksum-crc32", &crc).header("x-amz-checksum-md5", &md5);
    two.send().await.assert_error("InvalidRequest", 400);
    let twice = put().header("x-amz-checksum-crc32", &crc).header("x-amz-checksum-crc32", &crc);
    twice.send().await.assert_error("InvalidRequest", 400);
    let both = put().header("x-amz-checksum-crc32", &crc).trailer("x-amz-checksum-md5", &md5);
    both.send().await.assert_error("InvalidRequest", 400);
    let trailers = put().trailer("x-amz-checksum-crc32", &crc).trailer("x-amz-checksum-md5", &md5);
    trailers.send().await.assert_error("InvalidRequest", 400);
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
}

/// Records the checksum that each write declares before its bytes.
#[derive(Debug)]
struct RecordingStore {
    inner: Arc<MemoryStore>,
    declared: Arc<Mutex<Vec<Option<Checksum>>>>,
}

#[async_trait]
impl ObjectStore for RecordingStore {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, head, get, delete,
        list, copy, set_tags, set_classes, object_parts, create_upload, copy_part, list_parts, list_uploads, complete_upload,
        abort_upload, versioning, set_versioning, list_versions, close,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.declared.lock().unwrap().push(request.checksum);
        self.inner.stage(context, address, request).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.declared.lock().unwrap().push(request.checksum);
        self.inner.stage_part(context, address, upload, number, request).await
    }
}

/// Some services verify only a checksum that precedes the bytes.
#[tokio::test]
async fn checksums_in_headers_reach_the_store_before_the_bytes() {
    let declared = Arc::new(Mutex::new(Vec::new()));
    let inner = MemoryStore::new(SystemClock::shared());
    let store = Arc::new(RecordingStore { inner, declared: declared.clone() });
    let server = TestServer::with_store(store, Options::default());
    server.send("PUT", "/abc").await.assert_success();
    let created = server.send("POST", "/abc/parts?uploads").await.assert_success();
    let upload = created.element("UploadId").unwrap();
    let data = b"bytes";
    let checksum = Checksum::compute(Algorithm::Crc32c, data);
    for uri in ["/abc/object".to_owned(), format!("/abc/parts?partNumber=1&uploadId={upload}")] {
        server.put(&uri, data).await.assert_success();
        let request = server.request("PUT", uri).header("x-amz-checksum-crc32c", &checksum.to_base64());
        request.body(&data[..]).send().await.assert_success();
    }
    assert_eq!(*declared.lock().unwrap(), [None, Some(checksum), None, Some(checksum)]);
}
