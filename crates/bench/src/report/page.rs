//! The HTML page.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::compare::{Comparison, Verdict};
use crate::operation::Operation;
use crate::report::charts::{AxisScale, Series, figure, format_short, heat_map, line_chart};
use crate::report::rows::{OperationRow, rows};
use crate::report::sentences::{TOO_FEW_SAMPLES, comparison, detectable_percent, figure_name, summary};
use crate::report::{ResultFile, compare_results, interference, posix, wire_overhead};
use crate::result::{AgentInfo, LatencySummary, Measurement, OperationFigures};

const STYLE: &str = include_str!("page.css");

/// Writes the page about one or several results.
pub(super) fn write_page(results: &[ResultFile]) -> String {
    let title = results.first().map_or_else(|| "no results".to_owned(), |first| first.run.location.clone());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Benchmark of " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { "Benchmark of " (title) }
                    @for (n, result) in results.iter().enumerate() {
                        (result_section(result))
                        @if n > 0 { (comparison_section(&results[0], result)) }
                    }
                    (method())
                }
            }
        }
    };
    page.into_string()
}

fn result_section(result: &ResultFile) -> Markup {
    let rows = rows(&result.measurements);
    html! {
        section {
            h2 { (result.name) }
            @for sentence in summary(result) { p.said { (sentence) } }
            (environment(result))
            @for operation in Operation::ALL {
                @let operation_rows: Vec<&OperationRow<'_>> = rows.iter().filter(|row| row.operation == operation).collect();
                @if !operation_rows.is_empty() { (operation_charts(operation, &operation_rows)) }
            }
            @if !result.measurements.is_empty() {
                (wire_overhead::section(&rows))
                (interference::section(&result.measurements))
                (distributions(&result.measurements))
                (table(&result.measurements))
            }
            @if !result.posix.is_empty() { (posix::section(&result.posix)) }
        }
    }
}

/// The client machines, the store and the version.
fn environment(result: &ResultFile) -> Markup {
    let run = &result.run;
    let client = &run.client;
    html! {
        p.quiet {
            "Measured from " (client.hostname) " (" (client.cores) " CPUs, " (client.cpu_model) ", "
            (format_short(client.memory_bytes as f64 / 1e9)) " GB, Linux " (client.kernel) ") against " (run.location) ", store type "
            (run.store)
            @if !result.servers.is_empty() { " (" (result.servers.join(", ")) ")" }
            ", with tradewind " (run.version) "."
            @if !run.agents.is_empty() {
                " Requests were sent by " (run.agents.len()) " client machines, which it coordinated:"
                @for (n, AgentInfo { address, client }) in run.agents.iter().enumerate() {
                    (if n == 0 { " " } else { ", " }) (address) " (" (client.cores) " CPUs, " (client.cpu_model) ", Linux "
                    (client.kernel) ")"
                }
                "."
            }
        }
    }
}

/// Heat maps and latency curves of one operation.
fn operation_charts(operation: Operation, operation_rows: &[&OperationRow<'_>]) -> Markup {
    let mut across: Vec<usize> = operation_rows
        .iter()
        .flat_map(|row| row.by_concurrency.iter().map(|(concurrency, _)| *concurrency))
        .collect();
    across.sort_unstable();
    across.dedup();
    let names: Vec<String> = across.iter().map(ToString::to_string).collect();
    let sizes: Vec<String> = operation_rows.iter().map(|row| row.size.clone()).collect();
    let values = |figure: &dyn Fn(&OperationRow<'_>) -> Vec<(usize, f64)>| -> Vec<Vec<Option<f64>>> {
        let row = |row: &&OperationRow<'_>| {
            let found = figure(row);
            let at = |concurrency: &usize| {
                found.iter().find(|(other, _)| other == concurrency).map(|(_, value)| *value)
            };
            across.iter().map(at).collect()
        };
        operation_rows.iter().map(row).collect()
    };
    let megabytes = values(&|row| {
        row.byte_rates().into_iter().map(|(concurrency, rate)| (concurrency, rate / 1e6)).collect()
    });
    let rates = values(&|row| row.request_rates());
    let latencies = operation_rows.iter().flat_map(|row| {
        let points = |fraction: f64| -> Vec<(f64, f64)> {
            let found = row.latency_quantiles(fraction);
            found.into_iter().map(|(concurrency, micros)| (concurrency as f64, micros / 1e3)).collect()
        };
        [
            Series { name: format!("{} p50", row.size), points: points(0.5), is_dashed: false },
            Series { name: format!("{} p99", row.size), points: points(0.99), is_dashed: true },
        ]
    });
    let latencies: Vec<Series> = latencies.collect();
    let has_bytes = megabytes.iter().flatten().flatten().any(|rate| *rate > 0.0);
    html! {
        h3 { (operation) }
        @if has_bytes {
            (figure("throughput in MB/s by object size and concurrency", heat_map(("concurrency", &names), &sizes, &megabytes)))
        }
        (figure("requests/s by object size and concurrency", heat_map(("concurrency", &names), &sizes, &rates)))
        @if across.len() > 1 && latencies.iter().any(|series| !series.points.is_empty()) {
            (figure(
                "latency by concurrency: p50, and p99 dashed",
                line_chart((AxisScale::Logarithmic, "concurrency"), (AxisScale::Logarithmic, "latency, ms"), &latencies),
            ))
        }
    }
}

/// Latency distributions and throughput over time, of the last measurements of the first round.
fn distributions(measurements: &[Measurement]) -> Markup {
    const MAX_SERIES: usize = 7;
    let counts = |measurement: &&Measurement| {
        measurement.round == 1 && !measurement.is_partial() && !measurement.has_no_success()
    };
    let first = || measurements.iter().filter(counts).rev().take(MAX_SERIES);
    let distribution = |name: String, figures: &OperationFigures| {
        let latency = &figures.latency_us;
        let mut cumulative = 0;
        let points = latency.histogram_counts.iter().map(|(value, count)| {
            cumulative += count;
            (*value as f64 / 1e3, cumulative as f64 / latency.count.max(1) as f64)
        });
        Series { name, points: points.collect(), is_dashed: false }
    };
    let mut distributions: Vec<Series> = Vec::new();
    for measurement in first() {
        let with_latency = measurement.operations.iter().filter(|(_, figures)| figures.latency_us.count > 0);
        distributions.extend(with_latency.map(|(operation, figures)| match measurement.operations.len() {
            1 => distribution(measurement.name(), figures),
            _ => distribution(format!("{operation} in {}", measurement.name()), figures),
        }));
    }
    distributions.truncate(MAX_SERIES);
    let are_all =
        measurements.iter().filter(counts).count() <= MAX_SERIES && distributions.len() < MAX_SERIES;
    let over_time: Vec<Series> = first()
        .map(|measurement| {
            let points = measurement.series_100ms.iter().enumerate();
            let points = points.map(|(n, (operations, _))| (n as f64 / 10.0, operations * 10.0));
            Series { name: measurement.name(), points: points.collect(), is_dashed: false }
        })
        .collect();
    html! {
        h3 { "Latency distribution and throughput over time" }
        @if !are_all { p.quiet { "At most " (MAX_SERIES) ": the last measurements of the first round." } }
        (figure(
            "cumulative latency distribution",
            line_chart((AxisScale::Logarithmic, "latency, ms"), (AxisScale::Linear, "fraction of requests"), &distributions),
        ))
        (figure("throughput over time", line_chart((AxisScale::Linear, "time, s"), (AxisScale::Linear, "requests/s"), &over_time)))
    }
}

fn table(measurements: &[Measurement]) -> Markup {
    let millis = |latency: &LatencySummary, figure: fn(&LatencySummary) -> u64| {
        latency.figure_if_any(figure).map_or_else(String::new, |micros| format_short(micros as f64 / 1e3))
    };
    html! {
        h3 { "All figures" }
        div.wide {
            table {
                thead {
                    tr {
                        th { "load" } th { "round" } th { "requests/s" } th { "± (95 %)" } th { "MB/s" } th { "first byte p50, ms" }
                        th { "p50, ms" } th { "p90, ms" } th { "p99, ms" } th { "p99.9, ms" } th { "max, ms" } th { "CPU, us per request" } th { "bytes on the wire per byte" } th { "connections" } th { "failed" }
                    }
                }
                tbody {
                    @for measurement in measurements {
                        @for (operation, figures) in &measurement.operations {
                            @let latency = &figures.latency_us;
                            tr {
                                th { (operation) " in " (measurement.name()) }
                                td { (measurement.round) }
                                td { (format_short(figures.requests_per_second)) }
                                td { (half_width(measurement)) }
                                td { (format_short(figures.bytes_per_second / 1e6)) }
                                td { (millis(&figures.first_byte_us, |of| of.p50)) }
                                td { (millis(latency, |of| of.p50)) } td { (millis(latency, |of| of.p90)) }
                                td { (millis(latency, |of| of.p99)) } td { (millis(latency, |of| of.p999)) }
                                td { (millis(latency, |of| of.max)) }
                                td { (measurement.cpu_us_per_operation().map_or_else(String::new, format_short)) }
                                td { (measurement.amplification().map_or_else(String::new, |ratio| format!("{ratio:.3}"))) }
                                td { (measurement.network.connections) }
                                td { (figures.failures.values().sum::<u64>()) }
                            }
                        }
                    }
                }
            }
        }
        ul.notes {
            @for measurement in measurements {
                @for note in &measurement.notes { li { (measurement.name()) ": " (note) } }
                @for sample in measurement.operations.values().flat_map(|figures| &figures.failure_samples) {
                    li { (measurement.name()) ": " (sample) }
                }
            }
        }
    }
}

/// The relative half width of the throughput's confidence interval. Empty for mixes, which have one interval for all
/// operations together.
fn half_width(measurement: &Measurement) -> String {
    let rate = measurement.operations_per_second;
    rate.ci95_half_width
        .filter(|_| rate.mean > 0.0 && measurement.operations.len() == 1)
        .map_or_else(String::new, |half_width| format!("{} %", format_short(100.0 * half_width / rate.mean)))
}

/// The comparison of two results.
fn comparison_section(first: &ResultFile, other: &ResultFile) -> Markup {
    let compared = compare_results(first, other);
    html! {
        section {
            h2 { (other.name) " compared with " (first.name) }
            @for sentence in comparison(first, other, &compared) { p.said { (sentence) } }
            div.wide {
                table {
                    thead { tr { th { "load" } th { "figure" } th { "before" } th { "after" } th { "ratio (95 % CI)" } th { "detectable from" } th { "" } } }
                    tbody {
                        @for comparison in &compared {
                            tr {
                                th { (comparison.name) } td { (figure_name(comparison.figure)) }
                                td { (format_short(comparison.before)) } td { (format_short(comparison.after)) }
                                td { (comparison.ratio_interval.map_or_else(String::new, |(low, high)| format!("{low:.3} to {high:.3}"))) }
                                td { (detectable_effect(comparison)) }
                                td { (verdict(comparison.verdict)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The minimum detectable effect; empty if there are too few rounds for a test.
fn detectable_effect(compared: &Comparison) -> String {
    let describe = |factor| detectable_percent(factor).unwrap_or_else(|| TOO_FEW_SAMPLES.to_owned());
    compared.detectable_effect.map_or_else(String::new, describe)
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
            h2 { "Method" }
            p {
                "Throughput counts the bytes of successful requests that passed within the measured time, after a warm-up, and \
                 requests/s the requests that completed in it. Latency counts from the scheduled start of a request: in a closed loop when its worker \
                 became free, in an open loop (a fixed rate) at its scheduled time, whether or not earlier requests had been \
                 answered. A closed loop sends fewer requests to a slow store, and so shows fewer slow requests than independent \
                 users would see; to measure those, use a rate. The confidence interval of a throughput is a 95 % interval from \
                 batch means. Every byte that was read was compared with what was written."
            }
        }
    }
}
