//! What size and how many at a time: inferred from a few samples, for a goal (Hou 2017, section 5).
//!
//! A *cell* is a size of requests and how many are under way. A *sample* is what a probe of a cell measured. A [`Surface`] is
//! what follows from samples for all cells of one direction; [`sampling`] says which cell says most next, [`goal`] which is
//! the best for what somebody wants, and [`carry`] what is to be expected elsewhere.

mod at_a_time;
pub mod carry;
pub mod goal;
mod law;
mod matrix;
pub mod sampling;
pub mod seen;
mod split;
mod surface;
mod tail;
#[cfg(test)]
mod tests;
mod workload;

pub use at_a_time::AtATime;
pub use goal::{Cap, Goal};
pub use law::{Belief, Law};
pub use split::Split;
pub use surface::{Inferred, Surface};
pub use tail::Statistic;
pub use workload::{Amount, Share, Workload};

/// A size of requests, and how many of them at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// Bytes of a request's body.
    pub bytes: u64,
    /// Requests under way.
    pub parallel: usize,
}

impl Cell {
    /// Bytes of all that are under way.
    #[must_use]
    pub fn in_flight(&self) -> f64 {
        self.bytes as f64 * self.parallel as f64
    }

    /// Bytes a second, all requests together, where each takes so many seconds.
    #[must_use]
    pub fn bandwidth(&self, latency: f64) -> f64 {
        self.in_flight() / latency
    }

    /// Requests a second, where each takes so many seconds.
    #[must_use]
    pub fn rate(&self, latency: f64) -> f64 {
        self.parallel as f64 / latency
    }

    /// The cells of some sizes and some parallelisms, those of one size together.
    #[must_use]
    pub fn grid(sizes: &[u64], parallel: &[usize]) -> Vec<Self> {
        let of = |bytes: u64| parallel.iter().map(move |parallel| Self { bytes, parallel: *parallel });
        sizes.iter().flat_map(|bytes| of(*bytes)).collect()
    }
}

/// What a probe measured. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Of which cell.
    pub cell: Cell,
    /// How long a request took in the mean.
    pub latency: f64,
    /// How sure that is: the standard error as a part of it.
    pub error: f64,
    /// What 95 and what 99 of a hundred of them took at the most, where that was seen.
    pub tail: Option<[f64; 2]>,
    /// Whether a transfer saw it and no probe did.
    pub is_seen: bool,
}

impl Sample {
    /// Bytes a second, all requests together.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.cell.bandwidth(self.latency)
    }
}
