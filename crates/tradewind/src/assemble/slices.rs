//! The schedulers of rotating disks: one for each disk, which all stores on it share.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tradewind_core::{Clock, ObjectStore};
use tradewind_layers::{DiskQueue, Sliced};

use super::OpenedStore;
use crate::settings::{Settings, StoreKind};
use crate::slice_metrics::NamedDisk;

/// The disks by the device number of their file systems. Partitions of one disk count as several.
#[derive(Debug, Default)]
pub(super) struct DiskQueues {
    disks: BTreeMap<u64, SharedDisk>,
}

#[derive(Debug)]
struct SharedDisk {
    queue: Arc<DiskQueue>,
    /// The first store on it.
    store: String,
}

impl DiskQueues {
    /// The schedulers, by the names of the first stores on the disks.
    pub fn into_named(self) -> Vec<NamedDisk> {
        self.disks.into_values().map(|disk| NamedDisk { name: disk.store, queue: disk.queue }).collect()
    }

    /// Schedules an open store, if its settings have slices.
    pub fn wrap(
        &mut self,
        settings: &Settings,
        opened: &OpenedStore,
        store: Arc<dyn ObjectStore>,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Option<Arc<Sliced>>> {
        let named = settings.named.stores.iter().find(|named| named.name.value == opened.name);
        let slices = match named.map(|named| &named.kind) {
            Some(StoreKind::Local { options, .. }) => options.slices.as_ref(),
            _ => None,
        };
        let (Some(slices), Some(directory)) = (slices, &opened.directory) else { return Ok(None) };
        let metadata = fs::metadata(directory)
            .with_context(|| format!("cannot find the device of {}", directory.display()))?;
        let speed = slices.disk_speed();
        let disk = self.disks.entry(metadata.dev()).or_insert_with(|| SharedDisk {
            queue: DiskQueue::new(speed, clock.clone()),
            store: opened.name.clone(),
        });
        if disk.queue.speed() != speed {
            bail!(
                "{}: the stores {:?} and {:?} are on one device and have different slices; give both the same",
                slices.source,
                disk.store,
                opened.name
            );
        }
        Ok(Some(Sliced::new(store, disk.queue.clone())))
    }
}
