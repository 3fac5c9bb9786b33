//! The queue of extent writes. Only one I/O thread writes extents at any time: the kernel serializes writers of a file,
//! so further threads would only spin for its lock and keep reads from running.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};

use crate::local::io_threads::{IoThreads, io_error};
use crate::local::segment::Segment;

/// The queue of extent writes.
#[derive(Default)]
pub(super) struct WriteQueue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    pending: Vec<Write>,
    /// True if an I/O thread is processing the queue and will process additions.
    is_served: bool,
}

struct Write {
    segment: Arc<Segment>,
    offset: u32,
    buffers: Vec<Bytes>,
    result_sender: oneshot::Sender<Result<()>>,
}

/// A submitted write. Dropping it does not cancel the write.
pub(super) struct PendingWrite(oneshot::Receiver<Result<()>>);

impl PendingWrite {
    /// Waits until the bytes are in the file (not durable yet). Cancel-safe: may be called again until it has
    /// returned.
    pub async fn completed(&mut self) -> Result<()> {
        let closed_error = || Error::new(Reason::ShuttingDown, "the store is closed");
        (&mut self.0).await.unwrap_or_else(|_| Err(closed_error()))
    }
}

impl WriteQueue {
    /// Submits `buffers`, to be written consecutively.
    pub fn submit(
        self: &Arc<Self>,
        io: &IoThreads,
        segment: Arc<Segment>,
        offset: u32,
        buffers: Vec<Bytes>,
    ) -> PendingWrite {
        let (result_sender, result_receiver) = oneshot::channel();
        let is_idle = {
            let mut state = self.0.lock();
            state.pending.push(Write { segment, offset, buffers, result_sender });
            !std::mem::replace(&mut state.is_served, true)
        };
        let queue = self.clone();
        if is_idle && !io.spawn(move || queue.serve()) {
            *self.0.lock() = QueueState::default();
        }
        PendingWrite(result_receiver)
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
            for Write { segment, offset, buffers, result_sender } in pending {
                let result = segment.write_all(&buffers, offset.into());
                // Release the buffers before the writer asks for new ones.
                drop(buffers);
                // The receiver may be gone.
                let _ = result_sender.send(result.map_err(|e| io_error("an extent could not be written", e)));
            }
        }
    }
}
