//! Raw samples: a line of CSV for each request that lies in a measured window, for whoever wants to see more than a histogram
//! keeps. Workers fill batches that were made before; full ones go through a bounded channel to one thread that writes them.
//! Nobody waits for that thread while it counts: where it cannot follow, samples are dropped and counted, and what a
//! measurement tells of itself has that number.

mod writer;

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use self::writer::{Batch, Message, Writer};
use crate::operation::Operation;
use crate::record::Window;

/// Samples of a batch.
const BATCH: usize = 64;
/// Batches that may be on their way to the file, beside the one that each worker fills.
const ON_THEIR_WAY: usize = 2048;
/// Room in the channel for what is no batch: there is one of it at a time, and the end.
const OTHERS: usize = 2;

/// What numbers of objects are called.
pub(crate) trait Names: Send + Sync + fmt::Debug {
    /// The key of an object.
    fn name(&self, number: u64) -> String;
}

/// What a request is about.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub operation: Operation,
    pub about: About,
    /// Bytes of objects that it carries, where that is known before the answer.
    pub size: Option<u64>,
}

/// Which key.
#[derive(Debug, Clone)]
pub(crate) enum About {
    /// That of an object.
    Number(u64),
    /// What keys begin with.
    Prefix(Box<str>),
    /// It was never drawn.
    Nothing,
}

/// A request as it went. Times are those of the clock.
#[derive(Debug)]
pub(crate) struct Handled {
    /// When it was meant to start.
    pub intended: Duration,
    /// When it did, if ever.
    pub begun: Option<Duration>,
    pub ended: Duration,
    /// When the first byte was there, and how many there were; or the kind of failure.
    pub answer: Result<(Duration, u64), String>,
}

/// The same as it is kept: in microseconds from the beginning of the window.
#[derive(Debug)]
struct Sample {
    subject: Subject,
    intended: i64,
    begun: Option<i64>,
    first: Option<i64>,
    ended: i64,
    failure: Option<Box<str>>,
}

impl Sample {
    fn new(begin: Duration, handled: &Handled, mut subject: Subject) -> Self {
        let since = |at: Duration| match at.checked_sub(begin) {
            Some(after) => micros(after),
            None => -micros(begin - at),
        };
        let (first, failure) = match &handled.answer {
            Ok((first, bytes)) => {
                subject.size = Some(*bytes);
                (Some(since(*first)), None)
            }
            Err(kind) => (None, Some(kind.as_str().into())),
        };
        let (intended, begun, ended) =
            (since(handled.intended), handled.begun.map(since), since(handled.ended));
        Self { subject, intended, begun, first, ended, failure }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// What became of the samples of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// The number that its lines have, from 1 on: which measurement of the result it is.
    pub cell: u64,
    /// Lines that are in the file.
    pub written: u64,
    /// Requests that have none, since the thread that writes could not follow.
    pub dropped: u64,
    /// Requests that have none, since the file could not be written.
    pub unwritten: u64,
}

impl Sampled {
    /// What is to be known of it.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let all = self.written + self.dropped + self.unwritten;
        let mut notes = Vec::new();
        if self.dropped > 0 {
            let what = "the thread that writes them could not follow";
            notes.push(format!("{} of {all} samples were dropped: {what}", self.dropped));
        }
        if self.unwritten > 0 {
            let what = "their file could not be written";
            notes.push(format!("{} of {all} samples are missing: {what}", self.unwritten));
        }
        notes
    }
}

/// Where samples go. Dropping it ends the thread.
#[derive(Debug)]
pub struct Samples {
    sender: SyncSender<Message>,
    spare: Arc<Spare>,
    cells: AtomicU64,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Batches that nobody uses.
#[derive(Debug)]
struct Spare(Mutex<Vec<Vec<Sample>>>);

impl Spare {
    fn take(&self) -> Option<Vec<Sample>> {
        self.0.lock().pop()
    }

    fn give_back(&self, mut batch: Vec<Sample>) {
        batch.clear();
        self.0.lock().push(batch);
    }
}

impl Samples {
    /// Of so many workers at a time, at the most. The first line is written at once: an error where that cannot be.
    pub fn begin(mut out: impl Write + Send + 'static, workers: usize) -> io::Result<Self> {
        out.write_all(writer::HEAD.as_bytes())?;
        let batches = workers + ON_THEIR_WAY;
        let made = (0..batches).map(|_| Vec::with_capacity(BATCH)).collect();
        let spare = Arc::new(Spare(Mutex::new(made)));
        // There is room for all batches that there are.
        let (sender, receiver) = sync_channel(batches + OTHERS);
        let writer = Writer::new(out, spare.clone());
        let thread = std::thread::Builder::new().name("samples".to_owned());
        let thread = Some(thread.spawn(move || writer.run(&receiver))?);
        Ok(Self { sender, spare, cells: AtomicU64::new(0), thread })
    }

    /// Those of the next measurement.
    pub(crate) fn next_cell(&self, repeat: u32) -> Arc<CellSamples> {
        Arc::new(CellSamples {
            cell: self.cells.fetch_add(1, Ordering::Relaxed) + 1,
            repeat,
            sender: self.sender.clone(),
            spare: self.spare.clone(),
            handed_in: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }

    /// Ends the thread; the first error of the file, if there was any. Blocks until what is on its way is written, which it is
    /// where all measurements are concluded.
    pub fn end(mut self) -> io::Result<()> {
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Where nobody listens it has ended.
        let _ = self.sender.send(Message::End);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes samples failed")))
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // Whoever wants to know asked.
        let _ = self.join();
    }
}

/// Samples of one measurement.
#[derive(Debug)]
pub(crate) struct CellSamples {
    cell: u64,
    repeat: u32,
    sender: SyncSender<Message>,
    spare: Arc<Spare>,
    /// Samples that were handed to the thread, and those that were not.
    handed_in: AtomicU64,
    dropped: AtomicU64,
}

impl CellSamples {
    /// One worker's.
    pub fn sampler(self: &Arc<Self>, worker: Option<usize>, names: Arc<dyn Names>) -> Sampler {
        Sampler { cell: self.clone(), worker, names, batch: None }
    }

    fn hand_in(&self, batch: Batch) {
        let count = batch.samples.len() as u64;
        let is_taken = self.sender.try_send(Message::Batch(batch)).is_ok();
        let counter = if is_taken { &self.handed_in } else { &self.dropped };
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits until what was handed in is in the file. No worker samples any more.
    pub async fn conclude(&self) -> Sampled {
        let (answer, answered) = oneshot::channel();
        let mut written = 0;
        if self.sender.try_send(Message::Conclude { cell: self.cell, answer }).is_ok() {
            // A thread that failed has written nothing that could be relied on.
            written = answered.await.unwrap_or(0);
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let unwritten = read(&self.handed_in).saturating_sub(written);
        Sampled { cell: self.cell, written, dropped: read(&self.dropped), unwritten }
    }
}

/// Takes the samples of one worker. Dropping it hands in what it has.
#[derive(Debug)]
pub(crate) struct Sampler {
    cell: Arc<CellSamples>,
    worker: Option<usize>,
    names: Arc<dyn Names>,
    batch: Option<Vec<Sample>>,
}

impl Sampler {
    /// A request that has ended, if it lies in the window.
    pub fn take(&mut self, window: Window, handled: &Handled, subject: Subject) {
        if !window.touches(handled.intended, handled.ended) {
            return;
        }
        if self.batch.is_none() {
            self.batch = self.cell.spare.take();
        }
        let Some(batch) = &mut self.batch else {
            self.cell.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        batch.push(Sample::new(window.begin, handled, subject));
        if batch.len() >= BATCH {
            self.hand_in();
        }
    }

    fn hand_in(&mut self) {
        let Some(samples) = self.batch.take() else { return };
        let (cell, repeat, worker) = (self.cell.cell, self.cell.repeat, self.worker);
        self.cell.hand_in(Batch { cell, repeat, worker, names: self.names.clone(), samples });
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.hand_in();
    }
}

#[cfg(test)]
pub(crate) mod tests;
