//! An agent's session with one coordinator: opens the store and executes requests. During each request it listens for a
//! stop and for the loss of the coordinator. However the session ends, the agent removes the objects it created.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tradewind_core::error::Error;

use super::frame::Broken;
use super::link::Link;
use super::messages::{Answer, Job, MOST_AGENTS, MOST_TOGETHER, Request, check, nanos};
use crate::course::{Course, Event, Stage};
use crate::drive::{Bed, Gauge, Stop};
use crate::result::{Cell, Client};
use crate::site::Site;

/// Maximum time between a measure request and the requested start.
const MAX_START_DELAY: Duration = Duration::from_secs(60);

/// An opened store.
#[derive(Debug)]
pub struct Ground {
    /// The benchmark environment with the store.
    pub bed: Bed,
    /// Prefix of all object names in the location: empty, or ending with a slash.
    pub below: String,
    /// Kind of store.
    pub store: String,
    /// This machine.
    pub client: Client,
}

/// Opens stores with the credentials of the agent's operator.
pub trait Opens: Send + Sync + 'static {
    /// Opens the store of a job. Fails with a message for the coordinator.
    fn open<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<Ground, String>>;
}

/// Prints a status message.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// The reason why a session ended before the coordinator ended it.
enum Interruption {
    /// The coordinator is lost.
    Lost(Broken),
    /// This agent is shutting down.
    Halted,
}

impl From<Broken> for Interruption {
    fn from(broken: Broken) -> Self {
        Self::Lost(broken)
    }
}

/// A session with one coordinator.
pub struct Session {
    pub link: Link<Answer>,
    /// Gauges of the current request, which the heartbeats report.
    gauges: Arc<Mutex<Vec<Arc<Gauge>>>>,
    /// Stops the current request: triggered by the coordinator, by its loss, or by the shutdown of this agent.
    stop: Stop,
    halt: Stop,
    tell: Tell,
    from: SocketAddr,
    /// The prepared stage; empty if there is none.
    stage: Stage,
}

impl Session {
    /// Creates a session with the coordinator at `from`. It ends at the latest on `halt`. `gauges` are those that the
    /// link's heartbeats report.
    pub fn new(
        link: Link<Answer>,
        gauges: Arc<Mutex<Vec<Arc<Gauge>>>>,
        halt: Stop,
        tell: Tell,
        from: SocketAddr,
    ) -> Self {
        Self { link, gauges, stop: Stop::default(), halt, tell, from, stage: Stage::new() }
    }

    /// Runs the session to its end. Returns a message that describes how it ended.
    pub async fn run(&mut self, opens: &dyn Opens) -> String {
        let from = self.from;
        let (job, ground) = match self.open(opens).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(why)) => return format!("{from} requested a location that cannot be opened: {why}"),
            Err(Interruption::Lost(broken)) => return format!("{from} is lost: {broken}"),
            Err(Interruption::Halted) => return format!("done with {from}"),
        };
        (self.tell)(&format!("measuring {} for {from}", job.place));
        let prefix = format!("{}{}", ground.below, job.prefix_of(job.agent));
        let mut course = Course::new(&ground.bed, &prefix, job.together, (ground.client.cores, job.keeps));
        let ended = self.execute_requests(&mut course, (&job, &ground)).await;
        let lost = match &ended {
            Ok(lost) => lost.as_slice(),
            Err(Interruption::Lost(broken)) => {
                (self.tell)(&format!("{from} is lost: {broken}"));
                &[]
            }
            Err(Interruption::Halted) => {
                // This is the response to the current or the next request.
                let _ = self.link.send(Answer::Ends).await;
                &[]
            }
        };
        let cleaned = if job.keeps { Ok(0) } else { self.clean(&mut course, (&job, &ground), lost).await };
        let (answer, message) = match cleaned {
            Ok(removed) => (
                Answer::Cleaned { removed, lost: lost.to_vec(), servers: servers(&ground.bed) },
                format!("done with {from}; removed {removed} objects"),
            ),
            Err(why) => (
                Answer::Failed(format!("cannot remove objects: {why}")),
                format!("done with {from}; cannot remove the objects below {prefix}: {why}"),
            ),
        };
        // A lost coordinator cannot receive it.
        let _ = self.link.send(answer).await;
        message
    }

    /// Receives the next request. Heartbeats and stop requests are handled here.
    async fn next(&mut self) -> Result<Request, Interruption> {
        loop {
            tokio::select! {
                request = self.link.next() => match request? {
                    Request::Beat => {}
                    Request::Stop => self.stop.ask(),
                    request => return Ok(request),
                },
                () = self.halt.asked() => return Err(Interruption::Halted),
            }
        }
    }

    /// Runs `work` to completion and concurrently listens for a stop and for the loss of the coordinator. Both trigger
    /// the session's stop signal.
    async fn while_listening<T>(&mut self, work: impl Future<Output = T>) -> (T, Result<(), Interruption>) {
        let mut heard = Ok(());
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    // The next request reports its own progress.
                    self.gauges.lock().clear();
                    let is_halted = heard.is_ok() && self.halt.is_asked();
                    return (done, if is_halted { Err(Interruption::Halted) } else { heard });
                }
                request = self.link.next(), if heard.is_ok() => match request {
                    Ok(Request::Beat) => {}
                    Ok(Request::Stop) => self.stop.ask(),
                    Ok(_) => {
                        heard = Err(Broken::Unexpected("a heartbeat").into());
                        self.stop.ask();
                    }
                    Err(broken) => {
                        heard = Err(broken.into());
                        self.stop.ask();
                    }
                },
                () = self.halt.asked(), if !self.stop.is_asked() => self.stop.ask(),
            }
        }
    }

    /// Receives the job and opens its store. The inner error is the reason why it cannot be opened, which is also sent
    /// to the coordinator.
    async fn open(&mut self, opens: &dyn Opens) -> Result<Result<(Job, Ground), String>, Interruption> {
        let Request::Open(job) = self.next().await? else { return Err(Broken::Unexpected("a job").into()) };
        let opened = if !(1..=MOST_AGENTS).contains(&job.agent) {
            Err(format!("the agent number {} is not between 1 and {MOST_AGENTS}", job.agent))
        } else if !(1..=MOST_TOGETHER).contains(&job.together) {
            Err(format!("{} concurrent loads are not allowed: use 1 to {MOST_TOGETHER}", job.together))
        } else {
            let (opened, heard) = self.while_listening(opens.open(&job)).await;
            heard?;
            opened
        };
        let answer = match &opened {
            Ok(ground) => Answer::Opened {
                client: ground.client.clone(),
                store: ground.store.clone(),
                most_object_bytes: ground.bed.store.capabilities().max_object_bytes,
            },
            Err(why) => Answer::Failed(why.clone()),
        };
        self.link.send(answer).await?;
        Ok(opened.map(|ground| (job, ground)))
    }

    /// Executes requests until the coordinator ends the session. Returns the lost agents whose objects must be removed
    /// too.
    async fn execute_requests(
        &mut self,
        course: &mut Course,
        (job, ground): (&Job, &Ground),
    ) -> Result<Vec<u32>, Interruption> {
        loop {
            let answer = match self.next().await? {
                Request::End { lost } => return Ok(lost),
                Request::Time => Answer::Time(nanos(ground.bed.clock.now())),
                Request::Prepare(stage) => self.prepare(course, (job, ground), stage).await?,
                Request::Measure { at } => self.measure(course, ground, Duration::from_nanos(at)).await?,
                Request::CleanAfter => self.clean_after(course).await?,
                Request::Open(_) | Request::Stop | Request::Beat => {
                    return Err(Broken::Unexpected("a request").into());
                }
            };
            self.link.send(answer).await?;
        }
    }

    async fn prepare(
        &mut self,
        course: &mut Course,
        (job, ground): (&Job, &Ground),
        stage: Stage,
    ) -> Result<Answer, Interruption> {
        if let Err(why) = check(&stage, job.together, ground.bed.store.capabilities().max_object_bytes) {
            return Ok(Answer::Failed(why));
        }
        let (stop, gauges) = (self.stop.clone(), self.gauges.clone());
        let mut on_event = |event: Event<'_>| update_gauges(&gauges, &event);
        let (prepared, heard) = self.while_listening(course.prepare(&stage, &stop, &mut on_event)).await;
        heard?;
        self.stage = stage;
        Ok(prepared.map_or_else(failed, |is_whole| Answer::Prepared { is_whole }))
    }

    async fn measure(
        &mut self,
        course: &mut Course,
        ground: &Ground,
        at: Duration,
    ) -> Result<Answer, Interruption> {
        let stage = std::mem::take(&mut self.stage);
        if stage.is_empty() {
            return Ok(Answer::Failed("no stage was prepared".to_owned()));
        }
        let clock = ground.bed.clock.clone();
        if at > clock.now() + MAX_START_DELAY {
            let why = "the start time is too far in the future: the clocks do not agree";
            return Ok(Answer::Failed(why.to_owned()));
        }
        let (stop, gauges) = (self.stop.clone(), self.gauges.clone());
        let mut cells: Vec<Box<Cell>> = Vec::new();
        let mut on_event = |event: Event<'_>| {
            update_gauges(&gauges, &event);
            if let Event::Measured(measured) = event {
                cells.push(Box::new(measured.clone()));
            }
        };
        let work = async {
            tokio::select! {
                () = clock.sleep_until(at) => {}
                () = stop.asked() => return (clock.now(), Ok(false)),
            }
            (clock.now(), course.measure(&stage, &stop, &mut on_event).await)
        };
        let ((began, measured), heard) = self.while_listening(work).await;
        heard?;
        self.stage = stage;
        if let Err(e) = measured {
            return Ok(failed(e));
        }
        for cell in cells {
            self.link.send(Answer::Cell(cell)).await?;
        }
        Ok(Answer::Measured { began: nanos(began) })
    }

    async fn clean_after(&mut self, course: &mut Course) -> Result<Answer, Interruption> {
        let stage = std::mem::take(&mut self.stage);
        let (cleaned, heard) = self.while_listening(course.clean_after(&stage, &mut |_| {})).await;
        heard?;
        Ok(cleaned.map_or_else(failed, |()| Answer::CleanedAfter))
    }

    /// Removes the objects of this agent and of lost agents of its run. Continues if the coordinator is lost.
    async fn clean(
        &mut self,
        course: &mut Course,
        (job, ground): (&Job, &Ground),
        lost: &[u32],
    ) -> Result<u64, String> {
        let work = async {
            let mut removed = course.clean().await?;
            for agent in lost.iter().take(MOST_AGENTS as usize) {
                let prefix = format!("{}{}", ground.below, job.prefix_of(*agent));
                removed += Site::clean_others(&ground.bed, &prefix).await?;
            }
            Ok(removed)
        };
        let (removed, _) = self.while_listening(work).await;
        removed.map_err(|e: Error| e.to_string())
    }
}

/// Addresses of the store that connections were opened to.
fn servers(bed: &Bed) -> Vec<String> {
    bed.traffic.addresses().iter().map(ToString::to_string).collect()
}

fn update_gauges(current: &Mutex<Vec<Arc<Gauge>>>, event: &Event<'_>) {
    if let Event::Begins { gauges, .. } = event {
        current.lock().clone_from(gauges);
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is passed to `map_or_else` as a function")]
fn failed(e: Error) -> Answer {
    Answer::Failed(e.to_string())
}
