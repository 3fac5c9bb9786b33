//! Access forms: the flags with which an application opens a file (Ou 2015, section IV-A). They differ in the caches
//! between a call and the storage.

use std::fmt;
use std::str::FromStr;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// Alignment of direct access, in bytes: of the buffer address, the file offset and the length. Suits all common disks.
pub const DIRECT_ALIGNMENT_BYTES: u64 = 4096;

/// The access form with which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessForm {
    /// `O_DIRECT`: bypasses the page cache.
    Direct,
    /// `O_SYNC`: a write returns when it is durable. Reads behave like `Default`.
    Sync,
    /// Neither flag: through the page cache.
    Default,
}

impl AccessForm {
    /// All forms, in the order in which they are measured.
    pub const ALL: [Self; 3] = [Self::Direct, Self::Sync, Self::Default];

    /// The additional flags of `open`.
    #[must_use]
    pub const fn open_flags(self) -> OFlags {
        match self {
            Self::Direct => OFlags::DIRECT,
            Self::Sync => OFlags::SYNC,
            Self::Default => OFlags::empty(),
        }
    }

    /// The name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Sync => "sync",
            Self::Default => "default",
        }
    }

    /// Returns true if files of `size` bytes can be accessed in units of `unit` bytes.
    #[must_use]
    pub const fn supports(self, size: u64, unit: u64) -> bool {
        !matches!(self, Self::Direct)
            || (size.is_multiple_of(DIRECT_ALIGNMENT_BYTES)
                && (unit >= size || unit.is_multiple_of(DIRECT_ALIGNMENT_BYTES)))
    }
}

impl fmt::Display for AccessForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for AccessForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|form| form.name() == text);
        found.ok_or_else(|| format!("{text:?} must be direct, sync or default"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_round_trip_and_direct_requires_alignment() {
        for form in AccessForm::ALL {
            assert_eq!(form.to_string().parse(), Ok(form));
        }
        assert!("odirect".parse::<AccessForm>().is_err());
        assert!(AccessForm::Direct.supports(8192, 4096) && AccessForm::Direct.supports(4096, 1 << 20));
        assert!(!AccessForm::Direct.supports(8192, 1000) && !AccessForm::Direct.supports(1000, 1000));
        assert!(AccessForm::Sync.supports(1000, 100) && AccessForm::Default.supports(1, 1));
    }
}
