//! The matches of one object, formatted like `grep -rn` prints them.

use std::borrow::Cow;
use std::io::{self, Write as _};

use grep_matcher::Matcher as _;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkMatch};
use tokio::sync::mpsc;
use tradewind_core::printable;

use super::{OutputMode, Query};

/// Buffered output is sent on once it reaches this size.
const FLUSH_BYTES: usize = 64 << 10;

/// The colours of GNU grep.
const NAME_COLOUR: &str = "\x1b[35m";
const NUMBER_COLOUR: &str = "\x1b[32m";
const MATCH_COLOUR: &str = "\x1b[01;31m";
const RESET_COLOUR: &str = "\x1b[m";

/// Matches of one object.
pub(super) struct MatchFormatter<'a> {
    matcher: &'a RegexMatcher,
    query: &'a Query,
    name: Cow<'a, str>,
    lines: Vec<u8>,
    count: u64,
    is_binary: bool,
    /// Receives the output when the buffer is full; `None` keeps all of it in memory.
    overflow: Option<mpsc::Sender<Vec<u8>>>,
}

impl<'a> MatchFormatter<'a> {
    pub fn new(
        matcher: &'a RegexMatcher,
        query: &'a Query,
        name: &'a str,
        overflow: Option<mpsc::Sender<Vec<u8>>>,
    ) -> Self {
        // On a terminal, indicated by colours, control characters in names are escaped.
        let name = if query.is_coloured { printable(name) } else { Cow::Borrowed(name) };
        Self { matcher, query, name, lines: Vec::new(), count: 0, is_binary: false, overflow }
    }

    /// Returns whether anything matched, and the remaining output.
    pub fn finish(mut self) -> (bool, Vec<u8>) {
        let [name, _, _, plain] = self.colours();
        // Writing to memory cannot fail.
        let _ = match self.query.output_mode {
            OutputMode::Counts => writeln!(self.lines, "{name}{}{plain}:{}", self.name, self.count),
            OutputMode::Names if self.count > 0 => writeln!(self.lines, "{name}{}{plain}", self.name),
            OutputMode::Names | OutputMode::Lines => Ok(()),
        };
        (self.count > 0, self.lines)
    }

    const fn colours(&self) -> [&'static str; 4] {
        if self.query.is_coloured {
            [NAME_COLOUR, NUMBER_COLOUR, MATCH_COLOUR, RESET_COLOUR]
        } else {
            [""; 4]
        }
    }

    fn add(&mut self, number: u64, line: &[u8]) -> io::Result<()> {
        let [name, count, found, plain] = self.colours();
        write!(self.lines, "{name}{}{plain}:{count}{number}{plain}:", self.name)?;
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if self.query.is_coloured && !self.query.inverts {
            let (mut at, lines) = (0, &mut self.lines);
            let marked = self.matcher.find_iter(line, |m| {
                lines.extend_from_slice(&line[at..m.start()]);
                for piece in [found.as_bytes(), &line[m], plain.as_bytes()] {
                    lines.extend_from_slice(piece);
                }
                at = m.end();
                true
            });
            marked.map_err(io::Error::other)?;
            self.lines.extend_from_slice(&line[at..]);
        } else {
            self.lines.extend_from_slice(line);
        }
        self.lines.push(b'\n');
        if self.lines.len() >= FLUSH_BYTES
            && let Some(overflow) = &self.overflow
        {
            overflow.blocking_send(std::mem::take(&mut self.lines)).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

impl Sink for MatchFormatter<'_> {
    type Error = io::Error;

    fn binary_data(&mut self, _searcher: &Searcher, _offset: u64) -> io::Result<bool> {
        self.is_binary = true;
        Ok(true)
    }

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        if self.is_binary && self.query.output_mode == OutputMode::Lines {
            self.count += 1;
            writeln!(self.lines, "Binary file {} matches", self.name)?;
            return Ok(false);
        }
        for (number, line) in (found.line_number().unwrap_or(0)..).zip(found.lines()) {
            self.count += 1;
            if self.query.output_mode == OutputMode::Lines {
                self.add(number, line)?;
            }
        }
        // One match is enough to print the name.
        Ok(self.query.output_mode != OutputMode::Names)
    }
}
