//! What passes is tried again where that is safe, and only there.

use std::fs;

use super::{content, files, refusal, scene, scene_with};
use crate::support::scripted::{Answer, Reply, Request};

/// Two parts, the first as small as S3 takes one.
const PARTS: usize = (5 << 20) + 1000;
const UPLOAD: [&str; 5] = ["cp", "--chunk-size", "1MiB", "here", "s3://bucket/x"];
/// What one sends where nothing goes wrong.
const SMOOTH: [(&str, usize); 3] =
    [("CompleteMultipartUpload", 1), ("CreateMultipartUpload", 1), ("UploadPart", 2)];

type Fault = fn(Answer) -> Reply;

fn slow_down(_: Answer) -> Reply {
    refusal(503, "SlowDown", "Please reduce your request rate.")
}

fn internal(_: Answer) -> Reply {
    refusal(500, "InternalError", "We encountered an internal error. Please try again.")
}

fn reset(_: Answer) -> Reply {
    Reply::Reset
}

/// A proxy's page that says nothing of the store.
fn bad_gateway(_: Answer) -> Reply {
    Reply::Answer(Answer { status: 502, headers: Vec::new(), body: b"<html>Bad Gateway</html>".to_vec() })
}

const FAULTS: [(&str, Fault); 4] =
    [("SlowDown", slow_down), ("InternalError", internal), ("reset", reset), ("bad gateway", bad_gateway)];

#[test]
fn reading_is_tried_again() {
    for (name, fault) in FAULTS {
        let (server, caller) = scene_with("GetObject", 2, fault);
        let bytes = content(1, 300_000);
        server.lay("x", bytes.clone());
        caller.done(&["cp", "s3://bucket/x", "x"]);
        assert!(fs::read(caller.path("x")).unwrap() == bytes, "{name}");
        assert_eq!(server.counts(), [("GetObject", 3)], "{name}");

        let (server, caller) = scene_with("ListObjectsV2", 2, fault);
        server.lay("x", bytes.clone());
        caller.done(&["cp", "-r", "s3://bucket", "there"]);
        assert_eq!(server.counts(), [("GetObject", 1), ("ListObjectsV2", 3)], "{name}");

        let (server, caller) = scene_with("HeadObject", 2, fault);
        server.lay("x", bytes.clone());
        caller.done(&["stat", "s3://bucket/x"]);
        assert_eq!(server.counts(), [("HeadObject", 3)], "{name}");
    }
}

#[test]
fn writing_a_whole_object_and_removing_one_are_tried_again() {
    for (name, fault) in FAULTS {
        // One that is at hand, and one whose request is under way while it is read.
        for size in [1000, 1 << 20] {
            let (server, caller) = scene_with("PutObject", 2, fault);
            let bytes = content(1, size);
            caller.write("here", &bytes);
            caller.done(&["cp", "here", "s3://bucket/x"]);
            assert!(server.object("x").unwrap() == bytes, "{name}");
            assert_eq!(server.counts(), [("PutObject", 3)], "{name}, {size} bytes");
        }
        let (server, caller) = scene_with("DeleteObject", 2, fault);
        caller.done(&["rm", "s3://bucket/x"]);
        assert_eq!(server.counts(), [("DeleteObject", 3)], "{name}");
    }
}

#[test]
fn a_part_is_sent_again_and_no_other() {
    for (name, fault) in FAULTS {
        let (server, caller) = scene_with("UploadPart", 2, fault);
        let bytes = content(1, PARTS);
        caller.write("here", &bytes);
        caller.done(&UPLOAD);
        assert!(server.object("x").unwrap() == bytes, "{name}");
        assert_eq!(server.of("UploadPart").len(), 4, "{name}");
        assert_eq!(
            (server.of("CreateMultipartUpload").len(), server.of("CompleteMultipartUpload").len()),
            (1, 1)
        );
        assert!(server.of("AbortMultipartUpload").is_empty(), "{name}");
    }
}

/// Nobody knows whether the store has carried out what it did not answer: a second upload would be one that nobody
/// completes, and a second completion fails on what the first one did.
#[test]
fn what_begins_and_completes_an_upload_is_sent_once() {
    for (name, fault) in FAULTS.into_iter().skip(1) {
        for operation in ["CreateMultipartUpload", "CompleteMultipartUpload"] {
            let (server, caller) = scene_with(operation, 1, fault);
            caller.write("here", content(1, PARTS));
            let ran = caller.run(&UPLOAD);
            assert_eq!(ran.status.code(), Some(1), "{name}: {ran:?}");
            assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
            assert!(ran.err.starts_with("tradewind: here: POST s3://bucket/x on HOST: "), "{}", ran.err);
            assert_eq!(server.of(operation).len(), 1, "{name} to {operation}");
            // It is remembered, and goes on when the command is run again.
            assert!(server.of("AbortMultipartUpload").is_empty(), "{name} to {operation}");
        }
    }
}

/// A store that has too much to do says so before it does anything.
#[test]
fn what_the_store_put_off_is_sent_again() {
    for operation in ["CreateMultipartUpload", "CompleteMultipartUpload"] {
        let (server, caller) = scene_with(operation, 2, slow_down);
        let bytes = content(1, PARTS);
        caller.write("here", &bytes);
        caller.done(&UPLOAD);
        assert!(server.object("x").unwrap() == bytes);
        let smooth = SMOOTH.map(|(name, times)| (name, if name == operation { 3 } else { times }));
        assert_eq!(server.counts(), smooth);
    }
}

/// The store has carried it out, and nobody heard: it is looked up, and not asked for twice.
#[test]
fn a_completion_whose_answer_is_lost_is_looked_up() {
    let (server, caller) = scene(|request: &Request, answer| {
        if request.operation == "CompleteMultipartUpload" {
            Reply::Torn(answer, 0)
        } else {
            Reply::Answer(answer)
        }
    });
    let bytes = content(1, PARTS);
    caller.write("here", &bytes);
    caller.done(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    assert_eq!(server.of("CompleteMultipartUpload").len(), 1);
    assert!(server.of("AbortMultipartUpload").is_empty());
}

#[test]
fn a_completion_that_fails_behind_its_success_is_told() {
    let (server, caller) = scene_with("CompleteMultipartUpload", 1, |_| {
        let refused =
            Answer::refusal(200, "InternalError", "We encountered an internal error. Please try again.");
        Reply::Answer(refused)
    });
    caller.write("here", content(1, PARTS));
    let why = "We encountered an internal error. Please try again (InternalError)";
    caller.fails(&UPLOAD, &[&format!("here: completing the upload of x: {why}")]);
    assert_eq!((server.of("CompleteMultipartUpload").len(), server.of("AbortMultipartUpload").len()), (1, 0));
}

#[test]
fn who_wants_no_second_try_gets_none() {
    let commands: [(&[&str], &str); 5] = [
        (&["cat", "s3://bucket/x"], "GetObject"),
        (&["ls", "s3://bucket"], "ListObjectsV2"),
        (&["cp", "small", "s3://bucket/x"], "PutObject"),
        (&["cp", "here", "s3://bucket/x"], "PutObject"),
        (&["rm", "s3://bucket/x"], "DeleteObject"),
    ];
    for (command, operation) in commands {
        let (server, caller) = scene(|_, answer| internal(answer));
        let caller = caller.with("AWS_MAX_ATTEMPTS", "1");
        caller.write("small", content(1, 1000));
        caller.write("here", content(1, 1 << 20));
        let ran = caller.run(command);
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        let why = "We encountered an internal error. Please try again (InternalError)\n";
        assert!(ran.err.ends_with(why), "{}", ran.err);
        assert_eq!(server.counts(), [(operation, 1)], "{command:?}");
    }
}

/// The bytes of a body that come before it breaks off.
const CAME: usize = 600_000;

#[test]
fn what_breaks_off_goes_on_from_there() {
    // One request, its first chunk, and one of those behind it.
    for (size, torn) in [(1_000_000, 1), (9 << 20, 1), (9 << 20, 2)] {
        for to in ["x", "-"] {
            let (server, caller) =
                scene(
                    move |request, answer| {
                        if request.number == torn { Reply::Torn(answer, CAME) } else { Reply::Answer(answer) }
                    },
                );
            let bytes = content(1, size);
            server.lay("x", bytes.clone());
            let ran = caller.run(&["cp", "s3://bucket/x", to]);
            assert!(ran.status.success() && ran.err.is_empty(), "{}", ran.err);
            let came = if to == "-" { ran.out } else { fs::read(caller.path("x")).unwrap() };
            assert!(came == bytes, "{size} bytes to {to}");

            let asked = server.of("GetObject");
            let ranges: Vec<(usize, usize)> = asked.iter().map(range).collect();
            let (first, last) = ranges[torn - 1];
            let (again, other) = ranges.iter().zip(&asked).skip(1).partition::<Vec<_>, _>(|((at, _), _)| {
                // Where nobody knows how much came before the break, it is no more than was sent.
                *at > first && *at <= first + CAME
            });
            assert_eq!(again.len(), 1, "{ranges:?}");
            assert_eq!(again[0].0.1, last.min(size - 1), "{ranges:?}");
            assert!(again.iter().chain(&other).all(|(_, request)| !request.header("if-match").is_empty()));
        }
    }
}

fn range(request: &Request) -> (usize, usize) {
    let range = request.header("range").trim_start_matches("bytes=");
    let (first, last) = range.split_once('-').unwrap_or(("0", "0"));
    (first.parse().unwrap(), last.parse().unwrap())
}

#[test]
fn a_body_that_always_breaks_off_is_given_up() {
    let (server, caller) = scene(|_, answer| Reply::Torn(answer, 0));
    let caller = caller.with("AWS_MAX_ATTEMPTS", "3");
    server.lay("x", content(1, 1_000_000));
    let ran = caller.run(&["cp", "s3://bucket/x", "x"]);
    assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1), "{ran:?}");
    assert_eq!(ran.err, "tradewind: x: the store broke off in the middle of an answer\n");
    assert!(server.seen().len() <= 3, "{:?}", server.counts());
    assert_eq!(files(&caller), [""; 0]);
}
