//! An output that may block, as a pipe does, written by a thread of its own: what is fetched meanwhile goes on.

use std::io::{self, Write};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tradewind_core::error::{Error, Reason, Result};

/// Pieces that wait to be written, at the most.
const WAITING: usize = 2;

/// The output. What was handed over is written even where it is dropped.
#[derive(Debug)]
pub struct Writer {
    pieces: mpsc::Sender<Bytes>,
    ended: tokio::sync::Mutex<Option<oneshot::Receiver<io::Result<()>>>>,
}

impl Writer {
    /// Begins its thread.
    #[must_use]
    pub fn new(mut out: impl Write + Send + 'static) -> Self {
        let (pieces, mut received) = mpsc::channel::<Bytes>(WAITING);
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            let mut write = || {
                while let Some(piece) = received.blocking_recv() {
                    out.write_all(&piece)?;
                    if received.is_empty() {
                        out.flush()?;
                    }
                }
                out.flush()
            };
            // Whoever is gone need not know.
            let _ = end.send(write());
        });
        Self { pieces, ended: tokio::sync::Mutex::new(Some(ended)) }
    }

    /// Hands a piece over, when there is room for it.
    pub async fn write(&self, piece: Bytes) -> Result<()> {
        match self.pieces.send(piece).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().await),
        }
    }

    /// Waits until all is written.
    pub async fn finish(self) -> Result<()> {
        let Self { pieces, ended } = self;
        drop(pieces);
        match ended.into_inner() {
            Some(ended) => ended.await.map_or_else(|_| Err(lost()), |ended| ended.map_err(cannot)),
            None => Err(lost()),
        }
    }

    async fn failure(&self) -> Error {
        match self.ended.lock().await.take() {
            Some(ended) => ended.await.ok().and_then(io::Result::err).map_or_else(lost, cannot),
            None => lost(),
        }
    }
}

fn lost() -> Error {
    Error::new(Reason::Cancelled, "the output is closed")
}

/// Of a pipe that nobody reads any more there is nothing to say.
fn cannot(e: io::Error) -> Error {
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
    async fn all_is_written_in_order() {
        let out = Shared::default();
        let writer = Writer::new(out.clone());
        for n in 0..100_u8 {
            writer.write(Bytes::from(vec![n])).await.unwrap();
        }
        writer.finish().await.unwrap();
        assert_eq!(*out.0.lock().unwrap(), (0..100).collect::<Vec<u8>>());
    }

    #[tokio::test]
    async fn a_closed_pipe_ends_it() {
        let writer = Writer::new(Closed);
        let failed = loop {
            if let Err(e) = writer.write("x".into()).await {
                break e;
            }
        };
        assert_eq!(failed.reason(), Reason::Cancelled);
        assert_eq!(Writer::new(Closed).finish().await.map_err(|e| e.reason()), Ok(()));
    }
}
