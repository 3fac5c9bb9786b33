//! Versions: what is sent and read with services that have them, and with services that ignore them.

use std::sync::Arc;

use tradewind_backend::s3::S3Store;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::object::Expected;
use tradewind_core::store::{CopyRequest, Deleted, ETagForm, GetRequest, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::version::{ListVersions, VersionId, VersionPosition, Versioning};
use tradewind_core::{Address, BucketName, ObjectStore as _, Precondition, ReadConditions, Tags};

use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedResponse, ScriptedServer};

const VERSION_ID: &str = "x-amz-version-id";
const MARKER: &str = "x-amz-delete-marker";

fn id(text: &str) -> VersionId {
    VersionId::parse(text).unwrap()
}

fn bucket() -> BucketName {
    BucketName::new(BUCKET).unwrap()
}

fn current() -> Address {
    Address::parse(BUCKET, "x").unwrap()
}

fn version(text: &str) -> Address {
    current().with_version(Some(id(text)))
}

fn copy_of(source: Address) -> CopyRequest {
    CopyRequest {
        source,
        source_conditions: ReadConditions::default(),
        destination: Address::parse(BUCKET, "copy").unwrap(),
        metadata: None,
        tags: None,
        algorithm: None,
        precondition: Precondition::None,
        etag: ETagForm::Md5,
    }
}

/// A service with the object `x`, whose responses are modified by `change`, and a store over it.
fn store(
    change: impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + 'static,
) -> (ScriptedServer, Arc<S3Store>) {
    let server = ScriptedServer::start(change);
    server.put_object("x", b"current".to_vec());
    let store = crate::leaf_over(server.address, |_| {});
    (server, store)
}

/// A service that names the version of each response about an object: the one requested, or `v2`.
fn named(request: &Request, answer: ScriptedResponse) -> Reply {
    let version = request.query.get("versionId").map_or("v2", String::as_str);
    let answer = match (request.operation, request.query.contains_key("tagging")) {
        ("CopyObject", _) => {
            ScriptedResponse::document("<CopyObjectResult><ETag>&quot;copied&quot;</ETag></CopyObjectResult>")
                .with_header("x-amz-copy-source-version-id", "v1")
        }
        ("HeadObject", _) if request.key == "copy" => answered_copy(),
        (_, true) => ScriptedResponse::document("<Tagging></Tagging>"),
        _ => answer,
    };
    Reply::Respond(answer.with_header(VERSION_ID, version))
}

fn answered_copy() -> ScriptedResponse {
    ScriptedResponse::document("12345")
        .with_header("ETag", "\"copied\"")
        .with_header("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
}

async fn head(store: &S3Store, address: &Address) -> Result<Option<VersionId>> {
    Ok(store.head(&context(), address, GetRequest::default()).await?.info.version)
}

async fn get(store: &S3Store, address: &Address) -> Result<Option<VersionId>> {
    let found = store.get(&context(), address, GetRequest::default()).await?;
    found.body.collect().await?;
    Ok(found.info.version)
}

async fn delete(store: &S3Store, address: &Address) -> Result<Deleted> {
    store.delete(&context(), address, Precondition::None).await
}

/// Such a service applies a request about a version to the current object.
#[tokio::test(flavor = "multi_thread")]
async fn service_that_ignores_versions_keeps_its_object() {
    let (server, store) = store(|_, answer| Reply::Respond(answer));
    let missing = version("v1");
    let reasons = [
        head(&store, &missing).await.unwrap_err(),
        get(&store, &missing).await.unwrap_err(),
        store.set_tags(&context(), &missing, Tags::default()).await.unwrap_err(),
        store.object_parts(&context(), &missing, None, 10).await.unwrap_err(),
        store.copy(&context(), copy_of(missing.clone())).await.unwrap_err(),
    ]
    .map(|e| e.reason());
    assert_eq!(reasons, [Reason::NoSuchVersion; 5]);
    let deleted = delete(&store, &missing).await.unwrap();
    assert_eq!(deleted, Deleted { existed: false, version: Some(id("v1")), is_delete_marker: false });
    let sent =
        ["DeleteObject", "PutObject", "CopyObject"].map(|operation| server.requests_of(operation).len());
    assert_eq!(sent, [0; 3], "{:?}", server.request_counts());
    assert_eq!(server.object("x").unwrap(), b"current");
    // The object is its null version.
    assert_eq!(head(&store, &version("null")).await.unwrap(), None);
    assert!(delete(&store, &version("null")).await.unwrap().existed);
    assert!(server.object("x").is_none());
    let versioning = store.versioning(&context(), &bucket()).await.unwrap_err();
    let set = store.set_versioning(&context(), &bucket(), Versioning::Enabled).await.unwrap_err();
    assert_eq!([versioning.reason(), set.reason()], [Reason::Unsupported; 2]);
}

/// The service rejects the listing of versions, or lists the objects.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_service_without_versions_are_null_versions() {
    for is_ignored in [false, true] {
        let (_server, store) = store(move |request, answer| {
            let is_listing = request.query.contains_key("versions") && is_ignored;
            let document = ScriptedResponse::document("<ListBucketResult></ListBucketResult>");
            Reply::Respond(if is_listing { document } else { answer })
        });
        let request = ListVersions { limit: 10, ..ListVersions::default() };
        let page = store.list_versions(&context(), &bucket(), &request).await.unwrap();
        let [ListEntry::Key(key, listed)] = &page.entries[..] else { panic!("{:?}", page.entries) };
        assert_eq!((&**key, &listed.version, listed.is_latest), ("x", &VersionId::Null, true));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_name_the_version_and_responses_are_read() {
    let (server, store) = store(named);
    assert_eq!(head(&store, &current()).await.unwrap(), Some(id("v2")));
    assert_eq!(head(&store, &version("v1")).await.unwrap(), Some(id("v1")));
    assert_eq!(get(&store, &version("null")).await.unwrap(), Some(VersionId::Null));
    store.set_tags(&context(), &version("a b"), Tags::default()).await.unwrap();
    let copied = store.copy(&context(), copy_of(version("v/1"))).await.unwrap();
    assert_eq!((copied.version, copied.source_version), (Some(id("v2")), Some(id("v1"))));
    let deleted = delete(&store, &version("v1")).await.unwrap();
    assert_eq!(deleted, Deleted { existed: true, version: Some(id("v1")), is_delete_marker: false });
    let sent: Vec<(&str, String)> = server
        .requests()
        .iter()
        .filter(|request| request.key == "x" || request.operation == "CopyObject")
        .map(|request| {
            let source = request.header("x-amz-copy-source").to_owned();
            (request.operation, request.query.get("versionId").cloned().unwrap_or(source))
        })
        .collect();
    let expected = [
        ("HeadObject", ""),
        ("HeadObject", "v1"),
        ("GetObject", "null"),
        ("DeleteObject", "a b"),
        ("CopyObject", "/bucket/x?versionId=v%2F1"),
        ("DeleteObject", "v1"),
    ];
    assert_eq!(sent, expected.map(|(operation, version)| (operation, version.to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn response_about_another_version_is_rejected() {
    let (_server, store) = store(|_, answer| Reply::Respond(answer.with_header(VERSION_ID, "v2")));
    for asked in ["v1", "null"] {
        assert_eq!(
            get(&store, &version(asked)).await.unwrap_err().reason(),
            Reason::NoSuchVersion,
            "{asked}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_reports_the_marker_that_was_added() {
    let (_server, store) =
        store(|_, answer| Reply::Respond(answer.with_header(VERSION_ID, "m1").with_header(MARKER, "true")));
    let deleted = delete(&store, &current()).await.unwrap();
    assert_eq!(deleted, Deleted { existed: true, version: Some(id("m1")), is_delete_marker: true });
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_of_a_marker_is_sent_after_its_head() {
    let (server, store) = store(|request, answer| {
        let answer = match request.operation {
            "HeadObject" => ScriptedResponse::error(405, "MethodNotAllowed", "It is a delete marker."),
            _ => answer,
        };
        Reply::Respond(answer.with_header(VERSION_ID, "m1").with_header(MARKER, "true"))
    });
    let deleted = delete(&store, &version("m1")).await.unwrap();
    assert_eq!(deleted, Deleted { existed: true, version: Some(id("m1")), is_delete_marker: true });
    assert_eq!(server.request_counts(), [("DeleteObject", 1), ("HeadObject", 1)]);
}

/// The errors of a HEAD and a GET, of the current object and of version `v1`, if both responses are `answer`.
async fn errors(answer: ScriptedResponse) -> [Error; 4] {
    let (_server, store) = store(move |request, other| {
        let is_read = matches!(request.operation, "HeadObject" | "GetObject");
        Reply::Respond(if is_read { answer.clone() } else { other })
    });
    [
        head(&store, &current()).await.unwrap_err(),
        get(&store, &current()).await.unwrap_err(),
        head(&store, &version("v1")).await.unwrap_err(),
        get(&store, &version("v1")).await.unwrap_err(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn object_hidden_by_a_marker_names_the_marker() {
    let answer = ScriptedResponse::error(404, "NoSuchKey", "It does not exist.");
    let [head, get, ..] = errors(answer.with_header(MARKER, "true").with_header(VERSION_ID, "m1")).await;
    for e in [head, get] {
        assert_eq!((e.reason(), e.delete_marker()), (Reason::NoSuchKey, Some(&id("m1"))), "{e:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn named_marker_is_reported_as_one() {
    let answer = ScriptedResponse::error(405, "MethodNotAllowed", "Not against this resource.");
    let answer = answer.with_header("last-modified", "Thu, 01 Jan 1970 00:00:07 GMT");
    let [.., head, get] = errors(answer.with_header(MARKER, "true")).await;
    for e in [head, get] {
        assert_eq!((e.reason(), e.delete_marker()), (Reason::DeleteMarker, Some(&id("v1"))), "{e:?}");
        assert_eq!(e.delete_marker_time().unwrap().seconds(), 7);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_version_is_recognized_by_code_and_status() {
    for (status, code, message) in [
        (404, "NoSuchVersion", "It does not exist."),
        (404, "NoSuchKey", "It does not exist."),
        (400, "InvalidArgument", "Invalid version id specified"),
    ] {
        let [.., head, get] = errors(ScriptedResponse::error(status, code, message)).await;
        for e in [head, get] {
            assert_eq!(e.reason(), Reason::NoSuchVersion, "{code}: {e:?}");
        }
    }
    let [_, get, _, versioned] = errors(ScriptedResponse::error(400, "InvalidArgument", "Bad header.")).await;
    assert_eq!([get.reason(), versioned.reason()], [Reason::InvalidArgument; 2]);
}

/// A HEAD without the key of an object encrypted with it is rejected, too. The object must not count as missing.
#[tokio::test(flavor = "multi_thread")]
async fn delete_of_a_version_whose_head_is_rejected_fails() {
    for is_version_the_cause in [false, true] {
        let (server, store) = store(move |request, answer| {
            let is_rejected = request.operation == "HeadObject"
                && (request.query.contains_key("versionId") || !is_version_the_cause);
            Reply::Respond(if is_rejected { ScriptedResponse::error(400, "Bad", "Bad.") } else { answer })
        });
        let deleted = delete(&store, &version("v1")).await;
        if is_version_the_cause {
            assert!(!deleted.unwrap().existed);
        } else {
            let e = deleted.unwrap_err();
            assert!(
                e.to_string().starts_with("cannot determine whether key \"x\" has a version v1"),
                "{e:?}"
            );
        }
        assert_eq!(server.requests_of("DeleteObject").len(), 0);
    }
}

/// After a listing of versions, no HEAD precedes the removal of one.
#[tokio::test(flavor = "multi_thread")]
async fn listing_of_versions_proves_that_the_service_has_them() {
    let (server, store) = store(|request, answer| {
        let is_listing = request.query.contains_key("versions");
        let document = ScriptedResponse::document("<ListVersionsResult></ListVersionsResult>");
        Reply::Respond(if is_listing { document } else { answer })
    });
    let request = ListVersions { limit: 10, ..ListVersions::default() };
    store.list_versions(&context(), &bucket(), &request).await.unwrap();
    assert!(delete(&store, &version("null")).await.unwrap().existed);
    assert_eq!(server.request_counts(), [("DeleteObject", 1), ("Other", 1)]);
}

/// The first attempt removed the version, and its response was lost.
#[tokio::test(flavor = "multi_thread")]
async fn delete_of_a_version_after_a_lost_response_reports_it() {
    let (_server, store) = store(|request, answer| match (request.operation, request.number) {
        ("HeadObject", _) => Reply::Respond(answer.with_header(VERSION_ID, "v1")),
        ("DeleteObject", 1) => Reply::ResetAfterExecution(answer),
        _ => Reply::Respond(ScriptedResponse::error(404, "NoSuchVersion", "It does not exist.")),
    });
    assert!(delete(&store, &version("v1")).await.unwrap().existed);
}

/// A rejected HEAD has no code. If every request is rejected, the version is not the cause.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_head_of_a_version_is_confirmed_by_the_bucket() {
    let (server, store) = store(|_, _| Reply::Respond(ScriptedResponse::error(400, "Bad", "Bad.")));
    let e = head(&store, &version("v1")).await.unwrap_err();
    assert_eq!(e.reason(), Reason::InvalidRequest, "{e:?}");
    // The second HEAD has no checksum header, which could be the cause, too.
    assert_eq!(server.request_counts(), [("HeadBucket", 1), ("HeadObject", 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_from_a_marker_is_reported_as_one() {
    let (_server, store) = store(|request, answer| match request.operation {
        "CopyObject" => {
            let message = "The source of a copy request may not refer to a delete marker by version id.";
            Reply::Respond(ScriptedResponse::error(400, "InvalidRequest", message))
        }
        _ => named(request, answer),
    });
    let e = store.copy(&context(), copy_of(version("m1"))).await.unwrap_err();
    assert_eq!((e.reason(), e.delete_marker()), (Reason::DeleteMarker, Some(&id("m1"))), "{e:?}");
}

/// The destination is overwritten after the copy, before its size is requested.
#[tokio::test(flavor = "multi_thread")]
async fn overwritten_copy_is_described_by_its_version() {
    let (_server, store) = store(|request, answer| {
        let is_current = request.key == "copy" && !request.query.contains_key("versionId");
        match request.operation {
            "HeadObject" if is_current => Reply::Respond(answered_copy().with_header("ETag", "\"theirs\"")),
            _ => named(request, answer),
        }
    });
    let copied = store.copy(&context(), copy_of(current())).await.unwrap();
    assert_eq!((copied.size, copied.version), (5, Some(id("v2"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_write_is_resolved_by_the_current_version() {
    let (server, store) = store(|request, answer| {
        let answer = answer.with_header(VERSION_ID, "v3");
        match (request.operation, request.number) {
            ("PutObject", 1) => Reply::ResetAfterExecution(answer),
            _ => Reply::Respond(answer),
        }
    });
    let address = Address::parse(BUCKET, "new").unwrap();
    let request = StageRequest { precondition: Precondition::Absent, ..StageRequest::default() };
    // A version in the address of a write is not sent.
    let staged = store.stage(&context(), &address.with_version(Some(id("v1"))), request).await.unwrap();
    let committed = staged.commit(Expected::default()).await.unwrap().0;
    assert_eq!(committed.version, Some(id("v3")));
    assert_eq!(server.requests_of("HeadObject").len(), 1);
    assert!(server.requests().iter().all(|request| !request.query.contains_key("versionId")));
}

#[tokio::test(flavor = "multi_thread")]
async fn versioning_is_read_and_set() {
    for (document, versioning) in [
        ("<VersioningConfiguration/>", Versioning::Off),
        ("<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>", Versioning::Enabled),
        (
            "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>",
            Versioning::Suspended,
        ),
    ] {
        let (server, store) = store(move |request, _| {
            assert!(request.query.contains_key("versioning"));
            let is_set = !request.body.is_empty();
            assert!(
                !is_set
                    || (request.body == document.as_bytes() && request.headers.contains_key("content-md5"))
            );
            Reply::Respond(ScriptedResponse::document(document))
        });
        assert_eq!(store.versioning(&context(), &bucket()).await.unwrap(), versioning);
        store.set_versioning(&context(), &bucket(), versioning).await.unwrap();
        let off = store.set_versioning(&context(), &bucket(), Versioning::Off).await;
        assert_eq!(off.is_ok(), versioning == Versioning::Off);
        assert_eq!(
            off.err().map(|e| e.reason()),
            (versioning != Versioning::Off).then_some(Reason::InvalidRequest)
        );
        assert!(server.requests().len() >= 3);
    }
}

/// Pages begin with entries up to the position, as some services send them.
#[tokio::test(flavor = "multi_thread")]
async fn version_listing_continues_after_its_position() {
    let entry = |key: &str, version: &str| {
        let time = "<LastModified>2026-01-02T03:04:05Z</LastModified>";
        format!("<Version><Key>{key}</Key><VersionId>{version}</VersionId><Size>5</Size>{time}</Version>")
    };
    let page = move |entries: &[String], next: &str| {
        let more = if next.is_empty() { "" } else { "<IsTruncated>true</IsTruncated>" };
        let document = format!("<ListVersionsResult>{}{more}{next}</ListVersionsResult>", entries.concat());
        Reply::Respond(ScriptedResponse::document(&document))
    };
    let (server, store) = store(move |request, _| {
        assert_eq!(request.header("accept-encoding"), "gzip");
        let marker = |name: &str| request.query.get(name).map_or("", String::as_str);
        match (marker("key-marker"), marker("version-id-marker")) {
            ("k", "") => page(
                &[entry("k", "v2")],
                "<NextKeyMarker>k</NextKeyMarker><NextVersionIdMarker>v2</NextVersionIdMarker>",
            ),
            ("k", "v2") => page(&[entry("k", "v2"), entry("k", "null"), entry("l", "v1")], ""),
            other => panic!("{other:?}"),
        }
    });
    let list = async |version: Option<VersionId>| {
        let after = Some(VersionPosition { key: "k".to_owned(), version });
        let request = ListVersions { after, limit: 2, ..ListVersions::default() };
        let page = store.list_versions(&context(), &bucket(), &request).await.unwrap();
        page.entries.iter().map(|entry| entry.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list(Some(id("v2"))).await, ["k", "l"]);
    assert_eq!(list(None).await, ["l"]);
    assert_eq!(server.requests().len(), 3);
}
