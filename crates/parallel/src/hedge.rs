//! Hedged chunks: the missing bytes of a late chunk are requested a second time.
//! [`model::hedge`](tradewind_model::hedge) decides when.
//!
//! Both requests are for the same version of the object. Each byte is forwarded once, in order, from whichever request
//! delivers it first; the duplicate is dropped. The consumer therefore sees a single stream. It fails only if both
//! requests fail, or if bytes already forwarded are corrupt. Once the chunk is complete, the slower request is
//! cancelled, which releases its slot and memory.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, once};
use futures::{StreamExt as _, TryStreamExt as _};
use tradewind_core::error::{Reason, Result};
use tradewind_core::{Body, ObjectInfo};
use tradewind_model::hedge::ChunkProgress;

use super::origin::{Origin, expected_crc};
use super::transfer_context::{Slot, TransferContext};

/// The first chunk of an object, whose response has begun.
pub(crate) struct OpenedChunk<'a> {
    pub timer: HedgeTimer<'a>,
    pub slot: Slot<'a>,
    pub body: Body,
    pub length: u64,
    /// True if the request was for the whole object.
    pub is_whole: bool,
}

/// Measures how long the consumer waits for a chunk, and fires when the chunk should be hedged.
pub(crate) struct HedgeTimer<'a> {
    transfers: &'a TransferContext,
    /// `None` if hedging is disabled, and after the chunk has ended.
    chunk: Option<ChunkProgress>,
    /// The chunk must not be hedged.
    is_hedging_disabled: bool,
    /// Accumulated waiting time, and the start of the current wait.
    waited: Duration,
    waiting_since: Option<Duration>,
    /// Waiting time at which the chunk is checked next.
    next_check: Duration,
    timer: Option<BoxFuture<'static, ()>>,
}

impl Drop for HedgeTimer<'_> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl<'a> HedgeTimer<'a> {
    /// Starts a chunk of `bytes`, which is about to be requested.
    pub fn start(transfers: &'a TransferContext, bytes: u64) -> Self {
        let (mut chunk, mut next_check) = (None, Duration::ZERO);
        if let Some(mut hedges) = transfers.hedge_policy() {
            let started = hedges.begin(transfers.clock().now(), bytes);
            next_check = hedges.first_check(&started);
            chunk = Some(started);
        }
        Self {
            transfers,
            chunk,
            is_hedging_disabled: false,
            waited: Duration::ZERO,
            waiting_since: None,
            next_check,
            timer: None,
        }
    }

    /// Sets the actual size of the chunk.
    const fn resize(&mut self, bytes: u64) {
        if let Some(chunk) = &mut self.chunk {
            chunk.resize(bytes);
        }
    }

    /// Runs `ask` and, if it is late, a second time with a spare slot. Returns the first success, or the last error if
    /// both fail.
    pub async fn first_success<T, F: Future<Output = Result<T>>>(
        &mut self,
        bytes: u64,
        slot: Slot<'a>,
        ask: impl Fn(Slot<'a>) -> F,
    ) -> Result<T> {
        let (mut first, mut second) = (Some(Box::pin(ask(slot))), None);
        self.start_waiting();
        loop {
            let (done, failing) = tokio::select! {
                biased;
                done = output_of(&mut first) => (done, &mut first),
                done = output_of(&mut second) => (done, &mut second),
                () = self.until_late() => {
                    second = self.hedge_slot(bytes).map(|slot| Box::pin(ask(slot)));
                    continue;
                }
            };
            *failing = None;
            match done {
                Err(e) if first.is_some() || second.is_some() => {
                    tracing::debug!(error = %e, "one of two hedged requests failed");
                }
                done => {
                    self.stop_waiting();
                    return done;
                }
            }
        }
    }

    /// The consumer starts waiting for the chunk.
    fn start_waiting(&mut self) {
        if self.chunk.is_some() {
            self.waiting_since = Some(self.transfers.clock().now());
        }
    }

    /// The consumer stops waiting for the chunk.
    fn stop_waiting(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += self.transfers.clock().now().saturating_sub(since);
        }
    }

    /// Records received bytes.
    fn record_bytes(&mut self, bytes: u64) {
        if let Some(chunk) = &mut self.chunk
            && let Some(mut hedges) = self.transfers.hedge_policy()
        {
            hedges.record_bytes(chunk, bytes);
        }
    }

    /// Ends the chunk. `came_at` is the waiting time at which it completed; `None` if it did not.
    fn end(&mut self, came_at: Option<Duration>) {
        if let Some(chunk) = self.chunk.take()
            && let Some(mut hedges) = self.transfers.hedge_policy()
        {
            hedges.end(chunk, self.transfers.clock().now(), came_at);
        }
    }

    /// Resolves when the chunk should be hedged.
    async fn until_late(&mut self) {
        loop {
            let may_be = |chunk: &&mut ChunkProgress| !self.is_hedging_disabled && !chunk.is_hedged();
            let Some(chunk) = self.chunk.as_mut().filter(may_be) else {
                return pending().await;
            };
            let now = self.transfers.clock().now();
            let age =
                self.waited + self.waiting_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            if age < self.next_check {
                let due = now + (self.next_check - age);
                self.timer.get_or_insert_with(|| self.transfers.clock().sleep_until(due)).await;
                self.timer = None;
                continue;
            }
            let Some(look) = self.transfers.hedge_policy().map(|mut hedges| hedges.check(chunk, now, age))
            else {
                return pending().await;
            };
            self.next_check = look.next_check;
            if look.hedge_now {
                return;
            }
        }
    }

    /// A slot for a second request, if one is free without waiting.
    fn hedge_slot(&mut self, bytes: u64) -> Option<Slot<'a>> {
        let chunk = self.chunk.as_mut()?;
        let slot = self.transfers.try_acquire_slot(bytes)?;
        self.transfers.hedge_policy()?.mark_hedged(chunk);
        tracing::debug!(bytes, "a request is late: hedging it");
        Some(slot)
    }
}

/// The output of `request`; pending forever if there is none.
async fn output_of<F: Future>(request: &mut Option<Pin<Box<F>>>) -> F::Output {
    match request {
        Some(request) => request.await,
        None => pending().await,
    }
}

/// The bytes of a chunk, from one or two requests.
pub(crate) struct ChunkStream<'a> {
    timer: HedgeTimer<'a>,
    origin: &'a Origin,
    info: &'a ObjectInfo,
    /// End of the forwarded bytes, and of the chunk, as offsets in the object.
    position: u64,
    end: u64,
    first: Option<ChunkRequest<'a>>,
    second: Option<ChunkRequest<'a>>,
}

/// One of the requests for a chunk.
struct ChunkRequest<'a> {
    slot: Slot<'a>,
    pieces: BoxStream<'a, Result<Bytes>>,
    /// End of the bytes that this request delivered.
    position: u64,
    /// Some of its bytes were forwarded.
    has_contributed: bool,
}

impl<'a> ChunkRequest<'a> {
    /// Requests a range of the version of `info`, lazily: on the first poll.
    fn new(origin: &'a Origin, info: &'a ObjectInfo, slot: Slot<'a>, (offset, length): (u64, u64)) -> Self {
        let context = slot.context.clone();
        let body = async move { origin.get(&context, info, (offset, length)).await };
        let pieces = once(body).try_flatten().boxed();
        Self { slot, pieces, position: offset, has_contributed: false }
    }

    /// The part of a delivered piece that lies beyond `at`; advances `at` to its end. `None` if all of it was known.
    fn take_new(&mut self, mut piece: Bytes, at: &mut u64) -> Option<Bytes> {
        let duplicate = usize::try_from(*at - self.position).unwrap_or(usize::MAX);
        self.position += piece.len() as u64;
        if duplicate >= piece.len() {
            return None;
        }
        self.has_contributed = true;
        *at = self.position;
        Some(piece.split_off(duplicate))
    }
}

impl<'a> ChunkStream<'a> {
    /// Requests a range of the version of `info`.
    pub fn open(
        origin: &'a Origin,
        info: &'a ObjectInfo,
        (transfers, slot): (&'a TransferContext, Slot<'a>),
        (offset, length): (u64, u64),
    ) -> Self {
        let first = Some(ChunkRequest::new(origin, info, slot, (offset, length)));
        let watch = HedgeTimer::start(transfers, length);
        Self { timer: watch, origin, info, position: offset, end: offset + length, first, second: None }
    }

    /// Continues with the first chunk of an object, whose response has begun.
    pub fn from_opened(origin: &'a Origin, info: &'a ObjectInfo, opened: OpenedChunk<'a>) -> Self {
        let OpenedChunk { timer: mut watch, slot, body, length, .. } = opened;
        watch.resize(length);
        // The leaf verifies a whole object by an MD5 or SHA, which cannot be combined: bytes of two requests would go
        // unverified.
        watch.is_hedging_disabled = length == info.size && expected_crc(info).is_none();
        let first = Some(ChunkRequest { slot, pieces: body.boxed(), position: 0, has_contributed: false });
        Self { timer: watch, origin, info, position: 0, end: length, first, second: None }
    }

    /// The next bytes; `None` after the last. An error is final. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        self.timer.start_waiting();
        let next = self.next_piece().await;
        self.timer.stop_waiting();
        match &next {
            Some(Ok(piece)) => self.timer.record_bytes(piece.len() as u64),
            None if self.position == self.end => self.timer.end(Some(self.timer.waited)),
            Some(Err(_)) | None => self.timer.end(None),
        }
        next
    }

    /// Waits until more may be read. See [`Slot::throttle`].
    pub async fn throttle(&mut self, bytes: u64) {
        if let Some(request) = &mut self.first {
            request.slot.throttle(bytes).await;
        }
    }

    async fn next_piece(&mut self) -> Option<Result<Bytes>> {
        loop {
            if self.first.is_some() && self.second.is_some() && self.position >= self.end {
                return None;
            }
            let (piece, request, other) = tokio::select! {
                biased;
                piece = piece_of(&mut self.first) => (piece, &mut self.first, &self.second),
                piece = piece_of(&mut self.second) => (piece, &mut self.second, &self.first),
                () = self.timer.until_late() => {
                    self.hedge();
                    continue;
                }
            };
            let failed = match piece {
                Some(Ok(piece)) => {
                    match request.as_mut().and_then(|request| request.take_new(piece, &mut self.position)) {
                        Some(piece) => return Some(Ok(piece)),
                        None => continue,
                    }
                }
                Some(Err(e)) => Some(e),
                None => None,
            };
            let has_contributed = request.take().is_some_and(|request| request.has_contributed);
            // It is unknown which of the forwarded bytes are wrong.
            let is_corrupt =
                has_contributed && failed.as_ref().is_some_and(|e| e.reason() == Reason::CorruptData);
            if other.is_none() || is_corrupt {
                return failed.map(Err);
            }
            tracing::debug!(
                error = failed.map(tracing::field::display),
                "one of two requests for a chunk failed"
            );
        }
    }

    /// Requests the missing bytes over another connection, if a slot is free without waiting.
    fn hedge(&mut self) {
        let missing = self.end.saturating_sub(self.position);
        if missing > 0
            && let Some(slot) = self.timer.hedge_slot(missing)
        {
            self.second = Some(ChunkRequest::new(self.origin, self.info, slot, (self.position, missing)));
        }
    }
}

/// The next piece of `request`; pending forever if there is none.
async fn piece_of(request: &mut Option<ChunkRequest<'_>>) -> Option<Result<Bytes>> {
    match request {
        Some(request) => request.pieces.next().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
