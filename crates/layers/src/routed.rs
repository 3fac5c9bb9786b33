//! A store over several others, the tiers: each object is in the tier of its class of data, without a cache. Chen,
//! Mesnier and Hahn, *Client-aware cloud storage*, MSST 2014, section V.D. Decision note 40 has the reasons.
//!
//! - Tiers are **ordered**: if several have an object, the first one counts. There is no index: a read looks into one
//!   tier after another. The last tier is the **base**; it knows which buckets exist.
//! - A **write** commits in the tier of its class and then deletes the copies in other tiers, the last tier first. It
//!   becomes visible at the commit, or when the last copy in a tier before its own is deleted.
//! - A **delete** deletes the copies from the last tier to the first, so that no older copy reappears.
//! - Changes of a key run one after another, and to their end, although their caller stops waiting.
//! - A background **mover** moves objects whose class has changed, or whose size was unknown when their write began.
//! - **Reads and listings** look again if an object changed its tier meanwhile.
//! - A tier that **fails** fails the requests that need it: reads of its own objects, and of those in tiers after it.

mod buckets;
mod copy;
mod listing;
mod locks;
mod movement;
mod mover;
mod placement;
mod tier_set;
mod uploads;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use tracing::warn;
use tradewind_core::class::ClassUpdate;
use tradewind_core::error::{Error, Result};
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, ETagForm, Feature, GetRequest,
    GetResponse, ObjectClock, StageRequest,
};
use tradewind_core::version::{ListVersions, VersionsPage, null_versions};
use tradewind_core::{
    Address, Body, BucketName, Context, ObjectStore, Precondition, Staged, Tags, Versioning,
};

use crate::capabilities::common_capabilities;
use tier_set::{Change, FromTier, TierSet, VisibleCopy};
use uploads::RoutedUpload;

pub use mover::{MoveLimits, MoveReport, Mover};
pub use placement::{ClassTiers, Placement};
pub use tier_set::Tier;

/// Features that no store over several tiers has.
const UNSUPPORTED: [Feature; 2] = [Feature::SnapshotListing, Feature::UploadOrder];

/// See the module documentation.
pub struct Routed {
    set: Arc<TierSet>,
    capabilities: Capabilities,
}

impl fmt::Debug for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.set.tiers.iter().map(|tier| (&tier.name, &tier.store))).finish()
    }
}

impl Routed {
    /// A store over `tiers`, by precedence, and the base after them. No other client may write to any of them.
    #[must_use]
    pub fn new(mut tiers: Vec<Tier>, base: Tier, placement: impl Placement) -> Arc<Self> {
        tiers.push(base);
        let common = common_capabilities("routed", tiers.iter().map(|tier| &*tier.store));
        let unsupported = [common.unsupported, &UNSUPPORTED].concat().leak();
        let capabilities = Capabilities {
            versions: false,
            // Two tiers may use the same tag for different objects.
            unique_etags: false,
            unsupported,
            ..common
        };
        Arc::new(Self { set: Arc::new(TierSet::new(tiers, Box::new(placement))), capabilities })
    }

    /// Moves objects to the tiers of their classes, if it is run.
    #[must_use]
    pub fn mover(&self, limits: MoveLimits) -> Mover {
        Mover::new(self.set.clone(), limits)
    }

    /// The tiers, by precedence, and the base after them.
    #[must_use]
    pub fn tiers(&self) -> &[Tier] {
        &self.set.tiers
    }

    fn base(&self) -> &Tier {
        &self.set.tiers[self.set.base()]
    }
}

#[async_trait]
impl ObjectStore for Routed {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prewarm(&self, bucket: &BucketName, concurrency: usize) {
        for tier in &self.set.tiers {
            tier.store.prewarm(bucket, concurrency);
        }
    }

    fn min_rtt(&self, bucket: &BucketName) -> Option<Duration> {
        self.base().store.min_rtt(bucket)
    }

    fn object_clock(&self, bucket: &BucketName) -> ObjectClock {
        self.base().store.object_clock(bucket)
    }

    /// An object may be moved to any tier later.
    fn accepts(&self, address: &Address, request: &StageRequest) -> bool {
        self.set.tiers.iter().all(|tier| tier.store.accepts(address, request))
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        // Excludes only the deletion of the bucket: a long change of a key delays no CreateBucket, and none waits behind it.
        let _shared = context.guard(self.set.locks.share_bucket(bucket)).await?;
        self.base().named(self.base().store.create_bucket(context, bucket).await)
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.set.delete_bucket(context, bucket).await
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.base().named(self.base().store.head_bucket(context, bucket).await)
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        self.base().named(self.base().store.list_buckets(context).await)
    }

    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        self.base().named(self.base().store.versioning(context, bucket).await)
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        self.set.check_bucket(context, bucket).await?;
        match versioning {
            Versioning::Off => Ok(()),
            Versioning::Enabled | Versioning::Suspended => {
                Err(Error::unsupported("keep versions: its objects are in several tiers"))
            }
        }
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        let read = self.set.read(context, address, |tier| tier.store.head(context, address, request.clone()));
        let FromTier { tier, result } = read.await?;
        result.map(|found| GetResponse { info: self.set.outer_info(tier, found.info), ..found })
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let read = self.set.read(context, address, |tier| tier.store.get(context, address, request.clone()));
        let FromTier { tier, result } = read.await?;
        result.map(|found| GetResponse { info: self.set.outer_info(tier, found.info), ..found })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        write::stage(&self.set, context, address, request).await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.set.prepare_bucket(context, self.set.base(), &address.bucket).await?;
        let work = |change: Change| async move { change.delete(&precondition).await };
        self.set.change(context, address, work).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.set.list(context, bucket, request).await
    }

    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        null_versions(self.set.list(context, bucket, &request.as_list_request()).await?, request)
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        copy::copy(self, context, request).await
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        self.set.check_bucket(context, &address.bucket).await?;
        let work = |change: Change| async move {
            let copies = change.find_copies().await;
            let index = copies.visible()?.map_or(change.set.base(), |VisibleCopy { tier, .. }| tier);
            let tier = change.tier(index);
            tier.named(tier.store.set_tags(&change.context, &change.address, tags).await)
        };
        self.set.change(context, address, work).await
    }

    async fn set_classes(&self, context: &Context, address: &Address, update: ClassUpdate) -> Result<()> {
        self.set.check_bucket(context, &address.bucket).await?;
        let work = |change: Change| async move {
            let copies = change.find_copies().await;
            let index = copies.visible()?.map_or(change.set.base(), |VisibleCopy { tier, .. }| tier);
            let tier = change.tier(index);
            tier.named(tier.store.set_classes(&change.context, &change.address, update).await)
        };
        self.set.change(context, address, work).await?;
        self.set.queue.push(address);
        Ok(())
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        let read = |tier| {
            let Tier { store, .. }: &Tier = tier;
            store.object_parts(context, address, after, limit)
        };
        self.set.read(context, address, read).await?.result
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        self.set.create_upload(context, address, request).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let RoutedUpload { tier, inner } = self.set.upload(context, &address.bucket, upload).await?;
        let request = StageRequest { etag: ETagForm::Md5, ..request };
        let staged = self.set.tiers[tier].store.stage_part(context, address, &inner, number, request).await;
        self.set.about_upload(tier, upload, staged)
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        copy::copy_part(self, context, request).await
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        self.set.list_parts(context, address, upload, after, limit).await
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.set.list_uploads(context, bucket, request).await
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        self.set.complete_upload(context, address, upload, request).await
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        let RoutedUpload { tier, inner } = self.set.upload(context, &address.bucket, upload).await?;
        let aborted = self.set.tiers[tier].store.abort_upload(context, address, &inner).await;
        self.set.about_upload(tier, upload, aborted)
    }

    async fn close(&self) -> Result<()> {
        self.set.tasks.close();
        self.set.tasks.wait().await;
        let each = self.set.tiers.iter().map(|tier| async { tier.named(tier.store.close().await) });
        let mut outcome = Ok(());
        for closed in join_all(each).await {
            if let Err(error) = closed {
                warn!(%error, "cannot close a tier");
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }
}
