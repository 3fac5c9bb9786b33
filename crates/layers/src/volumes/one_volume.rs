//! The buckets of one volume, as a store.

use std::sync::Arc;

use async_trait::async_trait;
use tradewind_core::error::Result;
use tradewind_core::store::BucketInfo;
use tradewind_core::{Context, ObjectStore};

use super::Volumes;

/// Lists the buckets of one volume; forwards all other requests to the volume of their bucket.
#[derive(Debug)]
pub(super) struct OneVolume {
    volumes: Arc<Volumes>,
    index: usize,
}

impl OneVolume {
    /// The buckets of the volume with this index.
    pub fn new(volumes: Arc<Volumes>, index: usize) -> Self {
        Self { volumes, index }
    }
}

#[async_trait]
impl ObjectStore for OneVolume {
    tradewind_core::forward_methods! {
        to: |one| &one.volumes;
        capabilities, prewarm, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket,
        versioning, set_versioning, head, get,
        stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload, stage_part, copy_part,
        list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        self.volumes.list_own_buckets(context, self.index).await
    }
}
