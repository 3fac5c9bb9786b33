//! One pass: up to sixteen streams hashed side by side for a bounded stretch.
//!
//! The stretch is as long as the shortest lane allows, lanes that run dry leave, and the pass ends when every
//! stream has had its share or when so few lanes are left that regrouping them with newcomers is cheaper.

use std::sync::Arc;

use crate::lanes::{Lanes, MOST_LANES};
use crate::scalar::{self, BLOCK_BYTES, Block, Chain};
use crate::work::{Segments, Work};

/// The most that a pass hashes of one stream: 64 KiB, 80 us for a stream alone and 130 us for sixteen.
const SHARE_BLOCKS: usize = 64 * 1024 / BLOCK_BYTES;

struct Lane {
    work: Arc<Work>,
    chain: Chain,
    segments: Segments,
    share: usize,
}

/// Hashes a share of each stream in `batch`, and leaves in it those that must go back in line.
pub(crate) fn run(kernels: Lanes, batch: &mut Vec<Arc<Work>>) {
    let mut lanes: Vec<Lane> = batch.drain(..).map(Lane::new).collect();
    let started = lanes.len();
    retire(&mut lanes, batch);
    while !lanes.is_empty() && (lanes.len() == started || 2 * lanes.len() > started) {
        stretch(kernels, &mut lanes);
        retire(&mut lanes, batch);
    }
    for lane in lanes {
        lane.leave(batch);
    }
}

/// Advances every lane by the same number of blocks.
fn stretch(kernels: Lanes, lanes: &mut [Lane]) {
    let count = lanes.len();
    let mut chains = [scalar::START; MOST_LANES];
    let mut runs: [&[Block]; MOST_LANES] = [&[]; MOST_LANES];
    for ((lane, chain), run) in lanes.iter().zip(&mut chains).zip(&mut runs) {
        *chain = lane.chain;
        let blocks = lane.segments.front().map_or(&[][..], |segment| segment.blocks());
        *run = &blocks[..blocks.len().min(lane.share)];
    }
    let hashed = kernels.run(&mut chains[..count], &runs[..count]);
    for (lane, chain) in lanes.iter_mut().zip(chains) {
        lane.chain = chain;
        lane.advance(hashed);
    }
}

/// Takes out the lanes that have nothing left or have had their share.
fn retire(lanes: &mut Vec<Lane>, batch: &mut Vec<Arc<Work>>) {
    let mut index = 0;
    while let Some(lane) = lanes.get(index) {
        if lane.segments.is_empty() || lane.share == 0 {
            lanes.swap_remove(index).leave(batch);
        } else {
            index += 1;
        }
    }
}

impl Lane {
    fn new(work: Arc<Work>) -> Self {
        let (chain, segments) = work.take();
        Self { work, chain, segments, share: SHARE_BLOCKS }
    }

    fn advance(&mut self, blocks: usize) {
        self.share -= blocks;
        if let Some(segment) = self.segments.front_mut() {
            if segment.blocks().len() > blocks {
                segment.advance(blocks);
            } else {
                self.segments.pop_front();
            }
            self.work.consumed(blocks * BLOCK_BYTES);
        }
    }

    fn leave(self, batch: &mut Vec<Arc<Work>>) {
        if self.work.give_back(self.chain, self.segments) {
            batch.push(self.work);
        }
    }
}
