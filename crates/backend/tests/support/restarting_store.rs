//! A store that is restarted between calls, so that a sequence played by the conformance suite's model reveals lost
//! or reappearing data.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::sync::RwLock;
use tradewind_backend::local::{LocalOptions, LocalStore};
use tradewind_core::error::Result;
use tradewind_core::store::{Capabilities, GetRequest, GetResponse};
use tradewind_core::{Address, Body, Context, ObjectStore, SystemClock};

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
                tokio::task::spawn_blocking(move || compacting.run_upkeep().unwrap()).await.unwrap();
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
    tradewind_core::forward_methods! {
        to: |layer| layer.store_after_action().await;
        create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning, head, stage, delete, list, list_versions, copy,
        set_tags, set_classes, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads,
        complete_upload, abort_upload,
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
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

    async fn close(&self) -> Result<()> {
        self.store().await.close().await
    }
}
