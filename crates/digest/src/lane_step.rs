//! One step of all lanes: as many blocks of each as the shortest run has.

use crate::lanes::{Lanes, MAX_LANES};
use crate::scalar::{self, Block, Chain};

/// A message in a lane.
pub(crate) trait Lane {
    fn chain(&self) -> Chain;

    /// Contiguous blocks that may be hashed now.
    fn run(&self) -> &[Block];

    /// Records that the first `blocks` of the run were hashed.
    fn advance(&mut self, chain: Chain, blocks: usize);
}

/// Advances every lane, at most [`MAX_LANES`], by the same number of blocks.
pub(crate) fn advance_lanes<L: Lane>(kernels: Lanes, lanes: &mut [L]) {
    let count = lanes.len();
    let mut chains = [scalar::INITIAL_CHAIN; MAX_LANES];
    let mut runs: [&[Block]; MAX_LANES] = [&[]; MAX_LANES];
    for ((lane, chain), run) in lanes.iter().zip(&mut chains).zip(&mut runs) {
        *chain = lane.chain();
        *run = lane.run();
    }
    let hashed = kernels.run(&mut chains[..count], &runs[..count]);
    for (lane, chain) in lanes.iter_mut().zip(chains) {
        lane.advance(chain, hashed);
    }
}
