//! Streams through the engine against an independent MD5.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures::executor::block_on;
use md5::Digest;
use proptest::prelude::*;
use tradewind_digest::{Engine, md5 as here};

fn reference(bytes: &[u8]) -> [u8; 16] {
    md5::Md5::digest(bytes).into()
}

fn content(seed: usize, length: usize) -> Bytes {
    (0..length).map(|at| (seed.wrapping_mul(0x9e37) ^ at.wrapping_mul(31) ^ (at >> 8)) as u8).collect()
}

#[test]
fn vectors_of_rfc_1321() {
    let engine = Engine::start(1).expect("a hashing thread starts");
    for (message, digest) in [
        ("", "d41d8cd98f00b204e9800998ecf8427e"),
        ("a", "0cc175b9c0f1b6a831c399e269772661"),
        ("abc", "900150983cd24fb0d6963f7d28e17f72"),
        ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
        ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
        (
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
            "d174ab98d277d9f5a5611c2c9f419d9f",
        ),
        (
            "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
            "57edf4a22be3c955ac49da2e2107b67a",
        ),
    ] {
        assert_eq!(hex::encode(here(message.as_bytes())), digest);
        let mut stream = engine.stream();
        stream.update(message);
        assert_eq!(hex::encode(stream.finish_blocking()), digest);
        let mut stream = engine.stream();
        for at in 0..message.len() {
            stream.update(&message[at..=at]);
        }
        assert_eq!(hex::encode(block_on(stream.finish())), digest);
    }
}

#[test]
fn every_length_around_the_padding() {
    for length in 0..300 {
        let bytes = content(length, length);
        assert_eq!(here(&bytes), reference(&bytes), "{length} bytes");
    }
}

#[test]
fn empty_message_and_empty_updates() {
    let engine = Engine::start(2).expect("a hashing thread starts");
    assert_eq!(block_on(engine.stream().finish()), reference(b""));
    let mut stream = engine.stream();
    stream.update(Bytes::new());
    assert_eq!(stream.queued_bytes(), 0);
    block_on(stream.drained(0));
    block_on(stream.drained(1));
    assert_eq!(stream.finish_blocking(), reference(b""));
}

/// The pieces of one stream.
fn pieces() -> impl Strategy<Value = Vec<usize>> {
    let piece = prop_oneof![0..200usize, 60..70usize, 0..5_000usize, 1_000..70_000usize];
    prop::collection::vec(piece, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_streams_in_any_pieces(streams in prop::collection::vec(pieces(), 1..36), threads in 1..4usize) {
        let engine = Engine::start(threads).expect("a hashing thread starts");
        let whole: Vec<Bytes> =
            streams.iter().enumerate().map(|(seed, pieces)| content(seed, pieces.iter().sum())).collect();
        let mut open: Vec<_> = whole.iter().map(|bytes| (engine.stream(), bytes.clone())).collect();
        for round in 0..8 {
            for ((stream, rest), pieces) in open.iter_mut().zip(&streams) {
                if let Some(length) = pieces.get(round) {
                    stream.update(rest.split_to(*length));
                }
            }
        }
        let finishes: Vec<_> = open.into_iter().map(|(stream, _)| stream.finish()).collect();
        for (finish, bytes) in finishes.into_iter().zip(&whole) {
            prop_assert_eq!(block_on(finish), reference(bytes));
        }
    }
}

#[test]
fn a_thousand_streams_from_many_threads() {
    let engine = Engine::start(2).expect("a hashing thread starts");
    thread::scope(|scope| {
        for feeder in 0..4 {
            let engine = engine.clone();
            scope.spawn(move || {
                let whole: Vec<Bytes> = (0..250).map(|s| content(s + feeder, 40_000 + 331 * s)).collect();
                let mut streams: Vec<_> = whole.iter().map(|_| engine.stream()).collect();
                for start in (0..140_000).step_by(20_011) {
                    for (stream, bytes) in streams.iter_mut().zip(&whole) {
                        stream.update(bytes.slice(start.min(bytes.len())..(start + 20_011).min(bytes.len())));
                        if start % 3 == 0 {
                            block_on(stream.drained(64 * 1024));
                        }
                    }
                }
                let finishes: Vec<_> = streams.into_iter().map(|stream| stream.finish()).collect();
                for (finish, bytes) in finishes.into_iter().zip(&whole) {
                    assert_eq!(block_on(finish), reference(bytes));
                }
            });
        }
    });
}

#[test]
fn cancelled_streams_release_only_their_own_buffers() {
    struct CountedBuffer(Bytes, Arc<AtomicUsize>);
    impl AsRef<[u8]> for CountedBuffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for CountedBuffer {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::SeqCst);
        }
    }

    let held = Arc::new(AtomicUsize::new(0));
    let engine = Engine::start(1).expect("a hashing thread starts");
    let bytes = content(1, 300_000);
    let mut kept = Vec::new();
    for number in 0..60 {
        let mut stream = engine.stream();
        for _ in 0..4 {
            held.fetch_add(1, Ordering::SeqCst);
            stream.update(Bytes::from_owner(CountedBuffer(bytes.clone(), Arc::clone(&held))));
        }
        match number % 3 {
            0 => drop(stream),
            1 => drop(stream.finish()),
            _ => kept.push(stream.finish()),
        }
    }
    let expected = reference(&bytes.repeat(4));
    for finish in kept {
        assert_eq!(block_on(finish), expected);
    }
    drop(engine);
    assert_eq!(held.load(Ordering::SeqCst), 0);
}

#[test]
fn streams_outlive_the_engine() {
    let bytes = content(3, 500_000);
    let engine = Engine::start(2).expect("a hashing thread starts");
    let mut streams: Vec<_> = (0..20).map(|_| engine.stream()).collect();
    for stream in &mut streams {
        stream.update(bytes.slice(..100_001));
    }
    let second = engine.clone();
    drop(engine);
    let finished = {
        let mut stream = second.stream();
        stream.update(bytes.clone());
        stream.finish()
    };
    drop(second);
    assert_eq!(block_on(finished), reference(&bytes));
    for stream in &mut streams {
        stream.update(bytes.slice(100_001..));
        block_on(stream.drained(1));
        assert_eq!(stream.queued_bytes(), 0);
    }
    for stream in streams {
        assert_eq!(block_on(stream.finish()), reference(&bytes));
    }
}

/// Wakes by unparking a thread, and owns an engine that may go with it.
struct Owner(thread::Thread, #[expect(dead_code, reason = "held to be dropped")] Option<Engine>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn last_handle_may_be_dropped_on_a_hashing_thread() {
    for _ in 0..50 {
        let engine = Engine::start(1).expect("a hashing thread starts");
        let mut stream = engine.stream();
        let bytes = content(4, 1_000_000);
        stream.update(bytes.clone());
        let mut finish = pin!(stream.finish());
        let waker = Waker::from(Arc::new(Owner(thread::current(), Some(engine))));
        let first = finish.as_mut().poll(&mut Context::from_waker(&waker));
        drop(waker);
        let plain = Waker::from(Arc::new(Owner(thread::current(), None)));
        let digest = match first {
            Poll::Ready(digest) => digest,
            Poll::Pending => loop {
                thread::park_timeout(Duration::from_millis(1));
                if let Poll::Ready(digest) = finish.as_mut().poll(&mut Context::from_waker(&plain)) {
                    break digest;
                }
            },
        };
        assert_eq!(digest, reference(&bytes));
    }
}

#[test]
fn backpressure_bounds_the_queue() {
    let engine = Engine::start(1).expect("a hashing thread starts");
    let bytes = content(5, 64 * 1024);
    let mut stream = engine.stream();
    let mut plain = md5::Md5::new();
    for _ in 0..200 {
        stream.update(bytes.clone());
        plain.update(&bytes);
        block_on(stream.drained(256 * 1024));
        assert!(stream.queued_bytes() < 256 * 1024);
    }
    let expected: [u8; 16] = plain.finalize().into();
    assert_eq!(block_on(stream.finish()), expected);
}

#[test]
fn small_rest_is_drained_when_the_owner_waits() {
    let engine = Engine::start(1).expect("a hashing thread starts");
    let _other = engine.stream();
    let mut stream = engine.stream();
    stream.update(content(6, 4_096));
    assert_eq!(stream.queued_bytes(), 4_096);
    block_on(stream.drained(1));
    assert_eq!(stream.queued_bytes(), 0);
    assert_eq!(stream.finish_blocking(), reference(&content(6, 4_096)));
}
