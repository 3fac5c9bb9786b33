//! Filling the cache while a reader receives an object: the backing store's buffers go to the reader as they are, and a
//! copy goes into extents. An extent is filled only if all of its bytes pass and a permit is free; no reader waits.

mod shared;

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;
use futures::stream::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tradewind_core::error::Result;
use tradewind_core::{Body, Span};

pub(crate) use self::shared::SharedFills;
use crate::changes::Token;
use crate::claims::ExtentClaim;
use crate::disk::FillRun;
use crate::extent::{EXTENT_BYTES, ExtentBuffer};
use crate::head::Head;
use crate::tiers::{ContentUse, Tiers};

/// Objects that are read as a whole and fill the cache, by the fingerprint of the head: one reader fills, the others only
/// read.
#[derive(Debug, Default)]
pub(crate) struct WholeFills(Mutex<HashSet<u64>>);

/// The fill of a whole object. The head becomes visible when the last byte has arrived: a service's bytes are compared
/// with the checksum of the whole only then. A fill that ends earlier is discarded.
pub(crate) struct WholeFill {
    fills: Arc<WholeFills>,
    tiers: Arc<Tiers>,
    head: Arc<Head>,
    token: Token,
    content_use: Arc<ContentUse>,
    is_finished: bool,
}

/// The cache of a [`WholeFill`].
pub(crate) struct FillTarget {
    pub tiers: Arc<Tiers>,
    pub token: Token,
}

impl WholeFill {
    /// Begins to fill an object with this head; `None` if another reader does.
    pub fn begin(fills: &Arc<WholeFills>, head: Arc<Head>, target: FillTarget) -> Option<Self> {
        let FillTarget { tiers, token } = target;
        let is_first = fills.0.lock().insert(token.hash().key);
        is_first.then(|| {
            let content_use = tiers.use_content(&head, &token);
            Self { fills: fills.clone(), tiers, head, token, content_use, is_finished: false }
        })
    }

    /// A filler for the bytes of the object.
    pub fn filler(&self) -> Filler {
        // No other reader knows this content.
        Filler::new(self.content_use.clone(), Span::whole(self.head.info.size), None)
    }

    /// Makes the object visible, in place of a head that may lack its data, unless the key was changed meanwhile. Keeps
    /// what an SSD has that fails: the new head would not reach it, and the old one cannot be read.
    fn finish(mut self) {
        if !self.tiers.changes.is_current(&self.token) {
            return;
        }
        if self.tiers.has_unreadable_head(self.token.hash()) {
            // It may be of an older object than the one that was served now.
            self.tiers.changes.require_comparison(self.token.hash(), self.head.stamp().time);
            return;
        }
        self.tiers.remove_refilled_head(self.token.hash(), self.head.content);
        let permit = self.tiers.try_fill_bytes(EXTENT_BYTES);
        let stored =
            self.tiers.put_head(self.head.clone(), &self.token, permit, Some(self.content_use.clone()));
        self.is_finished = stored.is_some_and(|stored| stored.content == self.head.content);
    }
}

impl Drop for WholeFill {
    fn drop(&mut self) {
        self.fills.0.lock().remove(&self.token.hash().key);
        if !self.is_finished {
            self.content_use.discard();
        }
    }
}

/// Collects the extents of an object from its bytes.
pub(crate) struct Filler {
    tiers: Arc<Tiers>,
    head: Arc<Head>,
    /// Offset of the next byte in the object.
    offset: u64,
    /// End of the bytes that follow.
    end: u64,
    /// The space of the extents on the SSD.
    run: Option<Arc<FillRun>>,
    content_use: Arc<ContentUse>,
    current: Option<ExtentFill>,
    /// Present if other readers may fill the same content.
    shared: Option<Arc<SharedFills>>,
}

/// An extent that is being filled.
pub(crate) struct ExtentFill {
    pub buffer: ExtentBuffer,
    /// The right to store it.
    pub permit: OwnedSemaphorePermit,
    /// Keeps other readers from filling it, too.
    pub claim: Option<ExtentClaim>,
    /// Space on the SSD beside its neighbours.
    pub run: Option<Arc<FillRun>>,
    /// Lets a removal of the content wait until the extent is stored.
    pub content_use: Arc<ContentUse>,
}

impl Filler {
    /// A filler for the bytes `span` of a content. Of the fillers with the same `shared`, one
    /// fills an extent.
    pub fn new(content_use: Arc<ContentUse>, span: Span, shared: Option<Arc<SharedFills>>) -> Self {
        let (tiers, head) = (content_use.tiers().clone(), content_use.head().clone());
        let run = match &shared {
            Some(shared) => shared.run(&tiers, &head, span),
            None => tiers.fill_run(&head, span),
        };
        let (offset, end) = (span.offset, span.end());
        Self { tiers, head, offset, end, run, content_use, current: None, shared }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let number = self.offset / EXTENT_BYTES as u64;
            let start = number * EXTENT_BYTES as u64;
            let end = (start + EXTENT_BYTES as u64).min(self.head.info.size);
            let Ok(number) = u32::try_from(number) else { return };
            if self.offset == start {
                self.current = if end <= self.end { self.begin(number, end - start) } else { None };
            }
            let available = usize::try_from(end.saturating_sub(self.offset)).unwrap_or(usize::MAX);
            let (piece, rest) = bytes.split_at(bytes.len().min(available));
            if piece.is_empty() {
                // More bytes than the object has: the backing store breaks its contract.
                self.current = None;
                return;
            }
            if let Some(fill) = &mut self.current {
                fill.buffer.append(piece);
            }
            self.offset += piece.len() as u64;
            bytes = rest;
            if self.offset == end
                && let Some(fill) = self.current.take()
            {
                self.tiers.put_data(&self.head, number, fill);
            }
        }
    }

    fn begin(&self, number: u32, length: u64) -> Option<ExtentFill> {
        let claim = match &self.shared {
            Some(shared) => Some(shared.claim(&self.tiers, &self.head, number)?),
            None => None,
        };
        // After the claim: an earlier one may have ended with the extent.
        if self.tiers.locate(&self.head, number).is_some() {
            return None;
        }
        let candidate = self.tiers.candidate(&self.head, number);
        if self.tiers.is_under_pressure(candidate) {
            self.tiers.record_bypass(candidate);
            return None;
        }
        let length = usize::try_from(length).ok()?;
        let permit = self.tiers.try_fill_bytes(length)?;
        let (run, content_use) = (self.run.clone(), self.content_use.clone());
        Some(ExtentFill { buffer: ExtentBuffer::new(length), permit, claim, run, content_use })
    }
}

/// The body of the backing store, of which a part is delivered. The rest of the last extent is read before the last
/// piece is delivered, so that it is filled.
pub(crate) struct FillBody {
    inner: Body,
    filler: Option<Filler>,
    skip: u64,
    left: u64,
    last: Option<Bytes>,
    is_ended: bool,
    tiers: Arc<Tiers>,
    whole: Option<WholeFill>,
}

impl FillBody {
    /// The body of a whole object.
    pub fn of_whole_object(inner: Body, size: u64, whole: Option<WholeFill>, tiers: Arc<Tiers>) -> Self {
        let filler = whole.as_ref().map(WholeFill::filler);
        let span = Span::whole(size);
        Self { whole, ..Self::new(inner, filler, span, span, tiers) }
    }

    /// Of `received`, the bytes that `inner` yields, `delivered` are delivered.
    pub fn new(
        inner: Body,
        filler: Option<Filler>,
        received: Span,
        delivered: Span,
        tiers: Arc<Tiers>,
    ) -> Self {
        let skip = delivered.offset - received.offset;
        let left = delivered.length;
        Self { inner, filler, skip, left, last: None, is_ended: false, tiers, whole: None }
    }

    /// Turns it into a body.
    pub fn into_body(self) -> Body {
        Body::from_stream(self.left, self)
    }

    fn trim(&mut self, mut bytes: Bytes) -> Bytes {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
        self.skip -= skipped as u64;
        let mut bytes = bytes.split_off(skipped);
        bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= bytes.len() as u64;
        bytes
    }

    fn deliver(&self, bytes: Bytes) -> Poll<Option<Result<Bytes>>> {
        self.tiers.counters.backing_bytes.add(bytes.len() as u64);
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl Stream for FillBody {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        while !self.is_ended {
            let next = match self.inner.poll_next_unpin(cx) {
                Poll::Ready(next) => next,
                Poll::Pending => return Poll::Pending,
            };
            let bytes = match next {
                Some(Ok(bytes)) => bytes,
                // The bytes behind the delivered ones are only for the cache.
                Some(Err(_)) if self.last.is_some() => {
                    self.is_ended = true;
                    break;
                }
                Some(Err(e)) => {
                    self.is_ended = true;
                    return Poll::Ready(Some(Err(e)));
                }
                None => {
                    self.is_ended = true;
                    break;
                }
            };
            if let Some(filler) = &mut self.filler {
                filler.feed(&bytes);
            }
            if self.last.is_some() {
                continue;
            }
            let bytes = self.trim(bytes);
            if self.left == 0
                && let Some(whole) = self.whole.take()
            {
                whole.finish();
            }
            if bytes.is_empty() {
                continue;
            }
            if self.left == 0 && self.filler.as_ref().is_some_and(|filler| filler.current.is_some()) {
                // A copy: the backing store may need the window's memory for the tail.
                self.last = Some(Bytes::copy_from_slice(&bytes));
                continue;
            }
            return self.deliver(bytes);
        }
        match self.last.take() {
            Some(bytes) => self.deliver(bytes),
            None => Poll::Ready(None),
        }
    }
}
