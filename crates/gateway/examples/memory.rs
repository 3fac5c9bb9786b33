//! An S3 server on the memory store, for testing clients with the gateway. All data is lost at exit.
//!
//! Usage: `memory [ADDRESS]` (default 127.0.0.1:9000). The keys are `root`, `reader` (reads only `e2e-shared`) and
//! `writer` (reads and writes only `e2e-writer`); the secret is the name followed by `secret`. The bucket `e2e-public`
//! is public.
#![allow(clippy::print_stdout, reason = "an example prints to its terminal")]

use std::error::Error;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tradewind_core::SystemClock;
use tradewind_core::testing::MemoryStore;
use tradewind_gateway::auth::{Buckets, Permissions};
use tradewind_gateway::config::GatewayConfig;
use tradewind_gateway::keys::{AccessKey, Keys};
use tradewind_gateway::server::Gateway;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9000".to_owned());
    let key = |id: &str, permissions, bucket: Option<&str>| AccessKey {
        id: id.to_owned(),
        secret: format!("{id}secret"),
        permissions,
        buckets: bucket.map_or(Buckets::All, |name| Buckets::Names([name.to_owned()].into())),
    };
    let keys = Keys::new(
        [
            key("root", Permissions::ReadWrite, None),
            key("reader", Permissions::ReadOnly, Some("e2e-shared")),
            key("writer", Permissions::ReadWrite, Some("e2e-writer")),
        ],
        ["e2e-public".to_owned()],
    );
    let clock = SystemClock::shared();
    let store = MemoryStore::new(clock.clone());
    let gateway = Gateway::new(GatewayConfig::default(), store, keys, clock)?;
    let listener = TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let shutdown = CancellationToken::new();
    let serving = gateway.serve(listener, shutdown.clone());
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => {}
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            shutdown.cancel();
            serving.await;
        }
    }
    Ok(())
}
