//! A failover of the service that breaks all connections at once: at most one request fails by it,
//! however many connections are idle.

#[path = "lost_connections/lossy_relay.rs"]
mod lossy_relay;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tradewind_backend::s3::S3Store;
use tradewind_core::error::Result;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::testing::{context, drain};
use tradewind_core::{Address, Body, BucketName, ObjectStore as _};
use tradewind_model::retry::RetryOptions;

use self::lossy_relay::{Loss, LossyRelay};
use crate::support::scripted_server::{BUCKET, Reply, ScriptedServer};

/// The leaf's response and stall timeouts.
const TIMEOUT: Duration = Duration::from_millis(400);
/// The size of a body that is streamed, in bytes.
const STREAM_BYTES: usize = 300_000;

/// A service with one object, a relay in front of it, and a leaf over the relay.
struct Setup {
    server: ScriptedServer,
    relay: LossyRelay,
    store: Arc<S3Store>,
}

impl Setup {
    async fn start(loss: Loss, retries: RetryOptions) -> Self {
        let server = ScriptedServer::start(|request, answer| match request.key.as_str() {
            "stalled" => Reply::Stalled(answer, 10),
            "truncated" => Reply::Truncated(answer, 10),
            "silent" => Reply::Silence,
            "reset" => Reply::Reset,
            _ => Reply::Respond(answer),
        });
        for key in ["object", "stalled", "truncated"] {
            server.put_object(key, vec![7; 1000]);
        }
        let relay = LossyRelay::start(server.address, loss).await;
        let store = crate::leaf_over(relay.address, |options| {
            (options.retries, options.response_timeout, options.stall_timeout) = (retries, TIMEOUT, TIMEOUT);
        });
        Self { server, relay, store }
    }

    async fn get(&self, key: &str) -> Result<GetResponse<Body>> {
        self.store.get(&context(), &Address::parse(BUCKET, key)?, GetRequest::default()).await
    }

    async fn read(&self, key: &str) -> Result<Bytes> {
        drain(self.get(key).await?.body).await
    }

    /// Responses whose bodies are not read yet: each of them uses a connection.
    async fn use_connections(&self, count: usize) -> Vec<GetResponse<Body>> {
        let mut responses = Vec::new();
        for _ in 0..count {
            responses.push(self.get("object").await.unwrap());
        }
        responses
    }

    /// Makes the leaf have this number of idle connections.
    async fn leave_idle(&self, count: usize) {
        for response in self.use_connections(count).await {
            drain(response.body).await.unwrap();
        }
    }

    /// Writes an object whose body is streamed.
    async fn stream(&self, key: &str) -> Result<()> {
        let request = StageRequest { size: Some(STREAM_BYTES as u64), ..StageRequest::default() };
        let address = Address::parse(BUCKET, key)?;
        let mut staged = self.store.stage(&context(), &address, request).await?;
        for piece in vec![7; STREAM_BYTES].chunks(100_000) {
            staged.write(Bytes::copy_from_slice(piece)).await?;
        }
        staged.commit(Expected::default()).await.map(drop)
    }
}

/// A loss of a number of idle connections.
#[derive(Debug, Clone, Copy)]
struct Case {
    loss: Loss,
    connections: usize,
}

fn cases() -> impl Iterator<Item = Case> {
    let losses = [Loss::Reset, Loss::Swallow].into_iter();
    losses.flat_map(|loss| [1, 4, 32].map(|connections| Case { loss, connections }))
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_of_all_connections_fails_one_request() {
    for Case { loss, connections } in cases() {
        let setup = Setup::start(loss, RetryOptions::disabled()).await;
        for losses in 1..3 {
            setup.leave_idle(connections).await;
            setup.relay.lose_connections();
            let mut failures = 0;
            for _ in 0..connections + 2 {
                failures += usize::from(setup.read("object").await.is_err());
            }
            assert_eq!((failures, setup.relay.lost_uses()), (1, losses), "{loss:?} {connections}");
        }
        assert_eq!(setup.relay.opened(), [connections, connections, 1], "{loss:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_a_loss_uses_a_new_connection() {
    for Case { loss, connections } in cases() {
        let setup = Setup::start(loss, RetryOptions::with_max_attempts(2)).await;
        setup.leave_idle(connections).await;
        setup.relay.lose_connections();
        for _ in 0..connections + 2 {
            setup.read("object").await.unwrap();
        }
        assert_eq!((setup.relay.opened(), setup.relay.lost_uses()), (vec![connections, 1], 1), "{loss:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_in_use_during_a_loss_are_not_reused() {
    for Case { loss, connections } in cases().filter(|case| case.connections > 1) {
        let setup = Setup::start(loss, RetryOptions::with_max_attempts(2)).await;
        let mut in_use = setup.use_connections(connections).await;
        for response in in_use.split_off(connections / 2) {
            drain(response.body).await.unwrap();
        }
        setup.relay.lose_connections();
        setup.read("object").await.unwrap();
        for response in in_use {
            drain(response.body).await.unwrap();
        }
        setup.leave_idle(connections).await;
        let found = (setup.relay.opened(), setup.relay.lost_uses());
        assert_eq!(found, (vec![connections, connections], 1), "{loss:?}");
    }
}

/// A streamed body cannot be sent again. A change that has failed is not carried out.
#[tokio::test(flavor = "multi_thread")]
async fn loss_of_all_connections_fails_one_stream() {
    let case = async |Case { loss, connections }: Case| {
        let setup = Setup::start(loss, RetryOptions::default()).await;
        setup.leave_idle(connections).await;
        setup.relay.lose_connections();
        let mut failures = Vec::new();
        for number in 0..connections + 1 {
            if let Err(e) = setup.stream(&format!("key-{number}")).await {
                assert!(e.kind().is_retryable(), "{e:?}");
                failures.push(number);
            }
        }
        assert!(failures.len() <= 1 && setup.relay.lost_uses() <= 1, "{loss:?} {connections}: {failures:?}");
        assert_eq!(setup.server.requests_of("PutObject").len(), connections + 1 - failures.len());
    };
    futures::future::join_all(cases().map(case)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_reuses_no_connection_that_was_idle_for_long() {
    let case = async |Case { loss, connections }: Case| {
        let setup = Setup::start(loss, RetryOptions::disabled()).await;
        setup.leave_idle(connections).await;
        setup.stream("recent").await.unwrap();
        assert_eq!(setup.relay.opened(), [connections]);
        tokio::time::sleep(Duration::from_millis(1100)).await;
        setup.relay.lose_connections();
        setup.stream("late").await.unwrap();
        assert_eq!((setup.relay.opened(), setup.relay.lost_uses()), (vec![connections, 1], 0), "{loss:?}");
    };
    futures::future::join_all(cases().map(case)).await;
}

/// The head of the response has shown that the connection works: this object is at fault.
#[tokio::test(flavor = "multi_thread")]
async fn response_that_breaks_midway_ends_no_other_connection() {
    for key in ["stalled", "truncated"] {
        let setup = Setup::start(Loss::Swallow, RetryOptions::disabled()).await;
        setup.leave_idle(6).await;
        for _ in 0..3 {
            setup.read(key).await.unwrap_err();
        }
        drop(setup.use_connections(3).await);
        assert_eq!(setup.relay.opened(), [6], "{key}: three of six were reused and failed");
    }
}

/// An operation that never gets a response, on new connections neither, is no sign of a failover.
#[tokio::test(flavor = "multi_thread")]
async fn operation_that_always_fails_ends_other_connections_once() {
    for key in ["silent", "reset"] {
        let setup = Setup::start(Loss::Swallow, RetryOptions::disabled()).await;
        setup.leave_idle(4).await;
        setup.read(key).await.unwrap_err();
        setup.leave_idle(4).await;
        assert_eq!(setup.relay.opened(), [8], "{key}: the first failure ends all connections");
        for _ in 0..3 {
            setup.read(key).await.unwrap_err();
        }
        setup.leave_idle(1).await;
        assert_eq!(setup.relay.opened(), [8], "{key}: later ones end none");
        // Another operation shows a failover.
        setup.leave_idle(4).await;
        setup.relay.lose_connections();
        let mut failures = 0;
        for _ in 0..6 {
            failures += usize::from(setup.read("object").await.is_err());
        }
        assert_eq!((failures, setup.relay.lost_uses()), (1, 1), "{key}");
    }
}

/// The service responds to other requests while it works on a slow one.
#[tokio::test(flavor = "multi_thread")]
async fn slow_operation_of_a_service_that_responds_ends_no_other_connection() {
    let setup = Setup::start(Loss::Swallow, RetryOptions::disabled()).await;
    setup.leave_idle(4).await;
    let others = async {
        for _ in 0..12 {
            tokio::time::sleep(TIMEOUT / 10).await;
            setup.read("object").await.unwrap();
        }
    };
    let (slow, ()) = tokio::join!(setup.read("silent"), others);
    slow.unwrap_err();
    drop(setup.use_connections(3).await);
    assert_eq!(setup.relay.opened(), [4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn response_to_a_probe_closes_idle_connections() {
    let setup = Setup::start(Loss::Swallow, RetryOptions::disabled()).await;
    setup.leave_idle(4).await;
    setup.relay.lose_connections();
    setup.store.head_bucket(&context().probing(), &BucketName::new(BUCKET).unwrap()).await.unwrap();
    drop(setup.use_connections(4).await);
    assert_eq!((setup.relay.opened(), setup.relay.lost_uses()), (vec![4, 4], 0));
}

/// Services close idle connections after some time or some requests.
#[tokio::test(flavor = "multi_thread")]
async fn closed_idle_connections_fail_nothing_and_others_remain() {
    let setup = Setup::start(Loss::Reset, RetryOptions::disabled()).await;
    setup.leave_idle(4).await;
    (0..2).for_each(|_| setup.relay.close_connection());
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(setup.use_connections(4).await);
    assert_eq!(setup.relay.opened(), [6], "two were closed, and two reused");
}
