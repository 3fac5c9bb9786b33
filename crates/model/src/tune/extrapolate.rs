//! Extrapolates a surface to another client or store (Hou 2017, section 5.4).
//!
//! Samples are not transferable, but the parameters of the model are, each in its own way. The number of round trips
//! per request and the processing time of the store stay the same. A connection keeps its window, so its bandwidth
//! falls with the RTT. The shared bottleneck scales with the client's network interface if that was saturated, with the
//! storage if that was, and otherwise with the CPUs if they may have been the limit. The result is a [`Prior`]: a
//! surface without samples follows from it, or sampling starts with it.
//!
//! Packet loss of an unmeasured path is unknown. A profile from a path without loss yields too little concurrency for a
//! path with loss.

mod closest;

use super::latency_model::{LatencyModel, Posterior, Prior};
use super::parameters::Parameters;
use super::surface::Surface;

pub use closest::{ProfileOrigin, closest, is_same_site};

/// Minimum RTT, in seconds, that exceeds the processing time of store and client. A measurement at a shorter RTT
/// reveals neither the round trips per request nor the window of a connection.
const MIN_SIGNIFICANT_RTT_SECONDS: f64 = 5e-3;
/// Maximum number of round trips of a request on an open connection. Fixed time beyond that is processing time.
const MAX_ROUND_TRIPS: f64 = 4.0;
/// Assumed window of a connection if it was not measured, in bytes: about what Linux's default `tcp_rmem` allows.
const DEFAULT_WINDOW_BYTES: f64 = 2e6;
/// Standard deviation of the logarithm of the window.
const WINDOW_STD_DEV: f64 = 1.0;
/// Bandwidth of a connection that is not limited by its window, in bytes per second. At short RTTs, it is limited by
/// the serial work of client and store.
const DEFAULT_CONNECTION_BANDWIDTH: f64 = 200e6;
/// Standard deviation of the logarithm of that bandwidth.
const CONNECTION_STD_DEV: f64 = 0.5;
/// Minimum utilization of an interface or storage that counts as the bottleneck.
const SATURATION: f64 = 0.7;
/// Minimum fraction of a saturated interface's bandwidth that is payload; the rest is packet headers.
const MIN_PAYLOAD_FRACTION: f64 = 0.95;
/// Minimum bytes per second of a saturated CPU. Below that, the link or the store was the limit, and more CPUs would
/// not help.
const MIN_SATURATED_CPU_BANDWIDTH: f64 = 10e6;
/// Minimum requests per second of a saturated CPU.
const MIN_SATURATED_CPU_REQUEST_RATE: f64 = 100.0;
/// Standard deviation added to each parameter by any extrapolation.
const EXTRAPOLATION_STD_DEV: Parameters = Parameters {
    fixed_seconds: 0.1,
    connection_seconds_per_byte: 0.3,
    bottleneck_seconds_per_request: 0.2,
    bottleneck_seconds_per_byte: 0.1,
    knee_sharpness: 0.2,
    overload_loss: 0.2,
    overlap: 0.5,
};
/// Standard deviation of a scaled parameter, as a fraction of the absolute logarithm of the scale.
const SCALING_STD_DEV_RATIO: f64 = 0.5;
/// Standard deviation of the fixed latency if the RTT is unknown.
const UNKNOWN_RTT_STD_DEV: f64 = 0.7;
/// Minimum standard deviation at the start of sampling, as a fraction of the default prior.
const MIN_PRIOR_RATIO: f64 = 0.5;

/// Properties of a client and its path to a store that determine performance. Unknown ones are assumed equal. Memory is
/// not among them, because each transfer limits its bytes in flight to its memory budget.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClientEnvironment {
    /// Number of CPUs, possibly fractional.
    pub cpus: Option<f64>,
    /// Bandwidth of the client's storage in bytes per second; `None` if transfers do not use it.
    pub storage_bandwidth: Option<f64>,
    /// RTT to the store, in seconds.
    pub rtt: Option<f64>,
    /// Bandwidth of the client's network interface towards the store, in bytes per second. The path beyond may be
    /// slower.
    pub interface_bandwidth: Option<f64>,
}

/// Extrapolates a surface measured at `from` to `to`. The knee becomes softer by its standard deviation, which leads to
/// more concurrency: an excess costs little, a shortage costs throughput in proportion.
#[must_use]
pub fn extrapolate(measured_surface: &Surface, from: &ClientEnvironment, to: &ClientEnvironment) -> Prior {
    let posterior = measured_surface.posterior();
    let model = &posterior.mean;
    let from_rtt = from.rtt.unwrap_or(model.fixed_seconds);
    let to_rtt = to.rtt.unwrap_or(from_rtt);
    let slowdown =
        cpu_slowdown(from, to, 1.0 / model.bottleneck_seconds_per_request / MIN_SATURATED_CPU_REQUEST_RATE);
    let bottleneck = bottleneck_per_byte(model, from, to);
    let measured_parameters = Parameters::of_model(model);
    let scaled_parameters = Parameters {
        fixed_seconds: fixed_seconds(model, from_rtt, to_rtt).ln(),
        connection_seconds_per_byte: connection_seconds_per_byte(&posterior, from_rtt, to_rtt).ln(),
        bottleneck_seconds_per_request: (model.bottleneck_seconds_per_request * slowdown).ln(),
        bottleneck_seconds_per_byte: bottleneck.seconds.ln(),
        knee_sharpness: measured_parameters.knee_sharpness - posterior.std_dev.knee_sharpness,
        ..measured_parameters
    };
    let rtt_log_ratio = (to_rtt / from_rtt).ln().abs();
    let scaling_std_dev = Parameters {
        fixed_seconds: if to.rtt.is_some() { 0.0 } else { UNKNOWN_RTT_STD_DEV },
        connection_seconds_per_byte: SCALING_STD_DEV_RATIO
            * (scaled_parameters.connection_seconds_per_byte
                - measured_parameters.connection_seconds_per_byte)
                .abs(),
        bottleneck_seconds_per_request: SCALING_STD_DEV_RATIO * slowdown.ln().abs(),
        // A different RTT suggests a different link, of unknown bandwidth. Weaker CPUs might be the limit before a link
        // is, but that would affect all points alike and not change which one is the best.
        bottleneck_seconds_per_byte: if bottleneck.is_capacity_known {
            0.0
        } else {
            SCALING_STD_DEV_RATIO
                * (scaled_parameters.bottleneck_seconds_per_byte
                    - measured_parameters.bottleneck_seconds_per_byte)
                    .abs()
                + rtt_log_ratio
        },
        knee_sharpness: 0.0,
        overload_loss: 0.0,
        overlap: 0.0,
    };
    let std_dev = Parameters::combine(
        [posterior.std_dev, EXTRAPOLATION_STD_DEV, scaling_std_dev, Prior::default().std_dev],
        |[posterior, extrapolation, scaling, max]| {
            [posterior, extrapolation, scaling]
                .iter()
                .map(|std_dev| std_dev * std_dev)
                .sum::<f64>()
                .sqrt()
                .min(max)
        },
    );
    Prior { mean: scaled_parameters.to_model(), std_dev }
}

/// Like [`extrapolate`], as a prior for sampling: wide enough that a few samples correct it.
#[must_use]
pub fn sampling_prior(measured_surface: &Surface, from: &ClientEnvironment, to: &ClientEnvironment) -> Prior {
    let Prior { mean, std_dev } = extrapolate(measured_surface, from, to);
    let default_prior = to.rtt.map_or_else(Prior::default, |rtt| Prior::default().with_rtt(rtt));
    let std_dev = Parameters::combine([std_dev, default_prior.std_dev], |[extrapolated, default]| {
        extrapolated.max(MIN_PRIOR_RATIO * default)
    });
    Prior { mean, std_dev }
}

/// Slowdown of the CPUs of `to` compared with `from`. It is 1 unless the measured load can saturate all CPUs of `from`:
/// `saturable_cpus` is the maximum number of CPUs that it can saturate.
fn cpu_slowdown(from: &ClientEnvironment, to: &ClientEnvironment, saturable_cpus: f64) -> f64 {
    match (from.cpus, to.cpus) {
        (Some(from_cpus), Some(to_cpus)) if saturable_cpus > from_cpus => from_cpus / to_cpus,
        _ => 1.0,
    }
}

/// Fixed time of a request: the same number of round trips, plus the same processing time of the store.
/// `from_rtt` and `to_rtt` are the RTTs of the measurement and of the target, in seconds.
fn fixed_seconds(model: &LatencyModel, from_rtt: f64, to_rtt: f64) -> f64 {
    let round_trips = if from_rtt < MIN_SIGNIFICANT_RTT_SECONDS {
        1.0
    } else {
        (model.fixed_seconds / from_rtt).round().clamp(1.0, MAX_ROUND_TRIPS)
    };
    let processing = (model.fixed_seconds - round_trips * from_rtt).max(0.0);
    round_trips * to_rtt + processing
}

/// A normal distribution of a logarithm.
#[derive(Debug, Clone, Copy)]
struct LogEstimate {
    mean: f64,
    std_dev: f64,
}

impl LogEstimate {
    /// The mean of both, each weighted by the inverse of its variance.
    fn weighted_mean(self, other: Self) -> f64 {
        let weights = [self.std_dev, other.std_dev].map(|std_dev| std_dev.powi(-2));
        (self.mean * weights[0] + other.mean * weights[1]) / (weights[0] + weights[1])
    }
}

/// Seconds per byte on a connection with the same window; never less at a longer RTT, never more at a shorter one. If a
/// connection was faster than the default, the measured bandwidth is replaced by the mean of the measured and the
/// default bandwidth, on a logarithmic scale and weighted by their certainty, because the time of a single large
/// request depends on this parameter alone.
fn connection_seconds_per_byte(posterior: &Posterior, from_rtt: f64, to_rtt: f64) -> f64 {
    let default_per_byte = 1.0 / DEFAULT_CONNECTION_BANDWIDTH;
    let measured_per_byte = posterior.mean.connection_seconds_per_byte;
    let std_dev = posterior.std_dev.connection_seconds_per_byte;
    let per_byte = if measured_per_byte < default_per_byte {
        let measured = LogEstimate { mean: measured_per_byte.ln(), std_dev };
        let default = LogEstimate { mean: default_per_byte.ln(), std_dev: CONNECTION_STD_DEV };
        measured.weighted_mean(default).exp()
    } else {
        measured_per_byte
    };
    let log_window = (from_rtt / measured_per_byte).ln();
    let log_window = if from_rtt < MIN_SIGNIFICANT_RTT_SECONDS {
        // At a short RTT the window was not the limit, so bandwidth times RTT is only a lower bound of the window.
        log_window.max(DEFAULT_WINDOW_BYTES.ln())
    } else {
        let default = LogEstimate { mean: DEFAULT_WINDOW_BYTES.ln(), std_dev: WINDOW_STD_DEV };
        LogEstimate { mean: log_window, std_dev }.weighted_mean(default)
    };
    let window_seconds_per_byte = to_rtt / log_window.exp();
    match to_rtt.total_cmp(&from_rtt) {
        std::cmp::Ordering::Less if from_rtt >= MIN_SIGNIFICANT_RTT_SECONDS => {
            per_byte.min(window_seconds_per_byte.max(default_per_byte))
        }
        std::cmp::Ordering::Greater => per_byte.max(window_seconds_per_byte),
        _ => per_byte,
    }
}

/// The extrapolated cost of a byte at the shared bottleneck.
#[derive(Debug, Clone, Copy)]
struct BottleneckPerByte {
    seconds: f64,
    /// True if the capacity of the limiting resource is known.
    is_capacity_known: bool,
}

fn bottleneck_per_byte(
    model: &LatencyModel,
    from: &ClientEnvironment,
    to: &ClientEnvironment,
) -> BottleneckPerByte {
    let measured_rate = 1.0 / model.bottleneck_seconds_per_byte;
    let is_saturated = |capacity: &f64| measured_rate > capacity * SATURATION;
    let capacities =
        [(from.interface_bandwidth, to.interface_bandwidth), (from.storage_bandwidth, to.storage_bandwidth)];
    let saturated = capacities.iter().find_map(|(from, to)| Some((from.filter(is_saturated)?, *to)));
    let scaled_rate = match saturated {
        Some((from, Some(to))) if from != to => to * (measured_rate / from).clamp(MIN_PAYLOAD_FRACTION, 1.0),
        Some(_) => measured_rate,
        None => measured_rate / cpu_slowdown(from, to, measured_rate / MIN_SATURATED_CPU_BANDWIDTH),
    };
    let max_rate = capacities.iter().filter_map(|(_, to)| *to).fold(f64::MAX, f64::min);
    let is_capacity_known = matches!(saturated, Some((_, Some(_)))) || scaled_rate > max_rate;
    BottleneckPerByte { seconds: 1.0 / scaled_rate.min(max_rate), is_capacity_known }
}
