//! `tradewind balance`: reads of a Ceph cluster, moved off slow OSDs by primary affinity.

mod agent;
mod metrics;
mod output;
mod status;
mod watch;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use tradewind_balance::apply::AffinityChange;
use tradewind_balance::balancer::{Balancer, BalancerOptions, ClusterAccess, HEARTBEAT_INTERVAL, Mode};
use tradewind_balance::exclusion::Exclusions;
use tradewind_balance::journal::process_owner;
use tradewind_balance::policy::{Outcome, Policy};
use tradewind_balance::restore::{Restored, restore};
use tradewind_balance::{CephOptions, Error, Monitors};
use tradewind_model::affinity::controller::Options;
use tradewind_model::affinity::dlr::{self, Thresholds};

use self::agent::AgentFlags;
use self::metrics::Metrics;
use self::output::Printer;
use self::watch::{RoundClock, Watch};
use super::CommandOutcome;
use super::signals::Signals;

/// Rounds of `explain`: enough for a decision.
const EXPLAIN_ROUNDS: u32 = 4;
/// Interval between two looks at the request to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Move reads of a Ceph cluster off slow OSDs, without moving data
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Ceph(CephArguments),
    Explain(ExplainArguments),
    Status(status::StatusArguments),
    Restore(RestoreArguments),
    Agent(agent::AgentArguments),
    Key(agent::KeyArguments),
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

/// The OSDs to leave alone.
#[derive(Debug, Args)]
struct ExclusionFlags {
    /// Never change the affinity of this OSD or device class (repeatable)
    #[arg(long, value_name = "OSD|CLASS")]
    exclude: Vec<String>,
    /// Never change the affinities of OSDs that serve this pool (repeatable)
    #[arg(long, value_name = "POOL")]
    exclude_pool: Vec<String>,
}

impl ExclusionFlags {
    fn exclusions(&self) -> Exclusions {
        let pools = self.exclude_pool.iter().cloned().collect();
        let mut exclusions = Exclusions { pools, ..Exclusions::default() };
        self.exclude.iter().for_each(|text| exclusions.add(text));
        exclusions
    }
}

/// Reads the files that the flags name.
fn cluster_access(cluster: &ClusterFlags, agents: &AgentFlags) -> anyhow::Result<ClusterAccess> {
    Ok(ClusterAccess { ceph: cluster.options(), agents: agents.open()? })
}

/// Watch a cluster, and set primary affinities that let fast OSDs serve more reads
///
/// Clients of a replicated pool read from the primary of a placement group. The primary affinity of an OSD is the share of
/// its placement groups that it leads. This command measures the reads of all OSDs, predicts the effect of other affinities,
/// sets them if they promise at least 5 %, measures the gain, and undoes a step without one. No data moves.
///
/// The original affinities are kept in the cluster, and restored when the command ends. After a crash, `tradewind balance
/// restore` restores them. An affinity that another command sets in the meantime is neither changed nor restored.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind balance ceph --dry-run\n  \
    tradewind balance ceph\n  \
    tradewind balance ceph --keep --duration 60\n  \
    tradewind balance ceph --exclude osd.7 --exclude ssd --exclude-pool rbd\n  \
    tradewind balance ceph --agents ./agents --key ./balancer.key --metrics 127.0.0.1:9192")]
pub(super) struct CephArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(flatten)]
    agents: AgentFlags,
    #[command(flatten)]
    exclusions: ExclusionFlags,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How affinities are decided
    #[arg(long, value_enum, default_value_t = PolicyName::Predict)]
    policy: PolicyName,
    #[command(flatten)]
    dlr: DlrFlags,
    /// Seconds between two rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = parse_interval)]
    interval: f64,
    /// Seconds after which the command ends [default: when it is stopped]
    #[arg(long, value_name = "SECONDS", value_parser = parse_interval)]
    duration: Option<f64>,
    /// Leave the affinities as they are when the command ends
    #[arg(long)]
    keep: bool,
    /// Serve metrics and health on this address, without authentication
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Print one JSON object per round
    #[arg(long)]
    json: bool,
}

/// Parameters of the policy `dlr`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Policy dlr")]
struct DlrFlags {
    /// θ_h: an OSD with a higher signal may be a hot spot
    #[arg(long, value_name = "PERCENT", default_value_t = Thresholds::default().high_percent)]
    theta_h: f64,
    /// θ_i: minimum difference of a hot spot's signal from the mean, as a share of its own
    #[arg(long, value_name = "SHARE", default_value_t = Thresholds::default().imbalance)]
    theta_i: f64,
    /// θ_l: an OSD with a lower signal gets affinity 1
    #[arg(long, value_name = "PERCENT", default_value_t = Thresholds::default().low_percent)]
    theta_l: f64,
    /// Seconds between two decisions
    #[arg(long, value_name = "SECONDS", default_value_t = dlr::INTERVAL_SECONDS as f64, value_parser = parse_interval)]
    dlr_interval: f64,
}

impl DlrFlags {
    fn policy(&self) -> Policy {
        let thresholds =
            Thresholds { high_percent: self.theta_h, imbalance: self.theta_i, low_percent: self.theta_l };
        Policy::Dlr { thresholds, interval: Duration::from_secs_f64(self.dlr_interval) }
    }
}

/// Measure a cluster for a few seconds, and say what balancing would change and why
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tradewind balance explain\n  tradewind balance explain --conf ./ceph.conf --json"
)]
pub(super) struct ExplainArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(flatten)]
    agents: AgentFlags,
    #[command(flatten)]
    exclusions: ExclusionFlags,
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
    /// Algorithm 1 of Noel and Lama (2018), on %iowait where every OSD has its own host, or on read awaits of devices as a
    /// stand-in; OSDs must be on this host or on hosts with an agent
    Dlr,
}

impl CephArguments {
    fn policy(&self) -> Policy {
        match self.policy {
            PolicyName::Predict => Policy::Predict(Options::default()),
            PolicyName::Dlr => self.dlr.policy(),
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
    crate::logs::init_quiet();
    let outcome = match command {
        Command::Ceph(arguments) => ceph(arguments),
        Command::Explain(arguments) => explain(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Restore(arguments) => run_restore(&arguments),
        Command::Agent(arguments) => agent::serve(arguments),
        Command::Key(arguments) => agent::create_key(&arguments),
    };
    match outcome {
        // A call of librados still waits for the cluster: the usual end of the process would destroy what it uses.
        outcome if tradewind_balance::has_abandoned_call() => {
            let status = match &outcome {
                Ok(outcome) => outcome.exit_status(),
                Err(e) => super::print_error(e),
            };
            // Standard output may hold an incomplete line.
            let _ = io::stdout().flush();
            tradewind_balance::exit_now(status);
        }
        outcome => outcome,
    }
}

fn ceph(arguments: CephArguments) -> anyhow::Result<CommandOutcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::new()?;
        let metrics = Metrics::default();
        if let Some(address) = arguments.metrics {
            let served =
                format!("metrics are served at http://{}/metrics", metrics.clone().serve(address).await?);
            // Standard output has nothing but rounds if they are JSON.
            if arguments.json {
                eprintln!("{served}");
            } else {
                writeln!(io::stdout(), "{served}")?;
            }
        }
        let is_stopped = Arc::new(AtomicBool::new(false));
        let cluster = cluster_access(&arguments.cluster, &arguments.agents)?;
        let watch = Watch::new(cluster.ceph.activity.clone());
        let balancing = {
            let (is_stopped, round) = (is_stopped.clone(), watch.round.clone());
            tokio::task::spawn_blocking(move || balance(&arguments, cluster, &metrics, &round, &is_stopped))
        };
        watch.wait(signals, balancing, || is_stopped.store(true, Ordering::Relaxed)).await
    })
}

fn balance(
    arguments: &CephArguments,
    cluster: ClusterAccess,
    metrics: &Metrics,
    round: &RoundClock,
    is_stopped: &AtomicBool,
) -> anyhow::Result<CommandOutcome> {
    let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Act };
    let exclusions = arguments.exclusions.exclusions();
    let options = BalancerOptions { mode, policy: arguments.policy(), exclusions };
    let mut balancer = Balancer::connect(cluster, options, process_owner())?;
    let rounds =
        std::panic::AssertUnwindSafe(|| rounds(&mut balancer, arguments, metrics, round, is_stopped));
    let ended = std::panic::catch_unwind(rounds);
    let is_superseded = matches!(
        &ended,
        Ok(Err(e)) if matches!(e.downcast_ref(), Some(Error::Superseded(_)))
    );
    if arguments.keep {
        balancer.keep();
    } else if !is_superseded {
        // However the rounds ended: also if the output is closed.
        let restored = balancer.restore().context(
            "the affinities are not restored; run `tradewind balance restore` once the cluster responds",
        )?;
        if restored.changed > 0 {
            note(&format!("restored the affinities of {} OSDs", restored.changed));
        }
        kept_affinities(&restored).for_each(|line| note(&line));
    }
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(CommandOutcome::Done)
}

/// A line for each OSD that was not restored.
fn kept_affinities(restored: &Restored) -> impl Iterator<Item = String> {
    let keep = |osd: &AffinityChange| {
        format!("osd.{} keeps the affinity {}, which another command set", osd.osd, osd.affinity)
    };
    restored.operators.iter().map(keep)
}

/// Prints a line to standard error, which may be closed.
fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Balances until the end is requested.
fn rounds(
    balancer: &mut Balancer,
    arguments: &CephArguments,
    metrics: &Metrics,
    round: &RoundClock,
    is_stopped: &AtomicBool,
) -> anyhow::Result<()> {
    let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Act };
    let mut printer = Printer::new(mode, arguments.json);
    let start = Instant::now();
    let deadline = arguments.duration.map(|seconds| start + Duration::from_secs_f64(seconds));
    let is_over = || is_stopped.load(Ordering::Relaxed) || deadline.is_some_and(|end| Instant::now() >= end);
    let mut next = start;
    loop {
        let round_start = Instant::now();
        round.start();
        let report = balancer.round();
        round.end();
        match report {
            Ok(report) => {
                metrics.record_round(&report, mode, round_start.elapsed());
                report.warnings.iter().for_each(|warning| note(&format!("warning: {warning}")));
                printer.print(&report)?;
            }
            Err(e @ Error::Superseded(_)) => return Err(e.into()),
            // A monitor that fails over or a slow command: the next round tries again.
            Err(e) => {
                metrics.record_failure(&e.to_string(), round_start.elapsed());
                note(&format!("warning: {e}; trying again"));
            }
        }
        next = (next + Duration::from_secs_f64(arguments.interval)).max(Instant::now());
        wait(balancer, next, &is_over)?;
        if is_over() {
            return Ok(());
        }
    }
}

/// Waits for the next round. Another balancer would take a long wait for the end of this one: it stays alive. Fails if
/// another has taken over.
fn wait(balancer: &mut Balancer, end: Instant, is_over: &impl Fn() -> bool) -> Result<(), Error> {
    let mut next_heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
    while Instant::now() < end && !is_over() {
        std::thread::sleep(STOP_POLL_INTERVAL);
        if Instant::now() < next_heartbeat {
            continue;
        }
        next_heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
        match balancer.heartbeat() {
            Err(e @ Error::Superseded(_)) => return Err(e),
            Err(e) => note(&format!("warning: {e}; trying again")),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn explain(arguments: &ExplainArguments) -> anyhow::Result<CommandOutcome> {
    let cluster = cluster_access(&arguments.cluster, &arguments.agents)?;
    let options = BalancerOptions {
        mode: Mode::DryRun,
        policy: Policy::Predict(Options::default()),
        exclusions: arguments.exclusions.exclusions(),
    };
    let mut balancer = Balancer::connect(cluster, options, process_owner())?;
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
    let mut ceph = Monitors::connect(arguments.cluster.options())?;
    let mut out = io::stdout().lock();
    match restore(&mut ceph)? {
        Some(restored) => {
            writeln!(out, "restored the affinities of {} OSDs", restored.changed)?;
            for line in kept_affinities(&restored) {
                writeln!(out, "{line}")?;
            }
        }
        None => writeln!(out, "nothing to restore: the cluster has no journal of a balancer")?,
    }
    Ok(CommandOutcome::Done)
}
