//! The served stores: each store that a volume uses is opened once and gets the layers that every store has. Volumes
//! are stacked on them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use prometheus_client::registry::Registry;
use tradewind_backend::local::LocalStore;
use tradewind_cache::{Cached, CachedOptions, ReadOnly, TierOptions, Validation};
use tradewind_core::{Clock, ObjectStore};
use tradewind_layers::routed::ClassTiers;
use tradewind_layers::{
    Deduplicated, Instrumented, ReadAhead, Routed, Sliced, Tier, Transformed, Volume, Volumes,
};
use tradewind_model::class_policy::{ClassPolicyTable, all_classes};

use super::deduplicate::deduplicate;
use super::slices::DiskQueues;
use super::transform_keys::transform;
use super::write_back::{self, ClassWrites};
use super::{ServedStore, open_store, with_lanes};
use crate::cache_metrics::{CacheCollector, NamedCache};
use crate::deduplication_metrics::DeduplicationCollector;
use crate::settings::{
    ByteSize, CachedSettings, RoutedSettings, ServedVolume, Settings, Store, StoreKind, Validate, VolumeLayer,
};
use crate::slice_metrics::{NamedDisk, SliceCollector};
use crate::store_metrics::{LocalCollector, NamedStore, PlanCollector, PlanOfStore, StoreCollector};
use crate::write_back_metrics::{NamedWriteBack, WriteBackCollector};

/// A store of the settings that is open.
#[derive(Debug)]
pub struct OpenedStore {
    /// Its name in the settings; `local` for the local store in `data`.
    pub name: String,
    /// The directory of a local store.
    pub directory: Option<PathBuf>,
    /// The store.
    pub served: ServedStore,
}

/// Opens each store of the served volumes once; replays the logs of local stores that were not closed. Fails if one
/// cannot be opened, or has provably lost acknowledged changes, unless `accept_loss`.
pub fn open_stores(
    settings: &Settings,
    accept_loss: bool,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Vec<OpenedStore>> {
    let volumes = settings.served_volumes()?;
    let mut stores: Vec<(&str, Option<&Store>)> = Vec::new();
    for volume in &volumes {
        let tiers = volume.tiers.iter().map(|&store| (store.name.value.as_str(), Some(store)));
        for (name, store) in std::iter::once((volume.store_name(), volume.store)).chain(tiers) {
            if !stores.iter().any(|(other, _)| *other == name) {
                stores.push((name, store));
            }
        }
    }
    let is_local =
        |store: &Option<&Store>| store.is_none_or(|store| matches!(store.kind, StoreKind::Local { .. }));
    if accept_loss && !stores.iter().any(|(_, store)| is_local(store)) {
        let names: Vec<&str> = stores.iter().map(|(name, _)| *name).collect();
        bail!("--accept-loss applies only to a local store; the settings serve {:?}", names.join(", "));
    }
    let remote_stores = stores.iter().filter(|(_, store)| !is_local(store)).count();
    // Each remote store reads ahead, and each local store gathers uploads, within its share of the memory.
    let budget = settings.scalars.memory.budget.value.as_usize();
    let local_stores = stores.len() - remote_stores;
    let mut opened = Vec::new();
    for (name, store) in stores {
        let of_its_kind = if is_local(&store) { local_stores } else { remote_stores };
        let memory_bytes = budget / of_its_kind.max(1);
        let served = open_store(settings, store, super::OpenOptions { accept_loss, memory_bytes }, clock)?;
        let directory = local_directory(settings, store);
        opened.push(OpenedStore { name: name.to_owned(), directory, served });
    }
    Ok(opened)
}

/// The directory of a local store; `None` is the one in `data`.
fn local_directory(settings: &Settings, store: Option<&Store>) -> Option<PathBuf> {
    match store.map(|store| &store.kind) {
        None => Some(settings.data_directory().to_owned()),
        Some(StoreKind::Local { path, .. }) => Some(path.value.clone()),
        Some(StoreKind::S3(_) | StoreKind::Swift(_)) => None,
    }
}

/// A store with the layers that every store has.
#[derive(Debug)]
pub struct StackedStore {
    /// Its name in the settings.
    pub name: String,
    /// The leaf.
    pub served: ServedStore,
    /// The layer that schedules its rotating disk, if the settings say so.
    pub sliced: Option<Arc<Sliced>>,
    /// The layer that measures it.
    pub instrumented: Arc<Instrumented>,
    /// The layer that reads ahead, of a remote store.
    pub read_ahead: Option<Arc<ReadAhead>>,
}

impl StackedStore {
    fn new(
        settings: &Settings,
        opened: OpenedStore,
        disks: &mut DiskQueues,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let lanes_or_leaf = with_lanes(settings, opened.served.store(), clock.clone());
        let sliced = disks.wrap(settings, &opened, lanes_or_leaf.clone(), clock)?;
        let scheduled = sliced.clone().map_or(lanes_or_leaf, |sliced| sliced as Arc<dyn ObjectStore>);
        let OpenedStore { name, served, .. } = opened;
        let instrumented = Instrumented::new(scheduled, clock.clone());
        let read_ahead = served.plan().map(|plan| plan.wrap(instrumented.clone(), clock.clone()));
        Ok(Self { name, served, sliced, instrumented, read_ahead })
    }

    /// The top layer.
    #[must_use]
    pub fn top(&self) -> Arc<dyn ObjectStore> {
        match &self.read_ahead {
            Some(layer) => layer.clone(),
            None => self.instrumented.clone(),
        }
    }
}

/// A layer `routed` of a volume.
#[derive(Debug)]
pub struct ServedRouted {
    /// The volume.
    pub volume: String,
    /// The layer.
    pub layer: Arc<Routed>,
    /// Bytes per second at which objects are moved to the tier of their class; 0 moves none.
    pub move_rate: ByteSize,
}

/// A layer `transformed` of a volume.
#[derive(Debug)]
pub struct ServedTransformed {
    /// The volume.
    pub volume: String,
    /// The layer.
    pub layer: Arc<Transformed>,
    /// True if the volume has tiers, whose objects the layer does not encrypt.
    pub has_tiers: bool,
}

/// A layer `deduplicated` of a volume.
#[derive(Debug, Clone)]
pub struct ServedDeduplicated {
    /// The volume.
    pub volume: String,
    /// The layer.
    pub layer: Arc<Deduplicated>,
    /// The time between two deletions of unused chunks; 0 is never.
    pub collect_every: Duration,
}

/// Everything that is served.
pub struct ServedStores {
    /// The store of the gateway: the volumes, or the stack of the only one.
    pub store: Arc<dyn ObjectStore>,
    /// The volumes, if there are several.
    pub volumes: Option<Arc<Volumes>>,
    /// The stores below.
    pub stores: Vec<StackedStore>,
    /// The layers of the volumes.
    pub layers: VolumeLayers,
    /// True for each volume that rejects changes, in the order of [`Self::each_volume`].
    read_only: Vec<bool>,
    clock: Arc<dyn Clock>,
}

/// The layers of all volumes that metrics, commands and background work need.
#[derive(Default)]
pub struct VolumeLayers {
    /// The caches.
    pub caches: Vec<NamedCache>,
    /// The layers that write back.
    pub write_backs: Vec<NamedWriteBack>,
    /// The bytes of `memory.budget` for each of them.
    pub write_back_memory: u64,
    /// Their decision by class.
    pub class_writes: Arc<ClassWrites>,
    /// The layers `routed`.
    pub routed: Vec<ServedRouted>,
    /// The layers that schedule rotating disks.
    pub sliced: Vec<Arc<Sliced>>,
    /// The schedulers of rotating disks.
    pub disks: Vec<NamedDisk>,
    /// The layers `transformed`.
    pub transformed: Vec<ServedTransformed>,
    /// The layers `deduplicated`.
    pub deduplicated: Vec<ServedDeduplicated>,
}

impl VolumeLayers {
    /// On an error, all old policies stay.
    fn set_class_policies(&self, policies: &Arc<ClassPolicyTable>) -> anyhow::Result<()> {
        let checked = |named: &ServedTransformed| {
            let checked = named.layer.check_class_policies(policies);
            checked.with_context(|| {
                format!("volume {:?}: a key that was added is read at the next start", named.volume)
            })?;
            if named.has_tiers && named.layer.would_encrypt(policies) {
                bail!(
                    "volume {:?} has tiers, which are not encrypted: removed tiers need a restart",
                    named.volume
                );
            }
            Ok(())
        };
        self.transformed.iter().try_for_each(checked)?;
        if self.transformed.is_empty() && all_classes().any(|class| policies.encrypt(class) == Some(true)) {
            bail!("no volume encrypts: an added layer \"transformed\" needs a restart");
        }
        for named in &self.transformed {
            named.layer.set_class_policies(policies)?;
        }
        self.caches.iter().for_each(|named| named.cache.set_policies(policies.clone()));
        self.class_writes.set_policies(policies.clone());
        self.sliced.iter().for_each(|sliced| sliced.set_policies(policies.clone()));
        Ok(())
    }
}

impl fmt::Debug for ServedStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl ServedStores {
    /// Stacks the volumes on the opened stores. Runs within the runtime that serves them.
    pub async fn new(
        settings: &Settings,
        opened: Vec<OpenedStore>,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        for note in settings.named.notes() {
            tracing::warn!("{note}");
        }
        let mut disks = DiskQueues::default();
        let stores = opened.into_iter().map(|opened| StackedStore::new(settings, opened, &mut disks, clock));
        let stores: Vec<StackedStore> = stores.collect::<anyhow::Result<_>>()?;
        let sliced = stores.iter().filter_map(|store| store.sliced.clone()).collect();
        let write_back_memory = settings.write_back_memory().0;
        let disks = disks.into_named();
        let mut layers = VolumeLayers { sliced, disks, write_back_memory, ..VolumeLayers::default() };
        let (mut volumes, mut read_only) = (Vec::new(), Vec::new());
        let policies = Arc::new(settings.named.class_policies());
        // A journal is written back once it is open, by the policies in force.
        layers.class_writes.set_policies(policies.clone());
        for volume in settings.served_volumes()? {
            let mut caches = volume.layers.iter().filter_map(VolumeLayer::cached);
            read_only.push(caches.any(CachedSettings::is_read_only));
            volumes.push(stack_volume(&volume, &stores, &policies, &mut layers, clock).await?);
        }
        layers.set_class_policies(&policies)?;
        let default = volumes.remove(0);
        if volumes.is_empty() {
            let (store, clock) = (default.store, clock.clone());
            return Ok(Self { store, volumes: None, stores, layers, read_only, clock });
        }
        let volumes = Volumes::new(default, volumes);
        let (store, clock) = (volumes.clone(), clock.clone());
        Ok(Self { store, volumes: Some(volumes), stores, layers, read_only, clock })
    }

    /// Replaces the policies of classes of all layers. Fails if a layer would encrypt without a key; all old policies stay
    /// then.
    pub fn set_class_policies(&self, policies: &Arc<ClassPolicyTable>) -> anyhow::Result<()> {
        self.layers.set_class_policies(policies)
    }

    /// The stores for background work that is done for each volume by itself.
    #[must_use]
    pub fn each_volume(&self) -> Vec<Arc<dyn ObjectStore>> {
        self.volumes.as_ref().map_or_else(|| vec![self.store.clone()], Volumes::each_volume)
    }

    /// The stores for background work that changes each volume: those of [`Self::each_volume`] that accept changes.
    #[must_use]
    pub fn each_writable_volume(&self) -> Vec<Arc<dyn ObjectStore>> {
        let volumes = self.each_volume().into_iter().zip(&self.read_only);
        volumes.filter(|(_, is_read_only)| !**is_read_only).map(|(store, _)| store).collect()
    }

    /// The open files that connections to services may need.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.plans().map(|plan| plan.max_connections).fold(0, usize::saturating_add)
    }

    /// The most requests to admit; `None` without a remote store. Any of them may need a connection to the store with
    /// the fewest.
    #[must_use]
    pub fn max_requests(&self) -> Option<usize> {
        self.plans().map(|plan| plan.max_connections.max(1)).min()
    }

    fn plans(&self) -> impl Iterator<Item = Arc<crate::served_plan::ServedPlan>> {
        self.stores.iter().filter_map(|store| store.served.plan())
    }

    /// The local stores, with their names.
    pub fn local_stores(&self) -> impl Iterator<Item = (&str, &Arc<LocalStore>)> {
        self.stores.iter().filter_map(|store| match &store.served {
            ServedStore::Local(local) => Some((store.name.as_str(), local)),
            ServedStore::Remote(..) => None,
        })
    }

    /// Registers the metrics of all stores. A family of metrics must come from one collector.
    pub fn register_metrics(&self, metrics: &mut Registry) {
        let named =
            |store: &StackedStore| NamedStore { name: store.name.clone(), store: store.instrumented.clone() };
        metrics.register_collector(Box::new(StoreCollector(self.stores.iter().map(named).collect())));
        let plan = |store: &StackedStore| {
            let (layer, plan) = (store.read_ahead.clone()?, store.served.plan()?);
            Some(PlanOfStore { name: store.name.clone(), layer, plan })
        };
        let plans: Vec<PlanOfStore> = self.stores.iter().filter_map(plan).collect();
        if !plans.is_empty() {
            metrics.register_collector(Box::new(PlanCollector(plans)));
        }
        let named = |(name, store): (&str, &Arc<LocalStore>)| NamedStore {
            name: name.to_owned(),
            store: store.clone(),
        };
        let VolumeLayers { caches, write_backs, disks, deduplicated, .. } = &self.layers;
        if !disks.is_empty() {
            metrics.register_collector(Box::new(SliceCollector(disks.clone())));
        }
        if !deduplicated.is_empty() {
            let (layers, clock) = (deduplicated.clone(), self.clock.clone());
            metrics.register_collector(Box::new(DeduplicationCollector { layers, clock }));
        }
        if !caches.is_empty() {
            metrics.register_collector(Box::new(CacheCollector(caches.clone())));
        }
        if !write_backs.is_empty() {
            metrics.register_collector(Box::new(WriteBackCollector(write_backs.clone())));
        }
        let local: Vec<NamedStore<LocalStore>> = self.local_stores().map(named).collect();
        if !local.is_empty() {
            metrics.register_collector(Box::new(LocalCollector(local)));
        }
    }
}

/// Stacks the layers of a volume on its store.
async fn stack_volume(
    volume: &ServedVolume<'_>,
    stores: &[StackedStore],
    policies: &ClassPolicyTable,
    layers: &mut VolumeLayers,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Volume> {
    let mut leaves = Vec::new();
    for name in volume.store_names() {
        let Some(leaf) = stores.iter().find(|store| store.name == name) else {
            bail!("the store {name:?} of the volume {:?} is not open", volume.name);
        };
        leaves.push(leaf);
    }
    let leaf = leaves[0];
    let mut store = leaf.top();
    for layer in volume.layers.iter().rev() {
        match layer {
            VolumeLayer::Cached(set) => {
                let memory_bytes = layers.write_back_memory;
                if let Some(layer) =
                    write_back::open(set, volume, store.clone(), &layers.class_writes, memory_bytes, clock)
                        .await?
                {
                    let volume = volume.name.to_owned();
                    layers.write_backs.push(NamedWriteBack { volume, layer: layer.clone() });
                    store = layer;
                }
                let cache = open_cache(set, volume, &leaves, store, clock)?;
                layers.caches.push(NamedCache { volume: volume.name.to_owned(), cache: cache.clone() });
                store = if set.is_read_only() { ReadOnly::new(cache) } else { cache };
            }
            VolumeLayer::Routed(set) => {
                let layer = route(set, policies, &leaves, store);
                let move_rate = set.move_rate.value;
                let volume = volume.name.to_owned();
                layers.routed.push(ServedRouted { volume, layer: layer.clone(), move_rate });
                store = layer;
            }
            VolumeLayer::Transformed(set) => {
                let layer = transform(set, store)?;
                layer.set_class_policies(policies).with_context(|| format!("volume {:?}", volume.name))?;
                let has_tiers = volume.layers.iter().any(|layer| matches!(layer, VolumeLayer::Routed(_)));
                let volume = volume.name.to_owned();
                layers.transformed.push(ServedTransformed { volume, layer: layer.clone(), has_tiers });
                store = layer;
            }
            VolumeLayer::Deduplicated(set) => {
                let layer = deduplicate(set, store, clock).await?;
                let (volume, collect_every) = (volume.name.to_owned(), set.collect_every.value.0);
                layers.deduplicated.push(ServedDeduplicated { volume, layer: layer.clone(), collect_every });
                store = layer;
            }
        }
    }
    Ok(Volume {
        name: volume.name.to_owned(),
        store,
        leaf: leaf.name.clone(),
        tiers: leaves[1..].iter().map(|leaf| leaf.name.clone()).collect(),
        layers: volume.layers.len(),
        buckets: volume.buckets.iter().map(|bucket| (*bucket).clone()).collect(),
    })
}

/// Puts tiers above a store.
fn route(
    set: &RoutedSettings,
    policies: &ClassPolicyTable,
    leaves: &[&StackedStore],
    below: Arc<dyn ObjectStore>,
) -> Arc<Routed> {
    let (mut tiers, mut placement) = (Vec::new(), ClassTiers::new());
    for tier in &set.tiers {
        let name = &tier.store.value;
        let Some(store) = leaves.iter().find(|store| store.name == *name) else { continue };
        for class in tier.classes.iter().flat_map(|span| span.classes()) {
            placement = placement.with_class(class, tiers.len());
        }
        tiers.push(Tier { name: name.clone(), store: store.top() });
    }
    let base = leaves[0].name.clone();
    // The policy of a class overrides the layer, if it names a store of this volume.
    for class in all_classes() {
        let Some(name) = policies.tier(class) else { continue };
        if let Some(tier) = tiers.iter().position(|tier| tier.name == name) {
            placement = placement.with_class(class, tier);
        } else if name == base {
            placement = placement.with_class(class, tiers.len());
        }
    }
    Routed::new(tiers, Tier { name: base, store: below }, placement)
}

/// Puts a cache on a store.
fn open_cache(
    set: &CachedSettings,
    volume: &ServedVolume<'_>,
    leaves: &[&StackedStore],
    below: Arc<dyn ObjectStore>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Arc<Cached>> {
    let is_owner = leaves.iter().all(|leaf| matches!(leaf.served, ServedStore::Local(_)));
    let validation = match (set.validate.value, is_owner) {
        _ if set.writes_back() => Validation::Owner,
        (Validate::Never, _) | (Validate::Auto, true) => Validation::Owner,
        (Validate::Always, _) | (Validate::Auto, false) => Validation::Always,
        (Validate::After(age), _) => Validation::MaxAge(age.0),
    };
    let directory = set.disk.value.clone();
    let options = CachedOptions {
        directory: Some(directory.clone()),
        disk_bytes: set.size.value.0,
        memory_bytes: set.memory.value.as_usize(),
        validation,
        volume_id: volume.name.to_owned(),
    };
    let tiers = TierOptions {
        eviction: set.policy.value,
        verify_bytes_per_second: set.verify_rate.value.0,
        max_write_bytes_per_second: set.max_write_rate.as_ref().map(|rate| rate.value.0),
    };
    Cached::open_with_tiers(below, options, tiers, clock.clone())
        .with_context(|| format!("{}: cannot open the cache in {}", set.disk.source, directory.display()))
}

#[cfg(test)]
mod tests {
    use tradewind_core::SystemClock;
    use tradewind_model::class_policy::ClassChanges;

    use super::*;
    use crate::settings::Inputs;

    /// Opens what these settings serve, with relative paths in `directory`.
    async fn serve(directory: &tempfile::TempDir, text: &str) -> ServedStores {
        let file = Some((directory.path().join("tw.toml"), text.to_owned()));
        let settings = Settings::read(&Inputs { file, ..Inputs::default() }).unwrap();
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let opened = open_stores(&settings, false, &clock).unwrap();
        ServedStores::new(&settings, opened, &clock).await.unwrap()
    }

    const DISK: &str = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n";

    /// The new settings may have another stack; the one that runs decides.
    #[tokio::test]
    async fn encryption_that_the_running_stack_cannot_give_is_not_reloaded() {
        let changes = ClassChanges { encrypt: Some(true), ..ClassChanges::default() };
        let class = tradewind_core::Class::new(25).unwrap();
        let mut policies = ClassPolicyTable::default();
        policies.set(class, changes);
        let policies = Arc::new(policies);
        let tier = "[store.ssd]\ntype = \"local\"\npath = \"ssd\"\n";
        let transformed = "{ transformed = { key = \"main\", keys = { main = \"main.key\" } } }";
        let routed = "{ routed = { tiers = [\"ssd\"], classes = { ssd = [25] } } }";
        let cases = [
            (format!("{DISK}[volume.v]\nstack = [\"disk\"]\n"), "no volume encrypts"),
            (format!("{DISK}{tier}[volume.v]\nstack = [{routed}, {transformed}, \"disk\"]\n"), "has tiers"),
        ];
        for (text, expected) in cases {
            let directory = tempfile::tempdir().unwrap();
            let key = directory.path().join("main.key");
            std::fs::write(&key, "07".repeat(32)).unwrap();
            std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            let served = serve(&directory, &text).await;
            let error = served.set_class_policies(&policies).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            served.store.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_single_volume_has_no_layer_for_volumes() {
        let directory = tempfile::tempdir().unwrap();
        let served = serve(&directory, &format!("{DISK}[volume.v]\nstack = [\"disk\"]\n")).await;
        assert!(served.volumes.is_none() && served.each_volume().len() == 1);
        assert_eq!(served.store.capabilities().kind, "local");
        assert_eq!((served.max_requests(), served.max_connections()), (None, 0));
        served.store.close().await.unwrap();
    }

    #[tokio::test]
    async fn read_only_volume_is_served_without_changes() {
        let directory = tempfile::tempdir().unwrap();
        let bucket = tradewind_core::BucketName::new("bucket").unwrap();
        let context = tradewind_core::testing::context();
        let stack = |write: &str| {
            let cache = "disk = \"cache\", size = \"64MiB\", memory = \"1MiB\", policy = \"lru\"";
            format!("{DISK}[volume.v]\nstack = [{{ cached = {{ {cache}, write = {write:?} }} }}, \"disk\"]\n")
        };
        let served = serve(&directory, &stack("through")).await;
        served.store.create_bucket(&context, &bucket).await.unwrap();
        served.store.close().await.unwrap();
        drop(served);
        let served = serve(&directory, &stack("read-only")).await;
        served.store.head_bucket(&context, &bucket).await.unwrap();
        let error = served.store.delete_bucket(&context, &bucket).await.unwrap_err();
        assert_eq!(error.reason(), tradewind_core::Reason::AccessDenied);
        served.store.head_bucket(&context, &bucket).await.unwrap();
        served.store.close().await.unwrap();
    }

    /// A journal is drained once it is open, before all volumes are stacked.
    #[tokio::test]
    async fn journal_is_drained_by_the_policies_of_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("main.key");
        std::fs::write(&key, "07".repeat(32)).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let transformed = "{ transformed = { key = \"main\", keys = { main = \"main.key\" } } }";
        let cached = "{ cached = { disk = \"c\", size = \"64MiB\", memory = \"1MiB\", write = \"back\" } }";
        let text = format!("{DISK}[volume.v]\nstack = [{cached}, {transformed}, \"disk\"]\n");
        let context = tradewind_core::testing::context();
        let address = tradewind_core::Address::parse("bucket", "mail").unwrap();
        let served = serve(&directory, &text).await;
        served.store.create_bucket(&context, &address.bucket).await.unwrap();
        let mut request = tradewind_core::store::StageRequest { size: Some(4), ..Default::default() };
        request.metadata.classes.object = Some(tradewind_core::Class::new(25).unwrap());
        let mut staged = served.store.stage(&context, &address, request).await.unwrap();
        staged.write("text".into()).await.unwrap();
        staged.commit(Default::default()).await.unwrap();
        assert_eq!(served.layers.write_backs[0].layer.status().dirty_objects, 1);
        // Lost: nothing is written back.
        drop(served);

        let text = format!("{text}[class.25]\nencrypt = true\n");
        let file = Some((directory.path().join("tw.toml"), text));
        let settings = Settings::read(&Inputs { file, ..Inputs::default() }).unwrap();
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let policies = Arc::new(settings.named.class_policies());
        let mut attempts = 0;
        let (stores, mut layers) = loop {
            let mut layers = VolumeLayers::default();
            let stacked = async {
                let opened = open_stores(&settings, false, &clock)?.remove(0);
                let stores = vec![StackedStore::new(&settings, opened, &mut DiskQueues::default(), &clock)?];
                let volume = settings.served_volumes()?.remove(0);
                stack_volume(&volume, &stores, &policies, &mut layers, &clock).await?;
                anyhow::Ok(stores)
            };
            match stacked.await {
                Ok(stores) => break (stores, layers),
                // Tasks of the lost server end.
                Err(error) if attempts < 4000 && format!("{error:#}").contains("process") => {
                    attempts += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error:#}"),
            }
        };
        let write_back = layers.write_backs.remove(0).layer;
        while write_back.status().dirty_objects > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let found = stores[0].top().head(&context, &address, Default::default()).await.unwrap();
        assert!(found.info.stored.is_some(), "the store below has plain text");
    }

    #[tokio::test]
    async fn a_store_of_several_volumes_is_opened_once() {
        let directory = tempfile::tempdir().unwrap();
        let volumes = "[volume.v]\nstack = [\"disk\"]\n[volume.w]\nstack = [\"disk\"]\n[bucket.photos]\nvolume = \"w\"\n";
        let served = serve(&directory, &format!("default_volume = \"v\"\n{DISK}{volumes}")).await;
        assert_eq!((served.stores.len(), served.each_volume().len()), (1, 2));
        let volumes = served.volumes.clone().unwrap();
        let photos = tradewind_core::BucketName::new("photos").unwrap();
        assert_eq!(volumes.volume_name(&photos), "w");
        served.store.close().await.unwrap();
    }

    #[tokio::test]
    async fn stores_on_one_device_share_its_scheduler_and_get_shares_of_classes() {
        let directory = tempfile::tempdir().unwrap();
        let store = |name: &str, slices: &str| {
            format!(
                "[store.{name}]\ntype = \"local\"\npath = {name:?}\n{slices}[volume.{name}]\nstack = [{name:?}]\n"
            )
        };
        let (slices, faster) = ("slices = {}\n", "slices = { throughput = \"200MB\" }\n");
        let text = format!(
            "default_volume = \"one\"\n{}{}{}[class.25]\nshare = 3\n",
            store("one", slices),
            store("two", slices),
            store("three", "")
        );
        let served = serve(&directory, &text).await;
        let is_sliced: Vec<bool> = served.stores.iter().map(|store| store.sliced.is_some()).collect();
        assert_eq!(is_sliced, [true, true, false]);
        let disks: Vec<_> = served.layers.sliced.iter().map(|sliced| sliced.disk().clone()).collect();
        assert!(Arc::ptr_eq(&disks[0], &disks[1]));
        let class = tradewind_core::Class::new(25).unwrap();
        let shares =
            served.layers.sliced.iter().map(|sliced| sliced.policies().stream_share(class).weight.get());
        assert_eq!(shares.collect::<Vec<_>>(), [3, 3]);
        served.store.close().await.unwrap();

        let directory = tempfile::tempdir().unwrap();
        let text = format!("default_volume = \"one\"\n{}{}", store("one", slices), store("two", faster));
        let file = Some((directory.path().join("tw.toml"), text));
        let settings = Settings::read(&Inputs { file, ..Inputs::default() }).unwrap();
        let clock: Arc<dyn Clock> = SystemClock::shared();
        let opened = open_stores(&settings, false, &clock).unwrap();
        let refused = ServedStores::new(&settings, opened, &clock).await.unwrap_err();
        assert!(refused.to_string().contains("have different slices"), "{refused}");
    }

    #[tokio::test]
    async fn background_changes_leave_out_a_read_only_volume() {
        let directory = tempfile::tempdir().unwrap();
        let cached =
            "{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"1MiB\", write = \"read-only\" } }";
        let read_only = format!("[volume.fixed]\nstack = [{cached}, \"disk\"]\n");
        let served = serve(&directory, &format!("{DISK}{read_only}")).await;
        assert_eq!((served.each_volume().len(), served.each_writable_volume().len()), (1, 0));
        served.store.close().await.unwrap();
        drop(served);
        let more = "[store.two]\ntype = \"local\"\npath = \"two\"\n[volume.w]\nstack = [\"two\"]\n";
        for default in ["fixed", "w"] {
            let directory = tempfile::tempdir().unwrap();
            let more = format!("{more}[bucket.kept]\nvolume = \"w\"\n");
            let served =
                serve(&directory, &format!("default_volume = {default:?}\n{DISK}{read_only}{more}")).await;
            assert_eq!(served.each_volume().len(), 2);
            let [writable] = served.each_writable_volume().try_into().unwrap();
            let kept = tradewind_core::BucketName::new("kept").unwrap();
            writable.create_bucket(&tradewind_core::testing::context(), &kept).await.unwrap();
            served.store.close().await.unwrap();
        }
    }

    #[tokio::test]
    async fn requests_are_limited_by_the_smallest_service() {
        let directory = tempfile::tempdir().unwrap();
        let service = |name: &str, connections: usize| {
            format!(
                "[store.{name}]\ntype = \"swift\"\nopenrc = \"rc\"\nmax_connections = {connections}\n\
                 [volume.{name}]\nstack = [{name:?}]\n"
            )
        };
        let rc = "export ST_AUTH=http://127.0.0.1:1/auth\nexport ST_USER=a:b\nexport ST_KEY=c\n";
        std::fs::write(directory.path().join("rc"), rc).unwrap();
        let disk = format!("{DISK}[volume.disk]\nstack = [\"disk\"]\n");
        let text = format!("default_volume = \"disk\"\n{disk}{}{}", service("one", 40), service("two", 12));
        let served = serve(&directory, &text).await;
        assert_eq!((served.max_requests(), served.max_connections()), (Some(12), 52));
        served.store.close().await.unwrap();
    }
}
