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

use self::writer::{SampleBatch, SampleWriter, WriterMessage};
use crate::operation::Operation;
use crate::record::MeasurementWindow;

/// Samples per batch.
const BATCH_SAMPLES: usize = 64;
/// Maximum batches waiting to be written, in addition to the one that each worker fills.
const MAX_QUEUED_BATCHES: usize = 2048;
/// Channel capacity for other messages: one `Conclude`, and `End`.
const CONTROL_MESSAGES: usize = 2;

/// Maps object numbers to keys.
pub(crate) trait ObjectNames: Send + Sync + fmt::Debug {
    /// The key of the object with the given number.
    fn name(&self, number: u64) -> String;
}

/// Operation, key and size of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestSubject {
    pub operation: Operation,
    pub key: SubjectKey,
    /// Payload bytes, if known before the response.
    pub size: Option<u64>,
}

/// The key of a request.
#[derive(Debug, Clone)]
pub(crate) enum SubjectKey {
    /// The key of the object with this number.
    Object(u64),
    /// The prefix of a listing.
    Prefix(Box<str>),
    /// No key was drawn, because the request never started.
    Unknown,
}

/// A finished request. Times are those of the clock.
#[derive(Debug)]
pub(crate) struct FinishedRequest {
    /// The scheduled start.
    pub scheduled: Duration,
    /// The actual start, if it started.
    pub started: Option<Duration>,
    pub ended: Duration,
    /// The time of the first byte and the number of bytes, or the kind of failure.
    pub response: Result<(Duration, u64), String>,
}

/// The written form of a finished request. Times are in microseconds since the start of the window.
#[derive(Debug)]
struct RequestSample {
    subject: RequestSubject,
    scheduled_us: i64,
    started_us: Option<i64>,
    first_byte_us: Option<i64>,
    ended_us: i64,
    failure: Option<Box<str>>,
}

impl RequestSample {
    fn new(begin: Duration, finished: &FinishedRequest, mut subject: RequestSubject) -> Self {
        let since = |time: Duration| match time.checked_sub(begin) {
            Some(after) => micros(after),
            None => -micros(begin - time),
        };
        let (first_byte_us, failure) = match &finished.response {
            Ok((first_byte, bytes)) => {
                subject.size = Some(*bytes);
                (Some(since(*first_byte)), None)
            }
            Err(kind) => (None, Some(kind.as_str().into())),
        };
        let (scheduled_us, started_us, ended_us) =
            (since(finished.scheduled), finished.started.map(since), since(finished.ended));
        Self { subject, scheduled_us, started_us, first_byte_us, ended_us, failure }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Counts of the samples of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleCounts {
    /// Number of the measurement in the result, from 1: the first field of its lines.
    pub measurement: u64,
    /// Lines in the file.
    pub written: u64,
    /// Samples dropped because the writer thread was too slow.
    pub dropped: u64,
    /// Samples lost because the file could not be written.
    pub lost: u64,
}

impl SampleCounts {
    /// Caveats for the result.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let all = self.written + self.dropped + self.lost;
        let mut notes = Vec::new();
        if self.dropped > 0 {
            let reason = "the thread that writes them was too slow";
            notes.push(format!("{} of {all} samples were dropped: {reason}", self.dropped));
        }
        if self.lost > 0 {
            let reason = "their file could not be written";
            notes.push(format!("{} of {all} samples are missing: {reason}", self.lost));
        }
        notes
    }
}

/// The sample file and its writer thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct SampleFile {
    sender: SyncSender<WriterMessage>,
    batch_pool: Arc<BatchPool>,
    measurements: AtomicU64,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// The pool of unused batches.
#[derive(Debug)]
struct BatchPool(Mutex<Vec<Vec<RequestSample>>>);

impl BatchPool {
    fn take(&self) -> Option<Vec<RequestSample>> {
        self.0.lock().pop()
    }

    fn release(&self, mut batch: Vec<RequestSample>) {
        batch.clear();
        self.0.lock().push(batch);
    }
}

impl SampleFile {
    /// Starts the writer thread for at most `workers` concurrent workers. Writes the header at once and fails if it
    /// cannot.
    pub fn start(mut out: impl Write + Send + 'static, workers: usize) -> io::Result<Self> {
        out.write_all(writer::HEADER.as_bytes())?;
        let batches = workers + MAX_QUEUED_BATCHES;
        let unused_batches = (0..batches).map(|_| Vec::with_capacity(BATCH_SAMPLES)).collect();
        let batch_pool = Arc::new(BatchPool(Mutex::new(unused_batches)));
        // The channel has capacity for all batches, so that sending never blocks.
        let (sender, receiver) = sync_channel(batches + CONTROL_MESSAGES);
        let writer = SampleWriter::new(out, batch_pool.clone());
        let thread = std::thread::Builder::new().name("samples".to_owned());
        let thread = Some(thread.spawn(move || writer.run(&receiver))?);
        Ok(Self { sender, batch_pool, measurements: AtomicU64::new(0), thread })
    }

    /// The samples of the next measurement.
    pub(crate) fn next_measurement(&self, round: u32) -> Arc<MeasurementSamples> {
        Arc::new(MeasurementSamples {
            number: self.measurements.fetch_add(1, Ordering::Relaxed) + 1,
            round,
            sender: self.sender.clone(),
            batch_pool: self.batch_pool.clone(),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        })
    }

    /// Ends the thread and returns the first error of the file. Blocks until all queued batches are written; none are
    /// left if all measurements were concluded.
    pub fn finish(mut self) -> io::Result<()> {
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Sending fails only if the thread has already ended.
        let _ = self.sender.send(WriterMessage::End);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes samples panicked")))
    }
}

impl Drop for SampleFile {
    fn drop(&mut self) {
        // Callers that need the error use `finish`.
        let _ = self.join();
    }
}

/// The samples of one measurement.
#[derive(Debug)]
pub(crate) struct MeasurementSamples {
    number: u64,
    round: u32,
    sender: SyncSender<WriterMessage>,
    batch_pool: Arc<BatchPool>,
    /// Samples sent to the thread, and samples dropped.
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl MeasurementSamples {
    /// The sampler of one worker.
    pub fn sampler(self: &Arc<Self>, worker: Option<usize>, names: Arc<dyn ObjectNames>) -> Sampler {
        Sampler { measurement: self.clone(), worker, names, batch: None }
    }

    fn send(&self, batch: SampleBatch) {
        let count = batch.samples.len() as u64;
        let is_taken = self.sender.try_send(WriterMessage::Batch(batch)).is_ok();
        let counter = if is_taken { &self.sent } else { &self.dropped };
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Waits until all samples sent are in the file, and returns the counts. Call it after all samplers were dropped.
    pub async fn conclude(&self) -> SampleCounts {
        let (sender, receiver) = oneshot::channel();
        let mut written = 0;
        if self.sender.try_send(WriterMessage::Conclude { measurement: self.number, written: sender }).is_ok()
        {
            // If the thread panicked, nothing counts as written.
            written = receiver.await.unwrap_or(0);
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let lost = read(&self.sent).saturating_sub(written);
        SampleCounts { measurement: self.number, written, dropped: read(&self.dropped), lost }
    }
}

/// Collects the samples of one worker. Dropping it sends the last batch.
#[derive(Debug)]
pub(crate) struct Sampler {
    measurement: Arc<MeasurementSamples>,
    worker: Option<usize>,
    names: Arc<dyn ObjectNames>,
    batch: Option<Vec<RequestSample>>,
}

impl Sampler {
    /// Records a finished request if it overlaps the window.
    pub fn record(&mut self, window: MeasurementWindow, finished: &FinishedRequest, subject: RequestSubject) {
        if !window.overlaps(finished.scheduled, finished.ended) {
            return;
        }
        if self.batch.is_none() {
            self.batch = self.measurement.batch_pool.take();
        }
        let Some(batch) = &mut self.batch else {
            self.measurement.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        batch.push(RequestSample::new(window.begin, finished, subject));
        if batch.len() >= BATCH_SAMPLES {
            self.send_batch();
        }
    }

    fn send_batch(&mut self) {
        let Some(samples) = self.batch.take() else { return };
        self.measurement.send(SampleBatch {
            measurement: self.measurement.number,
            round: self.measurement.round,
            worker: self.worker,
            names: self.names.clone(),
            samples,
        });
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.send_batch();
    }
}

#[cfg(test)]
pub(crate) mod tests;
