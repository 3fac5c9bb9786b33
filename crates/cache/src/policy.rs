//! The eviction policy of both tiers.

use tradewind_model::eviction::{AdaptiveWindow, Capacity, EvictionPolicy, MAX_SLOTS};

/// A policy of one tier.
pub(crate) type Policy = Box<dyn EvictionPolicy + Send>;

/// The default policy for entries of at most `blocks` in sum and slots below `slots`.
pub(crate) fn new_policy(blocks: u64, slots: usize) -> Policy {
    let slots = u32::try_from(slots).unwrap_or(MAX_SLOTS).min(MAX_SLOTS);
    Box::new(AdaptiveWindow::new(Capacity { blocks: blocks.max(1), slots }))
}
