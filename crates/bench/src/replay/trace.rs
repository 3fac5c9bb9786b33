//! Streaming reader of object traces: CSV with a header, or one JSON object per line. A record is always one line, so
//! that an unclosed quote invalidates only its own line. Requests are sorted by time within a window of [`WINDOW`]
//! lines, which is all that is held in memory.

mod line;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::time::Duration;

use self::line::Form;
use crate::operation::Operation;

/// Longest valid line.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Number of lines by which a line may come too late for its time.
pub const WINDOW: usize = 1024;

/// A request of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Line number, from 1.
    pub line: u64,
    /// Time of the request; only the difference to the first request matters.
    pub at: Duration,
    /// The operation.
    pub operation: Operation,
    /// The key, or the prefix of a listing.
    pub key: String,
    /// First byte to read.
    pub offset: u64,
    /// Bytes to write, or the maximum to read; `None` reads to the end of the object.
    pub length: Option<u64>,
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    /// Line number, from 1.
    pub line: u64,
    /// What is wrong with the line.
    pub why: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// Iterator over the requests of a trace, ordered by time and then by line.
pub struct Trace {
    lines: Lines,
    window: BinaryHeap<Reverse<Timed>>,
    /// The time of the last returned request.
    last: Duration,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace at line {}", self.lines.number)
    }
}

impl Trace {
    /// Opens a trace whose keys have at most `most_key_bytes` bytes. The outer error is an I/O error; the inner one
    /// describes an invalid header.
    pub fn open(text: Box<dyn BufRead + Send>, most_key_bytes: usize) -> io::Result<Result<Self, Broken>> {
        let lines = Lines::open(text, most_key_bytes)?;
        Ok(lines.map(|lines| Self { lines, window: BinaryHeap::new(), last: Duration::ZERO }))
    }
}

impl Iterator for Trace {
    type Item = io::Result<Result<Entry, Broken>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.window.len() <= WINDOW {
            match self.lines.next() {
                Ok(Some(Ok(entry))) => self.window.push(Reverse(Timed(entry))),
                Ok(Some(Err(broken))) => return Some(Ok(Err(broken))),
                Ok(None) => break,
                Err(e) => return Some(Err(e)),
            }
        }
        let Reverse(Timed(entry)) = self.window.pop()?;
        if entry.at < self.last {
            let seconds = (self.last - entry.at).as_secs_f64();
            let why = format!(
                "it is {seconds} s earlier than a request more than {WINDOW} lines before it: sort the trace by time"
            );
            return Some(Ok(Err(Broken { line: entry.line, why })));
        }
        self.last = entry.at;
        Some(Ok(Ok(entry)))
    }
}

/// A request ordered by time, then by line.
#[derive(PartialEq, Eq)]
struct Timed(Entry);

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0.at, self.0.line).cmp(&(other.0.at, other.0.line))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The parsed lines, in file order.
struct Lines {
    text: Box<dyn BufRead + Send>,
    form: Form,
    most_key_bytes: usize,
    /// Number of the last line read, from 1.
    number: u64,
    line: Vec<u8>,
    /// The line is too long, and the rest of it was skipped.
    is_cut: bool,
    /// The first line has been read and is a request.
    is_read: bool,
}

impl Lines {
    fn open(text: Box<dyn BufRead + Send>, most_key_bytes: usize) -> io::Result<Result<Self, Broken>> {
        let mut lines = Self {
            text,
            form: Form::Json,
            most_key_bytes,
            number: 0,
            line: Vec::new(),
            is_cut: false,
            is_read: false,
        };
        if !lines.read()? {
            return Ok(Err(Broken { line: 1, why: "the trace is empty".to_owned() }));
        }
        if lines.line.starts_with(b"{") {
            lines.is_read = true;
            return Ok(Ok(lines));
        }
        let form = lines.text().and_then(Form::of_header);
        Ok(match form {
            Ok(form) => Ok(Self { form, ..lines }),
            Err(why) => Err(Broken { line: lines.number, why }),
        })
    }

    fn next(&mut self) -> io::Result<Option<Result<Entry, Broken>>> {
        if !std::mem::take(&mut self.is_read) && !self.read()? {
            return Ok(None);
        }
        let line = self.number;
        let entry = self.text().and_then(|text| self.form.entry(text, line, self.most_key_bytes));
        Ok(Some(entry.map_err(|why| Broken { line, why })))
    }

    /// Reads the next nonempty line, up to [`MAX_LINE_BYTES`]. Returns false at the end of the trace.
    fn read(&mut self) -> io::Result<bool> {
        loop {
            self.line.clear();
            if self.text.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(false);
            }
            self.number += 1;
            self.is_cut = self.line.pop_if(|byte| *byte == b'\n').is_none() && self.skip()?;
            self.line.pop_if(|byte| *byte == b'\r');
            if self.number == 1 && self.line.starts_with(b"\xef\xbb\xbf") {
                self.line.drain(..3);
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Skips the rest of a line. Returns true if there was any.
    fn skip(&mut self) -> io::Result<bool> {
        let mut is_any = false;
        loop {
            let buffered = self.text.fill_buf()?;
            let end = buffered.iter().position(|byte| *byte == b'\n');
            let (length, is_end) = (end.unwrap_or(buffered.len()), end.is_some() || buffered.is_empty());
            is_any |= length > 0;
            self.text.consume(length + usize::from(end.is_some()));
            if is_end {
                return Ok(is_any);
            }
        }
    }

    fn text(&self) -> Result<&str, String> {
        if self.is_cut {
            return Err(format!("longer than {MAX_LINE_BYTES} bytes"));
        }
        str::from_utf8(&self.line).map_err(|e| format!("not UTF-8 from byte {} on", e.valid_up_to()))
    }
}

#[cfg(test)]
mod tests;
