//! The layer `cached`: a cache in memory and on a fast disk, and the journal of write-back.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tradewind_cache::{
    DEFAULT_MAX_COMPARISON_WAIT, DEFAULT_VERIFY_BYTES_PER_SECOND, Eviction, MAX_SSD_BYTES,
};
use tradewind_core::quantity::{ByteSize, TimeSpan};

use super::Inputs;
use super::fields::Fields;
use super::problem::Problems;
use super::reference::Declaration;
use super::source::{SettingSource, Sourced};
use super::value::SettingValue;

/// A `{ cached = { ... } }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedSettings {
    /// Directory of the cache on the fast disk.
    pub disk: Sourced<PathBuf>,
    /// Size of the cache in that directory.
    pub size: Sourced<ByteSize>,
    /// Size of the cache in memory.
    pub memory: Sourced<ByteSize>,
    /// When cached data is compared with the store below.
    pub validate: Sourced<Validate>,
    /// The time for which a read waits for a comparison that it can do without.
    pub comparison_wait: Sourced<TimeSpan>,
    /// The age up to which data that must be compared is served while the store below does not respond.
    pub stale_if_unavailable: Option<Sourced<TimeSpan>>,
    /// The eviction policy.
    pub policy: Sourced<Eviction>,
    /// Bytes of the cache on the fast disk that are verified per second; 0 for none.
    pub verify_rate: Sourced<ByteSize>,
    /// The limit of bytes that reads write to the fast disk per second.
    pub max_write_rate: Option<Sourced<ByteSize>>,
    /// The event that completes a write.
    pub write: Sourced<CacheWrite>,
    /// Write-back: the writes that may fill the journal.
    pub write_admission: Sourced<WriteAdmissionBy>,
    /// Write-back: the limit of data that only the journal has.
    pub max_dirty: Sourced<ByteSize>,
    /// Write-back: directory of the journal on the fast disk. See [`Self::journal_directory`].
    pub journal: Option<Sourced<PathBuf>>,
    /// Write-back: no other server writes the store below.
    pub sole_writer: Sourced<bool>,
}

/// When cached data is compared with the store below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validate {
    /// Never over a local store, which no other process writes; at each read over a service.
    Auto,
    /// Never: nothing else writes the store below.
    Never,
    /// At each read.
    Always,
    /// At a read after this time since the last comparison. Longer than 0.
    After(TimeSpan),
}

/// The event that completes a write to a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheWrite {
    /// The write to the store below: the cache has no data that the store does not have.
    Through,
    /// The write to the journal.
    Back,
    /// None: changes are rejected.
    ReadOnly,
}

/// The order in which writes may fill the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAdmissionBy {
    /// The priority of their class; without a label, their size.
    Class,
    /// None: each enters while there is room.
    Room,
}

const MIN_CACHE_SIZE: ByteSize = ByteSize(64 << 20);
const MAX_CACHE_SIZE: ByteSize = ByteSize(MAX_SSD_BYTES);
const MIN_CACHE_MEMORY: ByteSize = ByteSize(1 << 20);
const DEFAULT_CACHE_MEMORY: ByteSize = ByteSize(64 << 20);
const DEFAULT_VERIFY_RATE: ByteSize = ByteSize(DEFAULT_VERIFY_BYTES_PER_SECOND);
const MIN_MAX_WRITE_RATE: ByteSize = ByteSize(64 << 10);
/// A shorter wait would take a service for unavailable that responds.
const MIN_COMPARISON_WAIT: Duration = Duration::from_millis(100);
const MIN_MAX_DIRTY: ByteSize = ByteSize(64 << 20);
const DEFAULT_MAX_DIRTY: ByteSize = ByteSize(1 << 30);

impl SettingValue for Validate {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "never" => return Ok(Self::Never),
            "always" => return Ok(Self::Always),
            _ => {}
        }
        match TimeSpan::parse(text) {
            Ok(time) if time.0.is_zero() => {
                Err("to validate at each read, write \"always\" instead of 0".to_owned())
            }
            Ok(time) => Ok(Self::After(time)),
            Err(why) => Err(format!("{why}, or \"always\", \"never\" or \"auto\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Never => "never".to_owned(),
            Self::Always => "always".to_owned(),
            Self::After(time) => time.to_string(),
        }
    }
}

impl SettingValue for CacheWrite {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "through" => Ok(Self::Through),
            "back" => Ok(Self::Back),
            "read-only" => Ok(Self::ReadOnly),
            _ => Err(format!("{text:?} is none of \"through\", \"back\" and \"read-only\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Through => "through".to_owned(),
            Self::Back => "back".to_owned(),
            Self::ReadOnly => "read-only".to_owned(),
        }
    }
}

impl SettingValue for Eviction {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "adaptive-window" => Ok(Self::AdaptiveWindow),
            "lru" => Ok(Self::Lru),
            "s3-fifo" => Ok(Self::S3Fifo),
            _ => Err(format!("{text:?} is none of \"adaptive-window\", \"lru\" and \"s3-fifo\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::AdaptiveWindow => "adaptive-window".to_owned(),
            Self::Lru => "lru".to_owned(),
            Self::S3Fifo => "s3-fifo".to_owned(),
        }
    }
}

impl SettingValue for WriteAdmissionBy {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "class" => Ok(Self::Class),
            "room" => Ok(Self::Room),
            _ => Err(format!("{text:?} is neither \"class\" nor \"room\"")),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Class => "class".to_owned(),
            Self::Room => "room".to_owned(),
        }
    }
}

impl CachedSettings {
    pub(super) const EXAMPLE: &str = "{ cached = { disk = \"/ssd/cache\", size = \"1GiB\" } }";

    pub(super) fn read(mut fields: Fields, inputs: &Inputs, problems: &mut Problems) -> Option<Self> {
        fn or_default<T>(set: Option<Sourced<T>>, default: T) -> Sourced<T> {
            set.unwrap_or(Sourced { value: default, source: SettingSource::Default })
        }
        let absolute = |set: Sourced<PathBuf>| {
            let value = inputs.file_directory().into_iter().fold(set.value, PathBuf::relative_to);
            Sourced { value, source: set.source }
        };
        let disk = fields.single::<PathBuf>("disk", problems).map(absolute);
        let size = fields.single("size", problems);
        let memory = fields.single("memory", problems);
        let validate = fields.single("validate", problems);
        let comparison_wait = fields.single("comparison_wait", problems);
        let stale_if_unavailable = fields.single("stale_if_unavailable", problems);
        let policy = fields.single("policy", problems);
        let verify_rate = fields.single("verify_rate", problems);
        let max_write_rate = fields.single("max_write_rate", problems);
        let write = fields.single("write", problems);
        let write_admission = fields.single("write_admission", problems);
        let max_dirty = fields.single("max_dirty", problems);
        let journal = fields.single::<PathBuf>("journal", problems).map(absolute);
        let sole_writer = fields.boolean("sole_writer", problems);
        for (key, is_given, example) in [
            ("disk", fields.has_taken("disk"), "\"/ssd/cache\""),
            ("size", fields.has_taken("size"), "\"1GiB\""),
        ] {
            if !is_given {
                fields.missing(key, example, problems);
            }
        }
        fields.finish(&[], problems);
        Some(Self {
            disk: disk?,
            size: size?,
            memory: or_default(memory, DEFAULT_CACHE_MEMORY),
            validate: or_default(validate, Validate::Auto),
            comparison_wait: or_default(comparison_wait, TimeSpan(DEFAULT_MAX_COMPARISON_WAIT)),
            stale_if_unavailable,
            policy: or_default(policy, Eviction::default()),
            verify_rate: or_default(verify_rate, DEFAULT_VERIFY_RATE),
            max_write_rate,
            write: or_default(write, CacheWrite::Through),
            write_admission: or_default(write_admission, WriteAdmissionBy::Class),
            max_dirty: or_default(max_dirty, DEFAULT_MAX_DIRTY),
            journal,
            sole_writer: or_default(sole_writer, false),
        })
    }

    /// True if a write is complete when it is in the journal.
    #[must_use]
    pub fn writes_back(&self) -> bool {
        self.write.value == CacheWrite::Back
    }

    /// True if changes are rejected.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.write.value == CacheWrite::ReadOnly
    }

    /// The directory of the journal: beside that of the cache, unless it is set.
    #[must_use]
    pub fn journal_directory(&self) -> PathBuf {
        self.journal.as_ref().map_or_else(
            || {
                let mut path = self.disk.value.clone().into_os_string();
                path.push("-journal");
                path.into()
            },
            |set| set.value.clone(),
        )
    }

    /// Checks the values.
    pub(super) fn check(&self, volume: &str, problems: &mut Problems) {
        for (key, set, min) in
            [("size", &self.size, MIN_CACHE_SIZE), ("memory", &self.memory, MIN_CACHE_MEMORY)]
        {
            if set.value < min {
                problems.add(&set.source, format!("volume.{volume}.cached.{key} must be at least {min}"));
            }
        }
        if self.size.value > MAX_CACHE_SIZE {
            let message = format!(
                "volume.{volume}.cached.size must be at most {MAX_CACHE_SIZE}, which the index of a cache can hold"
            );
            problems.add(&self.size.source, message);
        }
        if let Some(rate) = &self.max_write_rate
            && rate.value < MIN_MAX_WRITE_RATE
        {
            let message =
                format!("volume.{volume}.cached.max_write_rate must be at least {MIN_MAX_WRITE_RATE}");
            problems.add(&rate.source, message);
        }
        if self.comparison_wait.value.0 < MIN_COMPARISON_WAIT {
            let message = format!(
                "volume.{volume}.cached.comparison_wait must be at least {}",
                TimeSpan(MIN_COMPARISON_WAIT).to_text()
            );
            problems.add(&self.comparison_wait.source, message);
        }
        if self.max_dirty.value < MIN_MAX_DIRTY {
            let message = format!("volume.{volume}.cached.max_dirty must be at least {MIN_MAX_DIRTY}");
            problems.add(&self.max_dirty.source, message);
        }
    }

    /// The declarations, with the defaults.
    pub(super) fn declarations() -> Vec<Declaration> {
        let declared =
            |key, default: Option<String>, text| Declaration { key, default: default.map(Into::into), text };
        vec![
            declared("disk", None, "Directory of the cache on a fast disk. Required."),
            declared("size", None, "Size of the cache in that directory, 64MiB to 7TiB. Required."),
            declared(
                "memory",
                Some(DEFAULT_CACHE_MEMORY.to_string()),
                "Size of the cache in memory, at least 1MiB. A part of `memory.budget`.",
            ),
            declared(
                "validate",
                Some(Validate::Auto.to_text()),
                "When cached data is compared with the store below: `always`, at each read; a time such as `60s`, at \
                 the first read after that time, until which a change made elsewhere is not seen; `never`, if nothing \
                 else writes the store; `auto`, `never` over a local store and `always` over a service.",
            ),
            declared(
                "comparison_wait",
                Some(TimeSpan(DEFAULT_MAX_COMPARISON_WAIT).to_text()),
                "With `write = \"back\"` or `validate = \"never\"`: the time for which a read waits for a comparison. If the \
                 store below does not respond, cached data that was compared since the start is served without one.",
            ),
            declared(
                "stale_if_unavailable",
                None,
                "With `validate = \"always\"` or a time: while the store below does not respond, cached data that was compared \
                 since the start, and less than this time ago, is served without a comparison. Default: reads fail with 503.",
            ),
            declared(
                "policy",
                Some(Eviction::default().to_text()),
                "The eviction policy of memory and disk. `lru` and `s3-fifo` are baselines for comparison: they ignore \
                 priority, occupancy and pins of classes, and pins of prefixes.",
            ),
            declared(
                "verify_rate",
                Some(DEFAULT_VERIFY_RATE.to_string()),
                "Bytes of the cache on the fast disk that are read and verified per second, while that disk is idle. With \
                 the default, 100GiB take about a week. 0 turns it off.",
            ),
            declared(
                "max_write_rate",
                None,
                "Limit of the bytes per second that reads write to the fast disk on average, at least 64KiB. Bursts of five \
                 minutes are allowed. What exceeds it is cached in memory only, unless it is missed a second time. \
                 Default: no limit.",
            ),
            declared(
                "write",
                Some(CacheWrite::Through.to_text()),
                "`through`: a write waits for the store below. `back`: it waits for the journal, and the store below gets it \
                 later. Then nothing else may write that store. `read-only`: writes and all other changes are rejected with 403.",
            ),
            declared(
                "write_admission",
                Some(WriteAdmissionBy::Class.to_text()),
                "With `write = \"back\"`: the writes that may fill the journal. `class`: the fuller it is, the higher the priority \
                 that a write needs, among those that arrive; without a label, small objects come first. `room`: all, \
                 while there is room, and the oldest are written back first.",
            ),
            declared(
                "max_dirty",
                Some(DEFAULT_MAX_DIRTY.to_string()),
                "With `write = \"back\"`: the limit of data that only the journal has, at least 64MiB. Beyond it, and for \
                 objects larger than an eighth of it, writes wait for the store below.",
            ),
            declared(
                "journal",
                None,
                "With `write = \"back\"`: directory of the journal on a fast disk. Default: `disk` with `-journal` appended.",
            ),
            declared(
                "sole_writer",
                Some("false".to_owned()),
                "`true` confirms that no other server writes the store below. Required for `write = \"back\"` over a \
                 service without conditional writes, which cannot detect it.",
            ),
        ]
    }
}

/// Formats the layer in the syntax of a settings file, with its defaults.
impl fmt::Display for CachedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{ cached = {{ disk = {:?}, size = {:?}, memory = {:?}, validate = {:?}, write = {:?}",
            self.disk.value.to_text(),
            self.size.value.to_text(),
            self.memory.value.to_text(),
            self.validate.value.to_text(),
            self.write.value.to_text(),
        )?;
        if self.comparison_wait.value.0 != DEFAULT_MAX_COMPARISON_WAIT {
            write!(f, ", comparison_wait = {:?}", self.comparison_wait.value.to_text())?;
        }
        if let Some(age) = &self.stale_if_unavailable {
            write!(f, ", stale_if_unavailable = {:?}", age.value.to_text())?;
        }
        if self.policy.value != Eviction::default() {
            write!(f, ", policy = {:?}", self.policy.value.to_text())?;
        }
        if self.verify_rate.value != DEFAULT_VERIFY_RATE {
            write!(f, ", verify_rate = {:?}", self.verify_rate.value.to_text())?;
        }
        if let Some(rate) = &self.max_write_rate {
            write!(f, ", max_write_rate = {:?}", rate.value.to_text())?;
        }
        if self.write_admission.value != WriteAdmissionBy::Class {
            write!(f, ", write_admission = {:?}", self.write_admission.value.to_text())?;
        }
        if self.writes_back() || self.max_dirty.value != DEFAULT_MAX_DIRTY {
            write!(f, ", max_dirty = {:?}", self.max_dirty.value.to_text())?;
        }
        if self.writes_back() || self.journal.is_some() {
            write!(f, ", journal = {:?}", self.journal_directory().to_text())?;
        }
        if self.sole_writer.value {
            f.write_str(", sole_writer = true")?;
        }
        f.write_str(" } }")
    }
}
