//! The tiers together: memory in front of the SSD, either of which may be missing.

mod content_use;
mod removal;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tradewind_core::{Address, Clock, Span};
use tradewind_model::class_policy::ClassPolicyTable;

use crate::aligned::BLOCK_BYTES;
use crate::changes::{Changes, KeyHash, Token};
use crate::classes::CachePolicies;
use crate::counters::Counters;
use crate::disk::{Disk, DiskRead, FillRun, StoreRequest};
use crate::extent::{EXTENT_BYTES, ExtentBuffer, ExtentKey, MAX_HEAD_BYTES, Place, blocks_for};
use crate::fill::ExtentFill;
use crate::fingerprint::{ExtentName, Fingerprints};
use crate::head::{ContentId, Head, Stamp, decode_head, encode_head, encoded_bytes_with_data};
use crate::ram::{Candidate, InsertedHead, Placement, RamExtent, RamTier, data_bytes, head_bytes};
use crate::reader::{extents, extents_span};
use crate::stamps::StampTable;
use content_use::ContentUses;

pub(crate) use content_use::ContentUse;

/// Fills that wait for the SSD may have this part of the size of the memory tier, in addition to it. Further fills are
/// skipped: a fill never delays a read.
const MEMORY_BYTES_PER_PENDING_BYTE: usize = 8;
/// The least memory of fills that wait for the SSD.
const MIN_PENDING_BYTES: usize = 9 << 20;
/// The most memory of fills that wait for the SSD.
const MAX_PENDING_BYTES: usize = 64 << 20;

/// The largest object that is cached together with its head, so that reading it is one read of the SSD.
pub(crate) const MAX_SMALL_BYTES: u64 = 64 << 10;
/// Like [`MAX_SMALL_BYTES`], but without an SSD.
const MAX_SMALL_BYTES_IN_MEMORY: u64 = 48 << 10;

/// Extents that a sweep ranks before it lets other tasks run.
const MAX_BATCH_EXTENTS: u32 = 1024;

/// Where an extent is, the fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Ram,
    Ssd,
}

/// The names of an extent in the tiers.
#[derive(Debug, Clone, Copy)]
struct TierNames {
    /// The fingerprint in memory.
    ram: u64,
    ssd: ExtentName,
}

impl TierNames {
    /// The names of the head of the address with this fingerprint.
    const fn of_head(address: u64) -> Self {
        Self { ram: address, ssd: ExtentName::of_head(address) }
    }
}

/// The reason for which an object is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// The backing store has another object, or none.
    Changed,
    /// An unchanged object was read again, because a part of it was not cached.
    Refilled,
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
    /// Blocks of memory for fills that wait for the SSD.
    permits: Arc<Semaphore>,
    max_pending_blocks: usize,
    content_uses: ContentUses,
}

impl Tiers {
    pub fn new(
        ram: RamTier,
        stamps: StampTable,
        disk: Option<Arc<Disk>>,
        fingerprints: Fingerprints,
        counters: Arc<Counters>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let pending_bytes = ram.limit_bytes() / MEMORY_BYTES_PER_PENDING_BYTE;
        let max_pending_blocks = pending_bytes.clamp(MIN_PENDING_BYTES, MAX_PENDING_BYTES) / BLOCK_BYTES;
        let permits = Arc::new(Semaphore::new(max_pending_blocks));
        let (changes, policies) = (Changes::new(), CachePolicies::new(ram.eviction(), fingerprints, clock));
        Self {
            ram,
            stamps,
            disk,
            fingerprints,
            changes,
            counters,
            policies,
            permits,
            max_pending_blocks,
            content_uses: ContentUses::default(),
        }
    }

    /// The right to store a head that no fill stores, unless too much is pending, which is not counted.
    pub fn try_head_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.try_permit(MAX_HEAD_BYTES)
    }

    fn try_permit(&self, payload_bytes: usize) -> Option<OwnedSemaphorePermit> {
        let blocks = u32::try_from(blocks_for(payload_bytes)).unwrap_or(u32::MAX);
        self.permits.clone().try_acquire_many_owned(blocks).ok()
    }

    /// The right to fill one extent with a payload of up to this size, unless too much is pending, which is counted.
    pub fn try_fill_bytes(&self, payload_bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permit = self.try_permit(payload_bytes);
        if permit.is_none() {
            self.counters.fills_queue_full.increment();
        }
        permit
    }

    /// True if several reads can fill the cache without being skipped.
    pub fn has_free_fills(&self) -> bool {
        self.permits.available_permits() >= self.max_pending_blocks / 2
    }

    /// Waits until all fills are stored.
    pub async fn flush(&self) {
        let all = u32::try_from(self.max_pending_blocks).unwrap_or(u32::MAX);
        // An error means that the semaphore was closed, which it never is.
        let _all = self.permits.acquire_many(all).await;
    }

    /// The head of an address, and where it was.
    pub async fn head(&self, address: &Address, token: &Token) -> Option<(Arc<Head>, Tier)> {
        let hash = token.hash();
        if let Some(head) = self.ram.head(hash.key, address) {
            self.rank_again(&head, TierNames::of_head(hash.key), || self.policies.of_head(&head));
            self.track(&head, token);
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
        self.rank_on_ssd(&head, TierNames::of_head(hash.key), self.policies.of_head(&head));
        self.track(&head, token);
        match self.insert_head(&head, token) {
            InsertedHead::Existing(head) => Some((head, Tier::Ram)),
            // A change began since: the read is concurrent with it, and may return either object.
            InsertedHead::New | InsertedHead::NotAdmitted | InsertedHead::Outdated => Some((head, Tier::Ssd)),
        }
    }

    /// The head of an address. Not a use of it.
    pub async fn peek_head(&self, address: &Address, hash: KeyHash) -> Option<Arc<Head>> {
        if let Some(head) = self.ram.peek_head(hash.key, address) {
            return Some(head);
        }
        let payload = self.disk.as_ref()?.peek(ExtentKey::Head(hash.key)).await?;
        decode_head(&payload).filter(|head| head.address == *address).map(Arc::new)
    }

    /// Tracks the retention of a cached object, unless it was changed since the token was taken.
    pub fn track(&self, head: &Head, token: &Token) {
        let hash = token.hash();
        if !self.changes.is_current(token) {
            return;
        }
        self.policies.track(head, hash.key);
        // A change that began meanwhile may have removed its retention before; a later one removes it. It may be that of
        // another key of the same stripe, too.
        if !self.changes.is_current(token)
            && self.ram.head_content(hash.key, &head.address) != Some(head.content)
            && !self.is_on_ssd(hash.key)
        {
            self.policies.retained().forget(hash.key, head.content);
        }
    }

    /// Returns true if a content may be filled: its head was not replaced since the token was taken, as far as is known.
    /// The caller uses the content: a later removal then waits for the fill.
    pub fn may_fill(&self, head: &Head, token: &Token) -> bool {
        let cached = self.ram.head_content(token.hash().key, &head.address);
        self.changes.is_current(token) && cached.is_none_or(|content| content == head.content)
    }

    /// Caches a head in memory.
    pub fn insert_head(&self, head: &Arc<Head>, token: &Token) -> InsertedHead {
        let placement = self.policies.of_head(head);
        let inserted = self.ram.insert_head(token.hash().key, head, placement, &self.changes, token);
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

    /// Stores a head with its new stamp, in place of its older form on the SSD. A small object that was cached when it was
    /// written comes to the SSD here. Does nothing if memory has a head with another content: that one is newer, and so is
    /// the one on the SSD. Nor if neither tier has the head.
    pub fn store_renewed_head(&self, head: &Head, token: &Token) {
        let hash = token.hash();
        let is_current = match self.ram.head_content(hash.key, &head.address) {
            Some(content) => content == head.content && (head.data.is_some() || self.is_on_ssd(hash.key)),
            None => self.is_on_ssd(hash.key),
        };
        if !is_current {
            return;
        }
        if let Some(permit) = self.try_head_permit() {
            self.store_head(head, token, permit, None);
        }
    }

    /// Returns true if the index of the SSD has the head of the address with this fingerprint.
    pub fn is_on_ssd(&self, address: u64) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.contains_head(address))
    }

    /// Caches a head with the data that it has. Returns the head whose content the caller fills: another one if an
    /// equal head is cached already. `None` if the object was changed or no tier can hold it. Without a permit, it is cached
    /// in memory only. The use of its content, if any, ends when it is stored.
    pub fn put_head(
        &self,
        head: Arc<Head>,
        token: &Token,
        permit: Option<OwnedSemaphorePermit>,
        content_use: Option<Arc<ContentUse>>,
    ) -> Option<Arc<Head>> {
        match self.insert_head(&head, token) {
            InsertedHead::Outdated => return None,
            InsertedHead::Existing(existing) => {
                if let Some(permit) = permit {
                    self.ensure_head_is_stored(&existing, token, permit);
                }
                self.track(&existing, token);
                return Some(existing);
            }
            InsertedHead::NotAdmitted if self.disk.is_none() || permit.is_none() => return None,
            InsertedHead::NotAdmitted | InsertedHead::New => {}
        }
        if let Some(permit) = permit {
            self.store_head(&head, token, permit, content_use);
        }
        self.track(&head, token);
        Some(head)
    }

    /// Stores a head on the SSD unless it is there: without it, its data on the SSD is lost when memory is short.
    pub fn ensure_head_is_stored(&self, head: &Head, token: &Token, permit: OwnedSemaphorePermit) {
        if self.disk.as_ref().is_some_and(|disk| !disk.contains_head(token.hash().key)) {
            self.store_head(head, token, permit, None);
        }
    }

    /// Stores a head on the SSD. The use of its content, if any, ends when that is done.
    pub fn store_head(
        &self,
        head: &Head,
        token: &Token,
        permit: OwnedSemaphorePermit,
        content_use: Option<Arc<ContentUse>>,
    ) {
        let hash = token.hash();
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
        // The budget of writes treats a head without data apart: it follows its data.
        let miss_key = head.data.as_ref().map(|_| hash.key);
        let data_extents = match head.data {
            Some(_) => None,
            None => Some(extents(Span::whole(head.info.size)).end),
        };
        disk.store(StoreRequest {
            extent,
            pin,
            validity,
            data_extents,
            miss_key,
            head_key: None,
            run: None,
            content_use,
            permit,
            claim: None,
        });
    }

    /// Gives an entry its present class if that may have changed, and pins it if it was cached before its class or prefix
    /// was pinned.
    fn rank_again(&self, head: &Head, names: TierNames, placement: impl FnOnce() -> Placement) {
        if !self.policies.may_change_class(head) {
            return;
        }
        let placement = placement();
        self.reclassify(names, placement);
        let Some(reason) = placement.pin else { return };
        self.ram.pin(names.ram, reason);
        if let Some(disk) = &self.disk {
            disk.pin(names.ssd, reason);
        }
    }

    /// Like [`Self::rank_again`], for what is read from the SSD: its class may be that of an earlier process.
    fn rank_on_ssd(&self, head: &Head, names: TierNames, placement: Placement) {
        if self.policies.may_change_class(head) {
            self.rank_again(head, names, || placement);
        } else if let Some(disk) = &self.disk {
            disk.reclassify(names.ssd, placement);
        }
    }

    fn reclassify(&self, names: TierNames, placement: Placement) {
        self.ram.reclassify(names.ram, placement);
        if let Some(disk) = &self.disk {
            disk.reclassify(names.ssd, placement);
        }
    }

    /// Ranks the retained objects that are due. One whose retention has ended, or whose head is no longer cached, is
    /// forgotten after that.
    pub async fn sweep_retained(&self) {
        if self.disk.as_ref().is_some_and(|disk| !disk.is_loaded()) {
            return;
        }
        let now = self.policies.now();
        let retained = self.policies.retained();
        for (key, mut object) in retained.take_due(now) {
            let is_cached = self.ram.contains(key) || self.is_on_ssd(key);
            if is_cached && !object.is_rank_due {
                continue;
            }
            if !is_cached {
                object.classes.retention = None;
            }
            let of_head = self.policies.of_retained(&object, None, now);
            self.reclassify(TierNames::of_head(key), of_head);
            for number in 0..object.extents() {
                let names = self.names(Place { address: key, number }, object.content);
                self.reclassify(names, self.policies.of_retained(&object, Some(number), now));
                if number % MAX_BATCH_EXTENTS == MAX_BATCH_EXTENTS - 1 {
                    tokio::task::yield_now().await;
                }
            }
            if object.classes.retention.is_none_or(|retention| retention.remaining_seconds(now) == 0) {
                retained.forget(key, object.content);
            }
            tokio::task::yield_now().await;
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
        let span = extents_span(&(number..number + 1), head.info.size);
        let payload_bytes = usize::try_from(span.length).unwrap_or(EXTENT_BYTES);
        Candidate {
            reuse_key: self.fingerprints.place(self.place(head, number)),
            ram_bytes: data_bytes(payload_bytes),
            payload_bytes,
            placement: self.policies.of_extent(head, number),
        }
    }

    /// The place of a data extent.
    pub fn place(&self, head: &Head, number: u32) -> Place {
        Place { address: self.fingerprints.key(&head.address).key, number }
    }

    /// The names of a data extent.
    fn names(&self, place: Place, content: ContentId) -> TierNames {
        TierNames {
            ram: self.fingerprints.data(content, place.number),
            ssd: self.fingerprints.name(ExtentKey::Data(place, content)),
        }
    }

    /// The identities of data extents.
    fn extent_keys(&self, head: &Head, numbers: Range<u32>) -> impl Iterator<Item = ExtentKey> + use<> {
        let (address, content) = (self.fingerprints.key(&head.address).key, head.content);
        numbers.map(move |number| ExtentKey::Data(Place { address, number }, content))
    }

    /// The largest object that is cached together with its head.
    pub const fn max_small_bytes(&self) -> u64 {
        if self.disk.is_some() { MAX_SMALL_BYTES } else { MAX_SMALL_BYTES_IN_MEMORY }
    }

    /// A small object that may be cached together with its head, which has no data yet.
    pub fn small_candidate(&self, head: &Head, hash: KeyHash) -> Candidate {
        let size = usize::try_from(head.info.size).unwrap_or(usize::MAX / 2);
        Candidate {
            reuse_key: hash.key,
            ram_bytes: head_bytes(head.memory_bytes() + size),
            payload_bytes: encoded_bytes_with_data(head),
            placement: self.policies.of_head(head),
        }
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

    /// Unpins what was pinned for its prefix, also by writes that are queued. Objects of prefixes that are still pinned
    /// are pinned again when they are read.
    pub fn unpin_prefixes(&self) {
        let generation = self.policies.prefix_generation();
        self.ram.end_prefix_pins(generation);
        if let Some(disk) = &self.disk {
            disk.end_prefix_pins(generation);
        }
    }

    /// Where a data extent can be read; an SSD that is switched off does not count. Not a use of it.
    pub fn locate(&self, head: &Head, number: u32) -> Option<Tier> {
        self.locate_place(self.place(head, number), head.content)
    }

    /// Where the extent of a content at a place can be read. See [`Self::locate`].
    pub fn locate_place(&self, place: Place, content: ContentId) -> Option<Tier> {
        let names = self.names(place, content);
        if self.ram.contains(names.ram) {
            return Some(Tier::Ram);
        }
        self.disk.as_ref().filter(|disk| disk.has_readable(names.ssd)).map(|_| Tier::Ssd)
    }

    /// Returns true if the index of the SSD has a data extent, which an SSD that fails may have again later.
    pub fn has_indexed(&self, head: &Head, number: u32) -> bool {
        let names = self.names(self.place(head, number), head.content);
        self.disk.as_ref().is_some_and(|disk| disk.contains(names.ssd))
    }

    /// Returns true if the SSD fails or is switched off, and its index has the head of a key.
    pub fn has_unreadable_head(&self, hash: KeyHash) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.is_failing() && disk.contains_head(hash.key))
    }

    /// A data extent in memory.
    pub fn ram_data(&self, head: &Head, number: u32) -> Option<Bytes> {
        let fingerprint = self.fingerprints.data(head.content, number);
        let found = self.ram.data(fingerprint, head.content, number)?;
        if self.policies.may_change_class(head) {
            let names = self.names(self.place(head, number), head.content);
            self.rank_again(head, names, || self.policies.of_extent(head, number));
        }
        Some(found)
    }

    /// Records a use of an extent on the SSD that was read from memory, because other extents of the object were not. Else
    /// the extents of one object differ in rank, and it loses some of them.
    pub fn touch_on_ssd(&self, head: &Head, number: u32) {
        if let Some(disk) = &self.disk {
            disk.touch(ExtentKey::Data(self.place(head, number), head.content));
        }
    }

    /// Number of the first of these data extents that one request to the SSD reads. Not a use of them.
    pub fn count_neighbours(&self, head: &Head, numbers: Range<u32>) -> usize {
        self.disk.as_ref().map_or(0, |disk| disk.count_neighbours(self.extent_keys(head, numbers)))
    }

    /// Begins to read the first of these data extents that one request to the SSD reads.
    pub fn start_read(&self, head: &Head, numbers: Range<u32>) -> Option<DiskRead> {
        let read = self.disk.as_ref()?.start_read(self.extent_keys(head, numbers.clone()))?;
        let address = self.fingerprints.key(&head.address).key;
        for number in numbers.take(read.count()) {
            let names = self.names(Place { address, number }, head.content);
            self.rank_on_ssd(head, names, self.policies.of_extent(head, number));
        }
        Some(read)
    }

    /// Finishes such a read of extents from `first` on, and caches them in memory if the content [may be
    /// filled](Self::may_fill): a removal might have passed them.
    pub async fn finish_read(
        &self,
        head: &Head,
        first: u32,
        read: DiskRead,
        may_fill: bool,
    ) -> Vec<Option<Bytes>> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let extents = disk.finish_read(read).await;
        if !may_fill {
            return extents;
        }
        let address = self.fingerprints.key(&head.address).key;
        for (number, bytes) in (first..).zip(&extents) {
            let Some(bytes) = bytes else { continue };
            let fingerprint = self.fingerprints.data(head.content, number);
            let placement = self.policies.of_extent(head, number);
            // The buffer of a smaller extent may have more blocks than its payload takes in memory.
            let is_whole = bytes.len() == EXTENT_BYTES;
            let cached = if is_whole { bytes.clone() } else { Bytes::copy_from_slice(bytes) };
            let reuse_key = self.fingerprints.place(Place { address, number });
            let extent = RamExtent { fingerprint, reuse_key, content: head.content, number, bytes: cached };
            self.ram.insert_data(extent, placement);
        }
        extents
    }

    /// Reads a data extent from the SSD. See [`Self::finish_read`].
    pub async fn read_data(&self, head: &Head, number: u32, may_fill: bool) -> Option<Bytes> {
        let read = self.start_read(head, number..number + 1)?;
        self.finish_read(head, number, read, may_fill).await.pop().flatten()
    }

    /// Space on the SSD for the extents of a fill of `span`.
    pub fn fill_run(&self, head: &Head, span: Span) -> Option<Arc<FillRun>> {
        let disk = self.disk.as_ref().filter(|_| span.length > EXTENT_BYTES as u64)?;
        let numbers = extents(span);
        let last = extents_span(&(numbers.end - 1..numbers.end), head.info.size);
        FillRun::new(disk, numbers, usize::try_from(last.length).ok()?)
    }

    /// Caches a data extent.
    pub fn put_data(&self, head: &Head, number: u32, fill: ExtentFill) {
        let ExtentFill { buffer, permit, claim, run, content_use } = fill;
        content_use.add_filled(number);
        let cache_id = self.disk.as_ref().map_or(0, |disk| disk.cache_id());
        let placement = self.policies.of_extent(head, number);
        let place = self.place(head, number);
        let extent = buffer.seal(cache_id, ExtentKey::Data(place, head.content), placement.class);
        let (content, fingerprint) = (head.content, self.fingerprints.data(head.content, number));
        let reuse_key = self.fingerprints.place(place);
        let bytes = extent.payload();
        self.ram.insert_data(RamExtent { fingerprint, reuse_key, content, number, bytes }, placement);
        match &self.disk {
            Some(disk) => {
                let pin = placement.pin;
                let (miss_key, head_key) = (Some(reuse_key), Some(place.address));
                disk.store(StoreRequest {
                    extent,
                    pin,
                    validity: None,
                    data_extents: None,
                    miss_key,
                    head_key,
                    run,
                    content_use: Some(content_use),
                    permit,
                    claim,
                });
            }
            None => self.counters.fills.increment(),
        }
    }

    /// Removes a data extent from the SSD.
    #[cfg(test)]
    pub fn remove_from_ssd(&self, head: &Head, number: u32) {
        let names = self.names(self.place(head, number), head.content);
        self.disk.as_ref().and_then(|disk| disk.remove(names.ssd));
    }
}
