//! The stores that the served volumes use, each opened once.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use tradewind_core::Clock;

use super::{OpenOptions, ServedStore, open_store};
use crate::settings::{Settings, Store, StoreKind};

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
        let served = open_store(settings, store, OpenOptions { accept_loss, memory_bytes }, clock)?;
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
