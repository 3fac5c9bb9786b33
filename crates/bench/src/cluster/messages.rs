//! Messages between a coordinator and its agents. The coordinator sends the next request after the response. The agent
//! responds to each and reports its progress until then.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::ArrivalMode;
use crate::result::{ClientMachine, Measurement};
use crate::runner::Stage;
use crate::test_plan::Step;

/// Maximum size of a request, in bytes. The longest is a stage.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;
/// Maximum size of a response, in bytes: histograms of each kind of request, and a series per 100 ms of a day.
pub const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Maximum number of concurrent loads of an agent.
pub const MAX_CONCURRENT_LOADS: usize = 16;
/// Maximum number of concurrent requests of an agent.
const MAX_CONCURRENCY: usize = 4096;
/// Maximum duration of a load. The series of a longer one would not fit into a response.
const MAX_LOAD_TIME: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of agents of a run.
pub const MAX_AGENTS: u32 = 64;

/// The settings of a run that all agents receive first.
#[derive(Debug, Clone)]
pub struct RunSettings {
    /// Location under test, as it would be given to the agents' own commands.
    pub location: String,
    /// Number of the run, which is part of its object names.
    pub run: u32,
    /// Maximum number of concurrent loads of each agent.
    pub max_concurrent_loads: usize,
    /// Maximum number of concurrent requests of each agent.
    pub max_concurrency: usize,
    /// True if each request uses a new connection.
    pub new_connections: bool,
    /// True if objects are kept after their measurement.
    pub keep_objects: bool,
}

/// The job of one agent. The agent builds the prefix of its objects from the numbers of the run and the agent, so a
/// coordinator cannot have other objects removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentJob {
    /// Location under test, as it would be given to the agent's own commands.
    pub location: String,
    /// Number of the run.
    pub run: u32,
    /// Number of the agent, counted from 1.
    pub agent: u32,
    /// Maximum number of concurrent loads.
    pub max_concurrent_loads: usize,
    /// Maximum number of concurrent requests.
    pub max_concurrency: usize,
    /// True if each request uses a new connection.
    pub new_connections: bool,
    /// True if objects are kept after their measurement.
    pub keep_objects: bool,
}

impl AgentJob {
    /// The prefix of the object names of an agent, below the location.
    pub(super) fn agent_prefix(&self, agent: u32) -> String {
        format!("{}agent{agent}/", run_prefix(self.run))
    }

    /// A name that is unique among the agents of all runs.
    #[must_use]
    pub fn unique_name(&self) -> String {
        self.agent_prefix(self.agent).trim_end_matches('/').replace('/', "-")
    }
}

/// The prefix of the object names of a run, below the location.
#[must_use]
pub fn run_prefix(run: u32) -> String {
    format!("tradewind-bench-{run:08x}/")
}

/// A message of the coordinator.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRequest {
    /// Open the store.
    Open(AgentJob),
    /// Read the clock.
    Time,
    /// Create the objects of a stage.
    Prepare(Stage),
    /// Run the loads of the prepared stage, starting at this time of the agent's clock, in nanoseconds.
    Measure { start_nanos: u64 },
    /// Remove the objects that the last stage wrote.
    CleanAfter,
    /// Stop the current request.
    Stop,
    /// Remove all objects, including those of the given lost agents.
    End { lost: Vec<u32> },
    /// Heartbeat.
    Heartbeat,
}

/// A message of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentResponse {
    /// Another coordinator is being served.
    Busy,
    /// The store is open.
    Opened { client: ClientMachine, store: String, max_object_bytes: u64 },
    /// Time of the agent's clock, in nanoseconds.
    Time(u64),
    /// The preparation has ended. `is_whole` is false if it was stopped.
    Prepared { is_whole: bool },
    /// The measurement of the next load of the stage. None is sent if the stage was stopped before it began.
    Measurement(Box<Measurement>),
    /// The end of the measurements, with the start time of the stage in nanoseconds of the agent's clock.
    StageMeasured { started_nanos: u64 },
    /// The objects that the last stage wrote are removed.
    CleanedAfter,
    /// All objects are removed, including those of the given lost agents. `servers` are the store's addresses used so
    /// far.
    Cleaned { removed: u64, lost: Vec<u32>, servers: Vec<String> },
    /// The agent is shutting down and accepts no further requests. [`Cleaned`](Self::Cleaned) follows.
    ShuttingDown,
    /// The request failed.
    Failed(String),
    /// Heartbeat with the progress of the current request: requests, bytes and failures.
    Heartbeat { operations: u64, bytes: u64, failures: u64 },
}

/// Validates a stage of at most `max_loads` loads. Fails with the reason why an agent rejects it.
pub fn check_stage(stage: &[Step], max_loads: usize, max_object_bytes: u64) -> Result<(), String> {
    if !(1..=max_loads).contains(&stage.len()) {
        return Err(format!("{} concurrent loads are not allowed: use 1 to {max_loads}", stage.len()));
    }
    let concurrency = stage.iter().map(|step| step.load.concurrency).fold(0, usize::saturating_add);
    if concurrency > MAX_CONCURRENCY {
        return Err(format!("{concurrency} concurrent requests exceed the limit of {MAX_CONCURRENCY}"));
    }
    stage.iter().try_for_each(|step| check_step(step, max_object_bytes))
}

fn check_step(step: &Step, max_object_bytes: u64) -> Result<(), String> {
    let load = &step.load;
    if !(1..=MAX_CONCURRENCY).contains(&load.concurrency) {
        return Err(format!(
            "the concurrency {} is not allowed: use 1 to {MAX_CONCURRENCY}",
            load.concurrency
        ));
    }
    if load.warm_up.max(load.stop_condition.duration) > MAX_LOAD_TIME {
        return Err("a load on agents is limited to one day".to_owned());
    }
    if !(0.0..=1.0).contains(&load.phase) {
        return Err(format!("the phase {} is not between 0 and 1", load.phase));
    }
    if step.sizes.max() > max_object_bytes {
        return Err(format!("objects of {} are larger than the limit of the store", step.sizes));
    }
    match load.arrival_mode {
        ArrivalMode::Open { requests_per_second, .. } if !(1e-6..=1e6).contains(&requests_per_second) => {
            Err(format!("the rate {requests_per_second}/s is not between 0.000001/s and 1000000/s"))
        }
        _ => Ok(()),
    }
}

/// Converts a clock time to nanoseconds.
pub fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
