//! Objects are returned as they were put. A body that does not match its declarations is not stored.

use tradewind_core::store::ETagForm;
use tradewind_core::{Algorithm, Checksum};

use super::super::Options;
use super::TestServer;
use crate::error::Code;

fn sum(algorithm: Algorithm, data: &[u8]) -> String {
    Checksum::compute(algorithm, data).to_base64()
}

pub(super) fn content_md5(data: &[u8]) -> String {
    use base64::Engine as _;
    use md5::Digest as _;
    base64::engine::general_purpose::STANDARD.encode(md5::Md5::digest(data))
}

#[tokio::test]
async fn body_and_metadata_are_returned_as_put() {
    let server = TestServer::with_bucket().await;
    let put = server
        .request("PUT", "/abc/a%20b//..")
        .header("content-type", "text/plain; charset=utf-8")
        .header("content-encoding", "aws-chunked,gzip")
        .header("expires", "whenever it pleases")
        .header("cache-control", "no-cache")
        .header("x-amz-meta-greeting", "Grüße")
        .header("x-amz-meta-twice", "1")
        .header("x-amz-meta-twice", "2")
        .header("x-amz-tagging", "a=1&b=%C3%BC+x")
        .header("x-amz-storage-class", "STANDARD_IA")
        .header("x-dss-object-class", "25")
        .header("x-dss-range-class", "0-1-26")
        .body(&b"hello"[..])
        .send()
        .await
        .assert_success();
    assert_eq!(put.header("etag"), Some("\"5d41402abc4b2a76b9719d911017c592\""));
    assert_eq!(put.header("x-amz-checksum-crc64nvme"), Some(&*sum(Algorithm::Crc64Nvme, b"hello")));
    for method in ["GET", "HEAD"] {
        let got = server.send(method, "/abc/a%20b//..").await.assert_success();
        for (name, value) in [
            ("content-length", "5"),
            ("etag", "\"5d41402abc4b2a76b9719d911017c592\""),
            ("content-type", "text/plain; charset=utf-8"),
            ("content-encoding", "gzip"),
            ("expires", "whenever it pleases"),
            ("cache-control", "no-cache"),
            ("accept-ranges", "bytes"),
            ("x-amz-meta-greeting", "=?UTF-8?B?R3LDvMOfZQ==?="),
            ("x-amz-meta-twice", "1,2"),
            ("x-amz-tagging-count", "2"),
            ("x-amz-storage-class", "STANDARD_IA"),
            ("x-dss-object-class", "25"),
            ("x-dss-range-class", "0-1-26"),
        ] {
            assert_eq!(got.header(name), Some(value), "{method} {name}");
        }
        assert!(got.header("last-modified").unwrap().ends_with(" GMT"));
        assert!(got.header("x-amz-checksum-crc64nvme").is_none(), "checksums are returned only on request");
        assert_eq!(&got.body[..], if method == "GET" { &b"hello"[..] } else { b"" });
    }
    let tags = server.send("GET", "/abc/a%20b//..?tagging").await.assert_success();
    assert_eq!(tags.elements("Key"), ["a", "b"]);
    assert_eq!(tags.elements("Value"), ["1", "ü x"]);
}

#[tokio::test]
async fn a_put_that_contradicts_its_headers_stores_nothing() {
    let server = TestServer::with_bucket().await;
    let put = || server.request("PUT", "/abc/k").body(&b"hello"[..]);
    put().ending_with(Code::IncompleteBody).send().await.assert_error("IncompleteBody", 400);
    put().declared_length(Some(6)).send().await.assert_error("IncompleteBody", 400);
    put().declared_length(Some(4)).send().await.assert_error("InvalidRequest", 400);
    put().declared_length(None).send().await.assert_error("MissingContentLength", 411);
    put().declared_length(Some((5 << 30) + 1)).send().await.assert_error("EntityTooLarge", 400);
    put().header("content-md5", &content_md5(b"other")).send().await.assert_error("BadDigest", 400);
    for bad in ["", "!", "AAAA"] {
        put().header("content-md5", bad).send().await.assert_error("InvalidDigest", 400);
    }
    for algorithm in Algorithm::ALL {
        let header = algorithm.header();
        put().header(header, &sum(algorithm, b"other")).send().await.assert_error("BadDigest", 400);
        put().header(header, "AAA").send().await.assert_error("InvalidRequest", 400);
        put().trailer(header, &sum(algorithm, b"other")).send().await.assert_error("BadDigest", 400);
    }
    put()
        .header("x-amz-checksum-crc32", &sum(Algorithm::Crc32, b"hello"))
        .header("x-amz-checksum-sha1", &sum(Algorithm::Sha1, b"hello"))
        .send()
        .await
        .assert_error("InvalidRequest", 400);
    put().header("x-amz-sdk-checksum-algorithm", "CRC32").send().await.assert_error("InvalidRequest", 400);
    put().trailer("x-amz-checksum-crc99", "AAAA").send().await.assert_error("InvalidRequest", 400);
    put().header("x-amz-tagging", "a=1&a=2").send().await.assert_error("InvalidArgument", 400);
    put().header("x-amz-meta-a", &"x".repeat(2100)).send().await.assert_error("MetadataTooLarge", 400);
    put().header("x-amz-storage-class", "SOLID-GOLD").send().await.assert_error("InvalidStorageClass", 400);
    put().header("x-dss-object-class", "32").send().await.assert_error("InvalidArgument", 400);
    put().header("x-dss-object-class", "").send().await.assert_error("InvalidArgument", 400);
    put().header("x-dss-range-class", "0-0-1").send().await.assert_error("InvalidArgument", 400);
    assert_eq!(server.send("HEAD", "/abc/k").await.status, 404);
    server.send("GET", "/abc/k").await.assert_error("NoSuchKey", 404);
    server.send("GET", "/nobucket/k").await.assert_error("NoSuchBucket", 404);
    server.put("/nobucket/k", b"x").await.assert_error("NoSuchBucket", 404);
}

#[tokio::test]
async fn declared_checksums_are_verified_and_returned() {
    let server = TestServer::with_bucket().await;
    for algorithm in Algorithm::ALL {
        let value = sum(algorithm, b"hello");
        let header = algorithm.header();
        let by_header = server.request("PUT", "/abc/h").header(header, &value);
        let by_trailer = server.request("PUT", "/abc/t").trailer(header, &value);
        for (request, uri) in [(by_header, "/abc/h"), (by_trailer, "/abc/t")] {
            let md5 = content_md5(b"hello");
            let put = request.header("content-md5", &md5).body(&b"hello"[..]).send().await.assert_success();
            assert_eq!(put.header(header), Some(&*value));
            assert_eq!(put.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
            let got = server
                .request("GET", uri)
                .header("x-amz-checksum-mode", "ENABLED")
                .send()
                .await
                .assert_success();
            assert_eq!(got.header(header), Some(&*value));
            let part = server
                .request("GET", uri)
                .header("x-amz-checksum-mode", "ENABLED")
                .header("range", "bytes=0-1")
                .send()
                .await
                .assert_success();
            assert_eq!(part.header(header), None, "a range does not have the checksum of the whole object");
        }
    }
}

#[tokio::test]
async fn ranges_and_parts_are_read() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"0123456789").await.assert_success();
    for (range, status, content_range, body) in [
        ("bytes=2-4", 206, Some("bytes 2-4/10"), "234"),
        ("bytes=-3", 206, Some("bytes 7-9/10"), "789"),
        ("bytes=8-99", 206, Some("bytes 8-9/10"), "89"),
        ("bytes=0-9", 206, Some("bytes 0-9/10"), "0123456789"),
        ("bytes=4-2", 200, None, "0123456789"),
        ("bytes=0-1,3-4", 200, None, "0123456789"),
        ("items=0-1", 200, None, "0123456789"),
    ] {
        let got = server.request("GET", "/abc/k").header("range", range).send().await;
        assert_eq!(
            (got.status.as_u16(), got.header("content-range"), got.text()),
            (status, content_range, body)
        );
        let head = server.request("HEAD", "/abc/k").header("range", range).send().await;
        assert_eq!((head.status.as_u16(), head.header("content-range")), (status, content_range));
        assert_eq!(head.header("content-length"), Some(&*body.len().to_string()));
    }
    let beyond = server.request("GET", "/abc/k").header("range", "bytes=10-").send().await;
    beyond.assert_error("InvalidRange", 416);
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
    let etag = server.send("HEAD", "/abc/k").await.header("etag").unwrap().to_owned();
    let resume = |tag| server.request("GET", "/abc/k").header("range", "bytes=5-").header("if-range", tag);
    assert_eq!(resume(&etag).send().await.text(), "56789");
    let changed = resume("\"other\"").send().await;
    assert_eq!((changed.status.as_u16(), changed.text()), (200, "0123456789"));
    let part = server.send("GET", "/abc/k?partNumber=1").await;
    assert_eq!((part.status.as_u16(), part.text()), (206, "0123456789"));
    assert_eq!(server.send("GET", "/abc/k?partNumber=2").await.status, 416);
    server
        .request("GET", "/abc/k?partNumber=1")
        .header("range", "bytes=0-1")
        .send()
        .await
        .assert_error("InvalidRequest", 400);
}

#[tokio::test]
async fn conditional_reads_are_evaluated() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    let head = server.send("HEAD", "/abc/k").await;
    let (etag, modified) = (head.header("etag").unwrap(), head.header("last-modified").unwrap());
    let get = |name: &'static str, value: &str| {
        let request = server.request("GET", "/abc/k").header(name, value);
        async move { request.send().await }
    };
    assert_eq!(get("if-match", etag).await.status, 200);
    assert_eq!(get("if-match", &format!("\"a\", {etag}")).await.status, 200);
    get("if-match", "\"a\"").await.assert_error("PreconditionFailed", 412);
    let cached = get("if-none-match", etag).await;
    assert_eq!((cached.status.as_u16(), cached.header("etag"), cached.text()), (304, Some(etag), ""));
    let cached = get("if-modified-since", modified).await;
    assert_eq!((cached.status.as_u16(), cached.header("last-modified")), (304, Some(modified)));
    assert_eq!(get("if-modified-since", "yesterday").await.status, 200);
    assert_eq!(get("if-unmodified-since", modified).await.status, 200);
    get("if-unmodified-since", "Thu, 01 Jan 1970 00:00:01 GMT").await.assert_error("PreconditionFailed", 412);
}

#[tokio::test]
async fn conditional_writes_and_deletes_are_evaluated() {
    let server = TestServer::with_bucket().await;
    let put = |name: &'static str, value: &str| {
        let request = server.request("PUT", "/abc/k").header(name, value).body(&b"x"[..]);
        async move { request.send().await }
    };
    put("if-match", "\"a\"").await.assert_error("NoSuchKey", 404);
    let etag = put("if-none-match", "*").await.assert_success().header("etag").unwrap().to_owned();
    put("if-none-match", "*").await.assert_error("PreconditionFailed", 412);
    put("if-none-match", "\"a\"").await.assert_error("NotImplemented", 501);
    put("if-match", "\"a\"").await.assert_error("PreconditionFailed", 412);
    put("if-match", &etag).await.assert_success();
    let delete = |value: &str| {
        let request = server.request("DELETE", "/abc/k").header("if-match", value);
        async move { request.send().await }
    };
    delete("\"a\"").await.assert_error("PreconditionFailed", 412);
    assert_eq!(delete(&etag).await.status, 204);
    delete(&etag).await.assert_error("NoSuchKey", 404);
    delete("*").await.assert_error("NoSuchKey", 404);
    assert_eq!(
        server.send("DELETE", "/abc/k").await.status,
        204,
        "an unconditional delete of an absent object succeeds"
    );
}

#[tokio::test]
async fn exactly_one_of_many_conditional_creations_wins() {
    let server = TestServer::with_bucket().await;
    let puts =
        (0..100).map(|_| server.request("PUT", "/abc/k").header("if-none-match", "*").body(&b"x"[..]).send());
    let statuses: Vec<_> = futures::future::join_all(puts).await.iter().map(|a| a.status.as_u16()).collect();
    assert_eq!(statuses.iter().filter(|s| **s == 200).count(), 1);
    assert!(statuses.iter().all(|s| [200, 412].contains(s)));
}

#[tokio::test]
async fn query_parameters_override_response_headers() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    let query = "response-content-type=a%2Fb&response-expires=never&response-content-disposition=attachment";
    let got = server.send("GET", &format!("/abc/k?{query}")).await.assert_success();
    assert_eq!(got.header("content-type"), Some("a/b"));
    assert_eq!(got.header("expires"), Some("never"));
    assert_eq!(got.header("content-disposition"), Some("attachment"));
    server.send("GET", "/abc/k?response-content-type=a%0D%0Ab:c").await.assert_error("InvalidArgument", 400);
}

#[tokio::test]
async fn copies_retain_or_replace_metadata() {
    let server = TestServer::with_bucket().await;
    server
        .request("PUT", "/abc/s")
        .header("content-type", "text/plain")
        .header("x-amz-meta-m", "old")
        .header("x-amz-tagging", "t=old")
        .header("x-dss-object-class", "25")
        .body(&b"body"[..])
        .send()
        .await
        .assert_success();
    let copy = |to: &str| server.request("PUT", format!("/abc/{to}")).header("x-amz-copy-source", "/abc/s");
    let copied = copy("c").send().await.assert_success();
    assert!(copied.element("ETag").is_some() && copied.element("LastModified").is_some(), "{copied:?}");
    let got = server.send("GET", "/abc/c").await.assert_success();
    for (name, value) in [
        ("content-type", "text/plain"),
        ("x-amz-meta-m", "old"),
        ("x-amz-tagging-count", "1"),
        ("x-dss-object-class", "25"),
    ] {
        assert_eq!(got.header(name), Some(value));
    }
    copy("s").send().await.assert_error("InvalidRequest", 400);
    copy("s")
        .header("x-amz-metadata-directive", "REPLACE")
        .header("x-amz-meta-n", "new")
        .send()
        .await
        .assert_success();
    let got = server.send("GET", "/abc/s").await.assert_success();
    assert_eq!((got.header("x-amz-meta-m"), got.header("x-amz-meta-n")), (None, Some("new")));
    assert_eq!(got.header("x-dss-object-class"), Some("25"), "classes are retained unless given");
    assert_eq!(got.text(), "body");
    copy("n").header("x-dss-object-class", "").send().await.assert_success();
    assert_eq!(
        server.send("HEAD", "/abc/n").await.header("x-dss-object-class"),
        None,
        "an empty header removes the class"
    );
    copy("d").header("x-dss-object-class", "7").send().await.assert_success();
    let got = server.send("HEAD", "/abc/d").await;
    assert_eq!((got.header("x-dss-object-class"), got.header("x-amz-meta-n")), (Some("7"), Some("new")));
    copy("e").header("x-amz-metadata-directive", "MERGE").send().await.assert_error("InvalidArgument", 400);
    copy("e")
        .header("x-amz-copy-source-if-none-match", "*")
        .send()
        .await
        .assert_error("PreconditionFailed", 412);
    copy("e")
        .header("x-amz-copy-source-if-match", "\"no\"")
        .send()
        .await
        .assert_error("PreconditionFailed", 412);
    copy("d").header("if-none-match", "*").send().await.assert_error("PreconditionFailed", 412);
    for bad in ["", "/", "abc", "/abc", "/abc/"] {
        let request = server.request("PUT", "/abc/e").header("x-amz-copy-source", bad);
        request.send().await.assert_error("InvalidArgument", 400);
    }
    let request = server.request("PUT", "/abc/e").header("x-amz-copy-source", "abc/s?versionId=1");
    request.send().await.assert_error("InvalidArgument", 400);
    let request = server.request("PUT", "/abc/e").header("x-amz-copy-source", "abc/none");
    request.send().await.assert_error("NoSuchKey", 404);
    assert_eq!(server.send("HEAD", "/abc/e").await.status, 404);
    let request = server.request("PUT", "/none/k").header("x-amz-copy-source", "none/k");
    request.send().await.assert_error("NoSuchBucket", 404);
}

#[tokio::test]
async fn tags_are_set_read_and_deleted() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    let put = |tags: &str| {
        let xml = format!("<Tagging><TagSet>{tags}</TagSet></Tagging>");
        server.request("PUT", "/abc/k?tagging").body(xml)
    };
    put("<Tag><Key>a</Key><Value>1</Value></Tag>").send().await.assert_success();
    assert_eq!(server.send("GET", "/abc/k?tagging").await.assert_success().elements("Key"), ["a"]);
    put("<Tag><Key>a</Key></Tag>").send().await.assert_error("MalformedXML", 400);
    put("<Tag><Key>aws:a</Key><Value>1</Value></Tag>").send().await.assert_error("InvalidTag", 400);
    let eleven: String = (0..11).map(|n| format!("<Tag><Key>{n}</Key><Value/></Tag>")).collect();
    put(&eleven).send().await.assert_error("InvalidTag", 400);
    put("").header("content-md5", &content_md5(b"other")).send().await.assert_error("BadDigest", 400);
    assert_eq!(server.send("GET", "/abc/k?tagging").await.assert_success().elements("Key"), ["a"]);
    assert_eq!(server.send("DELETE", "/abc/k?tagging").await.status, 204);
    assert!(server.send("GET", "/abc/k?tagging").await.assert_success().elements("Key").is_empty());
    server.send("GET", "/abc/none?tagging").await.assert_error("NoSuchKey", 404);
}

#[tokio::test]
async fn a_multi_delete_reports_each_key() {
    let server = TestServer::with_bucket().await;
    for key in ["a", "b%26", "c"] {
        server.put(&format!("/abc/{key}"), b"x").await.assert_success();
    }
    let delete = |xml: &str| {
        let md5 = content_md5(xml.as_bytes());
        server.request("POST", "/abc?delete").header("content-md5", &md5).body(xml.to_owned())
    };
    let xml = "<Delete><Object><Key>a</Key></Object><Object><Key>b&amp;</Key></Object><Object><Key>z</Key></Object>\
               <Object><Key>c</Key><ETag>\"no\"</ETag></Object></Delete>";
    let answer = delete(xml).send().await.assert_success();
    assert_eq!(answer.elements("Deleted").len(), 3);
    assert_eq!(answer.elements("Code"), ["PreconditionFailed"]);
    assert_eq!(server.send("HEAD", "/abc/c").await.status, 200);
    assert_eq!(server.send("HEAD", "/abc/b%26").await.status, 404);
    let quiet = "<Delete><Quiet>true</Quiet><Object><Key>c</Key></Object></Delete>";
    server.request("POST", "/abc?delete").body(quiet).send().await.assert_error("InvalidRequest", 400);
    let answer = delete(quiet).send().await.assert_success();
    assert!(answer.elements("Deleted").is_empty() && answer.elements("Error").is_empty());
    for bad in ["<Delete></Delete>", "<Delete><Object></Object></Delete>", "delete!", "<Delete>"] {
        delete(bad).send().await.assert_error("MalformedXML", 400);
    }
    for (uri, key) in [("x%2Fa%26b%3C", "x/<![CDATA[a&b<]]>"), ("y/ab", "y/a<!-- & --><?p ?>b")] {
        server.put(&format!("/abc/{uri}"), b"x").await.assert_success();
        delete(&format!("<Delete><Object><Key>{key}</Key></Object></Delete>")).send().await.assert_success();
        assert_eq!(server.send("HEAD", &format!("/abc/{uri}")).await.status, 404, "{key}");
    }
    let object = "<Object><Key>k</Key></Object>".repeat(1001);
    delete(&format!("<Delete>{object}</Delete>")).send().await.assert_error("MalformedXML", 400);
    delete(&" ".repeat((4 << 20) + 1)).send().await.assert_error("MaxMessageLengthExceeded", 400);
}

#[tokio::test]
async fn unique_entity_tags_differ_for_each_write() {
    let server = TestServer::with(Options { etag: ETagForm::Unique, ..Options::default() });
    server.send("PUT", "/abc").await.assert_success();
    let one = server.put("/abc/k", b"x").await.assert_success().header("etag").unwrap().to_owned();
    let two = server.put("/abc/k", b"x").await.assert_success().header("etag").unwrap().to_owned();
    assert!(one.contains('-') && one != two, "{one} {two}");
    let wrong = server.request("PUT", "/abc/k").header("content-md5", &content_md5(b"y")).body(&b"x"[..]);
    wrong.send().await.assert_error("BadDigest", 400);
}

#[tokio::test]
async fn requested_attributes_are_returned() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"hello").await.assert_success();
    let ask =
        |wanted: &str| server.request("GET", "/abc/k?attributes").header("x-amz-object-attributes", wanted);
    let got =
        ask("ETag,ObjectSize").header("x-amz-object-attributes", "Checksum").send().await.assert_success();
    assert_eq!(got.element("ETag").as_deref(), Some("5d41402abc4b2a76b9719d911017c592"));
    assert_eq!(got.element("ObjectSize").as_deref(), Some("5"));
    assert_eq!(got.element("ChecksumCRC64NVME"), Some(sum(Algorithm::Crc64Nvme, b"hello")));
    assert_eq!(got.element("StorageClass"), None);
    ask("Colour").send().await.assert_error("InvalidArgument", 400);
    server.send("GET", "/abc/k?attributes").await.assert_error("InvalidArgument", 400);
}

#[tokio::test]
async fn malformed_headers_have_the_codes_of_s3() {
    let server = TestServer::with_bucket().await;
    let put = |name, value| server.request("PUT", "/abc/k").header(name, value).body(&b"text"[..]).send();
    put("x-amz-website-redirect-location", "elsewhere").await.assert_error("InvalidRedirectLocation", 400);
    put("x-amz-checksum-type", "full").await.assert_error("InvalidRequest", 400);
    put("x-amz-checksum-type", "FULL_OBJECT").await.assert_success();
    let get = |range| server.request("GET", "/abc/k").header("range", range).send();
    for ignored in ["bytes= -1", "bytes=0 -1", "bytes =0-1"] {
        let found = get(ignored).await;
        assert_eq!((found.status.as_u16(), found.text()), (200, "text"), "{ignored}");
    }
    assert_eq!(get("bytes=-1").await.status, 206);
}
