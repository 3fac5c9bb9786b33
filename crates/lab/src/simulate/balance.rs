//! Balancing of reads: policies compared over the same stores, the same reads and the same disturbances.
//!
//! The world is a closed network. Each store is one server with a first-in-first-out queue and a service rate that the
//! [`Scenario`] changes. Clients keep a constant number of reads in flight. A read is for a placement group (PG),
//! which has replicas on some stores; the [`Policy`] decides which of them serves it. The n-th read of a run is for
//! the same PG and the same amount of work under every policy.
//!
//! Not simulated: writes, the network, the time in which PGs elect a new primary, and several reads served at once by
//! one store. Ceph's `reweight-by-utilization` is not among the policies: it goes by fullness, which is the same
//! whatever the stores' speed, and acts by moving data.

mod report;
mod routing;
mod run;
mod scenario;
mod store;
#[cfg(test)]
mod tests;
mod workload;

use std::fmt;
use std::time::Duration;

use tradewind_model::affinity::controller;

pub use self::report::{AffinityStep, PolicyReport, Report, StepAction};
use self::run::Run;
pub use self::scenario::{DisturbanceDepth, Scenario};
use self::workload::World;

/// Upper limits of the options: above them, a run would take hours or more memory than a machine has.
const MAX_STORES: usize = 100_000;
const MAX_PGS: usize = 4_000_000;
const MAX_REPLICAS: usize = 16;
const MAX_READS_IN_FLIGHT: usize = 1_000_000;
/// Product of clients and stores: each client has statistics of each store, of some 64 bytes.
const MAX_CLIENT_STORES: usize = 10_000_000;
/// Product of stores and simulated seconds: a store serves up to 20 reads per second, and a read takes 4 bytes.
const MAX_STORE_SECONDS: f64 = 3e7;
const MAX_SIMULATED: Duration = Duration::from_secs(86_400);
const MAX_ZIPF_EXPONENT: f64 = 4.0;

/// The choice of the store that serves a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// Reads go to the first replica: all primary affinities are 1.
    Default,
    /// Primary affinities by Noel and Lama (2018), Algorithm 1, every 20 s. Its signal is the busy share of a store's
    /// server in percent, a stand-in for %iowait.
    Dlr,
    /// Primary affinities by `tradewind balance ceph`: in rounds of 2 s, from measured reads and latencies.
    Predict,
    /// The best primary affinities for the true service rates, set at the moment at which they change.
    OracleAffinity,
    /// Each client chooses a replica for each read, from what it has seen itself.
    PerRequest,
    /// The replica with the shortest expected wait by the true service rates and queues, for each read.
    OraclePerRequest,
}

impl Policy {
    /// All policies. Each comes before the oracle that it is compared with.
    pub const ALL: [Self; 6] = [
        Self::Default,
        Self::Dlr,
        Self::Predict,
        Self::OracleAffinity,
        Self::PerRequest,
        Self::OraclePerRequest,
    ];

    /// Its name in reports and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Dlr => "dlr",
            Self::Predict => "predict",
            Self::OracleAffinity => "oracle-affinity",
            Self::PerRequest => "per-request",
            Self::OraclePerRequest => "oracle-per-request",
        }
    }

    /// The policy that decides by the same means, but knows the truth.
    #[must_use]
    pub fn oracle(self) -> Self {
        match self {
            Self::Default | Self::Dlr | Self::Predict | Self::OracleAffinity => Self::OracleAffinity,
            Self::PerRequest | Self::OraclePerRequest => Self::OraclePerRequest,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The changes of the stores' service rates.
    pub scenario: Scenario,
    /// Number of stores (OSDs).
    pub stores: usize,
    /// Number of placement groups.
    pub pgs: usize,
    /// Replicas of each PG, on different stores.
    pub replicas: usize,
    /// Reads in flight, of all clients.
    pub in_flight: usize,
    /// Clients, which share the reads in flight evenly. At most one per read in flight.
    pub clients: usize,
    /// Simulated time.
    pub duration: Duration,
    /// Exponent of the popularity of PGs: the k-th most popular one is read in proportion to `1 / k^exponent`. With 0,
    /// all are read equally often.
    pub zipf_exponent: f64,
    /// Standard deviation of a service time, as a share of its mean: 0 is constant, 1 exponentially distributed.
    pub service_variation: f64,
    /// Parameters of [`Policy::Predict`].
    pub predict: controller::Options,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The policies to compare.
    pub policies: Vec<Policy>,
}

impl Default for Options {
    /// The cluster of the paper: eight stores, two replicas, 16 reads in flight.
    fn default() -> Self {
        Self {
            scenario: Scenario::Heterogeneity,
            stores: 8,
            pgs: 128,
            replicas: 2,
            in_flight: 16,
            clients: 1,
            duration: Duration::from_secs(360),
            zipf_exponent: 0.0,
            service_variation: 0.5,
            predict: controller::Options::default(),
            seed: 1,
            policies: Policy::ALL.to_vec(),
        }
    }
}

/// Options that make no simulation. Its text says which one and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidOptions(String);

impl fmt::Display for InvalidOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidOptions {}

impl Options {
    fn validate(&self) -> Result<(), InvalidOptions> {
        let check = |is_valid: bool, why: fmt::Arguments<'_>| {
            if is_valid { Ok(()) } else { Err(InvalidOptions(why.to_string())) }
        };
        let is_count = |count: usize, max: usize| (1..=max).contains(&count);
        check(
            (2..=MAX_STORES).contains(&self.stores),
            format_args!("the number of stores must be from 2 to {MAX_STORES}"),
        )?;
        check(is_count(self.pgs, MAX_PGS), format_args!("the number of PGs must be from 1 to {MAX_PGS}"))?;
        let max_replicas = MAX_REPLICAS.min(self.stores);
        check(
            is_count(self.replicas, max_replicas),
            format_args!(
                "the number of replicas must be from 1 to {max_replicas}, and at most that of the stores"
            ),
        )?;
        check(
            is_count(self.in_flight, MAX_READS_IN_FLIGHT),
            format_args!("the reads in flight must be from 1 to {MAX_READS_IN_FLIGHT}"),
        )?;
        check(
            is_count(self.clients, self.in_flight),
            format_args!("the number of clients must be from 1 to that of the reads in flight"),
        )?;
        check(
            (Duration::from_secs(1)..=MAX_SIMULATED).contains(&self.duration),
            format_args!("the simulated time must be from 1 s to {} s", MAX_SIMULATED.as_secs()),
        )?;
        check(
            self.clients.saturating_mul(self.stores) <= MAX_CLIENT_STORES,
            format_args!(
                "the number of clients times that of the stores must be at most {MAX_CLIENT_STORES}"
            ),
        )?;
        check(
            self.stores as f64 * self.duration.as_secs_f64() <= MAX_STORE_SECONDS,
            format_args!(
                "the number of stores times the simulated seconds must be at most {MAX_STORE_SECONDS}"
            ),
        )?;
        check(
            (0.0..=MAX_ZIPF_EXPONENT).contains(&self.zipf_exponent),
            format_args!("the Zipf exponent must be from 0 to {MAX_ZIPF_EXPONENT}"),
        )?;
        check(
            (0.0..=1.0).contains(&self.service_variation),
            format_args!("the variation of service times must be from 0 to 1"),
        )?;
        check(!self.policies.is_empty(), format_args!("name at least one policy"))
    }
}

/// Runs each policy over the same world. Takes time in proportion to the number of reads, and memory of 4 bytes per
/// read of one policy.
///
/// # Errors
///
/// If an option is out of its range.
pub fn simulate(options: &Options) -> Result<Report, InvalidOptions> {
    options.validate()?;
    let world = World::new(options);
    let mut policies = options.policies.clone();
    policies.sort_unstable();
    policies.dedup();
    let runs = policies.into_iter().map(|policy| Run::new(&world, policy).finish());
    Ok(Report { policies: runs.collect() })
}
