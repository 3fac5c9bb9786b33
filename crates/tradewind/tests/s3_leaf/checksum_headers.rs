//! Services that refuse checksum headers, and settings that omit them.

#[path = "checksum_headers/etags.rs"]
mod etags;
#[path = "checksum_headers/suspicions.rs"]
mod suspicions;
#[path = "checksum_headers/trailers.rs"]
mod trailers;
#[path = "checksum_headers/uploads.rs"]
mod uploads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tradewind_backend::s3::{
    AddressingStyle, ChecksumUse, Endpoint, S3Options, S3Store, SubstituteProof, SubstituteProofs,
};
use tradewind_core::error::{ErrorKind, Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, CreateUpload, PartNumber, UploadId};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{CopyRequest, ETagForm, GetRequest, StageRequest, Staged};
use tradewind_core::testing::{SimulatedClock, context};
use tradewind_core::{
    Address, Algorithm, Checksum, ChecksumScope, ObjectStore, Precondition, ReadConditions,
};
use tradewind_wire::sigv4::Credentials;

use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedResponse, ScriptedServer};

/// One byte more than is buffered, so that the write is streamed.
const STREAMED: usize = (256 << 10) + 1;
/// The header of the default checksum.
const CRC: &str = "x-amz-checksum-crc64nvme";

fn key() -> Address {
    Address::parse(BUCKET, "k").unwrap()
}

fn md5_etag(bytes: &[u8]) -> String {
    format!("\"{}\"", hex::encode(Checksum::compute(Algorithm::Md5, bytes).bytes()))
}

fn content_md5(bytes: &[u8]) -> String {
    Checksum::compute(Algorithm::Md5, bytes).to_base64()
}

/// The name of a checksum header in a request; `None` if there is none.
fn checksum_header(request: &Request) -> Option<&str> {
    let is_one = |name: &&String| {
        name.starts_with("x-amz-checksum-")
            || matches!(name.as_str(), "x-amz-sdk-checksum-algorithm" | "x-amz-trailer")
    };
    request.headers.keys().find(is_one).map(String::as_str)
}

fn refusal(header: &str) -> ScriptedResponse {
    let message = format!("Unsupported header '{header}' received for this API call.");
    ScriptedResponse::error(400, "InvalidArgument", &message)
}

fn is_read(request: &Request) -> bool {
    matches!(request.operation, "GetObject" | "HeadObject")
}

/// The response of a service without checksums. Its ETags are MD5s, and it compares Content-MD5.
fn plain(request: &Request, answer: ScriptedResponse) -> ScriptedResponse {
    if answer.status >= 300 {
        return answer;
    }
    let sent = request.header("content-md5");
    if !sent.is_empty() && sent != content_md5(&request.body) {
        return ScriptedResponse::error(400, "BadDigest", "The Content-MD5 did not match what we received.");
    }
    let answer = answer.without_header("x-amz-checksum-crc64nvme").without_header("x-amz-checksum-type");
    match request.operation {
        "GetObject" | "HeadObject" => {
            let etag = md5_etag(&answer.body);
            answer.with_header("ETag", &etag)
        }
        "PutObject" | "UploadPart" => answer.with_header("ETag", &md5_etag(&request.body)),
        _ => answer,
    }
}

/// A service without checksums that refuses their headers in the requests that `refuses` selects.
fn refusing(refuses: impl Fn(&Request) -> bool + Send + Sync + 'static) -> ScriptedServer {
    ScriptedServer::start(move |request, answer| {
        Reply::Respond(match checksum_header(request).filter(|_| refuses(request)) {
            Some(header) => refusal(header),
            None => plain(request, answer),
        })
    })
}

/// A store, and its counters.
struct Scene {
    store: Arc<S3Store>,
    proofs: Arc<SubstituteProofs>,
}

impl Scene {
    fn new(server: &ScriptedServer, change: impl FnOnce(&mut S3Options)) -> Self {
        let mut proofs = Arc::default();
        let store = crate::leaf_over(server.address, |options| {
            change(options);
            proofs = options.substitute_proofs.clone();
        });
        Self { store, proofs }
    }

    /// The counts by Content-MD5, ETag and length.
    fn counts(&self) -> [u64; 3] {
        SubstituteProof::ALL.map(|proof| self.proofs.count(proof))
    }

    async fn stage(&self, request: StageRequest) -> Result<Box<dyn Staged>> {
        self.store.stage(&context(), &key(), request).await
    }

    /// A store with a simulated clock.
    fn with_clock(server: &ScriptedServer, clock: Arc<SimulatedClock>) -> Self {
        let endpoint = Endpoint::parse(&format!("http://{}", server.address), AddressingStyle::Path).unwrap();
        let (id, secret) = (crate::ID.to_owned(), crate::SECRET.to_owned());
        let credentials = Credentials { id, secret, token: None };
        let options = S3Options::new(endpoint, "us-east-1".to_owned(), Some(credentials));
        let proofs = options.substitute_proofs.clone();
        Self { store: S3Store::new(options, clock).unwrap(), proofs }
    }

    /// Writes an object of known size.
    async fn put(&self, bytes: &[u8]) -> Result<Committed> {
        self.put_at("k", bytes).await
    }

    async fn put_at(&self, key: &str, bytes: &[u8]) -> Result<Committed> {
        let request = StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() };
        write(self.store.stage(&context(), &Address::parse(BUCKET, key)?, request).await?, bytes).await
    }

    /// Writes an object whose checksum is known beforehand.
    async fn put_declared(&self, bytes: &[u8]) -> Result<Committed> {
        let checksum = Some(Checksum::compute(Algorithm::Crc64Nvme, bytes));
        let request = StageRequest { size: Some(bytes.len() as u64), checksum, ..StageRequest::default() };
        write(self.stage(request).await?, bytes).await
    }

    async fn head(&self) -> Result<u64> {
        Ok(self.store.head(&context(), &key(), GetRequest::default()).await?.info.size)
    }

    async fn get(&self) -> Result<Bytes> {
        self.store.get(&context(), &key(), GetRequest::default()).await?.body.collect().await
    }
}

async fn write(mut staged: Box<dyn Staged>, bytes: &[u8]) -> Result<Committed> {
    for piece in bytes.chunks(100 << 10) {
        staged.write(Bytes::copy_from_slice(piece)).await?;
    }
    Ok(staged.commit(Expected::default()).await?.0)
}

/// The checksum headers of an operation's requests; empty names for requests without one.
fn sent_headers(server: &ScriptedServer, operation: &str) -> Vec<String> {
    let requests = server.requests_of(operation);
    requests.iter().map(|request| checksum_header(request).unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_headers_are_omitted_from_all_later_requests() {
    let server = refusing(|_| true);
    let scene = Scene::new(&server, |_| {});
    scene.put(b"one").await.unwrap();
    scene.put(b"two").await.unwrap();
    assert_eq!(sent_headers(&server, "PutObject"), ["x-amz-checksum-crc64nvme", "", ""]);
    assert_eq!(scene.head().await.unwrap(), 3);
    assert_eq!(scene.head().await.unwrap(), 3);
    let confirmed = ["x-amz-checksum-mode", "", "x-amz-checksum-mode", ""];
    assert_eq!(sent_headers(&server, "HeadObject"), confirmed, "a bare 400 is confirmed");
    assert_eq!(scene.get().await.unwrap(), "two");
    assert_eq!(sent_headers(&server, "GetObject"), [""]);
    let digests: Vec<_> = server.requests_of("PutObject")[1..]
        .iter()
        .map(|request| request.header("content-md5").to_owned())
        .collect();
    assert_eq!(digests, [content_md5(b"one"), content_md5(b"two")]);
    assert_eq!(scene.counts(), [2, 1, 0], "the body of the GET is compared with its ETag");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_writes_does_not_affect_reads() {
    let server = ScriptedServer::start(|request, answer| {
        let refused = checksum_header(request).filter(|_| !is_read(request));
        Reply::Respond(refused.map_or(answer, refusal))
    });
    let scene = Scene::new(&server, |_| {});
    scene.put(b"one").await.unwrap();
    assert_eq!(scene.get().await.unwrap(), "one");
    assert_eq!(sent_headers(&server, "GetObject"), ["x-amz-checksum-mode"]);
    assert_eq!(scene.counts(), [1, 0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_get_is_sent_without_the_header() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(match checksum_header(request) {
            // R2's way: 501, and the header in its own element.
            Some(header) => {
                let header = format!("<Header>{header}</Header>");
                ScriptedResponse::error_with(501, "NotImplemented", "Not implemented.", &header)
            }
            None => plain(request, answer),
        })
    });
    server.put_object("k", b"bytes".to_vec());
    let scene = Scene::new(&server, |_| {});
    for _ in 0..2 {
        assert_eq!(scene.get().await.unwrap(), "bytes");
    }
    assert_eq!(sent_headers(&server, "GetObject"), ["x-amz-checksum-mode", "", ""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_is_not_believed_if_the_retry_fails() {
    let server = ScriptedServer::start(|request, _| {
        let header = checksum_header(request).unwrap_or("x-amz-checksum-crc64nvme");
        Reply::Respond(refusal(header))
    });
    let scene = Scene::new(&server, |_| {});
    for _ in 0..2 {
        assert_eq!(scene.put(b"one").await.unwrap_err().reason(), Reason::InvalidArgument);
        assert!(scene.head().await.is_err());
    }
    let write = "x-amz-checksum-crc64nvme";
    assert_eq!(sent_headers(&server, "PutObject"), [write, "", write, ""]);
    let read = "x-amz-checksum-mode";
    assert_eq!(sent_headers(&server, "HeadObject"), [read, "", read, ""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn head_of_a_missing_object_finds_none_behind_a_refusal() {
    let server = refusing(|_| true);
    let scene = Scene::new(&server, |_| {});
    assert_eq!(scene.head().await.unwrap_err().reason(), Reason::NoSuchKey);
    assert_eq!(sent_headers(&server, "HeadObject"), ["x-amz-checksum-mode", ""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_400_of_head_is_no_refusal_after_a_checksum() {
    let server = ScriptedServer::start(|request, answer| {
        let is_refused = request.operation == "HeadObject" && request.key == "encrypted";
        Reply::Respond(if is_refused { ScriptedResponse::error(400, "", "") } else { answer })
    });
    server.put_object("k", b"bytes".to_vec());
    let scene = Scene::new(&server, |_| {});
    scene.head().await.unwrap();
    let encrypted = Address::parse(BUCKET, "encrypted").unwrap();
    assert!(scene.store.head(&context(), &encrypted, GetRequest::default()).await.is_err());
    assert_eq!(server.request_counts(), [("HeadObject", 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_400_of_head_that_passes_is_no_refusal() {
    let server = ScriptedServer::start(|request, answer| {
        let is_refused = request.operation == "HeadObject" && request.number == 1;
        Reply::Respond(if is_refused { ScriptedResponse::error(400, "", "") } else { plain(request, answer) })
    });
    server.put_object("k", b"bytes".to_vec());
    let scene = Scene::new(&server, |_| {});
    assert_eq!(scene.head().await.unwrap(), 5);
    assert_eq!(scene.head().await.unwrap(), 5);
    let mode = "x-amz-checksum-mode";
    assert_eq!(sent_headers(&server, "HeadObject"), [mode, "", mode, mode]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_is_forgotten_after_an_hour() {
    let server = refusing(|_| true);
    let clock = SimulatedClock::new();
    let scene = Scene::with_clock(&server, clock.clone());
    scene.put(b"one").await.unwrap();
    clock.advance(Duration::from_secs(3599));
    scene.put(b"two").await.unwrap();
    clock.advance(Duration::from_secs(1));
    scene.put(b"three").await.unwrap();
    let header = "x-amz-checksum-crc64nvme";
    assert_eq!(sent_headers(&server, "PutObject"), [header, "", "", header, ""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_stream_fails_once_and_succeeds_at_the_next_attempt() {
    let server = refusing(|_| true);
    let scene = Scene::new(&server, |_| {});
    let bytes = vec![7; STREAMED];
    let failed = scene.put_declared(&bytes).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Unavailable, "a client gets 503: {failed}");
    for _ in 0..2 {
        let stored = scene.put_declared(&bytes).await.unwrap();
        assert_eq!(format!("\"{}\"", stored.etag), md5_etag(&bytes));
    }
    assert_eq!(sent_headers(&server, "PutObject"), ["x-amz-checksum-crc64nvme", "", ""]);
    assert_eq!(scene.counts(), [0, 2, 0]);
    scene.put(b"small").await.unwrap();
    assert_eq!(sent_headers(&server, "PutObject")[3..], [""], "the second attempt has proved the refusal");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_whose_retry_fails_proves_no_refusal() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(match request.number {
            1 | 2 => refusal("x-amz-checksum-crc64nvme"),
            _ => answer,
        })
    });
    let scene = Scene::new(&server, |_| {});
    let bytes = vec![7; STREAMED];
    assert_eq!(scene.put_declared(&bytes).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(scene.put_declared(&bytes).await.unwrap_err().reason(), Reason::InvalidArgument);
    scene.put_declared(&bytes).await.unwrap();
    let header = "x-amz-checksum-crc64nvme";
    assert_eq!(sent_headers(&server, "PutObject"), [header, "", header]);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_no_refusal() {
    let server = ScriptedServer::start(|request, answer| {
        let message = "The provided 'x-amz-checksum-crc64nvme' header does not match what was computed.";
        Reply::Respond(match (request.operation, request.number) {
            ("PutObject", 1) => ScriptedResponse::error(400, "XAmzContentChecksumMismatch", message),
            ("PutObject", 2) => ScriptedResponse::error(400, "InvalidRequest", message),
            _ => answer,
        })
    });
    let scene = Scene::new(&server, |_| {});
    assert_eq!(scene.put(b"one").await.unwrap_err().reason(), Reason::BadDigest);
    assert!(scene.put(b"one").await.is_err());
    scene.put(b"one").await.unwrap();
    assert_eq!(sent_headers(&server, "PutObject"), ["x-amz-checksum-crc64nvme"; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn etag_that_is_no_md5_is_not_compared() {
    for (name, value) in [("ETag", "\"0123-1\""), ("x-amz-server-side-encryption", "aws:kms")] {
        let server = ScriptedServer::start(move |request, answer| {
            let answer = plain(request, answer).with_header("ETag", &md5_etag(b"other bytes"));
            Reply::Respond(answer.with_header(name, value))
        });
        let scene = Scene::new(&server, |options| options.request_checksums = ChecksumUse::WhenRequired);
        scene.put(&vec![7; STREAMED]).await.unwrap();
        assert_eq!(scene.counts(), [0, 0, 1], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etag_is_not_compared_if_the_checksum_is_returned() {
    let server = ScriptedServer::start(|request, answer| {
        let crc = Checksum::compute(Algorithm::Crc64Nvme, &request.body).to_base64();
        let answer = plain(request, answer).with_header("ETag", &md5_etag(b"other bytes"));
        Reply::Respond(answer.with_header("x-amz-checksum-crc64nvme", &crc))
    });
    let scene = Scene::new(&server, |options| options.request_checksums = ChecksumUse::WhenRequired);
    for size in [100, STREAMED] {
        scene.put(&vec![7; size]).await.unwrap();
    }
    assert_eq!(scene.counts(), [0; 3], "the checksum proves the bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_omit_checksum_headers() {
    let server = refusing(|_| false);
    let scene = Scene::new(&server, |options| {
        options.request_checksums = ChecksumUse::WhenRequired;
        options.response_checksums = ChecksumUse::WhenRequired;
    });
    for size in [100, STREAMED] {
        let bytes = vec![7; size];
        scene.put_declared(&bytes).await.unwrap();
        assert_eq!(scene.get().await.unwrap(), bytes);
    }
    scene.head().await.unwrap();
    assert!(server.requests().iter().all(|request| checksum_header(request).is_none()));
    assert_eq!(scene.counts(), [1, 3, 0]);
    let reads_only = Scene::new(&server, |options| options.response_checksums = ChecksumUse::WhenRequired);
    reads_only.put(b"one").await.unwrap();
    assert_eq!(sent_headers(&server, "PutObject")[2..], ["x-amz-checksum-crc64nvme"]);
}

/// Creates an upload with a checksum of the whole object.
async fn create(scene: &Scene) -> Result<UploadId> {
    let checksum = Some((Algorithm::Crc64Nvme, ChecksumScope::FullObject));
    let create = CreateUpload { checksum, ..CreateUpload::default() };
    scene.store.create_upload(&context(), &key(), create).await
}

/// Uploads a part of known size.
async fn put_part(scene: &Scene, id: &UploadId, number: i64, bytes: &[u8]) -> Result<CompletePart> {
    let number = PartNumber::new(number)?;
    let request = StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() };
    let part = write(scene.store.stage_part(&context(), &key(), id, number, request).await?, bytes).await?;
    Ok(CompletePart { number, etag: part.etag, checksum: part.checksums.first().copied() })
}

/// Completes an upload of two parts, with the checksum of the whole.
async fn complete(scene: &Scene, id: &UploadId, bytes: &[u8], parts: [CompletePart; 2]) -> Result<Committed> {
    let completion = CompleteUpload {
        parts: parts.to_vec(),
        expected_size: Some(bytes.len() as u64),
        expected_checksum: Some(Checksum::compute(Algorithm::Crc64Nvme, bytes)),
        ..CompleteUpload::default()
    };
    scene.store.complete_upload(&context(), &key(), id, completion).await
}

/// Uploads two parts, and completes them with checksums.
async fn uploaded(scene: &Scene, parts: [&[u8]; 2]) -> Result<Committed> {
    let id = create(scene).await?;
    let [first, second] = parts;
    let stored = [put_part(scene, &id, 1, first).await?, put_part(scene, &id, 2, second).await?];
    complete(scene, &id, &parts.concat(), stored).await
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_without_checksums_verifies_each_part() {
    let bodies = Arc::new(AtomicUsize::new(0));
    let seen = bodies.clone();
    let server = ScriptedServer::start(move |request, answer| {
        if request.operation == "CompleteMultipartUpload"
            && !String::from_utf8_lossy(&request.body).contains("Checksum")
        {
            seen.fetch_add(1, Ordering::Relaxed);
        }
        Reply::Respond(checksum_header(request).map_or_else(|| plain(request, answer), refusal))
    });
    let scene = Scene::new(&server, |_| {});
    let (small, large) = (vec![1; 1000], vec![2; STREAMED]);
    uploaded(&scene, [&large, &small]).await.unwrap();
    assert_eq!(server.object("k").unwrap(), [large, small].concat());
    assert_eq!(sent_headers(&server, "CreateMultipartUpload"), ["x-amz-checksum-algorithm", ""]);
    assert_eq!(sent_headers(&server, "UploadPart"), ["", ""]);
    assert_eq!(sent_headers(&server, "CompleteMultipartUpload"), [""]);
    assert_eq!(bodies.load(Ordering::Relaxed), 1, "the completion names no checksums of parts");
    assert_eq!(scene.counts(), [1, 1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_write_of_unknown_size_have_content_md5() {
    let server = refusing(|_| true);
    let scene = Scene::new(&server, |options| options.part_bytes = 1 << 20);
    let bytes = vec![7; (2 << 20) + 1000];
    write(scene.stage(StageRequest::default()).await.unwrap(), &bytes).await.unwrap();
    assert_eq!(server.object("k").unwrap(), bytes);
    let parts = server.requests_of("UploadPart");
    assert!(parts.iter().all(|part| !part.header("content-md5").is_empty()), "{parts:?}");
    assert_eq!((parts.len(), scene.counts()), (3, [3, 0, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_with_a_refused_algorithm_succeeds_without_it() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(match (request.operation, checksum_header(request)) {
            (_, Some(header)) => refusal(header),
            ("CopyObject", None) => {
                let etag = md5_etag(b"bytes").replace('"', "&quot;");
                ScriptedResponse::document(&format!(
                    "<CopyObjectResult><ETag>{etag}</ETag></CopyObjectResult>"
                ))
            }
            _ => plain(request, answer),
        })
    });
    server.put_object("k", b"bytes".to_vec());
    server.put_object("copy", b"bytes".to_vec());
    let scene = Scene::new(&server, |_| {});
    let request = CopyRequest {
        source: key(),
        source_conditions: ReadConditions::default(),
        destination: Address::parse(BUCKET, "copy").unwrap(),
        metadata: None,
        tags: None,
        algorithm: Some(Algorithm::Sha256),
        precondition: Precondition::None,
        etag: ETagForm::default(),
    };
    assert_eq!(scene.store.copy(&context(), request).await.unwrap().size, 5);
    assert_eq!(sent_headers(&server, "CopyObject"), ["x-amz-checksum-algorithm", ""]);
}
