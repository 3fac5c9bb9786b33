//! The owner's side of a message: updates, backpressure, and the digest as a future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::message::BlockSplitter;
use crate::queue::StreamQueue;
use crate::stream_state::StreamState;

/// The minimum of queued bytes to submit to the engine: for fewer, submitting costs more than hashing. At the end of a
/// message, a smaller rest is hashed on the calling thread, in at most 20 us.
const MIN_SUBMIT_BYTES: usize = 16 * 1024;

/// One message being hashed. Dropping it cancels it.
pub struct Md5Stream {
    ticket: Ticket,
    splitter: BlockSplitter,
}

/// A future of the digest of a message. Dropping it cancels the message.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Md5Finish(Ticket);

/// Resolves when fewer than the given number of bytes are queued; see [`Md5Stream::drained`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct Drained<'a> {
    ticket: &'a Ticket,
    below: usize,
}

/// A stream's registration with the engine.
struct Ticket {
    state: Arc<StreamState>,
    queue: Arc<StreamQueue>,
}

impl Md5Stream {
    pub(crate) fn new(queue: Arc<StreamQueue>) -> Self {
        queue.register_stream();
        let ticket = Ticket { state: Arc::new(StreamState::new()), queue };
        Self { ticket, splitter: BlockSplitter::new() }
    }

    /// Appends to the message. Never waits; copies only the ends that do not fill a 64-byte block.
    pub fn update(&mut self, bytes: impl Into<Bytes>) {
        let segments = self.splitter.split(bytes.into());
        if self.ticket.state.push(segments, MIN_SUBMIT_BYTES) {
            self.ticket.queue.enqueue(&self.ticket.state);
        }
    }

    /// Bytes handed over but not yet hashed.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.ticket.state.queued_bytes()
    }

    /// Resolves when fewer than `below` bytes (at least one) are queued, for backpressure.
    pub fn drained(&mut self, below: usize) -> Drained<'_> {
        Drained { ticket: &self.ticket, below: below.max(1) }
    }

    /// Ends the message.
    pub fn finish(self) -> Md5Finish {
        if self.ticket.state.finish(self.splitter.padding()) {
            self.ticket.queue.mark_urgent();
        }
        Md5Finish(self.ticket)
    }

    /// Ends the message and waits for its digest on this thread; not for asynchronous code.
    #[must_use]
    pub fn finish_blocking(self) -> [u8; 16] {
        self.finish().0.state.wait_digest()
    }
}

impl Future for Md5Finish {
    type Output = [u8; 16];

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<[u8; 16]> {
        self.0.state.poll_digest(context.waker())
    }
}

impl Future for Drained<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Ticket { state, queue } = self.ticket;
        if state.poll_drained(self.below, context.waker()).is_ready() {
            return Poll::Ready(());
        }
        if !state.claim() {
            queue.mark_urgent();
            return Poll::Pending;
        }
        queue.enqueue(state);
        state.poll_drained(self.below, context.waker())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.state.cancel();
        self.queue.unregister_stream();
    }
}

impl fmt::Debug for Md5Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Md5Stream")
            .field("length", &self.splitter.length())
            .field("queued_bytes", &self.queued_bytes())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Md5Finish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Md5Finish").finish_non_exhaustive()
    }
}

impl fmt::Debug for Drained<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Drained").field("below", &self.below).finish_non_exhaustive()
    }
}
