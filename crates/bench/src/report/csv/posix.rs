//! CSV lines about a mounted file system: one per access measurement, per Postmark step kind and its transactions, per
//! caching policy and per fitted curve.

use serde::Serialize;

use super::{CsvFields, json_name, latencies, optional};
use crate::posix::cache_policy::{CachePolicy, PolicyFinding};
use crate::posix::postmark::result::StepFigures;
use crate::posix::result::{AccessResult, AccessScope, AmplificationCurve, PosixRecord, Postmark};
use tradewind_core::quantity::ByteSize;

/// The lines of a measurement.
pub(super) fn posix_lines(record: &PosixRecord) -> Vec<CsvFields> {
    match record {
        PosixRecord::Conditions(_) => Vec::new(),
        PosixRecord::Policy(policy) => vec![policy_fields(policy)],
        PosixRecord::Access(access) => vec![access_fields(access)],
        PosixRecord::Postmark(postmark) => postmark_fields(postmark),
        PosixRecord::Amplification(curve) => vec![curve_fields(curve)],
    }
}

fn end_reason(is_partial: bool) -> (&'static str, String) {
    ("end_reason", if is_partial { "stopped".to_owned() } else { String::new() })
}

fn access_fields(access: &AccessResult) -> CsvFields {
    let calls = &access.latency;
    // The bytes that the amplification is computed from.
    let wire = access
        .wire
        .map(|wire| if access.scope == AccessScope::Batch { wire.total } else { wire.total_until_durable });
    let cpu = (access.files > 0).then(|| access.cpu_seconds * 1e6 / access.files as f64);
    let mut fields = vec![
        ("record", "file".to_owned()),
        ("load", access.name()),
        ("sizes", ByteSize(access.size).to_string()),
        ("concurrency", access.threads.to_string()),
        ("round", access.round.to_string()),
        ("operation", access.phase.to_string()),
        ("seconds", access.seconds.to_string()),
        ("requests_per_second", access.files_per_second.mean.to_string()),
        ("bytes_per_second", access.bytes_per_second.mean.to_string()),
        ("first_byte_p50_us", calls.first_access.p50.to_string()),
        ("failures", access.failures.values().sum::<u64>().to_string()),
        ("cpu_us_per_request", optional(cpu)),
        ("machine_cpu_utilization", access.machine_cpu_utilization.to_string()),
        end_reason(access.partial),
        ("amplification", optional(access.amplification())),
        ("wire_bytes", wire.map_or_else(String::new, |bytes| bytes.to_string())),
        ("scope", access.scope.to_string()),
        ("form", access.form.to_string()),
        ("call_bytes", access.call_bytes.to_string()),
        ("files", access.files.to_string()),
        ("durable_seconds", optional(access.sync_seconds)),
        ("open_p50_us", calls.open.p50.to_string()),
        ("access_p50_us", calls.access.p50.to_string()),
        ("access_p99_us", calls.access.p99.to_string()),
        ("close_p50_us", calls.close.p50.to_string()),
    ];
    fields.extend(latencies(&calls.file));
    fields
}

fn postmark_fields(postmark: &Postmark) -> Vec<CsvFields> {
    let shared = |operation: &str, per_second: f64| -> CsvFields {
        vec![
            ("record", "postmark".to_owned()),
            ("load", postmark.name()),
            ("sizes", postmark.sizes.to_string()),
            ("concurrency", "1".to_owned()),
            ("round", postmark.round.to_string()),
            ("operation", operation.to_owned()),
            ("requests_per_second", per_second.to_string()),
            end_reason(postmark.partial),
            ("form", "default".to_owned()),
            ("call_bytes", postmark.call_bytes.to_string()),
        ]
    };
    let mut transactions = shared("transaction", postmark.transactions_per_second);
    transactions.extend([
        ("seconds", postmark.transaction_seconds.to_string()),
        ("failures", postmark.failures.values().sum::<u64>().to_string()),
        ("machine_cpu_utilization", postmark.machine_cpu_utilization.to_string()),
        ("durable_seconds", optional(postmark.sync_seconds)),
        ("read_bytes_per_second", postmark.read_bytes_per_second.to_string()),
        ("written_bytes_per_second", postmark.written_bytes_per_second.to_string()),
    ]);
    let steps = |operation: &str, steps: &StepFigures| -> CsvFields {
        let mut fields = shared(operation, steps.in_transactions_per_second);
        // Kinds that occur only within transactions have no rate outside of them.
        let alone = (steps.alone_per_second > 0.0).then_some(steps.alone_per_second);
        fields.extend([("files", steps.count.to_string()), ("alone_per_second", optional(alone))]);
        fields.extend(latencies(&steps.latency_us));
        fields
    };
    vec![
        transactions,
        steps("create", &postmark.created),
        steps("read", &postmark.read),
        steps("append", &postmark.appended),
        steps("delete", &postmark.deleted),
    ]
}

/// The fields of a policy. Unknown ones are empty.
fn policy_fields(policy: &CachePolicy) -> CsvFields {
    fn policy_name<T: Serialize>(finding: Option<&PolicyFinding<T>>) -> String {
        finding.map_or_else(String::new, |finding| json_name(&finding.policy))
    }
    vec![
        ("record", "policy".to_owned()),
        ("load", format!("policy {}", policy.form)),
        ("failures", u64::from(policy.failed.is_some()).to_string()),
        ("form", policy.form.to_string()),
        ("writes", policy_name(policy.write.as_ref())),
        ("reads", policy_name(policy.read.as_ref())),
        ("rereads", policy_name(policy.reread.as_ref())),
    ]
}

fn curve_fields(curve: &AmplificationCurve) -> CsvFields {
    vec![
        ("record", "curve".to_owned()),
        ("load", format!("{} {} {}", curve.scope, curve.phase, curve.form)),
        ("operation", curve.phase.to_string()),
        ("scope", curve.scope.to_string()),
        ("form", curve.form.to_string()),
        ("model", curve.model.clone()),
        ("constant_kib", curve.fit.constant_kib.to_string()),
        ("per_byte", curve.fit.per_byte.to_string()),
        ("r_squared", curve.fit.r_squared.to_string()),
        ("max_relative_error", curve.fit.max_relative_error.to_string()),
        ("points", curve.points.to_string()),
    ]
}
