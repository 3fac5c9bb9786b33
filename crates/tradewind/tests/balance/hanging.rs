//! A monitor that stops responding while a balancer runs.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

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
