//! Downloads an object: in one request, or in ranges that share the permit pool with all other requests. Bytes are
//! written at their offsets as they arrive, in any order. An interrupted range is resumed.

mod range_fetch;

use std::collections::VecDeque;
use std::future::Future;
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Checksum, ChecksumScope, ObjectInfo, ObjectStore};
use tradewind_model::plan::{RangeQueue, split_evenly};
use tradewind_model::range_growth::{RangeArrival, RangeGrowth};
use tradewind_model::retry::Attempts;

use super::hedge::{HedgeTimer, OpenedRange};
use super::origin::{Origin, expected_crc};
use super::task::AbortOnDrop;
use super::transfer_context::TransferContext;
use super::versioned_object::{RangeChecksum, VersionedObject};
use range_fetch::NullSink;
use range_fetch::RangeFetch;
pub use range_fetch::fetch_into_memory;
use range_fetch::fetch_missing_range;
pub(super) use range_fetch::fetch_range;

/// The destination of fetched bytes.
pub trait Sink: Send + Sync {
    /// Writes bytes at an offset. A later write to the same offset replaces an earlier one.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Verifies that the sink still has the bytes of a range that an earlier transfer wrote, by reading them back.
    /// Returns their checksum; `None` if the range must be fetched.
    fn verify_stored_range(&self, offset: u64, length: u64) -> Result<Option<Checksum>> {
        let _ = (offset, length);
        Ok(None)
    }

    /// Ranges that an earlier transfer wrote, as offset and length, in order.
    fn stored_ranges(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Called when a stored range of `length` bytes is reused instead of fetched.
    fn range_reused(&self, length: u64) {
        let _ = length;
    }

    /// Called when `bytes` bytes that were written or reused are about to be fetched again, because they are damaged.
    fn bytes_discarded(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Called when a range has been written completely.
    fn range_finished(&self, offset: u64, length: u64, checksum: &Checksum) {
        let _ = (offset, length, checksum);
    }
}

/// An object being fetched, whose first range is in flight.
pub struct Fetch<'a> {
    transfers: &'a Arc<TransferContext>,
    origin: Origin,
    info: ObjectInfo,
    first: OpenedRange<'a>,
    /// Response time of the first request.
    response_time: Duration,
}

impl<'a> Fetch<'a> {
    /// Requests the object, or its first range if it is larger than one. `size` is its size according to a listing, if
    /// known.
    ///
    /// Fails with [`Io`](Reason::Io) if a response without a checksum is shorter than the object turns out to be.
    pub async fn open(
        transfers: &'a Arc<TransferContext>,
        store: &Arc<dyn ObjectStore>,
        address: &Address,
        size: Option<u64>,
    ) -> Result<Self> {
        let origin = Origin { store: store.clone(), address: address.clone() };
        let (mut listed, mut attempts) = (size, Attempts::new());
        loop {
            let requested_at = transfers.clock().now();
            let failed = match open_first_range(&origin, transfers, listed).await {
                Ok((info, first)) if listed.is_some_and(|listed| is_truncated(&info, &first, listed)) => {
                    // Release the connection before waiting for another response.
                    drop(first);
                    let actual_size = head_size(&origin, transfers).await?;
                    if actual_size == info.size {
                        listed = Some(actual_size);
                        continue;
                    }
                    let why =
                        format!("the store returned {} bytes of an object of {actual_size} bytes", info.size);
                    Error::new(Reason::Io, why)
                }
                Ok((info, first)) => {
                    let response_time = transfers.clock().now().saturating_sub(requested_at);
                    return Ok(Self { transfers, origin, info, first, response_time });
                }
                Err(failed) => failed,
            };
            transfers.wait_before_retry(failed, &mut attempts).await?;
        }
    }

    /// The object's metadata, as returned by the store.
    #[must_use]
    pub const fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// Fetches the whole object. The bytes received are compared with the store's full-object checksum, if it has one.
    /// If they differ, all ranges are fetched once more.
    pub async fn write_to(self, sink: Arc<dyn Sink>) -> Result<ObjectInfo> {
        let Self { transfers, origin, info, first, response_time } = self;
        let length = first.length;
        let object = VersionedObject::new(transfers, origin, info, first.requested_whole);
        let stored = sink.stored_ranges();
        let min_rtt = object.origin.store.min_rtt(&object.origin.address.bucket);
        let mut growth = if stored.is_empty() {
            RangeGrowth::new(*transfers.plan(), response_time.min(min_rtt.unwrap_or(response_time)))
        } else {
            // Stored ranges are read from disk, which says nothing about the link.
            RangeGrowth::disabled(*transfers.plan())
        };
        let mut rest = RangeQueue::new(length, object.info.size, stored);
        let mut ranges = JoinSet::new();
        let mut found = Vec::new();
        let checksum_task = object.prefetch_checksum();
        if length < object.info.size {
            // The other ranges start while the first is read.
            let max_ranges = transfers.plan().range_concurrency();
            let mut stagger = transfers.start_stagger(min_rtt, response_time);
            while ranges.len() < max_ranges
                && let Some(span) = rest.next(growth.plan())
            {
                ranges.spawn(fetch_timed(object.clone(), sink.clone(), span, stagger.next_start(max_ranges)));
            }
        }
        let fetched = async {
            let checksum = RangeFetch::new(&object, &*sink).read_to_sink((0, length), Some(first)).await?;
            sink.range_finished(0, length, &checksum);
            found.push((0, checksum, length));
            while let Some(done) = ranges.join_next().await {
                let FetchedRange { range, finished_at, received_at_finish } = done.map_err(task_failed)??;
                growth.record_range(RangeArrival {
                    range_bytes: range.2,
                    received_bytes: received_at_finish,
                    now: finished_at,
                });
                found.push(range);
                while ranges.len() < growth.plan().range_concurrency()
                    && let Some(span) = rest.next(growth.plan())
                {
                    ranges.spawn(fetch_timed(object.clone(), sink.clone(), span, Duration::ZERO));
                }
            }
            let spans: Vec<_> = found.iter().map(|(offset, _, length)| (*offset, *length)).collect();
            match object.verify(found).await {
                Err(e) if e.reason() == Reason::CorruptData => {
                    // Only the checksum of the whole object is known, so any range may be damaged.
                    transfers.wait_before_retry(e, &mut Attempts::new()).await?;
                    fetch_again(&object, &sink, spans).await
                }
                verified => verified,
            }
        };
        let fetched = fetched.await;
        // Nothing may be written after a failure is returned.
        ranges.shutdown().await;
        drop(checksum_task);
        fetched?;
        Ok(object.info.clone())
    }

    /// Fetches the whole object in order: `take` gets each piece once it has accepted the previous one. The store's
    /// checksum is compared at the end, when all pieces have already been handed over.
    pub async fn write_in_order<F>(self, mut take: impl FnMut(Bytes) -> F) -> Result<ObjectInfo>
    where
        F: Future<Output = Result<()>>,
    {
        let Self { transfers, origin, info, first, .. } = self;
        let length = first.length;
        let object = VersionedObject::new(transfers, origin, info, first.requested_whole);
        let _checksum_task = object.prefetch_checksum();
        let rest = split_evenly(object.info.size - length, transfers.plan().stream_bytes);
        let mut rest = rest.map(|(offset, size)| (offset + length, size)).peekable();
        let mut ahead = VecDeque::new();
        // All streams share the read-ahead slots.
        let read_ahead = |ahead: &mut VecDeque<_>, rest: &mut Peekable<_>| {
            while ahead.len() < transfers.plan().read_ahead_ranges()
                && rest.peek().is_some()
                && let Ok(slot) = transfers.read_ahead_slots().try_acquire_owned()
                && let Some(span) = rest.next()
            {
                ahead.push_back((AbortOnDrop(tokio::spawn(fetch_into_memory(object.clone(), span))), slot));
            }
        };
        read_ahead(&mut ahead, &mut rest);
        let mut found = Vec::new();
        let handed_on = RangeFetch::new(&object, &NullSink);
        let checksum = handed_on.forward((0, length), Some(first), &mut take).await?;
        found.push((0, checksum, length));
        loop {
            if let Some((mut range, slot)) = ahead.pop_front() {
                let (bytes, part) = (&mut range.0).await.map_err(task_failed)??;
                found.push(part);
                take(bytes).await?;
                drop(slot);
            } else if let Some(span) = rest.next() {
                // Other streams hold the read-ahead slots: forward the bytes as they arrive.
                let checksum = handed_on.forward(span, None, &mut take).await?;
                found.push((span.0, checksum, span.1));
            } else {
                break;
            }
            read_ahead(&mut ahead, &mut rest);
        }
        object.verify(found).await?;
        Ok(object.info.clone())
    }
}

/// A range that has arrived.
struct FetchedRange {
    range: RangeChecksum,
    /// Time of its last byte. The range may be joined later.
    finished_at: Duration,
    /// Bytes of the object that had arrived by then.
    received_at_finish: u64,
}

/// Fetches a range from `start` on.
async fn fetch_timed(
    object: Arc<VersionedObject>,
    sink: Arc<dyn Sink>,
    span: (u64, u64),
    start: Duration,
) -> Result<FetchedRange> {
    let clock = object.transfers.clock().clone();
    clock.sleep_until(start).await;
    let range = fetch_range(object.clone(), sink, span).await?;
    Ok(FetchedRange { range, finished_at: clock.now(), received_at_finish: object.received_bytes() })
}

/// Fetches all ranges of an object once more, and verifies it.
async fn fetch_again(
    object: &Arc<VersionedObject>,
    sink: &Arc<dyn Sink>,
    spans: Vec<(u64, u64)>,
) -> Result<()> {
    let mut ranges = JoinSet::new();
    sink.bytes_discarded(object.info.size);
    let mut found = Vec::with_capacity(spans.len());
    let mut waiting = spans.into_iter();
    let fetched = loop {
        while ranges.len() < object.transfers.plan().range_concurrency()
            && let Some(span) = waiting.next()
        {
            ranges.spawn(fetch_missing_range(object.clone(), sink.clone(), span));
        }
        match ranges.join_next().await.map(|done| done.map_err(task_failed).flatten()) {
            Some(Ok(range)) => found.push(range),
            Some(Err(e)) => break Err(e),
            None => break Ok(()),
        }
    };
    // Nothing may be written after a failure is returned.
    ranges.shutdown().await;
    fetched?;
    object.verify(found).await
}

/// Returns true if a response is shorter than listed and has no checksum to verify it: an object that has since been
/// replaced looks the same as a truncated response.
fn is_truncated(info: &ObjectInfo, first: &OpenedRange<'_>, listed: u64) -> bool {
    let has_full_object_checksum = info.scope == ChecksumScope::FullObject && !info.checksums.is_empty();
    let is_compared = expected_crc(info).is_some() || (first.requested_whole && has_full_object_checksum);
    info.size < listed && !is_compared
}

/// The size of the object according to a HEAD request.
async fn head_size(origin: &Origin, transfers: &TransferContext) -> Result<u64> {
    let Origin { store, address } = origin;
    let head = transfers.retry(|| async {
        let permits = transfers.acquire_request_permits(0).await?;
        store.head(&permits.context, address, GetRequest::default()).await
    });
    Ok(head.await?.info.size)
}

fn task_failed(e: tokio::task::JoinError) -> Error {
    Error::with_source(Reason::Defect, "a range's task failed", e)
}

/// Requests the object's first range, and hedges it if it is a straggler.
async fn open_first_range<'a>(
    origin: &Origin,
    transfers: &'a TransferContext,
    size: Option<u64>,
) -> Result<(ObjectInfo, OpenedRange<'a>)> {
    let plan = transfers.plan();
    let fits_in_one_request = size.is_some_and(|size| size <= plan.chunk_bytes);
    let bytes = size.filter(|_| fits_in_one_request).unwrap_or(plan.max_range_bytes);
    if let Some(size) = size.filter(|_| !fits_in_one_request) {
        let ranges = plan.ranges(0, size).take(plan.range_concurrency());
        origin.store.prewarm(&origin.address.bucket, ranges.count());
    }
    let mut permits = transfers.acquire_request_permits(bytes).await?;
    permits.throttle_first_piece(bytes).await;
    let mut timer = HedgeTimer::start(transfers, bytes);
    let open = |permits| origin.open(permits, bytes, fits_in_one_request);
    let (permits, info, (body, length, requested_whole)) = timer.first_success(bytes, permits, open).await?;
    Ok((info, OpenedRange { timer, permits, body, length, requested_whole }))
}
