//! The balancer of one cluster, round by round.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::controller::{Decision, Idle, Round};
use tradewind_model::affinity::placement::OsdIndex;
use tradewind_model::affinity::queueing::ReadLoad;

use crate::agent::Agents;
use crate::apply::{AffinityChange, MAX_BATCH_CHANGES, apply, own_changes};
use crate::ceph_process::CephOptions;
use crate::cluster_view::{ClusterView, FixedPgs, RecentPgReads};
use crate::collector::Collector;
use crate::error::{Error, Result};
use crate::exclusion::Exclusions;
use crate::journal::Journal;
use crate::last_step::{LastStep, OriginalShare};
use crate::monitors::Monitors;
use crate::osd_map::OsdMap;
use crate::pg_map::{self, Pg};
use crate::pg_order::{MapAge, PgOrders};
use crate::policy::{Outcome, Policy, PolicyState};
use crate::rados::has_abandoned_call;
use crate::replica_reads::ReplicaReads;
use crate::restore::{Restored, claim, restore_from, take_over};
use crate::signals::OsdSignals;
use crate::slow_host::{OsdOnHost, SlowHost, slow_hosts};
use crate::suitability::{Obstacle, find_obstacles};

/// Time for the counters of one OSD.
pub(crate) const COLLECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the epoch of the OSD map is read by the process `ceph`. It takes 0.05 s of CPU to check the arguments
/// of a command, and as much for the mark of its end. Within this process, the epoch is read in every round.
const POLL_INTERVAL: Duration = Duration::from_secs(20);
/// Minimum interval at which the placement groups and the cluster's health are read.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(120);
/// The placement groups of a large cluster take long to read: minimum interval in units of that time.
const MAX_REFRESH_SHARE: u32 = 20;
/// Minimum interval in these units while there is an obstacle that may pass.
const OBSTACLE_REFRESH_SHARE: u32 = 2;
/// Time for which the heartbeat of another balancer must stand still for it to count as ended.
pub(crate) const HEARTBEAT_WAIT: Duration = Duration::from_secs(45);
/// Interval between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(20);
/// Attempts to restore the affinities at the end: a monitor may just fail over.
const MAX_RESTORE_ATTEMPTS: u32 = 4;
const RESTORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time after a change without a response in which the cluster may still carry it out.
const LATE_CHANGE_WAIT: Duration = Duration::from_secs(300);
/// Maximum age of PGs and health when a step is made.
const MAX_DECISION_AGE: Duration = Duration::from_secs(10);
/// Minimum share of the primaries that must be as predicted.
const MIN_CORRECT_SHARE: f64 = 0.98;
/// Time after a change of the map in which PGs may not have reported their OSDs.
const REPORT_WAIT: Duration = Duration::from_secs(15);

/// The way to a cluster and to the counters of its OSDs.
#[derive(Debug, Clone, Default)]
pub struct ClusterAccess {
    /// The command and its flags.
    pub ceph: CephOptions,
    /// The agents of hosts that have one.
    pub agents: Agents,
}

/// The options of a balancer.
#[derive(Debug, Clone)]
pub struct BalancerOptions {
    /// Its permissions.
    pub mode: Mode,
    /// Its policy.
    pub policy: Policy,
    /// The OSDs that it leaves alone.
    pub exclusions: Exclusions,
}

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
    /// Name of its host, if known.
    pub hostname: Option<String>,
    /// Its reads; `None` in the first round.
    pub reads: Option<ReadLoad>,
    /// Its estimated service rate in bytes of read cost per second: that of the policy, or else that of this round.
    pub service_rate: Option<f64>,
    /// The signals of its device and host.
    pub signals: OsdSignals,
    /// Its current affinity.
    pub affinity: Affinity,
    /// The affinity that the decision sets.
    pub next_affinity: Affinity,
    /// Its share of the cost of reads by the current primaries, from 0 to 1.
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
    /// OSDs without counters.
    pub silent: Vec<SilentOsd>,
    /// Failures without an effect on the decision.
    pub warnings: Vec<String>,
    /// The outcome; `None` with obstacles or silent OSDs.
    pub outcome: Option<Outcome>,
}

/// An OSD without counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentOsd {
    /// Its id.
    pub osd: u32,
    /// Why there are none.
    pub reason: String,
}

impl RoundReport {
    /// Hosts whose OSDs are slow together.
    pub fn slow_hosts(&self) -> Vec<SlowHost> {
        let osds = self.osds.iter().filter_map(|osd| {
            Some(OsdOnHost { hostname: osd.hostname.as_deref()?, service_rate: osd.service_rate? })
        });
        slow_hosts(&osds.collect::<Vec<_>>())
    }
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
    ceph: Monitors,
    options: BalancerOptions,
    /// The OSDs that are excluded by id or device class, as of this map.
    excluded_osds: BTreeSet<u32>,
    /// The OSDs that are excluded by a pool, as of the last refresh.
    osds_of_excluded_pools: BTreeSet<u32>,
    start: Instant,
    map: OsdMap,
    pgs: Vec<Pg>,
    orders: PgOrders,
    recent_reads: RecentPgReads,
    obstacles: Vec<Obstacle>,
    replica_reads: ReplicaReads,
    /// True if map, PGs and health must be read before the next decision.
    is_stale: bool,
    map_changed: Instant,
    /// When the epoch of the map was read.
    polled: Instant,
    refreshed: Instant,
    refresh_time: Duration,
    agents: Agents,
    /// The OSDs of the collector and the policy.
    osd_ids: Vec<u32>,
    collector: Collector,
    policy_state: PolicyState,
    last_round: Option<Instant>,
    /// The journal in [`Mode::Act`].
    journal: Option<Journal>,
    /// True if the journal has OSDs of the operator that the monitors do not have yet.
    is_journal_outdated: bool,
    last_heartbeat: Instant,
    last_step: Option<LastStep>,
    /// When a change had no response in time.
    last_timeout: Option<Instant>,
    /// For the next report.
    warnings: Vec<String>,
}

impl Balancer {
    /// Connects to the cluster. In [`Mode::Act`], fails if another balancer is active, and restores the affinities that one
    /// left behind which is not.
    ///
    /// `owner` identifies this process, for example by host and process id.
    pub fn connect(cluster: ClusterAccess, options: BalancerOptions, owner: String) -> Result<Self> {
        let ClusterAccess { ceph, agents } = cluster;
        let mut ceph = Monitors::connect(ceph)?;
        let kept = if options.mode == Mode::Act { take_over(&mut ceph)?.operators } else { Vec::new() };
        let warn = |AffinityChange { osd, affinity }: &AffinityChange| {
            format!(
                "osd.{osd}: another command set the affinity {affinity} since the last balancer; it is not restored"
            )
        };
        let warnings = kept.iter().map(warn).collect();
        let map = OsdMap::parse(ceph.json(&["osd", "dump"])?)?;
        let pgs = pg_map::parse(ceph.json(&["pg", "dump"])?)?;
        let ids: Vec<u32> = map.active_osds().map(|osd| osd.id).collect();
        let collector = Collector::new(&mut ceph, &ids, &agents, COLLECT_TIMEOUT)?;
        collector.check_agents()?;
        let obstacles = find_obstacles(&mut ceph, &map, &pgs)?;
        let mut orders = PgOrders::default();
        orders.update(&map, &pgs, MapAge::Settled);
        let policy_state = PolicyState::new(options.policy, &collector)?;
        let excluded_osds = options.exclusions.find_osds(&mut ceph, &map)?;
        // Last: an error above must not leave a journal.
        let journal = if options.mode == Mode::Act { Some(claim(&mut ceph, owner, &map)?) } else { None };
        let now = Instant::now();
        Ok(Self {
            policy_state,
            recent_reads: RecentPgReads::new(&pgs),
            osds_of_excluded_pools: options.exclusions.osds_of_pools(&map, &pgs),
            excluded_osds,
            ceph,
            options,
            start: now,
            map,
            pgs,
            orders,
            obstacles,
            replica_reads: ReplicaReads::default(),
            is_stale: false,
            map_changed: now,
            polled: now,
            refreshed: now,
            refresh_time: Duration::ZERO,
            agents,
            osd_ids: ids,
            collector,
            last_round: None,
            journal,
            is_journal_outdated: false,
            last_heartbeat: now,
            last_step: None,
            last_timeout: None,
            warnings,
        })
    }

    /// One round: measures, decides, and in [`Mode::Act`] sets the affinities.
    pub fn round(&mut self) -> Result<RoundReport> {
        self.heartbeat()?;
        self.refresh()?;
        let view = ClusterView::new(&self.map, &self.pgs, &self.orders, self.recent_reads.earliest());
        let reads = self.collector.collect();
        let now = Instant::now();
        let seconds = self.last_round.replace(now).map_or(0.0, |last| (now - last).as_secs_f64());
        let mut silent = Vec::new();
        let mut loads = Vec::with_capacity(reads.len());
        let signals: Vec<OsdSignals> = reads.iter().map(|reads| reads.signals).collect();
        for reads in reads {
            match reads.load {
                Ok(load) => loads.push(load),
                Err(e) => {
                    silent.push(SilentOsd { osd: reads.osd, reason: e.to_string() });
                    loads.push(None);
                }
            }
        }
        let known: Option<Vec<ReadLoad>> = loads.iter().copied().collect();
        let mut obstacles = self.obstacles.clone();
        if let Some(read_loads) = &known {
            self.replica_reads.record(self.map.epoch, read_loads, seconds);
            // A step made before brings no gain, and is undone first.
            let is_evident = !self.policy_state.is_verifying() && self.replica_reads.are_evident(&view);
            obstacles.extend(is_evident.then_some(Obstacle::ReplicaReads));
        }
        let fixed_osds = self.fixed_osds(&view);
        if fixed_osds.len() == view.osd_ids.len() && !fixed_osds.is_empty() {
            obstacles.push(Obstacle::NothingToChange);
        }
        let outcome = match known {
            Some(read_loads) if silent.is_empty() && obstacles.is_empty() => {
                let round = Round {
                    now: now - self.start,
                    placement: &view.placement,
                    read_loads: &read_loads,
                    affinities: &view.affinities,
                    fixed_osds: &fixed_osds,
                    seconds,
                };
                Some(self.decide(&round, &view)?)
            }
            _ => None,
        };
        let mut report = self.report(&view, &loads, outcome);
        for (osd, signals) in report.osds.iter_mut().zip(signals) {
            osd.signals = signals;
        }
        let warnings = std::mem::take(&mut self.warnings);
        Ok(RoundReport { obstacles, silent, warnings, ..report })
    }

    /// Ends without a change: the affinities stay, and so does the journal, for a later restore.
    pub fn keep(self) {}

    /// Restores the affinities from before the first change, unless another balancer has taken over. Affinities that another
    /// command has set remain. Tries again if it fails; each attempt may take the time of several commands.
    pub fn restore(mut self) -> Result<Restored> {
        let mut attempts = 1;
        loop {
            match self.try_restore() {
                Err(_) if attempts < MAX_RESTORE_ATTEMPTS => {
                    attempts += 1;
                    std::thread::sleep(RESTORE_RETRY_INTERVAL);
                }
                result => return result,
            }
        }
    }

    fn try_restore(&mut self) -> Result<Restored> {
        let Some(journal) = &self.journal else { return Ok(Restored::default()) };
        match Journal::load(&mut self.ceph)? {
            // The own copy: the stored one may not have the end of a step yet.
            Some(current) if current.has_same_owner(journal) => restore_from(&mut self.ceph, journal),
            Some(_) | None => Ok(Restored::default()),
        }
    }

    fn decide(&mut self, round: &Round<'_>, view: &ClusterView) -> Result<Outcome> {
        // A dry run keeps what the policy measured, but not a step that was not made.
        let mut state = self.policy_state.clone();
        let outcome = state.decide(round, self.collector.signal_counters())?;
        let is_confirming = matches!(outcome, Outcome::Predict(Decision::Wait(Idle::Confirming(_))));
        if is_confirming && self.refreshed.elapsed() > MAX_DECISION_AGE {
            // The next round may make a step.
            self.is_stale = true;
        }
        match outcome.changed_affinities() {
            Some(affinities) if self.options.mode == Mode::Act => {
                self.set(view, affinities)?;
                self.policy_state = state;
            }
            Some(_) => {}
            None => self.policy_state = state,
        }
        self.record_step(&outcome, view);
        Ok(outcome)
    }

    /// Writes down what was done, for `status`. A failure must not hide the step from the next round: it is a warning.
    fn record_step(&mut self, outcome: &Outcome, view: &ClusterView) {
        let Some(journal) = &self.journal else { return };
        let original_shares = || {
            let osds = view.osd_ids.iter().zip(&view.affinities);
            let originals: Vec<Affinity> =
                osds.map(|(osd, affinity)| journal.original(*osd).unwrap_or(*affinity)).collect();
            let shares = view.osd_ids.iter().zip(view.shares(&originals));
            shares.map(|(osd, share)| OriginalShare { osd: *osd, share }).collect()
        };
        let step = LastStep::after(outcome, self.last_step.as_ref(), &journal.owner, original_shares);
        if let Some(step) = step {
            if let Err(e) = step.save(&mut self.ceph) {
                self.warnings.push(format!("the last step is not recorded: {e}"));
            }
            self.last_step = Some(step);
        }
    }

    /// Makes a step. If it cannot be completed, as much of it as possible is taken back.
    fn set(&mut self, view: &ClusterView, affinities: &[Affinity]) -> Result<()> {
        let current = view.osd_ids.iter().zip(&view.affinities);
        let changes: Vec<AffinityChange> = current
            .zip(affinities)
            .filter(|((_, current), next)| current != next)
            .map(|((osd, _), next)| AffinityChange { osd: *osd, affinity: *next })
            .collect();
        // The monitors have the new values before the first is set: a crash in between leaves none that is not known.
        if let Some(journal) = &mut self.journal {
            journal.note(&changes, &self.map);
        }
        self.prove_alive()?;
        self.is_stale = true;
        if self.is_map_outdated()? {
            return Err(Error::Unsuitable("the OSD map changed during the decision".to_owned()));
        }
        let result = self.apply_in_batches(&changes);
        if let Err(e) = &result {
            self.take_back(&changes, view, matches!(e, Error::Superseded(_)));
        }
        result
    }

    /// Between batches, another balancer must not take a long step for the end of this one, and another command may set
    /// affinities of later batches.
    fn apply_in_batches(&mut self, changes: &[AffinityChange]) -> Result<()> {
        for batch in changes.chunks(MAX_BATCH_CHANGES) {
            let batch = self.own_changes(batch)?;
            self.apply(&batch)?;
            let has_late_change = self.has_late_change();
            if let Some(journal) = self.journal.as_mut().filter(|_| !has_late_change) {
                journal.confirm(&batch);
            }
            self.heartbeat()?;
        }
        // A restore by another command in the meantime may have missed some of these changes.
        self.prove_alive()
    }

    fn apply(&mut self, changes: &[AffinityChange]) -> Result<()> {
        let applied = apply(&mut self.ceph, changes);
        if matches!(applied, Err(Error::Timeout { .. })) {
            self.last_timeout = Some(Instant::now());
        }
        applied
    }

    /// True if an earlier change may still follow. Its value must not be taken for the operator's.
    fn has_late_change(&self) -> bool {
        has_abandoned_call() || self.last_timeout.is_some_and(|last| last.elapsed() < LATE_CHANGE_WAIT)
    }

    /// The changes of OSDs whose affinity is one that this balancer set or found.
    fn own_changes(&mut self, changes: &[AffinityChange]) -> Result<Vec<AffinityChange>> {
        let Some(journal) = &self.journal else { return Ok(changes.to_vec()) };
        own_changes(&mut self.ceph, journal, changes)
    }

    /// Sets the affinities from before a step, or the original ones.
    fn take_back(&mut self, changes: &[AffinityChange], view: &ClusterView, to_originals: bool) {
        let before = |osd: u32| {
            let original =
                self.journal.as_ref().filter(|_| to_originals).and_then(|journal| journal.original(osd));
            let index = view.osd_ids.binary_search(&osd).ok()?;
            Some(AffinityChange { osd, affinity: original.unwrap_or(view.affinities[index]) })
        };
        let changes: Vec<AffinityChange> = changes.iter().filter_map(|change| before(change.osd)).collect();
        // The journal has both values until the next step is complete: none is taken for the operator's.
        if let Some(journal) = &mut self.journal {
            journal.note(&changes, &self.map);
        }
        let mut batches = changes.chunks(MAX_BATCH_CHANGES);
        let take_back = |batch| self.own_changes(batch).and_then(|batch| self.apply(&batch));
        if let Err(e) = batches.try_for_each(take_back) {
            self.warnings.push(format!("a step that failed is still in force: {e}"));
        }
    }

    /// Finds the OSDs whose affinity another command has set. The next heartbeat writes them down.
    fn find_operators(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        for AffinityChange { osd, affinity } in journal.find_operators(&self.map) {
            self.warnings.push(format!(
                "osd.{osd}: another command set the affinity {affinity}; it is neither changed nor restored"
            ));
            self.is_journal_outdated = true;
        }
    }

    /// The OSDs whose affinity must not change, by their positions in the view.
    fn fixed_osds(&self, view: &ClusterView) -> Vec<OsdIndex> {
        let is_fixed = |osd: u32| {
            self.excluded_osds.contains(&osd)
                || self.osds_of_excluded_pools.contains(&osd)
                || self.journal.as_ref().is_some_and(|journal| journal.is_operators(osd))
        };
        (0..view.osd_ids.len()).filter(|index| is_fixed(view.osd_ids[*index])).collect()
    }

    /// Reads the epoch, the PGs and the health once in a while, and the map if it changed.
    fn refresh(&mut self) -> Result<()> {
        let is_calm = self.obstacles.is_empty() && !self.is_stale && !self.policy_state.is_verifying();
        let poll_interval = if self.ceph.is_in_process() { Duration::ZERO } else { POLL_INTERVAL };
        if is_calm && self.polled.elapsed() < poll_interval {
            return Ok(());
        }
        let is_changed = self.is_map_outdated()?;
        if is_changed {
            let map = OsdMap::parse(self.ceph.json(&["osd", "dump"])?)?;
            let ids: Vec<u32> = map.active_osds().map(|osd| osd.id).collect();
            if ids != self.osd_ids {
                let collector = Collector::new(&mut self.ceph, &ids, &self.agents, COLLECT_TIMEOUT)?;
                self.policy_state = PolicyState::new(self.options.policy, &collector)?;
                self.collector = collector;
                self.osd_ids = ids;
                self.last_round = None;
            }
            self.excluded_osds = self.options.exclusions.find_current_osds(&mut self.ceph)?;
            // Last: after an error above, the next round sees the change again. After one below, the PGs are still stale.
            self.map = map;
            self.find_operators();
            self.map_changed = Instant::now();
            self.is_stale = true;
        }
        let interval = if self.obstacles.is_empty() {
            MIN_REFRESH_INTERVAL.max(self.refresh_time * MAX_REFRESH_SHARE)
        } else {
            // PGs that elect primaries after a step are clean again within seconds.
            self.refresh_time * OBSTACLE_REFRESH_SHARE
        };
        if self.is_stale || self.refreshed.elapsed() >= interval {
            let start = Instant::now();
            self.pgs = pg_map::parse(self.ceph.json(&["pg", "dump"])?)?;
            self.orders.update(&self.map, &self.pgs, self.map_age());
            self.recent_reads.record(&self.pgs);
            self.osds_of_excluded_pools = self.options.exclusions.osds_of_pools(&self.map, &self.pgs);
            self.obstacles = find_obstacles(&mut self.ceph, &self.map, &self.pgs)?;
            self.obstacles.extend(self.differing_primaries());
            self.is_stale = false;
            self.refreshed = Instant::now();
            self.refresh_time = start.elapsed();
        }
        Ok(())
    }

    fn map_age(&self) -> MapAge {
        if self.map_changed.elapsed() < REPORT_WAIT { MapAge::New } else { MapAge::Settled }
    }

    fn is_map_outdated(&mut self) -> Result<bool> {
        let epoch = self.ceph.json(&["osd", "stat"])?.get("epoch").and_then(Value::as_u64);
        self.polled = Instant::now();
        Ok(epoch != Some(self.map.epoch))
    }

    /// Tells other balancers that this one is alive, and finds out whether another has taken over. Does nothing if it was
    /// called within the last 20 s. Between rounds that are further apart, the caller must call it.
    pub fn heartbeat(&mut self) -> Result<()> {
        let is_due = self.is_journal_outdated || self.last_heartbeat.elapsed() >= HEARTBEAT_INTERVAL;
        if is_due { self.prove_alive() } else { Ok(()) }
    }

    fn prove_alive(&mut self) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        match Journal::load(&mut self.ceph)? {
            Some(current) if current.has_same_owner(journal) => {}
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
        self.is_journal_outdated = false;
        self.last_heartbeat = Instant::now();
        Ok(())
    }

    /// Wrong predictions must not lead to a step. After one, the PGs' reports are old for a moment.
    fn differing_primaries(&self) -> Option<Obstacle> {
        let view = ClusterView::new(&self.map, &self.pgs, &self.orders, self.recent_reads.earliest());
        let PrimaryCheck { predicted, correct } = self.check_primaries(&view);
        let is_wrong = (correct as f64) < MIN_CORRECT_SHARE * predicted as f64;
        (is_wrong && !self.policy_state.is_verifying())
            .then_some(Obstacle::UnexpectedPrimaries { predicted, correct })
    }

    fn report(
        &self,
        view: &ClusterView,
        loads: &[Option<ReadLoad>],
        outcome: Option<Outcome>,
    ) -> RoundReport {
        let changed = outcome.as_ref().and_then(Outcome::changed_affinities);
        let next = changed.unwrap_or(&view.affinities);
        let (now_shares, next_shares) = (view.shares(&view.affinities), view.shares(next));
        let rates = self.policy_state.service_rates();
        let hostnames = self.collector.hostnames();
        let osds = view.osd_ids.iter().enumerate().map(|(index, osd)| OsdReport {
            osd: *osd,
            hostname: hostnames.get(index).cloned().flatten(),
            signals: OsdSignals::default(),
            reads: loads.get(index).copied().flatten(),
            // The policy forgets its estimates when it makes a step.
            service_rate: rates
                .get(index)
                .copied()
                .flatten()
                .or_else(|| loads.get(index).copied().flatten()?.service_rate()),
            affinity: view.affinities[index],
            next_affinity: next[index],
            share: now_shares[index],
            next_share: next_shares[index],
        });
        RoundReport {
            osds: osds.collect(),
            fixed: view.fixed,
            primaries: self.check_primaries(view),
            obstacles: Vec::new(),
            silent: Vec::new(),
            warnings: Vec::new(),
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
