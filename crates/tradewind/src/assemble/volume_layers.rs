//! The layers of volumes, stacked on the served stores, and what metrics, commands and background work need of them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tradewind_cache::{Cached, CachedOptions, OutageOptions, ReadOnly, TierOptions, Validation};
use tradewind_core::{Clock, ObjectStore};
use tradewind_layers::routed::ClassTiers;
use tradewind_layers::{Deduplicated, Routed, Sliced, Tier, Transformed, Volume};
use tradewind_model::class_policy::{ClassPolicyTable, all_classes};

use super::ServedStore;
use super::deduplicate::deduplicate;
use super::stores::StackedStore;
use super::transform_keys::transform;
use super::write_back::{self, ClassWrites};
use crate::cache_metrics::NamedCache;
use crate::settings::{ByteSize, CachedSettings, RoutedSettings, ServedVolume, Validate, VolumeLayer};
use crate::slice_metrics::NamedDisk;
use crate::write_back_metrics::NamedWriteBack;

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
    /// Replaces the policies of classes of all layers. Fails if a layer would encrypt without a key; all old policies stay
    /// then.
    pub(super) fn set_class_policies(&self, policies: &Arc<ClassPolicyTable>) -> anyhow::Result<()> {
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

/// Stacks the layers of a volume on its store. `other_volume` uses one of its stores, too.
pub(super) async fn stack_volume(
    volume: &ServedVolume<'_>,
    other_volume: Option<&str>,
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
                if let Some(layer) = write_back::open(
                    set,
                    volume,
                    other_volume,
                    store.clone(),
                    &layers.class_writes,
                    memory_bytes,
                    clock,
                )
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
        tiers: leaves[1..].iter().map(|leaf| Tier { name: leaf.name.clone(), store: leaf.top() }).collect(),
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
    let by_this_server_alone = if is_owner { Validation::Owner } else { Validation::SoleWriter };
    let validation = match set.validate.value {
        _ if set.writes_back() => by_this_server_alone,
        Validate::Never => by_this_server_alone,
        Validate::Auto if is_owner => Validation::Owner,
        Validate::Always | Validate::Auto => Validation::Always,
        Validate::After(age) => Validation::MaxAge(age.0),
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
        outage: OutageOptions {
            max_comparison_wait: set.comparison_wait.value.0,
            stale_if_unavailable: set.stale_if_unavailable.as_ref().map(|age| age.value.0),
        },
    };
    Cached::open_with_tiers(below, options, tiers, clock.clone())
        .with_context(|| format!("{}: cannot open the cache in {}", set.disk.source, directory.display()))
}
