//! The write-back of a volume: a journal on the fast disk, which is a local store of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_cache::{AllowAll, AllowNone, WriteBack, WriteBackOptions, WriteBackPolicy};
use tradewind_core::{Clock, ObjectStore};

use super::{ServedStore, StackedStore};
use crate::settings::CachedSettings;

/// Size of the journal's segments: small, because all data in them is soon dead.
const JOURNAL_SEGMENT_BYTES: u32 = 64 << 20;

/// Bytes that writes may buffer in the journal.
const JOURNAL_BUFFER_BYTES: usize = 8 << 20;

/// Free space of the journal's device below which writes go through.
const JOURNAL_RESERVE_BYTES: u64 = 160 << 20;

/// The time for which a request to a service may still be applied although it failed.
const UNCERTAIN_WINDOW: Duration = Duration::from_secs(60);

/// Opens the write-back that the settings of a cache ask for. `None` if writes go through, unless there is a journal of an
/// earlier start: its data is written back and served first.
pub(super) async fn open(
    set: &CachedSettings,
    leaves: &[&StackedStore],
    below: Arc<dyn ObjectStore>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Option<Arc<WriteBack>>> {
    let directory = set.journal_directory();
    if !set.writes_back() && !directory.exists() {
        return Ok(None);
    }
    let policy: Arc<dyn WriteBackPolicy> =
        if set.writes_back() { Arc::new(AllowAll) } else { Arc::new(AllowNone) };
    let failure = || format!("{}: cannot open the journal in {}", set.write.source, directory.display());
    let options = LocalOptions {
        segment_bytes: JOURNAL_SEGMENT_BYTES,
        max_buffered_bytes: JOURNAL_BUFFER_BYTES,
        reserve_bytes: JOURNAL_RESERVE_BYTES,
        io_threads: 2,
        ..LocalOptions::default()
    };
    // Blocks while the log is replayed, before anything is served.
    let journal = LocalStore::open(&directory, options, clock.clone()).with_context(failure)?;
    let is_local = leaves.iter().all(|leaf| matches!(leaf.served, ServedStore::Local(_)));
    let uncertain_window = if is_local { Duration::ZERO } else { UNCERTAIN_WINDOW };
    let options = WriteBackOptions {
        max_dirty_bytes: set.max_dirty.value.0,
        uncertain_window,
        is_sole_writer: set.sole_writer.value,
        ..WriteBackOptions::default()
    };
    let layer = WriteBack::open(below, journal, policy, options, clock.clone());
    Ok(Some(layer.await.with_context(failure)?))
}
