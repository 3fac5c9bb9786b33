//! `tradewind bench cluster` with agents as processes on loopback: results, rejected keys, and cleanup after an agent
//! or the coordinator is killed.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::io::{BufRead as _, BufReader};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;

use support::command_runner::{CommandRunner, RunningCommand};
use support::eventually;
use support::test_store::TestStore;

const KEY: &str = "a key that cannot be guessed";

/// `tradewind bench agent` on a free port.
struct Agent {
    running: RunningCommand,
    address: String,
    output_lines: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    fn start(caller: &CommandRunner, flags: &[&str]) -> Self {
        caller.write("key", format!("{KEY}\n"));
        let line = ["bench", "agent", "--listen", "127.0.0.1:0", "--key-file", "key"];
        let mut running = caller.spawn_unread(&[&line, flags].concat());
        let mut out = BufReader::new(running.take_stdout());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        let address = first.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(first.starts_with("waiting for a coordinator on 127.0.0.1:"), "{first}");
        let output_lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let saved = output_lines.clone();
        // The thread ends with the process.
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                saved.lock().unwrap().push(line);
            }
        });
        Self { running, address, output_lines }
    }

    fn wait_for_output(&self, what: &str) {
        eventually(what, || self.output_lines.lock().unwrap().iter().any(|line| line.contains(what)));
    }
}

/// The arguments of `tradewind bench cluster` with the flags in `line`.
fn cluster<'a>(agents: &'a str, line: &'a str) -> Vec<&'a str> {
    let first = ["bench", "cluster", "s3://bucket", "--agents", agents, "--key-file", "key"];
    // A no-break space joins words of one argument; the command treats it as a space.
    first.into_iter().chain(line.split_ascii_whitespace()).collect()
}

fn names(agents: &[&Agent]) -> String {
    agents.iter().map(|agent| &*agent.address).collect::<Vec<_>>().join(",")
}

/// The lines of a result with the given kind.
fn lines(text: &str, kind: &str) -> Vec<Json> {
    let lines = text.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines.filter(|line| line["line"] == kind).collect()
}

fn saved(caller: &CommandRunner) -> String {
    std::fs::read_to_string(caller.path("result.jsonl")).unwrap()
}

#[test]
fn results_of_two_agents_are_merged() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let agents = [Agent::start(caller, &[]), Agent::start(caller, &["--only", "s3://bucket/"])];
    let both = names(&[&agents[0], &agents[1]]);
    let table =
        caller.run_ok(&cluster(&both, "--size 1KiB --concurrency 2 --count 30 --repeat 2 -o result.jsonl"));
    assert!(table.contains(&agents[0].address) && table.contains("from 2 agents"), "{table}");
    let measurements = lines(&saved(caller), "measurement");
    assert_eq!(measurements.len(), 4);
    for measurement in &measurements {
        let kinds = measurement["operations"].as_object().unwrap();
        let (_, figures) = kinds.iter().next().unwrap();
        assert_eq!(
            (figures["operations"].as_u64(), figures["failures"].as_object().unwrap().len()),
            (Some(60), 0)
        );
        assert_eq!(figures["latency_us"]["count"], 60);
        assert_eq!(
            (measurement["concurrency"].as_u64(), measurement["agents"].as_array().unwrap().len()),
            (Some(4), 2)
        );
    }
    let run = &lines(&saved(caller), "run")[0];
    assert_eq!(run["agents"].as_array().unwrap().len(), 2);
    assert!(run["agents"][1]["client"]["cores"].as_u64().unwrap() > 0 && run["store"] == "s3", "{run}");
    assert_eq!(caller.keys("s3://bucket"), [""; 0]);
    let page = caller.run_ok(&["report", "result.jsonl", "-o", "-"]);
    assert!(page.contains("sent by 2 client machines"), "{page}");
    for agent in agents {
        agent.wait_for_output("done with");
        agent.running.signal(Signal::TERM);
        let ended = agent.running.wait_for_output();
        assert_eq!((ended.status.code(), &*ended.err), (Some(143), "tradewind: stopped by SIGTERM\n"));
    }
}

/// The description of a measurement: its load, and the concurrent loads.
fn named(measurement: &Json) -> String {
    let text = |value: &Json| value.as_str().unwrap().to_owned();
    let alone = format!(
        "{} {} x {}",
        text(&measurement["mix"]),
        text(&measurement["sizes"]),
        measurement["concurrency"]
    );
    let others = measurement["concurrent_with"].as_array().into_iter().flatten();
    others.fold(alone, |name, other| format!("{name} with {}", text(other)))
}

fn agent_names(measurement: &Json) -> Vec<&str> {
    measurement["agents"].as_array().unwrap().iter().map(|one| one["address"].as_str().unwrap()).collect()
}

#[test]
fn a_workload_is_measured_from_two_machines() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let agents = [Agent::start(caller, &[]), Agent::start(caller, &[])];
    let both = names(&[&agents[0], &agents[1]]);
    let loads = "about = \"x\"\n[[load]]\nmix = \"put\"\nsize = \"1KiB\"\nconcurrency = [1, 2]\ncount = 200\n\
        [[load]]\nmix = \"get=1,put=1\"\nsize = \"2KiB\"\nconcurrency = 3\ncount = 400\nobjects = 50\n";
    caller.write("mine.toml", loads);
    caller.run_ok(&cluster(&both, "--workload mine.toml --scale 0.1 -o result.jsonl"));
    let measurements = lines(&saved(caller), "measurement");
    let what: Vec<String> = measurements.iter().map(named).collect();
    assert_eq!(what, ["put 1KiB x 2", "put 1KiB x 4", "get=1,put=1 2KiB x 6"]);
    let operations = |measurement: &Json| -> u64 {
        let kinds = measurement["operations"].as_object().unwrap().values();
        kinds.map(|figures| figures["operations"].as_u64().unwrap()).sum()
    };
    assert_eq!(
        measurements.iter().map(operations).collect::<Vec<_>>(),
        [40, 40, 80],
        "the same number from each agent"
    );
    assert_eq!(caller.keys("s3://bucket"), [""; 0]);
    caller.write("stable.toml", "about = \"x\"\n[[load]]\nsize = \"1KiB\"\nuntil_ci = \"5%\"\n");
    let ran = caller.run(&cluster(&both, "--workload stable.toml --no-out"));
    assert!(ran.status.code() == Some(2) && ran.err.contains("--until-ci is not supported"), "{}", ran.err);
}

#[test]
fn mixed_loads_run_on_all_agents_or_apart_on_one_each() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let agents = [Agent::start(caller, &[]), Agent::start(caller, &[])];
    let both = names(&[&agents[0], &agents[1]]);
    let line = "--mixed --size 1KiB --concurrency 2 --objects 20 --time 300ms --warm-up 0s -o result.jsonl";
    let measured = |more: &str| {
        let _ = std::fs::remove_file(caller.path("result.jsonl"));
        caller.run_ok(&cluster(&both, &format!("{line} {more}")));
        let measurements = lines(&saved(caller), "measurement");
        let failed = |measurement: &Json| !measurement["operations"].to_string().contains("\"failures\":{}");
        assert!(!measurements.iter().any(failed), "{measurements:?}");
        assert_eq!(caller.keys("s3://bucket"), [""; 0]);
        let page = caller.run_ok(&["report", "result.jsonl", "-o", "-"]);
        assert!(page.contains("throughput relative to running alone, in %"), "{page}");
        measurements
    };
    let measurements = measured("");
    let what: Vec<String> = measurements.iter().map(named).collect();
    let (put, get) = ("put 1KiB x 4", "get 1KiB x 4");
    let concurrently = |one, other| format!("{one} with {other}");
    assert_eq!(what[..2], [put, get]);
    assert_eq!(
        what[2..],
        [(put, put), (put, put), (put, get), (get, put), (get, get), (get, get)]
            .map(|(a, b)| concurrently(a, b))
    );
    assert!(measurements.iter().all(|measurement| agent_names(measurement).len() == 2));
    let measurements = measured("--separate-agents --mix put --concurrent-with get\u{a0}1KiB\u{a0}x\u{a0}2");
    let what: Vec<String> = measurements.iter().map(named).collect();
    let (put, get) = ("put 1KiB x 2", "get 1KiB x 2");
    assert_eq!(what, [put, get, &concurrently(put, get), &concurrently(get, put)]);
    let [first, second] = [&agents[0], &agents[1]].map(|agent| &*agent.address);
    assert_eq!(
        measurements.iter().map(agent_names).collect::<Vec<_>>(),
        [[first], [second], [first], [second]]
    );
    let refused = |line: &str, why: &str| {
        let ran = caller.run(&cluster(&agents[0].address, line));
        assert!(ran.status.code() == Some(2) && ran.err.contains(why), "{}", ran.err);
    };
    refused("--mixed --separate-agents --no-out", "1 agents cannot be divided evenly among 2 loads");
    refused("--mixed --count 5 --no-out", "end together");
    refused("--mixed --concurrency 3000 --no-out", "6000 concurrent requests exceed the limit of 4096");
    refused("--separate-agents --no-out", "--mixed");
}

#[test]
fn a_wrong_key_is_rejected_with_a_reason() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let agent = Agent::start(caller, &["--only", "s3://bucket/there"]);
    caller.write("key", "another key, as long");
    let refused = |line: &str, status: i32, why: &str| {
        let ran = caller.run(&cluster(&agent.address, line));
        assert_eq!(ran.status.code(), Some(status), "{}", ran.err);
        assert!(ran.err.contains(why), "{}", ran.err);
    };
    refused("--no-out", 1, "it has a different key");
    agent.wait_for_output("was rejected: it does not have the key");
    caller.write("key", "short");
    refused("--no-out", 2, "the key has 5 bytes, but at least 16 are required");
    caller.write("key", KEY);
    refused("--no-out", 1, "the agent is restricted to other locations by --only");
    refused("--no-out --until-ci 5%", 2, "--until-ci is not supported");
    let ran = caller.run(&["bench", "cluster", "s3://bucket", "--agents", &agent.address]);
    assert!(ran.status.code() == Some(2) && ran.err.contains("TRADEWIND_BENCH_KEY"), "{}", ran.err);
    // The address is that of the store, not of an agent.
    let ran = caller.run(&cluster(&caller.endpoint().to_string(), "--no-out"));
    assert!(ran.status.code() == Some(1) && ran.err.contains("agent HOST: "), "{}", ran.err);
}

#[test]
fn a_killed_agent_is_detected_and_its_objects_are_removed() {
    // A killed agent closes its connection at once; a stopped one keeps it open without progress.
    for signal in [Signal::KILL, Signal::STOP] {
        let scene = TestStore::new();
        let caller = &scene.runner;
        let agents = [Agent::start(caller, &[]), Agent::start(caller, &[])];
        let both = names(&[&agents[0], &agents[1]]);
        let line = "--mix put --size 1KiB --concurrency 2 --time 30s --warm-up 0s -o result.jsonl";
        let running = caller.spawn(&cluster(&both, line));
        eventually("both make objects", || {
            let keys = caller.keys("s3://bucket");
            ["/agent1/", "/agent2/"].iter().all(|agent| keys.iter().any(|key| key.contains(agent)))
        });
        std::thread::sleep(Duration::from_millis(200));
        let started = Instant::now();
        agents[1].running.signal(signal);
        let ran = running.wait_for_output();
        let took = started.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert_eq!(ran.status.code(), Some(1), "{}", ran.err);
        assert!(ran.err.contains(&format!("agent {}: ", agents[1].address)), "{}", ran.err);
        let saved = saved(caller);
        let measurement = &lines(&saved, "measurement")[0];
        assert!(
            measurement["end_reason"] == "stopped"
                && measurement["operations"]["put"]["operations"].as_u64() > Some(0),
            "{saved}"
        );
        assert_eq!(measurement["agents"].as_array().unwrap().len(), 1);
        assert_eq!(lines(&saved, "end")[0]["partial"], true);
        assert_eq!(caller.keys("s3://bucket"), [""; 0], "the other agent has removed them");
    }
}

#[test]
fn an_agent_cleans_up_after_its_coordinator_is_killed() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let agent = Agent::start(caller, &[]);
    let line = "--mix put --size 1KiB --concurrency 2 --time 30s --warm-up 0s --no-out";
    let running = caller.spawn(&cluster(&agent.address, line));
    eventually("objects are made", || !caller.keys("s3://bucket").is_empty());
    let busy = caller.run(&cluster(&agent.address, line));
    assert!(busy.err.contains("it is busy with another coordinator"), "{}", busy.err);
    running.signal(Signal::KILL);
    running.wait_for_output();
    agent.wait_for_output("is lost: it closed the connection");
    agent.wait_for_output("done with");
    assert_eq!(caller.keys("s3://bucket"), [""; 0]);
    caller.run_ok(&cluster(&agent.address, "--mix put --size 1KiB --concurrency 2 --count 9 --no-out"));
    assert_eq!(caller.keys("s3://bucket"), [""; 0]);
}

#[test]
fn an_interrupted_coordinator_saves_its_measurements() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let agents = [Agent::start(caller, &[]), Agent::start(caller, &[])];
    let both = names(&[&agents[0], &agents[1]]);
    let line = "--mix put --size 1KiB --concurrency 2 --time 30s --warm-up 0s -o result.jsonl";
    let running = caller.spawn(&cluster(&both, line));
    eventually("objects are made", || !caller.keys("s3://bucket").is_empty());
    std::thread::sleep(Duration::from_millis(200));
    running.signal(Signal::INT);
    let ran = running.wait_for_output();
    assert_eq!((ran.status.code(), &*ran.err), (Some(130), "tradewind: stopped by SIGINT\n"));
    let saved = saved(caller);
    let measurement = &lines(&saved, "measurement")[0];
    assert!(
        measurement["end_reason"] == "stopped" && measurement["agents"].as_array().unwrap().len() == 2,
        "{saved}"
    );
    assert_eq!(lines(&saved, "end")[0]["partial"], true);
    assert_eq!(caller.keys("s3://bucket"), [""; 0]);
}
