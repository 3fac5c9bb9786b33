//! The page itself.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::compare::Verdict;
use crate::operation::Operation;
use crate::report::charts::{Axis, Series, figure, heat, lines, short};
use crate::report::rows::{Row, rows};
use crate::report::words::{comparison, measure, summary};
use crate::report::{Kept, carried, compared, interference, posix};
use crate::result::{Agent, Cell, Figures, Latency};

const STYLE: &str = include_str!("page.css");

/// One result or several.
pub(super) fn write(results: &[Kept]) -> String {
    let title = results.first().map_or_else(|| "nothing".to_owned(), |first| first.run.place.clone());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " as measured" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { (title) " as measured" }
                    @for (n, result) in results.iter().enumerate() {
                        (one(result))
                        @if n > 0 { (against(&results[0], result)) }
                    }
                    (method())
                }
            }
        }
    };
    page.into_string()
}

fn one(result: &Kept) -> Markup {
    let rows = rows(&result.cells);
    html! {
        section {
            h2 { (result.name) }
            @for said in summary(result) { p.said { (said) } }
            (circumstances(result))
            @for operation in Operation::ALL {
                @let of_kind: Vec<&Row<'_>> = rows.iter().filter(|row| row.operation == operation).collect();
                @if !of_kind.is_empty() { (kind(operation, &of_kind)) }
            }
            @if !result.cells.is_empty() {
                (carried::section(&rows))
                (interference::section(&result.cells))
                (distributions(&result.cells))
                (table(&result.cells))
            }
            @if !result.posix.is_empty() { (posix::section(&result.posix)) }
        }
    }
}

fn circumstances(result: &Kept) -> Markup {
    let run = &result.run;
    let client = &run.client;
    html! {
        p.quiet {
            "Measured from " (client.name) " (" (client.cores) " cores, " (client.processor) ", "
            (short(client.memory as f64 / 1e9)) " GB, Linux " (client.kernel) ") against " (run.place) ", a store of kind "
            (run.store)
            @if !result.servers.is_empty() { " (" (result.servers.join(", ")) ")" }
            ", with tradewind " (run.version) "."
            @if !run.agents.is_empty() {
                " " (run.agents.len()) " machines asked, told by that one:"
                @for (n, Agent { agent, client }) in run.agents.iter().enumerate() {
                    (if n == 0 { " " } else { ", " }) (agent) " (" (client.cores) " cores, " (client.processor) ", Linux "
                    (client.kernel) ")"
                }
                "."
            }
        }
    }
}

/// Maps and curves of one kind of request.
fn kind(operation: Operation, of_kind: &[&Row<'_>]) -> Markup {
    let mut across: Vec<usize> =
        of_kind.iter().flat_map(|row| row.by_parallel.iter().map(|(parallel, _)| *parallel)).collect();
    across.sort_unstable();
    across.dedup();
    let names: Vec<String> = across.iter().map(ToString::to_string).collect();
    let sizes: Vec<String> = of_kind.iter().map(|row| row.size.clone()).collect();
    let values = |of: &dyn Fn(&Row<'_>) -> Vec<(usize, f64)>| -> Vec<Vec<Option<f64>>> {
        let row = |row: &&Row<'_>| {
            let found = of(row);
            let at = |parallel: &usize| found.iter().find(|(p, _)| p == parallel).map(|(_, value)| *value);
            across.iter().map(at).collect()
        };
        of_kind.iter().map(row).collect()
    };
    let megabytes = values(&|row| row.bandwidths().into_iter().map(|(p, rate)| (p, rate / 1e6)).collect());
    let rates = values(&|row| row.rates());
    let latencies = of_kind.iter().flat_map(|row| {
        let points = |part: f64| -> Vec<(f64, f64)> {
            let found = row.latencies(part);
            found.into_iter().map(|(parallel, micros)| (parallel as f64, micros / 1e3)).collect()
        };
        [
            Series { name: format!("{} p50", row.size), points: points(0.5), is_second: false },
            Series { name: format!("{} p99", row.size), points: points(0.99), is_second: true },
        ]
    });
    let latencies: Vec<Series> = latencies.collect();
    let has_bytes = megabytes.iter().flatten().flatten().any(|rate| *rate > 0.0);
    html! {
        h3 { (operation) }
        @if has_bytes {
            (figure("MB/s by size and requests at a time", heat(("requests at a time", &names), &sizes, &megabytes)))
        }
        (figure("requests a second by size and requests at a time", heat(("requests at a time", &names), &sizes, &rates)))
        @if across.len() > 1 && latencies.iter().any(|series| !series.points.is_empty()) {
            (figure(
                "how long requests take",
                lines((Axis::Logarithmic, "requests at a time"), (Axis::Logarithmic, "milliseconds"), &latencies),
            ))
        }
    }
}

/// Distributions and the course of the last few that were measured in the first round.
fn distributions(cells: &[Cell]) -> Markup {
    const MOST: usize = 7;
    let counts = |cell: &&Cell| cell.repeat == 1 && !cell.is_partial() && !cell.has_nothing();
    let first = || cells.iter().filter(counts).rev().take(MOST);
    let distribution = |name: String, figures: &Figures| {
        let latency = &figures.latency_us;
        let mut seen = 0;
        let points = latency.counts.iter().map(|(value, count)| {
            seen += count;
            (*value as f64 / 1e3, seen as f64 / latency.count.max(1) as f64)
        });
        Series { name, points: points.collect(), is_second: false }
    };
    let mut distributions: Vec<Series> = Vec::new();
    for cell in first() {
        let known = cell.operations.iter().filter(|(_, figures)| figures.latency_us.count > 0);
        distributions.extend(known.map(|(kind, figures)| match cell.operations.len() {
            1 => distribution(cell.name(), figures),
            _ => distribution(format!("{kind} in {}", cell.name()), figures),
        }));
    }
    distributions.truncate(MOST);
    let are_all = cells.iter().filter(counts).count() <= MOST && distributions.len() < MOST;
    let course: Vec<Series> = first()
        .map(|cell| {
            let points = cell.tenths.iter().enumerate();
            let points = points.map(|(n, (operations, _))| (n as f64 / 10.0, operations * 10.0));
            Series { name: cell.name(), points: points.collect(), is_second: false }
        })
        .collect();
    html! {
        h3 { "how even it is" }
        @if !are_all { p.quiet { "Of the last " (MOST) " that were measured in the first round, at the most." } }
        (figure(
            "the part of requests that took no longer",
            lines((Axis::Logarithmic, "milliseconds"), (Axis::Linear, "of all requests"), &distributions),
        ))
        (figure("as time went on", lines((Axis::Linear, "seconds"), (Axis::Linear, "requests a second"), &course)))
    }
}

fn table(cells: &[Cell]) -> Markup {
    let millis = |latency: &Latency, figure: fn(&Latency) -> u64| {
        latency.known(figure).map_or_else(String::new, |micros| short(micros as f64 / 1e3))
    };
    html! {
        h3 { "all figures" }
        div.wide {
            table {
                thead {
                    tr {
                        th { "what" } th { "round" } th { "requests/s" } th { "+-" } th { "MB/s" } th { "first byte p50, ms" }
                        th { "p50" } th { "p90" } th { "p99" } th { "p99.9" } th { "max, ms" } th { "CPU, us each" } th { "bytes on the wire each byte" } th { "connections" } th { "failed" }
                    }
                }
                tbody {
                    @for cell in cells {
                        @for (operation, figures) in &cell.operations {
                            @let latency = &figures.latency_us;
                            tr {
                                th { (operation) " in " (cell.name()) }
                                td { (cell.repeat) }
                                td { (short(figures.per_second)) }
                                td { (within(cell)) }
                                td { (short(figures.bytes_per_second / 1e6)) }
                                td { (millis(&figures.first_byte_us, |of| of.p50)) }
                                td { (millis(latency, |of| of.p50)) } td { (millis(latency, |of| of.p90)) }
                                td { (millis(latency, |of| of.p99)) } td { (millis(latency, |of| of.p999)) }
                                td { (millis(latency, |of| of.max)) }
                                td { (cell.cpu_us_per_operation().map_or_else(String::new, short)) }
                                td { (cell.amplification().map_or_else(String::new, |ratio| format!("{ratio:.3}"))) }
                                td { (cell.carried.2) }
                                td { (figures.failures.values().sum::<u64>()) }
                            }
                        }
                    }
                }
            }
        }
        ul.notes {
            @for cell in cells {
                @for note in &cell.notes { li { (cell.name()) ": " (note) } }
                @for sample in cell.operations.values().flat_map(|figures| &figures.samples) {
                    li { (cell.name()) ": " (sample) }
                }
            }
        }
    }
}

/// How well the throughput is known, which is that of all kinds of requests together.
fn within(cell: &Cell) -> String {
    let rate = cell.operations_per_second;
    rate.within
        .filter(|_| rate.mean > 0.0 && cell.operations.len() == 1)
        .map_or_else(String::new, |within| format!("{} %", short(100.0 * within / rate.mean)))
}

/// What differs between two results.
fn against(first: &Kept, other: &Kept) -> Markup {
    let compared = compared(first, other);
    html! {
        section {
            h2 { (other.name) " against " (first.name) }
            @for said in comparison(first, other, &compared) { p.said { (said) } }
            div.wide {
                table {
                    thead { tr { th { "what" } th { "figure" } th { "before" } th { "after" } th { "ratio, 95 %" } th { "seen from" } th { "" } } }
                    tbody {
                        @for each in &compared {
                            tr {
                                th { (each.what) } td { (measure(each.measure)) }
                                td { (short(each.before)) } td { (short(each.after)) }
                                td { (each.ratio.map_or_else(String::new, |(low, high)| format!("{low:.3} to {high:.3}"))) }
                                td { (each.visible.map_or_else(String::new, |factor| format!("{} %", short(100.0 * (factor - 1.0))))) }
                                td { (verdict(each.verdict)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "no difference",
        Verdict::Differs => "differs",
        Verdict::Unknown => "unknown",
    }
}

fn method() -> Markup {
    html! {
        section.quiet {
            h2 { "how it was measured" }
            p {
                "Throughput is what was done with success within the time that counted, after a warm-up: of a request that reaches \
                 beyond it, the part of its time that lies within. A latency counts from \
                 the moment a request was meant to start: in a closed loop when its worker was free, in an open loop (a rate) \
                 when its moment came, whether or not the store had answered those before it. A closed loop asks less of a \
                 store that is slow, and so shows fewer slow requests than independent users would meet; for those, measure \
                 with a rate. The range behind a throughput is a 95 % confidence interval from batch means. Every byte that \
                 was read was compared with what was written."
            }
        }
    }
}
