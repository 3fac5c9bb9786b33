//! The settings of a store of type `swift`. Credentials come from the usual configuration of Swift clients; the
//! settings file never contains them.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::Inputs;
use super::fields::Fields;
use super::problem::Problems;
use super::source::{SettingSource, Sourced};
use super::value::{SettingValue, StoreProxy};
use tradewind_core::quantity::ByteSize;

/// A `[store.NAME]` of type `swift`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwiftSettings {
    /// A file that sets `ST_*` or `OS_*` variables, used instead of those of the process.
    pub openrc: Option<Sourced<PathBuf>>,
    /// Region in the catalog of Keystone.
    pub region: Option<Sourced<String>>,
    /// URL of the account, used instead of the one issued with the token.
    pub storage_url: Option<Sourced<String>>,
    /// The proxy of this store and of the service that issues tokens.
    pub proxy: Option<Sourced<StoreProxy>>,
    /// Maximum number of connections.
    pub max_connections: Option<Sourced<NonZeroUsize>>,
    /// Segment size of large objects; larger objects are split.
    pub segment_size: Option<Sourced<ByteSize>>,
}

impl SwiftSettings {
    pub(super) fn read(fields: &mut Fields, inputs: &Inputs, problems: &mut Problems) -> Self {
        let openrc = fields.single::<PathBuf>("openrc", problems).map(|set| {
            let value = inputs.file_directory().into_iter().fold(set.value, PathBuf::relative_to);
            Sourced { value, source: set.source }
        });
        Self {
            openrc,
            region: fields.text("region", problems),
            storage_url: fields.text("storage_url", problems),
            proxy: fields.single("proxy", problems),
            max_connections: fields.single("max_connections", problems),
            segment_size: fields.single("segment_size", problems),
        }
    }

    /// True if both are of one account, as far as the settings tell.
    pub(super) fn is_same_account(&self, other: &Self) -> bool {
        fn value<T>(set: &Option<Sourced<T>>) -> Option<&T> {
            set.as_ref().map(|set| &set.value)
        }
        match (value(&self.storage_url), value(&other.storage_url)) {
            (Some(one), Some(other)) => one.trim_end_matches('/') == other.trim_end_matches('/'),
            (None, None) => {
                value(&self.openrc) == value(&other.openrc) && value(&self.region) == value(&other.region)
            }
            _ => false,
        }
    }

    /// Checks the segment size against the limits of Swift.
    pub(super) fn check(&self, name: &str, problems: &mut Problems) {
        if let Some(size) = &self.segment_size
            && !(1 << 20..=5 << 30).contains(&size.value.0)
        {
            let message =
                format!("store.{name}.segment_size must be 1MiB to 5GiB, the object size limit of Swift");
            problems.add(&size.source, message);
        }
    }

    /// Name, value as text, and source of every setting that is set.
    pub(super) fn lines(&self) -> Vec<(&'static str, String, SettingSource)> {
        fn line<T: SettingValue>(
            name: &'static str,
            set: Option<&Sourced<T>>,
        ) -> Option<(&'static str, String, SettingSource)> {
            set.map(|set| (name, set.value.to_text(), set.source.clone()))
        }
        let lines = [
            line("openrc", self.openrc.as_ref()),
            line("region", self.region.as_ref()),
            line("storage_url", self.storage_url.as_ref()),
            line("proxy", self.proxy.as_ref()),
            line("max_connections", self.max_connections.as_ref()),
            line("segment_size", self.segment_size.as_ref()),
        ];
        lines.into_iter().flatten().collect()
    }
}
