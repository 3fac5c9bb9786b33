//! Delivers one object or range in order: from the first request as its bytes arrive, and from ranges read ahead into
//! memory.
//!
//! - The first request delivers the first range and is cancelled where the next range begins. Without read-ahead memory
//!   it continues to the end, as it would without this layer.
//! - A request that is interrupted is resumed from there, for the same version. If the object has changed, the body
//!   fails.
//! - Permits are held while waiting for the store, but not while waiting long for the reader. Slow readers therefore do
//!   not occupy permits, and a range held in memory needs none.
//! - A task with an open connection never waits for permits, because tasks with permits wait for connections. An open
//!   response takes permits only if some are free, and otherwise continues without.
//! - Dropping the body cancels the task and everything that it started.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Permit as ChannelPermit, Receiver, Sender, channel};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Body, Context, Span};
use tradewind_model::retry::Attempts;

use super::read_ahead_budget::{RangeReservation, RequestReadAhead};
use super::verifier::Verifier;
use tradewind_parallel::fetch::fetch_into_memory;
use tradewind_parallel::task::AbortOnDrop;
use tradewind_parallel::transfer_context::RequestPermits;
use tradewind_parallel::versioned_object::VersionedObject;

/// A task that waits longer than this for its reader releases its permits.
const MAX_READER_WAIT: Duration = Duration::from_millis(100);
/// Minimum ranges that memory must allow before the first request is cut short: fewer would be slower than letting it
/// finish.
const MIN_RANGES_AHEAD: usize = 3;

/// A read to perform.
pub(super) struct OrderedRead {
    pub whole: Arc<VersionedObject>,
    /// Context of the client request.
    pub context: Context,
    pub span: Span,
    /// Verifies all bytes at the end.
    pub verifier: Option<Verifier>,
    /// True if an interrupted request may be resumed: false if only the leaf verifies the bytes, in one request.
    pub is_resumable: bool,
    /// Limits the ranges in flight.
    pub in_flight: Arc<Semaphore>,
    /// Range size, and the maximum number of ranges in memory; 0 if a single request is enough.
    pub range_bytes: u64,
    pub max_ranges_ahead: usize,
    pub read_ahead: RequestReadAhead,
}

/// Returns the body of the read; `first` is the body of the first response.
pub(super) fn body(reading: OrderedRead, first: Body) -> Body {
    let (length, context) = (reading.span.length, reading.context.clone());
    // One piece is queued here, one is with the reader, and one in the store's leaf.
    let (to, pieces) = channel(1);
    let task = AbortOnDrop(tokio::spawn(ReadTask::new(reading).run(first, to)));
    let reader = ReaderStream { pieces, context, remaining_bytes: length, _task: task };
    let stream = futures::stream::try_unfold(reader, |mut reader| async {
        Ok(reader.next().await?.map(|piece| (piece, reader)))
    });
    Body::from_stream(length, stream)
}

/// The reader's end. Dropping it cancels the task and all ranges in flight.
struct ReaderStream {
    pieces: Receiver<Result<Bytes>>,
    context: Context,
    remaining_bytes: u64,
    _task: AbortOnDrop<()>,
}

impl ReaderStream {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.remaining_bytes == 0 {
            return Ok(None);
        }
        let ended = || Error::new(Reason::Defect, "the task that reads the object ended early");
        let piece = self.context.guard(self.pieces.recv()).await?.ok_or_else(ended)??;
        self.remaining_bytes = self.remaining_bytes.saturating_sub(piece.len() as u64);
        Ok(Some(piece))
    }
}

type Fetched = AbortOnDrop<Result<Bytes>>;

/// The task that delivers the bytes.
struct ReadTask {
    reading: OrderedRead,
    /// Offsets in the object: end of the delivered bytes, of the ranges started, and of the read.
    delivered_to: u64,
    started_to: u64,
    end: u64,
    /// Ranges read ahead, with their offsets.
    ahead: VecDeque<(u64, Fetched)>,
}

/// An open response whose bytes are delivered as they arrive, and the offset of its end.
type OpenResponse = (Body, u64);

impl ReadTask {
    fn new(reading: OrderedRead) -> Self {
        let (offset, end) = (reading.span.offset, reading.span.end());
        Self { reading, delivered_to: offset, started_to: offset, end, ahead: VecDeque::new() }
    }

    async fn run(mut self, first: Body, to: Sender<Result<Bytes>>) {
        if let Err(e) = self.deliver_all(first, &to).await {
            self.ahead.clear();
            // The send fails if the reader is gone, which needs no report.
            let _ = to.send(Err(e)).await;
        }
    }

    async fn deliver_all(&mut self, first: Body, to: &Sender<Result<Bytes>>) -> Result<()> {
        let whole = self.reading.whole.clone();
        // Before its own ranges take the free permits.
        let permits = whole.spare_request_permits(self.reading.range_bytes.min(self.end - self.delivered_to));
        self.fetch_ahead();
        let open_end = self.delivered_to + first.length();
        self.deliver_until_ahead(&whole, (permits, Some((first, open_end))), to).await?;
        while self.delivered_to < self.end {
            let Some((_, mut range)) = self.ahead.pop_front() else {
                self.deliver_until_ahead(&whole, (None, None), to).await?;
                continue;
            };
            let fetched = (&mut range.0).await;
            let bytes =
                fetched.map_err(|e| Error::with_source(Reason::Defect, "a range's task failed", e))??;
            // Start further ranges before waiting for the reader.
            self.fetch_ahead();
            let place = to.reserve().await.map_err(|_| reader_gone())?;
            self.deliver(bytes, place)?;
        }
        Ok(())
    }

    /// Starts as many ranges as memory allows.
    fn fetch_ahead(&mut self) {
        let OrderedRead { whole, in_flight, range_bytes, max_ranges_ahead, read_ahead, .. } = &self.reading;
        let (mut next, mut min_ranges) = (self.started_to, 1);
        if self.ahead.is_empty() {
            // The open response delivers one more range.
            next = self.delivered_to.saturating_add(*range_bytes).min(self.end);
            min_ranges = MIN_RANGES_AHEAD.min(*max_ranges_ahead);
            // A nearly complete response is not worth cutting short either.
            if min_ranges == 0 || (self.end - next) / range_bytes < min_ranges as u64 {
                return;
            }
        }
        let mut started = Vec::new();
        while self.ahead.len() + started.len() < *max_ranges_ahead && next < self.end {
            let span = (next, (*range_bytes).min(self.end - next));
            let Some(reservation) = read_ahead.try_reserve(span.1) else { break };
            started.push((span, reservation));
            next += span.1;
        }
        if started.len() < min_ranges {
            return;
        }
        self.started_to = next;
        for (span, reservation) in started {
            let fetched = tokio::spawn(fetch_range(whole.clone(), in_flight.clone(), span, reservation));
            self.ahead.push_back((span.0, AbortOnDrop(fetched)));
        }
    }

    /// Offset at which the ranges read ahead begin; the end of the read if there are none.
    fn ahead_start(&self) -> u64 {
        self.ahead.front().map_or(self.end, |(begins, _)| *begins)
    }

    /// Delivers bytes as they arrive, up to the first range read ahead.
    async fn deliver_until_ahead<'a>(
        &mut self,
        whole: &'a VersionedObject,
        (mut permits, mut open_response): (Option<RequestPermits<'a>>, Option<OpenResponse>),
        to: &Sender<Result<Bytes>>,
    ) -> Result<()> {
        let mut attempts = Attempts::new();
        while self.delivered_to < self.ahead_start() {
            let place = reserve_place(whole, to, &mut permits).await?;
            if permits.is_none() {
                open_response = open_response.filter(|(_, open_end)| *open_end > self.delivered_to);
                let remaining_bytes = self.ahead_start() - self.delivered_to;
                permits = if open_response.is_some() {
                    whole.spare_request_permits(remaining_bytes)
                } else {
                    Some(whole.request_permits(remaining_bytes).await?)
                };
            }
            let error = match self.next_piece(&mut open_response).await {
                Ok(mut piece) => {
                    attempts = Attempts::new();
                    let remaining_bytes =
                        usize::try_from(self.ahead_start() - self.delivered_to).unwrap_or(usize::MAX);
                    piece.truncate(remaining_bytes);
                    self.deliver(piece, place)?;
                    if self.ahead.is_empty() {
                        self.fetch_ahead();
                    }
                    continue;
                }
                Err(error) => error,
            };
            if !self.reading.is_resumable || error.reason() == Reason::CorruptData {
                return Err(error);
            }
            (permits, open_response) = (None, None);
            whole.transfers.wait_before_retry(error, &mut attempts).await?;
        }
        whole.transfers.record_success();
        Ok(())
    }

    /// The next piece of the open response. Sends a request first if none is open.
    async fn next_piece(&self, open_response: &mut Option<OpenResponse>) -> Result<Bytes> {
        if open_response.as_ref().is_none_or(|(_, open_end)| *open_end <= self.delivered_to) {
            let VersionedObject { origin, info, .. } = &*self.reading.whole;
            let open_end = self.ahead_start();
            let body = origin
                .get(&self.reading.context, info, (self.delivered_to, open_end - self.delivered_to))
                .await?;
            *open_response = Some((body, open_end));
        }
        let piece = match open_response {
            Some((body, _)) => body.next().await,
            None => None,
        };
        piece.unwrap_or_else(|| Err(Error::new(Reason::Io, "the store sent fewer bytes than it announced")))
    }

    /// Delivers the next piece to the reader. The last one is delivered only if all bytes have been verified.
    fn deliver(&mut self, bytes: Bytes, place: ChannelPermit<'_, Result<Bytes>>) -> Result<()> {
        self.delivered_to += bytes.len() as u64;
        self.reading.read_ahead.record_consumed(bytes.len() as u64);
        if let Some(verifier) = &mut self.reading.verifier {
            verifier.update(&bytes);
        }
        if self.delivered_to == self.end
            && let Some(verifier) = self.reading.verifier.take()
        {
            verifier.verify()?;
        }
        place.send(Ok(bytes));
        Ok(())
    }
}

/// Fetches a range into the memory reserved for it.
async fn fetch_range(
    whole: Arc<VersionedObject>,
    in_flight: Arc<Semaphore>,
    span: (u64, u64),
    reservation: RangeReservation,
) -> Result<Bytes> {
    let stopped = |e| Error::with_source(Reason::ShuttingDown, "reading has been stopped", e);
    let _permit = in_flight.acquire().await.map_err(stopped)?;
    let (bytes, _) = fetch_into_memory(whole, span).await?;
    Ok(reservation.attach(bytes))
}

/// Waits for a place in the channel to the reader. A long wait releases the permits.
async fn reserve_place<'to, 'a>(
    whole: &'a VersionedObject,
    to: &'to Sender<Result<Bytes>>,
    permits: &mut Option<RequestPermits<'a>>,
) -> Result<ChannelPermit<'to, Result<Bytes>>> {
    match to.try_reserve() {
        Ok(place) => return Ok(place),
        Err(TrySendError::Closed(())) => return Err(reader_gone()),
        Err(TrySendError::Full(())) => {}
    }
    let clock = whole.transfers.clock();
    let mut reserving = std::pin::pin!(to.reserve());
    tokio::select! {
        biased;
        place = &mut reserving => return place.map_err(|_| reader_gone()),
        () = clock.sleep_until(clock.now() + MAX_READER_WAIT) => {}
    }
    *permits = None;
    reserving.await.map_err(|_| reader_gone())
}

fn reader_gone() -> Error {
    Error::new(Reason::Cancelled, "the reader is gone")
}
