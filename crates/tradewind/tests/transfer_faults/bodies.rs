//! Signing of bodies over plain HTTP: a body is signed unless the store verifies its checksum.

use sha2::{Digest as _, Sha256};

use super::{content, scene};
use crate::support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer, checksum};

const SIGNED_CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
/// The smallest object that is streamed.
const STREAMED: usize = (256 << 10) + 1;
/// An object of two parts.
const PARTS: usize = (5 << 20) + 1000;
const UPLOAD: [&str; 5] = ["cp", "--chunk-size", "1MiB", "here", "s3://bucket/x"];

/// The `x-amz-content-sha256` headers of an operation's requests.
fn payload_hashes(server: &ScriptedServer, operation: &str) -> Vec<String> {
    server
        .requests_of(operation)
        .iter()
        .map(|request| request.header("x-amz-content-sha256").to_owned())
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[test]
fn bodies_are_signed_without_checksum_verification() {
    let (server, caller) = scene(|_, answer| Reply::Respond(answer));
    for size in [1, 1000, STREAMED - 1] {
        let bytes = content(1, size);
        caller.write("here", &bytes);
        caller.run_ok(&["cp", "here", "s3://bucket/x"]);
        assert!(server.object("x").unwrap() == bytes);
        assert_eq!(payload_hashes(&server, "PutObject").last(), Some(&sha256(&bytes)), "{size} bytes");
    }
    for size in [STREAMED, 1 << 20, (1 << 20) + 1] {
        let bytes = content(1, size);
        caller.write("here", &bytes);
        caller.run_ok(&["cp", "here", "s3://bucket/x"]);
        assert!(server.object("x").unwrap() == bytes);
        assert_eq!(
            payload_hashes(&server, "PutObject").last().map(String::as_str),
            Some(SIGNED_CHUNKS),
            "{size} bytes"
        );
    }
    let bytes = content(2, PARTS);
    caller.write("here", &bytes);
    caller.run_ok(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    // The second part is small enough to be buffered.
    let mut parts = payload_hashes(&server, "UploadPart");
    parts.sort();
    assert_eq!(parts, [sha256(&bytes[5 << 20..]), SIGNED_CHUNKS.to_owned()]);
    let seen = server.requests();
    let is_bare = |request: &&Request| request.header("x-amz-content-sha256") == "UNSIGNED-PAYLOAD";
    assert!(!seen.iter().any(|request| is_bare(&request)), "every body is signed");
}

#[test]
fn verifying_store_gets_unsigned_bodies_with_trailers() {
    let (server, caller) = scene(|request, answer| {
        Reply::Respond(match request.operation {
            "CreateMultipartUpload" => answer.with_header("x-amz-checksum-algorithm", "CRC64NVME"),
            "UploadPart" => answer.with_header("x-amz-checksum-crc64nvme", &checksum(&request.body)),
            _ => answer,
        })
    });
    let bytes = content(1, PARTS - 1000 + STREAMED);
    caller.write("here", &bytes);
    caller.run_ok(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    assert_eq!(payload_hashes(&server, "UploadPart"), [TRAILER; 2]);
}

#[test]
fn store_without_signed_chunks_gets_buffered_bodies() {
    for size in [STREAMED, PARTS + STREAMED] {
        let (server, caller) = scene(|request, answer| {
            Reply::Respond(if request.header("x-amz-content-sha256").starts_with("STREAMING") {
                ScriptedResponse::error(
                    501,
                    "NotImplemented",
                    "Transfering payloads in multiple chunks is not supported.",
                )
            } else {
                answer
            })
        });
        let bytes = content(1, size);
        caller.write("here", &bytes);
        caller.run_ok(&UPLOAD);
        assert!(server.object("x").unwrap() == bytes, "{size} bytes");
        let operation = if size == STREAMED { "PutObject" } else { "UploadPart" };
        let payload_hashes = payload_hashes(&server, operation);
        let is_hash = |word: &&String| word.len() == 64 && word.chars().all(|c| c.is_ascii_hexdigit());
        assert_eq!(
            payload_hashes.iter().filter(is_hash).count(),
            if size == STREAMED { 1 } else { 2 },
            "{payload_hashes:?}"
        );
        assert!(
            payload_hashes.iter().all(|word| is_hash(&word) || word == SIGNED_CHUNKS),
            "{payload_hashes:?}"
        );
    }
}

#[test]
fn rejected_checksum_trailers_are_not_sent_again() {
    let (server, caller) = scene(|request, answer| {
        Reply::Respond(match request.operation {
            "CreateMultipartUpload" => answer.with_header("x-amz-checksum-algorithm", "CRC64NVME"),
            _ if request.header("x-amz-content-sha256") == TRAILER => {
                ScriptedResponse::error(501, "NotImplemented", "A header you provided implies functionality.")
            }
            _ => answer,
        })
    });
    let bytes = content(1, PARTS - 1000 + STREAMED);
    caller.write("here", &bytes);
    caller.run_ok(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    let payload_hashes = payload_hashes(&server, "UploadPart");
    // Each of the two parts is sent with a trailer once. Its next attempt has signed chunks, or its checksum as a header.
    let trailers = payload_hashes.iter().filter(|word| *word == TRAILER).count();
    assert_eq!((payload_hashes.len(), trailers), (4, 2), "{payload_hashes:?}");
}

#[test]
fn wrong_checksum_in_the_response_repeats_the_upload() {
    for size in [1000, STREAMED] {
        let (server, caller) = scene(|request, answer| {
            Reply::Respond(match (request.operation, request.number) {
                ("PutObject", 1) => answer.with_header("x-amz-checksum-crc64nvme", &checksum(b"others")),
                ("PutObject", _) => answer.with_header("x-amz-checksum-crc64nvme", &checksum(&request.body)),
                _ => answer,
            })
        });
        let bytes = content(1, size);
        caller.write("here", &bytes);
        caller.run_ok(&["cp", "here", "s3://bucket/x"]);
        assert!(server.object("x").unwrap() == bytes);
        assert_eq!(payload_hashes(&server, "PutObject").len(), 2, "{size} bytes are sent again");
    }
}
