//! `tradewind balance`: reads of a Ceph cluster, moved off slow OSDs by primary affinity.

mod output;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use tradewind_balance::balancer::{Balancer, Mode, restore};
use tradewind_balance::policy::{Outcome, Policy};
use tradewind_balance::{CephOptions, CephProcess, Error};
use tradewind_model::affinity::controller::Options;

use self::output::Printer;
use super::signals::Signals;
use super::{CommandOutcome, StoppedBySignal};

/// Rounds of `explain`: enough for a decision.
const EXPLAIN_ROUNDS: u32 = 4;
/// Interval between two looks at the request to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Move reads of a Ceph cluster off slow OSDs, without moving data
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Ceph(CephArguments),
    Explain(ExplainArguments),
    Restore(RestoreArguments),
}

/// How to reach the cluster.
#[derive(Debug, Args)]
struct ClusterFlags {
    /// Configuration file of the cluster [default: that of the command ceph]
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// User, without "client." [default: admin]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
}

impl ClusterFlags {
    fn options(&self) -> CephOptions {
        CephOptions { config: self.conf.clone(), id: self.id.clone(), ..CephOptions::default() }
    }
}

/// Watch a cluster, and set primary affinities that let fast OSDs serve more reads
///
/// Clients of a replicated pool read from the primary of a placement group. The primary affinity of an OSD is the share of
/// its placement groups that it leads. This command measures the reads of all OSDs, predicts the effect of other affinities,
/// sets them if they promise at least 5 %, measures the gain, and undoes a step without one. No data moves.
///
/// The original affinities are kept in the cluster, and restored when the command ends. After a crash, `tradewind balance
/// restore` restores them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind balance ceph --dry-run\n  \
    tradewind balance ceph\n  \
    tradewind balance ceph --keep --duration 60")]
pub(super) struct CephArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How affinities are decided
    #[arg(long, value_enum, default_value_t = PolicyName::Predict)]
    policy: PolicyName,
    /// Seconds between two rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = parse_interval)]
    interval: f64,
    /// Seconds after which the command ends [default: when it is stopped]
    #[arg(long, value_name = "SECONDS", value_parser = parse_interval)]
    duration: Option<f64>,
    /// Leave the affinities as they are when the command ends
    #[arg(long)]
    keep: bool,
    /// Print one JSON object per round
    #[arg(long)]
    json: bool,
}

/// Measure a cluster for a few seconds, and say what balancing would change and why
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tradewind balance explain\n  tradewind balance explain --conf ./ceph.conf --json"
)]
pub(super) struct ExplainArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Seconds between two rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = parse_interval)]
    interval: f64,
    /// Print one JSON object per round
    #[arg(long)]
    json: bool,
}

/// Restore the affinities from before `tradewind balance ceph`, for example after a crash
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tradewind balance restore")]
pub(super) struct RestoreArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// The policies.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum PolicyName {
    /// Predict the effect of a change, act once, verify
    Predict,
    /// Algorithm 1 of Noel and Lama (2018), on read awaits of the devices as a stand-in for %iowait; all OSDs must be on this host
    Dlr,
}

impl PolicyName {
    fn policy(self) -> Policy {
        match self {
            Self::Predict => Policy::Predict(Options::default()),
            Self::Dlr => Policy::dlr(),
        }
    }
}

/// A number of seconds from 0.1 to a day.
fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.1..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("must be from 0.1 to 86400".to_owned())
    }
}

pub(super) fn run(command: Command) -> anyhow::Result<CommandOutcome> {
    match command {
        Command::Ceph(arguments) => ceph(arguments),
        Command::Explain(arguments) => explain(&arguments),
        Command::Restore(arguments) => run_restore(&arguments),
    }
}

fn ceph(arguments: CephArguments) -> anyhow::Result<CommandOutcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let balancing = {
            let is_stopped = is_stopped.clone();
            tokio::task::spawn_blocking(move || balance(&arguments, &is_stopped))
        };
        tokio::pin!(balancing);
        tokio::select! {
            ended = &mut balancing => ended?,
            caught = signals.next() => {
                is_stopped.store(true, Ordering::Relaxed);
                // The affinities are restored first.
                balancing.await??;
                Err(StoppedBySignal(caught).into())
            }
        }
    })
}

fn balance(arguments: &CephArguments, is_stopped: &AtomicBool) -> anyhow::Result<CommandOutcome> {
    let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Act };
    let options = arguments.cluster.options();
    let mut balancer = Balancer::connect(options, mode, arguments.policy.policy(), owner())?;
    let mut printer = Printer::new(mode, arguments.json);
    let start = Instant::now();
    let deadline = arguments.duration.map(|seconds| start + Duration::from_secs_f64(seconds));
    let is_over = || is_stopped.load(Ordering::Relaxed) || deadline.is_some_and(|end| Instant::now() >= end);
    let mut next = start;
    let result = loop {
        match balancer.round() {
            Ok(report) => printer.print(&report)?,
            Err(e @ Error::Superseded(_)) => break Err(e),
            // A monitor that fails over or a slow command: the next round tries again.
            Err(e) => eprintln!("warning: {e}; trying again"),
        }
        next = (next + Duration::from_secs_f64(arguments.interval)).max(Instant::now());
        while Instant::now() < next && !is_over() {
            std::thread::sleep(STOP_POLL_INTERVAL);
        }
        if is_over() {
            break Ok(());
        }
    };
    if arguments.keep {
        balancer.keep();
    } else if result.is_ok() {
        let restored = balancer.restore()?;
        if restored > 0 {
            eprintln!("restored the affinities of {restored} OSDs");
        }
    }
    result?;
    Ok(CommandOutcome::Done)
}

fn explain(arguments: &ExplainArguments) -> anyhow::Result<CommandOutcome> {
    let options = arguments.cluster.options();
    let mut balancer = Balancer::connect(options, Mode::DryRun, PolicyName::Predict.policy(), owner())?;
    let mut printer = Printer::new(Mode::DryRun, arguments.json);
    for round in 0..EXPLAIN_ROUNDS {
        if round > 0 {
            std::thread::sleep(Duration::from_secs_f64(arguments.interval));
        }
        let report = balancer.round()?;
        let is_change = report.outcome.as_ref().and_then(Outcome::changed_affinities).is_some();
        let is_decided = is_change || !report.obstacles.is_empty();
        if is_decided || round + 1 == EXPLAIN_ROUNDS {
            printer.explain(&report)?;
            break;
        }
    }
    Ok(CommandOutcome::Done)
}

fn run_restore(arguments: &RestoreArguments) -> anyhow::Result<CommandOutcome> {
    let mut ceph = CephProcess::start(arguments.cluster.options())?;
    let mut out = io::stdout().lock();
    match restore(&mut ceph)? {
        Some(changed) => writeln!(out, "restored the affinities of {changed} OSDs")?,
        None => writeln!(out, "nothing to restore: the cluster has no journal of a balancer")?,
    }
    Ok(CommandOutcome::Done)
}

/// Identifies this process among the balancers of the cluster.
fn owner() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("process {} on {}", std::process::id(), host.trim())
}
