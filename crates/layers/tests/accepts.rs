//! Each layer asks the stores below whether they accept a write.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{FaultPlan, Faulty, MemoryStore, Passthrough, context};
use tradewind_core::{Address, ObjectStore, SystemClock};
use tradewind_layers::deduplicated::{DeduplicationPolicy, MIN_MIN_OBJECT_BYTES};
use tradewind_layers::read_ahead::ReadAheadOptions;
use tradewind_layers::routed::ClassTiers;
use tradewind_layers::scheduled::Priorities;
use tradewind_layers::transformed::{ClassSet, Keyring, TransformPolicy};
use tradewind_layers::{
    Deduplicated, DiskQueue, Instrumented, ReadAhead, Routed, Scheduled, Sliced, Tier, Transformed, Volume,
    Volumes,
};
use tradewind_model::lanes::LanesOptions;
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_model::slices::DiskSpeed;

/// A store that rejects the key `rejected`.
#[derive(Debug)]
struct Selective(Arc<MemoryStore>);

#[async_trait]
impl ObjectStore for Selective {
    tradewind_core::forward_methods! {
        to: |store| &store.0;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads,
        complete_upload, abort_upload, close,
    }

    fn accepts(&self, address: &Address, _: &StageRequest) -> bool {
        address.key.as_str() != "rejected"
    }
}

fn memory() -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

fn selective() -> Arc<dyn ObjectStore> {
    Arc::new(Selective(MemoryStore::new(SystemClock::shared())))
}

fn volume(name: &str, store: Arc<dyn ObjectStore>, buckets: &[&str]) -> Volume {
    let buckets = buckets.iter().map(|name| tradewind_core::BucketName::new(name).unwrap()).collect();
    Volume { name: name.to_owned(), store, leaf: name.to_owned(), tiers: Vec::new(), layers: 0, buckets }
}

#[tokio::test]
async fn each_layer_asks_the_stores_below() {
    let clock = SystemClock::shared();
    let tier = |name: &str, store| Tier { name: name.to_owned(), store };
    let placement = ClassTiers::new;
    let read_ahead = ReadAheadOptions {
        plan: Plan::default(),
        max_read_ahead_bytes: 1 << 20,
        retries: RetryOptions::default(),
        etags_are_md5: false,
    };
    let policy = DeduplicationPolicy { classes: ClassSet::ALL, min_bytes: MIN_MIN_OBJECT_BYTES };
    let plain = TransformPolicy::default();
    let disk = DiskSpeed { positioning_time: Duration::from_millis(12), bytes_per_second: 140_000_000 };
    let layers: Vec<Arc<dyn ObjectStore>> = vec![
        selective(),
        Passthrough::new(selective()),
        Faulty::new(selective(), FaultPlan::none()),
        Instrumented::new(selective(), clock.clone()),
        Scheduled::new(selective(), LanesOptions::default(), Priorities::default(), clock.clone()),
        ReadAhead::new(selective(), read_ahead, clock.clone()),
        Sliced::new(selective(), DiskQueue::new(disk, clock)),
        Transformed::new(selective(), plain, Keyring::default()).unwrap(),
        Deduplicated::open(&context(), selective(), policy).await.unwrap(),
        Routed::new(vec![tier("fast", selective())], tier("base", memory()), placement()),
        Routed::new(vec![tier("fast", memory())], tier("base", selective()), placement()),
        Volumes::new(volume("one", selective(), &[]), vec![volume("two", memory(), &["other"])]),
        Volumes::new(volume("one", memory(), &[]), vec![volume("two", selective(), &["bucket"])]),
    ];
    for (number, layer) in layers.iter().enumerate() {
        let accepts = |key| layer.accepts(&Address::parse("bucket", key).unwrap(), &StageRequest::default());
        assert_eq!([accepts("rejected"), accepts("accepted")], [false, true], "{number}: {layer:?}");
    }
}
