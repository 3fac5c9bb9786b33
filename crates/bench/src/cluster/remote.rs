//! An agent as its coordinator sees it: what it is asked, one thing at a time, and what it answers within which time. It is
//! lost with its connection, and nothing more is asked of it then.

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

/// How long an agent may take to be reached, and to open its store.
const TIME_TO_CONNECT: Duration = Duration::from_secs(10);
const TIME_TO_OPEN: Duration = Duration::from_secs(60);
/// How long it may take to say what time it is, to make objects and to remove them.
const TIME_TO_TELL: Duration = Duration::from_secs(5);
const TIME_TO_PREPARE: Duration = Duration::from_secs(24 * 3600);
const TIME_TO_CLEAN: Duration = Duration::from_secs(3600);
/// How long it may take to begin to say the next thing, of several that it says to one question.
const TIME_TO_SAY: Duration = Duration::from_secs(60);
/// How much longer what it has begun to say may be under way: the longest at a million bits a second.
const TIME_TO_HEAR: Duration = Duration::from_secs(600);
/// How often it is looked whether that is still so.
const LOOK: Duration = Duration::from_secs(1);
/// How long after it was stopped.
const TIME_TO_STOP: Duration = Duration::from_secs(30);
/// How often it is asked for the time.
const EXCHANGES: usize = 8;

/// What an agent did not do, and why.
#[derive(Debug)]
pub struct Trouble {
    /// Which.
    pub agent: String,
    /// Why, in words.
    pub why: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the agent {}: {}", self.agent, self.why)
    }
}

impl std::error::Error for Trouble {}

/// An agent, as the coordinator sees it.
pub struct Remote {
    pub name: String,
    pub number: u32,
    /// There is none any more where it is lost.
    pub link: Option<Link<Request>>,
    pub client: Client,
    pub store: String,
    pub most_object_bytes: u64,
    pub gauge: Arc<Gauge>,
    /// It was told to stop.
    is_stopped: bool,
    /// Somebody else told it to end: it removes what it made, and does nothing more.
    pub ends: bool,
}

/// What an agent removed at its end.
#[derive(Debug)]
pub struct Cleaned {
    pub removed: u64,
    /// The lost ones whose objects it removed too.
    pub lost: Vec<u32>,
    /// Where the store answered.
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
            connected = timeout(TIME_TO_CONNECT, TcpStream::connect(name)) => connected,
            () = stop.asked() => return Err(trouble("it was not waited for".to_owned())),
        };
        let connected =
            connected.map_err(|_| trouble("it cannot be reached: it does not answer".to_owned()))?;
        let stream = connected.map_err(|e| trouble(format!("it cannot be reached: {e}")))?;
        // It is faster, not needed.
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
        match remote.ask(Request::Open(job), TIME_TO_OPEN, stop).await? {
            Answer::Opened { client, store, most_object_bytes } => {
                Ok(Self { client, store, most_object_bytes, ..remote })
            }
            other => Err(remote.refuse(other)),
        }
    }

    pub async fn prepare(&mut self, stage: Stage, stop: &Stop) -> Result<bool, Trouble> {
        match self.ask(Request::Prepare(stage), TIME_TO_PREPARE, stop).await? {
            Answer::Prepared { is_whole } => Ok(is_whole),
            other => Err(self.fail(other, stop)),
        }
    }

    pub async fn align(&mut self, clock: &dyn Clock, stop: &Stop) -> Result<Alignment, Trouble> {
        let mut exchanges = Vec::with_capacity(EXCHANGES);
        for _ in 0..EXCHANGES {
            let asked = nanos(clock.now());
            match self.ask(Request::Time, TIME_TO_TELL, stop).await? {
                Answer::Time(said) => exchanges.push(Exchange { asked, said, answered: nanos(clock.now()) }),
                other => return Err(self.fail(other, stop)),
            }
        }
        Alignment::of(&exchanges).ok_or_else(|| self.trouble("its clock is not known".to_owned()))
    }

    /// What came of so many loads that were prepared, in their order, and when they began; of none where it was stopped before.
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
            answer = self.ask(None, TIME_TO_SAY, stop).await?;
        }
    }

    pub async fn clean_after(&mut self, stop: &Stop) -> Result<(), Trouble> {
        // It is done to its end, whoever is lost and whatever else is stopped.
        match self.ask(Request::CleanAfter, TIME_TO_CLEAN, &Stop::default()).await? {
            Answer::CleanedAfter => Ok(()),
            other => Err(self.fail(other, stop)),
        }
    }

    /// Who ends already removes what it made, and not what lost ones did.
    pub async fn end(&mut self, lost: Vec<u32>) -> Result<Cleaned, Trouble> {
        // It is done to its end, also where all else was stopped.
        let mut answer = self.ask(Request::End { lost }, TIME_TO_CLEAN, &Stop::default()).await?;
        if matches!(answer, Answer::Ends) {
            answer = self.ask(None, TIME_TO_CLEAN, &Stop::default()).await?;
        }
        match answer {
            Answer::Cleaned { removed, lost, servers } => Ok(Cleaned { removed, lost, servers }),
            other => Err(self.refuse(other)),
        }
    }

    /// Listens to it while others are at their work, so that it is not taken for dead and its death is noticed; why it is lost.
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

    /// Asks, or waits for what else it says to the last question, and waits for the answer for so long; tells the agent to stop
    /// meanwhile where somebody asks for that. Where it is lost, everybody is to stop.
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
            // Who hears nothing any more may have said why: that is read, or that there is nothing.
            let _ = link.send(request).await;
        }
        let begun = Instant::now();
        let mut deadline = begun.checked_add(within).unwrap_or(begun + TIME_TO_PREPARE);
        let mut patience = TIME_TO_HEAR;
        loop {
            tokio::select! {
                () = stop.asked(), if !self.is_stopped => {
                    self.is_stopped = true;
                    deadline = deadline.min(Instant::now() + TIME_TO_STOP);
                    let _ = link.send(Request::Stop).await;
                }
                answer = timeout_at(deadline, link.next()) => match answer {
                    Ok(answer) => match answer? {
                        Answer::Beat { operations, bytes, failures } => {
                            self.gauge.show(operations, bytes, failures);
                        }
                        answer => return Ok(answer),
                    },
                    // The way home is slow. Where it ends, the link says so.
                    Err(_) if link.is_hearing() && !patience.is_zero() => {
                        patience = patience.saturating_sub(LOOK);
                        deadline += LOOK;
                    }
                    Err(_) => return Err(Broken::Silent(begun.elapsed())),
                }
            }
        }
    }

    /// What it answered is not what was asked for: everybody is to stop.
    fn fail(&mut self, answer: Answer, stop: &Stop) -> Trouble {
        stop.ask();
        self.ends |= matches!(answer, Answer::Ends);
        self.refuse(answer)
    }

    fn refuse(&self, answer: Answer) -> Trouble {
        let why = match answer {
            Answer::Busy => "it is busy with another coordinator".to_owned(),
            Answer::Failed(why) => why,
            Answer::Ends => "it was told to end".to_owned(),
            _ => Broken::Unexpected("the answer").to_string(),
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

    /// An agent, and its way home.
    async fn far() -> (Remote, WriteHalf<DuplexStream>, Seal) {
        let (near, far) = duplex(1 << 20);
        let key = Key::new(b"a key of sixteen and more").unwrap();
        let ((near, near_writer), (far, far_writer)) = (split(near), split(far));
        let (mine, others) = tokio::join!(
            shake(Role::Coordinator, &key, near, near_writer),
            shake(Role::Agent, &key, far, far_writer)
        );
        let Shaken { mut reader, writer, sends, .. } = others.ok().unwrap();
        // What it is told is heard for as long as it is there.
        tokio::spawn(async move { while reader.next(1 << 20, TIME_TO_CLEAN).await.is_ok() {} });
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

    /// What comes of an answer whose bytes come one every five seconds, after a length.
    async fn answered_with(spaces: usize) -> (Result<u64, Trouble>, Duration) {
        let (mut remote, mut home, mut seal) = far().await;
        let answer = format!("{}{}", " ".repeat(spaces), r#"{"measured":{"began":7}}"#);
        let sealed = seal.close(answer.as_bytes());
        let frame = [&u32::try_from(sealed.len()).unwrap().to_be_bytes()[..], &sealed].concat();
        let begun = Instant::now();
        let slow = async {
            for byte in frame {
                // It may have been given up.
                let _ = home.write_all(&[byte]).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            std::future::pending().await
        };
        let stop = Stop::default();
        let measured = tokio::select! {
            measured = remote.measure((0, 1), Duration::from_secs(10), &stop) => measured,
            () = slow => unreachable!("it is waited for without an end"),
        };
        assert_eq!(measured.is_err(), stop.is_asked());
        (measured.map(|(began, _)| began), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_cleans_is_waited_for_also_where_all_is_to_stop() {
        let (mut remote, mut home, mut seal) = far().await;
        let mut say = async |answer: &[u8]| {
            let sealed = seal.close(answer);
            let length = u32::try_from(sealed.len()).unwrap().to_be_bytes();
            home.write_all(&[&length[..], &sealed].concat()).await.unwrap();
        };
        let cleaning = async {
            for _ in 0..60 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                say(br#"{"beat":{"operations":0,"bytes":0,"failures":0}}"#).await;
            }
            say(br#""cleaned_after""#).await;
        };
        let stop = Stop::default();
        stop.ask();
        let (cleaned, ()) = tokio::join!(remote.clean_after(&stop), cleaning);
        cleaned.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_on_its_way_is_waited_for_but_not_for_ever() {
        let (began, took) = answered_with(0).await;
        assert!(took > Duration::from_secs(300), "{took:?}");
        assert_eq!(began.unwrap(), 7);
        let (lost, took) = answered_with(1000).await;
        assert!(lost.unwrap_err().why.contains("nothing was heard of it for 61"));
        assert!(took < Duration::from_secs(10) + TIME_TO_HEAR + 2 * LOOK, "{took:?}");
    }
}
