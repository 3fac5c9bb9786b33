//! Responses to GET without Content-Length, and to PUT without ETag.

use std::collections::BTreeSet;
use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tradewind_backend::s3::S3Store;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::{CreateUpload, PartNumber};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{
    CopyPartRequest, CopyRequest, ETagForm, GetRequest, Select, StageRequest, Staged,
};
use tradewind_core::testing::context;
use tradewind_core::{
    Address, Algorithm, ByteRange, Checksum, ChecksumScope, ObjectStore, Precondition, ReadConditions,
};

use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedResponse, ScriptedServer};

const BYTES: &[u8] = b"0123456789";
/// One byte more than is buffered, so that the write is streamed.
const STREAMED: usize = (256 << 10) + 1;

fn key() -> Address {
    Address::parse(BUCKET, "k").unwrap()
}

/// A service with one object of these bytes, without checksums. `change` modifies its responses.
fn service(
    bytes: &[u8],
    change: impl Fn(&Request, ScriptedResponse) -> ScriptedResponse + Send + Sync + 'static,
) -> ScriptedServer {
    let server = ScriptedServer::start(move |request, answer| {
        Reply::Respond(change(request, answer.without_header("x-amz-checksum-crc64nvme")))
    });
    server.put_object("k", bytes.to_vec());
    server
}

/// A service whose responses to GET are changed, and then sent in chunks.
fn chunked(
    bytes: &[u8],
    change: impl Fn(ScriptedResponse) -> ScriptedResponse + Send + Sync + 'static,
) -> ScriptedServer {
    service(
        bytes,
        move |request, answer| {
            if request.operation == "GetObject" { change(answer).chunked() } else { answer }
        },
    )
}

/// Reads the object, but does not poll an empty body.
async fn read(server: &ScriptedServer, select: Select) -> Result<Bytes> {
    let store = crate::leaf_over(server.address, |options| options.max_connections = 1);
    let request = GetRequest { select, ..GetRequest::default() };
    let found = store.get(&context(), &key(), request).await?;
    if found.body.length() == 0 { Ok(Bytes::new()) } else { found.body.collect().await }
}

async fn read_failure(server: &ScriptedServer) -> Reason {
    read(server, Select::Whole).await.unwrap_err().reason()
}

#[tokio::test(flavor = "multi_thread")]
async fn get_without_length_has_the_length_of_the_head() {
    let large = vec![7; 300 << 10];
    for bytes in [BYTES, b"", &large] {
        let server = chunked(bytes, |answer| answer);
        assert_eq!(read(&server, Select::Whole).await.unwrap(), bytes);
        assert_eq!(server.request_counts(), [("GetObject", 1), ("HeadObject", 1)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn get_of_another_length_than_the_head_fails() {
    for body in [&b"012345678"[..], b"", b"01234567890"] {
        let server = chunked(BYTES, |answer| ScriptedResponse { body: body.to_vec(), ..answer });
        assert_eq!(read_failure(&server).await, Reason::Io, "{} bytes", body.len());
    }
    let server = chunked(b"", |answer| ScriptedResponse { body: b"0".to_vec(), ..answer });
    assert_eq!(read_failure(&server).await, Reason::Io, "a byte of an empty object");
}

#[tokio::test(flavor = "multi_thread")]
async fn get_of_another_etag_than_the_head_fails() {
    for etag in ["\"another\"", "W/\"same\""] {
        let server = service(BYTES, move |request, answer| match request.operation {
            "GetObject" => answer.with_header("ETag", etag).chunked(),
            _ => answer.with_header("ETag", "\"same\""),
        });
        assert_eq!(read_failure(&server).await, Reason::Io, "{etag}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn range_without_length_has_the_length_of_its_content_range() {
    let range = Select::Range(ByteRange::Inclusive { first: 2, last: 5 });
    let server = chunked(BYTES, |answer| answer);
    assert_eq!(read(&server, range).await.unwrap(), BYTES[2..6]);
    assert_eq!(server.request_counts(), [("GetObject", 1)]);
    for body in [&b"234"[..], b"23456"] {
        let server = chunked(BYTES, |answer| ScriptedResponse { body: body.to_vec(), ..answer });
        assert_eq!(read(&server, range).await.unwrap_err().reason(), Reason::Io);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn head_without_length_has_the_length_of_the_listing() {
    let unsized_reads = |request: &Request, answer: ScriptedResponse| match request.operation {
        "GetObject" | "HeadObject" => answer.chunked(),
        _ => answer,
    };
    let server = service(BYTES, unsized_reads);
    assert_eq!(read(&server, Select::Whole).await.unwrap(), BYTES);
    let store = crate::leaf_over(server.address, |_| {});
    assert_eq!(store.head(&context(), &key(), GetRequest::default()).await.unwrap().info.size, 10);
    let replaced = service(BYTES, move |request, answer| {
        let answer =
            if request.operation == "GetObject" { answer.with_header("ETag", "\"x\"") } else { answer };
        unsized_reads(request, answer)
    });
    assert_eq!(read_failure(&replaced).await, Reason::Io);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A service with an object that is stored as gzip. A proxy decodes the responses that `decodes` selects.
fn decoding(decodes: impl Fn(&Request) -> bool + Send + Sync + 'static) -> ScriptedServer {
    let plain = BYTES.repeat(100);
    service(&gzip(&plain), move |request, answer| match request.operation {
        "GetObject" if decodes(request) => ScriptedResponse { body: plain.clone(), ..answer }.chunked(),
        "GetObject" => answer.with_header("Content-Encoding", "gzip").chunked(),
        _ => answer.with_header("Content-Encoding", "gzip"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn object_stored_as_gzip_is_requested_as_gzip() {
    let server = decoding(|request| request.header("accept-encoding").is_empty());
    let store = crate::leaf_over(server.address, |_| {});
    let found = store.get(&context(), &key(), GetRequest::default()).await.unwrap();
    assert_eq!(found.info.metadata.headers.content_encoding.as_deref(), Some("gzip"));
    assert_eq!(found.body.collect().await.unwrap(), gzip(&BYTES.repeat(100)));
    let sent: Vec<_> = server
        .requests_of("GetObject")
        .iter()
        .map(|request| request.header("accept-encoding").to_owned())
        .collect();
    assert_eq!(sent, ["", "gzip"]);
    assert_eq!(read_failure(&decoding(|_| true)).await, Reason::Io, "a proxy that always decodes");
}

async fn write(mut staged: Box<dyn Staged>, bytes: &[u8]) -> Result<Committed> {
    for piece in bytes.chunks(100 << 10) {
        staged.write(Bytes::copy_from_slice(piece)).await?;
    }
    Ok(staged.commit(Expected::default()).await?.0)
}

fn sized(bytes: &[u8]) -> StageRequest {
    StageRequest { size: Some(bytes.len() as u64), ..StageRequest::default() }
}

/// Writes an object.
async fn put(server: &ScriptedServer, bytes: &[u8]) -> Result<Committed> {
    put_to(&crate::leaf_over(server.address, |_| {}), bytes).await
}

async fn put_to(store: &S3Store, bytes: &[u8]) -> Result<Committed> {
    write(store.stage(&context(), &key(), sized(bytes)).await?, bytes).await
}

fn md5_etag(bytes: &[u8]) -> String {
    format!("\"{}\"", hex::encode(Checksum::compute(Algorithm::Md5, bytes).bytes()))
}

/// A service whose responses to PUT have no ETag. `change` modifies its other responses.
fn without_etag(
    change: impl Fn(&Request, ScriptedResponse) -> ScriptedResponse + Send + Sync + 'static,
) -> ScriptedServer {
    ScriptedServer::start(move |request, answer| {
        Reply::Respond(match request.operation {
            "PutObject" | "UploadPart" => answer.without_header("ETag"),
            _ => change(request, answer),
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn put_without_etag_has_the_etag_of_the_head() {
    for size in [0, 1000, STREAMED] {
        let server = without_etag(|_, answer| answer);
        let stored = put(&server, &vec![7; size]).await.unwrap();
        assert_eq!(format!("\"{}\"", stored.etag), server.etag("k"));
        assert_eq!((stored.size, server.requests_of("HeadObject").len()), (size as u64, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn put_without_etag_is_compared_with_an_md5() {
    let heads = |md5_of: &'static [u8]| {
        without_etag(move |_, answer| {
            let md5 = hex::encode(Checksum::compute(Algorithm::Md5, md5_of).bytes());
            answer.without_header("x-amz-checksum-crc64nvme").with_header("ETag", &format!("\"{md5}\""))
        })
    };
    put(&heads(BYTES), BYTES).await.unwrap();
    assert_eq!(put(&heads(b"9876543210"), BYTES).await.unwrap_err().reason(), Reason::Io);
}

#[tokio::test(flavor = "multi_thread")]
async fn put_without_etag_fails_if_the_store_has_other_bytes() {
    let other = Checksum::compute(Algorithm::Crc64Nvme, b"others").to_base64();
    for size in [1000, STREAMED] {
        let other = other.clone();
        let changed = without_etag(move |_, answer| answer.with_header("x-amz-checksum-crc64nvme", &other));
        assert_eq!(put(&changed, &vec![7; size]).await.unwrap_err().reason(), Reason::Io, "{size} bytes");
        let shorter = without_etag(move |_, answer| ScriptedResponse { body: vec![7; size - 1], ..answer });
        assert_eq!(put(&shorter, &vec![7; size]).await.unwrap_err().reason(), Reason::Io, "{size} bytes");
    }
}

/// The service neither returns checksums, nor are its ETags MD5s: the id of each write is the only proof.
#[tokio::test(flavor = "multi_thread")]
async fn each_put_without_etag_is_recognized_by_its_id() {
    let server = without_etag(|_, answer| answer.without_header("x-amz-checksum-crc64nvme"));
    let store = crate::leaf_over(server.address, |_| {});
    for size in [STREAMED, STREAMED, 1000, STREAMED] {
        let stored = put_to(&store, &vec![7; size]).await.unwrap();
        assert_eq!((stored.size, format!("\"{}\"", stored.etag)), (size as u64, server.etag("k")));
    }
    let ids: BTreeSet<_> = server
        .requests_of("PutObject")
        .iter()
        .map(|request| request.header("x-amz-meta-tradewind-write").to_owned())
        .collect();
    assert_eq!((ids.len(), ids.contains("")), (4, false));
}

/// A proxy may remove the ETag from some responses only.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_cannot_be_recognized_fails_once() {
    let server = ScriptedServer::start(|request, answer| {
        let answer = answer.without_header("x-amz-checksum-crc64nvme");
        Reply::Respond(match (request.operation, request.body.len()) {
            ("PutObject", STREAMED) => answer.without_header("ETag"),
            _ => answer,
        })
    });
    let store = crate::leaf_over(server.address, |_| {});
    put_to(&store, b"small").await.unwrap();
    let failed = put_to(&store, &vec![7; STREAMED]).await.unwrap_err();
    assert!(failed.kind().is_retryable(), "{failed}");
    for _ in 0..2 {
        put_to(&store, &vec![7; STREAMED]).await.unwrap();
    }
}

/// The ETag of the HEAD looks like an MD5. The service has accepted Content-MD5, and the object has the write's id.
#[tokio::test(flavor = "multi_thread")]
async fn put_without_etag_is_not_compared_with_a_tag_that_is_no_md5() {
    let server = without_etag(|_, answer| {
        answer.without_header("x-amz-checksum-crc64nvme").with_header("ETag", &md5_etag(b"another"))
    });
    let store = crate::leaf_over(server.address, |_| {});
    let mut failures = Vec::new();
    for size in [STREAMED, STREAMED, STREAMED, STREAMED, 1000] {
        failures.extend(put_to(&store, &vec![7; size]).await.err());
    }
    assert!(failures.len() == 1 && failures[0].kind().is_retryable(), "{failures:?}");
}

/// Uploads a part; returns it.
async fn put_part(server: &ScriptedServer, number: i64, bytes: &[u8]) -> Result<Committed> {
    put_part_to(&crate::leaf_over(server.address, |_| {}), number, bytes).await
}

async fn put_part_to(store: &S3Store, number: i64, bytes: &[u8]) -> Result<Committed> {
    let checksum = Some((Algorithm::Crc64Nvme, ChecksumScope::FullObject));
    let create = CreateUpload { checksum, ..CreateUpload::default() };
    let id = store.create_upload(&context(), &key(), create).await?;
    let number = PartNumber::new(number)?;
    write(store.stage_part(&context(), &key(), &id, number, sized(bytes)).await?, bytes).await
}

#[tokio::test(flavor = "multi_thread")]
async fn part_without_etag_has_the_etag_of_the_list() {
    for size in [1000, STREAMED] {
        let bytes = vec![7; size];
        let server = without_etag(|_, answer| answer);
        let stored = put_part(&server, 1, &bytes).await.unwrap();
        let expected = Checksum::compute(Algorithm::Crc64Nvme, &bytes).to_base64();
        assert_eq!((stored.etag.as_str(), stored.size), (expected.as_str(), size as u64));
        assert_eq!(server.requests_of("ListParts")[0].query["max-parts"], "1");
        let other = Checksum::compute(Algorithm::Crc64Nvme, b"others").to_base64();
        for (what, change) in [("<Size>".to_owned(), "<Size>1".to_owned()), (expected, other)] {
            let replaced = what.clone();
            let server = without_etag(move |_, answer| {
                let body = String::from_utf8(answer.body.clone()).unwrap().replace(&replaced, &change);
                ScriptedResponse { body: body.into_bytes(), ..answer }
            });
            assert_eq!(put_part(&server, 1, &bytes).await.unwrap_err().reason(), Reason::Io, "{what}");
        }
    }
}

/// A service whose responses to the upload of a part have no ETag, and whose lists have no checksums, but this tag.
fn listing_parts(tag: impl Fn(&[u8]) -> String + Send + Sync + 'static) -> ScriptedServer {
    let bytes = vec![7; STREAMED];
    without_etag(move |request, answer| match request.operation {
        "ListParts" => {
            let number = request.parameter("part-number-marker").parse().map_or(1, |after: u32| after + 1);
            let (tag, size) = (tag(&bytes), bytes.len());
            let part = format!("<PartNumber>{number}</PartNumber><ETag>{tag}</ETag><Size>{size}</Size>");
            ScriptedResponse::document(&format!("<ListPartsResult><Part>{part}</Part></ListPartsResult>"))
        }
        _ => answer,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_part_without_etag_is_compared_with_the_md5_of_the_list() {
    let server = listing_parts(|bytes| md5_etag(bytes).replace('"', ""));
    let store = crate::leaf_over(server.address, |_| {});
    let bytes = vec![7; STREAMED];
    for number in [1, 2] {
        let stored = put_part_to(&store, number, &bytes).await.unwrap();
        assert_eq!(format!("\"{}\"", stored.etag), md5_etag(&bytes));
    }
    assert_eq!(put_part_to(&store, 3, &vec![8; STREAMED]).await.unwrap_err().reason(), Reason::Io);
}

/// The ETags of bytes that are encrypted with managed keys are no MD5s, and the list of parts does not say so.
#[tokio::test(flavor = "multi_thread")]
async fn encrypted_part_without_etag_is_not_compared_with_the_list() {
    let server = ScriptedServer::start(|request, answer| {
        Reply::Respond(match request.operation {
            "UploadPart" => answer
                .without_header("x-amz-checksum-crc64nvme")
                .without_header("ETag")
                .with_header("x-amz-server-side-encryption", "aws:kms"),
            "ListParts" => {
                let tag = md5_etag(b"other bytes").replace('"', "");
                let part = format!("<PartNumber>1</PartNumber><ETag>{tag}</ETag><Size>1000</Size>");
                ScriptedResponse::document(&format!("<ListPartsResult><Part>{part}</Part></ListPartsResult>"))
            }
            _ => answer,
        })
    });
    assert_eq!(put_part(&server, 1, &[7; 1000]).await.unwrap().size, 1000);
}

/// Only the client of an upload knows its id, so the size is sufficient.
#[tokio::test(flavor = "multi_thread")]
async fn part_without_etag_and_digest_in_the_list_is_compared_by_size() {
    let server = listing_parts(|_| "tag-1".to_owned());
    let store = crate::leaf_over(server.address, |_| {});
    for number in [1, 2] {
        let stored = put_part_to(&store, number, &vec![7; STREAMED]).await.unwrap();
        assert_eq!(stored.etag.as_str(), "tag-1");
    }
    assert_eq!(put_part_to(&store, 3, &vec![7; 1000]).await.unwrap_err().reason(), Reason::Io);
}

/// A service whose responses to copies have no ETag. It has this object at the destination.
fn copying_without_etag(copied: &'static [u8]) -> ScriptedServer {
    let server = ScriptedServer::start(move |request, answer| {
        Reply::Respond(match (request.operation, request.key.as_str()) {
            ("CopyObject", _) => ScriptedResponse::document("<CopyObjectResult></CopyObjectResult>"),
            _ => answer,
        })
    });
    server.put_object("k", BYTES.to_vec());
    server.put_object("copy", copied.to_vec());
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_without_etag_has_the_etag_of_the_head() {
    let copy = async |server: &ScriptedServer| {
        let store = crate::leaf_over(server.address, |_| {});
        let request = CopyRequest {
            source: key(),
            source_conditions: ReadConditions::default(),
            destination: Address::parse(BUCKET, "copy").unwrap(),
            metadata: None,
            tags: None,
            algorithm: None,
            precondition: Precondition::None,
            etag: ETagForm::default(),
        };
        store.copy(&context(), request).await
    };
    let server = copying_without_etag(BYTES);
    let copied = copy(&server).await.unwrap();
    assert_eq!((copied.size, format!("\"{}\"", copied.etag)), (10, server.etag("copy")));
    for other in [&b"9876543210"[..], b"0123"] {
        assert_eq!(copy(&copying_without_etag(other)).await.unwrap_err().reason(), Reason::Io);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copied_part_without_etag_has_the_etag_of_the_list() {
    for (listed, is_ours) in [(&b"01234"[..], true), (b"0123", false)] {
        let server = ScriptedServer::start(move |request, answer| {
            Reply::Respond(match request.operation {
                "UploadPart" => ScriptedResponse::document("<CopyPartResult></CopyPartResult>"),
                "ListParts" => {
                    let (etag, size) = (md5_etag(listed).replace('"', ""), listed.len());
                    ScriptedResponse::document(&format!(
                        "<ListPartsResult><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag><Size>{size}</Size></Part>\
                         </ListPartsResult>"
                    ))
                }
                _ => answer,
            })
        });
        server.put_object("k", BYTES.to_vec());
        let store = crate::leaf_over(server.address, |_| {});
        let upload = store.create_upload(&context(), &key(), CreateUpload::default()).await.unwrap();
        let request = CopyPartRequest {
            source: key(),
            range: Some(ByteRange::Inclusive { first: 0, last: 4 }),
            source_conditions: ReadConditions::default(),
            destination: key(),
            upload,
            number: PartNumber::new(1).unwrap(),
            etag: ETagForm::default(),
        };
        match store.copy_part(&context(), request).await {
            Ok(copied) => assert_eq!((is_ours, format!("\"{}\"", copied.etag)), (true, md5_etag(listed))),
            Err(e) => assert_eq!((is_ours, e.reason()), (false, Reason::Io), "{e}"),
        }
    }
}
