//! Conditional writes whose responses are lost.

use bytes::Bytes;
use tradewind_core::error::{Reason, Result};
use tradewind_core::object::{Committed, ETag, Expected};
use tradewind_core::store::{GetRequest, StageRequest};
use tradewind_core::testing::context;
use tradewind_core::{Address, ObjectStore, Precondition};

use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedServer};

/// Size, and whether it is declared: a buffered write, one of unknown size, and a streamed one.
const WAYS: [(usize, bool); 3] = [(1000, true), (1000, false), (300_000, true)];

async fn write(
    server: &ScriptedServer,
    bytes: &[u8],
    is_sized: bool,
    precondition: Precondition,
) -> Result<Committed> {
    let store = crate::leaf_over(server.address, |_| {});
    let (context, address) = (context(), Address::parse(BUCKET, "x").unwrap());
    let size = is_sized.then_some(bytes.len() as u64);
    let request = StageRequest { size, precondition, ..StageRequest::default() };
    let mut staged = store.stage(&context, &address, request).await?;
    for piece in bytes.chunks(100_000) {
        staged.write(Bytes::copy_from_slice(piece)).await?;
    }
    let committed = staged.commit(Expected::default()).await?.0;
    let found = store.head(&context, &address, GetRequest::default()).await?.info;
    assert!(found.metadata.user.is_empty(), "the write id must be hidden: {:?}", found.metadata);
    assert_eq!((&found.etag, found.size), (&committed.etag, bytes.len() as u64));
    Ok(committed)
}

fn is_first_put(request: &Request) -> bool {
    request.operation == "PutObject" && request.number == 1
}

#[tokio::test(flavor = "multi_thread")]
async fn successful_write_is_recognized_after_a_lost_response() {
    for (size, is_sized) in WAYS {
        for condition in ["absent", "matches"] {
            let server = ScriptedServer::start(|request, answer| {
                if is_first_put(request) {
                    Reply::ResetAfterExecution(answer)
                } else {
                    Reply::Respond(answer)
                }
            });
            let bytes = vec![7; size];
            let precondition = if condition == "absent" {
                Precondition::Absent
            } else {
                server.put_object("x", b"old".to_vec());
                Precondition::Matches(ETag::from_text(&server.etag("x")))
            };
            write(&server, &bytes, is_sized, precondition).await.unwrap();
            assert!(server.object("x").unwrap() == bytes, "{size} bytes, {condition}");
        }
    }
}

/// The first attempt never reached the store, and another client has written the key: other bytes, or the same ones.
#[tokio::test(flavor = "multi_thread")]
async fn write_of_another_client_is_not_taken_for_ours() {
    for (size, is_sized) in WAYS {
        for theirs in [b"theirs".to_vec(), vec![7; size]] {
            let server = ScriptedServer::start(|request, answer| {
                if is_first_put(request) { Reply::Reset } else { Reply::Respond(answer) }
            });
            server.put_object("x", theirs.clone());
            let failed = write(&server, &vec![7; size], is_sized, Precondition::Absent).await.unwrap_err();
            // A streamed body cannot be sent again: the caller must retry, and then sees the conflict.
            let reason = if size > 256 << 10 { Reason::Io } else { Reason::PreconditionFailed };
            assert_eq!(failed.reason(), reason, "{failed:?}");
            assert!(server.object("x").unwrap() == theirs);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn definite_precondition_failure_needs_no_query() {
    for (size, is_sized) in WAYS {
        let server = ScriptedServer::start(|_, answer| Reply::Respond(answer));
        server.put_object("x", b"theirs".to_vec());
        let failed = write(&server, &vec![7; size], is_sized, Precondition::Absent).await.unwrap_err();
        assert_eq!(failed.reason(), Reason::PreconditionFailed);
        let puts = server.requests_of("PutObject").len();
        assert_eq!(
            (puts, server.requests_of("HeadObject").len()),
            (1, 0),
            "no query is sent: {:?}",
            server.request_counts()
        );
    }
}
