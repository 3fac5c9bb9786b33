//! The fault injector: a layer that applies faults of networks, devices and crashes to chosen calls. A
//! [`FaultPlan`] decides as a pure function; this layer applies the faults and counts them. It is certain whether the
//! wrapped store applied a call: one that fails *before* never reaches it, one that fails *after*
//! was completed by it.

mod body;
mod plan;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::body::Body;
use crate::condition::Precondition;
use crate::context::Context;
use crate::error::{Error, Reason, Result};
use crate::listing::{ListPage, ListRequest, ObjectSummary};
use crate::multipart::{PartNumber, UploadId};
use crate::name::{Address, BucketName};
use crate::object::Committed;
use crate::object::Expected;
use crate::observation::Observation;
use crate::store::{Deleted, GetRequest, GetResponse, ObjectClock, ObjectStore, StageRequest, Staged};

pub use plan::{Fault, FaultPlan, FaultSchedule, Operation};

/// A store with faults. See the module's head.
pub struct Faulty<S: ?Sized> {
    inner: Arc<S>,
    injector: Arc<Injector>,
}

impl<S: ObjectStore + ?Sized> Faulty<S> {
    /// Wraps `inner` with the plan's faults.
    pub fn new(inner: Arc<S>, plan: FaultPlan) -> Arc<Self> {
        let injector = Injector { plan: Mutex::new(plan), tally: Mutex::default() };
        Arc::new(Self { inner, injector: Arc::new(injector) })
    }

    /// Replaces the plan from the next call on. Counts are kept.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.injector.plan.lock() = plan;
    }

    /// The number of calls of an operation.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> u64 {
        self.injector.tally.lock().get(&operation).map_or(0, |tally| tally.calls)
    }

    /// The number of calls of an operation that got a fault.
    #[must_use]
    pub fn injected(&self, operation: Operation) -> u64 {
        self.injector.tally.lock().get(&operation).map_or(0, |tally| tally.faults.len() as u64)
    }

    /// Every fault so far, in the order of operations, then of calls.
    #[must_use]
    pub fn faults(&self) -> Vec<(Operation, Fault)> {
        let tallies = self.injector.tally.lock();
        tallies.iter().flat_map(|(&of, tally)| tally.faults.iter().map(move |&fault| (of, fault))).collect()
    }
}

impl<S: ?Sized + fmt::Debug> fmt::Debug for Faulty<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({:?})", &self.inner)
    }
}

struct Injector {
    plan: Mutex<FaultPlan>,
    tally: Mutex<BTreeMap<Operation, Tally>>,
}

#[derive(Default)]
struct Tally {
    calls: u64,
    faults: Vec<Fault>,
}

impl Injector {
    fn decide(&self, operation: Operation) -> Option<Fault> {
        let mut tallies = self.tally.lock();
        let tally = tallies.entry(operation).or_default();
        tally.calls += 1;
        let fault = self.plan.lock().decide(operation, tally.calls);
        tally.faults.extend(fault);
        fault
    }

    /// Performs `work` with the fault that the plan assigns to it, if any.
    async fn call<T>(
        &self,
        context: &Context,
        operation: Operation,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.apply_fault(context, self.decide(operation), operation, work).await
    }

    /// Performs `work` under a fault.
    async fn apply_fault<T>(
        &self,
        context: &Context,
        fault: Option<Fault>,
        operation: Operation,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match fault {
            None
            | Some(
                Fault::Truncate(_)
                | Fault::Corrupt(_)
                | Fault::FailAt(..)
                | Fault::IgnorePrefix
                | Fault::EmptyListing
                | Fault::UnorderedListing
                | Fault::PretendSuccess,
            ) => work.await,
            Some(Fault::FailBefore(reason)) => Err(injected(reason, operation, "before")),
            Some(Fault::FailAfter(reason)) => {
                work.await?;
                Err(injected(reason, operation, "after"))
            }
            Some(Fault::Delay(by)) => {
                let clock = context.deadline.clock();
                context.guard(clock.sleep_until(clock.now() + by)).await?;
                work.await
            }
            Some(Fault::DelayedFailure(by, reason)) => {
                let clock = context.deadline.clock();
                context.guard(clock.sleep_until(clock.now() + by)).await?;
                Err(injected(reason, operation, "after a delay"))
            }
            Some(Fault::Hang) => context.guard(std::future::pending()).await?,
        }
    }
}

fn injected(reason: Reason, operation: Operation, when: &str) -> Error {
    Error::new(reason, format!("an injected fault {when} {operation:?}"))
}

struct FaultyStaged {
    inner: Box<dyn Staged>,
    injector: Arc<Injector>,
    context: Context,
    commit: Operation,
}

#[async_trait]
impl Staged for FaultyStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.injector.call(&self.context, Operation::Write, self.inner.write(bytes)).await
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        self.injector.call(&self.context, self.commit, self.inner.commit(expected)).await
    }
}

impl<S: ObjectStore + ?Sized> Faulty<S> {
    async fn call<T>(
        &self,
        context: &Context,
        operation: Operation,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.injector.call(context, operation, work).await
    }

    fn staged(&self, inner: Box<dyn Staged>, context: &Context, commit: Operation) -> Box<dyn Staged> {
        Box::new(FaultyStaged { inner, injector: self.injector.clone(), context: context.clone(), commit })
    }

    /// The body with the fault that the plan assigns to it. A delay or a hang precedes its first byte.
    fn body(&self, context: &Context, body: Body) -> Body {
        let Some(fault) = self.injector.decide(Operation::Body) else { return body };
        let fault = match fault {
            Fault::FailBefore(reason) => Fault::FailAt(0, reason),
            Fault::FailAfter(reason) => Fault::FailAt(u64::MAX, reason),
            Fault::Delay(_) | Fault::Hang => return self.delayed(context, body, fault),
            _ => fault,
        };
        body::apply_body_fault(body, fault)
    }

    fn delayed(&self, context: &Context, body: Body, fault: Fault) -> Body {
        let context = context.clone();
        let length = body.length();
        let wait = async move {
            let clock = context.deadline.clock().clone();
            match fault {
                Fault::Delay(by) => context.guard(clock.sleep_until(clock.now() + by)).await,
                _ => context.guard(std::future::pending()).await,
            }
        };
        let stream = futures::stream::once(async move {
            match wait.await {
                Ok(()) => body,
                Err(e) => Body::from_stream(length, futures::stream::iter([Err(e)])),
            }
        });
        Body::from_stream(length, futures::StreamExt::flatten(stream))
    }
}

#[async_trait]
impl<S: ObjectStore + ?Sized> ObjectStore for Faulty<S> {
    crate::forward_methods! {
        to: |layer| &layer.inner;
        around: |layer, call, response| layer.call(call.context, call.method.into(), response).await;
        capabilities, accepts, create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning, head, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, copy_part, list_parts, list_uploads, complete_upload,
        abort_upload, close,
    }

    fn min_rtt(&self, bucket: &BucketName) -> Option<Duration> {
        let planned = self.injector.plan.lock().min_rtt;
        planned.or_else(|| self.inner.min_rtt(bucket))
    }

    fn object_clock(&self, bucket: &BucketName) -> ObjectClock {
        self.inner.object_clock(bucket)
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let found = self.call(context, Operation::Get, self.inner.get(context, address, request)).await?;
        let body = self.body(context, found.body);
        Ok(GetResponse { info: found.info, span: found.span, body, observation: found.observation })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let stage = self.inner.stage(context, address, request);
        let inner = self.call(context, Operation::Stage, stage).await?;
        Ok(self.staged(inner, context, Operation::Commit))
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        let fault = self.injector.decide(Operation::Delete);
        if fault == Some(Fault::PretendSuccess) {
            return Ok(Deleted { existed: true, ..Deleted::default() });
        }
        let deleted = self.inner.delete(context, address, precondition);
        self.injector.apply_fault(context, fault, Operation::Delete, deleted).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        let fault = self.injector.decide(Operation::List);
        let prefix = if fault == Some(Fault::IgnorePrefix) { String::new() } else { request.prefix.clone() };
        let request = ListRequest { prefix, ..request.clone() };
        if fault == Some(Fault::EmptyListing) {
            return Ok(ListPage { entries: Vec::new(), next: None });
        }
        let listed = self.inner.list(context, bucket, &request);
        let mut page = self.injector.apply_fault(context, fault, Operation::List, listed).await?;
        if fault == Some(Fault::UnorderedListing) {
            page.entries.reverse();
        }
        Ok(page)
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let stage = self.inner.stage_part(context, address, upload, number, request);
        let inner = self.call(context, Operation::StagePart, stage).await?;
        Ok(self.staged(inner, context, Operation::CommitPart))
    }
}
