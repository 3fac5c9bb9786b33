//! One pass: up to sixteen streams hashed in parallel, a bounded amount of each.
//!
//! All lanes advance by the length of the shortest run. Lanes without blocks leave. The pass ends when every stream has
//! used its share, or when so few lanes remain that regrouping them with new streams is cheaper.

use std::sync::Arc;

use crate::lane_step::{Lane, advance_lanes};
use crate::lanes::Lanes;
use crate::message::{Segments, advance, first_run};
use crate::scalar::{BLOCK_BYTES, Block, Chain};
use crate::stream_state::StreamState;

/// The limit of blocks that a pass hashes of one stream: 64 KiB, which take 80 us for one stream and 130 us for
/// sixteen.
const MAX_SHARE_BLOCKS: usize = 64 * 1024 / BLOCK_BYTES;

struct StreamLane {
    stream: Arc<StreamState>,
    chain: Chain,
    segments: Segments,
    share: usize,
}

/// Hashes a share of each stream in `batch`, and leaves in it those that must be queued again.
pub(crate) fn run(kernels: Lanes, batch: &mut Vec<Arc<StreamState>>) {
    let mut lanes: Vec<StreamLane> = batch.drain(..).map(StreamLane::new).collect();
    let started = lanes.len();
    retire(&mut lanes, batch);
    while !lanes.is_empty() && (lanes.len() == started || 2 * lanes.len() > started) {
        advance_lanes(kernels, &mut lanes);
        retire(&mut lanes, batch);
    }
    for lane in lanes {
        lane.leave(batch);
    }
}

/// Removes the lanes without blocks or whose share is used up.
fn retire(lanes: &mut Vec<StreamLane>, batch: &mut Vec<Arc<StreamState>>) {
    let mut index = 0;
    while let Some(lane) = lanes.get(index) {
        if lane.segments.is_empty() || lane.share == 0 {
            lanes.swap_remove(index).leave(batch);
        } else {
            index += 1;
        }
    }
}

impl StreamLane {
    fn new(stream: Arc<StreamState>) -> Self {
        let (chain, segments) = stream.take();
        Self { stream, chain, segments, share: MAX_SHARE_BLOCKS }
    }

    fn leave(self, batch: &mut Vec<Arc<StreamState>>) {
        if self.stream.end_pass(self.chain, self.segments) {
            batch.push(self.stream);
        }
    }
}

impl Lane for StreamLane {
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
        self.stream.record_hashed(blocks * BLOCK_BYTES);
    }
}
