//! The coordinator: has agents do each act together. All prepare; then it finds out how their clocks lie to its own, says
//! to each in its own clock when to begin, and adds up what they measured. Where one is lost or fails, the others stop,
//! what they measured is kept and marked, and nothing more is measured: what fewer machines ask is something else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tokio_util::sync::CancellationToken;
use tradewind_core::Clock;

use super::clocks::{Alignment, apart};
use super::duty::{Act, Duty, of_agent};
use super::handshake::Key;
use super::messages::{MOST_AGENTS, nanos};
pub use super::messages::{Wanted, prefix};
use super::outcome;
pub use super::remote::Trouble;
use super::remote::{Cleaned, Remote};
use crate::course::{Event, Stage};
use crate::drive::{Ending, Gauge, Stop};
use crate::result::{Agent, Part};

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
        acts: impl IntoIterator<Item = Act>,
        stop: &Stop,
        mut tell: impl FnMut(Event<'_>),
    ) -> Result<bool, Trouble> {
        for act in acts {
            if !self.prepare(&act, stop, &mut tell).await? || !self.measure(&act, stop, &mut tell).await? {
                return Ok(false);
            }
            if !self.keeps && act.iter().any(|duty| duty.step.writes_only()) {
                tell(Event::Begins { what: "cleaning".to_owned(), time: None, gauges: Vec::new() });
                let work = self.agents.iter_mut().map(async |agent| {
                    let cleaned = agent.clean_after(stop).await;
                    (agent, cleaned)
                });
                all_of(each(work, stop).await)?;
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
        act: &[Duty],
        stop: &Stop,
        tell: &mut impl FnMut(Event<'_>),
    ) -> Result<bool, Trouble> {
        let sizes: Vec<String> = act.iter().map(|duty| duty.step.sizes.to_string()).collect();
        let what = format!("making objects of {}", sizes.join(" and "));
        tell(Event::Begins { what, time: None, gauges: self.gauges() });
        let work = self.agents.iter_mut().map(async |agent| {
            let stage: Stage = of_agent(act, agent.number).into_iter().map(|(_, share)| share).collect();
            // Who has nothing to do is ready.
            let prepared = if stage.is_empty() { Ok(true) } else { agent.prepare(stage, stop).await };
            (agent, prepared)
        });
        let prepared = all_of(each(work, stop).await)?;
        Ok(prepared.into_iter().all(|is_whole| is_whole))
    }

    async fn measure(
        &mut self,
        act: &[Duty],
        stop: &Stop,
        tell: &mut impl FnMut(Event<'_>),
    ) -> Result<bool, Trouble> {
        let clock = self.clock.clone();
        let clocks = self.agents.iter_mut().map(|agent| agent.align(&*clock, stop));
        let clocks: Result<Vec<Alignment>, Trouble> = join_all(clocks).await.into_iter().collect();
        let clocks = clocks?;
        let times = act.iter().map(|duty| duty.step.load.warm_up.saturating_add(duty.step.load.until.time));
        let time = times.max().unwrap_or_default();
        let each_of = |duty: &Duty| format!("{} from each of {}", duty.step, duty.agents.len());
        let what = act.iter().map(each_of).collect::<Vec<_>>().join(" beside ");
        tell(Event::Begins { what, time: Some(time), gauges: self.gauges() });
        let farthest = clocks.iter().map(Alignment::within).max().unwrap_or_default();
        // There and back is twice as far as what is not known of the clock.
        let lead = LEAD + 2 * LEAD_TRIPS * farthest;
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let (at, within) = (nanos(now + lead), time.saturating_add(lead + TIME_BEHIND));
        let work = self.agents.iter_mut().zip(&clocks).map(async |(agent, clock)| {
            let measured = match of_agent(act, agent.number).len() {
                0 => Ok((0, Vec::new())),
                loads => agent.measure((clock.theirs(at), loads), within, stop).await,
            };
            (agent, measured)
        });
        let (measured, mut trouble) = each(work, stop).await;
        let mut parts: Vec<Vec<Part>> = act.iter().map(|_| Vec::new()).collect();
        let mut moments = Vec::new();
        for ((agent, clock), measured) in self.agents.iter().zip(&clocks).zip(measured) {
            match measured {
                Ok((began, cells)) => {
                    moments.extend((!cells.is_empty()).then_some((*clock, began)));
                    for ((n, _), cell) in of_agent(act, agent.number).into_iter().zip(cells) {
                        let (agent, cores) = (agent.name.clone(), agent.client.cores);
                        parts[n].push(Part { agent, cores, cell });
                    }
                }
                Err(why) => trouble = Some(why),
            }
        }
        let why = trouble.as_ref().map_or_else(|| "they were stopped".to_owned(), ToString::to_string);
        let mut cells = outcome::cells(act, parts, apart(moments), &why);
        for cell in &mut cells {
            cell.began = wall.millis() + i64::try_from(lead.as_millis()).unwrap_or(0);
            tell(Event::Measured(cell));
        }
        let is_whole = cells.len() == act.len() && cells.iter().all(|cell| cell.ending != Ending::Stopped);
        trouble.map_or(Ok(is_whole && !stop.is_asked()), Err)
    }

    /// Has everything removed that was made, also by agents that are lost; how many objects there were.
    pub async fn clean(&mut self) -> Result<u64, Trouble> {
        let lost: Vec<u32> =
            self.agents.iter().filter(|agent| agent.link.is_none()).map(|agent| agent.number).collect();
        // Who has what the lost ones made removed too.
        let remover = self.agents.iter().position(|agent| agent.link.is_some() && !agent.ends);
        let there = self.agents.iter_mut().enumerate().filter(|(_, agent)| agent.link.is_some());
        let asked =
            there.map(|(n, agent)| agent.end(if Some(n) == remover { lost.clone() } else { Vec::new() }));
        let cleaned = join_all(asked).await;
        let (mut sum, mut also) = (0_u64, BTreeSet::new());
        for cleaned in cleaned {
            let Cleaned { removed, lost, servers } = cleaned?;
            sum = sum.saturating_add(removed);
            also.extend(lost);
            self.servers.extend(servers);
        }
        let is_left = |agent: &&Remote| lost.contains(&agent.number) && !also.contains(&agent.number);
        if let (false, Some(agent)) = (self.keeps, self.agents.iter().find(is_left)) {
            let why = "it was lost, and no other agent has removed what it made".to_owned();
            return Err(Trouble { agent: agent.name.clone(), why });
        }
        Ok(sum)
    }
}

/// What agents came to, and why one of them was lost that had done its part.
type Came<T> = (Vec<Result<T, Trouble>>, Option<Trouble>);

/// Has agents do something at the same time, and waits for all of them. Who is done earlier is listened to until all are.
async fn each<'a, T>(
    work: impl Iterator<Item = impl Future<Output = (&'a mut Remote, Result<T, Trouble>)>>,
    stop: &Stop,
) -> Came<T> {
    let work: Vec<_> = work.collect();
    let (done, left) = (CancellationToken::new(), AtomicUsize::new(work.len()));
    let waiting = work.into_iter().map(async |work| {
        let (agent, came) = work.await;
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            done.cancel();
        }
        // Who failed says nothing more but what it is asked.
        let lost = if came.is_ok() { agent.attend(&done, stop).await.err() } else { None };
        (came, lost)
    });
    let (came, lost): (Vec<_>, Vec<_>) = join_all(waiting).await.into_iter().unzip();
    (came, lost.into_iter().flatten().next())
}

/// What all came to; why, where one did not do its part or was lost.
fn all_of<T>((came, lost): Came<T>) -> Result<Vec<T>, Trouble> {
    let came = came.into_iter().collect::<Result<Vec<T>, Trouble>>()?;
    lost.map_or(Ok(came), Err)
}
