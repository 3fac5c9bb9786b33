//! `tradewind bench cluster`: the same load from several machines.

use std::sync::Arc;

use clap::Args;
use tradewind_bench::cluster::Key;
use tradewind_bench::cluster::agent::MOST_AGENTS;
use tradewind_bench::cluster::coordinator::{Cluster, Wanted, prefix};
use tradewind_bench::drive::Stop;
use tradewind_core::{Clock, SystemClock};

use super::ground::{RunFlags, below, cores, number, until_stopped};
use super::key::KeyFlags;
use super::loads::LoadFlags;
use super::object::USUAL;
use super::output::{HEAD, Output, Told};
use crate::commands::{Ended, Misused};

/// Measure a store from several machines at once
///
/// Each machine runs `tradewind bench agent` with the same key. All of them begin each load at the same moment; what they
/// recorded is added up as histograms, and each one's part stands below the row. --parallel, --count and --objects are those
/// of each agent, and the row says how many requests there were at a time from all; --rate is that of all together, and is
/// divided. Agents open the store with their own credentials: this machine needs none.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench cluster s3://bucket --agents 10.0.0.7:9190,10.0.0.8:9190 --key-file key\n  \
    tradewind bench cluster s3://bucket --agents one:9190,two:9190 --key-file key --mix get --rate 2000 -o both.jsonl\n\n\
    Exit status: 0 measured, 1 a request failed, was answered wrongly, or an agent was lost, 2 usage.")]
pub(in crate::commands) struct Arguments {
    /// Where agents wait, separated by commas
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    agents: Vec<String>,
    #[command(flatten)]
    key: KeyFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    run: RunFlags,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Ended> {
    let Arguments { agents, load, .. } = arguments;
    if let Some(twice) = agents.iter().enumerate().find(|(n, agent)| agents[..*n].contains(agent)) {
        return Err(Misused(format!("the agent {} is named twice", twice.1)).into());
    }
    if agents.len() > MOST_AGENTS as usize {
        return Err(Misused(format!("{} agents are more than {MOST_AGENTS}", agents.len())).into());
    }
    if load.ends_when_known() {
        let why = "each agent would end when its own throughput is known: there is no --stable from several machines";
        return Err(Misused(why.to_owned()).into());
    }
    let key = arguments.key.read()?;
    until_stopped(async |stop| measure(arguments, key, stop).await)
}

async fn measure(arguments: &Arguments, key: Key, stop: Stop) -> anyhow::Result<Ended> {
    let Arguments { agents, load, run, .. } = arguments;
    let survey = load.survey(&USUAL, run.seed)?;
    let steps: Vec<_> = (1..=run.repeat).flat_map(|repeat| survey.steps(repeat)).collect();
    let number = number()?;
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let connections = steps.iter().map(|step| step.load.parallel).max().unwrap_or(1);
    let wanted = Wanted { place: run.place(), run: number, connections, fresh: run.fresh, keeps: run.keep };
    let mut cluster = Cluster::open(agents, &key, &wanted, clock.clone(), &stop).await?;
    // Those that hear no more wait for the next.
    survey.check(cluster.most_object_bytes()).map_err(Misused)?;
    let prefix = format!("{}{}", below(&run.place.key), prefix(number));
    let told = Told {
        place: run.place(),
        kind: cluster.store().to_owned(),
        prefix: prefix.clone(),
        seed: run.seed,
        cores: cores(),
        cells: steps.len(),
        head: HEAD,
        agents: cluster.agents(),
    };
    let mut output = Output::begin(&run.output, &told, clock.wall(), stop.clone())?;
    let measured = cluster.run(steps, &stop, |event| output.tell(event)).await;
    let cleaned = cluster.clean().await;
    let ended = run.conclude(output, (matches!(measured, Ok(true)), cluster.servers()), &prefix, cleaned);
    measured?;
    ended
}
