//! Selective allocation: the fuller the journal, the higher the rank that a write needs.

use tradewind_core::testing::SimulatedClock;
use tradewind_core::{Class, Classes, Metadata};
use tradewind_model::admission::WriteRank;
use tradewind_model::class_policy::ClassPolicyTable;

use super::*;

const LIMIT: u64 = 64 << 10;
const OBJECT: u64 = LIMIT / 8;

/// Ranks by the default policy.
#[derive(Debug)]
struct ByClass;

impl WriteBackPolicy for ByClass {
    fn rank(&self, metadata: &Metadata, size: u64) -> Option<WriteRank> {
        Some(WriteRank::for_object(&ClassPolicyTable::default(), &metadata.classes, size))
    }
}

/// Ranks tiny objects as if they were large: those of up to 2 bytes first.
#[derive(Debug)]
pub struct ByScaledSize;

impl WriteBackPolicy for ByScaledSize {
    fn rank(&self, metadata: &Metadata, size: u64) -> Option<WriteRank> {
        ByClass.rank(metadata, size << 17)
    }
}

async fn open(stores: &Stores, delay: Duration) -> Arc<WriteBack> {
    let options = WriteBackOptions { max_dirty_bytes: LIMIT, ..options(delay) };
    stores.open_with_policy(Arc::new(ByClass), options).await
}

fn labelled(class: u8, size: u64) -> StageRequest {
    let mut request = StageRequest { size: Some(size), ..StageRequest::default() };
    request.metadata.classes = Classes { object: Some(Class::new(class).unwrap()), ..Classes::default() };
    request
}

async fn try_put_labelled(store: &dyn ObjectStore, name: &str, class: u8, size: u64) -> Result<()> {
    let mut staged = store.stage(&context(), &key(name), labelled(class, size)).await?;
    staged.write(vec![class; usize::try_from(size).unwrap()].into()).await?;
    staged.commit(Expected::default()).await.map(drop)
}

async fn put_labelled(store: &dyn ObjectStore, name: &str, class: u8, size: u64) {
    try_put_labelled(store, name, class, size).await.unwrap();
}

async fn put_small(layer: &WriteBack) {
    for number in 0..200 {
        put_labelled(layer, &format!("small-{number}"), 25, 5).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_priority_bypasses_a_filling_journal_and_high_enters() {
    let stores = Stores::new().await;
    let layer = open(&stores, NEVER).await;
    put_small(&layer).await;
    for number in 0..5 {
        put_labelled(&*layer, &format!("large-{number}"), 31, OBJECT).await;
    }
    let status = layer.status();
    assert_eq!((status.bypassed, status.through), (2, 2), "three fit below the watermark");
    assert_eq!(status.dirty_bytes, 3 * OBJECT + 1000);
    put_labelled(&*layer, "file", 25, OBJECT).await;
    assert_eq!(layer.status().dirty_bytes, 4 * OBJECT + 1000);
    // Objects that bypassed the journal are complete, and are read from the backing store.
    assert_eq!(get(&*stores.backing, "large-4").await.unwrap(), vec![31; usize::try_from(OBJECT).unwrap()]);
    assert_eq!(get(&*layer, "large-0").await.unwrap(), vec![31; usize::try_from(OBJECT).unwrap()]);
    lose(layer, &stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_class_alone_fills_the_journal() {
    let stores = Stores::new().await;
    let layer = open(&stores, NEVER).await;
    // The bucket is claimed by a write to the backing store.
    put_labelled(&*layer, "large-0", 31, OBJECT).await;
    stores.backing.set_plan(all_fail(&[Operation::Stage], Reason::Io));
    for number in 1..8 {
        put_labelled(&*layer, &format!("large-{number}"), 31, OBJECT).await;
    }
    assert_eq!((layer.status().dirty_bytes, layer.status().bypassed), (LIMIT, 0));
    lose(layer, &stores).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_bypasses_replaces_dirty_data_of_its_key() {
    let stores = Stores::new().await;
    let layer = open(&stores, NEVER).await;
    for number in 0..40 {
        put_labelled(&*layer, &format!("small-{number}"), 25, OBJECT / 10).await;
    }
    assert_eq!(layer.status().dirty_objects, 40);
    put_labelled(&*layer, "small-7", 31, OBJECT).await;
    assert_eq!((layer.status().bypassed, layer.status().dirty_objects), (1, 39));
    lose(layer, &stores).await;
    let layer = open(&stores, NEVER).await;
    assert_eq!(get(&*layer, "small-7").await.unwrap(), vec![31; usize::try_from(OBJECT).unwrap()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_priority_fills_the_journal_while_the_backing_store_is_away() {
    let stores = Stores::new().await;
    let options = WriteBackOptions { max_dirty_bytes: LIMIT, concurrency: 1, ..options(NEVER) };
    let layer = stores.open_with_policy(Arc::new(ByClass), options).await;
    put_small(&layer).await;
    stores.backing.set_plan(away());
    for number in 0..6 {
        put_labelled(&*layer, &format!("file-{number}"), 25, OBJECT).await;
    }
    wait_until("an attempt to write back fails", async || layer.status().failures > 0).await;
    put_labelled(&*layer, "large", 31, OBJECT).await;
    assert_eq!((layer.status().dirty_bytes, layer.status().bypassed), (7 * OBJECT + 1000, 0));
    let error = try_put_labelled(&*layer, "full", 31, OBJECT).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Overloaded, "nothing was sent");
    assert!(error.client_message().unwrap().contains("send the request again later"), "{error:?}");
    stores.backing.set_plan(FaultPlan::none());
    wait_until("the pressure is over", async || layer.status().dirty_bytes <= LIMIT / 4 * 3).await;
    wait_until("low priority bypasses again", async || {
        put_labelled(&*layer, "bypass", 31, OBJECT).await;
        layer.status().bypassed > 0
    })
    .await;
    lose(layer, &stores).await;
}

/// A change that goes through would be rejected, because the key cannot be written back first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_priority_overwrite_of_an_uncertain_key_enters_a_filling_journal() {
    let (stores, clock) = (Stores::new().await, SimulatedClock::new());
    let options = WriteBackOptions {
        max_dirty_bytes: LIMIT,
        uncertain_window: Duration::from_secs(60),
        ..options(NEVER)
    };
    let open = async || {
        let (backing, journal) = (stores.backing.clone(), stores.journal.clone());
        WriteBack::open(backing, journal, Arc::new(ByClass), options.clone(), clock.clone()).await.unwrap()
    };
    let layer = open().await;
    for number in 0..4 {
        put_labelled(&*layer, &format!("file-{number}"), 25, OBJECT).await;
    }
    put_labelled(&*layer, "tiny", 25, 1).await;
    lose(layer, &stores).await;
    let layer = open().await;
    put_small(&layer).await;
    put_labelled(&*layer, "tiny", 31, OBJECT).await;
    assert_eq!((layer.status().through, layer.status().bypassed), (0, 0));
    put_labelled(&*layer, "clean", 31, OBJECT).await;
    assert_eq!((layer.status().through, layer.status().bypassed), (1, 1));
    assert_eq!(get(&*layer, "tiny").await.unwrap(), vec![31; usize::try_from(OBJECT).unwrap()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwrite_without_growth_enters_a_journal_at_its_limit() {
    let stores = Stores::new().await;
    let layer = stores.open_with(WriteBackOptions { max_dirty_objects: 8, ..options(NEVER) }).await;
    put(&*layer, "k0", "first").await;
    // The drain makes no room either.
    stores.backing.set_plan(all_fail(&[Operation::Stage, Operation::Delete], Reason::Io));
    for n in 1..8 {
        put(&*layer, &format!("k{n}"), "first").await;
    }
    put(&*layer, "k3", "again").await;
    assert!(delete(&*layer, "k4").await);
    assert_eq!((layer.status().through, layer.status().dirty_objects), (0, 8));
    assert_eq!(reason(try_put(&*layer, "new", "x", Precondition::None).await), Reason::Io);
    assert_eq!(get(&*layer, "k3").await.unwrap(), b"again");
}

/// Under pressure the largest object is written back first; the small ones stay in the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pressure_writes_the_largest_object_back_first() {
    let stores = Stores::new().await;
    let options = WriteBackOptions { max_dirty_bytes: LIMIT, concurrency: 1, ..options(NEVER) };
    let layer = stores.open_with_policy(Arc::new(ByClass), options).await;
    put_labelled(&*layer, "small", 25, 1).await;
    for number in 0..7 {
        put_labelled(&*layer, &format!("file-{number}"), 25, OBJECT).await;
    }
    wait_until("the pressure is over", async || layer.status().dirty_bytes <= LIMIT / 4 * 3).await;
    assert!(!names(&*stores.backing).await.contains(&"small".to_owned()), "the oldest is the smallest");
    assert!(get(&*stores.backing, "file-0").await.is_ok());
    lose(layer, &stores).await;
}
