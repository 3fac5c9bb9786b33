//! Nobody ever sees half a file: not while it comes, not where it cannot come, and not after the command was stopped
//! in the middle.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{content, names};
use crate::support::caller::{Caller, Ran};
use crate::support::eventually;
use crate::support::scripted::{Answer, BUCKET, Reply, Request, Scripted};

const SIZE: usize = 3 << 20;

/// A server that stops in the middle of some objects' bytes.
fn halting(halts: impl Fn(&Request) -> bool + Send + Sync + 'static) -> (Scripted, Caller) {
    let server =
        Scripted::start(
            move |request: &Request, answer: Answer| {
                if halts(request) { Reply::Held(answer, SIZE / 2) } else { Reply::Answer(answer) }
            },
        );
    let caller = Caller::new(server.address);
    (server, caller)
}

/// What the name of an unfinished file ends with, that has one.
const UNFINISHED: &str = ".tradewind-part";

/// The names below the directory, without those of unfinished files, which some file systems cannot do without.
fn finished(caller: &Caller) -> Vec<String> {
    names(caller.root()).into_iter().filter(|name| !name.ends_with(UNFINISHED)).collect()
}

/// The files that remember transfers.
fn journals(caller: &Caller) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(caller.path("home/.cache/tradewind")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Copies down what has one object that halts, and stops it there.
fn stopped(signal: Signal) -> (Caller, Ran) {
    let (server, caller) = halting(|request| request.key == "b" && request.operation == "GetObject");
    server.lay("a", b"whole".to_vec());
    server.lay("b", content(1, SIZE));
    caller.write("there/b", "as it was");
    let running = caller.begin(&["cp", "-r", &format!("s3://{BUCKET}"), "there"]);
    server.wait_until_held(1);
    eventually("the other one is whole", || caller.path("there/a").exists());
    let asked = Instant::now();
    running.signal(signal);
    let ran = running.end();
    assert!(asked.elapsed() < Duration::from_secs(5), "it took {:?}", asked.elapsed());
    assert_eq!(fs::read(caller.path("there/b")).unwrap(), b"as it was");
    (caller, ran)
}

#[test]
fn a_download_that_is_stopped_leaves_nothing_behind() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let (caller, ran) = stopped(signal);
        assert_eq!(ran.status.code(), Some(status), "{ran:?}");
        assert_eq!(names(caller.root()), ["there/a", "there/b"]);
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    }
}

#[test]
fn a_download_that_is_killed_leaves_nothing_under_its_name() {
    let (caller, _) = stopped(Signal::KILL);
    assert_eq!(finished(&caller), ["there/a", "there/b"]);
}

/// Where the chunks of a large object begin, and its size.
const CHUNKS: [u64; 3] = [0, 8 << 20, 16 << 20];
const LARGE: usize = 20 << 20;
const DOWN: [&str; 5] = ["cp", "--chunk-size", "8MiB", "s3://bucket/x", "there/x"];

/// A download of a large object that was stopped when all but its last chunk was there.
fn stopped_before_the_last_chunk(signal: Signal) -> (Scripted, Caller, PathBuf) {
    let last = format!("bytes={}-", CHUNKS[2]);
    let (server, caller) =
        halting(move |request| request.number <= CHUNKS.len() && request.header("range").starts_with(&last));
    server.lay("x", content(1, LARGE));
    let running = caller.begin(&DOWN);
    server.wait_until_held(1);
    let remembered = || fs::read_to_string(journals(&caller).pop()?).ok();
    eventually("two chunks are there", || {
        remembered().is_some_and(|text| text.matches("{\"Chunk\":").count() == 2)
    });
    running.signal(signal);
    running.end();
    let left = names(&caller.path("there"));
    let [unfinished] = left.as_slice() else { panic!("after {signal:?}: {left:?}") };
    assert!(unfinished.ends_with(UNFINISHED), "nothing has the object's name: {unfinished}");
    let unfinished = caller.path("there").join(unfinished);
    (server, caller, unfinished)
}

/// Ends it; answers where the chunks began that it asked for.
fn gone_on_with(server: &Scripted, caller: &Caller) -> Vec<u64> {
    let before = server.of("GetObject").len();
    caller.done(&DOWN);
    assert_eq!(names(&caller.path("there")), ["x"]);
    assert!(fs::read(caller.path("there/x")).unwrap() == server.object("x").unwrap());
    assert_eq!(journals(caller), [] as [PathBuf; 0], "nothing is to be remembered");
    let first_byte = |request: &Request| {
        let range = request.header("range").trim_start_matches("bytes=");
        range.split_once('-').unwrap().0.parse().unwrap()
    };
    let mut asked: Vec<u64> = server.of("GetObject")[before..].iter().map(first_byte).collect();
    asked.sort_unstable();
    asked
}

#[test]
fn a_large_download_that_is_stopped_goes_on_another_time() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let (server, caller, unfinished) = stopped_before_the_last_chunk(signal);
        let unfinished = fs::metadata(unfinished).unwrap().ino();
        // Of which version it is, the first chunk's answer tells.
        assert_eq!(gone_on_with(&server, &caller), [CHUNKS[0], CHUNKS[2]], "after {signal:?}");
        assert_eq!(fs::metadata(caller.path("there/x")).unwrap().ino(), unfinished, "it is the same file");
    }
}

/// Ranges follow from the size alone: those of an earlier transfer are known by them.
#[test]
fn ranges_that_differ_in_size_are_gone_on_with() {
    const DOWN: [&str; 3] = ["cp", "s3://bucket/x", "there/x"];
    // 4 MiB, and what is left in pieces of 2.
    let (size, last) = (40 << 20, 38 << 20);
    let (server, caller) = halting(move |request| {
        request.number <= 19 && request.header("range").starts_with(&format!("bytes={last}-"))
    });
    server.lay("x", content(1, size));
    let running = caller.begin(&DOWN);
    server.wait_until_held(1);
    let remembered = || fs::read_to_string(journals(&caller).pop()?).ok();
    eventually("all but the last are there", || {
        remembered().is_some_and(|text| text.matches("{\"Chunk\":").count() == 18)
    });
    running.signal(Signal::KILL);
    running.end();
    let before = server.of("GetObject").len();
    caller.done(&DOWN);
    assert!(fs::read(caller.path("there/x")).unwrap() == server.object("x").unwrap());
    let mut asked: Vec<String> =
        server.of("GetObject")[before..].iter().map(|request| request.header("range").to_owned()).collect();
    asked.sort();
    assert_eq!(asked, ["bytes=0-4194303", "bytes=39845888-41943039"]);
}

/// What is remembered is compared with what is there.
#[test]
fn a_chunk_that_is_not_what_it_was_is_fetched_again() {
    let (server, caller, unfinished) = stopped_before_the_last_chunk(Signal::KILL);
    fs::File::options().write(true).open(unfinished).unwrap().write_all_at(b"?", CHUNKS[1] + 1).unwrap();
    assert_eq!(gone_on_with(&server, &caller), CHUNKS);
}

#[test]
fn what_is_there_of_another_version_is_given_up() {
    let (server, caller, unfinished) = stopped_before_the_last_chunk(Signal::INT);
    server.lay("x", content(2, LARGE));
    assert_eq!(gone_on_with(&server, &caller), CHUNKS);
    assert!(!unfinished.exists());
}

#[test]
fn an_upload_that_is_stopped_goes_on_another_time() {
    for signal in [Signal::INT, Signal::TERM] {
        let server = Scripted::start(|request: &Request, answer: Answer| match request.operation {
            // A part that is never answered.
            "UploadPart" if request.number == 2 => Reply::Silence,
            _ => Reply::Answer(answer),
        });
        let caller = Caller::new(server.address);
        caller.write("here", content(1, 15 << 20));
        let running = caller.begin(&["cp", "--chunk-size", "5MiB", "here", &format!("s3://{BUCKET}/x")]);
        server.wait_until_held(1);
        running.signal(signal);
        let ran = running.end();
        assert!(matches!(ran.status.code(), Some(130 | 143)), "{ran:?}");
        assert!(server.object("x").is_none());
        assert!(server.of("CompleteMultipartUpload").is_empty());
        assert!(server.of("AbortMultipartUpload").is_empty(), "{:?}", server.counts());
        assert_eq!(journals(&caller).len(), 1, "it is remembered");
    }
}

/// Keys that ran out say nothing of the upload: it is not given up.
#[test]
fn an_upload_outlives_keys_that_ran_out() {
    let server =
        Scripted::start(|request: &Request, answer: Answer| match (request.operation, request.number) {
            ("UploadPart", 2) => Reply::Silence,
            ("ListParts", 1) => {
                Reply::Answer(Answer::refusal(400, "ExpiredToken", "The provided token has expired."))
            }
            _ => Reply::Answer(answer),
        });
    let caller = Caller::new(server.address);
    caller.write("here", content(1, 15 << 20));
    let up = ["cp", "--quiet", "--chunk-size=5MiB", "here", &format!("s3://{BUCKET}/x")];
    let running = caller.begin(&up);
    server.wait_until_held(1);
    eventually("the others are sent", || server.of("UploadPart").len() == 3);
    running.signal(Signal::KILL);
    running.end();
    assert_eq!(caller.run(&up).status.code(), Some(1));
    assert!(server.of("AbortMultipartUpload").is_empty());
    caller.done(&up);
    assert_eq!(server.of("UploadPart").len(), 4, "the others were there");
    assert!(server.object("x").unwrap() == content(1, 15 << 20));
}

/// Whoever writes to a pipe that nobody reads can be stopped too.
#[test]
fn a_full_pipe_can_be_interrupted() {
    let server = Scripted::start(|_, answer| Reply::Answer(answer));
    server.lay("x", content(1, 16 << 20));
    let caller = Caller::new(server.address);
    let running = caller.begin_unread(&["cat", &format!("s3://{BUCKET}/x")]);
    eventually("it has begun", || server.of("GetObject").len() > 1);
    std::thread::sleep(Duration::from_millis(100));
    let asked = Instant::now();
    running.signal(Signal::INT);
    let ran = running.end();
    assert!(asked.elapsed() < Duration::from_secs(5), "it took {:?}", asked.elapsed());
    assert!(!ran.status.success(), "{ran:?}");
}

#[test]
fn a_file_has_its_name_only_when_it_is_whole() {
    let (server, caller) = halting(|request| request.operation == "GetObject" && request.number == 1);
    let bytes = content(1, SIZE);
    server.lay("x", bytes.clone());
    let running = caller.begin(&["cp", &format!("s3://{BUCKET}/x"), "x"]);
    server.wait_until_held(1);
    assert!(!caller.path("x").exists());
    running.signal(Signal::KILL);
    running.end();
    assert!(!caller.path("x").exists());
    caller.done(&["cp", &format!("s3://{BUCKET}/x"), "x"]);
    assert!(fs::read(caller.path("x")).unwrap() == bytes);
}
