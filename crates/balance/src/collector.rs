//! The reads and signals of all OSDs, collected in parallel with a deadline: by the agents of other hosts, from the admin
//! sockets of OSDs on this host, and by `ceph tell` from the others.

use std::collections::{BTreeSet, HashMap};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use tradewind_model::affinity::queueing::ReadLoad;

use crate::agent::{AgentClient, Agents, OsdQuery};
use crate::ceph_process::CephOptions;
use crate::counters::ReadCounters;
use crate::device::DeviceCounters;
use crate::error::{Error, Result};
use crate::host::HostCounters;
use crate::local_osds::{LocalOsds, OsdSample};
use crate::monitors::Monitors;
use crate::osd_location::{self, OsdLocation};
use crate::parallel::in_parallel;
use crate::process::output_in_time;
use crate::signals::{OsdSignals, SignalCounters};

/// Maximum number of OSDs that this host reads concurrently.
const MAX_CONCURRENCY: usize = 16;
/// Maximum number of agents that are read concurrently.
const MAX_AGENT_CONCURRENCY: usize = 128;
/// Hosts that an error lists.
const MAX_LISTED_HOSTS: usize = 20;

/// Where the counters of an OSD come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The agent of its host, by its index among the agents.
    Agent(usize),
    /// Its admin socket on this host.
    Socket,
    /// `ceph tell`: the OSD is on another host, or its socket was not found.
    Tell,
}

/// An OSD since the previous round.
#[derive(Debug)]
pub struct OsdReads {
    /// Its id.
    pub osd: u32,
    /// `None` in the first round and after a restart of the OSD.
    pub load: Result<Option<ReadLoad>>,
    /// The signals of its device and host.
    pub signals: OsdSignals,
}

/// Collects counters.
#[derive(Debug)]
pub struct Collector {
    options: CephOptions,
    timeout: Duration,
    agents: Agents,
    local: LocalOsds,
    /// Names of the hosts of all OSDs of the cluster.
    hosts: BTreeSet<String>,
    osds: Vec<OsdSource>,
    previous: HashMap<u32, PreviousReads>,
    /// In the order of the OSDs; `None` for OSDs that did not report in the last round.
    signals: Vec<Option<SignalCounters>>,
}

#[derive(Debug, Clone)]
struct OsdSource {
    osd: u32,
    location: OsdLocation,
    /// True if it is on this host.
    is_local: bool,
    source: Source,
}

#[derive(Debug, Clone, Copy)]
struct PreviousReads {
    counters: ReadCounters,
    read_at: Instant,
}

/// The OSDs of one agent, by their positions among all.
#[derive(Debug)]
struct AgentGroup<'a> {
    agent: &'a AgentClient,
    positions: Vec<usize>,
}

/// A sample of an OSD, with that of its host.
struct Collected {
    position: usize,
    sample: OsdSample,
    host: HostCounters,
}

impl Collector {
    /// Finds the source of each OSD. `timeout` applies to each OSD and to each agent, in each round.
    pub fn new(ceph: &mut Monitors, osds: &[u32], agents: &Agents, timeout: Duration) -> Result<Self> {
        let mut locations = osd_location::parse(&ceph.json(&["osd", "metadata"])?);
        let hosts = locations.values().filter_map(|location| location.hostname.clone()).collect();
        let local = LocalOsds::new(ceph.options().clone(), timeout);
        let this_host = osd_location::this_host();
        let placed: Vec<(u32, OsdLocation)> =
            osds.iter().map(|osd| (*osd, locations.remove(osd).unwrap_or_default())).collect();
        let sources = in_parallel(&placed, MAX_CONCURRENCY, |(osd, location)| {
            let agent = location.hostname.as_deref().and_then(|hostname| agents.index_of(hostname));
            let source = match agent {
                Some(agent) => Source::Agent(agent),
                None if local.socket(*osd).is_some() => Source::Socket,
                None => Source::Tell,
            };
            let is_local = source == Source::Socket || location.hostname.as_deref() == Some(&this_host);
            OsdSource { osd: *osd, location: location.clone(), is_local, source }
        });
        Ok(Self {
            options: ceph.options().clone(),
            timeout,
            agents: agents.clone(),
            local,
            hosts,
            signals: vec![None; sources.len()],
            osds: sources,
            previous: HashMap::new(),
        })
    }

    /// The name of the host of each OSD, in their order.
    pub fn hostnames(&self) -> Vec<Option<String>> {
        self.osds.iter().map(|osd| osd.location.hostname.clone()).collect()
    }

    /// The first OSD that is neither on this host nor on one with an agent, or whose device is unknown although needed.
    pub fn unmeasured_osd(&self, needs_device: bool) -> Option<u32> {
        let is_measured = |osd: &OsdSource| {
            let is_reachable = osd.is_local || matches!(osd.source, Source::Agent(_));
            is_reachable && (!needs_device || osd.location.device.is_some())
        };
        self.osds.iter().find(|osd| !is_measured(osd)).map(|osd| osd.osd)
    }

    /// Fails if the list of agents has a host without OSDs: its agent would never be used, but `ceph tell` instead.
    pub fn check_agents(&self) -> Result<()> {
        let hostnames = self.agents.clients().iter().map(AgentClient::hostname);
        let unused: Vec<&str> = hostnames.filter(|hostname| !self.hosts.contains(*hostname)).collect();
        if unused.is_empty() {
            return Ok(());
        }
        let hosts: Vec<&str> = self.hosts.iter().map(String::as_str).take(MAX_LISTED_HOSTS).collect();
        Err(Error::Unsuitable(format!(
            "the list of agents has hosts without OSDs: {}; hosts with OSDs are {}",
            unused.join(", "),
            hosts.join(", ")
        )))
    }

    /// The counters of devices and hosts in the last round, in the order of the OSDs; `None` for OSDs that did not report.
    pub fn signal_counters(&self) -> &[Option<SignalCounters>] {
        &self.signals
    }

    /// Collects one round, in the order of the OSDs given to [`Collector::new`].
    pub fn collect(&mut self) -> Vec<OsdReads> {
        let mut collected = self.collect_samples();
        collected.sort_by_key(|collected| collected.position);
        collected.into_iter().map(|collected| self.since_previous(collected)).collect()
    }

    fn since_previous(&mut self, collected: Collected) -> OsdReads {
        let Collected { position, sample, host } = collected;
        let (osd, read_at) = (self.osds[position].osd, sample.read_at);
        let load = sample.reads.map(|counters| {
            let previous = self.previous.insert(osd, PreviousReads { counters, read_at })?;
            counters.since(previous.counters, read_at.saturating_duration_since(previous.read_at))
        });
        let now = load.is_ok().then_some(SignalCounters { device: sample.device, host, read_at });
        let earlier = std::mem::replace(&mut self.signals[position], now);
        // The pressure is a mean over time already: it needs no earlier sample.
        let signals = now.map(|now| now.since(&earlier.unwrap_or(now)));
        OsdReads { osd, load, signals: signals.unwrap_or_default() }
    }

    fn collect_samples(&self) -> Vec<Collected> {
        let mut groups: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut own = Vec::new();
        for (position, osd) in self.osds.iter().enumerate() {
            match osd.source {
                Source::Agent(agent) => groups.entry(agent).or_default().push(position),
                Source::Socket | Source::Tell => own.push(position),
            }
        }
        let clients = self.agents.clients();
        let groups: Vec<AgentGroup<'_>> = groups
            .into_iter()
            .map(|(agent, positions)| AgentGroup { agent: &clients[agent], positions })
            .collect();
        std::thread::scope(|scope| {
            let collect_remote =
                || in_parallel(&groups, MAX_AGENT_CONCURRENCY, |group| self.collect_by_agent(group));
            let remote = Builder::new().spawn_scoped(scope, collect_remote);
            let host = if own.is_empty() { HostCounters::default() } else { HostCounters::read() };
            let mut collected =
                in_parallel(&own, MAX_CONCURRENCY, |position| self.collect_directly(*position, host));
            let remote = match remote.map(ScopedJoinHandle::join) {
                Ok(Ok(remote)) => remote,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // Without another thread, one after the other.
                Err(_) => collect_remote(),
            };
            collected.extend(remote.into_iter().flatten());
            collected
        })
    }

    fn query(&self, position: usize) -> OsdQuery {
        let OsdSource { osd, location, .. } = &self.osds[position];
        OsdQuery { osd: *osd, device: location.device.clone() }
    }

    fn collect_by_agent(&self, group: &AgentGroup<'_>) -> Vec<Collected> {
        let queries: Vec<OsdQuery> = group.positions.iter().map(|position| self.query(*position)).collect();
        let sample = group.agent.read(&queries, self.timeout);
        let positions = group.positions.iter().copied();
        match sample {
            Ok(sample) => {
                let host = sample.host;
                let osds = positions.zip(sample.osds);
                osds.map(|(position, sample)| Collected { position, sample, host }).collect()
            }
            Err(e) => {
                let silent = |position| {
                    let reads = Err(group.agent.error(&e));
                    let sample = OsdSample { reads, device: None, read_at: Instant::now() };
                    Collected { position, sample, host: HostCounters::default() }
                };
                positions.map(silent).collect()
            }
        }
    }

    fn collect_directly(&self, position: usize, host: HostCounters) -> Collected {
        let source = &self.osds[position];
        let sample = match source.source {
            Source::Tell | Source::Agent(_) => {
                let device = source.location.device.as_deref().filter(|_| source.is_local);
                let device = device.and_then(|device| DeviceCounters::read(device).ok());
                OsdSample { reads: self.read_by_tell(source.osd), device, read_at: Instant::now() }
            }
            Source::Socket => self.local.read_osd(&self.query(position)),
        };
        let host = if source.is_local { host } else { HostCounters::default() };
        Collected { position, sample, host }
    }

    fn read_by_tell(&self, osd: u32) -> Result<ReadCounters> {
        let target = format!("osd.{osd}");
        let mut command = self.options.command();
        command.args(["tell", &target, "perf", "dump", "--format", "json"]);
        let output = output_in_time(command, &format!("tell {target} perf dump"), self.timeout)?;
        ReadCounters::parse(&parse(&output, "perf dump")?)
    }
}

fn parse(output: &[u8], command: &str) -> Result<Value> {
    let malformed =
        |e: serde_json::Error| Error::Malformed { command: command.to_owned(), message: e.to_string() };
    serde_json::from_slice(output).map_err(malformed)
}

#[cfg(test)]
mod tests;
