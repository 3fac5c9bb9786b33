//! Priority of clients, from the signature of a request to its lane.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use support::s3::S3;
use support::sign::Credentials;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tradewind_core::SystemClock;
use tradewind_core::testing::{Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation};
use tradewind_gateway::auth::{Buckets, Permissions};
use tradewind_gateway::keys::{AccessKey, Keys};
use tradewind_gateway::{Gateway, GatewayConfig};
use tradewind_layers::Scheduled;
use tradewind_layers::scheduled::Priorities;
use tradewind_model::lanes::LanesOptions;

const LARGE_BYTES: usize = 8 << 20;

fn client(address: SocketAddr, id: &str) -> S3 {
    S3::new(address, Credentials { id: id.to_owned(), secret: "a secret".to_owned() })
}

fn put(client: &mut S3, path: &str, size: usize) -> Instant {
    let answer = client.put(path, &vec![7; size]).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    Instant::now()
}

/// Two clients write objects of the same size, the one without priority first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_with_priority_finishes_first() {
    let clock = SystemClock::shared();
    let slow = FaultPlan::none().with_fault(
        Operation::Commit,
        FaultSchedule::Always,
        Fault::Delay(Duration::from_millis(20)),
    );
    let store = Faulty::new(MemoryStore::new(clock.clone()), slow);
    let first = Priorities::new(Vec::new(), ["shop".to_owned()].into());
    let lanes = Scheduled::new(store, LanesOptions::default(), first, clock.clone());
    let key = |id: &str| AccessKey {
        id: id.to_owned(),
        secret: "a secret".to_owned(),
        permissions: Permissions::ReadWrite,
        buckets: Buckets::All,
    };
    let keys = Keys::new([key("shop"), key("batch")], []);
    let gateway = Gateway::new(GatewayConfig::default(), lanes.clone(), keys, clock).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move { gateway.serve(listener, stop).await }
    });

    let clients = tokio::task::spawn_blocking(move || {
        let (mut shop, mut batch) = (client(address, "shop"), client(address, "batch"));
        assert_eq!(shop.put("bucket", b"").unwrap().status, 200);
        // The lanes learn the throughput of a few MB/s.
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(2) {
            put(&mut batch, "bucket/a", 128 << 10);
            put(&mut shop, "bucket/b", 4 << 10);
        }
        let other = std::thread::spawn(move || put(&mut batch, "bucket/large", LARGE_BYTES));
        support::eventually("the client without priority waits", || lanes.queued() > 0);
        let shop = put(&mut shop, "bucket/as large", LARGE_BYTES);
        (shop, other.join().unwrap())
    });
    let (shop, batch) = clients.await.unwrap();
    assert!(shop < batch, "the client with priority finished {:?} later", shop - batch);
    stop.cancel();
    serving.await.unwrap();
}
