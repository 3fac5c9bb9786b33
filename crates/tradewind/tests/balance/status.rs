//! `tradewind balance status` before, during and after a balancer.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::Cluster;

fn status(cluster: &Cluster) -> Value {
    let output = cluster.run("status", &["--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.out).unwrap()
}

fn text(cluster: &Cluster) -> String {
    let output = cluster.run("status", &[]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.out).unwrap()
}

#[test]
fn status_without_a_balancer_shows_the_osds_and_a_slow_host() {
    let Some(cluster) = Cluster::start() else { return };
    let text = text(&cluster);
    assert!(text.starts_with("no balancer is active\nlast step: none is recorded\n"), "{text}");
    assert!(text.contains("host node-b is slow as a whole: 2 of its 2 OSDs"), "{text}");
    assert!(text.contains("osd.3"), "{text}");
    assert_eq!(cluster.state()["changes"], 0);
    cluster.assert_unchanged();
}

#[test]
fn record_of_another_version_is_ignored() {
    let Some(cluster) = Cluster::start() else { return };
    let cluster =
        cluster.with("keys", json!({"tradewind/balance/last-step": "{\"version\":2,\"gains\":[]}"}));
    assert!(text(&cluster).contains("last step: none is recorded"));
}

#[test]
fn status_shows_a_running_balancer_and_afterwards_what_it_gained() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.4"]));
    cluster.wait_for_changes();
    let during = status(&cluster);
    let balancer = &during["balancer"];
    assert_eq!(balancer["is_alive"], true, "{during}");
    assert!(balancer["owner"].as_str().unwrap().starts_with("process "), "{during}");
    assert!(balancer["started_at_unix_seconds"].as_u64().unwrap() > 1_700_000_000, "{during}");
    assert!(during["last_step"]["predicted_gain"].as_f64().unwrap() > 0.3, "{during}");
    let osds = during["osds"].as_array().unwrap();
    assert!(osds.iter().all(|osd| osd["original_affinity"] == 1.0), "{during}");
    assert!(osds[3]["affinity"].as_f64().unwrap() < 0.9, "{during}");
    let shares = |field: &str| osds.iter().map(|osd| osd[field].as_f64().unwrap()).collect::<Vec<_>>();
    let (original, now) = (shares("original_share"), shares("share"));
    assert!((original.iter().sum::<f64>() - 1.0).abs() < 1e-3, "{original:?}");
    assert!((now.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{now:?}");
    // All primaries are spread evenly without a balancer.
    assert!(original.iter().all(|share| (0.15..0.35).contains(share)), "{original:?}");
    assert!(now[2] + now[3] < 0.8 * (original[2] + original[3]), "{original:?} {now:?}");
    running.signal(Signal::INT);
    running.wait_for_output();
    let after = status(&cluster);
    assert_eq!(after["balancer"], json!(null), "{after}");
    assert!(after["last_step"]["set_at_unix_seconds"].is_number(), "{after}");
    let text = text(&cluster);
    assert!(text.starts_with("no balancer is active\nlast step: "), "{text}");
    assert!(text.contains("predicted +"), "{text}");
    cluster.assert_unchanged();
}

#[test]
fn balancer_with_a_long_interval_is_alive() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "300"]));
    let deadline = Instant::now() + Duration::from_secs(60);
    while cluster.state()["keys"] == json!({}) {
        assert!(Instant::now() < deadline, "no journal");
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = status(&cluster);
    assert_eq!(status["balancer"]["is_alive"], true, "{status}");
    running.signal(Signal::INT);
    running.wait_for_output();
    cluster.assert_unchanged();
}

#[test]
fn status_tells_that_a_balancer_was_killed() {
    let Some(cluster) = Cluster::start() else { return };
    let running = cluster.runner.spawn(&cluster.arguments("ceph", &["--interval", "0.3"]));
    cluster.wait_for_changes();
    running.signal(Signal::KILL);
    running.wait_for_output();
    let text = text(&cluster);
    assert!(text.starts_with("a balancer has ended without restoring the affinities: process "), "{text}");
    assert!(text.contains("tradewind balance restore"), "{text}");
    assert!(text.contains("1 -> ") && text.contains("/64"), "{text}");
    assert!(cluster.run("restore", &[]).status.success());
    cluster.assert_unchanged();
}

#[test]
fn measured_gain_is_recorded_in_the_cluster() {
    let Some(cluster) = Cluster::start() else { return };
    let output = cluster.run("ceph", &["--interval", "0.5", "--duration", "20"]);
    assert!(output.status.success(), "{output:?}");
    let state = cluster.state();
    let step: Value =
        serde_json::from_str(state["keys"]["tradewind/balance/last-step"].as_str().unwrap()).unwrap();
    assert_eq!(step["state"], "kept", "{step}");
    assert!(step["measured_gain"].as_f64().unwrap() > 0.3, "{step}");
    assert!(step["predicted_gain"].as_f64().unwrap() > 0.3, "{step}");
    assert_eq!(step["original_shares"].as_object().unwrap().len(), 4, "{step}");
}

#[test]
fn record_that_cannot_be_written_does_not_stop_the_balancer() {
    let Some(cluster) = Cluster::start() else { return };
    let cluster = cluster.with("deny_key", json!("tradewind/balance/last-step"));
    let output = cluster.run("ceph", &["--interval", "0.5", "--duration", "15"]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.err.contains("the last step is not recorded: "), "{}", output.err);
    assert!(output.err.contains("restored the affinities of"), "{}", output.err);
    cluster.assert_unchanged();
}
