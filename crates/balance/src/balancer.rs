//! The balancer of one cluster, round by round.

use std::time::{Duration, Instant};

use serde_json::Value;
use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::controller::Round;
use tradewind_model::affinity::queueing::ReadLoad;

use crate::ceph_process::{CephOptions, CephProcess};
use crate::cluster_view::{ClusterView, FixedPgs, PgReads};
use crate::collector::Collector;
use crate::error::{Error, Result};
use crate::journal::{AffinityChange, Journal, apply};
use crate::osd_map::OsdMap;
use crate::pg_map::{self, Pg};
use crate::pg_order::PgOrders;
use crate::policy::{Outcome, Policy, PolicyState};
use crate::suitability::{Obstacle, find_obstacles};

/// Time for the counters of one OSD.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time between two looks at the placement groups and the cluster's health.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// The placement groups of a large cluster take long to read: this share of the time at most is spent on it.
const MAX_REFRESH_SHARE: u32 = 20;
/// Time for which the heartbeat of another balancer must stand still for it to count as ended.
const HEARTBEAT_WAIT: Duration = Duration::from_secs(12);
/// Interval between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(4);
/// Time after which the journal belongs to the last of several balancers that start at once.
const START_RACE_WAIT: Duration = Duration::from_secs(1);

/// The permissions of a balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Say what it would do.
    DryRun,
    /// Set affinities.
    Act,
}

/// An OSD in one round.
#[derive(Debug, Clone)]
pub struct OsdReport {
    /// Its id.
    pub osd: u32,
    /// Its reads; `None` in the first round.
    pub reads: Option<ReadLoad>,
    /// Its estimated service rate in reads per second.
    pub service_rate: Option<f64>,
    /// Its current affinity.
    pub affinity: Affinity,
    /// The affinity that the decision sets.
    pub next_affinity: Affinity,
    /// Its share of the reads by the current primaries, from 0 to 1.
    pub share: f64,
    /// Its share after the decision.
    pub next_share: f64,
}

/// The result of a round.
#[derive(Debug, Clone)]
pub struct RoundReport {
    /// The OSDs that are up and in.
    pub osds: Vec<OsdReport>,
    /// PGs that affinities do not decide about.
    pub fixed: FixedPgs,
    /// Number of PGs whose primary is predicted, and how many of the predictions agree with the cluster.
    pub primaries: PrimaryCheck,
    /// Why nothing may be done.
    pub obstacles: Vec<Obstacle>,
    /// OSDs without counters, with the reason.
    pub silent: Vec<String>,
    /// The outcome; `None` with obstacles or silent OSDs.
    pub outcome: Option<Outcome>,
}

/// Predicted primaries compared with the cluster's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrimaryCheck {
    /// PGs whose primary is predicted.
    pub predicted: usize,
    /// Those that the cluster agrees about.
    pub correct: usize,
}

/// A balancer.
#[derive(Debug)]
pub struct Balancer {
    ceph: CephProcess,
    mode: Mode,
    policy: Policy,
    start: Instant,
    map: OsdMap,
    pgs: Vec<Pg>,
    orders: PgOrders,
    earlier_reads: PgReads,
    obstacles: Vec<Obstacle>,
    /// True if the PGs are to be read before the next decision.
    is_stale: bool,
    refreshed: Instant,
    refresh_time: Duration,
    collector: Collector,
    policy_state: PolicyState,
    last_round: Option<Instant>,
    /// The journal in [`Mode::Act`].
    journal: Option<Journal>,
    last_heartbeat: Instant,
}

impl Balancer {
    /// Connects to the cluster. In [`Mode::Act`], fails if another balancer is active, and restores the affinities that one
    /// left behind which is not.
    ///
    /// `owner` identifies this process, for example by host and process id.
    pub fn connect(ceph: CephOptions, mode: Mode, policy: Policy, owner: String) -> Result<Self> {
        let mut ceph = CephProcess::start(ceph)?;
        if mode == Mode::Act {
            take_over(&mut ceph)?;
        }
        let map = OsdMap::parse(ceph.json(&["osd", "dump"])?)?;
        let journal = if mode == Mode::Act { Some(claim(&mut ceph, owner, &map)?) } else { None };
        let pgs = pg_map::parse(ceph.json(&["pg", "dump"])?)?;
        let ids: Vec<u32> = map.active_osds().map(|osd| osd.id).collect();
        let collector = Collector::new(ceph.options(), &ids, COLLECT_TIMEOUT);
        let obstacles = find_obstacles(&mut ceph, &map, &pgs)?;
        let mut orders = PgOrders::default();
        orders.update(&map, &pgs);
        let now = Instant::now();
        Ok(Self {
            policy_state: PolicyState::new(policy, &ids, &mut ceph)?,
            earlier_reads: PgReads::of(&pgs),
            ceph,
            mode,
            policy,
            start: now,
            map,
            pgs,
            orders,
            obstacles,
            is_stale: false,
            refreshed: now,
            refresh_time: Duration::ZERO,
            collector,
            last_round: None,
            journal,
            last_heartbeat: now,
        })
    }

    /// One round: measures, decides, and in [`Mode::Act`] sets the affinities.
    pub fn round(&mut self) -> Result<RoundReport> {
        self.heartbeat()?;
        self.refresh()?;
        let view = ClusterView::new(&self.map, &self.pgs, &self.orders, &self.earlier_reads);
        let reads = self.collector.collect();
        let now = Instant::now();
        let seconds = self.last_round.replace(now).map_or(0.0, |last| (now - last).as_secs_f64());
        let mut silent = Vec::new();
        let mut loads = Vec::with_capacity(reads.len());
        for reads in reads {
            match reads.load {
                Ok(load) => loads.push(load),
                Err(e) => {
                    silent.push(format!("osd.{}: {e}", reads.osd));
                    loads.push(None);
                }
            }
        }
        let known: Option<Vec<ReadLoad>> = loads.iter().copied().collect();
        let outcome = match known {
            Some(read_loads) if silent.is_empty() && self.obstacles.is_empty() => {
                let round = Round {
                    now: now - self.start,
                    placement: &view.placement,
                    read_loads: &read_loads,
                    affinities: &view.affinities,
                    seconds,
                };
                Some(self.decide(&round, &view)?)
            }
            _ => None,
        };
        Ok(self.report(&view, &loads, silent, outcome))
    }

    /// Ends without a change: the affinities stay, and so does the journal, for a later restore.
    pub fn keep(self) {}

    /// Restores the affinities from before the first change, unless another balancer has taken over. Returns how many
    /// changed.
    pub fn restore(mut self) -> Result<usize> {
        let Some(journal) = &self.journal else { return Ok(0) };
        match Journal::load(&mut self.ceph)? {
            Some(current) if current.owner == journal.owner => {
                restore(&mut self.ceph).map(Option::unwrap_or_default)
            }
            Some(_) | None => Ok(0),
        }
    }

    fn decide(&mut self, round: &Round<'_>, view: &ClusterView) -> Result<Outcome> {
        // A dry run keeps what the policy measured, but not a step that was not made.
        let mut state = self.policy_state.clone();
        let outcome = state.decide(round)?;
        match outcome.changed_affinities() {
            Some(affinities) if self.mode == Mode::Act => {
                self.set(view, affinities)?;
                self.policy_state = state;
            }
            Some(_) => {}
            None => self.policy_state = state,
        }
        Ok(outcome)
    }

    fn set(&mut self, view: &ClusterView, affinities: &[Affinity]) -> Result<()> {
        let current = view.osd_ids.iter().zip(&view.affinities);
        let changes = current.zip(affinities).filter_map(|((osd, current), next)| {
            (current != next).then_some(AffinityChange { osd: *osd, affinity: *next })
        });
        apply(&mut self.ceph, &changes.collect::<Vec<_>>())?;
        self.map = OsdMap::parse(self.ceph.json(&["osd", "dump"])?)?;
        self.is_stale = true;
        Ok(())
    }

    /// Reads the map if it changed, and the PGs and the health once in a while.
    fn refresh(&mut self) -> Result<()> {
        let epoch = self.ceph.json(&["osd", "stat"])?.get("epoch").and_then(Value::as_u64);
        let is_changed = epoch != Some(self.map.epoch);
        if is_changed {
            let map = OsdMap::parse(self.ceph.json(&["osd", "dump"])?)?;
            let has_other_osds =
                !map.active_osds().map(|osd| osd.id).eq(self.map.active_osds().map(|osd| osd.id));
            self.map = map;
            if has_other_osds {
                let ids: Vec<u32> = self.map.active_osds().map(|osd| osd.id).collect();
                self.collector = Collector::new(self.ceph.options(), &ids, COLLECT_TIMEOUT);
                self.policy_state = PolicyState::new(self.policy, &ids, &mut self.ceph)?;
                self.last_round = None;
            }
        }
        let interval = MIN_REFRESH_INTERVAL.max(self.refresh_time * MAX_REFRESH_SHARE);
        if is_changed || self.is_stale || self.refreshed.elapsed() >= interval {
            let start = Instant::now();
            self.pgs = pg_map::parse(self.ceph.json(&["pg", "dump"])?)?;
            self.orders.update(&self.map, &self.pgs);
            self.obstacles = find_obstacles(&mut self.ceph, &self.map, &self.pgs)?;
            self.is_stale = false;
            self.refreshed = Instant::now();
            self.refresh_time = start.elapsed();
        }
        Ok(())
    }

    /// Tells other balancers that this one is alive, and finds out whether another has taken over.
    fn heartbeat(&mut self) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        if self.last_heartbeat.elapsed() < HEARTBEAT_INTERVAL {
            return Ok(());
        }
        match Journal::load(&mut self.ceph)? {
            Some(current) if current.owner == journal.owner => {}
            Some(current) => {
                return Err(Error::Superseded(format!(
                    "{} balances this cluster now; this one stops",
                    current.owner
                )));
            }
            None => {
                return Err(Error::Superseded(
                    "the affinities were restored by another command; the balancer stops".to_owned(),
                ));
            }
        }
        journal.heartbeat += 1;
        journal.save(&mut self.ceph)?;
        self.last_heartbeat = Instant::now();
        Ok(())
    }

    fn report(
        &self,
        view: &ClusterView,
        loads: &[Option<ReadLoad>],
        silent: Vec<String>,
        outcome: Option<Outcome>,
    ) -> RoundReport {
        let changed = outcome.as_ref().and_then(Outcome::changed_affinities);
        let next = changed.unwrap_or(&view.affinities);
        let shares = |affinities: &[Affinity]| {
            let loads = view.placement.loads(affinities);
            let total = loads.iter().sum::<f64>().max(f64::MIN_POSITIVE);
            loads.into_iter().map(|load| load / total).collect::<Vec<_>>()
        };
        let (now_shares, next_shares) = (shares(&view.affinities), shares(next));
        let rates = self.policy_state.service_rates();
        let osds = view.osd_ids.iter().enumerate().map(|(index, osd)| OsdReport {
            osd: *osd,
            reads: loads.get(index).copied().flatten(),
            service_rate: rates.get(index).copied().flatten(),
            affinity: view.affinities[index],
            next_affinity: next[index],
            share: now_shares[index],
            next_share: next_shares[index],
        });
        RoundReport {
            osds: osds.collect(),
            fixed: view.fixed,
            primaries: self.check_primaries(view),
            obstacles: self.obstacles.clone(),
            silent,
            outcome,
        }
    }

    fn check_primaries(&self, view: &ClusterView) -> PrimaryCheck {
        let predicted = view.pg_ids.iter().zip(view.primary_ids(&view.affinities));
        let predicted: std::collections::HashMap<_, _> = predicted.collect();
        let mut check = PrimaryCheck::default();
        for pg in &self.pgs {
            let is_decided = self.orders.get(pg.id).is_some() && !self.map.temporary.contains(&pg.id);
            if let Some(primary) = predicted.get(&pg.id).filter(|_| is_decided) {
                check.predicted += 1;
                check.correct += usize::from(pg.acting_primary == Some(*primary));
            }
        }
        check
    }
}

/// Restores the affinities of the cluster's journal and removes it. `None` if there is no journal; otherwise the number of
/// OSDs that changed.
pub fn restore(ceph: &mut CephProcess) -> Result<Option<usize>> {
    let Some(journal) = Journal::load(ceph)? else { return Ok(None) };
    let map = OsdMap::parse(ceph.json(&["osd", "dump"])?)?;
    let changes = journal.changes_to_restore(&map);
    apply(ceph, &changes)?;
    Journal::remove(ceph)?;
    Ok(Some(changes.len()))
}

/// Restores what a balancer left behind that no longer runs.
fn take_over(ceph: &mut CephProcess) -> Result<()> {
    let Some(found) = Journal::load(ceph)? else { return Ok(()) };
    std::thread::sleep(HEARTBEAT_WAIT);
    match Journal::load(ceph)? {
        Some(now) if now != found => {
            Err(Error::Unsuitable(format!("{} balances this cluster already; stop it first", now.owner)))
        }
        Some(_) => {
            let changed = restore(ceph)?.unwrap_or_default();
            tracing::info!(
                owner = found.owner,
                changed,
                "restored the affinities that an ended balancer left"
            );
            Ok(())
        }
        None => Ok(()),
    }
}

/// Writes the journal with the affinities of this map. Of several balancers that start at once, the last one wins.
fn claim(ceph: &mut CephProcess, owner: String, map: &OsdMap) -> Result<Journal> {
    let journal = Journal::new(owner, map);
    journal.save(ceph)?;
    std::thread::sleep(START_RACE_WAIT);
    match Journal::load(ceph)? {
        Some(current) if current.owner == journal.owner => Ok(journal),
        Some(current) => {
            Err(Error::Unsuitable(format!("{} balances this cluster already; stop it first", current.owner)))
        }
        None => Err(Error::Unsuitable("another command removed the journal; try again".to_owned())),
    }
}
