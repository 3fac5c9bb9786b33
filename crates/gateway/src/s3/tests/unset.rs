//! Settings that cannot be set: what was never set reads as in S3, and deletes succeed. The expected owner.

use std::sync::Arc;

use super::TestServer;
use crate::auth::Identity;
use crate::s3::Options;

#[tokio::test]
async fn settings_that_were_never_set_read_as_in_s3() {
    let server = TestServer::with_bucket().await;
    for (name, code) in [
        ("policy", "NoSuchBucketPolicy"),
        ("policyStatus", "NoSuchBucketPolicy"),
        ("cors", "NoSuchCORSConfiguration"),
        ("lifecycle", "NoSuchLifecycleConfiguration"),
        ("tagging", "NoSuchTagSet"),
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
        ("website", "NoSuchWebsiteConfiguration"),
        ("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
        ("replication", "ReplicationConfigurationNotFoundError"),
    ] {
        server.send("GET", &format!("/abc?{name}")).await.assert_error(code, 404);
        server.send("GET", &format!("/missing?{name}")).await.assert_error("NoSuchBucket", 404);
    }
    for (name, content) in [
        (
            "logging",
            "<BucketLoggingStatus xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"></BucketLoggingStatus>",
        ),
        ("notification", "</NotificationConfiguration>"),
        ("accelerate", "</AccelerateConfiguration>"),
        ("requestPayment", "<Payer>BucketOwner</Payer>"),
        ("ownershipControls", "<ObjectOwnership>BucketOwnerEnforced</ObjectOwnership>"),
        ("acl", "<Permission>FULL_CONTROL</Permission>"),
    ] {
        let found = server.send("GET", &format!("/abc?{name}")).await.assert_success();
        assert!(found.text().contains(content), "{}", found.text());
        assert_eq!(found.header("content-type"), Some("application/xml"));
        server.send("GET", &format!("/missing?{name}")).await.assert_error("NoSuchBucket", 404);
    }
    let acl = server.send("GET", "/abc?acl").await;
    assert_eq!(acl.elements("ID"), [Options::default().owner_id, Options::default().owner_id]);
    server.put("/abc/k", b"x").await.assert_success();
    assert_eq!(server.send("GET", "/abc/k?acl").await.assert_success().text(), acl.text());
    assert_eq!(server.send("GET", "/abc/k?acl&versionId=null").await.assert_success().text(), acl.text());
    server.send("GET", "/abc/missing?acl").await.assert_error("NoSuchKey", 404);
}

#[tokio::test]
async fn deletes_of_settings_succeed_and_sets_do_not() {
    let server = TestServer::with_bucket().await;
    for name in [
        "policy",
        "cors",
        "lifecycle",
        "tagging",
        "encryption",
        "website",
        "publicAccessBlock",
        "ownershipControls",
        "replication",
    ] {
        assert_eq!(server.send("DELETE", &format!("/abc?{name}")).await.status, 204, "{name}");
        server.send("DELETE", &format!("/missing?{name}")).await.assert_error("NoSuchBucket", 404);
        server.send("PUT", &format!("/abc?{name}")).await.assert_error("NotImplemented", 501);
    }
    server.send("HEAD", "/abc").await.assert_success();
}

#[tokio::test]
async fn settings_need_the_permission_of_the_bucket() {
    let server = TestServer::with_bucket().await;
    let anonymous = || Identity::anonymous(Arc::new(["abc".to_owned()].into()));
    for (method, uri) in
        [("GET", "/abc?acl"), ("GET", "/abc/k?acl"), ("GET", "/missing?policy"), ("DELETE", "/abc?policy")]
    {
        server.request(method, uri).identity(anonymous()).send().await.assert_error("AccessDenied", 403);
    }
}

#[tokio::test]
async fn the_expected_bucket_owner_is_compared() {
    let options = Options { account_id: "123456789012".to_owned(), ..Options::default() };
    let server = TestServer::with(options);
    server.send("PUT", "/abc").await.assert_success();
    server.put("/abc/k", b"x").await.assert_success();
    for name in ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"] {
        let get = |owner: &str| server.request("GET", "/abc/k").header(name, owner);
        assert_eq!(get("123456789012").send().await.assert_success().text(), "x");
        get("210987654321").send().await.assert_error("AccessDenied", 403);
        get("000000000000").send().await.assert_error("AccessDenied", 403);
        for malformed in ["", "1", "12345678901x", "1234567890123"] {
            get(malformed).send().await.assert_error("InvalidBucketOwnerAWSAccountID", 400);
        }
        let both = get("123456789012").header(name, "210987654321");
        both.send().await.assert_error("AccessDenied", 403);
    }
    let put = server.request("PUT", "/abc/k").header("x-amz-expected-bucket-owner", "210987654321");
    put.body(&b"y"[..]).send().await.assert_error("AccessDenied", 403);
    assert_eq!(server.send("GET", "/abc/k").await.text(), "x");
    let bypass = server.request("DELETE", "/abc/k").header("x-amz-bypass-governance-retention", "true");
    assert_eq!(bypass.send().await.status, 204);
}
