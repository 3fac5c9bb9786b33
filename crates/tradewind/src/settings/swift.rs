//! What is set about a store that speaks Swift's own API with a service. Who asks is found where Swift's users have it:
//! keys are never in this file.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::Inputs;
use super::fields::Fields;
use super::problem::Problems;
use super::source::{Source, Sourced};
use super::value::Value;
use tradewind_core::quantity::ByteSize;

/// A `[store.NAME]` of type `swift`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwiftSettings {
    /// A file that sets `ST_*` or `OS_*` variables, instead of those of the process.
    pub openrc: Option<Sourced<PathBuf>>,
    /// The region of Keystone's catalog.
    pub region: Option<Sourced<String>>,
    /// The account's URL, instead of the one that comes with a token.
    pub storage_url: Option<Sourced<String>>,
    /// The most connections.
    pub connections: Option<Sourced<NonZeroUsize>>,
    /// Larger objects are cut into segments of this size.
    pub segment_size: Option<Sourced<ByteSize>>,
}

impl SwiftSettings {
    pub(super) fn read(fields: &mut Fields, inputs: &Inputs, problems: &mut Problems) -> Self {
        let openrc = fields.single::<PathBuf>("openrc", problems).map(|set| {
            let value = inputs.file_directory().into_iter().fold(set.value, PathBuf::within);
            Sourced { value, source: set.source }
        });
        Self {
            openrc,
            region: fields.text("region", problems),
            storage_url: fields.text("storage_url", problems),
            connections: fields.single("connections", problems),
            segment_size: fields.single("segment_size", problems),
        }
    }

    /// Segments within Swift's limits.
    pub(super) fn check(&self, name: &str, problems: &mut Problems) {
        if let Some(size) = &self.segment_size
            && !(1 << 20..=5 << 30).contains(&size.value.0)
        {
            let message =
                format!("store.{name}.segment_size must be 1MiB to 5GiB: Swift takes no larger objects");
            problems.add(&size.source, message);
        }
    }

    /// What is set, as text.
    pub(super) fn lines(&self) -> Vec<(&'static str, String, Source)> {
        fn line<T: Value>(
            name: &'static str,
            set: Option<&Sourced<T>>,
        ) -> Option<(&'static str, String, Source)> {
            set.map(|set| (name, set.value.show(), set.source.clone()))
        }
        let lines = [
            line("openrc", self.openrc.as_ref()),
            line("region", self.region.as_ref()),
            line("storage_url", self.storage_url.as_ref()),
            line("connections", self.connections.as_ref()),
            line("segment_size", self.segment_size.as_ref()),
        ];
        lines.into_iter().flatten().collect()
    }
}
