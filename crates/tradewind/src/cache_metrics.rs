//! The metrics of caches, as a collector of `prometheus_client`. Their label `volume` is the name of the volume.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use tradewind_cache::{CacheCounters, Cached};
use tradewind_gateway::metrics::{Family, encode_count};

const READS: Family = Family::counter(
    "tradewind_cache_reads",
    "Reads by result: ram and ssd (hits), partial (some bytes from the store below), miss, bypass (not served by the \
     cache: parts, versions, keys that are being changed).",
);
const BYTES: Family = Family::counter("tradewind_cache_bytes", "Bytes served, by tier: ram, ssd, backing.");
const WRITTEN: Family = Family::counter("tradewind_cache_ssd_written_bytes", "Bytes written to the SSD.");
const VERIFIED: Family = Family::counter(
    "tradewind_cache_ssd_verified_bytes",
    "Bytes on the SSD that were verified in the background.",
);
const EVICTIONS: Family = Family::counter("tradewind_cache_evictions", "Entries evicted, by tier: ram, ssd.");
const FILLS: Family = Family::counter(
    "tradewind_cache_fills",
    "Extents read from the store below, by outcome: stored, skipped (the SSD is switched off, fails or has no space), \
     queue_full (the SSD cannot keep up), over_budget (of max_write_rate), or bypassed (all others have a higher \
     priority).",
);
const VALIDATIONS: Family = Family::counter(
    "tradewind_cache_validations",
    "Comparisons with the store below, by outcome: current, stale, or unanswered (the store does not respond).",
);
const ERRORS: Family = Family::counter(
    "tradewind_cache_errors",
    "Errors of the SSD by kind: io, corrupt (damaged or unreadable, and dropped), switched_off (after several errors).",
);
const MEMORY: Family = Family::gauge("tradewind_cache_memory_bytes", "Bytes in use by the cache in memory.");
const PINS_IGNORED: Family = Family::counter(
    "tradewind_cache_pins_ignored",
    "Entries that were not pinned because pins fill half of the cache.",
);
const REMOVALS_SKIPPED: Family = Family::counter(
    "tradewind_cache_removals_skipped",
    "Removed objects whose space is freed by eviction only, because the SSD fails or cannot keep up.",
);
const CLASS_BYTES: Family = Family::gauge(
    "tradewind_cache_class_bytes",
    "Bytes of a class in the cache, by tier: ram, ssd. Only classes that are in it.",
);
const EXTENTS: Family = Family::gauge("tradewind_cache_ssd_extents", "Extents on the SSD.");

/// A cache with the name of its volume.
#[derive(Debug, Clone)]
pub struct NamedCache {
    /// The name of the volume.
    pub volume: String,
    /// The cache.
    pub cache: Arc<Cached>,
}

/// Collects the counters of all caches.
#[derive(Debug)]
pub struct CacheCollector(pub Vec<NamedCache>);

/// A label beside the volume: name and value.
type Label = (&'static str, &'static str);

/// A sample of a family.
struct Sample {
    label: Option<Label>,
    count: fn(&CacheCounters) -> u64,
}

const fn sample(label: Option<Label>, count: fn(&CacheCounters) -> u64) -> Sample {
    Sample { label, count }
}

const COUNTERS: [(Family, &[Sample]); 10] = [
    (
        READS,
        &[
            sample(Some(("result", "ram")), |counters| counters.ram_hits),
            sample(Some(("result", "ssd")), |counters| counters.ssd_hits),
            sample(Some(("result", "partial")), |counters| counters.partial_hits),
            sample(Some(("result", "miss")), |counters| counters.misses),
            sample(Some(("result", "bypass")), |counters| counters.bypasses),
        ],
    ),
    (
        BYTES,
        &[
            sample(Some(("tier", "ram")), |counters| counters.ram_bytes),
            sample(Some(("tier", "ssd")), |counters| counters.ssd_bytes),
            sample(Some(("tier", "backing")), |counters| counters.backing_bytes),
        ],
    ),
    (PINS_IGNORED, &[sample(None, |counters| counters.pins_ignored)]),
    (REMOVALS_SKIPPED, &[sample(None, |counters| counters.removals_skipped)]),
    (WRITTEN, &[sample(None, |counters| counters.ssd_written_bytes)]),
    (VERIFIED, &[sample(None, |counters| counters.ssd_verified_bytes)]),
    (
        EVICTIONS,
        &[
            sample(Some(("tier", "ram")), |counters| counters.ram_evictions),
            sample(Some(("tier", "ssd")), |counters| counters.ssd_evictions),
        ],
    ),
    (
        FILLS,
        &[
            sample(Some(("outcome", "stored")), |counters| counters.fills),
            sample(Some(("outcome", "skipped")), |counters| counters.fills_skipped),
            sample(Some(("outcome", "queue_full")), |counters| counters.fills_queue_full),
            sample(Some(("outcome", "over_budget")), |counters| counters.fills_over_budget),
            sample(Some(("outcome", "bypassed")), |counters| counters.fills_bypassed),
        ],
    ),
    (
        VALIDATIONS,
        &[
            sample(Some(("outcome", "current")), |counters| {
                counters.validations.saturating_sub(counters.stale + counters.uncompared)
            }),
            sample(Some(("outcome", "stale")), |counters| counters.stale),
            sample(Some(("outcome", "unanswered")), |counters| counters.uncompared),
        ],
    ),
    (
        ERRORS,
        &[
            sample(Some(("kind", "io")), |counters| counters.ssd_errors),
            sample(Some(("kind", "corrupt")), |counters| counters.ssd_corrupt),
            sample(Some(("kind", "switched_off")), |counters| counters.ssd_switched_off),
        ],
    ),
];

impl Collector for CacheCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counters: Vec<CacheCounters> = self.0.iter().map(|named| named.cache.counters()).collect();
        for (family, samples) in &COUNTERS {
            let mut encoder = family.describe(&mut encoder)?;
            for (named, counters) in self.0.iter().zip(&counters) {
                for Sample { label, count } in *samples {
                    let volume = ("volume", named.volume.as_str());
                    let labels: Vec<(&str, &str)> = std::iter::once(volume).chain(*label).collect();
                    encode_count(&mut encoder, &labels, count(counters))?;
                }
            }
        }
        self.encode_gauge(&mut encoder, &MEMORY, |cache| cache.memory_used_bytes())?;
        self.encode_gauge(&mut encoder, &EXTENTS, Cached::ssd_extents)?;
        self.encode_classes(&mut encoder)
    }
}

impl CacheCollector {
    fn encode_classes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples: MetricEncoder<'_> = CLASS_BYTES.describe(encoder)?;
        for named in &self.0 {
            for occupied in named.cache.occupancy() {
                let class = occupied.class.value().to_string();
                for (tier, bytes) in [("ram", occupied.ram_bytes), ("ssd", occupied.ssd_bytes)] {
                    let labels =
                        [("volume", named.volume.as_str()), ("class", class.as_str()), ("tier", tier)];
                    samples.encode_family(&labels)?.encode_gauge(&bytes)?;
                }
            }
        }
        Ok(())
    }

    fn encode_gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: &Family,
        value: impl Fn(&Cached) -> usize,
    ) -> fmt::Result {
        let mut samples: MetricEncoder<'_> = family.describe(encoder)?;
        for named in &self.0 {
            let value = value(&named.cache) as u64;
            samples.encode_family(&[("volume", named.volume.as_str())])?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
