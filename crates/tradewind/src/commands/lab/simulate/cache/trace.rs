//! `tradewind lab simulate cache --trace`: the miss ratios of eviction policies for a trace.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tradewind_lab::simulate::cache::{CacheReport, CacheSize, Policy, Trace, simulate};

use super::super::super::super::CommandOutcome;

/// Flags of a trace.
#[derive(Debug, Args)]
#[command(next_help_heading = "Miss ratios of a trace")]
pub(in crate::commands) struct TraceArguments {
    /// File of the trace: a block number per line, plain or compressed with zstd; - is the standard input
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Sizes of the cache, in blocks or in percent of the distinct blocks, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, default_value = "1%,5%,10%", requires = "trace")]
    blocks: Vec<CacheSize>,
    /// Policies to compare, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', requires = "trace")]
    policy: Vec<PolicyName>,
    /// Number of requests to read from the start of the trace, or all
    #[arg(long, value_name = "N", value_parser = parse_requests, default_value = "all", requires = "trace")]
    requests: RequestLimit,
}

/// The policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// Least recently used
    Lru,
    /// S3-FIFO by Yang et al. (2023)
    S3Fifo,
    /// The default of the cache: an LRU window before the main queue, whose size adapts to the requests
    AdaptiveWindow,
}

impl PolicyName {
    fn policy(self) -> Policy {
        match self {
            Self::Lru => Policy::Lru,
            Self::S3Fifo => Policy::S3Fifo,
            Self::AdaptiveWindow => Policy::AdaptiveWindow,
        }
    }
}

/// The number of requests to read; `None` is all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RequestLimit(Option<u64>);

fn parse_requests(text: &str) -> Result<RequestLimit, String> {
    if text == "all" {
        return Ok(RequestLimit(None));
    }
    match text.parse() {
        Ok(requests) if requests > 0 => Ok(RequestLimit(Some(requests))),
        _ => Err("a number of requests from 1, or all".to_owned()),
    }
}

fn parse_size(text: &str) -> Result<CacheSize, String> {
    if let Some(percent) = text.strip_suffix('%') {
        return match percent.parse() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(CacheSize::Percent(percent)),
            _ => Err("a percentage is above 0 and at most 100".to_owned()),
        };
    }
    match text.parse() {
        Ok(blocks) if blocks > 0 => Ok(CacheSize::Blocks(blocks)),
        _ => Err("a number of blocks from 1, or a percentage such as 5%".to_owned()),
    }
}

pub(super) fn run(arguments: &TraceArguments, path: &Path, json: bool) -> anyhow::Result<CommandOutcome> {
    let trace = Trace::open(path, arguments.requests.0)
        .with_context(|| format!("cannot use the trace {}", path.display()))?;
    let names = if arguments.policy.is_empty() { PolicyName::value_variants() } else { &arguments.policy };
    let reports: Vec<CacheReport> = arguments
        .blocks
        .iter()
        .flat_map(|&size| names.iter().map(move |name| (size, name.policy())))
        .map(|(size, policy)| simulate(&trace, size, policy))
        .collect();
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", report_json(&trace, &reports))?;
    } else {
        write_table(&mut out, &trace, &reports)?;
    }
    Ok(CommandOutcome::Done)
}

fn write_table(out: &mut impl Write, trace: &Trace, reports: &[CacheReport]) -> io::Result<()> {
    writeln!(out, "{} requests, {} distinct blocks", trace.requests().len(), trace.distinct_blocks())?;
    writeln!(out, "{:>12} {:<16} {:>10} {:>14}", "blocks", "policy", "miss ratio", "CPU ns/request")?;
    for report in reports {
        writeln!(
            out,
            "{:>12} {:<16} {:>10.4} {:>14.0}",
            report.cache_blocks,
            report.policy.name(),
            report.miss_ratio(),
            report.cpu_ns_per_request(),
        )?;
    }
    Ok(())
}

fn report_json(trace: &Trace, reports: &[CacheReport]) -> Value {
    json!({
        "requests": trace.requests().len(),
        "distinct_blocks": trace.distinct_blocks(),
        "results": reports.iter().map(|report| json!({
            "policy": report.policy.name(),
            "cache_blocks": report.cache_blocks,
            "misses": report.misses,
            "miss_ratio": report.miss_ratio(),
            "cpu_ns_per_request": report.cpu_ns_per_request(),
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: TraceArguments,
    }

    fn parse(line: &[&str]) -> Result<TraceArguments, String> {
        CommandLine::try_parse_from([&["cache", "--trace", "-"], line].concat())
            .map(|line| line.arguments)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_blocks_or_percentages_above_zero() {
        let sizes = parse(&["--blocks", "20,1%,0.5%"]).unwrap().blocks;
        assert_eq!(sizes, [CacheSize::Blocks(20), CacheSize::Percent(1.0), CacheSize::Percent(0.5)]);
        for size in ["0", "0%", "101%", "NaN%", "-1", "x", ""] {
            assert!(parse(&[&format!("--blocks={size}")]).is_err(), "{size:?}");
        }
    }

    #[test]
    fn requests_are_all_or_a_number_above_zero() {
        let limit = |text: &str| parse(&["--requests", text]).map(|arguments| arguments.requests.0);
        assert_eq!((limit("all"), limit("15")), (Ok(None), Ok(Some(15))));
        assert!(limit("0").is_err() && limit("some").is_err());
    }

    #[test]
    fn names_on_the_command_line_are_those_of_the_simulation() {
        let names = Policy::ALL.map(Policy::name).join(",");
        let policies = parse(&["--policy", &names]).unwrap().policy;
        assert_eq!(policies.iter().map(|name| name.policy()).collect::<Vec<_>>(), Policy::ALL);
    }

    #[test]
    fn table_and_json_have_one_result_per_size_and_policy() {
        let trace = Trace::read("1\n2\n1\n1\n".as_bytes(), None).unwrap();
        let reports = [1, 2].map(|blocks| simulate(&trace, CacheSize::Blocks(blocks), Policy::Lru));
        let mut out = Vec::new();
        write_table(&mut out, &trace, &reports).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), "4 requests, 2 distinct blocks");
        assert_eq!(
            (&lines[2][..3], &lines[3][..3]),
            (&["1", "lru", "0.7500"][..], &["2", "lru", "0.5000"][..])
        );
        let json = report_json(&trace, &reports);
        assert_eq!(
            (&json["results"][0]["misses"], &json["results"][1]["cache_blocks"]),
            (&json!(3), &json!(2))
        );
    }
}
