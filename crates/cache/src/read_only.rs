//! The layer `ReadOnly`: reads go on, and changes are rejected before they reach the store.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tradewind_core::error::Result;
use tradewind_core::layer::Method;
use tradewind_core::store::StageRequest;
use tradewind_core::{Address, Error, ObjectStore, Reason};

/// A store that clients cannot change: every change fails with [`AccessDenied`](Reason::AccessDenied).
pub struct ReadOnly {
    inner: Arc<dyn ObjectStore>,
}

impl ReadOnly {
    /// Rejects all changes of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner })
    }
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for ReadOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for ReadOnly {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        around: |_layer, call, response| if is_change(call.method) { rejected() } else { response.await };
        capabilities, prewarm, min_rtt, object_clock, create_bucket, delete_bucket, head_bucket, list_buckets,
        versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe, redescribe_upload,
        object_parts,
        create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    fn accepts(&self, _: &Address, _: &StageRequest) -> bool {
        false
    }
}

const fn is_change(method: Method) -> bool {
    match method {
        Method::HeadBucket
        | Method::ListBuckets
        | Method::Versioning
        | Method::Head
        | Method::Get
        | Method::List
        | Method::ListVersions
        | Method::ObjectParts
        | Method::ListParts
        | Method::ListUploads => false,
        Method::CreateBucket
        | Method::DeleteBucket
        | Method::SetVersioning
        | Method::Stage
        | Method::Delete
        | Method::Copy
        | Method::SetTags
        | Method::SetClasses
        | Method::Redescribe
        | Method::RedescribeUpload
        | Method::CreateUpload
        | Method::StagePart
        | Method::CopyPart
        | Method::CompleteUpload
        | Method::AbortUpload => true,
    }
}

fn rejected<T>() -> Result<T> {
    Err(Error::for_client(Reason::AccessDenied, "this bucket is read-only on this server"))
}
