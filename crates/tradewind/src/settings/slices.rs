//! `slices` of a local store: the scheduler of a rotating disk.

use std::time::Duration;

use tradewind_core::quantity::{ByteSize, TimeSpan};
use tradewind_model::slices::DiskSpeed;

use super::fields::Fields;
use super::problem::Problems;
use super::reference::Declaration;
use super::source::{SettingSource, Sourced};
use super::value::SettingValue;

const DEFAULT_POSITIONING_TIME: TimeSpan = TimeSpan(Duration::from_millis(12));
const DEFAULT_THROUGHPUT: ByteSize = ByteSize(140_000_000);
const MAX_POSITIONING_TIME: TimeSpan = TimeSpan(Duration::from_millis(100));
const MIN_THROUGHPUT: ByteSize = ByteSize(1_000_000);
const MAX_THROUGHPUT: ByteSize = ByteSize(10_000_000_000);

/// `slices = { ... }` of a local store. An empty table has the defaults, those of a common disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceSettings {
    /// Place in the file.
    pub source: SettingSource,
    /// Mean time until a transfer at another place of the disk begins.
    pub positioning_time: TimeSpan,
    /// Sequential transfer rate per second.
    pub throughput: ByteSize,
}

impl SliceSettings {
    pub(super) fn read(fields: &mut Fields, problems: &mut Problems) -> Option<Self> {
        let Sourced { value: mut fields, source } = fields.nested("slices", problems)?;
        let positioning_time = fields.single::<TimeSpan>("positioning_time", problems);
        let throughput = fields.single::<ByteSize>("throughput", problems);
        let path = fields.path().to_owned();
        fields.finish(&[], problems);
        if let Some(set) =
            positioning_time.as_ref().filter(|set| set.value.0.is_zero() || set.value > MAX_POSITIONING_TIME)
        {
            let message = format!(
                "{path}.positioning_time must be 1ms to {MAX_POSITIONING_TIME}, that of a rotating disk"
            );
            problems.add(&set.source, message);
        }
        if let Some(set) =
            throughput.as_ref().filter(|set| !(MIN_THROUGHPUT..=MAX_THROUGHPUT).contains(&set.value))
        {
            let message =
                format!("{path}.throughput must be {MIN_THROUGHPUT} to {MAX_THROUGHPUT} per second");
            problems.add(&set.source, message);
        }
        Some(Self {
            source,
            positioning_time: positioning_time.map_or(DEFAULT_POSITIONING_TIME, |set| set.value),
            throughput: throughput.map_or(DEFAULT_THROUGHPUT, |set| set.value),
        })
    }

    /// The speed of the disk.
    #[must_use]
    pub const fn disk_speed(&self) -> DiskSpeed {
        DiskSpeed { positioning_time: self.positioning_time.0, bytes_per_second: self.throughput.0 }
    }

    pub(super) fn declaration() -> Declaration {
        let text = "Schedules a rotating disk: `{ positioning_time = \"12ms\", throughput = \"140MB\" }`, its mean \
                    positioning time, 1ms to 100ms, and sequential rate per second. `{}` has these values. Not together \
                    with `lanes`.";
        Declaration { key: "slices", default: None, text }
    }

    /// Name, value as text, and source.
    pub(super) fn line(&self) -> (&'static str, String, SettingSource) {
        let Self { positioning_time, throughput, source } = self;
        let (time, rate) = (positioning_time.to_text(), throughput.to_text());
        let text = format!("{{ positioning_time = {time:?}, throughput = {rate:?} }}");
        ("slices", text, source.clone())
    }
}
