//! Memory of connections that is not part of the request budget.

use std::time::{Duration, Instant};

use super::client::{Client, UNSIGNED, connect_tls, signed, tls_identity};
use super::{TestGateway, config, start_gateway};
use crate::config::GatewayConfig;

/// The first part of an incomplete head, of about 35,000 bytes.
fn unfinished() -> String {
    format!("GET /open/key HTTP/1.1\r\nhost: a\r\nlong: {}", "v".repeat(35_000))
}

/// A budget that gives four slots for large heads.
fn small_memory() -> GatewayConfig {
    GatewayConfig { memory_bytes: 4 << 20, ..config(|_| ()) }
}

/// The number of these connections that are still open.
async fn open(clients: &mut [Client]) -> usize {
    let mut open = 0;
    for client in clients {
        let mut byte = [0; 1];
        let read = client.0.peek(&mut byte);
        open += usize::from(tokio::time::timeout(Duration::from_millis(5), read).await.is_err());
    }
    open
}

async fn with_unfinished(server: &TestGateway, count: usize) -> Vec<Client> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut client = Client::new(server).await;
        let head = unfinished();
        // It may be turned away while it sends.
        let _sent = tokio::io::AsyncWriteExt::write_all(&mut client.0, head.as_bytes()).await;
        all.push(client);
    }
    all
}

#[tokio::test]
async fn the_number_of_large_unfinished_heads_is_limited() {
    let server = start_gateway(small_memory()).await;
    let mut clients = with_unfinished(&server, 100).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(open(&mut clients).await, 4);
    assert_eq!(open(&mut clients[96..]).await, 4, "the latest stay open");
    let started = Instant::now();
    assert_eq!(Client::new(&server).await.request("GET", "/", &[], b"").await.status, 200);
    assert!(started.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn an_unfinished_head_is_turned_away_with_slow_down() {
    let server = start_gateway(small_memory()).await;
    let mut first = with_unfinished(&server, 1).await.remove(0);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let _others = with_unfinished(&server, 4).await;
    let response = first.read_response(false).await.expect("a response");
    assert_eq!((response.status, response.code()), (503, "SlowDown"));
    assert!(first.is_closed().await);
}

#[tokio::test]
async fn a_large_head_is_served_despite_unfinished_ones() {
    let server = start_gateway(small_memory()).await;
    let _clients = with_unfinished(&server, 20).await;
    let mut client = Client::new(&server).await;
    let long = "v".repeat(20_000);
    for _ in 0..3 {
        let response = client.request("GET", "/", &[("x-amz-meta-long", &long)], b"").await;
        assert_eq!(response.status, 200);
    }
}

#[tokio::test]
async fn small_unfinished_heads_need_no_slot() {
    let server = start_gateway(small_memory()).await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = Client::new(&server).await;
        client.send(&unfinished()[..8000]).await;
        clients.push(client);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(open(&mut clients).await, 50);
}

#[tokio::test]
async fn a_head_in_many_fragments_is_served() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    let long = "v".repeat(9000);
    for headers in [&[][..], &[("x-amz-meta-long", long.as_str())]] {
        let (head, _) = signed("GET", "/", headers, UNSIGNED);
        // At the beginning and at the end the pause is long enough for the connection to be parked.
        let (begin, rest) = head.split_at(10);
        let (middle, end) = rest.split_at(rest.len() - 10);
        client.send(begin).await;
        tokio::time::sleep(Duration::from_millis(3200)).await;
        for piece in middle.as_bytes().chunks(1000) {
            client.send(piece).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(3200)).await;
        client.send(end).await;
        assert_eq!(client.read_response(false).await.expect("a response").status, 200);
    }
}

#[tokio::test]
async fn a_parked_connection_serves_further_requests() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/open", &[], b"").await;
    assert_eq!(client.request("PUT", "/open/key", &[], &vec![1; 1 << 20]).await.status, 200);
    assert_eq!(server.gateway.0.buffers.kept_buffers(), 1, "the connection retains its buffer for a while");
    tokio::time::sleep(Duration::from_millis(4500)).await;
    assert_eq!(server.gateway.0.buffers.kept_buffers(), 0);
    assert_eq!(client.request("PUT", "/open/key", &[], &vec![2; 1 << 20]).await.status, 200);
    assert_eq!(client.request("GET", "/open/key", &[], b"").await.body, vec![2; 1 << 20]);
    // A head in two fragments, the second with the beginning of the next request.
    let (head, _) = signed("GET", "/open", &[], UNSIGNED);
    client.send(&head[..20]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.send(format!("{}{}", &head[20..], &head[..20])).await;
    assert_eq!(client.read_response(false).await.unwrap().status, 200);
    client.send(&head[20..]).await;
    assert_eq!(client.read_response(false).await.unwrap().status, 200);
}

#[tokio::test]
async fn grown_buffers_without_permits_are_dropped() {
    let mut config = config(|_| ());
    config.memory_bytes = 500 << 10;
    let server = start_gateway(config).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/open", &[], b"").await;
    for n in 0..5_u8 {
        let body = vec![n; 400_000];
        assert_eq!(client.request("PUT", "/open/key", &[], &body).await.status, 200);
        assert_eq!(client.request("GET", "/open/key", &[], b"").await.body, body);
        assert_eq!(server.gateway.0.buffers.kept_buffers(), 0);
    }
    // Pipelined requests all get a response.
    let (put, _) = signed("PUT", "/open/key", &[("content-length", "100000")], UNSIGNED);
    let (get, _) = signed("GET", "/open/key", &[], UNSIGNED);
    let mut all = put.into_bytes();
    all.extend(vec![9; 100_000]);
    all.extend(get.repeat(3).bytes());
    client.send(all).await;
    assert_eq!(client.read_response(false).await.unwrap().status, 200);
    for _ in 0..3 {
        assert_eq!(client.read_response(false).await.unwrap().body, vec![9; 100_000]);
    }
}

#[tokio::test]
async fn a_parked_connection_closes_at_shutdown() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    assert_eq!(client.request("GET", "/", &[], b"").await.status, 200);
    tokio::time::sleep(Duration::from_millis(4500)).await;
    server.shutdown.cancel();
    assert!(client.is_closed().await);
    tokio::time::timeout(Duration::from_secs(5), server.serve_task).await.expect("the end").unwrap();
}

#[tokio::test]
async fn a_parked_tls_connection_serves_further_requests() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let mut config = config(|_| ());
    config.tls = Some(tls_identity());
    let server = start_gateway(config).await;
    let mut socket = connect_tls(&server).await;
    let (put, _) = signed("PUT", "/open", &[("content-length", "0")], UNSIGNED);
    let (get, _) = signed("GET", "/open/key", &[], UNSIGNED);
    for (head, status) in [(&put, "200"), (&get, "404"), (&get, "404")] {
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut response = vec![0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(5), socket.read(&mut response)).await;
        let read = read.expect("a response").unwrap();
        assert!(response[..read].starts_with(format!("HTTP/1.1 {status}").as_bytes()));
        // The body may arrive separately from the head.
        tokio::time::sleep(Duration::from_millis(2200)).await;
        let _rest = tokio::time::timeout(Duration::from_millis(50), socket.read(&mut response)).await;
        tokio::time::sleep(Duration::from_millis(2200)).await;
    }
}
