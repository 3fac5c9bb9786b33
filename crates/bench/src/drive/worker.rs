//! A worker: starts requests when they are due and verifies the responses.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_core::condition::Precondition;
use tradewind_core::error::Result as StoreResult;
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, Context};

use super::BenchEnv;
use super::load_state::LoadState;
use super::request::{Completion, FAILURE_PAUSE, RequestFailure, execute_recorded, put_object};
use crate::object_set::{ObjectSet, ObjectShare};
use crate::operation::{Mix, Operation};
use crate::random::mix;
use crate::record::LoadRecord;
use crate::samples::{RequestSubject, Sampler, SubjectKey};

/// Maximum number of keys per listing page.
const MAX_PAGE_KEYS: usize = 1000;

/// A worker and its share of the objects.
pub(super) struct Worker {
    bed: BenchEnv,
    stock: Arc<ObjectSet>,
    hand: ObjectShare,
    shared: Arc<LoadState<()>>,
    context: Context,
    is_open: bool,
    /// Numbers of all existing objects in order, if the load changes none of them.
    unchanged: Option<Arc<[u64]>>,
}

impl Worker {
    pub fn new(
        bed: BenchEnv,
        stock: Arc<ObjectSet>,
        hand: ObjectShare,
        (shared, is_open): (Arc<LoadState<()>>, bool),
        context: Context,
    ) -> Self {
        Self { bed, stock, hand, shared, context, is_open, unchanged: None }
    }

    /// Runs requests until none is left to start.
    pub async fn run(
        mut self,
        shares: Mix,
        seed: u64,
        mut samples: Option<Sampler>,
    ) -> (LoadRecord, ObjectShare) {
        let changes = |operation| matches!(operation, Operation::Put | Operation::Delete);
        let (shared, mut record) = (self.shared.clone(), self.shared.new_record());
        let is_unchanged = self.stock.is_certain() && !shares.operations().any(changes);
        self.unchanged = is_unchanged.then(|| self.stock.dealt());
        loop {
            // A store that always completes immediately would otherwise starve the other tasks.
            tokio::task::coop::consume_budget().await;
            // A worker without objects must not take a due request from one that has some.
            if self.has_nothing_to_do(&shares) {
                break;
            }
            let Some(intended) = self.wait_for_start().await else { break };
            let Some(number) = self.shared.next_request_number() else { break };
            let operation = self.possible(shares.draw(mix(seed ^ mix(number))), &shares);
            let Some(object) = self.object(operation, number) else { break };
            let asked = self.ask(operation, object);
            let handled = execute_recorded(&shared, &mut record, (operation, intended), asked).await;
            let has_failed = handled.response.is_err();
            if let Some(samples) = &mut samples {
                samples.record(shared.window(), &handled, self.subject(operation, object));
            }
            if has_failed && !self.is_open {
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
        }
        if self.hand.is_empty() && shares.is_only(Operation::Delete) {
            // No object is left for any worker, and none will be added.
            self.shared.cancel_queued();
        }
        self.shared.worker_finished();
        (record, self.hand)
    }

    /// Waits for the start of the next request and returns its scheduled time.
    async fn wait_for_start(&self) -> Option<Duration> {
        if !self.is_open {
            return (!self.shared.is_window_closed()).then(|| self.shared.now());
        }
        self.shared.start_permits.acquire().await.ok()?.forget();
        self.shared.pop_due().map(|(intended, ())| intended)
    }

    fn has_nothing_to_do(&self, shares: &Mix) -> bool {
        self.hand.is_empty() && shares.operations().all(Operation::needs_object)
    }

    /// Replaces a request that needs an object by a write if none is left and the mix contains writes.
    fn possible(&self, operation: Operation, shares: &Mix) -> Operation {
        if operation.needs_object() && self.hand.is_empty() && shares.share(Operation::Put) > 0.0 {
            return Operation::Put;
        }
        operation
    }

    /// Chooses the object of a request; for a listing, the key after which it starts. `None` if there is no suitable
    /// object.
    fn object(&mut self, operation: Operation, number: u64) -> Option<u64> {
        match operation {
            Operation::Put => Some(self.stock.new_number()),
            Operation::Get | Operation::Head => self.hand.next_to_read(),
            Operation::List => Some(mix(number) % self.stock.allocated().max(1)),
            Operation::Delete => self.hand.take_for_delete(),
        }
    }

    /// Describes the request for its sample.
    fn subject(&self, operation: Operation, object: u64) -> RequestSubject {
        let about = match operation {
            Operation::List => SubjectKey::Prefix(self.stock.prefix().into()),
            _ => SubjectKey::Object(object),
        };
        let carries = matches!(operation, Operation::Put | Operation::Get);
        let size = if carries { self.stock.size(object) } else { 0 };
        RequestSubject { operation, key: about, size: Some(size) }
    }

    /// Executes one request.
    async fn ask(&mut self, operation: Operation, object: u64) -> Result<Completion, RequestFailure> {
        match operation {
            Operation::Put => self.put(object).await,
            Operation::Get => self.get(object).await,
            Operation::Head => self.head(object).await,
            Operation::List => self.list(object).await,
            Operation::Delete => self.delete(object).await,
        }
    }

    fn address(&self, number: u64) -> StoreResult<Address> {
        Address::parse(self.bed.bucket.as_str(), &self.stock.key(number))
    }

    async fn put(&mut self, number: u64) -> Result<Completion, RequestFailure> {
        let (address, size) = (self.address(number)?, self.stock.size(number));
        let content = self.stock.content(number);
        let file = match self.bed.files.as_ref().filter(|_| self.stock.has_files()) {
            Some(files) => Some(files.open_source(&self.stock.source_key(number)).await?),
            None => None,
        };
        let guard = UncertaintyGuard(Some(&self.stock));
        put_object(&self.bed, &self.context, &address, (content, size), file).await?;
        guard.disarm();
        self.hand.add(number);
        Ok(Completion::without_body(self.shared.now(), size))
    }

    async fn get(&self, number: u64) -> Result<Completion, RequestFailure> {
        let (address, size) = (self.address(number)?, self.stock.size(number));
        let content = self.stock.content(number);
        let mut file = match &self.bed.files {
            Some(files) => Some(files.create_target(&format!("read {}", self.stock.key(number))).await?),
            None => None,
        };
        let mut found = self.bed.store.get(&self.context, &address, GetRequest::default()).await?;
        let (mut first, mut at) = (None, 0);
        while let Some(chunk) = found.body.next().await {
            let chunk = chunk?;
            first.get_or_insert_with(|| self.shared.now());
            if let Some(offset) = self.bed.content.first_difference(content, at, &chunk) {
                let key = address.key.as_str();
                return Err(RequestFailure::wrong_response(format!(
                    "{key} differs from what was written at byte {offset}"
                )));
            }
            at += chunk.len() as u64;
            if let Some(file) = &mut file {
                file.write(chunk).await?;
            }
        }
        if at != size {
            let key = address.key.as_str();
            return Err(RequestFailure::wrong_response(format!(
                "{key} has {at} bytes, but {size} were written"
            )));
        }
        let whole = self.shared.now();
        Ok(Completion { first_byte: first.unwrap_or(whole), last_byte: whole, bytes: size })
    }

    async fn head(&self, number: u64) -> Result<Completion, RequestFailure> {
        let (address, size) = (self.address(number)?, self.stock.size(number));
        let found = self.bed.store.head(&self.context, &address, GetRequest::default()).await?;
        if found.info.size != size {
            let (key, found) = (address.key.as_str(), found.info.size);
            return Err(RequestFailure::wrong_response(format!(
                "{key} is reported with {found} bytes, but {size} were written"
            )));
        }
        Ok(Completion::without_body(self.shared.now(), 0))
    }

    /// Lists a page after an object and verifies order and sizes. If the load changes no objects, every existing object
    /// must be listed.
    async fn list(&self, from: u64) -> Result<Completion, RequestFailure> {
        let prefix = self.stock.prefix().to_owned();
        let request =
            ListRequest { prefix, delimiter: None, after: Some(self.stock.key(from)), limit: MAX_PAGE_KEYS };
        let page = self.bed.store.list(&self.context, &self.bed.bucket, &request).await?;
        let answered = Completion::without_body(self.shared.now(), 0);
        let mut listed: Vec<u64> = Vec::with_capacity(page.entries.len());
        for entry in &page.entries {
            let ListEntry::Key(key, summary) = entry else {
                return Err(RequestFailure::wrong_response(format!(
                    "{} is listed, but is not a key",
                    entry.name()
                )));
            };
            let number = self.stock.number(key).filter(|number| *number > *listed.last().unwrap_or(&from));
            match number {
                Some(number) if self.stock.size(number) == summary.size => listed.push(number),
                _ => {
                    let what = format!("{key} is wrongly listed with {} bytes after {from}", summary.size);
                    return Err(RequestFailure::wrong_response(what));
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
        Ok(answered)
    }

    async fn delete(&self, number: u64) -> Result<Completion, RequestFailure> {
        let guard = UncertaintyGuard(Some(&self.stock));
        self.bed.store.delete(&self.context, &self.address(number)?, Precondition::None).await?;
        guard.disarm();
        Ok(Completion::without_body(self.shared.now(), 0))
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
        if let Some(stock) = self.0 {
            stock.mark_uncertain();
        }
    }
}
