//! `tradewind bench cluster`: loads from several machines.

use std::sync::Arc;

use clap::Args;
use tradewind_bench::cluster::Key;
use tradewind_bench::cluster::agent::MOST_AGENTS;
use tradewind_bench::cluster::coordinator::{Cluster, Wanted, prefix};
use tradewind_bench::cluster::duty::{Act, apart, check, everywhere, most};
use tradewind_bench::drive::Stop;
use tradewind_bench::survey::Survey;
use tradewind_core::{Clock, SystemClock};

use super::asked::AskedFlags;
use super::ground::{RunFlags, below, number, until_stopped};
use super::key::KeyFlags;
use super::loads::LoadFlags;
use super::mix::Others;
use super::object::USUAL;
use super::output::{HEAD, Output, Told};
use super::{asked, mix};
use crate::commands::{Ended, Misused};
use crate::profiles::here::cores;

/// Measure a store from several machines at once
///
/// Each machine runs `tradewind bench agent` with the same key. All of them begin each load at the same moment; what they
/// recorded is added up as histograms, and each one's part stands below the row. --parallel, --count and --objects are those
/// of each agent, and the row says how many requests there were at a time from all; --rate is that of all together, and is
/// divided. Agents open the store with their own credentials: this machine needs none. With --mixed loads run beside each other,
/// on every agent or each on agents of its own.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench cluster s3://bucket --agents 10.0.0.7:9190,10.0.0.8:9190 --key-file key\n  \
    tradewind bench cluster s3://bucket --agents one:9190,two:9190 --key-file key --mix get --rate 2000 -o both.jsonl\n  \
    tradewind bench cluster s3://bucket --agents one:9190,two:9190 --key-file key --workload hou --scale 0.01\n  \
    tradewind bench cluster s3://bucket --agents one:9190,two:9190 --key-file key --mixed --apart --size 4KiB --parallel 8\n\n\
    Exit status: 0 measured, 1 a request failed, was answered wrongly, or an agent was lost, 2 usage.")]
pub(in crate::commands) struct Arguments {
    /// Where agents wait, separated by commas
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    agents: Vec<String>,
    #[command(flatten)]
    key: KeyFlags,
    /// Measure each load alone, and then beside each other, itself among them, as `tradewind bench mix` does
    #[arg(long, conflicts_with = "workload")]
    mixed: bool,
    /// What runs beside each load in place of each other, as \"put 4MiB x 8\"; several at once as \"put 4MiB x 8 and get 4KiB x 2\"
    #[arg(long, value_name = "LOAD", requires = "mixed")]
    beside: Vec<Others>,
    /// Loads beside each other run on different agents: the first on the first of them, and so on, and again from the beginning
    #[arg(long, requires = "mixed")]
    apart: bool,
    #[command(flatten)]
    asked: AskedFlags,
    #[command(flatten)]
    run: RunFlags,
}

impl Arguments {
    fn count(&self) -> u32 {
        u32::try_from(self.agents.len()).unwrap_or(u32::MAX)
    }

    /// What is asked, and who does what of it.
    fn acts(&self) -> anyhow::Result<(Vec<Survey>, Vec<Act>)> {
        let (often, agents) = ((self.run.seed, self.run.repeat), self.count());
        if self.mixed {
            let (survey, stages) = mix::stages(&self.asked.load, &self.beside, often)?;
            let acts = if self.apart { apart(&stages, agents) } else { Ok(everywhere(&stages, agents)) };
            return Ok((vec![survey], acts.map_err(Misused)?));
        }
        let loads = self.asked.loads()?;
        if loads.iter().any(LoadFlags::ends_when_known) {
            let why = "each agent would end when its own throughput is known: there is no --stable from several machines";
            return Err(Misused(why.to_owned()).into());
        }
        let (surveys, stages) = asked::stages(&loads, &USUAL, often)?;
        Ok((surveys, everywhere(&stages, agents)))
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Ended> {
    let agents = &arguments.agents;
    if let Some(twice) = agents.iter().enumerate().find(|(n, agent)| agents[..*n].contains(agent)) {
        return Err(Misused(format!("the agent {} is named twice", twice.1)).into());
    }
    if arguments.count() > MOST_AGENTS {
        return Err(Misused(format!("{} agents are more than {MOST_AGENTS}", agents.len())).into());
    }
    let what = arguments.acts()?;
    check(&what.1, arguments.count()).map_err(Misused)?;
    let key = arguments.key.read()?;
    until_stopped(async |stop| measure(arguments, what, key, stop).await)
}

async fn measure(
    arguments: &Arguments,
    (surveys, acts): (Vec<Survey>, Vec<Act>),
    key: Key,
    stop: Stop,
) -> anyhow::Result<Ended> {
    let Arguments { agents, run, .. } = arguments;
    let number = number()?;
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let (together, connections) = most(&acts, arguments.count());
    let (fresh, keeps) = (run.fresh, run.keep);
    let wanted = Wanted { place: run.place(), run: number, together, connections, fresh, keeps };
    let mut cluster = Cluster::open(agents, &key, &wanted, clock.clone(), &stop).await?;
    // Those that hear no more wait for the next.
    let most = cluster.most_object_bytes();
    surveys.iter().try_for_each(|survey| survey.check(most)).map_err(Misused)?;
    let prefix = format!("{}{}", below(&run.place.key), prefix(number));
    let told = Told {
        place: run.place(),
        kind: cluster.store().to_owned(),
        prefix: prefix.clone(),
        seed: run.seed,
        fresh: run.fresh,
        files: None,
        cores: cores(),
        cells: acts.iter().map(Vec::len).sum(),
        head: HEAD,
        agents: cluster.agents(),
    };
    let mut output = Output::begin(&run.output, &told, clock.wall(), stop.clone())?;
    let measured = cluster.run(acts, &stop, |event| output.tell(event)).await;
    let cleaned = cluster.clean().await;
    let ended = run.conclude(output, (matches!(measured, Ok(true)), cluster.servers()), &prefix, cleaned);
    measured?;
    ended
}
