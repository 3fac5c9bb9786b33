//! How bodies go over plain HTTP: what a store does not compare with a checksum is signed.

use sha2::{Digest as _, Sha256};

use super::{content, scene};
use crate::support::scripted::{Answer, Reply, Request, Scripted, checksum};

const SIGNED_CHUNKS: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
/// The smallest object whose request is under way before all of it is there, and one of two parts.
const STREAMED: usize = (256 << 10) + 1;
const PARTS: usize = (5 << 20) + 1000;
const UPLOAD: [&str; 5] = ["cp", "--chunk-size", "1MiB", "here", "s3://bucket/x"];

/// What the signatures of an operation's requests say of their bodies.
fn words(server: &Scripted, operation: &str) -> Vec<String> {
    server.of(operation).iter().map(|request| request.header("x-amz-content-sha256").to_owned()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[test]
fn a_store_that_compares_nothing_gets_signed_bytes() {
    let (server, caller) = scene(|_, answer| Reply::Answer(answer));
    for size in [1, 1000, STREAMED - 1] {
        let bytes = content(1, size);
        caller.write("here", &bytes);
        caller.done(&["cp", "here", "s3://bucket/x"]);
        assert!(server.object("x").unwrap() == bytes);
        assert_eq!(words(&server, "PutObject").last(), Some(&sha256(&bytes)), "{size} bytes");
    }
    for size in [STREAMED, 1 << 20, (1 << 20) + 1] {
        let bytes = content(1, size);
        caller.write("here", &bytes);
        caller.done(&["cp", "here", "s3://bucket/x"]);
        assert!(server.object("x").unwrap() == bytes);
        assert_eq!(
            words(&server, "PutObject").last().map(String::as_str),
            Some(SIGNED_CHUNKS),
            "{size} bytes"
        );
    }
    let bytes = content(2, PARTS);
    caller.write("here", &bytes);
    caller.done(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    // The second is small enough to be gathered.
    let mut parts = words(&server, "UploadPart");
    parts.sort();
    assert_eq!(parts, [sha256(&bytes[5 << 20..]), SIGNED_CHUNKS.to_owned()]);
    let seen = server.seen();
    let is_bare = |request: &&Request| request.header("x-amz-content-sha256") == "UNSIGNED-PAYLOAD";
    assert!(!seen.iter().any(|request| is_bare(&request)), "nothing goes unsigned");
}

#[test]
fn a_store_that_compares_checksums_gets_them_behind_the_bytes() {
    let (server, caller) = scene(|request, answer| {
        Reply::Answer(match request.operation {
            "CreateMultipartUpload" => answer.with("x-amz-checksum-algorithm", "CRC64NVME"),
            "UploadPart" => answer.with("x-amz-checksum-crc64nvme", &checksum(&request.body)),
            _ => answer,
        })
    });
    let bytes = content(1, PARTS - 1000 + STREAMED);
    caller.write("here", &bytes);
    caller.done(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    assert_eq!(words(&server, "UploadPart"), [TRAILER; 2]);
}

#[test]
fn a_store_without_signed_chunks_gets_whole_bodies() {
    for size in [STREAMED, PARTS + STREAMED] {
        let (server, caller) = scene(|request, answer| {
            Reply::Answer(if request.header("x-amz-content-sha256").starts_with("STREAMING") {
                Answer::refusal(
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
        caller.done(&UPLOAD);
        assert!(server.object("x").unwrap() == bytes, "{size} bytes");
        let operation = if size == STREAMED { "PutObject" } else { "UploadPart" };
        let words = words(&server, operation);
        let is_hash = |word: &&String| word.len() == 64 && word.chars().all(|c| c.is_ascii_hexdigit());
        assert_eq!(words.iter().filter(is_hash).count(), if size == STREAMED { 1 } else { 2 }, "{words:?}");
        assert!(words.iter().all(|word| is_hash(&word) || word == SIGNED_CHUNKS), "{words:?}");
    }
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
