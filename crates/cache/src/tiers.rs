//! The tiers together: memory in front of the SSD, either of which may be missing.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tradewind_core::Address;
use tradewind_model::class_policy::ClassPolicyTable;

use crate::changes::{Changes, KeyHash, Token};
use crate::classes::CachePolicies;
use crate::counters::Counters;
use crate::disk::{Disk, DiskRead, StoreRequest};
use crate::extent::{EXTENT_BYTES, ExtentBuffer, ExtentKey, MAX_HEAD_BYTES};
use crate::fingerprint::Fingerprints;
use crate::head::{ContentId, Head, Stamp, decode_head, encode_head};
use crate::ram::{Candidate, InsertedHead, Placement, RamTier};
use crate::stamps::StampTable;

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
    pub stamps: StampTable,
    pub disk: Option<Arc<Disk>>,
    pub fingerprints: Fingerprints,
    pub changes: Arc<Changes>,
    pub counters: Arc<Counters>,
    pub policies: CachePolicies,
    permits: Arc<Semaphore>,
}

impl Tiers {
    pub fn new(
        ram: RamTier,
        stamps: StampTable,
        disk: Option<Arc<Disk>>,
        fingerprints: Fingerprints,
        counters: Arc<Counters>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_PENDING_EXTENTS));
        let (changes, policies) = (Changes::new(), CachePolicies::default());
        Self { ram, stamps, disk, fingerprints, changes, counters, policies, permits }
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
            self.pin_again(hash.key, || self.policies.of_head(&head));
            return Some((head, Tier::Ram));
        }
        let payload = self.disk.as_ref()?.read(ExtentKey::Head(hash.key)).await?;
        let head = decode_head(&payload).filter(|head| head.address == *address)?;
        if let Some(stamp) = self.stamps.stamp(head.content)
            && stamp.is_later_than(&head.stamp())
        {
            head.set_stamp(stamp);
        }
        let head = Arc::new(head);
        self.pin_again(hash.key, || self.policies.of_head(&head));
        match self.insert_head(&head, hash, token) {
            InsertedHead::Existing(head) => Some((head, Tier::Ram)),
            // A change began since: the read is concurrent with it, and may return either object.
            InsertedHead::New | InsertedHead::NotAdmitted | InsertedHead::Outdated => Some((head, Tier::Ssd)),
        }
    }

    /// Caches a head in memory.
    pub fn insert_head(&self, head: &Arc<Head>, hash: KeyHash, token: &Token) -> InsertedHead {
        let placement = self.policies.of_head(head);
        let inserted = self.ram.insert_head(hash.key, head, placement, &self.changes, token);
        if let InsertedHead::Existing(existing) = &inserted {
            // It has the later stamp of both; on the SSD, it may have an earlier one.
            self.stamps.record(existing.content, existing.stamp());
        }
        inserted
    }

    /// Records a later comparison of a head.
    pub fn renew_head(&self, head: &Head, stamp: Stamp) {
        head.set_stamp(stamp);
        self.stamps.record(head.content, stamp);
    }

    /// Caches a head with the data that it has. Returns the head whose content the caller fills: another one if an
    /// equal head is cached already. `None` if the object was changed or no tier can hold it. Without a permit, it is cached
    /// in memory only.
    pub fn put_head(
        &self,
        head: Arc<Head>,
        hash: KeyHash,
        token: &Token,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Option<Arc<Head>> {
        match self.insert_head(&head, hash, token) {
            InsertedHead::Outdated => return None,
            InsertedHead::Existing(existing) => {
                if let Some(permit) = permit {
                    self.ensure_head_is_stored(&existing, hash, token, permit);
                }
                return Some(existing);
            }
            InsertedHead::NotAdmitted if self.disk.is_none() || permit.is_none() => return None,
            InsertedHead::NotAdmitted | InsertedHead::New => {}
        }
        if let Some(permit) = permit {
            self.store_head(&head, hash, token, permit);
        }
        Some(head)
    }

    /// Stores a head on the SSD unless it is there: without it, its data on the SSD is lost when memory is short.
    pub fn ensure_head_is_stored(
        &self,
        head: &Head,
        hash: KeyHash,
        token: &Token,
        permit: OwnedSemaphorePermit,
    ) {
        if self.disk.as_ref().is_some_and(|disk| !disk.contains(hash.key)) {
            self.store_head(head, hash, token, permit);
        }
    }

    /// Stores a head on the SSD.
    pub fn store_head(&self, head: &Head, hash: KeyHash, token: &Token, permit: OwnedSemaphorePermit) {
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
        let Placement { class, pin } = self.policies.of_head(head);
        let extent = buffer.seal(disk.cache_id(), ExtentKey::Head(hash.key), class);
        let validity = Some((self.changes.clone(), *token));
        disk.store(StoreRequest { extent, pin, validity, permit });
    }

    /// Pins an entry that was cached before its class or prefix was pinned.
    fn pin_again(&self, fingerprint: u64, placement: impl FnOnce() -> Placement) {
        if !self.policies.has_pins() {
            return;
        }
        let Some(reason) = placement().pin else { return };
        self.ram.pin(fingerprint, reason);
        if let Some(disk) = &self.disk {
            disk.pin(fingerprint, reason);
        }
    }

    /// Returns true if no tier would cache an extent, because all others have a higher priority.
    pub fn is_under_pressure(&self, candidate: Candidate) -> bool {
        let is_admitted_by_disk = self.disk.as_ref().is_some_and(|disk| disk.would_admit(candidate));
        !is_admitted_by_disk && !self.ram.would_admit(candidate)
    }

    /// Records a request for an extent that no tier caches.
    pub fn record_bypass(&self, candidate: Candidate) {
        self.counters.fills_bypassed.increment();
        self.ram.record_bypass(candidate);
        if let Some(disk) = &self.disk {
            disk.record_bypass(candidate);
        }
    }

    /// A data extent that may be cached.
    pub fn candidate(&self, head: &Head, number: u32) -> Candidate {
        let fingerprint = self.fingerprints.data(head.content, number);
        Candidate {
            fingerprint,
            payload_bytes: EXTENT_BYTES,
            placement: self.policies.of_extent(head, number),
        }
    }

    /// A small object that may be cached together with its head.
    pub fn small_candidate(&self, head: &Head, hash: KeyHash) -> Candidate {
        let payload_bytes = head.memory_bytes() + usize::try_from(head.info.size).unwrap_or(usize::MAX / 2);
        Candidate { fingerprint: hash.key, payload_bytes, placement: self.policies.of_head(head) }
    }

    /// Replaces the policies of classes.
    pub fn set_table(&self, table: Arc<ClassPolicyTable>) {
        self.policies.set_table(table);
        let policies = self.policies.for_tiers();
        self.ram.set_policies(&policies);
        if let Some(disk) = &self.disk {
            disk.set_policies(policies);
        }
    }

    /// Unpins what was pinned for its prefix. Objects of prefixes that are still pinned are pinned again when they are
    /// read.
    pub fn unpin_prefixes(&self) {
        self.ram.end_prefix_pins();
        if let Some(disk) = &self.disk {
            disk.end_prefix_pins();
        }
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
            (Some(disk), Some(head), _) => disk.remove_in_background(move || remove_content(&head)),
            (Some(disk), None, Some(location)) => {
                let reader = disk.clone();
                disk.remove_in_background(move || {
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
            Some(disk) => disk.remove_in_background(move || tiers.remove_content(content, size)),
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
    pub fn ram_data(&self, head: &Head, number: u32) -> Option<Bytes> {
        let fingerprint = self.fingerprints.data(head.content, number);
        let found = self.ram.data(fingerprint, head.content, number)?;
        self.pin_again(fingerprint, || self.policies.of_extent(head, number));
        Some(found)
    }

    /// Begins to read a data extent from the SSD.
    pub fn start_read(&self, head: &Head, number: u32) -> Option<DiskRead> {
        let fingerprint = self.fingerprints.data(head.content, number);
        self.pin_again(fingerprint, || self.policies.of_extent(head, number));
        self.disk.as_ref()?.start_read(ExtentKey::Data(head.content, number))
    }

    /// Finishes such a read, and caches the extent in memory.
    pub async fn finish_read(&self, head: &Head, number: u32, read: DiskRead) -> Option<Bytes> {
        let bytes = self.disk.as_ref()?.finish_read(read).await?;
        let fingerprint = self.fingerprints.data(head.content, number);
        let placement = self.policies.of_extent(head, number);
        self.ram.insert_data(fingerprint, head.content, number, placement, bytes.clone());
        Some(bytes)
    }

    /// Caches a data extent.
    pub fn put_data(&self, head: &Head, number: u32, buffer: ExtentBuffer, permit: OwnedSemaphorePermit) {
        let cache_id = self.disk.as_ref().map_or(0, |disk| disk.cache_id());
        let placement = self.policies.of_extent(head, number);
        let extent = buffer.seal(cache_id, ExtentKey::Data(head.content, number), placement.class);
        let fingerprint = self.fingerprints.data(head.content, number);
        self.ram.insert_data(fingerprint, head.content, number, placement, extent.payload());
        match &self.disk {
            Some(disk) => {
                let pin = placement.pin;
                disk.store(StoreRequest { extent, pin, validity: None, permit });
            }
            None => self.counters.fills.increment(),
        }
    }
}
