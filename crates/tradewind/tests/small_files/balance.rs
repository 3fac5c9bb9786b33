//! The journal of the balancer, which the monitors of the cluster keep: a program takes the place of `ceph`.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::support::command_runner::CommandRunner;
use super::support::skip;

const KEY: &str = "tradewind/balance/journal";

/// A journal that cannot be read says nothing about the affinities: none is changed.
#[test]
fn balance_journal_that_cannot_be_read_changes_no_affinity() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("the journal of the balancer", "there is no python3");
    }
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/balance");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let runner = CommandRunner::new("127.0.0.1:1".parse().unwrap()).with_variable("PATH", &path);
    let affinities = json!([1.0, 1.0, 0.5, 1.0]);
    let state = |keys: Value| {
        json!({
            "epoch": 1, "affinities": affinities, "up": [1, 1, 1, 1], "rates": [200.0, 200.0, 50.0, 50.0],
            "reads": [0.0, 0.0, 0.0, 0.0], "latencies": [0.0, 0.0, 0.0, 0.0], "at": 0.0, "pool_type": 1,
            "is_skewed": false, "reads_replicas": false, "keys": keys, "health": "HEALTH_OK",
            "versions": {"16.2.15": 6}, "config": [], "deny": [], "changes": 0,
            "hosts": ["node-a", "node-a", "node-b", "node-b"], "device": "",
        })
    };
    let journals = [
        None,
        Some(""),
        Some("{\"version\":1,\"owner\":\"balancer\",\"heartbeat\":1,\"orig"),
        Some("{\"version\":1,\"owner\":\"balancer\",\"heartbeat\":1,\"originals\":{\"2\":\"65536\"}}"),
        Some("{\"version\":99,\"owner\":\"balancer\",\"heartbeat\":1,\"originals\":{\"2\":65536}}"),
    ];
    for journal in journals {
        let keys = journal.map_or_else(|| json!({}), |text| json!({ KEY: text }));
        runner.write("state.json", state(keys.clone()).to_string());
        let ran = runner.run(&["balance", "restore", "--conf", "ceph.conf"]);
        let after: Value =
            serde_json::from_slice(&std::fs::read(runner.path("state.json")).unwrap()).unwrap();
        assert_eq!(after["affinities"], affinities, "{journal:?}: {ran:?}");
        assert_eq!(after["keys"], keys, "{journal:?}: {ran:?}");
        match journal {
            None => assert!(ran.status.success(), "{ran:?}"),
            Some(_) => {
                assert_eq!(ran.status.code(), Some(1), "{journal:?}: {ran:?}");
                assert!(ran.err.contains(KEY), "{journal:?}: {}", ran.err);
            }
        }
    }
}
