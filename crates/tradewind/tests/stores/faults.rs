//! Copies between two servers of which one answers wrongly, late or not at all: what may pass is tried again and costs
//! its part; otherwise nothing is at the destination, no upload is left there, and one line says why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use super::support::caller::{Caller, Ran};
use super::support::eventually;
use super::support::scripted::{Answer, Reply, Request, Scripted};
use super::{content, with_other};

/// In four parts.
const LARGE: usize = (15 << 20) + 1000;
const COPY: [&str; 5] = ["cp", "--chunk-size", "5MiB", "s3://bucket/x", "other://bucket/x"];

fn right(_: &Request, answer: Answer) -> Reply {
    Reply::Answer(answer)
}

/// An object of this size at the source, and nothing at the destination.
fn scene(
    size: usize,
    source: impl Fn(&Request, Answer) -> Reply + Send + Sync + 'static,
    destination: impl Fn(&Request, Answer) -> Reply + Send + Sync + 'static,
) -> (Scripted, Scripted, Caller) {
    let (source, destination) = (Scripted::start(source), Scripted::start(destination));
    source.lay("x", content(1, size));
    let caller = with_other(Caller::new(source.address), destination.address);
    (source, destination, caller)
}

/// A fault of the first so many requests of an operation.
fn first(
    operation: &'static str,
    times: usize,
    fault: impl Fn(Answer) -> Reply + Send + Sync + 'static,
) -> impl Fn(&Request, Answer) -> Reply + Send + Sync + 'static {
    move |request, answer| {
        if request.operation == operation && request.number <= times {
            fault(answer)
        } else {
            Reply::Answer(answer)
        }
    }
}

fn slow_down(_: Answer) -> Reply {
    Reply::Answer(Answer::refusal(503, "SlowDown", "Please reduce your request rate."))
}

/// Nothing is at the destination, and nobody will find half of an upload there.
fn is_untouched(destination: &Scripted) {
    assert_eq!(destination.object("x"), None);
    let (begun, aborted) = (destination.of("CreateMultipartUpload"), destination.of("AbortMultipartUpload"));
    assert_eq!(begun.len(), aborted.len(), "{:?}", destination.counts());
}

/// Nothing is at the destination but an upload that may go on, or nothing where none was begun.
fn is_remembered(destination: &Scripted, caller: &Caller) {
    assert_eq!(destination.object("x"), None);
    assert_eq!(destination.of("AbortMultipartUpload").len(), 0, "{:?}", destination.counts());
    let uploads = destination.of("UploadPart").len().min(1);
    let journals = std::fs::read_dir(caller.path("home/.cache/tradewind")).map_or(0, Iterator::count);
    assert!(uploads <= journals && journals <= destination.of("CreateMultipartUpload").len());
}

/// The copy fails with this one line, in which the destination is called `THERE`.
fn tells(destination: &Scripted, caller: &Caller, said: &str) {
    let Ran { status, err, .. } = caller.run(&COPY);
    let err = err.replace(&destination.address.to_string(), "THERE");
    assert_eq!((err, status.code()), (format!("tradewind: {said}\n"), Some(1)));
}

fn fails(destination: &Scripted, caller: &Caller, said: &str) {
    tells(destination, caller, said);
    is_untouched(destination);
}

#[test]
fn a_source_that_breaks_off_is_read_again() {
    for (size, gets, puts) in [(1000, 2, ("PutObject", 1)), (LARGE, 5, ("UploadPart", 4))] {
        let torn = |answer: Answer| Reply::Torn(answer, 600);
        let (source, destination, caller) = scene(size, first("GetObject", 1, torn), right);
        caller.done(&COPY);
        assert!(destination.object("x").unwrap() == content(1, size));
        assert_eq!(source.of("GetObject").len(), gets, "{:?}", source.counts());
        assert_eq!(destination.of(puts.0).len(), puts.1, "{:?}", destination.counts());
    }
}

#[test]
fn a_source_that_always_breaks_off_is_given_up() {
    for size in [1000, LARGE] {
        let (source, destination, caller) =
            scene(size, first("GetObject", 100, |a| Reply::Torn(a, 600)), right);
        let caller = caller.with("AWS_MAX_ATTEMPTS", "2");
        let said = "x: reading the source failed: the store broke off in the middle of an answer";
        tells(&destination, &caller, said);
        is_remembered(&destination, &caller);
        assert!(source.of("GetObject").len() <= 8, "{:?}", source.counts());
    }
}

#[test]
fn a_source_that_changes_meanwhile() {
    let changed = |request: &Request, answer: Answer| {
        if request.operation == "GetObject" && !request.header("range").starts_with("bytes=0-") {
            return Reply::Answer(Answer::refusal(412, "PreconditionFailed", "It did not hold."));
        }
        Reply::Answer(answer)
    };
    let (source, destination, caller) = scene(LARGE, changed, right);
    fails(&destination, &caller, "\"x\" changed while it was read");
    let gets = source.of("GetObject");
    assert!(gets.iter().all(|request| !request.header("if-match").is_empty()));
    assert!(gets.len() <= 4, "it is not asked for again: {:?}", source.counts());
}

#[test]
fn damage_on_the_way_is_found() {
    let (_source, destination, caller) =
        scene(1000, first("GetObject", 1, |a| Reply::Answer(a.damaged(500))), right);
    caller.done(&COPY);
    assert_eq!(destination.object("x").unwrap(), content(1, 1000), "it is read again");
    // Which part it is in nobody knows.
    let (_source, destination, caller) =
        scene(LARGE, first("GetObject", 1, |a| Reply::Answer(a.damaged(500))), right);
    let Ran { status, err, .. } = caller.run(&COPY);
    assert!(err.starts_with("tradewind: x: what arrived has the checksum CRC64NVME:"), "{err}");
    assert_eq!((status.code(), err.lines().count()), (Some(1), 1));
    is_untouched(&destination);
}

#[test]
fn a_destination_that_is_busy_is_asked_again() {
    for (size, operation, all) in
        [(1000, "PutObject", 3), (1 << 20, "PutObject", 3), (LARGE, "UploadPart", 6)]
    {
        let (_source, destination, caller) = scene(size, right, first(operation, 2, slow_down));
        caller.done(&COPY);
        assert!(destination.object("x").unwrap() == content(1, size));
        assert_eq!(destination.of(operation).len(), all, "{:?}", destination.counts());
        is_complete(&destination);
    }
    let (source, destination, caller) = scene(LARGE, first("HeadObject", 2, slow_down), right);
    caller.done(&COPY);
    assert_eq!((source.of("HeadObject").len(), source.of("GetObject").len()), (3, 4));
    is_complete(&destination);
}

fn is_complete(destination: &Scripted) {
    assert_eq!(destination.of("AbortMultipartUpload").len(), 0);
}

#[test]
fn a_destination_that_denies_is_told_of_and_not_asked_again() {
    for (size, operation, method) in [
        (1000, "PutObject", "PUT"),
        (1 << 20, "PutObject", "PUT"),
        (LARGE, "CreateMultipartUpload", "POST"),
        (LARGE, "UploadPart", "PUT"),
    ] {
        let denied = |_| Reply::Answer(Answer::refusal(403, "AccessDenied", "Access Denied"));
        let (_source, destination, caller) = scene(size, right, first(operation, 100, denied));
        tells(
            &destination,
            &caller,
            &format!("{method} s3://bucket/x on THERE: Access Denied (AccessDenied)"),
        );
        // Keys may be good another time.
        is_remembered(&destination, &caller);
        let asked = destination.of(operation).len();
        assert!(asked == 1 || operation == "UploadPart" && asked <= 4, "{:?}", destination.counts());
    }
}

#[test]
fn what_is_not_there() {
    let (source, destination, caller) = scene(1000, right, right);
    let ran = caller.run(&["cp", "s3://bucket/none", "other://bucket/x"]);
    let said = "tradewind: HEAD s3://bucket/none on HOST: there is no such object (404 Not Found)\n";
    assert_eq!((ran.err.as_str(), ran.status.code()), (said, Some(1)));
    assert_eq!(source.of("HeadObject").len(), 1);
    assert_eq!(destination.seen().len(), 0);
}

/// One of many that fails does not keep the others back.
#[test]
fn one_of_many() {
    let denied = |request: &Request, answer: Answer| {
        if request.key == "b" && request.operation == "PutObject" {
            return Reply::Answer(Answer::refusal(403, "AccessDenied", "Access Denied"));
        }
        Reply::Answer(answer)
    };
    let (source, destination, caller) = scene(1000, right, denied);
    ["a", "b", "c"].iter().for_each(|key| source.lay(key, key.as_bytes().to_vec()));
    let ran = caller.run(&["cp", "-r", "s3://bucket", "other://bucket"]);
    assert_eq!((ran.err.lines().count(), ran.status.code()), (1, Some(1)), "{}", ran.err);
    for (key, held) in
        [("a", Some(b"a".to_vec())), ("b", None), ("c", Some(b"c".to_vec())), ("x", Some(content(1, 1000)))]
    {
        assert_eq!(destination.object(key), held, "{key}");
    }
}

/// Stopped or killed: what is at the destination is not copied again.
#[test]
fn what_is_cut_off_goes_on_another_time() {
    for signal in [Signal::TERM, Signal::KILL] {
        let is_held = Arc::new(AtomicBool::new(true));
        let holds = is_held.clone();
        // The second part breaks off; the others come.
        let held = move |request: &Request, answer: Answer| {
            if holds.load(Ordering::Relaxed) && request.header("range").starts_with("bytes=5242880-") {
                return Reply::Held(answer, 1 << 20);
            }
            Reply::Answer(answer)
        };
        let (source, destination, caller) = scene(LARGE, held, right);
        let running = caller.begin(&COPY);
        source.wait_until_held(1);
        let journals = caller.path("home/.cache/tradewind");
        let lines = || {
            let journal = std::fs::read_dir(&journals).ok()?.next()?.unwrap().path();
            Some(std::fs::read_to_string(journal).unwrap().lines().count())
        };
        // Whose it is, what was begun, and three parts.
        eventually("the other parts are remembered", || lines() == Some(5));
        running.signal(signal);
        let ended = running.end();
        assert!(!ended.status.success(), "{}", ended.err);
        assert_eq!(destination.object("x"), None);
        assert_eq!(destination.of("UploadPart").len(), 3, "{:?}", destination.counts());
        is_held.store(false, Ordering::Relaxed);
        caller.done(&COPY);
        assert!(destination.object("x").unwrap() == content(1, LARGE));
        assert_eq!(destination.of("UploadPart").len(), 4, "{:?}", destination.counts());
        assert_eq!(destination.of("CreateMultipartUpload").len(), 1);
        assert_eq!(std::fs::read_dir(&journals).unwrap().count(), 0, "nothing is remembered");
    }
}

/// Within one store nothing comes through here.
#[test]
fn within_a_store_the_store_copies() {
    let (source, destination, caller) = scene(1000, right, right);
    let ran = caller.run(&["cp", "s3://bucket/x", "s3://bucket/y"]);
    // This server knows of no copies.
    assert!(ran.err.contains("(NotImplemented)"), "{}", ran.err);
    assert_eq!(source.of("CopyObject").len(), 1);
    assert!(source.of("GetObject").is_empty() && destination.seen().is_empty());
}
