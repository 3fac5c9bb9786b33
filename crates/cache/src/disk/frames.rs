//! Space on the SSD: frames of 72 KiB, each one extent, or several small ones in runs of blocks of 4 KiB.
//!
//! The state is one bit for each block. The lists of free space hold hints: a frame counts in the list of its longest
//! free run only, and every frame with free space has an entry there.

use crate::extent::{EXTENT_SIZES_BLOCKS, FRAME_BLOCKS};

/// The size of an extent that takes a whole frame.
pub(crate) const WHOLE_FRAME: u8 = EXTENT_SIZES_BLOCKS.len() as u8 - 1;

/// The bits of a frame.
const FRAME_MASK: u32 = (1 << FRAME_BLOCKS) - 1;

/// Free frames that are examined for a run at most.
const MAX_EXAMINED_FRAMES: usize = 8;

/// Hints that are kept besides two for each frame.
const MIN_HINTS: usize = 1024;

const _: () = assert!(EXTENT_SIZES_BLOCKS[WHOLE_FRAME as usize] == FRAME_BLOCKS && FRAME_BLOCKS < 32);

/// Space for one extent, from `block` on. It is within one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    pub block: u32,
    /// The index in [`EXTENT_SIZES_BLOCKS`].
    pub size: u8,
}

impl Space {
    /// The first space of a frame.
    pub const fn at_frame(frame: u32, size: u8) -> Self {
        Self { block: frame * FRAME_BLOCKS as u32, size }
    }

    /// The frame.
    pub const fn frame(self) -> u32 {
        self.block / FRAME_BLOCKS as u32
    }

    /// Number of blocks.
    pub const fn blocks(self) -> u32 {
        EXTENT_SIZES_BLOCKS[self.size as usize] as u32
    }

    const fn offset(self) -> u32 {
        self.block % FRAME_BLOCKS as u32
    }

    /// Number of blocks that it shares with another space of the same frame.
    pub const fn common_blocks(self, other: Self) -> u32 {
        (self.mask() & other.mask()).count_ones()
    }

    /// Returns true if it shares blocks with another space of the same frame.
    pub const fn overlaps(self, other: Self) -> bool {
        self.common_blocks(other) > 0
    }

    /// The bits of the frame's state.
    const fn mask(self) -> u32 {
        ((1 << self.blocks()) - 1) << self.offset()
    }
}

/// Consecutive frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameRun {
    pub first: u32,
    pub count: u32,
}

/// Consecutive free blocks of one frame.
#[derive(Debug, Clone, Copy)]
struct FreeBlocks {
    offset: u32,
    count: u32,
}

/// A frame in which nothing is allocated for now, also not in blocks that are freed while it is closed.
#[derive(Debug, Clone, Copy)]
struct ClosedFrame {
    frame: u32,
    /// The bits of the blocks that count as used for this reason only: those that were free when it was closed, and those
    /// that were freed since.
    held: u32,
}

/// The allocator.
#[derive(Debug)]
pub(crate) struct Frames {
    /// A set bit is a used block.
    used: Vec<u32>,
    /// Frames in which nothing is allocated.
    closed: Vec<ClosedFrame>,
    used_blocks: u64,
    /// Frames that are free as a whole.
    free_frames: u32,
    /// Frames by the length of their longest free run.
    hints: [Vec<u32>; FRAME_BLOCKS + 1],
    hint_count: usize,
    /// Frames from here on are free and on no list.
    first_untouched: u32,
}

impl Frames {
    /// `count` free frames.
    pub fn new(count: u32) -> Self {
        Self {
            used: vec![0; count as usize],
            closed: Vec::new(),
            used_blocks: 0,
            free_frames: count,
            hints: Default::default(),
            hint_count: 0,
            first_untouched: 0,
        }
    }

    /// Number of frames.
    pub fn count(&self) -> u32 {
        u32::try_from(self.used.len()).unwrap_or(u32::MAX)
    }

    /// Number of frames that are free as a whole.
    pub const fn free_frames(&self) -> u32 {
        self.free_frames
    }

    /// Takes free space of a size.
    pub fn allocate(&mut self, size: u8) -> Option<Space> {
        let blocks = EXTENT_SIZES_BLOCKS[usize::from(size)];
        let frame = (blocks..=FRAME_BLOCKS).find_map(|run| self.take_hint(run)).or_else(|| {
            let is_left = self.first_untouched < self.count();
            self.first_untouched += u32::from(is_left);
            is_left.then(|| self.first_untouched - 1)
        })?;
        let used = self.used[frame as usize];
        let fitting = free_runs(used).filter(|run| run.count as usize >= blocks);
        let run = fitting.min_by_key(|run| run.count)?;
        let space = Space { block: frame * FRAME_BLOCKS as u32 + run.offset, size };
        self.mark(frame, used | space.mask());
        self.add_hint(frame);
        Some(space)
    }

    /// Takes consecutive frames: up to `max_count` of them, and fewer if no such run is found quickly. The caller
    /// releases each block of them.
    pub fn allocate_run(&mut self, max_count: u32) -> Option<FrameRun> {
        let untouched = FrameRun {
            first: self.first_untouched,
            count: max_count.min(self.count() - self.first_untouched),
        };
        let mut best = untouched;
        let mut examined = Vec::new();
        while best.count < max_count && examined.len() < MAX_EXAMINED_FRAMES {
            let Some(frame) = self.take_hint(FRAME_BLOCKS) else { break };
            examined.push(frame);
            let run = self.free_frames_around(frame, max_count);
            if run.count > best.count {
                best = run;
            }
        }
        for frame in examined {
            if !(best.first..best.first + best.count).contains(&frame) {
                self.add_hint(frame);
            }
        }
        if best.count == 0 {
            return None;
        }
        if best == untouched {
            self.first_untouched += best.count;
        }
        (best.first..best.first + best.count).for_each(|frame| self.mark(frame, FRAME_MASK));
        Some(best)
    }

    /// The longest run of at most `max_count` free frames that has `frame`, as far to the left as possible.
    fn free_frames_around(&self, frame: u32, max_count: u32) -> FrameRun {
        let is_free = |frame: &u32| self.used[*frame as usize] == 0;
        let lowest = frame.saturating_sub(max_count - 1);
        let first = (lowest..frame).rev().take_while(is_free).last().unwrap_or(frame);
        let end = (first + max_count).min(self.first_untouched);
        let count = (first..end).take_while(is_free).count();
        FrameRun { first, count: u32::try_from(count).unwrap_or(0) }
    }

    /// A frame whose longest free run has this length.
    fn take_hint(&mut self, run: usize) -> Option<u32> {
        while let Some(frame) = self.hints[run].pop() {
            self.hint_count -= 1;
            if self.max_run(frame) == run {
                return Some(frame);
            }
        }
        None
    }

    fn add_hint(&mut self, frame: u32) {
        let run = self.max_run(frame);
        if run > 0 {
            self.hints[run].push(frame);
            self.hint_count += 1;
        }
    }

    /// Marks space as used while the state is built; false if it is not within a frame, or used.
    pub fn claim(&mut self, space: Space) -> bool {
        if space.size > WHOLE_FRAME || space.offset() + space.blocks() > FRAME_BLOCKS as u32 {
            return false;
        }
        let frame = space.frame();
        let Some(used) = self.used.get(frame as usize).copied() else { return false };
        if used & space.mask() != 0 {
            return false;
        }
        self.mark(frame, used | space.mask());
        true
    }

    /// Builds the hints after the last [`Self::claim`].
    pub fn finish_claims(&mut self) {
        let last_used = self.used.iter().rposition(|used| *used != 0);
        self.first_untouched = last_used.map_or(0, |last| u32::try_from(last + 1).unwrap_or(u32::MAX));
        (0..self.first_untouched).for_each(|frame| self.add_hint(frame));
    }

    /// Frees space.
    pub fn release(&mut self, space: Space) {
        self.release_blocks(space.frame(), space.mask());
    }

    /// Frees what follows `space` in its frame, of which all blocks were taken by [`Self::allocate_run`].
    pub fn release_rest(&mut self, space: Space) {
        self.release_blocks(space.frame(), FRAME_MASK & !space.mask());
    }

    fn release_blocks(&mut self, frame: u32, mask: u32) {
        debug_assert_eq!(self.used[frame as usize] & mask, mask, "blocks of frame {frame} are freed twice");
        if let Some(closed) = self.closed.iter_mut().find(|closed| closed.frame == frame) {
            closed.held |= mask;
            return;
        }
        let before = self.max_run(frame);
        self.mark(frame, self.used[frame as usize] & !mask);
        if self.max_run(frame) == before {
            return;
        }
        self.add_hint(frame);
        if self.hint_count > MIN_HINTS + 2 * self.used.len() {
            self.compact_hints();
        }
    }

    fn compact_hints(&mut self) {
        for run in 1..=FRAME_BLOCKS {
            let mut hints = std::mem::take(&mut self.hints[run]);
            hints.sort_unstable();
            hints.dedup();
            hints.retain(|frame| self.max_run(*frame) == run);
            self.hints[run] = hints;
        }
        self.hint_count = self.hints.iter().map(Vec::len).sum();
    }

    fn mark(&mut self, frame: u32, used: u32) {
        let word = &mut self.used[frame as usize];
        let before = std::mem::replace(word, used);
        self.used_blocks = self.used_blocks + u64::from(used.count_ones()) - u64::from(before.count_ones());
        self.free_frames = self.free_frames + u32::from(used == 0) - u32::from(before == 0);
    }

    /// Number of blocks in use.
    pub const fn used_blocks(&self) -> u64 {
        self.used_blocks
    }

    /// The space of a size in a frame that has the fewest used blocks.
    pub fn emptiest_space(&self, frame: u32, size: u8) -> Space {
        let first = Space::at_frame(frame, size);
        let last = FRAME_BLOCKS as u32 - first.blocks();
        let spaces = (0..=last).map(|offset| Space { block: first.block + offset, size });
        spaces.min_by_key(|space| self.used_blocks_in(*space)).unwrap_or(first)
    }

    /// Number of used blocks of a space.
    pub fn used_blocks_in(&self, space: Space) -> u32 {
        (self.used[space.frame() as usize] & space.mask()).count_ones()
    }

    /// Keeps all free blocks of a frame from being allocated until [`Self::open`], also those that are freed until then: no
    /// space of an extent there is used a second time. Returns false if the frame is closed already.
    pub fn close(&mut self, frame: u32) -> bool {
        if self.closed.iter().any(|closed| closed.frame == frame) {
            return false;
        }
        let used = self.used[frame as usize];
        self.closed.push(ClosedFrame { frame, held: FRAME_MASK & !used });
        self.mark(frame, FRAME_MASK);
        true
    }

    /// Frees the blocks that [`Self::close`] kept.
    pub fn open(&mut self, frame: u32) {
        let Some(index) = self.closed.iter().position(|closed| closed.frame == frame) else { return };
        let ClosedFrame { held, .. } = self.closed.swap_remove(index);
        self.release_blocks(frame, held);
    }

    /// Number of used blocks of a frame.
    pub fn used_blocks_of(&self, frame: u32) -> u32 {
        self.used[frame as usize].count_ones()
    }

    fn max_run(&self, frame: u32) -> usize {
        free_runs(self.used[frame as usize]).map(|run| run.count as usize).max().unwrap_or(0)
    }
}

/// The runs of free blocks of a frame with these used blocks.
fn free_runs(used: u32) -> impl Iterator<Item = FreeBlocks> {
    let mut free = !used & FRAME_MASK;
    let mut offset = 0;
    std::iter::from_fn(move || {
        if free == 0 {
            return None;
        }
        let skipped = free.trailing_zeros();
        let count = (free >> skipped).trailing_ones();
        let run = FreeBlocks { offset: offset + skipped, count };
        free = (free >> skipped) >> count;
        offset += skipped + count;
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COUNT: u32 = 4;

    #[test]
    fn freed_blocks_merge_into_a_frame() {
        let mut frames = Frames::new(1);
        let small: Vec<Space> = (0..FRAME_BLOCKS).map(|_| frames.allocate(0).unwrap()).collect();
        assert!(frames.allocate(0).is_none());
        small.into_iter().for_each(|space| frames.release(space));
        assert_eq!(frames.allocate(WHOLE_FRAME), Some(Space::at_frame(0, WHOLE_FRAME)));
        assert!(frames.allocate(0).is_none());
    }

    #[test]
    fn run_is_consecutive_also_among_freed_frames() {
        let mut frames = Frames::new(12);
        let all: Vec<Space> = (0..12).map(|_| frames.allocate(WHOLE_FRAME).unwrap()).collect();
        assert_eq!(frames.allocate_run(4), None);
        // Frame 1 is alone; 5 to 8 are neighbours and were freed in another order.
        [1, 8, 6, 5, 7].into_iter().for_each(|frame| frames.release(all[frame]));
        assert_eq!(frames.allocate_run(3), Some(FrameRun { first: 5, count: 3 }));
        assert_eq!(frames.free_frames(), 2);
        let rest = frames.allocate_run(3).unwrap();
        assert_eq!(rest.count, 1);
        let tail = Space::at_frame(6, 2);
        frames.release_rest(tail);
        assert_eq!(frames.used_blocks_of(6), tail.blocks());
    }

    #[test]
    fn blocks_freed_in_a_closed_frame_are_free_when_it_opens() {
        let mut frames = Frames::new(1);
        let spaces: Vec<Space> = (0..3).map(|_| frames.allocate(3).unwrap()).collect();
        assert!(frames.close(0) && !frames.close(0));
        frames.release(spaces[1]);
        assert!(frames.allocate(0).is_none());
        frames.open(0);
        assert_eq!(frames.used_blocks(), 8);
        assert_eq!(frames.allocate(3), Some(spaces[1]));
    }

    proptest! {
        #[test]
        fn spaces_never_overlap_and_none_is_lost(
            steps in prop::collection::vec(
                (0_u8..=WHOLE_FRAME, any::<prop::sample::Index>(), 0_u8..5, 1_u32..4), 0..400),
        ) {
            let mut frames = Frames::new(COUNT);
            let mut held: Vec<Space> = Vec::new();
            let all_blocks = COUNT * FRAME_BLOCKS as u32;
            let overlaps = |a: &Space, b: &Space| a.block < b.block + b.blocks() && b.block < a.block + a.blocks();
            for (size, choice, action, count) in steps {
                if action < 2 && !held.is_empty() {
                    frames.release(held.swap_remove(choice.index(held.len())));
                } else if action == 2 {
                    let free = frames.free_frames();
                    let run = frames.allocate_run(count);
                    prop_assert_eq!(run.is_some(), free > 0);
                    for frame in run.map_or(0..0, |run| run.first..run.first + run.count) {
                        let space = Space::at_frame(frame, size);
                        prop_assert!(!held.iter().any(|other| other.frame() == frame));
                        frames.release_rest(space);
                        held.push(space);
                    }
                } else if let Some(space) = frames.allocate(size) {
                    let offset = space.block % FRAME_BLOCKS as u32;
                    prop_assert!(offset + space.blocks() <= FRAME_BLOCKS as u32 && space.frame() < COUNT);
                    prop_assert!(!held.iter().any(|other| overlaps(other, &space)));
                    held.push(space);
                } else {
                    // No free run of this size is left in a frame.
                    for block in 0..all_blocks {
                        let wanted = Space { block, size };
                        let is_within = block % FRAME_BLOCKS as u32 + wanted.blocks() <= FRAME_BLOCKS as u32;
                        prop_assert!(!is_within || held.iter().any(|other| overlaps(other, &wanted)));
                    }
                }
                let used = (0..COUNT).filter(|frame| held.iter().any(|space| space.frame() == *frame));
                prop_assert_eq!(frames.free_frames(), COUNT - used.count() as u32);
            }
            let mut rebuilt = Frames::new(COUNT);
            for space in &held {
                prop_assert!(rebuilt.claim(*space) && !rebuilt.claim(*space));
            }
            rebuilt.finish_claims();
            let used: u32 = held.iter().map(|space| space.blocks()).sum();
            for frames in [&mut frames, &mut rebuilt] {
                prop_assert_eq!(frames.used_blocks(), u64::from(used));
                let mut free = 0;
                while frames.allocate(0).is_some() {
                    free += 1;
                }
                prop_assert_eq!(free + used, all_blocks);
            }
        }
    }
}
