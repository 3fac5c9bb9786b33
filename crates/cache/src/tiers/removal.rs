//! Removal of heads, and of contents that no head refers to. Their extents are freed even if they are pinned: eviction
//! would not free those.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::{RemovalReason, Tiers};
use crate::changes::KeyHash;
use crate::disk::Removal;
use crate::extent::{EXTENT_BYTES, ExtentKey};
use crate::head::{ContentId, Head, decode_head};

/// Extents that are freed before other work has its turn.
const MAX_BATCH_EXTENTS: u32 = 1 << 16;

/// A content that no head refers to.
#[derive(Debug, Clone, Copy)]
pub(super) struct OrphanedContent {
    content: ContentId,
    /// Number of its extents.
    extents: u32,
    /// The fingerprint of its last head.
    head_fingerprint: u64,
    reason: RemovalReason,
}

impl OrphanedContent {
    /// The content of a removed head; `None` if its data went with it.
    fn of_head(head: &Head, head_fingerprint: u64, reason: RemovalReason) -> Option<Self> {
        let extents = u32::try_from(head.info.size.div_ceil(EXTENT_BYTES as u64)).unwrap_or(u32::MAX);
        head.data.is_none().then_some(Self { content: head.content, extents, head_fingerprint, reason })
    }

    /// Its id.
    pub const fn content(&self) -> ContentId {
        self.content
    }
}

impl Tiers {
    /// Removes the head of a changed key, and in the background its content.
    pub fn remove_head(self: &Arc<Self>, hash: KeyHash) {
        self.remove(hash, RemovalReason::Changed, None);
    }

    /// Removes the head of a key whose object was cached again as the content `replacement`, and in the background the
    /// previous content.
    pub fn remove_refilled_head(self: &Arc<Self>, hash: KeyHash, replacement: ContentId) {
        self.remove(hash, RemovalReason::Refilled, Some(replacement));
    }

    fn remove(self: &Arc<Self>, hash: KeyHash, reason: RemovalReason, replacement: Option<ContentId>) {
        self.policies.retained().remove(hash.key);
        let head = match reason {
            RemovalReason::Changed => self.ram.remove(hash.key),
            RemovalReason::Refilled => self.ram.release(hash.key),
        };
        let location = self.disk.as_ref().and_then(|disk| disk.remove(hash.key));
        if let Some(head) = head {
            if let Some(orphan) = OrphanedContent::of_head(&head, hash.key, reason) {
                self.free_unused(orphan);
            }
            return;
        }
        let (Some(disk), Some(location)) = (&self.disk, location) else { return };
        let Some(removal) = disk.begin_removal() else {
            self.counters.removals_skipped.increment();
            return;
        };
        let (reader, tiers) = (disk.clone(), self.clone());
        disk.run_in_background(move || {
            let payload = reader.read_freed(ExtentKey::Head(hash.key), location);
            // The replacement may have been stored in this place meanwhile.
            let head = payload.and_then(|payload| decode_head(&payload));
            let head = head.filter(|head| Some(head.content) != replacement);
            if let Some(orphan) = head.and_then(|head| OrphanedContent::of_head(&head, hash.key, reason))
                && !tiers.content_uses.defer(orphan)
            {
                tiers.free_from(orphan, 0, removal);
            }
        });
    }

    /// Removes the data of an object that no head refers to, in the background.
    pub fn discard_content(self: &Arc<Self>, head: &Head) {
        let key = self.fingerprints.key(&head.address).key;
        // The object is the same: what the simulations have of its key is right.
        if let Some(orphan) = OrphanedContent::of_head(head, key, RemovalReason::Refilled) {
            self.free_unused(orphan);
        }
    }

    /// Frees the content of a head in the background, unless the key has a head with it.
    pub(super) fn free_without_head(self: &Arc<Self>, head: &Arc<Head>, hash: KeyHash) {
        let reason = RemovalReason::Changed;
        let Some(orphan) = OrphanedContent::of_head(head, hash.key, reason) else { return };
        let disk = match (self.ram.head_content(hash.key, &head.address), &self.disk) {
            (Some(content), _) if content == orphan.content => return,
            (None, Some(disk)) if disk.contains(hash.key) => disk,
            _ => return self.free_unused(orphan),
        };
        let Some(removal) = disk.begin_removal() else {
            self.counters.removals_skipped.increment();
            return;
        };
        let (reader, tiers) = (disk.clone(), self.clone());
        disk.run_in_background(move || {
            let payload = reader.read_blocking(ExtentKey::Head(hash.key));
            let stored = payload.and_then(|payload| decode_head(&payload));
            // One that cannot be read may be that of the content.
            if stored.is_some_and(|stored| stored.content != orphan.content)
                && !tiers.content_uses.defer(orphan)
            {
                tiers.free_from(orphan, 0, removal);
            }
        });
    }

    /// Frees a content once it is not in use.
    fn free_unused(self: &Arc<Self>, orphan: OrphanedContent) {
        if !self.content_uses.defer(orphan) {
            self.free(orphan);
        }
    }

    /// Frees the extents of a content: in the background, or at once without an SSD or if too many removals are waiting
    /// for it.
    pub(super) fn free(self: &Arc<Self>, orphan: OrphanedContent) {
        let disk = self.disk.as_ref();
        if let Some((disk, removal)) = disk.and_then(|disk| Some((disk, disk.begin_removal()?))) {
            let tiers = self.clone();
            disk.run_in_background(move || tiers.free_from(orphan, 0, removal));
            return;
        }
        let mut next = self.free_batch(&orphan, 0);
        // Without a runtime, the process ends.
        if next < orphan.extents
            && let Ok(runtime) = Handle::try_current()
        {
            let tiers = self.clone();
            runtime.spawn(async move {
                while next < orphan.extents {
                    tokio::task::yield_now().await;
                    next = tiers.free_batch(&orphan, next);
                }
            });
        }
    }

    /// Frees the extents of a content from `first` on: some of them at once, and the rest by further jobs of the I/O
    /// threads.
    fn free_from(self: Arc<Self>, orphan: OrphanedContent, first: u32, removal: Removal) {
        let next = self.free_batch(&orphan, first);
        match self.disk.clone() {
            Some(disk) if next < orphan.extents => {
                disk.run_in_background(move || self.free_from(orphan, next, removal));
            }
            _ => drop(removal),
        }
    }

    /// Frees some extents from `first` on. Returns the number of the next one, or of the end if the rest is not worth it:
    /// while the index is loaded, no extent of a later session is on the SSD, and each removal takes a place in a
    /// bounded list.
    fn free_batch(&self, orphan: &OrphanedContent, first: u32) -> u32 {
        let end = orphan.extents.min(first.saturating_add(MAX_BATCH_EXTENTS));
        for number in first..end {
            let fingerprint = self.fingerprints.data(orphan.content, number);
            match orphan.reason {
                RemovalReason::Changed => {
                    self.ram.remove_data(fingerprint, self.reuse_key(orphan.head_fingerprint, number));
                }
                RemovalReason::Refilled => self.ram.release_data(fingerprint),
            }
            if let Some(disk) = &self.disk {
                disk.remove(fingerprint);
            }
        }
        let is_loading = self.disk.as_ref().is_some_and(|disk| !disk.is_loaded());
        if is_loading { orphan.extents } else { end }
    }
}
