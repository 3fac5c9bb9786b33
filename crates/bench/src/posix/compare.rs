//! Compares two results about mounted file systems: throughput and time per file of each measurement that both contain.

use std::collections::BTreeSet;

use super::result::{AccessResult, Direction, PosixRecord, Postmark};
use crate::compare::{ComparedFigure, Comparison, SamplePair, collapse_to_mean, compare_samples};

/// The compared figures, if a measurement has them.
const FIGURES: [ComparedFigure; 4] =
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
    let failed: BTreeSet<String> = before.iter().chain(after).flat_map(failed_names).collect();
    let mut samples: Vec<SamplePair> = Vec::new();
    for measurement in names {
        for figure in FIGURES {
            let values = |records: &[PosixRecord]| -> Vec<f64> {
                let matching = records.iter().filter(|record| name(record).as_deref() == Some(&measurement));
                matching.filter_map(|record| value(record, figure)).map(f64::ln).collect()
            };
            let (mut log_before, mut log_after) = (values(before), values(after));
            if failed.contains(&measurement) {
                // Some rounds failed, so the remaining ones are not a fair sample: no significance test.
                (log_before, log_after) = (collapse_to_mean(&log_before), collapse_to_mean(&log_after));
            }
            if !log_before.is_empty() && !log_after.is_empty() {
                samples.push(SamplePair { name: measurement.clone(), figure, log_before, log_after });
            }
        }
    }
    compare_samples(samples)
}

/// Names of the measurements that failed in a round, except those that were stopped. A file that could not be written
/// could not be read either.
fn failed_names(record: &PosixRecord) -> Vec<String> {
    match record {
        PosixRecord::Access(access) if record.has_no_success() => {
            let read = AccessResult { phase: Direction::Read, ..(**access).clone() };
            vec![access.name(), read.name()]
        }
        PosixRecord::Postmark(postmark)
            if record.has_no_success() || (postmark.partial && !postmark.failures.is_empty()) =>
        {
            vec![postmark.name()]
        }
        _ => Vec::new(),
    }
}

/// The identifying name of a measurement; `None` for results that cannot be compared.
#[must_use]
pub fn name(record: &PosixRecord) -> Option<String> {
    match record {
        PosixRecord::Access(access) if !access.partial => Some(access.name()),
        PosixRecord::Postmark(postmark) if !postmark.partial => Some(postmark.name()),
        _ => None,
    }
}

fn value(record: &PosixRecord, figure: ComparedFigure) -> Option<f64> {
    let value = match record {
        PosixRecord::Access(access) => access_value(access, figure),
        PosixRecord::Postmark(postmark) => postmark_value(postmark, figure),
        PosixRecord::Conditions(_) | PosixRecord::Policy(_) | PosixRecord::Amplification(_) => None,
    };
    value.filter(|value| *value > 0.0)
}

fn access_value(access: &AccessResult, figure: ComparedFigure) -> Option<f64> {
    // For a single file, the time per file follows from the throughput.
    let is_batch = access.scope == super::result::AccessScope::Batch;
    match figure {
        ComparedFigure::Bandwidth => Some(access.bytes_per_second.mean),
        ComparedFigure::Median => is_batch.then_some(access.latency.file.p50 as f64),
        ComparedFigure::P99 => is_batch.then_some(access.latency.file.p99 as f64),
        ComparedFigure::Throughput | ComparedFigure::Transactions => None,
    }
}

fn postmark_value(postmark: &Postmark, figure: ComparedFigure) -> Option<f64> {
    (figure == ComparedFigure::Transactions).then_some(postmark.transactions_per_second)
}
