//! Conformance of the `s3` leaf, over this project's gateway and over radosgw. If Ceph is not installed, the test
//! prints that and passes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

#[path = "s3_leaf/ambiguous_outcome.rs"]
mod ambiguous_outcome;
#[path = "s3_leaf/batched_wakeups.rs"]
mod batched_wakeups;
#[path = "s3_leaf/bodies.rs"]
mod bodies;
#[path = "s3_leaf/checksum_headers.rs"]
mod checksum_headers;
#[path = "s3_leaf/classes.rs"]
mod classes;
#[path = "s3_leaf/completed.rs"]
mod completed;
#[path = "s3_leaf/credential_sources.rs"]
mod credential_sources;
#[path = "s3_leaf/credentials.rs"]
mod credentials;
#[path = "s3_leaf/damaged.rs"]
mod damaged;
#[path = "s3_leaf/endpoint_path.rs"]
mod endpoint_path;
#[path = "s3_leaf/gzip.rs"]
mod gzip;
#[path = "s3_leaf/lost_connections.rs"]
mod lost_connections;
#[path = "s3_leaf/lost_responses.rs"]
mod lost_responses;
#[path = "s3_leaf/mapped_classes.rs"]
mod mapped_classes;
#[path = "s3_leaf/missing_headers.rs"]
mod missing_headers;
#[path = "s3_leaf/regions.rs"]
mod regions;
#[path = "s3_leaf/retention.rs"]
mod retention;
#[path = "s3_leaf/versions.rs"]
mod versions;
#[path = "s3_leaf/write_back.rs"]
mod write_back;

use std::net::SocketAddr;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use support::ceph::Ceph;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tradewind::served_plan::ServedPlan;
use tradewind_backend::s3::{AddressingStyle, Endpoint, S3Options, S3Store};
use tradewind_core::error::Reason;
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::ListUploads;
use tradewind_core::testing::{MemoryStore, conformance, context};
use tradewind_core::version::ListVersions;
use tradewind_core::{Address, ObjectStore, Precondition, SystemClock};
use tradewind_gateway::Gateway;
use tradewind_gateway::auth::{Buckets, Permissions};
use tradewind_gateway::config::GatewayConfig;
use tradewind_gateway::keys::{AccessKey, Keys};
use tradewind_layers::Instrumented;
use tradewind_model::retry::RetryOptions;
use tradewind_wire::sigv4::Credentials;

const ID: &str = "leaf";
const SECRET: &str = "a secret of the tests";

/// A store over a scripted service. `change` adjusts its options.
fn leaf_over(address: SocketAddr, change: impl FnOnce(&mut S3Options)) -> Arc<S3Store> {
    let endpoint = Endpoint::parse(&format!("http://{address}"), AddressingStyle::Path).unwrap();
    let credentials = Credentials { id: ID.to_owned(), secret: SECRET.to_owned(), token: None };
    let mut options = S3Options::new(endpoint, "us-east-1".to_owned(), Some(credentials));
    change(&mut options);
    S3Store::new(options, SystemClock::shared()).unwrap()
}

/// The address of a gateway that serves an in-memory store.
async fn gateway() -> SocketAddr {
    gateway_over(MemoryStore::new(SystemClock::shared())).await
}

/// The address of a gateway that serves a store.
async fn gateway_over(store: Arc<dyn ObjectStore>) -> SocketAddr {
    let clock = SystemClock::shared();
    let key = AccessKey {
        id: ID.to_owned(),
        secret: SECRET.to_owned(),
        permissions: Permissions::ReadWrite,
        buckets: Buckets::All,
    };
    let gateway = Gateway::new(GatewayConfig::default(), store, Keys::new([key], []), clock).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { gateway.serve(listener, CancellationToken::new()).await });
    address
}

/// A store over such a gateway.
async fn leaf() -> Arc<dyn ObjectStore> {
    let store = leaf_over(gateway().await, |_| {});
    // The service is identified by its first response, and with it the store's capabilities.
    store.list_buckets(&context()).await.unwrap();
    store
}

fn make() -> BoxFuture<'static, Arc<dyn ObjectStore>> {
    leaf().boxed()
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    conformance::run(make).await;
}

/// With the same layers as in `tradewind serve`.
#[tokio::test(flavor = "multi_thread")]
async fn conforms_under_a_plan() {
    let make = || async {
        let clock = SystemClock::shared();
        let observed: Arc<dyn ObjectStore> = Instrumented::new(leaf().await, clock.clone());
        let plan = ServedPlan::for_store("S3Store(nobody knows it)", 64 << 20, RetryOptions::default());
        let planned: Arc<dyn ObjectStore> = plan.wrap(observed, clock);
        planned
    };
    conformance::run(|| make().boxed()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms_over_radosgw() {
    let Some(ceph) = Ceph::start("conforms_over_radosgw") else { return };
    conformance::run(|| {
        let (id, secret) = (ceph.key.id.clone(), ceph.key.secret.clone());
        let endpoint = Endpoint::parse(&format!("http://{}", ceph.address), AddressingStyle::Path).unwrap();
        let options =
            S3Options::new(endpoint, "us-east-1".to_owned(), Some(Credentials { id, secret, token: None }));
        async move {
            let store: Arc<dyn ObjectStore> = S3Store::new(options, SystemClock::shared()).unwrap();
            empty(&*store).await;
            store
        }
        .boxed()
    })
    .await;
}

/// Removes everything that an earlier case has left.
async fn empty(store: &dyn ObjectStore) {
    let context = context();
    for bucket in store.list_buckets(&context).await.unwrap() {
        let at = |key: &str| Address::parse(bucket.name.as_str(), key).unwrap();
        let request = ListUploads { limit: 1000, ..ListUploads::default() };
        for upload in store.list_uploads(&context, &bucket.name, &request).await.unwrap().entries {
            let ListEntry::Key(key, upload) = upload else { panic!("{upload:?} without a delimiter") };
            match store.abort_upload(&context, &at(&key), &upload.id).await {
                // It was being completed or aborted.
                Err(e) if e.reason() == Reason::NoSuchUpload => {}
                aborted => aborted.unwrap(),
            }
        }
        let mut request = ListVersions { limit: 1000, ..ListVersions::default() };
        loop {
            let page = store.list_versions(&context, &bucket.name, &request).await.unwrap();
            for entry in page.entries {
                let ListEntry::Key(key, listed) = entry else { panic!("{entry:?} without a delimiter") };
                let version = at(&key).with_version(Some(listed.version));
                store.delete(&context, &version, Precondition::None).await.unwrap();
            }
            request.after = page.next;
            if request.after.is_none() {
                break;
            }
        }
        store.delete_bucket(&context, &bucket.name).await.unwrap();
    }
}
