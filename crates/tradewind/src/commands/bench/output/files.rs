//! Table rows of file system benchmarks.

use tradewind_bench::posix::cache_policy::{CachePolicy, PolicyFinding};
use tradewind_bench::posix::result::{
    AccessResult, AccessScope, AmplificationCurve, Direction, PosixConditions, PosixRecord, Postmark,
};
use tradewind_core::quantity::ByteSize;

/// The header of the table of files.
pub(in crate::commands::bench) const TABLE_HEADER: &str = "\
what          form         size     unit  threads   files       MB/s            files/s   p50 ms   p99 ms   max ms   sync s  wire x  failed";

/// The rows of a measurement, with failures and notes.
pub(super) fn rows(record: &PosixRecord) -> Vec<String> {
    match record {
        PosixRecord::Conditions(conditions) => conditions_rows(conditions),
        PosixRecord::Policy(policy) => {
            let failed = policy.failed.as_ref().map(|reason| format!("  failed: {reason}"));
            [policy_row(policy)].into_iter().chain(failed).collect()
        }
        PosixRecord::Access(access) => access_rows(access),
        PosixRecord::Postmark(postmark) => postmark_rows(postmark),
        PosixRecord::Amplification(amplification) => vec![amplification_row(amplification)],
    }
}

fn conditions_rows(conditions: &PosixConditions) -> Vec<String> {
    let mount = &conditions.mount;
    let mut rows = vec![
        format!(
            "  file system: {} of {} at {}, {}",
            mount.fs_type, mount.source, mount.mount_point, mount.options
        ),
        format!("  time of a written file: {}", conditions.timed_calls),
    ];
    let reason = conditions.caches_reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    rows.push(format!("  caches before reading: {}{reason}", conditions.caches));
    if let (Some(interface), Some(idle)) = (&conditions.interface, conditions.idle_bytes_per_second) {
        rows.push(format!(
            "  wire: {interface}, which sent {:.1} and received {:.1} kB/s before anything was measured",
            idle.sent / 1e3,
            idle.received / 1e3
        ));
    }
    rows.extend(
        conditions
            .skipped
            .iter()
            .map(|skipped| format!("  {} access skipped: {}", skipped.form, skipped.reason)),
    );
    rows
}

fn policy_row(policy: &CachePolicy) -> String {
    fn with_evidence<T: std::fmt::Display>(finding: Option<PolicyFinding<T>>) -> String {
        finding.map_or_else(
            || "unknown".to_owned(),
            |finding| format!("{} (by {})", finding.policy, finding.evidence),
        )
    }
    format!(
        "policy        {:<8} writes: {:<27} reads: {:<27} rereads: {}",
        policy.form,
        with_evidence(policy.write),
        with_evidence(policy.read),
        with_evidence(policy.reread)
    )
}

fn access_rows(access: &AccessResult) -> Vec<String> {
    let millis = |micros: u64| micros as f64 / 1e3;
    let rate = access.bytes_per_second;
    let confidence = rate.ci95_half_width.filter(|_| rate.mean > 0.0);
    let confidence =
        confidence.map(|half_width| format!("+-{:.0}%", 100.0 * half_width / rate.mean)).unwrap_or_default();
    // For one file accessed in units, the latency is that of a unit.
    let latency =
        if access.scope == AccessScope::Unit { &access.latency.access } else { &access.latency.file };
    let sync = access.sync_seconds.map_or_else(|| "-".to_owned(), |sync| format!("{sync:.3}"));
    let wire = access.amplification().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    let failed: u64 = access.failures.values().sum();
    let label = format!("{} {}", access.scope, access.phase);
    let mut rows = vec![format!(
        "{label:<13} {:<8} {:>8} {:>8} {:>8} {:>7} {:>10.2} {confidence:>6} {:>11.1} {:>8.2} {:>8.2} {:>8.2} {sync:>8} {wire:>7} \
         {failed:>7}",
        access.form,
        ByteSize(access.size).to_string(),
        ByteSize(access.call_bytes).to_string(),
        access.threads,
        access.files,
        rate.mean / 1e6,
        access.files_per_second.mean,
        millis(latency.p50),
        millis(latency.p99),
        millis(latency.max),
    )];
    rows.extend(access.failure_samples.first().map(|sample| format!("  failed: {sample}")));
    rows.extend(access.notes.iter().map(|note| format!("  note: {note}")));
    rows
}

/// The rows of Postmark, like its own output.
fn postmark_rows(postmark: &Postmark) -> Vec<String> {
    let sync = postmark.sync_seconds.map(|sync| format!(", plus {sync:.3} s to sync"));
    let mut rows = vec![
        format!(
            "postmark      {} in a pool of {}, {} transactions, {:.2} s in total{}",
            postmark.sizes,
            postmark.pool,
            postmark.transactions,
            postmark.seconds,
            sync.unwrap_or_default()
        ),
        format!(
            "  transactions: {:.1}/s in {:.2} s",
            postmark.transactions_per_second, postmark.transaction_seconds
        ),
    ];
    let (created, deleted) = (&postmark.created, &postmark.deleted);
    for (label, steps) in [("created", created), ("deleted", deleted)] {
        rows.push(format!(
            "  files {label}: {}, alone {:.1}/s, mixed with transactions {:.1}/s",
            steps.count, steps.alone_per_second, steps.in_transactions_per_second
        ));
    }
    rows.push(format!(
        "  files read: {}, {:.1}/s; appended to: {}, {:.1}/s",
        postmark.read.count,
        postmark.read.in_transactions_per_second,
        postmark.appended.count,
        postmark.appended.in_transactions_per_second
    ));
    let kib = |bytes: f64| bytes / 1024.0;
    rows.push(format!(
        "  data: read {:.0} KB, {:.1} KB/s; written {:.0} KB, {:.1} KB/s",
        kib(postmark.read_bytes as f64),
        kib(postmark.read_bytes_per_second),
        kib(postmark.written_bytes as f64),
        kib(postmark.written_bytes_per_second)
    ));
    rows.extend(postmark.failure_samples.first().map(|sample| format!("  failed: {sample}")));
    rows.extend(postmark.notes.iter().map(|note| format!("  note: {note}")));
    rows
}

fn amplification_row(amplification: &AmplificationCurve) -> String {
    let fit = &amplification.fit;
    let direction = match amplification.phase {
        Direction::Write => "writing",
        Direction::Read => "reading",
    };
    format!(
        "amplification {:<8} {} {direction}: {}: constant {:.1} KiB, {:.3} per byte; R² {:.1} %, max. error {:.0} %, \
         from {} ratios{}",
        amplification.form,
        amplification.scope,
        amplification.model,
        fit.constant_kib,
        fit.per_byte,
        100.0 * fit.r_squared,
        100.0 * fit.max_relative_error,
        amplification.points,
        if fit.is_good() { "" } else { ": not a good fit" }
    )
}
