//! The settings of a store of type `s3`. Credentials, and other values not set here, come from the usual configuration
//! of S3 clients; the settings file never contains them.

use super::fields::Fields;
use super::problem::Problems;
use super::source::{SettingSource, Sourced};
use super::value::{SettingValue, StoreProxy};
use std::num::NonZeroUsize;
use tradewind_core::quantity::ByteSize;

/// A `[store.NAME]` of type `s3`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Settings {
    /// URL of the service.
    pub endpoint: Option<Sourced<String>>,
    /// Region.
    pub region: Option<Sourced<String>>,
    /// Profile in `~/.aws` with its credentials.
    pub profile: Option<Sourced<String>>,
    /// The proxy of this store.
    pub proxy: Option<Sourced<StoreProxy>>,
    /// Maximum number of connections.
    pub max_connections: Option<Sourced<NonZeroUsize>>,
    /// Part size of writes of unknown length.
    pub part_size: Option<Sourced<ByteSize>>,
}

impl S3Settings {
    pub(super) fn read(fields: &mut Fields, problems: &mut Problems) -> Self {
        Self {
            endpoint: fields.text("endpoint", problems),
            region: fields.text("region", problems),
            profile: fields.text("profile", problems),
            proxy: fields.single("proxy", problems),
            max_connections: fields.single("max_connections", problems),
            part_size: fields.single("part_size", problems),
        }
    }

    /// Checks the part size against the limits of S3.
    pub(super) fn check(&self, name: &str, problems: &mut Problems) {
        if let Some(size) = &self.part_size
            && !(5 << 20..=5 << 30).contains(&size.value.0)
        {
            let message = format!("store.{name}.part_size must be 5MiB to 5GiB, the part sizes of S3");
            problems.add(&size.source, message);
        }
    }

    /// Name, value as text, and source of every setting that is set.
    pub(super) fn lines(&self) -> Vec<(&'static str, String, SettingSource)> {
        let texts = [("endpoint", &self.endpoint), ("region", &self.region), ("profile", &self.profile)];
        let texts = texts
            .into_iter()
            .filter_map(|(name, set)| set.as_ref().map(|set| (name, set.value.clone(), set.source.clone())));
        let proxy = self.proxy.iter().map(|set| ("proxy", set.value.to_text(), set.source.clone()));
        let connections = self
            .max_connections
            .iter()
            .map(|set| ("max_connections", set.value.to_text(), set.source.clone()));
        let parts = self.part_size.iter().map(|set| ("part_size", set.value.to_text(), set.source.clone()));
        texts.chain(proxy).chain(connections).chain(parts).collect()
    }
}
