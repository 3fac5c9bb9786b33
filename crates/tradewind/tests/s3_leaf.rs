//! The `s3` leaf against this project's own front door: the promises of the port survive the way through S3.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tradewind_backend::s3::{Endpoint, S3Options, S3Store, Style};
use tradewind_core::testing::{MemoryStore, conformance};
use tradewind_core::{ObjectStore, SystemClock};
use tradewind_gateway::Gateway;
use tradewind_gateway::auth::{Buckets, Permissions};
use tradewind_gateway::config::GatewayConfig;
use tradewind_gateway::keys::{AccessKey, Keys};
use tradewind_wire::sigv4::Credentials;

const ID: &str = "leaf";
const SECRET: &str = "a secret of the tests";

/// A store whose service is a gateway of its own over a memory store.
async fn leaf() -> Arc<dyn ObjectStore> {
    let clock = SystemClock::shared();
    let key = AccessKey {
        id: ID.to_owned(),
        secret: SECRET.to_owned(),
        permissions: Permissions::ReadWrite,
        buckets: Buckets::All,
    };
    let memory = MemoryStore::new(clock.clone());
    let gateway =
        Gateway::new(GatewayConfig::default(), memory, Keys::new([key], []), clock.clone()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { gateway.serve(listener, CancellationToken::new()).await });
    let endpoint = Endpoint::parse(&url, Style::Path).unwrap();
    let credentials = Credentials { id: ID.to_owned(), secret: SECRET.to_owned(), token: None };
    S3Store::new(S3Options::new(endpoint, "us-east-1".to_owned(), Some(credentials)), clock).unwrap()
}

fn make() -> BoxFuture<'static, Arc<dyn ObjectStore>> {
    leaf().boxed()
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    conformance::run(make).await;
}
