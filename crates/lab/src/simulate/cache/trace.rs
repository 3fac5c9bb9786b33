//! Traces: text with one block number per line, plain or compressed with zstd.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The first bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// Maximum length of a line. No number is longer.
const MAX_LINE_BYTES: u64 = 64;

/// The requests of a trace. Blocks are numbered from 0 in the order of their first request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    requests: Vec<u32>,
    distinct_blocks: u32,
}

/// The reason why a trace cannot be used, worded to follow its name.
#[derive(Debug)]
pub enum TraceError {
    /// The file could not be read or decompressed.
    Read(io::Error),
    /// A line is not a number below 2^64.
    Line {
        /// Number of the line, from 1.
        number: u64,
        /// Its text.
        text: String,
    },
    /// There is no request.
    Empty,
    /// There are 2^32 distinct blocks or more.
    TooManyBlocks,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "cannot read it: {error}"),
            Self::Line { number, text } => {
                write!(f, "line {number} is not a block number: {text:?}")
            }
            Self::Empty => f.write_str("it has no requests"),
            Self::TooManyBlocks => f.write_str("it has 2^32 distinct blocks or more"),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read(error) => Some(error),
            Self::Line { .. } | Self::Empty | Self::TooManyBlocks => None,
        }
    }
}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl Trace {
    /// Reads at most `max_requests` requests from a file. `-` is the standard input.
    ///
    /// # Errors
    ///
    /// [`TraceError`], also for a trace without requests.
    pub fn open(path: &Path, max_requests: Option<u64>) -> Result<Self, TraceError> {
        if path == Path::new("-") {
            return Self::read(io::stdin().lock(), max_requests);
        }
        Self::read(File::open(path)?, max_requests)
    }

    /// Like [`open`](Self::open), but from a reader.
    ///
    /// # Errors
    ///
    /// [`TraceError`], also for a trace without requests.
    pub fn read(reader: impl Read, max_requests: Option<u64>) -> Result<Self, TraceError> {
        let mut start = Vec::with_capacity(ZSTD_MAGIC.len());
        let mut reader = BufReader::new(reader);
        reader.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut start)?;
        let is_compressed = start == ZSTD_MAGIC;
        let whole = io::Cursor::new(start).chain(reader);
        if is_compressed {
            let decoder = zstd::stream::read::Decoder::new(whole)?;
            Self::read_text(BufReader::new(decoder), max_requests)
        } else {
            Self::read_text(whole, max_requests)
        }
    }

    /// The block of each request.
    #[must_use]
    pub fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// Number of distinct blocks.
    #[must_use]
    pub const fn distinct_blocks(&self) -> u32 {
        self.distinct_blocks
    }

    fn read_text(mut text: impl BufRead, max_requests: Option<u64>) -> Result<Self, TraceError> {
        let max_requests = max_requests.unwrap_or(u64::MAX);
        let mut trace = Self::default();
        let mut numbers = HashMap::new();
        let mut line = Vec::new();
        let mut line_number = 0;
        while (trace.requests.len() as u64) < max_requests {
            line.clear();
            if text.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            line_number += 1;
            let Some(block) = parse_line(&line, line_number)? else { continue };
            let next = u32::try_from(numbers.len()).map_err(|_| TraceError::TooManyBlocks)?;
            trace.requests.push(*numbers.entry(block).or_insert(next));
        }
        if trace.requests.is_empty() {
            return Err(TraceError::Empty);
        }
        trace.distinct_blocks = u32::try_from(numbers.len()).map_err(|_| TraceError::TooManyBlocks)?;
        Ok(trace)
    }
}

/// The block number in a line; `None` if the line is empty.
fn parse_line(line: &[u8], number: u64) -> Result<Option<u64>, TraceError> {
    let text = String::from_utf8_lossy(line);
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    // `parse` would accept a plus sign.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let block = if is_number { text.parse().ok() } else { None };
    block.map(Some).ok_or_else(|| TraceError::Line { number, text: text.to_owned() })
}
