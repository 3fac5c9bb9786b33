//! Interference between concurrent loads: a matrix and a table of their slowdowns.

use maud::{Markup, html};

use super::charts::{figure, heat, short};
use crate::interference::{Loss, losses};
use crate::result::Cell;

/// Relative throughput below which a slowdown is worth mentioning.
const NOTABLE_RATIO: f64 = 0.9;

/// Sentences about the largest slowdowns.
pub(super) fn words(cells: &[Cell]) -> Vec<String> {
    let losses = losses(cells);
    let Some(worst) = losses.iter().min_by(|a, b| a.left().total_cmp(&b.left())) else { return Vec::new() };
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
    let known = losses.iter().filter_map(|loss| Some((loss, loss.longer()?)));
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
pub(super) fn section(cells: &[Cell]) -> Markup {
    let losses = losses(cells);
    let (mut down, mut across) = (Vec::new(), Vec::new());
    for loss in &losses {
        let load = loss.load.to_string();
        if !down.contains(&load) {
            down.push(load);
        }
        if !across.contains(&loss.beside) {
            across.push(loss.beside.clone());
        }
    }
    let values = |figure: fn(&Loss) -> Option<f64>| -> Vec<Vec<Option<f64>>> {
        let at = |load: &String, beside: &String| {
            let found = losses.iter().find(|loss| loss.load.to_string() == *load && loss.beside == *beside);
            found.and_then(figure).filter(|value| value.is_finite())
        };
        down.iter().map(|load| across.iter().map(|beside| at(load, beside)).collect()).collect()
    };
    html! {
        @if !losses.is_empty() {
            h3 { "Interference between loads" }
            div.wide {
                (figure("throughput relative to running alone, in %", heat(("concurrent with", &across), &down, &values(|loss| Some(100.0 * loss.left())))))
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
                    tbody { @for loss in &losses { (row(loss)) } }
                }
            }
        }
    }
}

fn row(loss: &Loss) -> Markup {
    let Loss { load, beside, alone, together } = loss;
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
