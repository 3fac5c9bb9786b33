//! What is printed for people: names and messages come from stores and file systems, and may hold anything.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use tradewind_core::printable;

/// Names on standard output: exact for another program, with control characters escaped on a terminal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    is_terminal: bool,
}

impl Names {
    /// For this process's standard output.
    pub fn of_standard_output() -> Self {
        Self { is_terminal: io::stdout().is_terminal() }
    }

    /// A name as it is printed.
    pub fn show(self, name: &str) -> Cow<'_, str> {
        if self.is_terminal { printable(name) } else { Cow::Borrowed(name) }
    }
}

/// Writes one line to standard error, with control characters escaped wherever that goes.
pub(super) fn say_line(line: impl Display) -> io::Result<()> {
    writeln!(io::stderr(), "{}", printable(&line.to_string()))
}
