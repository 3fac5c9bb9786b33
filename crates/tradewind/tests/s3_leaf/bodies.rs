//! What protects bodies while a store is found to differ.

use bytes::Bytes;
use tradewind_core::error::{Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{StageRequest, Staged};
use tradewind_core::testing::context;
use tradewind_core::{Address, ObjectStore};

use crate::support::scripted::{Answer, BUCKET, Reply, Scripted};

/// More than is gathered before a request begins.
const BYTES: usize = (256 << 10) + 1;

async fn staged(store: &dyn ObjectStore, key: &str) -> Box<dyn Staged> {
    let address = Address::parse(BUCKET, key).unwrap();
    let request = StageRequest { size: Some(BYTES as u64), ..StageRequest::default() };
    store.stage(&context(), &address, request).await.unwrap()
}

async fn written(mut staged: Box<dyn Staged>) -> Result<()> {
    let bytes = Bytes::from(vec![7; BYTES]);
    staged.write(bytes.slice(..1000)).await?;
    staged.write(bytes.slice(1000..)).await?;
    staged.commit(Expected::default()).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_staged_before_chunks_were_refused_does_not_go_unsigned() {
    let server = Scripted::start(|request, answer| {
        let is_chunked = request.header("x-amz-content-sha256").starts_with("STREAMING");
        Reply::Answer(if is_chunked { Answer::refusal(501, "NotImplemented", "No chunks.") } else { answer })
    });
    let store = crate::leaf_over(server.address, |_| {});
    let (before, refused) = (staged(&*store, "x").await, staged(&*store, "x").await);
    for staged in [refused, before] {
        let e = written(staged).await.unwrap_err();
        assert_eq!(e.reason(), Reason::Io, "to be staged again: {e}");
    }
    written(staged(&*store, "x").await).await.unwrap();
    assert_eq!(server.object("x").unwrap().len(), BYTES);
    let is_bare = |word: &str| word == "UNSIGNED-PAYLOAD";
    assert!(!server.seen().iter().any(|request| is_bare(request.header("x-amz-content-sha256"))));
}

#[test]
fn a_store_that_refuses_checksums_behind_bodies_gets_none_any_more() {
    let (server, caller) = scene(|request, answer| {
        Reply::Answer(match request.operation {
            "CreateMultipartUpload" => answer.with("x-amz-checksum-algorithm", "CRC64NVME"),
            _ if request.header("x-amz-content-sha256") == TRAILER => {
                Answer::refusal(501, "NotImplemented", "A header you provided implies functionality.")
            }
            _ => answer,
        })
    });
    let bytes = content(1, PARTS - 1000 + STREAMED);
    caller.write("here", &bytes);
    caller.done(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    let words = words(&server, "UploadPart");
    assert_eq!(words.iter().filter(|word| *word == SIGNED_CHUNKS).count(), 2, "{words:?}");
}

#[test]
fn a_store_that_answers_the_checksum_of_other_bytes_has_not_stored_these() {
    for size in [1000, STREAMED] {
        let (server, caller) = scene(|request, answer| {
            Reply::Answer(match (request.operation, request.number) {
                ("PutObject", 1) => answer.with("x-amz-checksum-crc64nvme", &checksum(b"others")),
                ("PutObject", _) => answer.with("x-amz-checksum-crc64nvme", &checksum(&request.body)),
                _ => answer,
            })
        });
        let bytes = content(1, size);
        caller.write("here", &bytes);
        caller.done(&["cp", "here", "s3://bucket/x"]);
        assert!(server.object("x").unwrap() == bytes);
        assert_eq!(words(&server, "PutObject").len(), 2, "{size} bytes are sent again");
    }
}
