//! Origins of values, and problems with them. Origins are recorded because a value may come from five sources, and
//! users need to know which one applied. The values themselves are omitted from messages: they may be secrets.

use std::fmt;
use std::path::PathBuf;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// It is not set.
    Default,
    /// A command-line flag.
    Flag(&'static str),
    /// An environment variable.
    Variable(&'static str),
    /// A setting of `tradewind`, as file and line.
    Setting(String),
    /// A whole file.
    File(PathBuf),
    /// A line of a file.
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A line of a profile.
    Profile {
        /// The profile's name.
        name: String,
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The host name of the endpoint.
    Host(String),
}

impl Origin {
    /// The location to correct: a variable, a flag, or `file:line`.
    #[must_use]
    pub fn location(&self) -> String {
        match self {
            Self::Line { path, line } | Self::Profile { path, line, .. } => {
                format!("{}:{line}", path.display())
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Origin {
    /// Writes text that follows the word "from".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::Setting(location) => f.write_str(location),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Line { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Profile { name, path, line } => write!(f, "profile {name} in {}:{line}", path.display()),
            Self::Host(host) => write!(f, "the endpoint's host {host}"),
        }
    }
}

/// A value and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced<T> {
    /// The value.
    pub value: T,
    /// Its origin.
    pub origin: Origin,
}

impl<T> Traced<T> {
    pub(super) const fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// Maps the value. An error becomes a problem with the value's origin.
    pub(super) fn parse<U>(self, change: impl FnOnce(T) -> Result<U, String>) -> Result<Traced<U>, Problem> {
        match change(self.value) {
            Ok(value) => Ok(Traced { value, origin: self.origin }),
            Err(message) => Err(Problem { origin: self.origin, message }),
        }
    }
}

/// A problem, its origin and the remedy, in one line. Contains no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The origin of the value.
    pub origin: Origin,
    /// The problem and the remedy.
    pub message: String,
}

impl Problem {
    pub(super) fn new(origin: Origin, message: impl Into<String>) -> Self {
        Self { origin, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin.location(), self.message)
    }
}

impl std::error::Error for Problem {}
