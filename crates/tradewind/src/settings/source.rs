//! The source of a setting. Every value has one, so that `settings show` and messages can name it.

use std::fmt;
use std::path::PathBuf;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingSource {
    /// Not set; the default applies.
    Default,
    /// A line of the settings file.
    File {
        /// The path of the file, as given.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag of the command line.
    Flag(&'static str),
    /// A call of the admin API.
    AdminApi,
}

impl SettingSource {
    /// The kind of source, as used in JSON.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::Environment(_) => "environment",
            Self::Flag(_) => "flag",
            Self::AdminApi => "admin-api",
        }
    }
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
            Self::AdminApi => f.write_str("admin API"),
        }
    }
}

/// A value and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The source.
    pub source: SettingSource,
}
