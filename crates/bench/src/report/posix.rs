//! The part of the page about a mounted file system: throughput by call size, file size and threads, amplification
//! with the fitted curves, caching policies, and Postmark.

mod tables;
mod words;

use maud::{Markup, html};

pub(super) use self::words::{names, summary};
use super::charts::{Axis, Series, figure, lines};
use super::means;
use crate::posix::result::{Access, Amplification, Form, Measured, Phase, Scope};
use tradewind_core::quantity::ByteSize;

/// The complete and successful access measurements, which the charts show.
fn accesses(measured: &[Measured]) -> impl Iterator<Item = &Access> + Clone {
    measured.iter().filter_map(|each| match each {
        Measured::Access(access) if !access.partial && access.files > 0 => Some(&**access),
        _ => None,
    })
}

/// The section about the file system.
pub(super) fn section(measured: &[Measured]) -> Markup {
    html! {
        (tables::conditions(measured))
        (tables::policies(measured))
        @for (scope, what, x) in [
            (Scope::Unit, "one file of 16 MiB, by call size", "call size, KiB"),
            (Scope::Single, "single files, by file size", "file size, KiB"),
            (Scope::Batch, "many files from one thread, by file size", "file size, KiB"),
        ] {
            @for phase in [Phase::Write, Phase::Read] {
                (throughput(measured, (scope, phase), &format!("{phase} throughput, MB/s: {what}"), x))
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

/// A chart with a line for each access form that was measured with several sizes; empty if there is none.
fn throughput(measured: &[Measured], (scope, phase): (Scope, Phase), caption: &str, x: &str) -> Markup {
    let points = |form: Form| {
        let matching = accesses(measured).filter(move |access| {
            (access.scope, access.phase, access.form) == (scope, phase, form)
                && (scope != Scope::Batch || access.threads == 1)
        });
        let size = |access: &Access| if scope == Scope::Unit { access.unit } else { access.size };
        means(matching.map(|access| (kib(size(access)), access.bytes_per_second.mean / 1e6)))
    };
    let series: Vec<Series> = Form::ALL
        .into_iter()
        .map(|form| Series { name: form.to_string(), points: points(form), is_second: false })
        .filter(|series| series.points.len() > 1)
        .collect();
    html! {
        @if !series.is_empty() {
            (figure(caption, lines((Axis::Logarithmic, x), (Axis::Logarithmic, "MB/s"), &series)))
        }
    }
}

fn by_threads(measured: &[Measured], phase: Phase) -> Markup {
    let is_batch = move |access: &&Access| (access.scope, access.phase) == (Scope::Batch, phase);
    let mut kinds: Vec<(u64, Form)> =
        accesses(measured).filter(is_batch).map(|access| (access.size, access.form)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let series = kinds.into_iter().map(|(size, form)| {
        let matching =
            accesses(measured).filter(is_batch).filter(|access| (access.size, access.form) == (size, form));
        let points = means(matching.map(|access| (access.threads as f64, access.bytes_per_second.mean / 1e6)));
        Series { name: format!("{form} {}", ByteSize(size)), points, is_second: false }
    });
    let series: Vec<Series> = series.filter(|series| series.points.len() > 1).collect();
    html! {
        @if !series.is_empty() {
            (figure(
                &format!("{phase} throughput, MB/s: many files, by number of threads"),
                lines((Axis::Logarithmic, "threads"), (Axis::Logarithmic, "MB/s"), &series),
            ))
        }
    }
}

/// The measured amplification, with the fitted curve of the paper's model.
fn amplification(measured: &[Measured]) -> Markup {
    let fits: Vec<&Amplification> = measured
        .iter()
        .filter_map(|each| if let Measured::Amplification(curve) = each { Some(curve) } else { None })
        .collect();
    let chart = |scope: Scope, phase: Phase| -> Vec<Series> {
        let form = |form: Form| {
            let matching = accesses(measured).filter(move |access| {
                (access.scope, access.phase, access.form, access.threads) == (scope, phase, form, 1)
            });
            let ratios = means(matching.filter_map(|access| Some((kib(access.size), access.amplification()?))));
            // The first curve of a kind is the paper's.
            let paper = fits.iter().find(|fit| (fit.scope, fit.phase, fit.form) == (scope, phase, form));
            let curve = paper.map(|paper| Series {
                name: format!("{form}, 1 + {:.0} KiB / s", paper.fit.constant_kib),
                points: ratios.iter().map(|(at, _)| (*at, paper.fit.at(*at))).collect(),
                is_second: true,
            });
            let first =
                (ratios.len() > 1).then(|| Series { name: form.to_string(), points: ratios, is_second: false });
            first.into_iter().chain(curve)
        };
        Form::ALL.into_iter().flat_map(form).collect()
    };
    html! {
        @for (scope, what) in [(Scope::Single, "single files"), (Scope::Batch, "many files from one thread")] {
            @for phase in [Phase::Write, Phase::Read] {
                @let series = chart(scope, phase);
                @if !series.is_empty() {
                    (figure(
                        &format!("{phase}: bytes on the wire per byte of {what}, in both directions; dashed: fitted curve"),
                        lines((Axis::Logarithmic, "file size, KiB"), (Axis::Logarithmic, "ratio"), &series),
                    ))
                }
            }
        }
        @if !fits.is_empty() { (tables::fits(&fits)) }
    }
}

#[cfg(test)]
mod tests;
