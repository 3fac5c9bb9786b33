//! A monitor that stops responding while a balancer runs.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::Cluster;

impl Cluster {
    fn hang(&self) {
        self.runner.write("hangs", "");
    }

    fn respond_again(&self) {
        fs::remove_file(self.runner.path("hangs")).unwrap();
    }
}

#[test]
fn second_interrupt_ends_a_balancer_whose_monitor_hangs() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    cluster.wait_until_calm();
    cluster.hang();
    // The poll of the epoch is a round that takes long.
    std::thread::sleep(Duration::from_secs(28));
    running.signal(Signal::INT);
    std::thread::sleep(Duration::from_secs(10));
    running.signal(Signal::INT);
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    for expected in [
        "this round has taken 5 s so far; the cluster has not responded to \"ceph ",
        "the affinities are not restored yet; the cluster has not responded to \"ceph ",
        "interrupt once more",
        "ended without restoring the affinities; run \"tradewind balance restore\"",
    ] {
        assert!(output.err.contains(expected), "{expected}: {}", output.err);
    }
    cluster.respond_again();
    assert!(cluster.run("restore", &[]).status.success());
    cluster.assert_unchanged();
}

#[test]
fn interrupted_balancer_restores_once_its_monitor_responds_again() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    cluster.wait_until_calm();
    cluster.hang();
    running.signal(Signal::INT);
    std::thread::sleep(Duration::from_secs(9));
    cluster.respond_again();
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(output.err.contains("the affinities are not restored yet"), "{}", output.err);
    cluster.assert_unchanged();
}

#[test]
fn values_of_a_late_change_stay_the_balancers_after_the_next_step() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.runner.write("late", "osd primary-affinity");
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    // The first step fails. A record exists once the second is complete.
    let deadline = Instant::now() + Duration::from_secs(120);
    while cluster.state()["keys"].get("tradewind/balance/last-step").is_none() {
        assert!(Instant::now() < deadline, "no step");
        std::thread::sleep(Duration::from_millis(100));
    }
    let state = cluster.state();
    let osd = state["affinities"].as_array().unwrap().iter().position(|affinity| *affinity != 1.0).unwrap();
    cluster.wait_for_journal(|journal| {
        let values = journal["set"][osd.to_string()].as_array().unwrap();
        values.len() > 1 && values.contains(&json!(65_536))
    });
    // As if the cluster had carried the change out now that takes the first step back.
    cluster.set_affinity(osd, 1.0);
    std::thread::sleep(Duration::from_secs(1));
    running.signal(Signal::INT);
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(output.err.contains("no response to \"ceph osd primary-affinity"), "{}", output.err);
    assert!(!output.err.contains("another command set"), "{}", output.err);
    cluster.assert_unchanged();
}
