//! The metrics of deduplication, as a collector of `prometheus_client`. Their label `volume` is the name of the volume.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tradewind_core::Clock;
use tradewind_gateway::metrics::{Family, encode_count};
use tradewind_layers::deduplicated::{CollectionHistory, DeduplicationCounts, LastCollection};

use crate::assemble::ServedDeduplicated;

const CHUNKS: Family = Family::counter(
    "tradewind_deduplicated_chunks",
    "Chunks of writes and collections since the start, by outcome: stored (new), found (a hit: it was there), deleted (no \
     object needed it).",
);
const BYTES: Family = Family::counter(
    "tradewind_deduplicated_bytes",
    "Bytes of chunks since the start, by outcome: stored, found, deleted. Writes had stored and found together.",
);
const COLLECTIONS: Family = Family::counter(
    "tradewind_deduplicated_collections",
    "Deletions of unused chunks since the start, by outcome: completed, failed.",
);
const DAMAGED: Family = Family::gauge(
    "tradewind_deduplicated_damaged_objects",
    "Objects, versions, parts and uploads that the last collection could not read, at most 1,000. A collection that \
     fails because of them deletes no unused chunk.",
);
const READY: Family = Family::gauge(
    "tradewind_deduplicated_ready",
    "1 if new objects are deduplicated; 0 while all objects are examined, at the first start on a store.",
);
const EXAMINED: Family = Family::gauge(
    "tradewind_deduplicated_examined_objects",
    "Objects that this examination has seen since the start.",
);
const OBJECTS: Family = Family::gauge(
    "tradewind_deduplicated_objects",
    "Deduplicated objects and versions at the last collection, without parts of unfinished uploads. Absent before the \
     first one.",
);
const LOGICAL_BYTES: Family = Family::gauge(
    "tradewind_deduplicated_logical_bytes",
    "Bytes of these objects that are in chunks, at the last collection.",
);
const REMAINING_CHUNKS: Family =
    Family::gauge("tradewind_deduplicated_remaining_chunks", "Chunks that the last collection left.");
const CHUNK_BYTES: Family = Family::gauge(
    "tradewind_deduplicated_stored_bytes",
    "Bytes of the chunks that the last collection left: what the logical bytes and parts of unfinished uploads occupy.",
);
const LAST_DELETED: Family = Family::gauge(
    "tradewind_deduplicated_last_deleted_bytes",
    "Bytes of the chunks that the last collection deleted.",
);
const LAST_AGE: Family = Family::gauge(
    "tradewind_deduplicated_last_collection_age_seconds",
    "Seconds since the end of the last collection.",
);
const LAST_DURATION: Family = Family::gauge(
    "tradewind_deduplicated_last_collection_seconds",
    "Duration of the last collection, in seconds.",
);

/// Collects the metrics of all layers `deduplicated`.
#[derive(Debug)]
pub struct DeduplicationCollector {
    /// The layers.
    pub layers: Vec<ServedDeduplicated>,
    /// The clock of their collections.
    pub clock: Arc<dyn Clock>,
}

struct VolumeSnapshot<'a> {
    volume: &'a str,
    counts: DeduplicationCounts,
    collections: CollectionHistory,
    damaged_objects: usize,
    is_ready: bool,
    examined_objects: u64,
}

/// Samples of a family with the label `outcome`.
struct Outcome<T> {
    name: &'static str,
    count: fn(&T) -> u64,
}

const CHUNK_OUTCOMES: [Outcome<DeduplicationCounts>; 3] = [
    Outcome { name: "stored", count: |counts| counts.stored_chunks },
    Outcome { name: "found", count: |counts| counts.found_chunks },
    Outcome { name: "deleted", count: |counts| counts.deleted_chunks },
];
const BYTE_OUTCOMES: [Outcome<DeduplicationCounts>; 3] = [
    Outcome { name: "stored", count: |counts| counts.stored_bytes },
    Outcome { name: "found", count: |counts| counts.found_bytes },
    Outcome { name: "deleted", count: |counts| counts.deleted_bytes },
];
const COLLECTION_OUTCOMES: [Outcome<CollectionHistory>; 2] = [
    Outcome { name: "completed", count: |collections| collections.completed },
    Outcome { name: "failed", count: |collections| collections.failed },
];

fn encode_outcomes<'a, T: 'a>(
    encoder: &mut DescriptorEncoder<'_>,
    family: &Family,
    outcomes: &[Outcome<T>],
    values: impl Iterator<Item = (&'a str, &'a T)>,
) -> fmt::Result {
    let mut samples = family.describe(encoder)?;
    for (volume, value) in values {
        for Outcome { name, count } in outcomes {
            encode_count(&mut samples, &[("volume", volume), ("outcome", *name)], count(value))?;
        }
    }
    Ok(())
}

/// Writes a gauge of the layers.
fn encode_state(
    encoder: &mut DescriptorEncoder<'_>,
    family: &Family,
    snapshots: &[VolumeSnapshot<'_>],
    value: impl Fn(&VolumeSnapshot<'_>) -> u64,
) -> fmt::Result {
    let mut samples = family.describe(encoder)?;
    for snapshot in snapshots {
        samples.encode_family(&[("volume", snapshot.volume)])?.encode_gauge(&value(snapshot))?;
    }
    Ok(())
}

/// Writes a gauge of the last collections.
fn encode_last(
    encoder: &mut DescriptorEncoder<'_>,
    family: &Family,
    snapshots: &[VolumeSnapshot<'_>],
    value: impl Fn(&LastCollection) -> f64,
) -> fmt::Result {
    let mut samples = family.describe(encoder)?;
    for VolumeSnapshot { volume, collections, .. } in snapshots {
        if let Some(last) = &collections.last {
            samples.encode_family(&[("volume", *volume)])?.encode_gauge(&value(last))?;
        }
    }
    Ok(())
}

impl Collector for DeduplicationCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = self.clock.now();
        let snapshots: Vec<VolumeSnapshot<'_>> = self
            .layers
            .iter()
            .map(|ServedDeduplicated { volume, layer, .. }| VolumeSnapshot {
                volume,
                counts: layer.counts(),
                collections: layer.collections(),
                damaged_objects: layer.damaged_objects().len(),
                is_ready: layer.is_ready(),
                examined_objects: layer.examined_objects(),
            })
            .collect();
        let counts = || snapshots.iter().map(|each| (each.volume, &each.counts));
        encode_outcomes(&mut encoder, &CHUNKS, &CHUNK_OUTCOMES, counts())?;
        encode_outcomes(&mut encoder, &BYTES, &BYTE_OUTCOMES, counts())?;
        let collections = snapshots.iter().map(|each| (each.volume, &each.collections));
        encode_outcomes(&mut encoder, &COLLECTIONS, &COLLECTION_OUTCOMES, collections)?;
        encode_state(&mut encoder, &DAMAGED, &snapshots, |each| each.damaged_objects as u64)?;
        encode_state(&mut encoder, &READY, &snapshots, |each| u64::from(each.is_ready))?;
        encode_state(&mut encoder, &EXAMINED, &snapshots, |each| each.examined_objects)?;
        encode_last(&mut encoder, &OBJECTS, &snapshots, |last| last.report.objects as f64)?;
        encode_last(&mut encoder, &LOGICAL_BYTES, &snapshots, |last| last.report.referenced_bytes as f64)?;
        encode_last(&mut encoder, &REMAINING_CHUNKS, &snapshots, |last| last.report.chunks as f64)?;
        encode_last(&mut encoder, &CHUNK_BYTES, &snapshots, |last| last.report.chunk_bytes as f64)?;
        encode_last(&mut encoder, &LAST_DELETED, &snapshots, |last| last.report.deleted_bytes as f64)?;
        encode_last(&mut encoder, &LAST_AGE, &snapshots, |last| {
            now.saturating_sub(last.ended_at).as_secs_f64()
        })?;
        encode_last(&mut encoder, &LAST_DURATION, &snapshots, |last| last.took.as_secs_f64())
    }
}
