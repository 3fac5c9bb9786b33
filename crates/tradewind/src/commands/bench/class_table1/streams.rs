//! `--streams`: traffic control with four streams.

use std::io::{self, Write};
use std::sync::Arc;

use tradewind_bench::class_workload::{RequestStats, StreamsComparison};
use tradewind_bench::drive::{BenchEnv, StopSignal};

use super::{Arguments, remove_rest};
use crate::commands::CommandOutcome;
use crate::commands::terminal::print_error_line;

/// Runs the streams, prints the result and removes the objects.
pub(super) async fn measure(
    arguments: &Arguments,
    env: &BenchEnv,
    prefix: &str,
    stop: &StopSignal,
) -> anyhow::Result<CommandOutcome> {
    let workload = arguments.workload();
    let mut output = io::stdout().lock();
    let mut written = if arguments.json { Ok(()) } else { write_header(&mut output) };
    let on_operation = |comparison: &StreamsComparison| {
        if !arguments.json && written.is_ok() {
            written = write_comparison(&mut output, comparison);
        }
    };
    let time = arguments.time.0;
    let measured = workload.run_streams(env, prefix, time, stop, &Arc::default(), on_operation).await;
    remove_rest(arguments, env, prefix, stop).await?;
    let report = measured?;
    written?;
    if arguments.json {
        writeln!(output, "{}", serde_json::to_value(&report)?)?;
    }
    for comparison in report.operations.iter().filter(|comparison| comparison.failure_count() > 0) {
        let example = comparison.failure_samples.first().map_or("", String::as_str);
        print_error_line(format_args!(
            "tradewind: {} of {} failed, for example: {example}",
            comparison.failure_count(),
            comparison.operation,
        ))?;
    }
    let is_clean = report.failure_count() == 0 && !report.is_partial;
    Ok(if is_clean { CommandOutcome::Done } else { CommandOutcome::FoundProblems })
}

fn write_header(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<5} {:<12} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "what", "stream", "requests", "failed %", "MB/s", "mean ms", "p90 ms", "p99 ms"
    )
}

fn write_comparison(out: &mut impl Write, comparison: &StreamsComparison) -> io::Result<()> {
    let operation = comparison.operation.to_string();
    write_row(out, &operation, "files alone", &comparison.files_alone)?;
    for stream in &comparison.together {
        write_row(out, &operation, stream.name, &stream.stats)?;
    }
    let ratio = comparison.files_p90_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    let rate = comparison.bytes_per_second / 1e6;
    writeln!(out, "{operation:<5} all streams: {rate:.2} MB/s, p90 of files together / alone: {ratio}")
}

fn write_row(out: &mut impl Write, operation: &str, name: &str, stats: &RequestStats) -> io::Result<()> {
    let millis = |micros: Option<f64>| micros.map_or_else(|| "-".to_owned(), |us| format!("{:.2}", us / 1e3));
    let latency = &stats.latency_us;
    writeln!(
        out,
        "{operation:<5} {name:<12} {:>8} {:>8.2} {:>9.2} {:>9} {:>9} {:>9}",
        stats.requests,
        stats.failure_share() * 100.0,
        stats.bytes_per_second / 1e6,
        millis(latency.figure_if_any(|latency| latency.mean)),
        millis(latency.figure_if_any(|latency| latency.p90 as f64)),
        millis(latency.figure_if_any(|latency| latency.p99 as f64)),
    )
}
