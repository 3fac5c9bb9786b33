//! Work on all objects under a prefix, for the admin API: their eviction from the caches of a volume, or their staging,
//! which reads those that are not cached.
//!
//! The objects are listed from the store below and processed with bounded concurrency. The result is a stream of JSON
//! lines: `{"progress": COUNTS}` every second, `{"failure": {"key", "message"}}` for the first failures, and at the end
//! `{"done": COUNTS}`, or `{"error": {"message"}}` if the work ended early. Dropping the stream ends the work.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream, StreamExt as _, TryStreamExt as _};
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tradewind_cache::{Cached, CachedPart};
use tradewind_core::context::Deadline;
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::object::ETag;
use tradewind_core::store::GetRequest;
use tradewind_core::{
    Address, BucketName, Budget, Clock, Context, Error, ObjectKey, ObjectStore, Reason, Result,
};

/// Objects that are processed concurrently.
const CONCURRENCY: usize = 4;
/// Objects of a listing request.
const PAGE_OBJECTS: usize = 1000;
/// The memory window of a request.
const WINDOW_BYTES: usize = 1 << 20;
/// The maximum time of a listing request, and of the wait for memory.
pub(super) const MAX_REQUEST_TIME: Duration = Duration::from_secs(300);
/// The maximum time of reading one object.
const MAX_READ_TIME: Duration = Duration::from_secs(12 * 3600);
/// The time between two lines about progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of failures with a line of their own.
const MAX_REPORTED_FAILURES: u64 = 100;
/// The maximum time that a read waits for the SSD before it goes on.
const MAX_FILL_WAIT: Duration = Duration::from_secs(30);
/// The maximum time after a read until the SSD has the object.
const MAX_STORE_WAIT: Duration = Duration::from_secs(2);
/// The time between two checks of whether something has been stored or loaded.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An action on objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrefixAction {
    /// Drop them from the caches.
    Evict,
    /// Read those that are not cached, so that they are.
    Stage,
}

/// The part of the server that the work uses.
#[derive(Clone)]
pub(super) struct WorkResources {
    pub store: Arc<dyn ObjectStore>,
    /// The caches of the volume, the top one first. Eviction and staging need at least one.
    pub caches: Vec<Arc<Cached>>,
    pub budget: Budget,
    /// The minimum window of a request.
    pub min_window_bytes: usize,
    pub clock: Arc<dyn Clock>,
    /// Ends the work.
    pub stop: CancellationToken,
}

/// Work on the objects of a bucket under a prefix.
pub(super) struct PrefixWork {
    pub resources: WorkResources,
    pub bucket: BucketName,
    pub prefix: String,
    pub action: PrefixAction,
}

/// An object of the listing.
struct ListedObject {
    address: Address,
    size: u64,
    etag: ETag,
}

/// The outcome for one object.
enum ObjectOutcome {
    /// It was dropped.
    Evicted,
    /// It was not cached, and was not to be.
    NotCached,
    /// It was cached already.
    AlreadyCached,
    /// It was read and is cached.
    Staged(u64),
    /// It was read, but the cache keeps only a part of it, or nothing.
    NotKept(u64),
    /// It is larger than the cache.
    TooLarge,
    /// It no longer exists.
    Gone,
    Failed(FailedObject),
}

struct FailedObject {
    key: String,
    error: Error,
}

/// The counts in lines. An action reports only its own.
#[derive(Debug, Default)]
struct Counts {
    objects: u64,
    evicted: u64,
    already_cached: u64,
    staged: u64,
    not_kept: u64,
    too_large: u64,
    read_bytes: u64,
    failed: u64,
}

impl Counts {
    fn add(&mut self, outcome: &ObjectOutcome) {
        self.objects += 1;
        match outcome {
            ObjectOutcome::Evicted => self.evicted += 1,
            ObjectOutcome::AlreadyCached => self.already_cached += 1,
            ObjectOutcome::Staged(bytes) => {
                self.staged += 1;
                self.read_bytes += bytes;
            }
            ObjectOutcome::NotKept(bytes) => {
                self.not_kept += 1;
                self.read_bytes += bytes;
            }
            ObjectOutcome::TooLarge => self.too_large += 1,
            ObjectOutcome::Failed(_) => self.failed += 1,
            ObjectOutcome::NotCached | ObjectOutcome::Gone => {}
        }
    }

    fn to_json(&self, action: PrefixAction) -> Json {
        match action {
            PrefixAction::Evict => json!({ "objects": self.objects, "evicted": self.evicted }),
            PrefixAction::Stage => json!({
                "objects": self.objects,
                "already_cached": self.already_cached,
                "staged": self.staged,
                "not_kept": self.not_kept,
                "too_large": self.too_large,
                "read_bytes": self.read_bytes,
                "failed": self.failed,
            }),
        }
    }
}

impl PrefixWork {
    /// Fails if the bucket does not exist.
    pub async fn check_bucket(&self) -> Result<()> {
        let context = self.resources.context(MAX_REQUEST_TIME).await?;
        self.resources.store.head_bucket(&context, &self.bucket).await.map(drop)
    }

    /// The lines. The work advances as they are read.
    pub fn into_lines(self) -> BoxStream<'static, Bytes> {
        lines_of(|lines| self.run(lines))
    }

    async fn run(self, lines: Lines) {
        let stop = self.resources.stop.clone();
        let ended = tokio::select! {
            ended = self.process_all(&lines) => ended,
            () = stop.cancelled() => Err(Error::new(Reason::ShuttingDown, "the server is shutting down")),
        };
        match ended {
            Ok(counts) => lines.send(&json!({ "done": counts.to_json(self.action) })).await,
            Err(error) => lines.send(&json!({ "error": { "message": error.to_string() } })).await,
        }
    }

    async fn process_all(&self, lines: &Lines) -> Result<Counts> {
        let mut counts = Counts::default();
        let clock = &self.resources.clock;
        let mut progress_at = clock.now() + PROGRESS_INTERVAL;
        let mut outcomes = pin!(self.outcomes());
        loop {
            tokio::select! {
                outcome = outcomes.next() => {
                    let Some(outcome) = outcome.transpose()? else { return Ok(counts) };
                    counts.add(&outcome);
                    if let ObjectOutcome::Failed(FailedObject { key, error }) = &outcome
                        && counts.failed <= MAX_REPORTED_FAILURES
                    {
                        let failure = json!({ "key": key, "message": error.to_string() });
                        lines.send(&json!({ "failure": failure })).await;
                    }
                }
                () = clock.sleep_until(progress_at) => {}
            }
            // Outcomes may follow each other without a pause.
            if clock.now() >= progress_at {
                lines.send(&json!({ "progress": counts.to_json(self.action) })).await;
                progress_at = clock.now() + PROGRESS_INTERVAL;
            }
        }
    }

    fn outcomes(&self) -> impl Stream<Item = Result<ObjectOutcome>> {
        // While an index is loaded, it is unknown what is on its SSD, and only few removals can be recorded.
        let pages = stream::once(self.wait_for_indexes()).map(|()| Ok(Vec::new())).chain(self.pages());
        match self.action {
            PrefixAction::Evict => pages
                .and_then(|page| self.evict_page(page))
                .map_ok(|outcomes| stream::iter(outcomes.into_iter().map(Ok)))
                .try_flatten()
                .boxed(),
            PrefixAction::Stage => pages
                .map_ok(|page| stream::iter(page.into_iter().map(Ok)))
                .try_flatten()
                .map_ok(move |object| async move { Ok(self.stage(object).await) })
                .try_buffer_unordered(CONCURRENCY)
                .boxed(),
        }
    }

    /// Pages of the listing of the store below.
    fn pages(&self) -> impl Stream<Item = Result<Vec<ListedObject>>> {
        let first =
            ListRequest { prefix: self.prefix.clone(), limit: PAGE_OBJECTS, ..ListRequest::default() };
        stream::try_unfold(Some(first), async |request| {
            let Some(request) = request else { return Ok(None) };
            let context = self.resources.context(MAX_REQUEST_TIME).await?;
            let page = self.resources.store.list(&context, &self.bucket, &request).await?;
            let mut objects = Vec::with_capacity(page.entries.len());
            for entry in page.entries {
                let ListEntry::Key(key, summary) = entry else { continue };
                let address = Address::new(self.bucket.clone(), ObjectKey::new(&key)?);
                objects.push(ListedObject { address, size: summary.size, etag: summary.etag });
            }
            let next = page.next.map(|after| ListRequest { after: Some(after), ..request });
            Ok(Some((objects, next)))
        })
    }

    async fn evict_page(&self, page: Vec<ListedObject>) -> Result<Vec<ObjectOutcome>> {
        let evict = |object: ListedObject| {
            let dropped = self.resources.caches.iter().map(|cache| cache.evict(&object.address));
            // Every cache drops it, also after one had it.
            match dropped.filter(|was_cached| *was_cached).count() {
                0 => ObjectOutcome::NotCached,
                _ => ObjectOutcome::Evicted,
            }
        };
        let outcomes = page.into_iter().map(evict).collect();
        for cache in &self.resources.caches {
            cache.finish_evictions().await;
        }
        Ok(outcomes)
    }

    /// Waits until the caches find what they have on the SSD.
    async fn wait_for_indexes(&self) {
        let is_loaded = || self.resources.caches.iter().all(|cache| cache.is_loaded());
        while !is_loaded() {
            self.resources.sleep(POLL_INTERVAL).await;
        }
    }

    async fn stage(&self, object: ListedObject) -> ObjectOutcome {
        let [cache, ..] = &*self.resources.caches else { return ObjectOutcome::NotCached };
        if cache.cached_part(&object.address, &object.etag).await == CachedPart::Stored {
            return ObjectOutcome::AlreadyCached;
        }
        if object.size > cache.capacity_bytes() {
            return ObjectOutcome::TooLarge;
        }
        match self.read(cache, &object.address).await {
            Ok(read) if self.is_kept(cache, &object.address, &read.etag).await => {
                ObjectOutcome::Staged(read.bytes)
            }
            Ok(read) => ObjectOutcome::NotKept(read.bytes),
            Err(error) if error.reason() == Reason::NoSuchKey => ObjectOutcome::Gone,
            Err(error) => ObjectOutcome::Failed(FailedObject { key: object.address.key.to_string(), error }),
        }
    }

    /// Reads an object through the cache, as slowly as the SSD needs to keep it.
    async fn read(&self, cache: &Cached, address: &Address) -> Result<ReadObject> {
        let context = self.resources.context(MAX_READ_TIME).await?;
        cache.wait_for_fills(MAX_FILL_WAIT).await;
        let found = self.resources.store.get(&context, address, GetRequest::default()).await?;
        let (mut body, etag, mut bytes) = (found.body, found.info.etag, 0);
        while let Some(piece) = body.next().await {
            bytes += piece?.len() as u64;
            cache.wait_for_fills(MAX_FILL_WAIT).await;
        }
        Ok(ReadObject { etag, bytes })
    }

    /// True if the cache has all of an object that was read: extents are stored in the background.
    async fn is_kept(&self, cache: &Cached, address: &Address, etag: &ETag) -> bool {
        let deadline = self.resources.clock.now() + MAX_STORE_WAIT;
        loop {
            let part = cache.cached_part(address, etag).await;
            let is_late = self.resources.clock.now() >= deadline;
            match part {
                CachedPart::Stored => return true,
                CachedPart::All if is_late => return true,
                CachedPart::Nothing | CachedPart::Some if is_late => return false,
                _ => self.resources.sleep(POLL_INTERVAL).await,
            }
        }
    }
}

/// An object that was read.
struct ReadObject {
    etag: ETag,
    bytes: u64,
}

impl WorkResources {
    /// The context of a request, with a window of its own.
    pub async fn context(&self, max_time: Duration) -> Result<Context> {
        let until_admitted = Deadline::after(self.clock.clone(), MAX_REQUEST_TIME);
        let bytes = WINDOW_BYTES.max(self.min_window_bytes);
        let window = self.budget.admit(bytes, &until_admitted.with_cancellation(self.stop.clone())).await?;
        let deadline = Deadline::after(self.clock.clone(), max_time).with_cancellation(self.stop.clone());
        Ok(Context::new(deadline, window))
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        self.clock.sleep_until(self.clock.now() + time)
    }
}

/// The lines that work reports. The work advances as they are read, and ends when the stream is dropped.
pub(super) fn lines_of<W>(work: impl FnOnce(Lines) -> W) -> BoxStream<'static, Bytes>
where
    W: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(1);
    let lines = stream::unfold(receiver, |mut receiver| async move {
        let line: Bytes = receiver.recv().await?;
        Some((line, receiver))
    });
    let work = stream::once(work(Lines(sender))).filter_map(|()| async { None });
    stream::select(lines, work).boxed()
}

/// The receiver of lines. That it went away is seen by the stream's end.
pub(super) struct Lines(mpsc::Sender<Bytes>);

impl Lines {
    pub async fn send(&self, json: &Json) {
        // An error means that the stream is being dropped, and this work with it.
        let _ = self.0.send(format!("{json}\n").into()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tradewind_cache::{CachedOptions, Validation};
    use tradewind_core::object::Expected;
    use tradewind_core::store::StageRequest;
    use tradewind_core::testing::{MemoryStore, SimulatedClock, context, write_all};

    use super::*;

    struct Scene {
        cache: Arc<Cached>,
        clock: Arc<SimulatedClock>,
        stop: CancellationToken,
    }

    impl Scene {
        /// A cache in memory over a store with some more objects than a page has.
        async fn new() -> Self {
            let options = CachedOptions {
                directory: None,
                disk_bytes: 0,
                memory_bytes: 32 << 20,
                validation: Validation::Owner,
                volume_id: "v".to_owned(),
            };
            Self::with_options(options).await
        }

        async fn with_options(options: CachedOptions) -> Self {
            let clock = SimulatedClock::new();
            let cache = Cached::open(MemoryStore::new(clock.clone()), options, clock.clone()).unwrap();
            cache.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
            for number in 0..PAGE_OBJECTS + 3 {
                let address = Address::parse("bucket", &format!("a/{number}")).unwrap();
                let mut staged = cache.stage(&context(), &address, StageRequest::default()).await.unwrap();
                write_all(&mut *staged, Bytes::from_static(b"data")).await.unwrap();
                staged.commit(Expected::default()).await.unwrap();
            }
            Self { cache, clock, stop: CancellationToken::new() }
        }

        fn lines(&self, action: PrefixAction) -> BoxStream<'static, Bytes> {
            let resources = WorkResources {
                store: self.cache.clone(),
                caches: vec![self.cache.clone()],
                budget: Budget::new(64 << 20),
                min_window_bytes: 0,
                clock: self.clock.clone(),
                stop: self.stop.clone(),
            };
            let bucket = BucketName::new("bucket").unwrap();
            PrefixWork { resources, bucket, prefix: "a/".to_owned(), action }.into_lines()
        }

        async fn last_line(&self, action: PrefixAction) -> Json {
            let lines: Vec<Bytes> = self.lines(action).collect().await;
            serde_json::from_slice(lines.last().unwrap()).unwrap()
        }
    }

    #[tokio::test]
    async fn every_page_is_processed() {
        let scene = Scene::new().await;
        let all = PAGE_OBJECTS as u64 + 3;
        let evicted = scene.last_line(PrefixAction::Evict).await;
        assert_eq!(evicted["done"]["objects"], all);
        let again = scene.last_line(PrefixAction::Evict).await;
        assert_eq!(again["done"], json!({ "objects": all, "evicted": 0 }));
        let staged = scene.last_line(PrefixAction::Stage).await;
        assert_eq!(
            (&staged["done"]["staged"], &staged["done"]["failed"]),
            (&all.into(), &0.into()),
            "{staged}"
        );
        assert_eq!(staged["done"]["read_bytes"], all * 4);
        let evicted = scene.last_line(PrefixAction::Evict).await;
        assert_eq!(evicted["done"], json!({ "objects": all, "evicted": all }));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn eviction_waits_until_the_index_is_loaded() {
        let root = tempfile::tempdir().unwrap();
        let options = || CachedOptions {
            directory: Some(root.path().to_owned()),
            disk_bytes: 4 << 20,
            memory_bytes: 32 << 20,
            validation: Validation::Owner,
            volume_id: "v".to_owned(),
        };
        let clock = SimulatedClock::new();
        let empty = Cached::open(MemoryStore::new(clock.clone()), options(), clock).unwrap();
        empty.close().await.unwrap();
        // A pipe instead of the index: its header is read twice, and the load then waits for more.
        let index = root.path().join("index");
        let header = std::fs::read(&index).unwrap()[..32].to_vec();
        std::fs::remove_file(&index).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &index, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut pipe = std::fs::OpenOptions::new().read(true).write(true).open(&index).unwrap();
        pipe.write_all(&header.repeat(2)).unwrap();
        let scene = Scene::with_options(options()).await;
        assert!(!scene.cache.is_loaded());
        let mut lines = scene.lines(PrefixAction::Evict);
        for _ in 0..20 {
            // It reports its progress.
            scene.clock.advance(Duration::from_secs(1));
            let line = tokio::time::timeout(Duration::from_millis(2), lines.next()).await;
            let is_progress =
                line.as_ref().is_ok_and(|line| line.as_ref().unwrap().starts_with(b"{\"progress\""));
            assert!(line.is_err() || is_progress, "{line:?}");
        }
        pipe.write_all(&[0xFF; 4]).unwrap();
        while !scene.cache.is_loaded() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let done = loop {
            scene.clock.advance(Duration::from_secs(1));
            let Ok(line) = tokio::time::timeout(Duration::from_millis(2), lines.next()).await else {
                continue;
            };
            let line: Json = serde_json::from_slice(&line.unwrap()).unwrap();
            if line["progress"].is_null() {
                break line;
            }
        };
        assert_eq!(done["done"]["objects"], PAGE_OBJECTS as u64 + 3, "{done}");
        drop(lines);
        scene.cache.close().await.unwrap();
    }

    #[tokio::test]
    async fn dropped_stream_and_shutdown_end_the_work() {
        let scene = Scene::new().await;
        let references = Arc::strong_count(&scene.cache);
        let mut lines = scene.lines(PrefixAction::Stage);
        assert!(futures::poll!(lines.next()).is_pending() || Arc::strong_count(&scene.cache) > references);
        drop(lines);
        assert_eq!(Arc::strong_count(&scene.cache), references);
        scene.stop.cancel();
        let last = scene.last_line(PrefixAction::Evict).await;
        let message = last["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("shutting down") || message.contains("cancel"), "{last}");
    }
}
