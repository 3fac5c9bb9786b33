//! Well-formed responses with the wrong content: empty ones, those of another range, or other documents.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::{CompletePart, CompleteUpload, ListUploads, PartNumber, UploadId};
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::testing::{MemoryStore, context};
use tradewind_core::{
    Address, Algorithm, BucketName, Budget, ByteRange, Checksum, ETag, ObjectStore, SystemClock,
};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;
use tradewind_parallel::{Fetch, TransferContext, copy_between_stores};

use crate::support::scripted_server::{BUCKET, Reply, ScriptedResponse, ScriptedServer};

const BYTES: &[u8] = b"0123456789";

fn key() -> Address {
    Address::parse(BUCKET, "k").unwrap()
}

/// A service with one object of these bytes. `change` modifies its responses to GET.
fn service(
    bytes: &[u8],
    change: impl Fn(ScriptedResponse) -> ScriptedResponse + Send + Sync + 'static,
) -> ScriptedServer {
    let server = ScriptedServer::start(move |request, answer| {
        Reply::Respond(if request.operation == "GetObject" { change(answer) } else { answer })
    });
    server.put_object("k", bytes.to_vec());
    server
}

/// Reads the object, but does not poll an empty body.
async fn read(server: &ScriptedServer, select: Select) -> Result<Bytes> {
    let store = crate::leaf_over(server.address, |_| {});
    let request = GetRequest { select, ..GetRequest::default() };
    let found = store.get(&context(), &key(), request).await?;
    if found.body.length() == 0 { Ok(Bytes::new()) } else { found.body.collect().await }
}

fn emptied(answer: ScriptedResponse) -> ScriptedResponse {
    ScriptedResponse { body: Vec::new(), ..answer }
}

fn without_checksum(answer: ScriptedResponse) -> ScriptedResponse {
    answer.without_header("x-amz-checksum-crc64nvme")
}

const RANGE: Select = Select::Range(ByteRange::Inclusive { first: 2, last: 5 });

#[tokio::test(flavor = "multi_thread")]
async fn empty_body_is_compared_with_the_checksum() {
    let server = service(BYTES, emptied);
    let failed = read(&server, Select::Whole).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::CorruptData, "{failed}");
    assert!(read(&service(b"", |answer| answer), Select::Whole).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_body_without_a_checksum_is_confirmed_by_head() {
    let server = service(BYTES, |answer| without_checksum(emptied(answer)));
    let failed = read(&server, Select::Whole).await.unwrap_err();
    assert_eq!(failed.reason(), Reason::Io, "{failed}");
    let empty = service(b"", without_checksum);
    assert!(read(&empty, Select::Whole).await.unwrap().is_empty());
    assert_eq!(empty.request_counts(), [("GetObject", 1), ("HeadObject", 1)]);
    let of_nothing = "\"d41d8cd98f00b204e9800998ecf8427e\"";
    let tagged = service(b"", |answer| without_checksum(answer).with_header("ETag", of_nothing));
    assert!(read(&tagged, Select::Whole).await.unwrap().is_empty());
    assert_eq!(tagged.request_counts(), [("GetObject", 1)], "the ETag is sufficient");
}

#[tokio::test(flavor = "multi_thread")]
async fn body_is_compared_with_a_checksum_of_any_algorithm() {
    for algorithm in Algorithm::ALL {
        let checksum = Checksum::compute(algorithm, BYTES).to_base64();
        let of = |body: &[u8]| {
            let (body, checksum) = (body.to_vec(), checksum.clone());
            service(BYTES, move |answer| {
                let answer = ScriptedResponse { body: body.clone(), ..without_checksum(answer) };
                answer.with_header(algorithm.header(), &checksum)
            })
        };
        assert_eq!(read(&of(BYTES), Select::Whole).await.unwrap(), BYTES, "{algorithm:?}");
        for body in [&b"0123456788"[..], b"012345678", b""] {
            let failed = read(&of(body), Select::Whole).await.unwrap_err();
            assert_eq!(failed.reason(), Reason::CorruptData, "{algorithm:?}: {failed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_another_range_are_rejected() {
    type Change = fn(ScriptedResponse) -> ScriptedResponse;
    let changes: [(&str, Change); 6] = [
        ("shorter", |answer| {
            ScriptedResponse { body: b"23".to_vec(), ..answer }.with_header("Content-Range", "bytes 2-3/10")
        }),
        ("shifted", |answer| answer.with_header("Content-Range", "bytes 3-6/10")),
        ("of a smaller object", |answer| answer.with_header("Content-Range", "bytes 2-5/5")),
        ("of an unknown place", |answer| answer.without_header("Content-Range")),
        ("the whole", |answer| {
            ScriptedResponse { status: 200, body: BYTES.to_vec(), ..answer }.without_header("Content-Range")
        }),
        ("nothing", |answer| {
            ScriptedResponse { status: 200, ..emptied(answer) }.without_header("Content-Range")
        }),
    ];
    for (what, change) in changes {
        let server = service(BYTES, move |answer| change(without_checksum(answer)));
        let failed = read(&server, RANGE).await.unwrap_err();
        assert_eq!(failed.reason(), Reason::Io, "{what}: {failed}");
    }
    assert_eq!(read(&service(BYTES, |answer| answer), RANGE).await.unwrap(), BYTES[2..6]);
    let suffix = Select::Range(ByteRange::Suffix(4));
    let server = service(BYTES, |answer| answer.with_header("Content-Range", "bytes 0-3/10"));
    assert_eq!(read(&server, suffix).await.unwrap_err().reason(), Reason::Io);
}

#[tokio::test(flavor = "multi_thread")]
async fn range_of_an_empty_object_is_invalid() {
    let server = service(b"", |_| {
        ScriptedResponse::document("")
            .with_header("ETag", "x")
            .with_header("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
    });
    assert_eq!(read(&server, RANGE).await.unwrap_err().reason(), Reason::InvalidRange);
}

/// A service without checksums that truncates the first response.
fn cut_once() -> ScriptedServer {
    let count = AtomicUsize::new(0);
    service(BYTES, move |answer| match count.fetch_add(1, Ordering::Relaxed) {
        0 => ScriptedResponse { body: b"0123".to_vec(), ..without_checksum(answer) },
        _ => without_checksum(answer),
    })
}

fn carrier() -> Arc<TransferContext> {
    let memory = Budget::new(64 << 20);
    Arc::new(TransferContext::new(Plan::default(), memory, SystemClock::shared(), RetryOptions::default()))
}

/// Copies the object, listed with ten bytes, to another store.
async fn copied(server: &ScriptedServer) -> Bytes {
    let from: Arc<dyn ObjectStore> = crate::leaf_over(server.address, |_| {});
    let to: Arc<dyn ObjectStore> = MemoryStore::new(SystemClock::shared());
    to.create_bucket(&context(), &key().bucket).await.unwrap();
    copy_between_stores(&carrier(), (&from, &key()), (&to, &key()), Some(10), Arc::new(|_| ()), None)
        .await
        .unwrap();
    to.get(&context(), &key(), GetRequest::default()).await.unwrap().body.collect().await.unwrap()
}

/// Fetches the object, listed with ten bytes.
async fn fetched(server: &ScriptedServer) -> Vec<u8> {
    let store: Arc<dyn ObjectStore> = crate::leaf_over(server.address, |_| {});
    let (carrier, mut all) = (carrier(), Vec::new());
    let fetch = Fetch::open(&carrier, &store, &key(), Some(10)).await.unwrap();
    let take = |piece: Bytes| {
        all.extend_from_slice(&piece);
        std::future::ready(Ok(()))
    };
    fetch.write_in_order(take).await.unwrap();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn object_shorter_than_listed_is_checked_again() {
    let cut = cut_once();
    assert_eq!(fetched(&cut).await, BYTES);
    assert_eq!(cut.request_counts(), [("GetObject", 2), ("HeadObject", 1)]);
    assert_eq!(copied(&cut_once()).await, BYTES);
    let replaced = service(b"new", without_checksum);
    assert_eq!(fetched(&replaced).await, b"new");
    assert_eq!(copied(&replaced).await, &b"new"[..]);
    let compared = service(b"new", |answer| answer);
    assert_eq!(fetched(&compared).await, b"new");
    assert_eq!(compared.request_counts(), [("GetObject", 1)], "a matching checksum is sufficient");
}

#[tokio::test(flavor = "multi_thread")]
async fn part_is_compared_with_its_own_checksum() {
    let checksum = Checksum::compute(Algorithm::Crc32, BYTES).to_base64();
    let part = |body: &[u8]| {
        let (body, checksum) = (body.to_vec(), checksum.clone());
        service(BYTES, move |answer| {
            let answer = ScriptedResponse { status: 206, body: body.clone(), ..without_checksum(answer) };
            let answer =
                answer.with_header("ETag", "\"x-2\"").with_header("x-amz-checksum-type", "COMPOSITE");
            answer.with_header("x-amz-checksum-crc32", &checksum).with_header("Content-Range", "bytes 0-9/20")
        })
    };
    let one = Select::Part(PartNumber::new(1).unwrap());
    assert_eq!(read(&part(BYTES), one).await.unwrap(), BYTES);
    assert_eq!(read(&part(b"0123456788"), one).await.unwrap_err().reason(), Reason::CorruptData);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_documents_are_not_treated_as_empty_responses() {
    for document in ["", "<html></html>", "<Error><Code>InternalError</Code></Error>"] {
        let server = ScriptedServer::start(move |request, answer| {
            let is_read = matches!(request.operation, "ListParts" | "CompleteMultipartUpload" | "Other");
            let gets_document = is_read || request.query.contains_key("tagging");
            Reply::Respond(if gets_document { ScriptedResponse::document(document) } else { answer })
        });
        server.put_object("k", BYTES.to_vec());
        let store = crate::leaf_over(server.address, |options| options.retries.max_attempts = 1);
        let (context, id) = (context(), UploadId("upload".to_owned()));
        let bucket = BucketName::new(BUCKET).unwrap();
        let parts = store.list_parts(&context, &key(), &id, None, 10).await.map(|page| page.parts.len());
        let uploads = ListUploads { limit: 10, ..ListUploads::default() };
        let uploads = store.list_uploads(&context, &bucket, &uploads).await.map(|page| page.entries.len());
        let buckets = store.list_buckets(&context).await.map(|buckets| buckets.len());
        let named =
            CompletePart { number: PartNumber::new(1).unwrap(), etag: ETag::from_tag("x"), checksum: None };
        let order = CompleteUpload { parts: vec![named], ..CompleteUpload::default() };
        let completed = store.complete_upload(&context, &key(), &id, order).await.map(|_| 0);
        for (what, found) in
            [("parts", parts), ("uploads", uploads), ("buckets", buckets), ("completion", completed)]
        {
            assert_eq!(found.unwrap_err().reason(), Reason::Io, "{what}: {document:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn read_fails_if_the_tags_are_unreadable() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(match request.query.contains_key("tagging") {
            true => ScriptedResponse::document(""),
            false => answer.with_header("x-amz-tagging-count", "2"),
        })
    });
    server.put_object("k", BYTES.to_vec());
    assert_eq!(read(&server, Select::Whole).await.unwrap_err().reason(), Reason::Io);
}
