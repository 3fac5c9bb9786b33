//! What a coordinator and its agents say to each other behind the handshake. The coordinator asks, one thing at a time; an
//! agent answers each, and says meanwhile how far it is.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::course::Stage;
use crate::load::Pace;
use crate::result::{Cell, Client};
use crate::survey::Step;

/// What an agent is told has no more bytes: the longest is a stage.
pub const MOST_ASKED: usize = 1 << 20;
/// What it answers has no more: whole histograms of each kind of request, and what was done in each tenth of a second of a day.
pub const MOST_ANSWERED: usize = 64 << 20;
/// Loads of an agent that run at the same time.
pub const MOST_TOGETHER: usize = 16;
/// Requests of an agent at a time.
const MOST_PARALLEL: usize = 4096;
/// What was done in each tenth of a second of a longer load does not fit into an answer.
const MOST_TIME: Duration = Duration::from_secs(24 * 3600);

/// Agents of a run, at the most.
pub const MOST_AGENTS: u32 = 64;

/// What all agents are told at first.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Where it is measured, as agents' own commands would name it.
    pub place: String,
    /// The number of the run, which the names of its objects have.
    pub run: u32,
    /// Loads of each agent that run at the same time, at the most.
    pub together: usize,
    /// Requests of each agent at a time, at the most.
    pub connections: usize,
    /// Each request has a connection of its own.
    pub fresh: bool,
    /// Objects stay when they were measured.
    pub keeps: bool,
}

/// What is to be measured where. An agent makes its objects below a prefix of this run and of its own, which it builds of
/// the numbers: a coordinator cannot have anything else removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// As the agent's own commands name it.
    pub place: String,
    /// The number of the run.
    pub run: u32,
    /// Which of its agents this is, from 1 on.
    pub agent: u32,
    /// Loads that run at the same time, at the most.
    pub together: usize,
    /// Requests at a time, at the most.
    pub connections: usize,
    /// Each request has a connection of its own.
    pub fresh: bool,
    /// Objects stay when they were measured.
    pub keeps: bool,
}

impl Job {
    /// What the names of all objects of an agent begin with, below the place.
    pub(super) fn prefix_of(&self, agent: u32) -> String {
        format!("{}agent{agent}/", prefix(self.run))
    }

    /// A name that no other agent of any run has.
    #[must_use]
    pub fn own(&self) -> String {
        self.prefix_of(self.agent).trim_end_matches('/').replace('/', "-")
    }
}

/// What the names of all objects of a run begin with, below the place.
#[must_use]
pub fn prefix(run: u32) -> String {
    format!("tradewind-bench-{run:08x}/")
}

/// What a coordinator says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Open the store.
    Open(Job),
    /// What time is it?
    Time,
    /// Make the objects of these, which run at the same time.
    Prepare(Stage),
    /// Drive their loads from this moment on, in nanoseconds of the agent's clock.
    Measure { at: u64 },
    /// Remove what it wrote.
    CleanAfter,
    /// End what is under way.
    Stop,
    /// Remove everything, also that of agents that were lost.
    End { lost: Vec<u32> },
    /// I am there.
    Beat,
}

/// What an agent says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It works for another coordinator.
    Busy,
    /// The store is open.
    Opened { client: Client, store: String, most_object_bytes: u64 },
    /// In nanoseconds of its clock.
    Time(u64),
    /// The objects are there; not where it was stopped.
    Prepared { is_whole: bool },
    /// What came of the next load of the stage. There are none where it was stopped before.
    Cell(Box<Cell>),
    /// That was all; and when it began, in nanoseconds of its clock.
    Measured { began: u64 },
    /// What the last load wrote is removed.
    CleanedAfter,
    /// So many objects were removed, also those of such agents that were lost; and where the store answered, up to now.
    Cleaned { removed: u64, lost: Vec<u32>, servers: Vec<String> },
    /// It was told to end, does nothing more, and says next that it has removed what it made.
    Ends,
    /// It cannot.
    Failed(String),
    /// It is there, and has done so much of what it was told: requests, bytes and failures.
    Beat { operations: u64, bytes: u64, failures: u64 },
}

/// Why an agent does not do such a stage, which has so many loads at the most.
pub fn check(stage: &[Step], together: usize, most_object_bytes: u64) -> Result<(), String> {
    if !(1..=together).contains(&stage.len()) {
        return Err(format!("{} loads at the same time are not within 1 and {together}", stage.len()));
    }
    let parallel = stage.iter().map(|step| step.load.parallel).fold(0, usize::saturating_add);
    if parallel > MOST_PARALLEL {
        return Err(format!("{parallel} requests at a time are more than {MOST_PARALLEL}"));
    }
    stage.iter().try_for_each(|step| check_one(step, most_object_bytes))
}

fn check_one(step: &Step, most_object_bytes: u64) -> Result<(), String> {
    let load = &step.load;
    if !(1..=MOST_PARALLEL).contains(&load.parallel) {
        return Err(format!("{} requests at a time are not within 1 and {MOST_PARALLEL}", load.parallel));
    }
    if load.warm_up.max(load.until.time) > MOST_TIME {
        return Err("a load of more than a day is longer than agents can tell of".to_owned());
    }
    if !(0.0..=1.0).contains(&load.phase) {
        return Err(format!("requests cannot be {} of the time between two earlier", load.phase));
    }
    if step.sizes.most() > most_object_bytes {
        return Err(format!("objects of {} are larger than the store takes", step.sizes));
    }
    match load.pace {
        Pace::Open { per_second, .. } if !(1e-6..=1e6).contains(&per_second) => {
            Err(format!("{per_second} requests a second cannot be"))
        }
        _ => Ok(()),
    }
}

/// Moments of clocks are said in nanoseconds.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
