//! The shared output of a search: the lines of an object are contiguous, and objects are in listing order if requested.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedMutexGuard, watch};
use tradewind_core::error::{Error, Reason, Result};

use crate::writer::OutputWriter;

/// The shared output.
pub(super) struct OrderedOutput {
    writer: Arc<tokio::sync::Mutex<OutputWriter>>,
    /// The number of the object whose turn it is; `None` if the output is unordered.
    turns: Option<watch::Sender<u64>>,
    /// Finished turns after the current one.
    ended: Mutex<BTreeSet<u64>>,
}

/// An object's turn to write. Dropping it passes the turn on.
pub(super) struct Turn {
    output: Arc<OrderedOutput>,
    number: u64,
    /// Held from the first line on, so that the lines of other objects are not interleaved.
    held: Option<OwnedMutexGuard<OutputWriter>>,
}

impl OrderedOutput {
    pub fn new(writer: OutputWriter, is_ordered: bool) -> Self {
        let turns = is_ordered.then(|| watch::Sender::new(0));
        Self { writer: Arc::new(tokio::sync::Mutex::new(writer)), turns, ended: Mutex::default() }
    }

    pub fn turn(self: &Arc<Self>, number: u64) -> Turn {
        Turn { output: self.clone(), number, held: None }
    }

    /// Waits until everything is written. Fails if a [`Turn`] still exists.
    pub async fn finish(self) -> Result<()> {
        match Arc::into_inner(self.writer) {
            Some(writer) => writer.into_inner().finish().await,
            None => Err(Error::new(Reason::Defect, "the output is still in use")),
        }
    }

    /// Ends a turn; the next one is the first that has not ended.
    fn end(&self, number: u64) {
        let Some(turns) = &self.turns else { return };
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.insert(number);
        let mut now = *turns.borrow();
        while ended.remove(&now) {
            now += 1;
        }
        turns.send_replace(now);
    }
}

impl Turn {
    /// Waits for the object's turn and writes some of its lines.
    pub async fn write(&mut self, lines: Vec<u8>) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let writer = match self.held.take() {
            Some(held) => held,
            None => {
                if let Some(turns) = &self.output.turns {
                    let number = self.number;
                    let failed = |e| Error::with_source(Reason::Defect, "the output order was lost", e);
                    turns.subscribe().wait_for(|now| *now == number).await.map_err(failed)?;
                }
                self.output.writer.clone().lock_owned().await
            }
        };
        let written = writer.write(lines.into()).await;
        self.held = Some(writer);
        written
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.held = None;
        self.output.end(self.number);
    }
}
