use http::Request;

use super::client::{Client, connect_tls, head_text, signed, tls_identity};
use super::{config, start_gateway};
use crate::sigv4::testing::SIGNER;

/// A header that the fast path leaves to the operations, and that does not change the response.
const BY_OPERATIONS: (&str, &str) = ("if-unmodified-since", "Fri, 31 Dec 2100 00:00:00 GMT");

#[tokio::test]
async fn fast_path_and_operations_return_equal_responses() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    assert_eq!(client.request("PUT", "/bucket", &[], b"").await.status, 200);
    let rich = [
        ("content-type", "text/plain"),
        ("content-encoding", "zstd"),
        ("content-language", "de"),
        ("content-disposition", "attachment"),
        ("cache-control", "max-age=5"),
        ("expires", "Fri, 31 Dec 2100 00:00:00 GMT"),
        ("x-amz-meta-a", "1"),
        ("x-amz-meta-b", "two words"),
        ("x-amz-tagging", "k=v&l=w"),
        ("x-dss-object-class", "25"),
    ];
    assert_eq!(client.request("PUT", "/bucket/rich", &rich, b"0123456789").await.status, 200);
    assert_eq!(client.request("PUT", "/bucket/poor", &[], b"0123456789").await.status, 200);
    assert_eq!(client.request("PUT", "/bucket/empty", &[], b"").await.status, 200);
    let versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    assert_eq!(client.request("PUT", "/bucket?versioning", &[], versioning).await.status, 200);
    assert_eq!(client.request("PUT", "/bucket/versioned", &[], b"0123456789").await.status, 200);
    assert_eq!(client.request("DELETE", "/bucket/hidden", &[], b"").await.status, 204);
    let mut compared = 0;
    for method in ["GET", "HEAD"] {
        for key in ["rich", "poor", "empty", "versioned", "hidden", "absent"] {
            for more in [
                None,
                Some(("range", "bytes=2-4")),
                Some(("range", "bytes=-3")),
                Some(("range", "bytes=99-")),
                Some(("range", "nonsense")),
                Some(("if-none-match", "*")),
                Some(("if-match", "\"x\"")),
                Some(("x-amz-checksum-mode", "ENABLED")),
            ] {
                let target = format!("/bucket/{key}");
                let headers: Vec<_> = more.into_iter().collect();
                let fast = client.request(method, &target, &headers, b"").await;
                let headers: Vec<_> = more.into_iter().chain([BY_OPERATIONS]).collect();
                let slow = client.request(method, &target, &headers, b"").await;
                let own = ["x-amz-request-id", "date"];
                let shown = |response: &super::client::ClientResponse| {
                    let mut headers = response.headers.clone();
                    headers.retain(|(name, _)| !own.contains(&name.as_str()));
                    headers.sort();
                    headers
                };
                assert_eq!(
                    (fast.status, shown(&fast)),
                    (slow.status, shown(&slow)),
                    "{method} {key} {more:?}"
                );
                if fast.status < 300 {
                    assert_eq!(fast.body, slow.body);
                    let is_null = fast.header("x-amz-version-id").unwrap() == "null";
                    assert_eq!(is_null, key != "versioned", "{method} {key}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared >= 16, "only {compared} responses were compared");
    let text = crate::metrics::to_text(server.gateway.metrics());
    assert!(text.contains("tradewind_s3_requests_total{operation=\"GetObject\",status=\"2xx\"}"), "{text}");
}

#[tokio::test]
async fn every_response_has_a_request_id_and_errors_are_xml() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    let absent = client.request("GET", "/absent/key", &[], b"").await;
    assert_eq!((absent.status, absent.code()), (404, "NoSuchBucket"));
    let id = absent.header("x-amz-request-id").unwrap();
    assert!(absent.text().contains(&format!("<RequestId>{id}</RequestId>")));
    assert!(absent.header("x-amz-id-2").is_some() && absent.header("server").is_some());
    let head = client.request("HEAD", "/absent/key", &[], b"").await;
    assert_eq!((head.status, head.body.len()), (404, 0));
    assert_ne!(head.header("x-amz-request-id").unwrap(), id);
}

#[tokio::test]
async fn anonymous_and_presigned_reads_are_checked() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    for bucket in ["open", "closed"] {
        client.request("PUT", &format!("/{bucket}"), &[], b"").await;
        client.request("PUT", &format!("/{bucket}/key"), &[], b"text").await;
    }
    let plain = async |client: &mut Client, method: &str, target: &str| {
        client
            .send(format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"))
            .await;
        client.read_response(false).await.unwrap()
    };
    assert_eq!(plain(&mut client, "GET", "/open/key").await.body, b"text");
    for (method, target) in [
        ("GET", "/closed/key"),
        ("GET", "/open"),
        ("GET", "/"),
        ("PUT", "/open/key"),
        ("DELETE", "/open/key"),
        ("POST", "/open?delete"),
    ] {
        let rejected = plain(&mut client, method, target).await;
        assert_eq!((rejected.status, rejected.code()), (403, "AccessDenied"), "{method} {target}");
    }
    let mut request = Request::get("/closed/key").header("host", "localhost").body(()).unwrap();
    SIGNER.presign(&mut request, "60");
    client.send(head_text(&request)).await;
    assert_eq!(client.read_response(false).await.unwrap().body, b"text");
    let altered = head_text(&request).replace("/closed/key", "/closed/kez");
    client.send(altered).await;
    assert_eq!(client.read_response(false).await.unwrap().code(), "SignatureDoesNotMatch");
}

#[tokio::test]
async fn a_wrong_hash_of_an_empty_body_is_rejected() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    client.request("PUT", "/bucket/key", &[], b"text").await;
    let (head, _) = signed("GET", "/bucket/key", &[], &"0".repeat(64));
    client.send(head).await;
    assert_eq!(client.read_response(false).await.unwrap().code(), "XAmzContentSHA256Mismatch");
}

#[tokio::test]
async fn requests_over_tls_are_served() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let mut config = config(|_| ());
    config.tls = Some(tls_identity());
    let server = start_gateway(config).await;
    let mut socket = connect_tls(&server).await;
    let (head, _) = signed("GET", "/", &[("connection", "close")], super::client::UNSIGNED);
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    let _end = socket.read_to_string(&mut response).await;
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("ListAllMyBucketsResult"),
        "{response}"
    );
    // Plain HTTP on the TLS port gets no response and does no harm.
    let mut plain = Client::new(&server).await;
    plain.send("GET / HTTP/1.1\r\n\r\n").await;
    assert!(plain.read_response(false).await.is_none_or(|response| response.status == 400));
}
