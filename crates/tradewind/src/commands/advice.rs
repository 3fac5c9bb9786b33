//! What was found, in words for somebody who wants to move data.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value as Json, json};
use tradewind_model::plan::Plan;
use tradewind_model::tune::{Cap, Cell, Goal, Inferred, Split, Statistic, Surface, Workload, goal};

use super::caps;
use crate::profiles::Profile;
use crate::settings::ByteSize;
use tradewind_model::store_model::Direction;

/// Sizes that are looked at, in bytes.
pub(super) const SIZES: [u64; 8] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Requests at a time that are looked at.
pub(super) const PARALLEL: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Those that a plan under a cap may have: between two that double a cap is often kept by one and broken by the other.
const UNDER_CAPS: [usize; 29] = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 21, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192,
    224, 256,
];
/// What is meant by small files: how many at a time is what counts.
const SMALL: u64 = 16 << 10;
/// Bundles of them are worth it where they carry so many times as many.
const WORTH_BUNDLES: f64 = 2.0;
/// In a bundle each has a header, and begins at a multiple of that.
const FRAME: u64 = 512;
/// Sizes of single objects that are told as examples.
const ALONE: [u64; 3] = [256 << 10, 4 << 20, 256 << 20];
/// Of larger ones bytes a second are told, not requests.
const SMALL_AT_MOST: u64 = 256 << 10;
/// What somebody who waits for each request may want, in seconds, where nobody says.
const CAPS: [f64; 3] = [0.1, 0.3, 1.0];
/// What is told of the law as sure is no less sure than this: the standard deviation of its logarithm.
const TOLD: f64 = 1.0;
/// What is told of it otherwise.
const UNKNOWN: &str = " (assumed: no probe tells)";

/// What is inferred and no surer than this is said to be unsure: the standard deviation of its logarithm.
const SURE: f64 = 0.15;
/// Sizes of requests that are told as examples.
pub(super) const USED: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// What to do in one direction: a line for each thing that somebody may want. Of each of `caps` the plan that keeps to it; of the
/// usual ones, where there are none, the first that one does. Where it is known what will be moved, each of its sizes and how long
/// all of it takes in place of small files.
pub(super) fn of(
    direction: Direction,
    surface: &Surface,
    cells: &[Cell],
    (caps, workload): (&[Cap], Option<&Workload>),
) -> String {
    let choose = |cells: &[Cell], goal| goal::choose(surface, cells, goal);
    let mut text = String::new();
    if let Some(best) = choose(cells, Goal::Efficiency) {
        text += &format!("{}: {}\n", name(direction), plan(&best, surface));
    }
    let of_size = |size: u64, called: &str| {
        let of_it: Vec<Cell> = cells.iter().copied().filter(|cell| cell.bytes == size).collect();
        let best = choose(&of_it, Goal::Bandwidth)?;
        let (parallel, rate) = (best.cell.parallel, best.rate());
        Some(format!("  {called}: {parallel} at a time, {rate:.0} of {} a second\n", ByteSize(size)))
    };
    match workload {
        None => {
            text += &of_size(SMALL, "small files").unwrap_or_default();
            text += &bundles(surface, cells).unwrap_or_default();
            text += &format!(
                "  one object alone: {}\n",
                ALONE.map(|size| alone(direction, surface, size)).join("; ")
            );
        }
        Some(workload) => {
            let sizes = workload.shares().into_iter().filter(|share| share.size <= SMALL_AT_MOST);
            text += &sizes.filter_map(|share| of_size(share.size, "small ones")).collect::<String>();
            let plan = Plan::default().tuned(std::slice::from_ref(surface));
            let whole = workload.seconds(surface, |bytes| plan.parallel(bytes));
            text += &format!("  all of the workload takes about {}\n", duration(whole));
        }
    }
    let under_caps = under_caps(cells);
    let capped = |cap: Cap| {
        let told = match choose(&under_caps, Goal::Latency(cap)) {
            Some(best) => plan(&best, surface),
            None => "no size and number of requests keeps to that".to_owned(),
        };
        format!("  where {}: {told}\n", words(cap))
    };
    if caps.is_empty() {
        // The shortest that any plan worth the name keeps to.
        let first =
            CAPS.into_iter().map(Cap::mean).find(|cap| choose(&under_caps, Goal::Latency(*cap)).is_some());
        text += &first.map(capped).unwrap_or_default();
    }
    text + &caps.iter().map(|cap| capped(*cap)).collect::<String>()
}

/// What becomes of small files that are carried as bundles, where that is worth it: their bytes are those of a large object.
fn bundles(surface: &Surface, cells: &[Cell]) -> Option<String> {
    let small: Vec<Cell> = cells.iter().copied().filter(|cell| cell.bytes == SMALL).collect();
    let single = goal::choose(surface, &small, Goal::Bandwidth)?.rate();
    let bundled = goal::choose(surface, cells, Goal::Bandwidth)?.bandwidth() / (SMALL + FRAME) as f64;
    let told = format!("  packed with cp --bundle: about {bundled:.0} a second\n");
    (bundled >= single * WORTH_BUNDLES).then_some(told)
}

/// How one object of so many bytes is best carried: `4MiB as 16 x 256KiB in 0.4 s`.
fn alone(direction: Direction, surface: &Surface, size: u64) -> String {
    let Split { bytes, requests, parallel, seconds: time } = surface.split(direction, size);
    let size = ByteSize(size);
    match requests {
        1 => format!("{size} whole in {}", seconds(time)),
        _ if parallel == requests => {
            format!("{size} as {requests} x {} in {}", ByteSize(bytes), seconds(time))
        }
        _ => {
            format!("{size} as {requests} x {}, {parallel} at a time, in {}", ByteSize(bytes), seconds(time))
        }
    }
}

/// The same for programs.
pub(super) fn splits(direction: Direction, surface: &Surface) -> Vec<Json> {
    let line = |size| {
        let Split { bytes, requests, parallel, seconds } = surface.split(direction, size);
        json!({
            "line": "split",
            "direction": name(direction),
            "object": size,
            "size": bytes,
            "requests": requests,
            "parallel": parallel,
            "seconds": seconds,
        })
    };
    ALONE.map(line).to_vec()
}

fn words(cap: Cap) -> String {
    let which = match cap.of {
        Statistic::Mean => "the mean request is",
        Statistic::P95 => "95 of 100 requests are",
        Statistic::P99 => "99 of 100 requests are",
    };
    format!("{which} to take {} at the most", seconds(cap.seconds))
}

/// The plans of one direction for programs: for each goal, and for each of `caps`.
pub(super) fn plans(direction: Direction, surface: &Surface, cells: &[Cell], caps: &[Cap]) -> Vec<Json> {
    let goals = [("bandwidth", Goal::Bandwidth), ("efficiency", Goal::Efficiency)];
    let capped = caps.iter().map(|cap| ("latency", Goal::Latency(*cap)));
    let under_caps = under_caps(cells);
    let plan = |(called, goal): (&str, Goal)| {
        let cap = if let Goal::Latency(cap) = goal { Some(cap) } else { None };
        let best = goal::choose(surface, if cap.is_some() { &under_caps } else { cells }, goal)?;
        Some(json!({
            "line": "plan",
            "direction": name(direction),
            "goal": called,
            "of": cap.map(|cap| caps::name(cap.of)),
            "most_seconds": cap.map(|cap| cap.seconds),
            "size": best.cell.bytes,
            "parallel": best.cell.parallel,
            "bytes_per_second": best.bandwidth(),
            "latency_seconds": best.latency,
            "deviation": best.deviation,
        }))
    };
    goals.into_iter().chain(capped).filter_map(plan).collect()
}

/// Why: what requests take of what there is, as far as samples tell.
pub(super) fn why(surface: &Surface) -> String {
    let learnt = surface.learnt();
    let law = &learnt.mean;
    let sure = |i: usize| match learnt.deviation[i] {
        deviation if deviation > TOLD => UNKNOWN.to_owned(),
        deviation => format!(", give or take {:.0} %", deviation.exp_m1() * 100.0),
    };
    let together = if law.hidden() < 0.5 {
        "one bottleneck serves requests and bytes: what they take of it adds up"
    } else {
        "requests and bytes have a bottleneck each: the fuller one decides"
    };
    let told = if learnt.deviation[6] > TOLD { UNKNOWN } else { "" };
    let lines = [
        format!("a request takes {} even if it is tiny{}", seconds(law.fixed()), sure(0)),
        format!("one connection carries {} MB/s{}", megabytes(1.0 / law.per_byte()), sure(1)),
        format!("all together do {:.0} requests a second at the most{}", 1.0 / law.shared_fixed(), sure(2)),
        format!("all together carry {} MB/s at the most{}", megabytes(1.0 / law.shared_per_byte()), sure(3)),
        format!("{together}{told}"),
        format!(
            "twice as many requests as are of use cost {:.1} % of that{}",
            law.loss() * 2.0_f64.ln() * 100.0,
            sure(5)
        ),
    ];
    lines.map(|line| format!("  {line}\n")).concat()
}

/// What commands ask for from now on.
pub(super) fn print_use(surfaces: &[Surface], path: &Path) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "cp, sync and the others now ask for {}", at_a_time(surfaces))?;
    writeln!(out, "it is kept in {}", path.display())
}

/// What commands ask for where these are known, by size.
pub(super) fn at_a_time(surfaces: &[Surface]) -> String {
    let plan = Plan::default().tuned(surfaces);
    let mut parts = USED.iter().map(|bytes| format!("{} x {}", ByteSize(*bytes), plan.parallel(*bytes)));
    let last = parts.next_back().unwrap_or_default();
    let first: Vec<String> = parts.collect();
    format!("{} and {last} at a time", first.join(", "))
}

/// The client that a profile was made on, in words: `2 cores and 50 ms`.
pub(super) fn scaled_from(profile: &Profile) -> String {
    let mut parts: Vec<String> =
        [cores(profile), link(profile), profile.round_trip.map(seconds)].into_iter().flatten().collect();
    let last = parts.pop().unwrap_or_else(|| "a client of which it says nothing".to_owned());
    if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) }
}

/// Its processors, where it says how many.
pub(super) fn cores(profile: &Profile) -> Option<String> {
    match profile.cores {
        0 => None,
        1 => Some("1 core".to_owned()),
        cores => Some(format!("{cores} cores")),
    }
}

/// Its link, where it says so.
pub(super) fn link(profile: &Profile) -> Option<String> {
    profile.link.map(|rate| format!("{:.0} Mbit/s", rate * 8.0 / 1e6))
}

fn plan(found: &Inferred, surface: &Surface) -> String {
    let Cell { bytes, parallel } = found.cell;
    let told = format!("{} x {parallel} carries {} MB/s", ByteSize(bytes), megabytes(found.bandwidth()));
    if found.deviation <= SURE {
        return told;
    }
    let tells = if surface.samples().is_empty() { "tradewind tune" } else { "a larger --budget" };
    // Twice the deviation: nineteen of twenty lie within.
    format!("{told}, or up to {:.1} times as much or as little: {tells} tells", (2.0 * found.deviation).exp())
}

/// Cells that plans may have.
pub(super) fn cells() -> Vec<Cell> {
    Cell::grid(&SIZES, &PARALLEL)
}

/// The cells of the same sizes that a plan under a cap may have.
fn under_caps(cells: &[Cell]) -> Vec<Cell> {
    let sizes: BTreeSet<u64> = cells.iter().map(|cell| cell.bytes).collect();
    Cell::grid(&Vec::from_iter(sizes), &UNDER_CAPS)
}

pub(super) const fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Write => "upload",
        Direction::Read => "download",
    }
}

/// So many MB, with three digits that count.
pub(super) fn megabytes(bytes: f64) -> String {
    let mb = bytes / 1e6;
    match mb {
        ..1.0 => format!("{mb:.3}"),
        ..10.0 => format!("{mb:.2}"),
        ..100.0 => format!("{mb:.1}"),
        _ => format!("{mb:.0}"),
    }
}

/// So many seconds, as people write them.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.2} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

/// So long, where it may be hours.
fn duration(time: f64) -> String {
    match time {
        ..120.0 => seconds(time),
        ..7200.0 => format!("{:.0} min", time / 60.0),
        _ => format!("{:.1} h", time / 3600.0),
    }
}
