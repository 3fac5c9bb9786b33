//! Writes of extents: admission, the budget of writes, space by eviction, and the entry of the index.

use std::sync::Arc;

use tradewind_model::eviction::{EvictionPolicy, Slot};

use super::fill_run::FillRun;
use super::frames::Space;
use super::index::{ExtentKind, IndexEntry};
use super::write_budget::WriteKind;
use super::{Disk, DiskState, StoreRequest};
use crate::aligned::BLOCK_BYTES;
use crate::counters::Counters;
use crate::extent::{EXTENT_SIZES_BLOCKS, ExtentKey, FRAME_BLOCKS};
use crate::fingerprint::{ContentTag, ExtentName};
use crate::policy::{MAX_EXCESS_EVICTIONS, PinReason};

/// Victims of one allocation at most: as many of one block as a frame has, and some more, because other writes take
/// space, too. If they leave no space of the size, the extent is not stored.
const MAX_VICTIMS: usize = FRAME_BLOCKS + 6;

impl Disk {
    /// Stores an extent, unless it is there, outdated, not admitted, over the budget or without space. It replaces what
    /// another content has in its place, and takes over its rank.
    pub(super) fn write_extent(self: &Arc<Self>, request: StoreRequest) {
        let StoreRequest {
            extent,
            pin,
            validity,
            data_extents,
            miss_key,
            head_key,
            run,
            content_use,
            permit,
            claim,
        } = request;
        let is_valid = || {
            validity.as_ref().is_none_or(|(changes, token)| changes.is_current(token))
                && content_use.as_ref().is_none_or(|content_use| content_use.is_current())
        };
        let name = self.fingerprints.name(extent.key);
        let is_present = matches!(extent.key, ExtentKey::Data(..)) && self.contains(name);
        // A reader delivers one content to its end, and needs its extents until then.
        let replaces_used = |state: &DiskState| {
            let replaced = state.replaced_content(name);
            replaced.is_some_and(|tag| {
                content_use.as_ref().is_some_and(|content_use| content_use.is_tag_in_use(tag))
            })
        };
        if is_present || !is_valid() || replaces_used(&self.state.lock()) {
            return;
        }
        let kind = match (name.content, data_extents) {
            (Some(tag), _) => ExtentKind::Data(tag),
            (None, None) => ExtentKind::Object,
            (None, Some(extents)) => {
                ExtentKind::Head { extents: extents.min(ExtentKind::MAX_EXTENTS), is_stale: false }
            }
        };
        let Some(size) = extent.size() else { return };
        // The space is chosen after the admission.
        let space = Space { block: 0, size };
        let entry = IndexEntry { place: name.place, space, class: extent.class, kind };
        if !self.state.lock().admits(&entry, pin) {
            return;
        }
        let write_kind = match (pin, miss_key, extent.key) {
            (None, Some(key), _) => WriteKind::Missed { key, head: head_key },
            (None, None, ExtentKey::Head(key)) => WriteKind::Head(key),
            _ => WriteKind::Pinned,
        };
        let bytes = extent.bytes.len();
        let budget = self.write_budget.get();
        if !budget.is_none_or(|budget| budget.admits(write_kind, bytes, self.clock.now())) {
            self.counters.fills_over_budget.increment();
            return;
        }
        // Before anything is evicted for it.
        let space =
            if self.health.may_use() { self.space_for(extent.key, size, run.as_deref()) } else { None };
        let Some(space) = space else {
            self.counters.fills_skipped.increment();
            budget.inspect(|budget| budget.refund(bytes));
            return;
        };
        let is_written = self.write(&extent.bytes, space);
        if !is_written {
            budget.inspect(|budget| budget.refund(bytes));
        }
        let mut state = self.state.lock();
        // Under the lock, under which a change removes the extent after it made the token obsolete.
        if !is_written || !is_valid() || replaces_used(&state) {
            state.frames.release(space);
            return;
        }
        let Some(slot) = state.put(&IndexEntry { space, ..entry }, &self.counters) else {
            state.frames.release(space);
            return;
        };
        state.pin(slot, pin, &self.counters);
        if !entry.is_ranked() {
            state.free_stale_heads(self.fingerprints);
        }
        let has_excess = state.trim(MAX_EXCESS_EVICTIONS, &self.counters);
        drop(state);
        if has_excess {
            self.apply_in_background();
        }
        self.counters.fills.increment();
        drop(claim);
        drop(content_use);
        drop(permit);
    }

    /// Writes an extent. Returns false if the SSD fails.
    pub(super) fn write(&self, bytes: &[u8], space: Space) -> bool {
        match self.device.write(bytes, u64::from(space.block) * BLOCK_BYTES as u64) {
            Ok(()) => {
                self.health.record_success();
                self.counters.ssd_written_bytes.add(bytes.len() as u64);
                true
            }
            Err(e) => {
                self.health.record_error(&e);
                false
            }
        }
    }

    /// Space for an extent, beside its neighbours if possible.
    fn space_for(self: &Arc<Self>, key: ExtentKey, size: u8, run: Option<&FillRun>) -> Option<Space> {
        let in_run = match (key, run) {
            (ExtentKey::Data(place, _), Some(run)) => run.take(place.number, size),
            _ => None,
        };
        in_run.or_else(|| self.allocate(size))
    }

    /// Free space of a size and a free entry of the index, after evictions if need be. Victims leave by their rank only:
    /// if they have enough blocks, but not together, the neighbours of one of them move. `None` while the index is loaded,
    /// or if the victims leave no such space.
    fn allocate(&self, size: u8) -> Option<Space> {
        let (mut freed_blocks, mut frames) = (0, Vec::new());
        for _ in 0..MAX_VICTIMS {
            {
                let state = &mut *self.state.lock();
                if state.removed_while_loading.is_some() {
                    return None;
                }
                if state.index.is_full() {
                    state.evict(&self.counters)?;
                }
                if let Some(space) = state.frames.allocate(size) {
                    return Some(space);
                }
                let victim = state.evict(&self.counters)?;
                if let Some(space) = state.frames.allocate(size) {
                    return Some(space);
                }
                freed_blocks += victim.space.blocks();
                frames.push(victim.space.frame());
            }
            if freed_blocks as usize >= EXTENT_SIZES_BLOCKS[usize::from(size)] {
                self.gather_space(&mut frames, size);
            }
        }
        self.state.lock().frames.allocate(size)
    }
}

impl DiskState {
    /// Returns true if an entry must be stored. Records the request for it: a hit if an equal one is in its place.
    fn admits(&mut self, entry: &IndexEntry, pin: Option<PinReason>) -> bool {
        let requested = entry.as_entry();
        let may_pin = |state: &Self| pin.is_some() && state.policy.may_pin(&requested);
        if !entry.is_ranked() {
            return self.policy.would_admit(&requested) || may_pin(self);
        }
        match self.find_equal(entry) {
            // A small object that is stored again was compared, or its older form could not be read.
            Some(_) if entry.kind == ExtentKind::Object => true,
            Some(slot) => {
                self.policy.hit(slot, &requested);
                true
            }
            None => self.policy.admits(&requested) || may_pin(self),
        }
    }

    /// The content of the data that an extent of another content would replace.
    fn replaced_content(&self, name: ExtentName) -> Option<ContentTag> {
        let entry = self.index.find(name.place).and_then(|slot| self.index.get(slot))?;
        match entry.kind {
            ExtentKind::Data(tag) if name.content.is_some_and(|content| content != tag) => Some(tag),
            _ => None,
        }
    }

    /// The slot of an entry that the policy cannot tell from this one.
    fn find_equal(&self, entry: &IndexEntry) -> Option<Slot> {
        let slot = self.index.find(entry.place)?;
        let found = self.index.get(slot)?;
        let is_equal = found.as_entry() == entry.as_entry() && found.is_ranked() == entry.is_ranked();
        is_equal.then_some(slot)
    }

    /// Adds an entry in place of the one that is there. `None` if the index is full of entries that cannot be evicted.
    fn put(&mut self, entry: &IndexEntry, counters: &Counters) -> Option<Slot> {
        if let Some(slot) = self.find_equal(entry) {
            let replaced = self.index.get(slot)?;
            self.index.replace(slot, entry);
            self.frames.release(replaced.space);
            return Some(slot);
        }
        if let Some(slot) = self.index.find(entry.place) {
            self.release_slot(slot);
        }
        // Others may have taken the entry that was free before the write.
        if self.index.is_full() {
            self.evict(counters);
        }
        self.insert(entry)
    }
}
