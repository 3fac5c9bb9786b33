//! A store that outlives the caches in front of it: closing a cache does not close it.

use std::sync::Arc;

use async_trait::async_trait;
use tradewind_core::testing::{Faulty, MemoryStore};
use tradewind_core::{ObjectStore, Result};

/// See the module's head.
#[derive(Debug)]
pub struct Lasting(pub Arc<Faulty<MemoryStore>>);

#[async_trait]
impl ObjectStore for Lasting {
    tradewind_core::forward_methods! {
        to: |layer| &layer.0;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload,
        stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload,
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
