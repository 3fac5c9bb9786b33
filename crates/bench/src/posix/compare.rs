//! Compares two results about mounted file systems: throughput and time per file of each measurement that both contain.

use std::collections::BTreeSet;

use super::result::{AccessResult, Direction, PosixRecord, Postmark};
use crate::compare::{ComparedFigure, Comparison, SamplePair, collapse_to_mean, compare_samples};

/// The compared measures, where a measurement has them.
const MEASURES: [ComparedFigure; 4] =
    [ComparedFigure::Bandwidth, ComparedFigure::Median, ComparedFigure::P99, ComparedFigure::Transactions];

/// Compares all measurements that both results contain, in the order of the first.
#[must_use]
pub fn compare(before: &[PosixRecord], after: &[PosixRecord]) -> Vec<Comparison> {
    let mut names: Vec<String> = Vec::new();
    for name in before.iter().filter_map(name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let lost: BTreeSet<String> = before.iter().chain(after).flat_map(lost).collect();
    let mut samples: Vec<SamplePair> = Vec::new();
    for what in names {
        for measure in MEASURES {
            let values = |measured: &[PosixRecord]| -> Vec<f64> {
                let matching = measured.iter().filter(|each| name(each).as_deref() == Some(&what));
                matching.filter_map(|each| value(each, measure)).map(f64::ln).collect()
            };
            let (mut a, mut b) = (values(before), values(after));
            if lost.contains(&what) {
                // Some rounds failed, so the remaining ones are not a fair sample: no significance test.
                (a, b) = (collapse_to_mean(&a), collapse_to_mean(&b));
            }
            if !a.is_empty() && !b.is_empty() {
                samples.push((what.clone(), measure, a, b));
            }
        }
    }
    compare_samples(samples)
}

/// Names of the measurements that failed in a round, except those that were stopped. A file that could not be written
/// could not be read either.
fn lost(measured: &PosixRecord) -> Vec<String> {
    match measured {
        PosixRecord::Access(access) if measured.has_no_success() => {
            let read = AccessResult { phase: Direction::Read, ..(**access).clone() };
            vec![access.name(), read.name()]
        }
        PosixRecord::Postmark(postmark)
            if measured.has_no_success() || (postmark.partial && !postmark.failures.is_empty()) =>
        {
            vec![postmark.name()]
        }
        _ => Vec::new(),
    }
}

/// The identifying name of a measurement; `None` for results that cannot be compared.
#[must_use]
pub fn name(measured: &PosixRecord) -> Option<String> {
    match measured {
        PosixRecord::Access(access) if !access.partial => Some(access.name()),
        PosixRecord::Postmark(postmark) if !postmark.partial => Some(postmark.name()),
        _ => None,
    }
}

fn value(measured: &PosixRecord, measure: ComparedFigure) -> Option<f64> {
    let value = match measured {
        PosixRecord::Access(access) => access_value(access, measure),
        PosixRecord::Postmark(postmark) => postmark_value(postmark, measure),
        PosixRecord::Conditions(_) | PosixRecord::Policy(_) | PosixRecord::Amplification(_) => None,
    };
    value.filter(|value| *value > 0.0)
}

fn access_value(access: &AccessResult, measure: ComparedFigure) -> Option<f64> {
    // For a single file, the time per file follows from the throughput.
    let is_batch = access.scope == super::result::AccessScope::Batch;
    match measure {
        ComparedFigure::Bandwidth => Some(access.bytes_per_second.mean),
        ComparedFigure::Median => is_batch.then_some(access.latency.file.p50 as f64),
        ComparedFigure::P99 => is_batch.then_some(access.latency.file.p99 as f64),
        ComparedFigure::Throughput | ComparedFigure::Transactions => None,
    }
}

fn postmark_value(postmark: &Postmark, measure: ComparedFigure) -> Option<f64> {
    (measure == ComparedFigure::Transactions).then_some(postmark.transactions_per_second)
}
