//! Clients that hold memory without progress, together with a well-behaved one.

use std::time::{Duration, Instant};

use super::client::{Client, UNSIGNED, signed, signed_by};
use super::{OTHER_SIGNER, TestGateway, config, start_gateway};
use crate::config::GatewayConfig;

/// The longest time that a well-behaved request may take despite the others.
const MAX_TIME: Duration = Duration::from_secs(1);

const HERE: [u8; 4] = [127, 0, 0, 1];
const THERE: [u8; 4] = [127, 0, 0, 2];

/// More than the kernel buffers of a response.
const LARGE_BYTES: usize = 16 << 20;

/// A budget of sixteen read windows.
fn small_memory() -> GatewayConfig {
    GatewayConfig { memory_bytes: 8 << 20, ..config(|_| ()) }
}

/// A server with a public object of `LARGE_BYTES`, and a small private one.
async fn filled(config: GatewayConfig) -> TestGateway {
    let server = start_gateway(config).await;
    let mut client = Client::new(&server).await;
    for bucket in ["open", "good"] {
        assert_eq!(client.request("PUT", &format!("/{bucket}"), &[], b"").await.status, 200);
    }
    assert_eq!(client.request("PUT", "/open/large", &[], &vec![1; LARGE_BYTES]).await.status, 200);
    assert_eq!(client.request("PUT", "/good/small", &[], &vec![1; 64 << 10]).await.status, 200);
    server
}

/// Opens `count` connections that send `sent` and then do nothing.
async fn stuck(server: &TestGateway, count: usize, from: [u8; 4], sent: &str) -> Vec<Client> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut client = Client::with_small_buffer(server, from).await;
        client.send(sent).await;
        all.push(client);
    }
    // Wait until they hold all the memory and others queue for it.
    let started = Instant::now();
    let budget = server.gateway.budget();
    while started.elapsed() < MAX_TIME && budget.waiting() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(budget.waiting() > 0, "too few connections: none of them waits");
    all
}

fn open_read() -> String {
    "GET /open/large HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()
}

/// The longest time that a request takes, of several during `period`.
async fn max_latency(server: &TestGateway, period: Duration, head: &str) -> Duration {
    let (started, mut max_latency) = (Instant::now(), Duration::ZERO);
    let mut client = Client::new(server).await;
    while started.elapsed() < period {
        let sent_at = Instant::now();
        client.send(head).await;
        let response = client.read_response(false).await.expect("a response");
        assert_eq!(response.status, 200, "{response:?}");
        max_latency = max_latency.max(sent_at.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    max_latency
}

fn good_read() -> String {
    signed("GET", "/good/small", &[], UNSIGNED).0
}

#[tokio::test]
async fn stalled_anonymous_readers_do_not_delay_keys() {
    let server = filled(small_memory()).await;
    let _stuck = stuck(&server, 40, HERE, &open_read()).await;
    let latency = max_latency(&server, 2 * MAX_TIME, &good_read()).await;
    assert!(latency < MAX_TIME / 2, "{latency:?}");
}

#[tokio::test]
async fn stalled_reads_of_a_key_do_not_delay_other_keys() {
    let server = filled(small_memory()).await;
    let (head, _) = signed_by(&OTHER_SIGNER, "GET", "/open/large", &[], UNSIGNED);
    let _stuck = stuck(&server, 40, HERE, &head).await;
    let latency = max_latency(&server, 2 * MAX_TIME, &good_read()).await;
    assert!(latency < MAX_TIME / 2, "{latency:?}");
}

#[tokio::test]
async fn stalled_writes_of_a_key_do_not_delay_other_keys() {
    let server = filled(small_memory()).await;
    // The smallest windows, which fill the memory without a gap.
    let (head, _) = signed_by(&OTHER_SIGNER, "PUT", "/good/key", &[("content-length", "1000")], UNSIGNED);
    let _stuck = stuck(&server, 150, HERE, &head).await;
    let latency = max_latency(&server, 2 * MAX_TIME, &good_read()).await;
    assert!(latency < MAX_TIME / 2, "{latency:?}");
    let (put, _) = signed("PUT", "/good/other", &[("content-length", "0")], UNSIGNED);
    let latency = max_latency(&server, MAX_TIME / 2, &put).await;
    assert!(latency < MAX_TIME / 2, "{latency:?}");
}

#[tokio::test]
async fn stalled_readers_do_not_delay_other_addresses() {
    let server = filled(small_memory()).await;
    let _stuck = stuck(&server, 40, THERE, &open_read()).await;
    let range = "GET /open/large HTTP/1.1\r\nhost: localhost\r\nrange: bytes=0-9\r\n\r\n";
    let (started, mut client) = (Instant::now(), Client::with_small_buffer(&server, HERE).await);
    client.send(range).await;
    assert_eq!(client.read_response(false).await.expect("a response").status, 206);
    assert!(started.elapsed() < MAX_TIME / 2, "{:?}", started.elapsed());
}

#[tokio::test]
async fn stalled_requests_yield_to_others_of_their_client() {
    let server = filled(small_memory()).await;
    let (read, _) = signed("GET", "/open/large", &[], UNSIGNED);
    let _readers = stuck(&server, 40, HERE, &read).await;
    // The request queues after up to 40 others: all held memory must be freed twice, which takes a second each.
    let latency = max_latency(&server, 6 * MAX_TIME, &good_read()).await;
    assert!(latency < 5 * MAX_TIME, "{latency:?}");
    let latency = max_latency(&server, 2 * MAX_TIME, &good_read()).await;
    assert!(
        latency < 2 * MAX_TIME,
        "afterwards one stalled request is aborted for each new one: {latency:?}"
    );
    let text = crate::metrics::to_text(server.gateway.metrics());
    assert!(!text.contains("tradewind_s3_stalled_clients_total 0\n"), "{text}");
}

#[tokio::test]
async fn a_progressing_reader_keeps_its_memory_among_stalled_ones() {
    let server = filled(small_memory()).await;
    let (read, _) = signed("GET", "/open/large", &[], UNSIGNED);
    let mut reader = Client::with_small_buffer(&server, HERE).await;
    reader.send(&read).await;
    let _stuck = stuck(&server, 40, HERE, &open_read()).await;
    let mut left = LARGE_BYTES;
    let mut buffer = vec![0; 256 << 10];
    // Slower than the server, for some seconds of memory pressure.
    while left > 0 {
        let read = tokio::io::AsyncReadExt::read(&mut reader.0, &mut buffer).await.unwrap();
        assert!(read > 0, "{left} bytes before the end");
        left -= read.min(left);
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

#[tokio::test]
async fn a_single_client_uses_nearly_all_memory() {
    let server = filled(small_memory()).await;
    let (read, _) = signed("GET", "/open/large", &[], UNSIGNED);
    let _stuck = stuck(&server, 40, HERE, &read).await;
    let budget = server.gateway.budget();
    assert!(budget.free() <= budget.capacity() / 8 + (512 << 10), "{budget:?}");
}

/// Reads at a steady 300 KB/s for `period`, then at full speed. Returns the number of bytes received until the response
/// was complete or the connection was closed.
async fn read_steadily(client: &mut Client, period: Duration) -> usize {
    let (started, mut total) = (Instant::now(), 0);
    let mut buffer = vec![0; 15_000];
    while total < LARGE_BYTES {
        let read = tokio::io::AsyncReadExt::read(&mut client.0, &mut buffer).await.unwrap_or(0);
        if read == 0 {
            break;
        }
        total += read;
        if started.elapsed() < period {
            tokio::time::sleep(Duration::from_micros(read as u64 * 10 / 3)).await;
        }
    }
    total
}

#[tokio::test]
async fn a_steady_reader_under_pressure_is_not_cut_off() {
    let server = filled(small_memory()).await;
    let (read, _) = signed_by(&OTHER_SIGNER, "GET", "/open/large", &[], UNSIGNED);
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let mut client = Client::new(&server).await;
        client.send(&read).await;
        readers.spawn(async move { read_steadily(&mut client, 5 * MAX_TIME).await });
    }
    let mut stalled = Client::new(&server).await;
    stalled.send(&read).await;
    tokio::time::sleep(MAX_TIME / 2).await;
    // These clients hold less memory than the readers and wait for more: stalled readers are aborted for them.
    let (write, _) = signed("PUT", "/good/key", &[("content-length", "1000000")], UNSIGNED);
    let _others = stuck(&server, 12, HERE, &write).await;
    let received = readers.join_all().await;
    assert!(received.iter().all(|bytes| *bytes >= LARGE_BYTES), "some were cut off: {received:?}");
    assert!(
        read_steadily(&mut stalled, Duration::ZERO).await < LARGE_BYTES,
        "the stalled reader was not cut off"
    );
}
