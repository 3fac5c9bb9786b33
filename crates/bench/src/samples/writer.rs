//! The thread that formats and writes samples. After a write error it only returns batches to the pool. A measurement
//! derives the number of lost samples from the number sent and the number written.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use tokio::sync::oneshot;

use super::{BatchPool, ObjectNames, RequestSample, SubjectKey};
use crate::csv::quoted;

pub(super) const HEADER: &str =
    "measurement,round,operation,key,size,worker,scheduled_us,sent_us,first_byte_us,end_us,outcome\n";
/// Approximate bytes per write.
const WRITE_BYTES: usize = 64 << 10;
/// The outcome of a successful request.
const SUCCESS: &str = "ok";

/// A message to the thread.
#[derive(Debug)]
pub(super) enum WriterMessage {
    Batch(SampleBatch),
    /// All samples of a measurement were sent: flush, and answer with the number of its lines in the file.
    Conclude {
        measurement: u64,
        written: oneshot::Sender<u64>,
    },
    End,
}

/// A batch of samples of one worker.
#[derive(Debug)]
pub(super) struct SampleBatch {
    pub measurement: u64,
    pub round: u32,
    pub worker: Option<usize>,
    pub names: Arc<dyn ObjectNames>,
    pub samples: Vec<RequestSample>,
}

/// State of the writer thread.
pub(super) struct SampleWriter<W> {
    out: W,
    batch_pool: Arc<BatchPool>,
    /// Lines not yet written, and their number by measurement.
    text: String,
    unflushed: BTreeMap<u64, u64>,
    /// Lines in the file, by measurement.
    written: BTreeMap<u64, u64>,
    failed: Option<io::Error>,
}

impl<W: Write> SampleWriter<W> {
    pub fn new(out: W, batch_pool: Arc<BatchPool>) -> Self {
        let text = String::with_capacity(2 * WRITE_BYTES);
        Self { out, batch_pool, text, unflushed: BTreeMap::new(), written: BTreeMap::new(), failed: None }
    }

    /// Runs until [`WriterMessage::End`], or until all senders were dropped. Returns the first write error.
    pub fn run(mut self, receiver: &Receiver<WriterMessage>) -> io::Result<()> {
        while let Ok(message) = receiver.recv() {
            match message {
                WriterMessage::Batch(batch) => self.add(batch),
                WriterMessage::Conclude { measurement, written } => {
                    self.flush();
                    // The receiver may have stopped waiting.
                    let _ = written.send(self.written.remove(&measurement).unwrap_or(0));
                }
                WriterMessage::End => break,
            }
        }
        self.flush();
        self.failed.map_or(Ok(()), Err)
    }

    fn add(&mut self, batch: SampleBatch) {
        if self.failed.is_none() {
            batch.samples.iter().for_each(|sample| write_line(&mut self.text, &batch, sample));
            *self.unflushed.entry(batch.measurement).or_default() += batch.samples.len() as u64;
        }
        self.batch_pool.release(batch.samples);
        if self.text.len() >= WRITE_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let unflushed = std::mem::take(&mut self.unflushed);
        match self.out.write_all(self.text.as_bytes()).and_then(|()| self.out.flush()) {
            Ok(()) => {
                unflushed
                    .into_iter()
                    .for_each(|(measurement, lines)| *self.written.entry(measurement).or_default() += lines);
            }
            Err(e) => self.failed = Some(self.failed.take().unwrap_or(e)),
        }
        self.text.clear();
    }
}

fn write_line(text: &mut String, batch: &SampleBatch, sample: &RequestSample) {
    let RequestSample { subject, scheduled_us, started_us, first_byte_us, ended_us, failure } = sample;
    let key = match &subject.key {
        SubjectKey::Object(number) => batch.names.name(*number),
        SubjectKey::Prefix(prefix) => prefix.to_string(),
        SubjectKey::Unknown => String::new(),
    };
    // Writing to a string cannot fail.
    let _ =
        write!(text, "{},{},{},{},", batch.measurement, batch.round, subject.operation.name(), quoted(&key));
    write_optional(text, subject.size);
    write_optional(text, batch.worker);
    let _ = write!(text, "{scheduled_us},");
    write_optional(text, *started_us);
    write_optional(text, *first_byte_us);
    let _ = writeln!(text, "{ended_us},{}", quoted(failure.as_deref().unwrap_or(SUCCESS)));
}

/// Writes a field, empty if `None`, and the comma after it.
fn write_optional(text: &mut String, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        let _ = write!(text, "{value}");
    }
    text.push(',');
}
