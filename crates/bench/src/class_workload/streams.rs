//! Traffic control (section V.D of the paper): four streams of clients, one for each type but disk images, upload and
//! read objects concurrently. The latency of the files' stream is compared with that of the same stream alone.
//!
//! Before the measurements, all objects are written without a time limit. A PUT replaces one of them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use serde::Serialize;
use tradewind_core::error::Result;
use tradewind_model::class_policy::DataType;

use super::phase::{PhaseRunner, PhaseWork};
use super::plan::Plan;
use super::report::{RequestStats, TypeReport};
use super::{ClassWorkload, repeat_puts};
use crate::drive::{BenchEnv, Progress, StopSignal};
use crate::operation::Operation;

/// Schema of [`StreamsReport`].
pub const STREAMS_SCHEMA: &str = "tradewind-bench-class-streams/1";
/// Types with a stream: all but disk images.
pub const STREAM_TYPES: [DataType; 4] =
    [DataType::Files, DataType::Pictures, DataType::Music, DataType::Video];

/// The result of [`ClassWorkload::run_streams`].
#[derive(Debug, Clone, Serialize)]
pub struct StreamsReport {
    /// Name and version of this format.
    pub schema: &'static str,
    /// Number of objects.
    pub objects: usize,
    /// Total bytes of the objects.
    pub total_bytes: u64,
    /// Labels that clients sent.
    pub labels: &'static str,
    /// Clients of each stream.
    pub clients_per_stream: usize,
    /// Duration of each measurement in seconds; requests in flight at its end are completed.
    pub measurement_seconds: f64,
    /// Random seed.
    pub seed: u64,
    /// The run was stopped.
    pub is_partial: bool,
    /// PUT and GET.
    pub operations: Vec<StreamsComparison>,
}

/// The streams of one operation.
#[derive(Debug, Clone, Serialize)]
pub struct StreamsComparison {
    /// `put` or `get`.
    pub operation: Operation,
    /// The stream of files without the others.
    pub files_alone: RequestStats,
    /// All streams together, from the highest priority to the lowest.
    pub together: Vec<TypeReport>,
    /// Bytes per second of all streams together.
    pub bytes_per_second: f64,
    /// p90 of the files' stream together with the others, divided by its p90 alone. `None` without requests in either.
    pub files_p90_ratio: Option<f64>,
    /// Failed requests of the unmeasured pass that fills caches.
    pub unmeasured_failures: u64,
    /// The first messages of failures.
    pub failure_samples: Vec<String>,
}

impl StreamsComparison {
    /// Failed requests, also those of the unmeasured pass.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        failures(&self.together) + self.files_alone.failure_count() + self.unmeasured_failures
    }
}

impl StreamsReport {
    /// Failed requests of all operations.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.operations.iter().map(StreamsComparison::failure_count).sum()
    }
}

/// The result of one measurement.
struct Measured {
    streams: Vec<TypeReport>,
    failure_samples: Vec<String>,
}

/// The parts of a run that all measurements share.
struct StreamsRun {
    env: BenchEnv,
    plan: Arc<Plan>,
    clients_per_stream: usize,
    measurement_time: Duration,
    request_timeout: Option<Duration>,
    stop: StopSignal,
    progress: Arc<Progress>,
}

impl ClassWorkload {
    /// Runs the streams on objects below `prefix`, each measurement for `measurement_time`, and reports each operation
    /// to `on_operation`. Each stream has a quarter of the clients. A stop ends the run early. Objects are not removed;
    /// see [`remove_objects`](super::remove_objects).
    ///
    /// # Errors
    ///
    /// If the objects cannot be created in spite of repetition.
    pub async fn run_streams(
        &self,
        env: &BenchEnv,
        prefix: &str,
        measurement_time: Duration,
        stop: &StopSignal,
        progress: &Arc<Progress>,
        mut on_operation: impl FnMut(&StreamsComparison),
    ) -> Result<StreamsReport> {
        let plan = Arc::new(Plan::for_streams(self, prefix));
        let run = StreamsRun {
            env: env.clone(),
            plan: plan.clone(),
            clients_per_stream: (self.concurrency / STREAM_TYPES.len()).max(1),
            measurement_time,
            request_timeout: self.timeout,
            stop: stop.clone(),
            progress: progress.clone(),
        };
        let mut report = StreamsReport {
            schema: STREAMS_SCHEMA,
            objects: plan.objects.len(),
            total_bytes: plan.total_bytes(),
            labels: self.labels.name(),
            clients_per_stream: run.clients_per_stream,
            measurement_seconds: measurement_time.as_secs_f64(),
            seed: self.seed,
            is_partial: false,
            operations: Vec::new(),
        };
        repeat_puts(&run.runner(self.concurrency), plan.puts.to_vec()).await?;
        for operation in [Operation::Put, Operation::Get] {
            // Unmeasured: caches that it fills would make the second measurement faster.
            let unmeasured = run.measure(operation, &STREAM_TYPES[..1]).await?;
            let alone = run.measure(operation, &STREAM_TYPES[..1]).await?;
            let together = run.measure(operation, &STREAM_TYPES).await?;
            if stop.is_triggered() {
                report.is_partial = true;
                break;
            }
            let comparison = compare(operation, unmeasured, alone, together);
            on_operation(&comparison);
            report.operations.push(comparison);
        }
        Ok(report)
    }
}

impl StreamsRun {
    fn runner(&self, concurrency: usize) -> PhaseRunner {
        PhaseRunner {
            env: self.env.clone(),
            plan: self.plan.clone(),
            concurrency,
            stop: self.stop.clone(),
            progress: self.progress.clone(),
        }
    }

    async fn measure(&self, operation: Operation, types: &[DataType]) -> Result<Measured> {
        let until = self.env.clock.now() + self.measurement_time;
        let streams = types.iter().map(|data_type| {
            let is_of_type = |index: &&usize| self.plan.objects[**index].data_type == *data_type;
            let order = if operation == Operation::Put { &self.plan.puts } else { &self.plan.gets };
            let requests = order.iter().filter(is_of_type).copied().collect();
            let work = PhaseWork { operation, requests, timeout: self.request_timeout, until: Some(until) };
            let runner = self.runner(self.clients_per_stream);
            async move { runner.run(work).await }
        });
        let outcomes = try_join_all(streams).await?;
        let mut measured = Measured { streams: Vec::new(), failure_samples: Vec::new() };
        for (outcome, data_type) in outcomes.into_iter().zip(types) {
            let of_type = outcome.report.types.into_iter().find(|stream| stream.name == data_type.name());
            measured.streams.extend(of_type);
            measured.failure_samples.extend(outcome.report.failure_samples);
        }
        Ok(measured)
    }
}

fn failures(streams: &[TypeReport]) -> u64 {
    streams.iter().map(|stream| stream.stats.failure_count()).sum()
}

fn compare(
    operation: Operation,
    unmeasured: Measured,
    alone: Measured,
    together: Measured,
) -> StreamsComparison {
    let unmeasured_failures = failures(&unmeasured.streams);
    let mut failure_samples = unmeasured.failure_samples;
    let Measured { streams: mut alone, failure_samples: samples_alone } = alone;
    let files_alone = alone.remove(0).stats;
    failure_samples.extend(samples_alone);
    failure_samples.extend(together.failure_samples);
    let p90 = |stats: &RequestStats| stats.latency_us.figure_if_any(|latency| latency.p90 as f64);
    let ratio = match (p90(&together.streams[0].stats), p90(&files_alone)) {
        (Some(together), Some(alone)) if alone > 0.0 => Some(together / alone),
        _ => None,
    };
    StreamsComparison {
        operation,
        bytes_per_second: together.streams.iter().map(|stream| stream.stats.bytes_per_second).sum(),
        files_alone,
        together: together.streams,
        files_p90_ratio: ratio,
        unmeasured_failures,
        failure_samples,
    }
}
