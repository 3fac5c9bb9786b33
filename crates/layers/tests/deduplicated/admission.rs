//! The writes that a full queue of the store below may reject.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tradewind_core::error::Result;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::context;
use tradewind_core::{Address, Context, ObjectStore, Staged};

use super::copy_request;
use super::support::{CHUNKS, Desk, memory, noise, put};

/// Records for each write whether a full queue may reject it.
#[derive(Debug)]
struct AdmissionStore {
    inner: Arc<dyn ObjectStore>,
    writes: Mutex<Vec<Write>>,
}

#[derive(Debug, Clone, Copy)]
struct Write {
    is_chunk: bool,
    is_admitted: bool,
}

impl AdmissionStore {
    /// The writes since the last call: those of chunks, or the others.
    fn take_writes(&self, are_chunks: bool) -> Vec<bool> {
        let writes = std::mem::take(&mut *self.writes.lock());
        writes.iter().filter(|write| write.is_chunk == are_chunks).map(|write| write.is_admitted).collect()
    }
}

#[async_trait]
impl ObjectStore for AdmissionStore {
    tradewind_core::forward_methods! {
        to: |store| &store.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads,
        complete_upload, abort_upload, close,
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let write = Write { is_chunk: address.bucket.as_str() == CHUNKS, is_admitted: context.is_admitted };
        self.writes.lock().push(write);
        self.inner.stage(context, address, request).await
    }
}

#[tokio::test]
async fn full_queue_can_reject_the_first_new_chunk_and_copies() {
    let below = Arc::new(AdmissionStore { inner: memory(), writes: Mutex::default() });
    let desk = Desk::with_store(below.clone()).await;
    let old = noise(2 << 20, 1);
    below.take_writes(true);
    put(&*desk.layer, "old", old.clone()).await;
    let chunks = below.take_writes(true);
    assert!(!chunks[0] && chunks[chunks.len() - 1], "{chunks:?}");
    // Chunks that are found come first. They have waited in no queue.
    put(&*desk.layer, "new", Bytes::from([&old[..], &noise(2 << 20, 2)].concat())).await;
    let chunks = below.take_writes(true);
    assert!(!chunks[0] && chunks[chunks.len() - 1], "{chunks:?}");
    put(&*desk.layer, "again", old).await;
    assert_eq!(below.take_writes(false), [true]);
    desk.layer.copy(&context(), copy_request("old", "copy")).await.unwrap();
    assert_eq!(below.take_writes(false), [false]);
}
