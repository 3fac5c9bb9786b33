use std::time::Duration;

use proptest::prelude::*;
use ring::hmac;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::time::Instant;

use crate::cluster::frame::{self, Broken, Reader};
use crate::cluster::handshake::{Key, Refusal, Role, Shaken, Stranger, TIME, VERSION, shake};
use crate::cluster::link::{Link, SILENCE, Seal};

const LONG: Duration = Duration::from_secs(60);

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

type End = Shaken<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>;

async fn meet(role: Role, key: &Key, stream: DuplexStream) -> Result<End, Stranger> {
    let (reader, writer) = split(stream);
    shake(role, key, reader, writer).await
}

/// What an agent says to bytes, and what it is told of them itself.
async fn said_to(bytes: &[u8]) -> (Vec<u8>, Stranger) {
    let (mut other, agent) = duplex(1 << 20);
    let key = key("a key of sixteen and more");
    let answered = async {
        other.write_all(bytes).await.unwrap();
        let mut said = Vec::new();
        other.read_to_end(&mut said).await.unwrap();
        said
    };
    let (said, met) = tokio::join!(answered, async { meet(Role::Agent, &key, agent).await.err().unwrap() });
    (said, met)
}

fn framed(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn a_short_key_is_refused_and_no_key_is_shown() {
    assert!(Key::new(b"fifteen bytes..").unwrap_err().contains("16 are the least"));
    assert!(!format!("{:?}", key("a key of sixteen and more")).contains("sixteen"));
}

#[tokio::test]
async fn who_has_the_key_is_heard() {
    let (one, other) = duplex(64);
    let key = key("a key of sixteen and more");
    let (coordinator, agent) =
        tokio::join!(meet(Role::Coordinator, &key, one), meet(Role::Agent, &key, other));
    let mut coordinator = Link::new(coordinator.ok().unwrap(), 1 << 20, || 0_u64);
    let mut agent = Link::new(agent.ok().unwrap(), 1 << 20, || 0_u64);
    for n in 1..100_u64 {
        coordinator.send(n).await.unwrap();
        assert_eq!(agent.next::<u64>().await.unwrap(), n);
        agent.send(n * n).await.unwrap();
        assert_eq!(coordinator.next::<u64>().await.unwrap(), n * n);
    }
    agent.send(7).await.unwrap();
    agent.close().await;
    assert_eq!(coordinator.next::<u64>().await.unwrap(), 7, "what waited was sent");
    assert!(matches!(coordinator.next::<u64>().await, Err(Broken::Closed)));
}

#[tokio::test]
async fn another_key_is_refused_on_both_sides() {
    let (one, other) = duplex(1 << 20);
    let (mine, others) = (key("a key of sixteen and more"), key("a key of sixteen and moré"));
    let (coordinator, agent) =
        tokio::join!(meet(Role::Coordinator, &mine, one), meet(Role::Agent, &others, other));
    assert!(matches!(coordinator.err().unwrap(), Stranger::Refused(Refusal::Key)));
    assert!(matches!(agent.err().unwrap(), Stranger::Key));
}

#[tokio::test]
async fn another_version_is_told_in_words() {
    for version in [VERSION - 1, VERSION + 1] {
        let other = json!({
            "hello": {"protocol": "tradewind-bench-cluster", "version": version, "number": vec![1; 32], "new": 1}
        });
        let (said, met) = said_to(&framed(&other.to_string())).await;
        assert_eq!(said, framed(&json!({"refused": {"version": VERSION}}).to_string()));
        let words =
            format!("it speaks version {version} of the protocol, and this is {VERSION}: use the same");
        assert!(met.to_string().contains(&words), "{met}");
        // And what the coordinator says of an agent that refuses it.
        let (one, mut agent) = duplex(1 << 20);
        agent.write_all(&framed(&json!({"refused": {"version": version}}).to_string())).await.unwrap();
        let met = meet(Role::Coordinator, &key("a key of sixteen and more"), one).await.err().unwrap();
        assert!(met.to_string().contains(&words), "{met}");
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_ends_the_handshake_and_nothing_is_said_to_it() {
    let hello = json!({"hello": {"protocol": "another", "version": VERSION, "number": vec![1; 32]}});
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
        let (said, met) = said_to(bytes).await;
        assert!(said.is_empty(), "{bytes:?}: {said:?}");
        assert_eq!(met.to_string(), "what answers there is not tradewind", "{bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_frame_is_not_waited_for_for_ever() {
    for bytes in [&b""[..], b"\0", b"\0\0\0\x20half"] {
        let begun = Instant::now();
        let (said, met) = said_to(bytes).await;
        assert!(said.is_empty());
        assert!(matches!(met, Stranger::Broken(Broken::Silent(_))), "{met}");
        assert!(begun.elapsed() <= TIME + Duration::from_millis(10), "{:?}", begun.elapsed());
    }
}

/// A byte now and then does not make the handshake longer.
#[tokio::test(start_paused = true)]
async fn a_handshake_has_one_deadline() {
    let (mut other, agent) = duplex(1 << 20);
    let begun = Instant::now();
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
    assert!(matches!(met.err().unwrap(), Stranger::Broken(Broken::Silent(_))));
    assert!(begun.elapsed() <= TIME + Duration::from_millis(10), "{:?}", begun.elapsed());
}

/// Who sends back what it is sent does not have the key.
#[tokio::test]
async fn a_mirror_is_no_agent() {
    let (coordinator, mirror) = duplex(1 << 20);
    let (mut from, mut to) = split(mirror);
    let reflecting = tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
    let key = key("a key of sixteen and more");
    let met = meet(Role::Coordinator, &key, coordinator).await;
    assert!(matches!(met.err().unwrap(), Stranger::Key), "its proof has the wrong role");
    reflecting.await.unwrap().unwrap();
}

fn seals() -> (Seal, Seal, Seal) {
    let key = |bytes: u8| hmac::Key::new(hmac::HMAC_SHA256, &[bytes; 32]);
    (Seal::new(key(1)), Seal::new(key(1)), Seal::new(key(2)))
}

proptest! {
    #[test]
    fn what_is_sealed_opens_once_in_its_turn_and_unchanged(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 2..5),
        place in any::<proptest::sample::Index>(),
        bit in 0_u32..8,
    ) {
        let (mut closes, mut opens, mut other) = seals();
        let frames: Vec<Vec<u8>> = messages.iter().map(|message| closes.close(message)).collect();
        prop_assert!(opens.open(&frames[1]).is_err(), "the first was left out");
        prop_assert!(other.open(&frames[0]).is_err(), "it goes the other way");
        let mut changed = frames[0].clone();
        changed[place.index(frames[0].len())] ^= 1 << bit;
        prop_assert!(opens.open(&changed).is_err(), "a bit was changed");
        prop_assert!(opens.open(&frames[0][..frames[0].len() - 1]).is_err(), "a byte is missing");
        for (frame, message) in frames.iter().zip(&messages) {
            prop_assert_eq!(opens.open(frame).unwrap(), &message[..]);
            prop_assert!(opens.open(frame).is_err(), "it was opened before");
        }
    }

    /// Bytes that are no frame, however they come, take no more memory than they are.
    #[test]
    fn whatever_bytes_come_are_a_frame_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let read = runtime.block_on(async { Reader::new(&bytes[..]).next(100, LONG).await });
        match read {
            Ok(frame) => prop_assert_eq!(&framed_bytes(&frame)[..], &bytes[..frame.len() + 4]),
            Err(Broken::TooLarge(claimed, 100)) => prop_assert!(claimed > 100),
            Err(broken) => prop_assert!(matches!(broken, Broken::Closed), "{}", broken),
        }
    }
}

fn framed_bytes(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// Two ends that have shaken hands, one of which is a link.
async fn linked() -> (Link<u64>, End) {
    let (one, other) = duplex(64 << 10);
    let key = key("a key of sixteen and more");
    let (mine, others) = tokio::join!(meet(Role::Coordinator, &key, one), meet(Role::Agent, &key, other));
    (Link::new(mine.ok().unwrap(), 100, || 0), others.ok().unwrap())
}

#[tokio::test(start_paused = true)]
async fn who_is_silent_is_taken_for_dead_within_seconds() {
    let (mut link, mut other) = linked().await;
    // It takes what it is sent, and says nothing.
    let hearing = tokio::spawn(async move {
        let mut beats = 0;
        while other.reader.next(1 << 10, LONG).await.is_ok() {
            beats += 1;
        }
        // Until then it is there.
        let _ = other.writer.shutdown().await;
        beats
    });
    let begun = Instant::now();
    assert!(matches!(link.next::<u64>().await, Err(Broken::Silent(SILENCE))));
    assert!(begun.elapsed() <= SILENCE + Duration::from_millis(10));
    drop(link);
    // This end said every second that it is there.
    let beats = tokio::time::timeout(LONG, hearing).await.unwrap().unwrap();
    assert!((6..=9).contains(&beats), "{beats}");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_sealed_or_too_long_breaks_the_link() {
    let (mut link, mut other) = linked().await;
    frame::write(&mut other.writer, &[7; 60], LONG).await.unwrap();
    assert!(matches!(link.next::<u64>().await, Err(Broken::Forged)));
    let (mut link, mut other) = linked().await;
    other.writer.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    assert!(matches!(link.next::<u64>().await, Err(Broken::TooLarge(..))));
    let (mut link, mut other) = linked().await;
    let sealed = Seal::new(other.sends).close(b"\"words\"");
    frame::write(&mut other.writer, &sealed, LONG).await.unwrap();
    assert!(matches!(link.next::<u64>().await, Err(Broken::Unreadable(_))));
}
