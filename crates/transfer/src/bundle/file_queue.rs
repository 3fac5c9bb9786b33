//! Queue of the files to pack, in order of their names. Files that were taken can be put back.

use std::collections::VecDeque;

use tradewind_core::error::Error;

use crate::Item;
use crate::workers::{ActionFeed, NextAction};

/// Maximum number of files in a batch. Batching amortizes the wake-up of a thread over many small files.
const MAX_BATCH_FILES: usize = 64;
/// Maximum size of a batch. Larger files are not read ahead.
pub const MAX_BATCH_BYTES: u64 = 512 << 10;

/// A file to pack, or the name that cannot be listed and why.
pub type QueuedFile = Result<Item, (String, Error)>;

/// The queue.
pub struct FileQueue {
    /// Files that come before the rest of the feed.
    put_back: VecDeque<QueuedFile>,
    actions: ActionFeed,
}

impl FileQueue {
    pub const fn new(actions: ActionFeed) -> Self {
        Self { put_back: VecDeque::new(), actions }
    }

    /// The next batch; empty after the last one. Waits only for its first file.
    pub async fn next_batch(&mut self) -> Vec<QueuedFile> {
        let item = |next: NextAction| next.map(|action| action.item().clone());
        let first = match self.put_back.pop_front() {
            Some(first) => first,
            None => match self.actions.recv().await {
                Some(first) => item(first),
                None => return Vec::new(),
            },
        };
        let (mut bytes, mut batch) = (queued_bytes(&first), vec![first]);
        while batch.len() < MAX_BATCH_FILES
            && let Some(next) = self.put_back.pop_front().or_else(|| self.actions.try_recv().map(item))
        {
            bytes = bytes.saturating_add(queued_bytes(&next));
            if bytes > MAX_BATCH_BYTES {
                self.put_back.push_front(next);
                break;
            }
            batch.push(next);
        }
        batch
    }

    /// Puts files back; they come next, in the given order.
    pub fn put_back(&mut self, files: impl DoubleEndedIterator<Item = Item>) {
        files.rev().for_each(|item| self.put_back.push_front(Ok(item)));
    }
}

pub fn queued_bytes(file: &QueuedFile) -> u64 {
    file.as_ref().map_or(0, |item| item.size)
}
