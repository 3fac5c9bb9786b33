//! The volumes that `serve` serves: those of the settings, or an implicit one over a single store.

use std::path::Path;

use tradewind_core::BucketName;

use super::problem::Problems;
use super::source::{SettingSource, Sourced};
use super::volumes::{VolumeLayer, stack_text};
use super::{Settings, Store, StoreKind};

/// A volume to serve.
#[derive(Debug, Clone)]
pub struct ServedVolume<'a> {
    /// The name of the volume, or of its store if the settings have no volume.
    pub name: &'a str,
    /// The layers, the top one first.
    pub layers: &'a [VolumeLayer],
    /// The store at the bottom; `None` is the local store in `data`.
    pub store: Option<&'a Store>,
    /// The stores of its layers `routed`.
    pub tiers: Vec<&'a Store>,
    /// The buckets that the settings map to this volume.
    pub buckets: Vec<&'a BucketName>,
}

/// The name of the local store in `data`, in metrics and messages.
pub const IMPLICIT_STORE: &str = "local";

impl ServedVolume<'_> {
    /// The name of the store at the bottom.
    #[must_use]
    pub fn store_name(&self) -> &str {
        self.store.map_or(IMPLICIT_STORE, |store| &store.name.value)
    }

    /// The names of all its stores, the one at the bottom first.
    pub fn store_names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.store_name()).chain(self.tiers.iter().map(|store| store.name.value.as_str()))
    }

    /// The stack in the syntax of a settings file.
    #[must_use]
    pub fn stack_text(&self) -> String {
        stack_text(self.layers, self.store_name())
    }
}

impl Settings {
    /// The volumes to serve. The first one is the default: it has all buckets that are not mapped to another.
    ///
    /// The default is the volume that `default_volume` names, or the only one. Without volumes, it is the store that
    /// `server.store` names, the only store, or the local store in `data`. Fails if that is ambiguous.
    pub fn served_volumes(&self) -> Result<Vec<ServedVolume<'_>>, Problems> {
        let mut problems = Problems::default();
        let named = &self.named;
        if let Sourced { value: Some(name), source } = &self.scalars.server.store {
            self.check_single_store(name, source, &mut problems);
            let store = named.stores.iter().find(|store| store.name.value == *name);
            return problems.into_result(vec![implicit_volume(store)]);
        }
        if named.volumes.is_empty() {
            if let [first, second, ..] = named.stores.as_slice() {
                let message = format!(
                    "several stores are configured; choose the one to serve: server.store = {:?}, or define volumes \
                     to serve several: [volume.NAME]",
                    first.name.value
                );
                problems.add(&second.name.source, message);
            }
            return problems.into_result(vec![implicit_volume(named.stores.first())]);
        }
        let default = match (&self.scalars.top.default_volume.value, named.volumes.as_slice()) {
            (Some(name), _) => Some(name),
            (None, [only]) => Some(&only.name.value),
            (None, [first, second, ..]) => {
                let message = format!(
                    "several volumes are configured; choose the one for buckets that name none: \
                     default_volume = {:?} at the top of the file",
                    first.name.value
                );
                problems.add(&second.name.source, message);
                None
            }
            (None, []) => None,
        };
        let mut volumes: Vec<ServedVolume<'_>> =
            named.volumes.iter().map(|volume| self.served_volume(volume)).collect();
        // The sort is stable: the other volumes keep the order of the file.
        volumes.sort_by_key(|volume| Some(volume.name) != default.map(String::as_str));
        problems.into_result(volumes)
    }

    fn served_volume<'a>(&'a self, volume: &'a super::Volume) -> ServedVolume<'a> {
        let is_in_volume = |bucket: &&super::Bucket| {
            bucket.volume.as_ref().is_some_and(|name| name.value == volume.name.value)
        };
        ServedVolume {
            name: &volume.name.value,
            layers: &volume.layers,
            store: self.named.stores.iter().find(|store| store.name.value == volume.store.value),
            tiers: self.tiers(volume),
            buckets: self
                .named
                .buckets
                .iter()
                .filter(is_in_volume)
                .map(|bucket| &bucket.name.value)
                .collect(),
        }
    }

    /// The stores of the layers `routed` of a volume.
    fn tiers<'a>(&'a self, volume: &'a super::Volume) -> Vec<&'a Store> {
        let named = |name: &super::Sourced<String>| {
            self.named.stores.iter().find(|store| store.name.value == name.value)
        };
        volume.stores().skip(1).filter_map(named).collect()
    }

    /// Checks that a single store can be served although there are volumes: no layer may be bypassed, and no bucket may
    /// be in another store.
    fn check_single_store(&self, name: &str, source: &SettingSource, problems: &mut Problems) {
        let server_store = format!("server.store = {name:?} ({source})");
        if self.scalars.top.default_volume.value.is_some() {
            let message = format!("{server_store} serves one store without volumes; remove it, or this line");
            problems.add(&self.scalars.top.default_volume.source, message);
        }
        for volume in
            self.named.volumes.iter().filter(|volume| volume.stores().any(|store| store.value == name))
        {
            if !volume.layers.is_empty() {
                let message = format!(
                    "{server_store} serves the store without the layers of this volume; remove it to serve the volumes"
                );
                problems.add(&volume.name.source, message);
            }
        }
        for bucket in &self.named.buckets {
            let Some(set) = &bucket.volume else { continue };
            let volume = self.named.volumes.iter().find(|volume| volume.name.value == set.value);
            if volume.is_some_and(|volume| volume.store.value != name) {
                let message = format!(
                    "the bucket {:?} is in another store than the one that {server_store} serves; remove that to \
                     serve the volumes",
                    bucket.name.value.as_str()
                );
                problems.add(&set.source, message);
            }
        }
    }

    /// The store of the default volume. `None` is the local store in `data`, or no choice among several.
    #[must_use]
    pub fn default_store(&self) -> Option<&Store> {
        self.served_volumes().ok()?.first()?.store
    }

    /// The directory of a generated root key: `data`, or the directory of the default store if only that is set.
    #[must_use]
    pub fn data_directory(&self) -> &Path {
        match self.default_store().map(|store| &store.kind) {
            Some(StoreKind::Local { path, .. }) if self.scalars.top.data.source == SettingSource::Default => {
                &path.value
            }
            _ => &self.scalars.top.data.value,
        }
    }
}

/// The volume of a store if the settings have no volumes.
fn implicit_volume(store: Option<&Store>) -> ServedVolume<'_> {
    let name = store.map_or(IMPLICIT_STORE, |store| &store.name.value);
    ServedVolume { name, layers: &[], store, tiers: Vec::new(), buckets: Vec::new() }
}
