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

use super::latency_model::{LatencyModel, PARAMETER_COUNT, Prior};
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
const EXTRAPOLATION_STD_DEV: [f64; PARAMETER_COUNT] = [0.1, 0.3, 0.2, 0.1, 0.2, 0.2, 0.5];
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
    let here = from.rtt.unwrap_or(model.fixed_latency());
    let there = to.rtt.unwrap_or(here);
    let slowdown =
        cpu_slowdown(from, to, 1.0 / model.bottleneck_seconds_per_request() / MIN_SATURATED_CPU_REQUEST_RATE);
    let (shared_per_byte, is_known) = bottleneck_seconds_per_byte(model, from, to);
    let softer_knee = model.0[4] - posterior.std_dev[4];
    let scaled = [
        fixed_latency(model, here, there).ln(),
        connection_seconds_per_byte(&posterior, here, there).ln(),
        (model.bottleneck_seconds_per_request() * slowdown).ln(),
        shared_per_byte.ln(),
        softer_knee,
        model.0[5],
        model.0[6],
    ];
    let rtt_log_ratio = (there / here).ln().abs();
    let scaling_deviation = [
        if to.rtt.is_some() { 0.0 } else { UNKNOWN_RTT_STD_DEV },
        SCALING_STD_DEV_RATIO * (scaled[1] - model.0[1]),
        SCALING_STD_DEV_RATIO * slowdown.ln(),
        // A store at the same RTT is probably behind the same link. Weaker CPUs might be the limit before a link is,
        // but that would affect all points alike and not change which is the best.
        if is_known { 0.0 } else { SCALING_STD_DEV_RATIO * (scaled[3] - model.0[3]) + rtt_log_ratio },
        0.0,
        0.0,
        0.0,
    ];
    let max_deviation = Prior::default().std_dev;
    let deviation = std::array::from_fn(|i| {
        let all = [posterior.std_dev[i], EXTRAPOLATION_STD_DEV[i], scaling_deviation[i]];
        all.iter().map(|part| part * part).sum::<f64>().sqrt().min(max_deviation[i])
    });
    Prior { mean: LatencyModel(scaled), std_dev: deviation }
}

/// Like [`extrapolate`], as a prior for sampling: wide enough that a few samples correct it.
#[must_use]
pub fn sampling_prior(known: &Surface, from: &ClientEnvironment, to: &ClientEnvironment) -> Prior {
    let Prior { mean, std_dev: deviation } = extrapolate(known, from, to);
    let default_prior = to.rtt.map_or_else(Prior::default, |time| Prior::default().with_rtt(time));
    Prior {
        mean,
        std_dev: std::array::from_fn(|i| deviation[i].max(MIN_PRIOR_RATIO * default_prior.std_dev[i])),
    }
}

/// Slowdown of the CPUs of `to` compared with `from`; 1 unless the load could saturate more CPUs (`filled`) than `from`
/// has.
fn cpu_slowdown(from: &ClientEnvironment, to: &ClientEnvironment, filled: f64) -> f64 {
    match (from.cpus, to.cpus) {
        (Some(here), Some(there)) if filled > here => here / there,
        _ => 1.0,
    }
}

/// Fixed latency: the same number of round trips, plus the same processing time of the store.
fn fixed_latency(model: &LatencyModel, here: f64, there: f64) -> f64 {
    let trips = if here < MIN_SIGNIFICANT_RTT_SECONDS {
        1.0
    } else {
        (model.fixed_latency() / here).round().clamp(1.0, MAX_ROUND_TRIPS)
    };
    let processing = (model.fixed_latency() - trips * here).max(0.0);
    trips * there + processing
}

/// Seconds per byte on a connection with the same window; never less at a longer RTT, never more at a shorter one. A
/// connection faster than the default counts only to the extent that it is certain, because a plan of a single large
/// request would depend on it alone.
fn connection_seconds_per_byte(posterior: &Prior, here: f64, there: f64) -> f64 {
    let default_per_byte = 1.0 / DEFAULT_CONNECTION_BANDWIDTH;
    let observed_window = (here / posterior.mean.connection_seconds_per_byte()).ln();
    let weighted_mean = |(a, a_deviation): (f64, f64), (b, b_deviation): (f64, f64)| {
        let weights = [a_deviation, b_deviation].map(|deviation| deviation.powi(-2));
        (a * weights[0] + b * weights[1]) / (weights[0] + weights[1])
    };
    let per_byte = if posterior.mean.connection_seconds_per_byte() < default_per_byte {
        weighted_mean(
            (posterior.mean.0[1], posterior.std_dev[1]),
            (default_per_byte.ln(), CONNECTION_STD_DEV),
        )
        .exp()
    } else {
        posterior.mean.connection_seconds_per_byte()
    };
    let window = if here < MIN_SIGNIFICANT_RTT_SECONDS {
        // At a short RTT the window was not the limit, so this is a lower bound of it.
        observed_window.max(DEFAULT_WINDOW_BYTES.ln())
    } else {
        weighted_mean((observed_window, posterior.std_dev[1]), (DEFAULT_WINDOW_BYTES.ln(), WINDOW_STD_DEV))
    };
    let bound = there / window.exp();
    match there.total_cmp(&here) {
        std::cmp::Ordering::Less if here >= MIN_SIGNIFICANT_RTT_SECONDS => {
            per_byte.min(bound.max(default_per_byte))
        }
        std::cmp::Ordering::Greater => per_byte.max(bound),
        _ => per_byte,
    }
}

/// Seconds per byte at the shared bottleneck, and whether the capacity that determines it is known.
fn bottleneck_seconds_per_byte(
    model: &LatencyModel,
    from: &ClientEnvironment,
    to: &ClientEnvironment,
) -> (f64, bool) {
    let rate = 1.0 / model.bottleneck_seconds_per_byte();
    let is_saturated = |capacity: &f64| rate > capacity * SATURATION;
    let limits = [(from.link_bandwidth, to.link_bandwidth), (from.storage_bandwidth, to.storage_bandwidth)];
    let saturated = limits.iter().find_map(|(from, to)| Some((from.filter(is_saturated)?, *to)));
    let scaled = match saturated {
        Some((from, Some(to))) if from != to => to * (rate / from).clamp(MIN_PAYLOAD_FRACTION, 1.0),
        Some(_) => rate,
        None => rate / cpu_slowdown(from, to, rate / MIN_SATURATED_CPU_BANDWIDTH),
    };
    let max_rate = limits.iter().filter_map(|(_, to)| *to).fold(f64::MAX, f64::min);
    let is_known = matches!(saturated, Some((_, Some(_)))) || scaled > max_rate;
    (1.0 / scaled.min(max_rate), is_known)
}
