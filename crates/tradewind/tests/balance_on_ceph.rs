//! `tradewind balance` on a real Ceph cluster: three monitors, and four OSDs of which two are slow
//! (`experiments/lib/ceph-cluster`).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use support::command_runner::CommandRunner;
use support::skip;

const OSDS: usize = 4;
/// Time in which a step must be made, on a loaded machine too.
const STEP_TIMEOUT: Duration = Duration::from_secs(150);
/// Time in which a balancer must end, on a loaded machine and while monitors elect a leader.
const END_TIMEOUT: Duration = Duration::from_secs(120);

struct Cluster {
    directory: tempfile::TempDir,
    reads: Option<Child>,
}

impl Cluster {
    /// `None`, with the reason reported, if Ceph or what the script needs is missing.
    fn start(test: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let output = script("up", directory.path(), &[&OSDS.to_string()]);
        if output.status.code() == Some(77) {
            skip(test, String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut cluster = Self { directory, reads: None };
        cluster.ceph(&["osd", "pool", "create", "data", "32", "32"]);
        cluster.rados_bench(&["6", "write", "-t", "8", "-b", "1048576", "--no-cleanup"]).wait().unwrap();
        for (osd, mbps) in ["40", "40", "4", "4"].iter().enumerate() {
            let limited = script("speed", cluster.directory.path(), &[&osd.to_string(), mbps]);
            assert!(limited.status.success(), "{limited:?}");
        }
        cluster.reads = Some(cluster.rados_bench(&["600", "rand", "-t", "16"]));
        Some(cluster)
    }

    fn conf(&self) -> PathBuf {
        self.directory.path().join("ceph.conf")
    }

    fn ceph(&self, words: &[&str]) -> Output {
        let output = Command::new("ceph").arg("--conf").arg(self.conf()).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    }

    fn rados_bench(&self, arguments: &[&str]) -> Child {
        let mut command = Command::new("rados");
        command.arg("--conf").arg(self.conf()).args(["-p", "data", "bench"]).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn affinities(&self) -> Vec<f64> {
        let dump = self.ceph(&["osd", "dump", "--format", "json"]);
        let dump: Value = serde_json::from_slice(&dump.stdout).unwrap();
        let osds = dump["osds"].as_array().unwrap().iter();
        osds.map(|osd| osd["primary_affinity"].as_f64().unwrap()).collect()
    }

    fn wait_for_step(&self) {
        let deadline = Instant::now() + STEP_TIMEOUT;
        while self.affinities() == [1.0; OSDS] {
            assert!(Instant::now() < deadline, "no affinity was set");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Kills the monitor that leads the others.
    fn kill_leading_monitor(&self) {
        let file = self.directory.path().join("run/mon.m0.pid");
        let id = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::KILL).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut reads) = self.reads.take() {
            let _ = reads.kill();
            let _ = reads.wait();
        }
        script("down", self.directory.path(), &[]);
    }
}

fn script(command: &str, directory: &Path, others: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut script = Command::new(root.join("experiments/lib/ceph-cluster"));
    script.arg(command).arg(directory).args(others).env("MONITORS", "3").env("OSD_GIB", "2").output().unwrap()
}

#[test]
fn affinities_are_restored_after_a_kill_and_through_a_failover_of_monitors() {
    let Some(cluster) = Cluster::start("affinities_are_restored_after_a_kill") else { return };
    let runner = CommandRunner::new("127.0.0.1:1".parse().unwrap());
    let conf = cluster.conf();
    let conf = conf.to_str().unwrap();

    let killed = runner.spawn(&["balance", "ceph", "--conf", conf]).with_timeout(STEP_TIMEOUT + END_TIMEOUT);
    cluster.wait_for_step();
    killed.signal(Signal::KILL);
    killed.wait_for_output();
    let restored =
        runner.spawn(&["balance", "restore", "--conf", conf]).with_timeout(END_TIMEOUT).wait_for_output();
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(cluster.affinities(), [1.0; OSDS]);

    let running =
        runner.spawn(&["balance", "ceph", "--json", "--conf", conf]).with_timeout(STEP_TIMEOUT + END_TIMEOUT);
    cluster.wait_for_step();
    cluster.kill_leading_monitor();
    running.signal(Signal::INT);
    let output = running.wait_for_output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(cluster.affinities(), [1.0; OSDS], "{}", output.err);
    let rounds = String::from_utf8(output.out).unwrap();
    let last: Value = serde_json::from_str(rounds.lines().last().unwrap()).unwrap();
    assert!(last["predicted_primaries"].as_u64().unwrap() >= 32, "{last}");
    let nothing =
        runner.spawn(&["balance", "restore", "--conf", conf]).with_timeout(END_TIMEOUT).wait_for_output();
    assert!(String::from_utf8(nothing.out).unwrap().starts_with("nothing to restore"));
}
