//! What loads lose by each other: the matrix of those that were measured beside each other.

use maud::{Markup, html};

use super::charts::{figure, heat, short};
use crate::interference::{Loss, losses};
use crate::result::Cell;

/// So much less is worth a word.
const NOTABLE: f64 = 0.9;

/// The most that is lost, in words.
pub(super) fn words(cells: &[Cell]) -> Vec<String> {
    let losses = losses(cells);
    let Some(worst) = losses.iter().min_by(|a, b| a.left().total_cmp(&b.left())) else { return Vec::new() };
    if worst.left() > NOTABLE {
        return vec![format!(
            "No load keeps less than {} % of its throughput beside another.",
            short(100.0 * worst.left())
        )];
    }
    let mut said = vec![format!(
        "{} keeps {} % of its throughput beside {}: {} requests a second, of {} alone.",
        worst.load,
        short(100.0 * worst.left()),
        worst.beside,
        short(worst.together.per_second),
        short(worst.alone.per_second)
    )];
    let known = losses.iter().filter_map(|loss| Some((loss, loss.longer()?)));
    if let Some((longest, times)) = known.max_by(|(_, a), (_, b)| a.total_cmp(b)) {
        let (load, beside) = (&longest.load, &longest.beside);
        said.push(format!("Requests of {load} take {} times as long beside {beside}.", short(times)));
    }
    said
}

/// The matrix, and its figures; nothing where loads were only measured alone.
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
    let values = |of: fn(&Loss) -> Option<f64>| -> Vec<Vec<Option<f64>>> {
        let at = |load: &String, beside: &String| {
            let found = losses.iter().find(|loss| loss.load.to_string() == *load && loss.beside == *beside);
            found.and_then(of).filter(|value| value.is_finite())
        };
        down.iter().map(|load| across.iter().map(|beside| at(load, beside)).collect()).collect()
    };
    html! {
        @if !losses.is_empty() {
            h3 { "what loads lose by each other" }
            div.wide {
                (figure("throughput that is left, in %", heat(("beside", &across), &down, &values(|loss| Some(100.0 * loss.left())))))
                (figure("how many times as long requests take (median)", heat(("beside", &across), &down, &values(Loss::longer))))
            }
            div.wide {
                table {
                    thead {
                        tr {
                            th { "load" } th { "beside" } th { "requests/s alone" } th { "beside" } th { "MB/s alone" } th { "beside" }
                            th { "p50 alone, ms" } th { "beside" } th { "p99 alone, ms" } th { "beside" }
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
