//! The summary of a result about a mounted file system, as sentences.

use std::collections::BTreeSet;

use tradewind_core::quantity::ByteSize;

use super::super::charts::short;
use super::accesses;
use crate::posix::compare::name;
use crate::posix::policy::Writing;
use crate::posix::result::{Access, Form, Measured, Phase, Scope};

/// The summary, one sentence per paragraph.
pub(in crate::report) fn summary(measured: &[Measured]) -> Vec<String> {
    let mut sentences = Vec::new();
    for (phase, direction) in [(Phase::Write, "Write"), (Phase::Read, "Read")] {
        let of_phase = || accesses(measured).filter(move |access| access.phase == phase);
        let batches = || of_phase().filter(|access| access.scope == Scope::Batch);
        let rate = |access: &&Access| access.bytes_per_second.mean;
        if let Some(best) = batches().max_by(|a, b| rate(a).total_cmp(&rate(b))) {
            sentences.push(format!(
                "{direction} throughput of whole files: {} MB/s ({} access, {} files, {}).",
                short(best.bytes_per_second.mean / 1e6),
                best.form,
                ByteSize(best.size),
                threads(best.threads)
            ));
        }
        let min_size = batches().map(|access| access.size).min();
        let small = batches().filter(|access| Some(access.size) == min_size);
        if let Some(best) = small.max_by(|a, b| a.files_per_second.mean.total_cmp(&b.files_per_second.mean)) {
            sentences.push(format!(
                "{direction} rate of {} files: {} files/s ({} access, {}).",
                ByteSize(best.size),
                short(best.files_per_second.mean),
                best.form,
                threads(best.threads)
            ));
        }
        sentences.extend(call_sizes(of_phase().filter(|access| access.scope == Scope::Unit), direction));
    }
    sentences.extend(measured.iter().filter_map(policy));
    sentences.extend(measured.iter().filter_map(|each| match each {
        Measured::Amplification(curve) if curve.fit.describes() && curve.fit.per_byte == 1.0 => Some(format!(
            "Each {} {} with {} access adds {} KiB of overhead on the wire ({}).",
            if curve.scope == Scope::Single { "file" } else { "round of files" },
            if curve.phase == Phase::Write { "written" } else { "read" },
            curve.form,
            short(curve.fit.constant_kib),
            curve.curve
        )),
        Measured::Postmark(postmark) if postmark.partial => Some(format!(
            "Postmark with files of {} ended early, so its transaction rate is unknown.",
            postmark.sizes
        )),
        Measured::Postmark(postmark) => Some(format!(
            "Postmark with files of {}: {} transactions/s.",
            postmark.sizes,
            short(postmark.transactions_per_second)
        )),
        _ => None,
    }));
    let failed: u64 = measured.iter().map(Measured::failed).sum();
    if failed > 0 {
        sentences.push(format!(
            "{failed} file accesses failed, returned wrong data or could not be made durable: see the tables."
        ));
    }
    sentences
}

fn threads(count: usize) -> String {
    if count == 1 { "one thread".to_owned() } else { format!("{count} threads") }
}

/// The throughput of direct access with the smallest and the largest calls.
fn call_sizes<'a>(accesses: impl Iterator<Item = &'a Access> + Clone, direction: &str) -> Option<String> {
    let direct = accesses.filter(|access| access.form == Form::Direct);
    let smallest = direct.clone().min_by_key(|access| access.unit)?;
    let largest = direct.max_by_key(|access| access.unit).filter(|largest| largest.unit > smallest.unit)?;
    Some(format!(
        "{direction} throughput with direct access: calls of {} reach {} MB/s, calls of {} reach {} MB/s.",
        ByteSize(smallest.unit),
        short(smallest.bytes_per_second.mean / 1e6),
        ByteSize(largest.unit),
        short(largest.bytes_per_second.mean / 1e6)
    ))
}

/// A caveat about write policies that make the figures look better than the storage is.
fn policy(measured: &Measured) -> Option<String> {
    let Measured::Policy(policy) = measured else { return None };
    let (writing, _) = policy.write?;
    match (writing, policy.form) {
        (Writing::Buffered, form) => Some(format!(
            "With {form} access, a closed file is not yet in the storage: its write throughput is not that of the storage."
        )),
        (Writing::WriteBack, Form::Direct | Form::Sync) => Some(format!(
            "With {} access, a write returns before its bytes are sent to the storage, although it must not.",
            policy.form
        )),
        _ => None,
    }
}

/// The names of the successful measurements.
pub(in crate::report) fn names(measured: &[Measured]) -> BTreeSet<String> {
    measured.iter().filter(|each| !each.has_nothing()).filter_map(name).collect()
}
