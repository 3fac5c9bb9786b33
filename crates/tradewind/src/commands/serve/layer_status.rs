//! The state of rotating disks and of deduplication in the status of a volume.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};
use tradewind_layers::deduplicated::{CollectionFailure, LastCollection};
use tradewind_layers::{Deduplicated, DiskQueueReport};
use tradewind_model::slices::GroupStatistics;

/// The scheduler of the disk of a store.
pub(super) fn disk_json(store: &str, report: &DiskQueueReport) -> Json {
    let mut kinds: BTreeMap<&str, GroupStatistics> = BTreeMap::new();
    for (group, counts) in &report.statistics.groups {
        let sum = kinds.entry(group.kind.name()).or_default();
        sum.turns += counts.turns;
        sum.waited += counts.waited;
        sum.max_wait = sum.max_wait.max(counts.max_wait);
        sum.read_bytes += counts.read_bytes;
    }
    let kinds: Map<String, Json> =
        kinds.into_iter().map(|(kind, counts)| (kind.to_owned(), kind_json(&counts))).collect();
    let oldest = report.waiting.values().map(|waiting| waiting.max_wait).max().unwrap_or_default();
    json!({
        "store": store,
        "waiting": report.waiting.values().map(|waiting| waiting.count).sum::<usize>(),
        "oldest_wait_seconds": oldest.as_secs_f64(),
        "in_service": report.in_service.values().sum::<usize>(),
        "rejected": report.statistics.rejected,
        "page_cache_bytes": report.page_cache_bytes,
        "kinds": kinds,
    })
}

fn kind_json(counts: &GroupStatistics) -> Json {
    let mean = counts.waited.as_secs_f64() / counts.turns.max(1) as f64;
    json!({
        "turns": counts.turns,
        "mean_wait_seconds": mean,
        "max_wait_seconds": counts.max_wait.as_secs_f64(),
        "read_bytes": counts.read_bytes,
    })
}

/// The counts of a layer `deduplicated` at the time `now`.
pub(super) fn deduplicated_json(layer: &Deduplicated, now: Duration) -> Json {
    let (counts, collections) = (layer.counts(), layer.collections());
    let (unreadable, damaged) = (layer.unreadable_objects(), layer.damaged_objects());
    json!({
        "ready": layer.is_ready(),
        "examined_objects": layer.examined_objects(),
        "unreadable_objects": unreadable.len(),
        "unreadable_object": unreadable.first().map(|first| format!("{}/{}", first.bucket.as_str(), first.key.as_str())),
        "stored_chunks": counts.stored_chunks,
        "stored_bytes": counts.stored_bytes,
        "found_chunks": counts.found_chunks,
        "found_bytes": counts.found_bytes,
        "deleted_chunks": counts.deleted_chunks,
        "deleted_bytes": counts.deleted_bytes,
        "collections": collections.completed,
        "failed_collections": collections.failed,
        "last_failure": collections.failure.map(|failure| failure_json(&failure, now)),
        "damaged_objects": damaged.len(),
        "damaged_object": damaged.first().map(ToString::to_string),
        "last_collection": collections.last.map(|last| last_json(&last, now)),
    })
}

fn failure_json(failure: &CollectionFailure, now: Duration) -> Json {
    json!({
        "age_seconds": now.saturating_sub(failure.ended_at).as_secs_f64(),
        "error": failure.message,
    })
}

fn last_json(last: &LastCollection, now: Duration) -> Json {
    let report = &last.report;
    json!({
        "age_seconds": now.saturating_sub(last.ended_at).as_secs_f64(),
        "took_seconds": last.took.as_secs_f64(),
        "objects": report.objects,
        "logical_bytes": report.referenced_bytes,
        "parts": report.parts,
        "part_bytes": report.part_bytes,
        "chunks": report.chunks,
        "stored_bytes": report.chunk_bytes,
        "deleted_chunks": report.deleted_chunks,
        "deleted_bytes": report.deleted_bytes,
        "ratio": report.ratio(),
    })
}
