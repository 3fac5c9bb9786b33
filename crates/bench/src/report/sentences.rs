//! The summary of a result, and of a comparison, as sentences.

use std::collections::BTreeSet;

use crate::caches::CacheTreatment;
use crate::compare::{ComparedFigure, Comparison, Verdict};
use crate::operation::Operation;
use crate::posix::result::PosixRecord;
use crate::report::charts::format_short;
use crate::report::rows::{OperationRow, rows};
use crate::report::{ResultFile, conditions, interference, posix, wire_overhead};
use crate::result::Measurement;

/// Fraction of the best rate that counts as reaching it.
const KNEE_FRACTION: f64 = 0.95;
/// Maximum factor that is stated as a minimum detectable effect. Beyond it, there are too few samples.
const MAX_DETECTABLE_EFFECT: f64 = 10.0;
/// The reason why a minimum detectable effect is not stated.
pub(super) const TOO_FEW_SAMPLES: &str = "too few samples";

/// The lowest concurrency that reaches the best rate, with its rate.
fn knee(rates: &[(usize, f64)]) -> Option<(f64, usize)> {
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let (concurrency, rate) = rates.iter().find(|(_, rate)| *rate >= KNEE_FRACTION * best)?;
    (best > 0.0).then_some((*rate, *concurrency))
}

/// The summary of a result, one sentence or two per paragraph.
pub(super) fn summary(result: &ResultFile) -> Vec<String> {
    let mut sentences = posix::summary(&result.posix);
    let rows = rows(&result.measurements);
    for (operation, direction) in [(Operation::Put, "Write"), (Operation::Get, "Read")] {
        let operation_rows: Vec<&OperationRow<'_>> =
            rows.iter().filter(|row| row.operation == operation).collect();
        let fastest = operation_rows.iter().filter_map(|row| Some((row, knee(&row.byte_rates())?)));
        if let Some((row, (best, concurrency))) = fastest.max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)) {
            sentences.push(format!(
                "{direction} throughput: {} MB/s with {} objects at a concurrency of {concurrency}.",
                format_short(best / 1e6),
                row.size
            ));
        }
        let busiest = operation_rows.iter().filter_map(|row| Some((row, knee(&row.request_rates())?)));
        if let Some((row, (best, concurrency))) = busiest.max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)) {
            let alone = row.latency_quantiles(0.5).first().copied();
            let alone = alone.filter(|(concurrency, _)| *concurrency == 1).map(|(_, micros)| {
                format!(" At a concurrency of 1, the median latency is {} ms.", format_short(micros / 1e3))
            });
            sentences.push(format!(
                "{direction} request rate: {} requests/s with {} objects at a concurrency of {concurrency}.{}",
                format_short(best),
                row.size,
                alone.unwrap_or_default()
            ));
        }
    }
    sentences.extend(wire_overhead::sentences(&rows));
    sentences.extend(interference::sentences(&result.measurements));
    let failed: u64 = result.measurements.iter().map(Measurement::failure_count).sum();
    if failed > 0 {
        sentences.push(format!("{failed} requests failed or returned wrong data: see the tables."));
    }
    if result.measurements.iter().any(|measurement| measurement.caches == CacheTreatment::Dropped) {
        sentences.push("The caches of the client machine were dropped before each measurement.".to_owned());
    }
    if result.is_partial {
        sentences.push("The run was stopped before all measurements were done.".to_owned());
    }
    let void = result.measurements.iter().filter(|measurement| measurement.is_void()).count();
    if void > 0 {
        sentences.push(format!(
            "{void} of {} measurements are void: the store was too far behind the requested rate, of that load or of a \
             concurrent one.",
            result.measurements.len()
        ));
    }
    let busy = result
        .measurements
        .iter()
        .filter(|measurement| measurement.was_generator_cpu_bound(result.run.client.cores))
        .count();
    if busy > 0 {
        sentences.push(format!(
            "In {busy} of {} measurements the CPU of the client machine was saturated: the store may be faster.",
            result.measurements.len()
        ));
    }
    sentences
}

/// The summary of a comparison, starting with what limits it.
pub(super) fn comparison(before: &ResultFile, after: &ResultFile, compared: &[Comparison]) -> Vec<String> {
    let mut sentences = differences(compared);
    let failed = |result: &ResultFile| {
        result.measurements.iter().map(Measurement::failure_count).sum::<u64>()
            + result.posix.iter().map(PosixRecord::failure_count).sum::<u64>()
    };
    let (was, is) = (failed(before), failed(after));
    if was + is > 0 {
        sentences.insert(
            0,
            format!("Failed requests: {was} before, {is} after. Latencies cover only the successful ones."),
        );
    }
    for (result, when) in [(before, "before"), (after, "after")] {
        let empty = result
            .measurements
            .iter()
            .filter(|measurement| measurement.has_no_success() && !measurement.is_partial())
            .count();
        if empty > 0 {
            sentences.insert(
                0,
                format!(
                    "In {empty} measurements {when}, no request succeeded: these loads are not compared."
                ),
            );
        }
    }
    for (result, when) in [(before, "before"), (after, "after")] {
        let void: BTreeSet<String> = result
            .measurements
            .iter()
            .filter(|measurement| measurement.is_void())
            .map(Measurement::name)
            .collect();
        if !void.is_empty() {
            let names: Vec<String> = void.into_iter().collect();
            let reason = "The store was too far behind the requested rate, of that load or of a concurrent one, so these loads \
                       cannot be compared.";
            sentences.insert(0, format!("Void {when} in at least one round: {}. {reason}", names.join("; ")));
        }
    }
    let names = |result: &ResultFile| -> BTreeSet<String> {
        let counts = |measurement: &&Measurement| !measurement.has_no_success() && !measurement.is_partial();
        let measurements = result.measurements.iter().filter(counts).map(Measurement::name);
        measurements.chain(posix::names(&result.posix)).collect()
    };
    let (first, second) = (names(before), names(after));
    let alone: Vec<&str> = first.symmetric_difference(&second).map(String::as_str).collect();
    // Disjoint results are described by `differences` already.
    if !alone.is_empty() && !first.is_disjoint(&second) {
        sentences.insert(
            0,
            format!("Measured successfully in only one of the two results: {}.", alone.join("; ")),
        );
    }
    if !compared.is_empty() {
        sentences.splice(0..0, conditions::describe_differences(before, after));
    }
    sentences
}

/// Sentences about the significant differences, or one that says why there are none.
fn differences(compared: &[Comparison]) -> Vec<String> {
    let differing: Vec<&Comparison> =
        compared.iter().filter(|comparison| comparison.verdict == Verdict::Differs).collect();
    if compared.is_empty() {
        return vec!["The results have no measurement in common.".to_owned()];
    }
    if compared.iter().all(|comparison| comparison.verdict == Verdict::Unknown) {
        let sentence =
            "One valid round each is not enough to detect differences: measure with --repeat 3 or more.";
        return vec![sentence.to_owned()];
    }
    if differing.is_empty() {
        let unknown = compared.iter().filter(|each| each.verdict == Verdict::Unknown).count();
        let untested = if unknown > 0 {
            format!(" {unknown} figures could not be tested: they have too few valid rounds.")
        } else {
            String::new()
        };
        let detectable = detectable_difference(compared);
        return vec![format!("No significant difference.{untested}{detectable}")];
    }
    differing.into_iter().map(difference).collect()
}

/// A sentence about the minimum detectable difference.
fn detectable_difference(compared: &[Comparison]) -> String {
    let mut factors: Vec<f64> = compared.iter().filter_map(|each| each.detectable_effect).collect();
    factors.sort_by(f64::total_cmp);
    let (Some(median), Some(max)) = (factors.get(factors.len() / 2), factors.last()) else {
        return String::new();
    };
    match (detectable_percent(*median), detectable_percent(*max)) {
        (Some(median), Some(max)) => format!(
            " The minimum detectable difference (50 % power) is {median} for the median figure and {max} for the least sensitive one."
        ),
        (Some(median), None) => format!(
            " The minimum detectable difference (50 % power) is {median} for the median figure; the least sensitive one has {TOO_FEW_SAMPLES}."
        ),
        (None, _) => format!(" The minimum detectable difference is unknown: {TOO_FEW_SAMPLES}."),
    }
}

/// A minimum detectable effect in percent; `None` if there are too few samples.
pub(super) fn detectable_percent(factor: f64) -> Option<String> {
    (factor <= MAX_DETECTABLE_EFFECT).then(|| format!("{} %", format_short(100.0 * (factor - 1.0))))
}

pub(super) const fn figure_name(measure: ComparedFigure) -> &'static str {
    match measure {
        ComparedFigure::Throughput => "requests/s",
        ComparedFigure::Bandwidth => "bytes/s",
        ComparedFigure::Transactions => "transactions/s",
        ComparedFigure::Median => "p50 latency, us",
        ComparedFigure::P99 => "p99 latency, us",
    }
}

fn difference(each: &Comparison) -> String {
    let ratio = each.after / each.before;
    let is_better = (ratio > 1.0) == each.figure.is_higher_better();
    let percent = 100.0 * (ratio - 1.0).abs();
    let (low, high) = each.ratio_interval.unwrap_or((ratio, ratio));
    let word = if ratio > 1.0 { "higher" } else { "lower" };
    format!(
        "{}: {} {percent:.0} % {word}, which is {} (95 % CI of the ratio: {low:.2} to {high:.2}).",
        each.name,
        figure_name(each.figure).trim_end_matches(", us"),
        if is_better { "better" } else { "worse" }
    )
}
