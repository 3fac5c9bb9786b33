//! Writes of extents: admission, the budget of writes, space by eviction, and the entry of the index.

use std::sync::Arc;

use tradewind_model::eviction::EvictionPolicy;

use super::fill_run::FillRun;
use super::frames::{Space, WHOLE_FRAME};
use super::index::IndexEntry;
use super::write_budget::WriteKind;
use super::{Disk, StoreRequest};
use crate::aligned::BLOCK_BYTES;
use crate::extent::{ExtentKey, SealedExtent, read_header};
use crate::policy::{MAX_EXCESS_EVICTIONS, PinReason};

/// Victims of one allocation at most. The other extents in the frame of a victim leave with it, unless one of them is
/// pinned or being written. If that is so for all victims, the extent is not stored.
pub(super) const MAX_VICTIMS: usize = 16;

impl Disk {
    /// Stores an extent, unless it is there, outdated, not admitted, over the budget or without space.
    pub(super) fn write_extent(self: &Arc<Self>, request: StoreRequest) {
        let StoreRequest { extent, pin, validity, miss_key, head_key, run, content_use, permit, claim } =
            request;
        let is_valid = || validity.as_ref().is_none_or(|(changes, token)| changes.is_current(token));
        let fingerprint = self.fingerprints.extent(extent.key);
        let is_present = matches!(extent.key, ExtentKey::Data(..)) && self.contains(fingerprint);
        if is_present || !is_valid() {
            return;
        }
        let Some(size) = self.admit(fingerprint, &extent, pin) else { return };
        let kind = match (pin, miss_key, extent.key) {
            (None, Some(key), _) => WriteKind::Missed { key, head: head_key },
            (None, None, ExtentKey::Head(key)) => WriteKind::Head(key),
            _ => WriteKind::Pinned,
        };
        let bytes = extent.bytes.len();
        let budget = self.write_budget.get();
        if !budget.is_none_or(|budget| budget.admits(kind, bytes, self.clock.now())) {
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
        if !is_written || !is_valid() {
            state.frames.release(space);
            return;
        }
        state.remove(fingerprint);
        // Others may have taken the entry that was free before the write.
        if state.index.is_full() {
            state.evict(&self.counters);
        }
        let entry = IndexEntry { fingerprint, space, class: extent.class };
        let Some(slot) = state.index.insert(entry) else {
            state.frames.release(space);
            return;
        };
        state.policy.insert(slot, &entry.as_entry());
        state.pin(slot, pin, &self.counters);
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

    fn write(&self, bytes: &[u8], space: Space) -> bool {
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

    /// The size of the space for an extent, if the policy wants to store it.
    fn admit(&self, fingerprint: u64, extent: &SealedExtent, pin: Option<PinReason>) -> Option<u8> {
        let size = extent.size()?;
        let entry =
            IndexEntry { fingerprint, space: Space { block: 0, size }, class: extent.class }.as_entry();
        let mut state = self.state.lock();
        (state.policy.admits(&entry) || pin.is_some() && state.policy.may_pin(&entry)).then_some(size)
    }

    /// Space for an extent, beside its neighbours if possible.
    fn space_for(&self, key: ExtentKey, size: u8, run: Option<&FillRun>) -> Option<Space> {
        let in_run = match (key, run) {
            (ExtentKey::Data(_, number), Some(run)) => run.take(number, size),
            _ => None,
        };
        in_run.or_else(|| self.allocate(size))
    }

    /// Free space of a size and a free entry of the index, after evictions if need be. `None` while the index is
    /// loaded, or if too much would have to be evicted.
    fn allocate(&self, size: u8) -> Option<Space> {
        for _ in 0..MAX_VICTIMS {
            let victim = {
                let mut state = self.state.lock();
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
                victim
            };
            // The victim was smaller: its neighbours in the frame follow.
            self.drain_frame(victim.space.frame());
        }
        None
    }

    /// Evicts all extents of a frame, unless it would not be free then: because of one that is pinned, is being written
    /// or has a damaged header. Headers say which extents it has: the index has no way from a frame to its entries.
    pub(super) fn drain_frame(&self, frame: u32) {
        let space = Space::at_frame(frame, WHOLE_FRAME);
        let Some(bytes) = self.read_space(space) else { return };
        let headers: Vec<(u32, u64)> = (space.block..)
            .zip(bytes.chunks_exact(BLOCK_BYTES))
            .filter_map(|(block, bytes)| Some((block, read_header(bytes)?)))
            .filter(|(_, header)| header.cache_id == self.cache_id)
            .map(|(block, header)| (block, self.fingerprints.extent(header.key)))
            .collect();
        let mut state = self.state.lock();
        let (mut slots, mut evictable_blocks) = (Vec::new(), 0);
        for (block, fingerprint) in headers {
            let Some(slot) = state.index.find(fingerprint) else { continue };
            let Some(entry) = state.index.get(slot).filter(|entry| entry.space.block == block) else {
                continue;
            };
            if !state.policy.is_pinned(slot) {
                slots.push(slot);
                evictable_blocks += entry.space.blocks();
            }
        }
        if state.frames.used_blocks_of(frame) > evictable_blocks {
            return;
        }
        for slot in slots {
            state.remove_slot(slot);
            self.counters.ssd_evictions.increment();
        }
    }
}
