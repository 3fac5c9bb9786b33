//! The write-back of a volume: a journal on the fast disk, which is a local store of its own.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_cache::{AllowNone, WriteBack, WriteBackOptions, WriteBackPolicy};
use tradewind_core::{Clock, Metadata, ObjectStore};
use tradewind_model::class_policy::{ClassPolicyTable, ClassWrite};

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

/// Decides by class whether the journal may acknowledge a write. The policies can be replaced.
#[derive(Debug, Default)]
pub struct ClassWrites {
    policies: RwLock<Arc<ClassPolicyTable>>,
}

impl ClassWrites {
    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<ClassPolicyTable> {
        self.policies.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the policies of classes. Writes in flight keep the decision of the old ones.
    pub fn set_policies(&self, policies: Arc<ClassPolicyTable>) {
        *self.policies.write().unwrap_or_else(PoisonError::into_inner) = policies;
    }
}

impl WriteBackPolicy for ClassWrites {
    fn allows(&self, metadata: &Metadata, size: u64) -> bool {
        let policies = self.policies();
        policies.write(policies.class_of_object(&metadata.classes, size)) != Some(ClassWrite::Through)
    }
}

/// Opens the write-back that the settings of a cache ask for. `None` if writes go through, unless there is a journal of an
/// earlier start: its data is written back and served first.
pub(super) async fn open(
    set: &CachedSettings,
    leaves: &[&StackedStore],
    below: Arc<dyn ObjectStore>,
    class_writes: &Arc<ClassWrites>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Option<Arc<WriteBack>>> {
    let directory = set.journal_directory();
    if !set.writes_back() && !has_journal(set, &directory)? {
        return Ok(None);
    }
    let policy: Arc<dyn WriteBackPolicy> =
        if set.writes_back() { class_writes.clone() } else { Arc::new(AllowNone) };
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

/// True if the directory of a journal exists whose volume writes through. Fails if that is not known, or if the settings
/// name a journal that is absent: without it, its data would be missing, and older data would be served.
fn has_journal(set: &CachedSettings, directory: &Path) -> anyhow::Result<bool> {
    let is_there = directory.try_exists();
    let is_there =
        is_there.with_context(|| format!("cannot look for the journal in {}", directory.display()))?;
    if let (false, Some(journal)) = (is_there, &set.journal) {
        anyhow::bail!(
            "{}: the journal {} does not exist: mount its device; or, if its data is written back or may be lost, remove \
             the setting `journal`",
            journal.source,
            directory.display()
        );
    }
    Ok(is_there)
}

#[cfg(test)]
mod tests {
    use tradewind_core::Class;
    use tradewind_model::class_policy::ClassChanges;

    use super::*;

    #[test]
    fn a_class_that_is_written_through_bypasses_the_journal() {
        let class = |value| Class::new(value).unwrap();
        let mut labelled = Metadata::default();
        labelled.classes.object = Some(class(25));
        let writes = ClassWrites::default();
        assert!(writes.allows(&labelled, 1) && writes.allows(&Metadata::default(), 1));
        let mut policies = ClassPolicyTable::default();
        let through = ClassChanges { write: Some(ClassWrite::Through), ..ClassChanges::default() };
        policies.set(class(25), through.clone());
        policies.set(class(12), through);
        writes.set_policies(Arc::new(policies));
        assert!(!writes.allows(&labelled, 1));
        // Without a label, the size decides.
        assert!(writes.allows(&Metadata::default(), 4096) && !writes.allows(&Metadata::default(), 4097));
    }
}
