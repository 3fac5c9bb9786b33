//! `tradewind balance` on a simulated cluster: a program that takes the place of the command `ceph`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use support::command_runner::{CommandOutput, CommandRunner};

/// A cluster of four OSDs, two of them slow.
struct Cluster {
    runner: CommandRunner,
}

impl Cluster {
    /// `None`, with a message, without Python.
    fn start() -> Option<Self> {
        if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
            println!("skipped: no python3");
            return None;
        }
        let programs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/balance");
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let runner = CommandRunner::new("127.0.0.1:1".parse().unwrap()).with_variable("PATH", &path);
        let state = json!({
            "epoch": 1, "affinities": [1.0, 1.0, 1.0, 1.0], "up": [1, 1, 1, 1], "rates": [200.0, 200.0, 50.0, 50.0],
            "reads": [0.0, 0.0, 0.0, 0.0], "latencies": [0.0, 0.0, 0.0, 0.0], "at": 0.0, "pool_type": 1,
            "keys": {}, "health": "HEALTH_OK", "versions": {"16.2.15": 6}, "config": [], "deny": [],
            "changes": 0,
        });
        let cluster = Self { runner };
        cluster.write(&state);
        Some(cluster)
    }

    fn write(&self, state: &Value) {
        self.runner.write("state.json", state.to_string());
    }

    fn state(&self) -> Value {
        serde_json::from_slice(&fs::read(self.runner.path("state.json")).unwrap()).unwrap()
    }

    fn with(self, field: &str, value: Value) -> Self {
        let mut state = self.state();
        state[field] = value;
        self.write(&state);
        self
    }

    fn arguments<'a>(&self, command: &'a str, others: &[&'a str]) -> Vec<&'a str> {
        [&["balance", command, "--conf", "ceph.conf"], others].concat()
    }

    fn run(&self, command: &str, others: &[&str]) -> CommandOutput {
        self.runner.run(&self.arguments(command, others))
    }

    fn wait_for_changes(&self) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.state()["changes"] == 0 {
            assert!(Instant::now() < deadline, "no affinity was set");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn assert_unchanged(&self) {
        let state = self.state();
        assert_eq!(state["affinities"], json!([1.0, 1.0, 1.0, 1.0]));
        assert_eq!(state["keys"], json!({}));
    }
}

/// The rounds of a command with `--json`.
fn rounds(output: &CommandOutput) -> Vec<Value> {
    let text = String::from_utf8(output.out.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn explain_predicts_a_gain_and_changes_nothing() {
    let Some(cluster) = Cluster::start() else { return };
    let output = cluster.run("explain", &["--interval", "0.5"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.out).unwrap();
    assert!(text.contains("would set new affinities: predicted throughput +"), "{text}");
    assert!(text.contains("predicted primaries: 64 of 64 as in the cluster"), "{text}");
    assert!(text.contains("osd.3") && text.contains("1.000 -> 0."), "{text}");
    assert_eq!(cluster.state()["changes"], 0);
    cluster.assert_unchanged();
}

#[test]
fn dry_run_says_what_it_would_do_and_changes_nothing() {
    let Some(cluster) = Cluster::start() else { return };
    let output = cluster.run("ceph", &["--dry-run", "--json", "--interval", "0.3", "--duration", "5"]);
    assert!(output.status.success(), "{output:?}");
    let rounds = rounds(&output);
    assert!(rounds.iter().any(|round| round["decision"] == "set"), "{rounds:?}");
    assert_eq!(cluster.state()["changes"], 0);
    cluster.assert_unchanged();
}

#[test]
fn balancer_sets_affinities_verifies_the_gain_and_restores_them_at_the_end() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster
        .runner
        .spawn(&cluster.arguments("ceph", &["--json", "--interval", "0.5", "--duration", "20"]));
    cluster.wait_for_changes();
    let output = running.wait_for_output();
    assert!(output.status.success(), "{output:?}");
    assert!(output.err.contains("restored the affinities of"), "{}", output.err);
    let rounds = rounds(&output);
    let decisions: Vec<&str> = rounds.iter().map(|round| round["decision"].as_str().unwrap()).collect();
    assert_eq!(decisions.iter().filter(|decision| **decision == "set").count(), 1, "{decisions:?}");
    let kept =
        rounds.iter().find(|round| round["decision"] == "keep").unwrap_or_else(|| panic!("{decisions:?}"));
    assert!(kept["measured_gain"].as_f64().unwrap() > 0.3, "{kept}");
    let correct = |round: &Value| round["correct_primaries"] == round["predicted_primaries"];
    assert!(rounds.iter().all(correct), "{rounds:?}");
    cluster.assert_unchanged();
}

#[test]
fn interrupted_balancer_restores_the_affinities() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    running.signal(Signal::INT);
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    cluster.assert_unchanged();
}

#[test]
fn balancer_survives_rounds_that_fail_and_still_restores() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    cluster.runner.write("denied", "osd stat\n");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !cluster.runner.path("was-denied").exists() {
        assert!(Instant::now() < deadline, "no round");
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::remove_file(cluster.runner.path("denied")).unwrap();
    running.signal(Signal::INT);
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(output.err.contains("EACCES: access denied; trying again"), "{}", output.err);
    cluster.assert_unchanged();
}

#[test]
fn killed_balancer_leaves_a_journal_from_which_the_affinities_are_restored() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    running.signal(Signal::KILL);
    running.wait_for_output();
    let output = cluster.run("restore", &[]);
    assert!(String::from_utf8(output.out).unwrap().starts_with("restored the affinities of"));
    cluster.assert_unchanged();
    let output = cluster.run("restore", &[]);
    assert!(output.status.success());
    assert!(String::from_utf8(output.out).unwrap().starts_with("nothing to restore"));
}

#[test]
fn second_balancer_ends_while_the_first_runs() {
    let Some(cluster) = Cluster::start() else { return };
    let first = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.5"]));
    cluster.wait_for_changes();
    let second = cluster.run("ceph", &["--duration", "1"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(second.err.contains("balances this cluster already; stop it first"), "{}", second.err);
    first.signal(Signal::TERM);
    first.wait_for_output();
    cluster.assert_unchanged();
}

#[test]
fn obstacles_are_named_and_nothing_changes() {
    for (field, value, expected) in [
        ("health", json!("HEALTH_ERR"), "the cluster is in HEALTH_ERR (SIMULATED); repair it first"),
        ("up", json!([1, 1, 1, 0]), "osd.3 down: Ceph is about to move data"),
        ("versions", json!({"16": 5, "17": 1}), "the daemons run 2 different versions of Ceph"),
        ("pool_type", json!(3), "no replicated pool without a cache tier"),
        (
            "config",
            json!([{"section": "client", "name": "rados_replica_read_policy", "value": "balance"}]),
            "clients read with rados_replica_read_policy = balance",
        ),
    ] {
        let Some(cluster) = Cluster::start() else { return };
        let cluster = cluster.with(field, value);
        let output = cluster.run("ceph", &["--interval", "0.3", "--duration", "1"]);
        let text = String::from_utf8(output.out).unwrap();
        assert!(text.contains(&format!("nothing is done: {expected}")), "{field}: {text} {}", output.err);
        assert_eq!(cluster.state()["changes"], 0, "{field}");
        cluster.assert_unchanged();
    }
}

#[test]
fn unreachable_or_forbidden_clusters_fail_with_what_to_do() {
    let Some(cluster) = Cluster::start() else { return };
    let cluster = cluster.with("deny", json!(["config-key get"]));
    let output = cluster.run("ceph", &["--duration", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.err.contains("\"ceph config-key get"), "{}", output.err);
    assert!(output.err.contains("failed: EACCES: access denied"), "{}", output.err);
    cluster.assert_unchanged();
    fs::remove_file(cluster.runner.path("state.json")).unwrap();
    let output = cluster.run("explain", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.err.contains("error connecting to the cluster"), "{}", output.err);
    assert!(output.err.contains("check --conf, --id"), "{}", output.err);
}
