//! `tradewind bench replay` as a process: results, rejected traces, cleanup, wrong responses of the store, and signals.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;

use support::command_runner::{CommandOutput, CommandRunner};
use support::scripted_server::{Reply, ScriptedResponse, ScriptedServer};
use support::test_store::TestStore;

const TRACE: &str = "time,op,key,offset,length\n\
    10,get,photos/a.jpg,100,28\n\
    10.05,put,\"odd, \"\"name\"\"\",,300000\n\
    10.15,get,\"odd, \"\"name\"\"\",299999,1\n\
    10.2,list,photos/,,\n\
    10.25,delete,photos/a.jpg,,\n\
    10.35,head,photos/a.jpg,,\n\
    10.4,put,photos/a.jpg,,0\n\
    10.5,get,photos/a.jpg,,\n";

/// The arguments of `tradewind bench replay trace.csv` with the flags in `line`.
fn flags(line: &str) -> Vec<&str> {
    ["bench", "replay", "trace.csv"].into_iter().chain(line.split_whitespace()).collect()
}

/// The lines of a result with the given kind.
fn lines(text: &str, kind: &str) -> Vec<Json> {
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines.filter(|line| line["line"] == kind).collect()
}

#[test]
fn a_replayed_trace_leaves_no_objects() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    scene.store("there/photos/a.jpg", b"not to be touched");
    caller.write("trace.csv", TRACE);
    let started = Instant::now();
    let table = caller.run_ok(&flags("s3://bucket/there --repeat 2 --samples each.csv -o own.jsonl"));
    assert!(started.elapsed() >= Duration::from_secs(1), "each round takes 500 ms: {:?}", started.elapsed());
    assert_eq!(table.lines().filter(|row| row.contains("put of trace.csv")).count(), 2, "{table}");
    assert!(table.contains("1 requests correctly found nothing"), "{table}");
    let saved = std::fs::read_to_string(caller.path("own.jsonl")).unwrap();
    let measurements = lines(&saved, "measurement");
    let count =
        |measurement: &Json, kind: &str| measurement["operations"][kind]["operations"].as_u64().unwrap();
    for measurement in &measurements {
        let counts = ["put", "get", "head", "list", "delete"].map(|kind| count(measurement, kind));
        assert_eq!(counts, [2, 3, 1, 1, 1], "{measurement}");
        assert_eq!(measurement["trace"]["requests"], 8);
        assert!((0.5..1.5).contains(&measurement["measured_seconds"].as_f64().unwrap()), "{measurement}");
    }
    assert_eq!((measurements.len(), lines(&saved, "end")[0]["partial"].as_bool()), (2, Some(false)));
    let each = std::fs::read_to_string(caller.path("each.csv")).unwrap();
    assert_eq!(each.lines().count(), 1 + 2 * 8, "{each}");
    let listed = each.lines().find(|line| line.starts_with("2,2,list,")).unwrap();
    assert!(listed.contains("/photos/,0,") && listed.ends_with(",ok"), "{listed}");
    // A name is quoted as in the trace.
    let odd = each.lines().filter(|line| line.contains("/odd, \"\"name\"\"\",")).count();
    let one = each.lines().filter(|line| line.contains(",get,\"") && line.contains("\",1,")).count();
    assert_eq!((odd, one), (4, 2), "{each}");
    assert_eq!(scene.keys(), [("there/photos/a.jpg".to_owned(), 17)]);
    let page = caller.run_ok(&["report", "own.jsonl", "own.jsonl", "-o", "-"]);
    assert!(page.contains("get in trace.csv x 512 at trace pace"), "{page}");
    assert!(page.contains("No significant difference."), "{page}");
    let output = caller.run_ok(&flags("s3://bucket --pace fast --concurrency 4 --json --no-out"));
    let measurement = &lines(&output, "measurement")[0];
    assert!(
        measurement["trace"]["speed"].is_null() && measurement["requests_per_second"].is_null(),
        "{measurement}"
    );
    assert_eq!(count(measurement, "get"), 3);
    assert_eq!(scene.names(), ["there/photos/a.jpg"]);
}

#[test]
fn invalid_lines_are_reported_or_skipped() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let invalid = "0.3,put,a,,\nx\n".repeat(8);
    caller.write("trace.csv", format!("time,op,key,offset,length\n0,get,a,,\n{invalid}0.1,get,a,,\n"));
    let ran = caller.run(&flags("s3://bucket --no-out"));
    assert_eq!(ran.status.code(), Some(2), "{}", ran.err);
    let output: Vec<&str> = ran.err.lines().collect();
    assert!(
        output[0].ends_with("trace.csv has 16 invalid lines (use --skip-invalid to skip them):"),
        "{}",
        ran.err
    );
    assert_eq!(
        (output[1], output[2]),
        ("  line 3: a put needs a length", "  line 4: 1 fields, the header has 5")
    );
    assert_eq!((output.len(), output[11]), (12, "  and 6 more"));
    let table = caller.run_ok(&flags("s3://bucket --no-out --skip-invalid"));
    assert!(table.contains("note: 16 invalid lines of the trace were skipped"), "{table}");
    for (text, status, why) in [
        ("time,op\n1,get\n", 2, "trace.csv, line 1: the header has no \"key\""),
        ("time,op,key\n", 2, "trace.csv has no requests"),
        ("", 2, "trace.csv, line 1: the trace is empty"),
        (
            "time,op,key,length\n0,get,a,1\n0,put,b,9000000000000000\n",
            2,
            "line 3 needs an object of 9000000000000000",
        ),
    ] {
        caller.write("trace.csv", text);
        let ran = caller.run(&flags("s3://bucket --no-out"));
        assert_eq!(ran.status.code(), Some(status), "{text:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{text:?}: {}", ran.err);
    }
    for (arguments, status, why) in [
        ("s3://bucket --pace fast --speed 2", 2, "which --pace fast ignores"),
        ("s3://bucket --speed 0", 2, "from 0.001 to 1000"),
    ] {
        let ran = caller.run(&flags(arguments));
        assert!(ran.status.code() == Some(status) && ran.err.contains(why), "{arguments}: {}", ran.err);
    }
    let ran = caller.run(&["bench", "replay", "none.csv", "s3://bucket"]);
    assert!(ran.status.code() == Some(1) && ran.err.contains("none.csv cannot be read"), "{}", ran.err);
    let ran = caller.run(&["bench", "replay", "/dev/null", "s3://bucket"]);
    assert!(ran.status.code() == Some(2) && ran.err.contains("a trace is read twice"), "{}", ran.err);
    assert_eq!(scene.names(), [""; 0]);
}

#[test]
fn an_interrupted_run_saves_results_and_removes_objects() {
    for pace in ["", "--pace fast --concurrency 2"] {
        let scene = TestStore::new();
        // Enough requests that the replay also lasts at full speed.
        let puts: String =
            (0..30_000).map(|n| format!("{},put,k{n},,1000\n", f64::from(n) / 200.0)).collect();
        scene.runner.write("trace.csv", format!("time,op,key,offset,length\n{puts}"));
        let line = format!("s3://bucket -o result.jsonl {pace}");
        let running = scene.runner.spawn(&flags(&line));
        support::eventually("objects are made", || !scene.names().is_empty());
        std::thread::sleep(Duration::from_millis(100));
        running.signal(Signal::INT);
        let CommandOutput { status, err, .. } = running.wait_for_output();
        assert_eq!(status.code(), Some(130), "{err}");
        let saved = std::fs::read_to_string(scene.runner.path("result.jsonl")).unwrap();
        let measurement = &lines(&saved, "measurement")[0];
        assert_eq!(measurement["end_reason"], "stopped");
        assert!(measurement["operations"]["put"]["operations"].as_u64().unwrap() > 0, "{saved}");
        assert_eq!(lines(&saved, "end")[0]["partial"], true);
        assert_eq!(scene.names(), [""; 0]);
    }
}

#[test]
fn damaged_bytes_are_detected() {
    let server = ScriptedServer::start(|request, answer: ScriptedResponse| {
        let is_third = request.operation == "GetObject" && request.number % 3 == 0;
        Reply::Respond(if is_third { answer.with_flipped_bit(500) } else { answer })
    });
    let caller = CommandRunner::new(server.address);
    // Parts of an object can be verified only by their content.
    let gets: String = (0..30).map(|n| format!("{n},get,k{n},100,1000\n")).collect();
    caller.write("trace.csv", format!("time,op,key,offset,length\n{gets}"));
    let ran = caller.run(&flags("s3://bucket --pace fast --concurrency 2 --json --no-out"));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
    let output = String::from_utf8(ran.out).unwrap();
    let get = &lines(&output, "measurement")[0]["operations"]["get"];
    assert_eq!(
        (get["operations"].as_u64(), get["failures"]["WrongAnswer"].as_u64()),
        (Some(20), Some(10)),
        "{output}"
    );
}
