use std::time::Duration;

use proptest::prelude::*;
use ring::hmac;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::time::Instant;

use crate::cluster::frame::{self, FrameReader, LinkError};
use crate::cluster::handshake::{
    AuthenticatedStream, HANDSHAKE_TIMEOUT, HandshakeError, Key, PROTOCOL_VERSION, Rejection, Role, handshake,
};
use crate::cluster::link::{FrameSealer, Link, PEER_TIMEOUT};

const LONG: Duration = Duration::from_secs(60);

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

type End = AuthenticatedStream<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>;

async fn meet(role: Role, key: &Key, stream: DuplexStream) -> Result<End, HandshakeError> {
    let (reader, writer) = split(stream);
    handshake(role, key, reader, writer).await
}

/// Sends bytes to an agent. Returns its response and its handshake error.
async fn respond_to(bytes: &[u8]) -> (Vec<u8>, HandshakeError) {
    let (mut other, agent) = duplex(1 << 20);
    let key = key("a key of sixteen and more");
    let exchange = async {
        other.write_all(bytes).await.unwrap();
        let mut response = Vec::new();
        other.read_to_end(&mut response).await.unwrap();
        response
    };
    tokio::join!(exchange, async { meet(Role::Agent, &key, agent).await.err().unwrap() })
}

fn framed(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn key_rejects_short_secrets_and_is_never_printed() {
    assert!(Key::new(b"fifteen bytes..").unwrap_err().contains("at least 16 are required"));
    assert!(!format!("{:?}", key("a key of sixteen and more")).contains("sixteen"));
}

#[tokio::test]
async fn links_with_the_same_key_exchange_messages() {
    let (one, other) = duplex(64);
    let key = key("a key of sixteen and more");
    let (coordinator, agent) =
        tokio::join!(meet(Role::Coordinator, &key, one), meet(Role::Agent, &key, other));
    let mut coordinator = Link::new(coordinator.ok().unwrap(), 1 << 20, || 0_u64);
    let mut agent = Link::new(agent.ok().unwrap(), 1 << 20, || 0_u64);
    for n in 1..100_u64 {
        coordinator.send(n).await.unwrap();
        assert_eq!(agent.receive::<u64>().await.unwrap(), n);
        agent.send(n * n).await.unwrap();
        assert_eq!(coordinator.receive::<u64>().await.unwrap(), n * n);
    }
    agent.send(7).await.unwrap();
    agent.close().await;
    assert_eq!(coordinator.receive::<u64>().await.unwrap(), 7, "queued messages are sent");
    assert!(matches!(coordinator.receive::<u64>().await, Err(LinkError::Closed)));
}

#[tokio::test]
async fn different_keys_fail_on_both_ends() {
    let (one, other) = duplex(1 << 20);
    let (mine, others) = (key("a key of sixteen and more"), key("a key of sixteen and moré"));
    let (coordinator, agent) =
        tokio::join!(meet(Role::Coordinator, &mine, one), meet(Role::Agent, &others, other));
    assert!(matches!(coordinator.err().unwrap(), HandshakeError::Rejected(Rejection::Key)));
    assert!(matches!(agent.err().unwrap(), HandshakeError::WrongKey));
}

#[tokio::test]
async fn different_versions_are_reported_on_both_ends() {
    for version in [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1] {
        let other = json!({
            "hello": {"protocol": "tradewind-bench-cluster", "version": version, "number": vec![1; 32], "new": 1}
        });
        let (response, met) = respond_to(&framed(&other.to_string())).await;
        assert_eq!(response, framed(&json!({"refused": {"version": PROTOCOL_VERSION}}).to_string()));
        let expected = format!("its protocol version is {version}, not {PROTOCOL_VERSION}: use the same");
        assert!(met.to_string().contains(&expected), "{met}");
        // The coordinator reports the same of an agent that rejects it.
        let (one, mut agent) = duplex(1 << 20);
        agent.write_all(&framed(&json!({"refused": {"version": version}}).to_string())).await.unwrap();
        let met = meet(Role::Coordinator, &key("a key of sixteen and more"), one).await.err().unwrap();
        assert!(met.to_string().contains(&expected), "{met}");
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_ends_the_handshake_without_a_response() {
    let hello = json!({"hello": {"protocol": "another", "version": PROTOCOL_VERSION, "number": vec![1; 32]}});
    let garbage: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &[0xff; 4096],
        &framed("no JSON"),
        &framed(&"[".repeat(1000)),
        &framed(&hello.to_string()),
        &framed(&json!({"proof": vec![0; 32]}).to_string()),
        &framed(""),
    ];
    for bytes in garbage {
        let (response, met) = respond_to(bytes).await;
        assert!(response.is_empty(), "{bytes:?}: {response:?}");
        assert_eq!(met.to_string(), "the peer is not a tradewind agent or coordinator", "{bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn partial_frame_times_out() {
    for bytes in [&b""[..], b"\0", b"\0\0\0\x20half"] {
        let started = Instant::now();
        let (response, met) = respond_to(bytes).await;
        assert!(response.is_empty());
        assert!(matches!(met, HandshakeError::Broken(LinkError::TimedOut(_))), "{met}");
        assert!(
            started.elapsed() <= HANDSHAKE_TIMEOUT + Duration::from_millis(10),
            "{:?}",
            started.elapsed()
        );
    }
}

/// Single bytes now and then do not extend the deadline.
#[tokio::test(start_paused = true)]
async fn handshake_deadline_covers_slow_peers() {
    let (mut other, agent) = duplex(1 << 20);
    let started = Instant::now();
    let key = key("a key of sixteen and more");
    let slow = async {
        for byte in framed(&"x".repeat(500)) {
            if other.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let met = tokio::select! {
        met = meet(Role::Agent, &key, agent) => met,
        () = slow => unreachable!("it would take four minutes"),
    };
    assert!(matches!(met.err().unwrap(), HandshakeError::Broken(LinkError::TimedOut(_))));
    assert!(started.elapsed() <= HANDSHAKE_TIMEOUT + Duration::from_millis(10), "{:?}", started.elapsed());
}

/// A peer that reflects all data must not be accepted.
#[tokio::test]
async fn reflected_handshake_is_rejected() {
    let (coordinator, mirror) = duplex(1 << 20);
    let (mut from, mut to) = split(mirror);
    let reflecting = tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
    let key = key("a key of sixteen and more");
    let met = meet(Role::Coordinator, &key, coordinator).await;
    assert!(matches!(met.err().unwrap(), HandshakeError::WrongKey), "its proof has the wrong role");
    reflecting.await.unwrap().unwrap();
}

fn seals() -> (FrameSealer, FrameSealer, FrameSealer) {
    let key = |bytes: u8| hmac::Key::new(hmac::HMAC_SHA256, &[bytes; 32]);
    (FrameSealer::new(key(1)), FrameSealer::new(key(1)), FrameSealer::new(key(2)))
}

proptest! {
    #[test]
    fn sealed_frame_opens_once_in_order_and_unaltered(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 2..5),
        position in any::<proptest::sample::Index>(),
        bit in 0_u32..8,
    ) {
        let (mut sender, mut receiver, mut other) = seals();
        let frames: Vec<Vec<u8>> = messages.iter().map(|message| sender.seal(message)).collect();
        prop_assert!(receiver.verify(&frames[1]).is_err(), "the first frame was omitted");
        prop_assert!(other.verify(&frames[0]).is_err(), "the frame is of the other direction");
        let mut altered = frames[0].clone();
        altered[position.index(frames[0].len())] ^= 1 << bit;
        prop_assert!(receiver.verify(&altered).is_err(), "a bit was altered");
        prop_assert!(receiver.verify(&frames[0][..frames[0].len() - 1]).is_err(), "a byte is missing");
        for (frame, message) in frames.iter().zip(&messages) {
            prop_assert_eq!(receiver.verify(frame).unwrap(), &message[..]);
            prop_assert!(receiver.verify(frame).is_err(), "the frame was replayed");
        }
    }

    /// Arbitrary bytes are read as a frame or rejected.
    #[test]
    fn reader_returns_a_frame_or_an_error_for_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let read = runtime.block_on(async { FrameReader::new(&bytes[..]).next_frame(100, LONG).await });
        match read {
            Ok(frame) => prop_assert_eq!(&framed_bytes(&frame)[..], &bytes[..frame.len() + 4]),
            Err(LinkError::TooLarge(claimed, 100)) => prop_assert!(claimed > 100),
            Err(broken) => prop_assert!(matches!(broken, LinkError::Closed), "{}", broken),
        }
    }
}

fn framed_bytes(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// A link and its authenticated peer.
async fn linked() -> (Link<u64>, End) {
    let (one, other) = duplex(64 << 10);
    let key = key("a key of sixteen and more");
    let (mine, others) = tokio::join!(meet(Role::Coordinator, &key, one), meet(Role::Agent, &key, other));
    (Link::new(mine.ok().unwrap(), 100, || 0), others.ok().unwrap())
}

#[tokio::test(start_paused = true)]
async fn silent_peer_times_out() {
    let (mut link, mut other) = linked().await;
    // The peer reads everything and sends nothing.
    let reading = tokio::spawn(async move {
        let mut beats = 0;
        while other.reader.next_frame(1 << 10, LONG).await.is_ok() {
            beats += 1;
        }
        // This keeps the writer alive until here.
        let _ = other.writer.shutdown().await;
        beats
    });
    let started = Instant::now();
    assert!(matches!(link.receive::<u64>().await, Err(LinkError::TimedOut(PEER_TIMEOUT))));
    assert!(started.elapsed() <= PEER_TIMEOUT + Duration::from_millis(10));
    drop(link);
    // This end sent a heartbeat every second.
    let beats = tokio::time::timeout(LONG, reading).await.unwrap().unwrap();
    assert!((6..=9).contains(&beats), "{beats}");
}

#[tokio::test(start_paused = true)]
async fn unsealed_or_oversized_frames_break_the_link() {
    let (mut link, mut other) = linked().await;
    frame::write_frame(&mut other.writer, &[7; 60], LONG).await.unwrap();
    assert!(matches!(link.receive::<u64>().await, Err(LinkError::BadMac)));
    let (mut link, mut other) = linked().await;
    other.writer.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    assert!(matches!(link.receive::<u64>().await, Err(LinkError::TooLarge(..))));
    let (mut link, mut other) = linked().await;
    let sealed = FrameSealer::new(other.send_key).seal(b"\"words\"");
    frame::write_frame(&mut other.writer, &sealed, LONG).await.unwrap();
    assert!(matches!(link.receive::<u64>().await, Err(LinkError::Unparsable(_))));
}
