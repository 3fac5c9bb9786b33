//! Contents in use by readers and fills. The extents of a content that no head refers to are freed when its last use
//! ends: a reader delivers one content to its end, and extents that a fill still stores must not stay behind.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Tiers;
use super::removal::OrphanedContent;
use crate::changes::Token;
use crate::fingerprint::ContentTag;
use crate::head::{ContentId, Head};

/// The contents in use. See the module's head.
#[derive(Debug, Default)]
pub(super) struct ContentUses(Mutex<UsedContents>);

#[derive(Debug, Default)]
struct UsedContents {
    by_id: HashMap<u64, UsedContent>,
    /// Their number by the tag that the index of the SSD has.
    tags: HashMap<ContentTag, u32>,
}

#[derive(Debug, Default)]
struct UsedContent {
    uses: usize,
    filled: FilledExtents,
    /// Present once no head refers to the content.
    orphan: Option<OrphanedContent>,
    /// True if no head ever referred to the content: it has only the extents that its uses filled.
    is_discarded: bool,
}

/// The least range that has all extents that were filled since the first use of a content.
#[derive(Debug, Default)]
struct FilledExtents(Option<Range<u32>>);

impl FilledExtents {
    fn add(&mut self, number: u32) {
        let end = number.saturating_add(1);
        let filled = self.0.get_or_insert(number..end);
        *filled = filled.start.min(number)..filled.end.max(end);
    }
}

impl ContentUses {
    fn begin(&self, content: ContentId, tag: ContentTag) {
        let UsedContents { by_id, tags } = &mut *self.0.lock();
        let used = by_id.entry(content.0).or_default();
        if used.uses == 0 {
            *tags.entry(tag).or_default() += 1;
        }
        used.uses += 1;
    }

    /// Ends a use. Returns the content if it was the last one.
    fn end(&self, content: ContentId, tag: ContentTag) -> Option<UsedContent> {
        let UsedContents { by_id, tags } = &mut *self.0.lock();
        let used = by_id.get_mut(&content.0)?;
        used.uses -= 1;
        if used.uses > 0 {
            return None;
        }
        if let Entry::Occupied(mut count) = tags.entry(tag) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        by_id.remove(&content.0)
    }

    /// Returns true if a content with this tag is in use.
    fn has_tag(&self, tag: ContentTag) -> bool {
        self.0.lock().tags.contains_key(&tag)
    }

    fn add_filled(&self, content: ContentId, number: u32) {
        if let Some(used) = self.0.lock().by_id.get_mut(&content.0) {
            used.filled.add(number);
        }
    }

    fn discard(&self, content: ContentId) {
        if let Some(used) = self.0.lock().by_id.get_mut(&content.0) {
            used.is_discarded = true;
        }
    }

    /// Leaves a content to its last use. Returns false if it is not in use.
    pub fn defer(&self, orphan: OrphanedContent) -> bool {
        let mut contents = self.0.lock();
        let used = contents.by_id.get_mut(&orphan.content().0);
        used.is_some_and(|used| {
            used.orphan = Some(orphan);
            true
        })
    }
}

/// A use of a content, which ends when it is dropped.
pub(crate) struct ContentUse {
    tiers: Arc<Tiers>,
    /// A head with the content.
    head: Arc<Head>,
    /// The moment from which on the head was cached, or is put into the cache.
    token: Token,
}

impl ContentUse {
    /// The tiers that hold the content.
    pub const fn tiers(&self) -> &Arc<Tiers> {
        &self.tiers
    }

    /// A head with the content.
    pub const fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// Returns true if the key has not changed since the head was cached, or began to be put into the cache.
    pub fn is_current(&self) -> bool {
        self.tiers.changes.is_current(&self.token)
    }

    /// Returns true if a reader or a fill uses a content with this tag.
    pub fn is_tag_in_use(&self, tag: ContentTag) -> bool {
        self.tiers.content_uses.has_tag(tag)
    }

    /// Records that an extent is filled.
    pub fn add_filled(&self, number: u32) {
        self.head.set_has_extents();
        self.tiers.content_uses.add_filled(self.head.content, number);
    }

    /// Lets the last use free what was filled. The caller guarantees that no head with the content was cached.
    pub fn discard(&self) {
        self.tiers.content_uses.discard(self.head.content);
    }
}

impl Tiers {
    /// Begins a use of the content of a head.
    pub fn use_content(self: &Arc<Self>, head: &Arc<Head>, token: &Token) -> Arc<ContentUse> {
        self.content_uses.begin(head.content, self.fingerprints.content_tag(head.content));
        Arc::new(ContentUse { tiers: self.clone(), head: head.clone(), token: *token })
    }
}

impl Drop for ContentUse {
    fn drop(&mut self) {
        let Self { tiers, head, token } = self;
        let Some(used) = tiers.content_uses.end(head.content, tiers.fingerprints.content_tag(head.content))
        else {
            return;
        };
        match (used.orphan, used.filled.0) {
            (Some(orphan), _) => tiers.free(orphan),
            (None, None) => {}
            (None, Some(filled)) if used.is_discarded => tiers.free_filled(head, filled),
            // A change of the key removed no head that was not stored yet, and it is not stored after that.
            (None, Some(_)) if !tiers.changes.is_current(token) => {
                tiers.free_without_head(head, token.hash());
            }
            (None, Some(_)) => {}
        }
    }
}
