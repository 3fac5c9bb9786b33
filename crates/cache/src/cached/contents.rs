//! The cached part of an object, and its removal: for operators, apart from reads and changes. Neither is a use of the
//! object: the order of eviction stays.

use std::time::Duration;

use tradewind_core::object::ETag;
use tradewind_core::{Address, Span};

use super::Cached;
use crate::changes::KeyHash;
use crate::head::Head;
use crate::reader::extents;

/// The time between two checks of the fills in flight.
const FILL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The part of an object that is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedPart {
    /// Nothing, or another object than the expected one.
    Nothing,
    /// Metadata, and not all bytes.
    Some,
    /// Everything; some of it is only in memory, although there is an SSD.
    All,
    /// Everything, on the SSD if there is one.
    Stored,
}

impl Cached {
    /// The part of an object that is cached. The object is the one with the entity tag `etag`.
    pub async fn cached_part(&self, address: &Address, etag: &ETag) -> CachedPart {
        let hash = self.tiers.fingerprints.key(address);
        if self.tiers.changes.token(hash).is_none() {
            return CachedPart::Nothing;
        }
        match self.tiers.peek_head(address, hash).await {
            Some(head) if head.info.etag == *etag => self.part_of(&head, hash),
            _ => CachedPart::Nothing,
        }
    }

    fn part_of(&self, head: &Head, hash: KeyHash) -> CachedPart {
        let has_ssd = self.tiers.disk.is_some();
        let mut is_stored = !has_ssd || self.tiers.is_on_ssd(hash.key);
        if head.data.is_none() {
            // An empty object is read from the cache if its data, which is empty, is cached with its head.
            if head.info.size == 0 {
                return CachedPart::Some;
            }
            for number in extents(Span::whole(head.info.size)) {
                if self.tiers.locate(head, number).is_none() {
                    return CachedPart::Some;
                }
                is_stored = is_stored && (!has_ssd || self.tiers.has_indexed(head, number));
            }
        }
        if is_stored { CachedPart::Stored } else { CachedPart::All }
    }

    /// Drops what is cached of an object. Returns true if anything was; false, too, for an object on the SSD while the
    /// index is loaded, although it is dropped. The space on the SSD is freed in the background.
    pub fn evict(&self, address: &Address) -> bool {
        let hash = self.tiers.fingerprints.key(address);
        let is_on_ssd = self.tiers.is_on_ssd(hash.key);
        let is_cached = is_on_ssd || self.tiers.ram.contains(hash.key);
        self.drop_head(hash);
        is_cached
    }

    /// Waits until the space of objects that were dropped so far is free. It does not wait for those that are being read
    /// or stored, whose last use frees them, and for those that are left to eviction, which
    /// [`CacheCounters::removals_skipped`](crate::CacheCounters::removals_skipped) counts.
    pub async fn finish_evictions(&self) {
        if let Some(disk) = &self.tiers.disk {
            disk.finish_removals().await;
        }
    }

    /// Waits until the SSD keeps up with reads that fill the cache, so that the next one can be cached as a whole; at
    /// most for `max_wait`.
    pub async fn wait_for_fills(&self, max_wait: Duration) {
        let deadline = self.clock.now() + max_wait;
        while !self.tiers.has_free_fills() && self.clock.now() < deadline {
            self.clock.sleep_until(self.clock.now() + FILL_POLL_INTERVAL).await;
        }
    }

    /// Bytes in use on the SSD, in blocks of 4 KiB.
    #[must_use]
    pub fn ssd_used_bytes(&self) -> u64 {
        self.tiers.disk.as_ref().map_or(0, |disk| disk.used_bytes())
    }

    /// Size of the SSD tier in bytes; `None` if there is no SSD, or it could not be used when the cache was opened.
    #[must_use]
    pub fn ssd_size_bytes(&self) -> Option<u64> {
        self.tiers.disk.as_ref().map(|disk| disk.bytes())
    }

    /// Size of the memory tier in bytes.
    #[must_use]
    pub fn memory_size_bytes(&self) -> usize {
        self.tiers.ram.limit_bytes() + self.tiers.stamps.memory_bytes()
    }

    /// The bytes of data that the larger tier holds: no larger object can be cached as a whole.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.ssd_size_bytes().unwrap_or(0).max(self.tiers.ram.data_limit_bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tradewind_core::object::Expected;
    use tradewind_core::store::{GetRequest, StageRequest};
    use tradewind_core::testing::{MemoryStore, SimulatedClock, context, drain, pattern, write_all};
    use tradewind_core::{BucketName, ObjectStore};

    use super::*;
    use crate::{CachedOptions, Validation};

    const SMALL: u64 = 4096;
    const LARGE: u64 = 300_000;

    struct Scene {
        _directory: tempfile::TempDir,
        store: Arc<MemoryStore>,
        cached: Arc<Cached>,
    }

    impl Scene {
        async fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let clock = SimulatedClock::new();
            let store = MemoryStore::new(clock.clone());
            let options = CachedOptions {
                directory: Some(directory.path().to_owned()),
                disk_bytes: 64 << 20,
                memory_bytes: 8 << 20,
                validation: Validation::Owner,
                volume_id: "v".to_owned(),
            };
            let cached = Cached::open(store.clone(), options, clock).unwrap();
            cached.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
            Self { _directory: directory, store, cached }
        }

        /// Writes to the backing store.
        async fn write(&self, address: &Address, bytes: Bytes) -> ETag {
            let mut staged = self.store.stage(&context(), address, StageRequest::default()).await.unwrap();
            write_all(&mut *staged, bytes).await.unwrap();
            staged.commit(Expected::default()).await.unwrap().0.etag
        }

        async fn read(&self, address: &Address) {
            let found = self.cached.get(&context(), address, GetRequest::default()).await.unwrap();
            drain(found.body).await.unwrap();
            self.cached.flush().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn object_is_nothing_then_stored_then_nothing() {
        let scene = Scene::new().await;
        for size in [0, SMALL, LARGE] {
            let address = Address::parse("bucket", &format!("key-{size}")).unwrap();
            let etag = scene.write(&address, pattern(size as usize, size)).await;
            assert_eq!(scene.cached.cached_part(&address, &etag).await, CachedPart::Nothing, "{size}");
            assert!(!scene.cached.evict(&address), "{size}");
            scene.read(&address).await;
            assert_eq!(scene.cached.cached_part(&address, &etag).await, CachedPart::Stored, "{size}");
            let other = ETag::from_tag("other");
            assert_eq!(scene.cached.cached_part(&address, &other).await, CachedPart::Nothing, "{size}");
            assert!(scene.cached.evict(&address), "{size}");
            assert_eq!(scene.cached.cached_part(&address, &etag).await, CachedPart::Nothing, "{size}");
        }
        scene.cached.finish_evictions().await;
        assert_eq!((scene.cached.ssd_used_bytes(), scene.cached.ssd_extents()), (0, 0));
        assert_eq!(scene.cached.ssd_size_bytes(), Some(64 << 20));
        assert_eq!(scene.cached.capacity_bytes(), 64 << 20);
        scene.cached.close().await.unwrap();
    }

    #[tokio::test]
    async fn capacity_without_an_ssd_is_the_memory_for_data() {
        let clock = SimulatedClock::new();
        let options = CachedOptions {
            directory: None,
            disk_bytes: 0,
            memory_bytes: 16 << 20,
            validation: Validation::Owner,
            volume_id: "v".to_owned(),
        };
        let cached = Cached::open(MemoryStore::new(clock.clone()), options, clock).unwrap();
        let (capacity, memory) = (cached.capacity_bytes(), cached.memory_size_bytes() as u64);
        assert!(capacity > memory * 7 / 8 && capacity <= memory * 15 / 16, "{capacity} of {memory}");
        cached.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn empty_object_known_by_a_head_is_stored_when_it_is_read() {
        let scene = Scene::new().await;
        let address = Address::parse("bucket", "empty").unwrap();
        let etag = scene.write(&address, Bytes::new()).await;
        scene.cached.head(&context(), &address, GetRequest::default()).await.unwrap();
        assert_eq!(scene.cached.cached_part(&address, &etag).await, CachedPart::Some);
        scene.read(&address).await;
        assert_eq!(scene.cached.cached_part(&address, &etag).await, CachedPart::Stored);
        scene.cached.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn empty_object_known_by_a_head_is_not_stored_in_memory() {
        let clock = SimulatedClock::new();
        let options = CachedOptions {
            directory: None,
            disk_bytes: 0,
            memory_bytes: 16 << 20,
            validation: Validation::Owner,
            volume_id: "v".to_owned(),
        };
        let store = MemoryStore::new(clock.clone());
        let cached = Cached::open(store.clone(), options, clock).unwrap();
        let address = Address::parse("bucket", "empty").unwrap();
        cached.create_bucket(&context(), &address.bucket).await.unwrap();
        let staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
        let etag = staged.commit(Expected::default()).await.unwrap().0.etag;
        cached.head(&context(), &address, GetRequest::default()).await.unwrap();
        assert_eq!(cached.cached_part(&address, &etag).await, CachedPart::Some);
        let found = cached.get(&context(), &address, GetRequest::default()).await.unwrap();
        drain(found.body).await.unwrap();
        assert_eq!(cached.cached_part(&address, &etag).await, CachedPart::Stored);
        cached.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn query_of_the_cached_part_is_no_use() {
        let scene = Scene::new().await;
        let address = Address::parse("bucket", "key").unwrap();
        let etag = scene.write(&address, pattern(SMALL as usize, 1)).await;
        scene.read(&address).await;
        let tiers = &scene.cached.tiers;
        let hash = tiers.fingerprints.key(&address);
        tiers.ram.release(hash.key);
        assert_eq!(scene.cached.cached_part(&address, &etag).await, CachedPart::Stored);
        assert!(!tiers.ram.contains(hash.key), "the head stays on the SSD only");
        scene.cached.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn object_with_a_missing_extent_is_cached_in_part() {
        let scene = Scene::new().await;
        let address = Address::parse("bucket", "key").unwrap();
        let etag = scene.write(&address, pattern(LARGE as usize, 1)).await;
        scene.read(&address).await;
        assert!(scene.cached.ssd_used_bytes() >= LARGE);
        let hash = scene.cached.tiers.fingerprints.key(&address);
        let token = scene.cached.tiers.changes.token(hash).unwrap();
        let (head, _) = scene.cached.tiers.head(&address, &token).await.unwrap();
        let fingerprint = scene.cached.tiers.fingerprints.data(head.content, 2);
        scene.cached.tiers.remove_from_ssd(&head, 2);
        assert_eq!(scene.cached.cached_part(&address, &etag).await, CachedPart::All, "it is in memory");
        scene.cached.tiers.ram.remove(fingerprint);
        assert_eq!(scene.cached.cached_part(&address, &etag).await, CachedPart::Some);
        scene.cached.close().await.unwrap();
    }
}
