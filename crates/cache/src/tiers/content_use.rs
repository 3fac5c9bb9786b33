//! Contents in use by readers and fills. The extents of a content that no head refers to are freed when its last use
//! ends: a reader delivers one content to its end, and extents that a fill still stores must not stay behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Tiers;
use super::removal::OrphanedContent;
use crate::changes::Token;
use crate::head::{ContentId, Head};

/// The contents in use, by id. See the module's head.
#[derive(Debug, Default)]
pub(super) struct ContentUses(Mutex<HashMap<u64, UsedContent>>);

#[derive(Debug, Default)]
struct UsedContent {
    uses: usize,
    /// True if extents were filled since the first of the uses.
    is_filled: bool,
    /// Present once no head refers to the content.
    orphan: Option<OrphanedContent>,
}

impl ContentUses {
    fn begin(&self, content: ContentId) {
        self.0.lock().entry(content.0).or_default().uses += 1;
    }

    /// Ends a use, in which extents may have been filled. Returns the content if it was the last one.
    fn end(&self, content: ContentId, is_filled: bool) -> Option<UsedContent> {
        let mut contents = self.0.lock();
        let used = contents.get_mut(&content.0)?;
        used.uses -= 1;
        used.is_filled |= is_filled;
        if used.uses > 0 { None } else { contents.remove(&content.0) }
    }

    /// Leaves a content to its last use. Returns false if it is not in use.
    pub fn defer(&self, orphan: OrphanedContent) -> bool {
        let mut contents = self.0.lock();
        let used = contents.get_mut(&orphan.content().0);
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
    is_filled: AtomicBool,
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

    /// Records that an extent is filled.
    pub fn set_filled(&self) {
        self.is_filled.store(true, Ordering::Relaxed);
    }
}

impl Tiers {
    /// Begins a use of the content of a head.
    pub fn use_content(self: &Arc<Self>, head: &Arc<Head>, token: &Token) -> Arc<ContentUse> {
        self.content_uses.begin(head.content);
        let (tiers, head, is_filled) = (self.clone(), head.clone(), AtomicBool::new(false));
        Arc::new(ContentUse { tiers, head, token: *token, is_filled })
    }
}

impl Drop for ContentUse {
    fn drop(&mut self) {
        let Self { tiers, head, token, is_filled } = self;
        let Some(used) = tiers.content_uses.end(head.content, *is_filled.get_mut()) else { return };
        match used.orphan {
            Some(orphan) => tiers.free(orphan),
            // A change of the key removed no head that was not stored yet, and it is not stored after that.
            None if used.is_filled && !tiers.changes.is_current(token) => {
                tiers.free_without_head(head, token.hash());
            }
            None => {}
        }
    }
}
