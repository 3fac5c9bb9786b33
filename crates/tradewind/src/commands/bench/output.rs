//! Output of a measurement: a table, a progress line on a terminal, and a result file.

pub(super) mod files;

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tradewind_bench::Operation;
use tradewind_bench::drive::{Progress, StopSignal};
use tradewind_bench::posix;
use tradewind_bench::posix::result::PosixRecord;
use tradewind_bench::result::{
    AgentInfo, ClientMachine, LatencySummary, Measurement, ResultLine, Run, SCHEMA,
};
use tradewind_bench::runner::RunEvent;
use tradewind_core::Timestamp;

use crate::commands::CommandOutcome;
use crate::commands::summary::rfc3339;

/// The interval at which the progress line is drawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Flags for the output of a measurement.
#[derive(Debug, Args)]
pub(super) struct OutputFlags {
    /// Result file, for `tradewind report` [default: bench-TIME.jsonl]
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Write no result file
    #[arg(long, conflicts_with = "out", help_heading = "Output")]
    no_out: bool,
    /// Print the results as JSON lines on standard output instead of the table
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// The description of a run.
pub(super) struct RunDescription {
    pub location: String,
    pub store: String,
    /// The prefix of all objects.
    pub prefix: String,
    pub seed: u64,
    /// Each request uses a new connection.
    pub new_connections: bool,
    /// The directory of uploaded and downloaded files, if any.
    pub files_dir: Option<String>,
    pub cores: usize,
    pub measurements: usize,
    /// The header of the table.
    pub table_header: &'static str,
    /// The agents, if this machine does not generate the load.
    pub agents: Vec<AgentInfo>,
}

/// The output of a measurement. Dropping it removes the progress line.
pub(super) struct Output {
    is_json: bool,
    file: Option<(File, PathBuf)>,
    /// The result file has the default name.
    is_default_path: bool,
    progress_line: Option<ProgressLine>,
    measurements: usize,
    finished_measurements: usize,
    failed: u64,
    /// The number of measurements that are void or without any success.
    unsuccessful: u32,
    /// The first error of writing output.
    error: Option<io::Error>,
    /// Triggered if stdout is a closed pipe.
    stop: StopSignal,
}

struct ProgressLine {
    bar: ProgressBar,
    redraw_task: tokio::task::JoinHandle<()>,
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.redraw_task.abort();
        self.bar.finish_and_clear();
    }
}

impl Output {
    pub fn begin(
        flags: &OutputFlags,
        description: &RunDescription,
        now: Timestamp,
        stop: StopSignal,
    ) -> anyhow::Result<Self> {
        let path = flags.out.clone().or_else(|| (!flags.no_out).then(|| default_path(now)));
        let file = match path {
            Some(path) => {
                let file = File::create_new(&path);
                let file = file.with_context(|| format!("cannot create {}", path.display()))?;
                Some((file, path))
            }
            None => None,
        };
        let mut output = Self {
            is_json: flags.json,
            file,
            is_default_path: flags.out.is_none(),
            progress_line: None,
            measurements: description.measurements,
            finished_measurements: 0,
            failed: 0,
            unsuccessful: 0,
            error: None,
            stop,
        };
        let run = Run {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: now.millis(),
            client: local_client(description.cores),
            agents: description.agents.clone(),
            location: description.location.clone(),
            store: description.store.clone(),
            prefix: description.prefix.clone(),
            seed: description.seed,
            new_connections: description.new_connections,
            files_dir: description.files_dir.clone(),
        };
        output.write_line(&ResultLine::Run(Box::new(run)));
        if !flags.json {
            let from = match description.agents.len() {
                0 => local_client(description.cores).hostname,
                agents => format!("{agents} agents"),
            };
            output.print(&format!("{} from {from}", description.location));
            output.print(description.table_header);
        }
        Ok(output)
    }

    /// Handles an event of a benchmark of a store.
    pub fn handle_event(&mut self, event: RunEvent<'_>) {
        match event {
            RunEvent::PhaseStarted { description, max_duration, progress } => {
                self.show_progress(&description, max_duration, progress)
            }
            RunEvent::Measured(measurement) => {
                self.progress_line = None;
                self.finished_measurements += 1;
                self.failed += measurement.failure_count();
                self.unsuccessful += u32::from(
                    measurement.is_void() || (measurement.has_no_success() && !measurement.is_partial()),
                );
                self.write_line(&ResultLine::Measurement(Box::new(measurement.clone())));
                if !self.is_json {
                    rows(measurement).iter().for_each(|row| self.print(row));
                }
            }
        }
    }

    /// Handles an event of a benchmark of a file system.
    pub fn handle_posix_event(&mut self, event: posix::PosixEvent<'_>) {
        match event {
            posix::PosixEvent::Started { description, progress } => {
                self.show_progress(&description, None, vec![progress])
            }
            posix::PosixEvent::Measured(measured) => {
                self.progress_line = None;
                self.finished_measurements +=
                    usize::from(matches!(measured, PosixRecord::Access(_) | PosixRecord::Postmark(_)));
                self.failed += measured.failure_count();
                self.unsuccessful += u32::from(measured.has_no_success());
                self.write_line(&ResultLine::Posix(Box::new(measured.clone())));
                if !self.is_json {
                    files::rows(measured).iter().for_each(|row| self.print(row));
                }
            }
        }
    }

    fn show_progress(
        &mut self,
        description: &str,
        max_duration: Option<Duration>,
        progress: Vec<Arc<Progress>>,
    ) {
        self.progress_line = None;
        if io::stderr().is_terminal() {
            self.progress_line = Some(start_progress_line(
                format!("{}/{} {description}", self.finished_measurements, self.measurements),
                max_duration,
                progress,
            ));
        }
    }

    /// Finishes the output.
    pub fn end(mut self, is_complete: bool, servers: Vec<String>) -> anyhow::Result<CommandOutcome> {
        self.progress_line = None;
        self.write_line(&ResultLine::End { partial: !is_complete, servers });
        if let Some((_, path)) = self.file.take().filter(|_| self.is_default_path) {
            writeln!(io::stderr(), "the results are in {}", path.display())?;
        }
        if let Some(error) = self.error {
            return Err(error).context("results are missing");
        }
        // If everything was skipped, there is no result.
        let has_no_result = is_complete && self.finished_measurements == 0;
        Ok(if self.failed > 0 || self.unsuccessful > 0 || has_no_result {
            CommandOutcome::FoundProblems
        } else {
            CommandOutcome::Done
        })
    }

    /// Writes a line to the result file, in one write so that a killed process leaves whole lines. A write error is
    /// reported at once and ends writing to the file; standard output still gets the line.
    fn write_line(&mut self, line: &ResultLine) {
        let text = match serde_json::to_string(line) {
            Ok(text) => text + "\n",
            Err(e) => return self.record_error(Err(e.into())),
        };
        if let Some((file, path)) = &mut self.file
            && let Err(e) = file.write_all(text.as_bytes())
        {
            let _ =
                writeln!(io::stderr(), "tradewind: cannot write {}: {e}; it is incomplete", path.display());
            self.file = None;
            self.record_error(Err(e));
        }
        if self.is_json {
            let printed = io::stdout().write_all(text.as_bytes());
            self.record_error(printed);
        }
    }

    fn print(&mut self, row: &str) {
        let printed = writeln!(io::stdout(), "{row}");
        self.record_error(printed);
    }

    fn record_error(&mut self, written: io::Result<()>) {
        if let Err(e) = written {
            if e.kind() == io::ErrorKind::BrokenPipe {
                self.stop.trigger();
            }
            self.error.get_or_insert(e);
        }
    }
}

fn default_path(now: Timestamp) -> PathBuf {
    let stamp: String = rfc3339(now).chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    PathBuf::from(format!("bench-{stamp}.jsonl"))
}

/// The description of this machine.
pub(in crate::commands) fn local_client(cores: usize) -> ClientMachine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kib: u64 = memory.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
    ClientMachine {
        hostname: read("/proc/sys/kernel/hostname").trim().to_owned(),
        cpu_model: field(&read("/proc/cpuinfo"), "model name"),
        cores,
        memory_bytes: kib << 10,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
    }
}

fn start_progress_line(
    description: String,
    max_duration: Option<Duration>,
    progress: Vec<Arc<Progress>>,
) -> ProgressLine {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let drawing = bar.clone();
    let redraw_task = tokio::spawn(async move {
        let (started, mut last) = (Instant::now(), (0, 0, 0));
        loop {
            tokio::time::sleep(REDRAW_INTERVAL).await;
            let now = progress
                .iter()
                .map(|load| load.snapshot())
                .fold((0, 0, 0), |sum, read| (sum.0 + read.0, sum.1 + read.1, sum.2 + read.2));
            let redraws_per_second = 1.0 / REDRAW_INTERVAL.as_secs_f64();
            // The counters of an agent restart with each of its loads.
            let increase = (now.0.saturating_sub(last.0), now.1.saturating_sub(last.1));
            let (operations, bytes) =
                (increase.0 as f64 * redraws_per_second, (increase.1 as f64 * redraws_per_second) as u64);
            let failed = if now.2 > 0 { format!(", {} failed", HumanCount(now.2)) } else { String::new() };
            let left =
                max_duration.map(|max_duration| max_duration.saturating_sub(started.elapsed()).as_secs_f64());
            let left = left.map(|left| format!(", {left:.1} s left")).unwrap_or_default();
            drawing.set_message(format!(
                "{description}: {} requests/s, {}/s{failed}{left}",
                HumanCount(operations as u64),
                HumanBytes(bytes)
            ));
            drawing.tick();
            last = now;
        }
    });
    ProgressLine { bar, redraw_task }
}

/// The header of the table of requests.
pub(super) const TABLE_HEADER: &str = "\
what                     size          concurrent  requests/s          MB/s   p50 ms   p99 ms   max ms  CPU us  failed";

/// A row for each operation, followed by failures and notes.
fn rows(measurement: &Measurement) -> Vec<String> {
    let millis = |latency: &LatencySummary, figure: fn(&LatencySummary) -> u64| {
        latency
            .figure_if_any(figure)
            .map_or_else(|| "-".to_owned(), |micros| format!("{:.2}", micros as f64 / 1e3))
    };
    let share =
        |numerator: f64, denominator: f64| if denominator > 0.0 { numerator / denominator } else { 0.0 };
    let throughput = measurement.operations_per_second;
    let confidence = throughput
        .ci95_half_width
        .map(|half_width| format!("+-{:.0}%", 100.0 * share(half_width, throughput.mean)))
        .unwrap_or_default();
    let cpu = measurement.cpu_us_per_operation().map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.0}"));
    let is_mixed = measurement.mix.operations().count() > 1;
    let request_label = |operation: Operation| match &measurement.trace {
        Some(trace) => format!("{operation} of {}", trace.name),
        None if is_mixed => format!("{operation} of {}", measurement.mix),
        None => operation.to_string(),
    };
    let mix_total = is_mixed.then(|| {
        let (rate, bytes) = (measurement.operations_per_second.mean, measurement.bytes_per_second.mean / 1e6);
        format!("  {:<47} {rate:>11.1} {confidence:>5} {bytes:>8.1}", "all of these")
    });
    let mut rows: Vec<String> = (measurement.operations.iter())
        .map(|(operation, figures)| {
            let latency = &figures.latency_us;
            let failed: u64 = figures.failures.values().sum();
            let concurrency = match measurement.requests_per_second {
                Some(rate) if measurement.trace.is_some() => format!("{rate:.1}/s"),
                Some(rate) => format!("{rate}/s"),
                None => measurement.concurrency.to_string(),
            };
            format!(
                "{:<24} {:<14} {concurrency:>9} {:>11.1} {:>5} {:>8.1} {:>8} {:>8} {:>8} {cpu:>7} {failed:>7}",
                request_label(*operation),
                measurement.sizes.to_string(),
                figures.requests_per_second,
                // Unknown for one operation of a mix.
                if is_mixed { "" } else { &confidence },
                figures.bytes_per_second / 1e6,
                millis(latency, |of| of.p50),
                millis(latency, |of| of.p99),
                millis(latency, |of| of.max),
            )
        })
        .collect();
    rows.extend(mix_total);
    rows.extend(measurement.concurrent_with.iter().map(|other| format!("  concurrent with {other}")));
    rows.extend(measurement.agents.iter().map(|agent| {
        let (operations, bytes) = (agent.operations_per_second, agent.bytes_per_second / 1e6);
        format!("  {:<47} {operations:>11.1} {:>5} {bytes:>8.1}", agent.address, "")
    }));
    rows.extend(measurement.operations.iter().filter_map(|(operation, figures)| {
        let (hits, ratio) = (figures.cached.hits, figures.cached.hit_ratio()?);
        let reads = hits + figures.cached.misses;
        Some(format!("  cache: {:.1} % of {reads} {operation} were hits, by Cache-Status", 100.0 * ratio))
    }));
    let samples = measurement.operations.values().filter_map(|figures| figures.failure_samples.first());
    rows.extend(samples.map(|sample| format!("  failed: {sample}")));
    rows.extend(measurement.notes.iter().map(|note| format!("  note: {note}")));
    rows
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn default_file_name_contains_the_time() {
        let path = default_path(Timestamp::from_millis(1_369_353_600_000));
        assert_eq!(path, Path::new("bench-20130524T000000Z.jsonl"));
    }
}
