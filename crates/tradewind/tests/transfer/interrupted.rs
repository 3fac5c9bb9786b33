//! Interrupted transfers: no partial file is ever visible under its final name, and large transfers resume.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{content, names};
use crate::support::command_runner::{CommandOutput, CommandRunner};
use crate::support::eventually;
use crate::support::scripted_server::{BUCKET, Reply, Request, ScriptedResponse, ScriptedServer};

const SIZE: usize = 3 << 20;

/// A server that stalls in the middle of the body for requests that `halts` selects.
fn stalling_server(
    halts: impl Fn(&Request) -> bool + Send + Sync + 'static,
) -> (ScriptedServer, CommandRunner) {
    let server = ScriptedServer::start(move |request: &Request, answer: ScriptedResponse| {
        if halts(request) { Reply::Stalled(answer, SIZE / 2) } else { Reply::Respond(answer) }
    });
    let caller = CommandRunner::new(server.address);
    (server, caller)
}

/// The suffix of the names of unfinished files.
const UNFINISHED: &str = ".tradewind-part";

/// The names below the directory, except unfinished files, which have a name on some file systems.
fn finished(caller: &CommandRunner) -> Vec<String> {
    names(caller.directory_path()).into_iter().filter(|name| !name.ends_with(UNFINISHED)).collect()
}

/// The journal files.
fn journals(caller: &CommandRunner) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(caller.path("home/.cache/tradewind")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Interrupts a download of two objects while one of them stalls.
fn interrupt_download(signal: Signal) -> (CommandRunner, CommandOutput) {
    let (server, caller) = stalling_server(|request| request.key == "b" && request.operation == "GetObject");
    server.put_object("a", b"whole".to_vec());
    server.put_object("b", content(1, SIZE));
    caller.write("there/b", "as it was");
    let running = caller.spawn(&["cp", "-r", &format!("s3://{BUCKET}"), "there"]);
    server.wait_until_stalled(1);
    eventually("the other object is complete", || caller.path("there/a").exists());
    let signalled = Instant::now();
    running.signal(signal);
    let ran = running.wait_for_output();
    assert!(signalled.elapsed() < Duration::from_secs(5), "it took {:?}", signalled.elapsed());
    assert_eq!(fs::read(caller.path("there/b")).unwrap(), b"as it was");
    (caller, ran)
}

#[test]
fn interrupted_download_leaves_nothing_behind() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let (caller, ran) = interrupt_download(signal);
        assert_eq!(ran.status.code(), Some(status), "{ran:?}");
        assert_eq!(names(caller.directory_path()), ["there/a", "there/b"]);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
}

#[test]
fn killed_download_leaves_nothing_under_its_final_name() {
    let (caller, _) = interrupt_download(Signal::KILL);
    assert_eq!(finished(&caller), ["there/a", "there/b"]);
}

/// The offsets of the chunks of a large object, and its size.
const CHUNKS: [u64; 3] = [0, 8 << 20, 16 << 20];
const LARGE: usize = 20 << 20;
const DOWN: [&str; 5] = ["cp", "--chunk-size", "8MiB", "s3://bucket/x", "there/x"];

/// Interrupts a download of a large object when all but its last chunk is stored.
fn interrupt_before_last_chunk(signal: Signal) -> (ScriptedServer, CommandRunner, PathBuf) {
    let last = format!("bytes={}-", CHUNKS[2]);
    let (server, caller) = stalling_server(move |request| {
        request.number <= CHUNKS.len() && request.header("range").starts_with(&last)
    });
    server.put_object("x", content(1, LARGE));
    let running = caller.spawn(&DOWN);
    server.wait_until_stalled(1);
    let journal_text = || fs::read_to_string(journals(&caller).pop()?).ok();
    eventually("two chunks are there", || {
        journal_text().is_some_and(|text| text.matches("{\"Chunk\":").count() == 2)
    });
    running.signal(signal);
    running.wait_for_output();
    let left = names(&caller.path("there"));
    let [unfinished] = left.as_slice() else { panic!("after {signal:?}: {left:?}") };
    assert!(unfinished.ends_with(UNFINISHED), "no file has the final name: {unfinished}");
    let unfinished = caller.path("there").join(unfinished);
    (server, caller, unfinished)
}

/// Completes the download; returns the sorted offsets of the chunks it requested.
fn resume(server: &ScriptedServer, caller: &CommandRunner) -> Vec<u64> {
    let before = server.requests_of("GetObject").len();
    caller.run_ok(&DOWN);
    assert_eq!(names(&caller.path("there")), ["x"]);
    assert!(fs::read(caller.path("there/x")).unwrap() == server.object("x").unwrap());
    assert_eq!(journals(caller), [] as [PathBuf; 0], "no journal is left");
    let first_byte = |request: &Request| {
        let range = request.header("range").trim_start_matches("bytes=");
        range.split_once('-').unwrap().0.parse().unwrap()
    };
    let mut requested: Vec<u64> = server.requests_of("GetObject")[before..].iter().map(first_byte).collect();
    requested.sort_unstable();
    requested
}

#[test]
fn interrupted_large_download_resumes() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let (server, caller, unfinished) = interrupt_before_last_chunk(signal);
        let unfinished = fs::metadata(unfinished).unwrap().ino();
        // The response to the first chunk states the version, so it is always requested.
        assert_eq!(resume(&server, &caller), [CHUNKS[0], CHUNKS[2]], "after {signal:?}");
        assert_eq!(
            fs::metadata(caller.path("there/x")).unwrap().ino(),
            unfinished,
            "the unfinished file is resumed"
        );
    }
}

/// Ranges are a function of the size alone, so a resumed transfer finds those of the earlier one.
#[test]
fn download_with_ranges_of_different_sizes_resumes() {
    const DOWN: [&str; 3] = ["cp", "s3://bucket/x", "there/x"];
    // Ranges of 4 MiB, and of 2 MiB towards the end.
    let (size, last) = (40 << 20, 38 << 20);
    let (server, caller) = stalling_server(move |request| {
        request.number <= 19 && request.header("range").starts_with(&format!("bytes={last}-"))
    });
    server.put_object("x", content(1, size));
    let running = caller.spawn(&DOWN);
    server.wait_until_stalled(1);
    let journal_text = || fs::read_to_string(journals(&caller).pop()?).ok();
    eventually("all but the last are there", || {
        journal_text().is_some_and(|text| text.matches("{\"Chunk\":").count() == 18)
    });
    running.signal(Signal::KILL);
    running.wait_for_output();
    let before = server.requests_of("GetObject").len();
    caller.run_ok(&DOWN);
    assert!(fs::read(caller.path("there/x")).unwrap() == server.object("x").unwrap());
    let mut requested: Vec<String> = server.requests_of("GetObject")[before..]
        .iter()
        .map(|request| request.header("range").to_owned())
        .collect();
    requested.sort();
    assert_eq!(requested, ["bytes=0-4194303", "bytes=39845888-41943039"]);
}

/// Recorded chunks are verified against the file.
#[test]
fn damaged_recorded_chunk_is_fetched_again() {
    let (server, caller, unfinished) = interrupt_before_last_chunk(Signal::KILL);
    fs::File::options().write(true).open(unfinished).unwrap().write_all_at(b"?", CHUNKS[1] + 1).unwrap();
    assert_eq!(resume(&server, &caller), CHUNKS);
}

#[test]
fn unfinished_file_of_another_version_is_discarded() {
    let (server, caller, unfinished) = interrupt_before_last_chunk(Signal::INT);
    server.put_object("x", content(2, LARGE));
    assert_eq!(resume(&server, &caller), CHUNKS);
    assert!(!unfinished.exists());
}

#[test]
fn interrupted_upload_keeps_its_parts_and_journal() {
    for signal in [Signal::INT, Signal::TERM] {
        let server =
            ScriptedServer::start(|request: &Request, answer: ScriptedResponse| match request.operation {
                // The second part never gets a response.
                "UploadPart" if request.number == 2 => Reply::Silence,
                _ => Reply::Respond(answer),
            });
        let caller = CommandRunner::new(server.address);
        caller.write("here", content(1, 15 << 20));
        let running = caller.spawn(&["cp", "--chunk-size", "5MiB", "here", &format!("s3://{BUCKET}/x")]);
        server.wait_until_stalled(1);
        running.signal(signal);
        let ran = running.wait_for_output();
        assert!(matches!(ran.status.code(), Some(130 | 143)), "{ran:?}");
        assert!(server.object("x").is_none());
        assert!(server.requests_of("CompleteMultipartUpload").is_empty());
        assert!(server.requests_of("AbortMultipartUpload").is_empty(), "{:?}", server.request_counts());
        assert_eq!(journals(&caller).len(), 1, "the upload is recorded");
    }
}

/// Expired credentials say nothing about the upload, so it is not aborted.
#[test]
fn upload_survives_expired_credentials() {
    let server = ScriptedServer::start(|request: &Request, answer: ScriptedResponse| {
        match (request.operation, request.number) {
            ("UploadPart", 2) => Reply::Silence,
            ("ListParts", 1) => Reply::Respond(ScriptedResponse::error(
                400,
                "ExpiredToken",
                "The provided token has expired.",
            )),
            _ => Reply::Respond(answer),
        }
    });
    let caller = CommandRunner::new(server.address);
    caller.write("here", content(1, 15 << 20));
    let up = ["cp", "--quiet", "--chunk-size=5MiB", "here", &format!("s3://{BUCKET}/x")];
    let running = caller.spawn(&up);
    server.wait_until_stalled(1);
    eventually("the others are sent", || server.requests_of("UploadPart").len() == 3);
    running.signal(Signal::KILL);
    running.wait_for_output();
    assert_eq!(caller.run(&up).status.code(), Some(1));
    assert!(server.requests_of("AbortMultipartUpload").is_empty());
    caller.run_ok(&up);
    assert_eq!(server.requests_of("UploadPart").len(), 4, "the other parts are reused");
    assert!(server.object("x").unwrap() == content(1, 15 << 20));
}

/// A command that blocks on a full pipe can be interrupted.
#[test]
fn command_blocked_on_a_full_pipe_can_be_interrupted() {
    let server = ScriptedServer::start(|_, answer| Reply::Respond(answer));
    server.put_object("x", content(1, 16 << 20));
    let caller = CommandRunner::new(server.address);
    let running = caller.spawn_unread(&["cat", &format!("s3://{BUCKET}/x")]);
    eventually("the download has started", || server.requests_of("GetObject").len() > 1);
    std::thread::sleep(Duration::from_millis(100));
    let signalled = Instant::now();
    running.signal(Signal::INT);
    let ran = running.wait_for_output();
    assert!(signalled.elapsed() < Duration::from_secs(5), "it took {:?}", signalled.elapsed());
    assert!(!ran.status.success(), "{ran:?}");
}

#[test]
fn file_gets_its_name_only_when_complete() {
    let (server, caller) = stalling_server(|request| request.operation == "GetObject" && request.number == 1);
    let bytes = content(1, SIZE);
    server.put_object("x", bytes.clone());
    let running = caller.spawn(&["cp", &format!("s3://{BUCKET}/x"), "x"]);
    server.wait_until_stalled(1);
    assert!(!caller.path("x").exists());
    running.signal(Signal::KILL);
    running.wait_for_output();
    assert!(!caller.path("x").exists());
    caller.run_ok(&["cp", &format!("s3://{BUCKET}/x"), "x"]);
    assert!(fs::read(caller.path("x")).unwrap() == bytes);
}
