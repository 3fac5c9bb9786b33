//! `Cache-Status` of reads through a cache.

use std::sync::Arc;

use async_trait::async_trait;
use tradewind_core::error::Result;
use tradewind_core::observation::{CacheSource, CacheStatus};
use tradewind_core::store::{GetRequest, GetResponse};
use tradewind_core::testing::MemoryStore;
use tradewind_core::{Address, Body, Clock, Context, ObjectStore, Observation, SystemClock};

use super::client::Client;
use super::{SignerClock, config, start_gateway, start_gateway_on};

/// Reports each read as a hit.
#[derive(Debug)]
struct Hits(Arc<MemoryStore>);

fn hit<B>(found: GetResponse<B>) -> GetResponse<B> {
    let cache = Some(CacheStatus {
        source: CacheSource::Ssd,
        class: found.info.metadata.classes.object,
        priority: Some(3),
        retention_seconds: None,
        is_uncompared: false,
    });
    GetResponse { observation: Observation { cache, ..found.observation }, ..found }
}

#[async_trait]
impl ObjectStore for Hits {
    tradewind_core::forward_methods! {
        to: |layer| &layer.0;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload,
        stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        Ok(hit(self.0.head(context, address, request).await?))
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        Ok(hit(self.0.get(context, address, request).await?))
    }
}

#[tokio::test]
async fn reads_of_both_paths_have_the_status_of_the_cache() {
    let clock: Arc<dyn Clock> = Arc::new(SignerClock(SystemClock::new()));
    let store = Arc::new(Hits(MemoryStore::new(clock.clone())));
    let server = start_gateway_on(config(|_| ()), store, clock).await;
    let mut client = Client::new(&server).await;
    assert_eq!(client.request("PUT", "/bucket", &[], b"").await.status, 200);
    let class = [("x-dss-object-class", "25")];
    assert_eq!(client.request("PUT", "/bucket/key", &class, b"text").await.status, 200);
    let by_operations = [("if-unmodified-since", "Fri, 31 Dec 2100 00:00:00 GMT")];
    for method in ["GET", "HEAD"] {
        for headers in [&[][..], &by_operations] {
            let response = client.request(method, "/bucket/key", headers, b"").await;
            let expected = "tradewind; hit; detail=\"ssd, class 25, priority 3\"";
            assert_eq!(response.header("cache-status"), Some(expected), "{method} {headers:?}");
        }
    }
}

#[tokio::test]
async fn reads_without_a_cache_have_no_status() {
    let server = start_gateway(config(|_| ())).await;
    let mut client = Client::new(&server).await;
    client.request("PUT", "/bucket", &[], b"").await;
    client.request("PUT", "/bucket/key", &[], b"text").await;
    assert_eq!(client.request("GET", "/bucket/key", &[], b"").await.header("cache-status"), None);
}
