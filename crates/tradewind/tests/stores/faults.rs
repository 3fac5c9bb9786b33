//! Copies between two servers, one of which fails. Transient errors are retried per part. After other errors, the
//! destination has neither object nor upload, and one line says why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use super::support::command_runner::{CommandOutput, CommandRunner};
use super::support::eventually;
use super::support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer};
use super::{content, with_other};

/// A size of four parts.
const LARGE: usize = (15 << 20) + 1000;
const COPY: [&str; 5] = ["cp", "--chunk-size", "5MiB", "s3://bucket/x", "other://bucket/x"];

fn right(_: &Request, answer: ScriptedResponse) -> Reply {
    Reply::Respond(answer)
}

/// An object of this size at the source, and nothing at the destination.
fn scene(
    size: usize,
    source: impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + 'static,
    destination: impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + 'static,
) -> (ScriptedServer, ScriptedServer, CommandRunner) {
    let (source, destination) = (ScriptedServer::start(source), ScriptedServer::start(destination));
    source.put_object("x", content(1, size));
    let caller = with_other(CommandRunner::new(source.address), destination.address);
    (source, destination, caller)
}

/// Applies a fault to the first `times` requests of an operation.
fn first(
    operation: &'static str,
    times: usize,
    fault: impl Fn(ScriptedResponse) -> Reply + Send + Sync + 'static,
) -> impl Fn(&Request, ScriptedResponse) -> Reply + Send + Sync + 'static {
    move |request, answer| {
        if request.operation == operation && request.number <= times {
            fault(answer)
        } else {
            Reply::Respond(answer)
        }
    }
}

fn slow_down(_: ScriptedResponse) -> Reply {
    Reply::Respond(ScriptedResponse::error(503, "SlowDown", "Please reduce your request rate."))
}

/// The destination has no object, and every upload was aborted.
fn is_untouched(destination: &ScriptedServer) {
    assert_eq!(destination.object("x"), None);
    let (created, aborted) =
        (destination.requests_of("CreateMultipartUpload"), destination.requests_of("AbortMultipartUpload"));
    assert_eq!(created.len(), aborted.len(), "{:?}", destination.request_counts());
}

/// The destination has no object, and an upload that was started can be resumed.
fn is_resumable(destination: &ScriptedServer, caller: &CommandRunner) {
    assert_eq!(destination.object("x"), None);
    assert_eq!(
        destination.requests_of("AbortMultipartUpload").len(),
        0,
        "{:?}",
        destination.request_counts()
    );
    let uploads = destination.requests_of("UploadPart").len().min(1);
    let journals = std::fs::read_dir(caller.path("home/.cache/tradewind")).map_or(0, Iterator::count);
    assert!(uploads <= journals && journals <= destination.requests_of("CreateMultipartUpload").len());
}

/// The copy fails with this single line. `THERE` stands for the destination's address.
fn tells(destination: &ScriptedServer, caller: &CommandRunner, said: &str) {
    let CommandOutput { status, err, .. } = caller.run(&COPY);
    let err = err.replace(&destination.address.to_string(), "THERE");
    assert_eq!((err, status.code()), (format!("tradewind: {said}\n"), Some(1)));
}

fn fails(destination: &ScriptedServer, caller: &CommandRunner, said: &str) {
    tells(destination, caller, said);
    is_untouched(destination);
}

#[test]
fn interrupted_source_is_read_again() {
    for (size, gets, puts) in [(1000, 2, ("PutObject", 1)), (LARGE, 5, ("UploadPart", 4))] {
        let torn = |answer: ScriptedResponse| Reply::Truncated(answer, 600);
        let (source, destination, caller) = scene(size, first("GetObject", 1, torn), right);
        caller.run_ok(&COPY);
        assert!(destination.object("x").unwrap() == content(1, size));
        assert_eq!(source.requests_of("GetObject").len(), gets, "{:?}", source.request_counts());
        assert_eq!(destination.requests_of(puts.0).len(), puts.1, "{:?}", destination.request_counts());
    }
}

#[test]
fn copy_fails_if_the_source_always_breaks_off() {
    for size in [1000, LARGE] {
        let (source, destination, caller) =
            scene(size, first("GetObject", 100, |a| Reply::Truncated(a, 600)), right);
        let caller = caller.with_variable("AWS_MAX_ATTEMPTS", "2");
        let said = "x: reading the source failed: the connection closed in the middle of a response";
        tells(&destination, &caller, said);
        is_resumable(&destination, &caller);
        assert!(source.requests_of("GetObject").len() <= 8, "{:?}", source.request_counts());
    }
}

#[test]
fn copy_fails_if_the_source_changes() {
    let changed = |request: &Request, answer: ScriptedResponse| {
        if request.operation == "GetObject" && !request.header("range").starts_with("bytes=0-") {
            return Reply::Respond(ScriptedResponse::error(412, "PreconditionFailed", "It did not hold."));
        }
        Reply::Respond(answer)
    };
    let (source, destination, caller) = scene(LARGE, changed, right);
    fails(&destination, &caller, "\"x\" changed while it was read");
    let gets = source.requests_of("GetObject");
    assert!(gets.iter().all(|request| !request.header("if-match").is_empty()));
    assert!(gets.len() <= 4, "it is not retried: {:?}", source.request_counts());
}

#[test]
fn damage_in_transit_is_detected() {
    let (_source, destination, caller) =
        scene(1000, first("GetObject", 1, |a| Reply::Respond(a.with_flipped_bit(500))), right);
    caller.run_ok(&COPY);
    assert_eq!(destination.object("x").unwrap(), content(1, 1000), "it is read again");
    // The checksum of the whole does not reveal which part is damaged: all are read again, once.
    let (source, destination, caller) =
        scene(LARGE, first("GetObject", 1, |a| Reply::Respond(a.with_flipped_bit(500))), right);
    caller.run_ok(&COPY);
    assert!(destination.object("x").unwrap() == content(1, LARGE));
    assert_eq!(source.requests_of("GetObject").len(), 8);
    let (_source, destination, caller) =
        scene(LARGE, first("GetObject", 100, |a| Reply::Respond(a.with_flipped_bit(500))), right);
    let CommandOutput { status, err, .. } = caller.run(&COPY);
    assert!(err.starts_with("tradewind: x: checksum mismatch: received CRC64NVME:"), "{err}");
    assert_eq!((status.code(), err.lines().count()), (Some(1), 1));
    is_untouched(&destination);
}

#[test]
fn busy_destination_is_retried() {
    for (size, operation, all) in
        [(1000, "PutObject", 3), (1 << 20, "PutObject", 3), (LARGE, "UploadPart", 6)]
    {
        let (_source, destination, caller) = scene(size, right, first(operation, 2, slow_down));
        caller.run_ok(&COPY);
        assert!(destination.object("x").unwrap() == content(1, size));
        assert_eq!(destination.requests_of(operation).len(), all, "{:?}", destination.request_counts());
        is_complete(&destination);
    }
    let (source, destination, caller) = scene(LARGE, first("HeadObject", 2, slow_down), right);
    caller.run_ok(&COPY);
    // The last one is after the copy.
    assert_eq!((source.requests_of("HeadObject").len(), source.requests_of("GetObject").len()), (4, 4));
    is_complete(&destination);
}

fn is_complete(destination: &ScriptedServer) {
    assert_eq!(destination.requests_of("AbortMultipartUpload").len(), 0);
}

#[test]
fn access_denied_is_reported_and_not_retried() {
    for (size, operation, method) in [
        (1000, "PutObject", "PUT"),
        (1 << 20, "PutObject", "PUT"),
        (LARGE, "CreateMultipartUpload", "POST"),
        (LARGE, "UploadPart", "PUT"),
    ] {
        let denied = |_| Reply::Respond(ScriptedResponse::error(403, "AccessDenied", "Access Denied"));
        let (_source, destination, caller) = scene(size, right, first(operation, 100, denied));
        tells(
            &destination,
            &caller,
            &format!("{method} s3://bucket/x on THERE: Access Denied (AccessDenied)"),
        );
        // Other credentials may succeed later, so the upload can be resumed.
        is_resumable(&destination, &caller);
        let attempts = destination.requests_of(operation).len();
        assert!(
            attempts == 1 || operation == "UploadPart" && attempts <= 4,
            "{:?}",
            destination.request_counts()
        );
    }
}

#[test]
fn missing_source_fails_without_touching_the_destination() {
    let (source, destination, caller) = scene(1000, right, right);
    let ran = caller.run(&["cp", "s3://bucket/none", "other://bucket/x"]);
    let said = "tradewind: HEAD s3://bucket/none on HOST: there is no such object (404 Not Found)\n";
    assert_eq!((ran.err.as_str(), ran.status.code()), (said, Some(1)));
    assert_eq!(source.requests_of("HeadObject").len(), 1);
    assert_eq!(destination.requests().len(), 0);
}

/// A failure of one object does not affect the others.
#[test]
fn failure_of_one_object_does_not_stop_the_others() {
    let denied = |request: &Request, answer: ScriptedResponse| {
        if request.key == "b" && request.operation == "PutObject" {
            return Reply::Respond(ScriptedResponse::error(403, "AccessDenied", "Access Denied"));
        }
        Reply::Respond(answer)
    };
    let (source, destination, caller) = scene(1000, right, denied);
    ["a", "b", "c"].iter().for_each(|key| source.put_object(key, key.as_bytes().to_vec()));
    let ran = caller.run(&["cp", "-r", "s3://bucket", "other://bucket"]);
    assert_eq!((ran.err.lines().count(), ran.status.code()), (1, Some(1)), "{}", ran.err);
    for (key, held) in
        [("a", Some(b"a".to_vec())), ("b", None), ("c", Some(b"c".to_vec())), ("x", Some(content(1, 1000)))]
    {
        assert_eq!(destination.object(key), held, "{key}");
    }
}

/// After SIGTERM or SIGKILL, parts at the destination are not copied again.
#[test]
fn interrupted_copy_resumes() {
    for signal in [Signal::TERM, Signal::KILL] {
        let is_held = Arc::new(AtomicBool::new(true));
        let holds = is_held.clone();
        // The second part stalls; the others arrive.
        let held = move |request: &Request, answer: ScriptedResponse| {
            if holds.load(Ordering::Relaxed) && request.header("range").starts_with("bytes=5242880-") {
                return Reply::Stalled(answer, 1 << 20);
            }
            Reply::Respond(answer)
        };
        let (source, destination, caller) = scene(LARGE, held, right);
        let running = caller.spawn(&COPY);
        source.wait_until_stalled(1);
        let journals = caller.path("home/.cache/tradewind");
        let lines = || {
            let journal = std::fs::read_dir(&journals).ok()?.next()?.unwrap().path();
            Some(std::fs::read_to_string(journal).unwrap().lines().count())
        };
        // A line each for the owner and the upload, and three parts.
        eventually("the other parts are recorded", || lines() == Some(5));
        running.signal(signal);
        let ended = running.wait_for_output();
        assert!(!ended.status.success(), "{}", ended.err);
        assert_eq!(destination.object("x"), None);
        assert_eq!(destination.requests_of("UploadPart").len(), 3, "{:?}", destination.request_counts());
        is_held.store(false, Ordering::Relaxed);
        caller.run_ok(&COPY);
        assert!(destination.object("x").unwrap() == content(1, LARGE));
        assert_eq!(destination.requests_of("UploadPart").len(), 4, "{:?}", destination.request_counts());
        assert_eq!(destination.requests_of("CreateMultipartUpload").len(), 1);
        assert_eq!(std::fs::read_dir(&journals).unwrap().count(), 0, "the journal is removed");
    }
}

/// A copy within one store is server-side, unless the store has no copies.
#[test]
fn copy_within_a_store_without_copies_is_relayed() {
    // The scripted server answers 501 to CopyObject.
    let (source, destination, caller) = scene(1000, right, right);
    caller.run_ok(&["cp", "s3://bucket/x", "s3://bucket/y"]);
    assert!(source.object("y").unwrap() == content(1, 1000));
    assert_eq!(source.requests_of("CopyObject").len(), 1);
    assert_eq!((source.requests_of("GetObject").len(), source.requests_of("PutObject").len()), (1, 1));
    assert!(destination.requests().is_empty());
}
