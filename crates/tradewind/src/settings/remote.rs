//! What is set about a store that speaks S3 with a service. What is not set is found where S3 users have it: keys are
//! never in this file.

use super::fields::Fields;
use super::problem::Problems;
use super::source::{Source, Sourced};
use super::value::Value;
use std::num::NonZeroUsize;
use tradewind_core::quantity::ByteSize;

/// A `[store.NAME]` of type `s3`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Settings {
    /// Where it answers.
    pub endpoint: Option<Sourced<String>>,
    /// Its region.
    pub region: Option<Sourced<String>>,
    /// The profile in `~/.aws` that has its keys.
    pub profile: Option<Sourced<String>>,
    /// The most connections.
    pub connections: Option<Sourced<NonZeroUsize>>,
    /// The size of the parts that writes of unknown size are sent in.
    pub part_size: Option<Sourced<ByteSize>>,
}

impl S3Settings {
    pub(super) fn read(fields: &mut Fields, problems: &mut Problems) -> Self {
        Self {
            endpoint: fields.text("endpoint", problems),
            region: fields.text("region", problems),
            profile: fields.text("profile", problems),
            connections: fields.single("connections", problems),
            part_size: fields.single("part_size", problems),
        }
    }

    /// Parts within S3's limits.
    pub(super) fn check(&self, name: &str, problems: &mut Problems) {
        if let Some(size) = &self.part_size
            && !(5 << 20..=5 << 30).contains(&size.value.0)
        {
            let message = format!("store.{name}.part_size must be 5MiB to 5GiB: S3 takes no other parts");
            problems.add(&size.source, message);
        }
    }

    /// What is set, as text.
    pub(super) fn lines(&self) -> Vec<(&'static str, String, Source)> {
        let texts = [("endpoint", &self.endpoint), ("region", &self.region), ("profile", &self.profile)];
        let texts = texts
            .into_iter()
            .filter_map(|(name, set)| set.as_ref().map(|set| (name, set.value.clone(), set.source.clone())));
        let connections =
            self.connections.iter().map(|set| ("connections", set.value.show(), set.source.clone()));
        let parts = self.part_size.iter().map(|set| ("part_size", set.value.show(), set.source.clone()));
        texts.chain(connections).chain(parts).collect()
    }
}
