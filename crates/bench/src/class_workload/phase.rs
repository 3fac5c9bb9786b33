//! One phase: clients send the requests of a list, each the next one after its response.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use tokio::task::JoinSet;
use tradewind_core::condition::Precondition;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::{Address, Classes, Context, Metadata};
use tradewind_pattern::ContentId;

use super::plan::{Plan, PlannedObject};
use super::report::{EndedRequest, Failure, PhaseRecord, PhaseReport};
use crate::drive::request::{FAILURE_PAUSE, RequestFailure, WRITE_BYTES, generate};
use crate::drive::{BenchEnv, Progress, STOPPED_DRAIN_TIMEOUT, StopSignal, request_context};
use crate::operation::Operation;

/// The kind of a request that exceeded its time limit.
const TIMEOUT: &str = "Timeout";

/// The requests of a phase.
pub(super) struct PhaseWork {
    pub operation: Operation,
    /// Indexes of objects, in the order of the requests.
    pub requests: Arc<[usize]>,
    pub timeout: Option<Duration>,
    /// Sends the requests again and again until this time of the clock; `None` sends each once.
    pub until: Option<Duration>,
}

/// The result of a phase.
pub(super) struct PhaseOutcome {
    pub report: PhaseReport,
    /// Objects whose request failed.
    pub failed: Vec<usize>,
}

/// Runs phases.
pub(super) struct PhaseRunner {
    pub env: BenchEnv,
    pub plan: Arc<Plan>,
    pub concurrency: usize,
    pub stop: StopSignal,
    pub progress: Arc<Progress>,
}

impl PhaseRunner {
    /// Sends all requests, or those before a stop.
    pub async fn run(&self, work: PhaseWork) -> Result<PhaseOutcome> {
        let (next, begin) = (Arc::new(AtomicUsize::new(0)), self.env.clock.now());
        let mut clients = JoinSet::new();
        let max_clients = if work.until.is_some() { usize::MAX } else { work.requests.len() };
        for _ in 0..self.concurrency.min(max_clients) {
            let client = Client {
                env: self.env.clone(),
                plan: self.plan.clone(),
                context: request_context(&self.env).await?,
                operation: work.operation,
                timeout: work.timeout,
                until: work.until,
                stop: self.stop.clone(),
                progress: self.progress.clone(),
            };
            clients.spawn(client.run(work.requests.clone(), next.clone()));
        }
        let (mut record, mut failed, mut end) = (PhaseRecord::default(), Vec::new(), begin);
        while let Some(client) = clients.join_next().await {
            let done = client.map_err(|e| Error::with_source(Reason::Defect, "a client failed", e))?;
            record.add(done.record);
            failed.extend(done.failed);
            end = end.max(done.last_end);
        }
        Ok(PhaseOutcome { report: record.report(work.operation, end - begin), failed })
    }
}

/// The requests of a client.
#[derive(Default)]
struct ClientOutcome {
    record: PhaseRecord,
    failed: Vec<usize>,
    /// End of its last request.
    last_end: Duration,
}

/// Times of a successful request.
struct ResponseTimes {
    first_byte: Option<Duration>,
    end: Duration,
}

struct Client {
    env: BenchEnv,
    plan: Arc<Plan>,
    context: Context,
    operation: Operation,
    timeout: Option<Duration>,
    until: Option<Duration>,
    stop: StopSignal,
    progress: Arc<Progress>,
}

impl Client {
    async fn run(self, requests: Arc<[usize]>, next: Arc<AtomicUsize>) -> ClientOutcome {
        let mut outcome = ClientOutcome::default();
        while !self.stop.is_triggered() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let number = match self.until {
                Some(until) if self.env.clock.now() >= until || requests.is_empty() => break,
                Some(_) => number % requests.len(),
                None => number,
            };
            let Some(&index) = requests.get(number) else { break };
            let object = &self.plan.objects[index];
            let begin = self.env.clock.now();
            let result = tokio::select! {
                result = self.send(object) => result,
                () = self.stop.triggered_for(STOPPED_DRAIN_TIMEOUT) => break,
            };
            let end = result.as_ref().map_or_else(|_| self.env.clock.now(), |times| times.end);
            let has_failed = result.is_err();
            let first_byte = result.as_ref().ok().and_then(|times| times.first_byte);
            outcome.last_end = end;
            outcome.record.record(EndedRequest {
                data_type: object.data_type,
                bytes: if self.operation == Operation::Delete { 0 } else { object.bytes },
                latency: end - begin,
                first_byte: first_byte.map(|time| time - begin),
                failure: result.err().map(|e| Failure { kind: e.kind, message: e.message }),
            });
            if has_failed {
                self.progress.record_failure();
                outcome.failed.push(index);
                // A store that rejects at once is not called as fast as possible.
                tokio::time::sleep(FAILURE_PAUSE).await;
            } else {
                self.progress.record_success(object.bytes);
            }
            if self.until.is_some() {
                // A store that responds at once must not keep other streams from their thread.
                tokio::task::yield_now().await;
            }
        }
        outcome
    }

    async fn send(&self, object: &PlannedObject) -> Result<ResponseTimes, RequestFailure> {
        let address = Address::parse(self.env.bucket.as_str(), &object.key)?;
        match self.operation {
            Operation::Put => self.put(&address, object).await,
            Operation::Get => self.get(&address, object).await,
            _ => self.delete(&address).await,
        }
    }

    /// Waits for a step of a request, within the time limit.
    async fn limited<T>(
        &self,
        what: &str,
        step: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, RequestFailure> {
        let Some(timeout) = self.timeout else { return Ok(step.await?) };
        match tokio::time::timeout(timeout, step).await {
            Ok(done) => Ok(done?),
            Err(_) => {
                let message = format!("{what}: nothing within {timeout:?}");
                Err(RequestFailure::without_error(TIMEOUT, message))
            }
        }
    }

    async fn put(&self, address: &Address, object: &PlannedObject) -> Result<ResponseTimes, RequestFailure> {
        let (key, content) = (&*object.key, ContentId::new(&object.key, object.bytes));
        let classes = Classes { object: object.class, ..Classes::default() };
        let metadata = Metadata { classes, ..Metadata::default() };
        let request = StageRequest { size: Some(object.bytes), metadata, ..StageRequest::default() };
        let upload = async {
            let mut staged = self.limited(key, self.env.store.stage(&self.context, address, request)).await?;
            let mut offset = 0;
            while offset < object.bytes {
                let length = WRITE_BYTES.min(object.bytes - offset);
                let buffer = generate(&self.env.content, content, offset, length);
                self.limited(key, staged.write(buffer)).await?;
                offset += length;
            }
            let expected = Expected { size: Some(object.bytes), ..Expected::default() };
            Ok::<_, RequestFailure>(staged.commit(expected).await?)
        };
        if object.bytes <= WRITE_BYTES
            && let Some(timeout) = self.timeout
        {
            let message = || format!("{key}: no response within {timeout:?}");
            let done = tokio::time::timeout(timeout, upload).await;
            done.map_err(|_| RequestFailure::without_error(TIMEOUT, message()))??;
        } else {
            upload.await?;
        }
        Ok(ResponseTimes { first_byte: None, end: self.env.clock.now() })
    }

    async fn get(&self, address: &Address, object: &PlannedObject) -> Result<ResponseTimes, RequestFailure> {
        let (key, content) = (&*object.key, ContentId::new(&object.key, object.bytes));
        let first = async {
            let found = self.env.store.get(&self.context, address, GetRequest::default()).await?;
            let (size, mut body) = (found.info.size, found.body);
            let piece = body.next().await.transpose()?;
            Ok((size, body, piece))
        };
        let (size, mut body, mut piece) = self.limited(key, first).await?;
        let first_byte = self.env.clock.now();
        if size != object.bytes {
            let message = format!("{key} is reported with {size} bytes instead of {}", object.bytes);
            return Err(RequestFailure::wrong_response(message));
        }
        let mut position = 0;
        while let Some(bytes) = piece {
            if let Some(at) = self.env.content.first_difference(content, position, &bytes) {
                return Err(RequestFailure::wrong_response(format!("{key} differs at byte {at}")));
            }
            position += bytes.len() as u64;
            piece = body.next().await.transpose()?;
        }
        if position != size {
            let message = format!("{key}: the response ended at byte {position} instead of {size}");
            return Err(RequestFailure::wrong_response(message));
        }
        Ok(ResponseTimes { first_byte: Some(first_byte), end: self.env.clock.now() })
    }

    async fn delete(&self, address: &Address) -> Result<ResponseTimes, RequestFailure> {
        let what = address.key.as_str();
        self.limited(what, self.env.store.delete(&self.context, address, Precondition::None)).await?;
        Ok(ResponseTimes { first_byte: None, end: self.env.clock.now() })
    }
}
