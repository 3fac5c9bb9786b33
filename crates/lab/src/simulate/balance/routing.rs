//! The routing of reads by each policy: by primaries, or for each read by itself.

mod primaries;

use std::time::Duration;

use tradewind_model::affinity::placement::OsdIndex;
use tradewind_model::affinity::replica_choice::ReplicaChooser;

use self::primaries::Primaries;
use super::Policy;
use super::report::AffinityStep;
use super::scenario::StoreState;
use super::store::{Measured, Store};
use super::workload::World;

/// A read that needs a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub now: Duration,
    pub client: usize,
    pub pg: usize,
    pub replicas: &'a [OsdIndex],
    /// Uniformly distributed.
    pub random: u64,
}

/// A read that ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndedRead {
    pub now: Duration,
    pub client: usize,
    pub pg: usize,
    pub store: OsdIndex,
}

/// A policy at work.
pub(super) trait Routing {
    /// Chooses a store for a read. Only oracles may look at the stores.
    fn route(&mut self, request: &Request<'_>, stores: &[Store]) -> OsdIndex;

    /// A read succeeded.
    fn completed(&mut self, _: EndedRead) {}

    /// A read failed.
    fn failed(&mut self, _: EndedRead) {}

    /// Time between two rounds; `None` for policies without rounds.
    fn round_interval(&self) -> Option<Duration> {
        None
    }

    /// A round, with what was measured of each store since the last one.
    fn round(&mut self, _now: Duration, _measured: &[Measured]) {}

    /// The stores change to these states. Only oracles may look.
    fn phase_changed(&mut self, _now: Duration, _stores: &[StoreState]) {}

    /// The steps so far.
    fn steps(&self) -> &[AffinityStep] {
        &[]
    }
}

/// The routing of a policy.
pub(super) fn routing<'a>(policy: Policy, world: &'a World) -> Box<dyn Routing + 'a> {
    match policy {
        Policy::Default => Box::new(Primaries::constant(world)),
        Policy::Dlr => Box::new(Primaries::dlr(world)),
        Policy::Predict => Box::new(Primaries::predict(world)),
        Policy::OracleAffinity => Box::new(Primaries::oracle(world)),
        Policy::PerRequest => Box::new(PerRequest::new(world)),
        Policy::OraclePerRequest => Box::new(OraclePerRequest),
    }
}

/// Each client chooses by its own statistics.
struct PerRequest {
    clients: Vec<ReplicaChooser>,
}

impl PerRequest {
    fn new(world: &World) -> Self {
        Self { clients: vec![ReplicaChooser::new(world.store_count); world.clients] }
    }
}

impl Routing for PerRequest {
    fn route(&mut self, request: &Request<'_>, _: &[Store]) -> OsdIndex {
        let chosen = self.clients[request.client].choose(request.now, request.replicas, request.random);
        chosen.unwrap_or(request.replicas[0])
    }

    fn completed(&mut self, ended: EndedRead) {
        self.clients[ended.client].completed(ended.now, ended.store);
    }

    fn failed(&mut self, ended: EndedRead) {
        self.clients[ended.client].failed(ended.store);
    }
}

/// The shortest expected wait by the true queues and service rates.
struct OraclePerRequest;

impl Routing for OraclePerRequest {
    fn route(&mut self, request: &Request<'_>, stores: &[Store]) -> OsdIndex {
        let start = (request.random % request.replicas.len() as u64) as usize;
        let (before, after) = request.replicas.split_at(start);
        let expected = |store: &OsdIndex| stores[*store].expected_seconds();
        let best = after.iter().chain(before).min_by(|a, b| expected(a).total_cmp(&expected(b)));
        best.copied().unwrap_or(request.replicas[0])
    }
}
