//! A chunk on its way from one request or, where that one is late, from two: what one of them brings first counts.
//! [`model::hedge`](tradewind_model::hedge) says when there is a second one.
//!
//! Both are of one version of the object. Each byte is handed on once, in order, from whichever request has it first;
//! what the other brings of it later is dropped. So whoever reads, counts or hashes them sees one request. It ends with
//! an error when both have failed, and when the chunk is there, the slower one is dropped with its slot and memory.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, once};
use futures::{StreamExt as _, TryStreamExt as _};
use tradewind_core::error::{Reason, Result};
use tradewind_core::{Body, ObjectInfo};
use tradewind_model::hedge::Chunk;

use super::carrier::{Carrier, Slot};
use super::origin::{Origin, expected};

/// The first bytes of an object: the request for them has been answered.
pub(crate) struct Begun<'a> {
    pub watch: Watch<'a>,
    pub slot: Slot<'a>,
    pub body: Body,
    pub length: u64,
    /// All of the object was asked for.
    pub is_whole: bool,
}

/// A chunk that is waited for, with the time that it takes the store.
pub(crate) struct Watch<'a> {
    carrier: &'a Carrier,
    /// `None` where nothing is asked for twice, and when it is over.
    chunk: Option<Chunk>,
    /// It is asked for once, whatever happens.
    is_once: bool,
    /// How long it was waited for, and since when it is.
    waited: Duration,
    since: Option<Duration>,
    /// It is looked at when it was waited for so long.
    look_at: Duration,
    timer: Option<BoxFuture<'static, ()>>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl<'a> Watch<'a> {
    /// A chunk of so many bytes is asked for.
    pub fn begin(carrier: &'a Carrier, bytes: u64) -> Self {
        let (mut chunk, mut look_at) = (None, Duration::ZERO);
        if let Some(mut hedges) = carrier.hedges() {
            let begun = hedges.begin(carrier.clock().now(), bytes);
            look_at = hedges.first_look(&begun);
            chunk = Some(begun);
        }
        Self { carrier, chunk, is_once: false, waited: Duration::ZERO, since: None, look_at, timer: None }
    }

    /// It turned out to have so many bytes.
    const fn resize(&mut self, bytes: u64) {
        if let Some(chunk) = &mut self.chunk {
            chunk.resize(bytes);
        }
    }

    /// The first success of a request that `ask` begins with a slot and, where it is late, of a second one with a spare
    /// slot; the last error where both fail.
    pub async fn first<T, F: Future<Output = Result<T>>>(
        &mut self,
        bytes: u64,
        slot: Slot<'a>,
        ask: impl Fn(Slot<'a>) -> F,
    ) -> Result<T> {
        let (mut first, mut second) = (Some(Box::pin(ask(slot))), None);
        self.wait();
        loop {
            let (done, failing) = tokio::select! {
                biased;
                done = ended(&mut first) => (done, &mut first),
                done = ended(&mut second) => (done, &mut second),
                () = self.late() => {
                    second = self.spare(bytes).map(|slot| Box::pin(ask(slot)));
                    continue;
                }
            };
            *failing = None;
            match done {
                Err(e) if first.is_some() || second.is_some() => {
                    tracing::debug!(error = %e, "one of two requests failed");
                }
                done => {
                    self.stop();
                    return done;
                }
            }
        }
    }

    /// It is waited for from now on.
    fn wait(&mut self) {
        if self.chunk.is_some() {
            self.since = Some(self.carrier.clock().now());
        }
    }

    /// It is not waited for.
    fn stop(&mut self) {
        if let Some(since) = self.since.take() {
            self.waited += self.carrier.clock().now().saturating_sub(since);
        }
    }

    /// Bytes of it have come.
    fn came(&mut self, bytes: u64) {
        if let Some(chunk) = &mut self.chunk
            && let Some(mut hedges) = self.carrier.hedges()
        {
            hedges.came(chunk, bytes);
        }
    }

    /// It is over, with all its bytes or without.
    fn end(&mut self, came_at: Option<Duration>) {
        if let Some(chunk) = self.chunk.take()
            && let Some(mut hedges) = self.carrier.hedges()
        {
            hedges.end(chunk, self.carrier.clock().now(), came_at);
        }
    }

    /// Resolves when it should be asked for a second time.
    async fn late(&mut self) {
        loop {
            let may_be = |chunk: &&mut Chunk| !self.is_once && !chunk.is_hedged();
            let Some(chunk) = self.chunk.as_mut().filter(may_be) else {
                return pending().await;
            };
            let now = self.carrier.clock().now();
            let age = self.waited + self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            if age < self.look_at {
                let due = now + (self.look_at - age);
                self.timer.get_or_insert_with(|| self.carrier.clock().sleep_until(due)).await;
                self.timer = None;
                continue;
            }
            let Some(look) = self.carrier.hedges().map(|mut hedges| hedges.look(chunk, now, age)) else {
                return pending().await;
            };
            self.look_at = look.again;
            if look.is_due {
                return;
            }
        }
    }

    /// A slot for a second request, where one is spare.
    fn spare(&mut self, bytes: u64) -> Option<Slot<'a>> {
        let chunk = self.chunk.as_mut()?;
        let slot = self.carrier.spare_slot(bytes)?;
        self.carrier.hedges()?.hedge(chunk);
        tracing::debug!(bytes, "a request is late: asking a second time");
        Some(slot)
    }
}

/// What a request that there may be ends with.
async fn ended<F: Future>(request: &mut Option<Pin<Box<F>>>) -> F::Output {
    match request {
        Some(request) => request.await,
        None => pending().await,
    }
}

/// A chunk whose bytes are coming.
pub(crate) struct Coming<'a> {
    watch: Watch<'a>,
    origin: &'a Origin,
    info: &'a ObjectInfo,
    /// Where what was handed on ends, and where all of it does.
    at: u64,
    end: u64,
    first: Option<Request<'a>>,
    second: Option<Request<'a>>,
}

/// One of the requests for it.
struct Request<'a> {
    slot: Slot<'a>,
    pieces: BoxStream<'a, Result<Bytes>>,
    /// What it brought ends here.
    at: u64,
    /// Some of that was handed on.
    counts: bool,
}

impl<'a> Request<'a> {
    /// Asks for a range of the version that `info` is of.
    fn new(origin: &'a Origin, info: &'a ObjectInfo, slot: Slot<'a>, (offset, length): (u64, u64)) -> Self {
        let context = slot.context.clone();
        let body = async move { origin.get(&context, info, (offset, length)).await };
        let pieces = once(body).try_flatten().boxed();
        Self { slot, pieces, at: offset, counts: false }
    }

    /// What of a piece that it brought lies behind `at`, which is moved behind it.
    fn bring(&mut self, mut piece: Bytes, at: &mut u64) -> Option<Bytes> {
        let known = usize::try_from(*at - self.at).unwrap_or(usize::MAX);
        self.at += piece.len() as u64;
        if known >= piece.len() {
            return None;
        }
        self.counts = true;
        *at = self.at;
        Some(piece.split_off(known))
    }
}

impl<'a> Coming<'a> {
    /// Asks for a range of the version that `info` is of.
    pub fn ask(
        origin: &'a Origin,
        info: &'a ObjectInfo,
        (carrier, slot): (&'a Carrier, Slot<'a>),
        (offset, length): (u64, u64),
    ) -> Self {
        let first = Some(Request::new(origin, info, slot, (offset, length)));
        let watch = Watch::begin(carrier, length);
        Self { watch, origin, info, at: offset, end: offset + length, first, second: None }
    }

    /// An object's first bytes, which have been asked for.
    pub fn begun(origin: &'a Origin, info: &'a ObjectInfo, begun: Begun<'a>) -> Self {
        let Begun { mut watch, slot, body, length, .. } = begun;
        watch.resize(length);
        // The leaf compares a whole with what this one may not be able to: bytes of two requests would go unverified.
        watch.is_once = length == info.size && expected(info).is_none();
        let first = Some(Request { slot, pieces: body.boxed(), at: 0, counts: false });
        Self { watch, origin, info, at: 0, end: length, first, second: None }
    }

    /// The next bytes; `None` behind the last. After an error it is over. To be called again where it was dropped.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        self.watch.wait();
        let next = self.next_piece().await;
        self.watch.stop();
        match &next {
            Some(Ok(piece)) => self.watch.came(piece.len() as u64),
            None if self.at == self.end => self.watch.end(Some(self.watch.waited)),
            Some(Err(_)) | None => self.watch.end(None),
        }
        next
    }

    /// Waits until more of it may be read. See [`Slot::pass`].
    pub async fn pass(&mut self, bytes: u64) {
        if let Some(request) = &mut self.first {
            request.slot.pass(bytes).await;
        }
    }

    async fn next_piece(&mut self) -> Option<Result<Bytes>> {
        loop {
            if self.first.is_some() && self.second.is_some() && self.at >= self.end {
                return None;
            }
            let (piece, request, other) = tokio::select! {
                biased;
                piece = piece_of(&mut self.first) => (piece, &mut self.first, &self.second),
                piece = piece_of(&mut self.second) => (piece, &mut self.second, &self.first),
                () = self.watch.late() => {
                    self.ask_again();
                    continue;
                }
            };
            let failed = match piece {
                Some(Ok(piece)) => {
                    match request.as_mut().and_then(|request| request.bring(piece, &mut self.at)) {
                        Some(piece) => return Some(Ok(piece)),
                        None => continue,
                    }
                }
                Some(Err(e)) => Some(e),
                None => None,
            };
            let counted = request.take().is_some_and(|request| request.counts);
            // Nobody knows which of its bytes are wrong.
            let is_spoilt = counted && failed.as_ref().is_some_and(|e| e.reason() == Reason::CorruptData);
            if other.is_none() || is_spoilt {
                return failed.map(Err);
            }
            tracing::debug!(
                error = failed.map(tracing::field::display),
                "one of two requests for a chunk failed"
            );
        }
    }

    /// Asks for what is missing over another connection, where that takes nothing from anybody.
    fn ask_again(&mut self) {
        let missing = self.end.saturating_sub(self.at);
        if missing > 0
            && let Some(slot) = self.watch.spare(missing)
        {
            self.second = Some(Request::new(self.origin, self.info, slot, (self.at, missing)));
        }
    }
}

/// The next piece of a request that there may be.
async fn piece_of(request: &mut Option<Request<'_>>) -> Option<Result<Bytes>> {
    match request {
        Some(request) => request.pieces.next().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
