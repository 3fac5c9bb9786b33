//! OSDs that a user excludes.

use serde_json::{Value, json};

use super::{Cluster, rounds};

/// The OSDs whose affinity any round of a dry run changes.
fn changed_osds(cluster: &Cluster, flags: &[&str]) -> Vec<u64> {
    let others = [&["--dry-run", "--json", "--interval", "0.3", "--duration", "4"], flags].concat();
    let output = cluster.run("ceph", &others);
    assert!(output.status.success(), "{output:?}");
    let rounds = rounds(&output);
    let osds = rounds.iter().flat_map(|round| round["osds"].as_array().unwrap());
    let changed = osds.filter(|osd| osd["affinity"] != osd["next_affinity"]);
    let mut changed: Vec<u64> = changed.map(|osd| osd["osd"].as_u64().unwrap()).collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

#[test]
fn excluded_osds_and_device_classes_are_left_alone() {
    let Some(cluster) = Cluster::start() else { return };
    let cluster = cluster.with("classes", json!(["hdd", "hdd", "ssd", "hdd"]));
    let cluster = cluster.with("rates", json!([200.0, 200.0, 100.0, 50.0]));
    for excluded in ["osd.2", "ssd"] {
        let changed = changed_osds(&cluster, &["--exclude", excluded]);
        assert!(!changed.contains(&2) && changed.contains(&3), "{excluded}: {changed:?}");
    }
    let changed = changed_osds(&cluster, &["--exclude", "3"]);
    assert!(!changed.contains(&3), "{changed:?}");
}

#[test]
fn osds_of_an_excluded_pool_are_left_alone() {
    let Some(cluster) = Cluster::start() else { return };
    let others = ["--interval", "0.3", "--duration", "2", "--exclude-pool", "data"];
    let output = cluster.run("ceph", &others);
    let text = String::from_utf8(output.out).unwrap();
    assert!(text.contains("nothing is done: every OSD is excluded"), "{text} {}", output.err);
    assert_eq!(cluster.state()["changes"], 0);
    cluster.assert_unchanged();
}

#[test]
fn misspelled_exclusion_is_rejected_before_anything_changes() {
    let Some(cluster) = Cluster::start() else { return };
    for (flags, expected) in [
        (["--exclude", "osd.9"], "cannot exclude osd.9: the cluster has none; check its name"),
        (["--exclude", "sdd"], "cannot exclude the device class sdd"),
        (["--exclude-pool", "date"], "cannot exclude the pool date"),
    ] {
        for command in ["explain", "ceph"] {
            let output = cluster.run(command, &flags);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            assert!(output.err.contains(expected), "{}", output.err);
        }
    }
    assert_eq!(cluster.state()["keys"], Value::Object(serde_json::Map::new()));
}
