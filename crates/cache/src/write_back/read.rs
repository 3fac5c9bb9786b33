//! Reads: of dirty keys from the journal, of all others from the backing store.

use std::future::Future;
use std::sync::Arc;

use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::multipart::{PartInfo, PartNumber};
use tradewind_core::store::{GetRequest, GetResponse};
use tradewind_core::{Address, Body, Context};

use super::Shared;
use super::dirty_index::DirtyState;
use super::journal::{dirty_generation, is_tombstone};

/// The place where a key is read.
enum ReadFrom {
    Journal,
    Backing,
}

/// Attempts to find a key that is being written back. Each but the first waits for the end of the write-back.
const MAX_ATTEMPTS: usize = 100;

impl Shared {
    /// See [`ObjectStore::head`](tradewind_core::ObjectStore::head).
    pub async fn head(
        self: Arc<Self>,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        let journaled = async || {
            let found = self.journal.store.head(context, address, request.clone()).await;
            self.dirty_response(context, address, found).await
        };
        match self.read_dirty(context, address, journaled).await? {
            Some(found) => Ok(found),
            None => self.backing.head(context, address, request).await,
        }
    }

    /// See [`ObjectStore::get`](tradewind_core::ObjectStore::get).
    pub async fn get(
        self: Arc<Self>,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let journaled = async || {
            let found = self.journal.store.get(context, address, request.clone()).await;
            self.dirty_response(context, address, found).await
        };
        match self.read_dirty(context, address, journaled).await? {
            Some(found) => Ok(found),
            None => self.backing.get(context, address, request).await,
        }
    }

    /// See [`ObjectStore::object_parts`](tradewind_core::ObjectStore::object_parts).
    pub async fn object_parts(
        self: Arc<Self>,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        let journaled = async || {
            let found = self.journal.store.head(context, address, GetRequest::default()).await;
            if self.dirty_response(context, address, found).await?.is_none() {
                return Ok(None);
            }
            self.journal.store.object_parts(context, address, after, limit).await.map(Some)
        };
        match self.read_dirty(context, address, journaled).await? {
            Some(found) => Ok(found),
            None => self.backing.object_parts(context, address, after, limit).await,
        }
    }

    /// Reads a key from the journal if it is dirty. `journaled` returns `None` for a deletion.
    async fn read_dirty<T, F: Future<Output = Result<Option<T>>> + Send>(
        self: &Arc<Self>,
        context: &Context,
        address: &Address,
        journaled: impl Fn() -> F,
    ) -> Result<Option<T>> {
        for _ in 0..MAX_ATTEMPTS {
            match self.locate(context, address).await? {
                ReadFrom::Backing => return Ok(None),
                ReadFrom::Journal => {}
            }
            match journaled().await {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => return Err(Error::no_such_key(address.key.as_str())),
                Err(e) if e.reason() == Reason::NoSuchKey || e.reason() == Reason::NoSuchBucket => {
                    // It was written back meanwhile, or deleted.
                    drop(context.guard(self.transfer_locks.lock(address)).await?);
                }
                Err(e) => return Err(e),
            }
        }
        let message = format!("key {:?} is dirty, but not in the journal", address.key);
        Err(Error::new(Reason::CorruptData, message))
    }

    async fn locate(self: &Arc<Self>, context: &Context, address: &Address) -> Result<ReadFrom> {
        self.check_open(context)?;
        self.bucket(context, &address.bucket).await?;
        if super::is_marker(address) {
            return Err(Error::no_such_key(address.key.as_str()));
        }
        if address.version.is_some() {
            self.clone().flush_source(context, address).await?;
            return Ok(ReadFrom::Backing);
        }
        match self.index.get(address).map(|entry| entry.state) {
            None => Ok(ReadFrom::Backing),
            Some(DirtyState::Object(_)) => Ok(ReadFrom::Journal),
            Some(DirtyState::Tombstone) => Err(Error::no_such_key(address.key.as_str())),
        }
    }

    /// The response of the journal, as one of this store; `None` for a deletion that replaced the object since it was
    /// looked up.
    async fn dirty_response<B>(
        &self,
        context: &Context,
        address: &Address,
        found: Result<GetResponse<B>>,
    ) -> Result<Option<GetResponse<B>>> {
        match found {
            Ok(found) if is_tombstone(&found.info) => Ok(None),
            Ok(mut found) => {
                found.info.generation = dirty_generation(found.info.generation);
                Ok(Some(found))
            }
            // Conditions and ranges of the request may have failed on the deletion.
            Err(e) if matches!(e.kind(), ErrorKind::Precondition | ErrorKind::Invalid) => {
                let head = self.journal.store.head(context, address, GetRequest::default()).await?;
                if is_tombstone(&head.info) { Ok(None) } else { Err(e) }
            }
            Err(e) => Err(e),
        }
    }
}
