//! Lines about a mounted file system: one for files that were written or read, for each kind of step of Postmark and its
//! transactions, for the policy of a form of access, and for a curve.

use super::{Fields, known, latencies};
use crate::posix::policy::Policy;
use crate::posix::postmark::result::Steps;
use crate::posix::result::{Access, Amplification, Measured, Postmark, Scope};
use tradewind_core::quantity::ByteSize;

/// The lines of a measurement.
pub(super) fn lines(measured: &Measured) -> Vec<Fields> {
    match measured {
        Measured::Conditions(_) => Vec::new(),
        Measured::Policy(policy) => vec![of_policy(policy)],
        Measured::Access(access) => vec![of_access(access)],
        Measured::Postmark(postmark) => of_postmark(postmark),
        Measured::Amplification(told) => vec![of_curve(told)],
    }
}

fn ending(is_partial: bool) -> (&'static str, String) {
    ("ending", if is_partial { "stopped".to_owned() } else { String::new() })
}

fn of_access(access: &Access) -> Fields {
    let calls = &access.latency;
    // The bytes that the ratio is of.
    let wire = access.wire.map(|wire| if access.scope == Scope::Batch { wire.total } else { wire.settled });
    let cpu = (access.files > 0).then(|| access.cpu_seconds * 1e6 / access.files as f64);
    let mut fields = vec![
        ("what", "file".to_owned()),
        ("load", access.name()),
        ("sizes", ByteSize(access.size).to_string()),
        ("parallel", access.threads.to_string()),
        ("repeat", access.repeat.to_string()),
        ("operation", access.phase.to_string()),
        ("seconds", access.seconds.to_string()),
        ("requests_per_second", access.files_per_second.mean.to_string()),
        ("bytes_per_second", access.bytes_per_second.mean.to_string()),
        ("first_byte_p50_us", calls.first.p50.to_string()),
        ("failures", access.failures.values().sum::<u64>().to_string()),
        ("cpu_us_per_request", known(cpu)),
        ("machine_busy", access.machine_busy.to_string()),
        ending(access.partial),
        ("amplification", known(access.amplification())),
        ("wire_bytes", wire.map_or_else(String::new, |bytes| bytes.to_string())),
        ("scope", access.scope.to_string()),
        ("form", access.form.to_string()),
        ("unit_bytes", access.unit.to_string()),
        ("files", access.files.to_string()),
        ("durable_seconds", known(access.sync_seconds)),
        ("open_p50_us", calls.open.p50.to_string()),
        ("access_p50_us", calls.access.p50.to_string()),
        ("access_p99_us", calls.access.p99.to_string()),
        ("close_p50_us", calls.close.p50.to_string()),
    ];
    fields.extend(latencies(&calls.file));
    fields
}

fn of_postmark(postmark: &Postmark) -> Vec<Fields> {
    let shared = |operation: &str, per_second: f64| -> Fields {
        vec![
            ("what", "postmark".to_owned()),
            ("load", postmark.name()),
            ("sizes", postmark.sizes.to_string()),
            ("parallel", "1".to_owned()),
            ("repeat", postmark.repeat.to_string()),
            ("operation", operation.to_owned()),
            ("requests_per_second", per_second.to_string()),
            ending(postmark.partial),
            ("form", "default".to_owned()),
            ("unit_bytes", postmark.block.to_string()),
        ]
    };
    let mut transactions = shared("transaction", postmark.transactions_per_second);
    transactions.extend([
        ("seconds", postmark.transaction_seconds.to_string()),
        ("failures", postmark.failures.values().sum::<u64>().to_string()),
        ("machine_busy", postmark.machine_busy.to_string()),
        ("durable_seconds", known(postmark.sync_seconds)),
        ("read_bytes_per_second", postmark.read_bytes_per_second.to_string()),
        ("written_bytes_per_second", postmark.written_bytes_per_second.to_string()),
    ]);
    let steps = |operation: &str, steps: &Steps| -> Fields {
        let mut fields = shared(operation, steps.mixed_per_second);
        // What only comes among transactions is never alone.
        let alone = (steps.alone_per_second > 0.0).then_some(steps.alone_per_second);
        fields.extend([("files", steps.count.to_string()), ("alone_per_second", known(alone))]);
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

/// What cannot be told is empty.
fn of_policy(policy: &Policy) -> Fields {
    fn told<T: ToString, B>(told: Option<&(T, B)>) -> String {
        told.map_or_else(String::new, |(what, _)| what.to_string())
    }
    vec![
        ("what", "policy".to_owned()),
        ("load", format!("policy {}", policy.form)),
        ("failures", u64::from(policy.failed.is_some()).to_string()),
        ("form", policy.form.to_string()),
        ("writes", told(policy.write.as_ref())),
        ("reads", told(policy.read.as_ref())),
        ("reads_again", told(policy.again.as_ref())),
    ]
}

fn of_curve(told: &Amplification) -> Fields {
    vec![
        ("what", "curve".to_owned()),
        ("load", format!("{} {} {}", told.scope, told.phase, told.form)),
        ("operation", told.phase.to_string()),
        ("scope", told.scope.to_string()),
        ("form", told.form.to_string()),
        ("curve", told.curve.clone()),
        ("constant_kib", told.fit.constant_kib.to_string()),
        ("per_byte", told.fit.per_byte.to_string()),
        ("explained", told.fit.goodness.to_string()),
        ("worst", told.fit.worst.to_string()),
        ("points", told.points.to_string()),
    ]
}
