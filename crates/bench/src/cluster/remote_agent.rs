//! The coordinator's view of an agent: sends a request and waits for the response with a timeout. An agent
//! is lost with its connection and gets no further requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tradewind_core::Clock;

use super::clocks::{ClockExchange, ClockOffset};
use super::frame::LinkError;
use super::handshake::{Key, Role, handshake};
use super::link::Link;
use super::messages::{AgentJob, AgentRequest, AgentResponse, MAX_RESPONSE_BYTES, RunSettings, to_nanos};
use crate::drive::{Progress, StopSignal};
use crate::result::{ClientMachine, Measurement};
use crate::runner::Stage;

/// Timeouts for connecting, and for opening the store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeouts for reading the clock, creating objects and removing them.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(5);
const PREPARE_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const CLEAN_TIMEOUT: Duration = Duration::from_secs(3600);
/// Timeout for the start of the next message, if a request has several responses.
const NEXT_MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Extension for a message that is being received: enough for the longest one at 1 Mbit/s.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval at which the extension is renewed.
const EXTENSION_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for the response after a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of time exchanges for the clock offset.
const CLOCK_EXCHANGES: usize = 8;

/// A failed or lost agent.
#[derive(Debug)]
pub struct AgentError {
    /// Address of the agent.
    pub agent: String,
    /// Reason.
    pub reason: String,
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {}: {}", self.agent, self.reason)
    }
}

impl std::error::Error for AgentError {}

/// A connected agent.
pub struct RemoteAgent {
    pub name: String,
    pub number: u32,
    /// `None` after the agent is lost.
    pub link: Option<Link<AgentRequest>>,
    pub client: ClientMachine,
    pub store: String,
    pub max_object_bytes: u64,
    pub progress: Arc<Progress>,
    /// A stop request was sent.
    is_stopped: bool,
    /// The agent is shutting down: it removes its objects and accepts no further requests.
    pub is_shutting_down: bool,
}

/// The objects that an agent removed at the end.
#[derive(Debug)]
pub struct CleanResult {
    pub removed: u64,
    /// The lost agents whose objects it removed too.
    pub lost: Vec<u32>,
    /// Addresses of the store that it connected to.
    pub servers: Vec<String>,
}

impl fmt::Debug for RemoteAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteAgent")
            .field("name", &self.name)
            .field("is_lost", &self.link.is_none())
            .finish()
    }
}

impl RemoteAgent {
    pub async fn connect(
        name: &str,
        number: u32,
        key: &Key,
        settings: &RunSettings,
        stop: &StopSignal,
    ) -> Result<Self, AgentError> {
        let error = |reason: String| AgentError { agent: name.to_owned(), reason };
        let connected = tokio::select! {
            connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(name)) => connected,
            () = stop.triggered() => return Err(error("stopped while connecting".to_owned())),
        };
        let connected = connected.map_err(|_| error("cannot connect: timed out".to_owned()))?;
        let stream = connected.map_err(|e| error(format!("cannot connect: {e}")))?;
        // Only an optimization: failure is harmless.
        let _ = stream.set_nodelay(true);
        let (reader, writer) = stream.into_split();
        let stream = handshake(Role::Coordinator, key, reader, writer).await;
        let stream = stream.map_err(|e| error(e.to_string()))?;
        let link = Some(Link::new(stream, MAX_RESPONSE_BYTES, || AgentRequest::Heartbeat));
        let mut remote = Self {
            name: name.to_owned(),
            number,
            link,
            client: ClientMachine::default(),
            store: String::new(),
            max_object_bytes: 0,
            progress: Arc::default(),
            is_stopped: false,
            is_shutting_down: false,
        };
        let RunSettings {
            location,
            run,
            max_concurrent_loads,
            max_concurrency,
            new_connections,
            keep_objects,
        } = settings.clone();
        let job = AgentJob {
            location,
            run,
            agent: number,
            max_concurrent_loads,
            max_concurrency,
            new_connections,
            keep_objects,
        };
        match remote.ask(AgentRequest::Open(job), OPEN_TIMEOUT, stop).await? {
            AgentResponse::Opened { client, store, max_object_bytes } => {
                Ok(Self { client, store, max_object_bytes, ..remote })
            }
            other => Err(remote.to_error(other)),
        }
    }

    pub async fn prepare(&mut self, stage: Stage, stop: &StopSignal) -> Result<bool, AgentError> {
        match self.ask(AgentRequest::Prepare(stage), PREPARE_TIMEOUT, stop).await? {
            AgentResponse::Prepared { is_whole } => Ok(is_whole),
            other => Err(self.fail(other, stop)),
        }
    }

    pub async fn measure_clock_offset(
        &mut self,
        clock: &dyn Clock,
        stop: &StopSignal,
    ) -> Result<ClockOffset, AgentError> {
        let mut exchanges = Vec::with_capacity(CLOCK_EXCHANGES);
        for _ in 0..CLOCK_EXCHANGES {
            let sent = to_nanos(clock.now());
            match self.ask(AgentRequest::Time, CLOCK_TIMEOUT, stop).await? {
                AgentResponse::Time(agent_time) => {
                    exchanges.push(ClockExchange { sent, agent_time, received: to_nanos(clock.now()) })
                }
                other => return Err(self.fail(other, stop)),
            }
        }
        ClockOffset::from_exchanges(&exchanges)
            .ok_or_else(|| self.error("its clock offset is unknown".to_owned()))
    }

    /// Runs the prepared loads from `start_nanos` on. Returns the start time in the agent's clock and the measurements
    /// in order; none if it was stopped before the start.
    pub async fn measure(
        &mut self,
        (start_nanos, loads): (u64, usize),
        time_limit: Duration,
        stop: &StopSignal,
    ) -> Result<(u64, Vec<Measurement>), AgentError> {
        let mut measurements = Vec::new();
        let mut response = self.ask(AgentRequest::Measure { start_nanos }, time_limit, stop).await?;
        loop {
            match response {
                AgentResponse::Measurement(measurement) if measurements.len() < loads => {
                    measurements.push(*measurement)
                }
                AgentResponse::StageMeasured { started_nanos } => return Ok((started_nanos, measurements)),
                other => return Err(self.fail(other, stop)),
            }
            response = self.ask(None, NEXT_MESSAGE_TIMEOUT, stop).await?;
        }
    }

    pub async fn clean_after(&mut self, stop: &StopSignal) -> Result<(), AgentError> {
        // Cleaning is never stopped, even if other agents are lost.
        match self.ask(AgentRequest::CleanAfter, CLEAN_TIMEOUT, &StopSignal::default()).await? {
            AgentResponse::CleanedAfter => Ok(()),
            other => Err(self.fail(other, stop)),
        }
    }

    /// Ends the session and has the agent remove all objects. An agent that is already shutting down removes only its
    /// own and not those of lost agents.
    pub async fn end(&mut self, lost: Vec<u32>) -> Result<CleanResult, AgentError> {
        // Cleaning is never stopped.
        let mut response =
            self.ask(AgentRequest::End { lost }, CLEAN_TIMEOUT, &StopSignal::default()).await?;
        if matches!(response, AgentResponse::ShuttingDown) {
            response = self.ask(None, CLEAN_TIMEOUT, &StopSignal::default()).await?;
        }
        match response {
            AgentResponse::Cleaned { removed, lost, servers } => Ok(CleanResult { removed, lost, servers }),
            other => Err(self.to_error(other)),
        }
    }

    /// Receives heartbeats while other agents work, until `done`. Fails if the agent is lost.
    pub async fn monitor(&mut self, done: &CancellationToken, stop: &StopSignal) -> Result<(), AgentError> {
        while let Some(link) = self.link.as_mut() {
            let message = tokio::select! {
                () = done.cancelled() => return Ok(()),
                message = link.receive() => message,
            };
            match message {
                Ok(AgentResponse::Heartbeat { .. }) => {}
                Ok(response) => return Err(self.fail(response, stop)),
                Err(broken) => return Err(self.lose(&broken, stop)),
            }
        }
        Ok(())
    }

    /// Sends a request, or none to wait for a further response to the last one, and waits for the response for at most
    /// `time_limit`. Forwards `stop` to the agent. If the agent is lost, triggers `stop` for all others.
    async fn ask(
        &mut self,
        request: impl Into<Option<AgentRequest>>,
        time_limit: Duration,
        stop: &StopSignal,
    ) -> Result<AgentResponse, AgentError> {
        let response = self.exchange(request.into(), time_limit, stop).await;
        response.map_err(|broken| self.lose(&broken, stop))
    }

    fn lose(&mut self, broken: &LinkError, stop: &StopSignal) -> AgentError {
        self.link = None;
        stop.trigger();
        self.error(broken.to_string())
    }

    async fn exchange(
        &mut self,
        request: Option<AgentRequest>,
        time_limit: Duration,
        stop: &StopSignal,
    ) -> Result<AgentResponse, LinkError> {
        let link = self.link.as_mut().ok_or(LinkError::Closed)?;
        if let Some(request) = request {
            // If sending fails, the peer may still have sent the reason: the loop below reads it, or the end of the
            // connection.
            let _ = link.send(request).await;
        }
        let started = Instant::now();
        let mut deadline = started.checked_add(time_limit).unwrap_or(started + PREPARE_TIMEOUT);
        let mut extension = RECEIVE_TIMEOUT;
        loop {
            tokio::select! {
                () = stop.triggered(), if !self.is_stopped => {
                    self.is_stopped = true;
                    deadline = deadline.min(Instant::now() + STOP_TIMEOUT);
                    let _ = link.send(AgentRequest::Stop).await;
                }
                response = timeout_at(deadline, link.receive()) => match response {
                    Ok(response) => match response? {
                        AgentResponse::Heartbeat { operations, bytes, failures } => {
                            self.progress.set(operations, bytes, failures);
                        }
                        response => return Ok(response),
                    },
                    // A message is arriving slowly. The link detects a dead peer.
                    Err(_) if link.is_receiving() && !extension.is_zero() => {
                        extension = extension.saturating_sub(EXTENSION_INTERVAL);
                        deadline += EXTENSION_INTERVAL;
                    }
                    Err(_) => return Err(LinkError::TimedOut(started.elapsed())),
                }
            }
        }
    }

    /// Triggers `stop` for all agents and converts an unexpected response into an error.
    fn fail(&mut self, response: AgentResponse, stop: &StopSignal) -> AgentError {
        stop.trigger();
        self.is_shutting_down |= matches!(response, AgentResponse::ShuttingDown);
        self.to_error(response)
    }

    fn to_error(&self, response: AgentResponse) -> AgentError {
        let reason = match response {
            AgentResponse::Busy => "it is busy with another coordinator".to_owned(),
            AgentResponse::Failed(reason) => reason,
            AgentResponse::ShuttingDown => "it is shutting down".to_owned(),
            _ => LinkError::Unexpected("the response").to_string(),
        };
        self.error(reason)
    }

    fn error(&self, reason: String) -> AgentError {
        AgentError { agent: self.name.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream, WriteHalf, duplex, split};

    use super::super::handshake::AuthenticatedStream;
    use super::super::link::FrameSealer;
    use super::*;

    /// A connected agent, and its sending end of the connection.
    async fn connected_agent() -> (RemoteAgent, WriteHalf<DuplexStream>, FrameSealer) {
        let (near, far) = duplex(1 << 20);
        let key = Key::new(b"a key of sixteen and more").unwrap();
        let ((near, near_writer), (far, far_writer)) = (split(near), split(far));
        let (coordinator, agent) = tokio::join!(
            handshake(Role::Coordinator, &key, near, near_writer),
            handshake(Role::Agent, &key, far, far_writer)
        );
        let AuthenticatedStream { mut reader, writer, send_key, .. } = agent.ok().unwrap();
        // The agent reads requests as long as the connection exists.
        tokio::spawn(async move { while reader.next_frame(1 << 20, CLEAN_TIMEOUT).await.is_ok() {} });
        let remote = RemoteAgent {
            name: "far".to_owned(),
            number: 1,
            link: Some(Link::new(coordinator.ok().unwrap(), MAX_RESPONSE_BYTES, || AgentRequest::Heartbeat)),
            client: ClientMachine::default(),
            store: String::new(),
            max_object_bytes: 0,
            progress: Arc::default(),
            is_stopped: false,
            is_shutting_down: false,
        };
        (remote, writer, FrameSealer::new(send_key))
    }

    /// Measures with an agent that sends one byte of its response every five seconds. `spaces` pad the response.
    async fn measure_with_slow_response(spaces: usize) -> (Result<u64, AgentError>, Duration) {
        let (mut remote, mut writer, mut seal) = connected_agent().await;
        let response = format!("{}{}", " ".repeat(spaces), r#"{"stage_measured":{"started_nanos":7}}"#);
        let sealed = seal.seal(response.as_bytes());
        let frame = [&u32::try_from(sealed.len()).unwrap().to_be_bytes()[..], &sealed].concat();
        let started = Instant::now();
        let slow = async {
            for byte in frame {
                // The coordinator may have closed the connection.
                let _ = writer.write_all(&[byte]).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            std::future::pending().await
        };
        let stop = StopSignal::default();
        let measured = tokio::select! {
            measured = remote.measure((0, 1), Duration::from_secs(10), &stop) => measured,
            () = slow => unreachable!("the sender never ends"),
        };
        assert_eq!(measured.is_err(), stop.is_triggered());
        (measured.map(|(started_nanos, _)| started_nanos), started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn cleaning_agent_is_awaited_after_a_stop() {
        let (mut remote, mut writer, mut seal) = connected_agent().await;
        let mut send = async |response: &[u8]| {
            let sealed = seal.seal(response);
            let length = u32::try_from(sealed.len()).unwrap().to_be_bytes();
            writer.write_all(&[&length[..], &sealed].concat()).await.unwrap();
        };
        let cleaning = async {
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                send(br#"{"heartbeat":{"operations":0,"bytes":0,"failures":0}}"#).await;
            }
            send(br#""cleaned_after""#).await;
        };
        let stop = StopSignal::default();
        stop.trigger();
        let (cleaned, ()) = tokio::join!(remote.clean_after(&stop), cleaning);
        cleaned.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn slowly_arriving_response_is_awaited_up_to_a_limit() {
        let (started_nanos, elapsed) = measure_with_slow_response(0).await;
        assert!(elapsed > Duration::from_secs(300), "{elapsed:?}");
        assert_eq!(started_nanos.unwrap(), 7);
        let (lost, elapsed) = measure_with_slow_response(1000).await;
        assert!(lost.unwrap_err().reason.contains("it has not responded for 61"));
        assert!(elapsed < Duration::from_secs(10) + RECEIVE_TIMEOUT + 2 * EXTENSION_INTERVAL, "{elapsed:?}");
    }
}
