//! Throughput over a simulated link that serves one transfer after another, so that the requests of a load progress as
//! unevenly as possible. Uploads are accepted at once, into buffers of any depth.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream;
use parking_lot::Mutex;
use tokio::time::Instant;
use tradewind_core::error::Result as StoreResult;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::send_progress::SendQueue;
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::{Body, Observation, Staged};

use super::*;
use crate::result::Measurement;
use crate::test_plan::Step;

const LINK_BYTES_PER_SECOND: u64 = 10 << 20;
const OBJECT_BYTES: u64 = 10 << 20;
/// Bytes of a body that arrive together.
const PIECE_BYTES: u64 = 256 << 10;
/// Shorter than a round of requests, which takes four seconds.
const WINDOW: Duration = Duration::from_secs(2);

/// The time of the runtime.
#[derive(Debug)]
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }

    fn sleep_until(&self, until: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.0 + until))
    }
}

/// The time in which the link transmits one body.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    start: Instant,
}

impl Transfer {
    fn time_of(self, byte: u64) -> Instant {
        self.start + Duration::from_secs_f64(byte as f64 / LINK_BYTES_PER_SECOND as f64)
    }
}

impl SendQueue for Transfer {
    fn sent_bytes(&self) -> u64 {
        0
    }

    fn acknowledged_bytes(&self) -> u64 {
        (self.start.elapsed().as_secs_f64() * LINK_BYTES_PER_SECOND as f64) as u64
    }
}

/// A store at the other end of the link.
#[derive(Debug)]
struct SlowLink {
    inner: Arc<dyn ObjectStore>,
    /// When the link has transmitted everything so far.
    free: Mutex<Instant>,
}

impl SlowLink {
    fn transfer(&self, bytes: u64) -> Transfer {
        let mut free = self.free.lock();
        let transfer = Transfer { start: (*free).max(Instant::now()) };
        *free = transfer.time_of(bytes);
        transfer
    }
}

struct BufferedUpload {
    inner: Box<dyn Staged>,
    end: Instant,
}

#[async_trait]
impl Staged for BufferedUpload {
    async fn write(&mut self, bytes: Bytes) -> StoreResult<()> {
        self.inner.write(bytes).await
    }

    async fn commit(self: Box<Self>, expected: Expected) -> StoreResult<(Committed, Observation)> {
        tokio::time::sleep_until(self.end).await;
        self.inner.commit(expected).await
    }
}

#[async_trait]
impl ObjectStore for SlowLink {
    tradewind_core::forward_methods! {
        to: |link| &link.inner;
        capabilities, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning, head,
        delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload, copy_part, list_parts,
        list_uploads, complete_upload, abort_upload, close, prewarm, stage_part,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> StoreResult<GetResponse<Body>> {
        let found = self.inner.get(context, address, request).await?;
        let (info, span, observation, length) =
            (found.info, found.span, found.observation, found.body.length());
        let (bytes, transfer) = (found.body.collect().await?, self.transfer(length));
        let starts = (0..length).step_by(usize::try_from(PIECE_BYTES).unwrap());
        let pieces = stream::iter(starts).then(move |start| {
            let end = (start + PIECE_BYTES).min(length);
            let piece = bytes.slice(usize::try_from(start).unwrap()..usize::try_from(end).unwrap());
            async move {
                tokio::time::sleep_until(transfer.time_of(end)).await;
                Ok(piece)
            }
        });
        Ok(GetResponse { info, span, body: Body::from_stream(length, pieces), observation })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> StoreResult<Box<dyn Staged>> {
        let bytes = request.size.unwrap();
        let inner = self.inner.stage(context, address, request).await?;
        let transfer = self.transfer(bytes);
        if let Some(progress) = &context.send_progress {
            progress.start_request(Arc::new(transfer));
        }
        Ok(Box::new(BufferedUpload { inner, end: transfer.time_of(bytes) }))
    }
}

/// Runs a load of one operation over the link.
async fn run_over_link(operation: Operation, warm_up: Duration, window: Duration) -> (Load, LoadOutcome) {
    let (env, object_set) = (env().await, object_set(&format!("{OBJECT_BYTES}B")));
    if operation == Operation::Get {
        run(&env, &object_set, &load("put", Some(4), LONG)).await;
    }
    let clock = Arc::new(RuntimeClock(Instant::now()));
    let store = Arc::new(SlowLink { inner: env.store.clone(), free: Mutex::new(Instant::now()) });
    let env = BenchEnv { store, clock, ..env };
    let load = Load { warm_up, ..load(operation.name(), None, window) };
    let outcome = run(&env, &object_set, &load).await;
    (load, outcome)
}

#[tokio::test(start_paused = true)]
async fn throughput_of_requests_longer_than_the_window_is_the_links() {
    for operation in [Operation::Get, Operation::Put] {
        for warm_up in [Duration::ZERO, Duration::from_millis(500)] {
            let (_, outcome) = run_over_link(operation, warm_up, WINDOW).await;
            let stats = &outcome.record.stats_by_operation()[&operation];
            assert_eq!((stats.failure_count(), outcome.end_reason), (0, EndReason::TimeLimit));
            let series: u64 = outcome.series_100ms.iter().map(|interval| interval.bytes).sum();
            assert!(series <= stats.passed_bytes, "{series} of {}", stats.passed_bytes);
            let throughput = stats.passed_bytes as f64 / outcome.duration.as_secs_f64();
            let relative = throughput / LINK_BYTES_PER_SECOND as f64;
            assert!((0.9..1.05).contains(&relative), "{operation} after {warm_up:?}: {relative}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_longer_than_the_window_have_no_latency() {
    // Each request takes at least a second.
    let (warm_up, window) = (Duration::from_millis(300), Duration::from_millis(500));
    let (load, outcome) = run_over_link(Operation::Get, warm_up, window).await;
    let step = Step { load, sizes: "1KiB".parse().unwrap(), objects: 4, round: 1 };
    let measurement = Measurement::new(&step, Vec::new(), &outcome, 2);
    let figures = &measurement.operations[&Operation::Get];
    assert_eq!((figures.latency_us.figure_if_any(|latency| latency.p50), figures.operations), (None, 0));
    let bytes_per_second = measurement.bytes_per_second;
    assert!(bytes_per_second.mean > 0.0 && bytes_per_second.ci95_half_width.is_none(), "{measurement:?}");
    let expected = "no get started within the measured 0.5 s";
    assert!(measurement.notes.iter().any(|note| note.starts_with(expected)), "{:?}", measurement.notes);
}
