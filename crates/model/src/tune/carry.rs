//! Extrapolates a surface to another client or store (Hou 2017, section 5.4).
//!
//! Samples are not transferable, but the parameters of the model are, each in its own way. The number of round trips
//! per request and the processing time of the store stay the same. A connection keeps its window, so its bandwidth
//! falls with the RTT. The shared bottleneck scales with the link if the link was saturated, with the storage if that
//! was, and otherwise with the CPUs if they can have been the limit. The result is a [`Belief`]: a surface without
//! samples follows from it, or sampling starts with it.
//!
//! Packet loss of an unmeasured path is unknown: a profile of a path without loss asks for too little on one with loss.

mod closest;

use super::law::{Belief, COUNT, Law};
use super::surface::Surface;

pub use closest::{Origin, closest, is_same_site};

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
const EXTRAPOLATION_STD_DEV: [f64; COUNT] = [0.1, 0.3, 0.2, 0.1, 0.2, 0.2, 0.5];
/// Standard deviation of a scaled parameter, as a fraction of the logarithm of the scale.
const SCALING_STD_DEV_RATIO: f64 = 0.5;
/// Standard deviation of the fixed latency if the RTT is unknown.
const UNKNOWN_RTT_STD_DEV: f64 = 0.7;
/// Minimum standard deviation at the start of sampling, as a fraction of the default prior.
const MIN_PRIOR_RATIO: f64 = 0.5;

/// Properties of a client and its path to a store that determine performance. Unknown ones are assumed equal. Memory is
/// not among them: it bounds the bytes in flight, which transfers respect by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Client {
    /// Number of CPUs, possibly fractional.
    pub processors: Option<f64>,
    /// Bandwidth of the client's storage in bytes per second, if it is source or destination.
    pub storage: Option<f64>,
    /// RTT to the store, in seconds.
    pub round_trip: Option<f64>,
    /// Bandwidth of the link towards the store, in bytes per second.
    pub link: Option<f64>,
}

/// Extrapolates a surface measured at `from` to `to`. The knee becomes softer by its standard deviation: too much
/// concurrency costs little, too little costs in proportion.
#[must_use]
pub fn carry(known: &Surface, from: &Client, to: &Client) -> Belief {
    let posterior = known.learnt();
    let model = &posterior.mean;
    let here = from.round_trip.unwrap_or(model.fixed());
    let there = to.round_trip.unwrap_or(here);
    let slowdown = slower(from, to, 1.0 / model.shared_fixed() / MIN_SATURATED_CPU_REQUEST_RATE);
    let (shared_per_byte, is_known) = shared_per_byte(model, from, to);
    let softer_knee = model.0[4] - posterior.deviation[4];
    let scaled = [
        fixed(model, here, there).ln(),
        per_byte(&posterior, here, there).ln(),
        (model.shared_fixed() * slowdown).ln(),
        shared_per_byte.ln(),
        softer_knee,
        model.0[5],
        model.0[6],
    ];
    let rtt_log_ratio = (there / here).ln().abs();
    let scaling_deviation = [
        if to.round_trip.is_some() { 0.0 } else { UNKNOWN_RTT_STD_DEV },
        SCALING_STD_DEV_RATIO * (scaled[1] - model.0[1]),
        SCALING_STD_DEV_RATIO * slowdown.ln(),
        // A store at the same RTT is probably behind the same link. Weaker CPUs might be the limit before a link is,
        // but that would affect all points alike and not change which is the best.
        if is_known { 0.0 } else { SCALING_STD_DEV_RATIO * (scaled[3] - model.0[3]) + rtt_log_ratio },
        0.0,
        0.0,
        0.0,
    ];
    let max_deviation = Belief::default().deviation;
    let deviation = std::array::from_fn(|i| {
        let all = [posterior.deviation[i], EXTRAPOLATION_STD_DEV[i], scaling_deviation[i]];
        all.iter().map(|part| part * part).sum::<f64>().sqrt().min(max_deviation[i])
    });
    Belief { mean: Law(scaled), deviation }
}

/// Like [`carry`], as a prior for sampling: wide enough that a few samples correct it.
#[must_use]
pub fn begin(known: &Surface, from: &Client, to: &Client) -> Belief {
    let Belief { mean, deviation } = carry(known, from, to);
    let default_prior =
        to.round_trip.map_or_else(Belief::default, |time| Belief::default().with_round_trip(time));
    Belief {
        mean,
        deviation: std::array::from_fn(|i| deviation[i].max(MIN_PRIOR_RATIO * default_prior.deviation[i])),
    }
}

/// Slowdown of the CPUs of `to` compared with `from`; 1 unless the load could saturate more CPUs (`filled`) than `from`
/// has.
fn slower(from: &Client, to: &Client, filled: f64) -> f64 {
    match (from.processors, to.processors) {
        (Some(here), Some(there)) if filled > here => here / there,
        _ => 1.0,
    }
}

/// Fixed latency: the same number of round trips, plus the same processing time of the store.
fn fixed(model: &Law, here: f64, there: f64) -> f64 {
    let trips = if here < MIN_SIGNIFICANT_RTT_SECONDS {
        1.0
    } else {
        (model.fixed() / here).round().clamp(1.0, MAX_ROUND_TRIPS)
    };
    let processing = (model.fixed() - trips * here).max(0.0);
    trips * there + processing
}

/// Seconds per byte on a connection with the same window; never less at a longer RTT, never more at a shorter one. A
/// connection faster than the default counts only to the extent that it is certain, because a plan of a single large
/// request would depend on it alone.
fn per_byte(posterior: &Belief, here: f64, there: f64) -> f64 {
    let default_per_byte = 1.0 / DEFAULT_CONNECTION_BANDWIDTH;
    let observed_window = (here / posterior.mean.per_byte()).ln();
    let weighted_mean = |(a, a_deviation): (f64, f64), (b, b_deviation): (f64, f64)| {
        let weights = [a_deviation, b_deviation].map(|deviation| deviation.powi(-2));
        (a * weights[0] + b * weights[1]) / (weights[0] + weights[1])
    };
    let per_byte = if posterior.mean.per_byte() < default_per_byte {
        weighted_mean(
            (posterior.mean.0[1], posterior.deviation[1]),
            (default_per_byte.ln(), CONNECTION_STD_DEV),
        )
        .exp()
    } else {
        posterior.mean.per_byte()
    };
    let window = if here < MIN_SIGNIFICANT_RTT_SECONDS {
        // At a short RTT the window was not the limit, so this is a lower bound of it.
        observed_window.max(DEFAULT_WINDOW_BYTES.ln())
    } else {
        weighted_mean((observed_window, posterior.deviation[1]), (DEFAULT_WINDOW_BYTES.ln(), WINDOW_STD_DEV))
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
fn shared_per_byte(model: &Law, from: &Client, to: &Client) -> (f64, bool) {
    let rate = 1.0 / model.shared_per_byte();
    let is_saturated = |capacity: &f64| rate > capacity * SATURATION;
    let limits = [(from.link, to.link), (from.storage, to.storage)];
    let saturated = limits.iter().find_map(|(from, to)| Some((from.filter(is_saturated)?, *to)));
    let scaled = match saturated {
        Some((from, Some(to))) if from != to => to * (rate / from).clamp(MIN_PAYLOAD_FRACTION, 1.0),
        Some(_) => rate,
        None => rate / slower(from, to, rate / MIN_SATURATED_CPU_BANDWIDTH),
    };
    let max_rate = limits.iter().filter_map(|(_, to)| *to).fold(f64::MAX, f64::min);
    let is_known = matches!(saturated, Some((_, Some(_)))) || scaled > max_rate;
    (1.0 / scaled.min(max_rate), is_known)
}
