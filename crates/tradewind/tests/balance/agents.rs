//! Agents of hosts of the simulated cluster. The admin sockets of its OSDs are those of this test.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::command_runner::RunningCommand;
use super::{Cluster, rounds};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The flags of a command that uses the agents.
const AGENT_FLAGS: [&str; 4] = ["--agents", "agents", "--key", "balancer.key"];

/// A running agent and its line in the list of agents.
pub(super) struct Agent {
    running: RunningCommand,
    line: String,
}

impl Cluster {
    /// Answers `perf dump` on the admin sockets of these OSDs, from the state of the cluster.
    fn serve_admin_sockets(&self, osds: &[u32]) {
        let ceph = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/balance/ceph");
        fs::create_dir_all(self.runner.path("sockets")).unwrap();
        for osd in osds {
            let listener = UnixListener::bind(self.runner.path(format!("sockets/osd.{osd}.asok"))).unwrap();
            let (ceph, conf) = (ceph.clone(), self.runner.path("ceph.conf"));
            let target = format!("osd.{osd}");
            std::thread::spawn(move || {
                for socket in listener.incoming() {
                    let mut socket = socket.unwrap();
                    let mut request = [0; 64];
                    let count = socket.read(&mut request).unwrap();
                    assert_eq!(&request[..count], b"{\"prefix\":\"perf dump\"}\0");
                    let mut command = Command::new(&ceph);
                    command.arg("--conf").arg(&conf).args(["daemon", &target, "perf", "dump"]);
                    let dump = command.output().unwrap().stdout;
                    // The balancer may have ended meanwhile.
                    let _ = socket.write_all(&u32::try_from(dump.len()).unwrap().to_be_bytes());
                    let _ = socket.write_all(&dump);
                }
            });
        }
    }

    fn create_key(&self, file: &str) -> String {
        let output = self.runner.run_ok(&["balance", "key", file]);
        output.trim().to_owned()
    }

    /// Starts an agent that accepts one peer.
    pub(super) fn start_agent(&self, host: &str, peer: &str) -> Agent {
        self.start_agent_on("127.0.0.1:0", host, peer)
    }

    fn start_agent_on(&self, address: &str, host: &str, peer: &str) -> Agent {
        let key = format!("{host}.key");
        let fingerprint = self.create_key(&key);
        let mut running = self.runner.spawn_unread(&[
            "balance",
            "agent",
            "--listen",
            address,
            "--key",
            &key,
            "--peer",
            peer,
            "--conf",
            "ceph.conf",
        ]);
        let mut out = BufReader::new(running.take_stdout());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{line:?}"));
        assert!(line.trim_end().ends_with(&fingerprint), "{line}");
        let line = format!("{host} {address} {fingerprint}\n");
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        Agent { running, line }
    }

    fn list_agents(&self, lines: &[&str]) {
        self.runner.write("agents", lines.concat());
    }

    /// A cluster whose commands `tell` fail: counters can only come from admin sockets.
    fn start_without_tell() -> Option<Self> {
        let cluster = Self::start()?;
        Some(cluster.with("is_tell_denied", json!(true)))
    }
}

/// A block device of this machine; empty if it has none.
fn any_device() -> String {
    let mut devices = fs::read_dir("/sys/class/block").into_iter().flatten();
    let name = devices.next().map(|device| device.unwrap().file_name());
    name.map_or_else(String::new, |name| name.into_string().unwrap())
}

#[test]
fn agents_report_the_osds_of_their_hosts() {
    let Some(cluster) = Cluster::start_without_tell() else { return };
    let device = any_device();
    let cluster = cluster.with("device", json!(device));
    cluster.serve_admin_sockets(&[0, 1, 2, 3]);
    let balancer = cluster.create_key("balancer.key");
    let agents = ["node-a", "node-b"].map(|host| cluster.start_agent(host, &balancer));
    cluster.list_agents(&["# agents\n", &agents[0].line, &agents[1].line]);
    let output = cluster.run("explain", &[&AGENT_FLAGS[..], &["--interval", "0.5"]].concat());
    let text = String::from_utf8(output.out.clone()).unwrap();
    assert!(text.contains("would set new affinities: predicted throughput +"), "{text} {}", output.err);
    assert!(text.contains("host node-b is slow as a whole"), "{text}");
    let output = cluster.run("explain", &[&AGENT_FLAGS[..], &["--interval", "0.5", "--json"]].concat());
    let round = &rounds(&output)[0];
    let osd = &round["osds"][2];
    assert_eq!(osd["host"], "node-b", "{round}");
    assert!(osd["host_iowait_percent"].is_number(), "{round}");
    assert_eq!(osd["device_busy"].is_number(), !device.is_empty(), "{round}");
    assert!(osd.get("device_await_ms").is_some(), "{round}");
    assert_eq!(round["slow_hosts"], json!(["node-b"]));
    assert!(osd.get("host_io_pressure_percent").is_some(), "{round}");
    cluster.assert_unchanged();
}

#[test]
fn host_without_an_agent_is_read_by_tell() {
    let Some(cluster) = Cluster::start() else { return };
    let balancer = cluster.create_key("balancer.key");
    let agent = {
        cluster.serve_admin_sockets(&[0, 1]);
        cluster.start_agent("node-a", &balancer)
    };
    cluster.list_agents(&[&agent.line]);
    let output = cluster.run("explain", &[&AGENT_FLAGS[..], &["--interval", "0.5", "--json"]].concat());
    let round = &rounds(&output)[0];
    assert_eq!(round["decision"], "set", "{round}");
    assert!(round["osds"][0]["host_iowait_percent"].is_number(), "{round}");
    assert_eq!(round["osds"][2]["host_iowait_percent"], json!(null), "another host");
}

#[test]
fn killed_agent_stops_decisions_until_it_is_back() {
    let Some(cluster) = Cluster::start_without_tell() else { return };
    cluster.serve_admin_sockets(&[0, 1, 2, 3]);
    let balancer = cluster.create_key("balancer.key");
    let agents = ["node-a", "node-b"].map(|host| cluster.start_agent(host, &balancer));
    cluster.list_agents(&[&agents[0].line, &agents[1].line]);
    let others = [&AGENT_FLAGS[..], &["--json", "--interval", "0.3", "--dry-run"]].concat();
    let mut running = cluster.runner.spawn_unread(&cluster.arguments("ceph", &others));
    let lines = BufReader::new(running.take_stdout()).lines();
    let mut rounds = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let deadline = Instant::now() + TIMEOUT;
    let mut wait_for = |what: &str, is_reached: &dyn Fn(&Value) -> bool| {
        loop {
            let round = rounds.next().unwrap_or_else(|| panic!("the balancer ended before {what}"));
            assert!(Instant::now() < deadline, "{what}: {round}");
            if is_reached(&round) {
                return round;
            }
        }
    };
    wait_for("a decision", &|round| round["decision"] == "set");
    let [_kept, killed] = agents;
    killed.running.signal(Signal::KILL);
    let address = killed.line.split(' ').nth(1).unwrap().to_owned();
    drop(killed);
    let silent = wait_for("silence", &|round| round["silent_osds"] == json!([2, 3]));
    assert_eq!(silent["decision"], "wait", "{silent}");
    let explanation = silent["explanation"].as_str().unwrap();
    let expected =
        format!("nothing is done: no counters from osd.2, osd.3: agent of host node-b ({address}): ");
    assert!(explanation.starts_with(&expected), "{explanation}");
    let _restarted = cluster.start_agent_on(&address, "node-b", &balancer);
    wait_for("the agent's return", &|round| round["silent_osds"] == json!([]));
    wait_for("a decision again", &|round| round["decision"] == "set");
    running.signal(Signal::INT);
    running.wait_for_output();
    assert_eq!(cluster.state()["changes"], 0);
    cluster.assert_unchanged();
}

#[test]
fn agent_that_hangs_costs_one_deadline_and_nothing_is_done() {
    let Some(cluster) = Cluster::start_without_tell() else { return };
    cluster.serve_admin_sockets(&[0, 1]);
    let balancer = cluster.create_key("balancer.key");
    let agent = cluster.start_agent("node-a", &balancer);
    // It accepts connections by its queue, and never answers.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let line = format!("node-b {} {balancer}\n", hanging.local_addr().unwrap());
    cluster.list_agents(&[&agent.line, &line]);
    let start = Instant::now();
    let others = [&AGENT_FLAGS[..], &["--json", "--interval", "0.3", "--duration", "1"]].concat();
    let output = cluster.run("ceph", &others);
    assert!(start.elapsed() < TIMEOUT, "{:?}", start.elapsed());
    let rounds = rounds(&output);
    let explanation = rounds[0]["explanation"].as_str().unwrap();
    assert!(explanation.ends_with("no response in time"), "{explanation}");
    assert_eq!(cluster.state()["changes"], 0);
    cluster.assert_unchanged();
}

#[test]
fn keys_that_do_not_match_are_explained_and_nothing_is_done() {
    let Some(cluster) = Cluster::start_without_tell() else { return };
    cluster.serve_admin_sockets(&[0, 1, 2, 3]);
    let (balancer, stranger) = (cluster.create_key("balancer.key"), cluster.create_key("stranger.key"));
    let rejecting = cluster.start_agent("node-a", &stranger);
    let other = cluster.start_agent("node-b", &balancer);
    let line = other.line.replace(other.line.rsplit(' ').next().unwrap().trim(), &stranger);
    cluster.list_agents(&[&rejecting.line, &line]);
    let output = cluster.run("explain", &[&AGENT_FLAGS[..], &["--interval", "0.2"]].concat());
    let text = String::from_utf8(output.out).unwrap();
    let expected = format!("it does not accept this key; start it with --peer {balancer}");
    assert!(text.contains("osd.0, osd.1: agent of host node-a") && text.contains(&expected), "{text}");
    assert!(text.contains("osd.2, osd.3: agent of host node-b"), "{text}");
    let presented = other.line.rsplit(' ').next().unwrap().trim();
    assert!(text.contains(&format!("its key {presented} is not an accepted one")), "{text}");
    cluster.assert_unchanged();
}

#[test]
fn garbage_does_not_disturb_an_agent() {
    let Some(cluster) = Cluster::start_without_tell() else { return };
    cluster.serve_admin_sockets(&[0, 1, 2, 3]);
    let balancer = cluster.create_key("balancer.key");
    let agents = ["node-a", "node-b"].map(|host| cluster.start_agent(host, &balancer));
    let address = agents[0].line.split(' ').nth(1).unwrap();
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(&[0x16; 4096]).unwrap();
    cluster.list_agents(&[&agents[0].line, &agents[1].line]);
    let output = cluster.run("explain", &[&AGENT_FLAGS[..], &["--interval", "0.5"]].concat());
    let text = String::from_utf8(output.out).unwrap();
    assert!(text.contains("would set new affinities"), "{text}");
    drop(silent);
}

#[test]
fn key_is_created_once_and_not_readable_by_others() {
    let Some(cluster) = Cluster::start() else { return };
    let fingerprint = cluster.create_key("key");
    assert!(fingerprint.starts_with("sha256:"), "{fingerprint}");
    let path = cluster.runner.path("key");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(cluster.create_key("key"), fingerprint);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let output = cluster.runner.run(&["balance", "key", "key"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.err.contains("has permissions 644"), "{}", output.err);
}

#[test]
fn wrong_lists_of_agents_are_explained() {
    let Some(cluster) = Cluster::start() else { return };
    let fingerprint = cluster.create_key("balancer.key");
    for (list, expected) in [
        ("node-a 127.0.0.1:1\n".to_owned(), "agents: line 1: expected HOST ADDRESS:PORT FINGERPRINT"),
        (
            format!("node-c 127.0.0.1:1 {fingerprint}\n"),
            "the list of agents has hosts without OSDs: node-c; hosts with OSDs are node-a, node-b",
        ),
    ] {
        cluster.runner.write("agents", list);
        for command in ["explain", "status", "ceph"] {
            let output = cluster.run(command, &AGENT_FLAGS);
            assert_eq!(output.status.code(), Some(1), "{command}");
            assert!(output.err.contains(expected), "{command}: {}", output.err);
            cluster.assert_unchanged();
        }
    }
    let output = cluster.run("explain", &["--agents", "agents"]);
    assert_eq!(output.status.code(), Some(2), "{}", output.err);
}

#[test]
fn policy_of_the_paper_needs_agents_for_osds_of_other_hosts() {
    let Some(cluster) = Cluster::start() else { return };
    let cluster = cluster.with("device", json!("sda"));
    let output = cluster.run("ceph", &["--policy", "dlr", "--duration", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.err.contains("osd.0 is neither on this host nor on one with an agent"), "{}", output.err);
    cluster.assert_unchanged();
}

#[test]
fn policy_of_the_paper_uses_iowait_if_every_osd_has_its_own_host() {
    let Some(cluster) = Cluster::start_without_tell() else { return };
    let hosts = ["node-a", "node-b", "node-c", "node-d"];
    let cluster = cluster.with("hosts", json!(hosts));
    cluster.serve_admin_sockets(&[0, 1, 2, 3]);
    let balancer = cluster.create_key("balancer.key");
    let agents = hosts.map(|host| cluster.start_agent(host, &balancer));
    cluster.list_agents(&agents.each_ref().map(|agent| agent.line.as_str()));
    let others = [&AGENT_FLAGS[..], &["--json", "--policy", "dlr", "--interval", "1", "--dry-run"]].concat();
    let mut running = cluster.runner.spawn_unread(&cluster.arguments("ceph", &others));
    let deadline = Instant::now() + 2 * TIMEOUT;
    let mut lines = BufReader::new(running.take_stdout()).lines();
    // The algorithm has a round every 20 s.
    let round = loop {
        let round: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if round["signal_source"] != json!(null) {
            break round;
        }
        assert!(Instant::now() < deadline, "{round}");
    };
    assert_eq!(round["signal_source"], "%iowait");
    assert_eq!(round["signals_percent"].as_array().unwrap().len(), 4, "{round}");
    assert!(round["explanation"].as_str().unwrap().ends_with("(signal: %iowait)"), "{round}");
    drop(running);
    cluster.assert_unchanged();
}
