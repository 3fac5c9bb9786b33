//! What is found in many objects, on one output: an object's lines together, and in order where that is asked for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedMutexGuard, watch};
use tradewind_core::error::{Error, Reason, Result};

use crate::writer::Writer;

/// The output.
pub(super) struct Output {
    writer: Arc<tokio::sync::Mutex<Writer>>,
    /// Whose turn it is, where there is an order.
    turns: Option<watch::Sender<u64>>,
    ended: Mutex<BTreeSet<u64>>,
}

/// An object's turn. Dropping it ends it.
pub(super) struct Turn {
    output: Arc<Output>,
    number: u64,
    /// Held from the first bytes on, so that those of others do not come between.
    held: Option<OwnedMutexGuard<Writer>>,
}

impl Output {
    pub fn new(writer: Writer, is_ordered: bool) -> Self {
        let turns = is_ordered.then(|| watch::Sender::new(0));
        Self { writer: Arc::new(tokio::sync::Mutex::new(writer)), turns, ended: Mutex::default() }
    }

    pub fn turn(self: &Arc<Self>, number: u64) -> Turn {
        Turn { output: self.clone(), number, held: None }
    }

    /// Waits until all is written. Nobody has a turn any more.
    pub async fn finish(self) -> Result<()> {
        match Arc::into_inner(self.writer) {
            Some(writer) => writer.into_inner().finish().await,
            None => Err(Error::new(Reason::Defect, "the output is still written to")),
        }
    }

    /// It is the next one's turn that has not ended.
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
    /// Writes some of the object's lines, when it is its turn.
    pub async fn write(&mut self, lines: Vec<u8>) -> Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let writer = match self.held.take() {
            Some(held) => held,
            None => {
                if let Some(turns) = &self.output.turns {
                    let number = self.number;
                    let over = |e| Error::with_source(Reason::Defect, "the order was lost", e);
                    turns.subscribe().wait_for(|now| *now == number).await.map_err(over)?;
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
