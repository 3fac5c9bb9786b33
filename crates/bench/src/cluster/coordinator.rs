//! The coordinator: has agents do each step together. All prepare; then it finds out how their clocks lie to its own, says
//! to each in its own clock when to begin, and adds up what they measured. Where one is lost or fails, the others stop,
//! what they measured is kept and marked, and nothing more is measured: what fewer machines ask is something else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tradewind_core::Clock;

use super::clocks::{Alignment, apart};
use super::handshake::Key;
use super::messages::{MOST_AGENTS, nanos};
pub use super::messages::{Wanted, prefix};
use super::remote::Remote;
pub use super::remote::Trouble;
use crate::course::Event;
use crate::drive::{Ending, Gauge, Stop};
use crate::load::Pace;
use crate::random::mix;
use crate::result::{Agent, Part, merge};
use crate::survey::Step;

/// How long an agent may take after the end of a load, whose last requests are waited for.
const TIME_BEHIND: Duration = Duration::from_secs(120);
/// A load begins so long after it was asked for, and so many ways there and back.
const LEAD: Duration = Duration::from_millis(50);
const LEAD_TRIPS: u32 = 4;

/// See the module.
#[derive(Debug)]
pub struct Cluster {
    agents: Vec<Remote>,
    clock: Arc<dyn Clock>,
    keeps: bool,
    /// Where the store answered any of them, as they say at the end.
    servers: BTreeSet<String>,
}

impl Cluster {
    /// Reaches all agents, whose stores are open then. Where one cannot be, the others wait for the next coordinator.
    pub async fn open(
        addresses: &[String],
        key: &Key,
        wanted: &Wanted,
        clock: Arc<dyn Clock>,
        stop: &Stop,
    ) -> Result<Self, Trouble> {
        let opened =
            (1..=MOST_AGENTS).zip(addresses).map(|(n, name)| Remote::open(name, n, key, wanted, stop));
        let agents = try_join_all(opened).await?;
        Ok(Self { agents, clock, keeps: wanted.keeps, servers: BTreeSet::new() })
    }

    /// What they are.
    #[must_use]
    pub fn agents(&self) -> Vec<Agent> {
        let agent = |one: &Remote| Agent { agent: one.name.clone(), client: one.client.clone() };
        self.agents.iter().map(agent).collect()
    }

    /// What kind of store they measure, as the first of them says.
    #[must_use]
    pub fn store(&self) -> &str {
        self.agents.first().map_or("", |agent| &agent.store)
    }

    /// Where the store answered any of them. It is known when all was removed.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.servers.iter().cloned().collect()
    }

    /// The most bytes that an object can have everywhere.
    #[must_use]
    pub fn most_object_bytes(&self) -> u64 {
        self.agents.iter().map(|agent| agent.most_object_bytes).min().unwrap_or(0)
    }

    /// Measures everything, and tells of it. Whether all was measured: not where it was stopped. Where an agent did not do
    /// its part, `stop` is asked.
    pub async fn run(
        &mut self,
        steps: impl IntoIterator<Item = Step>,
        stop: &Stop,
        mut tell: impl FnMut(Event<'_>),
    ) -> Result<bool, Trouble> {
        for step in steps {
            if !self.prepare(&step, stop, &mut tell).await? || !self.measure(&step, stop, &mut tell).await? {
                return Ok(false);
            }
            if !self.keeps && step.writes_only() {
                tell(Event::Begins { what: "cleaning".to_owned(), time: None, gauges: Vec::new() });
                let asked = self.agents.iter_mut();
                let cleaned = join_all(asked.map(|agent| agent.clean_after(stop))).await;
                cleaned.into_iter().collect::<Result<(), Trouble>>()?;
            }
        }
        Ok(true)
    }

    /// Those of what is under way next.
    fn gauges(&mut self) -> Vec<Arc<Gauge>> {
        self.agents
            .iter_mut()
            .map(|agent| {
                agent.gauge = Arc::default();
                agent.gauge.clone()
            })
            .collect()
    }

    async fn prepare(
        &mut self,
        step: &Step,
        stop: &Stop,
        tell: &mut impl FnMut(Event<'_>),
    ) -> Result<bool, Trouble> {
        let what = format!("making objects of {}", step.sizes);
        tell(Event::Begins { what, time: None, gauges: self.gauges() });
        let of = self.agents.len();
        let prepared = self.agents.iter_mut().map(|agent| {
            let share = share(step, agent.number, of);
            agent.prepare(share, stop)
        });
        let prepared: Result<Vec<bool>, Trouble> = join_all(prepared).await.into_iter().collect();
        Ok(prepared?.into_iter().all(|is_whole| is_whole))
    }

    async fn measure(
        &mut self,
        step: &Step,
        stop: &Stop,
        tell: &mut impl FnMut(Event<'_>),
    ) -> Result<bool, Trouble> {
        let clock = self.clock.clone();
        let clocks = self.agents.iter_mut().map(|agent| agent.align(&*clock, stop));
        let clocks: Result<Vec<Alignment>, Trouble> = join_all(clocks).await.into_iter().collect();
        let clocks = clocks?;
        let time = step.load.warm_up.saturating_add(step.load.until.time);
        let what = format!("{step} from each of {}", self.agents.len());
        tell(Event::Begins { what, time: Some(time), gauges: self.gauges() });
        let farthest = clocks.iter().map(Alignment::within).max().unwrap_or_default();
        // There and back is twice as far as what is not known of the clock.
        let lead = LEAD + 2 * LEAD_TRIPS * farthest;
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let at = nanos(now + lead);
        let measured = self.agents.iter_mut().zip(&clocks).map(|(agent, clock)| {
            agent.measure(clock.theirs(at), time.saturating_add(lead + TIME_BEHIND), stop)
        });
        let measured = join_all(measured).await;
        let (mut parts, mut moments, mut trouble) = (Vec::new(), Vec::new(), None);
        for ((agent, clock), measured) in self.agents.iter().zip(&clocks).zip(measured) {
            match measured {
                Ok((began, Some(cell))) => {
                    moments.push((*clock, began));
                    parts.push(Part { agent: agent.name.clone(), cores: agent.client.cores, cell });
                }
                Ok((_, None)) => {}
                Err(why) => trouble = trouble.or(Some(why)),
            }
        }
        let missing = self.agents.len() - parts.len();
        let Some(mut cell) = merge(parts, apart(moments)) else { return trouble.map_or(Ok(false), Err) };
        cell.began = wall.millis() + i64::try_from(lead.as_millis()).unwrap_or(0);
        if missing > 0 {
            cell.ending = Ending::Stopped;
            let why = trouble.as_ref().map_or_else(|| "they were stopped".to_owned(), ToString::to_string);
            cell.notes.push(format!("what {missing} of {} agents did is missing: {why}", self.agents.len()));
        }
        tell(Event::Measured(&cell));
        trouble.map_or(Ok(!cell.is_partial() && !stop.is_asked()), Err)
    }

    /// Has everything removed that was made, also by agents that are lost; how many objects there were.
    pub async fn clean(&mut self) -> Result<u64, Trouble> {
        let is_lost = |agent: &&Remote| agent.link.is_none();
        let mut lost: Vec<u32> = self.agents.iter().filter(is_lost).map(|agent| agent.number).collect();
        let mut asked = Vec::new();
        for agent in &mut self.agents {
            if agent.link.is_some() {
                // The first has what the lost ones made removed too.
                asked.push(agent.end(std::mem::take(&mut lost)));
            }
        }
        let removed = join_all(asked).await;
        if let (false, Some(agent)) = (lost.is_empty() || self.keeps, self.agents.first()) {
            let why = "it was lost, and so were all others: none is left to remove what they made".to_owned();
            return Err(Trouble { agent: agent.name.clone(), why });
        }
        let mut sum: u64 = 0;
        for removed in removed {
            let (removed, servers) = removed?;
            sum = sum.saturating_add(removed);
            self.servers.extend(servers);
        }
        Ok(sum)
    }
}

/// What one of several agents does of a step: requests at a time are each one's, a rate is divided, and each draws by chance
/// from a seed of its own.
fn share(step: &Step, agent: u32, of: usize) -> Step {
    let mut share = step.clone();
    share.load.seed = mix(step.load.seed ^ mix(u64::from(agent)));
    if let Pace::Open { per_second, .. } = &mut share.load.pace {
        *per_second /= of.max(1) as f64;
    }
    share
}
