//! The capabilities of a layer over several stores.

use tradewind_core::ObjectStore;
use tradewind_core::store::{Capabilities, Feature};

/// The capabilities that all of the stores have: a caller that knows only these may send any request.
pub(crate) fn common_capabilities<'a>(
    kind: &'static str,
    stores: impl Iterator<Item = &'a dyn ObjectStore>,
) -> Capabilities {
    let each: Vec<&Capabilities> = stores.map(ObjectStore::capabilities).collect();
    let all = |has: fn(&Capabilities) -> bool| each.iter().all(|capabilities| has(capabilities));
    let mut unsupported: Vec<Feature> = Vec::new();
    for feature in each.iter().flat_map(|capabilities| capabilities.unsupported) {
        if !unsupported.contains(feature) {
            unsupported.push(*feature);
        }
    }
    Capabilities {
        kind,
        owns_buckets: all(|has| has.owns_buckets),
        atomic_buckets: all(|has| has.atomic_buckets),
        conditional_writes: all(|has| has.conditional_writes),
        multipart: all(|has| has.multipart),
        tags: all(|has| has.tags),
        unique_etags: all(|has| has.unique_etags),
        multiple_checksums: all(|has| has.multiple_checksums),
        listing_reports_checksums: all(|has| has.listing_reports_checksums),
        upload_metadata: all(|has| has.upload_metadata),
        reports_all_parts: all(|has| has.reports_all_parts),
        reports_deleted: all(|has| has.reports_deleted),
        stage_checks_bucket: all(|has| has.stage_checks_bucket),
        versions: all(|has| has.versions),
        // Only the layer that is directly above a store may use it.
        reported_attributes: false,
        // Each store numbers its own writes: generations of different stores have no order, so that a copy between
        // stores may have a lower one than its source.
        generations: false,
        max_key_bytes: each.iter().map(|has| has.max_key_bytes).min().unwrap_or(0),
        max_object_bytes: each.iter().map(|has| has.max_object_bytes).min().unwrap_or(0),
        // Leaked once for each layer over several stores, of which a process has a fixed number.
        unsupported: unsupported.leak(),
    }
}
