//! The coordinator: runs each stage on all agents. All prepare; then it estimates the offsets of their clocks, sends
//! each the start time in its own clock, and merges their measurements. If an agent is lost or fails, the others stop.
//! Their measurements are kept and marked as incomplete, and the run ends: fewer machines would generate a different
//! load.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tokio_util::sync::CancellationToken;
use tradewind_core::Clock;

use super::assignment::{AssignedStage, Assignment, loads_for_agent};
use super::clocks::{ClockOffset, max_skew};
use super::handshake::Key;
use super::merging;
use super::messages::{MAX_AGENTS, to_nanos};
pub use super::messages::{RunSettings, run_prefix};
pub use super::remote_agent::AgentError;
use super::remote_agent::{CleanResult, RemoteAgent};
use crate::drive::{EndReason, Progress, StopSignal};
use crate::result::{AgentInfo, AgentMeasurement};
use crate::runner::{RunEvent, Stage};

/// Maximum time between the end of a load and the agent's result: the agent waits for the last requests.
const RESULT_TIMEOUT: Duration = Duration::from_secs(120);
/// Delay between the measure request and the start of a load: a fixed part, and a number of RTTs.
const START_DELAY: Duration = Duration::from_millis(50);
const START_DELAY_RTTS: u32 = 4;

/// The connected agents of a run.
#[derive(Debug)]
pub struct Cluster {
    agents: Vec<RemoteAgent>,
    clock: Arc<dyn Clock>,
    keep_objects: bool,
    /// Addresses of the store, as reported by the agents at the end.
    servers: BTreeSet<String>,
}

impl Cluster {
    /// Connects to all agents and has them open the store. If one fails, the others are released for the next
    /// coordinator.
    pub async fn connect(
        addresses: &[String],
        key: &Key,
        settings: &RunSettings,
        clock: Arc<dyn Clock>,
        stop: &StopSignal,
    ) -> Result<Self, AgentError> {
        let connecting = (1..=MAX_AGENTS)
            .zip(addresses)
            .map(|(n, name)| RemoteAgent::connect(name, n, key, settings, stop));
        let agents = try_join_all(connecting).await?;
        Ok(Self { agents, clock, keep_objects: settings.keep_objects, servers: BTreeSet::new() })
    }

    /// The agents and their machines.
    #[must_use]
    pub fn agents(&self) -> Vec<AgentInfo> {
        let to_info =
            |agent: &RemoteAgent| AgentInfo { address: agent.name.clone(), client: agent.client.clone() };
        self.agents.iter().map(to_info).collect()
    }

    /// Kind of store, as reported by the first agent.
    #[must_use]
    pub fn store(&self) -> &str {
        self.agents.first().map_or("", |agent| &agent.store)
    }

    /// Addresses of the store that any agent connected to. Only known after [`clean`](Self::clean).
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.servers.iter().cloned().collect()
    }

    /// The largest object size that the stores of all agents accept, in bytes.
    #[must_use]
    pub fn max_object_bytes(&self) -> u64 {
        self.agents.iter().map(|agent| agent.max_object_bytes).min().unwrap_or(0)
    }

    /// Runs all stages and reports their events. Returns true if everything was measured, false if stopped. If an agent
    /// fails, `stop` is triggered.
    pub async fn run(
        &mut self,
        assigned_stages: impl IntoIterator<Item = AssignedStage>,
        stop: &StopSignal,
        mut on_event: impl FnMut(RunEvent<'_>),
    ) -> Result<bool, AgentError> {
        for assignments in assigned_stages {
            if !self.prepare(&assignments, stop, &mut on_event).await?
                || !self.measure(&assignments, stop, &mut on_event).await?
            {
                return Ok(false);
            }
            if !self.keep_objects && assignments.iter().any(|assignment| assignment.step.writes_only()) {
                on_event(RunEvent::PhaseStarted {
                    description: "cleaning".to_owned(),
                    max_duration: None,
                    progress: Vec::new(),
                });
                let work = self.agents.iter_mut().map(async |agent| {
                    let cleaned = agent.clean_after(stop).await;
                    (agent, cleaned)
                });
                all_of(each(work, stop).await)?;
            }
        }
        Ok(true)
    }

    /// Resets and returns the progress of all agents for the next phase.
    fn reset_progress(&mut self) -> Vec<Arc<Progress>> {
        self.agents
            .iter_mut()
            .map(|agent| {
                agent.progress = Arc::default();
                agent.progress.clone()
            })
            .collect()
    }

    async fn prepare(
        &mut self,
        assignments: &[Assignment],
        stop: &StopSignal,
        on_event: &mut impl FnMut(RunEvent<'_>),
    ) -> Result<bool, AgentError> {
        let sizes: Vec<String> =
            assignments.iter().map(|assignment| assignment.step.sizes.to_string()).collect();
        let description = format!("creating objects of {}", sizes.join(" and "));
        on_event(RunEvent::PhaseStarted { description, max_duration: None, progress: self.reset_progress() });
        let work = self.agents.iter_mut().map(async |agent| {
            let stage: Stage =
                loads_for_agent(assignments, agent.number).into_iter().map(|(_, share)| share).collect();
            // An agent without assignments has nothing to prepare.
            let prepared = if stage.is_empty() { Ok(true) } else { agent.prepare(stage, stop).await };
            (agent, prepared)
        });
        let prepared = all_of(each(work, stop).await)?;
        Ok(prepared.into_iter().all(|is_whole| is_whole))
    }

    async fn measure(
        &mut self,
        assignments: &[Assignment],
        stop: &StopSignal,
        on_event: &mut impl FnMut(RunEvent<'_>),
    ) -> Result<bool, AgentError> {
        let clock = self.clock.clone();
        let exchanges = self.agents.iter_mut().map(|agent| agent.measure_clock_offset(&*clock, stop));
        let clock_offsets: Result<Vec<ClockOffset>, AgentError> =
            join_all(exchanges).await.into_iter().collect();
        let clock_offsets = clock_offsets?;
        let durations = assignments.iter().map(|assignment| {
            assignment.step.load.warm_up.saturating_add(assignment.step.load.stop_condition.duration)
        });
        let max_duration = durations.max().unwrap_or_default();
        let describe = |assignment: &Assignment| {
            format!("{} on each of {} agents", assignment.step, assignment.agents.len())
        };
        let description = assignments.iter().map(describe).collect::<Vec<_>>().join(" with ");
        on_event(RunEvent::PhaseStarted {
            description,
            max_duration: Some(max_duration),
            progress: self.reset_progress(),
        });
        let max_error = clock_offsets.iter().map(ClockOffset::max_error).max().unwrap_or_default();
        // The error of a clock offset is half the RTT.
        let start_delay = START_DELAY + 2 * START_DELAY_RTTS * max_error;
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let start_nanos = to_nanos(now + start_delay);
        let time_limit = max_duration.saturating_add(start_delay + RESULT_TIMEOUT);
        let work = self.agents.iter_mut().zip(&clock_offsets).map(async |(agent, clock_offset)| {
            let measured = match loads_for_agent(assignments, agent.number).len() {
                0 => Ok((0, Vec::new())),
                loads => {
                    agent.measure((clock_offset.to_agent_time(start_nanos), loads), time_limit, stop).await
                }
            };
            (agent, measured)
        });
        let (measured, mut error) = each(work, stop).await;
        let mut parts: Vec<Vec<AgentMeasurement>> = assignments.iter().map(|_| Vec::new()).collect();
        let mut starts = Vec::new();
        for ((agent, clock_offset), measured) in self.agents.iter().zip(&clock_offsets).zip(measured) {
            match measured {
                Ok((started_nanos, measurements)) => {
                    starts.extend((!measurements.is_empty()).then_some((*clock_offset, started_nanos)));
                    for ((n, _), measurement) in
                        loads_for_agent(assignments, agent.number).into_iter().zip(measurements)
                    {
                        let (address, cores) = (agent.name.clone(), agent.client.cores);
                        parts[n].push(AgentMeasurement { address, cores, measurement });
                    }
                }
                Err(e) => error = Some(e),
            }
        }
        let reason = error.as_ref().map_or_else(|| "they were stopped".to_owned(), ToString::to_string);
        let mut measurements = merging::merge_stage(assignments, parts, max_skew(starts), &reason);
        for measurement in &mut measurements {
            measurement.started_ms = wall.millis() + i64::try_from(start_delay.as_millis()).unwrap_or(0);
            on_event(RunEvent::Measured(measurement));
        }
        let is_whole = measurements.len() == assignments.len()
            && measurements.iter().all(|measurement| measurement.end_reason != EndReason::Stopped);
        error.map_or(Ok(is_whole && !stop.is_triggered()), Err)
    }

    /// Has the agents remove all objects, including those of lost agents. Returns their number.
    pub async fn clean(&mut self) -> Result<u64, AgentError> {
        let lost: Vec<u32> =
            self.agents.iter().filter(|agent| agent.link.is_none()).map(|agent| agent.number).collect();
        // The agent that also removes the objects of lost agents.
        let remover = self.agents.iter().position(|agent| agent.link.is_some() && !agent.is_shutting_down);
        let connected = self.agents.iter_mut().enumerate().filter(|(_, agent)| agent.link.is_some());
        let ending =
            connected.map(|(n, agent)| agent.end(if Some(n) == remover { lost.clone() } else { Vec::new() }));
        let cleaned = join_all(ending).await;
        let (mut sum, mut also_cleaned) = (0_u64, BTreeSet::new());
        for cleaned in cleaned {
            let CleanResult { removed, lost, servers } = cleaned?;
            sum = sum.saturating_add(removed);
            also_cleaned.extend(lost);
            self.servers.extend(servers);
        }
        let is_left =
            |agent: &&RemoteAgent| lost.contains(&agent.number) && !also_cleaned.contains(&agent.number);
        if let (false, Some(agent)) = (self.keep_objects, self.agents.iter().find(is_left)) {
            let reason = "it was lost, and no other agent has removed its objects".to_owned();
            return Err(AgentError { agent: agent.name.clone(), reason });
        }
        Ok(sum)
    }
}

/// The results of the agents, and the error of an agent that was lost after it had finished.
type AgentResults<T> = (Vec<Result<T, AgentError>>, Option<AgentError>);

/// Runs work on all agents concurrently and waits for all. Agents that finish early are monitored until all have
/// finished.
async fn each<'a, T>(
    work: impl Iterator<Item = impl Future<Output = (&'a mut RemoteAgent, Result<T, AgentError>)>>,
    stop: &StopSignal,
) -> AgentResults<T> {
    let work: Vec<_> = work.collect();
    let (done, left) = (CancellationToken::new(), AtomicUsize::new(work.len()));
    let running = work.into_iter().map(async |work| {
        let (agent, result) = work.await;
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            done.cancel();
        }
        // A failed agent needs no monitoring: the run ends.
        let lost = if result.is_ok() { agent.monitor(&done, stop).await.err() } else { None };
        (result, lost)
    });
    let (results, lost): (Vec<_>, Vec<_>) = join_all(running).await.into_iter().unzip();
    (results, lost.into_iter().flatten().next())
}

/// Returns the results of all agents, or the error of one that failed or was lost.
fn all_of<T>((results, lost): AgentResults<T>) -> Result<Vec<T>, AgentError> {
    let results = results.into_iter().collect::<Result<Vec<T>, AgentError>>()?;
    lost.map_or(Ok(results), Err)
}
