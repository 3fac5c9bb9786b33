//! `tradewind balance status`: the state of balancing, for people and as JSON.

use std::io::{self, Write as _};

use clap::Args;
use serde_json::{Value, json};
use tradewind_balance::last_step::{LastStep, StepState};
use tradewind_balance::status::{BalancerStatus, OsdStatus, Status, read_status};
use tradewind_core::Timestamp;
use tradewind_wire::http_date::http_date;

use super::super::CommandOutcome;
use super::agent::AgentFlags;
use super::output::{Row, Table, change, change_of, percent, silent_sentence};
use super::{ClusterFlags, cluster_access};

/// Show whether a balancer runs, and what it changed and gained
///
/// It reads the cluster and changes nothing; no balancer needs to run. It takes 2 s; up to 20 s if a balancer
/// runs, and up to 45 s if one ended on another host without restoring the affinities.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tradewind balance status\n  tradewind balance status --conf ./ceph.conf --json"
)]
pub(in crate::commands) struct StatusArguments {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(flatten)]
    agents: AgentFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &StatusArguments) -> anyhow::Result<CommandOutcome> {
    let status = read_status(cluster_access(&arguments.cluster, &arguments.agents)?)?;
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", status_json(&status))?;
    } else {
        write_status(&mut out, &status)?;
    }
    out.flush()?;
    Ok(CommandOutcome::Done)
}

fn write_status(out: &mut impl io::Write, status: &Status) -> io::Result<()> {
    writeln!(out, "{}", balancer_sentence(status.balancer.as_ref()))?;
    writeln!(out, "{}", step_sentence(status.last_step.as_ref()))?;
    write_table(out, &status.osds)?;
    for osd in &status.operators {
        writeln!(
            out,
            "osd.{}: another command set the affinity {} since the balancer started; it is neither changed nor restored",
            osd.osd, osd.affinity
        )?;
    }
    if !status.silent.is_empty() {
        writeln!(out, "{}", silent_sentence(&status.silent))?;
    }
    for host in &status.slow_hosts {
        writeln!(out, "{host}")?;
    }
    Ok(())
}

fn balancer_sentence(balancer: Option<&BalancerStatus>) -> String {
    let Some(balancer) = balancer else { return "no balancer is active".to_owned() };
    let since = balancer.started_at_unix_seconds.map(|seconds| format!(" since {}", date(seconds)));
    let since = since.unwrap_or_default();
    if balancer.is_alive {
        format!("a balancer is active{since}: {}", balancer.owner)
    } else {
        format!(
            "a balancer has ended without restoring the affinities: {}, which ran{since}; restore them with \"tradewind \
             balance restore\"",
            balancer.owner
        )
    }
}

fn step_sentence(step: Option<&LastStep>) -> String {
    let Some(step) = step else { return "last step: none is recorded".to_owned() };
    let predicted = step.predicted_gain.map(|gain| format!("predicted {}", percent(gain)));
    let measured = step.measured_gain.map(|gain| format!("measured {}", percent(gain)));
    let gains: Vec<String> = predicted.into_iter().chain(measured).collect();
    let gains = if gains.is_empty() { String::new() } else { format!(", {}", gains.join(", ")) };
    format!("last step: {}{gains}, {}", step_name(step.state), date(step.set_at_unix_seconds))
}

const fn step_name(state: StepState) -> &'static str {
    match state {
        StepState::Set => "set",
        StepState::Kept => "kept",
        StepState::Undone => "undone",
    }
}

fn date(unix_seconds: u64) -> String {
    let millis = i64::try_from(unix_seconds).unwrap_or(i64::MAX).saturating_mul(1000);
    http_date(Timestamp::from_millis(millis))
}

fn write_table(out: &mut impl io::Write, osds: &[OsdStatus]) -> io::Result<()> {
    let table = Table::new(osds.iter().filter_map(OsdStatus::service_rate));
    table.write_head(out)?;
    for osd in osds {
        let note = if osd.is_active { "" } else { "  down or out" };
        table.write_row(
            out,
            &Row {
                osd: osd.osd,
                reads: osd.reads,
                signals: osd.signals,
                service_rate: osd.service_rate(),
                affinity: change_of(osd.original_affinity, osd.affinity),
                share: change(osd.original_share * 100.0, osd.share * 100.0, 1),
                note,
            },
        )?;
    }
    Ok(())
}

fn status_json(status: &Status) -> Value {
    json!({
        "balancer": status.balancer.as_ref().map(|balancer| json!({
            "owner": balancer.owner,
            "started_at_unix_seconds": balancer.started_at_unix_seconds,
            "is_alive": balancer.is_alive,
        })),
        "last_step": status.last_step.as_ref().map(|step| json!({
            "owner": step.owner,
            "set_at_unix_seconds": step.set_at_unix_seconds,
            "state": step_name(step.state),
            "predicted_gain": step.predicted_gain,
            "measured_gain": step.measured_gain,
        })),
        "osds": status.osds.iter().map(osd_json).collect::<Vec<_>>(),
        "slow_hosts": status.slow_hosts.iter().map(|host| &host.hostname).collect::<Vec<_>>(),
        "operator_osds": status.operators.iter().map(|osd| osd.osd).collect::<Vec<_>>(),
        "silent_osds": status.silent.iter().map(|silent| silent.osd).collect::<Vec<_>>(),
    })
}

fn osd_json(osd: &OsdStatus) -> Value {
    json!({
        "osd": osd.osd,
        "host": osd.hostname,
        "is_active": osd.is_active,
        "reads_per_second": osd.reads.map(|reads| reads.reads_per_second),
        "read_bytes_per_second": osd.reads.map(|reads| reads.bytes_per_second),
        "latency_seconds": osd.reads.map(|reads| reads.latency_seconds),
        "service_bytes_per_second": osd.service_rate(),
        "device_await_ms": osd.signals.await_millis,
        "device_busy": osd.signals.busy,
        "host_io_pressure_percent": osd.signals.io_pressure_percent,
        "host_iowait_percent": osd.signals.iowait_percent,
        "original_affinity": osd.original_affinity.ratio(),
        "affinity": osd.affinity.ratio(),
        "original_share": osd.original_share,
        "share": osd.share,
    })
}
