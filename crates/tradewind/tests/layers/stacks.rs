//! Conformance of generated stacks: every ordered pair of layers, over memory stores. Each pair runs a part of the suite,
//! and all pairs together run every case several times; `TRADEWIND_ALL_STACK_CASES=1` runs the whole suite on each.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_cache::{AllowAll, Cached, CachedOptions, Validation, WriteBack, WriteBackOptions};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, Select, StageRequest};
use tradewind_core::testing::{MemoryStore, conformance, context, drain, pattern, write_all};
use tradewind_core::{Address, BucketName, ByteRange, Metadata, ObjectStore, SystemClock};
use tradewind_layers::deduplicated::{DeduplicationPolicy, MIN_MIN_OBJECT_BYTES};
use tradewind_layers::read_ahead::ReadAheadOptions;
use tradewind_layers::routed::{MoveLimits, Placement};
use tradewind_layers::scheduled::Priorities;
use tradewind_layers::transformed::{ClassSet, Keyring, MasterKey, TransformPolicy};
use tradewind_layers::{
    Deduplicated, Instrumented, ReadAhead, Routed, Scheduled, Tier, Transformed, Volume, Volumes,
};
use tradewind_model::lanes::LanesOptions;
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;

/// Every how many cases a pair runs one.
const SAMPLE: usize = 16;
/// Most of a case's time is waiting.
const MAX_CONCURRENT_PAIRS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    Cached,
    Routed,
    Instrumented,
    Lanes,
    ReadAhead,
    Volumes,
    WriteBack,
    /// Only directly above a store.
    Transformed,
    /// Only directly above a store.
    Deduplicated,
}

pub const LAYERS: [LayerKind; 9] = [
    LayerKind::Cached,
    LayerKind::Routed,
    LayerKind::Instrumented,
    LayerKind::Lanes,
    LayerKind::ReadAhead,
    LayerKind::Volumes,
    LayerKind::WriteBack,
    LayerKind::Transformed,
    LayerKind::Deduplicated,
];

/// Every second write goes to the second tier.
#[derive(Debug, Default)]
pub struct Alternating(AtomicUsize);

impl Placement for Alternating {
    fn tier(&self, _: &Metadata, _: Option<u64>) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed) % 2
    }
}

fn memory(_: &Path) -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

/// Two tiers: `ssd` above `disk`.
pub fn routed(ssd: Arc<dyn ObjectStore>, disk: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    let tier = |name: &str, store| Tier { name: name.to_owned(), store };
    Routed::new(vec![tier("ssd", ssd)], tier("disk", disk), Alternating::default())
}

/// A cache with a new directory.
pub fn cached(below: Arc<dyn ObjectStore>, directory: &Path) -> Arc<dyn ObjectStore> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let options = CachedOptions {
        directory: Some(directory.join(format!("cache-{}", NUMBER.fetch_add(1, Ordering::Relaxed)))),
        disk_bytes: 16 << 20,
        memory_bytes: 4 << 20,
        validation: Validation::Owner,
        volume_id: "v".to_owned(),
    };
    Cached::open(below, options, SystemClock::shared()).unwrap()
}

/// Deduplication of all objects that may have more than one chunk.
pub async fn deduplicated(below: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
    let policy = DeduplicationPolicy { classes: ClassSet::ALL, min_bytes: MIN_MIN_OBJECT_BYTES };
    Deduplicated::open(&context(), below, policy).await.unwrap()
}

/// The stores of which stacks are made.
#[derive(Debug, Clone, Copy)]
pub struct StackParts<'a> {
    /// Directory of caches and local stores.
    pub directory: &'a Path,
    /// Makes a new store.
    pub store: fn(&Path) -> Arc<dyn ObjectStore>,
    /// The delay of write-back.
    pub write_back_delay: Duration,
}

impl StackParts<'_> {
    fn new_store(&self) -> Arc<dyn ObjectStore> {
        (self.store)(self.directory)
    }
}

/// A layer over a store. Other stores that it needs are new.
pub async fn with_layer(
    kind: LayerKind,
    below: Arc<dyn ObjectStore>,
    parts: StackParts<'_>,
) -> Arc<dyn ObjectStore> {
    let clock = SystemClock::shared();
    match kind {
        LayerKind::Cached => cached(below, parts.directory),
        LayerKind::Routed => routed(parts.new_store(), below),
        LayerKind::Instrumented => Instrumented::new(below, clock),
        LayerKind::Lanes => Scheduled::new(below, LanesOptions::default(), Priorities::default(), clock),
        LayerKind::ReadAhead => {
            let options = ReadAheadOptions {
                plan: Plan::default(),
                max_read_ahead_bytes: 4 << 20,
                retries: RetryOptions::default(),
                etags_are_md5: false,
            };
            ReadAhead::new(below, options, clock)
        }
        LayerKind::WriteBack => {
            let options = WriteBackOptions { delay: parts.write_back_delay, ..WriteBackOptions::default() };
            let journal = parts.new_store();
            WriteBack::open(below, journal, Arc::new(AllowAll), options, clock).await.unwrap()
        }
        LayerKind::Transformed => {
            let policy = TransformPolicy { compress: ClassSet::ALL, encrypt: ClassSet::ALL };
            let keys = [("main".to_owned(), MasterKey::new([7; 32]))].into();
            Transformed::new(below, policy, Keyring { current: Some("main".to_owned()), keys }).unwrap()
        }
        LayerKind::Deduplicated => deduplicated(below).await,
        LayerKind::Volumes => {
            let [one, two] = conformance::BUCKETS;
            let volume = |name: &str, store, bucket| Volume {
                name: name.to_owned(),
                store,
                leaf: name.to_owned(),
                tiers: Vec::new(),
                layers: 0,
                buckets: vec![BucketName::new(bucket).unwrap()],
            };
            Volumes::new(volume("below", below, one), vec![volume("other", parts.new_store(), two)])
        }
    }
}

/// Two layers, one above the other.
#[derive(Debug, Clone, Copy)]
pub struct LayerPair {
    pub upper: LayerKind,
    pub lower: LayerKind,
}

impl LayerPair {
    /// Every ordered pair that the settings allow.
    pub fn all() -> impl Iterator<Item = Self> {
        let pairs = LAYERS.iter().flat_map(|upper| LAYERS.map(|lower| Self { upper: *upper, lower }));
        pairs.filter(|pair| !matches!(pair.upper, LayerKind::Transformed | LayerKind::Deduplicated))
    }

    /// The stack of this pair over a new store.
    pub async fn stack(self, parts: StackParts<'_>) -> Arc<dyn ObjectStore> {
        let below = with_layer(self.lower, parts.new_store(), parts).await;
        with_layer(self.upper, below, parts).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pair_of_layers_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let runs_all = std::env::var_os("TRADEWIND_ALL_STACK_CASES").is_some();
    let parts =
        StackParts { directory: directory.path(), store: memory, write_back_delay: Duration::from_millis(1) };
    let run_pair = |(number_of_pair, pair): (usize, LayerPair)| async move {
        for (number, case) in conformance::cases().into_iter().enumerate() {
            if !runs_all && !(number + number_of_pair).is_multiple_of(SAMPLE) {
                continue;
            }
            let stack = pair.stack(parts).await;
            if case.suits(stack.capabilities()) {
                println!("{pair:?}: {case:?}");
                case.run(stack).await;
            } else {
                stack.close().await.unwrap();
            }
        }
    };
    let pairs = futures::stream::iter(LayerPair::all().enumerate());
    pairs.for_each_concurrent(MAX_CONCURRENT_PAIRS, run_pair).await;
}

/// All objects in one tier, until it is changed.
#[derive(Debug, Clone, Default)]
struct OneTier(Arc<AtomicUsize>);

impl Placement for OneTier {
    fn tier(&self, _: &Metadata, _: Option<u64>) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The identity of an object stays when it is moved, so that what a cache above has of it stays valid.
#[tokio::test(flavor = "multi_thread")]
async fn a_cached_object_that_is_moved_is_read_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let placement = OneTier::default();
    let tier = |name: &str| Tier { name: name.to_owned(), store: memory(directory.path()) };
    let tiers = Routed::new(vec![tier("ssd")], tier("disk"), placement.clone());
    let store = cached(tiers.clone(), directory.path());
    let address = Address::parse("bucket", "key").unwrap();
    store.create_bucket(&context(), &address.bucket).await.unwrap();
    let bytes = pattern(3_000_000, 1);
    let mut staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
    write_all(&mut *staged, bytes.clone()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    let read = |select| {
        let (store, address) = (store.clone(), address.clone());
        async move {
            let request = GetRequest { select, ..GetRequest::default() };
            let found = store.get(&context(), &address, request).await.unwrap();
            drain(found.body).await.unwrap()
        }
    };
    let first = Select::Range(ByteRange::Inclusive { first: 0, last: 99_999 });
    assert!(read(first).await == bytes[..100_000]);
    placement.0.store(1, Ordering::Relaxed);
    let limits = MoveLimits { bytes_per_second: 1 << 30, concurrency: 1 };
    assert_eq!(tiers.mover(limits).run_pass(&context(), |_| true).await.unwrap().moved, 1);
    assert!(read(Select::Whole).await == bytes);
    assert!(read(first).await == bytes[..100_000]);
    store.close().await.unwrap();
}
