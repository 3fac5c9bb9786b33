//! A store that is restarted between calls, so that a sequence played by the conformance suite's model reveals lost
//! or reappearing data.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::sync::RwLock;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::error::Result;
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, GetRequest, GetResponse, StageRequest,
};
use tradewind_core::{
    Address, Body, BucketName, Context, ObjectStore, Precondition, Staged, SystemClock, Tags,
};

use crate::test_store::drain;

/// The action between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartAction {
    Compact,
    Reopen,
    /// Restart without the index, which is rebuilt from the log.
    Reindex,
}

#[derive(Debug)]
pub struct RestartingStore {
    root: PathBuf,
    options: LocalOptions,
    capabilities: Capabilities,
    store: RwLock<Option<Arc<LocalStore>>>,
    calls: AtomicUsize,
    every: usize,
    turns: Vec<RestartAction>,
}

impl RestartingStore {
    /// Opens a store in `root` that performs the next action after each `every` calls.
    pub fn open(root: PathBuf, options: LocalOptions, every: usize, turns: Vec<RestartAction>) -> Arc<Self> {
        let store = LocalStore::open(&root, options.clone(), SystemClock::shared()).unwrap();
        let capabilities = store.capabilities().clone();
        let calls = AtomicUsize::new(0);
        Arc::new(Self { root, options, capabilities, store: RwLock::new(Some(store)), calls, every, turns })
    }

    async fn store(&self) -> Arc<LocalStore> {
        self.store.read().await.clone().unwrap()
    }

    /// The store, perhaps after an action; only for calls before which nothing is staged.
    async fn store_after_action(&self) -> Arc<LocalStore> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call % self.every == self.every - 1 {
            let turn = self.turns[(call / self.every) % self.turns.len()];
            let mut slot = self.store.write().await;
            let store = slot.take().unwrap();
            if turn == RestartAction::Compact {
                let compacting = store.clone();
                tokio::task::spawn_blocking(move || compacting.compact().unwrap()).await.unwrap();
                *slot = Some(store);
            } else {
                store.close().await.unwrap();
                drop(store);
                if turn == RestartAction::Reindex {
                    std::fs::remove_dir_all(self.root.join("index")).unwrap();
                }
                let again =
                    LocalStore::open(&self.root, self.options.clone(), SystemClock::shared()).unwrap();
                assert_eq!(again.recovery().damaged_bytes, 0);
                *slot = Some(again);
            }
        }
        self.store().await
    }
}

#[async_trait]
impl ObjectStore for RestartingStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.store_after_action().await.create_bucket(context, bucket).await
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.store_after_action().await.delete_bucket(context, bucket).await
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.store_after_action().await.head_bucket(context, bucket).await
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        self.store_after_action().await.list_buckets(context).await
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.store_after_action().await.head(context, address, request).await
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        // The body is read here, because an open one would prevent the store from being reopened.
        let found = self.store_after_action().await.get(context, address, request).await?;
        let body = Body::from_bytes(drain(found.body).await?);
        Ok(GetResponse { info: found.info, span: found.span, body, observation: found.observation })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.store_after_action().await.stage(context, address, request).await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.store_after_action().await.delete(context, address, precondition).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.store_after_action().await.list(context, bucket, request).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.store_after_action().await.copy(context, request).await
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        self.store_after_action().await.set_tags(context, address, tags).await
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        self.store_after_action().await.object_parts(context, address, after, limit).await
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        self.store_after_action().await.create_upload(context, address, request).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.store_after_action().await.stage_part(context, address, upload, number, request).await
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.store_after_action().await.copy_part(context, request).await
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        self.store_after_action().await.list_parts(context, address, upload, after, limit).await
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.store_after_action().await.list_uploads(context, bucket, request).await
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        self.store_after_action().await.complete_upload(context, address, upload, request).await
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.store_after_action().await.abort_upload(context, address, upload).await
    }

    async fn close(&self) -> Result<()> {
        self.store().await.close().await
    }
}
