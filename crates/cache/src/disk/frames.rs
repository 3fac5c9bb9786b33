//! Space on the SSD: frames of 64 KiB, each one extent, or several small ones by buddy allocation in blocks of 4 KiB.
//!
//! The state is one bit for each block. The free lists hold hints: an entry counts only if it is a maximal free block
//! of its order when it is taken, and every maximal free block has an entry.

use crate::extent::FRAME_BLOCKS;

/// A frame has `1 << MAX_ORDER` blocks.
pub(crate) const MAX_ORDER: u8 = 4;

const _: () = assert!(FRAME_BLOCKS == 1 << MAX_ORDER);

/// Space for one extent: `1 << order` blocks from `block` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    pub block: u32,
    pub order: u8,
}

impl Space {
    /// The frame.
    pub const fn frame(self) -> u32 {
        self.block >> MAX_ORDER
    }

    /// Number of blocks.
    pub const fn blocks(self) -> u32 {
        1 << self.order
    }

    /// The bits of the frame's state.
    const fn mask(self) -> u16 {
        let ones = if self.order == MAX_ORDER { u16::MAX } else { (1_u16 << (1 << self.order)) - 1 };
        ones << (self.block & (FRAME_BLOCKS as u32 - 1))
    }
}

/// The allocator.
#[derive(Debug)]
pub(crate) struct Frames {
    /// A set bit is a used block.
    used: Vec<u16>,
    used_blocks: u64,
    free: [Vec<u32>; MAX_ORDER as usize + 1],
    /// Frames from here on are free and on no list.
    first_untouched: u32,
}

impl Frames {
    /// `count` free frames.
    pub fn new(count: u32) -> Self {
        Self { used: vec![0; count as usize], used_blocks: 0, free: Default::default(), first_untouched: 0 }
    }

    /// Number of frames.
    pub fn count(&self) -> u32 {
        u32::try_from(self.used.len()).unwrap_or(u32::MAX)
    }

    /// Takes free space of `1 << order` blocks.
    pub fn allocate(&mut self, order: u8) -> Option<Space> {
        let mut found = self.take_hint(order)?;
        while found.order > order {
            found.order -= 1;
            self.free[usize::from(found.order)].push(found.block + found.blocks());
        }
        self.used[found.frame() as usize] |= found.mask();
        self.used_blocks += u64::from(found.blocks());
        Some(found)
    }

    /// The smallest maximal free block of at least this order.
    fn take_hint(&mut self, order: u8) -> Option<Space> {
        for order in order..=MAX_ORDER {
            while let Some(block) = self.free[usize::from(order)].pop() {
                let space = Space { block, order };
                if self.is_maximal(space) {
                    return Some(space);
                }
            }
        }
        if self.first_untouched >= self.count() {
            return None;
        }
        let space = Space { block: self.first_untouched << MAX_ORDER, order: MAX_ORDER };
        self.first_untouched += 1;
        Some(space)
    }

    /// Marks space as used while the state is built; false if it is not within the frames, or used.
    pub fn claim(&mut self, space: Space) -> bool {
        if space.order > MAX_ORDER || space.block & (space.blocks() - 1) != 0 {
            return false;
        }
        let Some(used) = self.used.get_mut(space.frame() as usize) else { return false };
        if *used & space.mask() != 0 {
            return false;
        }
        *used |= space.mask();
        self.used_blocks += u64::from(space.blocks());
        true
    }

    /// Builds the free lists after the last [`Self::claim`].
    pub fn finish_claims(&mut self) {
        let last_used = self.used.iter().rposition(|used| *used != 0);
        self.first_untouched = last_used.map_or(0, |last| u32::try_from(last + 1).unwrap_or(u32::MAX));
        for frame in 0..self.first_untouched {
            for order in 0..=MAX_ORDER {
                for block in (0..FRAME_BLOCKS as u32).step_by(1 << order) {
                    let space = Space { block: (frame << MAX_ORDER) + block, order };
                    if self.is_maximal(space) {
                        self.free[usize::from(order)].push(space.block);
                    }
                }
            }
        }
    }

    /// Frees space.
    pub fn release(&mut self, mut space: Space) {
        self.used[space.frame() as usize] &= !space.mask();
        self.used_blocks -= u64::from(space.blocks());
        while space.order < MAX_ORDER && self.is_free(buddy(space)) {
            space = Space { block: space.block & !space.blocks(), order: space.order + 1 };
        }
        let list = &mut self.free[usize::from(space.order)];
        list.push(space.block);
        let max_hints = 1024 + 2 * ((self.used.len() * FRAME_BLOCKS) >> space.order);
        if list.len() > max_hints {
            let mut hints = std::mem::take(list);
            hints.sort_unstable();
            hints.dedup();
            hints.retain(|block| self.is_maximal(Space { block: *block, order: space.order }));
            self.free[usize::from(space.order)] = hints;
        }
    }

    /// Number of blocks in use.
    pub const fn used_blocks(&self) -> u64 {
        self.used_blocks
    }

    /// Number of used blocks of a frame.
    pub fn used_blocks_of(&self, frame: u32) -> u32 {
        self.used[frame as usize].count_ones()
    }

    fn is_free(&self, space: Space) -> bool {
        self.used[space.frame() as usize] & space.mask() == 0
    }

    fn is_maximal(&self, space: Space) -> bool {
        self.is_free(space) && (space.order == MAX_ORDER || !self.is_free(buddy(space)))
    }
}

const fn buddy(space: Space) -> Space {
    Space { block: space.block ^ space.blocks(), order: space.order }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freed_buddies_merge_into_a_frame() {
        let mut frames = Frames::new(1);
        let small: Vec<Space> = (0..16).map(|_| frames.allocate(0).unwrap()).collect();
        assert!(frames.allocate(0).is_none());
        small.into_iter().for_each(|space| frames.release(space));
        assert_eq!(frames.allocate(MAX_ORDER), Some(Space { block: 0, order: MAX_ORDER }));
        assert!(frames.allocate(0).is_none());
    }

    proptest! {
        #[test]
        fn spaces_never_overlap_and_none_is_lost(
            steps in prop::collection::vec((0_u8..=MAX_ORDER, any::<prop::sample::Index>(), any::<bool>()), 0..400),
        ) {
            let mut frames = Frames::new(4);
            let mut held: Vec<Space> = Vec::new();
            let overlaps = |a: &Space, b: &Space| a.block < b.block + b.blocks() && b.block < a.block + a.blocks();
            for (order, choice, is_release) in steps {
                if is_release && !held.is_empty() {
                    frames.release(held.swap_remove(choice.index(held.len())));
                    continue;
                }
                match frames.allocate(order) {
                    Some(space) => {
                        prop_assert!(space.block % space.blocks() == 0 && space.block + space.blocks() <= 64);
                        prop_assert!(!held.iter().any(|other| overlaps(other, &space)));
                        held.push(space);
                    }
                    None => {
                        // No aligned free run of this size is left.
                        for block in (0..64).step_by(1 << order) {
                            let wanted = Space { block, order };
                            prop_assert!(held.iter().any(|other| overlaps(other, &wanted)));
                        }
                    }
                }
            }
            let mut rebuilt = Frames::new(4);
            for space in &held {
                prop_assert!(rebuilt.claim(*space) && !rebuilt.claim(*space));
            }
            rebuilt.finish_claims();
            for frames in [&mut frames, &mut rebuilt] {
                let mut free = 0;
                while frames.allocate(0).is_some() {
                    free += 1;
                }
                prop_assert_eq!(free + held.iter().map(|space| space.blocks()).sum::<u32>(), 64);
            }
        }
    }
}
