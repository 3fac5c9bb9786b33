use async_trait::async_trait;
use tradewind_core::store::Capabilities;
use tradewind_core::testing::{MemoryStore, context};
use tradewind_core::{Budget, SystemClock};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;

use super::*;

const MIB: usize = 1 << 20;

/// A store that accepts parts of one size only.
#[derive(Debug)]
struct EqualParts {
    below: Arc<MemoryStore>,
    capabilities: Capabilities,
}

#[async_trait]
impl ObjectStore for EqualParts {
    tradewind_core::forward_methods! {
        to: |layer| &layer.below;
        create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning, head, get, stage, delete,
        list, list_versions, list_uploads, set_tags, set_classes, object_parts, create_upload, stage_part, copy, copy_part,
        list_parts, complete_upload, abort_upload, close,
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
}

/// Uploads a stream in parts of 5 MiB, which double after two parts; the store has eight parts.
async fn upload(are_equal: bool, bytes: usize, expected: Option<usize>) -> (Vec<u64>, Result<Committed>) {
    let below = MemoryStore::new(SystemClock::shared());
    let mut capabilities = below.capabilities().clone();
    if are_equal {
        capabilities.unsupported = &[Feature::UnequalParts];
    }
    let store: Arc<dyn ObjectStore> = Arc::new(EqualParts { below, capabilities });
    let address = Address::parse("bucket", "key").unwrap();
    store.create_bucket(&context(), &address.bucket).await.unwrap();
    let (plan, memory) = (Plan::default().with_chunk_bytes(5 << 20), Budget::new(256 << 20));
    let transfers = TransferContext::new(plan, memory, SystemClock::shared(), RetryOptions::default());
    let mut upload = StreamingUpload::new(&Arc::new(transfers), &store, &address, Metadata::default());
    upload.sizes = upload.sizes.with_limits(2, 8);
    if let Some(expected) = expected {
        upload = upload.with_expected_bytes(expected as u64);
    }
    let piece = vec![7; MIB];
    for _ in 0..bytes / MIB {
        if let Err(e) = upload.write(&piece).await {
            upload.fail(&e).await;
            return (Vec::new(), Err(e));
        }
    }
    let stored = upload.finish().await;
    let sizes = match &stored {
        Ok(_) => {
            let (parts, _) = store.object_parts(&context(), &address, None, 100).await.unwrap();
            parts.iter().map(|part| part.size >> 20).collect()
        }
        Err(_) => Vec::new(),
    };
    (sizes, stored)
}

#[tokio::test]
async fn stream_has_equal_parts_where_the_store_needs_them() {
    assert_eq!(upload(true, 33 * MIB, None).await.0, [5, 5, 5, 5, 5, 5, 3]);
    assert_eq!(upload(false, 33 * MIB, None).await.0, [5, 10, 10, 8]);
    assert_eq!(upload(true, 40 * MIB, None).await.0, [5; 8]);
}

#[tokio::test]
async fn stream_that_is_too_long_names_the_flags() {
    let failed = upload(true, 41 * MIB, None).await.1.unwrap_err();
    assert_eq!(failed.reason(), Reason::EntityTooLarge);
    let message = failed.to_string();
    for word in ["more than 41943040 bytes", "8 parts", "--chunk-size", "--expected-size"] {
        assert!(message.contains(word), "{message}");
    }
}

#[tokio::test]
async fn expected_size_chooses_the_part_size() {
    assert_eq!(upload(true, 80 * MIB, Some(80 * MIB)).await.0, [10; 8]);
    assert_eq!(upload(false, 81 * MIB, Some(81 * MIB)).await.0, [11, 11, 11, 11, 11, 11, 11, 4]);
    assert_eq!(upload(false, 8 * MIB, Some(80 * MIB)).await.0, Vec::<u64>::new());
}
