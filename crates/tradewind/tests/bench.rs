//! The measuring commands, run as processes: what they keep and print, what they leave behind, and what becomes of them
//! where the store answers wrongly, is stopped in the middle, or cannot do what is asked.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value as Json;

use support::caller::{Caller, Ran};
use support::scene::Scene;
use support::scripted::{Answer, Reply, Scripted};

/// `tradewind bench object` with flags as they stand in a line.
fn flags(line: &str) -> Vec<&str> {
    ["bench", "object"].into_iter().chain(line.split_whitespace()).collect()
}

/// The lines of a result that are of a kind.
fn lines(text: &str, kind: &str) -> Vec<Json> {
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines.filter(|line| line["line"] == kind).collect()
}

fn failures(cell: &Json) -> u64 {
    let kinds = cell["operations"].as_object().unwrap().values();
    kinds
        .flat_map(|figures| figures["failures"].as_object().unwrap().values())
        .map(|n| n.as_u64().unwrap())
        .sum()
}

#[test]
fn a_store_is_measured_and_left_as_it_was() {
    let scene = Scene::new();
    let caller = &scene.caller;
    caller.write("mine", b"not to be touched");
    caller.done(&["cp", "mine", "s3://bucket/there/tradewind-bench/mine"]);
    let table = caller.done(&flags(
        "s3://bucket/there --mix put --mix get --mix get=2,head=1,list=1,delete=1,put=1 --size \
         1KiB,1KiB-100KiB --parallel 1,4 --count 40 --repeat 2 -o result.jsonl",
    ));
    // A row for each kind of request: twice put, get and five of the mix, of two sizes with two parallelisms.
    let rows = table.lines().filter(|row| row.contains("KiB")).count();
    assert_eq!(rows, 2 * 2 * 2 * (1 + 1 + 5), "{table}");
    assert_eq!(caller.keys("s3://bucket"), ["there/tradewind-bench/mine"]);
    let kept = std::fs::read_to_string(caller.path("result.jsonl")).unwrap();
    let cells = lines(&kept, "cell");
    assert_eq!(cells.len(), 2 * 2 * 2 * 3);
    assert!(cells.iter().all(|cell| failures(cell) == 0), "{kept}");
    assert_eq!(lines(&kept, "end")[0]["partial"], false);
    assert_eq!(lines(&kept, "run")[0]["place"], "s3://bucket/there");
    let page = caller.done(&["report", "result.jsonl", "result.jsonl", "-o", "-"]);
    assert!(page.contains("No difference: chance explains all that is seen."), "{page}");
    let ran = caller.run(&["report", "result.jsonl", "-o", "result.jsonl"]);
    assert_eq!(ran.status.code(), Some(2), "{}", ran.err);
    assert_eq!(std::fs::read_to_string(caller.path("result.jsonl")).unwrap(), kept);
    let words = caller.done(&["report", "result.jsonl", "-o", "page.html"]);
    assert!(words.contains("Writing reaches") && words.contains("tables are in page.html"), "{words}");
    assert!(caller.path("page.html").exists());
}

#[test]
fn an_open_loop_asks_as_often_as_it_is_told_to() {
    let scene = Scene::new();
    let said = scene.caller.done(&flags(
        "s3://bucket --mix get --size 1KiB --objects 50 --rate 200 --parallel 32 --time 2s \
         --json --no-out",
    ));
    let cell = &lines(&said, "cell")[0];
    let asked = cell["operations"]["get"]["latency_us"]["count"].as_u64().unwrap();
    assert!((300..500).contains(&asked), "{asked}");
    assert_eq!((cell["rate"].as_f64(), cell["spacing"].as_str()), (Some(200.0), Some("poisson")));
}

#[test]
fn who_is_stopped_keeps_what_was_measured_and_removes_what_was_made() {
    for signal in [Signal::INT, Signal::TERM] {
        let scene = Scene::new();
        let running = scene.caller.begin(&flags(
            "s3://bucket --mix put --size 1KiB --parallel 2 --time 30s --warm-up 0s -o \
         result.jsonl",
        ));
        support::eventually("objects are made", || !scene.caller.keys("s3://bucket").is_empty());
        std::thread::sleep(Duration::from_millis(100));
        running.signal(signal);
        let Ran { status, err, .. } = running.end();
        let expected = if signal == Signal::INT { 130 } else { 143 };
        assert_eq!(status.code(), Some(expected), "{err}");
        let kept = std::fs::read_to_string(scene.caller.path("result.jsonl")).unwrap();
        let cell = &lines(&kept, "cell")[0];
        assert!(
            cell["ending"] == "stopped" && cell["operations"]["put"]["operations"].as_u64().unwrap() > 0,
            "{kept}"
        );
        assert_eq!(lines(&kept, "end")[0]["partial"], true);
        assert_eq!(scene.caller.keys("s3://bucket"), [""; 0]);
        let page = scene.caller.done(&["report", "result.jsonl", "-o", "-"]);
        assert!(page.contains("It was stopped before all was measured."), "{page}");
    }
}

#[test]
fn loads_are_measured_alone_and_beside_each_other() {
    let scene = Scene::new();
    let caller = &scene.caller;
    let line =
        "bench mix s3://bucket --size 1KiB --parallel 2 --objects 20 --time 300ms --warm-up 0s -o mix.jsonl";
    caller.done(&line.split_whitespace().collect::<Vec<_>>());
    let kept = std::fs::read_to_string(caller.path("mix.jsonl")).unwrap();
    let cells = lines(&kept, "cell");
    // Two alone; each beside itself, and both beside each other: two cells each.
    assert_eq!(cells.len(), 2 + 3 * 2, "{kept}");
    let beside = |cell: &Json| cell["beside"].as_array().map_or(0, Vec::len);
    assert_eq!(cells.iter().map(beside).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 1, 1, 1]);
    assert!(cells.iter().all(|cell| failures(cell) == 0), "{kept}");
    assert_eq!(caller.keys("s3://bucket"), [""; 0]);
    let page = caller.done(&["report", "mix.jsonl", "-o", "-"]);
    assert!(page.contains("throughput that is left, in %"), "{page}");
    let ran = caller.run(&["bench", "mix", "s3://bucket", "--count", "5", "--no-out"]);
    assert!(ran.status.code() == Some(2) && ran.err.contains("end together"), "{}", ran.err);
}

#[test]
fn a_workload_is_measured_from_files_over_connections_of_their_own() {
    let scene = Scene::new();
    let caller = &scene.caller;
    let text = "about = \"x\"\n[[load]]\nmix = [\"put\", \"get\"]\nsize = \"3KiB\"\nparallel = 2\ncount = 30\nobjects = 20\n";
    caller.write("mine.toml", text.as_bytes());
    std::fs::create_dir(caller.path("files")).unwrap();
    caller.done(&flags("s3://bucket --workload mine.toml --files files --fresh -o result.jsonl"));
    let kept = std::fs::read_to_string(caller.path("result.jsonl")).unwrap();
    let cells = lines(&kept, "cell");
    assert_eq!(cells.len(), 2);
    for cell in &cells {
        let carried = |n: usize| cell["carried"][n].as_u64().unwrap();
        assert_eq!((failures(cell), carried(2)), (0, 30), "each request has a connection: {cell}");
        assert!(carried(0) + carried(1) > 30 * 3072, "{cell}");
    }
    assert!(lines(&kept, "end")[0]["servers"][0].as_str().unwrap().starts_with("127.0.0.1:"), "{kept}");
    assert_eq!(std::fs::read_dir(caller.path("files")).unwrap().count(), 0, "files are removed");
    let table = caller.done(&["report", "result.jsonl", "--csv", "-"]);
    assert!(table.lines().count() == 3 && table.contains("result,put 3KiB x 2,put,3KiB,2"), "{table}");
    caller.write("bad.toml", b"about = \"x\"\n[[load]]\nsise = \"1KiB\"\n");
    let ran = caller.run(&flags("s3://bucket --workload bad.toml --no-out"));
    assert!(ran.status.code() == Some(2) && ran.err.contains("did you mean \"size\"?"), "{}", ran.err);
    assert!(caller.done(&["bench", "workloads"]).contains("Table III"));
}

#[test]
fn a_store_that_damages_bytes_is_found_out() {
    let server = Scripted::start(|request, answer: Answer| {
        let is_every_third = request.operation == "GetObject" && request.number % 3 == 0;
        Reply::Answer(if is_every_third { answer.damaged(500) } else { answer })
    });
    let caller = Caller::new(server.address);
    let ran = caller.run(&flags("s3://bucket --mix get --size 1KiB --parallel 2 --count 30 --json --no-out"));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
    let said = String::from_utf8(ran.out).unwrap();
    assert_eq!(
        failures(&lines(&said, "cell")[0]),
        10,
        "each one counts, and none is asked for again: {said}"
    );
}

#[test]
fn what_cannot_be_measured_is_refused_in_words() {
    let scene = Scene::new();
    let refused = |arguments: &[&str], status: i32, why: &str| {
        let ran = scene.caller.run(&[&["bench", "object"], arguments, &["--no-out"]].concat());
        assert_eq!(ran.status.code(), Some(status), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{arguments:?}: {}", ran.err);
    };
    refused(&["s3://bucket", "--mix", "delete=2,put=1"], 2, "removes more than it writes");
    refused(&["s3://bucket", "--size", "6TiB"], 2, "the most that this store takes");
    refused(&["s3://bucket", "--mix", "take"], 2, "none of put, get, head, list and delete");
    refused(&["s3://bucket", "--parallel", "0"], 2, "a number from 1 to 4096");
    refused(&["s3://bucket", "--rate", "0"], 2, "requests a second");
    refused(&["s3://bucket", "--mix", "get", "--objects", "3"], 2, "3 objects are too few");
    refused(&["s3://bucket", "--count", "9", "--warm-up", "1s"], 2, "every request counts");
    refused(&["s3://bucket", "--workload", "nothing"], 1, "nor a workload that is ready: class, hou");
    refused(&["s3://bucket", "--files", "/nonexistent/here"], 1, "cannot make /nonexistent/here");
    refused(&["nowhere://bucket"], 2, "there is no store");
    refused(&["s3://not-there", "--mix", "get", "--count", "1"], 1, "could not be made");
    scene.caller.write("torn.jsonl", b"{\"line\":\"cell\"}\n");
    let ran = scene.caller.run(&["report", "torn.jsonl"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.err.contains("torn.jsonl cannot be read as a result: line 1"), "{}", ran.err);
}
