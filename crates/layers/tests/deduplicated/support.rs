//! A plain store and one with the layer, side by side, and a store whose calls can be held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tradewind_core::error::Result;
use tradewind_core::layer::Method;
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{GetRequest, GetResponse, Select, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Address, Body, BucketName, Context, ObjectStore, Observation, Staged};
use tradewind_layers::Deduplicated;
use tradewind_layers::deduplicated::{CollectionReport, DeduplicationPolicy, MIN_MIN_OBJECT_BYTES};

pub use crate::side_by_side::{address, get, memory, read};
use crate::side_by_side::{assert_same_select, put_as};

/// The bucket of chunks.
pub const CHUNKS: &str = "tradewind-deduplicated-chunks";

pub const POLICY: DeduplicationPolicy = DeduplicationPolicy {
    classes: tradewind_layers::transformed::ClassSet::ALL,
    min_bytes: MIN_MIN_OBJECT_BYTES,
};

pub async fn deduplicated(below: Arc<dyn ObjectStore>) -> Arc<Deduplicated> {
    Deduplicated::open(&context(), below, POLICY).await.unwrap()
}

/// Bytes without repetitions.
pub fn noise(size: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..size.div_ceil(8)).flat_map(word).collect();
    bytes.truncate(size);
    bytes.into()
}

pub async fn put(store: &dyn ObjectStore, key: &str, bytes: Bytes) -> Committed {
    try_put(store, key, bytes).await.unwrap()
}

pub async fn try_put(store: &dyn ObjectStore, key: &str, bytes: Bytes) -> Result<Committed> {
    let request = StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() };
    put_as(store, key, request, bytes).await
}

/// The keys of chunks in the store below, and the sum of their sizes.
pub async fn chunks(below: &dyn ObjectStore) -> (Vec<String>, u64) {
    let request = ListRequest { limit: 10_000, ..ListRequest::default() };
    let page = below.list(&context(), &BucketName::new(CHUNKS).unwrap(), &request).await.unwrap();
    let (mut keys, mut bytes) = (Vec::new(), 0);
    for entry in page.entries {
        let tradewind_core::listing::ListEntry::Key(key, summary) = entry else { continue };
        if key.len() == 64 {
            keys.push(key);
            bytes += summary.size;
        }
    }
    (keys, bytes)
}

/// A plain store, and the layer over another one.
pub struct Desk {
    pub plain: Arc<dyn ObjectStore>,
    pub below: Arc<dyn ObjectStore>,
    pub layer: Arc<Deduplicated>,
}

impl Desk {
    pub async fn new() -> Self {
        Self::with_store(memory()).await
    }

    pub async fn with_store(below: Arc<dyn ObjectStore>) -> Self {
        let plain = memory();
        let layer = deduplicated(below.clone()).await;
        for store in [&plain, &below] {
            store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        }
        Self { plain, below, layer }
    }

    pub fn both(&self) -> [Arc<dyn ObjectStore>; 2] {
        [self.plain.clone(), self.layer.clone()]
    }

    pub async fn collect(&self) -> CollectionReport {
        self.layer.collect(&context()).await.unwrap().unwrap()
    }

    pub async fn chunk_bytes(&self) -> u64 {
        chunks(&*self.below).await.1
    }

    /// Both stores return the same for a HEAD and a GET.
    pub async fn assert_same_select(&self, key: &str, select: Select) {
        let [plain, layered] = self.both();
        assert_same_select(&*plain, &*layered, key, select).await;
    }
}

/// Holds calls of one method to one bucket, after the store below has answered.
#[derive(Debug)]
pub struct PausingStore {
    inner: Arc<dyn ObjectStore>,
    hold: Arc<Mutex<Option<Hold>>>,
}

#[derive(Debug, Clone)]
struct Hold {
    method: Method,
    bucket: &'static str,
    waiting: watch::Sender<bool>,
    released: watch::Receiver<bool>,
}

/// Ends a hold.
pub struct Release {
    waiting: watch::Receiver<bool>,
    released: watch::Sender<bool>,
}

impl Release {
    /// Waits until a call is held.
    pub async fn reached(&mut self) {
        self.waiting.wait_for(|waiting| *waiting).await.unwrap();
    }

    pub fn release(self) {
        self.released.send_replace(true);
    }
}

impl PausingStore {
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner, hold: Arc::default() })
    }

    /// Holds the next call.
    pub fn hold(&self, method: Method, bucket: &'static str) -> Release {
        let (waiting, is_waiting) = watch::channel(false);
        let (release, released) = watch::channel(false);
        *self.hold.lock() = Some(Hold { method, bucket, waiting, released });
        Release { waiting: is_waiting, released: release }
    }

    async fn pass(&self, method: Method, bucket: &BucketName) {
        pass(&self.hold, method, bucket).await;
    }
}

async fn pass(hold: &Mutex<Option<Hold>>, method: Method, bucket: &BucketName) {
    let hold = {
        let mut hold = hold.lock();
        match &*hold {
            Some(held) if held.method == method && held.bucket == bucket.as_str() => hold.take(),
            _ => None,
        }
    };
    if let Some(mut hold) = hold {
        hold.waiting.send_replace(true);
        hold.released.wait_for(|released| *released).await.unwrap();
    }
}

/// A write whose commit counts as the call of `stage`: it is held before it is carried out.
struct HeldCommit {
    inner: Box<dyn Staged>,
    hold: Arc<Mutex<Option<Hold>>>,
    bucket: BucketName,
}

#[async_trait]
impl Staged for HeldCommit {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.inner.write(bytes).await
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        pass(&self.hold, Method::Stage, &self.bucket).await;
        self.inner.commit(expected).await
    }
}

#[async_trait]
impl ObjectStore for PausingStore {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, copy, list_uploads, copy_part, list_versions, close,
    }

    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        around: |layer, call, response| {
            // A deletion is held before it is carried out.
            if call.method == Method::Delete && let Some(address) = call.address {
                layer.pass(call.method, &address.bucket).await;
            }
            let response = response.await;
            if call.method != Method::Delete && let Some(address) = call.address {
                layer.pass(call.method, &address.bucket).await;
            }
            response
        };
        head, get, delete, set_tags, set_classes, object_parts, create_upload, stage_part, list_parts,
        complete_upload, abort_upload,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let inner = self.inner.stage(context, address, request).await?;
        Ok(Box::new(HeldCommit { inner, hold: self.hold.clone(), bucket: address.bucket.clone() }))
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        let page = self.inner.list(context, bucket, request).await;
        self.pass(Method::List, bucket).await;
        page
    }
}

/// Counts the bytes that GETs select.
#[derive(Debug)]
pub struct CountingStore {
    inner: Arc<dyn ObjectStore>,
    bytes: AtomicU64,
}

impl CountingStore {
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner, bytes: AtomicU64::new(0) })
    }

    /// The bytes since the last call.
    pub fn take_bytes(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

#[async_trait]
impl ObjectStore for CountingStore {
    tradewind_core::forward_methods! {
        to: |store| &store.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads,
        complete_upload, abort_upload, close,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let found = self.inner.get(context, address, request).await?;
        self.bytes.fetch_add(found.span.length, Ordering::Relaxed);
        Ok(found)
    }
}
