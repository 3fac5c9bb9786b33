//! The options of a store of type `local`. Each option is declared once here. An option that is not set has the default
//! of the store, which the declaration names.

use std::num::NonZeroUsize;

use super::fields::Fields;
use super::problem::Problems;
use super::reference::Declaration;
use super::slices::SliceSettings;
use super::source::{SettingSource, Sourced};
use super::value::{Percent, SettingValue};
use tradewind_backend::local::LocalOptions as StoreOptions;
use tradewind_core::quantity::{ByteSize, TimeSpan};

macro_rules! options {
    ($($(#[doc = $doc:literal])* $key:ident: $value:ty = $default:expr,)*) => {
        /// Options of a local store; `None` for the default.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct LocalOptions {
            $($(#[doc = $doc])* pub $key: Option<Sourced<$value>>,)*
            /// The scheduler of a rotating disk.
            pub slices: Option<SliceSettings>,
        }

        impl LocalOptions {
            pub(super) fn read(fields: &mut Fields, problems: &mut Problems) -> Self {
                Self {
                    $($key: fields.single::<$value>(stringify!($key), problems),)*
                    slices: SliceSettings::read(fields, problems),
                }
            }

            /// The declarations, with the defaults of the store.
            pub(super) fn declarations() -> Vec<Declaration> {
                let defaults = StoreOptions::default();
                vec![$({
                    let default: fn(&StoreOptions) -> $value = $default;
                    Declaration {
                        key: stringify!($key),
                        default: Some(default(&defaults).to_text().into()),
                        text: concat!($($doc),*).trim(),
                    }
                },)* SliceSettings::declaration()]
            }

            /// Name, value as text, and source of every option that is set.
            pub(super) fn lines(&self) -> Vec<(&'static str, String, SettingSource)> {
                let mut lines = Vec::new();
                $(lines.extend(self.$key.as_ref().map(|set| {
                    (stringify!($key), set.value.to_text(), set.source.clone())
                }));)*
                lines.extend(self.slices.as_ref().map(SliceSettings::line));
                lines
            }
        }
    };
}

options! {
    /// Size at which a segment is closed to further records, 64KiB to 2GiB.
    segment_size: ByteSize = |options| ByteSize(options.segment_bytes.into()),
    /// Maximum size of an object stored inline in the log, up to 512KiB.
    inline_size: ByteSize = |options| ByteSize(options.inline_bytes as u64),
    /// Log size after which the index is checkpointed, 64KiB to 1TiB.
    checkpoint_size: ByteSize = |options| ByteSize(options.checkpoint_bytes),
    /// Free space below which writes are rejected; at most 1/8 of the device.
    min_free_space: ByteSize = |options| ByteSize(options.reserve_bytes),
    /// Threads for file I/O, up to 256.
    io_threads: NonZeroUsize = |options| count(options.io_threads),
    /// Threads for MD5, up to 256.
    hash_threads: NonZeroUsize = |options| count(options.hash_threads),
    /// Fraction of live data below which a segment is compacted, 0% to 100%. It rises when space is short.
    compact_below: Percent = |options| Percent((options.compact_below_fraction * 100.0).round() as u8),
    /// Maximum bytes per second written by compaction, unless writes are about to be rejected; 64KiB to 1TiB.
    compact_rate: ByteSize = |options| ByteSize(options.compact_bytes_per_second),
    /// Interval between checks for compaction.
    compact_interval: TimeSpan = |options| TimeSpan(options.compact_interval),
}

fn count(threads: usize) -> NonZeroUsize {
    NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN)
}

impl LocalOptions {
    /// Rejects values that the store cannot use.
    pub(super) fn check(&self, store: &str, problems: &mut Problems) {
        let sizes = [
            ("segment_size", &self.segment_size, 64 << 10, 2 << 30),
            ("inline_size", &self.inline_size, 0, 512 << 10),
            ("checkpoint_size", &self.checkpoint_size, 64 << 10, 1 << 40),
            ("compact_rate", &self.compact_rate, 64 << 10, 1 << 40),
        ];
        for (name, size, min, max) in sizes {
            if let Some(Sourced { value: ByteSize(bytes), source }) = size
                && !(min..=max).contains(bytes)
            {
                let (min, max) = (ByteSize(min), ByteSize(max));
                problems.add(source, format!("store.{store}.{name} must be between {min} and {max}"));
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
