//! The whole gateway on a memory store, tested through plain sockets.

mod buffers;
mod cache_status;
mod client;
mod dates;
mod early_heads;
mod fairness;
mod limits;
mod reads;
mod sigv2;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tradewind_core::testing::MemoryStore;
use tradewind_core::{Clock, ObjectStore, SystemClock, Timestamp};

use super::Gateway;
use crate::auth::{Buckets, Permissions};
use crate::config::{GatewayConfig, Limits};
use crate::keys::{AccessKey, Keys};
use crate::sigv4::testing::{SIGNER, Signer};

/// A clock with real time, but with the signer's date as wall time.
#[derive(Debug)]
struct SignerClock(SystemClock);

impl Clock for SignerClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(1_369_353_600_000)
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep_until(until)
    }
}

/// A clock with a wrong, constant wall time, for a store.
#[derive(Debug)]
struct WrongClock(SystemClock, Timestamp);

impl Clock for WrongClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wall(&self) -> Timestamp {
        self.1
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep_until(until)
    }
}

/// Another client.
const OTHER_SIGNER: Signer = Signer { id: "AKIAOTHERIDENTITY", secret: "another-secret-of-tests", ..SIGNER };

/// A running gateway.
struct TestGateway {
    address: std::net::SocketAddr,
    gateway: Gateway,
    shutdown: CancellationToken,
    serve_task: JoinHandle<()>,
}

fn config(change: impl FnOnce(&mut Limits)) -> GatewayConfig {
    let mut config = GatewayConfig::default();
    change(&mut config.limits);
    config
}

async fn start_gateway(config: GatewayConfig) -> TestGateway {
    let clock: Arc<dyn Clock> = Arc::new(SignerClock(SystemClock::new()));
    start_gateway_on(config, MemoryStore::new(clock.clone()), clock).await
}

async fn start_gateway_on(
    config: GatewayConfig,
    store: Arc<dyn ObjectStore>,
    clock: Arc<dyn Clock>,
) -> TestGateway {
    let key = |signer: Signer| AccessKey {
        id: signer.id.into(),
        secret: signer.secret.into(),
        permissions: Permissions::ReadWrite,
        buckets: Buckets::All,
    };
    let keys = Keys::new([SIGNER, OTHER_SIGNER].map(key), ["open".to_owned()]);
    let gateway = Gateway::new(config, store, keys, clock).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let serve_task = tokio::spawn({
        let (gateway, shutdown) = (gateway.clone(), shutdown.clone());
        async move { gateway.serve(listener, shutdown).await }
    });
    TestGateway { address, gateway, shutdown, serve_task }
}
