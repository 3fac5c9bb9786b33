//! Responses to GET without Content-Length, and to PUT without ETag.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tradewind_core::error::{Reason, Result};
use tradewind_core::multipart::{CreateUpload, PartNumber};
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::{GetRequest, Select, StageRequest, Staged};
use tradewind_core::testing::context;
use tradewind_core::{Address, Algorithm, ByteRange, Checksum, ChecksumScope, ObjectStore};

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
    let store = crate::leaf_over(server.address, |_| {});
    write(store.stage(&context(), &key(), sized(bytes)).await?, bytes).await
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

/// Uploads a part; returns it.
async fn put_part(server: &ScriptedServer, number: i64, bytes: &[u8]) -> Result<Committed> {
    let store = crate::leaf_over(server.address, |_| {});
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
        for (what, change) in [("<Size>", "<Size>1"), ("<ChecksumCRC64NVME>", "<ChecksumCRC64NVME>A")] {
            let server = without_etag(move |_, answer| {
                let body = String::from_utf8(answer.body.clone()).unwrap().replace(what, change);
                ScriptedResponse { body: body.into_bytes(), ..answer }
            });
            assert_eq!(put_part(&server, 1, &bytes).await.unwrap_err().reason(), Reason::Io, "{what}");
        }
    }
}
