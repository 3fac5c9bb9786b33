//! `tradewind tune --workload`: only sizes that are really there.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::support::scene::Scene;
use super::tune;

/// What is said of the sizes of one direction, and those that were tried.
fn sizes(said: &str, kind: &str, direction: &str) -> BTreeSet<u64> {
    let lines = said.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let of = lines.filter(|line| line["line"] == kind && line["direction"] == direction);
    of.map(|line| line["size"].as_u64().unwrap()).collect()
}

#[test]
fn files_of_a_directory_are_what_is_tried() {
    let scene = Scene::new();
    for n in 0..30 {
        scene.caller.write(format!("photos/{}/{n}", n % 3), vec![1; 15_000]);
    }
    let said = scene.caller.done(&tune("s3://bucket --workload photos --budget 64MiB,8s"));
    for word in [
        "workload: 30 files\n",
        "  uploads of about 16KiB (100 % of requests, 100 % of bytes)\n",
        "  small ones: ",
        "  all of the workload takes about ",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let rows = said.lines().filter(|line| line.trim_start().starts_with("16KiB  ")).count();
    assert!(rows == 2 && !said.contains("\n    64KiB"), "a map of one size: {said}");
}

#[test]
fn objects_below_a_prefix_are_in_parts_as_they_are_moved() {
    let scene = Scene::new();
    scene.store("large/one", &vec![3; 40 << 20]);
    scene.store("other", &[0; 100]);
    let said =
        scene.caller.done(&tune("s3://bucket/here --workload s3://bucket/large --budget 256MiB,8s --json"));
    // Parts of 5 MiB go up, ranges of 2 MiB come down.
    assert_eq!(sizes(&said, "workload", "upload"), [4 << 20].into(), "{said}");
    assert_eq!(sizes(&said, "workload", "download").into_iter().max(), Some(1 << 20), "{said}");
    for direction in ["upload", "download"] {
        assert!(
            sizes(&said, "probe", direction).is_subset(&sizes(&said, "workload", direction)),
            "{direction}: {said}"
        );
    }
    assert_eq!(scene.names(), ["large/one", "other"]);
}

#[test]
fn a_trace_tells_both_directions_apart() {
    let scene = Scene::new();
    scene.caller.write(
        "trace.csv",
        "time,op,key,offset,length\n0,put,a,,65536\n1,get,a,,\n2,get,a,0,4096\n3,get,a,4096,4096\n\
         4,list,,,\n5,get,unknown,,\nsix,get,a,,\n",
    );
    let ran = scene.caller.run(&tune("s3://bucket --workload trace.csv --budget 64MiB,8s --json"));
    assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
    assert!(ran.err.starts_with("tradewind: trace.csv, line 8: "), "{}", ran.err);
    let said = String::from_utf8(ran.out).unwrap();
    assert_eq!(sizes(&said, "workload", "upload"), [64 << 10].into(), "{said}");
    assert_eq!(sizes(&said, "workload", "download"), [4 << 10, 64 << 10].into(), "{said}");
}

#[test]
fn what_is_no_workload_is_said() {
    let scene = Scene::new();
    let caller = &scene.caller;
    caller.write("text", "no trace at all\n");
    std::fs::create_dir(caller.path("empty")).unwrap();
    for (place, complaint) in [
        ("text", "text is neither a directory nor a trace of requests: line 1: "),
        ("nowhere", "nowhere cannot be read"),
        ("empty", "empty: nothing is there that could be moved"),
        ("s3://bucket/nothing", "s3://bucket/nothing: nothing is there that could be moved"),
        ("s3://no-such-bucket/", "s3://no-such-bucket/: "),
    ] {
        let ran = caller.run(&["tune", "s3://bucket", "--workload", place]);
        assert_eq!(ran.status.code(), Some(1), "{place}: {}", ran.err);
        assert!(ran.err.starts_with(&format!("tradewind: {complaint}")), "{place}: {}", ran.err);
    }
    assert_eq!(scene.names(), [""; 0]);
}
