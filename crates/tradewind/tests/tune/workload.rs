//! `tradewind tune --workload`: only the sizes of the workload are measured.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::support::test_store::TestStore;
use super::tune;

/// The sizes in lines of the given kind and direction.
fn sizes(output: &str, kind: &str, direction: &str) -> BTreeSet<u64> {
    let lines = output.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    let selected = lines.filter(|line| line["line"] == kind && line["direction"] == direction);
    selected.map(|line| line["size"].as_u64().unwrap()).collect()
}

#[test]
fn only_sizes_of_files_in_the_directory_are_probed() {
    let scene = TestStore::new();
    for n in 0..30 {
        scene.runner.write(format!("photos/{}/{n}", n % 3), vec![1; 15_000]);
    }
    let output = scene.runner.run_ok(&tune("s3://bucket --workload photos --budget 64MiB,8s"));
    for word in [
        "workload: 30 files\n",
        "  uploads of about 16KiB (100 % of requests, 100 % of bytes)\n",
        "  small requests of ",
        "  whole workload: about ",
    ] {
        assert!(output.contains(word), "{word}: {output}");
    }
    let rows = output.lines().filter(|line| line.trim_start().starts_with("16KiB  ")).count();
    assert!(rows == 2 && !output.contains("\n    64KiB"), "a table with one size: {output}");
}

#[test]
fn large_objects_below_a_prefix_count_as_parts_and_ranges() {
    let scene = TestStore::new();
    scene.store("large/one", &vec![3; 40 << 20]);
    scene.store("other", &[0; 100]);
    let output =
        scene.runner.run_ok(&tune("s3://bucket/here --workload s3://bucket/large --budget 256MiB,8s --json"));
    // Uploads use parts of 5 MiB, downloads ranges of 2 MiB.
    assert_eq!(sizes(&output, "workload", "upload"), [4 << 20].into(), "{output}");
    assert_eq!(sizes(&output, "workload", "download").into_iter().max(), Some(1 << 20), "{output}");
    for direction in ["upload", "download"] {
        assert!(
            sizes(&output, "probe", direction).is_subset(&sizes(&output, "workload", direction)),
            "{direction}: {output}"
        );
    }
    assert_eq!(scene.names(), ["large/one", "other"]);
}

#[test]
fn a_trace_has_separate_sizes_for_each_direction() {
    let scene = TestStore::new();
    scene.runner.write(
        "trace.csv",
        "time,op,key,offset,length\n0,put,a,,65536\n1,get,a,,\n2,get,a,0,4096\n3,get,a,4096,4096\n\
         4,list,,,\n5,get,unknown,,\nsix,get,a,,\n",
    );
    let ran = scene.runner.run(&tune("s3://bucket --workload trace.csv --budget 64MiB,8s --json"));
    assert_eq!(ran.status.code(), Some(0), "{}", ran.err);
    assert!(ran.err.starts_with("tradewind: trace.csv, line 8: "), "{}", ran.err);
    let output = String::from_utf8(ran.out).unwrap();
    assert_eq!(sizes(&output, "workload", "upload"), [64 << 10].into(), "{output}");
    assert_eq!(sizes(&output, "workload", "download"), [4 << 10, 64 << 10].into(), "{output}");
}

#[test]
fn invalid_workloads_are_rejected_with_a_reason() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("text", "no trace at all\n");
    std::fs::create_dir(caller.path("empty")).unwrap();
    for (place, complaint) in [
        ("text", "text is neither a directory nor a trace of requests: line 1: "),
        ("nowhere", "nowhere cannot be read"),
        ("empty", "empty: no objects, files or requests found"),
        ("s3://bucket/nothing", "s3://bucket/nothing: no objects, files or requests found"),
        ("s3://no-such-bucket/", "s3://no-such-bucket/: "),
    ] {
        let ran = caller.run(&["tune", "s3://bucket", "--workload", place]);
        assert_eq!(ran.status.code(), Some(1), "{place}: {}", ran.err);
        assert!(ran.err.starts_with(&format!("tradewind: {complaint}")), "{place}: {}", ran.err);
    }
    assert_eq!(scene.names(), [""; 0]);
}
