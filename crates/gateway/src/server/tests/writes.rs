use super::client::{Client, ClientResponse, UNSIGNED, head_text, signed};
use super::{TestGateway, config, start_gateway};
use crate::sigv4::testing::ClientSignatureChain;
use crate::sigv4::testing::SIGNER;

async fn with_bucket() -> (TestGateway, Client) {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    assert_eq!(client.request("PUT", "/bucket", &[], b"").await.status, 200);
    (server, client)
}

/// Sends a PUT with the given `x-amz-content-sha256` and raw body. Returns its response, and that of a following GET.
async fn put(
    server: &TestGateway,
    payload: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> (ClientResponse, ClientResponse) {
    let mut client = Client::new(server).await;
    client.request("DELETE", "/bucket/key", &[], b"").await;
    let length = body.as_ref().len().to_string();
    let mut all = headers.to_vec();
    all.push(("content-length", &length));
    let (head, _) = signed("PUT", "/bucket/key", &all, payload);
    client.send(head).await;
    client.send(body).await;
    let response = client.read_response(false).await.expect("a response");
    let mut second = Client::new(server).await;
    (response, second.request("GET", "/bucket/key", &[], b"").await)
}

fn sha256(data: &[u8]) -> [u8; 32] {
    ring::digest::digest(&ring::digest::SHA256, data).as_ref().try_into().unwrap()
}

#[tokio::test]
async fn a_signed_hash_is_verified() {
    let (server, _client) = with_bucket().await;
    let body = vec![7; 700_000];
    let right = hex::encode(sha256(&body));
    let (response, found) = put(&server, &right, &[], &body).await;
    assert_eq!((response.status, found.body == body), (200, true));
    let (response, found) = put(&server, &hex::encode([1; 32]), &[], &body).await;
    assert_eq!((response.code(), found.status), ("XAmzContentSHA256Mismatch", 404));
    let (response, found) = put(&server, &hex::encode([1; 32]), &[], "").await;
    assert_eq!((response.code(), found.status), ("XAmzContentSHA256Mismatch", 404));
}

#[tokio::test]
async fn unsigned_chunks_are_verified_by_their_checksum() {
    let (server, _client) = with_bucket().await;
    let word = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
    let headers = [
        ("x-amz-decoded-content-length", "9"),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
        ("content-encoding", "zstd,aws-chunked"),
    ];
    let body = |crc: &str| format!("4\r\n1234\r\n5\r\n56789\r\n0\r\nx-amz-checksum-crc32:{crc}\r\n\r\n");
    let (response, found) = put(&server, word, &headers, body("y/Q5Jg==")).await;
    assert_eq!((response.status, found.text()), (200, "123456789"), "{response:?}");
    assert_eq!(found.header("content-encoding"), Some("zstd"));
    assert_eq!(response.header("x-amz-checksum-crc32"), Some("y/Q5Jg=="));
    for (bad, code) in [
        (body("AAAAAA=="), "BadDigest"),
        (body("y/Q5Jg==").replace("56789", "5678"), "IncompleteBody"),
        (body("y/Q5Jg==").replace("x-amz-checksum-crc32", "x-amz-checksum-crc64"), "MalformedTrailerError"),
        (body("y/Q5Jg==") + "more", "IncompleteBody"),
        ("4\r\n1234\r\n0\r\n\r\n".to_owned(), "IncompleteBody"),
        ("4\r\n1234\r\n5\r\n56789\r\n".to_owned(), "IncompleteBody"),
    ] {
        let (response, found) = put(&server, word, &headers, &bad).await;
        assert_eq!((response.code(), found.status), (code, 404), "{bad:?}");
    }
    let (response, _) = put(&server, word, &headers[1..], body("y/Q5Jg==")).await;
    assert_eq!((response.status, response.code()), (411, "MissingContentLength"));
    for length in ["abc", "12x", "-9", "+9", "9.0", "0x9", "99999999999999999999"] {
        let headers = [("x-amz-decoded-content-length", length), headers[1]];
        let (response, found) = put(&server, word, &headers, body("y/Q5Jg==")).await;
        assert_eq!((response.status, response.code()), (411, "MissingContentLength"), "{length}");
        assert_eq!(found.status, 404);
    }
}

#[tokio::test]
async fn trailers_of_minio_clients_are_accepted() {
    let (server, _client) = with_bucket().await;
    let word = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
    let headers = [("x-amz-decoded-content-length", "9"), ("x-amz-trailer", "x-amz-checksum-crc32")];
    let body = "9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\n\r\n\r\n";
    let (response, found) = put(&server, word, &headers, body).await;
    assert_eq!((response.status, found.text()), (200, "123456789"), "{response:?}");
    let (response, found) = put(&server, word, &headers, body.replace("y/Q5", "z/Q5")).await;
    assert_eq!((response.code(), found.status), ("BadDigest", 404));
    // The last bytes may arrive later. The connection is reused after them.
    for at in [body.len() - 4, body.len() - 2, body.len() - 1] {
        let mut client = Client::new(&server).await;
        let length = body.len().to_string();
        let mut all = headers.to_vec();
        all.push(("content-length", &length));
        client.send(signed("PUT", "/bucket/key", &all, word).0 + &body[..at]).await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        client.send(&body[at..]).await;
        let response = client.read_response(false).await.unwrap();
        assert_eq!((response.status, response.header("connection")), (200, None), "{at}");
        assert_eq!(client.request("GET", "/bucket/key", &[], b"").await.text(), "123456789");
    }
}

#[tokio::test]
async fn a_checksum_in_the_query_is_not_enforced() {
    let (server, _client) = with_bucket().await;
    // As the AWS SDK for JavaScript signs it: the checksum of an empty body.
    let target =
        "/bucket/key?x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32&x-id=PutObject";
    for (header, status) in
        [(None, 200), (Some("y/Q5Jg=="), 200), (Some("AAAAAA=="), 400), (Some("z/Q5Jg=="), 400)]
    {
        let mut request = http::Request::put(target).header("host", "localhost");
        if let Some(value) = header {
            request = request.header("x-amz-checksum-crc32", value);
        }
        let mut request = request.body(()).unwrap();
        SIGNER.presign(&mut request, "60");
        let length = http::HeaderValue::from_static("9");
        request.headers_mut().insert("content-length", length);
        let mut client = Client::new(&server).await;
        client.send(head_text(&request) + "123456789").await;
        let response = client.read_response(false).await.unwrap();
        assert_eq!(response.status, status, "{header:?} {response:?}");
        if status != 200 {
            assert_eq!(response.code(), "BadDigest");
        }
    }
    assert_eq!(Client::new(&server).await.request("GET", "/bucket/key", &[], b"").await.text(), "123456789");
}

#[tokio::test]
async fn signed_chunks_are_verified() {
    let (server, mut client) = with_bucket().await;
    let data = vec![b'a'; 300_000];
    for flipped_at in [None, Some(100), Some(200_500), Some(299_999)] {
        client.request("DELETE", "/bucket/key", &[], b"").await;
        let decoded = data.len().to_string();
        let chunks = [&data[..200_000], &data[200_000..], &[]];
        let framing = |chunk: &[u8]| format!("{:x};chunk-signature=", chunk.len()).len() + 64 + 4;
        let length: usize = chunks.iter().map(|chunk| chunk.len() + framing(chunk)).sum();
        let length = length.to_string();
        let headers = [("content-length", length.as_str()), ("x-amz-decoded-content-length", &decoded)];
        let (head, seed) = signed("PUT", "/bucket/key", &headers, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
        let mut signatures = ClientSignatureChain::new(SIGNER.secret, SIGNER.date, &SIGNER.scope(), &seed);
        let mut body = Vec::new();
        for chunk in chunks {
            let signature = signatures.sign("PAYLOAD", &sha256(chunk));
            body.extend_from_slice(format!("{:x};chunk-signature={signature}\r\n", chunk.len()).as_bytes());
            body.extend_from_slice(chunk);
            body.extend_from_slice(b"\r\n");
        }
        assert_eq!(body.len().to_string(), length);
        if let Some(at) = flipped_at {
            // After the first chunk's header, or after both.
            let at =
                at + framing(&data[..200_000]) - 2 + if at < 200_000 { 0 } else { framing(&data[200_000..]) };
            assert_eq!(body[at], b'a');
            body[at] = b'b';
        }
        let mut sender = Client::new(&server).await;
        sender.send(head).await;
        sender.send(&body).await;
        let response = sender.read_response(false).await.unwrap();
        let found = client.request("GET", "/bucket/key", &[], b"").await;
        match flipped_at {
            None => assert_eq!((response.status, found.body == data), (200, true), "{response:?}"),
            Some(_) => assert_eq!((response.code(), found.status), ("SignatureDoesNotMatch", 404)),
        }
    }
}

#[tokio::test]
async fn an_aborted_upload_stores_nothing_and_frees_its_memory() {
    let (server, mut client) = with_bucket().await;
    let (head, _) = signed("PUT", "/bucket/key", &[("content-length", "1000")], UNSIGNED);
    let mut gone = Client::new(&server).await;
    gone.send(head).await;
    gone.send([1; 999]).await;
    drop(gone);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(client.request("GET", "/bucket/key", &[], b"").await.status, 404);
    assert_eq!(server.gateway.budget().free(), server.gateway.budget().capacity());
}

#[tokio::test]
async fn an_error_is_received_while_a_large_body_is_in_flight() {
    let (server, _client) = with_bucket().await;
    let (head, _) = signed("PUT", "/bucket/key", &[("content-length", "8000000")], UNSIGNED);
    let mut client = Client::new(&server).await;
    client.send(head.replace("Signature=", "Signature=0")).await;
    client.send(vec![0; 8_000_000]).await;
    let response = client.read_response(false).await.expect("the response, not a connection reset");
    assert_eq!((response.status, response.header("connection")), (403, Some("close")));
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_small_rejected_body_keeps_the_connection_open() {
    let (_house, mut client) = with_bucket().await;
    for _ in 0..3 {
        let absent = client.request("PUT", "/absent-bucket/key", &[], b"small").await;
        assert_eq!(absent.code(), "NoSuchBucket");
    }
}

#[tokio::test]
async fn expect_continue_is_answered_only_for_a_wanted_body() {
    let (server, _client) = with_bucket().await;
    let headers = [("content-length", "4"), ("expect", "100-continue")];
    let (head, _) = signed("PUT", "/bucket/key", &headers, UNSIGNED);
    let mut client = Client::new(&server).await;
    client.send(&head).await;
    assert_eq!(client.read_response(true).await.unwrap().status, 100);
    client.send("text").await;
    assert_eq!(client.read_response(false).await.unwrap().status, 200);
    // Without a body the response is sent at once, and the connection closes after it.
    let headers = [("content-length", "0"), ("expect", "100-continue")];
    let (empty, _) = signed("PUT", "/bucket/empty", &headers, UNSIGNED);
    let mut client = Client::new(&server).await;
    client.send(empty).await;
    let response = client.read_response(false).await.unwrap();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    // Rejected before the body was requested.
    let mut client = Client::new(&server).await;
    client.send(head.replace("Signature=", "Signature=0")).await;
    let response = client.read_response(false).await.unwrap();
    assert_eq!((response.status, response.header("connection")), (403, Some("close")));
}

#[tokio::test]
async fn too_large_bodies_are_rejected_before_they_are_read() {
    let server = start_gateway(config(|limits| limits.body_bytes = 1000)).await;
    let mut client = Client::new(&server).await;
    let (head, _) = signed("PUT", "/bucket/key", &[("content-length", "1001")], UNSIGNED);
    client.send(head).await;
    assert_eq!(client.read_response(false).await.unwrap().code(), "EntityTooLarge");
}
