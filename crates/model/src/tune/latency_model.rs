//! A latency model with seven parameters: the latency of a request as a function of its size and of the number of
//! concurrent requests.
//!
//! A single request takes a fixed time (round trips, and processing before the response) plus the time of its bytes on
//! one connection. All requests share a bottleneck, such as a link, a CPU or a disk, with a cost per request and a cost
//! per byte. If one resource bears both costs, as a CPU does, they add up; if each has its own, as the operations and
//! the bandwidth of a disk, the larger hides the other.
//!
//! At low concurrency the first bound applies and at high concurrency the second; between them lies a knee (the bounds
//! of Denning and Buzen 1978 for a closed system). The combination is exact for a single request. Beyond the knee, more
//! concurrent requests reduce throughput a little: overparallelization (Hou 2017, section 4.1.1).

use super::OperatingPoint;

/// Number of parameters.
pub const PARAMETER_COUNT: usize = 7;

/// The parameters, as logarithms, so that they stay positive and errors are relative. The last one is a fraction and
/// stored as its log-odds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyModel(pub [f64; PARAMETER_COUNT]);

/// A normal distribution of the parameters: a prior, or the posterior after samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prior {
    /// The most likely parameters.
    pub mean: LatencyModel,
    /// The standard deviation of each parameter.
    pub std_dev: [f64; PARAMETER_COUNT],
}

impl Default for Prior {
    fn default() -> Self {
        Self {
            mean: LatencyModel([
                (20e-3_f64).ln(),
                (1.0 / 60e6_f64).ln(),
                (200e-6_f64).ln(),
                (1.0 / 100e6_f64).ln(),
                1.0_f64.ln(),
                0.015_f64.ln(),
                -1.5,
            ]),
            std_dev: [2.0, 2.0, 1.5, 1.5, 0.5, 1.0, 2.0],
        }
    }
}

impl Prior {
    /// This prior for an observed RTT in seconds. Requests are hardly faster than the RTT, and seldom take several of
    /// them.
    #[must_use]
    pub fn with_rtt(mut self, seconds: f64) -> Self {
        self.mean.0[0] = (seconds.max(50e-6) * 1.2).ln();
        self.std_dev[0] = 0.7;
        self
    }
}

impl LatencyModel {
    /// Fixed latency of a request in seconds, without its cost at the bottleneck.
    #[must_use]
    pub fn fixed_latency(&self) -> f64 {
        self.0[0].exp()
    }

    /// Seconds per byte on one connection, without its cost at the bottleneck.
    #[must_use]
    pub fn connection_seconds_per_byte(&self) -> f64 {
        self.0[1].exp()
    }

    /// Cost of a request at the bottleneck in seconds: the inverse is the maximum requests per second.
    #[must_use]
    pub fn bottleneck_seconds_per_request(&self) -> f64 {
        self.0[2].exp()
    }

    /// Cost of a byte at the bottleneck in seconds: the inverse is the maximum bytes per second.
    #[must_use]
    pub fn bottleneck_seconds_per_byte(&self) -> f64 {
        self.0[3].exp()
    }

    /// Sharpness of the knee: the exponent of the p-norm that combines the two bounds.
    #[must_use]
    pub fn sharpness(&self) -> f64 {
        1.0 + self.0[4].exp()
    }

    /// Throughput lost beyond the knee for each factor of e in concurrency.
    #[must_use]
    pub fn overload_loss(&self) -> f64 {
        self.0[5].exp()
    }

    /// Overlap of the cost per request and per byte at the bottleneck: 0 if they add up (one resource), 1 if the larger
    /// hides the smaller (two resources).
    #[must_use]
    pub fn overlap(&self) -> f64 {
        1.0 / (1.0 + (-self.0[6]).exp())
    }

    /// Latency of a single request, in seconds.
    #[must_use]
    pub fn uncontended_latency(&self, bytes: f64) -> f64 {
        self.fixed_latency() + bytes * self.connection_seconds_per_byte() + self.bottleneck_seconds(bytes)
    }

    /// Cost of a request at the bottleneck, in seconds.
    #[must_use]
    pub fn bottleneck_seconds(&self, bytes: f64) -> f64 {
        let (request, body) =
            (self.bottleneck_seconds_per_request(), bytes * self.bottleneck_seconds_per_byte());
        // A p-norm of the two would be smoother, but hides the cost per request next to many bytes, and with it the
        // advantage of larger requests.
        request.max(body) + request.min(body) * (1.0 - self.overlap())
    }

    /// Logarithm of the latency in seconds of each request at this point.
    #[must_use]
    pub fn log_latency(&self, cell: OperatingPoint) -> f64 {
        let (bytes, parallel) = (cell.bytes as f64, cell.concurrency as f64);
        let (alone, one) = (self.uncontended_latency(bytes), self.bottleneck_seconds(bytes));
        let shared = one * parallel;
        let excess = (shared / alone - 1.0).max(0.0);
        let shared = shared * (1.0 + self.overload_loss() * excess.ln_1p());
        let n = self.sharpness();
        // A single request waits for no other: its own cost at the bottleneck is already in `alone`. Factoring out the
        // larger bound avoids overflow.
        let (larger, smaller) = (alone.max(shared), alone.min(shared));
        larger.ln() + ((smaller / larger).powf(n) - (one / larger).powf(n)).ln_1p() / n
    }

    /// The gradient of the log latency with respect to the parameters.
    #[must_use]
    pub fn gradient(&self, cell: OperatingPoint) -> [f64; PARAMETER_COUNT] {
        const STEP: f64 = 1e-4;
        std::array::from_fn(|i| {
            let (mut more, mut less) = (*self, *self);
            more.0[i] += STEP;
            less.0[i] -= STEP;
            (more.log_latency(cell) - less.log_latency(cell)) / (2.0 * STEP)
        })
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
                let took = model.log_latency(OperatingPoint { bytes, concurrency: 1 }).exp();
                assert!((took / model.uncontended_latency(bytes as f64) - 1.0).abs() < 1e-9, "{took}");
            }
        }
    }

    #[test]
    fn costs_of_two_resources_do_not_add_up() {
        let one = latency_model(1e-3, 200e6, 1000.0, 64e6);
        let mut two = one;
        two.0[6] = 20.0;
        // The size whose bytes cost as much as a request.
        let rate = |model: &LatencyModel| {
            OperatingPoint { bytes: 64_000, concurrency: 64 }
                .request_rate(model.bottleneck_seconds(64e3) * 64.0)
        };
        assert!((rate(&one) / 500.0 - 1.0).abs() < 1e-3, "{}", rate(&one));
        assert!((rate(&two) / 1000.0 - 1.0).abs() < 1e-3, "{}", rate(&two));
    }
}
