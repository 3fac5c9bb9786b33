//! The state of caches and of write-back in the status of a volume.

use serde_json::{Map, Value as Json, json};
use tradewind_cache::{Cached, OccupiedClass, PinnedPrefix, WriteBackPause, WriteBackStatus};

/// A cache: sizes, what it holds by class, pins and counters.
pub(super) fn cache_json(cache: &Cached) -> Json {
    let counters: Map<String, Json> =
        cache.counters().named().map(|counter| (counter.name.to_owned(), json!(counter.count))).collect();
    let ssd = cache.ssd_size_bytes().map(|size| {
        json!({
            "size_bytes": size,
            "used_bytes": cache.ssd_used_bytes(),
            "extents": cache.ssd_extents(),
            "loaded": cache.is_loaded(),
        })
    });
    json!({
        "memory": { "size_bytes": cache.memory_size_bytes(), "used_bytes": cache.memory_used_bytes() },
        "ssd": ssd,
        "classes": cache.occupancy().iter().map(occupancy_json).collect::<Vec<Json>>(),
        "pins": cache.pins().iter().map(pin_json).collect::<Vec<Json>>(),
        "counters": counters,
    })
}

fn occupancy_json(occupied: &OccupiedClass) -> Json {
    json!({
        "class": occupied.class.value(),
        "memory_bytes": occupied.ram_bytes,
        "ssd_bytes": occupied.ssd_bytes,
        "ssd_extents": occupied.ssd_extents,
    })
}

/// A pinned prefix.
pub(super) fn pin_json(pin: &PinnedPrefix) -> Json {
    json!({ "bucket": pin.bucket.as_str(), "prefix": pin.prefix })
}

/// The data that is only in the journal yet.
pub(super) fn write_back_json(status: &WriteBackStatus) -> Json {
    json!({
        "dirty_bytes": status.dirty_bytes,
        "dirty_objects": status.dirty_objects,
        "oldest_seconds": status.oldest_age.as_secs_f64(),
        "written_back": status.written_back,
        "failures": status.failures,
        "rejected": status.rejected,
        "pause": status.pause.map(pause_json),
    })
}

/// The reason for which nothing is written back, and the time until the next attempt.
fn pause_json(pause: WriteBackPause) -> Json {
    let (cause, retry_in) = match pause {
        WriteBackPause::StoreUnavailable { retry_in } => ("store_unavailable", retry_in),
        WriteBackPause::OutcomeUnknown { retry_in } => ("outcome_unknown", retry_in),
    };
    json!({ "cause": cause, "retry_in_seconds": retry_in.as_secs_f64() })
}
