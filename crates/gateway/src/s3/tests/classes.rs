//! Classes of data: in headers and in class sections, of new and of existing objects.

use tradewind_core::class::format::{ClassWidth, Classification};
use tradewind_core::{Algorithm, Class, Classes};

use super::super::{ObjectClassifier, UnlabelledObject};
use super::checksums::sum;
use super::objects::content_md5;
use super::*;

const OBJECT_CLASS: &str = "x-dss-object-class";
const RANGE_CLASS: &str = "x-dss-range-class";
const OBJECT_FILE: &str = "x-dss-object-file";
const CLASS_FILE: &str = "x-dss-class-file";
const RETENTION: &str = "x-dss-retention";
const RETENTION_SPAN: &str = "x-dss-retention-span";

fn class(value: u8) -> Class {
    Class::new(value).unwrap()
}

fn object_section(value: u8) -> Vec<u8> {
    Classification::Object(class(value)).encode(ClassWidth::One).unwrap()
}

fn range_section(header: &str) -> Vec<u8> {
    Classification::Ranges(Classes::parse_ranges(header).unwrap()).encode(ClassWidth::Two).unwrap()
}

fn block_section(block_sectors: u32, classes: &[u8]) -> Vec<u8> {
    let classes = classes.iter().map(|value| class(*value)).collect();
    Classification::Blocks { block_sectors, classes }.encode(ClassWidth::One).unwrap()
}

fn reader() -> Identity {
    Identity::key("reader".into(), Permissions::ReadOnly, Buckets::All)
}

impl TestServer {
    /// The classes of an object, as its headers.
    async fn classes(&self, uri: &str) -> (Option<String>, Option<String>) {
        let head = self.send("HEAD", uri).await.assert_success();
        (head.header(OBJECT_CLASS).map(str::to_owned), head.header(RANGE_CLASS).map(str::to_owned))
    }

    #[track_caller]
    fn put_with_section(&self, section: &[u8], data: &[u8]) -> RequestBuilder<'_> {
        self.request("PUT", "/abc/k").header(OBJECT_FILE, "True").body([section, data].concat())
    }
}

fn some(object: Option<&str>, ranges: Option<&str>) -> (Option<String>, Option<String>) {
    (object.map(str::to_owned), ranges.map(str::to_owned))
}

#[tokio::test]
async fn a_section_in_front_of_the_data_is_stripped() {
    let server = TestServer::with_bucket().await;
    let data = vec![7; 5000];
    for (section, expected) in [
        (object_section(25), some(Some("25"), None)),
        (range_section("0-2-25,9-1-26"), some(None, Some("0-2-25,9-1-26"))),
        (block_section(8, &[25, 26]), some(None, Some("0-8-25,8-2-26"))),
    ] {
        let put = server.put_with_section(&section, &data).send().await.assert_success();
        assert_eq!(server.classes("/abc/k").await, expected);
        let got = server.send("GET", "/abc/k").await;
        assert_eq!(&got.body[..], &data[..]);
        server.request("PUT", "/abc/plain").body(data.clone()).send().await.assert_success();
        let plain = server.send("HEAD", "/abc/plain").await;
        for name in ["etag", "content-length"] {
            assert_eq!(got.header(name), plain.header(name), "{name} covers the data alone");
        }
        assert_eq!(put.header("etag"), plain.header("etag"));
    }
}

/// The data may be empty, and may arrive in pieces of any size.
#[tokio::test]
async fn a_section_in_pieces_is_decoded() {
    let server = TestServer::with_bucket().await;
    server.put_with_section(&object_section(3), b"").send().await.assert_success();
    assert_eq!(server.send("HEAD", "/abc/k").await.header("content-length"), Some("0"));
    let whole = [range_section("0-1-25"), b"data".to_vec()].concat();
    for size in 1..whole.len() {
        let mut request = server.request("PUT", "/abc/k").header(OBJECT_FILE, "true");
        request.body = whole.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        request.length = Some(whole.len() as u64);
        request.send().await.assert_success();
        assert_eq!(server.send("GET", "/abc/k").await.text(), "data");
        assert_eq!(server.classes("/abc/k").await, some(None, Some("0-1-25")));
    }
}

#[tokio::test]
async fn checksums_of_the_request_cover_section_and_data() {
    let server = TestServer::with_bucket().await;
    let section = object_section(25);
    let data: &[u8] = b"hello";
    let sent = [&section[..], data].concat();
    let put = || server.put_with_section(&section, data);
    put().header("content-md5", &content_md5(&sent)).send().await.assert_success();
    put().header("content-md5", &content_md5(data)).send().await.assert_error("BadDigest", 400);
    for algorithm in Algorithm::ALL {
        let name = algorithm.header();
        for request in
            [put().header(name, &sum(algorithm, &sent)), put().trailer(name, &sum(algorithm, &sent))]
        {
            let response = request.send().await.assert_success();
            assert_eq!(
                response.header(name),
                Some(&*sum(algorithm, data)),
                "stored checksums cover the data"
            );
        }
        for request in [put().header(name, &sum(algorithm, data)), put().trailer(name, &sum(algorithm, data))]
        {
            request.send().await.assert_error("BadDigest", 400);
        }
    }
    put().declared_length(Some(sent.len() as u64 + 1)).send().await.assert_error("IncompleteBody", 400);
}

#[tokio::test]
async fn a_malformed_section_stores_nothing() {
    let server = TestServer::with_bucket().await;
    let mut wrong_magic = object_section(1);
    wrong_magic[0] ^= 1;
    let mut wrong_class = object_section(1);
    wrong_class[16] = 32;
    for section in [
        wrong_magic,
        wrong_class,
        range_section("0-1-1,3-1-1"),
        block_section(1, &[1, 2]),
        object_section(1)[..10].to_vec(),
    ] {
        let data: &[u8] = if section.len() == 10 { b"" } else { b"data" };
        server.put_with_section(&section, data).send().await.assert_error("InvalidArgument", 400);
    }
    server
        .put_with_section(&object_section(1), b"")
        .ending_with(Code::IncompleteBody)
        .send()
        .await
        .assert_error("IncompleteBody", 400);
    for value in ["False", "", "1"] {
        let put = server.request("PUT", "/abc/k").header(OBJECT_FILE, value).body(object_section(1));
        put.send().await.assert_error("InvalidArgument", 400);
    }
    let put = server.put_with_section(&object_section(1), b"data");
    put.header(OBJECT_CLASS, "1").send().await.assert_error("InvalidRequest", 400);
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
}

#[tokio::test]
async fn ranges_in_a_header_must_be_legal_and_within_the_object() {
    let server = TestServer::with_bucket().await;
    let many = (0..1025).map(|n| format!("{n}-1-1")).collect::<Vec<_>>().join(",");
    for bad in ["0-1-1,0-1-1", "1-1-1,0-1-1", "0-3-1", "2-1-1", "0-1-32", &many] {
        let put = server.request("PUT", "/abc/k").header(RANGE_CLASS, bad).body(vec![0; 1024]);
        put.send().await.assert_error("InvalidArgument", 400);
    }
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
    let put = server.request("PUT", "/abc/k").header(RANGE_CLASS, "0-1-1,1-2-2").body(vec![0; 1025]);
    put.send().await.assert_success();
    let copy = |ranges| {
        let copy = server.request("PUT", "/abc/copy").header("x-amz-copy-source", "/abc/k");
        copy.header(RANGE_CLASS, ranges)
    };
    copy("3-1-1").send().await.assert_error("InvalidArgument", 400);
    copy("2-1-1").send().await.assert_success();
    assert_eq!(server.classes("/abc/copy").await, some(None, Some("2-1-1")));
}

#[tokio::test]
async fn a_class_file_changes_only_the_classes() {
    let server = TestServer::with_bucket().await;
    let put = |uri: &'static str, section: &[u8]| {
        server.request("PUT", uri).header(CLASS_FILE, "True").body(section.to_vec())
    };
    put("/abc/k", &object_section(1)).send().await.assert_error("NoSuchKey", 404);
    server
        .request("PUT", "/abc/k")
        .header("x-amz-meta-a", "b")
        .body(vec![0; 5000])
        .send()
        .await
        .assert_success();
    let before = server.send("HEAD", "/abc/k").await;
    for (section, expected) in [
        (object_section(26), some(Some("26"), None)),
        (block_section(8, &[0, 3]), some(None, Some("8-2-3"))),
        (range_section("0-1-0"), some(None, Some("0-1-0"))),
    ] {
        put("/abc/k", &section).send().await.assert_success();
        assert_eq!(server.classes("/abc/k").await, expected, "it replaces all classes");
    }
    let after = server.send("HEAD", "/abc/k").await;
    for name in ["etag", "last-modified", "content-length", "x-amz-meta-a"] {
        assert_eq!(after.header(name), before.header(name), "{name}");
    }
    let trailing = [object_section(1), b"x".to_vec()].concat();
    put("/abc/k", &trailing).send().await.assert_error("InvalidArgument", 400);
    put("/abc/k", &block_section(8, &[1, 1, 1])).send().await.assert_error("InvalidArgument", 400);
    let section = object_section(2);
    put("/abc/k", &section)
        .header("content-md5", &content_md5(b"x"))
        .send()
        .await
        .assert_error("BadDigest", 400);
    put("/abc/k", &section).header("if-match", "\"x\"").send().await.assert_error("NotImplemented", 501);
    put("/abc/k", &section).identity(reader()).send().await.assert_error("AccessDenied", 403);
    assert_eq!(server.classes("/abc/k").await, some(None, Some("0-1-0")));
    put("/abc/k", &section).header("content-md5", &content_md5(&section)).send().await.assert_success();
    assert_eq!(server.classes("/abc/k").await, some(Some("2"), None));
}

#[tokio::test]
async fn a_class_section_is_rejected_elsewhere() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"data").await.assert_success();
    let upload = server.send("POST", "/abc/k?uploads").await.element("UploadId").unwrap();
    let part = format!("/abc/k?partNumber=1&uploadId={upload}");
    for name in [OBJECT_FILE, CLASS_FILE] {
        for (method, uri) in [
            ("PUT", part.as_str()),
            ("POST", "/abc/k?uploads"),
            ("PUT", "/abc/k?tagging"),
            ("GET", "/abc/k"),
            ("HEAD", "/abc/k"),
            ("DELETE", "/abc/k"),
        ] {
            let request = server.request(method, uri).header(name, "True").body(object_section(1));
            assert_eq!(request.send().await.status, 400, "{method} {uri} {name}");
        }
        let copy = server.request("PUT", "/abc/c").header("x-amz-copy-source", "/abc/k").header(name, "True");
        copy.send().await.assert_error("InvalidRequest", 400);
    }
    assert!(server.send("GET", &format!("/abc/k?uploadId={upload}")).await.elements("Part").is_empty());
    assert_eq!(server.send("GET", "/abc/k").await.text(), "data");
}

#[tokio::test]
async fn a_post_changes_the_classes_that_its_headers_name() {
    let server = TestServer::with_bucket().await;
    let post = |name, value: &str| server.request("POST", "/abc/k").header(name, value);
    post(OBJECT_CLASS, "1").send().await.assert_error("NoSuchKey", 404);
    server
        .request("PUT", "/abc/k")
        .header(RANGE_CLASS, "0-1-5")
        .body(vec![0; 1024])
        .send()
        .await
        .assert_success();
    let before = server.send("HEAD", "/abc/k").await;
    post(OBJECT_CLASS, "26").send().await.assert_success();
    assert_eq!(server.classes("/abc/k").await, some(Some("26"), Some("0-1-5")));
    post(RANGE_CLASS, "").send().await.assert_success();
    assert_eq!(server.classes("/abc/k").await, some(Some("26"), None));
    post(OBJECT_CLASS, "").header(RANGE_CLASS, "1-1-7").send().await.assert_success();
    assert_eq!(server.classes("/abc/k").await, some(None, Some("1-1-7")));
    for (name, bad) in [(OBJECT_CLASS, "32"), (RANGE_CLASS, "2-1-1"), (RANGE_CLASS, "0-1-1,0-1-1")] {
        post(name, bad).send().await.assert_error("InvalidArgument", 400);
    }
    post(OBJECT_CLASS, "3").identity(reader()).send().await.assert_error("AccessDenied", 403);
    post(OBJECT_CLASS, "3").body(&b"x"[..]).send().await.assert_error("InvalidRequest", 400);
    post(OBJECT_CLASS, "3").header("if-match", "*").send().await.assert_error("NotImplemented", 501);
    server.send("POST", "/abc/k").await.assert_error("MethodNotAllowed", 405);
    assert_eq!(server.classes("/abc/k").await, some(None, Some("1-1-7")));
    let after = server.send("HEAD", "/abc/k").await;
    for name in ["etag", "last-modified"] {
        assert_eq!(after.header(name), before.header(name), "{name}");
    }
}

#[tokio::test]
async fn a_get_with_class_headers_needs_permission_to_write() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"data").await.assert_success();
    let get = || server.request("GET", "/abc/k").header(OBJECT_CLASS, "26");
    get().identity(reader()).send().await.assert_error("AccessDenied", 403);
    assert_eq!(server.classes("/abc/k").await, some(None, None));
    let got = get().header("range", "bytes=1-2").send().await.assert_success();
    assert_eq!((got.text(), got.header(OBJECT_CLASS)), ("at", Some("26")));
    assert_eq!(server.classes("/abc/k").await, some(Some("26"), None));
    let bad = server.request("GET", "/abc/k").header(RANGE_CLASS, "1-1-1").send().await;
    bad.assert_error("InvalidArgument", 400);
    let conditional = get().header("if-none-match", "*").header(RANGE_CLASS, "0-1-1").send().await;
    conditional.assert_error("NotImplemented", 501);
    let beyond = get().header("range", "bytes=9-10").header(RANGE_CLASS, "0-1-1").send().await;
    beyond.assert_error("InvalidRange", 416);
    assert_eq!(server.classes("/abc/k").await, some(Some("26"), None), "a read that fails changes nothing");
}

#[tokio::test]
async fn a_version_is_classified_on_its_own() {
    let server = TestServer::with_bucket().await;
    let enable = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    server.request("PUT", "/abc?versioning").body(enable).send().await.assert_success();
    let put = server.put("/abc/k", b"old").await;
    let old = format!("/abc/k?versionId={}", put.header("x-amz-version-id").unwrap());
    server.put("/abc/k", b"new").await.assert_success();
    server.request("POST", old.clone()).header(OBJECT_CLASS, "7").send().await.assert_success();
    let file = server.request("PUT", old.clone()).header(CLASS_FILE, "True").body(object_section(8));
    assert_eq!(server.classes(&old).await, some(Some("7"), None));
    file.send().await.assert_success();
    assert_eq!(server.classes(&old).await, some(Some("8"), None));
    assert_eq!(server.classes("/abc/k").await, some(None, None));
    assert_eq!(server.send("GET", "/abc?versions").await.elements("VersionId").len(), 2, "no new version");
}

/// The size of an upload is known only when it is completed.
#[tokio::test]
async fn an_upload_with_ranges_after_its_end_is_not_completed() {
    let server = TestServer::with_bucket().await;
    let create = server.request("POST", "/abc/k?uploads").header(RANGE_CLASS, "0-2-1").send().await;
    let upload = create.element("UploadId").unwrap();
    let part = server.put(&format!("/abc/k?partNumber=1&uploadId={upload}"), b"short").await;
    let complete = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part.header("etag").unwrap()
    );
    let completed = server.request("POST", format!("/abc/k?uploadId={upload}")).body(complete).send().await;
    completed.assert_error("InvalidArgument", 400);
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
}

impl TestServer {
    /// The seconds that remain of the retention of an object.
    async fn remaining(&self, uri: &str) -> Option<u32> {
        let head = self.send("HEAD", uri).await;
        let got = self.send("GET", uri).await;
        assert_eq!(head.header(RETENTION_SPAN), got.header(RETENTION_SPAN), "GET and HEAD are equal");
        head.header(RETENTION).map(|seconds| seconds.parse().unwrap())
    }
}

/// True if about an hour remains: tests take seconds.
fn is_an_hour(remaining: Option<u32>) -> bool {
    remaining.is_some_and(|seconds| (3500..=3600).contains(&seconds))
}

#[tokio::test]
async fn retention_of_a_put_is_returned_as_what_remains() {
    let server = TestServer::with_bucket().await;
    let put = |value: &str| server.request("PUT", "/abc/k").header(RETENTION, value).body("data");
    put("3600").send().await.assert_success();
    assert!(is_an_hour(server.remaining("/abc/k").await));
    for bad in ["-1", "x", "315360001", "1.5", ""] {
        put(bad).send().await.assert_error("InvalidArgument", 400);
    }
    let both = put("60").header(RETENTION_SPAN, "5000-60").send().await;
    both.assert_error("InvalidRequest", 400);
    let too_late = server.request("PUT", "/abc/k").header(RETENTION_SPAN, "99999999999-60").body("data");
    too_late.send().await.assert_error("InvalidArgument", 400);
    assert!(is_an_hour(server.remaining("/abc/k").await), "a rejected write changes nothing");
    let ended = server.request("PUT", "/abc/k").header(RETENTION_SPAN, "5000-60").body("data");
    ended.send().await.assert_success();
    let head = server.send("HEAD", "/abc/k").await;
    assert_eq!((head.header(RETENTION), head.header(RETENTION_SPAN)), (None, Some("5000-60")));
    put("0").send().await.assert_success();
    assert_eq!(server.send("HEAD", "/abc/k").await.header(RETENTION_SPAN), None);
}

#[tokio::test]
async fn retention_is_changed_by_post_get_and_class_file() {
    let server = TestServer::with_bucket().await;
    server.request("PUT", "/abc/k").header(OBJECT_CLASS, "31").body("data").send().await.assert_success();
    let before = server.send("HEAD", "/abc/k").await;
    let post = |value: &str| server.request("POST", "/abc/k").header(RETENTION, value);
    post("3600").identity(reader()).send().await.assert_error("AccessDenied", 403);
    post("3600x").send().await.assert_error("InvalidArgument", 400);
    post("3600").send().await.assert_success();
    assert!(is_an_hour(server.remaining("/abc/k").await));
    let after = server.send("HEAD", "/abc/k").await;
    for name in ["etag", "last-modified", OBJECT_CLASS] {
        assert_eq!(after.header(name), before.header(name), "{name}");
    }
    let file = server.request("PUT", "/abc/k").header(CLASS_FILE, "True").body(object_section(8));
    file.send().await.assert_success();
    assert!(is_an_hour(server.remaining("/abc/k").await), "a class section has no retention");
    post("0").send().await.assert_success();
    assert_eq!(server.remaining("/abc/k").await, None);
    let get = || server.request("GET", "/abc/k").header(RETENTION, "3600");
    get().identity(reader()).send().await.assert_error("AccessDenied", 403);
    assert_eq!(server.remaining("/abc/k").await, None);
    assert!(is_an_hour(get().send().await.header(RETENTION).map(|seconds| seconds.parse().unwrap())));
    let file = server.request("PUT", "/abc/k").header(CLASS_FILE, "True").header(RETENTION, "");
    file.body(object_section(9)).send().await.assert_success();
    assert_eq!(server.remaining("/abc/k").await, None);
    assert_eq!(server.classes("/abc/k").await, some(Some("9"), None));
}

#[tokio::test]
async fn retention_is_kept_by_copies_and_uploads_and_next_to_a_section() {
    let server = TestServer::with_bucket().await;
    let file = server.request("PUT", "/abc/k").header(OBJECT_FILE, "True").header(RETENTION, "3600");
    file.body([object_section(8), b"data".to_vec()].concat()).send().await.assert_success();
    assert!(is_an_hour(server.remaining("/abc/k").await));
    assert_eq!(server.classes("/abc/k").await, some(Some("8"), None));
    let span = server.send("HEAD", "/abc/k").await.header(RETENTION_SPAN).map(str::to_owned);
    let copy = |to: &str| server.request("PUT", format!("/abc/{to}")).header("x-amz-copy-source", "/abc/k");
    copy("same").send().await.assert_success();
    copy("new").header("x-amz-metadata-directive", "REPLACE").send().await.assert_success();
    for to in ["/abc/same", "/abc/new"] {
        let head = server.send("HEAD", to).await;
        assert_eq!(head.header(RETENTION_SPAN).map(str::to_owned), span, "{to} ends with its source");
    }
    copy("ended").header(RETENTION, "").send().await.assert_success();
    copy("zero").header(RETENTION, "0").send().await.assert_success();
    assert_eq!(server.remaining("/abc/ended").await, None);
    assert_eq!(server.remaining("/abc/zero").await, None);
    copy("k").header(RETENTION, "60").send().await.assert_success();
    assert!(server.remaining("/abc/k").await.is_some_and(|seconds| seconds <= 60), "a copy onto itself");

    let create = server.request("POST", "/abc/u?uploads").header(RETENTION, "3600").send().await;
    let upload = create.element("UploadId").unwrap();
    let part = server.put(&format!("/abc/u?partNumber=1&uploadId={upload}"), b"part").await;
    let complete = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{}</ETag></Part></CompleteMultipartUpload>",
        part.header("etag").unwrap()
    );
    let completed = server.request("POST", format!("/abc/u?uploadId={upload}")).body(complete).send().await;
    completed.assert_success();
    assert!(is_an_hour(server.remaining("/abc/u").await));
}

/// Gives each object of at least 3 bytes, or with the tag `t`, class 25, and each of unknown size class 26.
#[derive(Debug)]
struct Classifier;

impl ObjectClassifier for Classifier {
    fn class_of(&self, object: &UnlabelledObject<'_>) -> Option<Class> {
        assert_eq!((object.bucket.as_str(), object.access_key), ("abc", Some("root")));
        let is_tagged = object.tags.pairs().iter().any(|(key, _)| key == "t");
        match object.size {
            None => Some(class(26)),
            Some(size) => (size >= 3 || is_tagged).then(|| class(25)),
        }
    }
}

async fn classifying_server() -> TestServer {
    let server = TestServer::with(Options { classifier: Some(Arc::new(Classifier)), ..Options::default() });
    assert_eq!(server.send("PUT", "/abc").await.status, 200);
    server
}

#[tokio::test]
async fn rules_classify_new_objects_without_a_label() {
    let server = classifying_server().await;
    for (key, body, tags, expected) in
        [("long", "1234", "", Some("25")), ("short", "12", "", None), ("tagged", "12", "t=1", Some("25"))]
    {
        let uri = format!("/abc/{key}");
        let request = server.request("PUT", &*uri).header("x-amz-tagging", tags).body(body);
        request.send().await.assert_success();
        assert_eq!(server.classes(&uri).await, some(expected, None), "{key}");
    }
    for (key, name, value, expected) in [
        ("object", OBJECT_CLASS, "31", some(Some("31"), None)),
        ("range", RANGE_CLASS, "0-1-31", some(None, Some("0-1-31"))),
    ] {
        let uri = format!("/abc/{key}");
        server.request("PUT", &*uri).header(name, value).body("1234").send().await.assert_success();
        assert_eq!(server.classes(&uri).await, expected, "{key}");
    }
    server.put_with_section(&object_section(31), b"1234").send().await.assert_success();
    assert_eq!(server.classes("/abc/k").await, some(Some("31"), None));
    let no_ranges = Classification::Ranges(Vec::new()).encode(ClassWidth::One).unwrap();
    server.put_with_section(&no_ranges, b"1234").send().await.assert_success();
    assert_eq!(server.classes("/abc/k").await, some(Some("25"), None));
}

#[tokio::test]
async fn rules_classify_multipart_uploads_without_their_size() {
    let server = classifying_server().await;
    for (key, label, expected) in [("a", None, "26"), ("b", Some("31"), "31")] {
        let mut request = server.request("POST", format!("/abc/{key}?uploads"));
        if let Some(label) = label {
            request = request.header(OBJECT_CLASS, label);
        }
        let created = request.send().await.assert_success();
        let id = created.text().split("<UploadId>").nth(1).unwrap().split('<').next().unwrap().to_owned();
        let part = server.request("PUT", format!("/abc/{key}?partNumber=1&uploadId={id}")).body("1");
        let etag = part.send().await.assert_success().header("etag").unwrap().to_owned();
        let list = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
        );
        server.request("POST", format!("/abc/{key}?uploadId={id}")).body(list).send().await.assert_success();
        assert_eq!(server.classes(&format!("/abc/{key}")).await, some(Some(expected), None), "{key}");
    }
}

#[tokio::test]
async fn rules_classify_copies_with_new_metadata_and_no_class() {
    let server = classifying_server().await;
    server.put("/abc/plain", b"12").await.assert_success();
    let labelled = server.request("PUT", "/abc/labelled").header(OBJECT_CLASS, "31").body("1234");
    labelled.send().await.assert_success();
    // Longer than the rule's size, but without a class.
    server.request("PUT", "/abc/long").header(OBJECT_CLASS, "31").body("1234").send().await.assert_success();
    server.request("POST", "/abc/long").header(OBJECT_CLASS, "").send().await.assert_success();
    let (replace, copy) = ("REPLACE", "COPY");
    for (source, directive, class, expected) in [
        ("long", copy, None, None),
        ("long", replace, None, Some("25")),
        ("long", replace, Some(""), None),
        ("long", replace, Some("30"), Some("30")),
        ("labelled", replace, None, Some("31")),
        ("plain", replace, None, None),
    ] {
        let mut request = server.request("PUT", "/abc/copy");
        request = request.header("x-amz-copy-source", &format!("/abc/{source}"));
        request = request.header("x-amz-metadata-directive", directive);
        if let Some(class) = class {
            request = request.header(OBJECT_CLASS, class);
        }
        request.send().await.assert_success();
        let what = format!("{source} {directive} {class:?}");
        assert_eq!(server.classes("/abc/copy").await, some(expected, None), "{what}");
    }
}
