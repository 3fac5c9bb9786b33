//! A store whose objects are compressed and encrypted on their way to the store below, by class.
//!
//! - Clients see the **plain** bytes: sizes, entity tags, checksums, ranges and conditions are those of a store without
//!   this layer. The store below keeps them with the object: see [`tradewind_core::stored_form`].
//! - Bytes are transformed in **chunks** of 64 KiB (`segment`, `frame`), so that a range decodes only what it needs.
//!   Without encryption, an object whose sample does not shrink is stored unchanged.
//! - Each **part** of an upload is transformed by itself, by the class of the upload.
//! - **Copies** whose source or destination is transformed are read and written through the layer, because the bytes are
//!   bound to bucket and key. All others are left to the store below.
//! - The data keys of objects can be **wrapped again** by another master key (`rewrap`), without their bytes.
//! - Objects that were written before, or by another policy, stay **readable**: how an object is stored is recorded with
//!   it.

mod decoder;
pub(crate) mod digests;
mod frame;
pub(crate) mod keys;
mod policy;
pub(crate) mod read;
mod rewrap;
mod segment;
pub(crate) mod staged;
pub(crate) mod stored_input;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartNumber, UploadId, UploadInfo};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    Capabilities, CopyPartRequest, CopyRequest, GetRequest, GetResponse, StageRequest,
};
use tradewind_core::threads::thread_error;
use tradewind_core::{Address, Algorithm, Body, Context, ObjectInfo, ObjectStore, Staged};
use tradewind_digest::Engine;
use tradewind_model::class_policy::ClassPolicyTable;

pub use keys::{KEY_BYTES, Keyring, MAX_KEY_NAME_BYTES, MasterKey};
pub use policy::{ClassSet, TransformPolicy};
pub use rewrap::Rewrapped;

use crate::relay::{self, RelayEnd};
use crate::store_error::StoreName;
use policy::Treatment;
use read::Reader;
use staged::{PartTarget, TransformedStaged, WriteTarget};

/// Threads for the MD5 of large objects: one hashes many at once.
const HASH_THREADS: usize = 1;

/// See the module documentation.
pub struct Transformed {
    inner: Arc<dyn ObjectStore>,
    /// The policy for classes that have none of their own.
    defaults: TransformPolicy,
    /// The policy in force.
    policy: RwLock<TransformPolicy>,
    keys: Arc<Keyring>,
    engine: Engine,
    capabilities: Capabilities,
}

impl Transformed {
    /// A layer over `inner`.
    ///
    /// Fails with [`Unsupported`](Reason::Unsupported) without [`Capabilities::reported_attributes`], and with
    /// [`InvalidArgument`](Reason::InvalidArgument) if the keys are invalid or classes are encrypted without a key.
    pub fn new(inner: Arc<dyn ObjectStore>, policy: TransformPolicy, keys: Keyring) -> Result<Arc<Self>> {
        let below = inner.capabilities();
        if !below.reported_attributes {
            let message = format!(
                "a store of the kind {:?} cannot report the size and ETag of transformed objects: the layer \
                 \"transformed\" must be directly over a local store",
                below.kind
            );
            return Err(Error::new(Reason::Unsupported, message));
        }
        keys.check()?;
        check_key(&policy, &keys)?;
        let capabilities = Capabilities { reported_attributes: false, ..below.clone() };
        let engine = Engine::start(HASH_THREADS).map_err(thread_error)?;
        let (defaults, policy, keys) = (policy, RwLock::new(policy), Arc::new(keys));
        Ok(Arc::new(Self { inner, defaults, policy, keys, engine, capabilities }))
    }

    /// Fails with [`InvalidArgument`](Reason::InvalidArgument) if these policies encrypt a class and there is no key.
    pub fn check_class_policies(&self, classes: &ClassPolicyTable) -> Result<()> {
        check_key(&self.defaults.with_class_policies(classes), &self.keys)
    }

    /// True if these policies, or those of the layer, encrypt a class.
    #[must_use]
    pub fn would_encrypt(&self, classes: &ClassPolicyTable) -> bool {
        !self.defaults.with_class_policies(classes).encrypt.is_empty()
    }

    /// Replaces the policies of classes, which override the policy of the layer, for later writes. On an error, which is
    /// that of [`check_class_policies`](Self::check_class_policies), the old ones stay.
    pub fn set_class_policies(&self, classes: &ClassPolicyTable) -> Result<()> {
        self.check_class_policies(classes)?;
        let policy = self.defaults.with_class_policies(classes);
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = policy;
        Ok(())
    }

    fn policy(&self) -> TransformPolicy {
        *self.policy.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_target(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
        treatment: Treatment,
    ) -> WriteTarget {
        WriteTarget {
            inner: self.inner.clone(),
            keys: self.keys.clone(),
            engine: self.engine.clone(),
            context: context.clone(),
            address: address.clone(),
            part: None,
            request,
            treatment,
        }
    }

    /// An unfinished upload.
    async fn upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<UploadInfo> {
        Ok(self.inner.list_parts(context, address, upload, None, 1).await?.upload)
    }

    fn relay_end(&self) -> RelayEnd<'_> {
        RelayEnd { store: self, name: StoreName { role: "layer", name: "transformed" } }
    }

    /// The source of a copy.
    async fn source(&self, context: &Context, source: &Address) -> Result<ObjectInfo> {
        Ok(self.inner.head(context, source, GetRequest::default()).await?.info)
    }
}

fn check_key(policy: &TransformPolicy, keys: &Keyring) -> Result<()> {
    if !policy.encrypt.is_empty() && keys.current.is_none() {
        return Err(Error::new(Reason::InvalidArgument, "classes are encrypted, but there is no key"));
    }
    Ok(())
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for Transformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Hides the stored form from the layers above, for which the object is a plain one.
fn without_form<B>(mut found: GetResponse<B>) -> GetResponse<B> {
    found.info.stored = None;
    found
}

#[async_trait]
impl ObjectStore for Transformed {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        prewarm, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket, list_buckets,
        versioning, set_versioning, delete,
        list, list_versions, set_tags, set_classes, object_parts, create_upload, list_parts, list_uploads,
        complete_upload, abort_upload, close,
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.inner.head(context, address, request).await.map(without_form)
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        if request.stored {
            return Err(Error::unsupported("return stored bytes, which a layer transforms"));
        }
        Reader { inner: &self.inner, keys: &self.keys, context, address }.read(request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let treatment = self.policy().treatment(&request.metadata.classes, request.size);
        if treatment.is_plain() {
            return self.inner.stage(context, address, request).await;
        }
        let target = self.write_target(context, address, request, treatment);
        Ok(Box::new(TransformedStaged::begin(target).await?))
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        mut request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let policy = self.policy();
        if policy.is_plain() {
            return self.inner.stage_part(context, address, upload, number, request).await;
        }
        let created = self.upload(context, address, upload).await?;
        let treatment = policy.treatment(&created.metadata.classes, request.size);
        if treatment.is_plain() {
            return self.inner.stage_part(context, address, upload, number, request).await;
        }
        // The checksum from which the object's is computed at the completion.
        let required = created.checksum.map_or(Algorithm::Crc64Nvme, |(algorithm, _)| algorithm);
        if !request.algorithms.contains(&required) {
            request.algorithms.push(required);
        }
        let part = Some(PartTarget { upload: upload.clone(), number });
        let target = WriteTarget { part, ..self.write_target(context, address, request, treatment) };
        Ok(Box::new(TransformedStaged::begin(target).await?))
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        let source = self.source(context, &request.source).await?;
        let classes = &request.metadata.as_ref().unwrap_or(&source.metadata).classes;
        let is_plain = self.policy().treatment(classes, Some(source.size)).is_plain();
        if is_plain && source.stored.is_none() {
            match self.inner.copy(context, request.clone()).await {
                // It was replaced by a transformed one meanwhile.
                Err(error) if error.reason() == Reason::Unsupported => {}
                copied => return copied,
            }
        }
        relay::copy(context, self.relay_end(), self.relay_end(), request).await
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        let created = self.upload(context, &request.destination, &request.upload).await?;
        let source = self.source(context, &request.source).await?;
        let is_plain = self.policy().treatment(&created.metadata.classes, None).is_plain();
        if is_plain && source.stored.is_none() {
            match self.inner.copy_part(context, request.clone()).await {
                Err(error) if error.reason() == Reason::Unsupported => {}
                copied => return copied,
            }
        }
        relay::copy_part(context, self.relay_end(), self.relay_end(), request).await
    }
}
