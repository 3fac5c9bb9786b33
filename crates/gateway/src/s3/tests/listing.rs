//! Buckets and listings.

use std::io::Read as _;

use flate2::read::GzDecoder;

use super::super::Options;
use super::TestServer;
use crate::auth::{Buckets, Identity, Permissions};

#[tokio::test]
async fn buckets_are_created_located_and_deleted() {
    let server = TestServer::new();
    let created = server.send("PUT", "/abc").await.assert_success();
    assert_eq!(created.header("location"), Some("/abc"));
    server.send("PUT", "/abc").await.assert_success();
    server.send("PUT", "/a_b").await.assert_error("InvalidBucketName", 400);
    assert_eq!(server.send("HEAD", "/abc").await.header("x-amz-bucket-region"), Some("us-east-1"));
    assert_eq!(server.send("HEAD", "/abd").await.status, 404);
    let location = server.send("GET", "/abc?location").await.assert_success();
    assert!(location.text().contains("LocationConstraint"), "{location:?}");
    server.put("/abc/k", b"x").await.assert_success();
    server.send("DELETE", "/abc").await.assert_error("BucketNotEmpty", 409);
    assert_eq!(server.send("DELETE", "/abc/k").await.status, 204);
    assert_eq!(server.send("DELETE", "/abc").await.status, 204);
    server.send("DELETE", "/abc").await.assert_error("NoSuchBucket", 404);
}

#[tokio::test]
async fn a_location_constraint_must_name_the_region() {
    let server = TestServer::with(Options { region: "eu-west-1".to_owned(), ..Options::default() });
    let create = |region: &str| {
        let xml = format!(
            "<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
        );
        server.request("PUT", "/abc").body(xml)
    };
    create("mars").send().await.assert_error("InvalidLocationConstraint", 400);
    server.request("PUT", "/abc").body(&b"<x/>"[..]).send().await.assert_error("MalformedXML", 400);
    create("eu-west-1").send().await.assert_success();
    assert_eq!(server.send("HEAD", "/abc").await.header("x-amz-bucket-region"), Some("eu-west-1"));
    assert!(
        server
            .send("GET", "/abc?location")
            .await
            .assert_success()
            .text()
            .contains(">eu-west-1</LocationConstraint>")
    );
}

#[tokio::test]
async fn only_permitted_buckets_are_listed() {
    let server = TestServer::new();
    for name in ["aaa", "bbb", "ccc"] {
        server.send("PUT", &format!("/{name}")).await.assert_success();
    }
    assert_eq!(server.send("GET", "/").await.assert_success().elements("Name"), ["aaa", "bbb", "ccc"]);
    let page = server.send("GET", "/?max-buckets=2").await.assert_success();
    assert_eq!(page.elements("Name"), ["aaa", "bbb"]);
    let token = page.element("ContinuationToken").unwrap();
    let page =
        server.send("GET", &format!("/?max-buckets=2&continuation-token={token}")).await.assert_success();
    assert_eq!((page.elements("Name"), page.element("ContinuationToken")), (vec!["ccc".to_owned()], None));
    let some = Identity::key("k".into(), Permissions::ReadOnly, Buckets::Names(["bbb".to_owned()].into()));
    let listed = server.request("GET", "/").identity(some.clone()).send().await.assert_success();
    assert_eq!(listed.elements("Name"), ["bbb"]);
    let list = |uri: &str| server.request("GET", uri).identity(some.clone());
    list("/bbb").send().await.assert_success();
    list("/aaa").send().await.assert_error("AccessDenied", 403);
    server
        .request("PUT", "/bbb/k")
        .identity(some.clone())
        .body(&b"x"[..])
        .send()
        .await
        .assert_error("AccessDenied", 403);
    server.request("PUT", "/ddd").identity(some).send().await.assert_error("AccessDenied", 403);
}

#[tokio::test]
async fn a_copy_needs_permission_for_both_buckets() {
    let server = TestServer::new();
    for name in ["src", "dst"] {
        server.send("PUT", &format!("/{name}")).await.assert_success();
    }
    server.put("/src/k", b"x").await.assert_success();
    let copy = |buckets: &[&str]| {
        let names = Buckets::Names(buckets.iter().map(|b| (*b).to_owned()).collect());
        let request = server.request("PUT", "/dst/k").header("x-amz-copy-source", "src/k");
        request.identity(Identity::key("k".into(), Permissions::ReadWrite, names))
    };
    copy(&["dst"]).send().await.assert_error("AccessDenied", 403);
    copy(&["src"]).send().await.assert_error("AccessDenied", 403);
    assert_eq!(server.send("HEAD", "/dst/k").await.status, 404);
    copy(&["src", "dst"]).send().await.assert_success();
}

#[tokio::test]
async fn both_list_versions_return_correct_pages() {
    let server = TestServer::with_bucket().await;
    for key in ["a", "a/b", "a/b/c", "a/c", "b", "d%20%C3%BC"] {
        server.put(&format!("/abc/{key}"), b"x").await.assert_success();
    }
    let one = server.send("GET", "/abc?delimiter=/&max-keys=2").await.assert_success();
    assert_eq!(
        (one.elements("Key"), one.element("NextMarker").as_deref()),
        (vec!["a".to_owned()], Some("a/"))
    );
    assert!(one.element("Owner").is_some());
    let two = server.send("GET", "/abc?list-type=2&max-keys=4").await.assert_success();
    assert_eq!(two.elements("Key"), ["a", "a/b", "a/b/c", "a/c"]);
    assert_eq!(two.element("KeyCount").as_deref(), Some("4"));
    assert!(two.element("Owner").is_none());
    let token = two.element("NextContinuationToken").unwrap();
    let rest = server
        .send("GET", &format!("/abc?list-type=2&start-after=zzz&continuation-token={token}"))
        .await
        .assert_success();
    assert_eq!(rest.elements("Key"), ["b", "d ü"]);
    let encoded = server.send("GET", "/abc?list-type=2&encoding-type=url&prefix=d").await.assert_success();
    assert_eq!(encoded.elements("Key"), ["d%20%C3%BC"]);
    let inside = server.send("GET", "/abc?delimiter=/&marker=a/b&max-keys=1").await.assert_success();
    assert_eq!(inside.elements("Prefix").last().map(String::as_str), Some("a/"));
    assert_eq!(inside.element("NextMarker").as_deref(), Some("a/"));
    let after = server.send("GET", "/abc?delimiter=/&marker=a/").await.assert_success();
    assert!(!after.elements("Prefix").contains(&"a/".to_owned()));
    let none = server.send("GET", "/abc?list-type=2&max-keys=0").await.assert_success();
    assert_eq!(none.element("IsTruncated").as_deref(), Some("false"));
    for bad in [
        "max-keys=-1",
        "max-keys=x",
        "encoding-type=base64",
        "continuation-token=",
        "continuation-token=AAAA",
    ] {
        server.send("GET", &format!("/abc?list-type=2&{bad}")).await.assert_error("InvalidArgument", 400);
    }
    server.send("GET", "/abc?list-type=3").await.assert_error("InvalidArgument", 400);
    server.send("GET", "/nobucket").await.assert_error("NoSuchBucket", 404);
}

#[tokio::test]
async fn a_page_without_memory_for_it_is_rejected_as_slow_down() {
    let mut server = TestServer::with_bucket().await;
    for n in 0..300 {
        server.put(&format!("/abc/{n:0>200}"), b"x").await.assert_success();
    }
    server.budget = tradewind_core::Budget::new(64 << 10);
    server.send("GET", "/abc?list-type=2").await.assert_error("SlowDown", 503);
    assert_eq!(
        server.send("GET", "/abc?list-type=2&max-keys=10").await.assert_success().elements("Key").len(),
        10
    );
    server.budget = tradewind_core::Budget::new(1 << 20);
    assert_eq!(server.send("GET", "/abc?list-type=2").await.assert_success().elements("Key").len(), 300);
}

#[tokio::test]
async fn a_page_is_compressed_if_the_client_accepts_gzip() {
    let server = TestServer::with_bucket().await;
    for number in 0..30 {
        server.put(&format!("/abc/{number:02}"), b"x").await.assert_success();
    }
    let plain = server.send("GET", "/abc?list-type=2").await.assert_success();
    assert_eq!((plain.elements("Key").len(), plain.header("content-encoding")), (30, None));
    let list = || server.request("GET", "/abc?list-type=2").header("accept-encoding", "gzip");
    let compressed = list().send().await.assert_success();
    assert_eq!(
        (compressed.header("content-encoding"), compressed.header("content-length")),
        (Some("gzip"), None)
    );
    assert!(
        compressed.body.len() < plain.body.len() / 4,
        "{} of {}",
        compressed.body.len(),
        plain.body.len()
    );
    let mut decompressed = String::new();
    GzDecoder::new(&compressed.body[..]).read_to_string(&mut decompressed).unwrap();
    assert_eq!(decompressed, plain.text());
    // Short responses and errors are not compressed.
    assert_eq!(
        server
            .request("GET", "/")
            .header("accept-encoding", "gzip")
            .send()
            .await
            .assert_success()
            .elements("Name"),
        ["abc"]
    );
    server
        .request("GET", "/none?list-type=2")
        .header("accept-encoding", "gzip")
        .send()
        .await
        .assert_error("NoSuchBucket", 404);
    // Objects are returned as stored.
    let object =
        server.request("GET", "/abc/01").header("accept-encoding", "gzip").send().await.assert_success();
    assert_eq!((&*object.body, object.header("content-encoding")), (&b"x"[..], None));
}

#[tokio::test]
async fn parameters_without_a_value_have_their_default() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    let upload = server.send("POST", "/abc/m?uploads").await.element("UploadId").unwrap();
    for (uri, name) in [
        ("/abc?list-type=2&max-keys=&fetch-owner=".to_owned(), "MaxKeys"),
        ("/abc?max-keys=".to_owned(), "MaxKeys"),
        ("/abc?versions&max-keys=".to_owned(), "MaxKeys"),
        ("/abc?uploads&max-uploads=".to_owned(), "MaxUploads"),
        (format!("/abc/m?uploadId={upload}&max-parts=&part-number-marker="), "MaxParts"),
    ] {
        let page = server.send("GET", &uri).await.assert_success();
        assert_eq!(page.element(name).as_deref(), Some("1000"), "{uri}");
    }
    server.send("GET", "/?max-buckets=").await.assert_success();
    server.send("GET", "/abc?max-keys=x").await.assert_error("InvalidArgument", 400);
}

#[tokio::test]
async fn listings_report_the_storage_class() {
    const CLASS: &str = "x-amz-storage-class";
    let server = TestServer::with_bucket().await;
    server.put("/abc/a", b"x").await.assert_success();
    let put = server.request("PUT", "/abc/b").header(CLASS, "STANDARD_IA").body(&b"x"[..]);
    put.send().await.assert_success();
    server.request("POST", "/abc/c?uploads").header(CLASS, "GLACIER_IR").send().await.assert_success();
    for list in ["/abc", "/abc?list-type=2", "/abc?versions"] {
        let listed = server.send("GET", list).await.assert_success();
        assert_eq!(listed.elements("StorageClass"), ["STANDARD", "STANDARD_IA"], "{list}");
    }
    let uploads = server.send("GET", "/abc?uploads").await.assert_success();
    assert_eq!(uploads.elements("StorageClass"), ["GLACIER_IR"]);
}
