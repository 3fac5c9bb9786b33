//! What a result says about a mounted file system: curves over the size of an access, of a file and over threads, what the
//! wire carried for each byte with the curves that were fitted to it, policies, and Postmark's figures.

mod tables;
mod words;

use maud::{Markup, html};

pub(super) use self::words::{names, summary};
use super::charts::{Axis, Series, figure, lines};
use super::means;
use crate::posix::result::{Access, Amplification, Form, Measured, Phase, Scope};
use tradewind_core::quantity::ByteSize;

/// Accesses that a chart has.
fn accesses(measured: &[Measured]) -> impl Iterator<Item = &Access> + Clone {
    measured.iter().filter_map(|each| match each {
        Measured::Access(access) if !access.partial && access.files > 0 => Some(&**access),
        _ => None,
    })
}

/// Everything about the file system.
pub(super) fn section(measured: &[Measured]) -> Markup {
    html! {
        (tables::conditions(measured))
        (tables::policies(measured))
        @for (scope, what, x) in [
            (Scope::Unit, "one file of 16 MiB, by the size of an access", "KiB an access"),
            (Scope::Single, "one file by itself, by its size", "KiB"),
            (Scope::Batch, "many files and one thread, by their size", "KiB"),
        ] {
            @for phase in [Phase::Write, Phase::Read] {
                (speeds(measured, (scope, phase), &format!("{phase}: MB/s of {what}"), x))
            }
        }
        @for phase in [Phase::Write, Phase::Read] { (by_threads(measured, phase)) }
        (amplification(measured))
        (tables::postmarks(measured))
        (tables::accesses(measured))
    }
}

fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

/// A line for each form of access; nothing where there is but one place.
fn speeds(measured: &[Measured], (scope, phase): (Scope, Phase), caption: &str, x: &str) -> Markup {
    let of = |form: Form| {
        let those = accesses(measured).filter(move |access| {
            (access.scope, access.phase, access.form) == (scope, phase, form)
                && (scope != Scope::Batch || access.threads == 1)
        });
        let at = |access: &Access| if scope == Scope::Unit { access.unit } else { access.size };
        means(those.map(|access| (kib(at(access)), access.bytes_per_second.mean / 1e6)))
    };
    let series: Vec<Series> = Form::ALL
        .into_iter()
        .map(|form| Series { name: form.to_string(), points: of(form), is_second: false })
        .filter(|series| series.points.len() > 1)
        .collect();
    html! {
        @if !series.is_empty() {
            (figure(caption, lines((Axis::Logarithmic, x), (Axis::Logarithmic, "MB/s"), &series)))
        }
    }
}

fn by_threads(measured: &[Measured], phase: Phase) -> Markup {
    let of = move |access: &&Access| (access.scope, access.phase) == (Scope::Batch, phase);
    let mut kinds: Vec<(u64, Form)> =
        accesses(measured).filter(of).map(|access| (access.size, access.form)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let series = kinds.into_iter().map(|(size, form)| {
        let those = accesses(measured).filter(of).filter(|access| (access.size, access.form) == (size, form));
        let points = means(those.map(|access| (access.threads as f64, access.bytes_per_second.mean / 1e6)));
        Series { name: format!("{form} {}", ByteSize(size)), points, is_second: false }
    });
    let series: Vec<Series> = series.filter(|series| series.points.len() > 1).collect();
    html! {
        @if !series.is_empty() {
            (figure(
                &format!("{phase}: MB/s of many files, by threads"),
                lines((Axis::Logarithmic, "threads"), (Axis::Logarithmic, "MB/s"), &series),
            ))
        }
    }
}

/// What was seen, and beside it the paper's curve.
fn amplification(measured: &[Measured]) -> Markup {
    let fits: Vec<&Amplification> = measured
        .iter()
        .filter_map(|each| if let Measured::Amplification(told) = each { Some(told) } else { None })
        .collect();
    let chart = |scope: Scope, phase: Phase| -> Vec<Series> {
        let form = |form: Form| {
            let those = accesses(measured).filter(move |access| {
                (access.scope, access.phase, access.form, access.threads) == (scope, phase, form, 1)
            });
            let seen = means(those.filter_map(|access| Some((kib(access.size), access.amplification()?))));
            // The first curve of a kind is the paper's.
            let paper = fits.iter().find(|told| (told.scope, told.phase, told.form) == (scope, phase, form));
            let curve = paper.map(|told| Series {
                name: format!("{form}, 1 + {:.0} KiB / s", told.fit.constant_kib),
                points: seen.iter().map(|(at, _)| (*at, told.fit.at(*at))).collect(),
                is_second: true,
            });
            let first =
                (seen.len() > 1).then(|| Series { name: form.to_string(), points: seen, is_second: false });
            first.into_iter().chain(curve)
        };
        Form::ALL.into_iter().flat_map(form).collect()
    };
    html! {
        @for (scope, what) in [(Scope::Single, "one file by itself"), (Scope::Batch, "many files and one thread")] {
            @for phase in [Phase::Write, Phase::Read] {
                @let series = chart(scope, phase);
                @if !series.is_empty() {
                    (figure(
                        &format!("{phase}: bytes on the wire, both ways, for each byte of {what}; dashed what was fitted"),
                        lines((Axis::Logarithmic, "KiB"), (Axis::Logarithmic, "times"), &series),
                    ))
                }
            }
        }
        @if !fits.is_empty() { (tables::fits(&fits)) }
    }
}

#[cfg(test)]
mod tests;
