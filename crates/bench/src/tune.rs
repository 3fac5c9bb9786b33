//! Samples a store: probes of a size and a parallelism, one after the other, each where it says most (Hou 2017, section 5.1).
//! What follows from them is decided in [`tradewind_model::tune`]; here they are made.

pub mod ground;
pub mod probe;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{ErrorKind, Result};
use tradewind_model::store_model::Direction;
use tradewind_model::tune::sampling::{self, Budget, Cost};
use tradewind_model::tune::{Belief, Cell, Inferred, Surface};

pub use self::ground::Ground;
pub use self::probe::{Extent, Probed};
use crate::drive::Stop;

/// Round trips that are looked at before anything else.
const TOUCHES: usize = 4;
/// A probe that takes so many times as long, or as many bytes, as was expected is ended.
const PATIENCE: f64 = 2.5;
/// It has so long at the least.
const LEAST_TIME: Duration = Duration::from_millis(1500);
/// One that is not as sure as was expected by then goes on, but for no more than this part of the bytes that are left.
const PART_OF_WHAT_IS_LEFT: f64 = 0.1;

/// What is sampled.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Cells that a plan may have; those that are sampled are among them.
    pub cells: Vec<Cell>,
    /// What it may cost.
    pub budget: Budget,
    /// Processors that this process may use.
    pub cores: usize,
}

/// What is known so far.
#[derive(Debug)]
pub enum Event<'a> {
    /// A probe begins.
    Begins(Direction, Cell),
    /// It has ended: what came of it, and what follows from all of that direction.
    Probed(&'a Probed, &'a Surface),
}

/// What came of all probes of one direction.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// In their order.
    pub probes: Vec<Probed>,
    /// What follows from them.
    pub surface: Surface,
    /// What is left of the budget.
    pub left: Budget,
}

/// The shortest of a few round trips; `None` where nobody may ask for so little.
pub async fn round_trip(ground: &Ground) -> Result<Option<Duration>> {
    let mut least = None;
    for _ in 0..TOUCHES {
        match ground.touch().await {
            Ok(time) => least = Some(least.map_or(time, |least: Duration| least.min(time))),
            Err(e) if e.kind() == ErrorKind::Denied => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    Ok(least)
}

/// Samples one direction, until enough is known or nothing is left to spend. Where it is stopped, what was found by then.
pub async fn sample(
    ground: &Arc<Ground>,
    direction: Direction,
    (asked, belief): (&Asked, Belief),
    stop: &Stop,
    mut tell: impl FnMut(Event<'_>),
) -> Result<Sampled> {
    let mut cells = asked.cells.clone();
    if direction == Direction::Read {
        let most = ground.most_bytes();
        cells.retain(|cell| cell.bytes <= most);
    }
    let mut sampled =
        Sampled { probes: Vec::new(), surface: Surface::new(belief, Vec::new()), left: asked.budget };
    while !stop.is_asked() {
        let Some(cell) = sampling::next(&sampled.surface, &cells, &sampled.left) else { break };
        tell(Event::Begins(direction, cell));
        let extent = extent(&sampled.surface.infer(cell), &sampled.left);
        let probed = probe::probe(ground, (direction, cell), extent, (asked.cores, stop)).await?;
        sampled.left =
            sampled.left.after(Cost { bytes: probed.bytes as f64, seconds: probed.time.as_secs_f64() });
        // Where nothing was answered, nothing is that is at least as large and as much at a time.
        let mut samples = sampled.surface.samples().to_vec();
        match probed.sample {
            Some(sample) => samples.push(sample),
            None => cells.retain(|other| other.bytes < cell.bytes || other.parallel < cell.parallel),
        }
        sampled.surface = Surface::new(belief, samples);
        tell(Event::Probed(&probed, &sampled.surface));
        sampled.probes.push(probed);
    }
    Ok(sampled)
}

/// How far a probe may go.
fn extent(expected: &Inferred, left: &Budget) -> Extent {
    let (cost, full) = (sampling::cost(expected), sampling::full_cost(expected));
    let most_time = Duration::from_secs_f64(left.seconds);
    let time = Duration::from_secs_f64(full.seconds * PATIENCE).max(LEAST_TIME).min(most_time);
    let longer = (full.bytes * PATIENCE).min(left.bytes * PART_OF_WHAT_IS_LEFT);
    let bytes = (cost.bytes * PATIENCE).max(longer).min(left.bytes) as u64;
    Extent { time, bytes, most: (most_time, left.bytes as u64) }
}
