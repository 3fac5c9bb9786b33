//! The head of a cached object: its address, everything that the backing store reported about it, the id of its
//! content, and when it was last compared with the backing store. Its form on the SSD is a codec of our own.

mod codec;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tradewind_core::{Address, ObjectInfo};

pub(crate) use codec::{decode_head, encode_head, encoded_bytes_with_data, is_one_extent};

/// The id of one immutable content. Unique: it is never assigned again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ContentId(pub u64);

/// The moment at which a head was known to be current.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The number of the opening of the cache; other fields mean nothing in another session.
    pub session: u64,
    /// The sequence number of bucket changes.
    pub sequence: u64,
    /// The monotonic time before the backing store was read.
    pub time: Duration,
}

impl Stamp {
    /// Of a head that was never compared: what a write is expected to have stored.
    pub const NEVER: Self = Self { session: 0, sequence: 0, time: Duration::ZERO };

    /// Returns true if a stamp of the current session says more than `other`, which may be of another one.
    pub fn is_later_than(&self, other: &Self) -> bool {
        self.session != other.session || self.time > other.time
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Head {
    /// The address, without a version.
    pub address: Address,
    /// The metadata that the backing store reported.
    pub info: ObjectInfo,
    /// The content.
    pub content: ContentId,
    /// All bytes, if the object is small and they are known.
    pub data: Option<Bytes>,
    stamp: Mutex<Stamp>,
    /// False while no extent of the content was filled.
    has_extents: AtomicBool,
}

impl Head {
    /// A head whose content has no extents yet.
    pub const fn new(
        address: Address,
        info: ObjectInfo,
        content: ContentId,
        data: Option<Bytes>,
        stamp: Stamp,
    ) -> Self {
        Self { address, info, content, data, stamp: Mutex::new(stamp), has_extents: AtomicBool::new(false) }
    }

    /// Records that extents of the content were filled.
    pub fn set_has_extents(&self) {
        self.has_extents.store(true, Ordering::Release);
    }

    /// Returns false if nothing is cached beside the head.
    pub fn has_extents(&self) -> bool {
        self.has_extents.load(Ordering::Acquire)
    }

    pub fn stamp(&self) -> Stamp {
        *self.stamp.lock()
    }

    /// Records a later comparison.
    pub fn set_stamp(&self, stamp: Stamp) {
        *self.stamp.lock() = stamp;
    }

    /// Approximate bytes of memory, its data included.
    pub fn memory_bytes(&self) -> usize {
        let metadata = &self.info.metadata;
        let headers: usize = metadata.headers.values().into_iter().flatten().map(String::len).sum();
        let pairs = metadata.user.iter().chain(metadata.tags.pairs());
        let pairs: usize =
            pairs.map(|(name, value)| name.len() + value.len() + 2 * size_of::<String>()).sum();
        size_of::<Self>()
            + self.address.key.as_str().len()
            + self.address.bucket.as_str().len()
            + self.info.etag.as_str().len()
            + headers
            + pairs
            + size_of_val(metadata.classes.ranges.as_slice())
            + size_of_val(self.info.checksums.as_slice())
            + self.data.as_ref().map_or(0, Bytes::len)
    }
}
