//! The thread that makes lines of samples and writes them. Once the file cannot be written it only gives batches back: what a
//! measurement did not get into the file is known by how much of it was handed in.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use tokio::sync::oneshot;

use super::{About, Names, Sample, Spare};
use crate::csv::quoted;

pub(super) const HEAD: &str =
    "cell,repeat,operation,key,size,worker,intended_us,sent_us,first_byte_us,end_us,outcome\n";
/// Bytes that are written at once, about.
const PIECE: usize = 64 << 10;
/// An outcome that is no failure.
const SUCCESS: &str = "ok";

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Message {
    Batch(Batch),
    /// All of a measurement was handed in: how many lines of it are in the file?
    Conclude {
        cell: u64,
        answer: oneshot::Sender<u64>,
    },
    End,
}

/// Samples of one worker.
#[derive(Debug)]
pub(super) struct Batch {
    pub cell: u64,
    pub repeat: u32,
    pub worker: Option<usize>,
    pub names: Arc<dyn Names>,
    pub samples: Vec<Sample>,
}

/// See the module.
pub(super) struct Writer<W> {
    out: W,
    spare: Arc<Spare>,
    /// Lines that are not in the file yet, and how many there are of each measurement.
    text: String,
    waiting: BTreeMap<u64, u64>,
    /// Lines in the file, by measurement.
    written: BTreeMap<u64, u64>,
    failed: Option<io::Error>,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W, spare: Arc<Spare>) -> Self {
        let text = String::with_capacity(2 * PIECE);
        Self { out, spare, text, waiting: BTreeMap::new(), written: BTreeMap::new(), failed: None }
    }

    /// Until the end, or until nobody is left who could tell it of one.
    pub fn run(mut self, receiver: &Receiver<Message>) -> io::Result<()> {
        while let Ok(message) = receiver.recv() {
            match message {
                Message::Batch(batch) => self.add(batch),
                Message::Conclude { cell, answer } => {
                    self.flush();
                    // Whoever does not wait any more does not want to know.
                    let _ = answer.send(self.written.remove(&cell).unwrap_or(0));
                }
                Message::End => break,
            }
        }
        self.flush();
        self.failed.map_or(Ok(()), Err)
    }

    fn add(&mut self, batch: Batch) {
        if self.failed.is_none() {
            batch.samples.iter().for_each(|sample| line(&mut self.text, &batch, sample));
            *self.waiting.entry(batch.cell).or_default() += batch.samples.len() as u64;
        }
        self.spare.give_back(batch.samples);
        if self.text.len() >= PIECE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        match self.out.write_all(self.text.as_bytes()).and_then(|()| self.out.flush()) {
            Ok(()) => {
                waiting.into_iter().for_each(|(cell, lines)| *self.written.entry(cell).or_default() += lines);
            }
            Err(e) => self.failed = Some(self.failed.take().unwrap_or(e)),
        }
        self.text.clear();
    }
}

fn line(text: &mut String, batch: &Batch, sample: &Sample) {
    let Sample { subject, intended, begun, first, ended, failure } = sample;
    let named = match &subject.about {
        About::Number(number) => batch.names.name(*number),
        About::Prefix(prefix) => prefix.to_string(),
        About::Nothing => String::new(),
    };
    // It is a string that is written to.
    let _ = write!(text, "{},{},{},{},", batch.cell, batch.repeat, subject.operation.name(), quoted(&named));
    maybe(text, subject.size);
    maybe(text, batch.worker);
    let _ = write!(text, "{intended},");
    maybe(text, *begun);
    maybe(text, *first);
    let _ = writeln!(text, "{ended},{}", quoted(failure.as_deref().unwrap_or(SUCCESS)));
}

/// A field that is empty where there is nothing, and the comma behind it.
fn maybe(text: &mut String, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        let _ = write!(text, "{value}");
    }
    text.push(',');
}
