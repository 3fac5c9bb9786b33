//! The summary of a result about a mounted file system, as sentences.

use std::collections::BTreeSet;

use tradewind_core::quantity::ByteSize;

use super::super::charts::format_short;
use super::complete_accesses;
use crate::posix::cache_policy::WritePolicy;
use crate::posix::compare::name;
use crate::posix::result::{AccessForm, AccessResult, AccessScope, Direction, PosixRecord};

/// The summary, one sentence per paragraph.
pub(in crate::report) fn summary(records: &[PosixRecord]) -> Vec<String> {
    let mut sentences = Vec::new();
    for (phase, direction) in [(Direction::Write, "Write"), (Direction::Read, "Read")] {
        let of_phase = || complete_accesses(records).filter(move |access| access.phase == phase);
        let batches = || of_phase().filter(|access| access.scope == AccessScope::Batch);
        let rate = |access: &&AccessResult| access.bytes_per_second.mean;
        if let Some(best) = batches().max_by(|a, b| rate(a).total_cmp(&rate(b))) {
            sentences.push(format!(
                "{direction} throughput of whole files: {} MB/s ({} access, {} files, {}).",
                format_short(best.bytes_per_second.mean / 1e6),
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
                format_short(best.files_per_second.mean),
                best.form,
                threads(best.threads)
            ));
        }
        sentences
            .extend(call_sizes(of_phase().filter(|access| access.scope == AccessScope::Unit), direction));
    }
    sentences.extend(records.iter().filter_map(policy));
    sentences.extend(records.iter().filter_map(|record| match record {
        PosixRecord::Amplification(curve) if curve.fit.is_good() && curve.fit.per_byte == 1.0 => {
            Some(format!(
                "Each {} {} with {} access adds {} KiB of overhead on the wire ({}).",
                if curve.scope == AccessScope::Single { "file" } else { "round of files" },
                if curve.phase == Direction::Write { "written" } else { "read" },
                curve.form,
                format_short(curve.fit.constant_kib),
                curve.model
            ))
        }
        PosixRecord::Postmark(postmark) if postmark.partial => Some(format!(
            "Postmark with files of {} ended early, so its transaction rate is unknown.",
            postmark.sizes
        )),
        PosixRecord::Postmark(postmark) => Some(format!(
            "Postmark with files of {}: {} transactions/s.",
            postmark.sizes,
            format_short(postmark.transactions_per_second)
        )),
        _ => None,
    }));
    let failed: u64 = records.iter().map(PosixRecord::failure_count).sum();
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
fn call_sizes<'a>(
    accesses: impl Iterator<Item = &'a AccessResult> + Clone,
    direction: &str,
) -> Option<String> {
    let direct = accesses.filter(|access| access.form == AccessForm::Direct);
    let smallest = direct.clone().min_by_key(|access| access.call_bytes)?;
    let largest = direct
        .max_by_key(|access| access.call_bytes)
        .filter(|largest| largest.call_bytes > smallest.call_bytes)?;
    Some(format!(
        "{direction} throughput with direct access: calls of {} reach {} MB/s, calls of {} reach {} MB/s.",
        ByteSize(smallest.call_bytes),
        format_short(smallest.bytes_per_second.mean / 1e6),
        ByteSize(largest.call_bytes),
        format_short(largest.bytes_per_second.mean / 1e6)
    ))
}

/// A caveat about write policies that make the figures look better than the storage is.
fn policy(record: &PosixRecord) -> Option<String> {
    let PosixRecord::Policy(policy) = record else { return None };
    match (policy.write?.policy, policy.form) {
        (WritePolicy::Buffered, form) => Some(format!(
            "With {form} access, a closed file is not yet in the storage: its write throughput is not that of the storage."
        )),
        (WritePolicy::WriteBack, AccessForm::Direct | AccessForm::Sync) => Some(format!(
            "With {} access, a write returns before its bytes are sent to the storage, although it must not.",
            policy.form
        )),
        _ => None,
    }
}

/// The names of the successful measurements.
pub(in crate::report) fn names(records: &[PosixRecord]) -> BTreeSet<String> {
    records.iter().filter(|record| !record.has_no_success()).filter_map(name).collect()
}
