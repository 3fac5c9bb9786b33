//! The state of balancing in a cluster, as anyone can read it: no balancer needs to run, and nothing is changed.

use std::time::{Duration, Instant};

use tradewind_model::affinity::Affinity;
use tradewind_model::affinity::queueing::ReadLoad;

use crate::apply::AffinityChange;
use crate::balancer::{COLLECT_TIMEOUT, ClusterAccess, HEARTBEAT_WAIT, SilentOsd};
use crate::cluster_view::{ClusterView, PgReads};
use crate::collector::{Collector, OsdReads};
use crate::error::Result;
use crate::journal::Journal;
use crate::last_step::LastStep;
use crate::monitors::Monitors;
use crate::osd_map::OsdMap;
use crate::pg_map;
use crate::pg_order::{MapAge, PgOrders};
use crate::signals::OsdSignals;
use crate::slow_host::{OsdOnHost, SlowHost, slow_hosts};

/// Time between two samples of the counters.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// Poll interval of the heartbeat of a balancer.
const HEARTBEAT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The state of balancing.
#[derive(Debug, Clone)]
pub struct Status {
    /// The balancer, if there is one.
    pub balancer: Option<BalancerStatus>,
    /// All OSDs of the cluster.
    pub osds: Vec<OsdStatus>,
    /// The last step that any balancer made.
    pub last_step: Option<LastStep>,
    /// Hosts whose OSDs are slow together.
    pub slow_hosts: Vec<SlowHost>,
    /// OSDs that run, but without counters.
    pub silent: Vec<SilentOsd>,
    /// OSDs whose affinity another command has set since the balancer started: it neither changes nor restores them.
    pub operators: Vec<AffinityChange>,
}

/// A balancer that has not restored the affinities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerStatus {
    /// Identifies it.
    pub owner: String,
    /// When it started, in seconds since 1970, if known.
    pub started_at_unix_seconds: Option<u64>,
    /// True if its heartbeat grew; false if it stood still for 45 s.
    pub is_alive: bool,
}

/// An OSD.
#[derive(Debug, Clone)]
pub struct OsdStatus {
    /// Its id.
    pub osd: u32,
    /// Name of its host, if known.
    pub hostname: Option<String>,
    /// True if it is up and in.
    pub is_active: bool,
    /// Its reads in the last seconds, if known.
    pub reads: Option<ReadLoad>,
    /// The signals of its device and host.
    pub signals: OsdSignals,
    /// Its affinity before the balancer's first change; without a balancer, its current one.
    pub original_affinity: Affinity,
    /// Its affinity now.
    pub affinity: Affinity,
    /// Its share of the reads under the original affinities, from 0 to 1.
    pub original_share: f64,
    /// Its share now.
    pub share: f64,
}

impl OsdStatus {
    /// Its service rate in bytes of read cost per second, if it serves reads.
    pub fn service_rate(&self) -> Option<f64> {
        self.reads.and_then(ReadLoad::service_rate)
    }
}

/// Reads the state of a cluster. It takes 2 s; up to 20 s if a balancer is active, and 45 s if one ended on another host.
pub fn read_status(cluster: ClusterAccess) -> Result<Status> {
    let mut ceph = Monitors::connect(cluster.ceph)?;
    let found = Journal::load(&mut ceph)?;
    let map = OsdMap::parse(ceph.json(&["osd", "dump"])?)?;
    let earlier_reads = PgReads::of(&pg_map::parse(ceph.json(&["pg", "dump"])?)?);
    let ids: Vec<u32> = map.active_osds().map(|osd| osd.id).collect();
    let mut collector = Collector::new(&mut ceph, &ids, &cluster.agents, COLLECT_TIMEOUT)?;
    collector.check_agents()?;
    collector.collect();
    let sampled = Instant::now();
    let observed = observe(&mut ceph, found)?;
    std::thread::sleep(MIN_SAMPLE_INTERVAL.saturating_sub(sampled.elapsed()));
    let reads = collector.collect();

    // A balancer may have changed the affinities meanwhile.
    let map = OsdMap::parse(ceph.json(&["osd", "dump"])?)?;
    let pgs = pg_map::parse(ceph.json(&["pg", "dump"])?)?;
    let mut orders = PgOrders::default();
    orders.update(&map, &pgs, MapAge::Settled);
    let view = ClusterView::new(&map, &pgs, &orders, &earlier_reads);
    let last_step = LastStep::load(&mut ceph)?;
    let journal = observed.as_ref().map(|observed| &observed.journal);
    let shares = Shares::new(&view, journal, last_step.as_ref());
    let hostnames = collector.hostnames();
    let osds: Vec<OsdStatus> = map
        .osds
        .iter()
        .map(|osd| {
            let position = ids.binary_search(&osd.id).ok();
            let reads = position.and_then(|position| reads.get(position));
            OsdStatus {
                osd: osd.id,
                hostname: position.and_then(|position| hostnames[position].clone()),
                is_active: osd.is_up && osd.is_in,
                reads: reads.and_then(|reads| reads.load.as_ref().ok().copied().flatten()),
                signals: reads.map(|reads| reads.signals).unwrap_or_default(),
                original_affinity: journal
                    .and_then(|journal| journal.original(osd.id))
                    .unwrap_or(osd.affinity),
                affinity: osd.affinity,
                original_share: shares.original(osd.id),
                share: shares.current(osd.id),
            }
        })
        .collect();
    let operators = observed.as_ref().map(|observed| observed.operators(&map)).unwrap_or_default();
    Ok(Status {
        operators,
        balancer: observed.map(ObservedJournal::into_status),
        slow_hosts: find_slow_hosts(&osds),
        silent: find_silent(&reads),
        osds,
        last_step,
    })
}

/// A journal, and whether its owner is alive.
pub(crate) struct ObservedJournal {
    pub journal: Journal,
    pub is_alive: bool,
}

impl ObservedJournal {
    /// The OSDs whose affinity another command has set. A balancer that is alive has found them itself, and may have set
    /// affinities since it wrote the journal.
    fn operators(&self, map: &OsdMap) -> Vec<AffinityChange> {
        let operators = self.journal.restoration(map).operators;
        let is_found = |osd: &AffinityChange| !self.is_alive || self.journal.is_operators(osd.osd);
        operators.into_iter().filter(is_found).collect()
    }

    fn into_status(self) -> BalancerStatus {
        BalancerStatus {
            owner: self.journal.owner,
            started_at_unix_seconds: self.journal.started_at_unix_seconds,
            is_alive: self.is_alive,
        }
    }
}

/// Watches the journal until its heartbeat grows, or for so long that its owner must have ended.
pub(crate) fn observe(ceph: &mut Monitors, found: Option<Journal>) -> Result<Option<ObservedJournal>> {
    let Some(found) = found else { return Ok(None) };
    let deadline = Instant::now() + HEARTBEAT_WAIT;
    while Instant::now() < deadline && !found.is_of_an_ended_process() {
        std::thread::sleep(HEARTBEAT_POLL_INTERVAL);
        match Journal::load(ceph)? {
            None => return Ok(None),
            Some(journal) if journal != found => {
                return Ok(Some(ObservedJournal { journal, is_alive: true }));
            }
            Some(_) => {}
        }
    }
    Ok(Some(ObservedJournal { journal: found, is_alive: false }))
}

/// Shares of the reads.
struct Shares<'a> {
    view: &'a ClusterView,
    current: Vec<f64>,
    original: Vec<f64>,
    /// The record of the balancer, if it is that of the journal: it knows the order of OSDs in more PGs.
    recorded: Option<&'a LastStep>,
}

impl<'a> Shares<'a> {
    fn new(view: &'a ClusterView, journal: Option<&Journal>, last_step: Option<&'a LastStep>) -> Self {
        let osds = view.osd_ids.iter().zip(&view.affinities);
        let original = |osd: u32| journal.and_then(|journal| journal.original(osd));
        let originals: Vec<Affinity> =
            osds.map(|(osd, affinity)| original(*osd).unwrap_or(*affinity)).collect();
        let is_own = |step: &&LastStep| journal.is_some_and(|journal| journal.owner == step.owner);
        Self {
            view,
            current: view.shares(&view.affinities),
            original: view.shares(&originals),
            recorded: last_step.filter(is_own),
        }
    }

    fn current(&self, osd: u32) -> f64 {
        self.position(osd).map_or(0.0, |position| self.current[position])
    }

    fn original(&self, osd: u32) -> f64 {
        let recorded = self.recorded.and_then(|step| step.original_share(osd));
        let computed = || self.position(osd).map(|position| self.original[position]);
        recorded.or_else(computed).unwrap_or_default()
    }

    fn position(&self, osd: u32) -> Option<usize> {
        self.view.osd_ids.binary_search(&osd).ok()
    }
}

fn find_slow_hosts(osds: &[OsdStatus]) -> Vec<SlowHost> {
    let known = osds.iter().filter_map(|osd| {
        Some(OsdOnHost { hostname: osd.hostname.as_deref()?, service_rate: osd.service_rate()? })
    });
    slow_hosts(&known.collect::<Vec<_>>())
}

fn find_silent(reads: &[OsdReads]) -> Vec<SilentOsd> {
    let silent = reads.iter().filter_map(|reads| {
        let error = reads.load.as_ref().err()?;
        Some(SilentOsd { osd: reads.osd, reason: error.to_string() })
    });
    silent.collect()
}
