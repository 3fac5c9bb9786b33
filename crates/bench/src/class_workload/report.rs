//! The result: throughput, latencies and failures by phase and type.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tradewind_model::class_policy::DataType;

use super::plan::Plan;
use super::{ClassWorkload, SCHEMA};
use crate::drive::request::WRONG_RESPONSE;
use crate::figures::LatencySummary;
use crate::operation::Operation;
use crate::record::{new_histogram, record_value};

/// Failure messages that a phase reports.
const MAX_FAILURE_SAMPLES: usize = 3;

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct ClassWorkloadReport {
    /// Name and version of this format.
    pub schema: &'static str,
    /// Scale of the workload.
    pub scale: f64,
    /// Number of objects.
    pub objects: usize,
    /// Total bytes of the objects.
    pub total_bytes: u64,
    /// Labels that clients sent.
    pub labels: &'static str,
    /// Clients.
    pub concurrency: usize,
    /// Time limit of requests in seconds; `None` for none.
    pub timeout_seconds: Option<f64>,
    /// Random seed.
    pub seed: u64,
    /// The run was stopped.
    pub is_partial: bool,
    /// PUT, GET and DELETE.
    pub phases: Vec<PhaseReport>,
}

impl ClassWorkloadReport {
    pub(super) fn new(options: &ClassWorkload, plan: &Plan) -> Self {
        Self {
            schema: SCHEMA,
            scale: options.scale,
            objects: plan.objects.len(),
            total_bytes: plan.total_bytes(),
            labels: options.labels.name(),
            concurrency: options.concurrency,
            timeout_seconds: options.timeout.map(|timeout| timeout.as_secs_f64()),
            seed: options.seed,
            is_partial: false,
            phases: Vec::new(),
        }
    }

    /// Failed requests of all phases.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.phases.iter().map(|phase| phase.all.failure_count()).sum()
    }
}

/// The result of a phase.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseReport {
    /// `put`, `get` or `delete`.
    pub operation: Operation,
    /// Time from the first request to the last response.
    pub seconds: f64,
    /// All types together.
    pub all: RequestStats,
    /// Each type, from the highest priority to the lowest.
    pub types: Vec<TypeReport>,
    /// Failed PUTs that were repeated after the phase; they are in no other figure than the failures.
    pub repeated: u64,
    /// The first messages of failures.
    pub failure_samples: Vec<String>,
}

/// Requests of one type.
#[derive(Debug, Clone, Serialize)]
pub struct TypeReport {
    /// Name of the type.
    pub name: &'static str,
    /// Its requests.
    #[serde(flatten)]
    pub stats: RequestStats,
}

/// A group of requests.
#[derive(Debug, Clone, Serialize)]
pub struct RequestStats {
    /// Successful requests.
    pub requests: u64,
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Bytes of successful requests per second of the phase.
    pub bytes_per_second: f64,
    /// Successful requests per second of the phase.
    pub requests_per_second: f64,
    /// Failed requests by kind.
    pub failures: BTreeMap<String, u64>,
    /// Time to the first byte of successful GETs; `None` for other operations.
    pub first_byte_us: Option<LatencySummary>,
    /// Time to the last byte, or to the response, of successful requests.
    pub latency_us: LatencySummary,
}

impl RequestStats {
    /// Failed requests of all kinds.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Failed requests as a share of all, 0 to 1.
    #[must_use]
    pub fn failure_share(&self) -> f64 {
        let failed = self.failure_count() as f64;
        failed / (failed + self.requests as f64).max(1.0)
    }

    /// Responses whose bytes differ from what was written.
    #[must_use]
    pub fn wrong_responses(&self) -> u64 {
        self.failures.get(WRONG_RESPONSE).copied().unwrap_or(0)
    }
}

/// A request that ended.
#[derive(Debug)]
pub(super) struct EndedRequest {
    pub data_type: DataType,
    pub bytes: u64,
    pub latency: Duration,
    /// Time to the first byte, of a successful GET.
    pub first_byte: Option<Duration>,
    /// Kind and message.
    pub failure: Option<Failure>,
}

/// A failure to report.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub kind: String,
    pub message: String,
}

/// Counts the requests of a phase.
#[derive(Debug, Default)]
pub(super) struct PhaseRecord {
    types: [TypeRecord; DataType::ALL.len()],
    failure_samples: Vec<String>,
}

#[derive(Debug)]
struct TypeRecord {
    requests: u64,
    bytes: u64,
    failures: BTreeMap<String, u64>,
    first_byte: Histogram<u64>,
    latency: Histogram<u64>,
}

impl Default for TypeRecord {
    fn default() -> Self {
        Self {
            requests: 0,
            bytes: 0,
            failures: BTreeMap::new(),
            first_byte: new_histogram(),
            latency: new_histogram(),
        }
    }
}

impl TypeRecord {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        for (kind, count) in &other.failures {
            *self.failures.entry(kind.clone()).or_default() += count;
        }
        for (all, part) in [(&mut self.first_byte, &other.first_byte), (&mut self.latency, &other.latency)] {
            part.iter_recorded().for_each(|value| {
                record_value(all, value.value_iterated_to(), value.count_at_value());
            });
        }
    }

    fn stats(&self, seconds: f64) -> RequestStats {
        let per_second = |amount: u64| if seconds > 0.0 { amount as f64 / seconds } else { 0.0 };
        RequestStats {
            requests: self.requests,
            bytes: self.bytes,
            bytes_per_second: per_second(self.bytes),
            requests_per_second: per_second(self.requests),
            failures: self.failures.clone(),
            first_byte_us: (!self.first_byte.is_empty())
                .then(|| LatencySummary::from_histogram(&self.first_byte)),
            latency_us: LatencySummary::from_histogram(&self.latency),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl PhaseRecord {
    pub fn record(&mut self, ended: EndedRequest) {
        let record = &mut self.types[ended.data_type as usize];
        if let Some(Failure { kind, message }) = ended.failure {
            *record.failures.entry(kind).or_default() += 1;
            if self.failure_samples.len() < MAX_FAILURE_SAMPLES {
                self.failure_samples.push(message);
            }
            return;
        }
        record.requests += 1;
        record.bytes += ended.bytes;
        record_value(&mut record.latency, micros(ended.latency), 1);
        if let Some(first_byte) = ended.first_byte {
            record_value(&mut record.first_byte, micros(first_byte), 1);
        }
    }

    /// Adds the requests of another client.
    pub fn add(&mut self, other: Self) {
        self.types.iter_mut().zip(&other.types).for_each(|(all, part)| all.add(part));
        self.failure_samples.extend(other.failure_samples);
        self.failure_samples.truncate(MAX_FAILURE_SAMPLES);
    }

    pub fn report(self, operation: Operation, duration: Duration) -> PhaseReport {
        let seconds = duration.as_secs_f64();
        let mut all = TypeRecord::default();
        self.types.iter().for_each(|record| all.add(record));
        let types = DataType::ALL.into_iter().zip(&self.types);
        PhaseReport {
            operation,
            seconds,
            all: all.stats(seconds),
            types: types
                .map(|(data_type, record)| TypeReport {
                    name: data_type.name(),
                    stats: record.stats(seconds),
                })
                .collect(),
            repeated: 0,
            failure_samples: self.failure_samples,
        }
    }
}
