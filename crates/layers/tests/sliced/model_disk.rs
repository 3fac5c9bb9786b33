//! A memory store on the model of a rotating disk, on a simulated clock.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt as _, stream};
use parking_lot::Mutex;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::Result;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::testing::{MemoryStore, SimulatedClock, context_until};
use tradewind_core::{
    Address, Body, Budget, Class, Classes, Clock as _, Context, DeviceGate, Metadata, ObjectStore,
};
use tradewind_layers::{DiskQueue, Sliced};
use tradewind_model::slices::DiskSpeed;

pub const DISK: DiskSpeed =
    DiskSpeed { positioning_time: Duration::from_millis(12), bytes_per_second: 140_000_000 };
const PIECE_BYTES: usize = 256 << 10;
const TICK: Duration = Duration::from_micros(250);

/// Serves requests in their order. A request of another reader than the last one costs the positioning time.
#[derive(Debug)]
pub struct ModelDisk {
    inner: Arc<MemoryStore>,
    clock: Arc<SimulatedClock>,
    head: Arc<Mutex<DiskHead>>,
    /// Objects that were read, which do not change then.
    objects: Mutex<BTreeMap<String, Bytes>>,
    /// The bytes at the beginning of each object that the page cache has.
    cached: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl ModelDisk {
    pub fn new(clock: &Arc<SimulatedClock>) -> Self {
        Self {
            inner: MemoryStore::new(clock.clone()),
            clock: clock.clone(),
            head: Arc::default(),
            objects: Mutex::default(),
            cached: Arc::default(),
        }
    }
}

#[derive(Debug, Default)]
struct DiskHead {
    free_at: Duration,
    last_reader: u64,
    readers: u64,
}

impl DiskHead {
    fn serve(&mut self, reader: u64, bytes: usize, now: Duration) -> Duration {
        let positioning = if reader == self.last_reader { Duration::ZERO } else { DISK.positioning_time };
        let transfer = Duration::from_secs_f64(bytes as f64 / DISK.bytes_per_second as f64);
        // The disk reads ahead: a tick between two reads in sequence costs nothing.
        let reads_on = reader == self.last_reader && now <= self.free_at + TICK;
        let begin = if reads_on { self.free_at } else { self.free_at.max(now) };
        self.last_reader = reader;
        self.free_at = begin + positioning + transfer;
        self.free_at
    }
}

#[async_trait]
impl ObjectStore for ModelDisk {
    tradewind_core::forward_methods! {
        to: |disk| &disk.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning,
        head, stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload, stage_part,
        copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let GetResponse { body, info, span, observation } = self.inner.get(context, address, request).await?;
        let cached = self.objects.lock().get(address.key.as_str()).cloned();
        let bytes = match cached {
            Some(bytes) => bytes,
            None => body.collect().await?,
        };
        self.objects.lock().insert(address.key.as_str().to_owned(), bytes.clone());
        let cached_bytes = self.cached.lock().get(address.key.as_str()).copied().unwrap_or(0);
        let gate = context.device_gate.clone();
        if cached_bytes == 0 || !passes_cached_reads(gate.as_ref()) {
            enter(gate.as_ref()).await?;
        }
        let reader = {
            let mut head = self.head.lock();
            head.readers += 1;
            head.readers
        };
        if bytes.len() <= PIECE_BYTES / 2 {
            if cached_bytes == 0 {
                let until = self.head.lock().serve(reader, bytes.len(), self.clock.now());
                self.clock.sleep_until(until).await;
            }
            return Ok(GetResponse { body: Body::from_bytes(bytes), info, span, observation });
        }
        let (clock, head, all) = (self.clock.clone(), self.head.clone(), bytes.len());
        let length = all as u64;
        let pieces = stream::unfold(bytes, move |mut left: Bytes| {
            let (clock, head, gate) = (clock.clone(), head.clone(), gate.clone());
            async move {
                if left.is_empty() {
                    return None;
                }
                let is_cached = all - left.len() < cached_bytes;
                let piece = left.split_to(PIECE_BYTES.min(left.len()));
                if (!is_cached || !passes_cached_reads(gate.as_ref()))
                    && let Err(error) = enter(gate.as_ref()).await
                {
                    return Some((Err(error), Bytes::new()));
                }
                if !is_cached {
                    let until = head.lock().serve(reader, piece.len(), clock.now());
                    clock.sleep_until(until).await;
                }
                Some((Ok(piece), left))
            }
        });
        Ok(GetResponse { body: Body::from_stream(length, pieces), info, span, observation })
    }
}

async fn enter(gate: Option<&Arc<dyn DeviceGate>>) -> Result<()> {
    match gate {
        Some(gate) => gate.enter().await,
        None => Ok(()),
    }
}

fn passes_cached_reads(gate: Option<&Arc<dyn DeviceGate>>) -> bool {
    gate.is_none_or(|gate| gate.passes_cached_reads())
}

/// A sliced store over the model disk.
pub struct Fixture {
    pub clock: Arc<SimulatedClock>,
    pub disk: Arc<DiskQueue>,
    pub store: Arc<Sliced>,
    cached: Arc<Mutex<BTreeMap<String, usize>>>,
    budget: Budget,
}

pub fn key(name: &str) -> Address {
    Address::parse("bucket", name).unwrap()
}

impl Fixture {
    pub async fn new() -> Self {
        let clock = SimulatedClock::new();
        let inner = ModelDisk::new(&clock);
        let cached = inner.cached.clone();
        let disk = DiskQueue::new(DISK, clock.clone());
        let store = Sliced::new(Arc::new(inner), disk.clone());
        let fixture = Self { clock, disk, store, cached, budget: Budget::new(1 << 40) };
        fixture.store.create_bucket(&fixture.context(), &key("k").bucket).await.unwrap();
        fixture
    }

    pub fn context(&self) -> Context {
        context_until(&self.budget, Deadline::none(self.clock.clone()))
    }

    pub async fn put(&self, name: &str, size: usize, class: Option<u8>) -> Result<()> {
        let classes = Classes { object: class.map(|value| Class::new(value).unwrap()), ..Classes::default() };
        let metadata = Metadata { classes, ..Metadata::default() };
        let request = StageRequest { size: Some(size as u64), metadata, ..StageRequest::default() };
        let mut staged = self.store.stage(&self.context(), &key(name), request).await?;
        staged.write(vec![7; size].into()).await?;
        staged.commit(Expected::default()).await.map(drop)
    }

    /// Lets the page cache have the beginning of an object.
    pub fn cache(&self, name: &str, bytes: usize) {
        self.cached.lock().insert(name.to_owned(), bytes);
    }

    pub async fn get(&self, name: &str) -> Result<Body> {
        let found = self.store.get(&self.context(), &key(name), GetRequest::default()).await?;
        Ok(found.body)
    }

    /// Advances the clock until `work` is done. Returns its output and the time taken.
    pub async fn advance_until<T>(&self, work: impl Future<Output = T>) -> (T, Duration) {
        let (started, mut work) = (self.clock.now(), pin!(work));
        loop {
            for _ in 0..4 {
                if let Some(done) = work.as_mut().now_or_never() {
                    return (done, self.clock.now() - started);
                }
            }
            assert!(self.clock.now() < started + Duration::from_secs(60), "the work does not end");
            self.clock.advance(TICK);
        }
    }

    pub fn assert_idle(&self) {
        assert_eq!((self.disk.queued(), self.disk.turn_count()), (0, 0));
    }
}
