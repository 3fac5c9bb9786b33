//! Files that wait to be packed, in the order of their names. What was taken can be put back.

use std::collections::VecDeque;

use tradewind_core::error::Error;

use crate::Item;
use crate::moves::{Decided, Next};

/// Files of one batch: a thread is not worth waking for one of 4 KiB.
const BATCH_FILES: usize = 64;
/// Bytes of one batch. Larger files are not read ahead.
pub const BATCH_BYTES: u64 = 512 << 10;

/// A file, or why there is none.
pub type Found = Result<Item, (String, Error)>;

/// Everything that is decided to be packed.
pub struct Waiting {
    /// Before everything that is still to come.
    put_back: VecDeque<Found>,
    decided: Decided,
}

impl Waiting {
    pub const fn new(decided: Decided) -> Self {
        Self { put_back: VecDeque::new(), decided }
    }

    /// The next batch, empty behind the last one. It waits for its first file only.
    pub async fn batch(&mut self) -> Vec<Found> {
        let item = |next: Next| next.map(|action| action.item().clone());
        let first = match self.put_back.pop_front() {
            Some(first) => first,
            None => match self.decided.recv().await {
                Some(first) => item(first),
                None => return Vec::new(),
            },
        };
        let (mut bytes, mut batch) = (size_of_found(&first), vec![first]);
        while batch.len() < BATCH_FILES
            && let Some(next) = self.put_back.pop_front().or_else(|| self.decided.try_recv().map(item))
        {
            bytes = bytes.saturating_add(size_of_found(&next));
            if bytes > BATCH_BYTES {
                self.put_back.push_front(next);
                break;
            }
            batch.push(next);
        }
        batch
    }

    /// Takes files back, which come next then, in this order.
    pub fn put_back(&mut self, files: impl DoubleEndedIterator<Item = Item>) {
        files.rev().for_each(|item| self.put_back.push_front(Ok(item)));
    }
}

pub fn size_of_found(found: &Found) -> u64 {
    found.as_ref().map_or(0, |item| item.size)
}
