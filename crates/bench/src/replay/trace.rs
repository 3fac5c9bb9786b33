//! An object trace, read line by line: CSV with a header, or a JSON object on each line. A record is a line, so that a quote
//! that is never closed breaks its own line and not all that follow. Nothing is held but the lines of a small window, within
//! which requests are put into the order of their times.

mod line;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::time::Duration;

use self::line::Form;
use crate::operation::Operation;

/// A longer line is broken.
const MOST_LINE_BYTES: u64 = 64 << 10;
/// A line may come so many lines later than its time.
pub const WINDOW: usize = 1024;

/// A request of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its line, from 1 on.
    pub line: u64,
    /// Its time. What counts is how far from the first it lies.
    pub at: Duration,
    /// What is asked.
    pub operation: Operation,
    /// Of which object; of a listing what keys begin with.
    pub key: String,
    /// The first byte that is read.
    pub offset: u64,
    /// How much is written; how much is read at the most, and all from the offset on where that is not said.
    pub length: Option<u64>,
}

/// A line that is no request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    /// Which, from 1 on.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// Its requests in the order of their times, those of one time in the order of their lines.
pub struct Trace {
    lines: Lines,
    window: BinaryHeap<Reverse<Timed>>,
    /// The time of the last one that was given out.
    last: Duration,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace at line {}", self.lines.number)
    }
}

impl Trace {
    /// Begins to read one whose keys may have so many bytes. The error is that of reading, or says what is wrong with the
    /// header.
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
                "its time lies {seconds} s before that of a request more than {WINDOW} lines earlier: sort the trace by time"
            );
            return Some(Ok(Err(Broken { line: entry.line, why })));
        }
        self.last = entry.at;
        Some(Ok(Ok(entry)))
    }
}

/// By time, then by line.
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

/// The lines, in their order.
struct Lines {
    text: Box<dyn BufRead + Send>,
    form: Form,
    most_key_bytes: usize,
    /// Of the last line that was read, from 1 on.
    number: u64,
    line: Vec<u8>,
    /// It is longer than a line may be, and its rest was passed over.
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

    /// Reads the next line that is not empty, up to the length that a line may have. Whether there was one.
    fn read(&mut self) -> io::Result<bool> {
        loop {
            self.line.clear();
            if self.text.by_ref().take(MOST_LINE_BYTES).read_until(b'\n', &mut self.line)? == 0 {
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

    /// Passes over the rest of a line; whether there was any.
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
            return Err(format!("it has more than {MOST_LINE_BYTES} bytes"));
        }
        str::from_utf8(&self.line).map_err(|e| format!("it is not UTF-8 from byte {} on", e.valid_up_to()))
    }
}

#[cfg(test)]
mod tests;
