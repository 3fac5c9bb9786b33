//! The three kinds of power cut: none, all or a seeded part of the unsynced changes survives.

/// The effect of a power cut on unsynced changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashMode {
    /// All of it is lost.
    DropAll,
    /// All of it is on disk, as if the machine had synced everything at the last moment.
    KeepAll,
    /// A seeded part of it is on disk: writes dropped, torn, reordered; entries in part.
    Random,
}

impl std::str::FromStr for CrashMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "drop-all" => Ok(Self::DropAll),
            "keep-all" => Ok(Self::KeepAll),
            "random" => Ok(Self::Random),
            _ => Err(format!("unknown mode {text:?}: drop-all, keep-all or random")),
        }
    }
}
