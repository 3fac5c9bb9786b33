//! Every pair of layers makes progress with little memory: 32 clients write, read, copy and delete objects of equal,
//! repeating and random bytes, over local stores, within windows of the sizes that the server uses. Nothing is written
//! back before it must be. If no request makes progress for [`MAX_PAUSE`], the test prints the requests that wait, and fails.
//!
//! `TRADEWIND_ALL_STACK_CASES=1` adds objects of 64 MiB to each pair.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use tradewind_core::context::Deadline;
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, StageRequest};
use tradewind_core::testing::{pattern, write_all};
use tradewind_core::{
    Address, BucketName, Budget, Context, ObjectStore, Precondition, ReadConditions, SystemClock, VersionId,
};

use super::stacks::{LayerKind, LayerPair, StackParts, with_layer};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The least memory budget of a server.
const BUDGET_BYTES: usize = 16 * MIB;
const CLIENTS: usize = 32;
/// The windows of the server for small requests, reads, and copies.
const SMALL_WINDOW_BYTES: usize = 64 * KIB;
const READ_WINDOW_BYTES: usize = 512 * KIB;
const COPY_WINDOW_BYTES: usize = 1280 * KIB;
/// The time without progress after which the test fails.
const MAX_PAUSE: Duration = Duration::from_secs(20);
/// A write-back that only a request can cause.
const NEVER: Duration = Duration::from_secs(3600);

/// The progress of all clients, and the request of each.
#[derive(Debug, Default)]
struct Progress {
    steps: AtomicU64,
    requests: Mutex<BTreeMap<usize, String>>,
}

impl Progress {
    /// Returns once no step was made for [`MAX_PAUSE`].
    async fn stalled(&self) {
        let mut steps = self.steps.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(MAX_PAUSE).await;
            let now = self.steps.load(Ordering::Relaxed);
            if now == steps {
                return;
            }
            steps = now;
        }
    }

    fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// One client of a stack.
struct Client {
    number: usize,
    stack: Arc<dyn ObjectStore>,
    budget: Budget,
    progress: Arc<Progress>,
}

impl Client {
    async fn begin(&self, window_bytes: usize, request: &str) -> Context {
        self.progress.requests.lock().unwrap().insert(self.number, format!("waits for memory: {request}"));
        let deadline = Deadline::none(SystemClock::shared());
        let window = self.budget.admit(window_bytes, &deadline).await.unwrap();
        self.progress.requests.lock().unwrap().insert(self.number, request.to_owned());
        self.progress.step();
        Context::new(deadline, window)
    }

    async fn put(&self, address: &Address, bytes: &Bytes) {
        let window_bytes = (2 * bytes.len()).clamp(SMALL_WINDOW_BYTES, 768 * KIB);
        let context = self.begin(window_bytes, &format!("PUT {} bytes", bytes.len())).await;
        let request = StageRequest {
            size: Some(bytes.len() as u64),
            etag: ETagForm::Unique,
            ..StageRequest::default()
        };
        let mut staged = self.stack.stage(&context, address, request).await.unwrap();
        for piece in bytes.chunks(256 * KIB) {
            write_all(&mut *staged, Bytes::copy_from_slice(piece)).await.unwrap();
            self.progress.step();
        }
        staged.commit(Expected::default()).await.unwrap();
    }

    async fn get(&self, address: &Address, expected: &Bytes) {
        let context = self.begin(READ_WINDOW_BYTES, &format!("GET {} bytes", expected.len())).await;
        let mut body = self.stack.get(&context, address, GetRequest::default()).await.unwrap().body;
        let mut rest = &expected[..];
        while let Some(piece) = body.next().await {
            let piece = piece.unwrap();
            assert!(rest.starts_with(&piece), "other bytes than were written");
            rest = &rest[piece.len()..];
            self.progress.step();
        }
        assert!(rest.is_empty(), "the body ends early");
    }

    async fn copy(&self, source: &Address, destination: &Address) {
        let context = self.begin(COPY_WINDOW_BYTES, "COPY").await;
        let request = CopyRequest {
            source: source.clone(),
            source_conditions: ReadConditions::default(),
            destination: destination.clone(),
            metadata: None,
            tags: None,
            algorithm: None,
            precondition: Precondition::None,
            etag: ETagForm::Unique,
        };
        self.stack.copy(&context, request).await.unwrap();
    }

    /// Deletes the null version, which the write-back journal passes on after what is dirty of the key.
    async fn delete_null_version(&self, address: &Address) {
        let context = self.begin(SMALL_WINDOW_BYTES, "DELETE ?versionId=null").await;
        let address = Address { version: Some(VersionId::Null), ..address.clone() };
        self.stack.delete(&context, &address, Precondition::None).await.unwrap();
    }

    async fn run(self, bucket: BucketName, bytes: Bytes) {
        let key = |name: &str| Address::parse(bucket.as_str(), &format!("{name}-{}", self.number)).unwrap();
        let (object, copied) = (key("object"), key("copied"));
        self.put(&object, &bytes).await;
        self.get(&object, &bytes).await;
        self.copy(&object, &copied).await;
        self.put(&object, &bytes).await;
        self.delete_null_version(&object).await;
        self.put(&copied, &bytes).await;
        self.get(&copied, &bytes).await;
        self.delete_null_version(&copied).await;
        self.progress.requests.lock().unwrap().remove(&self.number);
    }
}

/// Equal, repeating or random bytes, by the number of the client.
fn bytes(client: usize, size: usize) -> Bytes {
    match client % 3 {
        0 => Bytes::from(vec![b'x'; size]),
        1 => pattern(size, 7),
        _ => {
            let mut state = client as u64 + 1;
            let mut random = Vec::with_capacity(size + 8);
            while random.len() < size {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
            }
            random.truncate(size);
            random.into()
        }
    }
}

/// Sizes of the objects of the clients: most are small.
fn size(client: usize, max_bytes: usize) -> usize {
    match client {
        0..=2 => max_bytes,
        3..=5 => MIB,
        6..=14 => 140 * KIB,
        15..=23 => 64 * KIB,
        _ => 4 * KIB,
    }
}

/// Runs all clients to their end.
async fn run_clients(name: &str, stack: Arc<dyn ObjectStore>, max_bytes: usize) {
    let (budget, progress) = (Budget::new(BUDGET_BYTES), Arc::new(Progress::default()));
    let bucket = BucketName::new("bucket").unwrap();
    stack.create_bucket(&tradewind_core::testing::context(), &bucket).await.unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let (stack, budget, progress) = (stack.clone(), budget.clone(), progress.clone());
        let client = Client { number, stack, budget, progress };
        clients.spawn(client.run(bucket.clone(), bytes(number, size(number, max_bytes))));
    }
    let all = async {
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        stack.close().await.unwrap();
    };
    tokio::select! {
        () = all => {}
        () = progress.stalled() => panic!("{name}: no progress for {MAX_PAUSE:?}: {:#?}", progress.requests.lock().unwrap()),
    }
    assert_eq!((budget.free(), budget.excess()), (BUDGET_BYTES, 0), "{name}: memory is released");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pair_of_layers_makes_progress_with_little_memory() {
    let runs_all = std::env::var_os("TRADEWIND_ALL_STACK_CASES").is_some();
    for pair in LayerPair::all() {
        // Its bytes are written back while requests wait, by many concurrent requests.
        let is_concurrent = matches!(pair.lower, LayerKind::Deduplicated | LayerKind::Transformed);
        let max_bytes = match (runs_all, is_concurrent && pair.upper == LayerKind::WriteBack) {
            (true, _) => 64 * MIB,
            (false, true) => 8 * MIB,
            (false, false) => MIB,
        };
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let parts = StackParts { directory: directory.path(), store: super::local, write_back_delay: NEVER };
        run_clients(&format!("{pair:?}"), pair.stack(parts).await, max_bytes).await;
    }
}

/// The stack of the deadlock: a DELETE writes back 8 MiB of equal bytes.
#[tokio::test(flavor = "multi_thread")]
async fn cache_with_write_back_over_deduplication_makes_progress() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let parts = StackParts { directory: directory.path(), store: super::local, write_back_delay: NEVER };
    let pair = LayerPair { upper: LayerKind::WriteBack, lower: LayerKind::Deduplicated };
    let stack = with_layer(LayerKind::Cached, pair.stack(parts).await, parts).await;
    run_clients("cached over write-back over deduplicated", stack, 8 * MIB).await;
}
