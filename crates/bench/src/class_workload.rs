//! The workload of Chen 2014, table I: clients PUT objects of five types with the label of their type, GET random ones
//! and DELETE all. Each client has one request in flight. Every byte read is compared with what was written.
//!
//! A request that exceeds its time limit fails and is aborted. Failures are counted by type and never as throughput. A
//! failed PUT is repeated without a limit after its phase and not measured, so that all configurations of a store are
//! read with the same requests.

mod phase;
mod plan;
mod report;
mod streams;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::workload::Labels;

use self::phase::{PhaseRunner, PhaseWork};
use self::plan::Plan;
pub use self::report::{ClassWorkloadReport, PhaseReport, RequestStats, TypeReport};
pub use self::streams::{STREAM_TYPES, STREAMS_SCHEMA, StreamsComparison, StreamsReport};
use crate::drive::request::MAX_PREPARE_ATTEMPTS;
use crate::drive::{BenchEnv, Progress, StopSignal};
use crate::operation::Operation;
use crate::workspace::Workspace;

/// Schema of [`ClassWorkloadReport`].
pub const SCHEMA: &str = "tradewind-bench-class/1";

/// The workload.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassWorkload {
    /// Size of the workload: 1 is the paper's 26,000 objects and 100,000 GETs.
    pub scale: f64,
    /// Total bytes of all objects, about: sizes are multiplied by the same factor. `None` for the sizes of table I.
    pub total_bytes: Option<u64>,
    /// Labels that clients send.
    pub labels: Labels,
    /// Clients, each with one request in flight.
    pub concurrency: usize,
    /// Time limit of requests; `None` for none. For a GET it ends with the first byte, for a DELETE with the response.
    /// For a PUT it is the maximum time between the acceptance of two buffers of 256 KiB; the response to a PUT of up
    /// to 256 KiB has the same limit, a larger one has no limit for its response.
    pub timeout: Option<Duration>,
    /// Random seed of objects and requests.
    pub seed: u64,
}

impl ClassWorkload {
    /// The size of the largest object in bytes.
    #[must_use]
    pub fn max_object_bytes(&self) -> u64 {
        Plan::new(self, "").objects.iter().map(|object| object.bytes).max().unwrap_or(0)
    }

    /// The size of the largest object of the streams in bytes.
    #[must_use]
    pub fn max_stream_object_bytes(&self) -> u64 {
        Plan::for_streams(self, "").objects.iter().map(|object| object.bytes).max().unwrap_or(0)
    }

    /// Runs the phases on objects below `prefix` and reports each to `on_phase`. A stop ends the run early; the report
    /// has the phases so far. Objects that remain are removed by [`remove_objects`].
    ///
    /// # Errors
    ///
    /// If objects cannot be created in spite of repetition.
    pub async fn run(
        &self,
        env: &BenchEnv,
        prefix: &str,
        stop: &StopSignal,
        progress: &Arc<Progress>,
        mut on_phase: impl FnMut(&PhaseReport),
    ) -> Result<ClassWorkloadReport> {
        let plan = Arc::new(Plan::new(self, prefix));
        let mut report = ClassWorkloadReport::new(self, &plan);
        let runner = PhaseRunner {
            env: env.clone(),
            plan: plan.clone(),
            concurrency: self.concurrency,
            stop: stop.clone(),
            progress: progress.clone(),
        };
        for operation in [Operation::Put, Operation::Get, Operation::Delete] {
            let requests = match operation {
                Operation::Put => &plan.puts,
                Operation::Get => &plan.gets,
                _ => &plan.deletes,
            };
            let work =
                PhaseWork { operation, requests: requests.clone(), timeout: self.timeout, until: None };
            let mut outcome = runner.run(work).await?;
            if operation == Operation::Put && !stop.is_triggered() {
                outcome.report.repeated = outcome.failed.len() as u64;
                repeat_puts(&runner, outcome.failed).await?;
            }
            on_phase(&outcome.report);
            report.phases.push(outcome.report);
            if stop.is_triggered() {
                report.is_partial = true;
                break;
            }
        }
        Ok(report)
    }
}

/// Writes objects again until all exist.
async fn repeat_puts(runner: &PhaseRunner, mut objects: Vec<usize>) -> Result<()> {
    let mut attempt = 1;
    while !objects.is_empty() {
        let work =
            PhaseWork { operation: Operation::Put, requests: objects.into(), timeout: None, until: None };
        let outcome = runner.run(work).await?;
        if runner.stop.is_triggered() {
            break;
        }
        objects = outcome.failed;
        if attempt == MAX_PREPARE_ATTEMPTS && !objects.is_empty() {
            let reason = outcome.report.failure_samples.first().cloned().unwrap_or_default();
            let message = format!("{} objects cannot be created: {reason}", objects.len());
            return Err(Error::new(Reason::Io, message));
        }
        attempt += 1;
    }
    Ok(())
}

/// Removes everything below `prefix` and returns the number of objects. The store may still complete aborted uploads,
/// so the listing must be empty twice.
///
/// # Errors
///
/// If objects cannot be listed or removed.
pub async fn remove_objects(env: &BenchEnv, prefix: &str) -> Result<u64> {
    Workspace::clean_prefix(env, prefix).await
}
