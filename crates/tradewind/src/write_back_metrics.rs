//! The metrics of write-back, as a collector of `prometheus_client`. Their label `volume` is the name of the volume.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tradewind_cache::{WriteBack, WriteBackStatus};
use tradewind_gateway::metrics::{Family, encode_count};

const DIRTY_BYTES: Family = Family::gauge(
    "tradewind_write_back_dirty_bytes",
    "Bytes of objects that only the journal has, not yet the store below.",
);
const DIRTY_OBJECTS: Family = Family::gauge(
    "tradewind_write_back_dirty_objects",
    "Objects and deletions that only the journal has, not yet the store below.",
);
const OLDEST: Family = Family::gauge(
    "tradewind_write_back_oldest_seconds",
    "Time since the oldest object or deletion that only the journal has was written; 0 without one.",
);
const WRITES: Family = Family::counter(
    "tradewind_write_back_writes",
    "Changes of keys by the place that acknowledged them: journal (writes and deletions), or backing (the store below; \
     also copies, completed uploads, and changes of tags and classes).",
);
const BYPASSED: Family = Family::counter(
    "tradewind_write_back_bypassed_writes",
    "Writes that waited for the store below because the journal kept its room for classes of higher priority.",
);
const WRITTEN: Family = Family::counter(
    "tradewind_write_back_written_objects",
    "Objects and deletions that were written to the store below.",
);
const WRITTEN_BYTES: Family =
    Family::counter("tradewind_write_back_written_bytes", "Bytes that were written to the store below.");
const FAILURES: Family = Family::counter(
    "tradewind_write_back_failures",
    "Attempts to write to the store below that failed, by kind: unavailable (repeated soon), rejected (repeated rarely; \
     the log names the object).",
);

/// A layer that writes back, with the name of its volume.
#[derive(Debug, Clone)]
pub struct NamedWriteBack {
    /// The name of the volume.
    pub volume: String,
    /// The layer.
    pub layer: Arc<WriteBack>,
}

/// Collects the metrics of all layers that write back.
#[derive(Debug)]
pub struct WriteBackCollector(pub Vec<NamedWriteBack>);

/// A sample of a counter: its label besides the volume, and its value.
struct Sample {
    label: Option<(&'static str, &'static str)>,
    count: fn(&WriteBackStatus) -> u64,
}

const fn sample(label: Option<(&'static str, &'static str)>, count: fn(&WriteBackStatus) -> u64) -> Sample {
    Sample { label, count }
}

const COUNTERS: [(Family, &[Sample]); 5] = [
    (
        WRITES,
        &[
            sample(Some(("place", "journal")), |status| status.journaled),
            sample(Some(("place", "backing")), |status| status.through),
        ],
    ),
    (BYPASSED, &[sample(None, |status| status.bypassed)]),
    (WRITTEN, &[sample(None, |status| status.written_back)]),
    (WRITTEN_BYTES, &[sample(None, |status| status.written_back_bytes)]),
    (
        FAILURES,
        &[
            sample(Some(("kind", "unavailable")), |status| status.failures),
            sample(Some(("kind", "rejected")), |status| status.rejected),
        ],
    ),
];

type Gauge = fn(&WriteBackStatus) -> u64;

const GAUGES: [(Family, Gauge); 3] = [
    (DIRTY_BYTES, |status| status.dirty_bytes),
    (DIRTY_OBJECTS, |status| status.dirty_objects as u64),
    (OLDEST, |status| status.oldest_age.as_secs()),
];

impl Collector for WriteBackCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all: Vec<(&str, WriteBackStatus)> =
            self.0.iter().map(|named| (named.volume.as_str(), named.layer.status())).collect();
        for (family, value) in &GAUGES {
            let mut encoder = family.describe(&mut encoder)?;
            for (volume, status) in &all {
                encoder.encode_family(&[("volume", *volume)])?.encode_gauge(&value(status))?;
            }
        }
        for (family, samples) in &COUNTERS {
            let mut encoder = family.describe(&mut encoder)?;
            for (volume, status) in &all {
                for Sample { label, count } in *samples {
                    let labels: Vec<(&str, &str)> =
                        std::iter::once(("volume", *volume)).chain(*label).collect();
                    encode_count(&mut encoder, &labels, count(status))?;
                }
            }
        }
        Ok(())
    }
}
