//! Where a value came from and what is wrong with one. Values are traced because people who wonder why a request goes
//! where it goes ask first which of five places said so. What a value says is never part of this: it may be a secret.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A flag of the command line.
    Flag(&'static str),
    /// An environment variable.
    Variable(&'static str),
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
    /// The name of the endpoint's host.
    Host(String),
}

impl Origin {
    /// Where to look: a variable, a flag, or `file:line`.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Line { path, line } | Self::Profile { path, line, .. } => {
                format!("{}:{line}", path.display())
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Origin {
    /// What follows the word "from".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Line { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Profile { name, path, line } => write!(f, "profile {name} in {}:{line}", path.display()),
            Self::Host(host) => write!(f, "the endpoint's host {host}"),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub origin: Origin,
}

impl<T> Traced<T> {
    pub(super) const fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    /// The same with what `change` makes of the value; where it refuses, the problem stands where the value does.
    pub(super) fn read<U>(self, change: impl FnOnce(T) -> Result<U, String>) -> Result<Traced<U>, Problem> {
        match change(self.value) {
            Ok(value) => Ok(Traced { value, origin: self.origin }),
            Err(message) => Err(Problem { origin: self.origin, message }),
        }
    }
}

/// What is wrong, where, and what to do, in one line. Holds no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands.
    pub origin: Origin,
    /// What is wrong and what to do.
    pub message: String,
}

impl Problem {
    pub(super) fn new(origin: Origin, message: impl Into<String>) -> Self {
        Self { origin, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin.place(), self.message)
    }
}

impl std::error::Error for Problem {}
