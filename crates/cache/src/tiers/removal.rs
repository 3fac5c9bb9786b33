//! Removal of heads, and of contents that no head refers to. Their extents are freed even if they are pinned: eviction
//! would not free those.

use std::ops::Range;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::{RemovalReason, Tiers};
use crate::changes::KeyHash;
use crate::disk::Removal;
use crate::extent::{EXTENT_BYTES, ExtentKey, Place};
use crate::fingerprint::ExtentName;
use crate::head::{ContentId, Head, decode_head};

/// Extents that are freed before other work has its turn.
const MAX_BATCH_EXTENTS: u32 = 1024;

/// A content that no head refers to.
#[derive(Debug, Clone, Copy)]
pub(super) struct OrphanedContent {
    content: ContentId,
    /// The first extent that may be cached.
    first: u32,
    /// The end of the extents that may be cached.
    end: u32,
    /// The fingerprint of its last head.
    head_fingerprint: u64,
    reason: RemovalReason,
}

impl OrphanedContent {
    /// The content of a removed head; `None` if its data went with it.
    fn of_head(head: &Head, head_fingerprint: u64, reason: RemovalReason) -> Option<Self> {
        let end = u32::try_from(head.info.size.div_ceil(EXTENT_BYTES as u64)).unwrap_or(u32::MAX);
        head.data.is_none().then_some(Self { content: head.content, first: 0, end, head_fingerprint, reason })
    }

    const fn is_empty(&self) -> bool {
        self.first >= self.end
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
        let name = ExtentName::of_head(hash.key);
        let disk = self.disk.as_ref();
        let (head, location) = match reason {
            RemovalReason::Changed => (self.ram.remove(hash.key), disk.and_then(|disk| disk.remove(name))),
            RemovalReason::Refilled => (self.ram.release(hash.key), disk.and_then(|disk| disk.release(name))),
        };
        if let Some(head) = head {
            // A read may have tracked it since.
            self.policies.retained().forget(hash.key, head.content);
            if let Some(orphan) = OrphanedContent::of_head(&head, hash.key, reason) {
                self.free_unused(orphan, &head);
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
            let Some(head) = payload.and_then(|payload| decode_head(&payload)) else {
                // The SSD fails, or other data has replaced the head.
                tiers.counters.removals_skipped.increment();
                return;
            };
            // The replacement, or a newer head, may have been stored in this place meanwhile.
            if Some(head.content) != replacement
                && !tiers.may_be_live(&head, hash)
                && let Some(orphan) = OrphanedContent::of_head(&head, hash.key, reason)
                && !tiers.content_uses.defer(orphan)
            {
                tiers.free_rest(orphan, removal);
            }
        });
    }

    /// Returns true if the present head of a key has the content of `head`, or cannot be read. Blocks.
    pub fn may_be_live(&self, head: &Head, hash: KeyHash) -> bool {
        if let Some(content) = self.ram.head_content(hash.key, &head.address) {
            return content == head.content;
        }
        let Some(disk) = self.disk.as_ref().filter(|disk| disk.contains_head(hash.key)) else { return false };
        let payload = disk.read_blocking(ExtentKey::Head(hash.key));
        let present = payload.and_then(|payload| decode_head(&payload));
        present.is_none_or(|present| present.content == head.content)
    }

    /// Frees extents of a content to which no head has ever referred, and which is not in use, in the background.
    pub(super) fn free_filled(self: &Arc<Self>, head: &Head, filled: Range<u32>) {
        let key = self.fingerprints.key(&head.address).key;
        // The object is the same: what the simulations have of its key is right.
        if let Some(orphan) = OrphanedContent::of_head(head, key, RemovalReason::Refilled) {
            let Range { start: first, end } = filled;
            self.free(OrphanedContent { first, end: end.min(orphan.end), ..orphan });
        }
    }

    /// Frees the content of a head in the background, unless the key has a head with it.
    pub(super) fn free_without_head(self: &Arc<Self>, head: &Arc<Head>, hash: KeyHash) {
        let reason = RemovalReason::Changed;
        let Some(orphan) = OrphanedContent::of_head(head, hash.key, reason) else { return };
        let disk = match (self.ram.head_content(hash.key, &head.address), &self.disk) {
            (Some(content), _) if content == orphan.content => return,
            (None, Some(disk)) if disk.contains_head(hash.key) => disk,
            _ => return self.free_unused(orphan, head),
        };
        let Some(removal) = disk.begin_removal() else {
            self.counters.removals_skipped.increment();
            return;
        };
        let (reader, tiers) = (disk.clone(), self.clone());
        disk.run_in_background(move || {
            let payload = reader.read_blocking(ExtentKey::Head(hash.key));
            let Some(stored) = payload.and_then(|payload| decode_head(&payload)) else {
                // It may be that of the content.
                tiers.counters.removals_skipped.increment();
                return;
            };
            if stored.content != orphan.content && !tiers.content_uses.defer(orphan) {
                tiers.free_rest(orphan, removal);
            }
        });
    }

    /// Frees the content of a head once it is not in use. What its last use has filled is known then.
    fn free_unused(self: &Arc<Self>, orphan: OrphanedContent, head: &Head) {
        if !self.content_uses.defer(orphan) && head.has_extents() {
            self.free(orphan);
        }
    }

    /// Frees the extents of a content: in the background, or the first ones at once without an SSD or if too many removals
    /// are waiting for it.
    pub(super) fn free(self: &Arc<Self>, orphan: OrphanedContent) {
        let disk = self.disk.as_ref();
        if let Some((disk, removal)) = disk.and_then(|disk| Some((disk, disk.begin_removal()?))) {
            let tiers = self.clone();
            disk.run_in_background(move || tiers.free_rest(orphan, removal));
            return;
        }
        let rest = self.free_batch(orphan);
        if rest.is_empty() {
            return;
        }
        let tiers = self.clone();
        match (Handle::try_current(), disk) {
            (Ok(runtime), _) => {
                runtime.spawn(async move {
                    let mut rest = rest;
                    while !rest.is_empty() {
                        tokio::task::yield_now().await;
                        rest = tiers.free_batch(rest);
                    }
                });
            }
            // The threads of the SSD have no runtime.
            (Err(_), Some(disk)) => disk.run_in_background(move || tiers.free(rest)),
            // Without a runtime and an SSD, the process ends.
            (Err(_), None) => {}
        }
    }

    /// Frees the extents of a content: some of them at once, and the rest by further jobs of the I/O threads.
    fn free_rest(self: Arc<Self>, orphan: OrphanedContent, removal: Removal) {
        let rest = self.free_batch(orphan);
        match self.disk.clone() {
            Some(disk) if !rest.is_empty() => {
                disk.run_in_background(move || self.free_rest(rest, removal));
            }
            _ => drop(removal),
        }
    }

    /// Frees some extents of a content. Returns it with the rest.
    fn free_batch(&self, orphan: OrphanedContent) -> OrphanedContent {
        let end = orphan.end.min(orphan.first.saturating_add(MAX_BATCH_EXTENTS));
        // While the index is loaded, heads of earlier sessions are unknown, and extents of this one are not on the SSD.
        // Each removal would take a place in a bounded list.
        let disk = self.disk.as_ref().filter(|disk| disk.is_loaded());
        for number in orphan.first..end {
            let fingerprint = self.fingerprints.data(orphan.content, number);
            let place = Place { address: orphan.head_fingerprint, number };
            let name = self.fingerprints.name(ExtentKey::Data(place, orphan.content));
            match orphan.reason {
                RemovalReason::Changed => {
                    self.ram.remove_data(fingerprint, name.place);
                    disk.and_then(|disk| disk.remove(name));
                }
                RemovalReason::Refilled => {
                    self.ram.release_data(fingerprint);
                    disk.and_then(|disk| disk.release(name));
                }
            }
        }
        OrphanedContent { first: end, ..orphan }
    }
}
