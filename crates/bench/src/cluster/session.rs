//! An agent's session with one coordinator: opens the store and executes requests. During each request it listens for a
//! stop and for the loss of the coordinator. However the session ends, the agent removes the objects it created.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tradewind_core::error::Error;

use super::frame::LinkError;
use super::link::Link;
use super::messages::{
    AgentJob, AgentRequest, AgentResponse, MAX_AGENTS, MAX_CONCURRENT_LOADS, check_stage, to_nanos,
};
use crate::drive::{BenchEnv, Progress, StopSignal};
use crate::result::{ClientMachine, Measurement};
use crate::runner::{RunEvent, Runner, Stage};
use crate::workspace::Workspace;

/// Maximum time between a measure request and the requested start.
const MAX_START_DELAY: Duration = Duration::from_secs(60);

/// An opened store.
#[derive(Debug)]
pub struct OpenedStore {
    /// The benchmark environment with the store.
    pub env: BenchEnv,
    /// Prefix of all object names in the location: empty, or ending with a slash.
    pub base_prefix: String,
    /// Kind of store.
    pub store: String,
    /// This machine.
    pub client: ClientMachine,
}

/// Opens stores with the credentials of the agent's operator.
pub trait StoreOpener: Send + Sync + 'static {
    /// Opens the store of a job. Fails with a message for the coordinator.
    fn open<'a>(&'a self, job: &'a AgentJob) -> BoxFuture<'a, Result<OpenedStore, String>>;
}

/// Prints a status message.
pub type LogFn = Arc<dyn Fn(&str) + Send + Sync>;

/// The reason why a session ended before the coordinator ended it.
enum Interruption {
    /// The coordinator is lost.
    Lost(LinkError),
    /// This agent is shutting down.
    Halted,
}

impl From<LinkError> for Interruption {
    fn from(broken: LinkError) -> Self {
        Self::Lost(broken)
    }
}

/// A session with one coordinator.
pub struct Session {
    pub link: Link<AgentResponse>,
    /// Progress of the loads of the current request, which the heartbeats report.
    progress: Arc<Mutex<Vec<Arc<Progress>>>>,
    /// Stops the current request: triggered by the coordinator, by its loss, or by the shutdown of this agent.
    stop: StopSignal,
    halt: StopSignal,
    log: LogFn,
    from: SocketAddr,
    /// The prepared stage; empty if there is none.
    stage: Stage,
}

impl Session {
    /// Creates a session with the coordinator at `from`. It ends at the latest on `halt`. The link's
    /// heartbeats report `progress`.
    pub fn new(
        link: Link<AgentResponse>,
        progress: Arc<Mutex<Vec<Arc<Progress>>>>,
        halt: StopSignal,
        log: LogFn,
        from: SocketAddr,
    ) -> Self {
        Self { link, progress, stop: StopSignal::default(), halt, log, from, stage: Stage::new() }
    }

    /// Runs the session to its end. Returns a message that describes how it ended.
    pub async fn run(&mut self, opener: &dyn StoreOpener) -> String {
        let from = self.from;
        let (job, opened) = match self.open(opener).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(reason)) => return format!("{from} requested a location that cannot be opened: {reason}"),
            Err(Interruption::Lost(broken)) => return format!("{from} is lost: {broken}"),
            Err(Interruption::Halted) => return format!("done with {from}"),
        };
        (self.log)(&format!("measuring {} for {from}", job.location));
        let prefix = format!("{}{}", opened.base_prefix, job.agent_prefix(job.agent));
        let mut runner = Runner::new(
            &opened.env,
            &prefix,
            job.max_concurrent_loads,
            (opened.client.cores, job.keep_objects),
        );
        let result = self.execute_requests(&mut runner, (&job, &opened)).await;
        let lost = match &result {
            Ok(lost) => lost.as_slice(),
            Err(Interruption::Lost(broken)) => {
                (self.log)(&format!("{from} is lost: {broken}"));
                &[]
            }
            Err(Interruption::Halted) => {
                // This is the response to the current or the next request.
                let _ = self.link.send(AgentResponse::ShuttingDown).await;
                &[]
            }
        };
        let cleaned =
            if job.keep_objects { Ok(0) } else { self.clean(&mut runner, (&job, &opened), lost).await };
        let (response, message) = match cleaned {
            Ok(removed) => (
                AgentResponse::Cleaned { removed, lost: lost.to_vec(), servers: servers(&opened.env) },
                format!("done with {from}; removed {removed} objects"),
            ),
            Err(reason) => (
                AgentResponse::Failed(format!("cannot remove objects: {reason}")),
                format!("done with {from}; cannot remove the objects below {prefix}: {reason}"),
            ),
        };
        // A lost coordinator cannot receive it.
        let _ = self.link.send(response).await;
        message
    }

    /// Receives the next request. Heartbeats and stop requests are handled here.
    async fn next(&mut self) -> Result<AgentRequest, Interruption> {
        loop {
            tokio::select! {
                request = self.link.receive() => match request? {
                    AgentRequest::Heartbeat => {}
                    AgentRequest::Stop => self.stop.trigger(),
                    request => return Ok(request),
                },
                () = self.halt.triggered() => return Err(Interruption::Halted),
            }
        }
    }

    /// Runs `work` to completion and concurrently listens for a stop and for the loss of the coordinator. Both trigger
    /// the session's stop signal.
    async fn while_listening<T>(&mut self, work: impl Future<Output = T>) -> (T, Result<(), Interruption>) {
        let mut interruption = Ok(());
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    // The next request reports its own progress.
                    self.progress.lock().clear();
                    let is_halted = interruption.is_ok() && self.halt.is_triggered();
                    return (done, if is_halted { Err(Interruption::Halted) } else { interruption });
                }
                request = self.link.receive(), if interruption.is_ok() => match request {
                    Ok(AgentRequest::Heartbeat) => {}
                    Ok(AgentRequest::Stop) => self.stop.trigger(),
                    Ok(_) => {
                        interruption = Err(LinkError::Unexpected("a heartbeat").into());
                        self.stop.trigger();
                    }
                    Err(broken) => {
                        interruption = Err(broken.into());
                        self.stop.trigger();
                    }
                },
                () = self.halt.triggered(), if !self.stop.is_triggered() => self.stop.trigger(),
            }
        }
    }

    /// Receives the job and opens its store. The inner error is the reason why it cannot be opened, which is also sent
    /// to the coordinator.
    async fn open(
        &mut self,
        opener: &dyn StoreOpener,
    ) -> Result<Result<(AgentJob, OpenedStore), String>, Interruption> {
        let AgentRequest::Open(job) = self.next().await? else {
            return Err(LinkError::Unexpected("a job").into());
        };
        let opened = if !(1..=MAX_AGENTS).contains(&job.agent) {
            Err(format!("the agent number {} is not between 1 and {MAX_AGENTS}", job.agent))
        } else if !(1..=MAX_CONCURRENT_LOADS).contains(&job.max_concurrent_loads) {
            Err(format!(
                "{} concurrent loads are not allowed: use 1 to {MAX_CONCURRENT_LOADS}",
                job.max_concurrent_loads
            ))
        } else {
            let (opened, interruption) = self.while_listening(opener.open(&job)).await;
            interruption?;
            opened
        };
        let response = match &opened {
            Ok(opened) => AgentResponse::Opened {
                client: opened.client.clone(),
                store: opened.store.clone(),
                max_object_bytes: opened.env.store.capabilities().max_object_bytes,
            },
            Err(reason) => AgentResponse::Failed(reason.clone()),
        };
        self.link.send(response).await?;
        Ok(opened.map(|opened| (job, opened)))
    }

    /// Executes requests until the coordinator ends the session. Returns the lost agents whose objects must be removed
    /// too.
    async fn execute_requests(
        &mut self,
        runner: &mut Runner,
        (job, opened): (&AgentJob, &OpenedStore),
    ) -> Result<Vec<u32>, Interruption> {
        loop {
            let response = match self.next().await? {
                AgentRequest::End { lost } => return Ok(lost),
                AgentRequest::Time => AgentResponse::Time(to_nanos(opened.env.clock.now())),
                AgentRequest::Prepare(stage) => self.prepare(runner, (job, opened), stage).await?,
                AgentRequest::Measure { start_nanos } => {
                    self.measure(runner, opened, Duration::from_nanos(start_nanos)).await?
                }
                AgentRequest::CleanAfter => self.clean_after(runner).await?,
                AgentRequest::Open(_) | AgentRequest::Stop | AgentRequest::Heartbeat => {
                    return Err(LinkError::Unexpected("a request").into());
                }
            };
            self.link.send(response).await?;
        }
    }

    async fn prepare(
        &mut self,
        runner: &mut Runner,
        (job, opened): (&AgentJob, &OpenedStore),
        stage: Stage,
    ) -> Result<AgentResponse, Interruption> {
        if let Err(reason) =
            check_stage(&stage, job.max_concurrent_loads, opened.env.store.capabilities().max_object_bytes)
        {
            return Ok(AgentResponse::Failed(reason));
        }
        let (stop, progress) = (self.stop.clone(), self.progress.clone());
        let mut on_event = |event: RunEvent<'_>| update_progress(&progress, &event);
        let (prepared, interruption) =
            self.while_listening(runner.prepare(&stage, &stop, &mut on_event)).await;
        interruption?;
        self.stage = stage;
        Ok(prepared.map_or_else(failed, |is_whole| AgentResponse::Prepared { is_whole }))
    }

    async fn measure(
        &mut self,
        runner: &mut Runner,
        opened: &OpenedStore,
        start: Duration,
    ) -> Result<AgentResponse, Interruption> {
        let stage = std::mem::take(&mut self.stage);
        if stage.is_empty() {
            return Ok(AgentResponse::Failed("no stage was prepared".to_owned()));
        }
        let clock = opened.env.clock.clone();
        if start > clock.now() + MAX_START_DELAY {
            let reason = "the start time is too far in the future: the clocks do not agree";
            return Ok(AgentResponse::Failed(reason.to_owned()));
        }
        let (stop, progress) = (self.stop.clone(), self.progress.clone());
        let mut measurements: Vec<Box<Measurement>> = Vec::new();
        let mut on_event = |event: RunEvent<'_>| {
            update_progress(&progress, &event);
            if let RunEvent::Measured(measured) = event {
                measurements.push(Box::new(measured.clone()));
            }
        };
        let work = async {
            tokio::select! {
                () = clock.sleep_until(start) => {}
                () = stop.triggered() => return (clock.now(), Ok(false)),
            }
            (clock.now(), runner.measure(&stage, &stop, &mut on_event).await)
        };
        let ((started, measured), interruption) = self.while_listening(work).await;
        interruption?;
        self.stage = stage;
        if let Err(e) = measured {
            return Ok(failed(e));
        }
        for measurement in measurements {
            self.link.send(AgentResponse::Measurement(measurement)).await?;
        }
        Ok(AgentResponse::StageMeasured { started_nanos: to_nanos(started) })
    }

    async fn clean_after(&mut self, runner: &mut Runner) -> Result<AgentResponse, Interruption> {
        let stage = std::mem::take(&mut self.stage);
        let (cleaned, interruption) = self.while_listening(runner.clean_after(&stage, &mut |_| {})).await;
        interruption?;
        Ok(cleaned.map_or_else(failed, |()| AgentResponse::CleanedAfter))
    }

    /// Removes the objects of this agent and of lost agents of its run. Continues if the coordinator is lost.
    async fn clean(
        &mut self,
        runner: &mut Runner,
        (job, opened): (&AgentJob, &OpenedStore),
        lost: &[u32],
    ) -> Result<u64, String> {
        let work = async {
            let mut removed = runner.clean().await?;
            for agent in lost.iter().take(MAX_AGENTS as usize) {
                let prefix = format!("{}{}", opened.base_prefix, job.agent_prefix(*agent));
                removed += Workspace::clean_prefix(&opened.env, &prefix).await?;
            }
            Ok(removed)
        };
        let (removed, _) = self.while_listening(work).await;
        removed.map_err(|e: Error| e.to_string())
    }
}

/// Addresses of the store that connections were opened to.
fn servers(env: &BenchEnv) -> Vec<String> {
    env.traffic.addresses().iter().map(ToString::to_string).collect()
}

fn update_progress(current: &Mutex<Vec<Arc<Progress>>>, event: &RunEvent<'_>) {
    if let RunEvent::PhaseStarted { progress, .. } = event {
        current.lock().clone_from(progress);
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is passed to `map_or_else` as a function")]
fn failed(e: Error) -> AgentResponse {
    AgentResponse::Failed(e.to_string())
}
