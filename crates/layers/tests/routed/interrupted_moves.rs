//! Moves by the mover that fail, are cancelled, or race with changes of the object.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Reason, Result};
use tradewind_core::layer::Method;
use tradewind_core::multipart::{ListUploads, PartInfo, PartNumber};
use tradewind_core::store::{GetRequest, GetResponse};
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation as At, context, reason,
};
use tradewind_core::{Address, Body, Context, Generation, ObjectStore, SystemClock, Tags};
use tradewind_layers::Routed;
use tradewind_layers::routed::ClassTiers;

use super::fixture::{DISK, SSD, address, bucket, by_class, memory, of_class, put, tier};
use super::moves::{Gated, LIMITS, gated, upload};

/// For what ends at once.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A store that reports as services may: one generation whatever the tags, and no parts.
#[derive(Debug)]
struct Service(Arc<Gated>);

fn as_service<B>(mut found: GetResponse<B>) -> GetResponse<B> {
    found.info.generation = Generation(7);
    found
}

#[async_trait]
impl ObjectStore for Service {
    tradewind_core::forward_methods! {
        to: |service| &service.0;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, stage, delete, list, list_versions, copy, set_tags, set_classes, create_upload, stage_part,
        copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn head(&self, context: &Context, key: &Address, request: GetRequest) -> Result<GetResponse<()>> {
        self.0.head(context, key, request).await.map(as_service)
    }

    async fn get(&self, context: &Context, key: &Address, request: GetRequest) -> Result<GetResponse<Body>> {
        self.0.get(context, key, request).await.map(as_service)
    }

    async fn object_parts(
        &self,
        _: &Context,
        _: &Address,
        _: Option<PartNumber>,
        _: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        Ok((Vec::new(), false))
    }
}

/// A base with a visible object, a middle tier that may be away, and one that has to lose the object to the base.
struct ThreeTiers {
    nvme: Arc<Faulty<MemoryStore>>,
    ssd: Arc<Faulty<MemoryStore>>,
    routed: Arc<Routed>,
}

impl ThreeTiers {
    /// `key` is in the first tier, and belongs into the last one.
    async fn new() -> Self {
        let [nvme, ssd] = [(); 2].map(|()| Faulty::new(memory(), FaultPlan::none()));
        let faster = || vec![tier("nvme", nvme.clone()), tier("ssd", ssd.clone())];
        let base = memory();
        let before = Routed::new(faster(), tier("disk", base.clone()), by_class());
        before.create_bucket(&context(), &bucket()).await.unwrap();
        ssd.create_bucket(&context(), &bucket()).await.unwrap();
        put(&*before, "key", "acknowledged", of_class(SSD)).await.unwrap();
        let routed = Routed::new(faster(), tier("disk", base), ClassTiers::new());
        Self { nvme, ssd, routed }
    }

    async fn is_on_nvme(&self) -> bool {
        self.nvme.head(&context(), &address("key"), GetRequest::default()).await.is_ok()
    }

    async fn run(&self) -> Result<u64> {
        Ok(self.routed.mover(LIMITS).run_object(&context(), &address("key")).await?.moved)
    }
}

#[tokio::test]
async fn object_is_not_moved_past_a_tier_that_is_away() {
    let tiers = ThreeTiers::new().await;
    put(&*tiers.ssd, "key", "old", of_class(SSD)).await.unwrap();
    tiers
        .ssd
        .set_plan(FaultPlan::none().with_fault_on_any(FaultSchedule::Always, Fault::FailBefore(Reason::Io)));
    assert_eq!(reason(tiers.run().await), Reason::Io);
    tiers.ssd.set_plan(FaultPlan::none());
    for _ in 0..2 {
        let found = tiers.routed.get(&context(), &address("key"), GetRequest::default()).await.unwrap();
        assert_eq!(found.body.collect().await.unwrap(), "acknowledged");
        tiers.routed.mover(LIMITS).run_pass(&context(), |_| true).await.unwrap();
    }
    assert!(!tiers.is_on_nvme().await);
}

#[tokio::test]
async fn object_is_not_switched_while_a_tier_between_is_away() {
    let tiers = ThreeTiers::new().await;
    // The look-up before the copy succeeds, the one before the switch does not.
    let second = FaultSchedule::From(tiers.ssd.calls(At::Head) + 2);
    tiers.ssd.set_plan(FaultPlan::none().with_fault(At::Head, second, Fault::FailBefore(Reason::Io)));
    assert_eq!(reason(tiers.run().await), Reason::Io);
    assert!(tiers.is_on_nvme().await);
    tiers.ssd.set_plan(FaultPlan::none());
    assert_eq!(tiers.run().await.unwrap(), 1);
}

/// An object of the class of the SSD on the disk, which is a service or a store of ours, while its tags change.
async fn move_during_a_change_of_tags(is_service: bool) {
    let [ssd, disk] = [Gated::new(), Gated::new()];
    let base: Arc<dyn ObjectStore> = match is_service {
        true => Arc::new(Service(disk.clone())),
        false => disk.clone(),
    };
    base.create_bucket(&context(), &bucket()).await.unwrap();
    put(&*base, "key", "bytes", of_class(SSD)).await.unwrap();
    let routed = Routed::new(vec![tier("ssd", ssd.clone())], tier("disk", base), by_class());
    let mover = Arc::new(routed.mover(LIMITS));
    let (reached, release) = disk.arm(Method::Get);
    let first = tokio::spawn({
        let mover = mover.clone();
        async move { mover.run_object(&context(), &address("key")).await }
    });
    reached.await.unwrap();
    let tags = Tags::new(vec![("state".to_owned(), "read".to_owned())]).unwrap();
    routed.set_tags(&context(), &address("key"), tags.clone()).await.unwrap();
    release.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap().moved, 0, "service: {is_service}");
    let queued = mover.next_object().now_or_never().flatten();
    assert_eq!(queued, Some(address("key")), "service: {is_service}");
    assert_eq!(mover.run_object(&context(), &address("key")).await.unwrap().moved, 1);
    let found = ssd.head(&context(), &address("key"), GetRequest::default()).await.unwrap();
    assert_eq!(found.info.metadata.tags, tags);
}

#[tokio::test]
async fn tags_that_change_during_a_move_stay_and_it_is_repeated() {
    move_during_a_change_of_tags(false).await;
}

#[tokio::test]
async fn tags_that_change_on_a_service_during_a_move_stay() {
    move_during_a_change_of_tags(true).await;
}

/// Waits until a store has no upload.
async fn no_upload_remains(store: &dyn ObjectStore) {
    let ended = async {
        let request = ListUploads { limit: 10, ..ListUploads::default() };
        while !store.list_uploads(&context(), &bucket(), &request).await.unwrap().entries.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(MAX_WAIT, ended).await.expect("the upload is aborted");
}

#[tokio::test]
async fn upload_of_a_cancelled_move_is_aborted() {
    let ([ssd, disk], routed) = gated().await;
    upload(&routed, "parts", DISK).await;
    let update = tradewind_core::ClassUpdate::replace(of_class(SSD).metadata.classes);
    routed.set_classes(&context(), &address("parts"), update).await.unwrap();
    let (reached, release) = disk.arm(Method::Get);
    let stop = CancellationToken::new();
    let moving = tokio::spawn({
        let (mover, stop) = (routed.mover(LIMITS), stop.clone());
        let deadline = Deadline::none(SystemClock::shared()).with_cancellation(stop);
        let context = Context { deadline, ..context() };
        async move { mover.run_object(&context, &address("parts")).await }
    });
    reached.await.unwrap();
    stop.cancel();
    release.send(()).unwrap();
    assert_eq!(reason(moving.await.unwrap()), Reason::Cancelled);
    no_upload_remains(&*ssd).await;
}

#[tokio::test]
async fn upload_of_a_failed_switch_is_aborted() {
    let [ssd, disk] = [Faulty::new(memory(), FaultPlan::none()), Faulty::new(memory(), FaultPlan::none())];
    let tiers =
        |placement| Routed::new(vec![tier("ssd", ssd.clone())], tier("disk", disk.clone()), placement);
    let routed = tiers(by_class());
    routed.create_bucket(&context(), &bucket()).await.unwrap();
    upload(&routed, "parts", SSD).await;
    let mover = tiers(ClassTiers::new()).mover(LIMITS);
    for (store, at) in [(&disk, At::CompleteUpload), (&ssd, At::Head), (&ssd, At::Delete)] {
        let second = FaultSchedule::From(store.calls(at) + if at == At::Head { 2 } else { 1 });
        store.set_plan(FaultPlan::none().with_fault(at, second, Fault::FailBefore(Reason::Io)));
        assert_eq!(reason(mover.run_object(&context(), &address("parts")).await), Reason::Io, "{at:?}");
        store.set_plan(FaultPlan::none());
        no_upload_remains(&*disk).await;
    }
}

#[tokio::test]
async fn object_whose_parts_are_not_reported_stays() {
    let [ssd, disk] = [Gated::new(), Gated::new()];
    let parts = Arc::new(Service(disk.clone()));
    let tiers =
        |placement| Routed::new(vec![tier("ssd", ssd.clone())], tier("disk", parts.clone()), placement);
    let routed = tiers(ClassTiers::new());
    routed.create_bucket(&context(), &bucket()).await.unwrap();
    upload(&routed, "parts", SSD).await;
    let report = tiers(by_class()).mover(LIMITS).run_pass(&context(), |_| true).await.unwrap();
    assert_eq!((report.moved, report.unmovable, report.failed), (0, 1, 0));
    assert!(disk.head(&context(), &address("parts"), GetRequest::default()).await.is_ok());
}
