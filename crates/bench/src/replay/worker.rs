//! One worker of a replay: sends the requests of the trace and checks each response against the possible versions.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tradewind_core::condition::Precondition;
use tradewind_core::error::{Error, Reason};
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::range::ByteRange;
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::{Address, Context};

use super::history::KeyVersion;
use super::key_order::KeyOrder;
use super::objects::ReplayObjects;
use crate::drive::BenchEnv;
use crate::drive::load_state::LoadState;
use crate::drive::request::{
    Completion, FAILURE_PAUSE, RequestFailure, execute_recorded, put_object_metered,
};
use crate::operation::Operation;
use crate::record::LoadRecord;
use crate::samples::{RequestSubject, Sampler, SubjectKey};

/// Maximum keys per listing page.
const PAGE_KEYS: usize = 1000;

/// Delay beyond which a request that found no idle worker at its time counts as having waited for others.
const MAX_START_DELAY: Duration = Duration::from_millis(5);

/// A request of the trace, with its object resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TraceRequest {
    Put { object: usize, size: u64 },
    Get { object: usize, offset: u64, length: Option<u64> },
    Head { object: usize },
    List { prefix: Box<str> },
    Delete { object: usize },
}

impl TraceRequest {
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Put { .. } => Operation::Put,
            Self::Get { .. } => Operation::Get,
            Self::Head { .. } => Operation::Head,
            Self::List { .. } => Operation::List,
            Self::Delete { .. } => Operation::Delete,
        }
    }

    /// Operation, key and size, as written to the samples.
    pub fn subject(&self, objects: &ReplayObjects) -> RequestSubject {
        let key = match self {
            Self::List { prefix } => SubjectKey::Prefix(objects.store_name(prefix).into()),
            Self::Put { object, .. }
            | Self::Get { object, .. }
            | Self::Head { object }
            | Self::Delete { object } => SubjectKey::Object(*object as u64),
        };
        let size = match self {
            Self::Put { size, .. } => Some(*size),
            Self::Get { length, .. } => *length,
            Self::Head { .. } | Self::List { .. } | Self::Delete { .. } => Some(0),
        };
        RequestSubject { operation: self.operation(), key, size }
    }

    /// The object of the request, and whether the request may change it; `None` for listings.
    pub const fn object(&self) -> Option<(usize, bool)> {
        match self {
            Self::Put { object, .. } | Self::Delete { object } => Some((*object, true)),
            Self::Get { object, .. } | Self::Head { object } => Some((*object, false)),
            Self::List { .. } => None,
        }
    }
}

/// Order and read-ahead of a replay that runs as fast as possible.
#[derive(Debug)]
pub(super) struct RequestOrdering {
    pub order: Mutex<KeyOrder<TraceRequest>>,
    /// Permits for requests read from the trace ahead of unfinished ones.
    pub read_ahead: Semaphore,
}

/// Counters of a worker, in addition to its record.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReplayCounts {
    /// Requests that started late because all workers were busy.
    pub waited: u64,
    /// Requests that correctly found nothing.
    pub not_found: u64,
}

/// A worker of a replay.
pub(super) struct ReplayWorker {
    pub env: BenchEnv,
    pub objects: Arc<ReplayObjects>,
    pub shared: Arc<LoadState<TraceRequest>>,
    /// Set if the replay runs as fast as possible.
    pub ordering: Option<Arc<RequestOrdering>>,
    pub context: Context,
    pub counts: ReplayCounts,
    pub samples: Option<Sampler>,
}

impl ReplayWorker {
    /// Runs until no more requests start.
    pub async fn run(mut self) -> (LoadRecord, ReplayCounts) {
        let (shared, mut record) = (self.shared.clone(), self.shared.new_record());
        loop {
            tokio::task::coop::consume_budget().await;
            let Some((scheduled, request)) = self.next_request().await else { break };
            if shared.next_request_number().is_none() {
                break;
            }
            let response = self.send(&request);
            let finished =
                execute_recorded(&shared, &mut record, (request.operation(), scheduled), response).await;
            let has_failed = finished.response.is_err();
            if let Some(samples) = &mut self.samples {
                samples.record(shared.window(), &finished, request.subject(&self.objects));
            }
            if has_failed && self.ordering.is_some() {
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
            self.release_successors(&request);
        }
        shared.worker_finished();
        (record, self.counts)
    }

    /// Waits for the next request and returns it with its scheduled start.
    async fn next_request(&mut self) -> Option<(Duration, TraceRequest)> {
        let start_permits = &self.shared.start_permits;
        let has_waited = match start_permits.try_acquire() {
            Ok(permit) => {
                permit.forget();
                true
            }
            Err(_) => {
                start_permits.acquire().await.ok()?.forget();
                false
            }
        };
        let (scheduled, request) = self.shared.pop_due()?;
        if self.ordering.is_none() {
            let delay = self.shared.now().saturating_sub(scheduled);
            self.counts.waited += u64::from(has_waited && delay > MAX_START_DELAY);
            return Some((scheduled, request));
        }
        (!self.shared.is_window_closed()).then(|| (self.shared.now(), request))
    }

    /// Starts the requests that waited for this one.
    fn release_successors(&self, request: &TraceRequest) {
        let Some(ordering) = &self.ordering else { return };
        if let Some((object, changed)) = request.object() {
            let next = ordering.order.lock().finish(object, changed);
            next.into_iter().for_each(|next| self.shared.release(self.shared.now(), next));
        }
        ordering.read_ahead.add_permits(1);
    }

    async fn send(&mut self, request: &TraceRequest) -> Result<Completion, RequestFailure> {
        match request {
            TraceRequest::Put { object, size } => self.put(*object, *size).await,
            TraceRequest::Get { object, offset, length } => {
                let start = self.objects.begin_read(*object);
                let result = self.get((*object, start), *offset, *length).await;
                self.objects.end_read(*object, start);
                result
            }
            TraceRequest::Head { object } => {
                let start = self.objects.begin_read(*object);
                let result = self.head(*object, start).await;
                self.objects.end_read(*object, start);
                result
            }
            TraceRequest::List { prefix } => {
                let start = self.objects.begin_listing();
                let result = self.list(prefix, start).await;
                self.objects.end_listing(start);
                result
            }
            TraceRequest::Delete { object } => self.delete(*object).await,
        }
    }

    fn address(&self, object: usize) -> Result<Address, Error> {
        Address::parse(self.env.bucket.as_str(), &self.objects.name(object))
    }

    async fn put(&self, object: usize, size: u64) -> Result<Completion, RequestFailure> {
        let address = self.address(object)?;
        let version = self.objects.begin_write(object, Some(size));
        let content = ReplayObjects::content(address.key.as_str(), version.number, size);
        let (written, meter) = ((content, size), self.shared.payload_meter());
        let payload = put_object_metered(&self.env, &self.context, &address, written, None, meter).await?;
        self.objects.end_write(object, version);
        Ok(Completion::upload(self.shared.now(), payload))
    }

    async fn delete(&self, object: usize) -> Result<Completion, RequestFailure> {
        let address = self.address(object)?;
        let version = self.objects.begin_write(object, None);
        match self.env.store.delete(&self.context, &address, Precondition::None).await {
            Ok(_) => {}
            // Some stores report a missing key. The outcome is the same.
            Err(e) if e.reason() == Reason::NoSuchKey => {}
            Err(e) => return Err(e.into()),
        }
        self.objects.end_write(object, version);
        Ok(Completion::without_body(self.shared.now()))
    }

    /// Evaluates an error response to a read. It is correct if one of the possible versions lacks the requested bytes.
    fn check_error(
        &mut self,
        error: Error,
        possible: &[KeyVersion],
        offset: u64,
    ) -> Result<Completion, RequestFailure> {
        let is_correct = match error.reason() {
            Reason::NoSuchKey => possible.iter().any(|version| version.size.is_none()),
            Reason::InvalidRange => {
                possible.iter().any(|version| version.size.is_some_and(|size| size <= offset))
            }
            _ => false,
        };
        if !is_correct {
            return Err(error.into());
        }
        self.counts.not_found += 1;
        Ok(Completion::without_body(self.shared.now()))
    }

    async fn get(
        &mut self,
        (object, start): (usize, u64),
        offset: u64,
        length: Option<u64>,
    ) -> Result<Completion, RequestFailure> {
        let address = self.address(object)?;
        let select = match (offset, length) {
            (0, None) => Select::Whole,
            (_, None) => Select::Range(ByteRange::From(offset)),
            (_, Some(length)) => {
                Select::Range(ByteRange::Inclusive { first: offset, last: offset + length - 1 })
            }
        };
        let request = GetRequest { select, ..GetRequest::default() };
        let found = self.env.store.get(&self.context, &address, request).await;
        // The store has already chosen the version: later writes cannot be part of its bytes.
        let possible = self.objects.possible_versions(object, start);
        let found = match found {
            Ok(found) => found,
            Err(e) => return self.check_error(e, &possible, offset),
        };
        let cache = found.observation.remote_cache;
        let (key, size) = (address.key.as_str(), found.info.size);
        // The possible versions of this size whose bytes match all those received so far.
        let mut numbers: Vec<u32> = possible
            .iter()
            .filter(|version| version.size == Some(size))
            .map(|version| version.number)
            .collect();
        if numbers.is_empty() {
            return Err(RequestFailure::wrong_response(format!(
                "{key} is reported with {size} bytes, a size it did not have at that time"
            )));
        }
        let end = length.map_or(size, |length| size.min(offset + length));
        let (mut first_byte, mut position, mut body) = (None, offset.min(size), found.body);
        let mut meter = self.shared.payload_meter();
        while let Some(piece) = body.next().await {
            let piece = piece?;
            first_byte.get_or_insert_with(|| self.shared.now());
            meter.record_passed(piece.len() as u64);
            let mut difference_position = position;
            numbers.retain(|number| {
                let content = ReplayObjects::content(key, *number, size);
                let difference = self.env.content.first_difference(content, position, &piece);
                difference_position = difference_position.max(difference.unwrap_or(0));
                difference.is_none()
            });
            if numbers.is_empty() {
                return Err(RequestFailure::wrong_response(format!(
                    "{key} differs at byte {difference_position} from every version that could be read at that time"
                )));
            }
            position += piece.len() as u64;
        }
        if position != end.max(offset.min(size)) {
            return Err(RequestFailure::wrong_response(format!(
                "{key}: the response ended at byte {position} instead of {end}"
            )));
        }
        let last_byte = self.shared.now();
        Ok(Completion {
            first_byte: first_byte.unwrap_or(last_byte),
            last_byte,
            payload: meter.finish(),
            cache,
        })
    }

    async fn head(&mut self, object: usize, start: u64) -> Result<Completion, RequestFailure> {
        let address = self.address(object)?;
        let found = self.env.store.head(&self.context, &address, GetRequest::default()).await;
        let possible = self.objects.possible_versions(object, start);
        let size = match found {
            Ok(found) => found.info.size,
            Err(e) => return self.check_error(e, &possible, u64::MAX),
        };
        if !possible.iter().any(|version| version.size == Some(size)) {
            let key = address.key.as_str();
            return Err(RequestFailure::wrong_response(format!(
                "{key} is reported with {size} bytes, a size it did not have at that time"
            )));
        }
        Ok(Completion::without_body(self.shared.now()))
    }

    async fn list(&self, prefix: &str, start: u64) -> Result<Completion, RequestFailure> {
        let request = ListRequest {
            prefix: self.objects.store_name(prefix),
            delimiter: None,
            after: None,
            limit: PAGE_KEYS,
        };
        let page = self.env.store.list(&self.context, &self.env.bucket, &request).await?;
        let (completion, read_end) = (Completion::without_body(self.shared.now()), self.objects.next_tick());
        let mut listed = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let ListEntry::Key(key, summary) = entry else {
                return Err(RequestFailure::wrong_response(format!(
                    "{} is listed, but is not a key",
                    entry.name()
                )));
            };
            listed.push((key.to_string(), summary.size));
        }
        let times = (start, read_end);
        let mut check = self.objects.check_listing(prefix, times, &listed, page.next.is_some());
        loop {
            if let Some(result) = check.check_chunk() {
                return result.map(|()| completion).map_err(RequestFailure::wrong_response);
            }
            // Let other tasks of this thread send requests. Once requests are aborted there are none, and yielding
            // would only let this answered request be aborted.
            if !self.shared.cancelled.is_cancelled() {
                tokio::task::yield_now().await;
            }
        }
    }
}
