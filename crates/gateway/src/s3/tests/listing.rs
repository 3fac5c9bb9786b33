//! Buckets and listings.

use std::io::Read as _;

use flate2::read::GzDecoder;

use super::super::Options;
use super::Server;
use crate::auth::{Buckets, Identity, Permissions};

#[tokio::test]
async fn buckets_are_created_located_and_deleted() {
    let server = Server::new();
    let created = server.ask("PUT", "/abc").await.ok();
    assert_eq!(created.head("location"), Some("/abc"));
    server.ask("PUT", "/abc").await.is("BucketAlreadyOwnedByYou", 409);
    server.ask("PUT", "/a_b").await.is("InvalidBucketName", 400);
    assert_eq!(server.ask("HEAD", "/abc").await.head("x-amz-bucket-region"), Some("us-east-1"));
    assert_eq!(server.ask("HEAD", "/abd").await.status, 404);
    let location = server.ask("GET", "/abc?location").await.ok();
    assert!(location.text().contains("LocationConstraint"), "{location:?}");
    server.put("/abc/k", b"x").await.ok();
    server.ask("DELETE", "/abc").await.is("BucketNotEmpty", 409);
    assert_eq!(server.ask("DELETE", "/abc/k").await.status, 204);
    assert_eq!(server.ask("DELETE", "/abc").await.status, 204);
    server.ask("DELETE", "/abc").await.is("NoSuchBucket", 404);
}

#[tokio::test]
async fn a_location_constraint_must_name_the_region() {
    let server = Server::with(Options { region: "eu-west-1".to_owned(), ..Options::default() });
    let create = |region: &str| {
        let xml = format!(
            "<CreateBucketConfiguration><LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
        );
        server.request("PUT", "/abc").body(xml)
    };
    create("mars").send().await.is("InvalidLocationConstraint", 400);
    server.request("PUT", "/abc").body(&b"<x/>"[..]).send().await.is("MalformedXML", 400);
    create("eu-west-1").send().await.ok();
    assert_eq!(server.ask("HEAD", "/abc").await.head("x-amz-bucket-region"), Some("eu-west-1"));
    assert!(server.ask("GET", "/abc?location").await.ok().text().contains(">eu-west-1</LocationConstraint>"));
}

#[tokio::test]
async fn only_permitted_buckets_are_listed() {
    let server = Server::new();
    for name in ["aaa", "bbb", "ccc"] {
        server.ask("PUT", &format!("/{name}")).await.ok();
    }
    assert_eq!(server.ask("GET", "/").await.ok().elements("Name"), ["aaa", "bbb", "ccc"]);
    let page = server.ask("GET", "/?max-buckets=2").await.ok();
    assert_eq!(page.elements("Name"), ["aaa", "bbb"]);
    let token = page.element("ContinuationToken").unwrap();
    let page = server.ask("GET", &format!("/?max-buckets=2&continuation-token={token}")).await.ok();
    assert_eq!((page.elements("Name"), page.element("ContinuationToken")), (vec!["ccc".to_owned()], None));
    let some = Identity::key("k".into(), Permissions::ReadOnly, Buckets::Names(["bbb".to_owned()].into()));
    let listed = server.request("GET", "/").identity(some.clone()).send().await.ok();
    assert_eq!(listed.elements("Name"), ["bbb"]);
    let list = |uri: &str| server.request("GET", uri).identity(some.clone());
    list("/bbb").send().await.ok();
    list("/aaa").send().await.is("AccessDenied", 403);
    server
        .request("PUT", "/bbb/k")
        .identity(some.clone())
        .body(&b"x"[..])
        .send()
        .await
        .is("AccessDenied", 403);
    server.request("PUT", "/ddd").identity(some).send().await.is("AccessDenied", 403);
}

#[tokio::test]
async fn a_copy_needs_permission_for_both_buckets() {
    let server = Server::new();
    for name in ["src", "dst"] {
        server.ask("PUT", &format!("/{name}")).await.ok();
    }
    server.put("/src/k", b"x").await.ok();
    let copy = |buckets: &[&str]| {
        let names = Buckets::Names(buckets.iter().map(|b| (*b).to_owned()).collect());
        let request = server.request("PUT", "/dst/k").header("x-amz-copy-source", "src/k");
        request.identity(Identity::key("k".into(), Permissions::ReadWrite, names))
    };
    copy(&["dst"]).send().await.is("AccessDenied", 403);
    copy(&["src"]).send().await.is("AccessDenied", 403);
    assert_eq!(server.ask("HEAD", "/dst/k").await.status, 404);
    copy(&["src", "dst"]).send().await.ok();
}

#[tokio::test]
async fn both_list_versions_return_correct_pages() {
    let server = Server::with_bucket().await;
    for key in ["a", "a/b", "a/b/c", "a/c", "b", "d%20%C3%BC"] {
        server.put(&format!("/abc/{key}"), b"x").await.ok();
    }
    let one = server.ask("GET", "/abc?delimiter=/&max-keys=2").await.ok();
    assert_eq!(
        (one.elements("Key"), one.element("NextMarker").as_deref()),
        (vec!["a".to_owned()], Some("a/"))
    );
    assert!(one.element("Owner").is_some());
    let two = server.ask("GET", "/abc?list-type=2&max-keys=4").await.ok();
    assert_eq!(two.elements("Key"), ["a", "a/b", "a/b/c", "a/c"]);
    assert_eq!(two.element("KeyCount").as_deref(), Some("4"));
    assert!(two.element("Owner").is_none());
    let token = two.element("NextContinuationToken").unwrap();
    let rest =
        server.ask("GET", &format!("/abc?list-type=2&start-after=zzz&continuation-token={token}")).await.ok();
    assert_eq!(rest.elements("Key"), ["b", "d ü"]);
    let encoded = server.ask("GET", "/abc?list-type=2&encoding-type=url&prefix=d").await.ok();
    assert_eq!(encoded.elements("Key"), ["d%20%C3%BC"]);
    let inside = server.ask("GET", "/abc?delimiter=/&marker=a/b&max-keys=1").await.ok();
    assert_eq!(inside.elements("Prefix").last().map(String::as_str), Some("a/"));
    assert_eq!(inside.element("NextMarker").as_deref(), Some("a/"));
    let after = server.ask("GET", "/abc?delimiter=/&marker=a/").await.ok();
    assert!(!after.elements("Prefix").contains(&"a/".to_owned()));
    let none = server.ask("GET", "/abc?list-type=2&max-keys=0").await.ok();
    assert_eq!(none.element("IsTruncated").as_deref(), Some("false"));
    for bad in [
        "max-keys=-1",
        "max-keys=x",
        "encoding-type=base64",
        "continuation-token=",
        "continuation-token=AAAA",
    ] {
        server.ask("GET", &format!("/abc?list-type=2&{bad}")).await.is("InvalidArgument", 400);
    }
    server.ask("GET", "/abc?list-type=3").await.is("InvalidArgument", 400);
    server.ask("GET", "/nobucket").await.is("NoSuchBucket", 404);
}

#[tokio::test]
async fn a_page_without_memory_for_it_is_rejected_as_slow_down() {
    let mut server = Server::with_bucket().await;
    for n in 0..300 {
        server.put(&format!("/abc/{n:0>200}"), b"x").await.ok();
    }
    server.budget = tradewind_core::Budget::new(64 << 10);
    server.ask("GET", "/abc?list-type=2").await.is("SlowDown", 503);
    assert_eq!(server.ask("GET", "/abc?list-type=2&max-keys=10").await.ok().elements("Key").len(), 10);
    server.budget = tradewind_core::Budget::new(1 << 20);
    assert_eq!(server.ask("GET", "/abc?list-type=2").await.ok().elements("Key").len(), 300);
}

#[tokio::test]
async fn a_page_is_compressed_if_the_client_accepts_gzip() {
    let server = Server::with_bucket().await;
    for number in 0..30 {
        server.put(&format!("/abc/{number:02}"), b"x").await.ok();
    }
    let plain = server.ask("GET", "/abc?list-type=2").await.ok();
    assert_eq!((plain.elements("Key").len(), plain.head("content-encoding")), (30, None));
    let list = || server.request("GET", "/abc?list-type=2").header("accept-encoding", "gzip");
    let compressed = list().send().await.ok();
    assert_eq!(
        (compressed.head("content-encoding"), compressed.head("content-length")),
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
        server.request("GET", "/").header("accept-encoding", "gzip").send().await.ok().elements("Name"),
        ["abc"]
    );
    server
        .request("GET", "/none?list-type=2")
        .header("accept-encoding", "gzip")
        .send()
        .await
        .is("NoSuchBucket", 404);
    // Objects are returned as stored.
    let object = server.request("GET", "/abc/01").header("accept-encoding", "gzip").send().await.ok();
    assert_eq!((&*object.body, object.head("content-encoding")), (&b"x"[..], None));
}
