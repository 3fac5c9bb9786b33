//! Streaming reader of object traces: CSV with a header, or one JSON object per line. A record is always one line, so
//! that an unclosed quote invalidates only its own line. Requests are sorted by time within a window of
//! [`SORT_WINDOW_LINES`] lines, which is all that is held in memory.

mod line;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::io::{self, BufRead, Read as _};
use std::time::Duration;

use self::line::LineFormat;
use crate::operation::Operation;

/// Longest valid line.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Number of lines by which a line may come too late for its time.
pub const SORT_WINDOW_LINES: usize = 1024;

/// A request of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEntry {
    /// Line number, from 1.
    pub line: u64,
    /// Time of the request; only the difference to the first request matters.
    pub time: Duration,
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
pub struct InvalidLine {
    /// Line number, from 1.
    pub line: u64,
    /// The error in the line.
    pub reason: String,
}

impl fmt::Display for InvalidLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

/// Iterator over the requests of a trace, ordered by time and then by line.
pub struct Trace {
    lines: TraceLines,
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
    /// Opens a trace whose keys have at most `max_key_bytes` bytes. The outer error is an I/O error; the inner one
    /// describes an invalid header.
    pub fn open(
        reader: Box<dyn BufRead + Send>,
        max_key_bytes: usize,
    ) -> io::Result<Result<Self, InvalidLine>> {
        let lines = TraceLines::open(reader, max_key_bytes)?;
        Ok(lines.map(|lines| Self { lines, window: BinaryHeap::new(), last: Duration::ZERO }))
    }
}

impl Iterator for Trace {
    type Item = io::Result<Result<TraceEntry, InvalidLine>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.window.len() <= SORT_WINDOW_LINES {
            match self.lines.next() {
                Ok(Some(Ok(entry))) => self.window.push(Reverse(Timed(entry))),
                Ok(Some(Err(invalid_line))) => return Some(Ok(Err(invalid_line))),
                Ok(None) => break,
                Err(e) => return Some(Err(e)),
            }
        }
        let Reverse(Timed(entry)) = self.window.pop()?;
        if entry.time < self.last {
            let seconds = (self.last - entry.time).as_secs_f64();
            let reason = format!(
                "it is {seconds} s earlier than a request more than {SORT_WINDOW_LINES} lines before it: sort the trace by time"
            );
            return Some(Ok(Err(InvalidLine { line: entry.line, reason })));
        }
        self.last = entry.time;
        Some(Ok(Ok(entry)))
    }
}

/// A request ordered by time, then by line.
#[derive(PartialEq, Eq)]
struct Timed(TraceEntry);

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0.time, self.0.line).cmp(&(other.0.time, other.0.line))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The parsed lines, in file order.
struct TraceLines {
    reader: Box<dyn BufRead + Send>,
    format: LineFormat,
    max_key_bytes: usize,
    /// Number of the last line read, from 1.
    number: u64,
    line: Vec<u8>,
    /// The line is too long, and the rest of it was skipped.
    is_too_long: bool,
    /// The first line has been read and is a request.
    is_first_pending: bool,
}

impl TraceLines {
    fn open(reader: Box<dyn BufRead + Send>, max_key_bytes: usize) -> io::Result<Result<Self, InvalidLine>> {
        let mut lines = Self {
            reader,
            format: LineFormat::Json,
            max_key_bytes,
            number: 0,
            line: Vec::new(),
            is_too_long: false,
            is_first_pending: false,
        };
        if !lines.read()? {
            return Ok(Err(InvalidLine { line: 1, reason: "the trace is empty".to_owned() }));
        }
        if lines.line.starts_with(b"{") {
            lines.is_first_pending = true;
            return Ok(Ok(lines));
        }
        let format = lines.text().and_then(LineFormat::from_header);
        Ok(match format {
            Ok(format) => Ok(Self { format, ..lines }),
            Err(reason) => Err(InvalidLine { line: lines.number, reason }),
        })
    }

    fn next(&mut self) -> io::Result<Option<Result<TraceEntry, InvalidLine>>> {
        if !std::mem::take(&mut self.is_first_pending) && !self.read()? {
            return Ok(None);
        }
        let line = self.number;
        let entry = self.text().and_then(|text| self.format.parse(text, line, self.max_key_bytes));
        Ok(Some(entry.map_err(|reason| InvalidLine { line, reason })))
    }

    /// Reads the next nonempty line, up to [`MAX_LINE_BYTES`]. Returns false at the end of the trace.
    fn read(&mut self) -> io::Result<bool> {
        loop {
            self.line.clear();
            if self.reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(false);
            }
            self.number += 1;
            self.is_too_long = self.line.pop_if(|byte| *byte == b'\n').is_none() && self.skip()?;
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
            let buffered = self.reader.fill_buf()?;
            let end = buffered.iter().position(|byte| *byte == b'\n');
            let (length, is_end) = (end.unwrap_or(buffered.len()), end.is_some() || buffered.is_empty());
            is_any |= length > 0;
            self.reader.consume(length + usize::from(end.is_some()));
            if is_end {
                return Ok(is_any);
            }
        }
    }

    fn text(&self) -> Result<&str, String> {
        if self.is_too_long {
            return Err(format!("longer than {MAX_LINE_BYTES} bytes"));
        }
        str::from_utf8(&self.line).map_err(|e| format!("not UTF-8 from byte {} on", e.valid_up_to()))
    }
}

#[cfg(test)]
mod tests;
