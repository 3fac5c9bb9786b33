//! Interference between concurrent loads: a matrix and a table of their slowdowns.

use maud::{Markup, html};

use super::charts::{figure, format_short, heat_map};
use crate::interference::{Slowdown, slowdowns};
use crate::result::Measurement;

/// Relative throughput below which a slowdown is worth mentioning.
const NOTABLE_RATIO: f64 = 0.9;

/// Sentences about the largest slowdowns.
pub(super) fn sentences(measurements: &[Measurement]) -> Vec<String> {
    let slowdowns = slowdowns(measurements);
    let Some(worst) = slowdowns.iter().min_by(|a, b| a.throughput_ratio().total_cmp(&b.throughput_ratio()))
    else {
        return Vec::new();
    };
    if worst.throughput_ratio() > NOTABLE_RATIO {
        return vec![format!(
            "Every load keeps at least {} % of its throughput when another runs concurrently.",
            format_short(100.0 * worst.throughput_ratio())
        )];
    }
    let mut sentences = vec![format!(
        "{} keeps {} % of its throughput when run concurrently with {}: {} requests/s instead of {}.",
        worst.load,
        format_short(100.0 * worst.throughput_ratio()),
        worst.concurrent_with,
        format_short(worst.concurrent.requests_per_second),
        format_short(worst.alone.requests_per_second)
    )];
    let known = slowdowns.iter().filter_map(|slowdown| Some((slowdown, slowdown.latency_ratio()?)));
    if let Some((slowest, times)) = known.max_by(|(_, a), (_, b)| a.total_cmp(b)) {
        let (load, concurrent_with) = (&slowest.load, &slowest.concurrent_with);
        sentences.push(format!(
            "The median latency of {load} is {} times as high when run concurrently with {concurrent_with}.",
            format_short(times)
        ));
    }
    sentences
}

/// The matrix and the table; empty if no loads ran concurrently.
pub(super) fn section(measurements: &[Measurement]) -> Markup {
    let slowdowns = slowdowns(measurements);
    let (mut down, mut across) = (Vec::new(), Vec::new());
    for slowdown in &slowdowns {
        let load = slowdown.load.to_string();
        if !down.contains(&load) {
            down.push(load);
        }
        if !across.contains(&slowdown.concurrent_with) {
            across.push(slowdown.concurrent_with.clone());
        }
    }
    let values = |figure: fn(&Slowdown) -> Option<f64>| -> Vec<Vec<Option<f64>>> {
        let at = |load: &String, concurrent_with: &String| {
            let found = slowdowns.iter().find(|slowdown| {
                slowdown.load.to_string() == *load && slowdown.concurrent_with == *concurrent_with
            });
            found.and_then(figure).filter(|value| value.is_finite())
        };
        down.iter()
            .map(|load| across.iter().map(|concurrent_with| at(load, concurrent_with)).collect())
            .collect()
    };
    html! {
        @if !slowdowns.is_empty() {
            h3 { "Interference between loads" }
            div.wide {
                (figure("throughput relative to running alone, in %", heat_map(("concurrent with", &across), &down, &values(|slowdown| Some(100.0 * slowdown.throughput_ratio())))))
                (figure("median latency relative to running alone", heat_map(("concurrent with", &across), &down, &values(Slowdown::latency_ratio))))
            }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "load" } th { "concurrent with" } th { "requests/s alone" } th { "concurrent" } th { "MB/s alone" }
                            th { "concurrent" } th { "p50 alone, ms" } th { "concurrent" } th { "p99 alone, ms" } th { "concurrent" }
                        }
                    }
                    tbody { @for slowdown in &slowdowns { (row(slowdown)) } }
                }
            }
        }
    }
}

fn row(slowdown: &Slowdown) -> Markup {
    let Slowdown { load, concurrent_with, alone, concurrent } = slowdown;
    let millis = |micros: Option<f64>| micros.map_or_else(String::new, |micros| format_short(micros / 1e3));
    html! {
        tr {
            th { (load) } td { (concurrent_with) }
            td { (format_short(alone.requests_per_second)) } td { (format_short(concurrent.requests_per_second)) }
            td { (format_short(alone.bytes_per_second / 1e6)) } td { (format_short(concurrent.bytes_per_second / 1e6)) }
            td { (millis(alone.p50)) } td { (millis(concurrent.p50)) }
            td { (millis(alone.p99)) } td { (millis(concurrent.p99)) }
        }
    }
}
