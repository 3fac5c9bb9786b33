//! A routed store over two memory stores with faults: `ssd` has small objects and those of class 25, `disk` the rest.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::Result;
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::{FaultPlan, Faulty, MemoryStore, context, drain, write_all};
use tradewind_core::{
    Address, BucketName, Class, Metadata, ObjectInfo, ObjectStore, Precondition, SystemClock,
};
use tradewind_layers::routed::{ClassTiers, Placement};
use tradewind_layers::{Routed, Tier};

/// Small objects and those of class 25 in the first tier.
pub fn by_class() -> ClassTiers {
    let classes = [11, 12, 13, 14, 25].map(|value| Class::new(value).unwrap());
    classes.into_iter().fold(ClassTiers::new(), |tiers, class| tiers.with_class(class, 0))
}

pub fn memory() -> Arc<MemoryStore> {
    MemoryStore::new(SystemClock::shared())
}

pub fn tier(name: &str, store: Arc<dyn ObjectStore>) -> Tier {
    Tier { name: name.to_owned(), store }
}

pub fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

pub fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

/// A write of an object of a class.
pub fn of_class(value: u8) -> StageRequest {
    let mut metadata = Metadata::default();
    metadata.classes.object = Some(Class::new(value).unwrap());
    StageRequest { metadata, ..StageRequest::default() }
}

/// The class of objects in each tier.
pub const SSD: u8 = 25;
pub const DISK: u8 = 26;

pub struct Fixture {
    pub ssd: Arc<Faulty<MemoryStore>>,
    pub disk: Arc<Faulty<MemoryStore>>,
    pub routed: Arc<Routed>,
}

impl Fixture {
    /// With an empty bucket.
    pub async fn new() -> Self {
        let [ssd, disk] = [(); 2].map(|()| Faulty::new(memory(), FaultPlan::none()));
        let routed = route(&ssd, &disk, by_class());
        routed.create_bucket(&context(), &bucket()).await.unwrap();
        Self { ssd, disk, routed }
    }

    /// A new layer over the same tiers, as after a restart.
    pub fn restart(&mut self, placement: impl Placement) {
        self.routed = route(&self.ssd, &self.disk, placement);
    }

    pub async fn put(&self, key: &str, bytes: impl Into<Bytes>, request: StageRequest) -> Committed {
        put(&*self.routed, key, bytes, request).await.unwrap()
    }

    pub async fn read(&self, key: &str) -> Result<(ObjectInfo, Bytes)> {
        let found = self.routed.get(&context(), &address(key), GetRequest::default()).await?;
        Ok((found.info, drain(found.body).await?))
    }

    pub async fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.routed.delete(&context(), &address(key), Precondition::None).await?.existed)
    }

    /// The tiers that have a copy.
    pub async fn holders(&self, key: &str) -> Vec<&'static str> {
        let mut holders = Vec::new();
        for (name, store) in [("ssd", &self.ssd), ("disk", &self.disk)] {
            if store.head(&context(), &address(key), GetRequest::default()).await.is_ok() {
                holders.push(name);
            }
        }
        holders
    }

    pub async fn keys(&self) -> Vec<String> {
        keys(&*self.routed).await
    }
}

fn route(
    ssd: &Arc<Faulty<MemoryStore>>,
    disk: &Arc<Faulty<MemoryStore>>,
    placement: impl Placement,
) -> Arc<Routed> {
    Routed::new(vec![tier("ssd", ssd.clone())], tier("disk", disk.clone()), placement)
}

pub async fn put(
    store: &dyn ObjectStore,
    key: &str,
    bytes: impl Into<Bytes>,
    request: StageRequest,
) -> Result<Committed> {
    let context = context();
    let mut staged = store.stage(&context, &address(key), request).await?;
    write_all(&mut *staged, bytes.into()).await?;
    Ok(staged.commit(Expected::default()).await?.0)
}

/// All keys, in small pages.
pub async fn keys(store: &dyn ObjectStore) -> Vec<String> {
    let mut request = ListRequest { limit: 3, ..ListRequest::default() };
    let mut keys = Vec::new();
    loop {
        let page = store.list(&context(), &bucket(), &request).await.unwrap();
        keys.extend(page.entries.iter().map(|entry| match entry {
            ListEntry::Key(key, _) => key.clone(),
            ListEntry::CommonPrefix(prefix) => panic!("a prefix without a delimiter: {prefix}"),
        }));
        match page.next {
            Some(next) => request.after = Some(next),
            None => return keys,
        }
    }
}
