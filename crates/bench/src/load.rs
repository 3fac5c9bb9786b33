//! What is asked of a store, how much of it at a time, and until when.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arrivals::Spacing;
use crate::operation::Mix;

/// When a request starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// When a worker has been answered its last one.
    Closed,
    /// At moments of their own, so many a second in the mean.
    Open {
        /// Requests a second.
        per_second: f64,
        /// How they lie apart.
        spacing: Spacing,
    },
}

/// When it is enough. What comes first counts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Until {
    /// So many requests were begun.
    pub requests: Option<u64>,
    /// So long it counted.
    pub time: Duration,
    /// The throughput is known to within this part of it, with 95 % confidence.
    pub stable: Option<f64>,
}

/// A load on a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// What is asked.
    pub mix: Mix,
    /// Requests at a time; of an open loop the most.
    pub parallel: usize,
    /// When each starts.
    pub pace: Pace,
    /// When it ends.
    pub until: Until,
    /// So long before anything counts.
    pub warm_up: Duration,
    /// What is drawn by chance follows from it.
    pub seed: u64,
    /// By so much of the time between two, from 0 to 1, evenly spaced requests are earlier: those of several that share a rate
    /// lie evenly together.
    #[serde(default)]
    pub phase: f64,
}
