//! Retries: transient failures are retried if, and only if, that is safe. A store that is away is waited for.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{content, files, refusal, scene, scene_with};
use crate::support::scripted_server::{Reply, Request, ScriptedResponse};

/// The size of an object of two parts, the first of the minimum size.
const PARTS: usize = (5 << 20) + 1000;
const UPLOAD: [&str; 5] = ["cp", "--chunk-size", "1MiB", "here", "s3://bucket/x"];
/// The requests of an upload without faults.
const FAULT_FREE: [(&str, usize); 3] =
    [("CompleteMultipartUpload", 1), ("CreateMultipartUpload", 1), ("UploadPart", 2)];

type Fault = fn(ScriptedResponse) -> Reply;

fn slow_down(_: ScriptedResponse) -> Reply {
    refusal(503, "SlowDown", "Please reduce your request rate.")
}

fn internal(_: ScriptedResponse) -> Reply {
    refusal(500, "InternalError", "We encountered an internal error. Please try again.")
}

fn reset(_: ScriptedResponse) -> Reply {
    Reply::Reset
}

/// An error page of a proxy, without an S3 error.
fn bad_gateway(_: ScriptedResponse) -> Reply {
    Reply::Respond(ScriptedResponse {
        status: 502,
        headers: Vec::new(),
        body: b"<html>Bad Gateway</html>".to_vec(),
    })
}

const FAULTS: [(&str, Fault); 4] =
    [("SlowDown", slow_down), ("InternalError", internal), ("reset", reset), ("bad gateway", bad_gateway)];

#[test]
fn reads_are_retried() {
    for (name, fault) in FAULTS {
        let (server, caller) = scene_with("GetObject", 2, fault);
        let bytes = content(1, 300_000);
        server.put_object("x", bytes.clone());
        caller.run_ok(&["cp", "s3://bucket/x", "x"]);
        assert!(fs::read(caller.path("x")).unwrap() == bytes, "{name}");
        assert_eq!(server.request_counts(), [("GetObject", 3)], "{name}");

        let (server, caller) = scene_with("ListObjectsV2", 2, fault);
        server.put_object("x", bytes.clone());
        caller.run_ok(&["cp", "-r", "s3://bucket", "there"]);
        assert_eq!(server.request_counts(), [("GetObject", 1), ("ListObjectsV2", 3)], "{name}");

        let (server, caller) = scene_with("HeadObject", 2, fault);
        server.put_object("x", bytes.clone());
        caller.run_ok(&["stat", "s3://bucket/x"]);
        assert_eq!(server.request_counts(), [("HeadObject", 3)], "{name}");
    }
}

#[test]
fn single_request_writes_and_deletes_are_retried() {
    for (name, fault) in FAULTS {
        // One read completely before the request, and one that is streamed.
        for size in [1000, 1 << 20] {
            let (server, caller) = scene_with("PutObject", 2, fault);
            let bytes = content(1, size);
            caller.write("here", &bytes);
            caller.run_ok(&["cp", "here", "s3://bucket/x"]);
            assert!(server.object("x").unwrap() == bytes, "{name}");
            assert_eq!(
                server.request_counts(),
                repeated("PutObject", name, size > 1000),
                "{name}, {size} bytes"
            );
        }
        let (server, caller) = scene_with("DeleteObject", 2, fault);
        caller.run_ok(&["rm", "s3://bucket/x"]);
        assert_eq!(server.request_counts(), repeated("DeleteObject", name, false), "{name}");
    }
}

/// The requests of a change that fails twice. After an unknown outcome, the versioning of the bucket decides. The bytes
/// of a streamed write must be read again, so the leaf searches for the write first.
fn repeated(operation: &'static str, fault: &str, is_streamed: bool) -> Vec<(&'static str, usize)> {
    let mut requests = vec![(operation, 3)];
    if fault != "SlowDown" {
        requests.push(("GetBucketVersioning", 2));
        requests.extend(is_streamed.then_some(("HeadObject", 2)));
    }
    requests.sort_unstable();
    requests
}

/// In a bucket that keeps versions, a command does not repeat a change of unknown outcome.
#[test]
fn changes_of_unknown_outcome_are_not_repeated_with_versions() {
    for (name, fault) in FAULTS.into_iter().skip(1) {
        for (operation, arguments) in [
            ("PutObject", &["cp", "small", "s3://bucket/x"][..]),
            ("PutObject", &["cp", "large", "s3://bucket/x"]),
            ("PutObject", &["sync", "tree", "s3://bucket"]),
            ("CopyObject", &["cp", "s3://bucket/there", "s3://bucket/x"]),
            ("DeleteObject", &["rm", "s3://bucket/there"]),
        ] {
            let (server, caller) = scene(move |request, answer| match request.operation {
                "GetBucketVersioning" => Reply::Respond(ScriptedResponse::document(
                    "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
                )),
                failing if failing == operation => fault(answer),
                _ => Reply::Respond(answer),
            });
            server.put_object("there", b"bytes".to_vec());
            caller.write("small", content(1, 1000));
            caller.write("large", content(1, 1 << 20));
            caller.write("tree/x", content(1, 1000));
            let failed = caller.run(arguments);
            let is_explained = failed.err.contains("was not sent again");
            assert!(!failed.status.success() && is_explained, "{name}, {arguments:?}: {failed:?}");
            assert_eq!(server.requests_of(operation).len(), 1, "{name}, {arguments:?}");
        }
    }
}

#[test]
fn only_the_failed_part_is_sent_again() {
    for (name, fault) in FAULTS {
        let (server, caller) = scene_with("UploadPart", 2, fault);
        let bytes = content(1, PARTS);
        caller.write("here", &bytes);
        caller.run_ok(&UPLOAD);
        assert!(server.object("x").unwrap() == bytes, "{name}");
        assert_eq!(server.requests_of("UploadPart").len(), 4, "{name}");
        assert_eq!(
            (
                server.requests_of("CreateMultipartUpload").len(),
                server.requests_of("CompleteMultipartUpload").len()
            ),
            (1, 1)
        );
        assert!(server.requests_of("AbortMultipartUpload").is_empty(), "{name}");
    }
}

/// A completion is sent again only after the upload was found to exist.
#[test]
fn upload_creation_and_completion_are_retried() {
    for (name, fault) in FAULTS.into_iter().skip(1) {
        for operation in ["CreateMultipartUpload", "CompleteMultipartUpload"] {
            let (server, caller) = scene_with(operation, 1, fault);
            let bytes = content(1, PARTS);
            caller.write("here", &bytes);
            caller.run_ok(&UPLOAD);
            assert!(server.object("x").unwrap() == bytes, "{name} to {operation}");
            assert_eq!(server.requests_of(operation).len(), 2, "{name} to {operation}");
            assert_eq!(server.requests_of("UploadPart").len(), 2, "{name} to {operation}");
            assert!(server.requests_of("AbortMultipartUpload").is_empty(), "{name} to {operation}");
        }
    }
}

/// The response to the first creation is lost. Its upload stays: it cannot be distinguished from the upload of another
/// client of the same key that has not sent a part yet.
#[test]
fn no_upload_is_aborted_after_a_lost_creation() {
    let (server, caller) = scene(|request, answer| match request.operation {
        "CreateMultipartUpload" if request.number == 1 => Reply::ResetAfterExecution(answer),
        "CreateMultipartUpload" => {
            Reply::Respond(answer.with_header("Date", "Fri, 02 Jan 2026 03:04:05 GMT"))
        }
        "ListParts" => Reply::Respond(ScriptedResponse::document("<ListPartsResult></ListPartsResult>")),
        "GetObject" | "Other" if request.query.contains_key("uploads") => {
            Reply::Respond(ScriptedResponse::document(
                "<ListMultipartUploadsResult><Upload><Key>x</Key><UploadId>unknown</UploadId>\
                 <Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload></ListMultipartUploadsResult>",
            ))
        }
        _ => Reply::Respond(answer),
    });
    let bytes = content(1, PARTS);
    caller.write("here", &bytes);
    caller.run_ok(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    assert_eq!(server.requests_of("CreateMultipartUpload").len(), 2);
    assert!(server.requests_of("AbortMultipartUpload").is_empty());
}

/// The time for which the store is away: longer than six attempts take.
const AWAY: Duration = Duration::from_secs(4);

#[test]
fn store_that_is_away_for_4_s_is_waited_for() {
    let faults: [(&str, Fault); 3] = [
        ("reset", reset),
        ("bad gateway", bad_gateway),
        ("unavailable", |_| refusal(503, "ServiceUnavailable", "Please try again.")),
    ];
    for (name, fault) in faults {
        let start = Instant::now();
        let (server, caller) =
            scene(
                move |_, answer| {
                    if start.elapsed() < AWAY { fault(answer) } else { Reply::Respond(answer) }
                },
            );
        for n in 0..40 {
            // Some are sent from memory, and some are streamed.
            caller.write(format!("tree/{n}"), content(n, if n % 2 == 0 { 1000 } else { 400_000 }));
        }
        caller.write("tree/large", content(1, PARTS));
        let ran = caller.run(&["cp", "-r", "--chunk-size", "1MiB", "tree", "s3://bucket"]);
        assert!(ran.status.success(), "{name}: {}", ran.err);
        assert!(start.elapsed() < 3 * AWAY, "{name}: {:?}", start.elapsed());
        assert!(server.object("large").unwrap() == content(1, PARTS), "{name}");
        // The wait is reported once, not for each file.
        assert!(ran.err.lines().count() <= 1, "{name}: {}", ran.err);
        let failed = server.requests().len() - 41 - 4;
        assert!(failed < 41 * 12, "{name}: {failed} retries");
    }
}

#[test]
fn retry_after_is_honoured() {
    let start = Instant::now();
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = times.clone();
    let (server, caller) = scene(move |request, answer| {
        seen.lock().unwrap().push(start.elapsed());
        if request.number == 1 {
            let busy = ScriptedResponse::error(503, "ServiceUnavailable", "Please try again.");
            Reply::Respond(busy.with_header("Retry-After", "3"))
        } else {
            Reply::Respond(answer)
        }
    });
    server.put_object("x", content(1, 1000));
    let ran = caller.run(&["cp", "s3://bucket/x", "x"]);
    assert!(ran.status.success(), "{}", ran.err);
    let times = times.lock().unwrap();
    assert_eq!(times.len(), 2);
    assert!(times[1] - times[0] >= Duration::from_millis(2990), "{times:?}");
}

#[test]
fn cancellation_ends_the_wait_for_a_store() {
    let (_server, caller) = scene(|_, answer| reset(answer));
    let running = caller.spawn(&["cp", "s3://bucket/x", "x"]);
    std::thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    running.signal(Signal::INT);
    let ran = running.wait_for_output();
    assert_eq!(ran.status.code(), Some(130), "{ran:?}");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn store_that_stays_away_fails_after_30_s() {
    let (server, caller) = scene(|_, answer| reset(answer));
    let start = Instant::now();
    let ran = caller.run(&["cat", "s3://bucket/x"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!((29..38).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let lines: Vec<&str> = ran.err.lines().collect();
    assert!(lines[0].contains("; waiting up to 30 s for HOST"), "{}", ran.err);
    assert!(lines[1].starts_with("tradewind: retried for 3"), "{}", ran.err);
    assert!(lines[1].contains(" s: GET s3://bucket/x on HOST: the connection failed"), "{}", ran.err);
    assert_eq!(lines.len(), 2);
    assert!(server.requests().len() < 40, "{:?}", server.request_counts());
}

/// A store responds with `SlowDown` before it executes anything, so every request can be retried.
#[test]
fn slow_down_is_retried_for_every_operation() {
    for operation in ["CreateMultipartUpload", "CompleteMultipartUpload"] {
        let (server, caller) = scene_with(operation, 2, slow_down);
        let bytes = content(1, PARTS);
        caller.write("here", &bytes);
        caller.run_ok(&UPLOAD);
        assert!(server.object("x").unwrap() == bytes);
        let smooth = FAULT_FREE.map(|(name, times)| (name, if name == operation { 3 } else { times }));
        assert_eq!(server.request_counts(), smooth);
    }
}

/// The store completed the upload, but the response is lost: the client checks the object instead of retrying.
#[test]
fn completion_with_lost_response_is_verified() {
    let (server, caller) = scene(|request: &Request, answer| {
        if request.operation == "CompleteMultipartUpload" {
            Reply::Truncated(answer, 0)
        } else {
            Reply::Respond(answer)
        }
    });
    let bytes = content(1, PARTS);
    caller.write("here", &bytes);
    caller.run_ok(&UPLOAD);
    assert!(server.object("x").unwrap() == bytes);
    assert_eq!(server.requests_of("CompleteMultipartUpload").len(), 1);
    assert!(server.requests_of("AbortMultipartUpload").is_empty());
}

#[test]
fn completion_error_in_a_200_response_is_retried() {
    for (failures, attempts) in [(1, None), (3, Some("3"))] {
        let (server, caller) = scene_with("CompleteMultipartUpload", failures, |_| {
            let refused = ScriptedResponse::error(
                200,
                "InternalError",
                "We encountered an internal error. Please try again.",
            );
            Reply::Respond(refused)
        });
        let caller = match attempts {
            Some(attempts) => caller.with_variable("AWS_MAX_ATTEMPTS", attempts),
            None => caller,
        };
        caller.write("here", content(1, PARTS));
        if attempts.is_some() {
            let why = "We encountered an internal error. Please try again (InternalError)";
            caller.run_failing(&UPLOAD, &[&format!("here: completing the upload of x: {why}")]);
            assert_eq!(server.requests_of("CompleteMultipartUpload").len(), 3);
        } else {
            caller.run_ok(&UPLOAD);
            assert_eq!(server.requests_of("CompleteMultipartUpload").len(), 2);
        }
        // The journal keeps the upload, so that the next run resumes it.
        assert!(server.requests_of("AbortMultipartUpload").is_empty());
    }
}

#[test]
fn max_attempts_of_1_disables_retries() {
    let commands: [(&[&str], &str); 5] = [
        (&["cat", "s3://bucket/x"], "GetObject"),
        (&["ls", "s3://bucket"], "ListObjectsV2"),
        (&["cp", "small", "s3://bucket/x"], "PutObject"),
        (&["cp", "here", "s3://bucket/x"], "PutObject"),
        (&["rm", "s3://bucket/x"], "DeleteObject"),
    ];
    for (command, operation) in commands {
        let (server, caller) = scene_with(operation, usize::MAX, internal);
        let caller = caller.with_variable("AWS_MAX_ATTEMPTS", "1");
        caller.write("small", content(1, 1000));
        caller.write("here", content(1, 1 << 20));
        let ran = caller.run(command);
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        let why = "We encountered an internal error. Please try again (InternalError)\n";
        assert!(ran.err.ends_with(why), "{}", ran.err);
        assert_eq!(server.requests_of(operation).len(), 1, "{command:?}");
    }
}

/// Number of bytes that arrive before a body is interrupted.
const RECEIVED: usize = 600_000;

#[test]
fn interrupted_body_is_resumed_at_its_offset() {
    // A single request; the first chunk of a large object; and a later one.
    for (size, torn) in [(1_000_000, 1), (9 << 20, 1), (9 << 20, 2)] {
        for to in ["x", "-"] {
            let (server, caller) = scene(move |request, answer| {
                if request.number == torn {
                    Reply::Truncated(answer, RECEIVED)
                } else {
                    Reply::Respond(answer)
                }
            });
            let bytes = content(1, size);
            server.put_object("x", bytes.clone());
            let ran = caller.run(&["cp", "s3://bucket/x", to]);
            assert!(ran.status.success() && ran.err.is_empty(), "{}", ran.err);
            let received = if to == "-" { ran.out } else { fs::read(caller.path("x")).unwrap() };
            assert!(received == bytes, "{size} bytes to {to}");

            let requests = server.requests_of("GetObject");
            let ranges: Vec<(usize, usize)> = requests.iter().map(range).collect();
            let (first, last) = ranges[torn - 1];
            let (retried, other) =
                ranges.iter().zip(&requests).skip(1).partition::<Vec<_>, _>(|((at, _), _)| {
                    // The client may have received fewer bytes than were sent before the interruption.
                    *at > first && *at <= first + RECEIVED
                });
            assert_eq!(retried.len(), 1, "{ranges:?}");
            assert_eq!(retried[0].0.1, last.min(size - 1), "{ranges:?}");
            assert!(retried.iter().chain(&other).all(|(_, request)| !request.header("if-match").is_empty()));
        }
    }
}

fn range(request: &Request) -> (usize, usize) {
    let range = request.header("range").trim_start_matches("bytes=");
    let (first, last) = range.split_once('-').unwrap_or(("0", "0"));
    (first.parse().unwrap(), last.parse().unwrap())
}

#[test]
fn body_that_is_always_interrupted_fails() {
    let (server, caller) = scene(|_, answer| Reply::Truncated(answer, 0));
    let caller = caller.with_variable("AWS_MAX_ATTEMPTS", "3");
    server.put_object("x", content(1, 1_000_000));
    let ran = caller.run(&["cp", "s3://bucket/x", "x"]);
    assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1), "{ran:?}");
    assert_eq!(ran.err, "tradewind: x: the connection closed in the middle of a response\n");
    assert!(server.requests().len() <= 3, "{:?}", server.request_counts());
    assert_eq!(files(&caller), [""; 0]);
}
