//! Tables about a mounted file system.

use std::fmt::Display;

use maud::{Markup, html};
use tradewind_core::quantity::ByteSize;

use super::super::charts::short;
use crate::posix::result::{Access, Amplification, Measured, Postmark, Scope};

pub(super) fn conditions(measured: &[Measured]) -> Markup {
    let conditions = measured.iter().find_map(|each| match each {
        Measured::Conditions(conditions) => Some(conditions),
        _ => None,
    });
    html! {
        @if let Some(told) = conditions {
            p.quiet {
                "File system: " (told.mount.kind) " of " (told.mount.source) " at " (told.mount.point) ", "
                (told.mount.options) ". The time of a file that is written: " (told.counted)
                ". Caches before reading: " (told.caches)
                @if let Some(why) = &told.caches_why { " (" (why) ")" }
                "."
                @if let (Some(interface), Some((sent, received))) = (&told.interface, told.idle) {
                    " Bytes were counted at " (interface) ", which sent " (short(sent)) " and received " (short(received))
                    " bytes a second before anything was measured."
                }
                @for (form, why) in &told.skipped { " The " (form) " form was left out: " (why) "." }
            }
        }
    }
}

fn told<T: Display, B: Display>(told: Option<(T, B)>) -> String {
    told.map_or_else(|| "cannot be told".to_owned(), |(what, by)| format!("{what} (by {by})"))
}

pub(super) fn policies(measured: &[Measured]) -> Markup {
    let policies: Vec<_> = measured
        .iter()
        .filter_map(|each| if let Measured::Policy(policy) = each { Some(policy) } else { None })
        .collect();
    html! {
        @if !policies.is_empty() {
            h3 { "what each form of access means here" }
            div.wide {
                table {
                    thead { tr { th { "form" } th { "writes" } th { "reads" } th { "reads again" } } }
                    tbody {
                        @for policy in policies {
                            tr {
                                th { (policy.form) }
                                @if let Some(why) = &policy.failed { td { "failed: " (why) } } @else {
                                td { (told(policy.write)) } td { (told(policy.read)) } td { (told(policy.again)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn fits(fits: &[&Amplification]) -> Markup {
    html! {
        div.wide {
            table {
                thead {
                    tr {
                        th { "bytes on the wire for each byte" } th { "curve" } th { "constant, KiB" } th { "each byte" }
                        th { "explains" } th { "off at the most" } th { "ratios" } th { "" }
                    }
                }
                tbody {
                    @for told in fits {
                        tr {
                            th { (told.scope) " " (told.phase) " " (told.form) }
                            td { (told.curve) }
                            td { (short(told.fit.constant_kib)) } td { (format!("{:.3}", told.fit.per_byte)) }
                            td { (format!("{:.1} %", 100.0 * told.fit.goodness)) }
                            td { (format!("{:.0} %", 100.0 * told.fit.worst)) }
                            td { (told.points) }
                            td { @if told.fit.describes() { "describes them" } @else { "does not describe them" } }
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn postmarks(measured: &[Measured]) -> Markup {
    let postmarks: Vec<&Postmark> = measured
        .iter()
        .filter_map(|each| if let Measured::Postmark(postmark) = each { Some(&**postmark) } else { None })
        .collect();
    html! {
        @if !postmarks.is_empty() {
            h3 { "Postmark" }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "what" } th { "round" } th { "transactions/s" } th { "read KB/s" } th { "written KB/s" }
                            th { "created/s alone" } th { "mixed" } th { "deleted/s alone" } th { "mixed" }
                            th { "read/s" } th { "appended/s" } th { "seconds" } th { "until durable" } th { "failed" }
                        }
                    }
                    tbody {
                        @for each in &postmarks {
                            tr {
                                th { (each.name()) @if each.partial { " (ended early)" } } td { (each.repeat) }
                                td { (short(each.transactions_per_second)) }
                                td { (short(each.read_bytes_per_second / 1024.0)) }
                                td { (short(each.written_bytes_per_second / 1024.0)) }
                                td { (short(each.created.alone_per_second)) } td { (short(each.created.mixed_per_second)) }
                                td { (short(each.deleted.alone_per_second)) } td { (short(each.deleted.mixed_per_second)) }
                                td { (short(each.read.mixed_per_second)) } td { (short(each.appended.mixed_per_second)) }
                                td { (short(each.seconds)) }
                                td { (each.sync_seconds.map_or_else(String::new, short)) }
                                td { (each.failures.values().sum::<u64>()) }
                            }
                        }
                    }
                }
            }
            ul.notes {
                @for each in &postmarks {
                    @for note in each.notes.iter().chain(&each.samples) { li { (each.name()) ": " (note) } }
                }
            }
        }
    }
}

pub(super) fn accesses(measured: &[Measured]) -> Markup {
    let accesses: Vec<&Access> = measured
        .iter()
        .filter_map(|each| if let Measured::Access(access) = each { Some(&**access) } else { None })
        .collect();
    let millis = |micros: u64| short(micros as f64 / 1e3);
    html! {
        @if !accesses.is_empty() {
            h3 { "all figures" }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "what" } th { "round" } th { "files" } th { "call" } th { "MB/s" } th { "+-" } th { "files/s" }
                            th { "open p50, ms" } th { "access p50" } th { "access p99" } th { "close p50" } th { "file p50" }
                            th { "file p99" } th { "file max, ms" } th { "until durable, s" } th { "wire, times" }
                            th { "CPU, s" } th { "failed" }
                        }
                    }
                    tbody { @for access in &accesses { (row(access, &millis)) } }
                }
            }
            ul.notes {
                @for access in &accesses {
                    @for note in access.notes.iter().chain(&access.samples) { li { (access.name()) ": " (note) } }
                }
            }
        }
    }
}

fn row(access: &Access, millis: &impl Fn(u64) -> String) -> Markup {
    let (rate, latency) = (access.bytes_per_second, &access.latency);
    let within = rate.within.filter(|_| access.scope == Scope::Batch && rate.mean > 0.0);
    html! {
        tr {
            th { (access.name()) } td { (access.repeat) } td { (access.files) } td { (ByteSize(access.unit)) }
            td { (short(rate.mean / 1e6)) }
            td { (within.map_or_else(String::new, |within| format!("{} %", short(100.0 * within / rate.mean)))) }
            td { (short(access.files_per_second.mean)) }
            td { (millis(latency.open.p50)) } td { (millis(latency.access.p50)) } td { (millis(latency.access.p99)) }
            td { (millis(latency.close.p50)) } td { (millis(latency.file.p50)) } td { (millis(latency.file.p99)) }
            td { (millis(latency.file.max)) }
            td { (access.sync_seconds.map_or_else(String::new, short)) }
            td { (access.amplification().map_or_else(String::new, |ratio| format!("{ratio:.2}"))) }
            td { (short(access.cpu_seconds)) } td { (access.failures.values().sum::<u64>()) }
        }
    }
}
