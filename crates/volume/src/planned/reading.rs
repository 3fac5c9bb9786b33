//! One object or range on its way to whoever asked for it: bytes are handed on in order, from the request that was made first as
//! they come, and from ranges that are fetched ahead of it into memory.
//!
//! - The first request carries the first range. It is broken off where the next begins, and goes on to the end where there is no
//!   memory for others: then this is what it was without a plan.
//! - What fails is asked for again from where it broke off, of the same version. Where the object has changed, that fails.
//! - Turns are held by whoever waits for the store, and by nobody who waits for the reader for long. So those who hold turns do not
//!   wait for those who read slowly, and a range that is fetched into memory needs nothing more to be done.
//! - Nobody waits for a turn who has a connection: those who have turns wait for connections. A body that has come with its answer takes
//!   a turn where one is free, and goes on without where none is.
//! - It ends with the body that it feeds, and what it began ends with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Permit, Receiver, Sender, channel};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Body, Context, Span};

use super::ahead::{Share, Shares};
use super::sum::Sum;
use crate::carrier::Slot;
use crate::fetch::buffered;
use crate::task::AbortOnDrop;
use crate::whole::Whole;

/// Who waits so long for the reader lets its turn go.
const PATIENCE: Duration = Duration::from_millis(100);
/// Ranges that there has to be memory for before the first request is broken off: fewer would be slower than it is.
const WORTH: usize = 3;

/// What is to be read.
pub(super) struct Reading {
    pub whole: Arc<Whole>,
    /// The request that it is read for.
    pub context: Context,
    pub span: Span,
    /// Compared with all of it at the end.
    pub sum: Option<Sum>,
    /// What breaks off may be asked for from there. Not where the leaf alone can tell whether bytes are right.
    pub may_go_on: bool,
    /// Room for ranges under way.
    pub under_way: Arc<Semaphore>,
    /// Bytes of each range, and how many of them lie in memory at a time; 0 where one request is enough.
    pub range_bytes: u64,
    pub most_ahead: usize,
    pub shares: Shares,
}

/// The body that is read, from the answer to the first request.
pub(super) fn body(reading: Reading, first: Body) -> Body {
    let (length, context) = (reading.span.length, reading.context.clone());
    // One piece lies here, one is with the reader, one with the store's leaf.
    let (to, pieces) = channel(1);
    let task = AbortOnDrop(tokio::spawn(Progress::of(reading).run(first, to)));
    let coming = Coming { pieces, context, left: length, _task: task };
    let stream = futures::stream::try_unfold(coming, |mut coming| async {
        Ok(coming.next().await?.map(|piece| (piece, coming)))
    });
    Body::from_stream(length, stream)
}

/// The reader's end. Dropping it ends all that is under way.
struct Coming {
    pieces: Receiver<Result<Bytes>>,
    context: Context,
    left: u64,
    _task: AbortOnDrop<()>,
}

impl Coming {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        if self.left == 0 {
            return Ok(None);
        }
        let lost = || Error::new(Reason::Defect, "the task that reads an object ended early");
        let piece = self.context.guard(self.pieces.recv()).await?.ok_or_else(lost)??;
        self.left = self.left.saturating_sub(piece.len() as u64);
        Ok(Some(piece))
    }
}

type Fetched = AbortOnDrop<Result<Bytes>>;

/// How far it has come.
struct Progress {
    reading: Reading,
    /// What was handed on ends here; what is fetched ahead; and all of it.
    at: u64,
    next: u64,
    end: u64,
    /// Ranges that are fetched ahead, with where they begin.
    ahead: VecDeque<(u64, Fetched)>,
}

/// A request whose bytes are handed on as they come, and where they end.
type Open = (Body, u64);

impl Progress {
    fn of(reading: Reading) -> Self {
        let (offset, end) = (reading.span.offset, reading.span.end());
        Self { reading, at: offset, next: offset, end, ahead: VecDeque::new() }
    }

    async fn run(mut self, first: Body, to: Sender<Result<Bytes>>) {
        if let Err(e) = self.carry(first, &to).await {
            self.ahead.clear();
            // Nobody is told where the reader has gone.
            let _ = to.send(Err(e)).await;
        }
    }

    async fn carry(&mut self, first: Body, to: &Sender<Result<Bytes>>) -> Result<()> {
        let whole = self.reading.whole.clone();
        // Before its own ranges.
        let slot = whole.spare_slot(self.reading.range_bytes.min(self.end - self.at));
        self.fetch_ahead();
        let ends = self.at + first.length();
        self.pass_on(&whole, (slot, Some((first, ends))), to).await?;
        while self.at < self.end {
            let Some((_, mut range)) = self.ahead.pop_front() else {
                self.pass_on(&whole, (None, None), to).await?;
                continue;
            };
            let fetched = (&mut range.0).await;
            let bytes =
                fetched.map_err(|e| Error::with_source(Reason::Defect, "a range's task failed", e))??;
            // Before the reader is waited for.
            self.fetch_ahead();
            let place = to.reserve().await.map_err(|_| gone())?;
            self.hand_on(bytes, place)?;
        }
        Ok(())
    }

    /// Begins as many ranges as there is memory for.
    fn fetch_ahead(&mut self) {
        let Reading { whole, under_way, range_bytes, most_ahead, shares, .. } = &self.reading;
        let (mut next, mut least) = (self.next, 1);
        if self.ahead.is_empty() {
            // What is being handed on is a range yet.
            next = self.at.saturating_add(*range_bytes).min(self.end);
            least = WORTH.min(*most_ahead);
            // What has nearly come is not worth another request either.
            if least == 0 || (self.end - next) / range_bytes < least as u64 {
                return;
            }
        }
        let mut begun = Vec::new();
        while self.ahead.len() + begun.len() < *most_ahead && next < self.end {
            let span = (next, (*range_bytes).min(self.end - next));
            let Some(share) = shares.take(span.1) else { break };
            begun.push((span, share));
            next += span.1;
        }
        if begun.len() < least {
            return;
        }
        self.next = next;
        for (span, share) in begun {
            let fetched = tokio::spawn(fetched(whole.clone(), under_way.clone(), span, share));
            self.ahead.push_back((span.0, AbortOnDrop(fetched)));
        }
    }

    /// Where what is fetched ahead begins.
    fn until(&self) -> u64 {
        self.ahead.front().map_or(self.end, |(begins, _)| *begins)
    }

    /// Hands on what comes, up to what is fetched ahead.
    async fn pass_on<'a>(
        &mut self,
        whole: &'a Whole,
        (mut slot, mut open): (Option<Slot<'a>>, Option<Open>),
        to: &Sender<Result<Bytes>>,
    ) -> Result<()> {
        let mut attempt = 1;
        while self.at < self.until() {
            let place = place(whole, to, &mut slot).await?;
            if slot.is_none() {
                open = open.filter(|(_, ends)| *ends > self.at);
                let left = self.until() - self.at;
                slot = if open.is_some() { whole.spare_slot(left) } else { Some(whole.slot(left).await?) };
            }
            let failed = match self.next_piece(&mut open).await {
                Ok(mut piece) => {
                    attempt = 1;
                    let left = usize::try_from(self.until() - self.at).unwrap_or(usize::MAX);
                    piece.truncate(left);
                    self.hand_on(piece, place)?;
                    if self.ahead.is_empty() {
                        self.fetch_ahead();
                    }
                    continue;
                }
                Err(failed) => failed,
            };
            if !self.reading.may_go_on || failed.reason() == Reason::CorruptData {
                return Err(failed);
            }
            (slot, open) = (None, None);
            whole.carrier.wait(failed, attempt).await?;
            attempt += 1;
        }
        whole.carrier.earn();
        Ok(())
    }

    /// What comes next of what is open, which is asked for where nothing is.
    async fn next_piece(&self, open: &mut Option<Open>) -> Result<Bytes> {
        if open.as_ref().is_none_or(|(_, ends)| *ends <= self.at) {
            let Whole { origin, info, .. } = &*self.reading.whole;
            let ends = self.until();
            let body = origin.get(&self.reading.context, info, (self.at, ends - self.at)).await?;
            *open = Some((body, ends));
        }
        let piece = match open {
            Some((body, _)) => body.next().await,
            None => None,
        };
        piece.unwrap_or_else(|| Err(Error::new(Reason::Io, "the store sent fewer bytes than it announced")))
    }

    /// Gives the reader what comes next; the last of it when all of it is right.
    fn hand_on(&mut self, bytes: Bytes, place: Permit<'_, Result<Bytes>>) -> Result<()> {
        self.at += bytes.len() as u64;
        self.reading.shares.taken(bytes.len() as u64);
        if let Some(sum) = &mut self.reading.sum {
            sum.update(&bytes);
        }
        if self.at == self.end
            && let Some(sum) = self.reading.sum.take()
        {
            sum.finish()?;
        }
        place.send(Ok(bytes));
        Ok(())
    }
}

/// A range, in the memory that was taken for it.
async fn fetched(
    whole: Arc<Whole>,
    under_way: Arc<Semaphore>,
    span: (u64, u64),
    share: Share,
) -> Result<Bytes> {
    let over = |e| Error::with_source(Reason::ShuttingDown, "reading is over", e);
    let _place = under_way.acquire().await.map_err(over)?;
    let (bytes, _) = buffered(whole, span).await?;
    Ok(share.attach(bytes))
}

/// Waits until the reader takes something; the slot is let go where that is long.
async fn place<'to, 'a>(
    whole: &'a Whole,
    to: &'to Sender<Result<Bytes>>,
    slot: &mut Option<Slot<'a>>,
) -> Result<Permit<'to, Result<Bytes>>> {
    match to.try_reserve() {
        Ok(place) => return Ok(place),
        Err(TrySendError::Closed(())) => return Err(gone()),
        Err(TrySendError::Full(())) => {}
    }
    let clock = whole.carrier.clock();
    let mut reserving = std::pin::pin!(to.reserve());
    tokio::select! {
        biased;
        place = &mut reserving => return place.map_err(|_| gone()),
        () = clock.sleep_until(clock.now() + PATIENCE) => {}
    }
    *slot = None;
    reserving.await.map_err(|_| gone())
}

fn gone() -> Error {
    Error::new(Reason::Cancelled, "nobody reads it any more")
}
