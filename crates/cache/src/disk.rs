//! The SSD tier: extents in frames of one preallocated file, an index in memory, and an eviction policy.
//!
//! - All I/O is on threads of its own. An extent is written to free space first and indexed then.
//! - The index may be wrong about an extent (it was replaced, torn, or never written): the extent's header and checksum
//!   decide, and a wrong entry is a miss.
//! - An error of the SSD is a miss or a skipped fill, never an error of a request.

mod checkpoint;
mod device;
mod directory;
mod fill_run;
mod frames;
mod heads;
mod health;
mod identity;
mod index;
mod load;
mod moves;
mod reads;
mod removals;
mod session_record;
mod space;
#[cfg(test)]
mod tests;
mod verification;
mod write_budget;
mod writes;

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tradewind_core::Clock;
use tradewind_model::class_policy::FIRST_SLICES;
use tradewind_model::eviction::{CLASSES, ClassOccupancy, Entry, EvictionPolicy, MAX_SLOTS, Slot};

use crate::aligned::BLOCK_BYTES;
use crate::changes::{Changes, Token};
use crate::claims::ExtentClaim;
use crate::counters::Counters;
use crate::extent::{ExtentKey, FRAME_BLOCKS, FRAME_BYTES, SealedExtent, blocks_for, verify};
use crate::fingerprint::{ExtentName, Fingerprints};
use crate::io_threads::{IoThreads, Urgency};
use crate::policy::{
    AppliedPolicies, Eviction, MAX_EXCESS_EVICTIONS, MAX_STEP_ENTRIES, PinReason, Policy, TierCapacity,
    TierPolicies, new_policy,
};
use crate::ram::{Candidate, Placement};
use crate::tiers::ContentUse;
use frames::{Frames, Space};
use heads::StoredHeads;
use health::Health;
use index::{Index, IndexEntry};
use removals::Removals;
use write_budget::WriteBudget;

pub(crate) use device::{Device, FileDevice};
pub(crate) use directory::{CacheDirectory, DirectoryError, replace as replace_file};
pub(crate) use fill_run::FillRun;
use reads::UnreadableExtent;
pub(crate) use reads::{DiskRead, MAX_READ_EXTENTS};
pub(crate) use removals::Removal;
pub use space::{LackOfSpace, lack_of_space};
pub(crate) use verification::Verifier;

/// Threads for the I/O of the SSD.
const IO_THREADS: usize = 8;

/// Bytes of the SSD for each entry of the index: small extents fill it before the SSD is full.
const BYTES_PER_ENTRY: u64 = 32 << 10;

/// The highest number of entries of the index: the slots of the policy are those of the table, of which 10 % stay free.
const MAX_ENTRIES: usize = MAX_SLOTS as usize / 10 * 8;

/// The largest SSD tier in bytes. The index fills no more with extents of a whole frame.
pub const MAX_SSD_BYTES: u64 = 7 << 40;

const _: () = assert!(MAX_SSD_BYTES / FRAME_BYTES as u64 <= MAX_ENTRIES as u64);
const _: () = assert!(MAX_SSD_BYTES / FRAME_BYTES as u64 <= MAX_FRAMES as u64);

/// The highest number of frames: blocks are numbered with 32 bits.
const MAX_FRAMES: u32 = u32::MAX / FRAME_BLOCKS as u32;

/// The lowest number of entries of the index.
const MIN_ENTRIES: usize = 64;

/// Removals that are remembered while the index is loaded. More of them let the load be discarded.
const MAX_REMOVALS_WHILE_LOADING: usize = 1 << 20;

/// See the module's head.
pub(crate) struct Disk {
    device: Arc<dyn Device>,
    bytes: u64,
    eviction: Eviction,
    cache_id: u64,
    fingerprints: Fingerprints,
    state: Mutex<DiskState>,
    health: Health,
    io: IoThreads,
    removals: Arc<Removals>,
    write_budget: OnceLock<WriteBudget>,
    /// The extents that could not be read last.
    last_unreadable: Mutex<VecDeque<UnreadableExtent>>,
    /// True if entries of the index may be older than what is in their place.
    has_outdated_entries: AtomicBool,
    /// The changes of the index that the last checkpoint of this process has.
    checkpointed_changes: Mutex<Option<u64>>,
    /// True if a job that applies the policies of classes is queued, and not yet running.
    is_applying_queued: AtomicBool,
    clock: Arc<dyn Clock>,
    counters: Arc<Counters>,
}

struct DiskState {
    index: Index,
    frames: Frames,
    policy: Policy,
    class_policies: AppliedPolicies,
    /// The heads without data, which the policy does not rank.
    heads: StoredHeads,
    /// Frames that fills have taken for extents that are not written yet.
    reserved_frames: u32,
    /// Places removed since the load of a checkpoint began. Nothing is stored and found until it ended.
    removed_while_loading: Option<Vec<u64>>,
}

/// An extent to store.
pub(crate) struct StoreRequest {
    pub extent: SealedExtent,
    /// Pin it for this reason, if the bound of pins has room.
    pub pin: Option<PinReason>,
    /// Let the extent be dropped if the token is no longer current.
    pub validity: Option<(Arc<Changes>, Token)>,
    /// Of a head without data: the number of the data extents.
    pub data_extents: Option<u32>,
    /// Equal each time that the extent is read from the backing store; see [`WriteBudget::admits`].
    pub miss_key: Option<u64>,
    /// Of data: the fingerprint of its head, which may be written if the data is.
    pub head_key: Option<u64>,
    /// The space of its neighbours.
    pub run: Option<Arc<FillRun>>,
    /// Of data: lets a removal of its content wait until it is stored or dropped.
    pub content_use: Option<Arc<ContentUse>>,
    /// Released when the extent is stored or dropped. It bounds the queue.
    pub permit: OwnedSemaphorePermit,
    /// Like the permit. It keeps other readers from filling the extent, too.
    pub claim: Option<ExtentClaim>,
}

impl Disk {
    /// An empty tier of `bytes` on a device.
    pub fn new(
        device: Arc<dyn Device>,
        bytes: u64,
        eviction: Eviction,
        cache_id: u64,
        clock: Arc<dyn Clock>,
        counters: Arc<Counters>,
    ) -> io::Result<Arc<Self>> {
        let state = DiskState::empty(bytes, eviction);
        Self::with_state(device, bytes, eviction, cache_id, clock, counters, state)
    }

    /// A tier whose index is loaded in the background from a checkpoint. Until then, it is empty and stores nothing.
    pub fn load(
        device: Arc<dyn Device>,
        bytes: u64,
        eviction: Eviction,
        cache_id: u64,
        clock: Arc<dyn Clock>,
        counters: Arc<Counters>,
        index_path: &Path,
    ) -> io::Result<Arc<Self>> {
        let state = DiskState { removed_while_loading: Some(Vec::new()), ..DiskState::empty(0, eviction) };
        let disk = Self::with_state(device, bytes, eviction, cache_id, clock, counters, state)?;
        let (loading, path) = (disk.clone(), index_path.to_owned());
        disk.run_in_background(move || loading.load_checkpoint(&path));
        Ok(disk)
    }

    fn with_state(
        device: Arc<dyn Device>,
        bytes: u64,
        eviction: Eviction,
        cache_id: u64,
        clock: Arc<dyn Clock>,
        counters: Arc<Counters>,
        state: DiskState,
    ) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            device,
            bytes,
            eviction,
            cache_id,
            fingerprints: Fingerprints::new(cache_id),
            state: Mutex::new(state),
            health: Health::new(clock.clone(), counters.clone()),
            io: IoThreads::start(IO_THREADS)?,
            removals: Arc::default(),
            write_budget: OnceLock::new(),
            last_unreadable: Mutex::default(),
            has_outdated_entries: AtomicBool::new(false),
            checkpointed_changes: Mutex::default(),
            is_applying_queued: AtomicBool::new(false),
            clock,
            counters,
        }))
    }

    /// Limits what is written to bytes per second. Only the first call has an effect.
    pub fn limit_writes(&self, bytes_per_second: u64) {
        self.write_budget.get_or_init(|| WriteBudget::new(bytes_per_second, self.clock.now()));
    }

    /// Takes entries of the index that turn out to be wrong for outdated ones, and not for damage, until each was
    /// verified once: after a crash, the index is older than the extents.
    pub fn expect_outdated_entries(&self) {
        self.has_outdated_entries.store(true, Ordering::Release);
    }

    /// The fingerprints of this tier.
    pub const fn fingerprints(&self) -> Fingerprints {
        self.fingerprints
    }

    /// The id in each extent.
    pub const fn cache_id(&self) -> u64 {
        self.cache_id
    }

    /// Returns true if the index has the extent and the SSD is not switched off, or is due for a trial.
    pub fn has_readable(&self, name: ExtentName) -> bool {
        self.health.is_usable() && self.contains(name)
    }

    /// Returns true if the last operation of the SSD failed, or it is switched off.
    pub fn is_failing(&self) -> bool {
        self.health.is_failing()
    }

    /// Returns true if the index has the extent.
    pub fn contains(&self, name: ExtentName) -> bool {
        self.state.lock().index.find_extent(name).is_some()
    }

    /// Returns true if the index has the head of the address with this fingerprint.
    pub fn contains_head(&self, address: u64) -> bool {
        self.contains(ExtentName::of_head(address))
    }

    /// Pins an extent, if the bound of pins has room.
    pub fn pin(&self, name: ExtentName, reason: PinReason) {
        let state = &mut *self.state.lock();
        let Some(slot) = state.index.find_extent(name) else { return };
        state.pin(slot, Some(reason), &self.counters);
    }

    /// Moves an extent to the class of its present placement, and unpins it if only its former class was pinned.
    pub fn reclassify(&self, name: ExtentName, placement: Placement) {
        let state = &mut *self.state.lock();
        let Some(slot) = state.index.find_extent(name) else { return };
        let Some(entry) = state.index.get(slot) else { return };
        if !entry.is_ranked() {
            return state.index.set_class(slot, placement.class);
        }
        let keeps_pin = state.class_policies.is_to_pin(placement.class, placement.pin);
        let is_same = entry.class == placement.class;
        if is_same && !(entry.class == FIRST_SLICES && !keeps_pin && state.policy.is_pinned(slot)) {
            return;
        }
        state.policy.reclassify(slot, &entry.as_entry(), placement.class, keeps_pin);
        state.index.set_class(slot, placement.class);
        state.trim(MAX_EXCESS_EVICTIONS, &self.counters);
    }

    /// Returns true if an extent with a payload of this size would be stored, or if that is unknown because the index
    /// is still being loaded.
    pub fn would_admit(&self, candidate: Candidate) -> bool {
        let entry = disk_entry(candidate);
        let state = self.state.lock();
        state.removed_while_loading.is_some()
            || state.policy.would_admit(&entry)
            || candidate.placement.pin.is_some() && state.policy.may_pin(&entry)
    }

    /// Records a request for an extent that is not stored: its class is to earn its rank.
    pub fn record_bypass(&self, candidate: Candidate) {
        self.state.lock().policy.admits(&disk_entry(candidate));
    }

    /// Replaces the policies of classes. In the background, they are applied to what is stored, too.
    pub fn set_policies(self: &Arc<Self>, policies: TierPolicies) {
        self.state.lock().set_policies(policies);
        self.apply_in_background();
    }

    /// Unpins the extents of all classes that are not pinned, in the background. Pins of prefixes have no effect any
    /// longer if they were found before `generation`.
    pub fn end_prefix_pins(self: &Arc<Self>, generation: u64) {
        self.state.lock().class_policies.end_prefix_pins(generation);
        self.apply_in_background();
    }

    fn apply_in_background(self: &Arc<Self>) {
        if self.is_applying_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let disk = self.clone();
        self.run_in_background(move || {
            disk.is_applying_queued.store(false, Ordering::Release);
            disk.apply_policies();
        });
    }

    /// Pins, unpins and evicts as the policies of classes demand, in steps.
    fn apply_policies(&self) {
        while self.state.lock().apply_some_policies(&self.counters) {}
    }

    /// The occupancy by class, in blocks of [`BLOCK_BYTES`].
    pub fn occupancy(&self) -> [ClassOccupancy; CLASSES] {
        self.state.lock().policy.occupancy()
    }

    /// Stores an extent in the background.
    pub fn store(self: &Arc<Self>, request: StoreRequest) {
        let disk = self.clone();
        if !self.io.spawn(Urgency::Background, move || disk.write_extent(request)) {
            self.counters.fills_skipped.increment();
        }
    }

    /// Removes an extent whose object has changed: neither the policy nor its simulations have it any longer, unless a
    /// newer content is in its place. Returns its location if there was one.
    pub fn remove(&self, name: ExtentName) -> Option<FreedLocation> {
        let mut state = self.state.lock();
        let removed = state.release(name);
        if state.index.find(name.place).is_none() {
            state.policy.forget(name.place);
        }
        removed.map(|entry| FreedLocation(entry.space))
    }

    /// Removes an extent in whose place an equal one is about to be stored. Returns its location if there was one.
    pub fn release(&self, name: ExtentName) -> Option<FreedLocation> {
        self.state.lock().release(name).map(|entry| FreedLocation(entry.space))
    }

    /// Runs `job` on an I/O thread after the reads of requests. The caller bounds the number of such jobs.
    pub fn run_in_background(&self, job: impl FnOnce() + Send + 'static) {
        // A closed tier needs no such work.
        let _is_accepted = self.io.spawn(Urgency::Background, job);
    }

    /// Begins a removal, which jobs in the background carry out; `None` if too many are in flight.
    pub fn begin_removal(&self) -> Option<Removal> {
        self.removals.begin()
    }

    /// Waits until the removals in the background that were begun so far have ended.
    pub async fn finish_removals(&self) {
        self.removals.finish().await;
    }

    /// Reads what is at a location that was freed: the extent, unless it was replaced. `None`, too, if the SSD is switched
    /// off. Blocks.
    pub fn read_freed(&self, key: ExtentKey, location: FreedLocation) -> Option<Bytes> {
        let bytes = if self.health.may_use() { self.read_space(location.0)? } else { return None };
        verify(&bytes, self.cache_id, key)
    }

    /// Reads an extent. Not a use of it. `None`, too, if the SSD is switched off. Blocks.
    pub fn read_blocking(&self, key: ExtentKey) -> Option<Bytes> {
        let name = self.fingerprints.name(key);
        let state = self.state.lock();
        let space = state.index.find_extent(name).and_then(|slot| state.index.get(slot))?.space;
        drop(state);
        self.read_freed(key, FreedLocation(space))
    }

    /// Finishes the queued I/O, the load of a checkpoint included, rejects more, and makes the extents durable. Blocks.
    pub fn close(&self) -> io::Result<()> {
        self.io.close();
        self.device.sync()
    }

    /// True if the index is complete.
    pub fn is_loaded(&self) -> bool {
        self.state.lock().removed_while_loading.is_none()
    }

    /// Number of extents in the index.
    pub fn entries(&self) -> usize {
        self.state.lock().index.entries()
    }

    /// Bytes that extents occupy.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().frames.used_blocks() * BLOCK_BYTES as u64
    }

    /// Bytes of heads whose data is apart, and of data whose head is in the index.
    #[cfg(test)]
    pub fn headed_bytes(&self) -> u64 {
        self.state.lock().headed_blocks(self.fingerprints) * BLOCK_BYTES as u64
    }

    /// Number of jobs that wait for an I/O thread.
    #[cfg(test)]
    pub fn queued_jobs(&self) -> usize {
        self.io.queued_jobs()
    }

    /// Number of jobs of the I/O threads that have ended.
    #[cfg(test)]
    pub fn finished_jobs(&self) -> u64 {
        self.io.finished_jobs()
    }

    /// The size of the tier in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The number of frames of a tier of `bytes`.
fn frame_count(bytes: u64) -> u32 {
    u32::try_from(bytes / FRAME_BYTES as u64).unwrap_or(u32::MAX).min(MAX_FRAMES)
}

/// The view of the eviction policy of an extent that may be stored.
fn disk_entry(candidate: Candidate) -> Entry {
    let blocks = u32::try_from(blocks_for(candidate.payload_bytes)).unwrap_or(u32::MAX);
    Entry { key: candidate.reuse_key, blocks, class: candidate.placement.class }
}

/// The location of an extent that was removed from the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreedLocation(Space);

impl DiskState {
    fn empty(bytes: u64, eviction: Eviction) -> Self {
        let frames = frame_count(bytes);
        let entries = usize::try_from(bytes / BYTES_PER_ENTRY).unwrap_or(usize::MAX).max(MIN_ENTRIES);
        let index = Index::new(entries.min(MAX_ENTRIES));
        let blocks = u64::from(frames) * FRAME_BLOCKS as u64;
        let policy = new_policy(
            eviction,
            TierCapacity {
                blocks,
                slots: index.capacity(),
                max_entries: index.max_entries(),
                block_bytes: BLOCK_BYTES,
            },
        );
        let class_policies = AppliedPolicies::new();
        let frames = Frames::new(frames);
        Self {
            index,
            frames,
            policy,
            class_policies,
            heads: StoredHeads::default(),
            reserved_frames: 0,
            removed_while_loading: None,
        }
    }

    fn set_policies(&mut self, policies: TierPolicies) {
        self.class_policies.replace(policies, &mut self.policy);
    }

    /// Brings a change of the policies to some entries. Returns true if there may be more.
    fn apply_some_policies(&mut self, counters: &Counters) -> bool {
        self.class_policies.apply_some(&mut self.policy, &self.index, counters)
            || self.trim(MAX_STEP_ENTRIES, counters)
    }

    /// Evicts up to `max_entries` entries of classes that fill too much. Returns true if there may be more.
    fn trim(&mut self, max_entries: u32, counters: &Counters) -> bool {
        (0..max_entries).all(|_| self.policy.has_excess() && self.evict(counters).is_some())
    }

    /// Pins an entry if its class is pinned, or for its prefix, as far as the bound of pins has room.
    fn pin(&mut self, slot: Slot, reason: Option<PinReason>, counters: &Counters) {
        let Some(entry) = self.index.get(slot).filter(IndexEntry::is_ranked) else { return };
        let is_to_pin = self.class_policies.is_to_pin(entry.class, reason);
        if is_to_pin && !self.policy.pin(slot, &entry.as_entry()) {
            counters.pins_ignored.increment();
        }
    }

    /// Adds an entry of a checkpoint, unless it contradicts another.
    fn restore(&mut self, entry: IndexEntry) {
        if self.index.is_full() || self.index.find(entry.place).is_some() || !self.frames.claim(entry.space) {
            return;
        }
        if let Some(slot) = self.insert(&entry)
            && entry.is_ranked()
            && self.class_policies.is_older_to_pin(entry.class)
        {
            self.policy.pin(slot, &entry.as_entry());
        }
    }

    /// Adds an entry of a place that the index does not have. `None` if the index is full.
    fn insert(&mut self, entry: &IndexEntry) -> Option<Slot> {
        let slot = self.index.insert(*entry)?;
        if entry.is_ranked() {
            self.policy.insert(slot, &entry.as_entry());
        } else {
            self.heads.add(entry);
            self.policy.set_unranked(self.heads.blocks(), self.heads.count());
        }
        Some(slot)
    }

    /// Removes an extent. The simulations of the policy keep it.
    fn release(&mut self, name: ExtentName) -> Option<IndexEntry> {
        if let Some(removed) = &mut self.removed_while_loading
            && removed.len() < MAX_REMOVALS_WHILE_LOADING
        {
            removed.push(name.place);
        }
        let slot = self.index.find_extent(name)?;
        self.release_slot(slot)
    }

    fn release_slot(&mut self, slot: Slot) -> Option<IndexEntry> {
        let entry = self.index.remove(slot)?;
        if entry.is_ranked() {
            self.policy.release(slot, &entry.as_entry());
        } else {
            self.heads.remove(&entry);
            self.policy.set_unranked(self.heads.blocks(), self.heads.count());
        }
        self.frames.release(entry.space);
        Some(entry)
    }

    fn evict(&mut self, counters: &Counters) -> Option<IndexEntry> {
        let slot = self.policy.evict(&self.index)?;
        let entry = self.index.remove(slot)?;
        self.frames.release(entry.space);
        counters.ssd_evictions.increment();
        Some(entry)
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disk({} extents)", self.entries())
    }
}
