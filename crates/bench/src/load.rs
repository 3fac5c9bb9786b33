//! A load: request mix, concurrency, arrival mode and stop condition.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::arrivals::Spacing;
use crate::operation::Mix;

/// The arrival mode: closed or open loop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalMode {
    /// Closed loop: a worker starts its next request when the previous one has completed.
    Closed,
    /// Open loop: requests start on schedule, at a fixed mean rate.
    Open {
        /// Mean arrival rate, in req/s.
        requests_per_second: f64,
        /// Distribution of the interarrival times.
        spacing: Spacing,
    },
}

/// The stop condition. The first limit that is reached ends the load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StopCondition {
    /// Number of requests started.
    pub max_requests: Option<u64>,
    /// Length of the measurement window.
    pub duration: Duration,
    /// Half-width of the 95 % confidence interval of throughput, as a fraction of the mean.
    pub max_ci_fraction: Option<f64>,
}

/// A load on a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Kinds of requests and their shares.
    pub mix: Mix,
    /// Concurrent requests; the maximum for an open loop.
    pub concurrency: usize,
    /// Arrival mode.
    pub arrival_mode: ArrivalMode,
    /// Stop condition.
    pub stop_condition: StopCondition,
    /// Time before the measurement window opens.
    pub warm_up: Duration,
    /// Random seed.
    pub seed: u64,
    /// Fraction of the interarrival time, 0 to 1, by which evenly spaced requests start earlier. Agents that share a
    /// rate use different phases, so that their requests together are evenly spaced.
    #[serde(default)]
    pub phase: f64,
}
