//! The served stores: each store that a volume uses gets the layers that every store has. Volumes are stacked on them.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tradewind_backend::local::LocalStore;
use tradewind_core::{BucketName, Clock, ObjectStore};
use tradewind_layers::routed::Tier;
use tradewind_layers::{Instrumented, ReadAhead, Sliced, Volumes};
use tradewind_model::class_policy::ClassPolicyTable;

use super::opened::OpenedStore;
use super::slices::DiskQueues;
use super::volume_layers::{VolumeLayers, stack_volume};
use super::{ServedStore, with_lanes};
use crate::cache_metrics::CacheCollector;
use crate::deduplication_metrics::DeduplicationCollector;
use crate::expiry::ExpiringStore;
use crate::settings::{CachedSettings, ServedVolume, Settings, VolumeLayer};
use crate::slice_metrics::SliceCollector;
use crate::store_metrics::{LocalCollector, NamedStore, PlanCollector, PlanOfStore, StoreCollector};
use crate::write_back_metrics::WriteBackCollector;

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
    /// The kinds of the volumes, in the order of [`Self::each_volume`].
    kinds: Vec<VolumeKind>,
    clock: Arc<dyn Clock>,
}

/// Properties of a volume that decide about background work.
#[derive(Debug, Clone)]
struct VolumeKind {
    /// It rejects changes.
    is_read_only: bool,
    /// All its stores are local.
    is_local: bool,
    /// Its name.
    name: String,
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
        let (mut volumes, mut kinds) = (Vec::new(), Vec::new());
        let policies = Arc::new(settings.named.class_policies());
        // A journal is written back once it is open, by the policies in force.
        layers.class_writes.set_policies(policies.clone());
        let served = settings.served_volumes()?;
        for volume in &served {
            let mut caches = volume.layers.iter().filter_map(VolumeLayer::cached);
            let is_remote = |store: &StackedStore| matches!(store.served, ServedStore::Remote(..));
            let is_used = |store: &StackedStore| volume.store_names().any(|name| name == store.name);
            kinds.push(VolumeKind {
                is_read_only: caches.any(CachedSettings::is_read_only),
                is_local: !stores.iter().any(|store| is_remote(store) && is_used(store)),
                name: volume.name.to_owned(),
            });
            let shares_a_store = |other: &&ServedVolume<'_>| {
                other.name != volume.name
                    && other.store_names().any(|name| volume.store_names().any(|own| own == name))
            };
            let other_volume = served.iter().find(shares_a_store).map(|other| other.name);
            let stacked = stack_volume(volume, other_volume, &stores, &policies, &mut layers, clock);
            volumes.push(stacked.await?);
        }
        layers.set_class_policies(&policies)?;
        let default = volumes.remove(0);
        if volumes.is_empty() {
            let (store, clock) = (default.store, clock.clone());
            return Ok(Self { store, volumes: None, stores, layers, kinds, clock });
        }
        let volumes = Volumes::new(default, volumes);
        let (store, clock) = (volumes.clone(), clock.clone());
        Ok(Self { store, volumes: Some(volumes), stores, layers, kinds, clock })
    }

    /// Replaces the policies of classes of all layers. Fails if a layer would encrypt without a key; all old policies stay
    /// then.
    pub fn set_class_policies(&self, policies: &Arc<ClassPolicyTable>) -> anyhow::Result<()> {
        self.layers.set_class_policies(policies)
    }

    /// True if a bucket belongs to the volume of this name, whether it exists or not.
    #[must_use]
    pub fn is_in_volume(&self, volume: &str, bucket: &BucketName) -> bool {
        self.volumes.as_ref().is_none_or(|volumes| volumes.volume_name(bucket) == volume)
    }

    /// The stores for background work that is done for each volume by itself.
    #[must_use]
    pub fn each_volume(&self) -> Vec<Arc<dyn ObjectStore>> {
        self.volumes.as_ref().map_or_else(|| vec![self.store.clone()], Volumes::each_volume)
    }

    /// The stores for background work that changes each volume: those of [`Self::each_volume`] that accept changes.
    #[must_use]
    pub fn each_writable_volume(&self) -> Vec<Arc<dyn ObjectStore>> {
        self.each_volume_of_kind(|kind| !kind.is_read_only)
    }

    /// The stores whose uploads may expire: each volume of [`Self::each_writable_volume`], or with `only_local` only local
    /// stores, which no other program changes. Of a volume with a service these are its local tiers themselves: a service
    /// that is slow or fails does not matter to them.
    #[must_use]
    pub fn expiring_stores(&self, only_local: bool) -> Vec<ExpiringStore> {
        let volumes = self.each_volume().into_iter().zip(&self.kinds);
        let stores = volumes.filter(|(_, kind)| !kind.is_read_only).flat_map(|(store, kind)| {
            if only_local && !kind.is_local {
                self.local_tiers(&kind.name)
            } else {
                vec![ExpiringStore { store, tier: None }]
            }
        });
        stores.collect()
    }

    /// The local tiers of a volume that also has a service.
    fn local_tiers(&self, volume: &str) -> Vec<ExpiringStore> {
        let is_local = |tier: &&Tier| self.local_stores().any(|(name, _)| name == tier.name);
        let layers = self.layers.routed.iter().filter(|routed| routed.volume == volume);
        let tiers = layers.flat_map(|routed| routed.layer.tiers()).filter(is_local);
        tiers.map(|tier| ExpiringStore { store: tier.store.clone(), tier: Some(tier.name.clone()) }).collect()
    }

    fn each_volume_of_kind(&self, is_wanted: fn(&VolumeKind) -> bool) -> Vec<Arc<dyn ObjectStore>> {
        let volumes = self.each_volume().into_iter().zip(&self.kinds);
        volumes.filter(|(_, kind)| is_wanted(kind)).map(|(store, _)| store).collect()
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
