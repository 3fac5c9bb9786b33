//! Text and JSON output of the best operating points and of the latency model behind them.
//!
//! These lines advise the user. Transfers use [`Plan::tuned`], which chooses by its own rule
//! ([`ConcurrencyBySize`](tradewind_model::tune::ConcurrencyBySize)).

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value as Json, json};
use tradewind_model::plan::Plan;
use tradewind_model::tune::{
    Goal, LatencyTarget, OperatingPoint, Prediction, Split, Statistic, Surface, Workload, goal,
};

use super::latency_target;
use crate::profiles::Profile;
use crate::settings::ByteSize;
use tradewind_model::store_statistics::Direction;

/// Request sizes that are considered, in bytes.
pub(super) const CANDIDATE_REQUEST_BYTES: [u64; 8] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Concurrencies that are considered.
pub(super) const CANDIDATE_CONCURRENCIES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Concurrencies that are considered for a latency target. They are closer to each other, because one of two neighbours
/// a factor of two apart often meets the target by far and the other misses it.
const TARGET_CONCURRENCIES: [usize; 29] = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 21, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192,
    224, 256,
];
/// The size of the example of small files.
const SMALL_FILE_BYTES: u64 = 16 << 10;
/// Bundles are recommended if they raise the rate of small files by at least this factor.
const MIN_BUNDLE_SPEEDUP: f64 = 2.0;
/// The size of a member's header in a bundle, and the alignment of members.
const TAR_BLOCK_BYTES: u64 = 512;
/// Sizes of single objects that serve as examples.
const EXAMPLE_OBJECT_BYTES: [u64; 3] = [256 << 10, 4 << 20, 256 << 20];
/// Maximum size of a workload's requests for which the request rate is printed.
const MAX_SMALL_BYTES: u64 = 256 << 10;
/// The default mean latency targets of interactive use, in seconds.
const DEFAULT_TARGET_SECONDS: [f64; 3] = [0.1, 0.3, 1.0];
/// Parameters of the latency model with a larger standard deviation are printed as assumed.
const MAX_MEASURED_STD_DEV: f64 = 1.0;
/// The mark of assumed parameters.
const ASSUMED: &str = " (assumed: not measured)";

/// Predictions with a larger standard deviation are printed with their 95 % interval.
const MAX_CONFIDENT_STD_DEV: f64 = 0.15;
/// Sizes of requests that serve as examples.
pub(super) const EXAMPLE_REQUEST_BYTES: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// The best operating points of one direction, one line per goal. For each of `targets`, a line with the point that
/// meets it; without targets, a line for the lowest default target that any point meets. With a workload, its sizes and
/// its total time replace the examples.
pub(super) fn describe_best_points(
    direction: Direction,
    surface: &Surface,
    points: &[OperatingPoint],
    (targets, workload): (&[LatencyTarget], Option<&Workload>),
) -> String {
    let choose = |points: &[OperatingPoint], goal| goal::choose(surface, points, goal);
    let mut text = String::new();
    if let Some(best) = choose(points, Goal::Efficiency) {
        text += &format!("{}: {}\n", direction_name(direction), describe_operating_point(&best, surface));
    }
    let describe_request_rate = |size: u64, label: &str| {
        let best = choose(&points_of_size(points, size), Goal::Throughput)?;
        let (concurrency, rate) = (best.point.concurrency, best.request_rate());
        Some(format!("  {label} of {}: {concurrency} concurrent, {rate:.0}/s\n", ByteSize(size)))
    };
    match workload {
        None => {
            text += &describe_request_rate(SMALL_FILE_BYTES, "small files").unwrap_or_default();
            text += &describe_bundles(surface, points).unwrap_or_default();
            text += &format!(
                "  single object: {}\n",
                EXAMPLE_OBJECT_BYTES.map(|size| describe_split(direction, surface, size)).join("; ")
            );
        }
        Some(workload) => {
            let sizes =
                workload.significant_sizes().into_iter().filter(|share| share.size <= MAX_SMALL_BYTES);
            text += &sizes
                .filter_map(|share| describe_request_rate(share.size, "small requests"))
                .collect::<String>();
            let plan = Plan::default().tuned(std::slice::from_ref(surface));
            let seconds = workload.estimate_seconds(surface, |bytes| plan.concurrency_for(bytes));
            text += &format!("  whole workload: about {}\n", format_duration(seconds));
        }
    }
    let candidates = target_points(points);
    let describe_target = |target: LatencyTarget| {
        let best = match choose(&candidates, Goal::Latency(target)) {
            Some(best) => describe_operating_point(&best, surface),
            None => "not met by any size and concurrency".to_owned(),
        };
        format!("  {}: {best}\n", describe_latency_limit(target))
    };
    if targets.is_empty() {
        let mut defaults = DEFAULT_TARGET_SECONDS.into_iter().map(LatencyTarget::mean);
        let lowest_met = defaults.find(|target| choose(&candidates, Goal::Latency(*target)).is_some());
        text += &lowest_met.map(describe_target).unwrap_or_default();
    }
    text + &targets.iter().map(|target| describe_target(*target)).collect::<String>()
}

/// The rate of small files in bundles, if it is much higher than without: a bundle is transferred like a large object.
fn describe_bundles(surface: &Surface, points: &[OperatingPoint]) -> Option<String> {
    let small_files = points_of_size(points, SMALL_FILE_BYTES);
    let file_rate = goal::choose(surface, &small_files, Goal::Throughput)?.request_rate();
    let member_bytes = (SMALL_FILE_BYTES + TAR_BLOCK_BYTES) as f64;
    let bundled_rate = goal::choose(surface, points, Goal::Throughput)?.throughput() / member_bytes;
    let line = format!("  packed with cp --bundle: about {bundled_rate:.0}/s\n");
    (bundled_rate >= file_rate * MIN_BUNDLE_SPEEDUP).then_some(line)
}

/// The best split of one object of `size` bytes: `4MiB as 16 x 256KiB in 0.4 s`.
fn describe_split(direction: Direction, surface: &Surface, size: u64) -> String {
    let Split { request_bytes, requests, concurrency, seconds } = surface.split(direction, size);
    let size = ByteSize(size);
    match requests {
        1 => format!("{size} in one request in {}", format_seconds(seconds)),
        _ if concurrency == requests => {
            format!("{size} as {requests} x {} in {}", ByteSize(request_bytes), format_seconds(seconds))
        }
        _ => {
            format!(
                "{size} as {requests} x {}, {concurrency} concurrent, in {}",
                ByteSize(request_bytes),
                format_seconds(seconds)
            )
        }
    }
}

/// The best splits of the example objects, as JSON.
pub(super) fn splits_as_json(direction: Direction, surface: &Surface) -> Vec<Json> {
    let line = |size| {
        let Split { request_bytes, requests, concurrency, seconds } = surface.split(direction, size);
        json!({
            "line": "split",
            "direction": direction_name(direction),
            "object": size,
            "size": request_bytes,
            "requests": requests,
            "concurrency": concurrency,
            "seconds": seconds,
        })
    };
    EXAMPLE_OBJECT_BYTES.map(line).to_vec()
}

fn describe_latency_limit(target: LatencyTarget) -> String {
    let statistic = match target.statistic {
        Statistic::Mean => "mean",
        Statistic::P95 => "p95",
        Statistic::P99 => "p99",
    };
    format!("{statistic} latency at most {}", format_seconds(target.max_seconds))
}

/// The best operating points of one direction as JSON: one for each goal and for each of `targets`.
pub(super) fn best_points_as_json(
    direction: Direction,
    surface: &Surface,
    points: &[OperatingPoint],
    targets: &[LatencyTarget],
) -> Vec<Json> {
    let goals = [("throughput", Goal::Throughput), ("efficiency", Goal::Efficiency)];
    let target_goals = targets.iter().map(|target| ("latency", Goal::Latency(*target)));
    let candidates = target_points(points);
    let best_point = |(name, goal): (&str, Goal)| {
        let target = if let Goal::Latency(target) = goal { Some(target) } else { None };
        let best = goal::choose(surface, if target.is_some() { &candidates } else { points }, goal)?;
        Some(json!({
            "line": "best_point",
            "direction": direction_name(direction),
            "goal": name,
            "statistic": target.map(|target| latency_target::statistic_name(target.statistic)),
            "max_seconds": target.map(|target| target.max_seconds),
            "size": best.point.bytes,
            "concurrency": best.point.concurrency,
            "bytes_per_second": best.throughput(),
            "latency_seconds": best.latency,
            "std_dev": best.std_dev,
        }))
    };
    goals.into_iter().chain(target_goals).filter_map(best_point).collect()
}

/// The parameters of the latency model, with the uncertainty that the samples leave.
pub(super) fn describe_model(surface: &Surface) -> String {
    let posterior = surface.posterior();
    let (model, std_dev) = (&posterior.mean, &posterior.std_dev);
    let describe_uncertainty = |std_dev: f64| match std_dev {
        std_dev if std_dev > MAX_MEASURED_STD_DEV => ASSUMED.to_owned(),
        std_dev => format!(" ± {:.0} %", std_dev.exp_m1() * 100.0),
    };
    let bottleneck = if model.overlap < 0.5 {
        "requests and bytes share one bottleneck: their costs add up"
    } else {
        "requests and bytes have separate bottlenecks: the busier one decides"
    };
    let mark = if std_dev.overlap > MAX_MEASURED_STD_DEV { ASSUMED } else { "" };
    let connection = format_megabytes(1.0 / model.connection_seconds_per_byte);
    let shared = format_megabytes(1.0 / model.bottleneck_seconds_per_byte);
    let lines = [
        format!(
            "fixed time per request: {}{}",
            format_seconds(model.fixed_seconds),
            describe_uncertainty(std_dev.fixed_seconds)
        ),
        format!(
            "per-connection bandwidth: {connection} MB/s{}",
            describe_uncertainty(std_dev.connection_seconds_per_byte)
        ),
        format!(
            "request limit: {:.0} req/s{}",
            1.0 / model.bottleneck_seconds_per_request,
            describe_uncertainty(std_dev.bottleneck_seconds_per_request)
        ),
        format!(
            "bandwidth limit: {shared} MB/s{}",
            describe_uncertainty(std_dev.bottleneck_seconds_per_byte)
        ),
        format!("{bottleneck}{mark}"),
        format!(
            "each doubling of the concurrency beyond the knee costs {:.1} %{}",
            model.overload_loss * 2.0_f64.ln() * 100.0,
            describe_uncertainty(std_dev.overload_loss)
        ),
    ];
    lines.map(|line| format!("  {line}\n")).concat()
}

/// Prints the concurrency that commands use from now on, and the path of the saved profile.
pub(super) fn print_saved_profile(surfaces: &[Surface], path: &Path) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "cp and sync will use (size x concurrency): {}", describe_concurrency(surfaces))?;
    writeln!(out, "profile saved: {}", path.display())
}

/// The concurrency of the plan that commands derive from these surfaces, for the example sizes: `4KiB x 384, 64KiB x
/// 384`.
pub(super) fn describe_concurrency(surfaces: &[Surface]) -> String {
    let plan = Plan::default().tuned(surfaces);
    let parts =
        EXAMPLE_REQUEST_BYTES.map(|bytes| format!("{} x {}", ByteSize(bytes), plan.concurrency_for(bytes)));
    parts.join(", ")
}

/// The client on which a profile was measured, as text: `a client with 2 CPUs and 50 ms RTT`.
pub(super) fn describe_profile_client(profile: &Profile) -> String {
    let interface = describe_interface(profile).map(|speed| format!("a {speed} interface"));
    let rtt = profile.rtt_seconds.map(|seconds| format!("{} RTT", format_seconds(seconds)));
    let mut parts: Vec<String> = [describe_cpus(profile), interface, rtt].into_iter().flatten().collect();
    let Some(last) = parts.pop() else { return "an unknown client".to_owned() };
    let first = if parts.is_empty() { String::new() } else { format!("{} and ", parts.join(", ")) };
    format!("a client with {first}{last}")
}

/// The number of CPUs of the profile's client, if known: `2 CPUs`.
pub(super) fn describe_cpus(profile: &Profile) -> Option<String> {
    match profile.cpus {
        0 => None,
        1 => Some("1 CPU".to_owned()),
        cpus => Some(format!("{cpus} CPUs")),
    }
}

/// The speed of the network interface of the profile's client, if known: `1000 Mbit/s`.
pub(super) fn describe_interface(profile: &Profile) -> Option<String> {
    profile.interface_bytes_per_second.map(|rate| format!("{:.0} Mbit/s", rate * 8.0 / 1e6))
}

/// A predicted operating point: `256KiB x 32 concurrent, 95.1 MB/s`, with the interval if the prediction is uncertain.
fn describe_operating_point(prediction: &Prediction, surface: &Surface) -> String {
    let OperatingPoint { bytes, concurrency } = prediction.point;
    let throughput = prediction.throughput();
    let text =
        format!("{} x {concurrency} concurrent, {} MB/s", ByteSize(bytes), format_megabytes(throughput));
    if prediction.std_dev <= MAX_CONFIDENT_STD_DEV {
        return text;
    }
    let advice = if surface.samples().is_empty() { "run tradewind tune" } else { "use a larger --budget" };
    // Two standard deviations contain 95 %.
    let factor = (2.0 * prediction.std_dev).exp();
    let (low, high) = (format_megabytes(throughput / factor), format_megabytes(throughput * factor));
    format!("{text} (95 %: {low} to {high} MB/s; {advice} to narrow it)")
}

/// The operating points that are considered.
pub(super) fn candidate_points() -> Vec<OperatingPoint> {
    OperatingPoint::grid(&CANDIDATE_REQUEST_BYTES, &CANDIDATE_CONCURRENCIES)
}

/// The points of one request size.
fn points_of_size(points: &[OperatingPoint], size: u64) -> Vec<OperatingPoint> {
    points.iter().copied().filter(|point| point.bytes == size).collect()
}

/// The operating points that are considered for a latency target, with the same sizes as `points`.
fn target_points(points: &[OperatingPoint]) -> Vec<OperatingPoint> {
    let sizes: BTreeSet<u64> = points.iter().map(|point| point.bytes).collect();
    OperatingPoint::grid(&Vec::from_iter(sizes), &TARGET_CONCURRENCIES)
}

pub(super) const fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Write => "upload",
        Direction::Read => "download",
    }
}

/// A number of bytes in MB, with three significant digits.
pub(super) fn format_megabytes(bytes: f64) -> String {
    let mb = bytes / 1e6;
    match mb {
        ..1.0 => format!("{mb:.3}"),
        ..10.0 => format!("{mb:.2}"),
        ..100.0 => format!("{mb:.1}"),
        _ => format!("{mb:.0}"),
    }
}

/// A time in seconds, with a suitable unit.
pub(super) fn format_seconds(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.2} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

/// A time in seconds that may be hours, with a suitable unit.
fn format_duration(time: f64) -> String {
    match time {
        ..120.0 => format_seconds(time),
        ..7200.0 => format!("{:.0} min", time / 60.0),
        _ => format!("{:.1} h", time / 3600.0),
    }
}
