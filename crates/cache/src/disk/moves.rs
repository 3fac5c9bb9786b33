//! Moves of small extents: the victims of an allocation may have enough blocks in different frames. Their neighbours then
//! move to the space of the other victims, because their own rank says that they remain.
//!
//! While extents leave a frame, it is closed: blocks that are freed there are not allocated again. An entry of the index that
//! names a space of the frame is therefore the same extent from the plan to the end, and what is copied was read after the
//! plan and verified.

use bytes::Bytes;
use tradewind_model::eviction::Slot;

use super::frames::{Space, WHOLE_FRAME};
use super::index::IndexEntry;
use super::write_budget::WriteKind;
use super::{Disk, DiskState};
use crate::aligned::BLOCK_BYTES;
use crate::extent::{read_header, verify};
use crate::fingerprint::ExtentName;

/// A move of one extent.
#[derive(Debug, Clone, Copy)]
struct Move {
    slot: Slot,
    from: IndexEntry,
    to: Space,
}

/// An extent of a frame, by the block where its header was found.
struct FoundExtent {
    block: u32,
    name: ExtentName,
}

/// The moves out of a frame, which is closed.
struct MovePlan {
    frame: u32,
    /// The space that is to become free.
    hole: Space,
    moves: Vec<Move>,
}

impl MovePlan {
    fn bytes(&self) -> usize {
        self.moves.iter().map(|planned| planned.from.space.blocks() as usize * BLOCK_BYTES).sum()
    }
}

impl Disk {
    /// Makes space of a size in one of `frames`, the emptiest first, by moves of the extents there. Removes frames in which
    /// that is impossible: an extent is pinned or being written, or has a damaged header.
    pub(super) fn gather_space(&self, frames: &mut Vec<u32>, size: u8) {
        while !frames.is_empty() && !self.health.is_failing() {
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
        let found = self.extents_of(frame, &bytes);
        let Some(plan) = self.state.lock().plan_moves(frame, size, &found, self) else { return false };
        // Extents that were read before the plan may have been replaced in the same blocks since.
        let copied = if plan.moves.is_empty() { Vec::new() } else { self.copy_extents(&plan) };
        self.state.lock().finish_moves(&plan, &copied)
    }

    /// The extents in the bytes of a frame. Headers say which ones it has: the index has no way from a frame to its entries.
    fn extents_of(&self, frame: u32, bytes: &Bytes) -> Vec<FoundExtent> {
        let headers = (Space::at_frame(frame, WHOLE_FRAME).block..)
            .zip(bytes.chunks_exact(BLOCK_BYTES))
            .filter_map(|(block, bytes)| Some((block, read_header(bytes)?)));
        headers
            .filter(|(_, header)| header.cache_id == self.cache_id)
            .map(|(block, header)| FoundExtent { block, name: self.fingerprints.name(header.key) })
            .collect()
    }

    /// Copies the extents of a plan to their new space. Returns for each whether its copy is whole. After an error of the SSD,
    /// nothing more is copied.
    fn copy_extents(&self, plan: &MovePlan) -> Vec<bool> {
        let frame = Space::at_frame(plan.frame, WHOLE_FRAME);
        let bytes = self.read_space(frame);
        let mut copied = Vec::with_capacity(plan.moves.len());
        for Move { from, to, .. } in &plan.moves {
            let Some(bytes) = &bytes else { break };
            let offset = (from.space.block - frame.block) as usize * BLOCK_BYTES;
            let extent = bytes.slice(offset..offset + from.space.blocks() as usize * BLOCK_BYTES);
            let header =
                read_header(&extent).filter(|header| from.has_name(self.fingerprints.name(header.key)));
            let is_whole = header.is_some_and(|header| verify(&extent, self.cache_id, header.key).is_some());
            // A damaged extent stays, and its next read finds the damage.
            if is_whole && !self.write(&extent, *to) {
                break;
            }
            copied.push(is_whole);
        }
        copied.resize(plan.moves.len(), false);
        if let Some(budget) = self.write_budget.get() {
            let moves = plan.moves.iter().zip(&copied).filter(|(_, is_copied)| !**is_copied);
            let unused: usize =
                moves.map(|(planned, _)| planned.from.space.blocks() as usize * BLOCK_BYTES).sum();
            budget.refund(unused);
        }
        copied
    }
}

impl DiskState {
    /// Decides which extents of a frame move, and takes their new space. The frame is closed then. Evicts those that fit
    /// nowhere else. `None` if blocks are in use that no extent of the index has, if a pinned extent or a head fits nowhere
    /// else, if the frame is closed already, or if the budget of writes has no bytes for the moves.
    fn plan_moves(&mut self, frame: u32, size: u8, found: &[FoundExtent], disk: &Disk) -> Option<MovePlan> {
        let hole = self.frames.emptiest_space(frame, size);
        let mut extents: Vec<(Slot, IndexEntry)> = Vec::new();
        for FoundExtent { block, name } in found {
            let Some(slot) = self.index.find_extent(*name) else { continue };
            let Some(entry) = self.index.get(slot).filter(|entry| entry.space.block == *block) else {
                continue;
            };
            if entry.space.overlaps(hole) {
                extents.push((slot, entry));
            }
        }
        let overlapping_blocks: u32 = extents.iter().map(|(_, entry)| entry.space.common_blocks(hole)).sum();
        if overlapping_blocks != self.frames.used_blocks_in(hole) || !self.frames.close(frame) {
            return None;
        }
        let (mut moves, mut homeless) = (Vec::new(), Vec::new());
        let mut is_possible = true;
        for (slot, from) in extents {
            match self.frames.allocate(from.space.size) {
                Some(to) => moves.push(Move { slot, from, to }),
                // Data without its head is lost, and no removal of the object finds it.
                None if !from.is_ranked() || self.policy.is_pinned(slot) => is_possible = false,
                None => homeless.push(slot),
            }
        }
        let plan = MovePlan { frame, hole, moves };
        let admits = |plan: &MovePlan| {
            let budget = disk.write_budget.get();
            budget.is_none_or(|budget| budget.admits(WriteKind::Pinned, plan.bytes(), disk.clock.now()))
        };
        if !is_possible || !admits(&plan) {
            plan.moves.iter().for_each(|planned| self.frames.release(planned.to));
            self.frames.open(frame);
            return None;
        }
        for slot in homeless {
            self.release_slot(slot);
            disk.counters.ssd_evictions.increment();
        }
        Some(plan)
    }

    /// Brings the copies into the index, and opens the frame. Returns true if the space became free.
    fn finish_moves(&mut self, plan: &MovePlan, copied: &[bool]) -> bool {
        for (Move { slot, from, to }, is_copied) in plan.moves.iter().zip(copied) {
            // It may have been removed or replaced since. Nothing else comes to its space while the frame is closed.
            let is_same = |entry: &IndexEntry| (entry.place, entry.space) == (from.place, from.space);
            match self.index.get(*slot).filter(is_same) {
                Some(entry) if *is_copied => {
                    self.index.replace(*slot, &IndexEntry { space: *to, ..entry });
                    self.frames.release(from.space);
                }
                _ => self.frames.release(*to),
            }
        }
        self.frames.open(plan.frame);
        self.frames.used_blocks_in(plan.hole) == 0
    }
}
