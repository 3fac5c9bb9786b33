//! Checkpoints of the index: written while the cache serves, and loaded in the background.

use std::io;
use std::path::Path;

use super::checkpoint::{CheckpointHeader, CheckpointWriter, MAX_CHUNK_ENTRIES, read_checkpoint};
use super::index::{BUCKET_ENTRIES, IndexEntry};
use super::{Disk, DiskState, MAX_REMOVALS_WHILE_LOADING};

impl Disk {
    /// Writes a checkpoint, on the calling thread. It need not be of one moment: each entry is verified when it is
    /// used. Returns false if the index is not loaded yet.
    pub fn write_checkpoint(&self, index_path: &Path, header: &CheckpointHeader) -> io::Result<bool> {
        let (buckets, changes) = {
            let state = self.state.lock();
            if state.removed_while_loading.is_some() {
                return Ok(false);
            }
            (state.index.buckets(), state.index.changes())
        };
        let mut writer = CheckpointWriter::create(index_path, header)?;
        let step = MAX_CHUNK_ENTRIES / BUCKET_ENTRIES;
        for first in (0..buckets).step_by(step) {
            let entries: Vec<IndexEntry> = {
                let state = self.state.lock();
                let range = first..(first + step).min(buckets);
                range.flat_map(|bucket| state.index.bucket_entries(bucket)).collect()
            };
            writer.chunk(&entries)?;
        }
        writer.finish()?;
        *self.checkpointed_changes.lock() = Some(changes);
        Ok(true)
    }

    /// True if the last checkpoint of this process has the current index.
    pub fn is_checkpointed(&self) -> bool {
        let changes = self.state.lock().index.changes();
        *self.checkpointed_changes.lock() == Some(changes)
    }

    /// Loads a checkpoint. If it is damaged or of another cache, the tier starts empty.
    pub(super) fn load_checkpoint(&self, path: &Path) {
        let mut loaded = DiskState::empty(self.bytes, self.eviction);
        loaded.set_policies(self.state.lock().class_policies.current());
        let result = read_checkpoint(path, |entry| loaded.restore(entry));
        let is_usable = result.is_ok_and(|header| header.cache_id == self.cache_id);
        loaded.frames.finish_claims();
        if !is_usable {
            tracing::warn!("the index of the cache is damaged; the SSD tier starts empty");
            loaded = DiskState::empty(self.bytes, self.eviction);
        }
        self.finish_load(loaded);
    }

    pub(super) fn finish_load(&self, loaded: DiskState) {
        self.replace_state(loaded);
        // The policies may have changed since the load began.
        self.apply_policies();
    }

    fn replace_state(&self, mut loaded: DiskState) {
        let mut state = self.state.lock();
        let removed = state.removed_while_loading.take().unwrap_or_default();
        if removed.len() >= MAX_REMOVALS_WHILE_LOADING {
            tracing::warn!(
                "too much changed while the index of the cache was loaded; the SSD tier starts empty"
            );
            loaded = DiskState::empty(self.bytes, self.eviction);
        }
        for place in removed {
            if let Some(slot) = loaded.index.find(place) {
                loaded.release_slot(slot);
            }
        }
        loaded.class_policies.inherit_prefix_generation(&state.class_policies);
        loaded.set_policies(state.class_policies.current());
        *state = loaded;
    }
}
