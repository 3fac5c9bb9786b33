//! `tradewind bench cluster`: a benchmark with load from several machines.

use std::sync::Arc;

use clap::Args;
use tradewind_bench::cluster::Key;
use tradewind_bench::cluster::agent::MAX_AGENTS;
use tradewind_bench::cluster::assignment::{
    AssignedStage, assign_isolated, assign_to_all, check_stages, max_agent_load,
};
use tradewind_bench::cluster::coordinator::{Cluster, RunSettings, run_prefix};
use tradewind_bench::drive::StopSignal;
use tradewind_bench::test_plan::TestPlan;
use tradewind_core::{Clock, SystemClock};

use super::key::KeyFlags;
use super::load_selection::LoadSelection;
use super::loads::LoadFlags;
use super::mix::ConcurrentLoads;
use super::object::LOAD_DEFAULTS;
use super::output::{Output, RunDescription, TABLE_HEADER};
use super::target::{RunFlags, directory_prefix, random_run_number, until_stopped};
use super::{load_selection, mix};
use crate::commands::{CommandOutcome, UsageError};
use crate::profiles::this_machine::cpus;

/// Measure a store from several machines concurrently
///
/// Each machine runs `tradewind bench agent` with the same key. All agents start each load at the same moment; their
/// histograms are merged, and the share of each agent is printed below the row. --concurrency, --count and --objects
/// apply to each agent, and the row shows the total concurrency; --rate is the total, which is divided among the
/// agents. Agents open the store with their own credentials: this machine needs none. With --mixed, loads run
/// concurrently, on every agent or on separate agents.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tradewind bench cluster s3://bucket --agents 10.0.0.7:9190,10.0.0.8:9190 --key-file key\n  \
    tradewind bench cluster s3://bucket --agents one:9190,two:9190 --key-file key --mix get --rate 2000 -o both.jsonl\n  \
    tradewind bench cluster s3://bucket --agents one:9190,two:9190 --key-file key --workload hou --scale 0.01\n  \
    tradewind bench cluster s3://bucket --agents one:9190,two:9190 --key-file key --mixed --separate-agents --size 4KiB --concurrency 8\n\n\
    Exit status: 0 measured, 1 a request failed, data was wrong, or an agent was lost, 2 usage.")]
pub(in crate::commands) struct Arguments {
    /// Addresses of agents, separated by commas
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    agents: Vec<String>,
    #[command(flatten)]
    key: KeyFlags,
    /// Measure each load alone, and then concurrently with each load including itself, like `tradewind bench mix`
    #[arg(long, conflicts_with = "workload")]
    mixed: bool,
    /// Loads to run concurrently with each load, instead of all pairs: "put 4MiB x 8", or several: "put 4MiB x 8 and
    /// get 4KiB x 2"
    #[arg(long, value_name = "LOAD", requires = "mixed")]
    concurrent_with: Vec<ConcurrentLoads>,
    /// Run concurrent loads on different agents, assigned round-robin
    #[arg(long, requires = "mixed")]
    separate_agents: bool,
    #[command(flatten)]
    selection: LoadSelection,
    #[command(flatten)]
    run: RunFlags,
}

impl Arguments {
    fn count(&self) -> u32 {
        u32::try_from(self.agents.len()).unwrap_or(u32::MAX)
    }

    /// The plans, and the assignments of loads to agents.
    fn assignments(&self) -> anyhow::Result<(Vec<TestPlan>, Vec<AssignedStage>)> {
        let (seed_and_repeat, agents) = ((self.run.seed, self.run.repeat), self.count());
        if self.mixed {
            let (test_plan, stages) =
                mix::stages(&self.selection.load, &self.concurrent_with, seed_and_repeat)?;
            let assignments = if self.separate_agents {
                assign_isolated(&stages, agents)
            } else {
                Ok(assign_to_all(&stages, agents))
            };
            return Ok((vec![test_plan], assignments.map_err(UsageError)?));
        }
        let loads = self.selection.loads()?;
        if loads.iter().any(LoadFlags::ends_at_confidence) {
            let reason = "--until-ci is not supported with several machines: each agent would end by its own throughput";
            return Err(UsageError(reason.to_owned()).into());
        }
        let (test_plans, stages) = load_selection::stages(&loads, &LOAD_DEFAULTS, seed_and_repeat)?;
        Ok((test_plans, assign_to_all(&stages, agents)))
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let agents = &arguments.agents;
    if let Some(duplicate) = agents.iter().enumerate().find(|(n, agent)| agents[..*n].contains(agent)) {
        return Err(UsageError(format!("the agent {} is given twice", duplicate.1)).into());
    }
    if arguments.count() > MAX_AGENTS {
        return Err(UsageError(format!("{} agents given; the limit is {MAX_AGENTS}", agents.len())).into());
    }
    let plan = arguments.assignments()?;
    check_stages(&plan.1, arguments.count()).map_err(UsageError)?;
    let key = arguments.key.read()?;
    until_stopped(async |stop| measure(arguments, plan, key, stop).await)
}

async fn measure(
    arguments: &Arguments,
    (test_plans, assignments): (Vec<TestPlan>, Vec<AssignedStage>),
    key: Key,
    stop: StopSignal,
) -> anyhow::Result<CommandOutcome> {
    let Arguments { agents, run, .. } = arguments;
    let run_number = random_run_number()?;
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let (max_concurrent_loads, max_concurrency) = max_agent_load(&assignments, arguments.count());
    let settings = RunSettings {
        location: run.location(),
        run: run_number,
        max_concurrent_loads,
        max_concurrency,
        new_connections: run.new_connections,
        keep_objects: run.keep,
    };
    let mut cluster = Cluster::connect(agents, &key, &settings, clock.clone(), &stop).await?;
    // After an error here, the agents wait for the next coordinator.
    let limit = cluster.max_object_bytes();
    test_plans.iter().try_for_each(|test_plan| test_plan.check(limit)).map_err(UsageError)?;
    let prefix = format!("{}{}", directory_prefix(&run.location.key), run_prefix(run_number));
    let description = RunDescription {
        location: run.location(),
        store: cluster.store().to_owned(),
        prefix: prefix.clone(),
        seed: run.seed,
        new_connections: run.new_connections,
        files_dir: None,
        cores: cpus(),
        measurements: assignments.iter().map(Vec::len).sum(),
        table_header: TABLE_HEADER,
        agents: cluster.agents(),
    };
    let mut output = Output::begin(&run.output, &description, clock.wall(), stop.clone())?;
    let measured = cluster.run(assignments, &stop, |event| output.handle_event(event)).await;
    let cleaned = cluster.clean().await;
    let outcome = run.conclude(output, (matches!(measured, Ok(true)), cluster.servers()), &prefix, cleaned);
    measured?;
    outcome
}
