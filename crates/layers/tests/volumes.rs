//! A store over several volumes behaves as each volume does for its buckets, and as one store for copies between them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use tradewind_core::checksum::{Algorithm, Checksum, ChecksumScope};
use tradewind_core::condition::ETagMatch;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, ETagForm, Feature, GetRequest, StageRequest,
};
use tradewind_core::testing::{
    Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation as At, Passthrough, conformance, context,
    drain, pattern, reason, write_all,
};
use tradewind_core::{
    Address, BucketName, ByteRange, Class, ETag, Metadata, ObjectInfo, ObjectStore, Precondition,
    ReadConditions, SystemClock, Tags, Timestamp, VersionId, Versioning,
};
use tradewind_layers::{Volume, Volumes};

fn bucket(name: &str) -> BucketName {
    BucketName::new(name).unwrap()
}

fn volume(name: &str, store: Arc<dyn ObjectStore>, buckets: &[&str]) -> Volume {
    let buckets = buckets.iter().map(|name| bucket(name)).collect();
    Volume { name: name.to_owned(), store, leaf: name.to_owned(), tiers: Vec::new(), layers: 0, buckets }
}

fn memory() -> Arc<MemoryStore> {
    MemoryStore::new(SystemClock::shared())
}

/// Two memory stores, with the buckets of the conformance suite in different volumes.
fn two_memories() -> Arc<dyn ObjectStore> {
    let other = volume("other", memory(), &[conformance::BUCKETS[1]]);
    Volumes::new(volume("default", memory(), &[]), vec![other])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_volumes_conform() {
    conformance::run(|| async { two_memories() }.boxed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn buckets_of_a_mapped_volume_conform() {
    let make = || {
        let mapped = volume("mapped", memory(), &conformance::BUCKETS);
        async { Volumes::new(volume("default", memory(), &[]), vec![mapped]) as Arc<dyn ObjectStore> }.boxed()
    };
    conformance::run(make).await;
}

#[tokio::test]
async fn random_operations_match_the_memory_store() {
    for seed in 0..30 {
        println!("seed {seed}");
        conformance::model(|| async { two_memories_with_different_ids().await }.boxed(), seed, 100).await;
    }
}

/// Two memory stores whose ids of uploads differ: the model identifies an upload by its id alone.
async fn two_memories_with_different_ids() -> Arc<dyn ObjectStore> {
    let store = memory();
    let (name, used_ids) = (bucket("temporary"), 1000);
    store.create_bucket(&context(), &name).await.unwrap();
    let address = Address::parse("temporary", "key").unwrap();
    for _ in 0..used_ids {
        store.create_upload(&context(), &address, CreateUpload::default()).await.unwrap();
    }
    store.delete_bucket(&context(), &name).await.unwrap();
    Volumes::new(volume("default", memory(), &[]), vec![volume("other", store, &[conformance::BUCKETS[1]])])
}

/// Two volumes: `near`, the default, and `far`, which has the bucket `archive`.
struct Fixture {
    near: Arc<MemoryStore>,
    far: Arc<Faulty<MemoryStore>>,
    volumes: Arc<Volumes>,
}

impl Fixture {
    async fn new() -> Self {
        let near = memory();
        let inner = memory();
        for (store, name) in [(&near, "photos"), (&inner, "archive")] {
            store.create_bucket(&context(), &bucket(name)).await.unwrap();
        }
        let far = Faulty::new(inner, FaultPlan::none());
        let volumes =
            Volumes::new(volume("near", near.clone(), &[]), vec![volume("far", far.clone(), &["archive"])]);
        Self { near, far, volumes }
    }

    async fn put(
        &self,
        address: &Address,
        bytes: impl Into<bytes::Bytes>,
        request: StageRequest,
    ) -> Committed {
        let context = context();
        let mut staged = self.volumes.stage(&context, address, request).await.unwrap();
        write_all(&mut *staged, bytes.into()).await.unwrap();
        staged.commit(Expected::default()).await.unwrap().0
    }

    async fn read(&self, address: &Address) -> (ObjectInfo, bytes::Bytes) {
        let found = self.volumes.get(&context(), address, GetRequest::default()).await.unwrap();
        (found.info, drain(found.body).await.unwrap())
    }

    async fn copy(&self, request: CopyRequest) -> Result<Committed> {
        self.volumes.copy(&context(), request).await
    }
}

fn photo() -> Address {
    Address::parse("photos", "key").unwrap()
}

fn archived() -> Address {
    Address::parse("archive", "key").unwrap()
}

fn copy_request(source: Address, destination: Address) -> CopyRequest {
    CopyRequest {
        source,
        source_conditions: ReadConditions::default(),
        destination,
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::Md5,
    }
}

/// Metadata with headers, user metadata, tags and a class.
fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.headers.content_type = Some("image/png".to_owned());
    metadata.headers.storage_class = Some("STANDARD_IA".to_owned());
    metadata.user = vec![("author".to_owned(), "Zoë".to_owned())];
    metadata.tags = Tags::new(vec![("project".to_owned(), "lake".to_owned())]).unwrap();
    metadata.classes.object = Some(Class::new(25).unwrap());
    metadata
}

#[tokio::test]
async fn requests_go_to_the_volume_of_their_bucket() {
    let fixture = Fixture::new().await;
    fixture.put(&photo(), "near", StageRequest::default()).await;
    fixture.put(&archived(), "far", StageRequest::default()).await;
    let head = |store: Arc<dyn ObjectStore>, address: Address| async move {
        store.head(&context(), &address, GetRequest::default()).await.map(|found| found.info.size)
    };
    assert_eq!(head(fixture.near.clone(), photo()).await.unwrap(), 4);
    assert_eq!(head(fixture.far.clone(), archived()).await.unwrap(), 3);
    assert_eq!(reason(head(fixture.near.clone(), archived()).await), Reason::NoSuchBucket);
    assert_eq!(reason(head(fixture.far.clone(), photo()).await), Reason::NoSuchBucket);
    assert_eq!(fixture.volumes.volume_name(&bucket("archive")), "far");
    assert_eq!(fixture.volumes.volume_name(&bucket("unknown")), "near");
}

#[test]
fn hints_and_rtt_are_those_of_the_volume_of_the_bucket() {
    let rtt = Duration::from_millis(7);
    let near = Passthrough::new(memory());
    let far = Passthrough::new(Faulty::new(memory(), FaultPlan::none().with_rtt(rtt)));
    let volumes =
        Volumes::new(volume("near", near.clone(), &[]), vec![volume("far", far.clone(), &["archive"])]);
    volumes.prewarm(&bucket("archive"), 5);
    assert_eq!((near.max_prewarm_hint(), far.max_prewarm_hint()), (0, 5));
    assert_eq!((volumes.min_rtt(&bucket("photos")), volumes.min_rtt(&bucket("archive"))), (None, Some(rtt)));
}

#[tokio::test]
async fn a_created_bucket_is_in_its_volume() {
    let (near, far) = (memory(), memory());
    let volumes =
        Volumes::new(volume("near", near.clone(), &[]), vec![volume("far", far.clone(), &["archive"])]);
    for name in ["archive", "new"] {
        volumes.create_bucket(&context(), &bucket(name)).await.unwrap();
    }
    near.head_bucket(&context(), &bucket("new")).await.unwrap();
    far.head_bucket(&context(), &bucket("archive")).await.unwrap();
    assert_eq!(reason(near.head_bucket(&context(), &bucket("archive")).await), Reason::NoSuchBucket);
    volumes.delete_bucket(&context(), &bucket("archive")).await.unwrap();
    assert_eq!(reason(far.head_bucket(&context(), &bucket("archive")).await), Reason::NoSuchBucket);
}

fn names(buckets: &[BucketInfo]) -> Vec<&str> {
    buckets.iter().map(|info| info.name.as_str()).collect()
}

#[tokio::test]
async fn bucket_lists_are_merged_by_name_without_misplaced_ones() {
    let fixture = Fixture::new().await;
    for (store, name) in [
        (&fixture.near as &dyn AsStore, "zebra"),
        (&fixture.near, "archive"),
        (&fixture.far, "photos"),
        (&fixture.far, "lost"),
    ] {
        store.store().create_bucket(&context(), &bucket(name)).await.unwrap();
    }
    let listed = fixture.volumes.list_buckets(&context()).await.unwrap();
    assert_eq!(names(&listed), ["archive", "photos", "zebra"]);
    let mut each = Vec::new();
    for store in fixture.volumes.each_volume() {
        each.push(names(&store.list_buckets(&context()).await.unwrap()).join(" "));
    }
    assert_eq!(each, ["photos zebra", "archive"]);
    let report = fixture.volumes.check_buckets(&context()).await;
    let misplaced: Vec<[&str; 3]> = report
        .misplaced
        .iter()
        .map(|found| [found.bucket.as_str(), &*found.found_in, &*found.volume])
        .collect();
    assert_eq!(misplaced, [["archive", "near", "far"], ["lost", "far", "near"], ["photos", "far", "near"]]);
    assert!(report.unlisted.is_empty());
}

/// A volume without layers has buckets in the base, or in the tier, of one with tiers.
#[tokio::test]
async fn buckets_in_the_tiers_of_another_volume_are_reported() {
    let [ssd, disk] = [memory(), memory()];
    let tier = tradewind_layers::Tier { name: "ssd".to_owned(), store: ssd.clone() };
    for (plain, expected) in [("disk", "moved tiered plain"), ("ssd", "lost plain tiered")] {
        let tiered = Volume {
            leaf: "disk".to_owned(),
            tiers: vec![tier.clone()],
            ..volume("tiered", disk.clone(), &[])
        };
        let store = if plain == "disk" { disk.clone() } else { ssd.clone() };
        let plain = Volume { leaf: plain.to_owned(), ..volume("plain", store, &["moved"]) };
        for (store, names) in [(&disk, &["both", "moved"][..]), (&ssd, &["both", "moved", "lost"])] {
            for name in names {
                let _ = store.create_bucket(&context(), &bucket(name)).await;
            }
        }
        let report = Volumes::new(tiered, vec![plain]).check_buckets(&context()).await;
        let found = report.misplaced.iter();
        let found: Vec<String> = found
            .map(|found| format!("{} {} {}", found.bucket.as_str(), found.found_in, found.volume))
            .collect();
        assert!(found.iter().any(|text| text == expected), "{found:?}");
        assert!(!found.iter().any(|text| text.starts_with("both")), "{found:?}");
    }
}

/// Any store, for lists of different stores.
trait AsStore {
    fn store(&self) -> &dyn ObjectStore;
}

impl<S: ObjectStore> AsStore for Arc<S> {
    fn store(&self) -> &dyn ObjectStore {
        &**self
    }
}

#[tokio::test]
async fn volumes_over_one_leaf_list_each_bucket_once() {
    let leaf = memory();
    let one = volume("one", leaf.clone(), &[]);
    let two = Volume { leaf: "one".to_owned(), ..volume("two", leaf.clone(), &["archive"]) };
    let volumes = Volumes::new(one, vec![two]);
    for name in ["archive", "photos"] {
        volumes.create_bucket(&context(), &bucket(name)).await.unwrap();
    }
    assert_eq!(names(&volumes.list_buckets(&context()).await.unwrap()), ["archive", "photos"]);
    assert!(volumes.check_buckets(&context()).await.misplaced.is_empty(), "the leaf is the same");
}

#[tokio::test]
async fn copies_within_a_store_are_forwarded_to_it() {
    let leaf = Faulty::new(memory(), FaultPlan::none());
    let two = Volume { leaf: "one".to_owned(), ..volume("two", leaf.clone(), &["archive"]) };
    let volumes = Volumes::new(volume("one", leaf.clone(), &[]), vec![two]);
    for name in ["archive", "photos"] {
        volumes.create_bucket(&context(), &bucket(name)).await.unwrap();
    }
    let staged = volumes.stage(&context(), &photo(), StageRequest::default()).await.unwrap();
    staged.commit(Expected::default()).await.unwrap();
    for destination in [photo(), archived()] {
        volumes.copy(&context(), copy_request(photo(), destination)).await.unwrap();
    }
    assert_eq!((leaf.calls(At::Copy), leaf.calls(At::Get)), (2, 0));
}

#[tokio::test]
async fn a_failed_volume_fails_its_buckets_and_the_list_of_buckets() {
    let fixture = Fixture::new().await;
    fixture
        .far
        .set_plan(FaultPlan::none().with_fault_on_any(FaultSchedule::Always, Fault::FailBefore(Reason::Io)));
    let head = |address: Address| fixture.volumes.clone().head_of(address);
    fixture.put(&photo(), "near", StageRequest::default()).await;
    head(photo()).await.unwrap();
    let error = head(archived()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Io);
    assert!(error.message().starts_with("volume \"far\": "), "{error}");
    assert_eq!(reason(fixture.volumes.list_buckets(&context()).await), Reason::Io);
    let [near, far] = fixture.volumes.each_volume().try_into().unwrap();
    assert_eq!(names(&near.list_buckets(&context()).await.unwrap()), ["photos"]);
    assert_eq!(reason(far.list_buckets(&context()).await), Reason::Io);
    let report = fixture.volumes.check_buckets(&context()).await;
    assert_eq!(report.unlisted.iter().map(|failed| &*failed.volume).collect::<Vec<_>>(), ["far"]);
}

#[async_trait]
trait HeadOf {
    async fn head_of(self, address: Address) -> Result<ObjectInfo>;
}

#[async_trait]
impl HeadOf for Arc<Volumes> {
    async fn head_of(self, address: Address) -> Result<ObjectInfo> {
        Ok(self.head(&context(), &address, GetRequest::default()).await?.info)
    }
}

#[tokio::test]
async fn an_error_about_the_request_is_unchanged() {
    let fixture = Fixture::new().await;
    let error = fixture.volumes.clone().head_of(archived()).await.unwrap_err();
    assert_eq!((error.reason(), error.message()), (Reason::NoSuchKey, "key \"key\" does not exist"));
}

#[tokio::test]
async fn a_copy_between_volumes_keeps_what_a_copy_keeps() {
    let fixture = Fixture::new().await;
    let bytes = pattern(300_001, 1);
    for (from, to) in [(photo(), archived()), (archived(), photo())] {
        let request = StageRequest {
            metadata: metadata(),
            algorithms: vec![Algorithm::Sha1],
            ..StageRequest::default()
        };
        let source = fixture.put(&from, bytes.clone(), request).await;
        let copied = fixture.copy(copy_request(from.clone(), to.clone())).await.unwrap();
        let (info, read) = fixture.read(&to).await;
        assert!(read == bytes);
        assert_eq!(info.metadata, metadata().for_copy());
        assert_eq!((&copied.etag, copied.size), (&source.etag, 300_001));
        assert_eq!(info.checksums, [Checksum::compute(Algorithm::Sha1, &bytes)]);
        assert_eq!((info.checksums, info.etag), (copied.checksums, copied.etag));
    }
}

#[tokio::test]
async fn a_copy_between_volumes_takes_new_metadata_tags_and_checksum() {
    let fixture = Fixture::new().await;
    fixture.put(&photo(), "bytes", StageRequest { metadata: metadata(), ..StageRequest::default() }).await;
    let mut new = Metadata { tags: metadata().tags, ..Metadata::default() };
    new.user = vec![("new".to_owned(), "value".to_owned())];
    let tags = Tags::new(vec![("colour".to_owned(), "green".to_owned())]).unwrap();
    let request = CopyRequest {
        metadata: Some(new.clone()),
        tags: Some(tags.clone()),
        algorithm: Some(Algorithm::Sha256),
        etag: ETagForm::Unique,
        ..copy_request(photo(), archived())
    };
    let copied = fixture.copy(request).await.unwrap();
    let (info, _) = fixture.read(&archived()).await;
    assert_eq!(info.metadata, Metadata { tags, ..new });
    assert_eq!(info.checksums, [Checksum::compute(Algorithm::Sha256, b"bytes")]);
    assert!(copied.etag.md5().is_none() && copied.etag.as_str().contains('-'), "{}", copied.etag);
}

#[tokio::test]
async fn a_copy_between_volumes_obeys_conditions_of_both_sides() {
    let fixture = Fixture::new().await;
    let etag = fixture.put(&photo(), "new", StageRequest::default()).await.etag;
    let old = fixture.put(&archived(), "old", StageRequest::default()).await;
    let one = |etag: &ETag| Some(ETagMatch::OneOf(vec![etag.clone()]));
    let other = ETag::from_text("other");
    let source = |source_conditions| CopyRequest { source_conditions, ..copy_request(photo(), archived()) };
    let destination = |precondition| CopyRequest { precondition, ..copy_request(photo(), archived()) };
    let long_ago = Some(Timestamp::from_millis(1000));
    for (request, expected) in [
        (source(ReadConditions { if_match: one(&other), ..Default::default() }), Reason::PreconditionFailed),
        (source(ReadConditions { if_none_match: one(&etag), ..Default::default() }), Reason::NotModified),
        (
            source(ReadConditions { if_unmodified_since: long_ago, ..Default::default() }),
            Reason::PreconditionFailed,
        ),
        (destination(Precondition::Absent), Reason::PreconditionFailed),
        (destination(Precondition::Matches(etag.clone())), Reason::PreconditionFailed),
    ] {
        assert_eq!(reason(fixture.copy(request.clone()).await), expected, "{request:?}");
        assert_eq!(fixture.read(&archived()).await.1, "old");
    }
    // Generations of one volume can be compared, although the capabilities of all volumes do not promise it.
    assert!(!fixture.volumes.capabilities().generations);
    let request = CopyRequest {
        source_conditions: ReadConditions { if_match: one(&etag), ..Default::default() },
        ..destination(Precondition::MatchesGeneration(old.generation))
    };
    fixture.copy(request.clone()).await.unwrap();
    assert_eq!(fixture.read(&archived()).await.1, "new");
    assert_eq!(reason(fixture.copy(request).await), Reason::Conflict);
}

#[tokio::test]
async fn a_copy_between_volumes_names_both_versions() {
    let fixture = Fixture::new().await;
    for name in ["photos", "archive"] {
        fixture.volumes.set_versioning(&context(), &bucket(name), Versioning::Enabled).await.unwrap();
    }
    let first = fixture.put(&photo(), "first", StageRequest::default()).await.version;
    fixture.put(&photo(), "second", StageRequest::default()).await;
    let copied = fixture.copy(copy_request(photo().with_version(first.clone()), archived())).await.unwrap();
    assert_eq!(copied.source_version, first);
    assert!(matches!(copied.version, Some(VersionId::Id(_))), "{:?}", copied.version);
    assert_eq!(fixture.read(&archived().with_version(copied.version)).await.1, "first");
}

#[tokio::test]
async fn a_copy_of_parts_between_volumes_is_one_object() {
    let fixture = Fixture::new().await;
    let parts = [pattern(5 << 20, 1), pattern(77, 2)];
    let create =
        CreateUpload { metadata: metadata(), checksum: Some((Algorithm::Sha256, ChecksumScope::Composite)) };
    let upload = fixture.volumes.create_upload(&context(), &photo(), create).await.unwrap();
    let mut named = Vec::new();
    for (number, bytes) in (1..).zip(&parts) {
        let (context, number) = (context(), PartNumber::new(number).unwrap());
        let staged =
            fixture.volumes.stage_part(&context, &photo(), &upload, number, StageRequest::default()).await;
        let mut staged = staged.unwrap();
        write_all(&mut *staged, bytes.clone()).await.unwrap();
        let (part, _) = staged.commit(Expected::default()).await.unwrap();
        named.push(CompletePart { number, etag: part.etag, checksum: None });
    }
    let complete = CompleteUpload { parts: named, ..CompleteUpload::default() };
    fixture.volumes.complete_upload(&context(), &photo(), &upload, complete).await.unwrap();
    fixture.copy(copy_request(photo(), archived())).await.unwrap();
    let (info, bytes) = fixture.read(&archived()).await;
    assert!(bytes == parts.concat());
    assert_eq!((info.parts, info.scope), (None, ChecksumScope::FullObject));
    assert_eq!(info.checksums, [Checksum::compute(Algorithm::Sha256, &bytes)]);
}

#[tokio::test]
async fn a_copy_of_damaged_bytes_is_not_committed() {
    let fixture = Fixture::new().await;
    fixture.put(&archived(), pattern(70_000, 1), StageRequest::default()).await;
    for fault in [Fault::Corrupt(69_999), Fault::Truncate(65_000)] {
        fixture.far.set_plan(FaultPlan::none().with_fault(At::Body, FaultSchedule::Always, fault));
        let error = fixture.copy(copy_request(archived(), photo())).await.unwrap_err();
        assert_eq!(error.reason(), Reason::CorruptData, "{fault:?}");
        assert!(error.message().starts_with("volume \"far\": "), "{error}");
        assert_eq!(reason(fixture.volumes.clone().head_of(photo()).await), Reason::NoSuchKey);
    }
}

#[tokio::test]
async fn a_copy_between_volumes_without_source_or_bucket_fails() {
    let fixture = Fixture::new().await;
    assert_eq!(reason(fixture.copy(copy_request(photo(), archived())).await), Reason::NoSuchKey);
    fixture.put(&archived(), "bytes", StageRequest::default()).await;
    let gone = Address::parse("gone", "key").unwrap();
    assert_eq!(reason(fixture.copy(copy_request(gone.clone(), archived())).await), Reason::NoSuchBucket);
    assert_eq!(reason(fixture.copy(copy_request(archived(), gone)).await), Reason::NoSuchBucket);
}

#[tokio::test]
async fn parts_are_copied_between_volumes() {
    let fixture = Fixture::new().await;
    let bytes = pattern(6 << 20, 3);
    let etag = fixture.put(&photo(), bytes.clone(), StageRequest::default()).await.etag;
    let create =
        CreateUpload { checksum: Some((Algorithm::Crc32, ChecksumScope::FullObject)), ..Default::default() };
    let upload = fixture.volumes.create_upload(&context(), &archived(), create).await.unwrap();
    let part = |number: i64, range: Option<ByteRange>, upload: &UploadId| CopyPartRequest {
        source: photo(),
        range,
        source_conditions: ReadConditions::default(),
        destination: archived(),
        upload: upload.clone(),
        number: PartNumber::new(number).unwrap(),
        etag: ETagForm::Md5,
    };
    let copy = |request: CopyPartRequest| async { fixture.volumes.copy_part(&context(), request).await };
    let whole = copy(part(1, None, &upload)).await.unwrap();
    assert_eq!((&whole.etag, whole.size), (&etag, 6 << 20));
    let range = Some(ByteRange::Inclusive { first: 10, last: 19 });
    let ranged = copy(part(2, range, &upload)).await.unwrap();
    assert_eq!(ranged.size, 10);
    for (first, last) in [(0, 6 << 20), (6 << 20, 7 << 20)] {
        let range = Some(ByteRange::Inclusive { first, last });
        assert_eq!(reason(copy(part(3, range, &upload)).await), Reason::InvalidRange, "{first} to {last}");
    }
    let other = ReadConditions { if_match: Some(ETagMatch::parse("\"other\"")), ..Default::default() };
    let unmatched = CopyPartRequest { source_conditions: other, ..part(3, None, &upload) };
    assert_eq!(reason(copy(unmatched).await), Reason::PreconditionFailed);
    let dead = UploadId("no-such-upload".to_owned());
    assert_eq!(reason(copy(part(1, None, &dead)).await), Reason::NoSuchUpload);
    let named = [(1, whole.etag), (2, ranged.etag)].map(|(number, etag)| CompletePart {
        number: PartNumber::new(number).unwrap(),
        etag,
        checksum: None,
    });
    let complete = CompleteUpload { parts: named.to_vec(), ..CompleteUpload::default() };
    let completed =
        fixture.volumes.complete_upload(&context(), &archived(), &upload, complete).await.unwrap();
    let (_, read) = fixture.read(&archived()).await;
    assert!(read == [&bytes[..], &bytes[10..20]].concat());
    assert_eq!(completed.checksums, [Checksum::compute(Algorithm::Crc32, &read)]);
}

/// A store with given capabilities that records when it is closed.
#[derive(Debug)]
struct Recorded {
    inner: Arc<MemoryStore>,
    capabilities: Capabilities,
    closed: Arc<AtomicUsize>,
    /// Its place in the order of closing; 0 while it is open.
    place: AtomicUsize,
    fails: bool,
}

impl Recorded {
    fn new(closed: &Arc<AtomicUsize>) -> Self {
        let inner = memory();
        let capabilities = inner.capabilities().clone();
        Self { inner, capabilities, closed: closed.clone(), place: AtomicUsize::new(0), fails: false }
    }
}

#[async_trait]
impl ObjectStore for Recorded {
    tradewind_core::forward_methods! {
        to: |recorded| &recorded.inner;
        prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning, set_versioning, head, get,
        stage, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload, stage_part, copy_part,
        list_parts, list_uploads, complete_upload, abort_upload,
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn close(&self) -> Result<()> {
        self.place.store(self.closed.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        match self.fails {
            true => Err(Error::new(Reason::Io, "the device is gone")),
            false => Ok(()),
        }
    }
}

#[tokio::test]
async fn close_closes_all_volumes_although_one_fails() {
    let closed = Arc::default();
    let failing = Arc::new(Recorded { fails: true, ..Recorded::new(&closed) });
    let fine = Arc::new(Recorded::new(&closed));
    let volumes = Volumes::new(volume("one", failing, &[]), vec![volume("two", fine.clone(), &[])]);
    let error = volumes.close().await.unwrap_err();
    assert_eq!(error.message(), "volume \"one\": the device is gone");
    assert_eq!(closed.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn close_begins_with_the_deepest_stack() {
    let closed = Arc::default();
    let plain = Arc::new(Recorded::new(&closed));
    let layered = Arc::new(Recorded::new(&closed));
    let deep = Volume { layers: 1, ..volume("two", layered.clone(), &["archive"]) };
    Volumes::new(volume("one", plain.clone(), &[]), vec![deep]).close().await.unwrap();
    let place = |store: &Recorded| store.place.load(Ordering::Relaxed);
    assert_eq!((place(&layered), place(&plain)), (1, 2));
}

#[test]
fn capabilities_are_those_that_all_volumes_have() {
    let closed = Arc::default();
    let mut weak = Recorded::new(&closed);
    weak.capabilities.owns_buckets = false;
    weak.capabilities.conditional_writes = false;
    weak.capabilities.max_object_bytes = 1 << 40;
    weak.capabilities.unsupported = &[Feature::Classes, Feature::TagOrder];
    let mut other = Recorded::new(&closed);
    other.capabilities.max_key_bytes = 100;
    other.capabilities.unsupported = &[Feature::TagOrder, Feature::PartReads];
    let volumes = Volumes::new(volume("one", Arc::new(weak), &[]), vec![volume("two", Arc::new(other), &[])]);
    let common = volumes.capabilities();
    assert!(!common.owns_buckets && !common.conditional_writes && common.multipart && common.versions);
    assert_eq!((common.max_key_bytes, common.max_object_bytes), (100, 1 << 40));
    for feature in [Feature::Classes, Feature::TagOrder, Feature::PartReads] {
        assert!(!common.supports(feature), "{feature:?}");
    }
    assert!(common.supports(Feature::Checksums));
}
