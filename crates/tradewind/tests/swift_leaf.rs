//! Conformance of the `swift` leaf, over a real OpenStack Swift on loopback. If Swift is not installed, the tests print
//! that and pass.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

#[path = "swift_leaf/keystone.rs"]
mod keystone;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tradewind_backend::swift::{Auth, SwiftOptions, SwiftStore};
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{GetRequest, Select, StageRequest, Staged};
use tradewind_core::testing::{conformance, context};
use tradewind_core::{
    Address, Algorithm, BucketName, ByteRange, ChecksumScope, Metadata, ObjectStore, Precondition,
    SystemClock,
};

/// A Swift service, with an account per store.
struct SwiftServer {
    swift: support::swift::SwiftServer,
    accounts: AtomicUsize,
}

impl SwiftServer {
    /// Starts Swift; `None` if it is not installed.
    fn start(test: &str) -> Option<Self> {
        let swift = support::swift::SwiftServer::start(test)?;
        Some(Self { swift, accounts: AtomicUsize::new(0) })
    }

    /// The options of a store over an account.
    fn options(&self, account: &str) -> SwiftOptions {
        let said = |name: &str| self.swift.setting(name);
        let auth = Auth::V1 { url: said("AUTH_URL"), user: said("USER"), key: said("KEY") };
        let account_url = Some(format!("{}/AUTH_{account}", said("ACCOUNT_URL")));
        SwiftOptions { account_url, ..SwiftOptions::new(auth) }
    }

    /// A store over a new account, with small segments, so that large objects have many.
    fn store(&self) -> Arc<SwiftStore> {
        let account = self.accounts.fetch_add(1, Ordering::Relaxed);
        let options = SwiftOptions { segment_bytes: 1 << 20, ..self.options(&format!("case{account}")) };
        SwiftStore::new(options, SystemClock::shared()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let Some(laboratory) = SwiftServer::start("conforms") else { return };
    conformance::run(move || {
        let store: Arc<dyn ObjectStore> = laboratory.store();
        async move { store }.boxed()
    })
    .await;
}

fn bucket() -> BucketName {
    BucketName::new("bucket").unwrap()
}

fn address(key: &str) -> Address {
    Address::parse("bucket", key).unwrap()
}

async fn put(store: &SwiftStore, key: &str, bytes: &Bytes) -> Committed {
    let staged = store.stage(&context(), &address(key), StageRequest::default()).await.unwrap();
    write(staged, bytes).await
}

async fn write(mut staged: Box<dyn Staged>, bytes: &Bytes) -> Committed {
    for piece in bytes.chunks(256 << 10) {
        staged.write(bytes.slice_ref(piece)).await.unwrap();
    }
    staged.commit(Expected::default()).await.unwrap().0
}

async fn read(store: &SwiftStore, key: &str, select: Select) -> Bytes {
    let request = GetRequest { select, ..GetRequest::default() };
    store.get(&context(), &address(key), request).await.unwrap().body.collect().await.unwrap()
}

/// Sends a raw request, like another client of Swift. Returns head and body of the response.
async fn raw(laboratory: &SwiftServer, account: &str, request: &str, headers: &str) -> String {
    let said = |name: &str| laboratory.swift.setting(name);
    let login = format!("X-Auth-User: {}\r\nX-Auth-Key: {}\r\n", said("USER"), said("KEY"));
    let granted = exchange(laboratory, "GET /auth/v1.0", &login).await;
    let token = granted.lines().find(|line| line.starts_with("X-Auth-Token:")).unwrap().to_owned();
    let (method, path) = request.split_once(' ').unwrap();
    let request = format!("{method} /v1/AUTH_{account}/{path}");
    exchange(laboratory, &request, &format!("{token}\r\n{headers}")).await
}

async fn exchange(laboratory: &SwiftServer, request: &str, headers: &str) -> String {
    let host = laboratory.swift.setting("AUTH_URL").split('/').nth(2).unwrap().to_owned();
    let mut socket = TcpStream::connect(&host).await.unwrap();
    let text = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// The names of objects in the companion.
async fn held(laboratory: &SwiftServer, account: &str) -> Vec<String> {
    let answer = raw(laboratory, account, "GET bucket%2Bsegments", "").await;
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    body.lines().map(str::to_owned).filter(|line| line.starts_with(['u', 'p', 'd'])).collect()
}

fn pattern(size: usize, seed: u8) -> Bytes {
    (0..size).map(|n| u8::try_from(n * 31 % 251).unwrap() ^ seed).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_are_freed_with_their_object() {
    let Some(laboratory) = SwiftServer::start("segments_are_freed_with_their_object") else { return };
    let options = |grace| SwiftOptions {
        segment_bytes: 1 << 20,
        segment_grace_period: grace,
        ..laboratory.options("segments")
    };
    let open = |grace| SwiftStore::new(options(grace), SystemClock::shared()).unwrap();
    let store = open(Duration::ZERO);
    store.create_bucket(&context(), &bucket()).await.unwrap();
    let large = [pattern(3_000_000, 1), pattern(2_500_000, 2)];
    put(&store, "k", &large[0]).await;
    let first = held(&laboratory, "segments").await;
    assert_eq!(first.len(), 3);
    put(&store, "k", &large[1]).await;
    assert!(read(&store, "k", Select::Whole).await == large[1]);
    let second = held(&laboratory, "segments").await;
    assert!(second.len() == 3 && second.iter().all(|name| !first.contains(name)), "{second:?}");
    // After a small object, a delete, and an abandoned write.
    put(&store, "k", &"small".into()).await;
    assert!(held(&laboratory, "segments").await.is_empty());
    put(&store, "k", &large[0]).await;
    store.delete(&context(), &address("k"), Precondition::None).await.unwrap();
    assert!(held(&laboratory, "segments").await.is_empty());
    let mut staged = store.stage(&context(), &address("k"), StageRequest::default()).await.unwrap();
    for piece in large[0].chunks(256 << 10) {
        staged.write(large[0].slice_ref(piece)).await.unwrap();
    }
    drop(staged);
    for _ in 0..100 {
        if held(&laboratory, "segments").await.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(held(&laboratory, "segments").await.is_empty());

    // With a grace period they remain for readers, and expire.
    let patient = open(Duration::from_secs(600));
    put(&patient, "k", &large[0]).await;
    let left = held(&laboratory, "segments").await;
    patient.delete(&context(), &address("k"), Precondition::None).await.unwrap();
    let head = raw(&laboratory, "segments", &format!("HEAD bucket%2Bsegments/{}", left[0]), "").await;
    assert!(head.contains("X-Delete-At: "), "{head}");
    patient.delete_bucket(&context(), &bucket()).await.unwrap();
    assert!(held(&laboratory, "segments").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_continues_in_another_client() {
    let Some(laboratory) = SwiftServer::start("upload_continues_in_another_client") else { return };
    let open = || SwiftStore::new(laboratory.options("uploads"), SystemClock::shared()).unwrap();
    let (one, context) = (open(), context());
    one.create_bucket(&context, &bucket()).await.unwrap();
    let number = |n| PartNumber::new(n).unwrap();
    let begin = CreateUpload {
        checksum: Some((Algorithm::Sha1, ChecksumScope::Composite)),
        ..CreateUpload::default()
    };
    let upload = one.create_upload(&context, &address("k"), begin).await.unwrap();
    let parts = [pattern(5 << 20, 1), pattern(1000, 2)];
    let staged =
        one.stage_part(&context, &address("k"), &upload, number(3), StageRequest::default()).await.unwrap();
    write(staged, &parts[0]).await;
    one.close().await.unwrap();

    let two = open();
    let staged =
        two.stage_part(&context, &address("k"), &upload, number(7), StageRequest::default()).await.unwrap();
    write(staged, &parts[1]).await;
    let page = two.list_parts(&context, &address("k"), &upload, None, 10).await.unwrap();
    assert_eq!(page.parts.iter().map(|part| part.number.get()).collect::<Vec<_>>(), [3, 7]);
    assert!(
        page.parts.iter().all(|part| part.checksums.iter().any(|sum| sum.algorithm() == Algorithm::Sha1))
    );
    let named = page.parts.iter().map(|part| CompletePart {
        number: part.number,
        etag: part.etag.clone(),
        checksum: None,
    });
    let order = CompleteUpload { parts: named.collect(), ..CompleteUpload::default() };
    let committed = two.complete_upload(&context, &address("k"), &upload, order).await.unwrap();
    assert_eq!((committed.size, committed.scope), ((5 << 20) + 1000, ChecksumScope::Composite));
    assert!(read(&open(), "k", Select::Whole).await == parts.concat());
    assert!(read(&open(), "k", Select::Part(number(7))).await == parts[1]);
    // Only the segments remain.
    assert!(held(&laboratory, "uploads").await.iter().all(|name| name.starts_with("d/")));
}

#[tokio::test(flavor = "multi_thread")]
async fn object_may_need_several_manifests() {
    let Some(laboratory) = SwiftServer::start("object_may_need_several_manifests") else {
        return;
    };
    let options = SwiftOptions {
        segment_bytes: 300,
        segment_grace_period: Duration::ZERO,
        ..laboratory.options("many")
    };
    let store = SwiftStore::new(options, SystemClock::shared()).unwrap();
    store.create_bucket(&context(), &bucket()).await.unwrap();
    let bytes = pattern(300 * 1010 + 7, 3);
    put(&store, "k", &bytes).await;
    // Swift limits reads of many small segments to one per second, so only some are read, from both manifests.
    let range = ByteRange::Inclusive { first: 299_500, last: 300_700 };
    assert!(read(&store, "k", Select::Range(range)).await == bytes[299_500..=300_700]);
    let last = read(&store, "k", Select::Range(ByteRange::Suffix(10))).await;
    assert!(last == bytes[bytes.len() - 10..]);
    let listed =
        store.list(&context(), &bucket(), &ListRequest { limit: 10, ..ListRequest::default() }).await;
    let ListEntry::Key(_, summary) = &listed.unwrap().entries[0] else { panic!("the entry is not a key") };
    assert_eq!(summary.size, bytes.len() as u64);
    store.delete(&context(), &address("k"), Precondition::None).await.unwrap();
    assert!(held(&laboratory, "many").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_shared_with_other_clients() {
    let Some(laboratory) = SwiftServer::start("metadata_is_shared_with_other_clients") else { return };
    let store = SwiftStore::new(laboratory.options("others"), SystemClock::shared()).unwrap();
    store.create_bucket(&context(), &bucket()).await.unwrap();
    let mut metadata =
        Metadata { user: vec![("colour".to_owned(), "green".to_owned())], ..Metadata::default() };
    metadata.headers.content_type = Some("text/plain".to_owned());
    let request = StageRequest { metadata, ..StageRequest::default() };
    let staged = store.stage(&context(), &address("ours"), request).await.unwrap();
    write(staged, &"bytes".into()).await;
    let head = raw(&laboratory, "others", "HEAD bucket/ours", "").await;
    for line in [
        "X-Object-Meta-Colour: green",
        "Content-Type: text/plain",
        "X-Object-Meta-Tradewind-Checksums: CRC64NVME=",
    ] {
        assert!(head.contains(line), "{head}");
    }
    let theirs = "X-Object-Meta-Size: large\r\nContent-Type: image/png\r\nContent-Length: 0\r\n";
    raw(&laboratory, "others", "PUT bucket/theirs", theirs).await;
    let info = store.head(&context(), &address("theirs"), GetRequest::default()).await.unwrap().info;
    assert_eq!(info.metadata.headers.content_type.as_deref(), Some("image/png"));
    assert_eq!(info.metadata.user, [("size".to_owned(), "large".to_owned())]);
    assert!(info.checksums.is_empty() && info.etag.md5().is_some());
    assert!(read(&store, "theirs", Select::Whole).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn key_is_never_missing_during_overwrites() {
    let Some(laboratory) = SwiftServer::start("key_is_never_missing_during_overwrites") else { return };
    let store = laboratory.store();
    store.create_bucket(&context(), &bucket()).await.unwrap();
    put(&store, "k", &pattern(1000, 0)).await;
    let writes = (1..5).map(|writer| {
        let store = &store;
        async move {
            for _ in 0..60 {
                put(store, "k", &pattern(1000, writer)).await;
            }
        }
        .boxed()
    });
    let reads = (0..6).map(|_| {
        let store = &store;
        async move {
            for _ in 0..80 {
                assert_eq!(read(store, "k", Select::Whole).await.len(), 1000);
            }
        }
        .boxed()
    });
    futures::future::join_all(writes.chain(reads)).await;
}
