//! What a result means, in plain words.

use std::collections::BTreeSet;

use crate::caches::Caches;
use crate::compare::{Compared, Measure, Verdict};
use crate::operation::Operation;
use crate::posix::result::Measured;
use crate::report::charts::short;
use crate::report::rows::{Row, rows};
use crate::report::{Kept, carried, conditions, interference, posix};
use crate::result::Cell;

/// So much of the best is as good as the best.
const AS_GOOD: f64 = 0.95;

/// What the least parallelism reaches that is as good as the best.
fn knee(rates: &[(usize, f64)]) -> Option<(f64, usize)> {
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let (parallel, rate) = rates.iter().find(|(_, rate)| *rate >= AS_GOOD * best)?;
    (best > 0.0).then_some((*rate, *parallel))
}

/// A paragraph for each thing that is worth saying.
pub(super) fn summary(result: &Kept) -> Vec<String> {
    let mut said = posix::summary(&result.posix);
    let rows = rows(&result.cells);
    for (operation, verb) in [(Operation::Put, "Writing"), (Operation::Get, "Reading")] {
        let of_kind: Vec<&Row<'_>> = rows.iter().filter(|row| row.operation == operation).collect();
        let fastest = of_kind.iter().filter_map(|row| Some((row, knee(&row.bandwidths())?)));
        if let Some((row, (best, parallel))) = fastest.max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)) {
            said.push(format!(
                "{verb} reaches {} MB/s, with objects of {} and {parallel} at a time.",
                short(best / 1e6),
                row.size
            ));
        }
        let busiest = of_kind.iter().filter_map(|row| Some((row, knee(&row.rates())?)));
        if let Some((row, (best, parallel))) = busiest.max_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)) {
            let alone = row.latencies(0.5).first().copied();
            let alone = alone
                .filter(|(parallel, _)| *parallel == 1)
                .map(|(_, micros)| format!(" One alone takes {} ms.", short(micros / 1e3)));
            said.push(format!(
                "{verb} {} goes at {} a second, with {parallel} at a time.{}",
                if of_kind.len() > 1 {
                    format!("smaller objects ({})", row.size)
                } else {
                    format!("objects of {}", row.size)
                },
                short(best),
                alone.unwrap_or_default()
            ));
        }
    }
    said.extend(carried::words(&rows));
    said.extend(interference::words(&result.cells));
    let failed: u64 = result.cells.iter().map(Cell::failed).sum();
    if failed > 0 {
        said.push(format!("{failed} requests failed or were answered wrongly: see the tables."));
    }
    if result.cells.iter().any(|cell| cell.caches == Caches::Dropped) {
        said.push("Caches of the machine that asked were dropped before each measurement.".to_owned());
    }
    if result.is_partial {
        said.push("It was stopped before all was measured.".to_owned());
    }
    let void = result.cells.iter().filter(|cell| cell.is_void()).count();
    if void > 0 {
        said.push(format!(
            "{void} of {} measurements are void: the store was far behind the rate that was asked for, there or beside.",
            result.cells.len()
        ));
    }
    let busy = result.cells.iter().filter(|cell| cell.was_busy(result.run.client.cores)).count();
    if busy > 0 {
        said.push(format!(
            "In {busy} of {} measurements the machine that asked had no processor time left: the store may be faster.",
            result.cells.len()
        ));
    }
    said
}

/// What a comparison comes to, and what cannot be compared.
pub(super) fn comparison(before: &Kept, after: &Kept, compared: &[Compared]) -> Vec<String> {
    let mut said = figures(compared);
    let failed = |kept: &Kept| {
        kept.cells.iter().map(Cell::failed).sum::<u64>()
            + kept.posix.iter().map(Measured::failed).sum::<u64>()
    };
    let (was, is) = (failed(before), failed(after));
    if was + is > 0 {
        said.insert(0, format!("{is} requests failed, {was} before: latencies are those of the others."));
    }
    for (kept, when) in [(before, "before"), (after, "after")] {
        let empty = kept.cells.iter().filter(|cell| cell.has_nothing() && !cell.is_partial()).count();
        if empty > 0 {
            said.insert(
                0,
                format!(
                    "In {empty} measurements {when} no request succeeded: what they are of is not compared."
                ),
            );
        }
    }
    for (kept, when) in [(before, "before"), (after, "after")] {
        let void: BTreeSet<String> =
            kept.cells.iter().filter(|cell| cell.is_void()).map(Cell::name).collect();
        if !void.is_empty() {
            let names: Vec<String> = void.into_iter().collect();
            let why =
                "the store was far behind the rate, there or beside, and whether that differs is not told";
            said.insert(0, format!("Void {when}, in some rounds or all: {}: {why}.", names.join("; ")));
        }
    }
    let names = |kept: &Kept| -> BTreeSet<String> {
        let counts = |cell: &&Cell| !cell.has_nothing() && !cell.is_partial();
        let cells = kept.cells.iter().filter(counts).map(Cell::name);
        cells.chain(posix::names(&kept.posix)).collect()
    };
    let (first, second) = (names(before), names(after));
    let alone: Vec<&str> = first.symmetric_difference(&second).map(String::as_str).collect();
    // Of two that have nothing in common there is nothing else to say.
    if !alone.is_empty() && !first.is_disjoint(&second) {
        said.insert(0, format!("Measured with success on one side only: {}.", alone.join("; ")));
    }
    if !compared.is_empty() {
        said.splice(0..0, conditions::differing(before, after));
    }
    said
}

fn figures(compared: &[Compared]) -> Vec<String> {
    let differing: Vec<&Compared> = compared.iter().filter(|each| each.verdict == Verdict::Differs).collect();
    if compared.is_empty() {
        return vec!["They have no measurement in common.".to_owned()];
    }
    if compared.iter().all(|each| each.verdict == Verdict::Unknown) {
        let why = "Whether they differ cannot be known from one round each: measure with --repeat 3 or more.";
        return vec![why.to_owned()];
    }
    if differing.is_empty() {
        let unknown = compared.iter().filter(|each| each.verdict == Verdict::Unknown).count();
        let beside =
            if unknown > 0 { format!(" Of {unknown} figures it cannot be known.") } else { String::new() };
        let visible = visible(compared);
        return vec![format!("No difference: chance explains all that is seen.{beside}{visible}")];
    }
    differing.into_iter().map(difference).collect()
}

/// How large a difference would have had to be.
fn visible(compared: &[Compared]) -> String {
    let mut factors: Vec<f64> = compared.iter().filter_map(|each| each.visible).collect();
    factors.sort_by(f64::total_cmp);
    let percent = |factor: f64| short(100.0 * (factor - 1.0));
    match (factors.get(factors.len() / 2), factors.last()) {
        (Some(half), Some(all)) => format!(
            " In half of the figures one of {} % would probably have been seen, in all of them one of {} %.",
            percent(*half),
            percent(*all)
        ),
        _ => String::new(),
    }
}

pub(super) const fn measure(measure: Measure) -> &'static str {
    match measure {
        Measure::Throughput => "requests/s",
        Measure::Bandwidth => "bytes/s",
        Measure::Transactions => "transactions/s",
        Measure::Median => "p50, us",
        Measure::P99 => "p99, us",
    }
}

fn difference(each: &Compared) -> String {
    let ratio = each.after / each.before;
    let is_better = (ratio > 1.0) == each.measure.is_speed();
    let percent = 100.0 * (ratio - 1.0).abs();
    let (low, high) = each.ratio.unwrap_or((ratio, ratio));
    let word = if ratio > 1.0 { "higher" } else { "lower" };
    format!(
        "{}: {} {percent:.0} % {word}, which is {} (between {low:.2} and {high:.2} times).",
        each.what,
        measure(each.measure),
        if is_better { "better" } else { "worse" }
    )
}
