//! A backing store with the weaknesses of a service: the checksum of the whole is compared at the end of a body, and is not
//! in the response to a range.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use tradewind_cache::{Cached, CachedOptions, Validation};
use tradewind_core::object::Expected;
use tradewind_core::observation::CacheSource;
use tradewind_core::store::{GetRequest, GetResponse, Select, StageRequest};
use tradewind_core::testing::{MemoryStore, SimulatedClock, context, drain, pattern};
use tradewind_core::{
    Address, Body, BucketName, ByteRange, Context, Error, ObjectStore, Reason, Result, Span,
};

const SIZE: usize = 300_000;
/// A part of the first extent: a read that the cache can serve without the rest of the object.
const BEGINNING: Select = Select::Range(ByteRange::Inclusive { first: 0, last: 99 });

/// See the module's head.
#[derive(Debug)]
struct Service {
    inner: Arc<MemoryStore>,
    /// Bodies are damaged, which shows at their end.
    is_damaging: AtomicBool,
}

#[async_trait]
impl ObjectStore for Service {
    tradewind_core::forward_methods! {
        to: |service| &service.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload,
        stage_part, copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn head(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<()>> {
        let is_range = matches!(request.select, Select::Range(_));
        let mut found = self.inner.head(context, address, request).await?;
        if is_range {
            found.info.checksums.clear();
        }
        Ok(found)
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let is_whole = !matches!(request.select, Select::Range(_));
        let found = self.inner.get(context, address, request).await?;
        let GetResponse { mut info, span, body, observation } = found;
        if !is_whole {
            info.checksums.clear();
        }
        let is_damaged = is_whole && self.is_damaging.load(Ordering::SeqCst);
        let bytes = drain(body).await?;
        let last = bytes.len().saturating_sub(1);
        let pieces = bytes.chunks(60_000).map(Bytes::copy_from_slice).collect::<Vec<_>>();
        let mut sent = 0;
        let stream = futures::stream::iter(pieces).map(move |piece| {
            sent += piece.len();
            match is_damaged {
                false => Ok(piece),
                true if sent > last => Err(Error::new(Reason::CorruptData, "the checksum differs")),
                true => Ok(vec![0; piece.len()].into()),
            }
        });
        let body = Body::from_stream(span.length, stream);
        Ok(GetResponse { info, span, body, observation })
    }
}

struct Desk {
    service: Arc<Service>,
    cached: Arc<Cached>,
    _directory: tempfile::TempDir,
}

impl Desk {
    async fn open(validation: Validation, is_on_disk: bool) -> Self {
        let clock = SimulatedClock::new();
        let inner = MemoryStore::new(clock.clone());
        let service = Arc::new(Service { inner, is_damaging: AtomicBool::new(false) });
        let directory = tempfile::tempdir().unwrap();
        let options = CachedOptions {
            directory: is_on_disk.then(|| directory.path().join("cache")),
            disk_bytes: 8 << 20,
            memory_bytes: if is_on_disk { 0 } else { 4 << 20 },
            validation,
            volume_id: "test".to_owned(),
        };
        let cached = Cached::open(service.clone(), options, clock).unwrap();
        service.create_bucket(&context(), &BucketName::new("bucket").unwrap()).await.unwrap();
        let mut staged = service.stage(&context(), &key(), StageRequest::default()).await.unwrap();
        staged.write(content()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
        Self { service, cached, _directory: directory }
    }

    async fn read(&self, select: Select) -> (Result<Bytes>, CacheSource) {
        let request = GetRequest { select, ..GetRequest::default() };
        let found = self.cached.get(&context(), &key(), request).await.unwrap();
        let source = found.observation.cache.unwrap().source;
        let bytes = drain(found.body).await;
        self.cached.flush().await;
        (bytes, source)
    }
}

fn key() -> Address {
    Address::parse("bucket", "key").unwrap()
}

fn content() -> Bytes {
    pattern(SIZE, 1)
}

fn is_hit(source: CacheSource) -> bool {
    matches!(source, CacheSource::Ram | CacheSource::Ssd)
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_fail_their_checksum_are_not_cached() {
    for is_on_disk in [false, true] {
        let desk = Desk::open(Validation::Owner, is_on_disk).await;
        desk.service.is_damaging.store(true, Ordering::SeqCst);
        assert!(desk.read(Select::Whole).await.0.is_err());
        desk.service.is_damaging.store(false, Ordering::SeqCst);
        assert!(desk.read(BEGINNING).await.0.unwrap() == content().slice(..100), "on disk: {is_on_disk}");
        for _ in 0..3 {
            assert!(desk.read(Select::Whole).await.0.unwrap() == content());
        }
        assert!(is_hit(desk.read(Select::Whole).await.1), "on disk: {is_on_disk}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn read_that_is_dropped_before_its_end_caches_nothing_unverified() {
    let desk = Desk::open(Validation::Owner, false).await;
    desk.service.is_damaging.store(true, Ordering::SeqCst);
    let found = desk.cached.get(&context(), &key(), GetRequest::default()).await.unwrap();
    let mut body = found.body;
    body.next().await.unwrap().unwrap();
    body.next().await.unwrap().unwrap();
    drop(body);
    desk.service.is_damaging.store(false, Ordering::SeqCst);
    assert!(desk.read(BEGINNING).await.0.unwrap() == content().slice(..100));
    for _ in 0..2 {
        assert!(desk.read(Select::Whole).await.0.unwrap() == content());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_without_checksums_and_whole_objects_share_a_head() {
    let range = Select::Range(ByteRange::Inclusive { first: 70_000, last: 279_999 });
    for validation in [Validation::Owner, Validation::MaxAge(Duration::from_secs(60)), Validation::Always] {
        let desk = Desk::open(validation, false).await;
        assert!(desk.read(range).await.0.unwrap() == content().slice(70_000..280_000));
        // The extents at both ends of the range are not filled: only whole ones are.
        let inner = Select::Range(ByteRange::Inclusive { first: 140_000, last: 200_000 });
        let (bytes, source) = desk.read(inner).await;
        assert!(bytes.unwrap() == content().slice(140_000..200_001));
        assert!(is_hit(source), "{validation:?}: {source:?}");
        let head = desk.cached.head(&context(), &key(), GetRequest::default()).await.unwrap();
        assert_eq!(head.info.checksums.len(), 1, "{validation:?}");
        assert!(desk.read(Select::Whole).await.0.unwrap() == content());
        assert!(is_hit(desk.read(Select::Whole).await.1), "{validation:?}");
    }
}

/// The response to such a range has no checksums either, and is compared with none.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_of_the_whole_object_are_cached_with_its_checksums() {
    for (range, is_verified) in [
        (ByteRange::From(0), true),
        (ByteRange::Inclusive { first: 0, last: u64::MAX / 2 }, false),
        (ByteRange::Suffix(SIZE as u64), false),
    ] {
        for is_on_disk in [false, true] {
            let desk = Desk::open(Validation::Always, is_on_disk).await;
            let select = Select::Range(range);
            desk.service.is_damaging.store(true, Ordering::SeqCst);
            let found = desk.read(select).await.0;
            assert_eq!(found.is_err(), is_verified, "{range:?}");
            desk.service.is_damaging.store(false, Ordering::SeqCst);
            for _ in 0..2 {
                assert!(desk.read(select).await.0.unwrap() == content(), "{range:?}");
            }
            assert!(is_hit(desk.read(select).await.1), "{range:?}, on disk: {is_on_disk}");
            for select in [select, Select::Whole] {
                let request = GetRequest { select, ..GetRequest::default() };
                let head = desk.cached.head(&context(), &key(), request).await.unwrap();
                assert_eq!((head.span, head.info.checksums.len()), (Span::whole(SIZE as u64), 1));
            }
            assert!(is_hit(desk.read(Select::Whole).await.1), "{range:?}, on disk: {is_on_disk}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn change_after_close_is_rejected() {
    let desk = Desk::open(Validation::Owner, true).await;
    let staged = desk.cached.stage(&context(), &key(), StageRequest::default()).await.unwrap();
    desk.cached.close().await.unwrap();
    let committed = staged.commit(Expected::default()).await;
    assert_eq!(committed.unwrap_err().reason(), Reason::ShuttingDown);
}
