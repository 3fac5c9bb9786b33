//! Extrapolates a surface to another client or store (Hou 2017, section 5.4).
//!
//! Samples are not transferable, but the parameters of the model are, each in its own way. The number of round trips
//! per request and the processing time of the store stay the same. A connection keeps its window, so its bandwidth
//! falls with the RTT. The shared bottleneck scales with the link if the link was saturated, with the storage if that
//! was, and otherwise with the CPUs if they can have been the limit. The result is a [`Prior`]: a surface without
//! samples follows from it, or sampling starts with it.
//!
//! Packet loss of an unmeasured path is unknown: a profile of a path without loss asks for too little on one with loss.

mod closest;

use super::latency_model::{LatencyModel, Prior};
use super::parameters::Parameters;
use super::surface::Surface;

pub use closest::{ProfileOrigin, closest, is_same_site};

/// RTT in seconds that exceeds the processing time of store and CPU. A shorter one reveals neither the round trips per
/// request nor the window of a connection.
const MIN_SIGNIFICANT_RTT_SECONDS: f64 = 5e-3;
/// Maximum number of round trips of a request on an open connection.
const MAX_ROUND_TRIPS: f64 = 4.0;
/// Window of a connection whose window is unknown, in bytes, and the standard deviation of its logarithm: the Linux
/// default.
const DEFAULT_WINDOW_BYTES: f64 = 2e6;
const WINDOW_STD_DEV: f64 = 1.0;
/// Bandwidth of a connection that is not limited by its window, in bytes per second, and the standard deviation of its
/// logarithm: the serial work of its two ends, as measured at short RTTs.
const DEFAULT_CONNECTION_BANDWIDTH: f64 = 200e6;
const CONNECTION_STD_DEV: f64 = 0.5;
/// A link or storage of which more than this fraction was used was the bottleneck.
const SATURATION: f64 = 0.7;
/// Minimum fraction of a saturated link that is payload; the rest is packet headers.
const MIN_PAYLOAD_FRACTION: f64 = 0.95;
/// Minimum bytes and requests per second of a saturated CPU. Below that, the link or the store was the limit, and more
/// CPUs would not help.
const MIN_SATURATED_CPU_BANDWIDTH: f64 = 10e6;
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
/// Standard deviation of a scaled parameter, as a fraction of the logarithm of the scale.
const SCALING_STD_DEV_RATIO: f64 = 0.5;
/// Standard deviation of the fixed latency if the RTT is unknown.
const UNKNOWN_RTT_STD_DEV: f64 = 0.7;
/// Minimum standard deviation at the start of sampling, as a fraction of the default prior.
const MIN_PRIOR_RATIO: f64 = 0.5;

/// Properties of a client and its path to a store that determine performance. Unknown ones are assumed equal. Memory is
/// not among them: it bounds the bytes in flight, which transfers respect by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClientEnvironment {
    /// Number of CPUs, possibly fractional.
    pub cpus: Option<f64>,
    /// Bandwidth of the client's storage in bytes per second, if it is source or destination.
    pub storage_bandwidth: Option<f64>,
    /// RTT to the store, in seconds.
    pub rtt: Option<f64>,
    /// Bandwidth of the link towards the store, in bytes per second.
    pub link_bandwidth: Option<f64>,
}

/// Extrapolates a surface measured at `from` to `to`. The knee becomes softer by its standard deviation: too much
/// concurrency costs little, too little costs in proportion.
#[must_use]
pub fn extrapolate(known: &Surface, from: &ClientEnvironment, to: &ClientEnvironment) -> Prior {
    let posterior = known.posterior();
    let model = &posterior.mean;
    let here = from.rtt.unwrap_or(model.fixed_seconds);
    let there = to.rtt.unwrap_or(here);
    let slowdown =
        cpu_slowdown(from, to, 1.0 / model.bottleneck_seconds_per_request / MIN_SATURATED_CPU_REQUEST_RATE);
    let bottleneck = bottleneck_per_byte(model, from, to);
    let measured = Parameters::of_model(model);
    let scaled = Parameters {
        fixed_seconds: fixed_seconds(model, here, there).ln(),
        connection_seconds_per_byte: connection_seconds_per_byte(&posterior, here, there).ln(),
        bottleneck_seconds_per_request: (model.bottleneck_seconds_per_request * slowdown).ln(),
        bottleneck_seconds_per_byte: bottleneck.seconds.ln(),
        knee_sharpness: measured.knee_sharpness - posterior.std_dev.knee_sharpness,
        ..measured
    };
    let rtt_log_ratio = (there / here).ln().abs();
    let scaling_std_dev = Parameters {
        fixed_seconds: if to.rtt.is_some() { 0.0 } else { UNKNOWN_RTT_STD_DEV },
        connection_seconds_per_byte: SCALING_STD_DEV_RATIO
            * (scaled.connection_seconds_per_byte - measured.connection_seconds_per_byte),
        bottleneck_seconds_per_request: SCALING_STD_DEV_RATIO * slowdown.ln(),
        // A store at the same RTT is probably behind the same link. Weaker CPUs might be the limit before a link is,
        // but that would affect all points alike and not change which is the best.
        bottleneck_seconds_per_byte: if bottleneck.is_capacity_known {
            0.0
        } else {
            SCALING_STD_DEV_RATIO
                * (scaled.bottleneck_seconds_per_byte - measured.bottleneck_seconds_per_byte)
                + rtt_log_ratio
        },
        knee_sharpness: 0.0,
        overload_loss: 0.0,
        overlap: 0.0,
    };
    let std_dev = Parameters::combine(
        [posterior.std_dev, EXTRAPOLATION_STD_DEV, scaling_std_dev, Prior::default().std_dev],
        |[posterior, extrapolation, scaling, max]| {
            [posterior, extrapolation, scaling].iter().map(|part| part * part).sum::<f64>().sqrt().min(max)
        },
    );
    Prior { mean: scaled.to_model(), std_dev }
}

/// Like [`extrapolate`], as a prior for sampling: wide enough that a few samples correct it.
#[must_use]
pub fn sampling_prior(known: &Surface, from: &ClientEnvironment, to: &ClientEnvironment) -> Prior {
    let Prior { mean, std_dev } = extrapolate(known, from, to);
    let default_prior = to.rtt.map_or_else(Prior::default, |rtt| Prior::default().with_rtt(rtt));
    let std_dev = Parameters::combine([std_dev, default_prior.std_dev], |[extrapolated, default]| {
        extrapolated.max(MIN_PRIOR_RATIO * default)
    });
    Prior { mean, std_dev }
}

/// Slowdown of the CPUs of `to` compared with `from`; 1 unless the load could saturate more CPUs than `from` has.
fn cpu_slowdown(from: &ClientEnvironment, to: &ClientEnvironment, saturated_cpus: f64) -> f64 {
    match (from.cpus, to.cpus) {
        (Some(here), Some(there)) if saturated_cpus > here => here / there,
        _ => 1.0,
    }
}

/// Fixed time of a request: the same number of round trips, plus the same processing time of the store. `here` and
/// `there` are the RTTs of the measurement and of the target, in seconds.
fn fixed_seconds(model: &LatencyModel, here: f64, there: f64) -> f64 {
    let trips = if here < MIN_SIGNIFICANT_RTT_SECONDS {
        1.0
    } else {
        (model.fixed_seconds / here).round().clamp(1.0, MAX_ROUND_TRIPS)
    };
    let processing = (model.fixed_seconds - trips * here).max(0.0);
    trips * there + processing
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

/// Seconds per byte on a connection with the same window; never less at a longer RTT, never more at a shorter one. A
/// connection faster than the default counts only to the extent that it is certain, because a plan of a single large
/// request would depend on it alone.
fn connection_seconds_per_byte(posterior: &Prior, here: f64, there: f64) -> f64 {
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
    let log_window = (here / measured_per_byte).ln();
    let log_window = if here < MIN_SIGNIFICANT_RTT_SECONDS {
        // At a short RTT the window was not the limit, so this is a lower bound of it.
        log_window.max(DEFAULT_WINDOW_BYTES.ln())
    } else {
        let default = LogEstimate { mean: DEFAULT_WINDOW_BYTES.ln(), std_dev: WINDOW_STD_DEV };
        LogEstimate { mean: log_window, std_dev }.weighted_mean(default)
    };
    let bound = there / log_window.exp();
    match there.total_cmp(&here) {
        std::cmp::Ordering::Less if here >= MIN_SIGNIFICANT_RTT_SECONDS => {
            per_byte.min(bound.max(default_per_byte))
        }
        std::cmp::Ordering::Greater => per_byte.max(bound),
        _ => per_byte,
    }
}

/// The extrapolated cost of a byte at the shared bottleneck.
#[derive(Debug, Clone, Copy)]
struct BottleneckPerByte {
    seconds: f64,
    /// The capacity of the resource that determines it is known.
    is_capacity_known: bool,
}

fn bottleneck_per_byte(
    model: &LatencyModel,
    from: &ClientEnvironment,
    to: &ClientEnvironment,
) -> BottleneckPerByte {
    let rate = 1.0 / model.bottleneck_seconds_per_byte;
    let is_saturated = |capacity: &f64| rate > capacity * SATURATION;
    let limits = [(from.link_bandwidth, to.link_bandwidth), (from.storage_bandwidth, to.storage_bandwidth)];
    let saturated = limits.iter().find_map(|(from, to)| Some((from.filter(is_saturated)?, *to)));
    let scaled = match saturated {
        Some((from, Some(to))) if from != to => to * (rate / from).clamp(MIN_PAYLOAD_FRACTION, 1.0),
        Some(_) => rate,
        None => rate / cpu_slowdown(from, to, rate / MIN_SATURATED_CPU_BANDWIDTH),
    };
    let max_rate = limits.iter().filter_map(|(_, to)| *to).fold(f64::MAX, f64::min);
    let is_capacity_known = matches!(saturated, Some((_, Some(_)))) || scaled > max_rate;
    BottleneckPerByte { seconds: 1.0 / scaled.min(max_rate), is_capacity_known }
}
