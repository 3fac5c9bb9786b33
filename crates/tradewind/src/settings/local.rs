//! What can be set about a store of type `local`. Each is declared once here; what is not set keeps the
//! store's own default.

use std::num::NonZeroUsize;

use super::fields::Fields;
use super::problem::Problems;
use super::source::{Source, Sourced};
use super::value::{Percent, Value};
use tradewind_core::quantity::{ByteSize, Span};

macro_rules! options {
    ($($(#[$doc:meta])* $key:ident: $value:ty,)*) => {
        /// Options of a local store; none where its default holds.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct LocalOptions { $($(#[$doc])* pub $key: Option<Sourced<$value>>,)* }

        impl LocalOptions {
            pub(super) fn read(fields: &mut Fields, problems: &mut Problems) -> Self {
                Self { $($key: fields.single::<$value>(stringify!($key), problems),)* }
            }

            /// What is set: name, value as text, and source.
            pub(super) fn lines(&self) -> Vec<(&'static str, String, Source)> {
                let mut lines = Vec::new();
                $(lines.extend(self.$key.as_ref().map(|set| {
                    (stringify!($key), set.value.show(), set.source.clone())
                }));)*
                lines
            }
        }
    };
}

options! {
    /// A segment takes no further records from this size on.
    segment_size: ByteSize,
    /// Objects up to this size lie in the log itself.
    inline_size: ByteSize,
    /// The index is made durable after this much log.
    checkpoint_size: ByteSize,
    /// Free space below which writes are refused.
    reserve: ByteSize,
    /// Threads for file work.
    io_threads: NonZeroUsize,
    /// Threads for MD5.
    hash_threads: NonZeroUsize,
    /// A segment with a smaller live share is compacted; the share grows where space is short.
    compact_below: Percent,
    /// Bytes a second that compaction writes at the most, unless writes are about to be refused.
    compact_rate: ByteSize,
    /// How often compaction is considered.
    compact_interval: Span,
}

impl LocalOptions {
    /// Refuses what the store could not work with.
    pub(super) fn check(&self, store: &str, problems: &mut Problems) {
        let sizes = [
            ("segment_size", &self.segment_size, 64 << 10, 2 << 30),
            ("inline_size", &self.inline_size, 0, 512 << 10),
            ("checkpoint_size", &self.checkpoint_size, 64 << 10, 1 << 40),
            ("compact_rate", &self.compact_rate, 64 << 10, 1 << 40),
        ];
        for (name, size, least, most) in sizes {
            if let Some(Sourced { value: ByteSize(bytes), source }) = size
                && !(least..=most).contains(bytes)
            {
                let (least, most) = (ByteSize(least), ByteSize(most));
                problems.add(source, format!("store.{store}.{name} must be within {least} and {most}"));
            }
        }
        for (name, count) in [("io_threads", &self.io_threads), ("hash_threads", &self.hash_threads)] {
            if let Some(Sourced { value, source }) = count
                && value.get() > 256
            {
                problems.add(source, format!("store.{store}.{name} must be at most 256"));
            }
        }
        if let Some(Sourced { value, source }) = &self.compact_interval
            && value.0.is_zero()
        {
            problems.add(source, format!("store.{store}.compact_interval must be longer than 0"));
        }
    }
}
