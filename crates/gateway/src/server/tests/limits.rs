use std::sync::Arc;
use std::time::{Duration, Instant};

use tradewind_core::SystemClock;
use tradewind_core::context::Deadline;

use super::client::{Client, UNSIGNED, signed, tls_identity};
use super::{TestGateway, config, start_gateway};

const SHORT: Duration = Duration::from_millis(200);

/// A connection in the middle of a PUT.
async fn busy(server: &TestGateway) -> Client {
    let mut client = Client::new(server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    let (head, _) = signed("PUT", "/bucket/key", &[("content-length", "4")], UNSIGNED);
    client.send(head).await;
    client.send("te").await;
    tokio::time::sleep(SHORT).await;
    client
}

#[tokio::test]
async fn connections_over_the_limit_are_rejected_with_slow_down() {
    let server = start_gateway(config(|limits| limits.connections = 1)).await;
    let mut first = busy(&server).await;
    let mut second = Client::new(&server).await;
    let response = second.read_response(false).await.unwrap();
    assert_eq!((response.status, response.code()), (503, "SlowDown"));
    assert!(second.is_closed().await);
    first.send("xt").await;
    assert_eq!(first.read_response(false).await.unwrap().status, 200);
    drop(first);
    tokio::time::sleep(SHORT).await;
    assert_eq!(Client::new(&server).await.request("GET", "/", &[], b"").await.status, 200);
}

#[tokio::test]
async fn an_idle_connection_is_evicted_for_a_new_one() {
    let server = start_gateway(config(|limits| limits.connections = 3)).await;
    let mut first = busy(&server).await;
    for _ in 0..20 {
        let mut client = Client::new(&server).await;
        assert_eq!(client.request("GET", "/", &[], b"").await.status, 200);
        // The client does not close the connection.
        std::mem::forget(client);
    }
    first.send("xt").await;
    assert_eq!(first.read_response(false).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_tls_client_over_the_limit_gets_no_plain_text() {
    let mut config = config(|limits| limits.connections = 1);
    config.tls = Some(tls_identity());
    let server = start_gateway(config).await;
    let _first = Client::new(&server).await;
    tokio::time::sleep(SHORT).await;
    assert!(Client::new(&server).await.is_closed().await);
}

#[tokio::test]
async fn a_denied_request_neither_waits_for_memory_nor_holds_any() {
    let server = start_gateway(config(|limits| limits.admission_time = SHORT)).await;
    let budget = server.gateway.budget();
    let none = Deadline::none(SystemClock::shared());
    let _all = budget.admit(budget.capacity(), &none).await.unwrap();
    for target in ["/private/key", "/private?acl", "/open?uploads"] {
        let mut client = Client::new(&server).await;
        client.send(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let response = client.read_response(false).await.unwrap();
        assert_eq!((response.status, response.code()), (403, "AccessDenied"), "{target}");
    }
    assert_eq!(budget.total_waits(), 0);
    let response = Client::new(&server).await.request("GET", "/", &[], b"").await;
    assert_eq!((response.status, response.code()), (503, "SlowDown"), "a permitted request waits");
}

#[tokio::test]
async fn a_rejected_request_holds_no_memory_while_it_drains() {
    let mut config = config(|limits| limits.admission_time = SHORT / 4);
    config.memory_bytes = 64 << 10;
    let server = start_gateway(config).await;
    // Neither client sends the body that the server drains before it responds.
    let (head, _) = signed("GET", "/missing/key", &[("content-length", "10")], UNSIGNED);
    let mut first = Client::new(&server).await;
    first.send(&head).await;
    tokio::time::sleep(SHORT / 8).await;
    let mut second = Client::new(&server).await;
    second.send(&head).await;
    assert_eq!(second.read_response(false).await.unwrap().code(), "NoSuchBucket");
    assert_eq!(first.read_response(false).await.unwrap().code(), "NoSuchBucket");
}

#[tokio::test]
async fn a_slow_xml_body_ends_at_the_deadline() {
    let server = start_gateway(config(|limits| limits.request_time = SHORT)).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    let headers = [("content-length", "1000"), ("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")];
    let (head, _) = signed("POST", "/bucket?delete", &headers, UNSIGNED);
    client.send(head + "<Delete>").await;
    assert_eq!(client.read_response(false).await.unwrap().code(), "ServiceUnavailable");
}

#[tokio::test]
async fn an_unfinished_head_is_rejected_at_its_limit() {
    let server = start_gateway(config(|limits| limits.header_bytes = 2000)).await;
    let mut client = Client::new(&server).await;
    client.send(format!("GET / HTTP/1.1\r\nlong: {}", "v".repeat(7000))).await;
    let response = client.read_response(false).await.expect("a response before the end of the head");
    assert_eq!((response.status, response.code()), (431, "RequestHeaderSectionTooLarge"));
}

#[tokio::test]
async fn too_many_query_parameters_are_rejected() {
    let server = start_gateway(config(|_| ())).await;
    let many: Vec<String> = (0..101).map(|n| format!("{n}=")).collect();
    let mut client = Client::new(&server).await;
    for (target, code) in [("/open/key", "InvalidArgument"), ("/private", "AccessDenied")] {
        client.send(format!("GET {target}?{} HTTP/1.1\r\nhost: a\r\n\r\n", many.join("&"))).await;
        assert_eq!(client.read_response(false).await.unwrap().code(), code);
    }
}

#[tokio::test]
async fn slow_headers_and_idle_connections_are_closed() {
    let server = start_gateway(config(|limits| {
        limits.header_time = SHORT;
        limits.idle_time = 3 * SHORT;
    }))
    .await;
    let started = Instant::now();
    let mut slow = Client::new(&server).await;
    slow.send("GET / HTTP/1.1\r\nhost:").await;
    assert!(slow.is_closed().await);
    assert!(started.elapsed() < 10 * SHORT);
    let text = crate::metrics::to_text(server.gateway.metrics());
    assert!(text.contains("tradewind_s3_slow_clients_total 1\n"), "{text}");
    let mut idle = Client::new(&server).await;
    assert_eq!(idle.request("GET", "/", &[], b"").await.status, 200);
    assert!(idle.is_closed().await);
    let text = crate::metrics::to_text(server.gateway.metrics());
    assert!(text.contains("tradewind_s3_slow_clients_total 1\n"), "an idle client is not slow: {text}");
}

#[tokio::test]
async fn an_unfinished_tls_handshake_is_closed_and_counted() {
    let mut config = config(|limits| limits.header_time = SHORT);
    config.tls = Some(tls_identity());
    let server = start_gateway(config).await;
    let mut silent = Client::new(&server).await;
    assert!(silent.is_closed().await);
    let text = crate::metrics::to_text(server.gateway.metrics());
    assert!(text.contains("tradewind_s3_slow_clients_total 1\n"), "{text}");
}

#[tokio::test]
async fn a_stalled_body_gets_a_timeout_and_frees_its_memory() {
    let server = start_gateway(config(|limits| limits.slow_client_time = SHORT)).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    let (head, _) = signed("PUT", "/bucket/key", &[("content-length", "1000000")], UNSIGNED);
    client.send(head).await;
    client.send([0; 1000]).await;
    let response = client.read_response(false).await.unwrap();
    assert_eq!((response.status, response.code()), (400, "RequestTimeout"));
    assert!(client.is_closed().await);
    assert_eq!(server.gateway.budget().free(), server.gateway.budget().capacity());
}

#[tokio::test]
async fn a_slow_reader_loses_its_connection_and_its_memory() {
    let server = start_gateway(config(|limits| limits.slow_client_time = SHORT)).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    assert_eq!(client.request("PUT", "/bucket/key", &[], &vec![1; 32 << 20]).await.status, 200);
    // The client has a small receive buffer.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut client = Client(socket.connect(server.address).await.unwrap());
    let (head, _) = signed("GET", "/bucket/key", &[], UNSIGNED);
    client.send(head).await;
    let full = server.gateway.budget().capacity();
    let started = Instant::now();
    let mut was_held = false;
    while started.elapsed() < 50 * SHORT {
        tokio::time::sleep(SHORT / 10).await;
        let free = server.gateway.budget().free();
        was_held |= free < full;
        if was_held && free == full {
            return;
        }
    }
    panic!("the stalled reader still holds memory");
}

#[tokio::test]
async fn heads_over_the_limits_are_rejected() {
    let server = start_gateway(config(|limits| {
        limits.header_bytes = 2000;
        limits.headers = 16;
    }))
    .await;
    let mut client = Client::new(&server).await;
    let long = "v".repeat(2000);
    let response = client.request("GET", "/", &[("x-amz-meta-long", &long)], b"").await;
    assert_eq!((response.status, response.code()), (400, "RequestHeaderSectionTooLarge"));
    let mut client = Client::new(&server).await;
    let many: String = (0..20).map(|n| format!("h{n}: v\r\n")).collect();
    client.send(format!("GET / HTTP/1.1\r\n{many}\r\n")).await;
    let response = client.read_response(false).await.unwrap();
    assert_eq!((response.status, response.code()), (431, "RequestHeaderSectionTooLarge"));
    assert!(client.is_closed().await);
    // After another response.
    let mut client = Client::new(&server).await;
    assert_eq!(client.request("GET", "/", &[], b"").await.status, 200);
    client.send(format!("GET / HTTP/1.1\r\n{many}\r\n")).await;
    let response = client.read_response(false).await.unwrap();
    assert_eq!((response.status, response.code()), (431, "RequestHeaderSectionTooLarge"));
    let mut client = Client::new(&server).await;
    client.send("nonsense\r\n\r\n").await;
    assert!(client.read_response(false).await.is_none_or(|response| response.status == 400));
}

/// An object may have the bytes of the response that the connection replaces.
#[tokio::test]
async fn an_object_that_looks_like_a_rejection_is_unchanged() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    let text = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\r\n";
    let mut large = vec![b'x'; 1 << 20];
    for at in (0..large.len() - text.len()).step_by(4096) {
        large[at..at + text.len()].copy_from_slice(text);
    }
    for body in [text.as_slice(), &large] {
        assert_eq!(client.request("PUT", "/bucket/key", &[], body).await.status, 200);
        assert!(client.request("GET", "/bucket/key", &[], b"").await.body == body);
        let range = [("range", "bytes=0-59")];
        assert!(client.request("GET", "/bucket/key", &range, b"").await.body == body[..60]);
    }
}

#[tokio::test]
async fn many_small_metadata_headers_are_accepted() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    let names: Vec<String> = (0..96).map(|n| format!("x-amz-meta-name{n}")).collect();
    let mut headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "value")).collect();
    // Those that clients add by themselves.
    let others: Vec<String> = (0..20).map(|n| format!("other{n}")).collect();
    headers.extend(others.iter().map(|name| (name.as_str(), "v")));
    assert_eq!(client.request("PUT", "/bucket/key", &headers, b"text").await.status, 200);
    let found = client.request("GET", "/bucket/key", &[], b"").await;
    assert_eq!(found.headers.iter().filter(|(name, _)| name.starts_with("x-amz-meta-")).count(), 96);
}

/// A preflight has no credentials, or those in the query of a URL that is signed for another method.
#[tokio::test]
async fn a_preflight_needs_no_signature() {
    let server = start_gateway(config(|_| ())).await;
    Client::new(&server).await.request("PUT", "/bucket", &[], b"").await;
    for target in [
        "/bucket/key",
        "/bucket/key?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=0",
        "/bucket/key?AWSAccessKeyId=a&Signature=b&Expires=1",
    ] {
        let mut client = Client::new(&server).await;
        let head = "host: a\r\norigin: https://a.example\r\naccess-control-request-method: PUT";
        client.send(format!("OPTIONS {target} HTTP/1.1\r\n{head}\r\n\r\n")).await;
        let response = client.read_response(false).await.unwrap();
        assert_eq!((response.status, response.code()), (403, "AccessForbidden"), "{target}");
        assert!(response.text().contains("CORSResponse: CORS is not enabled for this bucket."));
    }
    let mut client = Client::new(&server).await;
    for (target, head, status, code) in [
        ("/missing/key", "origin: a\r\naccess-control-request-method: GET", 404, "NoSuchBucket"),
        ("/bucket/key", "access-control-request-method: GET", 400, "BadRequest"),
        ("/bucket/key", "origin: a\r\naccess-control-request-method: PATCH", 400, "BadRequest"),
        ("/a_b", "origin: a\r\naccess-control-request-method: GET", 400, "InvalidBucketName"),
    ] {
        client.send(format!("OPTIONS {target} HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n")).await;
        let response = client.read_response(false).await.unwrap();
        assert_eq!((response.status, response.code()), (status, code), "{target} {head}");
    }
}

/// Without a signature, a request is denied before anything else is wrong with it.
#[tokio::test]
async fn anonymous_requests_are_denied_first() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    for (request, code) in [
        (
            "PUT /bucket/key HTTP/1.1\r\nhost: a\r\nx-amz-content-sha256: none\r\ncontent-length: 0",
            "AccessDenied",
        ),
        ("GET /shut/key HTTP/1.1\r\nhost: a\r\nx-amz-content-sha256: none", "AccessDenied"),
        ("GET /open/key HTTP/1.1\r\nhost: a\r\nx-amz-content-sha256: none", "InvalidArgument"),
        ("PATCH /open/key HTTP/1.1\r\nhost: a", "AccessDenied"),
        ("GET /a_b HTTP/1.1\r\nhost: a", "AccessDenied"),
        ("GET /open?max-keys=1&max-keys=2 HTTP/1.1\r\nhost: a", "AccessDenied"),
        ("GET /open/%ZZ HTTP/1.1\r\nhost: a", "InvalidURI"),
        ("GET /open/key HTTP/1.1\r\nhost: a\r\nx-amz-trailer: x-amz-checksum-none", "InvalidRequest"),
        ("GET /shut/key HTTP/1.1\r\nhost: a\r\nx-amz-trailer: x-amz-checksum-none", "AccessDenied"),
        // A malformed signature is one.
        ("GET /shut/key?X-Amz-Algorithm=none HTTP/1.1\r\nhost: a", "AuthorizationQueryParametersError"),
    ] {
        client.send(format!("{request}\r\n\r\n")).await;
        assert_eq!(client.read_response(false).await.unwrap().code(), code, "{request}");
    }
}

#[tokio::test]
async fn a_form_upload_is_not_implemented() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    let send = |media_type: &str| {
        format!(
            "POST /bucket HTTP/1.1\r\nhost: a\r\ncontent-type: {media_type}\r\ncontent-length: 4\r\n\r\ntext"
        )
    };
    client.send(send("multipart/form-data; boundary=b")).await;
    let response = client.read_response(false).await.unwrap();
    assert_eq!((response.status, response.code()), (501, "NotImplemented"));
    client.send(send("text/plain")).await;
    let response = client.read_response(false).await.unwrap();
    assert_eq!((response.status, response.code()), (412, "PreconditionFailed"));
}

#[tokio::test]
async fn shutdown_finishes_requests_in_flight() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    let (head, _) = signed("PUT", "/bucket/key", &[("content-length", "4")], UNSIGNED);
    client.send(head).await;
    client.send("te").await;
    let idle = Client::new(&server).await;
    tokio::time::sleep(SHORT).await;
    server.shutdown.cancel();
    tokio::time::sleep(SHORT).await;
    assert!(!server.serve_task.is_finished(), "a request is in flight");
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err(), "the listener is closed");
    client.send("xt").await;
    assert_eq!(client.read_response(false).await.unwrap().status, 200);
    assert!(client.is_closed().await);
    drop(idle);
    tokio::time::timeout(20 * SHORT, server.serve_task).await.expect("the end").unwrap();
}

#[tokio::test]
async fn shutdown_does_not_exceed_the_grace_time() {
    let server = start_gateway(config(|limits| limits.grace_time = SHORT)).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    let (head, _) = signed("PUT", "/bucket/key", &[("content-length", "4")], UNSIGNED);
    client.send(head).await;
    tokio::time::sleep(SHORT).await;
    let started = Instant::now();
    server.shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(10), server.serve_task).await.expect("the end").unwrap();
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_budget_of_one_window_serves_many_clients() {
    let mut config = config(|_| ());
    config.memory_bytes = 512 << 10;
    let server = Arc::new(start_gateway(config).await);
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    client.request("PUT", "/bucket/key", &[], &vec![1; 300_000]).await;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let server = server.clone();
        all.spawn(async move {
            let mut client = Client::new(&server).await;
            for _ in 0..4 {
                assert_eq!(client.request("GET", "/bucket/key", &[], b"").await.body.len(), 300_000);
            }
        });
    }
    assert_eq!(tokio::time::timeout(Duration::from_secs(60), all.join_all()).await.unwrap().len(), 32);
}

#[tokio::test]
async fn a_small_range_with_a_large_head_is_served() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    assert_eq!(client.request("PUT", "/bucket", &[], b"").await.status, 200);
    assert_eq!(client.request("PUT", "/bucket/key", &[], &vec![1; 100 << 10]).await.status, 200);
    let long = "v".repeat(9 << 10);
    let headers = [("range", "bytes=0-99"), ("x-long", long.as_str())];
    let response = client.request("GET", "/bucket/key", &headers, b"").await;
    assert_eq!((response.status, response.body.len()), (206, 100));
}
