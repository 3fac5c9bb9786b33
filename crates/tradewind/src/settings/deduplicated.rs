//! The layer `deduplicated`: which objects are stored in chunks, and how often unused chunks are deleted.

use std::fmt;
use std::time::Duration;

use tradewind_core::quantity::{ByteSize, TimeSpan};
use tradewind_layers::deduplicated::{
    DEFAULT_MIN_OBJECT_BYTES, DeduplicationPolicy, MAX_MIN_OBJECT_BYTES, MIN_MIN_OBJECT_BYTES,
};

use super::StoreKind;
use super::fields::Fields;
use super::problem::Problems;
use super::reference::Declaration;
use super::source::{SettingSource, Sourced};
use super::transformed::ClassChoice;

/// A `{ deduplicated = { ... } }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeduplicatedSettings {
    /// Origin of the layer.
    pub source: SettingSource,
    /// Classes to deduplicate.
    pub classes: ClassChoice,
    /// Smaller objects are stored as they are.
    pub min_size: Sourced<ByteSize>,
    /// The time between two deletions of unused chunks; 0 is never.
    pub collect_every: Sourced<TimeSpan>,
}

const DEFAULT_MIN_SIZE: ByteSize = ByteSize(DEFAULT_MIN_OBJECT_BYTES);
const DEFAULT_COLLECT_EVERY: TimeSpan = TimeSpan(Duration::from_hours(24));

impl DeduplicatedSettings {
    pub(super) const EXAMPLE: &str = "{ deduplicated = { classes = true } }";

    pub(super) fn read(
        volume: &str,
        source: SettingSource,
        mut fields: Fields,
        problems: &mut Problems,
    ) -> Option<Self> {
        fn or_default<T>(set: Option<Sourced<T>>, default: T) -> Sourced<T> {
            set.unwrap_or(Sourced { value: default, source: SettingSource::Default })
        }
        let path = format!("volume.{volume}.deduplicated");
        let classes = match fields.take("classes") {
            Some(item) => ClassChoice::read(&format!("{path}.classes"), item, problems),
            None => {
                fields.missing("classes", "true", problems);
                None
            }
        };
        let min_size: Sourced<ByteSize> = or_default(fields.single("min_size", problems), DEFAULT_MIN_SIZE);
        let collect_every = or_default(fields.single("collect_every", problems), DEFAULT_COLLECT_EVERY);
        fields.finish(&[], problems);
        if !(MIN_MIN_OBJECT_BYTES..=MAX_MIN_OBJECT_BYTES).contains(&min_size.value.0) {
            problems.add(&min_size.source, format!("{path}.min_size must be 16KiB to 1MiB"));
        }
        Some(Self { source, classes: classes?, min_size, collect_every })
    }

    /// The policy of the layer.
    #[must_use]
    pub fn policy(&self) -> DeduplicationPolicy {
        DeduplicationPolicy { classes: self.classes.set(), min_bytes: self.min_size.value.0 }
    }

    /// Rejects the layer over a store that cannot report the size and ETag of the object.
    pub(super) fn check_store(&self, volume: &str, kind: &StoreKind, problems: &mut Problems) {
        let service = match kind {
            StoreKind::Local { .. } => return,
            StoreKind::S3(_) => "an S3 service",
            StoreKind::Swift(_) => "a Swift service",
        };
        let message = format!(
            "volume.{volume}.deduplicated: {service} lists the size and ETag of the stored bytes, not those of the \
             object; use deduplicated over a local store only"
        );
        problems.add(&self.source, message);
    }

    /// The declarations, with the defaults.
    pub(super) fn declarations() -> Vec<Declaration> {
        let declared =
            |key, default: Option<String>, text| Declaration { key, default: default.map(Into::into), text };
        vec![
            declared(
                "classes",
                None,
                "The classes of objects to deduplicate: `true`, `false` or a list such as `[0, 25]`, where 0 is that of \
                 objects without a class. Required.",
            ),
            declared(
                "min_size",
                Some(DEFAULT_MIN_SIZE.to_string()),
                "Smaller objects and parts are stored as they are, 16KiB to 1MiB.",
            ),
            declared(
                "collect_every",
                Some(DEFAULT_COLLECT_EVERY.to_string()),
                "The time between two deletions of chunks that no object needs any more; `0` deletes none.",
            ),
        ]
    }
}

/// Formats the layer in the syntax of a settings file.
impl fmt::Display for DeduplicatedSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{{ deduplicated = {{ classes = {}, min_size = \"{}\", collect_every = \"{}\" }} }}",
            self.classes, self.min_size.value, self.collect_every.value
        )
    }
}
