//! The coordinator's view of an agent: sends one request at a time and waits for the response with a timeout. An agent
//! is lost with its connection and gets no further requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tradewind_core::Clock;

use super::clocks::{Alignment, Exchange};
use super::frame::Broken;
use super::handshake::{Key, Role, shake};
use super::link::Link;
use super::messages::{Answer, Job, MOST_ANSWERED, Request, Wanted, nanos};
use crate::course::Stage;
use crate::drive::{Gauge, Stop};
use crate::result::{Cell, Client};

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
pub struct Trouble {
    /// Address of the agent.
    pub agent: String,
    /// Reason.
    pub why: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {}: {}", self.agent, self.why)
    }
}

impl std::error::Error for Trouble {}

/// A connected agent.
pub struct Remote {
    pub name: String,
    pub number: u32,
    /// `None` after the agent is lost.
    pub link: Option<Link<Request>>,
    pub client: Client,
    pub store: String,
    pub most_object_bytes: u64,
    pub gauge: Arc<Gauge>,
    /// A stop request was sent.
    is_stopped: bool,
    /// The agent is shutting down: it removes its objects and accepts no further requests.
    pub ends: bool,
}

/// The objects that an agent removed at the end.
#[derive(Debug)]
pub struct Cleaned {
    pub removed: u64,
    /// The lost agents whose objects it removed too.
    pub lost: Vec<u32>,
    /// Addresses of the store that it connected to.
    pub servers: Vec<String>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("name", &self.name).field("is_lost", &self.link.is_none()).finish()
    }
}

impl Remote {
    pub async fn open(
        name: &str,
        number: u32,
        key: &Key,
        wanted: &Wanted,
        stop: &Stop,
    ) -> Result<Self, Trouble> {
        let trouble = |why: String| Trouble { agent: name.to_owned(), why };
        let connected = tokio::select! {
            connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(name)) => connected,
            () = stop.asked() => return Err(trouble("stopped while connecting".to_owned())),
        };
        let connected = connected.map_err(|_| trouble("cannot connect: timed out".to_owned()))?;
        let stream = connected.map_err(|e| trouble(format!("cannot connect: {e}")))?;
        // Only an optimization: failure is harmless.
        let _ = stream.set_nodelay(true);
        let (reader, writer) = stream.into_split();
        let shaken = shake(Role::Coordinator, key, reader, writer).await;
        let shaken = shaken.map_err(|stranger| trouble(stranger.to_string()))?;
        let link = Some(Link::new(shaken, MOST_ANSWERED, || Request::Beat));
        let mut remote = Self {
            name: name.to_owned(),
            number,
            link,
            client: Client::default(),
            store: String::new(),
            most_object_bytes: 0,
            gauge: Arc::default(),
            is_stopped: false,
            ends: false,
        };
        let Wanted { place, run, together, connections, fresh, keeps } = wanted.clone();
        let job = Job { place, run, agent: number, together, connections, fresh, keeps };
        match remote.ask(Request::Open(job), OPEN_TIMEOUT, stop).await? {
            Answer::Opened { client, store, most_object_bytes } => {
                Ok(Self { client, store, most_object_bytes, ..remote })
            }
            other => Err(remote.to_error(other)),
        }
    }

    pub async fn prepare(&mut self, stage: Stage, stop: &Stop) -> Result<bool, Trouble> {
        match self.ask(Request::Prepare(stage), PREPARE_TIMEOUT, stop).await? {
            Answer::Prepared { is_whole } => Ok(is_whole),
            other => Err(self.fail(other, stop)),
        }
    }

    pub async fn align(&mut self, clock: &dyn Clock, stop: &Stop) -> Result<Alignment, Trouble> {
        let mut exchanges = Vec::with_capacity(CLOCK_EXCHANGES);
        for _ in 0..CLOCK_EXCHANGES {
            let asked = nanos(clock.now());
            match self.ask(Request::Time, CLOCK_TIMEOUT, stop).await? {
                Answer::Time(said) => exchanges.push(Exchange { asked, said, answered: nanos(clock.now()) }),
                other => return Err(self.fail(other, stop)),
            }
        }
        Alignment::of(&exchanges).ok_or_else(|| self.trouble("its clock offset is unknown".to_owned()))
    }

    /// Runs the prepared loads from `at` on. Returns the start time in the agent's clock and the measurements in order;
    /// none if it was stopped before the start.
    pub async fn measure(
        &mut self,
        (at, loads): (u64, usize),
        within: Duration,
        stop: &Stop,
    ) -> Result<(u64, Vec<Cell>), Trouble> {
        let mut cells = Vec::new();
        let mut answer = self.ask(Request::Measure { at }, within, stop).await?;
        loop {
            match answer {
                Answer::Cell(cell) if cells.len() < loads => cells.push(*cell),
                Answer::Measured { began } => return Ok((began, cells)),
                other => return Err(self.fail(other, stop)),
            }
            answer = self.ask(None, NEXT_MESSAGE_TIMEOUT, stop).await?;
        }
    }

    pub async fn clean_after(&mut self, stop: &Stop) -> Result<(), Trouble> {
        // Cleaning is never stopped, even if other agents are lost.
        match self.ask(Request::CleanAfter, CLEAN_TIMEOUT, &Stop::default()).await? {
            Answer::CleanedAfter => Ok(()),
            other => Err(self.fail(other, stop)),
        }
    }

    /// Ends the session and has the agent remove all objects. An agent that is already shutting down removes only its
    /// own and not those of lost agents.
    pub async fn end(&mut self, lost: Vec<u32>) -> Result<Cleaned, Trouble> {
        // Cleaning is never stopped.
        let mut answer = self.ask(Request::End { lost }, CLEAN_TIMEOUT, &Stop::default()).await?;
        if matches!(answer, Answer::Ends) {
            answer = self.ask(None, CLEAN_TIMEOUT, &Stop::default()).await?;
        }
        match answer {
            Answer::Cleaned { removed, lost, servers } => Ok(Cleaned { removed, lost, servers }),
            other => Err(self.to_error(other)),
        }
    }

    /// Receives heartbeats while other agents work, until `done`. Fails if the agent is lost.
    pub async fn attend(&mut self, done: &CancellationToken, stop: &Stop) -> Result<(), Trouble> {
        while let Some(link) = self.link.as_mut() {
            let heard = tokio::select! {
                () = done.cancelled() => return Ok(()),
                heard = link.next() => heard,
            };
            match heard {
                Ok(Answer::Beat { .. }) => {}
                Ok(answer) => return Err(self.fail(answer, stop)),
                Err(broken) => return Err(self.lose(&broken, stop)),
            }
        }
        Ok(())
    }

    /// Sends a request, or none to wait for a further response to the last one, and waits for the response for the time
    /// `within`. Forwards `stop` to the agent. If the agent is lost, triggers `stop` for all others.
    async fn ask(
        &mut self,
        request: impl Into<Option<Request>>,
        within: Duration,
        stop: &Stop,
    ) -> Result<Answer, Trouble> {
        let answered = self.exchange(request.into(), within, stop).await;
        answered.map_err(|broken| self.lose(&broken, stop))
    }

    fn lose(&mut self, broken: &Broken, stop: &Stop) -> Trouble {
        self.link = None;
        stop.ask();
        self.trouble(broken.to_string())
    }

    async fn exchange(
        &mut self,
        request: Option<Request>,
        within: Duration,
        stop: &Stop,
    ) -> Result<Answer, Broken> {
        let link = self.link.as_mut().ok_or(Broken::Closed)?;
        if let Some(request) = request {
            // If sending fails, the peer may still have sent the reason: the loop below reads it, or the end of the
            // connection.
            let _ = link.send(request).await;
        }
        let begun = Instant::now();
        let mut deadline = begun.checked_add(within).unwrap_or(begun + PREPARE_TIMEOUT);
        let mut extension = RECEIVE_TIMEOUT;
        loop {
            tokio::select! {
                () = stop.asked(), if !self.is_stopped => {
                    self.is_stopped = true;
                    deadline = deadline.min(Instant::now() + STOP_TIMEOUT);
                    let _ = link.send(Request::Stop).await;
                }
                answer = timeout_at(deadline, link.next()) => match answer {
                    Ok(answer) => match answer? {
                        Answer::Beat { operations, bytes, failures } => {
                            self.gauge.show(operations, bytes, failures);
                        }
                        answer => return Ok(answer),
                    },
                    // A message is arriving slowly. The link detects a dead peer.
                    Err(_) if link.is_hearing() && !extension.is_zero() => {
                        extension = extension.saturating_sub(EXTENSION_INTERVAL);
                        deadline += EXTENSION_INTERVAL;
                    }
                    Err(_) => return Err(Broken::Silent(begun.elapsed())),
                }
            }
        }
    }

    /// Triggers `stop` for all agents and converts an unexpected response into an error.
    fn fail(&mut self, answer: Answer, stop: &Stop) -> Trouble {
        stop.ask();
        self.ends |= matches!(answer, Answer::Ends);
        self.to_error(answer)
    }

    fn to_error(&self, answer: Answer) -> Trouble {
        let why = match answer {
            Answer::Busy => "it is busy with another coordinator".to_owned(),
            Answer::Failed(why) => why,
            Answer::Ends => "it is shutting down".to_owned(),
            _ => Broken::Unexpected("the response").to_string(),
        };
        self.trouble(why)
    }

    fn trouble(&self, why: String) -> Trouble {
        Trouble { agent: self.name.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream, WriteHalf, duplex, split};

    use super::super::handshake::Shaken;
    use super::super::link::Seal;
    use super::*;

    /// A connected agent, and its sending end of the connection.
    async fn connected_agent() -> (Remote, WriteHalf<DuplexStream>, Seal) {
        let (near, far) = duplex(1 << 20);
        let key = Key::new(b"a key of sixteen and more").unwrap();
        let ((near, near_writer), (far, far_writer)) = (split(near), split(far));
        let (mine, others) = tokio::join!(
            shake(Role::Coordinator, &key, near, near_writer),
            shake(Role::Agent, &key, far, far_writer)
        );
        let Shaken { mut reader, writer, sends, .. } = others.ok().unwrap();
        // The agent reads requests as long as the connection exists.
        tokio::spawn(async move { while reader.next(1 << 20, CLEAN_TIMEOUT).await.is_ok() {} });
        let remote = Remote {
            name: "far".to_owned(),
            number: 1,
            link: Some(Link::new(mine.ok().unwrap(), MOST_ANSWERED, || Request::Beat)),
            client: Client::default(),
            store: String::new(),
            most_object_bytes: 0,
            gauge: Arc::default(),
            is_stopped: false,
            ends: false,
        };
        (remote, writer, Seal::new(sends))
    }

    /// Measures with an agent that sends one byte of its response every five seconds. `spaces` pad the response.
    async fn measure_with_slow_response(spaces: usize) -> (Result<u64, Trouble>, Duration) {
        let (mut remote, mut writer, mut seal) = connected_agent().await;
        let answer = format!("{}{}", " ".repeat(spaces), r#"{"measured":{"began":7}}"#);
        let sealed = seal.close(answer.as_bytes());
        let frame = [&u32::try_from(sealed.len()).unwrap().to_be_bytes()[..], &sealed].concat();
        let begun = Instant::now();
        let slow = async {
            for byte in frame {
                // The coordinator may have closed the connection.
                let _ = writer.write_all(&[byte]).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            std::future::pending().await
        };
        let stop = Stop::default();
        let measured = tokio::select! {
            measured = remote.measure((0, 1), Duration::from_secs(10), &stop) => measured,
            () = slow => unreachable!("the sender never ends"),
        };
        assert_eq!(measured.is_err(), stop.is_asked());
        (measured.map(|(began, _)| began), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn cleaning_agent_is_awaited_after_a_stop() {
        let (mut remote, mut writer, mut seal) = connected_agent().await;
        let mut send = async |answer: &[u8]| {
            let sealed = seal.close(answer);
            let length = u32::try_from(sealed.len()).unwrap().to_be_bytes();
            writer.write_all(&[&length[..], &sealed].concat()).await.unwrap();
        };
        let cleaning = async {
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                send(br#"{"beat":{"operations":0,"bytes":0,"failures":0}}"#).await;
            }
            send(br#""cleaned_after""#).await;
        };
        let stop = Stop::default();
        stop.ask();
        let (cleaned, ()) = tokio::join!(remote.clean_after(&stop), cleaning);
        cleaned.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn slowly_arriving_response_is_awaited_up_to_a_limit() {
        let (began, took) = measure_with_slow_response(0).await;
        assert!(took > Duration::from_secs(300), "{took:?}");
        assert_eq!(began.unwrap(), 7);
        let (lost, took) = measure_with_slow_response(1000).await;
        assert!(lost.unwrap_err().why.contains("it has not responded for 61"));
        assert!(took < Duration::from_secs(10) + RECEIVE_TIMEOUT + 2 * EXTENSION_INTERVAL, "{took:?}");
    }
}
