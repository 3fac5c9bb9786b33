//! Protection of bodies while the store's capabilities are being discovered, and objects with many headers.

use bytes::Bytes;
use tradewind_core::error::{Reason, Result};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, StageRequest, Staged};
use tradewind_core::testing::context;
use tradewind_core::{Address, ObjectStore};

use crate::support::scripted_server::{BUCKET, Reply, ScriptedResponse, ScriptedServer};

/// One byte more than is buffered, so that the write is streamed.
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
async fn staged_write_is_never_unsigned_if_chunks_are_rejected() {
    let server = ScriptedServer::start(|request, answer| {
        let is_chunked = request.header("x-amz-content-sha256").starts_with("STREAMING");
        Reply::Respond(if is_chunked {
            ScriptedResponse::error(501, "NotImplemented", "No chunks.")
        } else {
            answer
        })
    });
    let store = crate::leaf_over(server.address, |_| {});
    let (before, refused) = (staged(&*store, "x").await, staged(&*store, "x").await);
    for staged in [refused, before] {
        let e = written(staged).await.unwrap_err();
        assert_eq!(e.reason(), Reason::Io, "it must be staged again: {e}");
    }
    written(staged(&*store, "x").await).await.unwrap();
    assert_eq!(server.object("x").unwrap().len(), BYTES);
    let is_bare = |word: &str| word == "UNSIGNED-PAYLOAD";
    assert!(!server.requests().iter().any(|request| is_bare(request.header("x-amz-content-sha256"))));
}

/// An object may have a hundred small metadata entries and more.
#[tokio::test(flavor = "multi_thread")]
async fn object_with_many_metadata_headers_is_read() {
    let server = ScriptedServer::start(|_, answer| {
        let with_entry = |answer: ScriptedResponse, n| answer.with_header(&format!("x-amz-meta-n{n}"), "v");
        Reply::Respond((0..250).fold(answer, with_entry))
    });
    server.put_object("x", b"bytes".to_vec());
    let store = crate::leaf_over(server.address, |_| {});
    let address = Address::parse(BUCKET, "x").unwrap();
    let found = store.head(&context(), &address, GetRequest::default()).await.unwrap();
    assert_eq!(found.info.metadata.user.len(), 250);
}
