//! Tables about a mounted file system.

use std::fmt::Display;

use maud::{Markup, html};
use tradewind_core::quantity::ByteSize;

use super::super::charts::format_short;
use crate::posix::cache_policy::PolicyFinding;
use crate::posix::result::{AccessResult, AccessScope, AmplificationCurve, PosixRecord, Postmark};

pub(super) fn conditions(records: &[PosixRecord]) -> Markup {
    let conditions = records.iter().find_map(|record| match record {
        PosixRecord::Conditions(conditions) => Some(conditions),
        _ => None,
    });
    html! {
        @if let Some(conditions) = conditions {
            p.quiet {
                "File system: " (conditions.mount.fs_type) " of " (conditions.mount.source) " at " (conditions.mount.mount_point) ", "
                (conditions.mount.options) ". The time of a written file includes: " (conditions.timed_calls)
                ". Caches before reading: " (conditions.caches)
                @if let Some(reason) = &conditions.caches_reason { " (" (reason) ")" }
                "."
                @if let (Some(interface), Some(idle)) = (&conditions.interface, conditions.idle_bytes_per_second) {
                    " Bytes were counted on interface " (interface) ", which sent " (format_short(idle.sent)) " and received "
                    (format_short(idle.received)) " bytes per second when idle."
                }
                @for skipped in &conditions.skipped { " Skipped with " (skipped.form) " access: " (skipped.reason) "." }
            }
        }
    }
}

fn policy_text<T: Display>(finding: Option<PolicyFinding<T>>) -> String {
    finding.map_or_else(
        || "unknown".to_owned(),
        |PolicyFinding { policy, evidence }| format!("{policy} (by {evidence})"),
    )
}

pub(super) fn policies(records: &[PosixRecord]) -> Markup {
    let policies: Vec<_> = records
        .iter()
        .filter_map(|record| if let PosixRecord::Policy(policy) = record { Some(policy) } else { None })
        .collect();
    html! {
        @if !policies.is_empty() {
            h3 { "Caching policy of each access form" }
            div.wide {
                table {
                    thead { tr { th { "access form" } th { "writes" } th { "reads" } th { "repeated reads" } } }
                    tbody {
                        @for policy in policies {
                            tr {
                                th { (policy.form) }
                                @if let Some(reason) = &policy.failed { td { "failed: " (reason) } } @else {
                                td { (policy_text(policy.write)) } td { (policy_text(policy.read)) } td { (policy_text(policy.reread)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn fits(fits: &[&AmplificationCurve]) -> Markup {
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th { "bytes on the wire per byte" } th { "model" } th { "constant, KiB" } th { "per byte" }
                        th { "R²" } th { "max. error" } th { "points" } th { "" }
                    }
                }
                tbody {
                    @for curve in fits {
                        tr {
                            th { (curve.scope) " " (curve.phase) " " (curve.form) }
                            td { (curve.model) }
                            td { (format_short(curve.fit.constant_kib)) } td { (format!("{:.3}", curve.fit.per_byte)) }
                            td { (format!("{:.1} %", 100.0 * curve.fit.r_squared)) }
                            td { (format!("{:.0} %", 100.0 * curve.fit.max_relative_error)) }
                            td { (curve.points) }
                            td { @if curve.fit.is_good() { "good fit" } @else { "poor fit" } }
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn postmarks(records: &[PosixRecord]) -> Markup {
    let postmarks: Vec<&Postmark> = records
        .iter()
        .filter_map(
            |record| if let PosixRecord::Postmark(postmark) = record { Some(&**postmark) } else { None },
        )
        .collect();
    html! {
        @if !postmarks.is_empty() {
            h3 { "Postmark" }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "workload" } th { "round" } th { "transactions/s" } th { "read KiB/s" } th { "written KiB/s" }
                            th { "created/s alone" } th { "in transactions" } th { "deleted/s alone" } th { "in transactions" }
                            th { "read/s" } th { "appended/s" } th { "total, s" } th { "until durable, s" } th { "failed" }
                        }
                    }
                    tbody {
                        @for postmark in &postmarks {
                            tr {
                                th { (postmark.name()) @if postmark.partial { " (ended early)" } } td { (postmark.round) }
                                td { (format_short(postmark.transactions_per_second)) }
                                td { (format_short(postmark.read_bytes_per_second / 1024.0)) }
                                td { (format_short(postmark.written_bytes_per_second / 1024.0)) }
                                td { (format_short(postmark.created.alone_per_second)) } td { (format_short(postmark.created.in_transactions_per_second)) }
                                td { (format_short(postmark.deleted.alone_per_second)) } td { (format_short(postmark.deleted.in_transactions_per_second)) }
                                td { (format_short(postmark.read.in_transactions_per_second)) } td { (format_short(postmark.appended.in_transactions_per_second)) }
                                td { (format_short(postmark.seconds)) }
                                td { (postmark.sync_seconds.map_or_else(String::new, format_short)) }
                                td { (postmark.failures.values().sum::<u64>()) }
                            }
                        }
                    }
                }
            }
            ul.notes {
                @for postmark in &postmarks {
                    @for note in postmark.notes.iter().chain(&postmark.failure_samples) { li { (postmark.name()) ": " (note) } }
                }
            }
        }
    }
}

pub(super) fn accesses(records: &[PosixRecord]) -> Markup {
    let accesses: Vec<&AccessResult> = records
        .iter()
        .filter_map(|record| if let PosixRecord::Access(access) = record { Some(&**access) } else { None })
        .collect();
    let millis = |micros: u64| format_short(micros as f64 / 1e3);
    html! {
        @if !accesses.is_empty() {
            h3 { "All figures" }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "measurement" } th { "round" } th { "files" } th { "call size" } th { "MB/s" } th { "± (95 %)" }
                            th { "files/s" } th { "open p50, ms" } th { "call p50, ms" } th { "call p99, ms" } th { "close p50, ms" }
                            th { "file p50, ms" } th { "file p99, ms" } th { "file max, ms" } th { "until durable, s" }
                            th { "bytes on the wire per byte" }
                            th { "CPU, s" } th { "failed" }
                        }
                    }
                    tbody { @for access in &accesses { (row(access, &millis)) } }
                }
            }
            ul.notes {
                @for access in &accesses {
                    @for note in access.notes.iter().chain(&access.failure_samples) { li { (access.name()) ": " (note) } }
                }
            }
        }
    }
}

fn row(access: &AccessResult, millis: &impl Fn(u64) -> String) -> Markup {
    let (rate, latency) = (access.bytes_per_second, &access.latency);
    let half_width = rate.ci95_half_width.filter(|_| access.scope == AccessScope::Batch && rate.mean > 0.0);
    html! {
        tr {
            th { (access.name()) } td { (access.round) } td { (access.files) } td { (ByteSize(access.call_bytes)) }
            td { (format_short(rate.mean / 1e6)) }
            td { (half_width.map_or_else(String::new, |half_width| format!("{} %", format_short(100.0 * half_width / rate.mean)))) }
            td { (format_short(access.files_per_second.mean)) }
            td { (millis(latency.open.p50)) } td { (millis(latency.access.p50)) } td { (millis(latency.access.p99)) }
            td { (millis(latency.close.p50)) } td { (millis(latency.file.p50)) } td { (millis(latency.file.p99)) }
            td { (millis(latency.file.max)) }
            td { (access.sync_seconds.map_or_else(String::new, format_short)) }
            td { (access.amplification().map_or_else(String::new, |ratio| format!("{ratio:.2}"))) }
            td { (format_short(access.cpu_seconds)) } td { (access.failures.values().sum::<u64>()) }
        }
    }
}
