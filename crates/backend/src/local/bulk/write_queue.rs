//! The queue of extent writes. Only one file thread writes at a time: the kernel serializes writers of a file, and
//! further ones would only spin for its lock and keep reads from running.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};

use crate::local::io_threads::{IoThreads, io_error};
use crate::local::segment::Segment;

/// The write queue.
#[derive(Default)]
pub(super) struct WriteQueue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    pending: Vec<Write>,
    /// A file thread is running and will process additions.
    is_served: bool,
}

struct Write {
    segment: Arc<Segment>,
    offset: u32,
    pieces: Vec<Bytes>,
    written: oneshot::Sender<Result<()>>,
}

/// A submitted write. Dropping it does not cancel the write.
pub(super) struct PendingWrite(oneshot::Receiver<Result<()>>);

impl PendingWrite {
    /// Waits until the bytes are in the file (not durable yet). Cancel-safe: may be called again until it has
    /// returned.
    pub async fn completed(&mut self) -> Result<()> {
        let closed = || Error::new(Reason::ShuttingDown, "the store is closed");
        (&mut self.0).await.unwrap_or_else(|_| Err(closed()))
    }
}

impl WriteQueue {
    /// Submits `pieces`, to be written consecutively.
    pub fn submit(
        self: &Arc<Self>,
        io: &IoThreads,
        segment: Arc<Segment>,
        offset: u32,
        pieces: Vec<Bytes>,
    ) -> PendingWrite {
        let (written, answer) = oneshot::channel();
        let must_start = {
            let mut state = self.0.lock();
            state.pending.push(Write { segment, offset, pieces, written });
            !std::mem::replace(&mut state.is_served, true)
        };
        let queue = self.clone();
        if must_start && !io.spawn(move || queue.serve()) {
            *self.0.lock() = QueueState::default();
        }
        PendingWrite(answer)
    }

    fn serve(&self) {
        loop {
            let pending = {
                let mut state = self.0.lock();
                if state.pending.is_empty() {
                    state.is_served = false;
                    return;
                }
                std::mem::take(&mut state.pending)
            };
            for Write { segment, offset, pieces, written } in pending {
                let result = segment.write_all(&pieces, offset.into());
                // Release the buffers before the writer asks for new ones.
                drop(pieces);
                // The receiver may be gone.
                let _ = written.send(result.map_err(|e| io_error("an extent could not be written", e)));
            }
        }
    }
}
