//! Bytes of extents waiting to be written. One file thread at a time writes them: the kernel lets one writer
//! at a time into a file, and more of them only spin for its lock and keep reads from running meanwhile.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};

use crate::local::io::{IoThreads, io_error};
use crate::local::segment::Segment;

/// The queue.
#[derive(Default)]
pub(super) struct WriteQueue(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: Vec<Write>,
    /// A file thread is at work and will see what is added.
    is_served: bool,
}

struct Write {
    segment: Arc<Segment>,
    offset: u32,
    pieces: Vec<Bytes>,
    written: oneshot::Sender<Result<()>>,
}

/// A write that was handed over. Dropping it does not take the write back.
pub(super) struct Underway(oneshot::Receiver<Result<()>>);

impl Underway {
    /// Waits until the bytes are in the file (not durable yet). Can be given up and called again until it
    /// has answered.
    pub async fn written(&mut self) -> Result<()> {
        let closed = || Error::new(Reason::ShuttingDown, "the store is closed");
        (&mut self.0).await.unwrap_or_else(|_| Err(closed()))
    }
}

impl WriteQueue {
    /// Hands over `pieces`, to be written one behind the other.
    pub fn submit(
        self: &Arc<Self>,
        io: &IoThreads,
        segment: Arc<Segment>,
        offset: u32,
        pieces: Vec<Bytes>,
    ) -> Underway {
        let (written, answer) = oneshot::channel();
        let begins = {
            let mut state = self.0.lock();
            state.waiting.push(Write { segment, offset, pieces, written });
            !std::mem::replace(&mut state.is_served, true)
        };
        let queue = self.clone();
        if begins && !io.spawn(move || queue.serve()) {
            *self.0.lock() = State::default();
        }
        Underway(answer)
    }

    fn serve(&self) {
        loop {
            let waiting = {
                let mut state = self.0.lock();
                if state.waiting.is_empty() {
                    state.is_served = false;
                    return;
                }
                std::mem::take(&mut state.waiting)
            };
            for Write { segment, offset, pieces, written } in waiting {
                let result = segment.write_all(&pieces, offset.into());
                // The buffers go back before the writer asks for new ones.
                drop(pieces);
                // Nobody may be waiting any more.
                let _ = written.send(result.map_err(|e| io_error("an extent could not be written", e)));
            }
        }
    }
}
