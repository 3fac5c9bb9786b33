//! Bundles over a faulty store: single parts and ranges are retried, and files that change while they are packed are
//! excluded.

use std::fs;
use std::io::Write as _;
use std::process::Command;

use rustix::process::Signal;

use super::{content, files, refusal, scene, scene_with};
use crate::support::command_runner::CommandRunner;
use crate::support::scripted_server::{Reply, Request, ScriptedResponse, ScriptedServer};

/// Packs with the smallest parts that S3 allows, and without progress messages.
const PACK: [&str; 7] = ["cp", "--bundle", "--quiet", "--chunk-size", "5MiB", "here", "s3://bucket/x.tar"];
const UNPACK: [&str; 5] = ["cp", "--bundle", "--quiet", "s3://bucket/x.tar", "there"];

/// Files of 12 MiB together, in three parts, below `here`.
fn write_tree(caller: &CommandRunner) {
    for n in 0..48 {
        caller.write(format!("here/{n:02}"), content(n, 256 << 10));
    }
}

fn is_same(caller: &CommandRunner, there: &str) -> bool {
    let mut names: Vec<_> =
        fs::read_dir(caller.path("here")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let read = |directory: &str, name| fs::read(caller.path(directory).join(name)).unwrap();
    fs::read_dir(caller.path(there)).unwrap().count() == names.len()
        && names.iter().all(|name| read("here", name) == read(there, name))
}

fn bundle_of(server: &ScriptedServer, caller: &CommandRunner) -> Vec<u8> {
    caller.run_ok(&PACK);
    server.object("x.tar").unwrap()
}

#[test]
fn only_the_failed_part_of_a_bundle_is_sent_again() {
    let faults: [fn(ScriptedResponse) -> Reply; 3] = [
        |_| refusal(503, "SlowDown", "Please reduce your request rate."),
        |_| refusal(500, "InternalError", "We encountered an internal error. Please try again."),
        |_| Reply::Reset,
    ];
    for fault in faults {
        let (server, caller) = scene(move |request, answer| {
            let is_second = request.query.get("partNumber").is_some_and(|number| number == "2");
            // Parts are sent concurrently, so this covers at least its first attempt.
            if is_second && request.number <= 3 { fault(answer) } else { Reply::Respond(answer) }
        });
        write_tree(&caller);
        caller.run_ok(&PACK);
        let mut sent: Vec<String> =
            server.requests_of("UploadPart").iter().map(|part| part.query["partNumber"].clone()).collect();
        sent.sort();
        let (retried, others): (Vec<_>, Vec<_>) = sent.into_iter().partition(|number| number == "2");
        assert!(retried.len() > 1 && others == ["1", "3"], "{retried:?} {others:?}");
        assert_eq!(server.requests_of("CompleteMultipartUpload").len(), 1);
        caller.run_ok(&UNPACK);
        assert!(is_same(&caller, "there"));
    }
}

#[test]
fn bundle_that_cannot_be_stored_is_reported() {
    // An upload that other credentials could resume is kept; after other errors it is aborted.
    for (status, code, message, aborts) in
        [(403, "AccessDenied", "Access Denied", 0), (400, "InvalidRequest", "Not so", 1)]
    {
        let (server, caller) = scene_with("UploadPart", usize::MAX, move |_| refusal(status, code, message));
        write_tree(&caller);
        let ran = caller.run(&PACK);
        assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 1), "{}", ran.err);
        assert!(ran.err.contains("s3://bucket/x.tar") && ran.err.contains(message), "{}", ran.err);
        assert_eq!(server.requests_of("AbortMultipartUpload").len(), aborts, "{code}");
        assert!(server.object("x.tar").is_none());
    }

    // A small bundle is stored with one request, which is safe to retry.
    let (server, caller) = scene_with("PutObject", 2, |_| Reply::Reset);
    caller.write("here/small", "x");
    caller.run_ok(&PACK);
    // After an unknown outcome, the versioning of the bucket decides.
    assert_eq!(server.request_counts(), [("GetBucketVersioning", 2), ("PutObject", 3)]);
}

#[test]
fn file_that_changes_while_packed_is_excluded() {
    // Too large to buffer, so that parts of it are sent before its end is read.
    const SIZE: usize = 40 << 20;
    type Change = fn(&mut fs::File);
    let changes: [Change; 2] = [|file| file.write_all(b"more").unwrap(), |file| file.set_len(1000).unwrap()];
    for change in changes {
        let path = std::sync::Arc::new(std::sync::Mutex::new(None::<std::path::PathBuf>));
        let changed = path.clone();
        let (server, caller) = scene(move |request, answer| {
            if request.operation == "UploadPart" && request.number == 2 {
                let path = changed.lock().unwrap().clone().unwrap();
                change(&mut fs::File::options().append(true).open(path).unwrap());
            }
            Reply::Respond(answer)
        });
        write_tree(&caller);
        caller.write("here/24-large", content(99, SIZE));
        *path.lock().unwrap() = Some(caller.path("here/24-large"));
        let why = "here/24-large changed while it was read";
        caller.run_failing(&PACK, &[why]);
        fs::remove_file(caller.path("here/24-large")).unwrap();

        // Its bytes are not in the object, and the members after it are.
        caller.run_ok(&UNPACK);
        assert!(is_same(&caller, "there"));
        caller.write("x.tar", server.object("x.tar").unwrap());
        fs::create_dir(caller.path("untarred")).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("xf").arg(caller.path("x.tar")).arg("-C").arg(caller.path("untarred"));
        let ran = tar.output().unwrap();
        assert!(ran.status.success() && ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
        assert!(is_same(&caller, "untarred"));
    }
}

#[test]
fn interrupted_and_damaged_members_are_fetched_again() {
    let (server, caller) = scene(|_, answer| Reply::Respond(answer));
    write_tree(&caller);
    caller.write("here/large", content(77, 3 << 20));
    let bundle = bundle_of(&server, &caller);
    type Fault = fn(ScriptedResponse) -> Reply;
    let faults: [(&str, Fault); 4] = [
        ("torn", |answer| Reply::Truncated(answer, 10_000)),
        ("damaged", |answer| Reply::Respond(answer.with_flipped_bit(5000))),
        ("reset", |_| Reply::Reset),
        ("busy", |_| refusal(503, "SlowDown", "Please reduce your request rate.")),
    ];
    for (name, fault) in faults {
        for member in [None, Some(("07", 7, 256 << 10)), Some(("large", 77, 3 << 20))] {
            let (server, other) = scene(move |request: &Request, answer| {
                // The first request reads the index, which has a checksum of its own.
                if matches!(request.number, 2 | 4) { fault(answer) } else { Reply::Respond(answer) }
            });
            server.put_object("x.tar", bundle.clone());
            match member {
                None => {
                    other.run_ok(&UNPACK);
                    fs::rename(other.path("there"), caller.path("there")).unwrap();
                    assert!(is_same(&caller, "there"), "{name}");
                    fs::remove_dir_all(caller.path("there")).unwrap();
                }
                Some((member, id, size)) => {
                    other.run_ok(&["cp", "s3://bucket/x.tar", "--member", member, "there"]);
                    assert!(fs::read(other.path("there")).unwrap() == content(id, size), "{name}");
                    assert!(server.requests_of("GetObject").len() <= 5, "{:?}", server.request_counts());
                }
            }
        }
    }
}

#[test]
fn bucket_wide_failure_of_a_bundle_is_reported_once() {
    let no_key = || refusal(403, "InvalidAccessKeyId", "The key does not exist.");
    let stopped_early = "tradewind: stopping: every remaining item would fail the same way";
    let once = |caller: &CommandRunner, command: &[&str], is_left: bool| {
        let ran = caller.run(command);
        let lines = 1 + usize::from(is_left);
        assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), lines), "{}", ran.err);
        assert!(ran.err.contains("(InvalidAccessKeyId)"), "{}", ran.err);
        assert_eq!(ran.err.contains(stopped_early), is_left, "{}", ran.err);
    };
    let (server, caller) = scene(|_, answer| Reply::Respond(answer));
    write_tree(&caller);
    let bundle = bundle_of(&server, &caller);
    let (server, caller) = scene(move |request, answer| {
        // Only the request for the index succeeds.
        if request.operation == "GetObject" && request.number == 1 {
            Reply::Respond(answer)
        } else {
            no_key()
        }
    });
    server.put_object("x.tar", bundle);
    once(&caller, &UNPACK, true);
    assert!(files(&caller).is_empty());
    write_tree(&caller);
    once(&caller, &PACK, false);
}

#[test]
fn single_member_takes_two_requests() {
    let (server, caller) = scene(|_, answer| Reply::Respond(answer));
    write_tree(&caller);
    bundle_of(&server, &caller);
    let ran = caller.run(&["cat", "s3://bucket/x.tar", "--member", "31"]);
    assert!(ran.out == content(31, 256 << 10), "{}", ran.err);
    let requests = server.requests_of("GetObject");
    assert_eq!(requests.len(), 2, "{:?}", server.request_counts());
    assert_eq!(requests[0].header("range"), "bytes=-65536");
    // Pinned to the version of the index.
    assert!(!requests[1].header("if-match").is_empty());
}

#[test]
fn replaced_bundle_is_not_mixed_with_the_new_one() {
    let (server, caller) = scene(|request, answer| {
        if request.operation == "GetObject" && request.number > 1 {
            return refusal(412, "PreconditionFailed", "At least one precondition did not hold.");
        }
        Reply::Respond(answer)
    });
    caller.write("here/a", content(1, 100_000));
    bundle_of(&server, &caller);
    caller.run_failing(&UNPACK, &["a: \"x.tar\" changed while it was read"]);
    assert_eq!(files(&caller), ["here/a"]);
}

#[test]
fn interrupted_packing_and_unpacking_leave_no_partial_file() {
    let (server, caller) = scene(|request, answer| {
        if request.operation == "UploadPart" && request.number == 2 {
            return Reply::Silence;
        }
        Reply::Respond(answer)
    });
    write_tree(&caller);
    let running = caller.spawn(&PACK);
    server.wait_until_stalled(1);
    running.signal(Signal::INT);
    let ran = running.wait_for_output();
    assert_eq!((ran.status.code(), ran.err.as_str()), (Some(130), "tradewind: stopped by SIGINT\n"));
    assert_eq!(server.object("x.tar"), None);
    assert!(server.requests_of("AbortMultipartUpload").is_empty(), "the upload is kept for the next run");

    let bundle = {
        let (server, caller) = scene(|_, answer| Reply::Respond(answer));
        write_tree(&caller);
        bundle_of(&server, &caller)
    };
    let (server, caller) =
        scene(
            |request, answer| {
                if request.number == 3 { Reply::Stalled(answer, 1000) } else { Reply::Respond(answer) }
            },
        );
    server.put_object("x.tar", bundle);
    let running = caller.spawn(&UNPACK);
    server.wait_until_stalled(1);
    running.signal(Signal::TERM);
    assert_eq!(running.wait_for_output().status.code(), Some(143));
    // Every file that exists is complete.
    for name in files(&caller) {
        let id = name.strip_prefix("there/").unwrap().parse().unwrap();
        assert!(fs::read(caller.path(&name)).unwrap() == content(id, 256 << 10), "{name}");
    }
}
