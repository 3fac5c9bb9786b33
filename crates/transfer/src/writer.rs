//! A writer for an output that may block, such as a pipe. A dedicated thread writes, so that fetching continues.

use std::io::{self, Write};
use std::thread::Builder;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::threads::thread_error;

/// Maximum number of buffers that wait to be written.
const MAX_QUEUED_BUFFERS: usize = 2;

/// The handle of the writer thread. Queued buffers are written even if it is dropped.
#[derive(Debug)]
pub struct OutputWriter {
    buffers: mpsc::Sender<Bytes>,
    ended: tokio::sync::Mutex<Option<oneshot::Receiver<io::Result<()>>>>,
}

impl OutputWriter {
    /// Starts the thread.
    pub fn new(mut out: impl Write + Send + 'static) -> Result<Self> {
        let (buffers, mut received) = mpsc::channel::<Bytes>(MAX_QUEUED_BUFFERS);
        let (end, ended) = oneshot::channel();
        let write_all = move || {
            let mut write = || {
                while let Some(buffer) = received.blocking_recv() {
                    out.write_all(&buffer)?;
                    if received.is_empty() {
                        out.flush()?;
                    }
                }
                out.flush()
            };
            // Sending fails only if the handle was dropped.
            let _ = end.send(write());
        };
        Builder::new().name("output".to_owned()).spawn(write_all).map_err(thread_error)?;
        Ok(Self { buffers, ended: tokio::sync::Mutex::new(Some(ended)) })
    }

    /// Queues a buffer; waits while the queue is full. Returns the error of an earlier write, if any.
    pub async fn write(&self, buffer: Bytes) -> Result<()> {
        match self.buffers.send(buffer).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().await),
        }
    }

    /// Waits until everything is written and flushed.
    pub async fn finish(self) -> Result<()> {
        let Self { buffers, ended } = self;
        drop(buffers);
        match ended.into_inner() {
            Some(ended) => {
                ended.await.map_or_else(|_| Err(closed_error()), |ended| ended.map_err(write_error))
            }
            None => Err(closed_error()),
        }
    }

    async fn failure(&self) -> Error {
        match self.ended.lock().await.take() {
            Some(ended) => ended.await.ok().and_then(io::Result::err).map_or_else(closed_error, write_error),
            None => closed_error(),
        }
    }
}

fn closed_error() -> Error {
    Error::new(Reason::Cancelled, "the output is closed")
}

/// A closed pipe counts as cancelled, not as a defect: its reader has left.
fn write_error(e: io::Error) -> Error {
    let reason = if e.kind() == io::ErrorKind::BrokenPipe { Reason::Cancelled } else { Reason::Defect };
    Error::with_source(reason, format!("cannot write the output: {e}"), e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn buffers_are_written_in_order() {
        let out = Shared::default();
        let writer = OutputWriter::new(out.clone()).unwrap();
        for n in 0..100_u8 {
            writer.write(Bytes::from(vec![n])).await.unwrap();
        }
        writer.finish().await.unwrap();
        assert_eq!(*out.0.lock().unwrap(), (0..100).collect::<Vec<u8>>());
    }

    #[tokio::test]
    async fn closed_pipe_is_reported_as_cancelled() {
        let writer = OutputWriter::new(Closed).unwrap();
        let failed = loop {
            if let Err(e) = writer.write("x".into()).await {
                break e;
            }
        };
        assert_eq!(failed.reason(), Reason::Cancelled);
        assert_eq!(OutputWriter::new(Closed).unwrap().finish().await.map_err(|e| e.reason()), Ok(()));
    }
}
