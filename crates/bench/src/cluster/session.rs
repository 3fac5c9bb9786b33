//! What an agent does with one coordinator: it opens the store, does what it is asked, and listens meanwhile whether to stop and
//! whether anybody is there. However that ends, it removes what it made.

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

/// A load begins no later than this after it was asked for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A store that was opened.
#[derive(Debug)]
pub struct Ground {
    /// What is asked.
    pub bed: Bed,
    /// What the names of all objects in the place begin with: nothing, or what ends in a slash.
    pub below: String,
    /// What kind of store it is.
    pub store: String,
    /// This machine.
    pub client: Client,
}

/// Opens stores with the credentials of whoever runs the agent.
pub trait Opens: Send + Sync + 'static {
    /// The store that a job is about; why not, in words.
    fn open<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Result<Ground, String>>;
}

/// Tells people what goes on.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Why a session ended before its coordinator ended it.
enum Cut {
    /// The coordinator is lost.
    Lost(Broken),
    /// This agent was told to end.
    Halted,
}

impl From<Broken> for Cut {
    fn from(broken: Broken) -> Self {
        Self::Lost(broken)
    }
}

/// What goes on with one coordinator.
pub struct Session {
    pub link: Link<Answer>,
    /// What is under way, for those who watch.
    seen: Arc<Mutex<Vec<Arc<Gauge>>>>,
    /// The coordinator, or its loss, or the end of this agent ends what is under way.
    stop: Stop,
    halt: Stop,
    tell: Tell,
    from: SocketAddr,
    /// What was prepared; nothing otherwise.
    stage: Stage,
}

impl Session {
    /// With the coordinator at `from`, until `halt` is asked at the latest; `seen` is what the link's beats tell of.
    pub fn new(
        link: Link<Answer>,
        seen: Arc<Mutex<Vec<Arc<Gauge>>>>,
        halt: Stop,
        tell: Tell,
        from: SocketAddr,
    ) -> Self {
        Self { link, seen, stop: Stop::default(), halt, tell, from, stage: Stage::new() }
    }

    /// How it ended, in words.
    pub async fn run(&mut self, opens: &dyn Opens) -> String {
        let from = self.from;
        let (job, ground) = match self.open(opens).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(why)) => return format!("{from} asked for what cannot be opened: {why}"),
            Err(Cut::Lost(broken)) => return format!("{from} is lost: {broken}"),
            Err(Cut::Halted) => return format!("done with {from}"),
        };
        (self.tell)(&format!("measuring {} for {from}", job.place));
        let prefix = format!("{}{}", ground.below, job.prefix_of(job.agent));
        let mut course = Course::new(&ground.bed, &prefix, job.together, (ground.client.cores, job.keeps));
        let ended = self.obey(&mut course, (&job, &ground)).await;
        let lost = match &ended {
            Ok(lost) => lost.as_slice(),
            Err(Cut::Lost(broken)) => {
                (self.tell)(&format!("{from} is lost: {broken}"));
                &[]
            }
            Err(Cut::Halted) => {
                // That answers what was asked, or is asked next.
                let _ = self.link.send(Answer::Ends).await;
                &[]
            }
        };
        let cleaned = if job.keeps { Ok(0) } else { self.clean(&mut course, (&job, &ground), lost).await };
        let (answer, said) = match cleaned {
            Ok(removed) => (
                Answer::Cleaned { removed, lost: lost.to_vec(), servers: servers(&ground.bed) },
                format!("done with {from}; {removed} objects were removed"),
            ),
            Err(why) => (
                Answer::Failed(format!("objects cannot be removed: {why}")),
                format!("done with {from}; objects are left below {prefix} and cannot be removed: {why}"),
            ),
        };
        // Who does not hear it any more has been waited for long enough.
        let _ = self.link.send(answer).await;
        said
    }

    /// What the coordinator says next, apart from that it is there.
    async fn next(&mut self) -> Result<Request, Cut> {
        loop {
            tokio::select! {
                request = self.link.next() => match request? {
                    Request::Beat => {}
                    Request::Stop => self.stop.ask(),
                    request => return Ok(request),
                },
                () = self.halt.asked() => return Err(Cut::Halted),
            }
        }
    }

    /// Does something to its end, and listens meanwhile: whether to stop, and whether anybody is there.
    async fn beside<T>(&mut self, work: impl Future<Output = T>) -> (T, Result<(), Cut>) {
        let mut heard = Ok(());
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    // What is under way next counts from nothing.
                    self.seen.lock().clear();
                    let is_halted = heard.is_ok() && self.halt.is_asked();
                    return (done, if is_halted { Err(Cut::Halted) } else { heard });
                }
                request = self.link.next(), if heard.is_ok() => match request {
                    Ok(Request::Beat) => {}
                    Ok(Request::Stop) => self.stop.ask(),
                    Ok(_) => {
                        heard = Err(Broken::Unexpected("an answer").into());
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

    /// Why it cannot be opened, in words that the coordinator was told too.
    async fn open(&mut self, opens: &dyn Opens) -> Result<Result<(Job, Ground), String>, Cut> {
        let Request::Open(job) = self.next().await? else { return Err(Broken::Unexpected("a job").into()) };
        let opened = if !(1..=MOST_AGENTS).contains(&job.agent) {
            Err(format!("there is no agent {} of {MOST_AGENTS}", job.agent))
        } else if !(1..=MOST_TOGETHER).contains(&job.together) {
            Err(format!("{} loads at the same time are not within 1 and {MOST_TOGETHER}", job.together))
        } else {
            let (opened, heard) = self.beside(opens.open(&job)).await;
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

    /// Does what it is asked until that is all. Those whose objects are to be removed too.
    async fn obey(&mut self, course: &mut Course, (job, ground): (&Job, &Ground)) -> Result<Vec<u32>, Cut> {
        loop {
            let answer = match self.next().await? {
                Request::End { lost } => return Ok(lost),
                Request::Time => Answer::Time(nanos(ground.bed.clock.now())),
                Request::Prepare(stage) => self.prepare(course, (job, ground), stage).await?,
                Request::Measure { at } => self.measure(course, ground, Duration::from_nanos(at)).await?,
                Request::CleanAfter => self.clean_after(course).await?,
                Request::Open(_) | Request::Stop | Request::Beat => {
                    return Err(Broken::Unexpected("what is to be done").into());
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
    ) -> Result<Answer, Cut> {
        if let Err(why) = check(&stage, job.together, ground.bed.store.capabilities().max_object_bytes) {
            return Ok(Answer::Failed(why));
        }
        let (stop, seen) = (self.stop.clone(), self.seen.clone());
        let mut tell = |event: Event<'_>| watch(&seen, &event);
        let (prepared, heard) = self.beside(course.prepare(&stage, &stop, &mut tell)).await;
        heard?;
        self.stage = stage;
        Ok(prepared.map_or_else(failed, |is_whole| Answer::Prepared { is_whole }))
    }

    async fn measure(&mut self, course: &mut Course, ground: &Ground, at: Duration) -> Result<Answer, Cut> {
        let stage = std::mem::take(&mut self.stage);
        if stage.is_empty() {
            return Ok(Answer::Failed("nothing was prepared".to_owned()));
        }
        let clock = ground.bed.clock.clone();
        if at > clock.now() + LONGEST_WAIT {
            return Ok(Answer::Failed("it is to begin too late: the clocks do not agree".to_owned()));
        }
        let (stop, seen) = (self.stop.clone(), self.seen.clone());
        let mut cells: Vec<Box<Cell>> = Vec::new();
        let mut tell = |event: Event<'_>| {
            watch(&seen, &event);
            if let Event::Measured(measured) = event {
                cells.push(Box::new(measured.clone()));
            }
        };
        let work = async {
            tokio::select! {
                () = clock.sleep_until(at) => {}
                () = stop.asked() => return (clock.now(), Ok(false)),
            }
            (clock.now(), course.measure(&stage, &stop, &mut tell).await)
        };
        let ((began, measured), heard) = self.beside(work).await;
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

    async fn clean_after(&mut self, course: &mut Course) -> Result<Answer, Cut> {
        let stage = std::mem::take(&mut self.stage);
        let (cleaned, heard) = self.beside(course.clean_after(&stage, &mut |_| {})).await;
        heard?;
        Ok(cleaned.map_or_else(failed, |()| Answer::CleanedAfter))
    }

    /// Removes what it made, and what others of its run did who are lost. Whoever listens is answered after that, however
    /// it goes on meanwhile.
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
        let (removed, _) = self.beside(work).await;
        removed.map_err(|e: Error| e.to_string())
    }
}

/// Where the store answered.
fn servers(bed: &Bed) -> Vec<String> {
    bed.traffic.addresses().iter().map(ToString::to_string).collect()
}

fn watch(seen: &Mutex<Vec<Arc<Gauge>>>, event: &Event<'_>) {
    if let Event::Begins { gauges, .. } = event {
        seen.lock().clone_from(gauges);
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is what a result holds")]
fn failed(e: Error) -> Answer {
    Answer::Failed(e.to_string())
}
