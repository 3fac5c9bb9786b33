//! A latency model with seven parameters: the latency of a request as a function of its size and of the number of
//! concurrent requests.
//!
//! A single request takes a fixed time (round trips, and processing before the response) plus the time of its bytes on
//! one connection. All requests share a bottleneck, such as a link, a CPU or a disk, with a cost per request and a cost
//! per byte. If one resource bears both costs, as a CPU does, they add up; if each has its own, as the operations and
//! the bandwidth of a disk, the larger hides the other.
//!
//! The latency has two lower bounds: the uncontended latency of one request, and the time of all concurrent requests at
//! the bottleneck. At low concurrency the first bound applies and at high concurrency the second; between them lies a
//! knee (the bounds of Denning and Buzen 1978 for a closed system). The combination is exact for a single request.
//! Beyond the knee, more concurrent requests reduce throughput a little: overparallelization (Hou 2017, section 4.1.1).

use super::OperatingPoint;
use super::parameters::Parameters;

/// The latency of a request as a function of its size and of the number of concurrent requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyModel {
    /// Fixed time of a request, without its cost at the bottleneck.
    pub fixed_seconds: f64,
    /// Time of a byte on one connection, without its cost at the bottleneck: the inverse is the bandwidth of a
    /// connection.
    pub connection_seconds_per_byte: f64,
    /// Cost of a request at the bottleneck apart from its bytes: the inverse is the maximum requests per second.
    pub bottleneck_seconds_per_request: f64,
    /// Cost of a byte at the bottleneck: the inverse is the maximum bytes per second.
    pub bottleneck_seconds_per_byte: f64,
    /// Sharpness of the knee, more than 1: the exponent of the p-norm that combines the two bounds.
    pub knee_sharpness: f64,
    /// Fraction of the throughput lost beyond the knee for each factor of e in concurrency.
    pub overload_loss: f64,
    /// Overlap of the cost per request and per byte at the bottleneck: 0 if they add up (one resource), 1 if the larger
    /// hides the smaller (two resources).
    pub overlap: f64,
}

/// A normal distribution of the parameters: a prior, or the posterior after samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterDistribution {
    /// The mean; of a posterior, the maximum a posteriori (MAP) parameters.
    pub mean: LatencyModel,
    /// The standard deviation of each parameter on the scale of the fit, mostly of its logarithm (see [`Parameters`]).
    pub std_dev: Parameters,
}

/// The distribution of the parameters before samples.
pub type Prior = ParameterDistribution;

/// The distribution of the parameters after samples.
pub type Posterior = ParameterDistribution;

/// The prior for an unknown store.
impl Default for ParameterDistribution {
    fn default() -> Self {
        Self {
            mean: LatencyModel {
                fixed_seconds: 20e-3,
                connection_seconds_per_byte: 1.0 / 60e6,
                bottleneck_seconds_per_request: 200e-6,
                bottleneck_seconds_per_byte: 1.0 / 100e6,
                knee_sharpness: 2.0,
                overload_loss: 0.015,
                // Log-odds of -1.5.
                overlap: 0.182_425_523_806_356_35,
            },
            std_dev: Parameters {
                fixed_seconds: 2.0,
                connection_seconds_per_byte: 2.0,
                bottleneck_seconds_per_request: 1.5,
                bottleneck_seconds_per_byte: 1.5,
                knee_sharpness: 0.5,
                overload_loss: 1.0,
                overlap: 2.0,
            },
        }
    }
}

impl ParameterDistribution {
    /// This prior, adapted to an observed RTT. Requests are hardly faster than one RTT, and seldom take several RTTs.
    #[must_use]
    pub fn with_rtt(mut self, rtt_seconds: f64) -> Self {
        self.mean.fixed_seconds = rtt_seconds.max(50e-6) * 1.2;
        self.std_dev.fixed_seconds = 0.7;
        self
    }
}

impl LatencyModel {
    /// Latency of a single request, in seconds.
    #[must_use]
    pub fn uncontended_latency(&self, bytes: f64) -> f64 {
        self.fixed_seconds + bytes * self.connection_seconds_per_byte + self.bottleneck_seconds(bytes)
    }

    /// Total cost of a request of `bytes` bytes at the bottleneck, in seconds.
    #[must_use]
    pub fn bottleneck_seconds(&self, bytes: f64) -> f64 {
        let (request, body) = (self.bottleneck_seconds_per_request, bytes * self.bottleneck_seconds_per_byte);
        // A p-norm of the two would be smoother, but hides the cost per request next to many bytes, and with it the
        // advantage of larger requests.
        request.max(body) + request.min(body) * (1.0 - self.overlap)
    }

    /// Logarithm of the latency in seconds of each request at this point.
    #[must_use]
    pub fn log_latency(&self, point: OperatingPoint) -> f64 {
        let (bytes, concurrency) = (point.bytes as f64, point.concurrency as f64);
        let (uncontended, own_seconds) = (self.uncontended_latency(bytes), self.bottleneck_seconds(bytes));
        let all_seconds = own_seconds * concurrency;
        let excess = (all_seconds / uncontended - 1.0).max(0.0);
        let saturated = all_seconds * (1.0 + self.overload_loss * excess.ln_1p());
        let p = self.knee_sharpness;
        // A single request waits for no other, and `uncontended` already contains its own cost at the bottleneck. Hence
        // that cost is subtracted. Factoring out the larger bound avoids overflow.
        let (larger, smaller) = (uncontended.max(saturated), uncontended.min(saturated));
        larger.ln() + ((smaller / larger).powf(p) - (own_seconds / larger).powf(p)).ln_1p() / p
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::tests::latency_model;

    #[test]
    fn single_request_takes_its_uncontended_latency() {
        for connection in [2e6, 200e6, 20e9] {
            for bytes in [1 << 10, 16 << 20] {
                let model = latency_model(1e-3, connection, 1000.0, 64e6);
                let latency = model.log_latency(OperatingPoint { bytes, concurrency: 1 }).exp();
                assert!((latency / model.uncontended_latency(bytes as f64) - 1.0).abs() < 1e-9, "{latency}");
            }
        }
    }

    #[test]
    fn costs_of_two_resources_do_not_add_up() {
        let one = latency_model(1e-3, 200e6, 1000.0, 64e6);
        let mut two = one;
        two.overlap = 1.0;
        // The size whose bytes cost as much as a request.
        let rate = |model: &LatencyModel| {
            OperatingPoint { bytes: 64_000, concurrency: 64 }
                .request_rate(model.bottleneck_seconds(64e3) * 64.0)
        };
        assert!((rate(&one) / 500.0 - 1.0).abs() < 1e-3, "{}", rate(&one));
        assert!((rate(&two) / 1000.0 - 1.0).abs() < 1e-3, "{}", rate(&two));
    }
}
