//! One pass: up to sixteen streams hashed side by side for a bounded stretch.
//!
//! The stretch is as long as the shortest lane allows, lanes that run dry leave, and the pass ends when every
//! stream has had its share or when so few lanes are left that regrouping them with newcomers is cheaper.

use std::sync::Arc;

use crate::lanes::Lanes;
use crate::message::{Segments, advance, first_run};
use crate::scalar::{BLOCK_BYTES, Block, Chain};
use crate::stretch::{Lane, stretch};
use crate::work::Work;

/// The most that a pass hashes of one stream: 64 KiB, 80 us for a stream alone and 130 us for sixteen.
const SHARE_BLOCKS: usize = 64 * 1024 / BLOCK_BYTES;

struct Guest {
    work: Arc<Work>,
    chain: Chain,
    segments: Segments,
    share: usize,
}

/// Hashes a share of each stream in `batch`, and leaves in it those that must go back in line.
pub(crate) fn run(kernels: Lanes, batch: &mut Vec<Arc<Work>>) {
    let mut lanes: Vec<Guest> = batch.drain(..).map(Guest::new).collect();
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

/// Takes out the lanes that have nothing left or have had their share.
fn retire(lanes: &mut Vec<Guest>, batch: &mut Vec<Arc<Work>>) {
    let mut index = 0;
    while let Some(lane) = lanes.get(index) {
        if lane.segments.is_empty() || lane.share == 0 {
            lanes.swap_remove(index).leave(batch);
        } else {
            index += 1;
        }
    }
}

impl Guest {
    fn new(work: Arc<Work>) -> Self {
        let (chain, segments) = work.take();
        Self { work, chain, segments, share: SHARE_BLOCKS }
    }

    fn leave(self, batch: &mut Vec<Arc<Work>>) {
        if self.work.give_back(self.chain, self.segments) {
            batch.push(self.work);
        }
    }
}

impl Lane for Guest {
    fn chain(&self) -> Chain {
        self.chain
    }

    fn run(&self) -> &[Block] {
        let run = first_run(&self.segments);
        &run[..run.len().min(self.share)]
    }

    fn advance(&mut self, chain: Chain, blocks: usize) {
        self.chain = chain;
        self.share -= blocks;
        advance(&mut self.segments, blocks);
        self.work.consumed(blocks * BLOCK_BYTES);
    }
}
