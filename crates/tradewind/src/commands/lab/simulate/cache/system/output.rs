//! The output of `lab simulate cache` without a trace: tables and JSON.

use std::io::{self, Write};

use serde_json::{Value, json};
use tradewind_lab::simulate::cache::system::streams::StreamsReport;
use tradewind_lab::simulate::cache::system::traffic::{self, Mapping, Mix, TrafficReport};
use tradewind_lab::simulate::cache::system::{
    Configuration, Contents, Options, PhaseReport, Report, RunReport,
};
use tradewind_model::class_policy::DataType;
use tradewind_model::slices::Device;

const MEGA: f64 = 1e6;
const GIGA: f64 = 1e9;
/// Latency of figure 11 up to which uploads of files are counted.
const FAST_SECONDS: f64 = 0.1;

/// Dollars per GB and requests per second, relative to disks only; `None` if these were not simulated.
fn relative_cost(
    report: &Report,
    run: &RunReport,
    phase: impl Fn(&RunReport) -> &PhaseReport,
) -> Option<f64> {
    let cost = |run: &RunReport| run.dollars_per_gb() / phase(run).requests_per_second();
    let disks = report.runs.iter().find(|run| run.configuration == Configuration::Hdd)?;
    Some(cost(run) / cost(disks))
}

fn text(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// A percentage without unneeded digits.
fn percent(share: f64) -> String {
    format!("{}%", (share * 1e5).round() / 1e3)
}

fn cache(run: &RunReport) -> String {
    run.cache_share.map_or_else(|| "-".to_owned(), percent)
}

fn labels(run: &RunReport) -> &'static str {
    run.labels.map_or("-", |labels| labels.name())
}

/// Writes figures 7 and 9.
pub(super) fn write_performance(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(
        out,
        "{:<10} {:>6} {:>9} {:>9} {:>8} {:>8} {:>9} {:>13} {:>8} {:>7} {:>7} {:>8} {:>8}",
        "config",
        "cache",
        "labels",
        "PUT MB/s",
        "mean s",
        "failed %",
        "GET MB/s",
        "first byte ms",
        "mean s",
        "SSD GB",
        "disk s",
        "cost PUT",
        "cost GET"
    )?;
    for run in &report.runs {
        writeln!(
            out,
            "{:<10} {:>6} {:>9} {:>9.1} {:>8.2} {:>8.2} {:>9.1} {:>13.0} {:>8.2} {:>7.1} {:>7.0} {:>8} {:>8}",
            run.configuration.name(),
            cache(run),
            labels(run),
            run.put.bytes_per_second() / MEGA,
            run.put.mean_latency_seconds,
            run.put.failure_share() * 100.0,
            run.get.bytes_per_second() / MEGA,
            run.get.mean_first_byte_seconds * 1e3,
            run.get.mean_latency_seconds,
            run.ssd_bytes_written() as f64 / GIGA,
            run.disk_busy_seconds(),
            text(relative_cost(report, run, |run| &run.put), 2),
            text(relative_cost(report, run, |run| &run.get), 2),
        )?;
    }
    Ok(())
}

/// Writes figure 8: what caches hold after the downloads, in percent.
pub(super) fn write_contents(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let names = ["metadata %"].into_iter().chain(DataType::ALL.map(DataType::name)).chain(["large"]);
    let titles: String = names.map(|name| format!(" {name:>10}")).collect();
    writeln!(out, "{:<10} {:>6} {:>9}{titles}", "config", "cache", "labels")?;
    for run in report.runs.iter().filter(|run| run.cache_share.is_some()) {
        let shares: String =
            shares(&run.contents_after_get).iter().map(|share| format!(" {:>10.1}", share * 100.0)).collect();
        writeln!(out, "{:<10} {:>6} {:>9}{shares}", run.configuration.name(), cache(run), labels(run))?;
    }
    Ok(())
}

/// Shares of metadata, types and large objects.
fn shares(contents: &Contents) -> Vec<f64> {
    let parts = [contents.metadata].into_iter().chain(contents.types.iter().copied()).chain([contents.large]);
    parts.map(|bytes| bytes as f64 / contents.total().max(1) as f64).collect()
}

/// The report as JSON.
pub(super) fn report_json(options: &Options, report: &Report) -> Value {
    json!({
        "scale": options.scale,
        "seed": options.seed,
        "chunk_bytes": options.chunk_bytes,
        "fifo_links": options.has_fifo_links,
        "runs": report.runs.iter().map(|run| run_json(report, run)).collect::<Vec<_>>(),
    })
}

fn run_json(report: &Report, run: &RunReport) -> Value {
    json!({
        "config": run.configuration.name(),
        "cache_percent": run.cache_share.map(|share| share * 100.0),
        "labels": run.labels.map(|labels| labels.name()),
        "put": phase_json(&run.put),
        "get": phase_json(&run.get),
        "delete": phase_json(&run.delete),
        "dollars_per_gb": run.dollars_per_gb(),
        "relative_cost_put": relative_cost(report, run, |run| &run.put),
        "relative_cost_get": relative_cost(report, run, |run| &run.get),
        "contents_after_put": contents_json(&run.contents_after_put),
        "contents_after_get": contents_json(&run.contents_after_get),
    })
}

fn phase_json(phase: &PhaseReport) -> Value {
    json!({
        "requests": phase.requests,
        "failures": phase.failures,
        "bytes": phase.bytes,
        "seconds": phase.seconds,
        "bytes_per_second": phase.bytes_per_second(),
        "busy_bytes_per_second": phase.busy_bytes_per_second(),
        "requests_per_second": phase.requests_per_second(),
        "failure_share": phase.failure_share(),
        "mean_latency_seconds": phase.mean_latency_seconds,
        "mean_success_seconds": phase.mean_success_seconds,
        "mean_first_byte_seconds": phase.mean_first_byte_seconds,
        "ssd_bytes_written": phase.ssd_bytes_written,
        "ssd_bytes_read": phase.ssd_bytes_read,
        "disk_bytes_written": phase.disk_bytes_written,
        "disk_bytes_read": phase.disk_bytes_read,
        "disk_busy_seconds": phase.disk_busy_seconds,
    })
}

fn contents_json(contents: &Contents) -> Value {
    let types = DataType::ALL.iter().zip(&contents.types);
    let mut bytes: serde_json::Map<String, Value> =
        types.map(|(object_type, bytes)| (object_type.name().to_owned(), json!(bytes))).collect();
    bytes.insert("metadata".to_owned(), json!(contents.metadata));
    bytes.insert("large".to_owned(), json!(contents.large));
    Value::Object(bytes)
}

/// All mappings of one mix.
#[derive(Debug)]
pub(super) struct MixReport {
    mix: Mix,
    mappings: Vec<TrafficReport>,
    /// The stream of files alone, with the adaptive mapping.
    files_alone: TrafficReport,
}

impl MixReport {
    /// Simulates a mix.
    pub(super) fn new(mix: &Mix, seed: u64) -> Self {
        let simulate = |mapping, mix: &Mix| traffic::simulate(mapping, mix, super::DURATION, seed);
        let alone = Mix { name: mix.name, clients: [mix.clients[0], 0, 0, 0] };
        Self {
            mix: *mix,
            mappings: Mapping::ALL.iter().map(|mapping| simulate(*mapping, mix)).collect(),
            files_alone: simulate(Mapping::Adaptive, &alone),
        }
    }

    /// Bytes per second of both devices, each alone with the whole mix.
    fn capacity(&self) -> f64 {
        let is_alone =
            |report: &&TrafficReport| matches!(report.mapping, Mapping::Alone(Device::Ssd | Device::Disk));
        self.mappings.iter().filter(is_alone).map(TrafficReport::total_bytes_per_second).sum()
    }
}

/// Writes figures 10 and 11.
pub(super) fn write_traffic(out: &mut impl Write, mixes: &[MixReport]) -> io::Result<()> {
    let titles: String =
        traffic::STREAMS.iter().map(|object_type| format!(" {:>8}", object_type.name())).collect();
    writeln!(
        out,
        "{:<16} {:<10} {:>8} {:>10}{titles} {:>12} {:>15}",
        "mix", "mapping", "MB/s", "x SSD+disk", "files p90 ms", "files in 100 ms"
    )?;
    for mix in mixes {
        for report in &mix.mappings {
            let streams: String =
                report.bytes_per_second.iter().map(|bytes| format!(" {:>8.1}", bytes / MEGA)).collect();
            let p90 = report.latency(0, 0.9);
            writeln!(
                out,
                "{:<16} {:<10} {:>8.1} {:>10.3}{streams} {:>12} {:>15}",
                mix.mix.name,
                report.mapping.name(),
                report.total_bytes_per_second() / MEGA,
                report.total_bytes_per_second() / mix.capacity(),
                text(p90.map(|seconds| seconds * 1e3), 1),
                p90.map_or_else(|| "-".to_owned(), |_| percent_of_files(report)),
            )?;
        }
        if let Some(p90) = mix.files_alone.latency(0, 0.9) {
            writeln!(out, "{:<16} files alone: p90 of {:.1} ms", mix.mix.name, p90 * 1e3)?;
        }
    }
    Ok(())
}

fn percent_of_files(report: &TrafficReport) -> String {
    format!("{:.0}%", report.share_within(0, FAST_SECONDS) * 100.0)
}

/// Figures 10 and 11 as JSON.
pub(super) fn traffic_json(mixes: &[MixReport]) -> Value {
    json!({ "mixes": mixes.iter().map(mix_json).collect::<Vec<_>>() })
}

fn mix_json(mix: &MixReport) -> Value {
    json!({
        "mix": mix.mix.name,
        "clients": mix.mix.clients,
        "capacity_bytes_per_second": mix.capacity(),
        "files_alone_p90_seconds": mix.files_alone.latency(0, 0.9),
        "mappings": mix.mappings.iter().map(mapping_json).collect::<Vec<_>>(),
    })
}

fn mapping_json(report: &TrafficReport) -> Value {
    let streams = traffic::STREAMS.iter().enumerate().map(|(stream, object_type)| {
        json!({
            "type": object_type.name(),
            "bytes_per_second": report.bytes_per_second[stream],
            "p50_seconds": report.latency(stream, 0.5),
            "p90_seconds": report.latency(stream, 0.9),
            "share_within_100_ms": report.share_within(stream, FAST_SECONDS),
        })
    });
    json!({
        "mapping": report.mapping.name(),
        "bytes_per_second": report.total_bytes_per_second(),
        "streams": streams.collect::<Vec<_>>(),
    })
}

/// Writes the experiment of streams on one disk.
pub(super) fn write_streams(out: &mut impl Write, report: &StreamsReport) -> io::Result<()> {
    writeln!(
        out,
        "{} streams: {:.3} of the sequential rate; slice {:.0} ms, longest wait of {} small misses {:.0} ms",
        super::STREAMS,
        report.sequential_share,
        report.slice_seconds * 1e3,
        report.misses,
        report.max_miss_wait_seconds * 1e3
    )
}

/// The experiment of streams on one disk as JSON.
pub(super) fn streams_json(report: &StreamsReport) -> Value {
    json!({
        "streams": super::STREAMS,
        "sequential_share": report.sequential_share,
        "slice_seconds": report.slice_seconds,
        "max_miss_wait_seconds": report.max_miss_wait_seconds,
        "misses": report.misses,
    })
}
