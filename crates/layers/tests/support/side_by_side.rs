//! Requests to a plain store and to one with a layer, which must have the same results.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::Result;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{GetRequest, GetResponse, Select, StageRequest};
use tradewind_core::testing::{MemoryStore, context, drain, write_all};
use tradewind_core::{Address, Generation, ObjectInfo, ObjectStore, Span, SystemClock, Timestamp};

pub fn memory() -> Arc<dyn ObjectStore> {
    MemoryStore::new(SystemClock::shared())
}

pub fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

/// Writes an object with the request's attributes.
pub async fn put_as(
    store: &dyn ObjectStore,
    key: &str,
    request: StageRequest,
    bytes: Bytes,
) -> Result<Committed> {
    let mut staged = store.stage(&context(), &address(key), request).await?;
    write_all(&mut *staged, bytes).await?;
    Ok(staged.commit(Expected::default()).await?.0)
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

pub async fn read(store: &dyn ObjectStore, key: &str) -> Bytes {
    get(store, key, GetRequest::default()).await.unwrap().2
}

/// Both stores return the same for a HEAD and a GET.
pub async fn assert_same_select(
    plain: &dyn ObjectStore,
    layered: &dyn ObjectStore,
    key: &str,
    select: Select,
) {
    let request = || GetRequest { select, ..GetRequest::default() };
    match (get(plain, key, request()).await, get(layered, key, request()).await) {
        (Ok((plain, plain_span, plain_bytes)), Ok((info, span, bytes))) => {
            assert_eq!((comparable(info), span), (comparable(plain), plain_span), "{select:?}");
            assert!(bytes == plain_bytes, "other bytes: {select:?}");
        }
        (Err(plain), Err(layered)) => assert_eq!(layered.reason(), plain.reason()),
        (plain, layered) => panic!("{select:?}: {:?}, {:?}", plain.map(|_| ()), layered.map(|_| ())),
    }
    let head = async |store: &dyn ObjectStore| {
        let head = store.head(&context(), &address(key), request()).await;
        head.map(|head| (comparable(head.info), head.span)).map_err(|error| error.reason())
    };
    assert_eq!(head(layered).await, head(plain).await);
}

/// The part of the metadata that equal objects of two stores share.
fn comparable(info: ObjectInfo) -> ObjectInfo {
    ObjectInfo { modified: Timestamp::default(), generation: Generation(0), ..info }
}
