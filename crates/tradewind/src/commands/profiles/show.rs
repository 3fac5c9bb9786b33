//! Text and JSON output of profiles: the measurements, the best operating points, and the concurrency that commands use
//! on this client.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::bail;
use serde_json::{Value as Json, json};
use tradewind_model::plan::Plan;
use tradewind_model::store_statistics::Direction;
use tradewind_model::tune::{Goal, Sample, Surface, goal};

use super::missing_profile;
use crate::commands::plan_output::{
    self, EXAMPLE_REQUEST_BYTES, candidate_points, describe_concurrency, describe_profile_client,
    direction_name, format_megabytes, format_seconds,
};
use crate::commands::terminal::{Names, printable_json};
use crate::profiles::this_machine::cpus;
use crate::profiles::{ApplicableProfile, Profile, Profiles, SavedProfile};
use crate::settings::ByteSize;

const DIRECTIONS: [Direction; 2] = [Direction::Write, Direction::Read];

/// Prints one line per profile.
pub(super) fn list(all: &[SavedProfile], is_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    all.iter().for_each(SavedProfile::print_warnings);
    let all: Vec<&SavedProfile> = all.iter().filter(|saved| !saved.profile.store.is_empty()).collect();
    if is_json {
        return all
            .into_iter()
            .try_for_each(|saved| writeln!(out, "{}", printable_json(&header_as_json(saved).to_string())));
    }
    if all.is_empty() {
        return writeln!(io::stderr(), "no store has been tuned; run tradewind tune s3://BUCKET");
    }
    let names = Names::for_stdout();
    let shown = |text: &str| names.show(text).into_owned();
    let row = |saved: &SavedProfile| {
        let profile = &saved.profile;
        [
            shown(&profile.store),
            shown(&profile.measured_at),
            shown(&profile.client_name),
            profile.cpus.to_string(),
            profile.rtt_seconds.map(format_seconds).unwrap_or_default(),
            profile.upload.len().to_string(),
            profile.download.len().to_string(),
        ]
    };
    let titles = ["store", "measured", "client", "CPUs", "RTT", "samples up", "samples down"];
    let rows: Vec<[String; 7]> = all.into_iter().map(row).collect();
    write!(out, "{}", table(titles, &rows))
}

/// Prints the profile of a store, and what follows from it for this client.
pub(super) fn show(profiles: &Profiles, store: &str, is_json: bool) -> anyhow::Result<()> {
    let saved = profiles.all().into_iter().find(|saved| saved.profile.store == store);
    // If the store has no profile, that of another store may apply.
    let applicable = profiles.for_transfers(store, cpus());
    if saved.is_none() && applicable.is_none() {
        bail!(missing_profile(store));
    }
    let mut out = io::stdout().lock();
    if is_json {
        let json = format!("{:#}", profile_as_json(store, saved.as_ref(), applicable.as_ref()));
        return Ok(writeln!(out, "{}", printable_json(&json))?);
    }
    let text = saved
        .map_or_else(|| format!("there is no profile of {store}\n"), |saved| describe_measurements(&saved));
    let applicable = applicable.filter(|applicable| !applicable.surfaces.is_empty());
    let advice = applicable.map(|applicable| describe_advice(&applicable)).unwrap_or_default();
    Ok(write!(out, "{text}{advice}")?)
}

/// The measurements of a profile, as text.
fn describe_measurements(saved: &SavedProfile) -> String {
    let Profile {
        store, measured_at, client_name, memory_bytes, storage_bytes_per_second, rtt_seconds, ..
    } = &saved.profile;
    let machine = [
        Some(client_name.clone()).filter(|name| !name.is_empty()),
        plan_output::describe_cpus(&saved.profile),
        memory_bytes.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))),
    ];
    let lines = [
        ("store", Some(store.clone())),
        ("measured", Some(measured_at.clone())),
        ("client", Some(machine.into_iter().flatten().collect::<Vec<_>>().join(", "))),
        ("storage", storage_bytes_per_second.map(|rate| format!("{} MB/s", format_megabytes(rate)))),
        ("interface", plan_output::describe_interface(&saved.profile)),
        ("RTT", rtt_seconds.map(format_seconds)),
        ("file", Some(saved.path.display().to_string())),
    ];
    let mut text = String::new();
    for (label, value) in lines {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{label:10} {}", Names::for_stdout().show(&value));
        }
    }
    let row = |sample: &Sample| {
        [
            ByteSize(sample.point.bytes).to_string(),
            sample.point.concurrency.to_string(),
            format_seconds(sample.latency),
            format_megabytes(sample.throughput()),
            format!(
                "{:.1} %{}",
                sample.relative_error * 100.0,
                if sample.from_transfer { " (from a transfer)" } else { "" }
            ),
            sample.tail.map_or_else(|| "-".to_owned(), |tail| format_seconds(tail.p99)),
        ]
    };
    for direction in DIRECTIONS {
        let rows: Vec<[String; 6]> = saved.profile.samples(direction).iter().map(row).collect();
        if !rows.is_empty() {
            let table = table(["size", "concurrency", "latency", "MB/s", "error", "p99"], &rows);
            let _ = write!(text, "\n{}, measured\n{table}", direction_name(direction));
        }
    }
    text
}

/// The best operating points for this client, and the concurrency that commands use, as text.
fn describe_advice(applicable: &ApplicableProfile) -> String {
    let ApplicableProfile { profile, surfaces, is_extrapolated } = applicable;
    let mut text = "\nbest operating points (advice)\n".to_owned();
    if *is_extrapolated {
        text = format!(
            "\nbest operating points (advice), from the profile of {}, extrapolated from {}\n",
            Names::for_stdout().show(&profile.store),
            describe_profile_client(profile)
        );
    }
    for (direction, surface) in surfaces {
        text += &plan_output::describe_best_points(*direction, surface, &candidate_points(), (&[], None));
        text += &plan_output::describe_model(surface);
    }
    text + &format!(
        "cp and sync use (size x concurrency): {}\n",
        describe_concurrency(&all_surfaces(applicable))
    )
}

fn all_surfaces(applicable: &ApplicableProfile) -> Vec<Surface> {
    applicable.surfaces.iter().map(|(_, surface)| surface.clone()).collect()
}

/// The profile of a store and what follows from it for this client, as JSON.
fn profile_as_json(
    store: &str,
    saved: Option<&SavedProfile>,
    applicable: Option<&ApplicableProfile>,
) -> Json {
    let sample = |sample: &Sample| {
        json!({
            "size": sample.point.bytes,
            "concurrency": sample.point.concurrency,
            "latency_seconds": sample.latency,
            "error": sample.relative_error,
            "from_transfer": sample.from_transfer,
            "p95_seconds": sample.tail.map(|tail| tail.p95),
            "p99_seconds": sample.tail.map(|tail| tail.p99),
            "bytes_per_second": sample.throughput(),
        })
    };
    let profile = saved.map(|saved| {
        let mut json = header_as_json(saved);
        for direction in DIRECTIONS {
            json[direction_name(direction)] = saved.profile.samples(direction).iter().map(sample).collect();
        }
        json
    });
    let best_point = |(direction, surface): &(Direction, Surface)| {
        let best = goal::choose(surface, &candidate_points(), Goal::Efficiency)?;
        Some(json!({
            "direction": direction_name(*direction),
            "size": best.point.bytes,
            "concurrency": best.point.concurrency,
            "bytes_per_second": best.throughput(),
            "std_dev": best.std_dev,
        }))
    };
    let best_points: Vec<Json> =
        applicable.into_iter().flat_map(|applicable| &applicable.surfaces).filter_map(best_point).collect();
    let plan = Plan::default().tuned(&applicable.map(all_surfaces).unwrap_or_default());
    json!({
        "store": store,
        "profile": profile,
        "from": applicable.map(|applicable| &applicable.profile.store),
        "extrapolated": applicable.is_some_and(|applicable| applicable.is_extrapolated),
        "best_points": best_points,
        "concurrency_by_size": EXAMPLE_REQUEST_BYTES.map(|bytes| json!({ "size": bytes, "concurrency": plan.concurrency_for(bytes) })),
    })
}

/// A profile without its samples, as JSON.
fn header_as_json(saved: &SavedProfile) -> Json {
    let profile = &saved.profile;
    json!({
        "store": profile.store,
        "measured_at": profile.measured_at,
        "client": profile.client_name,
        "cpus": profile.cpus,
        "memory_bytes": profile.memory_bytes,
        "storage_bytes_per_second": profile.storage_bytes_per_second,
        "interface_bytes_per_second": profile.interface_bytes_per_second,
        "rtt_seconds": profile.rtt_seconds,
        "upload_samples": profile.upload.len(),
        "download_samples": profile.download.len(),
        "path": saved.path.display().to_string(),
    })
}

/// A table of rows below titles. Columns of numbers are aligned to the right.
fn table<const N: usize>(titles: [&str; N], rows: &[[String; N]]) -> String {
    let is_number =
        |cell: &str| cell.starts_with(|first: char| first.is_ascii_digit()) && !cell.ends_with('Z');
    let columns: [(usize, bool); N] = std::array::from_fn(|i| {
        let width = rows.iter().map(|row| row[i].chars().count()).fold(titles[i].len(), usize::max);
        (width, rows.iter().all(|row| is_number(&row[i])))
    });
    let line = |cells: &[&str; N]| {
        let cells = cells.iter().zip(columns).map(|(cell, (width, is_right))| {
            if is_right { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let rows = rows.iter().map(|row| line(&row.each_ref().map(String::as_str)));
    std::iter::once(line(&titles)).chain(rows).collect()
}
