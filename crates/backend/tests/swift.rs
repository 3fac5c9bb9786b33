//! The `swift` leaf against a scripted service: tokens and errors. A real Swift and a real Keystone are used by
//! `crates/tradewind/tests/swift_leaf.rs`.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/scripted_server.rs"]
mod scripted_server;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use md5::{Digest as _, Md5};
use tradewind_backend::remote::ProxyRules;
use tradewind_backend::swift::{Auth, Domain, KeystoneCredentials, NameOrId, SwiftOptions, SwiftStore};
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, ObjectStore as _, Select, StageRequest};
use tradewind_core::testing::{SimulatedClock, context};
use tradewind_core::version::VersionId;
use tradewind_core::{Address, ByteRange, Clock, ETag, Precondition, ReadConditions, SystemClock};
use tradewind_model::retry::RetryOptions;

use scripted_server::{ContinueReply, Request, ScriptedResponse, ScriptedServer};

/// A tag that is not the MD5 of anything here, and a time.
const OBJECT: &str =
    "Etag: 00000000000000000000000000000000\r\nLast-Modified: Sun, 22 Nov 2026 02:58:55 GMT\r\n";

/// The object as listed by its container.
const LISTED: &str = r#"{"name": "key", "bytes": 5, "hash": "00000000000000000000000000000000",
    "content_type": "a/b", "last_modified": "2026-11-22T02:58:55.000000"}"#;

fn here() -> Address {
    Address::parse("bucket", "key").unwrap()
}

fn options(server: &ScriptedServer) -> SwiftOptions {
    let auth =
        Auth::V1 { url: format!("{}/auth/v1.0", server.url), user: "a:u".to_owned(), key: "k".to_owned() };
    let first_delay = Duration::from_millis(1);
    SwiftOptions {
        retries: RetryOptions { first_delay, ..RetryOptions::default() },
        ..SwiftOptions::new(auth)
    }
}

fn store(server: &ScriptedServer) -> Arc<SwiftStore> {
    SwiftStore::new(options(server), SystemClock::shared()).unwrap()
}

/// A service that issues the tokens `t1`, `t2`, ... and leaves the rest to `respond`.
async fn service(respond: impl Fn(&Request) -> ScriptedResponse + Send + Sync + 'static) -> ScriptedServer {
    service_resetting(|_| None, respond).await
}

async fn service_resetting(
    reset: impl Fn(&Request) -> Option<usize> + Send + Sync + 'static,
    respond: impl Fn(&Request) -> ScriptedResponse + Send + Sync + 'static,
) -> ScriptedServer {
    service_with_continue(|_| ContinueReply::Wanted, reset, respond).await
}

async fn service_with_continue(
    on_continue: impl Fn(&Request) -> ContinueReply + Send + Sync + 'static,
    reset: impl Fn(&Request) -> Option<usize> + Send + Sync + 'static,
    respond: impl Fn(&Request) -> ScriptedResponse + Send + Sync + 'static,
) -> ScriptedServer {
    let tokens = AtomicUsize::new(0);
    let respond = move |request: &Request| {
        if request.path != "/auth/v1.0" {
            return respond(request);
        }
        assert_eq!((request.header("x-auth-user"), request.header("x-auth-key")), (Some("a:u"), Some("k")));
        let n = tokens.fetch_add(1, Ordering::Relaxed) + 1;
        let url = format!("http://{}/v1/AUTH_a", request.header("host").unwrap());
        let token = format!("X-Auth-Token: t{n}\r\nX-Auth-Token-Expires: 600\r\nX-Storage-Url: {url}\r\n");
        ScriptedResponse::new(200, &token, b"")
    };
    ScriptedServer::start_with_continue(on_continue, reset, respond).await
}

async fn size(store: &SwiftStore) -> Result<u64> {
    Ok(store.head(&context(), &here(), GetRequest::default()).await?.info.size)
}

async fn put(store: &SwiftStore, bytes: Bytes) -> Result<Committed> {
    let request = StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() };
    let mut staged = store.stage(&context(), &here(), request).await?;
    for piece in bytes.chunks(64 << 10) {
        staged.write(bytes.slice_ref(piece)).await?;
    }
    Ok(staged.commit(Expected::default()).await?.0)
}

/// Waits for background work after a completed call.
async fn until(what: impl Fn() -> bool) {
    for _ in 0..500 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition was never met");
}

#[tokio::test]
async fn rejected_token_is_replaced_once() {
    let server = service(|request| match request.header("x-auth-token") {
        Some("t2") => ScriptedResponse::new(200, OBJECT, b"five!"),
        _ => ScriptedResponse::new(401, "", b""),
    })
    .await;
    let leaf = store(&server);
    assert_eq!(size(&leaf).await.unwrap(), 5);
    assert_eq!((server.count("/auth/v1.0"), server.count("/v1/AUTH_a/bucket/key")), (2, 2));

    let server = service(|_| ScriptedResponse::new(401, "", b"")).await;
    let error = size(&store(&server)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::AccessDenied, "{error}");
    assert_eq!((server.count("/auth/v1.0"), server.count("/v1/AUTH_a/bucket/key")), (2, 2));
}

/// A container that lists the object, while the first `reads` reads do not find it.
async fn missed(reads: usize) -> (ScriptedServer, Result<u64>) {
    let missed = AtomicUsize::new(0);
    let server = service(move |request| match request.path.ends_with("/key") {
        true if missed.fetch_add(1, Ordering::Relaxed) < reads => ScriptedResponse::new(404, "", b""),
        true => ScriptedResponse::new(200, OBJECT, b"five!"),
        false => ScriptedResponse::new(200, "", format!("[{LISTED}]").as_bytes()),
    })
    .await;
    let found = size(&store(&server)).await;
    (server, found)
}

/// Reads are small because little memory, or little bandwidth, is allowed.
#[tokio::test]
async fn long_head_fits_into_the_smallest_read() {
    let noise = format!("{OBJECT}X-Noise: {}\r\n", "n".repeat(20_000));
    let server = service(move |_| ScriptedResponse::new(200, &noise, b"five!")).await;
    let small = SwiftOptions { read_bytes: 1, ..options(&server) };
    assert_eq!(size(&SwiftStore::new(small, SystemClock::shared()).unwrap()).await.unwrap(), 5);
}

#[tokio::test]
async fn listed_object_is_retried_when_not_found() {
    let (server, found) = missed(1).await;
    assert_eq!((found.unwrap(), server.count("/v1/AUTH_a/bucket/key")), (5, 2));
    let (server, found) = missed(100).await;
    assert_eq!(found.unwrap_err().reason(), Reason::NoSuchKey);
    assert_eq!(server.count("/v1/AUTH_a/bucket/key"), 5);
}

#[tokio::test]
async fn unlisted_object_is_missing() {
    let other = LISTED.replace("\"key\"", "\"key2\"");
    for listed in [String::new(), other] {
        let server = service(move |request| match request.path.ends_with("/key") {
            true => ScriptedResponse::new(404, "", b""),
            false => ScriptedResponse::new(200, "", format!("[{listed}]").as_bytes()),
        })
        .await;
        assert_eq!(size(&store(&server)).await.unwrap_err().reason(), Reason::NoSuchKey);
        assert_eq!((server.count("/v1/AUTH_a/bucket/key"), server.count("/v1/AUTH_a/bucket")), (1, 1));
    }
}

#[tokio::test]
async fn token_is_shared_and_renewed_before_expiry() {
    let server = service(|_| ScriptedResponse::new(200, OBJECT, b"five!")).await;
    let clock = SimulatedClock::new();
    let leaf = SwiftStore::new(options(&server), clock.clone() as Arc<dyn Clock>).unwrap();
    let many: Vec<_> = (0..20).map(|_| size(&leaf)).collect();
    for result in futures::future::join_all(many).await {
        assert_eq!(result.unwrap(), 5);
    }
    assert_eq!(server.count("/auth/v1.0"), 1);
    clock.advance(Duration::from_secs(539));
    size(&leaf).await.unwrap();
    assert_eq!(server.count("/auth/v1.0"), 1);
    clock.advance(Duration::from_secs(2));
    size(&leaf).await.unwrap();
    assert_eq!(server.count("/auth/v1.0"), 2);
    assert_eq!(server.last("/v1/AUTH_a/bucket/key").header("x-auth-token"), Some("t2"));
}

#[tokio::test]
async fn keystone_provides_token_and_endpoint() {
    let server = ScriptedServer::start(|request| {
        if request.path != "/v3/auth/tokens" {
            assert_eq!(request.header("x-auth-token"), Some("from keystone"));
            return ScriptedResponse::new(200, OBJECT, b"five!");
        }
        let requests: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        let user = &requests["auth"]["identity"]["password"]["user"];
        assert_eq!((&user["name"], &user["domain"]["name"], &user["password"]), (&"u".into(), &"ud".into(), &"pw".into()));
        let project = &requests["auth"]["scope"]["project"];
        assert_eq!((&project["name"], &project["domain"]["name"]), (&"p".into(), &"pd".into()));
        let host = request.header("host").unwrap();
        let endpoint = |region: &str, account: &str| {
            serde_json::json!({"interface": "public", "region": region, "url": format!("http://{host}/v1/{account}")})
        };
        let catalog = serde_json::json!({"token": {"expires_at": "2999-01-01T00:00:00.000000Z", "catalog": [
            {"type": "object-store", "endpoints": [endpoint("one", "AUTH_wrong"), endpoint("two", "AUTH_p")]},
        ]}});
        ScriptedResponse::new(201, "X-Subject-Token: from keystone\r\n", catalog.to_string().as_bytes())
    })
    .await;
    let auth = Auth::Keystone {
        url: format!("{}/v3", server.url),
        login: KeystoneCredentials::Password {
            user: NameOrId::Named("u".to_owned(), Domain::Name("ud".to_owned())),
            password: "pw".to_owned(),
            project: NameOrId::Named("p".to_owned(), Domain::Name("pd".to_owned())),
        },
        region: Some("two".to_owned()),
        interface: "public".to_owned(),
    };
    let leaf = SwiftStore::new(SwiftOptions { auth, ..options(&server) }, SystemClock::shared()).unwrap();
    assert_eq!(size(&leaf).await.unwrap(), 5);
    assert_eq!((server.count("/v3/auth/tokens"), server.count("/v1/AUTH_p/bucket/key")), (1, 1));
}

#[tokio::test]
async fn overloaded_response_is_retried() {
    let requests = AtomicUsize::new(0);
    let server = service(move |_| match requests.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => ScriptedResponse::new(503, "", b""),
        _ => ScriptedResponse::new(200, OBJECT, b"five!"),
    })
    .await;
    assert_eq!(size(&store(&server)).await.unwrap(), 5);
    assert_eq!(server.count("/v1/AUTH_a/bucket/key"), 3);
}

async fn read(leaf: &SwiftStore) -> Result<Bytes> {
    let mut body = leaf.get(&context(), &here(), GetRequest::default()).await?.body;
    let mut all = Vec::new();
    while let Some(piece) = body.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all.into())
}

/// With a single connection, on which the response that refers to the metadata is not fully read yet.
#[tokio::test]
async fn separate_metadata_does_not_wait_for_its_object() {
    let server = service(|request| {
        if request.path.contains("%2Bsegments") || request.path.contains("+segments") {
            let metadata = br#"{"headers": {}, "user": [["colour", "green"]], "tags": [], "ranges": null}"#;
            return ScriptedResponse::new(200, OBJECT, metadata);
        }
        let apart = "X-Object-Meta-Tradewind-Aside: 1\r\nX-Object-Meta-Tradewind-Write: w\r\n";
        ScriptedResponse::new(200, &format!("{OBJECT}{apart}"), b"five!")
    })
    .await;
    let one = SwiftOptions { max_connections: 1, ..options(&server) };
    let leaf = SwiftStore::new(one, SystemClock::shared()).unwrap();
    let context = context();
    let here = here();
    let got = leaf.get(&context, &here, GetRequest::default());
    let found = tokio::time::timeout(Duration::from_secs(20), got).await.unwrap().unwrap();
    assert_eq!(found.info.metadata.user, [("colour".to_owned(), "green".to_owned())]);
}

#[tokio::test]
async fn truncated_body_is_an_error() {
    let server = service(|_| ScriptedResponse::new(200, OBJECT, b"five!").cut_short(3)).await;
    assert_eq!(read(&store(&server)).await.unwrap_err().reason(), Reason::Io);
}

/// The object's headers with the MD5 of these bytes.
fn described(bytes: &[u8]) -> String {
    let etag = ETag::from_md5(&Md5::digest(bytes).into());
    format!("Etag: {etag}\r\nLast-Modified: Sun, 22 Nov 2026 02:58:55 GMT\r\n")
}

#[tokio::test]
async fn get_without_length_has_the_length_of_the_head() {
    for bytes in [&b"five!"[..], b""] {
        let server = service(move |request| match request.method.as_str() {
            "GET" => ScriptedResponse::chunked(200, &described(bytes), bytes),
            _ => ScriptedResponse::new(200, &described(bytes), bytes),
        })
        .await;
        assert_eq!(read(&store(&server)).await.unwrap(), bytes);
    }
    for (name, sent, head) in [("longer", &b"five!"[..], &b"four"[..]), ("another", b"five!", b"other")] {
        let server = service(move |request| match (request.method.as_str(), name) {
            ("GET", _) => ScriptedResponse::chunked(200, &described(sent), sent),
            (_, "longer") => ScriptedResponse::new(200, &described(sent), head),
            _ => ScriptedResponse::new(200, &described(head), head),
        })
        .await;
        assert_eq!(read(&store(&server)).await.unwrap_err().reason(), Reason::Io, "{name}");
    }
}

#[tokio::test]
async fn range_without_length_has_the_length_of_its_content_range() {
    let server = service(|_| {
        let headers = format!("{}Content-Range: bytes 1-3/5\r\n", described(b"five!"));
        ScriptedResponse::chunked(206, &headers, b"ive")
    })
    .await;
    let select = Select::Range(ByteRange::Inclusive { first: 1, last: 3 });
    let request = GetRequest { select, ..GetRequest::default() };
    let found = store(&server).get(&context(), &here(), request).await.unwrap();
    assert_eq!(found.body.collect().await.unwrap(), "ive");
}

#[tokio::test]
async fn segment_without_etag_is_compared_with_its_head() {
    for is_damaged in [false, true] {
        let bytes = Bytes::from(vec![7; 300_000]);
        let stored = if is_damaged { described(b"other") } else { described(&bytes) };
        let is_part = |request: &Request| request.path.contains("bucket%2Bsegments/d/");
        let server = service(move |request| match (request.method.as_str(), is_part(request)) {
            ("HEAD", true) => ScriptedResponse::new(200, &stored, b""),
            ("HEAD", false) if request.path.ends_with("/key") => ScriptedResponse::new(404, "", b""),
            ("PUT", true) => ScriptedResponse::new(201, "", b""),
            _ => ScriptedResponse::new(201, &described(&request.body), b""),
        })
        .await;
        let stored = put(&store(&server), bytes).await;
        assert_eq!(stored.err().map(|e| e.reason()), is_damaged.then_some(Reason::BadDigest));
    }
}

#[tokio::test]
async fn missing_segment_without_etag_is_retryable() {
    let is_part = |request: &Request| request.path.contains("bucket%2Bsegments/d/");
    let server = service(move |request| match (request.method.as_str(), is_part(request)) {
        ("HEAD", true) => ScriptedResponse::new(404, "", b""),
        ("HEAD", false) if request.path.ends_with("/key") => ScriptedResponse::new(404, "", b""),
        ("PUT", true) => ScriptedResponse::new(201, "", b""),
        _ => ScriptedResponse::new(201, &described(&request.body), b""),
    })
    .await;
    let failed = put(&store(&server), Bytes::from(vec![7; 300_000])).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Io, "{failed}");
}

/// The source has a checksum in its metadata, so that it is copied by the service.
#[tokio::test]
async fn copy_without_etag_has_the_etag_of_the_head() {
    for is_replaced in [false, true] {
        let objects: Arc<Mutex<HashMap<String, Request>>> = Arc::default();
        let shared = objects.clone();
        let server = service(move |request| {
            let mut objects = shared.lock().unwrap();
            let is_object = request.path.starts_with("/v1/AUTH_a/bucket/");
            match (request.method.as_str(), objects.get(&request.path).cloned()) {
                ("PUT", _) if request.header("x-copy-from").is_some() => {
                    let source = objects["/v1/AUTH_a/bucket/key"].clone();
                    let body = if is_replaced { b"other".to_vec() } else { source.body };
                    objects.insert(request.path.clone(), Request { body, ..request.clone() });
                    ScriptedResponse::new(201, "", b"")
                }
                ("PUT", _) => {
                    objects.insert(request.path.clone(), request.clone());
                    ScriptedResponse::new(201, &described(&request.body), b"")
                }
                ("HEAD" | "GET", Some(found)) if is_object => {
                    let metadata =
                        found.headers.iter().filter(|(name, _)| name.starts_with("x-object-meta-"));
                    let lines: String =
                        metadata.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                    ScriptedResponse::new(200, &format!("{}{lines}", described(&found.body)), &found.body)
                }
                ("GET", None) if !is_object => ScriptedResponse::new(200, "", b"[]"),
                _ => ScriptedResponse::new(404, "", b""),
            }
        })
        .await;
        let leaf = store(&server);
        let stored = put(&leaf, Bytes::from_static(b"five!")).await.unwrap();
        let request = CopyRequest {
            source: here(),
            source_conditions: ReadConditions::default(),
            destination: Address::parse("bucket", "copy").unwrap(),
            metadata: None,
            tags: None,
            algorithm: None,
            precondition: Precondition::None,
            etag: ETagForm::default(),
        };
        match leaf.copy(&context(), request).await {
            Ok(copied) => assert_eq!((is_replaced, copied.etag), (false, stored.etag)),
            Err(e) => assert_eq!((is_replaced, e.reason()), (true, Reason::Io), "{e}"),
        }
        let copies = server.seen().iter().filter(|sent| sent.header("x-copy-from").is_some()).count();
        assert_eq!(copies, 1);
    }
}

#[tokio::test]
async fn bytes_that_mismatch_the_etag_are_not_served() {
    let server = service(|_| ScriptedResponse::new(200, OBJECT, b"five!")).await;
    assert_eq!(read(&store(&server)).await.unwrap_err().reason(), Reason::CorruptData);
}

#[tokio::test]
async fn small_write_sends_its_md5_and_may_be_overtaken() {
    let server = service(|request| match (request.method.as_str(), request.path.as_str()) {
        ("HEAD", _) => ScriptedResponse::new(404, "", b""),
        // A later write of the key exists already.
        _ => ScriptedResponse::new(202, "Date: Sun, 22 Nov 2026 02:58:55 GMT\r\n", b""),
    })
    .await;
    let committed = put(&store(&server), "five!".into()).await.unwrap();
    let sent = server.last("/v1/AUTH_a/bucket/key");
    assert_eq!(sent.header("etag"), Some(committed.etag.as_str()));
    assert_eq!(sent.body, b"five!");
    let sum = format!("CRC64NVME={}", committed.checksums[0].to_base64());
    assert_eq!(sent.header("x-object-meta-tradewind-checksums"), Some(sum.as_str()));
}

const LARGE: usize = 3 << 20;

fn is_segment(request: &Request) -> bool {
    request.method == "PUT" && request.path.starts_with("/v1/AUTH_a/bucket%2Bsegments/d/")
}

/// Everything succeeds except segments: they are answered with a wrong tag.
fn wrong_tags(request: &Request) -> ScriptedResponse {
    match request.method.as_str() {
        "HEAD" if request.path.ends_with("/key") => ScriptedResponse::new(404, "", b""),
        "HEAD" | "DELETE" => ScriptedResponse::new(204, "", b""),
        _ => ScriptedResponse::new(201, OBJECT, b""),
    }
}

fn deleted(server: &ScriptedServer) -> bool {
    let seen = server.seen();
    seen.iter().any(|request| request.method == "DELETE" && request.path.contains("%2Bsegments/d/"))
}

#[tokio::test]
async fn corrupted_segment_creates_no_object() {
    let server = service(wrong_tags).await;
    let leaf = store(&server);
    let error = put(&leaf, Bytes::from(vec![7; LARGE])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::BadDigest, "{error}");
    until(|| deleted(&server)).await;
    assert_eq!(server.count_of("PUT", "/v1/AUTH_a/bucket/key"), 0);
}

#[tokio::test]
async fn connection_reset_in_a_segment_leaves_no_object() {
    let reset = |request: &Request| is_segment(request).then_some(100_000);
    let server = service_resetting(reset, wrong_tags).await;
    let leaf = store(&server);
    let error = put(&leaf, Bytes::from(vec![7; LARGE])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Io, "{error}");
    until(|| deleted(&server)).await;
    assert_eq!(server.count_of("PUT", "/v1/AUTH_a/bucket/key"), 0);
    // Later writes are unaffected.
    leaf.head_bucket(&context(), &here().bucket).await.unwrap();
}

#[tokio::test]
async fn lost_body_is_not_an_empty_object() {
    // A manifest has no tag to compare bytes with.
    for (more, reason) in [("", Reason::CorruptData), ("X-Static-Large-Object: True\r\n", Reason::Io)] {
        let headers = format!("{OBJECT}{more}");
        let server = service(move |request| match request.method.as_str() {
            "HEAD" => ScriptedResponse::new(200, &headers, b"bytes"),
            _ => ScriptedResponse::new(200, &headers, b""),
        })
        .await;
        let store = store(&server);
        for select in [Select::Whole, Select::Range(ByteRange::Inclusive { first: 0, last: 9 })] {
            let request = GetRequest { select, ..GetRequest::default() };
            let failed = store.get(&context(), &here(), request).await.unwrap_err();
            assert_eq!(failed.reason(), reason, "{select:?}: {failed}");
        }
    }
}

#[tokio::test]
async fn lost_listing_is_not_an_empty_one() {
    let server = service(|request| match request.path.as_str() {
        "/v1/AUTH_a/bucket" => ScriptedResponse::new(200, "", b""),
        _ => ScriptedResponse::new(204, "", b""),
    })
    .await;
    let (store, request) = (store(&server), ListRequest { limit: 10, ..ListRequest::default() });
    let bucket = |name| Address::parse(name, "key").unwrap().bucket;
    let failed = store.list(&context(), &bucket("bucket"), &request).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Io, "{failed}");
    let page = store.list(&context(), &bucket("empty"), &request).await.unwrap();
    assert!(page.entries.is_empty() && page.next.is_none());
}

/// Everything succeeds; `manifest` returns the response to the manifest.
fn right_tags(
    manifest: impl Fn() -> ScriptedResponse + Send + Sync + 'static,
) -> impl Fn(&Request) -> ScriptedResponse + Send + Sync {
    move |request| match request.method.as_str() {
        "HEAD" if request.path.ends_with("/key") => ScriptedResponse::new(404, "", b""),
        "HEAD" | "DELETE" => ScriptedResponse::new(204, "", b""),
        _ if request.path.ends_with("/key") => manifest(),
        _ => {
            let md5: [u8; 16] = Md5::digest(&request.body).into();
            let etag = tradewind_core::ETag::from_md5(&md5);
            ScriptedResponse::new(
                201,
                &format!("Etag: {etag}\r\nLast-Modified: Sun, 22 Nov 2026 02:58:55 GMT\r\n"),
                b"",
            )
        }
    }
}

#[tokio::test]
async fn segments_are_kept_if_the_manifest_may_exist() {
    let server = service(right_tags(|| ScriptedResponse::new(507, "", b""))).await;
    let error = put(&store(&server), Bytes::from(vec![7; LARGE])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Full, "{error}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!deleted(&server), "the response may have been lost after the change");
    let manifest: serde_json::Value =
        serde_json::from_slice(&server.last("/v1/AUTH_a/bucket/key").body).unwrap();
    assert_eq!(manifest[0]["size_bytes"], LARGE);
}

#[tokio::test]
async fn segment_is_sent_once_its_token_is_accepted() {
    let is_first = |request: &Request| request.header("x-auth-token") == Some("t1");
    let on_continue = move |request: &Request| match is_first(request) {
        true => ContinueReply::Refused(ScriptedResponse::new(401, "", b"")),
        false => ContinueReply::Wanted,
    };
    let server =
        service_with_continue(on_continue, |_| None, right_tags(|| ScriptedResponse::new(201, OBJECT, b"")))
            .await;
    put(&store(&server), Bytes::from(vec![7; LARGE])).await.unwrap();
    let seen = server.seen();
    let requests: Vec<_> = seen.iter().filter(|request| request.header("expect").is_some()).collect();
    assert_eq!(requests.len(), 2);
    assert!(is_first(requests[0]) && requests[0].body.is_empty() && requests[1].body.len() == LARGE);
    assert_eq!(server.count("/auth/v1.0"), 2);
}

#[tokio::test]
async fn expect_header_is_not_sent_again_after_silence() {
    let respond = right_tags(|| ScriptedResponse::new(201, OBJECT, b""));
    let server = service_with_continue(|_| ContinueReply::Silence, |_| None, respond).await;
    let store = store(&server);
    for _ in 0..2 {
        put(&store, Bytes::from(vec![7; LARGE])).await.unwrap();
    }
    let seen = server.seen();
    assert_eq!(seen.iter().filter(|request| request.header("expect").is_some()).count(), 1);
}

#[tokio::test]
async fn segments_are_deleted_if_the_manifest_is_rejected() {
    let server = service(right_tags(|| ScriptedResponse::new(403, "", b""))).await;
    let error = put(&store(&server), Bytes::from(vec![7; LARGE])).await.unwrap_err();
    assert_eq!(error.reason(), Reason::AccessDenied, "{error}");
    assert!(deleted(&server));
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_are_kept_if_commit_is_dropped_mid_manifest() {
    let is_sent = Arc::new(AtomicBool::new(false));
    let came = is_sent.clone();
    let (drops, dropped) = mpsc::channel();
    let dropped = Mutex::new(dropped);
    let held_back = move || {
        came.store(true, Ordering::Relaxed);
        let ends = Duration::from_secs(10);
        tokio::task::block_in_place(|| dropped.lock().unwrap().recv_timeout(ends)).unwrap();
        ScriptedResponse::new(201, OBJECT, b"")
    };
    let server = service(right_tags(held_back)).await;
    let leaf = store(&server);
    let bytes = Bytes::from(vec![7; LARGE]);
    let request = StageRequest { size: Some(LARGE as u64), ..StageRequest::default() };
    let mut staged = leaf.stage(&context(), &here(), request).await.unwrap();
    for piece in bytes.chunks(64 << 10) {
        staged.write(bytes.slice_ref(piece)).await.unwrap();
    }
    tokio::select! {
        committed = staged.commit(Expected::default()) => panic!("the request got a response: {committed:?}"),
        () = until(|| is_sent.load(Ordering::Relaxed)) => (),
    }
    drops.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!deleted(&server), "the manifest may exist");
}

/// Swift has no other version than the object, and a request would apply to that.
#[tokio::test]
async fn request_about_a_version_leaves_the_object_alone() {
    let server = service(|request| match request.path.as_str() {
        "/v1/AUTH_a/bucket/key" => ScriptedResponse::new(200, OBJECT, b"five!"),
        _ => ScriptedResponse::new(204, "", b""),
    })
    .await;
    let leaf = store(&server);
    let version = VersionId::from_number(1);
    let missing = here().with_version(Some(version.clone()));
    let head = leaf.head(&context(), &missing, GetRequest::default()).await.unwrap_err();
    let get = leaf.get(&context(), &missing, GetRequest::default()).await.unwrap_err();
    assert_eq!([head.reason(), get.reason()], [Reason::NoSuchVersion; 2]);
    let deleted = leaf.delete(&context(), &missing, Precondition::None).await.unwrap();
    assert_eq!((deleted.existed, deleted.version), (false, Some(version)));
    assert_eq!(server.count("/v1/AUTH_a/bucket/key"), 0, "no request names the object");
    let null = here().with_version(Some(VersionId::Null));
    assert_eq!(leaf.head(&context(), &null, GetRequest::default()).await.unwrap().info.size, 5);
    leaf.delete(&context(), &null, Precondition::None).await.unwrap();
    assert_eq!(server.count_of("DELETE", "/v1/AUTH_a/bucket/key"), 1);
}

/// The scripted service is the proxy: it gets requests to names that only a proxy resolves.
#[tokio::test]
async fn token_and_object_requests_are_sent_to_the_proxy() {
    let proxy = ScriptedServer::start(|request| match &*request.path {
        "http://keys.example/auth/v1.0" => {
            let headers = "X-Auth-Token: t1\r\nX-Storage-Url: http://store.example:8080/v1/AUTH_a\r\n";
            ScriptedResponse::new(200, headers, b"")
        }
        "http://store.example:8080/v1/AUTH_a/bucket" => ScriptedResponse::new(204, "", b""),
        _ => ScriptedResponse::new(404, "", b""),
    })
    .await;
    let auth = Auth::V1 {
        url: "http://keys.example/auth/v1.0".to_owned(),
        user: "a:u".to_owned(),
        key: "k".to_owned(),
    };
    let proxies = ProxyRules::direct().with_http("HTTP_PROXY", &proxy.url);
    let leaf =
        SwiftStore::new(SwiftOptions { proxies, ..SwiftOptions::new(auth) }, SystemClock::shared()).unwrap();
    leaf.head_bucket(&context(), &here().bucket).await.unwrap();
    let seen = proxy.seen();
    let hosts: Vec<_> = seen.iter().filter_map(|request| request.header("host")).collect();
    assert_eq!(hosts, ["keys.example", "store.example:8080"], "{seen:?}");
}

/// A service that loses the first PUT or DELETE of the object after it has arrived. Its container has these headers.
async fn service_losing_a_change(container: &'static str) -> ScriptedServer {
    let lost = AtomicUsize::new(0);
    let reset = move |request: &Request| {
        let is_change = request.path.ends_with("/bucket/key") && matches!(&*request.method, "PUT" | "DELETE");
        let is_lost = is_change && lost.fetch_add(1, Ordering::Relaxed) == 0;
        is_lost.then(|| request.header("content-length").map_or(0, |length| length.parse().unwrap()))
    };
    service_resetting(reset, move |request| match (&*request.method, &*request.path) {
        ("HEAD", "/v1/AUTH_a/bucket") => ScriptedResponse::new(204, container, b""),
        ("HEAD", _) => ScriptedResponse::new(404, "", b""),
        ("DELETE", _) => ScriptedResponse::new(204, "", b""),
        _ => ScriptedResponse::new(201, OBJECT, b""),
    })
    .await
}

#[tokio::test]
async fn lost_change_is_repeated_only_without_versions() {
    for (container, keeps_versions) in [
        ("", false),
        ("X-Versions-Enabled: False\r\n", false),
        ("X-Versions-Enabled: True\r\n", true),
        ("X-Versions-Location: old\r\n", true),
        ("X-History-Location: old\r\n", true),
    ] {
        for method in ["PUT", "DELETE"] {
            let server = service_losing_a_change(container).await;
            let store = store(&server);
            let changed = match method {
                "PUT" => put(&store, Bytes::from_static(b"bytes")).await.map(drop),
                _ => store.delete(&context(), &here(), Precondition::None).await.map(drop),
            };
            let requests = server.count_of(method, "/v1/AUTH_a/bucket/key");
            assert_eq!(requests, if keeps_versions { 1 } else { 2 }, "{method}, {container:?}");
            match changed {
                Ok(()) => assert!(!keeps_versions, "{method}, {container:?}"),
                Err(e) => assert!(keeps_versions && e.is_final() && e.reason() == Reason::Io, "{e:?}"),
            }
        }
    }
}
