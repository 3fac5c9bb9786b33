//! `tradewind tune` as a process: its output, its cleanup, and its behaviour when it cannot write or is interrupted.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "tune/profiles.rs"]
mod profiles;
mod support;
#[path = "tune/workload.rs"]
mod workload;

use rustix::process::Signal;
use serde_json::Value as Json;

use support::command_runner::{CommandOutput, CommandRunner};
use support::server::ServerSetup;
use support::test_store::TestStore;

/// The arguments of `tradewind tune` with the flags in `line`.
fn tune(line: &str) -> Vec<&str> {
    ["tune"].into_iter().chain(line.split_whitespace()).collect()
}

#[test]
fn tuning_leaves_the_store_unchanged() {
    let scene = TestStore::new();
    scene.store("mine", b"not to be touched");
    let output = scene.runner.run_ok(&tune("s3://bucket --budget 64MiB,10s"));
    for word in ["RTT: ", "upload: ", "download: ", "small files of ", " latency at most "] {
        assert!(output.contains(word), "{word}: {output}");
    }
    assert!(!output.contains('\x1b'), "no colours where no terminal is: {output}");
    assert_eq!(scene.runner.keys("s3://bucket"), ["mine"]);
}

#[test]
fn a_profile_is_saved_and_used() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let output = caller.run_ok(&tune("s3://bucket --budget 32MiB,6s"));
    let (_, path) = output.trim_end().rsplit_once("profile saved: ").unwrap();
    let saved = std::fs::read_to_string(path).unwrap();
    assert!(saved.contains("[[upload]]\nsize = \"") && saved.contains("[[download]]"), "{saved}");
    caller.write("file", [7; 100_000]);
    assert_eq!(caller.run(&["cp", "file", "s3://bucket/there"]).err, "");
    let output = caller.run_ok(&["tune", "--explain", "s3://bucket"]);
    for part in ["upload, measured", "fixed time per request", "bandwidth limit", "cp and sync use"] {
        assert!(output.contains(part), "{part}: {output}");
    }
    // A broken entry is reported, and the rest of the profile is used.
    let broken = saved.replacen("concurrency = ", "concurrency = \"many\" # ", 1);
    std::fs::write(path, &broken).unwrap();
    let line = 1 + broken.lines().position(|line| line == "[[upload]]").unwrap();
    let ran = caller.run(&["cp", "s3://bucket/there", "back"]);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
    let complaint =
        format!("line {line}: upload: concurrency must be a number from 1 to 4096; it is ignored");
    assert!(ran.err.contains(&complaint), "{}", ran.err);
    assert_eq!(std::fs::read(caller.path("back")).unwrap(), [7; 100_000]);
    std::fs::write(path, "store = [").unwrap();
    let ran = caller.run(&["cp", "s3://bucket/there", "again"]);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
    assert!(ran.err.contains("line 1: this is not TOML"), "{}", ran.err);
}

#[test]
fn json_output_contains_probes_and_best_points() {
    let scene = TestStore::new();
    let output = scene
        .runner
        .run_ok(&tune("s3://bucket/below --budget 16MiB,5s --json --latency 1h --latency p99=2h"));
    let lines: Vec<Json> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["line"] == kind).count();
    assert!((2..=16).contains(&of("probe")) && of("inferred") > 50, "{output}");
    let goals = |direction: &str| {
        let points =
            lines.iter().filter(|line| line["line"] == "best_point" && line["direction"] == direction);
        points.map(|point| point["goal"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(goals("upload"), ["throughput", "efficiency", "latency", "latency"], "{output}");
    assert_eq!(goals("download"), goals("upload"));
    let targets = lines.iter().filter(|line| line["line"] == "best_point" && line["goal"] == "latency");
    let targets: Vec<_> = targets
        .map(|point| (point["statistic"].as_str().unwrap(), point["max_seconds"].as_f64().unwrap()))
        .collect();
    assert_eq!(targets[..2], [("mean", 3600.0), ("p99", 7200.0)]);
    let transferred_bytes: u64 = lines.iter().filter_map(|line| line["bytes"].as_u64()).sum();
    // Requests in flight when the budget is spent are completed.
    assert!(transferred_bytes < 32 << 20, "{transferred_bytes}");
}

#[test]
fn results_are_printed_even_if_the_profile_cannot_be_saved() {
    let scene = TestStore::new();
    // The directory of profiles is a file.
    scene.runner.write("home/.local/share/tradewind", []);
    let ran = scene.runner.run(&tune("s3://bucket --budget 8MiB,4s"));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
    let out = String::from_utf8_lossy(&ran.out);
    assert!(out.contains("upload: ") && out.contains("download: "), "{out}");
    assert!(ran.err.contains("cannot save the profile in ") && ran.err.contains(".toml"), "{}", ran.err);
    assert_eq!(scene.runner.keys("s3://bucket"), [""; 0]);
}

#[test]
fn an_interrupted_run_leaves_no_objects_and_no_profile() {
    let scene = TestStore::new();
    let running = scene.runner.spawn(&tune("s3://bucket"));
    support::eventually("probes are made", || !scene.runner.keys("s3://bucket").is_empty());
    running.signal(Signal::INT);
    let CommandOutput { status, err, .. } = running.wait_for_output();
    assert_eq!(status.code(), Some(130), "{err}");
    assert!(err.contains("removing objects below s3://bucket/tradewind-tune-"), "{err}");
    assert_eq!(scene.runner.keys("s3://bucket"), [""; 0]);
    assert!(
        !scene.runner.path("home/.local/share/tradewind/profiles").exists(),
        "an incomplete profile is not saved"
    );
}

#[test]
fn objects_left_in_an_unreachable_store_are_reported() {
    let data = tempfile::tempdir().unwrap();
    let start = ServerSetup::new(&data.path().join("data"), &data.path().join("log"));
    let mut server = start.start().unwrap();
    let caller = CommandRunner::new(server.endpoint);
    caller.run_ok(&["mb", "s3://bucket"]);
    let running = caller.spawn(&tune("s3://bucket --budget 1GiB,6s"));
    support::eventually("probes are made", || !caller.keys("s3://bucket").is_empty());
    server.kill();
    let CommandOutput { status, err, .. } = running.wait_for_output();
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("objects remain below s3://bucket/tradewind-tune-"), "{err}");
}

#[test]
fn impossible_requests_are_rejected_with_a_reason() {
    let scene = TestStore::new();
    scene.runner.run_failing(
        &tune("s3://nowhere"),
        &["HEAD s3://nowhere on HOST: there is no such bucket (404 Not Found)"],
    );
    let ran = scene.runner.run(&tune("s3://bucket --budget 64MiB"));
    assert_eq!(ran.status.code(), Some(2), "{}", ran.err);
    let ran = scene.runner.run(&tune("s3://bucket --budget 1KiB,1s"));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
    let output = String::from_utf8(ran.out).unwrap();
    assert!(output.contains("upload: no result: the budget is too small"), "{output}");
}
