//! `tradewind lab simulate balance`: policies that balance reads, compared over one simulated cluster.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tradewind_lab::simulate::balance::{
    AffinityStep, DisturbanceDepth, Options, Policy, PolicyReport, Report, Scenario, StepAction, simulate,
};
use tradewind_model::affinity::controller;

use super::super::super::{CommandOutcome, UsageError};

/// Compare ways of balancing reads over stores of different speed
///
/// Each store (OSD) is a queue with one server: a fast one serves 20 reads per second, a slow one 5. Clients keep a
/// constant number of reads in flight. Every policy serves the same reads, with the same disturbances. The columns "x
/// default" and "x oracle" are reads per second relative to the policy `default` and to the oracle that decides by the
/// same means. "settled" leaves out 30 s after each change of the stores.
///
/// Not simulated: writes, the network, and the time in which placement groups elect a new primary. Ceph's
/// `reweight-by-utilization` is not among the policies: it goes by fullness, which does not depend on speed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind lab simulate balance\n  \
    tradewind lab simulate balance --scenario hot-spots --policy default,predict,oracle-affinity\n  \
    tradewind lab simulate balance --scenario fail-fast --clients 4 --in-flight 64 --seed 7 --json\n  \
    tradewind lab simulate balance --stores 1000 --pgs 32768 --replicas 3 --in-flight 4000 --clients 100 --seconds 60")]
pub(in crate::commands) struct Arguments {
    /// Changes of the stores' speed
    #[arg(long, value_enum, default_value_t = ScenarioName::Heterogeneity)]
    scenario: ScenarioName,
    /// Number of stores
    #[arg(long, value_name = "N", default_value_t = 8)]
    stores: usize,
    /// Number of placement groups
    #[arg(long, value_name = "N", default_value_t = 128)]
    pgs: usize,
    /// Replicas of each placement group
    #[arg(long, value_name = "N", default_value_t = 2)]
    replicas: usize,
    /// Reads in flight, of all clients
    #[arg(long, value_name = "N", default_value_t = 16)]
    in_flight: usize,
    /// Clients, which share the reads in flight; each one has its own statistics
    #[arg(long, value_name = "N", default_value_t = 1)]
    clients: usize,
    /// Simulated seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 360)]
    seconds: u64,
    /// Popularity of placement groups: the k-th most popular one is read in proportion to 1/k^EXPONENT; 0 is uniform
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.0)]
    zipf: f64,
    /// Standard deviation of service times relative to their mean: 0 is constant, 1 exponential
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    variation: f64,
    /// Minimum seconds between two changes of one store's affinity by the policy predict
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    change_interval: u64,
    /// Seed of the random numbers: placement, reads, and which stores are slow
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Policies to compare, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    policy: Vec<PolicyName>,
    /// Print one JSON object, with all steps and the reads of each second
    #[arg(long)]
    json: bool,
}

/// The scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScenarioName {
    /// Half of the stores are slow
    Heterogeneity,
    /// Half of the stores are slow, and every 90 s the other half
    HotSpots,
    /// A disturber takes 70 % of a quarter of the stores for 60 s, rests for 60 s, and moves on
    Interference,
    /// A disturber that takes 12 % of them
    ShallowInterference,
    /// After a sixth of the time, one store responds with errors, at once
    FailFast,
}

impl ScenarioName {
    fn scenario(self) -> Scenario {
        match self {
            Self::Heterogeneity => Scenario::Heterogeneity,
            Self::HotSpots => Scenario::HotSpots,
            Self::Interference => Scenario::Interference(DisturbanceDepth::Deep),
            Self::ShallowInterference => Scenario::Interference(DisturbanceDepth::Shallow),
            Self::FailFast => Scenario::FailFast,
        }
    }
}

/// The policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// Read from the first replica: all primary affinities are 1
    Default,
    /// Primary affinities by Noel and Lama (2018); the signal is the busy share of each store, a stand-in for %iowait
    Dlr,
    /// Primary affinities as `tradewind balance ceph` sets them
    Predict,
    /// The best primary affinities for the true speeds, at any time
    OracleAffinity,
    /// Each client chooses a replica for each read, from what it has seen itself
    PerRequest,
    /// The shortest expected wait by the true speeds and queues, for each read
    OraclePerRequest,
}

impl PolicyName {
    fn policy(self) -> Policy {
        match self {
            Self::Default => Policy::Default,
            Self::Dlr => Policy::Dlr,
            Self::Predict => Policy::Predict,
            Self::OracleAffinity => Policy::OracleAffinity,
            Self::PerRequest => Policy::PerRequest,
            Self::OraclePerRequest => Policy::OraclePerRequest,
        }
    }
}

impl Arguments {
    fn options(&self) -> Options {
        let policies = self.policy.iter().map(|name| name.policy()).collect();
        Options {
            scenario: self.scenario.scenario(),
            stores: self.stores,
            pgs: self.pgs,
            replicas: self.replicas,
            in_flight: self.in_flight,
            clients: self.clients,
            duration: Duration::from_secs(self.seconds),
            zipf_exponent: self.zipf,
            service_variation: self.variation,
            predict: controller::Options {
                min_change_interval: Duration::from_secs(self.change_interval),
                ..controller::Options::default()
            },
            seed: self.seed,
            policies: if self.policy.is_empty() { Policy::ALL.to_vec() } else { policies },
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let options = arguments.options();
    let report = simulate(&options).map_err(|e| UsageError(e.to_string()))?;
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", report_json(&options, &report))?;
    } else {
        write_table(&mut out, &report)?;
    }
    Ok(CommandOutcome::Done)
}

fn write_table(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(
        out,
        "{:<18} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "policy", "reads/s", "settled", "x default", "x oracle", "mean ms", "p99 ms", "changes", "errors %"
    )?;
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let millis = |seconds: Option<f64>| number(seconds.map(|seconds| seconds * 1e3), 0);
    for policy in &report.policies {
        writeln!(
            out,
            "{:<18} {:>9.1} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8.2}",
            policy.policy.name(),
            policy.reads_per_second,
            number(policy.settled_reads_per_second, 1),
            number(report.ratio(policy.policy, Policy::Default), 3),
            number(report.ratio(policy.policy, policy.policy.oracle()), 3),
            millis(policy.mean_latency_seconds),
            millis(policy.p99_latency_seconds),
            policy.affinity_changes,
            policy.error_share * 100.0,
        )?;
    }
    Ok(())
}

fn report_json(options: &Options, report: &Report) -> Value {
    json!({
        "scenario": options.scenario.name(),
        "stores": options.stores,
        "pgs": options.pgs,
        "replicas": options.replicas,
        "in_flight": options.in_flight,
        "clients": options.clients,
        "seconds": options.duration.as_secs(),
        "zipf_exponent": options.zipf_exponent,
        "service_variation": options.service_variation,
        "change_interval_seconds": options.predict.min_change_interval.as_secs(),
        "seed": options.seed,
        "policies": report.policies.iter().map(|policy| policy_json(report, policy)).collect::<Vec<_>>(),
    })
}

fn policy_json(report: &Report, policy: &PolicyReport) -> Value {
    json!({
        "policy": policy.policy.name(),
        "reads_per_second": policy.reads_per_second,
        "settled_reads_per_second": policy.settled_reads_per_second,
        "ratio_to_default": report.ratio(policy.policy, Policy::Default),
        "ratio_to_oracle": report.ratio(policy.policy, policy.policy.oracle()),
        "mean_latency_seconds": policy.mean_latency_seconds,
        "p99_latency_seconds": policy.p99_latency_seconds,
        "reads": policy.reads,
        "errors": policy.errors,
        "error_share": policy.error_share,
        "affinity_changes": policy.affinity_changes,
        "steps": policy.steps.iter().map(step_json).collect::<Vec<_>>(),
        "reads_by_second": policy.reads_by_second,
    })
}

fn step_json(step: &AffinityStep) -> Value {
    let (action, predicted_gain, measured_gain) = match step.action {
        StepAction::Set { predicted_gain } => ("set", predicted_gain, None),
        StepAction::Keep { measured_gain } => ("keep", None, Some(measured_gain)),
        StepAction::Undo { measured_gain } => ("undo", None, Some(measured_gain)),
    };
    json!({
        "seconds": step.at.as_secs_f64(),
        "action": action,
        "changed_stores": step.changed_stores,
        "predicted_gain": predicted_gain,
        "measured_gain": measured_gain,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn options(line: &[&str]) -> Options {
        CommandLine::parse_from([&["balance"], line].concat()).arguments.options()
    }

    #[test]
    fn flags_have_the_defaults_of_the_simulation() {
        assert_eq!(options(&[]), Options::default());
    }

    #[test]
    fn names_on_the_command_line_are_those_of_the_simulation() {
        for scenario in Scenario::ALL {
            assert_eq!(options(&["--scenario", scenario.name()]).scenario, scenario);
        }
        let names = Policy::ALL.map(Policy::name).join(",");
        assert_eq!(options(&["--policy", &names]).policies, Policy::ALL);
        assert_eq!(options(&["--policy", "dlr"]).policies, [Policy::Dlr]);
    }

    #[test]
    fn table_has_one_line_per_policy_and_dashes_without_a_reference() {
        let mut options = options(&["--seconds", "40", "--policy", "predict,oracle-affinity"]);
        options.seed = 3;
        let report = simulate(&options).unwrap();
        let mut out = Vec::new();
        write_table(&mut out, &report).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!((lines.len(), lines[1][0], lines[2][0]), (3, "predict", "oracle-affinity"));
        assert_eq!((lines[1][3], lines[2][4]), ("-", "1.000"), "{text}");
        let json = report_json(&options, &report);
        assert_eq!(json["policies"][1]["ratio_to_oracle"], 1.0);
        assert_eq!(json["policies"][0]["steps"][0]["action"], "set");
    }
}
