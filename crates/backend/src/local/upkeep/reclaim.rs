//! Frees the extents of superseded, deleted or aborted objects and parts. The record that refers to them is still on
//! disk: compaction removes it only afterwards.
//!
//! Writers create this work at the rate of their writes. So one change frees the extents of many records. Work that
//! arrives during a call waits for the next one, so that compaction runs in between.

use tradewind_core::error::{Error, Reason, Result};

use super::{UpkeepControl, is_fatal};
use crate::local::apply::remove_live_bytes;
use crate::local::commit::{Batch, MaintenanceChange};
use crate::local::index::entries::RecordLocation;
use crate::local::index::keys;
use crate::local::open_store::OpenStore;
use crate::local::record::{ExtentRun, ObjectContent, Record};
use crate::local::scan::record_at;

/// Maximum extents, and maximum records, per change, so that writers wait for the change only a few milliseconds.
const MAX_CHANGE_ITEMS: usize = 1024;

/// Frees everything that is pending when the call begins.
pub(super) fn reclaim(store: &OpenStore, control: &UpkeepControl) -> Result<()> {
    free_where(store, control, |_| true).map(|_| ())
}

/// Frees the extents that are pending for records in the given segments. Returns the segments of records whose extents
/// could not be freed: they are still needed.
pub(super) fn reclaim_segments(
    store: &OpenStore,
    control: &UpkeepControl,
    segments: &[u32],
) -> Result<Vec<u32>> {
    if segments.is_empty() {
        return Ok(Vec::new());
    }
    free_where(store, control, |segment| segments.contains(&segment))
}

fn free_where(
    store: &OpenStore,
    control: &UpkeepControl,
    is_wanted: impl Fn(u32) -> bool,
) -> Result<Vec<u32>> {
    let mut pending = PendingFrees::default();
    let mut failed = Vec::new();
    for entry in store.state.index.snapshot().prefix(&[keys::prefix::RECLAIM]) {
        let (key, value) = entry?;
        let (seq, location) = (keys::number(&key)?, RecordLocation::decode(&value)?);
        if !is_wanted(location.position.segment) {
            continue;
        }
        if control.is_stopped() {
            return Err(Error::new(Reason::ShuttingDown, "the store is closing"));
        }
        let runs = match runs_of(store, location) {
            Ok(runs) => runs,
            Err(e) if e.reason() == Reason::CorruptData => {
                tracing::error!(error = ?e, "extents stay occupied until the index is rebuilt");
                Vec::new()
            }
            Err(e) if is_fatal(&e) => return Err(e),
            Err(e) => {
                tracing::error!(error = ?e, at = %location.position, "extents cannot be freed; this will be retried later");
                failed.push(location.position.segment);
                continue;
            }
        };
        for id in runs.into_iter().flat_map(ExtentRun::ids) {
            pending.extents.push(id);
            pending.submit_at_length(MAX_CHANGE_ITEMS, store)?;
        }
        pending.records.push(seq);
        pending.submit_at_length(MAX_CHANGE_ITEMS, store)?;
    }
    pending.submit_at_length(1, store)?;
    Ok(failed)
}

/// The contents of the next change. If the extents of a record do not fit into one change, the record's entry is
/// removed with the last of them.
#[derive(Default)]
struct PendingFrees {
    extents: Vec<u64>,
    records: Vec<u64>,
}

impl PendingFrees {
    /// Submits the change once it has this length.
    fn submit_at_length(&mut self, length: usize, store: &OpenStore) -> Result<()> {
        if self.extents.len().max(self.records.len()) < length {
            return Ok(());
        }
        let Self { extents, records } = std::mem::take(self);
        store.committer.submit_blocking(MaintenanceChange(move |batch: &mut Batch<'_>| {
            for id in &extents {
                let key = keys::extent(*id);
                if let Some(value) = batch.index_changes.get(&key)? {
                    remove_live_bytes(&mut batch.index_changes, RecordLocation::decode(&value)?)?;
                    batch.index_changes.remove(key);
                }
            }
            for seq in &records {
                batch.index_changes.remove(keys::reclaim(*seq));
            }
            Ok(())
        }))
    }
}

/// The runs to which a superseded record refers.
fn runs_of(store: &OpenStore, location: RecordLocation) -> Result<Vec<ExtentRun>> {
    let missing = |why: &str| {
        Error::new(
            Reason::CorruptData,
            format!("the extents of the record at {} cannot be freed: {why}", location.position),
        )
    };
    let segment = store
        .state
        .segments
        .get(location.position.segment)
        .ok_or_else(|| missing("its segment is missing"))?;
    let scanned = record_at(&segment, store.state.layout.salt, location.position.offset)?;
    let scanned = scanned.ok_or_else(|| missing("it is damaged"))?;
    match scanned.record()? {
        Record::Object(object) => match object.content {
            ObjectContent::Extents { runs, .. } => Ok(runs),
            ObjectContent::Inline => Ok(Vec::new()),
        },
        Record::Part(part) => Ok(part.runs),
        _ => Err(missing("it is of another kind")),
    }
}
