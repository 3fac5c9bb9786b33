use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::FutureExt as _;
use tradewind_core::listing::ListRequest;
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::testing::{MemoryStore, SimulatedClock, context_until, reason};
use tradewind_core::{Address, Budget, ErrorKind, Precondition};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A service some of whose methods do not respond.
#[derive(Debug)]
struct Hanging {
    inner: Arc<MemoryStore>,
    hanging: Mutex<Vec<Method>>,
    /// Ends the requests that hang.
    release: tokio::sync::Notify,
    traffic: Arc<Traffic>,
    calls: AtomicUsize,
    probes: AtomicUsize,
}

impl Hanging {
    fn hang(&self, methods: &[Method]) {
        *self.hanging.lock() = methods.to_vec();
    }
}

#[async_trait]
impl ObjectStore for Hanging {
    tradewind_core::forward_methods! {
        to: |service| &service.inner;
        around: |service, call, response| {
            service.calls.fetch_add(1, Ordering::Relaxed);
            if call.method == Method::HeadBucket {
                service.probes.fetch_add(1, Ordering::Relaxed);
            }
            let hangs = service.hanging.lock().contains(&call.method);
            if hangs {
                service.release.notified().await;
            }
            // A write begins without a request.
            if call.method != Method::Stage {
                service.traffic.record_received(200);
            }
            response.await
        };
        capabilities, prewarm, min_rtt, accepts, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload,
        abort_upload, close,
    }
}

const READS: [Method; 5] = [Method::HeadBucket, Method::ListBuckets, Method::Head, Method::Get, Method::List];

struct Bench {
    service: Arc<Hanging>,
    layer: Arc<Responsive>,
    clock: Arc<SimulatedClock>,
    address: Address,
}

impl Bench {
    async fn new() -> Self {
        let clock = SimulatedClock::new();
        let inner = MemoryStore::new(clock.clone());
        let (hanging, traffic) = (Mutex::default(), Arc::<Traffic>::default());
        let [calls, probes] = [0, 0].map(AtomicUsize::new);
        let service = Arc::new(Hanging {
            inner,
            hanging,
            release: tokio::sync::Notify::new(),
            traffic: traffic.clone(),
            calls,
            probes,
        });
        let layer = Responsive::new(service.clone(), traffic, clock.clone());
        let bench = Self { service, layer, clock, address: Address::parse("bucket", "key").unwrap() };
        bench.layer.create_bucket(&bench.context(), &bench.address.bucket).await.unwrap();
        bench
    }

    fn context(&self) -> Context {
        context_until(&Budget::new(1 << 20), Deadline::after(self.clock.clone(), 60 * SECOND))
    }

    /// The result of a request and the time that it took.
    async fn run<T>(&self, request: impl Future<Output = T>) -> (T, Duration) {
        let started = self.clock.now();
        let mut request = std::pin::pin!(request);
        loop {
            if let Some(result) = request.as_mut().now_or_never() {
                return (result, self.clock.now() - started);
            }
            self.advance(Duration::from_millis(100)).await;
        }
    }

    /// Advances time, and lets the probes run before and after.
    async fn advance(&self, time: Duration) {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.clock.advance(time);
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }

    async fn head(&self) -> (Result<GetResponse<()>>, Duration) {
        let context = self.context();
        self.run(self.layer.head(&context, &self.address, GetRequest::default())).await
    }

    fn calls(&self) -> usize {
        self.service.calls.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn reads_of_a_service_that_hangs_fail_within_five_seconds() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    let (found, time) = bench.head().await;
    let error = found.unwrap_err();
    assert_eq!((error.reason(), error.is_unsent()), (Reason::Io, true));
    assert!(time >= MAX_SILENCE && time <= 5 * SECOND, "{time:?}");
    let context = bench.context();
    let (listed, time) =
        bench.run(bench.layer.list(&context, &bench.address.bucket, &ListRequest::default())).await;
    assert_eq!(reason(listed), Reason::Io);
    assert!(time <= MAX_PROBE_WAIT, "known to be unresponsive: {time:?}");
}

#[tokio::test]
async fn requests_fail_during_a_probe() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    bench.head().await.0.unwrap_err();
    bench.advance(MIN_PROBE_AGE).await;
    let calls = bench.calls();
    let (context, request) = (bench.context(), GetRequest::default());
    let mut probing = std::pin::pin!(bench.layer.head(&context, &bench.address, request));
    assert!(probing.as_mut().now_or_never().is_none());
    bench.advance(SECOND / 2).await;
    let (found, time) = bench.head().await;
    assert!(found.unwrap_err().is_unsent() && time == Duration::ZERO, "{time:?}");
    let deletion = bench.layer.delete(&context, &bench.address, Precondition::None);
    let error = deletion.now_or_never().unwrap().unwrap_err();
    assert!(error.is_unsent() && error.kind() == ErrorKind::Unavailable);
    assert_eq!(bench.calls(), calls + 1, "the probe alone");
    let (found, time) = bench.run(probing).await;
    assert!(found.unwrap_err().is_unsent() && time <= MAX_PROBE_WAIT, "{time:?}");
}

#[tokio::test]
async fn first_response_ends_the_failures() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    bench.head().await.0.unwrap_err();
    bench.service.hang(&[]);
    bench.advance(PROBE_INTERVAL + SECOND).await;
    let (found, time) = bench.head().await;
    assert_eq!(reason(found), Reason::NoSuchKey);
    assert!(time < SECOND, "{time:?}");
}

/// A layer above repeats a read once, and the client waits for both.
#[tokio::test]
async fn repeated_read_fails_within_five_seconds() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    let started = bench.clock.now();
    bench.head().await.0.unwrap_err();
    bench.advance(SECOND).await;
    let (found, time) = bench.head().await;
    assert!(found.unwrap_err().is_unsent() && time == Duration::ZERO, "{time:?}");
    assert!(bench.clock.now() - started <= 5 * SECOND);
    bench.advance(Duration::ZERO).await;
    assert_eq!(bench.service.probes.load(Ordering::Relaxed), 2, "the retry causes a probe");
}

#[tokio::test]
async fn slow_listing_of_a_service_that_responds_is_not_failed() {
    let bench = Bench::new().await;
    bench.service.hang(&[Method::List]);
    let context = bench.context();
    let request = ListRequest::default();
    let listing = bench.layer.list(&context, &bench.address.bucket, &request);
    // It lasts until the deadline of the request, which the leaf or the server enforces.
    let (listed, time) = bench.run(context.guard(listing)).await;
    assert_eq!(reason(listed.and_then(|listed| listed)), Reason::DeadlineExceeded);
    assert_eq!(time, 60 * SECOND);
    let probes = bench.service.probes.load(Ordering::Relaxed);
    assert!((20..=30).contains(&probes), "one probe for each silence of 2 s: {probes}");
}

#[tokio::test]
async fn responses_to_other_requests_save_the_probe() {
    let bench = Bench::new().await;
    bench.service.hang(&[Method::List]);
    let context = bench.context();
    let request = ListRequest::default();
    let mut listing = std::pin::pin!(bench.layer.list(&context, &bench.address.bucket, &request));
    for _ in 0..20 {
        assert!(listing.as_mut().now_or_never().is_none());
        bench.head().await.0.unwrap_err();
        bench.advance(SECOND).await;
    }
    assert_eq!(bench.service.probes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn change_that_was_sent_is_never_failed() {
    let bench = Bench::new().await;
    let mut methods = READS.to_vec();
    methods.push(Method::Delete);
    bench.service.hang(&methods);
    let context = bench.context();
    let deletion = bench.layer.delete(&context, &bench.address, Precondition::None);
    let (deleted, time) = bench.run(context.guard(deletion)).await;
    assert_eq!((reason(deleted.and_then(|deleted| deleted)), time), (Reason::DeadlineExceeded, 60 * SECOND));
}

/// A write begins, and its first bytes are buffered, without a request.
#[tokio::test]
async fn beginning_writes_do_not_hide_the_silence() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    let context = bench.context();
    let mut read = std::pin::pin!(bench.layer.head(&context, &bench.address, GetRequest::default()));
    let started = bench.clock.now();
    let error = loop {
        if let Some(found) = read.as_mut().now_or_never() {
            break found.unwrap_err();
        }
        let writing = bench.layer.stage(&context, &bench.address, StageRequest::default());
        drop(writing.now_or_never().unwrap());
        bench.advance(SECOND / 2).await;
    };
    assert!(error.is_unsent() && bench.clock.now() - started <= 5 * SECOND, "{error:?}");
}

/// The leaf repeats requests that a service rejects for now.
#[tokio::test]
async fn service_that_sends_errors_is_responsive() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    let context = bench.context();
    let mut read = std::pin::pin!(bench.layer.head(&context, &bench.address, GetRequest::default()));
    for _ in 0..60 {
        assert!(read.as_mut().now_or_never().is_none());
        bench.service.traffic.record_received(150);
        bench.advance(SECOND / 2).await;
    }
    assert_eq!(bench.service.probes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn service_that_sends_one_byte_a_second_is_unresponsive() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    let context = bench.context();
    let mut read = std::pin::pin!(bench.layer.head(&context, &bench.address, GetRequest::default()));
    let started = bench.clock.now();
    while read.as_mut().now_or_never().is_none() {
        bench.service.traffic.record_received(1);
        bench.advance(SECOND / 2).await;
    }
    assert!(bench.clock.now() - started <= 5 * SECOND);
}

/// The first probe needs longer than a request waits for it: a slow resolver, or new credentials.
#[tokio::test]
async fn late_response_to_a_probe_ends_the_failures() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    bench.head().await.0.unwrap_err();
    assert!(bench.head().await.0.unwrap_err().is_unsent());
    // The probe in flight gets its response.
    bench.service.hang(&[]);
    bench.service.release.notify_waiters();
    bench.advance(SECOND / 10).await;
    assert_eq!(bench.head().await.1, Duration::ZERO);
}

#[tokio::test]
async fn waiting_reads_share_one_probe() {
    let bench = Bench::new().await;
    bench.service.hang(&READS);
    let context = bench.context();
    let reads = (0..32).map(|_| bench.layer.head(&context, &bench.address, GetRequest::default()));
    let (all, time) = bench.run(futures::future::join_all(reads)).await;
    assert!(all.into_iter().all(|found| reason(found) == Reason::Io));
    assert!(time <= 5 * SECOND, "{time:?}");
    assert_eq!(bench.service.probes.load(Ordering::Relaxed), 1);
}
