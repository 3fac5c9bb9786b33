//! The claim of write-back: the marker of a bucket in the backing store, and the record of it in the journal.

use std::sync::Arc;
use std::time::Duration;

use tradewind_cache::{AllowAll, MARKER_KEY, WriteBack, WriteBackOptions};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context};
use tradewind_core::{Address, BucketName, ObjectStore, Precondition, Result, SystemClock};

use super::{Damage, flipped};

const KEY: &str = "key";

/// A backing store and a journal that outlive the layer over them.
struct Stores {
    backing: Arc<MemoryStore>,
    journal: Arc<MemoryStore>,
}

/// The store that has the damaged object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damaged {
    Marker,
    Record,
}

impl Stores {
    async fn new() -> Self {
        let memory = || MemoryStore::new(SystemClock::shared());
        let stores = Self { backing: memory(), journal: memory() };
        stores.backing.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        stores
    }

    async fn open(&self, delay: Duration) -> Result<Arc<WriteBack>> {
        let options = WriteBackOptions {
            delay,
            ownership_check: Duration::ZERO,
            close_timeout: Duration::from_millis(50),
            ..WriteBackOptions::default()
        };
        let (backing, journal) = (self.backing.clone(), self.journal.clone());
        WriteBack::open(backing, journal, Arc::new(AllowAll), options, SystemClock::shared()).await
    }

    fn store(&self, damaged: Damaged) -> &MemoryStore {
        match damaged {
            Damaged::Marker => &self.backing,
            Damaged::Record => &self.journal,
        }
    }
}

const NEVER: Duration = Duration::from_secs(100_000);

async fn put(store: &dyn ObjectStore, key: &str, bytes: &[u8]) {
    let address = Address::parse("bucket", key).unwrap();
    let mut staged = store.stage(&context(), &address, StageRequest::default()).await.unwrap();
    staged.write(bytes.to_vec().into()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

async fn get(store: &dyn ObjectStore, key: &str) -> Result<Vec<u8>> {
    let address = Address::parse("bucket", key).unwrap();
    let found = store.get(&context(), &address, GetRequest::default()).await?;
    Ok(found.body.collect().await?.to_vec())
}

/// A store with version 1 of the key, and a journal with version 2. Returns the markers and records of the previous
/// generation.
async fn two_generations(stores: &Stores) -> [Vec<u8>; 2] {
    let layer = stores.open(NEVER).await.unwrap();
    put(&*stores.backing, KEY, b"version 1").await;
    assert_eq!(get(&*layer, KEY).await.unwrap(), b"version 1");
    put(&*layer, "other", b"claims the bucket").await;
    let older =
        [get(&*stores.backing, MARKER_KEY).await.unwrap(), get(&*stores.journal, MARKER_KEY).await.unwrap()];
    drop(layer);
    // Each opening renews the claim. An earlier one may be in the record until the next one is confirmed.
    for _ in 0..2 {
        let layer = stores.open(NEVER).await.unwrap();
        put(&*layer, KEY, b"version 2").await;
        assert_eq!(get(&*layer, KEY).await.unwrap(), b"version 2");
        drop(layer);
    }
    older
}

async fn check(damaged: Damaged, damage: Damage) {
    let stores = Stores::new().await;
    let older = two_generations(&stores).await;
    let foreign = Stores::new().await;
    two_generations(&foreign).await;
    let store = stores.store(damaged);
    let address = Address::parse("bucket", MARKER_KEY).unwrap();
    let intact = get(store, MARKER_KEY).await.unwrap();
    let contents = match damage {
        Damage::Missing => vec![None],
        Damage::Empty => vec![Some(Vec::new())],
        Damage::Flipped => flipped(&intact).into_iter().map(Some).collect(),
        Damage::Older => {
            let [marker, record] = older;
            vec![Some(if damaged == Damaged::Marker { marker } else { record })]
        }
        Damage::Foreign => vec![Some(get(foreign.store(damaged), MARKER_KEY).await.unwrap())],
    };
    for content in contents {
        let case = format!("{damaged:?} {damage:?}");
        match &content {
            None => drop(store.delete(&context(), &address, Precondition::None).await.unwrap()),
            Some(bytes) => put(store, MARKER_KEY, bytes).await,
        }
        let found = match stores.open(NEVER).await {
            Ok(layer) => get(&*layer, KEY).await,
            Err(refusal) => Err(refusal),
        };
        match found {
            Ok(bytes) => assert_eq!(bytes, b"version 2", "{case}"),
            Err(refusal) => {
                let remedies = ["serve it with that journal", "keep this journal", "restore"];
                let has_remedy = remedies.iter().any(|remedy| refusal.message().contains(remedy));
                assert!(has_remedy, "{case}: {}", refusal.message());
            }
        }
        put(store, MARKER_KEY, &intact).await;
    }
}

#[tokio::test]
async fn marker_with_any_fault_never_lets_older_data_be_served() {
    for damage in Damage::ALL {
        check(Damaged::Marker, damage).await;
    }
}

#[tokio::test]
async fn record_with_any_fault_never_lets_older_data_be_served() {
    for damage in Damage::ALL {
        check(Damaged::Record, damage).await;
    }
}
