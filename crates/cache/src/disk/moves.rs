//! Moves of small extents: the victims of an allocation may have enough blocks in different frames. Their neighbours then
//! move to the space of the other victims, because their own rank says that they remain.

use tradewind_model::eviction::Slot;

use super::frames::{Space, WHOLE_FRAME};
use super::index::IndexEntry;
use super::write_budget::WriteKind;
use super::{Disk, DiskState};
use crate::aligned::BLOCK_BYTES;
use crate::extent::read_header;
use crate::fingerprint::ExtentName;

/// A move of one extent.
struct Move {
    slot: Slot,
    from: IndexEntry,
    to: Space,
}

impl Disk {
    /// Makes space of a size in one of `frames`, the emptiest first, by moves of the extents there. Removes frames in which
    /// that is impossible: an extent is being written, or has a damaged header.
    pub(super) fn gather_space(&self, frames: &mut Vec<u32>, size: u8) {
        while !frames.is_empty() {
            let emptiest = {
                let state = self.state.lock();
                (0..frames.len()).min_by_key(|index| state.frames.used_blocks_of(frames[*index]))
            };
            let Some(frame) = emptiest.map(|index| frames.swap_remove(index)) else { return };
            if self.clear_in_frame(frame, size) {
                return;
            }
        }
    }

    /// Makes space of a size in a frame. Extents that fit nowhere else leave. Returns false if it is impossible.
    pub(super) fn clear_in_frame(&self, frame: u32, size: u8) -> bool {
        let Some(bytes) = self.read_space(Space::at_frame(frame, WHOLE_FRAME)) else { return false };
        // Headers say which extents it has: the index has no way from a frame to its entries.
        let first_block = Space::at_frame(frame, WHOLE_FRAME).block;
        let names: Vec<(u32, ExtentName)> = (first_block..)
            .zip(bytes.chunks_exact(BLOCK_BYTES))
            .filter_map(|(block, bytes)| Some((block, read_header(bytes)?)))
            .filter(|(_, header)| header.cache_id == self.cache_id)
            .map(|(block, header)| (block, self.fingerprints.name(header.key)))
            .collect();
        let Some(moves) = self.state.lock().plan_moves(frame, size, &names, self) else { return false };
        // What is in the closed frame now is what the index says: before, a head may have replaced one in its place.
        let bytes = self.read_space(Space::at_frame(frame, WHOLE_FRAME));
        let mut is_written = bytes.is_some();
        let bytes = bytes.unwrap_or_default();
        for Move { from, to, .. } in &moves {
            let offset = (from.space.block - first_block) as usize * BLOCK_BYTES;
            let length = from.space.blocks() as usize * BLOCK_BYTES;
            is_written = is_written && self.write(&bytes[offset..offset + length], *to);
        }
        let mut state = self.state.lock();
        for Move { slot, from, to } in &moves {
            // It may have been removed or replaced since. Nothing else comes to its space while the frame is closed.
            let is_same = |entry: &IndexEntry| (entry.place, entry.space) == (from.place, from.space);
            match state.index.get(*slot).filter(is_same) {
                Some(entry) if is_written => {
                    state.index.replace(*slot, &IndexEntry { space: *to, ..entry });
                    state.frames.release(from.space);
                }
                _ => state.frames.release(*to),
            }
        }
        state.frames.open(frame);
        drop(state);
        if !is_written && let Some(budget) = self.write_budget.get() {
            moves.iter().for_each(|moved| budget.refund(moved.to.blocks() as usize * BLOCK_BYTES));
        }
        is_written
    }
}

impl DiskState {
    /// Decides which extents of a frame move, and takes their new space. The frame is closed for allocations then. Evicts
    /// those that fit nowhere else. `None` if blocks are in use that no extent of the index has, or the budget of writes
    /// has no bytes for the moves.
    fn plan_moves(
        &mut self,
        frame: u32,
        size: u8,
        names: &[(u32, ExtentName)],
        disk: &Disk,
    ) -> Option<Vec<Move>> {
        let hole = self.frames.emptiest_space(frame, size);
        let mut extents: Vec<(Slot, IndexEntry)> = Vec::new();
        for (block, name) in names {
            let Some(slot) = self.index.find_extent(*name) else { continue };
            let Some(entry) = self.index.get(slot).filter(|entry| entry.space.block == *block) else {
                continue;
            };
            if entry.space.overlaps(hole) {
                extents.push((slot, entry));
            }
        }
        let moved_blocks: u32 = extents.iter().map(|(_, entry)| entry.space.blocks()).sum();
        let overlapping_blocks: u32 = extents.iter().map(|(_, entry)| entry.space.common_blocks(hole)).sum();
        if overlapping_blocks != self.frames.used_blocks_in(hole) {
            return None;
        }
        if !self.frames.close(frame) {
            return None;
        }
        let bytes = moved_blocks as usize * BLOCK_BYTES;
        let budget = disk.write_budget.get();
        if !budget.is_none_or(|budget| budget.admits(WriteKind::Pinned, bytes, disk.clock.now())) {
            self.frames.open(frame);
            return None;
        }
        let (mut moves, mut homeless) = (Vec::new(), Vec::new());
        for (slot, from) in extents {
            match self.frames.allocate(from.space.size) {
                Some(to) => moves.push(Move { slot, from, to }),
                None if !from.is_ranked() || !self.policy.is_pinned(slot) => homeless.push(slot),
                None => {}
            }
        }
        // The blocks of these are in the closed frame: nothing moves there.
        for slot in homeless {
            self.release_slot(slot);
            disk.counters.ssd_evictions.increment();
        }
        Some(moves)
    }
}
