//! A plain store and one with the layer, side by side.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::Result;
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, GetResponse, Select, StageRequest};
use tradewind_core::stored_form::StoredForm;
use tradewind_core::testing::{MemoryStore, context, drain, write_all};
use tradewind_core::{
    Address, BucketName, Class, Generation, ObjectInfo, ObjectStore, Span, SystemClock, Timestamp,
};
use tradewind_layers::Transformed;
use tradewind_layers::transformed::{ClassSet, Keyring, MasterKey, TransformPolicy};

/// Compression, encryption, and both.
pub const POLICIES: [TransformPolicy; 3] = [
    TransformPolicy { compress: ClassSet::ALL, encrypt: ClassSet::NONE },
    ENCRYPT,
    TransformPolicy { compress: ClassSet::ALL, encrypt: ClassSet::ALL },
];
pub const ENCRYPT: TransformPolicy = TransformPolicy { compress: ClassSet::NONE, encrypt: ClassSet::ALL };

pub fn memory() -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

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

pub fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
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
    let mut staged = store.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
    write_all(&mut *staged, bytes).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
}

pub async fn get(
    store: &dyn ObjectStore,
    key: &str,
    request: GetRequest,
) -> Result<(ObjectInfo, Span, Bytes)> {
    let GetResponse { info, span, body, .. } = store.get(&context(), &address(key), request).await?;
    let length = body.length();
    let bytes = drain(body).await?;
    assert_eq!((bytes.len() as u64, span.length), (length, length), "a body has the length of its span");
    Ok((info, span, bytes))
}

pub async fn select(store: &dyn ObjectStore, key: &str, select: Select) -> Result<(ObjectInfo, Bytes)> {
    let (info, _, bytes) = get(store, key, GetRequest { select, ..GetRequest::default() }).await?;
    Ok((info, bytes))
}

pub async fn read(store: &dyn ObjectStore, key: &str) -> Bytes {
    get(store, key, GetRequest::default()).await.unwrap().2
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
        let request = || GetRequest { select, ..GetRequest::default() };
        let [plain, layered] = self.both();
        match (get(&*plain, key, request()).await, get(&*layered, key, request()).await) {
            (Ok((plain, plain_span, plain_bytes)), Ok((info, span, bytes))) => {
                assert_eq!((comparable(info), span), (comparable(plain), plain_span), "{select:?}");
                assert!(bytes == plain_bytes, "other bytes: {select:?}");
            }
            (Err(plain), Err(layered)) => assert_eq!(layered.reason(), plain.reason()),
            (plain, layered) => panic!("{select:?}: {:?}, {:?}", plain.map(|_| ()), layered.map(|_| ())),
        }
        let head = |store: Arc<dyn ObjectStore>| async move {
            let head = store.head(&context(), &address(key), request()).await;
            head.map(|head| (comparable(head.info), head.span)).map_err(|error| error.reason())
        };
        assert_eq!(head(layered).await, head(plain).await);
    }
}

/// The part of the metadata that equal objects of two stores share.
fn comparable(info: ObjectInfo) -> ObjectInfo {
    ObjectInfo { modified: Timestamp::default(), generation: Generation(0), ..info }
}
