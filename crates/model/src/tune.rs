//! Choice of request size and concurrency, inferred from a few samples, for a goal (Hou 2017, section 5).
//!
//! An *operating point*, or point for short, is a request size with a concurrency. A *sample* is the measurement of a
//! point by a probe or a transfer. A [`Surface`] predicts all points of one direction from samples. [`sampling`]
//! chooses the most informative next probe, [`goal`] the best point for a goal, and [`extrapolate`] extrapolates to
//! another client or store.

mod cholesky;
mod concurrency;
pub mod extrapolate;
pub mod goal;
mod latency_model;
mod parameters;
pub mod sampling;
mod split;
mod surface;
mod tail_latency;
#[cfg(test)]
mod tests;
pub mod transfer_samples;
mod workload;

pub use concurrency::ConcurrencyBySize;
pub use goal::{Goal, LatencyTarget};
pub use latency_model::{LatencyModel, ParameterDistribution, Posterior, Prior};
pub use parameters::Parameters;
pub use split::Split;
pub use surface::{Prediction, Surface};
pub use tail_latency::{Statistic, TailLatency};
pub use workload::{SizeShare, Workload, WorkloadAmount};

/// An operating point: a request size and a concurrency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperatingPoint {
    /// Bytes of a request's body.
    pub bytes: u64,
    /// Concurrent requests.
    pub concurrency: usize,
}

impl OperatingPoint {
    /// Bytes of all concurrent requests.
    #[must_use]
    pub fn bytes_in_flight(&self) -> f64 {
        self.bytes as f64 * self.concurrency as f64
    }

    /// Total bytes per second if each request takes `latency` seconds.
    #[must_use]
    pub fn throughput(&self, latency: f64) -> f64 {
        self.bytes_in_flight() / latency
    }

    /// Requests per second if each takes `latency` seconds.
    #[must_use]
    pub fn request_rate(&self, latency: f64) -> f64 {
        self.concurrency as f64 / latency
    }

    /// All combinations of these sizes and concurrencies, grouped by size.
    #[must_use]
    pub fn grid(sizes: &[u64], concurrencies: &[usize]) -> Vec<Self> {
        let row = |bytes: u64| {
            concurrencies.iter().map(move |concurrency| Self { bytes, concurrency: *concurrency })
        };
        sizes.iter().flat_map(|bytes| row(*bytes)).collect()
    }
}

/// A measurement of an operating point. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The point measured.
    pub point: OperatingPoint,
    /// Mean time of a request. Of a probe: concurrency divided by the rate of successful requests (Little's law), so that
    /// time lost to failures is included. Of a transfer: the time waited for the store; the concurrency of `point` is
    /// then the mean number of requests that waited.
    pub latency: f64,
    /// Relative standard error of `latency`.
    pub relative_error: f64,
    /// The tail of the latency, if observed.
    pub tail: Option<TailLatency>,
    /// True if a transfer observed it, false if a probe did.
    pub from_transfer: bool,
}

impl Sample {
    /// Total bytes per second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.point.throughput(self.latency)
    }
}
