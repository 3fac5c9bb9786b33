//! Interference between concurrent loads: a matrix and a table of their slowdowns.

use maud::{Markup, html};

use super::charts::{figure, heat, short};
use crate::interference::{Loss, losses};
use crate::result::Measurement;

/// Relative throughput below which a slowdown is worth mentioning.
const NOTABLE_RATIO: f64 = 0.9;

/// Sentences about the largest slowdowns.
pub(super) fn words(cells: &[Measurement]) -> Vec<String> {
    let slowdowns = losses(cells);
    let Some(worst) = slowdowns.iter().min_by(|a, b| a.left().total_cmp(&b.left())) else { return Vec::new() };
    if worst.left() > NOTABLE_RATIO {
        return vec![format!(
            "Every load keeps at least {} % of its throughput when another runs concurrently.",
            short(100.0 * worst.left())
        )];
    }
    let mut sentences = vec![format!(
        "{} keeps {} % of its throughput when run concurrently with {}: {} requests/s instead of {}.",
        worst.load,
        short(100.0 * worst.left()),
        worst.beside,
        short(worst.together.per_second),
        short(worst.alone.per_second)
    )];
    let known = slowdowns.iter().filter_map(|slowdown| Some((slowdown, slowdown.longer()?)));
    if let Some((longest, times)) = known.max_by(|(_, a), (_, b)| a.total_cmp(b)) {
        let (load, beside) = (&longest.load, &longest.beside);
        sentences.push(format!(
            "The median latency of {load} is {} times as high when run concurrently with {beside}.",
            short(times)
        ));
    }
    sentences
}

/// The matrix and the table; empty if no loads ran concurrently.
pub(super) fn section(cells: &[Measurement]) -> Markup {
    let slowdowns = losses(cells);
    let (mut down, mut across) = (Vec::new(), Vec::new());
    for slowdown in &slowdowns {
        let load = slowdown.load.to_string();
        if !down.contains(&load) {
            down.push(load);
        }
        if !across.contains(&slowdown.beside) {
            across.push(slowdown.beside.clone());
        }
    }
    let values = |figure: fn(&Loss) -> Option<f64>| -> Vec<Vec<Option<f64>>> {
        let at = |load: &String, beside: &String| {
            let found = slowdowns.iter().find(|slowdown| slowdown.load.to_string() == *load && slowdown.beside == *beside);
            found.and_then(figure).filter(|value| value.is_finite())
        };
        down.iter().map(|load| across.iter().map(|beside| at(load, beside)).collect()).collect()
    };
    html! {
        @if !slowdowns.is_empty() {
            h3 { "Interference between loads" }
            div.wide {
                (figure("throughput relative to running alone, in %", heat(("concurrent with", &across), &down, &values(|slowdown| Some(100.0 * slowdown.left())))))
                (figure("median latency relative to running alone", heat(("concurrent with", &across), &down, &values(Loss::longer))))
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

fn row(slowdown: &Loss) -> Markup {
    let Loss { load, beside, alone, together } = slowdown;
    let millis = |micros: Option<f64>| micros.map_or_else(String::new, |micros| short(micros / 1e3));
    html! {
        tr {
            th { (load) } td { (beside) }
            td { (short(alone.per_second)) } td { (short(together.per_second)) }
            td { (short(alone.bytes_per_second / 1e6)) } td { (short(together.bytes_per_second / 1e6)) }
            td { (millis(alone.p50)) } td { (millis(together.p50)) }
            td { (millis(alone.p99)) } td { (millis(together.p99)) }
        }
    }
}
