//! Forms of access: what an application tells the kernel when it opens a file (Ou 2015, section IV-A). They differ in which
//! caches lie between a call and the storage.

use std::fmt;
use std::str::FromStr;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// What a direct access must be a multiple of, in memory, in the file and in length. It is that of every disk that is usual.
pub const ALIGNMENT: u64 = 4096;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// `O_DIRECT`: past the page cache.
    Direct,
    /// `O_SYNC`: a write returns when it is durable. Reads are as by default.
    Sync,
    /// Neither: through the page cache.
    Default,
}

impl Form {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Self; 3] = [Self::Direct, Self::Sync, Self::Default];

    /// What is added to the flags of opening.
    #[must_use]
    pub const fn flags(self) -> OFlags {
        match self {
            Self::Direct => OFlags::DIRECT,
            Self::Sync => OFlags::SYNC,
            Self::Default => OFlags::empty(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Sync => "sync",
            Self::Default => "default",
        }
    }

    /// Whether files of a size can be accessed so, in pieces of a size.
    #[must_use]
    pub const fn takes(self, size: u64, unit: u64) -> bool {
        !matches!(self, Self::Direct)
            || (size.is_multiple_of(ALIGNMENT) && (unit >= size || unit.is_multiple_of(ALIGNMENT)))
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|form| form.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of direct, sync and default"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_read_back_and_know_what_they_take() {
        for form in Form::ALL {
            assert_eq!(form.to_string().parse(), Ok(form));
        }
        assert!("odirect".parse::<Form>().is_err());
        assert!(Form::Direct.takes(8192, 4096) && Form::Direct.takes(4096, 1 << 20));
        assert!(!Form::Direct.takes(8192, 1000) && !Form::Direct.takes(1000, 1000));
        assert!(Form::Sync.takes(1000, 100) && Form::Default.takes(1, 1));
    }
}
