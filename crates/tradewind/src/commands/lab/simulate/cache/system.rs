//! `tradewind lab simulate cache` without a trace: the storage system of Chen, Mesnier and Hahn (2014) on the device
//! model.

mod output;

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tradewind_core::quantity::ByteSize;
use tradewind_lab::simulate::cache::system::{Configuration, Options, simulate, streams, traffic};

use super::super::super::super::labels_name::LabelsName;
use super::super::super::super::{CommandOutcome, UsageError};

/// Simulated time of a mix of traffic, and of streams on one disk.
const DURATION: Duration = Duration::from_secs(300);
/// Streams on one disk, and the time between two small misses.
const STREAMS: usize = 8;
const MISS_INTERVAL: Duration = Duration::from_millis(500);

/// Flags of the storage system.
#[derive(Debug, Args)]
#[command(next_help_heading = "The storage system of Chen et al. (2014)")]
pub(in crate::commands) struct SystemArguments {
    /// Experiment to simulate
    #[arg(long, value_enum, default_value_t = Experiment::Caching, conflicts_with = "trace")]
    experiment: Experiment,
    /// Sizes of the cache, in percent of the data of a node, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = percent, default_value = "5%,10%", conflicts_with = "trace")]
    cache: Vec<f64>,
    /// Configurations to compare, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', conflicts_with = "trace")]
    config: Vec<ConfigurationName>,
    /// Labels that clients send, for the configurations dss and tradewind, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "on",
        conflicts_with = "trace"
    )]
    labels: Vec<LabelsName>,
    /// Size of the workload; with less than 1 there are fewer objects, and smaller disk images
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, conflicts_with = "trace")]
    scale: f64,
    /// Unit in which the caches lru and dss place and write back data, from 4KiB to 1MiB
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, default_value = "64KiB", conflicts_with = "trace")]
    chunk: ByteSize,
    /// Links of the configuration tradewind send in the order of arrival, and not the start of a response first
    #[arg(long, conflicts_with = "trace")]
    fifo_links: bool,
    /// Seed of the random numbers: objects, requests and rotational delays
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "trace")]
    seed: u64,
}

/// The experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// PUT, GET and DELETE with and without caches (figures 7 to 9)
    Caching,
    /// Uploads of four types on an SSD and a disk without a cache (figures 10 and 11)
    Traffic,
    /// Eight large streams and small misses on one disk
    Streams,
}

/// The configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ConfigurationName {
    /// Disks only
    Hdd,
    /// Disks, and an SSD as a cache in LRU order
    Lru,
    /// Disks, and an SSD as a cache with the priorities of the paper
    Dss,
    /// SSDs only
    Ssd,
    /// Like tradewind, with the SSD in the order of S3-FIFO, which ignores labels and sizes
    #[value(name = "s3-fifo")]
    S3Fifo,
    /// Disks, and an SSD as a cache by label, size and observed requests, with disk slices
    Tradewind,
}

impl ConfigurationName {
    fn configuration(self) -> Configuration {
        match self {
            Self::Hdd => Configuration::Hdd,
            Self::Lru => Configuration::Lru,
            Self::Dss => Configuration::Dss,
            Self::Ssd => Configuration::Ssd,
            Self::S3Fifo => Configuration::S3Fifo,
            Self::Tradewind => Configuration::Tradewind,
        }
    }
}

impl SystemArguments {
    fn options(&self) -> Options {
        let configurations: Vec<_> = self.config.iter().map(|name| name.configuration()).collect();
        Options {
            configurations: if configurations.is_empty() {
                Configuration::ALL.to_vec()
            } else {
                configurations
            },
            cache_shares: self.cache.clone(),
            labels: self.labels.iter().map(|name| name.labels()).collect(),
            has_fifo_links: self.fifo_links,
            chunk_bytes: self.chunk.0,
            scale: self.scale,
            seed: self.seed,
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    number.map(|number| number / 100.0).ok_or_else(|| "write a percentage such as 5%".to_owned())
}

pub(super) fn run(arguments: &SystemArguments, json: bool) -> anyhow::Result<CommandOutcome> {
    let mut out = io::stdout().lock();
    match arguments.experiment {
        Experiment::Caching => {
            let options = arguments.options();
            let report = simulate(&options).map_err(|e| UsageError(e.to_string()))?;
            if json {
                writeln!(out, "{}", output::report_json(&options, &report))?;
            } else {
                output::write_performance(&mut out, &report)?;
                writeln!(out)?;
                output::write_contents(&mut out, &report)?;
            }
        }
        Experiment::Traffic => {
            let mixes: Vec<_> =
                traffic::MIXES.iter().map(|mix| output::MixReport::new(mix, arguments.seed)).collect();
            if json {
                writeln!(out, "{}", output::traffic_json(&mixes))?;
            } else {
                output::write_traffic(&mut out, &mixes)?;
            }
        }
        Experiment::Streams => {
            let report = streams::simulate(STREAMS, MISS_INTERVAL, DURATION, arguments.seed);
            if json {
                writeln!(out, "{}", output::streams_json(&report))?;
            } else {
                output::write_streams(&mut out, &report)?;
            }
        }
    }
    Ok(CommandOutcome::Done)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tradewind_model::workload::Labels;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: SystemArguments,
        /// The other flags conflict with it.
        #[arg(long)]
        trace: bool,
    }

    fn options(line: &[&str]) -> Options {
        CommandLine::parse_from([&["cache"], line].concat()).arguments.options()
    }

    #[test]
    fn flags_have_the_defaults_of_the_simulation() {
        assert_eq!(options(&[]), Options::default());
    }

    #[test]
    fn names_on_the_command_line_are_those_of_the_simulation() {
        let configurations = Configuration::ALL.map(Configuration::name).join(",");
        assert_eq!(options(&["--config", &configurations]).configurations, Configuration::ALL);
        let labels = Labels::ALL.map(Labels::name).join(",");
        assert_eq!(options(&["--labels", &labels]).labels, Labels::ALL);
        assert_eq!(options(&["--cache", "1%,12.5%"]).cache_shares, [0.01, 0.125]);
        assert!(CommandLine::try_parse_from(["cache", "--cache", "5"]).is_err());
        assert!(CommandLine::try_parse_from(["cache", "--trace"]).unwrap().trace);
        assert!(CommandLine::try_parse_from(["cache", "--trace", "--cache", "5%"]).is_err());
    }

    #[test]
    fn output_has_one_line_per_run() {
        let options = options(&["--scale", "0.01", "--config", "hdd,tradewind"]);
        let report = simulate(&options).unwrap();
        let mut out = Vec::new();
        output::write_performance(&mut out, &report).unwrap();
        output::write_contents(&mut out, &report).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        // Two titles; three runs, and those with a cache again.
        assert_eq!(lines.len(), 2 + 3 + 2, "{text}");
        assert_eq!(lines[1][..3], ["hdd", "-", "-"], "{text}");
        assert_eq!(lines[2][..3], ["tradewind", "5%", "on"], "{text}");
        let json = output::report_json(&options, &report);
        assert_eq!(json["runs"][0]["relative_cost_get"], 1.0);
        assert_eq!(json["runs"][2]["cache_percent"], 10.0);
        assert_eq!(json["runs"][2]["put"]["requests"], report.runs[2].put.requests);
    }
}
