//! Reads while the backing store does not respond: heads that were compared since the cache was opened are served if the
//! validation allows it, and all others wait for the store.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use tradewind_cache::{Cached, CachedOptions, OutageOptions, TierOptions, Validation};
use tradewind_core::context::Deadline;
use tradewind_core::layer::Method;
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::Expected;
use tradewind_core::observation::CacheStatus;
use tradewind_core::store::{GetRequest, GetResponse, Select, StageRequest};
use tradewind_core::testing::{
    MemoryStore, SimulatedClock, context, context_until, drain, pattern, reason, write_all,
};
use tradewind_core::{Address, Body, Budget, Clock, Context, ObjectStore, Precondition, Reason, Result};

const SECOND: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(2);
const HOUR: Duration = Duration::from_secs(3600);

/// A service that can stop responding to HEADs, or be unreachable.
#[derive(Debug)]
struct Service {
    inner: Arc<MemoryStore>,
    hangs: AtomicBool,
    fails: AtomicBool,
    rejects_bucket: AtomicBool,
}

#[async_trait]
impl ObjectStore for Service {
    tradewind_core::forward_methods! {
        to: |service| &service.inner;
        around: |service, call, response| {
            let is_read = matches!(call.method, Method::Head | Method::Get);
            if is_read && service.hangs.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            if is_read && service.fails.load(Ordering::SeqCst) {
                return Err(tradewind_core::Error::new(Reason::Io, "connection refused"));
            }
            if is_read && service.rejects_bucket.load(Ordering::SeqCst) {
                let error = tradewind_core::Error::new(Reason::Io, "another journal owns the bucket");
                return Err(error.affecting_whole_bucket());
            }
            response.await
        };
        capabilities, prewarm, min_rtt, accepts, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload,
    }

    /// A service goes on when its client closes.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

struct Bench {
    service: Arc<Service>,
    cached: Arc<Cached>,
    clock: Arc<SimulatedClock>,
    address: Address,
}

impl Bench {
    async fn new(directory: &Path, validation: Validation, stale: Option<Duration>) -> Self {
        let clock = SimulatedClock::new();
        let inner = MemoryStore::new(clock.clone());
        let [hangs, fails, rejects_bucket] = [false; 3].map(AtomicBool::new);
        let service = Arc::new(Service { inner, hangs, fails, rejects_bucket });
        let address = Address::parse("bucket", "key").unwrap();
        service.create_bucket(&context(), &address.bucket).await.unwrap();
        let cached = Self::open(directory, &service, &clock, validation, stale);
        let bench = Self { service, cached, clock, address };
        bench.put(1).await;
        bench
    }

    fn open(
        directory: &Path,
        service: &Arc<Service>,
        clock: &Arc<SimulatedClock>,
        validation: Validation,
        stale_if_unavailable: Option<Duration>,
    ) -> Arc<Cached> {
        let options = CachedOptions {
            directory: Some(directory.to_owned()),
            disk_bytes: 16 << 20,
            memory_bytes: 4 << 20,
            validation,
            volume_id: "v".to_owned(),
        };
        let outage = OutageOptions { max_comparison_wait: WAIT, stale_if_unavailable };
        let tiers = TierOptions { outage, ..TierOptions::default() };
        Cached::open_with_tiers(service.clone(), options, tiers, clock.clone()).unwrap()
    }

    /// Replaces the object in the service, not through the cache.
    async fn put(&self, seed: u64) {
        let mut staged =
            self.service.stage(&context(), &self.address, StageRequest::default()).await.unwrap();
        write_all(&mut *staged, pattern(20_000, seed)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    fn context(&self) -> Context {
        context_until(&Budget::new(1 << 20), Deadline::after(self.clock.clone(), 6 * SECOND))
    }

    /// The result of a request, and the time that it took.
    async fn run<T>(&self, request: impl Future<Output = T>) -> (T, Duration) {
        let started = self.clock.now();
        let mut request = std::pin::pin!(request);
        loop {
            // The SSD is read by threads.
            for _ in 0..20 {
                if let Some(result) = request.as_mut().now_or_never() {
                    return (result, self.clock.now() - started);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.clock.advance(Duration::from_millis(500));
        }
    }

    async fn get(&self) -> (Result<GetResponse<Body>>, Duration) {
        let context = self.context();
        let read = self.cached.get(&context, &self.address, GetRequest::default());
        let (found, time) = self.run(context.guard(read)).await;
        (found.and_then(|found| found), time)
    }

    /// Reads the object from the cache, as of `seed`.
    async fn hit(&self, seed: u64) -> (CacheStatus, Duration) {
        let (found, time) = self.get().await;
        let found = found.unwrap();
        let status = found.observation.cache.unwrap();
        assert!(drain(found.body).await.unwrap() == pattern(20_000, seed));
        (status, time)
    }

    fn hang(&self, hangs: bool) {
        self.service.hangs.store(hangs, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn compared_head_is_served_after_two_seconds_of_silence() {
    let directory = tempfile::tempdir().unwrap();
    // For ten minutes after the start, a request of an earlier process may be applied: each read compares.
    let bench = Bench::new(directory.path(), Validation::SoleWriter, None).await;
    bench.hit(1).await;
    bench.hang(true);
    let (status, time) = bench.hit(1).await;
    assert!(status.is_uncompared && time == WAIT, "{status} after {time:?}");
    let (status, time) = bench.hit(1).await;
    assert!(status.is_uncompared && time == Duration::ZERO, "no second wait: {status} after {time:?}");
    let context = bench.context();
    let head = bench.cached.head(&context, &bench.address, GetRequest::default());
    assert!(bench.run(head).await.0.unwrap().observation.cache.unwrap().is_uncompared);
    bench.hang(false);
    bench.clock.advance(2 * SECOND);
    let (status, time) = bench.hit(1).await;
    assert!(!status.is_uncompared && time == Duration::ZERO, "{status} after {time:?}");
}

#[tokio::test]
async fn compared_head_is_served_while_the_service_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::new(directory.path(), Validation::SoleWriter, None).await;
    bench.hit(1).await;
    bench.service.fails.store(true, Ordering::SeqCst);
    let (status, time) = bench.hit(1).await;
    assert!(status.is_uncompared && time == Duration::ZERO, "{status} after {time:?}");
}

#[tokio::test]
async fn head_of_an_earlier_session_waits_for_the_service() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::new(directory.path(), Validation::SoleWriter, Some(HOUR)).await;
    bench.hit(1).await;
    bench.hit(1).await;
    bench.cached.flush().await;
    bench.cached.close().await.unwrap();
    bench.put(2).await;
    let cached =
        Bench::open(directory.path(), &bench.service, &bench.clock, Validation::SoleWriter, Some(HOUR));
    let bench = Bench { cached, ..bench };
    bench.hang(true);
    assert_eq!(reason(bench.get().await.0), Reason::DeadlineExceeded);
    bench.hang(false);
    bench.hit(2).await;
}

#[tokio::test]
async fn object_that_must_be_compared_is_not_served_without() {
    for validation in [Validation::Always, Validation::MaxAge(SECOND)] {
        let directory = tempfile::tempdir().unwrap();
        let bench = Bench::new(directory.path(), validation, None).await;
        bench.hit(1).await;
        bench.clock.advance(2 * SECOND);
        bench.hang(true);
        assert_eq!(reason(bench.get().await.0), Reason::DeadlineExceeded, "{validation:?}");
    }
}

#[tokio::test]
async fn stale_if_unavailable_serves_up_to_its_age() {
    for validation in [Validation::Always, Validation::MaxAge(SECOND)] {
        let directory = tempfile::tempdir().unwrap();
        let bench = Bench::new(directory.path(), validation, Some(60 * SECOND)).await;
        bench.hit(1).await;
        bench.clock.advance(30 * SECOND);
        bench.hang(true);
        let (status, time) = bench.hit(1).await;
        assert!(status.is_uncompared && time == WAIT, "{validation:?}: {status} after {time:?}");
        bench.clock.advance(30 * SECOND);
        assert_eq!(reason(bench.get().await.0), Reason::DeadlineExceeded, "{validation:?}");
    }
}

/// A client has seen another object in a read that the cache does not serve.
#[tokio::test]
async fn older_object_is_not_served_after_a_newer_one_was_seen() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::new(directory.path(), Validation::SoleWriter, None).await;
    bench.hit(1).await;
    bench.put(2).await;
    bench.clock.advance(SECOND);
    let part = Select::Part(PartNumber::new(1).unwrap());
    let request = GetRequest { select: part, ..GetRequest::default() };
    let found = bench.cached.get(&bench.context(), &bench.address, request).await.unwrap();
    assert!(drain(found.body).await.unwrap() == pattern(20_000, 2));
    bench.hang(true);
    assert_eq!(reason(bench.get().await.0), Reason::DeadlineExceeded);
    bench.hang(false);
    bench.hit(2).await;
}

/// A HEAD has told a client that the object is gone, while a read of it was in progress.
#[tokio::test]
async fn deleted_object_is_not_served_after_its_absence_was_seen() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::new(directory.path(), Validation::SoleWriter, None).await;
    bench.hit(1).await;
    let reading = bench.get().await.0.unwrap().body;
    bench.clock.advance(SECOND);
    bench.service.inner.delete(&context(), &bench.address, Precondition::None).await.unwrap();
    let request = GetRequest::default();
    assert_eq!(reason(bench.cached.head(&bench.context(), &bench.address, request).await), Reason::NoSuchKey);
    drain(reading).await.unwrap();
    bench.hang(true);
    assert_eq!(reason(bench.get().await.0), Reason::DeadlineExceeded);
}

/// Another journal owns the bucket, for instance: that is an answer.
#[tokio::test]
async fn error_about_the_whole_bucket_is_no_outage() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::new(directory.path(), Validation::SoleWriter, None).await;
    bench.hit(1).await;
    bench.service.rejects_bucket.store(true, Ordering::SeqCst);
    assert_eq!(reason(bench.get().await.0), Reason::Io);
}

#[tokio::test]
async fn replaced_object_is_found_when_the_service_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let bench = Bench::new(directory.path(), Validation::Always, Some(HOUR)).await;
    bench.hit(1).await;
    bench.hang(true);
    bench.hit(1).await;
    bench.put(2).await;
    bench.hit(1).await;
    bench.hang(false);
    bench.clock.advance(2 * SECOND);
    bench.hit(2).await;
}
