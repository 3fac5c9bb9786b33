//! Changes whose outcome is unknown, in buckets that keep versions: one request of a caller leaves at most one version or
//! delete marker, and a version that it leaves is the one that the caller gets. The service is this project's gateway.

#[path = "lost_responses/relay.rs"]
mod relay;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use tokio::sync::Notify;
use tradewind_backend::s3::S3Store;
use tradewind_core::context::OnUnknownOutcome;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CopyRequest, Deleted, ETagForm, GetRequest, StageRequest};
use tradewind_core::testing::{MemoryStore, context};
use tradewind_core::version::{ListVersions, ListedVersion, VersionId, Versioning};
use tradewind_core::{
    Address, BucketName, Context, Metadata, ObjectStore, Precondition, ReadConditions, SystemClock,
};

use self::relay::{Relay, Treatment};

const BUCKET: &str = "bucket";
/// A write that is buffered, one of unknown size, and one that is streamed.
const WAYS: [Way; 3] = [
    Way { bytes: 1000, is_sized: true },
    Way { bytes: 1000, is_sized: false },
    Way { bytes: 300_000, is_sized: true },
];

#[derive(Debug, Clone, Copy)]
struct Way {
    bytes: usize,
    is_sized: bool,
}

/// A service with one bucket, and two leaves over it: one through a relay, the other direct.
struct Setup {
    relay: Relay,
    leaf: Arc<S3Store>,
    direct: Arc<S3Store>,
}

fn bucket() -> BucketName {
    BucketName::new(BUCKET).unwrap()
}

fn address_of(key: &str) -> Address {
    Address::parse(BUCKET, key).unwrap()
}

async fn setup(
    versioning: Versioning,
    script: impl Fn(&Arc<S3Store>) -> Box<dyn Fn(&str, &str, usize) -> Treatment + Send + Sync>,
) -> Setup {
    let memory = MemoryStore::new(SystemClock::shared());
    let service = crate::gateway_over(memory).await;
    let direct = crate::leaf_over(service, |_| {});
    direct.create_bucket(&context(), &bucket()).await.unwrap();
    direct.set_versioning(&context(), &bucket(), versioning).await.unwrap();
    let script = script(&direct);
    let relay = Relay::start(service, move |method, target, number| script(method, target, number)).await;
    Setup { leaf: crate::leaf_over(relay.address, |_| {}), relay, direct }
}

/// A setup in which the first request of `method` for a target with `part` is treated specially.
async fn setup_once(
    versioning: Versioning,
    method: &'static str,
    part: &'static str,
    treatment: Treatment,
) -> Setup {
    setup(versioning, move |_| {
        let treatment = treatment.clone();
        Box::new(move |seen, target, number| {
            let is_hit = seen == method && target.contains(part) && number == 1;
            if is_hit { treatment.clone() } else { Treatment::Relay }
        })
    })
    .await
}

impl Setup {
    async fn put(&self, key: &str, way: Way) -> Result<Committed> {
        put(&self.leaf, &context(), key, way, Precondition::None).await
    }

    /// The versions and delete markers of a key, newest first.
    async fn versions(&self, key: &str) -> Vec<ListedVersion> {
        let request = ListVersions { prefix: key.to_owned(), limit: 1000, ..ListVersions::default() };
        let page = self.direct.list_versions(&context(), &bucket(), &request).await.unwrap();
        let version = |entry| match entry {
            ListEntry::Key(listed, version) => (listed == key).then_some(version),
            ListEntry::CommonPrefix(_) => None,
        };
        page.entries.into_iter().filter_map(version).collect()
    }

    async fn version_ids(&self, key: &str) -> Vec<VersionId> {
        self.versions(key).await.into_iter().map(|listed| listed.version).collect()
    }
}

async fn put(
    store: &S3Store,
    context: &Context,
    key: &str,
    way: Way,
    precondition: Precondition,
) -> Result<Committed> {
    let size = way.is_sized.then_some(way.bytes as u64);
    let request = StageRequest { size, precondition, ..StageRequest::default() };
    let mut staged = store.stage(context, &address_of(key), request).await?;
    for piece in vec![7; way.bytes].chunks(100_000) {
        staged.write(Bytes::copy_from_slice(piece)).await?;
    }
    Ok(staged.commit(Expected::default()).await?.0)
}

fn copy_request(source: Address, to: &str, metadata: Option<Metadata>) -> CopyRequest {
    CopyRequest {
        source,
        source_conditions: ReadConditions::default(),
        destination: address_of(to),
        metadata,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::Md5,
    }
}

#[track_caller]
fn assert_unknown<T: std::fmt::Debug>(result: Result<T>) -> Error {
    let error = result.unwrap_err();
    assert!(error.reason() == Reason::Io && error.is_final(), "{error:?}");
    error
}

fn responses_that_are_lost() -> [Treatment; 3] {
    [Treatment::LoseResponse, Treatment::AnswerError, Treatment::CutResponse]
}

#[tokio::test(flavor = "multi_thread")]
async fn write_with_a_lost_response_is_one_version_that_is_returned() {
    for way in WAYS {
        for treatment in responses_that_are_lost() {
            let setup = setup_once(Versioning::Enabled, "PUT", "/x", treatment).await;
            let committed = setup.put("x", way).await.unwrap();
            assert_eq!(setup.version_ids("x").await, [committed.version.unwrap()], "{way:?}");
            assert_eq!(setup.relay.count("PUT", "/x"), 1, "{way:?}");
            let found =
                setup.leaf.head(&context(), &address_of("x"), GetRequest::default()).await.unwrap().info;
            assert!(found.metadata.user.is_empty(), "the write id must be hidden: {:?}", found.metadata);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_without_a_trace_fails_and_is_not_sent_again() {
    for way in WAYS {
        for precondition in [Precondition::None, Precondition::Absent] {
            // The whole body arrives, and nothing is carried out.
            let treatment = Treatment::CutRequest(usize::MAX);
            let setup = setup_once(Versioning::Enabled, "PUT", "/x", treatment).await;
            let error = assert_unknown(put(&setup.leaf, &context(), "x", way, precondition).await);
            assert!(error.message().contains("was not sent again"), "{error}");
            assert_eq!((setup.relay.count("PUT", "/x"), setup.version_ids("x").await.len()), (1, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_executed_late_is_one_version() {
    let event = Arc::new(Notify::new());
    let treatment = Treatment::CarryOutLater(event.clone());
    let setup = setup_once(Versioning::Enabled, "PUT", "/x", treatment).await;
    assert_unknown(setup.put("x", WAYS[0]).await);
    assert!(setup.versions("x").await.is_empty());
    event.notify_one();
    while setup.versions("x").await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((setup.relay.count("PUT", "/x"), setup.versions("x").await.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_write_cut_within_its_body_may_be_retried() {
    let way = Way { bytes: 8 << 20, is_sized: true };
    let setup = setup_once(Versioning::Enabled, "PUT", "/x", Treatment::CutRequest(1000)).await;
    let error = setup.put("x", way).await.unwrap_err();
    assert!(error.reason() == Reason::Io && !error.is_final(), "{error:?}");
    let committed = setup.put("x", way).await.unwrap();
    assert_eq!(setup.version_ids("x").await, [committed.version.unwrap()]);
}

/// Other clients write the key, or copy the version, before the leaf looks for its write.
#[tokio::test(flavor = "multi_thread")]
async fn write_is_found_below_newer_versions() {
    for way in WAYS {
        for is_copied in [false, true] {
            let setup = setup(Versioning::Enabled, move |direct| {
                let direct = direct.clone();
                let others: Arc<dyn Fn() -> _ + Send + Sync> = Arc::new(move || {
                    let direct = direct.clone();
                    async move {
                        let found =
                            direct.head(&context(), &address_of("x"), GetRequest::default()).await.unwrap();
                        let source = address_of("x").with_version(found.info.version);
                        if is_copied {
                            // The copy has the metadata of its source, with the write id.
                            direct.copy(&context(), copy_request(source.clone(), "y", None)).await.unwrap();
                            direct.copy(&context(), copy_request(address_of("y"), "x", None)).await.unwrap();
                        }
                        put(&direct, &context(), "x", way, Precondition::None).await.unwrap();
                    }
                    .boxed()
                });
                Box::new(move |method, target, number| match (method, target, number) {
                    ("PUT", "/bucket/x", 1) => Treatment::LoseResponseAfter(others.clone()),
                    _ => Treatment::Relay,
                })
            })
            .await;
            let committed = setup.put("x", way).await.unwrap();
            let versions = setup.version_ids("x").await;
            assert_eq!(versions.len(), if is_copied { 3 } else { 2 });
            assert_eq!(versions.last(), committed.version.as_ref(), "{way:?}, {is_copied}: {versions:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditional_write_with_a_lost_response_is_one_version() {
    for way in WAYS {
        for condition in ["absent", "exists", "matches"] {
            let setup = setup_once(Versioning::Enabled, "PUT", "/x", Treatment::LoseResponse).await;
            let precondition = match condition {
                "absent" => Precondition::Absent,
                _ => {
                    let old = put(&setup.direct, &context(), "x", way, Precondition::None).await.unwrap();
                    // The same bytes: the condition still holds after the write.
                    if condition == "exists" { Precondition::Exists } else { Precondition::Matches(old.etag) }
                }
            };
            let committed = put(&setup.leaf, &context(), "x", way, precondition).await.unwrap();
            let versions = setup.version_ids("x").await;
            assert_eq!(versions.len(), if condition == "absent" { 1 } else { 2 }, "{way:?}, {condition}");
            assert_eq!(versions.first(), committed.version.as_ref());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_in_a_bucket_without_versions_is_sent_again() {
    for versioning in [Versioning::Off, Versioning::Suspended] {
        for way in &WAYS[..2] {
            let setup = setup(Versioning::Enabled, |_| {
                Box::new(|method, target, number| match (method, target, number) {
                    ("PUT", "/bucket/x", 1) => Treatment::CutRequest(usize::MAX),
                    _ => Treatment::Relay,
                })
            });
            let setup = setup.await;
            if versioning == Versioning::Off {
                setup.direct.delete_bucket(&context(), &bucket()).await.unwrap();
                setup.direct.create_bucket(&context(), &bucket()).await.unwrap();
            } else {
                setup.direct.set_versioning(&context(), &bucket(), versioning).await.unwrap();
            }
            setup.put("x", *way).await.unwrap();
            assert_eq!(setup.relay.count("PUT", "/x"), 2, "{versioning:?}");
            assert_eq!(setup.version_ids("x").await, [VersionId::Null]);
        }
    }
}

/// The first write of a bucket has an id, because the bucket may keep versions; later ones need none.
#[tokio::test(flavor = "multi_thread")]
async fn writes_carry_no_id_once_a_bucket_is_seen_to_keep_no_versions() {
    use crate::support::scripted_server::{Reply, ScriptedServer};
    for keeps_versions in [false, true] {
        let server = ScriptedServer::start(move |_, answer| {
            Reply::Respond(if keeps_versions { answer.with_header("x-amz-version-id", "v1") } else { answer })
        });
        let store = crate::leaf_over(server.address, |_| {});
        for way in WAYS {
            put(&store, &context(), "x", way, Precondition::None).await.unwrap();
        }
        let puts = server.requests_of("PutObject");
        let have_id = puts.iter().map(|request| !request.header("x-amz-meta-tradewind-write").is_empty());
        let expected = if keeps_versions { [true; 3] } else { [true, false, false] };
        assert_eq!(have_id.collect::<Vec<_>>(), expected);
        assert_eq!(server.request_counts(), [("PutObject", 3)], "no request asks for the versioning");
    }
}

/// Without the permission to read the versioning, a recent write shows that the bucket keeps no versions.
#[tokio::test(flavor = "multi_thread")]
async fn denied_versioning_is_taken_from_recent_writes() {
    for has_written in [false, true] {
        let setup = setup(Versioning::Off, |_| {
            Box::new(|method, target, number| match (method, target, number) {
                ("GET", target, _) if target.contains("versioning") => Treatment::Deny,
                ("PUT", "/bucket/x", 1) => Treatment::CutRequest(usize::MAX),
                _ => Treatment::Relay,
            })
        })
        .await;
        if has_written {
            setup.put("before", WAYS[0]).await.unwrap();
        }
        let result = setup.put("x", WAYS[0]).await;
        assert!(setup.relay.count("GET", "versioning") > 0, "the script must deny this request");
        match has_written {
            true => drop(result.unwrap()),
            false => drop(assert_unknown(result)),
        }
        assert_eq!(setup.relay.count("PUT", "/x"), 1 + usize::from(has_written));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_that_may_not_be_repeated_is_found_as_well() {
    for way in WAYS {
        let setup = setup_once(Versioning::Enabled, "PUT", "/x", Treatment::LoseResponse).await;
        let context = context().with_on_unknown_outcome(OnUnknownOutcome::Fail);
        let committed = put(&setup.leaf, &context, "x", way, Precondition::None).await.unwrap();
        assert_eq!(setup.version_ids("x").await, [committed.version.unwrap()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_with_a_lost_response_leaves_one_marker() {
    for treatment in [Treatment::LoseResponse, Treatment::AnswerError] {
        let setup = setup_once(Versioning::Enabled, "DELETE", "/x", treatment).await;
        put(&setup.direct, &context(), "x", WAYS[0], Precondition::None).await.unwrap();
        assert_unknown(setup.leaf.delete(&context(), &address_of("x"), Precondition::None).await);
        let versions = setup.versions("x").await;
        let markers = versions.iter().filter(|listed| listed.object.is_none()).count();
        assert_eq!((setup.relay.count("DELETE", "/x"), versions.len(), markers), (1, 2, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_of_a_version_with_a_lost_response_is_sent_again() {
    let setup = setup_once(Versioning::Enabled, "DELETE", "/x", Treatment::LoseResponse).await;
    let stored = put(&setup.direct, &context(), "x", WAYS[0], Precondition::None).await.unwrap();
    let version = address_of("x").with_version(stored.version.clone());
    let deleted: Deleted = setup.leaf.delete(&context(), &version, Precondition::None).await.unwrap();
    assert!(deleted.existed && deleted.version == stored.version && !deleted.is_delete_marker);
    assert_eq!((setup.relay.count("DELETE", "/x"), setup.versions("x").await.len()), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_with_a_lost_response_is_one_version() {
    for treatment in responses_that_are_lost() {
        for has_new_metadata in [false, true] {
            let setup = setup_once(Versioning::Enabled, "PUT", "/to", treatment.clone()).await;
            put(&setup.direct, &context(), "from", WAYS[0], Precondition::None).await.unwrap();
            let metadata = has_new_metadata
                .then(|| Metadata { user: vec![("a".into(), "b".into())], ..Metadata::default() });
            let copied = setup.leaf.copy(&context(), copy_request(address_of("from"), "to", metadata)).await;
            let versions = setup.version_ids("to").await;
            assert_eq!((versions.len(), setup.relay.count("PUT", "/to")), (1, 1));
            if has_new_metadata {
                let copied = copied.unwrap();
                assert_eq!((copied.version.as_ref(), copied.size), (versions.first(), 1000));
            } else {
                // A copy of the metadata cannot have a write id.
                assert_unknown(copied);
            }
        }
    }
}

/// The upload was created by the same leaf or by another one, and another client writes the key in between or does not.
#[tokio::test(flavor = "multi_thread")]
async fn completion_with_a_lost_response_returns_its_version() {
    for (is_creator, is_overwritten) in [(true, false), (true, true), (false, false), (false, true)] {
        let setup = setup(Versioning::Enabled, move |direct| {
            let direct = direct.clone();
            let others: Arc<dyn Fn() -> _ + Send + Sync> = Arc::new(move || {
                let direct = direct.clone();
                async move {
                    if is_overwritten {
                        put(&direct, &context(), "x", WAYS[0], Precondition::None).await.unwrap();
                    }
                }
                .boxed()
            });
            Box::new(move |method, target, number| match (method, number) {
                ("POST", 1) if target.contains("uploadId") => Treatment::LoseResponseAfter(others.clone()),
                _ => Treatment::Relay,
            })
        })
        .await;
        let creator = if is_creator { &setup.leaf } else { &setup.direct };
        let upload =
            creator.create_upload(&context(), &address_of("x"), CreateUpload::default()).await.unwrap();
        let number = PartNumber::new(1).unwrap();
        let request = StageRequest { size: Some(1000), ..StageRequest::default() };
        let mut staged =
            setup.leaf.stage_part(&context(), &address_of("x"), &upload, number, request).await.unwrap();
        staged.write(vec![7; 1000].into()).await.unwrap();
        let part = staged.commit(Expected::default()).await.unwrap().0;
        let completion = CompleteUpload {
            parts: vec![CompletePart { number, etag: part.etag, checksum: None }],
            precondition: Precondition::None,
            expected_size: Some(1000),
            expected_checksum: None,
            identity: None,
        };
        let completed =
            setup.leaf.complete_upload(&context(), &address_of("x"), &upload, completion).await.unwrap();
        let versions = setup.version_ids("x").await;
        assert_eq!(versions.len(), 1 + usize::from(is_overwritten));
        assert_eq!(versions.last(), completed.version.as_ref(), "{is_creator}, {is_overwritten}");
    }
}
