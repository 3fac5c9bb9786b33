//! Bodies that are read in pieces worth being woken for: none waits for bytes that nobody sends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use tradewind_backend::s3::S3Store;
use tradewind_core::error::{Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::testing::context;
use tradewind_core::{Address, ObjectStore as _};

use crate::support::scripted::{Answer, BUCKET, Reply, Scripted};

/// What lasts longer is nothing.
const STALL_TIME: Duration = Duration::from_millis(300);

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n % 251) as u8).collect()
}

/// A store with an object of so many bytes, whose answers become this.
fn store(count: usize, change: impl Fn(Answer) -> Reply + Send + Sync + 'static) -> (Scripted, Arc<S3Store>) {
    let server = Scripted::start(move |request, answer| match request.operation {
        "GetObject" => change(answer),
        _ => Reply::Answer(answer),
    });
    server.lay("object", bytes(count));
    let store = crate::leaf_over(server.address, |options| options.stall_time = STALL_TIME);
    (server, store)
}

/// The pieces that came, and the error that ended them.
async fn read(store: &S3Store, key: &str) -> (Vec<Vec<u8>>, Result<()>) {
    let address = Address::parse(BUCKET, key).unwrap();
    let mut body = store.get(&context(), &address, GetRequest::default()).await.unwrap().body;
    let mut pieces = Vec::new();
    while let Some(piece) = body.next().await {
        match piece {
            Ok(piece) => pieces.push(piece.to_vec()),
            Err(e) => return (pieces, Err(e)),
        }
    }
    (pieces, Ok(()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_comes_by_and_by_comes_in_large_pieces() {
    let (_server, store) = store(400_000, |answer| Reply::Crawling(answer, 16_000));
    let (pieces, ended) = read(&store, "object").await;
    ended.unwrap();
    assert!(pieces.concat() == bytes(400_000));
    let small = pieces.iter().filter(|piece| piece.len() < 20_000).count();
    assert!(small <= 4, "{:?}", pieces.iter().map(Vec::len).collect::<Vec<_>>());
}

/// Not enough to be woken for comes within the time that a store may be silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_slow_is_not_silent() {
    let (_server, store) = store(140_000, |answer| Reply::Crawling(answer, 4000));
    let (pieces, ended) = read(&store, "object").await;
    ended.unwrap();
    assert!(pieces.concat() == bytes(140_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_came_is_handed_on_before_a_store_falls_silent() {
    let (_server, store) = store(300_000, |answer| Reply::Held(answer, 100_000));
    let begun = Instant::now();
    let (pieces, ended) = read(&store, "object").await;
    let e = ended.unwrap_err();
    assert_eq!(e.reason(), Reason::Io);
    assert!(e.to_string().contains("the store sent nothing for"), "{e}");
    assert!(pieces.concat() == bytes(100_000));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// Small ones behind large ones, on the same connection.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_all_sizes_come_whole() {
    let (server, store) = store(1, Reply::Answer);
    for count in [0, 1, 131_071, 131_072, 131_073, 5, 163_840, 1_000_003, 2] {
        server.lay("other", bytes(count));
        let (pieces, ended) = read(&store, "other").await;
        ended.unwrap();
        assert!(pieces.concat() == bytes(count), "{count}");
    }
}
