//! A plain store and one with the layer, side by side.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::Result;
use tradewind_core::store::{GetRequest, Select, StageRequest};
use tradewind_core::stored_form::StoredForm;
use tradewind_core::testing::context;
use tradewind_core::{BucketName, Class, ObjectInfo, ObjectStore};
use tradewind_layers::Transformed;
use tradewind_layers::transformed::{ClassSet, Keyring, MasterKey, TransformPolicy};

pub use crate::side_by_side::{address, get, memory, read};
use crate::side_by_side::{assert_same_select, put_as};

/// Compression, encryption, and both.
pub const POLICIES: [TransformPolicy; 3] = [
    TransformPolicy { compress: ClassSet::ALL, encrypt: ClassSet::NONE },
    ENCRYPT,
    TransformPolicy { compress: ClassSet::ALL, encrypt: ClassSet::ALL },
];
pub const ENCRYPT: TransformPolicy = TransformPolicy { compress: ClassSet::NONE, encrypt: ClassSet::ALL };

pub fn key(number: u8) -> MasterKey {
    MasterKey::new([number; 32])
}

/// Keys with these names, the first of which is current. Keys of different names differ.
pub fn keyring(names: &[&str]) -> Keyring {
    let named = |name: &&str| ((*name).to_owned(), key(name.bytes().fold(0, u8::wrapping_add)));
    Keyring { current: names.first().map(|name| (*name).to_owned()), keys: names.iter().map(named).collect() }
}

pub fn transformed(below: Arc<dyn ObjectStore>, policy: TransformPolicy) -> Arc<Transformed> {
    Transformed::new(below, policy, keyring(&["main"])).unwrap()
}

pub fn classified(class: Option<u8>) -> StageRequest {
    let mut request = StageRequest::default();
    request.metadata.classes.object = class.map(|class| Class::new(class).unwrap());
    request
}

/// Text that shrinks to less than a quarter and differs at every offset.
pub fn compressible(size: usize) -> Bytes {
    let lines = (0_u64..).flat_map(|line| format!("{line} the quick brown fox jumps over it\n").into_bytes());
    lines.take(size).collect()
}

pub async fn put(store: &dyn ObjectStore, key: &str, bytes: Bytes) {
    put_as(store, key, StageRequest::default(), bytes).await.unwrap();
}

pub async fn select(store: &dyn ObjectStore, key: &str, select: Select) -> Result<(ObjectInfo, Bytes)> {
    let (info, _, bytes) = get(store, key, GetRequest { select, ..GetRequest::default() }).await?;
    Ok((info, bytes))
}

/// The bytes that the store below has.
pub async fn stored_bytes(below: &dyn ObjectStore, key: &str) -> Bytes {
    get(below, key, GetRequest { stored: true, ..GetRequest::default() }).await.unwrap().2
}

/// The stored form; `None` if the object is plain.
pub async fn segments(below: &dyn ObjectStore, key: &str) -> Option<StoredForm> {
    below.head(&context(), &address(key), GetRequest::default()).await.unwrap().info.stored
}

/// A plain store, and the layer over another one.
pub struct Desk {
    pub plain: Arc<dyn ObjectStore>,
    pub below: Arc<dyn ObjectStore>,
    pub layered: Arc<dyn ObjectStore>,
}

impl Desk {
    pub async fn new(policy: TransformPolicy) -> Self {
        Self::with_store(memory(), policy, keyring(&["main"])).await
    }

    pub async fn with_store(below: Arc<dyn ObjectStore>, policy: TransformPolicy, keys: Keyring) -> Self {
        let plain = memory();
        for store in [&plain, &below] {
            store.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        }
        let layered = Transformed::new(below.clone(), policy, keys).unwrap();
        Self { plain, below, layered }
    }

    pub fn both(&self) -> [Arc<dyn ObjectStore>; 2] {
        [self.plain.clone(), self.layered.clone()]
    }

    pub async fn assert_same(&self, key: &str) {
        self.assert_same_select(key, Select::Whole).await;
    }

    /// Both stores return the same for a HEAD and a GET.
    pub async fn assert_same_select(&self, key: &str, select: Select) {
        let [plain, layered] = self.both();
        assert_same_select(&*plain, &*layered, key, select).await;
    }
}
