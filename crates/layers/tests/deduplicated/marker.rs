//! The marker of the bucket of chunks: damaged, lost, or of another version.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{GetRequest, GetResponse, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Address, Body, Context, ObjectStore, Precondition, Staged};
use tradewind_layers::Deduplicated;

use super::damage::replace_chunk;
use super::support::{CHUNKS, Desk, POLICY, chunks, noise, put, read};

/// The unreadable parts of a damaged marker, until it is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Bytes,
    BytesAndHead,
}

#[derive(Debug)]
struct DamagedMarker {
    inner: Arc<dyn ObjectStore>,
    damage: Mutex<Option<Damage>>,
}

impl DamagedMarker {
    fn new(inner: Arc<dyn ObjectStore>, damage: Damage) -> Arc<Self> {
        Arc::new(Self { inner, damage: Mutex::new(Some(damage)) })
    }

    fn check(&self, address: &Address, is_damaged: impl Fn(Damage) -> bool) -> Result<()> {
        match *self.damage.lock() {
            Some(damage) if *address == marker() && is_damaged(damage) => {
                Err(Error::new(Reason::CorruptData, "its data is damaged"))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ObjectStore for DamagedMarker {
    tradewind_core::forward_methods! {
        to: |store| &store.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads,
        complete_upload, abort_upload, close,
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        self.check(address, |damage| damage == Damage::BytesAndHead)?;
        self.inner.head(context, address, request).await
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        self.check(address, |_| true)?;
        self.inner.get(context, address, request).await
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        if *address == marker() {
            *self.damage.lock() = None;
        }
        self.inner.stage(context, address, request).await
    }
}

fn marker() -> Address {
    Address::parse(CHUNKS, "format").unwrap()
}

async fn lose_marker(below: &dyn ObjectStore) {
    below.delete(&context(), &marker(), Precondition::None).await.unwrap();
}

/// Opens the layer, which has the object `k`.
async fn open_and_read(below: Arc<dyn ObjectStore>) {
    let layer = Deduplicated::open_unprepared(&context(), below, POLICY).await.unwrap();
    assert!(layer.is_ready());
    assert!(read(&*layer, "k").await == noise(300_000, 1));
}

async fn opening_error(below: Arc<dyn ObjectStore>) -> Error {
    Deduplicated::open_unprepared(&context(), below, POLICY).await.unwrap_err()
}

async fn desk() -> Desk {
    let desk = Desk::new().await;
    put(&*desk.layer, "k", noise(300_000, 1)).await;
    desk
}

#[tokio::test]
async fn damaged_marker_is_written_again_by_its_checksum_or_by_chunks() {
    let desk = desk().await;
    for damage in [Damage::Bytes, Damage::BytesAndHead] {
        let damaged = DamagedMarker::new(desk.below.clone(), damage);
        open_and_read(damaged.clone()).await;
        assert_eq!(*damaged.damage.lock(), None, "it is written again");
    }
    // Without chunks, only the checksum shows the version.
    desk.layer.delete(&context(), &super::address("k"), Precondition::None).await.unwrap();
    desk.collect().await;
    let damaged = DamagedMarker::new(desk.below.clone(), Damage::Bytes);
    assert!(Deduplicated::open_unprepared(&context(), damaged, POLICY).await.unwrap().is_ready());
    let error = opening_error(DamagedMarker::new(desk.below.clone(), Damage::BytesAndHead)).await;
    assert_eq!(error.reason(), Reason::CorruptData);
    assert!(error.message().contains("\"format\"") && error.message().contains("delete"), "{error}");
}

#[tokio::test]
async fn lost_marker_is_written_again_if_there_are_chunks() {
    let desk = desk().await;
    lose_marker(&*desk.below).await;
    open_and_read(desk.below.clone()).await;
    desk.below.head(&context(), &marker(), GetRequest::default()).await.unwrap();
    // One of the objects is no chunk of this layer.
    lose_marker(&*desk.below).await;
    replace_chunk(&*desk.below, "photo.jpg", noise(10, 1)).await;
    assert_eq!(opening_error(desk.below.clone()).await.reason(), Reason::InvalidArgument);
}

#[tokio::test]
async fn marker_of_a_later_version_is_rejected_also_if_damaged_or_lost() {
    let desk = desk().await;
    let later = Bytes::from_static(b"tradewind deduplicated chunks 2\n");
    replace_chunk(&*desk.below, "format", later).await;
    assert_eq!(opening_error(desk.below.clone()).await.reason(), Reason::InvalidArgument);
    let damaged = DamagedMarker::new(desk.below.clone(), Damage::Bytes);
    assert_eq!(opening_error(damaged.clone()).await.reason(), Reason::InvalidArgument);
    assert!(damaged.damage.lock().is_some(), "it is not written");
    // Chunks of another form, which have not the bytes of their hashes.
    for key in chunks(&*desk.below).await.0 {
        replace_chunk(&*desk.below, &key, noise(100, 9)).await;
    }
    let damaged = DamagedMarker::new(desk.below.clone(), Damage::BytesAndHead);
    assert_eq!(opening_error(damaged).await.reason(), Reason::CorruptData);
    lose_marker(&*desk.below).await;
    assert_eq!(opening_error(desk.below.clone()).await.reason(), Reason::InvalidArgument);
}

/// A service has a right checksum of a marker that other tools emptied or overwrote.
#[tokio::test]
async fn marker_that_names_no_version_is_written_again_if_there_are_chunks() {
    let overwritten: [&[u8]; 4] = [b"", b"x", b"tradewind deduplicated chunks 0\n", b"tradewind dedu"];
    for bytes in overwritten {
        let desk = desk().await;
        replace_chunk(&*desk.below, "format", Bytes::from_static(bytes)).await;
        open_and_read(desk.below.clone()).await;
        let address = Address::parse(CHUNKS, "format").unwrap();
        let found = desk.below.get(&context(), &address, GetRequest::default()).await.unwrap();
        assert_eq!(found.body.collect().await.unwrap(), "tradewind deduplicated chunks 1\n");
        for key in chunks(&*desk.below).await.0 {
            replace_chunk(&*desk.below, &key, noise(100, 9)).await;
        }
        replace_chunk(&*desk.below, "format", Bytes::from_static(bytes)).await;
        assert_eq!(opening_error(desk.below.clone()).await.reason(), Reason::CorruptData, "{bytes:?}");
    }
}

/// A chunk that is not damaged and has not the bytes of its hash is of another version.
#[tokio::test]
async fn lost_marker_is_not_written_next_to_a_chunk_of_another_version() {
    let desk = desk().await;
    lose_marker(&*desk.below).await;
    for key in chunks(&*desk.below).await.0 {
        let address = Address::parse(CHUNKS, &key).unwrap();
        let found = desk.below.get(&context(), &address, GetRequest::default()).await.unwrap();
        let original = found.body.collect().await.unwrap();
        replace_chunk(&*desk.below, &key, noise(100, 9)).await;
        assert_eq!(opening_error(desk.below.clone()).await.reason(), Reason::InvalidArgument);
        replace_chunk(&*desk.below, &key, original).await;
    }
    open_and_read(desk.below.clone()).await;
}

#[tokio::test]
async fn lost_marker_of_a_store_without_chunks_does_not_fail_the_start() {
    let desk = desk().await;
    desk.layer.delete(&context(), &super::address("k"), Precondition::None).await.unwrap();
    desk.collect().await;
    replace_chunk(&*desk.below, &format!("doubt-{}", "7".repeat(64)), Bytes::new()).await;
    lose_marker(&*desk.below).await;
    let layer = Deduplicated::open(&context(), desk.below.clone(), POLICY).await.unwrap();
    assert!(layer.is_ready());
    put(&*layer, "k", noise(300_000, 1)).await;
    open_and_read(desk.below.clone()).await;
    // A list of chunks shows that some are lost.
    let desk = Desk::new().await;
    lose_marker(&*desk.below).await;
    replace_chunk(&*desk.below, &format!("part-{:032x}", 7), Bytes::new()).await;
    assert_eq!(opening_error(desk.below.clone()).await.reason(), Reason::InvalidArgument);
}
