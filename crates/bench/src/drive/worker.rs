//! A worker: starts requests when they are due and verifies the responses.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_core::condition::Precondition;
use tradewind_core::error::Result as StoreResult;
use tradewind_core::listing::{ListEntry, ListPosition, ListRequest};
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Context};

use super::BenchEnv;
use super::load_state::LoadState;
use super::request::{Completion, FAILURE_PAUSE, RequestFailure, execute_recorded, put_object_metered};
use crate::object_set::{ObjectSet, ObjectShare};
use crate::operation::{Mix, Operation};
use crate::random::mix;
use crate::record::LoadRecord;
use crate::samples::{RequestSubject, Sampler, SubjectKey};

/// Maximum number of keys per listing page.
const MAX_PAGE_KEYS: usize = 1000;

/// A worker and its share of the objects.
pub(super) struct Worker {
    env: BenchEnv,
    object_set: Arc<ObjectSet>,
    share: ObjectShare,
    shared: Arc<LoadState<()>>,
    context: Context,
    is_open: bool,
    /// Numbers of all existing objects in order, if the load changes none of them.
    unchanged: Option<Arc<[u64]>>,
}

impl Worker {
    pub fn new(
        env: BenchEnv,
        object_set: Arc<ObjectSet>,
        share: ObjectShare,
        (shared, is_open): (Arc<LoadState<()>>, bool),
        context: Context,
    ) -> Self {
        Self { env, object_set, share, shared, context, is_open, unchanged: None }
    }

    /// Runs requests until none is left to start.
    pub async fn run(
        mut self,
        request_mix: Mix,
        seed: u64,
        mut samples: Option<Sampler>,
    ) -> (LoadRecord, ObjectShare) {
        let changes_objects = |operation| matches!(operation, Operation::Put | Operation::Delete);
        let (shared, mut record) = (self.shared.clone(), self.shared.new_record());
        let is_unchanged = self.object_set.is_certain() && !request_mix.operations().any(changes_objects);
        self.unchanged = is_unchanged.then(|| self.object_set.distributed_numbers());
        loop {
            // A store that always completes immediately would otherwise starve the other tasks.
            tokio::task::coop::consume_budget().await;
            // A worker without objects must not take a due request from one that has some.
            if self.has_nothing_to_do(&request_mix) {
                break;
            }
            let Some(scheduled) = self.wait_for_start().await else { break };
            let Some(number) = self.shared.next_request_number() else { break };
            let operation = self.feasible_operation(request_mix.draw(mix(seed ^ mix(number))), &request_mix);
            let Some(object) = self.choose_object(operation, number) else { break };
            let request = self.execute(operation, object);
            let finished = execute_recorded(&shared, &mut record, (operation, scheduled), request).await;
            let has_failed = finished.response.is_err();
            if let Some(samples) = &mut samples {
                samples.record(shared.window(), &finished, self.subject(operation, object));
            }
            if has_failed && !self.is_open {
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        }
        if self.share.is_empty() && request_mix.is_only(Operation::Delete) {
            // No object is left for any worker, and none will be added.
            self.shared.cancel_queued();
        }
        self.shared.worker_finished();
        (record, self.share)
    }

    /// Waits for the start of the next request and returns its scheduled time.
    async fn wait_for_start(&self) -> Option<Duration> {
        if !self.is_open {
            return (!self.shared.is_window_closed()).then(|| self.shared.now());
        }
        self.shared.start_permits.acquire().await.ok()?.forget();
        self.shared.pop_due().map(|(scheduled, ())| scheduled)
    }

    fn has_nothing_to_do(&self, request_mix: &Mix) -> bool {
        self.share.is_empty() && request_mix.operations().all(Operation::needs_object)
    }

    /// Replaces a request that needs an object by a write if none is left and the mix contains writes.
    fn feasible_operation(&self, operation: Operation, request_mix: &Mix) -> Operation {
        if operation.needs_object() && self.share.is_empty() && request_mix.share(Operation::Put) > 0.0 {
            return Operation::Put;
        }
        operation
    }

    /// Chooses the object of a request; for a listing, the key after which it starts. `None` if there is no suitable
    /// object.
    fn choose_object(&mut self, operation: Operation, number: u64) -> Option<u64> {
        match operation {
            Operation::Put => Some(self.object_set.new_number()),
            Operation::Get | Operation::Head => self.share.next_to_read(),
            Operation::List => Some(mix(number) % self.object_set.allocated().max(1)),
            Operation::Delete => self.share.take_for_delete(),
        }
    }

    /// Describes the request for its sample.
    fn subject(&self, operation: Operation, object: u64) -> RequestSubject {
        let key = match operation {
            Operation::List => SubjectKey::Prefix(self.object_set.prefix().into()),
            _ => SubjectKey::Object(object),
        };
        let has_body = matches!(operation, Operation::Put | Operation::Get);
        let size = if has_body { self.object_set.size(object) } else { 0 };
        RequestSubject { operation, key, size: Some(size) }
    }

    /// Executes one request.
    async fn execute(&mut self, operation: Operation, object: u64) -> Result<Completion, RequestFailure> {
        match operation {
            Operation::Put => self.put(object).await,
            Operation::Get => self.get(object).await,
            Operation::Head => self.head(object).await,
            Operation::List => self.list(object).await,
            Operation::Delete => self.delete(object).await,
        }
    }

    fn address(&self, number: u64) -> StoreResult<Address> {
        Address::parse(self.env.bucket.as_str(), &self.object_set.key(number))
    }

    async fn put(&mut self, number: u64) -> Result<Completion, RequestFailure> {
        let (address, size) = (self.address(number)?, self.object_set.size(number));
        let content = self.object_set.content(number);
        let file = match self.env.files.as_ref().filter(|_| self.object_set.has_files()) {
            Some(files) => Some(files.open_source(&self.object_set.source_key(number)).await?),
            None => None,
        };
        let guard = UncertaintyGuard(Some(&self.object_set));
        let (object, meter) = ((content, size), self.shared.payload_meter());
        let payload = put_object_metered(&self.env, &self.context, &address, object, file, meter).await?;
        guard.disarm();
        self.share.add(number);
        Ok(Completion::upload(self.shared.now(), payload))
    }

    async fn get(&self, number: u64) -> Result<Completion, RequestFailure> {
        let (address, size) = (self.address(number)?, self.object_set.size(number));
        let content = self.object_set.content(number);
        let mut file = match &self.env.files {
            Some(files) => Some(files.create_target(&format!("read {}", self.object_set.key(number))).await?),
            None => None,
        };
        let mut found = self.env.store.get(&self.context, &address, GetRequest::default()).await?;
        let cache = found.observation.remote_cache;
        let (mut first_byte, mut received) = (None, 0);
        let mut meter = self.shared.payload_meter();
        while let Some(chunk) = found.body.next().await {
            let chunk = chunk?;
            first_byte.get_or_insert_with(|| self.shared.now());
            meter.record_passed(chunk.len() as u64);
            if let Some(offset) = self.env.content.first_difference(content, received, &chunk) {
                let key = address.key.as_str();
                return Err(RequestFailure::wrong_response(format!(
                    "{key} differs from what was written at byte {offset}"
                )));
            }
            received += chunk.len() as u64;
            if let Some(file) = &mut file {
                file.write(chunk).await?;
            }
        }
        if received != size {
            let key = address.key.as_str();
            return Err(RequestFailure::wrong_response(format!(
                "{key} has {received} bytes, but {size} were written"
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

    async fn head(&self, number: u64) -> Result<Completion, RequestFailure> {
        let (address, size) = (self.address(number)?, self.object_set.size(number));
        let found = self.env.store.head(&self.context, &address, GetRequest::default()).await?;
        if found.info.size != size {
            let (key, found) = (address.key.as_str(), found.info.size);
            return Err(RequestFailure::wrong_response(format!(
                "{key} is reported with {found} bytes, but {size} were written"
            )));
        }
        Ok(Completion::without_body(self.shared.now()))
    }

    /// Lists a page after an object and verifies order and sizes. If the load changes no objects, every existing object
    /// must be listed.
    async fn list(&self, from: u64) -> Result<Completion, RequestFailure> {
        let prefix = self.object_set.prefix().to_owned();
        let request = ListRequest {
            prefix,
            delimiter: None,
            after: Some(ListPosition::after(self.object_set.key(from))),
            limit: MAX_PAGE_KEYS,
        };
        let page = self.env.store.list(&self.context, &self.env.bucket, &request).await?;
        let completion = Completion::without_body(self.shared.now());
        let mut listed: Vec<u64> = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let ListEntry::Key(key, summary) = entry else {
                return Err(RequestFailure::wrong_response(format!(
                    "{} is listed, but is not a key",
                    entry.name()
                )));
            };
            let number =
                self.object_set.number(key).filter(|number| *number > *listed.last().unwrap_or(&from));
            match number {
                Some(number) if self.object_set.size(number) == summary.size => listed.push(number),
                _ => {
                    let message = format!("{key} is wrongly listed with {} bytes after {from}", summary.size);
                    return Err(RequestFailure::wrong_response(message));
                }
            }
        }
        if let Some(existing) = &self.unchanged {
            let rest = &existing[existing.partition_point(|number| *number <= from)..];
            let is_short = page.next.is_none() && listed.len() < rest.len();
            if is_short || !rest.starts_with(&listed) {
                return Err(RequestFailure::wrong_response(format!(
                    "{} objects are listed after {from}, but {} exist: some are missing",
                    listed.len(),
                    rest.len()
                )));
            }
        }
        Ok(completion)
    }

    async fn delete(&self, number: u64) -> Result<Completion, RequestFailure> {
        let guard = UncertaintyGuard(Some(&self.object_set));
        self.env.store.delete(&self.context, &self.address(number)?, Precondition::None).await?;
        guard.disarm();
        Ok(Completion::without_body(self.shared.now()))
    }
}

/// Marks the object set as uncertain when dropped: after a write or delete that failed or was cancelled, it is unknown
/// which objects exist.
struct UncertaintyGuard<'a>(Option<&'a ObjectSet>);

impl UncertaintyGuard<'_> {
    /// Disarms the guard: the request succeeded.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for UncertaintyGuard<'_> {
    fn drop(&mut self) {
        if let Some(object_set) = self.0 {
            object_set.mark_uncertain();
        }
    }
}
