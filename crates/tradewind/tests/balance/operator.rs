//! Affinities that an operator sets while a balancer runs: the balancer neither changes nor restores them.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Cluster, rounds};

const JOURNAL: &str = "tradewind/balance/journal";

impl Cluster {
    /// Runs a command of the cluster as an operator does, beside the balancer.
    fn operate(&self, command: &str) {
        let ceph = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/balance/ceph");
        let mut process = Command::new(ceph);
        process.arg("--conf").arg(self.runner.path("ceph.conf")).stdin(Stdio::piped());
        process.current_dir(self.runner.path(".")).stderr(Stdio::null());
        let mut process = process.spawn().unwrap();
        writeln!(process.stdin.take().unwrap(), "{command}").unwrap();
        assert!(process.wait().unwrap().success());
    }

    pub(super) fn set_affinity(&self, osd: usize, affinity: f64) {
        self.operate(&format!("osd primary-affinity osd.{osd} {affinity}"));
    }

    fn affinity(&self, osd: usize) -> f64 {
        self.state()["affinities"][osd].as_f64().unwrap()
    }

    /// An OSD whose affinity the balancer has lowered, once the step is complete.
    fn wait_for_lowered_osd(&self) -> usize {
        self.wait_for_changes();
        self.wait_until_calm();
        (0..4).find(|osd| self.affinity(*osd) < 1.0).unwrap()
    }

    /// Waits until the journal has what the condition asks for.
    pub(super) fn wait_for_journal(&self, is_reached: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let state = self.state();
            let journal = state["keys"][JOURNAL].as_str().map(|text| serde_json::from_str(text).unwrap());
            if journal.as_ref().is_some_and(&is_reached) {
                return;
            }
            assert!(Instant::now() < deadline, "{journal:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// All affinities are 1, except that of one OSD.
    fn assert_only_changed(&self, osd: usize, affinity: f64) {
        let mut expected = json!([1.0, 1.0, 1.0, 1.0]);
        expected[osd] = json!(affinity);
        assert_eq!(self.state()["affinities"], expected);
        assert_eq!(self.state()["keys"].get(JOURNAL), None);
    }
}

#[test]
fn operators_affinity_survives_the_end_of_the_balancer() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    let osd = cluster.wait_for_lowered_osd();
    cluster.set_affinity(osd, 0.0);
    running.signal(Signal::INT);
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let expected = format!("osd.{osd} keeps the affinity 0, which another command set");
    assert!(output.err.contains(&expected), "{}", output.err);
    cluster.assert_only_changed(osd, 0.0);
}

#[test]
fn operators_affinity_survives_a_restore_after_a_kill() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    let osd = cluster.wait_for_lowered_osd();
    running.signal(Signal::KILL);
    running.wait_for_output();
    cluster.set_affinity(osd, 0.25);
    let status = cluster.run("status", &[]);
    let text = String::from_utf8(status.out).unwrap();
    assert!(text.contains(&format!("osd.{osd}: another command set the affinity 16/64")), "{text}");
    let output = cluster.run("restore", &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.out).unwrap();
    assert!(text.contains(&format!("osd.{osd} keeps the affinity 16/64")), "{text}");
    cluster.assert_only_changed(osd, 0.25);
}

#[test]
fn operators_affinity_survives_the_start_of_the_next_balancer() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    let osd = cluster.wait_for_lowered_osd();
    running.signal(Signal::KILL);
    running.wait_for_output();
    cluster.set_affinity(osd, 0.0);
    let output = cluster.run("ceph", &["--interval", "0.3", "--duration", "1"]);
    assert!(output.status.success(), "{output:?}");
    let expected = format!("osd.{osd}: another command set the affinity 0 since the last balancer");
    assert!(output.err.contains(&expected), "{}", output.err);
    cluster.assert_only_changed(osd, 0.0);
}

#[test]
fn operators_affinity_is_left_alone_while_the_balancer_runs() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3", "--json"]));
    let osd = cluster.wait_for_lowered_osd();
    // An OSD that the balancer may not have touched, too.
    let other = (0..4).find(|other| *other != osd).unwrap();
    cluster.set_affinity(osd, 0.3);
    cluster.set_affinity(other, 0.7);
    cluster.wait_for_journal(|journal| {
        let operators = journal["operators"].as_array();
        operators.is_some_and(|osds| osds.contains(&json!(osd)) && osds.contains(&json!(other)))
    });
    let status = cluster.run("status", &["--json"]);
    let status: Value = serde_json::from_slice(&status.out).unwrap();
    let named: Vec<&Value> = status["operator_osds"].as_array().unwrap().iter().collect();
    assert!(named.contains(&&json!(osd)) && named.contains(&&json!(other)), "{status}");
    running.signal(Signal::INT);
    let output = running.wait_for_output();
    assert!(
        output.err.contains(&format!("osd.{osd}: another command set the affinity 0.3")),
        "{}",
        output.err
    );
    let state = cluster.state();
    assert_eq!((cluster.affinity(osd), cluster.affinity(other)), (0.3, 0.7), "{state}");
    for round in rounds(&output) {
        for osd in round["osds"].as_array().unwrap() {
            let is_operators =
                [0.3, 0.7].iter().any(|ratio| (osd["affinity"].as_f64().unwrap() - ratio).abs() < 1e-4);
            assert!(!is_operators || osd["affinity"] == osd["next_affinity"], "{round}");
        }
    }
}

#[test]
fn value_from_before_the_step_is_the_operators_afterwards() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    let osd = cluster.wait_for_lowered_osd();
    cluster.set_affinity(osd, 1.0);
    cluster.wait_for_journal(|journal| journal["operators"] == json!([osd]));
    running.signal(Signal::INT);
    running.wait_for_output();
    cluster.assert_only_changed(osd, 1.0);
}

#[test]
fn step_that_a_crash_cut_short_is_restored() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_lowered_osd();
    running.signal(Signal::KILL);
    running.wait_for_output();
    // As if the process had ended during its second step: osd.0 has its new value, and osd.1
    // the earlier one.
    let mut state = cluster.state();
    let mut journal: Value = serde_json::from_str(state["keys"][JOURNAL].as_str().unwrap()).unwrap();
    journal["set"] = json!({"0": [16_384, 49_152], "1": [16_384, 49_152]});
    journal.as_object_mut().unwrap().remove("checksum");
    state["keys"][JOURNAL] = json!(journal.to_string());
    state["affinities"] = json!([0.25, 0.75, 1.0, 1.0]);
    cluster.write(&state);
    let output = cluster.run("restore", &[]);
    assert!(output.status.success(), "{output:?}");
    cluster.assert_unchanged();
}

#[test]
fn affinity_set_while_others_are_restored_is_kept() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    let osd = cluster.wait_for_lowered_osd();
    running.signal(Signal::KILL);
    running.wait_for_output();
    let cluster = cluster.with("next", json!({"after": "osd dump", "affinities": {osd.to_string(): 0.3}}));
    let output = cluster.run("restore", &[]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.out).unwrap();
    assert!(text.contains(&format!("osd.{osd} keeps the affinity 0.3")), "{text}");
    cluster.assert_only_changed(osd, 0.3);
}
