//! Damaged and mismatched responses never become a file.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::{content, files, refusal, scene};
use crate::support::command_runner::CommandRunner;
use crate::support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer};

/// Chunk size of the requests.
const CHUNK: usize = 1 << 20;
/// The size of an object of more than two chunks.
const SEVERAL: usize = 2 * CHUNK + 1;

/// Downloads an object whose responses are modified by `change`: as a file, as part of a tree, and to standard output.
/// All must fail and leave no file. Returns the servers and the error messages.
fn assert_fails(
    size: usize,
    change: impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + Clone + 'static,
) -> Vec<(ScriptedServer, String)> {
    let commands: [&[&str]; 3] =
        [&["cp", "s3://bucket/x", "x"], &["cp", "-r", "s3://bucket", "there"], &["cat", "s3://bucket/x"]];
    assert_commands_fail(&["--chunk-size", "1MiB"], &commands, size, change)
}

fn assert_commands_fail(
    flags: &[&str],
    commands: &[&[&str]],
    size: usize,
    change: impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + Clone + 'static,
) -> Vec<(ScriptedServer, String)> {
    let run = |command: &&[&str]| {
        let change = change.clone();
        let (server, caller): (ScriptedServer, CommandRunner) = scene(move |request, answer| {
            if request.operation == "GetObject" { change(request, answer) } else { Reply::Respond(answer) }
        });
        let caller = caller.with_variable("AWS_MAX_ATTEMPTS", "3");
        server.put_object("x", content(1, size));
        let ran = caller.run(&[*command, flags].concat());
        assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1), "{command:?}: {}", ran.err);
        assert_eq!(files(&caller), [""; 0], "{command:?}");
        (server, ran.err)
    };
    commands.iter().map(run).collect()
}

fn is_at(request: &Request, offset: usize) -> bool {
    request.header("range").starts_with(&format!("bytes={offset}-"))
}

#[test]
fn permanently_damaged_object_fails() {
    for size in [1000, CHUNK] {
        for (server, message) in
            assert_fails(size, move |_, answer| Reply::Respond(answer.with_flipped_bit(size / 2)))
        {
            assert!(message.contains("checksum mismatch: received CRC64NVME:"), "{message}");
            assert!(server.requests_of("GetObject").len() <= 3, "{:?}", server.request_counts());
        }
    }
}

/// The message names the object, although its one-letter key occurs in the text anyway.
#[test]
fn damaged_object_of_a_tree_is_named() {
    let (server, caller) = scene(|request, answer| {
        Reply::Respond(if request.key == "e" { answer.with_flipped_bit(0) } else { answer })
    });
    let caller = caller.with_variable("AWS_MAX_ATTEMPTS", "1");
    ["a", "e", "f"].iter().for_each(|key| server.put_object(key, key.as_bytes().to_vec()));
    let ran = caller.run(&["cp", "-r", "s3://bucket", "there"]);
    assert!(ran.err.starts_with("tradewind: e: checksum mismatch: received "), "{}", ran.err);
    assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1));
    assert_eq!(files(&caller), ["there/a", "there/f"]);
}

#[test]
fn object_damaged_once_is_fetched_again() {
    for size in [1000, 3_000_000] {
        let (server, caller) = scene(move |request, answer| {
            Reply::Respond(if request.number == 1 { answer.with_flipped_bit(size - 1) } else { answer })
        });
        server.put_object("x", content(1, size));
        caller.run_ok(&["cp", "s3://bucket/x", "x"]);
        assert!(std::fs::read(caller.path("x")).unwrap() == content(1, size));
        assert_eq!(server.request_counts(), [("GetObject", 2)]);
    }
}

#[test]
fn damaged_chunk_fails_with_few_requests() {
    let damage = |offset| {
        move |request: &Request, answer: ScriptedResponse| {
            Reply::Respond(if is_at(request, offset) { answer.with_flipped_bit(0) } else { answer })
        }
    };
    let several = [0, CHUNK].into_iter().flat_map(|offset| assert_fails(SEVERAL, damage(offset)));
    let usual = assert_commands_fail(&[], &[&["cp", "s3://bucket/x", "x"]], (16 << 20) + 1, damage(8 << 20));
    // Three chunks of 1 MiB; or ranges of 4 MiB, and of 2 MiB towards the end. All of them are fetched twice.
    for ((server, message), max_requests) in
        several.map(|ran| (ran, 6)).chain(usual.into_iter().map(|ran| (ran, 16)))
    {
        assert!(message.contains("checksum mismatch: received CRC64NVME:"), "{message}");
        assert!(server.requests_of("GetObject").len() <= max_requests, "{:?}", server.request_counts());
    }
}

/// Only the checksum of the whole object is known, so that all ranges are fetched again.
#[test]
fn range_damaged_once_is_fetched_again() {
    for offset in [0, CHUNK, 2 * CHUNK] {
        let damages = AtomicUsize::new(1);
        let (server, caller) = scene(move |request, answer| {
            let is_damaged = is_at(request, offset)
                && damages.fetch_update(Relaxed, Relaxed, |left: usize| left.checked_sub(1)).is_ok();
            Reply::Respond(if is_damaged { answer.with_flipped_bit(0) } else { answer })
        });
        let bytes = content(1, SEVERAL);
        server.put_object("x", bytes.clone());
        let summary = caller.run_ok(&["cp", "--json", "--chunk-size", "1MiB", "s3://bucket/x", "x"]);
        assert!(summary.contains(&format!("\"bytes\":{SEVERAL},")), "{summary}");
        assert!(std::fs::read(caller.path("x")).unwrap() == bytes, "at {offset}");
        assert_eq!(server.request_counts(), [("GetObject", 6)], "at {offset}");
        assert_eq!(files(&caller), ["x"]);
    }
}

/// Most services omit the full-object checksum in range responses, even for the whole range. A `HEAD` then provides it.
#[test]
fn missing_checksum_of_a_range_is_requested() {
    for size in [1, 1 << 20, 4 << 20, (4 << 20) + 1, 12 << 20] {
        for is_damaged in [false, true] {
            let (server, caller) = scene(move |request, answer| {
                if request.operation != "GetObject" || request.header("range").is_empty() {
                    return Reply::Respond(answer);
                }
                let answer = answer.without_header("x-amz-checksum-crc64nvme");
                Reply::Respond(if is_damaged && is_at(request, 0) {
                    answer.with_flipped_bit(0)
                } else {
                    answer
                })
            });
            let bytes = content(1, size);
            server.put_object("x", bytes.clone());
            let ran = caller.run(&["cp", "s3://bucket/x", "x"]);
            assert_eq!(
                server.requests_of("HeadObject").len(),
                1,
                "{size} bytes: {:?}",
                server.request_counts()
            );
            if is_damaged {
                assert_eq!(ran.status.code(), Some(1), "{size} bytes");
                assert!(ran.err.contains("checksum mismatch: received CRC64NVME:"), "{}", ran.err);
                assert!(!caller.path("x").exists(), "{size} bytes");
            } else {
                assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
                assert!(std::fs::read(caller.path("x")).unwrap() == bytes, "{size} bytes");
            }
        }
    }
}

#[test]
fn response_of_wrong_length_is_rejected() {
    // Fewer and more bytes than the declared range.
    for length in [999_999_usize, 1_000_001] {
        for (server, message) in assert_fails(1_000_000, move |_, mut answer: ScriptedResponse| {
            answer.body.resize(length, 0);
            answer.status = 206;
            Reply::Respond(answer.with_header("Content-Range", "bytes 0-999999/1000000"))
        }) {
            let words = format!("the store sent {length} bytes instead of the 1000000 requested");
            assert!(message.contains(&words), "{message}");
            assert!(server.requests_of("GetObject").len() <= 3, "{:?}", server.request_counts());
        }
    }
}

/// Without a checksum, only the range in the response reveals that its bytes are wrong.
#[test]
fn response_for_a_wrong_range_is_rejected() {
    let plain = |answer: ScriptedResponse| answer.without_header("x-amz-checksum-crc64nvme");
    // The right number of bytes, from another offset.
    assert_fails(SEVERAL, move |request, answer| {
        let other = is_at(request, CHUNK);
        let range = format!("bytes 0-{}/{SEVERAL}", answer.body.len() - 1);
        Reply::Respond(if other { plain(answer).with_header("Content-Range", &range) } else { plain(answer) })
    });
    // The whole object instead of one chunk.
    let all = content(1, SEVERAL);
    assert_fails(SEVERAL, move |request, answer| {
        let whole = |answer: ScriptedResponse| ScriptedResponse {
            status: 200,
            body: all.clone(),
            ..answer.without_header("Content-Range")
        };
        Reply::Respond(if is_at(request, 0) { plain(answer) } else { whole(plain(answer)) })
    });
}

#[test]
fn object_that_changes_between_chunks_fails() {
    for (server, message) in assert_fails(SEVERAL, |request, answer| {
        if is_at(request, CHUNK) {
            refusal(
                412,
                "PreconditionFailed",
                "At least one of the pre-conditions you specified did not hold",
            )
        } else {
            Reply::Respond(answer)
        }
    }) {
        assert!(message.starts_with("tradewind: \"x\" changed while it was read"), "{message}");
        let requests = server.requests_of("GetObject");
        assert_eq!(
            requests.iter().filter(|request| is_at(request, CHUNK)).count(),
            1,
            "it is not requested again"
        );
    }
}

#[test]
fn response_without_etag_or_date_is_rejected() {
    for header in ["ETag", "Last-Modified"] {
        for (server, message) in
            assert_fails(1000, move |_, answer| Reply::Respond(answer.without_header(header)))
        {
            let words = if header == "ETag" { "has no ETag" } else { "has no Last-Modified" };
            assert!(message.contains(&format!("the store's response {words}")), "{message}");
            assert!(server.requests_of("GetObject").len() <= 3, "{:?}", server.request_counts());
        }
    }
}

/// The object has 1000 bytes.
#[test]
fn wrong_object_size_in_a_response_leaves_no_file() {
    for size in [
        "-1",
        "+1000",
        "1000x",
        "0",
        "2147483648",
        "9007199254740992",
        "9223372036854775808",
        "18446744073709551615",
    ] {
        let commands: [&[&str]; 2] = [&["cp", "s3://bucket/x", "x"], &["cat", "s3://bucket/x"]];
        let flags = ["--chunk-size", "1MiB"];
        for (server, message) in assert_commands_fail(&flags, &commands, 1000, move |_, answer| {
            Reply::Respond(answer.with_header("Content-Range", &format!("bytes 0-999/{size}")))
        }) {
            assert!(server.requests().len() <= 20, "{size}: {message} {:?}", server.request_counts());
        }
    }
}
