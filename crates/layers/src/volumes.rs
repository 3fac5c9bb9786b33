//! A store over several volumes: every request goes to the volume of its bucket. Requests within a volume are
//! forwarded unchanged, so that a bucket keeps all guarantees and limits of its volume.
//!
//! - The **map** from buckets to volumes is fixed. Buckets that are not in it belong to the default volume.
//! - A **copy** within a volume is forwarded. One between volumes is relayed: see `relay`.
//! - A **list** of buckets has the buckets of all volumes. A bucket that also exists in a volume that is not its own
//!   cannot be reached there, is not listed, and is reported by [`Volumes::check_buckets`].
//! - A volume that **fails** fails the requests to its own buckets, and the list of buckets: a list that lacks buckets
//!   would look like their deletion.

mod one_volume;

use std::collections::{BTreeMap, HashSet};
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
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, GetRequest, GetResponse, ObjectClock,
    StageRequest,
};
use tradewind_core::version::{ListVersions, VersionsPage};
use tradewind_core::{
    Address, Body, BucketName, Context, ObjectStore, Precondition, Staged, Tags, Versioning,
};

use crate::capabilities::common_capabilities;
use crate::relay::{self, RelayEnd};
use crate::routed::Tier;
use crate::store_error::StoreName;

use one_volume::OneVolume;

/// A volume: a stack of layers over a leaf, and the buckets in it.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Name.
    pub name: String,
    /// The top of the stack.
    pub store: Arc<dyn ObjectStore>,
    /// Name of the leaf. Volumes whose leaves have the same name share that leaf.
    pub leaf: String,
    /// The other leaves of its stack, which may have copies of its buckets.
    pub tiers: Vec<Tier>,
    /// Number of layers that are specific to this volume. Of volumes that share a leaf, the one with the most layers is
    /// closed first, because its layers may write to the leaf until then.
    pub layers: usize,
    /// Buckets mapped to this volume.
    pub buckets: Vec<BucketName>,
}

impl Volume {
    /// Names the volume in an error that is about its store, not about the request.
    fn named<T>(&self, result: Result<T>) -> Result<T> {
        self.store_name().in_error(result)
    }

    fn store_name(&self) -> StoreName<'_> {
        StoreName { role: "volume", name: &self.name }
    }

    fn relay_end(&self) -> RelayEnd<'_> {
        RelayEnd { store: &*self.store, name: self.store_name() }
    }
}

/// A leaf of a volume: its base, below all layers, or a tier.
struct Leaf<'a> {
    volume: &'a Volume,
    name: &'a str,
    store: &'a dyn ObjectStore,
}

impl<'a> Leaf<'a> {
    fn of_volume(volume: &'a Volume) -> impl Iterator<Item = Self> {
        let base = Self { volume, name: &volume.leaf, store: &*volume.store };
        let tiers =
            volume.tiers.iter().map(move |tier| Self { volume, name: &tier.name, store: &*tier.store });
        std::iter::once(base).chain(tiers)
    }
}

/// A bucket in a leaf.
struct FoundBucket<'a> {
    leaf: &'a Leaf<'a>,
    bucket: BucketName,
}

/// A bucket that exists in a volume to which it is not mapped. Its objects there cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MisplacedBucket {
    /// The bucket.
    pub bucket: BucketName,
    /// The volume where it was found.
    pub found_in: String,
    /// The volume to which it is mapped.
    pub volume: String,
}

/// A volume whose buckets could not be listed.
#[derive(Debug)]
pub struct UnlistedVolume {
    /// The volume.
    pub volume: String,
    /// The cause.
    pub error: Error,
}

/// The result of [`Volumes::check_buckets`].
#[derive(Debug, Default)]
pub struct BucketsReport {
    /// Buckets in volumes that are not their own.
    pub misplaced: Vec<MisplacedBucket>,
    /// Volumes that could not be checked.
    pub unlisted: Vec<UnlistedVolume>,
}

/// See the module documentation.
pub struct Volumes {
    /// The default volume is the first.
    volumes: Vec<Volume>,
    buckets: BTreeMap<BucketName, usize>,
    capabilities: Capabilities,
}

impl fmt::Debug for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for volume in &self.volumes {
            map.entry(&volume.name, &volume.store);
        }
        map.finish()
    }
}

/// Forwards a call to the volume of a bucket.
macro_rules! route {
    ($volumes:ident, $bucket:expr, $method:ident($($argument:expr),*)) => {{
        let volume = $volumes.volume($bucket);
        volume.named(volume.store.$method($($argument),*).await)
    }};
}

impl Volumes {
    /// A store over a default volume, which has all buckets that no other volume has, and others. A bucket that is
    /// mapped to several of them belongs to the first.
    #[must_use]
    pub fn new(default: Volume, others: Vec<Volume>) -> Arc<Self> {
        let volumes: Vec<Volume> = std::iter::once(default).chain(others).collect();
        let mut buckets = BTreeMap::new();
        for (index, volume) in volumes.iter().enumerate() {
            for bucket in &volume.buckets {
                buckets.entry(bucket.clone()).or_insert(index);
            }
        }
        let capabilities = common_capabilities("volumes", volumes.iter().map(|volume| &*volume.store));
        Arc::new(Self { volumes, buckets, capabilities })
    }

    /// The name of the volume of a bucket, whether the bucket exists or not.
    #[must_use]
    pub fn volume_name(&self, bucket: &BucketName) -> &str {
        &self.volume(bucket).name
    }

    /// A store for each volume that lists only the buckets of that volume, for background work that must not end with
    /// the first volume that fails.
    #[must_use]
    pub fn each_volume(self: &Arc<Self>) -> Vec<Arc<dyn ObjectStore>> {
        let one = |index| Arc::new(OneVolume::new(self.clone(), index)) as Arc<dyn ObjectStore>;
        (0..self.volumes.len()).map(one).collect()
    }

    /// Lists the buckets of all volumes and of their tiers, and reports those in a volume that is not their own. A bucket
    /// that the base of its volume lacks is not in the volume, whatever the tiers have.
    pub async fn check_buckets(&self, context: &Context) -> BucketsReport {
        let mut report = BucketsReport::default();
        let leaves: Vec<Leaf<'_>> = self.volumes.iter().flat_map(Leaf::of_volume).collect();
        let (mut found, mut unlisted) = (Vec::new(), HashSet::new());
        let listings = leaves.iter().map(|leaf| leaf.store.list_buckets(context));
        for (leaf, listed) in leaves.iter().zip(join_all(listings).await) {
            match listed {
                Ok(buckets) => {
                    found.extend(buckets.into_iter().map(|bucket| FoundBucket { leaf, bucket: bucket.name }))
                }
                Err(error) => {
                    unlisted.insert(leaf.name);
                    report.unlisted.push(UnlistedVolume { volume: leaf.volume.name.clone(), error });
                }
            }
        }
        let is_in_its_base = |found: &&FoundBucket<'_>| self.volume(&found.bucket).leaf == found.leaf.name;
        let in_base: HashSet<&BucketName> =
            found.iter().filter(is_in_its_base).map(|found| &found.bucket).collect();
        for FoundBucket { leaf, bucket } in &found {
            let own = self.volume(bucket);
            let may_be_in_base = in_base.contains(bucket) || unlisted.contains(&*own.leaf);
            let is_in_tier = own.tiers.iter().any(|tier| tier.name == leaf.name) && may_be_in_base;
            if own.leaf == leaf.name || own.name == leaf.volume.name || is_in_tier {
                continue;
            }
            report.misplaced.push(MisplacedBucket {
                found_in: leaf.volume.name.clone(),
                volume: own.name.clone(),
                bucket: bucket.clone(),
            });
        }
        report
    }

    fn volume_index(&self, bucket: &BucketName) -> usize {
        self.buckets.get(bucket).copied().unwrap_or(0)
    }

    fn volume(&self, bucket: &BucketName) -> &Volume {
        &self.volumes[self.volume_index(bucket)]
    }

    /// The buckets of one volume, in order of name.
    async fn list_own_buckets(&self, context: &Context, index: usize) -> Result<Vec<BucketInfo>> {
        let volume = &self.volumes[index];
        let mut buckets = volume.named(volume.store.list_buckets(context).await)?;
        buckets.retain(|bucket| self.volume_index(&bucket.name) == index);
        Ok(buckets)
    }

    /// Closes volumes concurrently. Reports all failures to the log, and returns the first.
    async fn close_volumes(&self, volumes: impl Iterator<Item = &Volume>) -> Result<()> {
        let each = volumes.map(|volume| async { volume.named(volume.store.close().await) });
        let mut outcome = Ok(());
        for closed in join_all(each).await {
            if let Err(error) = closed {
                warn!(%error, "cannot close a volume");
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }
}

#[async_trait]
impl ObjectStore for Volumes {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prewarm(&self, bucket: &BucketName, concurrency: usize) {
        self.volume(bucket).store.prewarm(bucket, concurrency);
    }

    fn min_rtt(&self, bucket: &BucketName) -> Option<Duration> {
        self.volume(bucket).store.min_rtt(bucket)
    }

    fn object_clock(&self, bucket: &BucketName) -> ObjectClock {
        self.volume(bucket).store.object_clock(bucket)
    }

    fn accepts(&self, address: &Address, request: &StageRequest) -> bool {
        self.volume(&address.bucket).store.accepts(address, request)
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        route!(self, bucket, create_bucket(context, bucket))
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        route!(self, bucket, delete_bucket(context, bucket))
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        route!(self, bucket, head_bucket(context, bucket))
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        let listings = (0..self.volumes.len()).map(|index| self.list_own_buckets(context, index));
        let mut all = Vec::new();
        for listed in join_all(listings).await {
            all.extend(listed?);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    async fn versioning(&self, context: &Context, bucket: &BucketName) -> Result<Versioning> {
        route!(self, bucket, versioning(context, bucket))
    }

    async fn set_versioning(
        &self,
        context: &Context,
        bucket: &BucketName,
        versioning: Versioning,
    ) -> Result<()> {
        route!(self, bucket, set_versioning(context, bucket, versioning))
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        route!(self, &address.bucket, head(context, address, request))
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        route!(self, &address.bucket, get(context, address, request))
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        route!(self, &address.bucket, stage(context, address, request))
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        route!(self, &address.bucket, delete(context, address, precondition))
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        route!(self, bucket, list(context, bucket, request))
    }

    async fn list_versions(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListVersions,
    ) -> Result<VersionsPage> {
        route!(self, bucket, list_versions(context, bucket, request))
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        let source = self.volume(&request.source.bucket);
        let destination = self.volume(&request.destination.bucket);
        match Arc::ptr_eq(&source.store, &destination.store) {
            true => destination.named(destination.store.copy(context, request).await),
            false => relay::copy(context, source.relay_end(), destination.relay_end(), request).await,
        }
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        route!(self, &address.bucket, set_tags(context, address, tags))
    }

    async fn set_classes(&self, context: &Context, address: &Address, update: ClassUpdate) -> Result<()> {
        route!(self, &address.bucket, set_classes(context, address, update))
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        route!(self, &address.bucket, object_parts(context, address, after, limit))
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        route!(self, &address.bucket, create_upload(context, address, request))
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        route!(self, &address.bucket, stage_part(context, address, upload, number, request))
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        let source = self.volume(&request.source.bucket);
        let destination = self.volume(&request.destination.bucket);
        match Arc::ptr_eq(&source.store, &destination.store) {
            true => destination.named(destination.store.copy_part(context, request).await),
            false => relay::copy_part(context, source.relay_end(), destination.relay_end(), request).await,
        }
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        route!(self, &address.bucket, list_parts(context, address, upload, after, limit))
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        route!(self, bucket, list_uploads(context, bucket, request))
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        route!(self, &address.bucket, complete_upload(context, address, upload, request))
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        route!(self, &address.bucket, abort_upload(context, address, upload))
    }

    async fn close(&self) -> Result<()> {
        let mut depths: Vec<usize> = self.volumes.iter().map(|volume| volume.layers).collect();
        depths.sort_unstable_by(|a, b| b.cmp(a));
        depths.dedup();
        let mut outcome = Ok(());
        for depth in depths {
            let closed =
                self.close_volumes(self.volumes.iter().filter(|volume| volume.layers == depth)).await;
            outcome = outcome.and(closed);
        }
        outcome
    }
}
