//! Space for the neighbours of one content: consecutive frames, so that a later read of them is one request to the SSD.
//!
//! Frames are taken for a window of extents when the first of them is written. The I/O threads write extents in about
//! their order, so the two latest windows are kept. Extents outside of them get any space.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::frames::{FrameRun, Space, WHOLE_FRAME};
use super::reads::MAX_READ_EXTENTS;
use super::{Disk, DiskState};
use crate::counters::Counters;
use crate::extent::{FRAME_BLOCKS, FRAME_BYTES, blocks_for};

/// Windows that are kept.
const MAX_WINDOWS: usize = 2;

/// All windows together reserve at most this part of all frames.
const MIN_FRAMES_PER_RESERVED_FRAME: u32 = 16;

/// The last extent joins its neighbours if at most this part of the window's blocks stays free behind it.
const MIN_BLOCKS_PER_FREE_BLOCK: u32 = 8;

/// See the module's head.
pub(crate) struct FillRun {
    disk: Arc<Disk>,
    /// The extents that are filled.
    extents: Range<u32>,
    /// Blocks of the last of them.
    last_blocks: u32,
    windows: Mutex<VecDeque<Window>>,
}

struct Window {
    extents: Range<u32>,
    first_frame: u32,
    /// A bit for each frame that no extent has taken.
    untaken: u32,
}

impl FillRun {
    /// Space for `extents`, of which the last has a payload of `last_payload_bytes`. `None` for a single one.
    pub fn new(disk: &Arc<Disk>, extents: Range<u32>, last_payload_bytes: usize) -> Option<Arc<Self>> {
        let last_blocks = u32::try_from(blocks_for(last_payload_bytes)).ok()?;
        let disk = disk.clone();
        (extents.len() > 1).then(|| Arc::new(Self { disk, extents, last_blocks, windows: Mutex::default() }))
    }

    /// Takes the space for an extent of a size. `None` if it does not belong to a run.
    pub(super) fn take(&self, number: u32, size: u8) -> Option<Space> {
        let mut windows = self.windows.lock();
        while windows.iter().all(|window| number >= window.extents.end) {
            let next = windows.back().map_or(self.extents.start, |window| window.extents.end);
            // The I/O threads may write a later extent before the first one of a window.
            let is_near = number.saturating_sub(next) < MAX_READ_EXTENTS as u32;
            let window = self.open_window(if is_near { next } else { number })?;
            windows.push_back(window);
            if windows.len() > MAX_WINDOWS {
                windows.pop_front().into_iter().for_each(|window| self.release(&window));
            }
        }
        let frame = windows.iter_mut().find_map(|window| window.take(number))?;
        let space = Space::at_frame(frame, size);
        let mut state = self.disk.state.lock();
        state.reserved_frames -= 1;
        if size != WHOLE_FRAME {
            state.frames.release_rest(space);
        }
        Some(space)
    }

    /// A window from `number` on, which may have no frames: then its extents do not cause another search.
    fn open_window(&self, number: u32) -> Option<Window> {
        let end = self.extents.end.min(number.saturating_add(MAX_READ_EXTENTS as u32));
        let mut count = end.checked_sub(number)?;
        if end == self.extents.end {
            let free_blocks = (FRAME_BLOCKS as u32).saturating_sub(self.last_blocks);
            let is_joined = free_blocks * MIN_BLOCKS_PER_FREE_BLOCK <= count * FRAME_BLOCKS as u32;
            count -= u32::from(!is_joined);
        }
        count = count.min(self.disk.affordable_frames());
        if count < 2 {
            return None;
        }
        let run = self.disk.state.lock().reserve_frames(count, &self.disk.counters);
        let run = run.unwrap_or(FrameRun { first: 0, count: 0 });
        // A short run is followed by another window.
        let end = if run.count == 0 { end } else { number + run.count };
        Some(Window { extents: number..end, first_frame: run.first, untaken: (1 << run.count) - 1 })
    }

    fn release(&self, window: &Window) {
        let mut state = self.disk.state.lock();
        state.reserved_frames -= window.untaken.count_ones();
        for frame in (0..u32::BITS).filter(|frame| window.untaken & 1 << frame != 0) {
            state.frames.release(Space::at_frame(window.first_frame + frame, WHOLE_FRAME));
        }
    }
}

impl Drop for FillRun {
    fn drop(&mut self) {
        let windows = std::mem::take(&mut *self.windows.lock());
        windows.iter().for_each(|window| self.release(window));
    }
}

impl Window {
    /// The frame of an extent.
    fn take(&mut self, number: u32) -> Option<u32> {
        let position = self.extents.contains(&number).then(|| number - self.extents.start)?;
        let bit = 1 << position;
        let is_free = self.untaken & bit != 0;
        self.untaken &= !bit;
        is_free.then(|| self.first_frame + position)
    }
}

impl DiskState {
    /// Reserves consecutive frames, after evictions of about as many blocks if need be. `None` while the index is
    /// loaded, if no whole frame is free then, or if too many frames are reserved.
    fn reserve_frames(&mut self, count: u32, counters: &Counters) -> Option<FrameRun> {
        let max_reserved = self.frames.count() / MIN_FRAMES_PER_RESERVED_FRAME;
        let count = count.min(max_reserved.saturating_sub(self.reserved_frames));
        if count < 2 || self.removed_while_loading.is_some() {
            return None;
        }
        let missing_frames = count.saturating_sub(self.frames.free_frames());
        let mut missing_blocks = u64::from(missing_frames) * FRAME_BLOCKS as u64;
        while missing_blocks > 0 && self.frames.free_frames() < count {
            let Some(victim) = self.evict(counters) else { break };
            missing_blocks = missing_blocks.saturating_sub(u64::from(victim.space.blocks()));
        }
        let run = self.frames.allocate_run(count)?;
        self.reserved_frames += run.count;
        Some(run)
    }
}

impl Disk {
    /// Frames that the budget of writes has bytes for, the one whose extent was admitted last included.
    fn affordable_frames(&self) -> u32 {
        let Some(budget) = self.write_budget.get() else { return u32::MAX };
        let frames = budget.available_bytes(self.clock.now()) / FRAME_BYTES as u64;
        u32::try_from(frames).unwrap_or(u32::MAX).saturating_add(1)
    }
}
