//! The metrics of `tradewind balance ceph`, declared with unit and labels, as a collector of `prometheus_client`.
//!
//! Labels are the number of an OSD, the name of a host and the kind of a step. They show the last round, so that what an OSD
//! reported before it went down does not stay.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tradewind_balance::balancer::{Mode, OsdReport, RoundReport};
use tradewind_balance::policy::Outcome;
use tradewind_gateway::admin::{self, Admin};
use tradewind_gateway::metrics::{Family, encode_count};
use tradewind_model::affinity::controller::Decision;

/// Connections of the listener.
const MAX_CONNECTIONS: usize = 16;

const READS: Family = Family::gauge("tradewind_balance_osd_reads_per_second", "Reads per second of the OSD.");
const LATENCY: Family =
    Family::gauge("tradewind_balance_osd_latency_seconds", "Mean latency of the OSD's reads, in seconds.");
const SERVICE_RATE: Family = Family::gauge(
    "tradewind_balance_osd_service_bytes_per_second",
    "Estimated bytes of reads, with 64 KiB added for each read, that the OSD can serve per second beside its other work.",
);
const AFFINITY: Family =
    Family::gauge("tradewind_balance_osd_affinity", "Primary affinity of the OSD, from 0 to 1.");
const SHARE: Family = Family::gauge(
    "tradewind_balance_osd_share",
    "Share of the reads that the OSD serves by the current primaries, from 0 to 1.",
);
const SILENT: Family = Family::gauge(
    "tradewind_balance_silent_osds",
    "OSDs without counters; nothing is decided until all report.",
);
const SLOW_HOST: Family =
    Family::gauge("tradewind_balance_slow_host", "1 for a host whose OSDs are slow together.");
const OBSTACLES: Family = Family::gauge(
    "tradewind_balance_obstacles",
    "Reasons for which nothing is done, such as an unhealthy cluster.",
);
const ROUNDS: Family = Family::counter("tradewind_balance_rounds", "Rounds, with those that failed.");
const FAILED_ROUNDS: Family =
    Family::counter("tradewind_balance_failed_rounds", "Rounds that failed and were tried again.");
const ROUND_SECONDS: Family =
    Family::gauge("tradewind_balance_round_seconds", "Duration of the last round, in seconds.");
const ROUND_TIME: Family = Family::counter(
    "tradewind_balance_round_time_seconds",
    "Sum of the durations of all rounds, in seconds.",
);
const STEPS: Family = Family::counter(
    "tradewind_balance_steps",
    "Changes of affinities by result: set, kept (the gain was measured) or undone. Without dry runs.",
);
const PREDICTED_GAIN: Family = Family::gauge(
    "tradewind_balance_predicted_gain",
    "Predicted gain in throughput of the last step, as a share; NaN before the first one.",
);
const MEASURED_GAIN: Family = Family::gauge(
    "tradewind_balance_measured_gain",
    "Measured gain of the last step, as a share; NaN until it is measured.",
);

/// The metrics of a balancer. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Metrics(Arc<Mutex<Snapshot>>);

#[derive(Debug, Default)]
struct Snapshot {
    osds: Vec<OsdReport>,
    silent: usize,
    slow_hosts: Vec<String>,
    obstacles: usize,
    rounds: u64,
    failed_rounds: u64,
    /// Why the last round failed.
    failure: Option<String>,
    round_time: Duration,
    total_time: Duration,
    set: u64,
    kept: u64,
    undone: u64,
    predicted_gain: Option<f64>,
    measured_gain: Option<f64>,
}

impl Metrics {
    /// Serves them until the runtime ends. Returns the address.
    pub async fn serve(self, address: SocketAddr) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}; choose another address with --metrics"))?;
        let bound = listener.local_addr()?;
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let admin = Admin { ready: Arc::new(move || self.check()), metrics: Arc::new(registry), api: None };
        tokio::spawn(admin::serve(listener, admin, MAX_CONNECTIONS, CancellationToken::new()));
        Ok(bound)
    }

    /// Records a round.
    pub fn record_round(&self, report: &RoundReport, mode: Mode, duration: Duration) {
        let mut snapshot = self.lock();
        snapshot.count_round(duration);
        snapshot.failure = None;
        snapshot.osds.clone_from(&report.osds);
        snapshot.silent = report.silent.len();
        snapshot.slow_hosts = report.slow_hosts().into_iter().map(|host| host.hostname).collect();
        snapshot.obstacles = report.obstacles.len();
        if let Some(outcome) = report.outcome.as_ref().filter(|_| mode == Mode::Act) {
            snapshot.record_step(outcome);
        }
    }

    /// Records a round that failed.
    pub fn record_failure(&self, error: &str, duration: Duration) {
        let mut snapshot = self.lock();
        snapshot.count_round(duration);
        snapshot.failed_rounds += 1;
        snapshot.failure = Some(error.to_owned());
    }

    /// The readiness of the balancer.
    fn check(&self) -> Result<(), String> {
        let snapshot = self.lock();
        match &snapshot.failure {
            Some(failure) => Err(format!("the last round failed: {failure}")),
            None if snapshot.rounds == 0 => Err("the first round has not ended".to_owned()),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshot {
    fn count_round(&mut self, duration: Duration) {
        self.rounds += 1;
        self.round_time = duration;
        self.total_time += duration;
    }

    fn record_step(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Predict(Decision::Set { predicted_gain, .. }) => {
                self.set += 1;
                self.predicted_gain = Some(*predicted_gain);
                self.measured_gain = None;
            }
            Outcome::Predict(Decision::Keep { measured_gain } | Decision::KeepPart { measured_gain, .. }) => {
                self.kept += 1;
                self.measured_gain = Some(*measured_gain);
            }
            Outcome::Predict(Decision::Undo { measured_gain, .. }) => {
                self.undone += 1;
                self.measured_gain = Some(*measured_gain);
            }
            other => self.set += u64::from(other.changed_affinities().is_some()),
        }
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.lock();
        snapshot.encode_osds(&mut encoder)?;
        SILENT.describe(&mut encoder)?.encode_gauge(&(snapshot.silent as u64))?;
        let mut samples = SLOW_HOST.describe(&mut encoder)?;
        for host in &snapshot.slow_hosts {
            samples.encode_family(&[("host", host.as_str())])?.encode_gauge(&1_u64)?;
        }
        OBSTACLES.describe(&mut encoder)?.encode_gauge(&(snapshot.obstacles as u64))?;
        for (family, count) in [(ROUNDS, snapshot.rounds), (FAILED_ROUNDS, snapshot.failed_rounds)] {
            family.describe(&mut encoder)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        ROUND_SECONDS.describe(&mut encoder)?.encode_gauge(&snapshot.round_time.as_secs_f64())?;
        let total = snapshot.total_time.as_secs_f64();
        ROUND_TIME.describe(&mut encoder)?.encode_counter::<NoLabelSet, _, u64>(&total, None)?;
        let mut samples = STEPS.describe(&mut encoder)?;
        for (result, count) in [("set", snapshot.set), ("kept", snapshot.kept), ("undone", snapshot.undone)] {
            encode_count(&mut samples, &[("result", result)], count)?;
        }
        for (family, gain) in
            [(PREDICTED_GAIN, snapshot.predicted_gain), (MEASURED_GAIN, snapshot.measured_gain)]
        {
            family.describe(&mut encoder)?.encode_gauge(&gain.unwrap_or(f64::NAN))?;
        }
        Ok(())
    }
}

impl Snapshot {
    /// Writes the metrics of OSDs. Unknown values of an OSD are omitted.
    fn encode_osds(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&OsdReport) -> Option<f64>;
        let families: [(Family, Value); 5] = [
            (READS, |osd| osd.reads.map(|reads| reads.reads_per_second)),
            (LATENCY, |osd| osd.reads.map(|reads| reads.latency_seconds)),
            (SERVICE_RATE, |osd| osd.service_rate),
            (AFFINITY, |osd| Some(osd.affinity.ratio())),
            (SHARE, |osd| Some(osd.share)),
        ];
        for (family, value) in families {
            let mut samples = family.describe(encoder)?;
            for osd in &self.osds {
                if let Some(value) = value(osd) {
                    let number = osd.osd.to_string();
                    samples.encode_family(&[("osd", number.as_str())])?.encode_gauge(&value)?;
                }
            }
        }
        Ok(())
    }
}
