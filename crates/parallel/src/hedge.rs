//! Hedged ranges: the missing bytes of a straggler are requested a second time.
//! [`tradewind_model::hedge`] decides when.
//!
//! Both requests are for the same version of the object. Each byte is forwarded once, in order, from whichever request
//! delivers it first; the duplicate is dropped. The consumer therefore sees a single stream. It fails only if both
//! requests fail, or if bytes already forwarded are corrupt. Once the range is complete, the slower request is
//! cancelled, which releases its permits and memory.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, once};
use futures::{StreamExt as _, TryStreamExt as _};
use tradewind_core::error::{Reason, Result};
use tradewind_core::{Body, ObjectInfo};
use tradewind_model::hedge::RangeProgress;

use super::origin::{Origin, expected_crc};
use super::transfer_context::{RequestPermits, TransferContext};

/// The first range of an object, whose response has begun.
pub(crate) struct OpenedRange<'a> {
    pub timer: HedgeTimer<'a>,
    pub permits: RequestPermits<'a>,
    pub body: Body,
    pub length: u64,
    /// True if the request was for the whole object.
    pub requested_whole: bool,
}

/// Measures how long the consumer waits for a range, and fires when the range should be hedged.
pub(crate) struct HedgeTimer<'a> {
    transfers: &'a TransferContext,
    /// `None` if hedging is disabled, and after the range has ended.
    range: Option<RangeProgress>,
    /// The range must not be hedged.
    must_not_hedge: bool,
    /// Accumulated waiting time, without the current wait.
    waited: Duration,
    /// Start of the current wait; `None` while the consumer does not wait.
    waiting_since: Option<Duration>,
    /// Waiting time at which the range is checked next.
    next_check: Duration,
    timer: Option<BoxFuture<'static, ()>>,
}

impl Drop for HedgeTimer<'_> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl<'a> HedgeTimer<'a> {
    /// Starts a range of `bytes`, which is about to be requested.
    pub fn start(transfers: &'a TransferContext, bytes: u64) -> Self {
        let (mut range, mut next_check) = (None, Duration::ZERO);
        if let Some(mut hedges) = transfers.hedge_policy() {
            let started = hedges.begin(transfers.clock().now(), bytes);
            next_check = hedges.first_check(&started);
            range = Some(started);
        }
        Self {
            transfers,
            range,
            must_not_hedge: false,
            waited: Duration::ZERO,
            waiting_since: None,
            next_check,
            timer: None,
        }
    }

    /// Sets the actual size of the range.
    const fn resize(&mut self, bytes: u64) {
        if let Some(range) = &mut self.range {
            range.resize(bytes);
        }
    }

    /// Runs `request` and, if it is a straggler, a second time with free permits. Returns the first success, or the
    /// last error if both fail.
    pub async fn first_success<T, F: Future<Output = Result<T>>>(
        &mut self,
        bytes: u64,
        permits: RequestPermits<'a>,
        request: impl Fn(RequestPermits<'a>) -> F,
    ) -> Result<T> {
        let (mut first, mut second) = (Some(Box::pin(request(permits))), None);
        self.start_waiting();
        loop {
            let (done, ended) = tokio::select! {
                biased;
                done = output_of(&mut first) => (done, &mut first),
                done = output_of(&mut second) => (done, &mut second),
                () = self.until_straggling() => {
                    second = self.hedge_permits(bytes).map(|permits| Box::pin(request(permits)));
                    continue;
                }
            };
            *ended = None;
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

    /// The consumer starts waiting for the range.
    fn start_waiting(&mut self) {
        if self.range.is_some() {
            self.waiting_since = Some(self.transfers.clock().now());
        }
    }

    /// The consumer stops waiting for the range.
    fn stop_waiting(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += self.transfers.clock().now().saturating_sub(since);
        }
    }

    /// Records received bytes.
    fn record_bytes(&mut self, bytes: u64) {
        if let Some(range) = &mut self.range
            && let Some(mut hedges) = self.transfers.hedge_policy()
        {
            hedges.record_bytes(range, bytes);
        }
    }

    /// Ends the range. `completed_age` is the accumulated waiting time if it completed; `None` if it did not.
    fn end(&mut self, completed_age: Option<Duration>) {
        if let Some(range) = self.range.take()
            && let Some(mut hedges) = self.transfers.hedge_policy()
        {
            hedges.end(range, self.transfers.clock().now(), completed_age);
        }
    }

    /// Resolves when the range should be hedged.
    async fn until_straggling(&mut self) {
        loop {
            let is_hedgeable = |range: &&mut RangeProgress| !self.must_not_hedge && !range.is_hedged();
            let Some(range) = self.range.as_mut().filter(is_hedgeable) else {
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
            let Some(decision) =
                self.transfers.hedge_policy().map(|mut hedges| hedges.check(range, now, age))
            else {
                return pending().await;
            };
            self.next_check = decision.next_check;
            if decision.hedge_now {
                return;
            }
        }
    }

    /// The permits of a second request, if enough are free without waiting.
    fn hedge_permits(&mut self, bytes: u64) -> Option<RequestPermits<'a>> {
        let range = self.range.as_mut()?;
        let permits = self.transfers.try_acquire_request_permits(bytes)?;
        self.transfers.hedge_policy()?.mark_hedged(range);
        tracing::debug!(bytes, "a request is a straggler: hedging it");
        Some(permits)
    }
}

/// The output of `request`; pending forever if there is none.
async fn output_of<F: Future>(request: &mut Option<Pin<Box<F>>>) -> F::Output {
    match request {
        Some(request) => request.await,
        None => pending().await,
    }
}

/// The bytes of a range, from one or two requests.
pub(crate) struct RangeStream<'a> {
    timer: HedgeTimer<'a>,
    origin: &'a Origin,
    info: &'a ObjectInfo,
    /// End of the forwarded bytes, as an offset in the object.
    position: u64,
    /// End of the range, as an offset in the object.
    end: u64,
    first: Option<RangeRequest<'a>>,
    second: Option<RangeRequest<'a>>,
}

/// One of the requests for a range.
struct RangeRequest<'a> {
    permits: RequestPermits<'a>,
    pieces: BoxStream<'a, Result<Bytes>>,
    /// End of the bytes that this request delivered.
    position: u64,
    /// Some of its bytes were forwarded.
    has_contributed: bool,
}

impl<'a> RangeRequest<'a> {
    /// Requests a range of the version of `info`, lazily: on the first poll.
    fn new(
        origin: &'a Origin,
        info: &'a ObjectInfo,
        permits: RequestPermits<'a>,
        (offset, length): (u64, u64),
    ) -> Self {
        let context = permits.context.clone();
        let body = async move { origin.get(&context, info, (offset, length)).await };
        let pieces = once(body).try_flatten().boxed();
        Self { permits, pieces, position: offset, has_contributed: false }
    }

    /// The bytes of a delivered piece beyond `forwarded_end`, which advances to their end. `None` if all of them were
    /// forwarded before.
    fn take_new(&mut self, mut piece: Bytes, forwarded_end: &mut u64) -> Option<Bytes> {
        let duplicate = usize::try_from(*forwarded_end - self.position).unwrap_or(usize::MAX);
        self.position += piece.len() as u64;
        if duplicate >= piece.len() {
            return None;
        }
        self.has_contributed = true;
        *forwarded_end = self.position;
        Some(piece.split_off(duplicate))
    }
}

impl<'a> RangeStream<'a> {
    /// Requests a range of the version of `info`.
    pub fn open(
        origin: &'a Origin,
        info: &'a ObjectInfo,
        (transfers, permits): (&'a TransferContext, RequestPermits<'a>),
        (offset, length): (u64, u64),
    ) -> Self {
        let first = Some(RangeRequest::new(origin, info, permits, (offset, length)));
        let timer = HedgeTimer::start(transfers, length);
        Self { timer, origin, info, position: offset, end: offset + length, first, second: None }
    }

    /// Continues with the first range of an object, whose response has begun.
    pub fn from_opened(origin: &'a Origin, info: &'a ObjectInfo, opened: OpenedRange<'a>) -> Self {
        let OpenedRange { mut timer, permits, body, length, .. } = opened;
        timer.resize(length);
        // Without a CRC, the leaf verifies a whole object by an MD5 or SHA. These cannot be combined from two requests,
        // so that the bytes of a hedged object would be unverified.
        timer.must_not_hedge = length == info.size && expected_crc(info).is_none();
        let first = Some(RangeRequest { permits, pieces: body.boxed(), position: 0, has_contributed: false });
        Self { timer, origin, info, position: 0, end: length, first, second: None }
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

    /// Waits until more may be read. See [`RequestPermits::throttle`].
    pub async fn throttle(&mut self, bytes: u64) {
        if let Some(request) = &mut self.first {
            request.permits.throttle(bytes).await;
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
                () = self.timer.until_straggling() => {
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
            // If bytes of this request were forwarded, it is unknown which of them are wrong.
            let is_corrupt =
                has_contributed && failed.as_ref().is_some_and(|e| e.reason() == Reason::CorruptData);
            if other.is_none() || is_corrupt {
                return failed.map(Err);
            }
            tracing::debug!(
                error = failed.map(tracing::field::display),
                "one of two requests for a range failed"
            );
        }
    }

    /// Requests the missing bytes over another connection, if enough permits are free without waiting.
    fn hedge(&mut self) {
        let missing = self.end.saturating_sub(self.position);
        if missing > 0
            && let Some(permits) = self.timer.hedge_permits(missing)
        {
            self.second = Some(RangeRequest::new(self.origin, self.info, permits, (self.position, missing)));
        }
    }
}

/// The next piece of `request`; pending forever if there is none.
async fn piece_of(request: &mut Option<RangeRequest<'_>>) -> Option<Result<Bytes>> {
    match request {
        Some(request) => request.pieces.next().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
