//! Unsupported and malformed requests are rejected without any effect.

use std::sync::Arc;

use super::TestServer;
use crate::auth::Identity;

#[tokio::test]
async fn unsupported_operations_are_rejected_without_effect() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    for (method, uri) in [
        ("PUT", "/abc?inventory&id=a"),
        ("PUT", "/abc?cors"),
        ("PUT", "/abc?policy"),
        ("PUT", "/abc?object-lock"),
        ("PUT", "/abc?lifecycle"),
        ("DELETE", "/abc?versioning"),
        ("DELETE", "/abc?acl"),
        ("DELETE", "/abc?metadataConfiguration"),
        ("PUT", "/abc?logging"),
        ("PUT", "/abc/k?renameObject"),
        ("DELETE", "/abc/k?acl"),
    ] {
        server.send(method, uri).await.assert_error("NotImplemented", 501);
    }
    for (name, value) in [
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-write-offset-bytes", "1"),
    ] {
        let put = server.request("PUT", "/abc/k").header(name, value).body(&b"y"[..]);
        put.send().await.assert_error("NotImplemented", 501);
    }
    assert_eq!(server.send("GET", "/abc/k").await.text(), "x");
}

#[tokio::test]
async fn withdrawn_operations_are_not_allowed() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    for (method, uri) in [("GET", "/abc/k?torrent"), ("POST", "/abc/k?select&select-type=2")] {
        server.send(method, uri).await.assert_error("MethodNotAllowed", 405);
    }
}

#[tokio::test]
async fn restore_of_an_object_that_is_not_archived_is_rejected() {
    let server = TestServer::with_bucket().await;
    let put = server.request("PUT", "/abc/k").header("x-amz-storage-class", "STANDARD_IA").body(&b"x"[..]);
    put.send().await.assert_success();
    let restore = |uri: &str| {
        let body = "<RestoreRequest><Days>1</Days></RestoreRequest>".to_owned();
        server.request("POST", uri).body(body)
    };
    let rejected = restore("/abc/k?restore").send().await;
    rejected.assert_error("InvalidObjectState", 403);
    let message = rejected.element("Message");
    assert_eq!(message.as_deref(), Some("Restore is not allowed for the object's current storage class"));
    restore("/abc/missing?restore").send().await.assert_error("NoSuchKey", 404);
    restore("/missing/k?restore").send().await.assert_error("NoSuchBucket", 404);
}

/// Clients retry a 501, so it is not used where S3 has another error for a bucket without the feature.
#[tokio::test]
async fn acls_and_retention_are_rejected_with_errors_of_s3() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    for (name, value, code) in [
        ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
        ("x-amz-acl", "authenticated-read", "AccessControlListNotSupported"),
        ("x-amz-grant-read", "id=1", "AccessControlListNotSupported"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "InvalidRequest"),
        ("x-amz-object-lock-legal-hold", "ON", "InvalidRequest"),
    ] {
        let put = server.request("PUT", "/abc/k").header(name, value).body(&b"y"[..]);
        put.send().await.assert_error(code, 400);
        server.request("POST", "/abc/m?uploads").header(name, value).send().await.assert_error(code, 400);
    }
    let acl = server.request("PUT", "/new").header("x-amz-acl", "public-read");
    acl.send().await.assert_error("AccessControlListNotSupported", 400);
    server.send("HEAD", "/new").await;
    for uri in ["/abc?acl", "/abc/k?acl"] {
        let document = server.request("PUT", uri).body("<AccessControlPolicy/>").send().await;
        document.assert_error("AccessControlListNotSupported", 400);
    }
    for (method, uri) in
        [("PUT", "/abc/k?retention"), ("GET", "/abc/k?legal-hold"), ("GET", "/abc/k?retention")]
    {
        server.send(method, uri).await.assert_error("InvalidRequest", 400);
    }
    assert_eq!(server.send("GET", "/abc/k").await.text(), "x");
    for value in ["private", "bucket-owner-full-control"] {
        let put = server.request("PUT", "/abc/k").header("x-amz-acl", value).body(&b"y"[..]);
        put.send().await.assert_success();
    }
}

#[tokio::test]
async fn buckets_with_tags_are_not_created() {
    let server = TestServer::new();
    let create = |content: &str| {
        let text = format!("<CreateBucketConfiguration>{content}</CreateBucketConfiguration>");
        server.request("PUT", "/abc").body(text)
    };
    let tag = "<Tag><Key>a</Key><Value>b</Value></Tag>";
    for content in [
        format!("<Tags>{tag}</Tags>"),
        format!("<LocationConstraint/><Tags>\n{tag}{tag}</Tags>"),
        "<s3:Tags><s3:Tag><s3:Key>a</s3:Key><s3:Value>b</s3:Value></s3:Tag></s3:Tags>".to_owned(),
        "<s3:Tags xmlns:s3=\"x\"><s3:Tag\n/></s3:Tags>".to_owned(),
    ] {
        create(&content).send().await.assert_error("NotImplemented", 501);
        assert_eq!(server.send("HEAD", "/abc").await.status, 404, "{content}");
    }
    create("<Tags/>").send().await.assert_success();
}

#[tokio::test]
async fn a_preflight_is_rejected_with_the_message_of_s3() {
    let server = TestServer::with_bucket().await;
    for uri in ["/abc/k", "/abc", "/abc/missing", "/abc/k?X-Amz-Signature=0"] {
        let ask = server.request("OPTIONS", uri).header("origin", "https://example.com");
        let response = ask.header("access-control-request-method", "PUT").send().await;
        response.assert_error("AccessForbidden", 403);
        let message = response.element("Message");
        assert_eq!(message.as_deref(), Some("CORSResponse: CORS is not enabled for this bucket."));
        assert_eq!(response.element("Method").as_deref(), Some("PUT"));
    }
}

#[tokio::test]
async fn malformed_requests_are_rejected() {
    let server = TestServer::with_bucket().await;
    server.send("PATCH", "/abc/k").await.assert_error("MethodNotAllowed", 405);
    server.send("POST", "/abc/k").await.assert_error("MethodNotAllowed", 405);
    server.send("GET", "/abc/%FF").await.assert_error("InvalidURI", 400);
    server.send("GET", &format!("/abc/{}", "k".repeat(1025))).await.assert_error("KeyTooLongError", 400);
    server.put(&format!("/abc/{}", "k".repeat(1024)), b"x").await.assert_success();
    server.send("GET", "/ab").await.assert_error("InvalidBucketName", 400);
    server.send("GET", "/abc?max-keys=1&max-keys=2").await.assert_error("InvalidArgument", 400);
}

#[tokio::test]
async fn anonymous_clients_may_only_read_public_objects() {
    let server = TestServer::with_bucket().await;
    server.send("PUT", "/shut").await.assert_success();
    server.put("/abc/k", b"x").await.assert_success();
    let anonymous = || Identity::anonymous(Arc::new(["abc".to_owned()].into()));
    let ask = |method: &'static str, uri: &str| server.request(method, uri).identity(anonymous());
    assert_eq!(ask("GET", "/abc/k").send().await.text(), "x");
    ask("GET", "/abc/k?response-content-type=a").send().await.assert_error("InvalidRequest", 400);
    ask("GET", "/abc").send().await.assert_error("AccessDenied", 403);
    ask("GET", "/").send().await.assert_error("AccessDenied", 403);
    ask("GET", "/shut/k").send().await.assert_error("AccessDenied", 403);
    for uri in ["/shut?acl", "/shut/k?acl", "/abc?acl", "/shut?list-type=7", "/shut/k?versionId=1"] {
        ask("GET", uri).send().await.assert_error("AccessDenied", 403);
    }
    let preflight = ask("OPTIONS", "/shut/k").header("origin", "null");
    let preflight = preflight.header("access-control-request-method", "GET").send().await;
    preflight.assert_error("AccessForbidden", 403);
    ask("PUT", "/abc/k").body(&b"y"[..]).send().await.assert_error("AccessDenied", 403);
    ask("DELETE", "/abc/k").send().await.assert_error("AccessDenied", 403);
    assert_eq!(server.send("GET", "/abc/k").await.text(), "x");
}
