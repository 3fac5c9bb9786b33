//! Compares two results about mounted file systems: throughput and time per file of each measurement that both contain.

use std::collections::BTreeSet;

use super::result::{Access, Measured, Phase, Postmark};
use crate::compare::{Compared, Measure, Sample, as_one, judge};

/// The compared measures, where a measurement has them.
const MEASURES: [Measure; 4] = [Measure::Bandwidth, Measure::Median, Measure::P99, Measure::Transactions];

/// Compares all measurements that both results contain, in the order of the first.
#[must_use]
pub fn compare(before: &[Measured], after: &[Measured]) -> Vec<Compared> {
    let mut names: Vec<String> = Vec::new();
    for name in before.iter().filter_map(name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let lost: BTreeSet<String> = before.iter().chain(after).flat_map(lost).collect();
    let mut samples: Vec<Sample> = Vec::new();
    for what in names {
        for measure in MEASURES {
            let values = |measured: &[Measured]| -> Vec<f64> {
                let matching = measured.iter().filter(|each| name(each).as_deref() == Some(&what));
                matching.filter_map(|each| value(each, measure)).map(f64::ln).collect()
            };
            let (mut a, mut b) = (values(before), values(after));
            if lost.contains(&what) {
                // Some rounds failed, so the remaining ones are not a fair sample: no significance test.
                (a, b) = (as_one(&a), as_one(&b));
            }
            if !a.is_empty() && !b.is_empty() {
                samples.push((what.clone(), measure, a, b));
            }
        }
    }
    judge(samples)
}

/// Names of the measurements that failed in a round, except those that were stopped. A file that could not be written
/// could not be read either.
fn lost(measured: &Measured) -> Vec<String> {
    match measured {
        Measured::Access(access) if measured.has_nothing() => {
            let read = Access { phase: Phase::Read, ..(**access).clone() };
            vec![access.name(), read.name()]
        }
        Measured::Postmark(postmark)
            if measured.has_nothing() || (postmark.partial && !postmark.failures.is_empty()) =>
        {
            vec![postmark.name()]
        }
        _ => Vec::new(),
    }
}

/// The identifying name of a measurement; `None` for results that cannot be compared.
#[must_use]
pub fn name(measured: &Measured) -> Option<String> {
    match measured {
        Measured::Access(access) if !access.partial => Some(access.name()),
        Measured::Postmark(postmark) if !postmark.partial => Some(postmark.name()),
        _ => None,
    }
}

fn value(measured: &Measured, measure: Measure) -> Option<f64> {
    let value = match measured {
        Measured::Access(access) => access_value(access, measure),
        Measured::Postmark(postmark) => postmark_value(postmark, measure),
        Measured::Conditions(_) | Measured::Policy(_) | Measured::Amplification(_) => None,
    };
    value.filter(|value| *value > 0.0)
}

fn access_value(access: &Access, measure: Measure) -> Option<f64> {
    // For a single file, the time per file follows from the throughput.
    let is_batch = access.scope == super::result::Scope::Batch;
    match measure {
        Measure::Bandwidth => Some(access.bytes_per_second.mean),
        Measure::Median => is_batch.then_some(access.latency.file.p50 as f64),
        Measure::P99 => is_batch.then_some(access.latency.file.p99 as f64),
        Measure::Throughput | Measure::Transactions => None,
    }
}

fn postmark_value(postmark: &Postmark, measure: Measure) -> Option<f64> {
    (measure == Measure::Transactions).then_some(postmark.transactions_per_second)
}
