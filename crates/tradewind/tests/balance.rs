//! `tradewind balance` on a simulated cluster: a program that takes the place of the command `ceph`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[path = "balance/agents.rs"]
mod agents;
#[path = "balance/exclusion.rs"]
mod exclusion;
#[path = "balance/hanging.rs"]
mod hanging;
#[path = "balance/metrics.rs"]
mod metrics;
#[path = "balance/operator.rs"]
mod operator;
#[path = "balance/status.rs"]
mod status;
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
            "is_skewed": false, "reads_replicas": false, "keys": {}, "health": "HEALTH_OK", "versions": {"16.2.15": 6},
            "config": [], "deny": [], "changes": 0, "hosts": ["node-a", "node-a", "node-b", "node-b"], "device": "",
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

    /// Waits until nothing has changed for a while, so that no step is half done.
    fn wait_until_calm(&self) {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut state = self.state();
        loop {
            std::thread::sleep(Duration::from_millis(1500));
            let next = self.state();
            if next["changes"] == state["changes"] {
                return;
            }
            assert!(Instant::now() < deadline, "affinities change all the time");
            state = next;
        }
    }

    /// All affinities are 1, and no journal is left. The record of the last step may be.
    fn assert_unchanged(&self) {
        let state = self.state();
        assert_eq!(state["affinities"], json!([1.0, 1.0, 1.0, 1.0]));
        let mut keys = state["keys"].as_object().unwrap().clone();
        keys.remove("tradewind/balance/last-step");
        assert!(keys.is_empty(), "{keys:?}");
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
    assert!(text.contains("osd.3") && text.contains("1 -> ") && text.contains("/64"), "{text}");
    assert!(text.contains("host node-b is slow as a whole: 2 of its 2 OSDs"), "{text}");
    assert!(text.contains("await ms") && text.contains("busy %") && text.contains("PSI %"), "{text}");
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
fn ctrl_c_in_a_terminal_restores_the_affinities() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    // A terminal signals the whole process group, with the processes of `ceph` that are in it.
    running.signal_group(Signal::INT);
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    cluster.assert_unchanged();
}

#[test]
fn balancer_with_a_closed_output_restores_the_affinities() {
    let Some(cluster) = Cluster::start() else { return };
    let mut running =
        cluster.runner.spawn_unread(&cluster.arguments("ceph", &["--json", "--interval", "0.3"]));
    cluster.wait_for_changes();
    drop(running.take_stdout());
    let output = running.wait_for_output();
    assert!(!output.status.success(), "{output:?}");
    cluster.assert_unchanged();
}

#[test]
fn balancer_stops_when_another_command_restores_the_affinities() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    cluster.wait_until_calm();
    assert!(cluster.run("restore", &[]).status.success());
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.err.contains("restored by another command; the balancer stops"), "{}", output.err);
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
fn journal_that_appears_during_the_start_is_left_alone() {
    let Some(cluster) = Cluster::start() else { return };
    let journal =
        json!({"version": 2, "owner": "process 1 on another host", "heartbeat": 1, "originals": {}})
            .to_string();
    let keys = json!({"tradewind/balance/journal": journal});
    let cluster = cluster.with("next", json!({"after": "pg dump", "keys": keys}));
    let output = cluster.run("ceph", &["--duration", "1"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.err.contains("process 1 on another host balances this cluster already"), "{}", output.err);
    assert_eq!(cluster.state()["keys"], keys);
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
fn reads_from_all_replicas_are_seen_although_no_configuration_shows_them() {
    let Some(cluster) = Cluster::start() else { return };
    let cluster = cluster.with("is_skewed", json!(true)).with("reads_replicas", json!(true));
    let output = cluster.run("ceph", &["--interval", "1", "--duration", "8", "--dry-run", "--json"]);
    let rounds = rounds(&output);
    let explanation = rounds.last().unwrap()["explanation"].as_str().unwrap();
    assert!(explanation.contains("clients read from all replicas, not only from the primary"), "{rounds:?}");
}

#[test]
fn journal_of_another_balancer_is_not_restored() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    cluster.wait_until_calm();
    running.signal(Signal::STOP);
    cluster.wait_until_calm();
    // While the process stands still, another host takes over.
    let mut state = cluster.state();
    let journal = state["keys"]["tradewind/balance/journal"].as_str().unwrap();
    let mut journal: Value = serde_json::from_str(journal).unwrap();
    journal["owner"] = json!("process 1 on another host");
    state["keys"]["tradewind/balance/journal"] = json!(journal.to_string());
    cluster.write(&state);
    running.signal(Signal::CONT);
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.err.contains("process 1 on another host balances this cluster now"), "{}", output.err);
    let after = cluster.state();
    // The outcome of the last step may be noted before the heartbeat finds out.
    let journal_of = |state: &Value| state["keys"]["tradewind/balance/journal"].clone();
    assert_eq!(journal_of(&after), journal_of(&state));
    assert_eq!(after["affinities"], state["affinities"]);
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
