//! `tradewind tune`, run as a process: what it says, what it leaves behind, and what becomes of it where it may not write or is
//! stopped in the middle.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "tune/profiles.rs"]
mod profiles;
mod support;
#[path = "tune/workload.rs"]
mod workload;

use rustix::process::Signal;
use serde_json::Value as Json;

use support::caller::{Caller, Ran};
use support::scene::Scene;
use support::server::Start;

/// `tradewind tune` with flags as they stand in a line.
fn tune(line: &str) -> Vec<&str> {
    ["tune"].into_iter().chain(line.split_whitespace()).collect()
}

#[test]
fn a_store_is_tuned_and_left_as_it_was() {
    let scene = Scene::new();
    scene.store("mine", b"not to be touched");
    let said = scene.caller.done(&tune("s3://bucket --budget 64MiB,10s"));
    for word in ["a round trip takes", "upload: ", "download: ", "small files: ", " at the most: "] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains('\x1b'), "no colours where no terminal is: {said}");
    assert_eq!(scene.caller.keys("s3://bucket"), ["mine"]);
}

#[test]
fn what_was_found_is_kept_and_used() {
    let scene = Scene::new();
    let caller = &scene.caller;
    let said = caller.done(&tune("s3://bucket --budget 32MiB,6s"));
    let (_, path) = said.trim_end().rsplit_once("it is kept in ").unwrap();
    let kept = std::fs::read_to_string(path).unwrap();
    assert!(kept.contains("[[upload]]\nsize = \"") && kept.contains("[[download]]"), "{kept}");
    caller.write("file", [7; 100_000]);
    assert_eq!(caller.run(&["cp", "file", "s3://bucket/there"]).err, "");
    let said = caller.done(&["tune", "--explain", "s3://bucket"]);
    for part in
        ["upload, as measured", "a request takes", "all together carry", "cp, sync and the others ask for"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    // What somebody has broken is named, and the rest counts.
    let broken = kept.replacen("parallel = ", "parallel = \"many\" # ", 1);
    std::fs::write(path, &broken).unwrap();
    let line = 1 + broken.lines().position(|line| line == "[[upload]]").unwrap();
    let ran = caller.run(&["cp", "s3://bucket/there", "back"]);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
    let complaint = format!("line {line}: upload: parallel is to be a number from 1 to 4096; it is left out");
    assert!(ran.err.contains(&complaint), "{}", ran.err);
    assert_eq!(std::fs::read(caller.path("back")).unwrap(), [7; 100_000]);
    std::fs::write(path, "store = [").unwrap();
    let ran = caller.run(&["cp", "s3://bucket/there", "again"]);
    assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
    assert!(ran.err.contains("line 1: this is not TOML"), "{}", ran.err);
}

#[test]
fn every_probe_can_be_read_by_programs() {
    let scene = Scene::new();
    let said =
        scene.caller.done(&tune("s3://bucket/below --budget 16MiB,5s --json --latency 1h --latency p99=2h"));
    let lines: Vec<Json> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["line"] == kind).count();
    assert!((2..=16).contains(&of("probe")) && of("inferred") > 50, "{said}");
    let goals = |direction: &str| {
        let plans = lines.iter().filter(|line| line["line"] == "plan" && line["direction"] == direction);
        plans.map(|plan| plan["goal"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(goals("upload"), ["bandwidth", "efficiency", "latency", "latency"], "{said}");
    assert_eq!(goals("download"), goals("upload"));
    let caps = lines.iter().filter(|line| line["line"] == "plan" && line["goal"] == "latency");
    let caps: Vec<_> =
        caps.map(|plan| (plan["of"].as_str().unwrap(), plan["most_seconds"].as_f64().unwrap())).collect();
    assert_eq!(caps[..2], [("mean", 3600.0), ("p99", 7200.0)]);
    let carried: u64 = lines.iter().filter_map(|line| line["bytes"].as_u64()).sum();
    // What is under way when a budget is spent still comes to its end.
    assert!(carried < 32 << 20, "{carried}");
}

#[test]
fn what_cannot_be_kept_is_told_all_the_same() {
    let scene = Scene::new();
    // Where profiles belong is a file.
    scene.caller.write("home/.local/share/tradewind", []);
    let ran = scene.caller.run(&tune("s3://bucket --budget 8MiB,4s"));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
    let out = String::from_utf8_lossy(&ran.out);
    assert!(out.contains("upload: ") && out.contains("download: "), "{out}");
    assert!(ran.err.contains("cannot be kept in ") && ran.err.contains(".toml"), "{}", ran.err);
    assert_eq!(scene.caller.keys("s3://bucket"), [""; 0]);
}

#[test]
fn who_is_stopped_leaves_nothing() {
    let scene = Scene::new();
    let running = scene.caller.begin(&tune("s3://bucket"));
    support::eventually("probes are made", || !scene.caller.keys("s3://bucket").is_empty());
    running.signal(Signal::INT);
    let Ran { status, err, .. } = running.end();
    assert_eq!(status.code(), Some(130), "{err}");
    assert!(err.contains("removing objects below s3://bucket/tradewind-tune-"), "{err}");
    assert_eq!(scene.caller.keys("s3://bucket"), [""; 0]);
    assert!(!scene.caller.path("home/.local/share/tradewind/profiles").exists(), "half of it is not kept");
}

#[test]
fn a_store_that_goes_away_in_the_middle_is_told_of() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::new(&data.path().join("data"), &data.path().join("log"));
    let mut server = start.start().unwrap();
    let caller = Caller::new(server.endpoint);
    caller.done(&["mb", "s3://bucket"]);
    let running = caller.begin(&tune("s3://bucket --budget 1GiB,6s"));
    support::eventually("probes are made", || !caller.keys("s3://bucket").is_empty());
    server.kill();
    let Ran { status, err, .. } = running.end();
    assert_eq!(status.code(), Some(1), "{err}");
    assert!(err.contains("objects are left below s3://bucket/tradewind-tune-"), "{err}");
}

#[test]
fn what_cannot_be_tuned_is_said() {
    let scene = Scene::new();
    scene.caller.fails(
        &tune("s3://nowhere"),
        &["HEAD s3://nowhere on HOST: there is no such bucket (404 Not Found)"],
    );
    let ran = scene.caller.run(&tune("s3://bucket --budget 64MiB"));
    assert_eq!(ran.status.code(), Some(2), "{}", ran.err);
    let ran = scene.caller.run(&tune("s3://bucket --budget 1KiB,1s"));
    assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
    let said = String::from_utf8(ran.out).unwrap();
    assert!(said.contains("upload: nothing was found out: the budget is too small"), "{said}");
}
