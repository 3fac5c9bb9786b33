//! Unsupported and malformed requests are rejected without any effect.

use std::sync::Arc;

use super::TestServer;
use crate::auth::Identity;

#[tokio::test]
async fn unsupported_operations_are_rejected_without_effect() {
    let server = TestServer::with_bucket().await;
    server.put("/abc/k", b"x").await.assert_success();
    for (method, uri) in [
        ("GET", "/abc?versioning"),
        ("GET", "/abc?acl"),
        ("GET", "/abc?cors"),
        ("GET", "/abc?policy"),
        ("GET", "/abc?versions"),
        ("GET", "/abc?object-lock"),
        ("PUT", "/abc?versioning"),
        ("PUT", "/abc?lifecycle"),
        ("DELETE", "/abc?versioning"),
        ("DELETE", "/abc?acl"),
        ("DELETE", "/abc?metadataConfiguration"),
        ("POST", "/abc"),
        ("GET", "/abc/k?acl"),
        ("GET", "/abc/k?torrent"),
        ("GET", "/abc/k?versionId=1"),
        ("PUT", "/abc/k?retention"),
        ("PUT", "/abc/k?renameObject"),
        ("POST", "/abc/k?restore"),
        ("POST", "/abc/k?select&select-type=2"),
        ("DELETE", "/abc/k?acl"),
        ("DELETE", "/abc/k?versionId=1"),
        ("OPTIONS", "/abc/k"),
    ] {
        server.send(method, uri).await.assert_error("NotImplemented", 501);
    }
    for (name, value) in [
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-acl", "public-read"),
        ("x-amz-grant-read", "id=1"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-write-offset-bytes", "1"),
    ] {
        let put = server.request("PUT", "/abc/k").header(name, value).body(&b"y"[..]);
        put.send().await.assert_error("NotImplemented", 501);
    }
    assert_eq!(server.send("GET", "/abc/k").await.text(), "x");
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
    ask("OPTIONS", "/shut/k").send().await.assert_error("NotImplemented", 501);
    ask("PUT", "/abc/k").body(&b"y"[..]).send().await.assert_error("AccessDenied", 403);
    ask("DELETE", "/abc/k").send().await.assert_error("AccessDenied", 403);
    assert_eq!(server.send("GET", "/abc/k").await.text(), "x");
}
