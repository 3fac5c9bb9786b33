//! Bodies that are read with batched wake-ups (`SO_RCVLOWAT`): no read waits for bytes that are never sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use tradewind_backend::s3::S3Store;
use tradewind_core::error::{Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Address, ObjectStore as _};

use crate::support::scripted_server::{BUCKET, Reply, ScriptedResponse, ScriptedServer};

/// The leaf's stall timeout.
const STALL_TIME: Duration = Duration::from_millis(600);
/// Fewer bytes than the wake-up threshold.
const FEW: usize = 500;

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n % 251) as u8).collect()
}

/// A store with an object of `count` bytes. `change` modifies its responses to GET.
fn store(
    count: usize,
    change: impl Fn(ScriptedResponse) -> Reply + Send + Sync + 'static,
) -> (ScriptedServer, Arc<S3Store>) {
    let server = ScriptedServer::start(move |request, answer| match request.operation {
        "GetObject" => change(answer),
        _ => Reply::Respond(answer),
    });
    server.put_object("object", bytes(count));
    let store = crate::leaf_over(server.address, |options| options.stall_timeout = STALL_TIME);
    (server, store)
}

/// The chunks received, and the error that ended them, if any.
async fn read(store: &S3Store, key: &str) -> (Vec<Vec<u8>>, Result<()>) {
    let address = Address::parse(BUCKET, key).unwrap();
    let found = store.get(&context(), &address, GetRequest::default()).await.unwrap();
    let (mut body, mut pieces) = (found.body, Vec::new());
    while let Some(piece) = body.next().await {
        match piece {
            Ok(piece) => pieces.push(piece.to_vec()),
            Err(e) => return (pieces, Err(e)),
        }
    }
    (pieces, Ok(()))
}

/// Sends pieces of the given sizes, with a pause before each.
fn paced(answer: ScriptedResponse, pause_millis: u64, pieces: impl IntoIterator<Item = usize>) -> Reply {
    let pause = Duration::from_millis(pause_millis);
    Reply::Paced(answer, pieces.into_iter().map(|bytes| (pause, bytes)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn slowly_arriving_body_is_read_in_large_chunks() {
    let (_server, store) = store(480_000, |answer| paced(answer, 20, [8000; 60]));
    let (pieces, ended) = read(&store, "object").await;
    ended.unwrap();
    assert!(pieces.concat() == bytes(480_000));
    assert!(pieces.len() < 40, "{:?}", pieces.iter().map(Vec::len).collect::<Vec<_>>());
}

/// The store sends bytes within the stall timeout, but fewer than the wake-up threshold. Also over a connection that a
/// separate task has driven for an upload.
#[tokio::test(flavor = "multi_thread")]
async fn slow_store_is_not_treated_as_stalled() {
    let slowly = |answer| paced(answer, 100, [180_000].into_iter().chain([FEW; 40]));
    let (server, store) = store(200_000, slowly);
    for has_uploaded in [false, true] {
        if has_uploaded {
            let address = Address::parse(BUCKET, "other").unwrap();
            let request = StageRequest { size: Some(300_000), ..StageRequest::default() };
            let mut staged = store.stage(&context(), &address, request).await.unwrap();
            staged.write(bytes(300_000).into()).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
            assert_eq!(server.object("other").unwrap().len(), 300_000);
        }
        let (pieces, ended) = read(&store, "object").await;
        ended.unwrap();
        assert!(pieces.concat() == bytes(200_000));
        assert!(pieces.len() > 20, "each chunk waits for {FEW} bytes: {}", pieces.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn received_bytes_are_yielded_before_the_stall_error() {
    let (_server, store) = store(300_000, |answer| paced(answer, 100, [100_000, FEW]));
    let started = Instant::now();
    let (pieces, ended) = read(&store, "object").await;
    let e = ended.unwrap_err();
    assert_eq!(e.reason(), Reason::Io);
    assert!(e.to_string().contains("the store sent nothing for"), "{e}");
    assert!(pieces.concat() == bytes(100_000 + FEW));
    assert!(started.elapsed() < Duration::from_secs(10));
}

/// Small bodies after large ones, on the same connection.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_all_sizes_are_complete() {
    let (server, store) = store(1, Reply::Respond);
    for (n, count) in [0, 1, 32_768, 65_536, 5, 131_073, 1_000_003, 2].into_iter().enumerate() {
        server.put_object("other", bytes(count));
        let address = Address::parse(BUCKET, "other").unwrap();
        let found = store.get(&context(), &address, GetRequest::default()).await.unwrap();
        assert_eq!(found.observation.reused, Some(n > 0));
        assert!(found.body.collect().await.unwrap() == bytes(count), "{count}");
    }
}
