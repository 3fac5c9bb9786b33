//! The tiers together: memory in front of the SSD, either of which may be missing.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tradewind_core::Address;

use crate::changes::{Changes, KeyHash, Token};
use crate::counters::Counters;
use crate::disk::{Disk, DiskRead, StoreRequest};
use crate::extent::{EXTENT_BYTES, ExtentBuffer, ExtentKey, MAX_HEAD_BYTES};
use crate::fingerprint::Fingerprints;
use crate::head::{ContentId, Head, decode_head, encode_head};
use crate::ram::{InsertedHead, RamTier};

/// Extents of fills in memory that are not yet on the SSD. Further fills are skipped: a fill never delays a read.
const MAX_PENDING_EXTENTS: usize = 128;
/// Extents of a removed content that are freed at once.
const MAX_FREED_EXTENTS: u32 = 1 << 16;

/// Where an extent is, the fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Ram,
    Ssd,
}

/// See the module's head.
pub(crate) struct Tiers {
    pub ram: RamTier,
    pub disk: Option<Arc<Disk>>,
    pub fingerprints: Fingerprints,
    pub changes: Arc<Changes>,
    pub counters: Arc<Counters>,
    permits: Arc<Semaphore>,
}

impl Tiers {
    pub fn new(
        ram: RamTier,
        disk: Option<Arc<Disk>>,
        fingerprints: Fingerprints,
        counters: Arc<Counters>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_PENDING_EXTENTS));
        Self { ram, disk, fingerprints, changes: Changes::new(), counters, permits }
    }

    /// The right to fill one extent, unless too many are pending.
    pub fn try_fill(&self) -> Option<OwnedSemaphorePermit> {
        let permit = self.permits.clone().try_acquire_owned().ok();
        if permit.is_none() {
            self.counters.fills_skipped.increment();
        }
        permit
    }

    /// True if several reads can fill the cache without being skipped.
    pub fn has_free_fills(&self) -> bool {
        self.permits.available_permits() >= MAX_PENDING_EXTENTS / 2
    }

    /// Waits until all fills are stored.
    pub async fn flush(&self) {
        let all = u32::try_from(MAX_PENDING_EXTENTS).unwrap_or(u32::MAX);
        // An error means that the semaphore was closed, which it never is.
        let _all = self.permits.acquire_many(all).await;
    }

    /// The head of an address, and where it was.
    pub async fn head(&self, address: &Address, hash: KeyHash, token: &Token) -> Option<(Arc<Head>, Tier)> {
        if let Some(head) = self.ram.head(hash.key, address) {
            return Some((head, Tier::Ram));
        }
        let payload = self.disk.as_ref()?.read(ExtentKey::Head(hash.key)).await?;
        let head = decode_head(&payload).filter(|head| head.address == *address)?;
        let head = Arc::new(head);
        match self.ram.insert_head(hash.key, &head, &self.changes, token) {
            InsertedHead::Existing(head) => Some((head, Tier::Ram)),
            // A change began since: the read is concurrent with it, and may return either object.
            InsertedHead::New | InsertedHead::NotAdmitted | InsertedHead::Outdated => Some((head, Tier::Ssd)),
        }
    }

    /// Caches a head with the data that it has. Returns the head whose content the caller fills: another one if an
    /// equal head is cached already. `None` if the object was changed or no tier can hold it.
    pub fn put_head(
        &self,
        head: Arc<Head>,
        hash: KeyHash,
        token: &Token,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Option<Arc<Head>> {
        match self.ram.insert_head(hash.key, &head, &self.changes, token) {
            InsertedHead::Outdated => return None,
            InsertedHead::Existing(existing) => {
                self.ensure_head_is_stored(&existing, hash, token, permit);
                return Some(existing);
            }
            InsertedHead::NotAdmitted if self.disk.is_none() => return None,
            InsertedHead::NotAdmitted | InsertedHead::New => {}
        }
        self.store_head(&head, hash, token, permit);
        Some(head)
    }

    /// Stores a head on the SSD unless it is there: without it, its data on the SSD is lost when memory is short.
    pub fn ensure_head_is_stored(
        &self,
        head: &Head,
        hash: KeyHash,
        token: &Token,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        if self.disk.as_ref().is_some_and(|disk| !disk.contains(hash.key)) {
            self.store_head(head, hash, token, permit);
        }
    }

    /// Stores a head on the SSD.
    pub fn store_head(
        &self,
        head: &Head,
        hash: KeyHash,
        token: &Token,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let Some(disk) = &self.disk else {
            self.counters.fills.increment();
            return;
        };
        let payload = encode_head(head);
        if payload.len() > MAX_HEAD_BYTES {
            return;
        }
        let mut buffer = ExtentBuffer::new(payload.len());
        buffer.append(&payload);
        let class = head.class().map_or(0, tradewind_core::Class::value);
        let extent = buffer.seal(disk.cache_id(), ExtentKey::Head(hash.key), class);
        disk.store(StoreRequest { extent, validity: Some((self.changes.clone(), *token)), permit });
    }

    /// Removes the head of a key, and in the background its content.
    pub fn remove_head(
        self: &Arc<Self>,
        hash: KeyHash,
        is_pinned: impl Fn(ContentId) -> bool + Send + 'static,
    ) {
        let head = self.ram.remove(hash.key);
        let location = self.disk.as_ref().and_then(|disk| disk.remove(hash.key));
        let tiers = self.clone();
        let remove_content = move |head: &Head| {
            if head.data.is_none() && !is_pinned(head.content) {
                tiers.remove_content(head.content, head.info.size);
            }
        };
        match (&self.disk, head, location) {
            // Its data went with it.
            (_, Some(head), _) if head.data.is_some() => {}
            (None, Some(head), _) => remove_content(&head),
            (Some(disk), Some(head), _) => disk.run_in_background(move || remove_content(&head)),
            (Some(disk), None, Some(location)) => {
                let reader = disk.clone();
                disk.run_in_background(move || {
                    let payload = reader.read_freed(ExtentKey::Head(hash.key), location);
                    if let Some(head) = payload.and_then(|payload| decode_head(&payload)) {
                        remove_content(&head);
                    }
                });
            }
            _ => {}
        }
    }

    /// Removes the data of an object that no head refers to, in the background.
    pub fn discard_content(self: &Arc<Self>, head: &Head) {
        let (tiers, content, size) = (self.clone(), head.content, head.info.size);
        match &self.disk {
            None => self.remove_content(content, size),
            Some(disk) => disk.run_in_background(move || tiers.remove_content(content, size)),
        }
    }

    /// Frees the first extents of a content; eviction frees the rest, which no head refers to.
    fn remove_content(&self, content: ContentId, size: u64) {
        let extents = u32::try_from(size.div_ceil(EXTENT_BYTES as u64)).unwrap_or(u32::MAX);
        for number in 0..extents.min(MAX_FREED_EXTENTS) {
            let fingerprint = self.fingerprints.data(content, number);
            self.ram.remove(fingerprint);
            if let Some(disk) = &self.disk {
                disk.remove(fingerprint);
            }
        }
    }

    /// Where a data extent is. Not a use of it.
    pub fn locate(&self, content: ContentId, number: u32) -> Option<Tier> {
        let fingerprint = self.fingerprints.data(content, number);
        if self.ram.contains(fingerprint) {
            return Some(Tier::Ram);
        }
        self.disk.as_ref().filter(|disk| disk.contains(fingerprint)).map(|_| Tier::Ssd)
    }

    /// A data extent in memory.
    pub fn ram_data(&self, content: ContentId, number: u32) -> Option<Bytes> {
        self.ram.data(self.fingerprints.data(content, number), content, number)
    }

    /// Begins to read a data extent from the SSD.
    pub fn start_read(&self, content: ContentId, number: u32) -> Option<DiskRead> {
        self.disk.as_ref()?.start_read(ExtentKey::Data(content, number))
    }

    /// Finishes such a read, and caches the extent in memory.
    pub async fn finish_read(&self, head: &Head, number: u32, read: DiskRead) -> Option<Bytes> {
        let bytes = self.disk.as_ref()?.finish_read(read).await?;
        let fingerprint = self.fingerprints.data(head.content, number);
        self.ram.insert_data(fingerprint, head.content, number, class_of_extent(head, number), bytes.clone());
        Some(bytes)
    }

    /// Caches a data extent.
    pub fn put_data(&self, head: &Head, number: u32, buffer: ExtentBuffer, permit: OwnedSemaphorePermit) {
        let cache_id = self.disk.as_ref().map_or(0, |disk| disk.cache_id());
        let class = class_of_extent(head, number);
        let extent = buffer.seal(cache_id, ExtentKey::Data(head.content, number), class);
        let fingerprint = self.fingerprints.data(head.content, number);
        self.ram.insert_data(fingerprint, head.content, number, class, extent.payload());
        match &self.disk {
            Some(disk) => disk.store(StoreRequest { extent, validity: None, permit: Some(permit) }),
            None => self.counters.fills.increment(),
        }
    }
}

/// The class of an extent: that of its first sector, else that of the object, else 0.
fn class_of_extent(head: &Head, number: u32) -> u8 {
    let classes = &head.info.metadata.classes;
    let sector = u64::from(number) * (EXTENT_BYTES as u64 / tradewind_core::Classes::SECTOR_BYTES);
    let after = classes.ranges.partition_point(|range| u64::from(range.first_sector) <= sector);
    let range = after.checked_sub(1).and_then(|position| classes.ranges.get(position));
    let range = range.filter(|range| sector < u64::from(range.first_sector) + u64::from(range.sectors));
    range.map(|range| range.class).or(classes.object).map_or(0, tradewind_core::Class::value)
}
