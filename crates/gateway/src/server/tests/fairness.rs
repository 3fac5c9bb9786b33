//! Clients that hold memory and do nothing with it, beside one that behaves.

use std::time::{Duration, Instant};

use super::client::{Client, UNSIGNED, signed, signed_by};
use super::{House, OTHER, config, house};
use crate::config::GatewayConfig;

/// The longest time that a well-behaved request may take next to the others.
const MAX_TIME: Duration = Duration::from_secs(1);

const HERE: [u8; 4] = [127, 0, 0, 1];
const THERE: [u8; 4] = [127, 0, 0, 2];

/// More than the kernel takes of an answer.
const LARGE_BYTES: usize = 16 << 20;

/// Sixteen windows of a read.
fn small_memory() -> GatewayConfig {
    GatewayConfig { memory_bytes: 8 << 20, ..config(|_| ()) }
}

/// With an object of `LARGE_BYTES` that anybody may read, and a small one.
async fn filled(config: GatewayConfig) -> House {
    let house = house(config).await;
    let mut client = Client::new(&house).await;
    for bucket in ["open", "good"] {
        assert_eq!(client.ask("PUT", &format!("/{bucket}"), &[], b"").await.status, 200);
    }
    assert_eq!(client.ask("PUT", "/open/large", &[], &vec![1; LARGE_BYTES]).await.status, 200);
    assert_eq!(client.ask("PUT", "/good/small", &[], &vec![1; 64 << 10]).await.status, 200);
    house
}

/// Opens `count` connections that send this and do nothing more.
async fn stuck(house: &House, count: usize, from: [u8; 4], sent: &str) -> Vec<Client> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut client = Client::small(house, from).await;
        client.send(sent).await;
        all.push(client);
    }
    // Until the last of them is where it stays.
    let started = Instant::now();
    let budget = house.gateway.budget();
    while started.elapsed() < MAX_TIME && budget.waiting() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(budget.waiting() > 0, "there are enough of them to wait");
    all
}

fn open_read() -> String {
    "GET /open/large HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned()
}

/// The longest that a good request takes, of some over a time.
async fn longest(house: &House, over: Duration, head: &str) -> Duration {
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    let mut client = Client::new(house).await;
    while begun.elapsed() < over {
        let asked = Instant::now();
        client.send(head).await;
        let answer = client.answer(false).await.expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        longest = longest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    longest
}

fn good_read() -> String {
    signed("GET", "/good/small", &[], UNSIGNED).0
}

#[tokio::test]
async fn anonymous_readers_that_do_not_read_delay_no_key() {
    let house = filled(small_memory()).await;
    let _stuck = stuck(&house, 40, HERE, &open_read()).await;
    let took = longest(&house, 2 * MAX_TIME, &good_read()).await;
    assert!(took < MAX_TIME / 2, "{took:?}");
}

#[tokio::test]
async fn a_key_whose_reads_stall_delays_no_other_key() {
    let house = filled(small_memory()).await;
    let (head, _) = signed_by(&OTHER, "GET", "/open/large", &[], UNSIGNED);
    let _stuck = stuck(&house, 40, HERE, &head).await;
    let took = longest(&house, 2 * MAX_TIME, &good_read()).await;
    assert!(took < MAX_TIME / 2, "{took:?}");
}

#[tokio::test]
async fn a_key_whose_writes_stall_delays_no_other_key() {
    let house = filled(small_memory()).await;
    // As small as windows are: they leave no gap.
    let (head, _) = signed_by(&OTHER, "PUT", "/good/key", &[("content-length", "1000")], UNSIGNED);
    let _stuck = stuck(&house, 150, HERE, &head).await;
    let took = longest(&house, 2 * MAX_TIME, &good_read()).await;
    assert!(took < MAX_TIME / 2, "{took:?}");
    let (put, _) = signed("PUT", "/good/other", &[("content-length", "0")], UNSIGNED);
    let took = longest(&house, MAX_TIME / 2, &put).await;
    assert!(took < MAX_TIME / 2, "{took:?}");
}

#[tokio::test]
async fn stalled_readers_of_one_address_delay_no_other_address() {
    let house = filled(small_memory()).await;
    let _stuck = stuck(&house, 40, THERE, &open_read()).await;
    let range = "GET /open/large HTTP/1.1\r\nhost: localhost\r\nrange: bytes=0-9\r\n\r\n";
    let (begun, mut client) = (Instant::now(), Client::small(&house, HERE).await);
    client.send(range).await;
    assert_eq!(client.answer(false).await.expect("an answer").status, 206);
    assert!(begun.elapsed() < MAX_TIME / 2, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn stalled_requests_make_way_for_others_of_their_client() {
    let house = filled(small_memory()).await;
    let (read, _) = signed("GET", "/open/large", &[], UNSIGNED);
    let _readers = stuck(&house, 40, HERE, &read).await;
    // Behind forty that wait: all that is held is given up two times, a second each.
    let took = longest(&house, 6 * MAX_TIME, &good_read()).await;
    assert!(took < 5 * MAX_TIME, "{took:?}");
    let took = longest(&house, 2 * MAX_TIME, &good_read()).await;
    assert!(took < 2 * MAX_TIME, "then there is one to give up for each: {took:?}");
    let mut text = String::new();
    house.gateway.metrics().render(&mut text);
    assert!(!text.contains("tradewind_s3_stalled_clients_total 0\n"), "{text}");
}

#[tokio::test]
async fn a_reader_that_goes_on_keeps_its_memory_beside_stalled_ones() {
    let house = filled(small_memory()).await;
    let (read, _) = signed("GET", "/open/large", &[], UNSIGNED);
    let mut reader = Client::small(&house, HERE).await;
    reader.send(&read).await;
    let _stuck = stuck(&house, 40, HERE, &open_read()).await;
    let mut left = LARGE_BYTES;
    let mut piece = vec![0; 256 << 10];
    // Slower than the server could, over some seconds of pressure.
    while left > 0 {
        let read = tokio::io::AsyncReadExt::read(&mut reader.0, &mut piece).await.unwrap();
        assert!(read > 0, "{left} bytes before the end");
        left -= read.min(left);
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

#[tokio::test]
async fn one_client_alone_uses_nearly_all_memory() {
    let house = filled(small_memory()).await;
    let (read, _) = signed("GET", "/open/large", &[], UNSIGNED);
    let _stuck = stuck(&house, 40, HERE, &read).await;
    let budget = house.gateway.budget();
    assert!(budget.free() <= budget.capacity() / 8 + (512 << 10), "{budget:?}");
}

/// Reads at a steady 300 KB/s for this time, then as fast as it can. Returns the bytes that came until the answer was
/// whole, or the connection was cut.
async fn read_steadily(client: &mut Client, over: Duration) -> usize {
    let (begun, mut total) = (Instant::now(), 0);
    let mut piece = vec![0; 15_000];
    while total < LARGE_BYTES {
        let read = tokio::io::AsyncReadExt::read(&mut client.0, &mut piece).await.unwrap_or(0);
        if read == 0 {
            break;
        }
        total += read;
        if begun.elapsed() < over {
            tokio::time::sleep(Duration::from_micros(read as u64 * 10 / 3)).await;
        }
    }
    total
}

#[tokio::test]
async fn a_steady_reader_under_pressure_is_not_cut_off() {
    let house = filled(small_memory()).await;
    let (read, _) = signed_by(&OTHER, "GET", "/open/large", &[], UNSIGNED);
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let mut client = Client::new(&house).await;
        client.send(&read).await;
        readers.spawn(async move { read_steadily(&mut client, 5 * MAX_TIME).await });
    }
    let mut still = Client::new(&house).await;
    still.send(&read).await;
    tokio::time::sleep(MAX_TIME / 2).await;
    // They hold less than the readers and wait for more: whoever stalls makes way.
    let (write, _) = signed("PUT", "/good/key", &[("content-length", "1000000")], UNSIGNED);
    let _others = stuck(&house, 12, HERE, &write).await;
    let came = readers.join_all().await;
    assert!(came.iter().all(|bytes| *bytes >= LARGE_BYTES), "some were cut off: {came:?}");
    assert!(read_steadily(&mut still, Duration::ZERO).await < LARGE_BYTES, "it read nothing");
}
