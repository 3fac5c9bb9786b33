//! The part of the page about a mounted file system: throughput by call size, file size and threads, amplification
//! with the fitted curves, caching policies, and Postmark.

mod sentences;
mod tables;

use maud::{Markup, html};

pub(super) use self::sentences::{names, summary};
use super::charts::{AxisScale, Series, figure, line_chart};
use super::mean_by_x;
use crate::posix::result::{
    AccessForm, AccessResult, AccessScope, AmplificationCurve, Direction, PosixRecord,
};
use tradewind_core::quantity::ByteSize;

/// The complete and successful access measurements, which the charts show.
fn complete_accesses(records: &[PosixRecord]) -> impl Iterator<Item = &AccessResult> + Clone {
    records.iter().filter_map(|record| match record {
        PosixRecord::Access(access) if !access.partial && access.files > 0 => Some(&**access),
        _ => None,
    })
}

/// The section about the file system.
pub(super) fn section(records: &[PosixRecord]) -> Markup {
    html! {
        (tables::conditions(records))
        (tables::policies(records))
        @for (scope, subject, x) in [
            (AccessScope::Unit, "one file of 16 MiB, by call size", "call size, KiB"),
            (AccessScope::Single, "single files, by file size", "file size, KiB"),
            (AccessScope::Batch, "many files from one thread, by file size", "file size, KiB"),
        ] {
            @for phase in [Direction::Write, Direction::Read] {
                (throughput(records, (scope, phase), &format!("{phase} throughput, MB/s: {subject}"), x))
            }
        }
        @for phase in [Direction::Write, Direction::Read] { (by_threads(records, phase)) }
        (amplification(records))
        (tables::postmarks(records))
        (tables::accesses(records))
    }
}

fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

/// A chart with a line for each access form that was measured with several sizes; empty if there is none.
fn throughput(
    records: &[PosixRecord],
    (scope, phase): (AccessScope, Direction),
    caption: &str,
    x: &str,
) -> Markup {
    let points = |form: AccessForm| {
        let matching = complete_accesses(records).filter(move |access| {
            (access.scope, access.phase, access.form) == (scope, phase, form)
                && (scope != AccessScope::Batch || access.threads == 1)
        });
        let size =
            |access: &AccessResult| if scope == AccessScope::Unit { access.call_bytes } else { access.size };
        mean_by_x(matching.map(|access| (kib(size(access)), access.bytes_per_second.mean / 1e6)))
    };
    let series: Vec<Series> = AccessForm::ALL
        .into_iter()
        .map(|form| Series { name: form.to_string(), points: points(form), is_dashed: false })
        .filter(|series| series.points.len() > 1)
        .collect();
    html! {
        @if !series.is_empty() {
            (figure(caption, line_chart((AxisScale::Logarithmic, x), (AxisScale::Logarithmic, "MB/s"), &series)))
        }
    }
}

fn by_threads(records: &[PosixRecord], phase: Direction) -> Markup {
    let is_batch = move |access: &&AccessResult| (access.scope, access.phase) == (AccessScope::Batch, phase);
    let mut combinations: Vec<(u64, AccessForm)> =
        complete_accesses(records).filter(is_batch).map(|access| (access.size, access.form)).collect();
    combinations.sort_unstable();
    combinations.dedup();
    let series = combinations.into_iter().map(|(size, form)| {
        let matching = complete_accesses(records)
            .filter(is_batch)
            .filter(|access| (access.size, access.form) == (size, form));
        let points =
            mean_by_x(matching.map(|access| (access.threads as f64, access.bytes_per_second.mean / 1e6)));
        Series { name: format!("{form} {}", ByteSize(size)), points, is_dashed: false }
    });
    let series: Vec<Series> = series.filter(|series| series.points.len() > 1).collect();
    html! {
        @if !series.is_empty() {
            (figure(
                &format!("{phase} throughput, MB/s: many files, by number of threads"),
                line_chart((AxisScale::Logarithmic, "threads"), (AxisScale::Logarithmic, "MB/s"), &series),
            ))
        }
    }
}

/// The measured amplification, with the fitted curve of the paper's model.
fn amplification(records: &[PosixRecord]) -> Markup {
    let fits: Vec<&AmplificationCurve> = records
        .iter()
        .filter_map(|record| if let PosixRecord::Amplification(curve) = record { Some(curve) } else { None })
        .collect();
    let chart = |scope: AccessScope, phase: Direction| -> Vec<Series> {
        let form = |form: AccessForm| {
            let matching = complete_accesses(records).filter(move |access| {
                (access.scope, access.phase, access.form, access.threads) == (scope, phase, form, 1)
            });
            let points =
                mean_by_x(matching.filter_map(|access| Some((kib(access.size), access.amplification()?))));
            // The first curve of a kind is the paper's.
            let paper = fits.iter().find(|fit| (fit.scope, fit.phase, fit.form) == (scope, phase, form));
            let curve = paper.map(|paper| Series {
                name: format!("{form}, 1 + {:.0} KiB / s", paper.fit.constant_kib),
                points: points.iter().map(|(size, _)| (*size, paper.fit.predict(*size))).collect(),
                is_dashed: true,
            });
            let measured_series =
                (points.len() > 1).then(|| Series { name: form.to_string(), points, is_dashed: false });
            measured_series.into_iter().chain(curve)
        };
        AccessForm::ALL.into_iter().flat_map(form).collect()
    };
    html! {
        @for (scope, subject) in [(AccessScope::Single, "single files"), (AccessScope::Batch, "many files from one thread")] {
            @for phase in [Direction::Write, Direction::Read] {
                @let series = chart(scope, phase);
                @if !series.is_empty() {
                    (figure(
                        &format!("{phase}: bytes on the wire per byte of {subject}, in both directions; dashed: fitted curve"),
                        line_chart((AxisScale::Logarithmic, "file size, KiB"), (AxisScale::Logarithmic, "ratio"), &series),
                    ))
                }
            }
        }
        @if !fits.is_empty() { (tables::fits(&fits)) }
    }
}

#[cfg(test)]
mod tests;
