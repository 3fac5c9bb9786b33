//! Presigned URLs of Signature Version 2, from the socket to the store.

use tradewind_core::{Algorithm, Checksum};

use super::client::{Client, ClientResponse};
use super::{TestGateway, config, start_gateway};
use crate::config::GatewayConfig;
use crate::sigv4::testing::{SIGNED_AT, SIGNER};

async fn send(server: &TestGateway, method: &str, url: &str, headers: &str, body: &str) -> ClientResponse {
    let mut client = Client::new(server).await;
    let length = body.len();
    let head =
        format!("{method} {url} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{headers}\r\n");
    client.send(head + body).await;
    client.read_response(method == "HEAD").await.unwrap()
}

fn presigned(method: &str, target: &str, head: &str, signed: &str) -> String {
    SIGNER.presign_v2(method, target, (head, signed), SIGNED_AT + 60)
}

#[tokio::test]
async fn an_object_is_written_and_read_by_presigned_urls() {
    let server = start_gateway(config(|_| ())).await;
    Client::new(&server).await.request("PUT", "/bucket", &[], b"").await;
    // As boto3 signs it: with headers in the query.
    let target = "/bucket/a%20key?x-amz-meta-color=red&content-type=text%2Fplain";
    let put = presigned("PUT", target, "\ntext/plain", "x-amz-meta-color:red\n/bucket/a%20key");
    assert_eq!(send(&server, "PUT", &put, "", "text").await.status, 200);
    let target = "/bucket/a%20key?response-content-disposition=attachment%3B%20filename%3Da.txt";
    let signed = "/bucket/a%20key?response-content-disposition=attachment; filename=a.txt";
    let get = presigned("GET", target, "\n", signed);
    let found = send(&server, "GET", &get, "", "").await;
    assert_eq!((found.status, found.text()), (200, "text"));
    assert_eq!(found.header("content-disposition"), Some("attachment; filename=a.txt"));
    assert_eq!(
        (found.header("content-type"), found.header("x-amz-meta-color")),
        (Some("text/plain"), Some("red"))
    );
    let range = send(&server, "GET", &get, "range: bytes=1-2\r\n", "").await;
    assert_eq!((range.status, range.text()), (206, "ex"));
    let head = presigned("HEAD", "/bucket/a%20key", "\n", "/bucket/a%20key");
    assert_eq!(send(&server, "HEAD", &head, "", "").await.status, 200);
    // A URL for one request allows no other.
    for (method, url, code) in [
        ("PUT", get.clone(), "SignatureDoesNotMatch"),
        ("DELETE", get.clone(), "InvalidRequest"),
        ("GET", get.replace("a.txt", "b.txt"), "SignatureDoesNotMatch"),
        ("GET", get.replace("/bucket/a%20key", "/bucket"), "SignatureDoesNotMatch"),
        ("GET", format!("{get}&tagging"), "SignatureDoesNotMatch"),
        ("GET", format!("{get}&unknown=1"), "AccessDenied"),
    ] {
        let response = send(&server, method, &url, "", "").await;
        assert_eq!(response.code(), code, "{method} {url}");
    }
    let changed = send(&server, "PUT", &put, "content-type: text/html\r\n", "evil").await;
    assert_eq!(changed.code(), "SignatureDoesNotMatch");
    assert_eq!(send(&server, "GET", &get, "", "").await.text(), "text");
    let list = presigned("GET", "/bucket?list-type=2&encoding-type=url", "\n", "/bucket");
    assert!(send(&server, "GET", &list, "", "").await.text().contains("<Key>a%20key</Key>"));
    assert_eq!(send(&server, "GET", &format!("{list}&prefix=a"), "", "").await.code(), "AccessDenied");
}

/// The signed text is the same, wherever the digest is.
#[tokio::test]
async fn a_signed_digest_is_enforced_in_the_query() {
    let server = start_gateway(config(|_| ())).await;
    Client::new(&server).await.request("PUT", "/bucket", &[], b"").await;
    let sha256 = hex::encode(tradewind_wire::sigv4::sha256(b"text"));
    let crc32 = Checksum::compute(Algorithm::Crc32, b"text").to_base64();
    let put = |name: &str, value: &str| {
        presigned("PUT", "/bucket/key", "\n", &format!("{name}:{value}\n/bucket/key"))
    };
    for (name, value, header_code, query_code) in [
        ("x-amz-content-sha256", sha256.as_str(), "XAmzContentSHA256Mismatch", "InvalidRequest"),
        ("x-amz-checksum-crc32", crc32.as_str(), "BadDigest", "BadDigest"),
    ] {
        let url = put(name, value);
        let in_header = send(&server, "PUT", &url, &format!("{name}: {value}\r\n"), "evil").await;
        assert_eq!(in_header.code(), header_code, "{name}");
        let in_query = format!("{url}&{name}={}", value.replace('=', "%3D").replace('+', "%2B"));
        assert_eq!(send(&server, "PUT", &in_query, "", "evil").await.code(), query_code, "{name}");
    }
    let get = presigned("GET", "/bucket/key", "\n", "/bucket/key");
    assert_eq!(send(&server, "GET", &get, "", "").await.status, 404);
    let url = put("x-amz-checksum-crc32", &crc32);
    let in_query = format!("{url}&x-amz-checksum-crc32={}", crc32.replace('=', "%3D").replace('+', "%2B"));
    assert_eq!(send(&server, "PUT", &in_query, "", "text").await.status, 200);
}

/// boto3 signs the name without having a body. In a header, S3 requires a checksum with it.
#[tokio::test]
async fn a_signed_algorithm_in_the_query_needs_no_digest() {
    let server = start_gateway(config(|_| ())).await;
    Client::new(&server).await.request("PUT", "/bucket", &[], b"").await;
    let signed = "x-amz-sdk-checksum-algorithm:CRC32\n/bucket/key";
    let url = presigned("PUT", "/bucket/key", "\n", signed);
    let in_header = send(&server, "PUT", &url, "x-amz-sdk-checksum-algorithm: CRC32\r\n", "text").await;
    assert_eq!(in_header.code(), "InvalidRequest");
    let in_query = format!("{url}&x-amz-sdk-checksum-algorithm=CRC32");
    assert_eq!(send(&server, "PUT", &in_query, "", "text").await.status, 200);
    let changed = in_query.replace("=CRC32", "=SHA256");
    assert_eq!(send(&server, "PUT", &changed, "", "text").await.code(), "SignatureDoesNotMatch");
}

#[tokio::test]
async fn presigned_urls_of_version_2_can_be_switched_off() {
    let server = start_gateway(GatewayConfig { presigned_sigv2: false, ..config(|_| ()) }).await;
    Client::new(&server).await.request("PUT", "/bucket", &[], b"").await;
    let url = presigned("GET", "/bucket/key", "\n", "/bucket/key");
    let response = send(&server, "GET", &url, "", "").await;
    assert_eq!((response.status, response.code()), (400, "InvalidRequest"));
    assert!(response.text().contains("Please use AWS4-HMAC-SHA256."));
}
