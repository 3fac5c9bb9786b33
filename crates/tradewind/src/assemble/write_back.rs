//! The write-back of a volume: a journal on the fast disk, which is a local store of its own.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_cache::{AllowNone, MIN_WRITE_BACK_MEMORY_BYTES, WriteBack, WriteBackOptions, WriteBackPolicy};
use tradewind_core::{Clock, Metadata, ObjectStore};
use tradewind_model::admission::WriteRank;
use tradewind_model::class_policy::{ClassPolicyTable, ClassWrite};

use crate::settings::{CachedSettings, ServedVolume, Store, StoreKind, VolumeLayer, WriteAdmissionBy};

/// Size of the journal's segments: small, because all data in them is soon dead.
const JOURNAL_SEGMENT_BYTES: u32 = 64 << 20;

/// Bytes that writes may buffer in the journal.
const JOURNAL_BUFFER_BYTES: usize = 8 << 20;

/// Free space of the journal's device below which writes go through.
const JOURNAL_RESERVE_BYTES: u64 = 160 << 20;

/// The time for which a failed write may still be applied, over a newer one.
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
    fn rank(&self, metadata: &Metadata, size: u64) -> Option<WriteRank> {
        let policies = self.policies();
        let class = policies.class_of_object(&metadata.classes, size);
        (policies.write(class) != Some(ClassWrite::Through))
            .then(|| WriteRank::for_object(&policies, &metadata.classes, size))
    }
}

/// The decision of [`ClassWrites`], without ranks: each write enters the journal while there is room.
#[derive(Debug)]
struct WithoutRanks(Arc<ClassWrites>);

impl WriteBackPolicy for WithoutRanks {
    fn rank(&self, metadata: &Metadata, size: u64) -> Option<WriteRank> {
        self.0.rank(metadata, size).map(|_| WriteRank::HIGHEST)
    }
}

/// Opens the write-back that the settings of a cache ask for. `None` if writes go through, unless there is a journal of an
/// earlier start: its data is written back and served first. `memory_bytes` is the share of the budget of each volume that
/// writes back; a journal of an earlier start gets the minimum. Fails if that has data, and `other_volume` uses one of the
/// stores: newer data of it could be replaced.
pub(super) async fn open(
    set: &CachedSettings,
    volume: &ServedVolume<'_>,
    other_volume: Option<&str>,
    below: Arc<dyn ObjectStore>,
    class_writes: &Arc<ClassWrites>,
    memory_bytes: u64,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Option<Arc<WriteBack>>> {
    let directory = set.journal_directory();
    if !set.writes_back() && !has_journal(set, &directory)? {
        return Ok(None);
    }
    let memory_bytes = if set.writes_back() { memory_bytes } else { MIN_WRITE_BACK_MEMORY_BYTES };
    let policy: Arc<dyn WriteBackPolicy> = match (set.writes_back(), set.write_admission.value) {
        (false, _) => Arc::new(AllowNone),
        (true, WriteAdmissionBy::Class) => class_writes.clone(),
        (true, WriteAdmissionBy::Room) => Arc::new(WithoutRanks(class_writes.clone())),
    };
    let shared_with = other_volume.filter(|_| !set.writes_back());
    let failure = || {
        let advice = shared_with.map_or_else(String::new, |other| {
            format!("; without the volume {other:?}, which uses the same store, the server writes it back")
        });
        format!("{}: cannot open the journal in {}{advice}", set.write.source, directory.display())
    };
    let options = LocalOptions {
        segment_bytes: JOURNAL_SEGMENT_BYTES,
        max_buffered_bytes: JOURNAL_BUFFER_BYTES,
        reserve_bytes: JOURNAL_RESERVE_BYTES,
        io_threads: 2,
        ..LocalOptions::default()
    };
    // Blocks while the log is replayed, before anything is served.
    let journal = LocalStore::open(&directory, options, clock.clone()).with_context(failure)?;
    let options = WriteBackOptions {
        max_dirty_bytes: set.max_dirty.value.0,
        uncertain_window: uncertain_window(volume),
        is_sole_writer: set.sole_writer.value,
        may_have_data: shared_with.is_none(),
        is_drained_by_age: set.write_admission.value == WriteAdmissionBy::Room,
        ..WriteBackOptions::default()
    }
    .within_memory(memory_bytes.max(MIN_WRITE_BACK_MEMORY_BYTES));
    tracing::debug!(
        directory = %directory.display(),
        memory_bytes,
        objects = options.max_dirty_objects,
        concurrency = options.concurrency,
        "write-back has this share of memory.budget"
    );
    let layer = WriteBack::open(below, journal, policy, options, clock.clone());
    Ok(Some(layer.await.with_context(failure)?))
}

/// The time for which a failed write of a volume's stores may still be applied. Zero if each key's changes are applied in
/// the order of the requests, failed ones included: a local store queues them, and `routed` holds a lock of the key until a
/// change has ended. A service may apply a request late. `deduplicated` commits a manifest in a task of its own, which a
/// request's deadline does not end, and which holds no lock of the key.
fn uncertain_window(volume: &ServedVolume<'_>) -> Duration {
    let is_local = |store: &Store| matches!(store.kind, StoreKind::Local { .. });
    let are_stores_local = volume.store.iter().chain(&volume.tiers).all(|store| is_local(store));
    let is_deduplicated = volume.layers.iter().any(|layer| matches!(layer, VolumeLayer::Deduplicated(_)));
    if are_stores_local && !is_deduplicated { Duration::ZERO } else { UNCERTAIN_WINDOW }
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
    use crate::settings::{Inputs, Settings};

    #[test]
    fn failed_writes_are_uncertain_unless_each_layer_keeps_their_order() {
        let stores = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
            [store.ssd]\ntype = \"local\"\npath = \"fast\"\n\
            [store.far]\ntype = \"s3\"\nendpoint = \"http://127.0.0.1:1\"\nregion = \"us-east-1\"\n";
        let cached =
            "{ cached = { disk = \"cache\", size = \"64MiB\", memory = \"8MiB\", write = \"back\" } }";
        let routed = |tier: &str| {
            format!("{{ routed = {{ tiers = [{tier:?}], classes = {{ {tier} = [\"11-14\"] }} }} }}, \"disk\"")
        };
        let window = |below: &str| {
            let text = format!("{stores}[volume.v]\nstack = [{cached}, {below}]\n");
            let file = Some(("tw.toml".into(), text));
            let settings = Settings::read(&Inputs { file, ..Inputs::default() }).unwrap();
            uncertain_window(&settings.served_volumes().unwrap()[0])
        };
        assert_eq!(window("\"disk\""), Duration::ZERO);
        assert_eq!(window(&routed("ssd")), Duration::ZERO);
        let deduplicated = "{ deduplicated = { classes = true } }, \"disk\"";
        for below in ["\"far\"", &routed("far"), deduplicated] {
            assert_eq!(window(below), UNCERTAIN_WINDOW, "{below}");
        }
    }

    #[test]
    fn a_class_that_is_written_through_bypasses_the_journal() {
        let class = |value| Class::new(value).unwrap();
        let mut labelled = Metadata::default();
        labelled.classes.object = Some(class(25));
        let writes = ClassWrites::default();
        let allows = |metadata: &Metadata, size| writes.rank(metadata, size).is_some();
        assert!(allows(&labelled, 1) && allows(&Metadata::default(), 1));
        let mut policies = ClassPolicyTable::default();
        let through = ClassChanges { write: Some(ClassWrite::Through), ..ClassChanges::default() };
        policies.set(class(25), through.clone());
        policies.set(class(12), through);
        writes.set_policies(Arc::new(policies));
        assert!(!allows(&labelled, 1));
        // Without a label, the size decides.
        assert!(allows(&Metadata::default(), 4096) && !allows(&Metadata::default(), 4097));
    }

    #[test]
    fn ranks_follow_the_label_unless_they_are_disabled() {
        let mut labelled = Metadata::default();
        labelled.classes.object = Some(Class::new(31).unwrap());
        let writes = Arc::new(ClassWrites::default());
        let small = writes.rank(&Metadata::default(), 4096).unwrap();
        assert!(writes.rank(&labelled, 4096).unwrap() > small);
        assert_eq!(WithoutRanks(writes).rank(&labelled, 4096), Some(WriteRank::HIGHEST));
    }
}
