//! Raw samples: one CSV line per request in the measured window, for analyses that need more than a histogram.
//! Workers fill preallocated batches, which pass through a bounded channel to one writer thread. Workers never wait
//! for that thread: if it is too slow, samples are dropped, and the result of the measurement reports their number.

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
use crate::record::MeasurementWindow;

/// Samples per batch.
const BATCH_SAMPLES: usize = 64;
/// Maximum batches waiting to be written, in addition to the one that each worker fills.
const MAX_QUEUED_BATCHES: usize = 2048;
/// Channel capacity for other messages: one `Conclude` at a time, and `End`.
const CONTROL_MESSAGES: usize = 2;

/// Maps object numbers to keys.
pub(crate) trait Names: Send + Sync + fmt::Debug {
    /// The key of the object with the given number.
    fn name(&self, number: u64) -> String;
}

/// Operation, key and size of a request.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub operation: Operation,
    pub about: About,
    /// Payload bytes, if known before the response.
    pub size: Option<u64>,
}

/// The key of a request.
#[derive(Debug, Clone)]
pub(crate) enum About {
    /// The key of the object with this number.
    Number(u64),
    /// The prefix of a listing.
    Prefix(Box<str>),
    /// No key was drawn, because the request never started.
    Nothing,
}

/// A finished request. Times are those of the clock.
#[derive(Debug)]
pub(crate) struct Handled {
    /// The scheduled start.
    pub intended: Duration,
    /// The actual start, if it started.
    pub begun: Option<Duration>,
    pub ended: Duration,
    /// The time of the first byte and the number of bytes, or the kind of failure.
    pub answer: Result<(Duration, u64), String>,
}

/// A finished request as it is written. Times are in microseconds since the start of the window.
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

/// Counts of the samples of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Number of the measurement in the result, from 1: the first field of its lines.
    pub cell: u64,
    /// Lines in the file.
    pub written: u64,
    /// Samples dropped because the writer thread was too slow.
    pub dropped: u64,
    /// Samples lost because the file could not be written.
    pub unwritten: u64,
}

impl Sampled {
    /// Caveats for the result.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let all = self.written + self.dropped + self.unwritten;
        let mut notes = Vec::new();
        if self.dropped > 0 {
            let what = "the thread that writes them was too slow";
            notes.push(format!("{} of {all} samples were dropped: {what}", self.dropped));
        }
        if self.unwritten > 0 {
            let what = "their file could not be written";
            notes.push(format!("{} of {all} samples are missing: {what}", self.unwritten));
        }
        notes
    }
}

/// The sample file and its writer thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Samples {
    sender: SyncSender<Message>,
    spare: Arc<Spare>,
    cells: AtomicU64,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// The pool of unused batches.
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
    /// Starts the writer thread for at most `workers` concurrent workers. Writes the header at once and fails if it
    /// cannot.
    pub fn begin(mut out: impl Write + Send + 'static, workers: usize) -> io::Result<Self> {
        out.write_all(writer::HEAD.as_bytes())?;
        let batches = workers + MAX_QUEUED_BATCHES;
        let pool = (0..batches).map(|_| Vec::with_capacity(BATCH_SAMPLES)).collect();
        let spare = Arc::new(Spare(Mutex::new(pool)));
        // The channel has capacity for all batches, so that sending never blocks.
        let (sender, receiver) = sync_channel(batches + CONTROL_MESSAGES);
        let writer = Writer::new(out, spare.clone());
        let thread = std::thread::Builder::new().name("samples".to_owned());
        let thread = Some(thread.spawn(move || writer.run(&receiver))?);
        Ok(Self { sender, spare, cells: AtomicU64::new(0), thread })
    }

    /// The samples of the next measurement.
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

    /// Ends the thread and returns the first error of the file. Blocks until all queued batches are written; none are
    /// left if all measurements were concluded.
    pub fn end(mut self) -> io::Result<()> {
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Sending fails only if the thread has already ended.
        let _ = self.sender.send(Message::End);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes samples panicked")))
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // Callers that need the error use `end`.
        let _ = self.join();
    }
}

/// The samples of one measurement.
#[derive(Debug)]
pub(crate) struct CellSamples {
    cell: u64,
    repeat: u32,
    sender: SyncSender<Message>,
    spare: Arc<Spare>,
    /// Samples sent to the thread, and samples dropped.
    handed_in: AtomicU64,
    dropped: AtomicU64,
}

impl CellSamples {
    /// The sampler of one worker.
    pub fn sampler(self: &Arc<Self>, worker: Option<usize>, names: Arc<dyn Names>) -> Sampler {
        Sampler { cell: self.clone(), worker, names, batch: None }
    }

    fn hand_in(&self, batch: Batch) {
        let count = batch.samples.len() as u64;
        let is_taken = self.sender.try_send(Message::Batch(batch)).is_ok();
        let counter = if is_taken { &self.handed_in } else { &self.dropped };
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits until all samples sent are in the file, and returns the counts. Call it after all samplers were dropped.
    pub async fn conclude(&self) -> Sampled {
        let (answer, answered) = oneshot::channel();
        let mut written = 0;
        if self.sender.try_send(Message::Conclude { cell: self.cell, answer }).is_ok() {
            // If the thread panicked, nothing counts as written.
            written = answered.await.unwrap_or(0);
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let unwritten = read(&self.handed_in).saturating_sub(written);
        Sampled { cell: self.cell, written, dropped: read(&self.dropped), unwritten }
    }
}

/// Collects the samples of one worker. Dropping it sends the last batch.
#[derive(Debug)]
pub(crate) struct Sampler {
    cell: Arc<CellSamples>,
    worker: Option<usize>,
    names: Arc<dyn Names>,
    batch: Option<Vec<Sample>>,
}

impl Sampler {
    /// Records a finished request if it overlaps the window.
    pub fn take(&mut self, window: MeasurementWindow, handled: &Handled, subject: Subject) {
        if !window.overlaps(handled.intended, handled.ended) {
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
        if batch.len() >= BATCH_SAMPLES {
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
